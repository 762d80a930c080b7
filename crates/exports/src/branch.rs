//! A shard that reads and writes an export by a volume of its own, and asks the shard that owns it for all else
//! (`docs/design.md`, "One export, several shards").

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::Completion;

use crate::claims::WriteClaim;
use crate::exports::{Exports, VOLUME_NEWS};
use crate::record::RecordState;
use crate::spread::{Asked, Fence, SpreadConfig, Ties, Untold, Word};
use crate::users::{InitiatorRun, Users};

/// How long a run that was asked whether it lives is waited for: its owner has less patience.
const QUESTION: Duration = Duration::from_secs(1);
/// How often an owner is told that a writer was heard, at most, unless leases are shorter than four of these.
const HEARD: Duration = Duration::from_secs(1);

/// What a branch knows besides what its owner does.
pub(crate) struct Branch {
    pub ties: Ties,
    /// Its volume has lost something, when this was the latest edition that it had heard of: nobody is
    /// answered before a later one is in force.
    lost: Option<u64>,
    /// Writers are held back, and whether the owner has been told that none of their I/Os is left.
    hold: Option<(u64, bool)>,
    /// Runs that are asked whether they live, since when.
    questions: Vec<(u64, InitiatorRun, Time)>,
    /// Syncs that the owner is asked for.
    pub syncs: usize,
}

impl Branch {
    pub fn new(spread: SpreadConfig) -> Self {
        let ties = Ties::new(spread);
        Branch { ties, lost: None, hold: None, questions: Vec::new(), syncs: 0 }
    }
}

impl Exports {
    fn branch(&mut self, export: usize) -> &mut Branch {
        self.exports[export].role.branch().expect("asked of a branch")
    }

    pub(crate) fn tell_owner(&mut self, export: usize, word: Word) {
        let owner = self.branch(export).ties.spread.owner;
        self.post(export, owner, word);
    }

    pub(crate) fn on_owner_word(
        &mut self,
        now: Time,
        export: usize,
        word: Word,
        users: &mut dyn Users,
    ) {
        match word {
            Word::Granted { session, transaction, generation, grant } => {
                // To one that has gone since it is granted all the same: what wrote before is fenced.
                if !self.take_asked(session, transaction) {
                    self.tell_owner(export, Word::Ended { session, last_heard: now });
                } else {
                    let granted = self.open(session, export, generation, Some(grant));
                    let opened = Untold { session, transaction, export, granted };
                    self.tell_opened(opened, users);
                }
            }
            Word::Denied { session, transaction, denied } => {
                if self.take_asked(session, transaction) {
                    users.on_denied(session, transaction, denied);
                }
            }
            Word::Closed { session, transaction } => {
                let before = self.closings.len();
                self.closings.retain(|c| (c.session, c.transaction) != (session, transaction));
                if self.closings.len() < before {
                    users.on_closed(session, transaction);
                }
            }
            Word::Fenced(Fence { by, generation, idle, member }) => {
                self.exports[export].writer.generation = generation;
                self.exports[export].writer.idle = idle;
                self.fence_writers(export, member);
                self.tell_fenced(export, by, generation, users);
            }
            Word::Record { generation } => self.exports[export].writer.generation = generation,
            Word::Ask { run, question } => {
                if users.ask(now, run) {
                    self.branch(export).questions.push((question, run, now));
                }
            }
            Word::Hold { hold } => {
                self.branch(export).hold = Some((hold, false));
                self.hold_writers(export);
            }
            Word::Release { hold } => {
                debug_assert_eq!(self.branch(export).hold.map(|(hold, _)| hold), Some(hold));
                self.branch(export).hold = None;
                self.hold_writers(export);
            }
            Word::Synced { io, result } => {
                self.syncs_elsewhere -= 1;
                self.branch(export).syncs -= 1;
                self.end_io(export, Completion::new(io, result));
            }
            Word::Verifier { edition, verifier } => self.on_edition(export, edition, verifier),
            Word::Heeded { edition } => {
                let ties = &mut self.branch(export).ties;
                // Another may have come behind it, which is to be heeded, too.
                if ties.edition == edition
                    && let Some(verifier) = ties.next.take()
                {
                    self.exports[export].verifier = verifier;
                    self.try_answer(export);
                }
            }
            Word::Grown => {
                self.exports[export].volume.refresh();
                self.to_poll.insert(export);
                self.news |= VOLUME_NEWS;
            }
            other => debug_assert!(false, "no word of an owner: {other:?}"),
        }
    }

    /// The volume of a branch has lost something.
    pub(crate) fn report_loss(&mut self, export: usize) {
        let branch = self.branch(export);
        let edition = branch.ties.edition;
        // No write was begun under a later one, so that tells of this, too.
        if branch.lost.replace(edition) != Some(edition) {
            self.tell_owner(export, Word::Lost { edition });
            self.fall_silent(export);
        }
    }

    fn on_edition(&mut self, export: usize, edition: u64, verifier: u64) {
        // What was lost before this shard has heard of it is what it tells of.
        self.check_events(export);
        let branch = self.branch(export);
        branch.ties.edition = edition;
        branch.ties.next = Some(verifier);
        branch.lost = None;
        self.fall_silent(export);
        self.tell_owner(export, Word::Seen { edition });
    }

    fn try_answer(&mut self, export: usize) {
        let branch = self.branch(export);
        if branch.lost.is_none() && branch.ties.next.is_none() {
            self.answer_again(export);
        }
    }

    /// Holds writers back if this is a branch, as long as the owner says so, or the branch answers nobody: a
    /// write may not be begun under a verifier that is older than what others have been told.
    pub(crate) fn hold_writers(&mut self, export: usize) {
        let is_mute = self.mute.contains(export);
        let e = &mut self.exports[export];
        let Some(branch) = e.role.branch() else { return };
        let is_held = branch.hold.is_some() || is_mute;
        e.record = if is_held { RecordState::Held } else { RecordState::Settled };
        self.release |= !is_held;
    }

    /// A sync for an I/O of this shard.
    pub(crate) fn sync_elsewhere(&mut self, export: usize, token: u64) {
        self.syncs_elsewhere += 1;
        self.branch(export).syncs += 1;
        self.tell_owner(export, Word::Sync { io: token });
    }

    /// Passes a claim on.
    pub(crate) fn ask_owner(&mut self, claim: WriteClaim<'_>) {
        let WriteClaim { user, transaction, export, resumes, takes_over } = claim;
        self.asked.push(Asked { session: user.session, transaction, export });
        let user = user.clone();
        self.tell_owner(export, Word::Claim { user, transaction, resumes, takes_over });
    }

    /// The owner has decided about a claim, whose session may have ended.
    fn take_asked(&mut self, session: u64, transaction: u32) -> bool {
        let is = |asked: &Asked| (asked.session, asked.transaction) == (session, transaction);
        let at = self.asked.iter().position(is);
        at.map(|at| self.asked.remove(at)).is_some()
    }

    /// A writer has closed its pass: of a branch its owner has it recorded.
    pub(crate) fn close_at_owner(
        &mut self,
        export: usize,
        session: u64,
        transaction: u32,
        grant: u64,
    ) {
        if self.exports[export].role.is_branch() {
            let written = self.exports[export].written;
            self.tell_owner(export, Word::Close { session, transaction, grant, written });
        }
    }

    /// The places of a session's writer's passes for branches.
    fn written_elsewhere(&self, session: u64) -> Vec<usize> {
        let is_written = |at: &usize| {
            let pass = &self.passes[*at];
            let is_writer = !pass.read_only && !pass.fenced;
            is_writer && self.exports[pass.export].role.is_branch()
        };
        self.passes.of_session(session).filter(is_written).collect()
    }

    /// A session is about to end, which was heard last then.
    pub(crate) fn tell_owners_of_end(&mut self, session: u64, last_heard: Time) {
        let asked = self.asked.iter().filter(|asked| asked.session == session);
        let mut exports: Vec<_> = asked.map(|asked| asked.export).collect();
        let written = self.written_elsewhere(session);
        exports.extend(written.into_iter().map(|at| self.passes[at].export));
        exports.sort_unstable();
        exports.dedup();
        self.asked.retain(|asked| asked.session != session);
        for export in exports {
            self.tell_owner(export, Word::Ended { session, last_heard });
        }
    }

    /// A session was heard: leases are counted by owners.
    pub(crate) fn tell_owners_of_life(&mut self, session: u64, last_heard: Time) {
        let period = HEARD.min(self.config.lease / 4);
        for at in self.written_elsewhere(session) {
            let pass = &mut self.passes[at];
            if pass.told_heard.is_none_or(|before| last_heard >= before + period) {
                pass.told_heard = Some(last_heard);
                let export = pass.export;
                self.tell_owner(export, Word::Heard { session, last_heard });
            }
        }
    }

    /// Tells the owner what there is to tell. True if there will be more.
    pub(crate) fn settle_branch(
        &mut self,
        now: Time,
        export: usize,
        users: &mut dyn Users,
    ) -> bool {
        let e = &self.exports[export];
        let (is_dry, written) = (e.writers_outstanding == 0, e.written);
        let branch = self.branch(export);
        let mut words = Vec::new();
        if let Some((hold, is_told @ false)) = &mut branch.hold
            && is_dry
        {
            *is_told = true;
            words.push(Word::Drained { hold: *hold, written });
        }
        branch.questions.retain(|&(question, run, since)| {
            let lives = users.has_answered(run, since);
            if lives {
                words.push(Word::Alive { question });
            }
            !lives && now < since + QUESTION
        });
        let has_more = matches!(branch.hold, Some((_, false))) || !branch.questions.is_empty();
        words.into_iter().for_each(|word| self.tell_owner(export, word));
        has_more
    }
}
