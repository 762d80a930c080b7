//! The shard that decides about an export which others have, too: who writes, when all are fenced, and what
//! was lost (`docs/design.md`, "One export, several shards").

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Io, IoError, Op};

use crate::claims::WriteClaim;
use crate::exports::{DoorCanary, Exports};
use crate::holder::Grant;
use crate::record::{Closing, RECORD_TOKEN};
use crate::spread::{Fence, Role, SYNC_TOKEN, SpreadConfig, Ties, Word};
use crate::twin::Twin;
use crate::users::{Denied, InitiatorRun, Pass};

/// What an owner knows of its branches.
pub(crate) struct Owner {
    pub ties: Ties,
    /// Which edition of the verifier each shard has heard of.
    seen: Vec<u64>,
    /// Counts the times that writers were held back everywhere.
    hold: u64,
    is_held: bool,
    /// Which of them each shard has run dry under.
    drained: Vec<u64>,
    /// For whom the sync that runs is, if one does, and for whom the next.
    riding: Vec<Rider>,
    waiting: Vec<Rider>,
    is_syncing: bool,
    /// Counts questions whether a run lives; what is known of the last.
    question: u64,
    pub lives: bool,
    /// The generation that branches have heard of.
    told_generation: u64,
}

/// Who waits for a sync.
#[derive(Clone, Copy, Debug)]
enum Rider {
    /// An I/O of this shard.
    Own(u64),
    /// One of a branch.
    Of(u8, u64),
}

impl Owner {
    pub fn new(spread: SpreadConfig) -> Self {
        let shards = usize::from(spread.shards);
        Owner {
            ties: Ties::new(spread),
            seen: vec![0; shards],
            hold: 0,
            is_held: false,
            drained: vec![0; shards],
            riding: Vec::new(),
            waiting: Vec::new(),
            is_syncing: false,
            question: 0,
            lives: false,
            told_generation: 0,
        }
    }

    /// The shards that have branches.
    fn branches(&self) -> impl Iterator<Item = u8> + use<> {
        let SpreadConfig { owner, shards, .. } = self.ties.spread;
        (0..shards).filter(move |&shard| shard != owner)
    }

    /// All branches have said as much.
    fn is_said(&self, said: &[u64], number: u64) -> bool {
        self.branches().all(|shard| said[usize::from(shard)] >= number)
    }
}

impl Exports {
    fn owner(&mut self, export: usize) -> &mut Owner {
        self.exports[export].role.owner().expect("asked of the owner")
    }

    /// Writes to all branches of an export; of one that has none to nobody.
    pub(crate) fn tell_branches(&mut self, export: usize, word: impl Fn() -> Word) {
        let Role::Owner(owner) = &self.exports[export].role else { return };
        owner.branches().for_each(|shard| self.post(export, shard, word()));
    }

    pub(crate) fn on_branch_word(&mut self, now: Time, export: usize, from: u8, word: Word) {
        match word {
            Word::Claim { user, transaction, resumes, takes_over } => {
                let claim = WriteClaim { user: &user, transaction, export, resumes, takes_over };
                if let Err(denied) = self.claim_from(now, claim, Some(from)) {
                    self.deny_elsewhere(export, from, user.session, transaction, denied);
                }
            }
            Word::Close { session, transaction, grant, written } => {
                self.note_written(export, written);
                let holder = self.exports[export].holder.as_mut();
                if let Some(member) = holder.and_then(|holder| holder.granted(grant)) {
                    member.is_elsewhere = false;
                }
                self.closings.push(Closing {
                    session,
                    shard: Some(from),
                    pass: Pass { number: 0, generation: 0 },
                    transaction,
                    export,
                    grant,
                    is_storing: false,
                });
            }
            Word::Ended { session, last_heard } => {
                self.heard(session, last_heard);
                self.leave_elsewhere(export, session);
                self.withdraw_claims(session);
            }
            Word::Heard { session, last_heard } => self.heard(session, last_heard),
            Word::Alive { question } => {
                let owner = self.owner(export);
                owner.lives |= owner.question == question;
            }
            Word::Drained { hold, written } => {
                self.note_written(export, written);
                self.owner(export).drained[usize::from(from)] = hold;
            }
            Word::Sync { io } => {
                self.owner(export).waiting.push(Rider::Of(from, io));
                self.start_sync(export);
            }
            Word::Lost { edition } => {
                // One that was made before the branch has heard of it tells of this, too.
                if self.owner(export).ties.edition == edition {
                    self.make_edition(export);
                }
            }
            Word::Seen { edition } => {
                self.owner(export).seen[usize::from(from)] = edition;
                self.heed(export);
            }
            other => debug_assert!(false, "no word of a branch: {other:?}"),
        }
    }

    /// The next edition of the verifier. Nobody is answered before all branches have heard of it, so that
    /// none tells the one from before when another has told this one.
    pub(crate) fn make_edition(&mut self, export: usize) {
        let verifier = self.next_verifier();
        let untold = self.config.canary == DoorCanary::VerifierUntold;
        let ties = &mut self.owner(export).ties;
        ties.edition += 1;
        ties.next = Some(verifier);
        let edition = ties.edition;
        self.tell_branches(export, || Word::Verifier { edition, verifier });
        if untold {
            self.owner(export).seen.fill(edition);
        }
        self.fall_silent(export);
        self.heed(export);
    }

    /// Puts the next verifier in force if all have heard of it.
    fn heed(&mut self, export: usize) {
        let owner = self.owner(export);
        let edition = owner.ties.edition;
        if !owner.is_said(&owner.seen, edition) {
            return;
        }
        let Some(verifier) = owner.ties.next.take() else { return };
        self.exports[export].verifier = verifier;
        self.tell_branches(export, || Word::Heeded { edition });
        self.answer_again(export);
    }

    /// A sync for an I/O of this shard.
    pub(crate) fn sync_as_owner(&mut self, export: usize, token: u64) {
        self.owner(export).waiting.push(Rider::Own(token));
        self.start_sync(export);
    }

    /// One at a time: of two together one may be told of what the other has lost, and the other not. Who comes
    /// while one runs waits for the next (rule 13).
    fn start_sync(&mut self, export: usize) {
        let is_fenced = self.is_fenced(export);
        let owner = self.owner(export);
        if owner.is_syncing || owner.waiting.is_empty() || is_fenced {
            return;
        }
        owner.is_syncing = true;
        std::mem::swap(&mut owner.riding, &mut owner.waiting);
        let token = RECORD_TOKEN | SYNC_TOKEN | export as u64;
        self.exports[export].volume.submit(Io::new(token, Op::Flush, 0, 0));
        self.to_poll.insert(export);
        (self.started, self.goes_on) = (true, true);
    }

    pub(crate) fn on_sync_ended(&mut self, export: usize, result: Result<(), IoError>) {
        if result.is_err() && self.config.canary != DoorCanary::SameVerifier {
            self.change_verifier(export);
        }
        let owner = self.owner(export);
        owner.is_syncing = false;
        let mut riders = std::mem::take(&mut owner.riding);
        for rider in riders.drain(..) {
            match rider {
                Rider::Own(token) => self.end_io(export, Completion::new(token, result)),
                // A verifier that is on its way there comes before, so it is answered under that.
                Rider::Of(shard, io) => self.post(export, shard, Word::Synced { io, result }),
            }
        }
        self.owner(export).riding = riders;
        self.start_sync(export);
    }

    /// Holds writers back on all shards. True once all branches have run dry of their I/Os.
    pub(crate) fn hold_branches(&mut self, export: usize) -> bool {
        let of_one = self.config.canary == DoorCanary::FenceOfOneRing;
        let Some(owner) = self.exports[export].role.owner() else { return true };
        if !owner.is_held {
            owner.is_held = true;
            owner.hold += 1;
            let hold = owner.hold;
            self.to_tell.insert(export);
            self.tell_branches(export, || Word::Hold { hold });
        }
        let owner = self.owner(export);
        of_one || owner.is_said(&owner.drained, owner.hold)
    }

    /// A branch says what its writers have written under last.
    fn note_written(&mut self, export: usize, written: u64) {
        if self.config.canary != DoorCanary::WrittenElsewhere {
            let e = &mut self.exports[export];
            e.written = e.written.max(written);
        }
    }

    /// Everybody who wrote before is fenced, on all branches.
    pub(crate) fn fence_branches(&mut self, export: usize, fence: Fence) {
        if let Some(owner) = self.exports[export].role.owner() {
            owner.told_generation = fence.generation;
            self.tell_branches(export, || Word::Fenced(fence));
        }
    }

    /// A claim of a branch is granted: the pass is made there.
    pub(crate) fn grant_elsewhere(
        &mut self,
        export: usize,
        shard: u8,
        session: u64,
        transaction: u32,
        generation: u64,
        grant: Grant,
    ) {
        self.post(export, shard, Word::Granted { session, transaction, generation, grant });
    }

    pub(crate) fn deny_elsewhere(
        &mut self,
        export: usize,
        shard: u8,
        session: u64,
        transaction: u32,
        denied: Denied,
    ) {
        self.post(export, shard, Word::Denied { session, transaction, denied });
    }

    /// Asks all branches whether a holder's run lives: its members may be on any of them, and a session may have
    /// moved since it was granted the export. False if there are none.
    pub(crate) fn ask_branches(&mut self, export: usize, run: InitiatorRun) -> bool {
        let Some(owner) = self.exports[export].role.owner() else { return false };
        owner.question += 1;
        owner.lives = false;
        let question = owner.question;
        let is_asked = owner.branches().next().is_some();
        self.tell_branches(export, || Word::Ask { run, question });
        is_asked
    }

    /// A session of another shard has ended.
    fn leave_elsewhere(&mut self, export: usize, session: u64) {
        let members = self.exports[export].holder.iter_mut().flat_map(|h| &mut h.members);
        members.filter(|m| m.session == session).for_each(|m| m.is_elsewhere = false);
    }

    /// Tells branches what there is to tell. True if there will be more.
    pub(crate) fn settle_owner(&mut self, export: usize) -> bool {
        let e = &mut self.exports[export];
        let generation = e.writer.generation;
        let owner = e.role.owner().expect("asked of the owner");
        if std::mem::replace(&mut owner.told_generation, generation) != generation {
            self.tell_branches(export, || Word::Record { generation });
        }
        let e = &mut self.exports[export];
        let owner = e.role.owner().expect("asked of the owner");
        let is_claimed = self.claims.iter().any(|c| c.export == export && c.twin == Twin::Cleared);
        if owner.is_held && !is_claimed && !e.record.is_in_doubt() {
            owner.is_held = false;
            let hold = owner.hold;
            self.tell_branches(export, || Word::Release { hold });
        }
        self.owner(export).is_held
    }
}
