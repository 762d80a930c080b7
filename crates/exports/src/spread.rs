//! One export on several shards: what its owner and its branches say to one another
//! (`docs/design.md`, "One export, several shards").

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Geometry, Io, IoError, Op};

use crate::branch::Branch;
use crate::exports::{DoorCanary, ExportConfig, Exports, SPREAD_NEWS, VOLUME_NEWS};
use crate::holder::Grant;
use crate::ios::IoTicket;
use crate::owner::Owner;
use crate::record::{RECORD_TOKEN, RecordState};
use crate::twin::Twin;
use crate::users::{Denied, Granted, InitiatorRun, User, Users};

/// Beside [`RECORD_TOKEN`]: the token of a sync that an owner has begun, with the index of the export.
pub(crate) const SYNC_TOKEN: u64 = 1 << 62;

/// How an export is spread over the shards of a target. All shards agree on all of it but `shard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadConfig {
    /// Names the export in letters: unique among the exports of the target.
    pub number: u32,
    /// This shard.
    pub shard: u8,
    /// How many shards there are: they are numbered from 0.
    pub shards: u8,
    /// The shard that owns it; the others have branches.
    pub owner: u8,
    /// Its first verifier: differs from that of every other start and export, as far as chance goes.
    pub verifier: u64,
}

impl SpreadConfig {
    /// The shard on which sessions of this initiator's member are to be: the same for all its life, as long as
    /// there are so many. As many members as shards are each on one of its own.
    pub fn dealt(initiator: &[u8; 16], member: u8, shards: u8) -> u8 {
        // FNV-1a, of which the upper half is mixed best.
        let hash = initiator.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (((hash >> 32) + u64::from(member)) % u64::from(shards.max(1))) as u8
    }
}

/// What the door of one shard says to that of another about an export. Letters from one shard to another
/// arrive in their order, each once: what they decide rests on it. The driver carries them and looks at
/// nothing but where they go.
///
/// Of one export there are on the way, at most: one for each pass, claim and syncing I/O of a branch's
/// sessions, one for each writer in a second, and for each branch a few for each claim that is granted, and
/// for each loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorLetter {
    /// The shard that it is for.
    pub to: u8,
    /// The shard that it is from.
    pub from: u8,
    /// See [`SpreadConfig::number`].
    pub export: u32,
    pub(crate) word: Word,
}

/// What a letter says. A branch's owner is told the upper ones, a branch the lower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A session of the branch wants to write.
    Claim { user: User, transaction: u32, resumes: Option<u64>, takes_over: bool },
    /// Its writer closes the pass in order that it had by this grant.
    /// The last generation under which it may have written.
    Close { session: u64, transaction: u32, grant: u64, written: u64 },
    /// A session with a claim or a writer's pass is over, which was heard last then.
    Ended { session: u64, last_heard: Time },
    /// A session that holds the export was heard then.
    Heard { session: u64, last_heard: Time },
    /// A session of the run that was meant has answered that question.
    Alive { question: u64 },
    /// No writer's I/O of this branch is in its volume or will be, as long as that hold lasts; the last generation under which
    /// one of it may have written.
    Drained { hold: u64, written: u64 },
    /// What its sessions have written so far is to be synced, for the I/O of this number.
    Sync { io: u64 },
    /// Its volume has lost something while this was the latest edition of the verifier it had heard of.
    Lost { edition: u64 },
    /// It tells nobody an older one any more.
    Seen { edition: u64 },

    /// A claim is granted under a generation.
    Granted { session: u64, transaction: u32, generation: u64, grant: Grant },
    /// A claim is denied.
    Denied { session: u64, transaction: u32, denied: Denied },
    /// That the writer has ended is on record, or cannot be put there.
    Closed { session: u64, transaction: u32 },
    /// Somebody was granted it.
    Fenced(Fence),
    /// Which generation is on record.
    Record { generation: u64 },
    /// Sessions of this run are to be asked whether they live.
    Ask { run: InitiatorRun, question: u64 },
    /// Writers' new I/Os wait from now on.
    Hold { hold: u64 },
    /// They wait no more.
    Release { hold: u64 },
    /// How a sync has ended.
    Synced { io: u64, result: Result<(), IoError> },
    /// A later edition of the verifier: nobody is answered any more before all have heard of it.
    Verifier { edition: u64, verifier: u64 },
    /// All have.
    Heeded { edition: u64 },
    /// It has grown.
    Grown,

    /// Either is told: what the volume of the other is made of was granted to somebody else, and nobody is answered any more.
    Silent,
}

/// Whom a grant fences: whoever wrote before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub by: InitiatorRun,
    pub generation: u64,
    /// As on record with it.
    pub idle: u32,
    /// Only the former passes of this member, since the others of its run go on.
    pub member: Option<u8>,
}

/// What a shard is to an export.
pub(crate) enum Role {
    /// No other shard has it.
    Plain,
    /// It decides who writes, syncs, and changes the verifier.
    Owner(Box<Owner>),
    /// Reads and writes of its own sessions are all that it does by itself.
    Branch(Box<Branch>),
}

/// What owners and branches have in common.
pub(crate) struct Ties {
    pub spread: SpreadConfig,
    /// The latest edition of the verifier that this shard has heard of, or made.
    pub edition: u64,
    /// The verifier of that edition, until it is in force: nobody is answered before.
    pub next: Option<u64>,
    /// What has ended since, to be answered then.
    kept: Vec<Completion>,
    /// I/Os to be durable once completed that have come since: what was lost before puts them in no doubt.
    delayed: Vec<Io>,
}

impl Ties {
    pub fn new(spread: SpreadConfig) -> Self {
        Ties { spread, edition: 0, next: None, kept: Vec::new(), delayed: Vec::new() }
    }

    /// Nobody is answered any more.
    pub fn give_up(&mut self) {
        self.kept.clear();
        self.delayed.clear();
    }
}

/// A claim that the owner of its export decides, on another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub session: u64,
    pub transaction: u32,
    pub export: usize,
}

/// A pass that has been opened, which its session has not been told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Untold {
    pub session: u64,
    pub transaction: u32,
    pub export: usize,
    pub granted: Granted,
}

impl Role {
    #[inline]
    pub fn is_plain(&self) -> bool {
        matches!(self, Role::Plain)
    }

    #[inline]
    pub fn is_branch(&self) -> bool {
        matches!(self, Role::Branch(_))
    }

    pub fn owner(&mut self) -> Option<&mut Owner> {
        match self {
            Role::Owner(owner) => Some(owner),
            _ => None,
        }
    }

    pub fn branch(&mut self) -> Option<&mut Branch> {
        match self {
            Role::Branch(branch) => Some(branch),
            _ => None,
        }
    }

    fn ties(&self) -> Option<&Ties> {
        match self {
            Role::Plain => None,
            Role::Owner(owner) => Some(&owner.ties),
            Role::Branch(branch) => Some(&branch.ties),
        }
    }

    /// None of a plain one, which is tied to no other shard.
    pub fn ties_mut(&mut self) -> Option<&mut Ties> {
        match self {
            Role::Plain => None,
            Role::Owner(owner) => Some(&mut owner.ties),
            Role::Branch(branch) => Some(&mut branch.ties),
        }
    }

    fn tied(&mut self) -> &mut Ties {
        self.ties_mut().expect("other shards have it, too")
    }

    pub fn spread(&self) -> Option<&SpreadConfig> {
        self.ties().map(|ties| &ties.spread)
    }

    /// The shard that owns it, if this is a branch.
    pub fn branch_of(&self) -> Option<u8> {
        self.spread().filter(|spread| spread.owner != spread.shard).map(|spread| spread.owner)
    }

    /// A branch has told that the run lives that is asked.
    pub fn lives(&self, twin: Twin) -> bool {
        let is_asked = matches!(twin, Twin::Asked(..));
        is_asked && matches!(self, Role::Owner(owner) if owner.lives)
    }
}

impl Exports {
    /// Offers a volume of an export that all shards of the target have: each a volume of its own on the same
    /// content. That of the owner is used for everything; those of the others are never asked to sync, nor for
    /// the writer record, and look for growth only when the owner's has found some. Whatever puts unsynced
    /// writes of one in doubt puts those of all there. Returns its index, as [`Exports::add`] does.
    ///
    /// # Panics
    /// If the name is taken: the caller has checked.
    pub fn add_spread(&mut self, config: ExportConfig, spread: SpreadConfig) -> usize {
        assert!(spread.shard < spread.shards && spread.owner < spread.shards, "{spread:?}");
        if spread.shard == spread.owner {
            let export = self.take_in(config, Role::Owner(Box::new(Owner::new(spread))));
            self.read_record(export);
            return export;
        }
        let export = self.take_in(config, Role::Branch(Box::new(Branch::new(spread))));
        self.exports[export].record = RecordState::Settled;
        export
    }

    /// The door of another shard has something to say. What comes of it is done in this turn: the next
    /// [`Exports::poll`] answers, and [`Exports::settle`] tells.
    pub fn on_letter(&mut self, now: Time, letter: DoorLetter, users: &mut dyn Users) {
        let DoorLetter { from, export: number, word, .. } = letter;
        let is_meant = |role: &Role| role.spread().is_some_and(|spread| spread.number == number);
        let Some(export) = self.exports.iter().position(|e| is_meant(&e.role)) else {
            debug_assert!(false, "no export has the number {number}");
            return;
        };
        if self.is_fenced(export) {
            return;
        }
        self.started = true;
        self.to_tell.insert(export);
        if word == Word::Silent {
            return self.on_fence(export, "what it is made of");
        }
        match self.exports[export].role {
            Role::Owner(_) => self.on_branch_word(now, export, from, word),
            _ => self.on_owner_word(now, export, word, users),
        }
    }

    /// The next letter to another shard.
    pub fn next_letter(&mut self) -> Option<DoorLetter> {
        self.letters.pop_front()
    }

    /// There is one.
    #[inline]
    pub fn has_letters(&self) -> bool {
        !self.letters.is_empty()
    }

    /// Writes to another shard about an export.
    pub(crate) fn post(&mut self, export: usize, to: u8, word: Word) {
        let spread = self.exports[export].role.spread().expect("only of one that others have");
        let letter = DoorLetter { to, from: spread.shard, export: spread.number, word };
        self.letters.push_back(letter);
    }

    /// What a volume has lost, or a sync that failed, has put in doubt what no sync has covered: a new
    /// verifier tells.
    #[cold]
    pub(crate) fn change_verifier(&mut self, export: usize) {
        match self.exports[export].role {
            Role::Plain => self.exports[export].verifier = self.next_verifier(),
            // No write was begun under that which is not in force yet, so it tells of this, too.
            Role::Owner(ref owner) if owner.ties.next.is_some() => {}
            Role::Owner(_) => self.make_edition(export),
            Role::Branch(_) => self.report_loss(export),
        }
    }

    /// Gives an I/O that syncs to the volume of this shard, or asks the owner.
    pub(crate) fn submit_spread(&mut self, export: usize, mut io: Io) {
        if io.op == Op::Flush {
            return self.sync(export, io.token);
        }
        // What has been written is synced then by the owner, as by a flush.
        io.flags.fua = false;
        if self.mute.contains(export) {
            return self.exports[export].role.tied().delayed.push(io);
        }
        self.exports[export].volume.submit(io);
    }

    /// Has what was written until now synced, for an I/O.
    pub(crate) fn sync(&mut self, export: usize, token: u64) {
        let together = self.config.canary == DoorCanary::SyncsTogether;
        match self.exports[export].role {
            Role::Owner(_) => self.sync_as_owner(export, token),
            Role::Branch(_) if together && self.io(token).op == Op::Flush => {
                self.exports[export].volume.submit(Io::new(token, Op::Flush, 0, 0));
                self.goes_on = true;
            }
            _ => self.sync_elsewhere(export, token),
        }
    }

    /// An I/O has ended in all that it needs: it is answered by the next poll, or when the export answers
    /// again.
    pub(crate) fn end_io(&mut self, export: usize, completion: Completion) {
        if self.mute.contains(export) {
            return self.exports[export].role.tied().kept.push(completion);
        }
        self.ended.push((export, completion));
        self.news |= SPREAD_NEWS;
        self.goes_on = true;
    }

    /// An I/O has ended in the volume of an export that answers nobody.
    pub(crate) fn keep(&mut self, export: usize, completion: &mut Completion) {
        if completion.token & RECORD_TOKEN != 0 {
            self.on_own(completion);
            return;
        }
        let io = self.io(completion.token);
        let completion = std::mem::replace(completion, Completion::new(0, Ok(())));
        if io.fua && completion.result.is_ok() {
            return self.sync(export, completion.token);
        }
        self.end_io(export, completion);
    }

    /// The export answers nobody until [`Exports::answer_again`].
    pub(crate) fn fall_silent(&mut self, export: usize) {
        self.mute.insert(export);
        // What its volume has heard of by now is told by the verifier that is on its way.
        self.news |= SPREAD_NEWS | VOLUME_NEWS;
        // The owner may tell others before it tells this branch that all have heard.
        self.hold_writers(export);
    }

    /// The verifier that tells of all that was lost is in force.
    pub(crate) fn answer_again(&mut self, export: usize) {
        if self.is_fenced(export) {
            return;
        }
        self.mute.remove(export);
        self.hold_writers(export);
        let e = &mut self.exports[export];
        let ties = e.role.tied();
        // Their memory is kept for the next time.
        self.ended.extend(ties.kept.drain(..).map(|completion| (export, completion)));
        for io in ties.delayed.drain(..) {
            let pending = self.ios[io.token as usize].as_mut().expect("it has not ended");
            pending.verifier = e.verifier;
            e.volume.submit(io);
        }
        self.to_poll.insert(export);
        self.to_tell.insert(export);
        self.news |= SPREAD_NEWS;
        (self.goes_on, self.started) = (true, true);
    }

    /// A pass has been opened: tells its session, as soon as the export answers.
    pub(crate) fn tell_opened(&mut self, opened: Untold, users: &mut dyn Users) {
        if self.mute.contains(opened.export) {
            self.untold.push(opened);
        } else {
            users.on_granted(opened.session, opened.transaction, &opened.granted);
        }
    }

    /// Tells of the passes that were opened while an export answered nobody, if it answers again.
    pub(crate) fn tell_untold(&mut self, export: usize, users: &mut dyn Users) {
        if self.untold.is_empty() || self.mute.contains(export) {
            return;
        }
        let e = &self.exports[export];
        let (verifier, bytes) = (e.verifier, e.volume.geometry().bytes);
        for Untold { session, transaction, granted, .. } in
            self.untold.extract_if(.., |opened| opened.export == export)
        {
            // That it has grown since was told before, to whoever knew of a pass.
            let geometry = Geometry { bytes, ..granted.geometry };
            let granted = Granted { verifier, geometry, ..granted };
            users.on_granted(session, transaction, &granted);
        }
    }

    /// Takes out of what has ended what may not be answered yet, and answers what may by now.
    #[cold]
    pub(crate) fn poll_spread(
        &mut self,
        done: &mut Vec<Completion>,
        ends: &mut [(usize, usize)],
        deliver: &mut impl FnMut(IoTicket, Op, u64, &mut Completion),
    ) {
        let mut unsorted = std::mem::replace(done, std::mem::take(&mut self.unsorted));
        let mut all = unsorted.drain(..);
        let mut at = 0;
        for (export, end) in ends.iter_mut() {
            for mut completion in all.by_ref().take(*end - at) {
                if self.mute.contains(*export) && completion.token & RECORD_TOKEN == 0 {
                    self.keep(*export, &mut completion);
                } else {
                    done.push(completion);
                }
            }
            at = std::mem::replace(end, done.len());
        }
        drop(all);
        self.unsorted = unsorted;
        let mut waiting = std::mem::take(&mut self.ended);
        for (export, mut completion) in waiting.drain(..) {
            if self.mute.contains(export) {
                self.end_io(export, completion);
                continue;
            }
            let io = self.take_io(completion.token);
            self.deliver(export, &io, &mut completion, deliver);
        }
        debug_assert!(self.ended.is_empty(), "nothing is begun here");
        self.ended = waiting;
        if self.mute.is_empty() {
            self.news &= !SPREAD_NEWS;
        }
    }
}
