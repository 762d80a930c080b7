//! The exports of one shard, and their verifiers.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_volume::{ChangeError, Completion, Volume, WriterRecord};

use crate::claims::PendingClaim;
use crate::events::Refresh;
use crate::holder::Holder;
use crate::ios::PendingIo;
use crate::marks::Marks;
use crate::passes::Passes;
use crate::record::{Closing, RecordState};
use crate::spread::{Asked, DoorLetter, Role, Untold};
use crate::timed::Timed;

/// Sentences that wait for the driver, at most.
const NOTES_MAX: usize = 16;
/// Something has happened to a volume since all of them were asked.
pub(crate) const VOLUME_NEWS: u8 = 1 << 0;
/// An export that other shards have, too, answers nobody, or something waits to be answered of one.
pub(crate) const SPREAD_NEWS: u8 = 1 << 1;
/// Of initiators: in which of its sessions each was granted an export last.
pub(crate) type LastGrants = VecDeque<([u8; 16], u64)>;

/// Initiators of which an export remembers the last grant.
const GRANTS_KEPT: usize = 64;
/// Exports that were taken away of which it is remembered who was granted them.
pub(crate) const LEFT_KEPT: usize = 256;
/// Flushes of an export that wait together before a list of them must grow.
const FLUSHES: usize = 64;
/// What one verifier differs from the one before by: any odd number does.
const VERIFIER_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Settings of the door.
#[derive(Clone, Debug)]
pub struct ExportsConfig {
    /// How long a silent writer keeps its export before another may have it.
    pub lease: Duration,
    /// Generations of passes begin behind this one.
    pub pass_generation: u32,
    /// Tests only: see [`DoorCanary`].
    pub canary: DoorCanary,
}

impl Default for ExportsConfig {
    fn default() -> Self {
        ExportsConfig {
            lease: Duration::from_secs(30),
            pass_generation: 0,
            canary: DoorCanary::None,
        }
    }
}

/// A fault planted in the door, which the simulator must find (`docs/design.md`). No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DoorCanary {
    /// None: the door as it is.
    #[default]
    None,
    /// The verifier stays as it is when a flush has failed.
    SameVerifier,
    /// A FUA operation is acknowledged although a flush beside it has failed.
    FuaBesideFailedFlush,
    /// A claim that comes late, in a session that its initiator has left behind, is granted.
    StaleAttach,
    /// A writer is granted the export while requests of its predecessor are in the store.
    GrantOverRequests,
    /// A sync that failed elsewhere on the same device puts nothing in doubt.
    LossesUnnoticed,
    /// A record that cannot be stored is not put back.
    RecordInOneStep,
    /// Nothing is recorded.
    RecordLost,
    /// A claim that waits fences the present writer.
    FencedByWaiting,
    /// Who is fenced on one export is fenced on all of its session.
    FencedTogether,
    /// What a volume has lost is looked at when those who have seen it are answered.
    VerifierAfterAnswer,
    /// Nobody who has an export open is told that it has grown.
    GrowthUntold,
    /// The door is skipped: whoever ever had a pass for an export is let in.
    DoorSkipped,
    /// A branch of a spread export syncs by itself, beside its owner.
    SyncsTogether,
    /// A writer is granted a spread export while requests of its predecessor are in a branch's volume.
    FenceOfOneRing,
    /// A new verifier of a spread export is told before all shards have heard of it.
    VerifierUntold,
    /// Of a writer with several members only the first is fenced.
    FenceOfFirstMember,
    /// A member that comes back closes the passes of the others.
    MemberFencesAll,
    /// The volume of an export that is taken away is given out at once, whatever is under way in it.
    LeavesAtOnce,
    /// Nothing counts as written under the present generation.
    WrittenUnnoticed,
    /// What was written on another shard does not.
    WrittenElsewhere,
    /// Each generation counts as written under.
    IdleUntold,
    /// Who uses an export whose volume was fenced is told that an I/O has failed.
    FencedTold,
}

/// A volume to offer.
pub struct ExportConfig {
    /// Its name, unique on this target.
    pub name: String,
    /// The volume. Reports what it is like, and keeps the writer record.
    pub volume: Box<dyn Volume>,
    /// Offer it for reading only.
    pub read_only: bool,
}

/// Counters of the door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorStats {
    /// I/Os given to volumes.
    pub ios: u64,
    /// Writers fenced.
    pub fenced: u64,
    /// Claims denied since another process with the same identity is alive.
    pub twins: u64,
}

/// Whether an export is offered. Each state leads to the next one only, but that any may be fenced that is there, and is
/// gone then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Who looks for it finds it.
    There,
    /// Not any more: what is under way ends.
    Draining,
    /// It has, and is synced.
    Syncing,
    /// Its volume may be let go of.
    Synced,
    /// It has been: another may have the place.
    Gone,
    /// Somebody else has what it is made of (`fenced.rs`): to all who look for it, it is not there, and its volume is
    /// given nothing any more.
    Fenced,
    /// The same, while it was being taken away.
    Ousted,
}

impl Presence {
    pub fn is_leaving(self) -> bool {
        matches!(self, Presence::Draining | Presence::Syncing | Presence::Synced)
    }
}

pub(crate) struct Export {
    pub name: String,
    /// See [`ExportOpening::exchange`](crate::ExportOpening::exchange).
    pub exchange: u64,
    pub presence: Presence,
    pub volume: Box<dyn Volume>,
    pub read_only: bool,
    /// Changes whenever unflushed writes may have been lost.
    pub verifier: u64,
    /// What the volume counted when that was last looked at.
    pub events: u64,
    /// How often it may have lost something.
    pub losses: u64,
    /// What it lies on has become shorter.
    pub has_shrunk: bool,
    /// The record in force.
    pub writer: WriterRecord,
    /// The last generation under which something may have been written, as far as this shard knows.
    pub written: u64,
    pub record: RecordState,
    /// That its writer has ended could not be stored: that may be found all the same.
    pub may_be_released: bool,
    /// How the last change of the record ended, until its claim has heard of it.
    pub changed: Option<Result<(), ChangeError>>,
    pub holder: Option<Holder>,
    /// Claims that wait for it.
    pub claims: usize,
    /// I/Os in the volume, readers' not counted.
    pub writers_outstanding: usize,
    /// Initiators that were granted it for writing, and in which of their sessions last, by number.
    pub granted: LastGrants,
    /// How often it was granted for writing in this life of the node.
    pub grants: u64,
    /// Under which generation it was granted last, in this life of the node.
    pub granted_generation: Option<u64>,
    /// What this shard is to it.
    pub role: Role,
    /// It has grown, and nobody has been told.
    pub has_grown: bool,
    pub flush_running: bool,
    /// Flushes that came while one was running: the next one serves them all (rule 13).
    pub flush_waiting: Vec<u64>,
    /// Flushes that the running one serves besides its own.
    pub flush_riders: Vec<u64>,
}

impl Export {
    /// Takes note of a grant for writing.
    pub fn note_grant(&mut self, initiator: [u8; 16], session_number: u64, generation: u64) {
        self.granted_generation = Some(generation);
        self.granted.retain(|(known, _)| *known != initiator);
        if self.granted.len() == GRANTS_KEPT {
            self.granted.pop_front();
        }
        self.granted.push_back((initiator, session_number));
    }

    /// Takes over what another export of this name knew.
    pub fn remember(&mut self, former: LastGrants) {
        for (initiator, number) in former.into_iter().rev() {
            if self.granted.len() < GRANTS_KEPT
                && !self.granted.iter().any(|&(known, _)| known == initiator)
            {
                self.granted.push_front((initiator, number));
            }
        }
    }

    /// The record once its present holder has ended in order.
    pub fn released(&self, written: u64) -> WriterRecord {
        self.writer.released().with_written(written)
    }

    /// What the writer on record is called.
    pub fn writer_name(&self) -> Option<&str> {
        let known = self.holder.as_ref().map(|holder| holder.name.as_str());
        known.or_else(|| self.writer.is_held().then(|| self.writer.name.as_str()))
    }
}

/// The exports of one shard, and the only way to them.
pub struct Exports {
    pub(crate) config: ExportsConfig,
    pub(crate) exports: Vec<Export>,
    pub(crate) passes: Passes,
    /// By the session of an [`Export::holder`], its exports.
    pub(crate) held: BTreeSet<(u64, usize)>,
    pub(crate) pass_generation: u32,
    pub(crate) claims: Vec<PendingClaim>,
    /// Exports for which a claim waits; recycled between settlings.
    pub(crate) waited_for: Marks,
    pub(crate) ios: Vec<Option<PendingIo>>,
    pub(crate) ios_free: Vec<usize>,
    /// Recycled between polls.
    pub(crate) done: Vec<Completion>,
    /// Those exports of which there are any, and where in `done` each one's end.
    pub(crate) done_ends: Vec<(usize, usize)>,
    /// Exports whose volumes the next poll polls: all that have something outstanding, and maybe others.
    pub(crate) to_poll: Marks,
    /// What a poll has to look at besides what has ended: [`VOLUME_NEWS`], [`SPREAD_NEWS`].
    pub(crate) news: u8,
    /// I/Os that had to wait are to be tried again.
    pub(crate) release: bool,
    /// Exports whose record was not resolved when that was last looked at: see [`RecordState::Unresolved`].
    pub(crate) unresolved: Marks,
    /// Something of a record has begun or ended since [`Exports::take_started`], or a flush has begun that
    /// no poll has followed.
    pub(crate) started: bool,
    /// A completion has begun another I/O, which must reach the disk in this turn.
    pub(crate) goes_on: bool,
    /// Writers that have ended, oldest first.
    pub(crate) closings: Vec<Closing>,
    /// Records travel in its memory.
    pub(crate) pool: Pool,
    /// Exports of which there is something to tell: that they have grown, or to other shards.
    pub(crate) to_tell: Marks,
    pub(crate) refresh: Refresh,
    pub(crate) timed: Timed,
    pub(crate) stats: DoorStats,
    /// Exports on their way out.
    pub(crate) leaving: usize,
    /// Those that were fenced, and whose volumes are still here, oldest first.
    pub(crate) fences: VecDeque<usize>,
    /// By name, those of exports that are gone, the latest last.
    pub(crate) left: VecDeque<(String, LastGrants)>,
    /// To other shards, oldest first.
    pub(crate) letters: VecDeque<DoorLetter>,
    /// SpreadConfig exports that answer nobody: a verifier is not heeded everywhere yet.
    pub(crate) mute: Marks,
    /// What has ended and waits for the next poll, with its export.
    pub(crate) ended: Vec<(usize, Completion)>,
    /// Recycled between polls that take out what may not be answered.
    pub(crate) unsorted: Vec<Completion>,
    /// Claims that owners on other shards decide.
    pub(crate) asked: Vec<Asked>,
    /// Passes of which nobody is told while their export answers nobody.
    pub(crate) untold: Vec<Untold>,
    /// Syncs that owners on other shards are asked for.
    pub(crate) syncs_elsewhere: usize,
    /// How many exchanges of exports there were.
    pub(crate) exchange: u64,
    verifier: u64,
    /// What a person who looks after the node should know, oldest first.
    notes: VecDeque<String>,
}

impl Exports {
    /// Memory that one I/O in a volume takes, in bytes.
    pub const IO_BYTES: usize = size_of::<Option<PendingIo>>() + 3 * size_of::<u64>();
    /// Memory that one pass takes, in bytes.
    pub const PASS_BYTES: usize = Passes::PASS_BYTES;
    /// Memory that one claim that waits takes, in bytes, the name of the user not counted.
    pub const CLAIM_BYTES: usize = size_of::<PendingClaim>();

    /// A door without exports. `seed` must differ from that of every other start: verifiers are made
    /// of it.
    pub fn new(config: ExportsConfig, seed: u64, pool: &Pool) -> Self {
        Exports {
            pass_generation: config.pass_generation,
            config,
            exports: Vec::new(),
            passes: Passes::default(),
            held: BTreeSet::new(),
            claims: Vec::new(),
            waited_for: Marks::default(),
            ios: Vec::new(),
            ios_free: Vec::new(),
            done: Vec::new(),
            done_ends: Vec::new(),
            to_poll: Marks::default(),
            news: 0,
            release: false,
            unresolved: Marks::default(),
            started: false,
            goes_on: false,
            closings: Vec::new(),
            pool: pool.clone(),
            to_tell: Marks::default(),
            refresh: Refresh::new(),
            timed: Timed::new(),
            stats: DoorStats::default(),
            leaving: 0,
            fences: VecDeque::new(),
            left: VecDeque::new(),
            letters: VecDeque::new(),
            mute: Marks::default(),
            ended: Vec::new(),
            unsorted: Vec::new(),
            asked: Vec::new(),
            untold: Vec::new(),
            syncs_elsewhere: 0,
            exchange: 0,
            verifier: seed,
            notes: VecDeque::new(),
        }
    }

    /// Offers a volume. Its writer record is read first: claims wait for that. Returns its index: the next one, or that
    /// of an export that is gone.
    ///
    /// # Panics
    /// If the name is taken: the caller has checked.
    pub fn add(&mut self, config: ExportConfig) -> usize {
        let export = self.take_in(config, Role::Plain);
        self.read_record(export);
        export
    }

    /// Takes a volume in; nothing is asked of it yet.
    pub(crate) fn take_in(&mut self, config: ExportConfig, role: Role) -> usize {
        let ExportConfig { name, volume, read_only } = config;
        assert!(self.find(&name).is_none(), "export {name} twice");
        let (events, is_timed) = (volume.events(), volume.is_timed());
        self.refresh.at = Time::ZERO;
        let verifier = match role.spread() {
            Some(spread) => spread.verifier,
            None => self.next_verifier(),
        };
        let left = self.left.iter().position(|(left, _)| *left == name);
        let granted = left
            .and_then(|at| self.left.remove(at))
            .map_or_else(VecDeque::new, |(_, granted)| granted);
        let export = Export {
            name,
            exchange: self.exchange,
            presence: Presence::There,
            volume,
            read_only,
            verifier,
            events,
            losses: 0,
            has_shrunk: false,
            writer: WriterRecord::default(),
            written: 0,
            record: RecordState::Reading,
            may_be_released: false,
            changed: None,
            holder: None,
            claims: 0,
            writers_outstanding: 0,
            granted,
            grants: 0,
            granted_generation: None,
            role,
            has_grown: false,
            flush_running: false,
            flush_waiting: Vec::with_capacity(FLUSHES),
            flush_riders: Vec::with_capacity(FLUSHES),
        };
        let at = match self.vacant() {
            Some(at) => {
                self.exports[at] = export;
                at
            }
            None => {
                self.exports.push(export);
                self.exports.len() - 1
            }
        };
        if is_timed {
            self.timed.add(at);
        }
        at
    }

    /// The index of the export of this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.exports.iter().position(|e| e.name == name && e.presence == Presence::There)
    }

    /// A verifier that was not used in this life, nor, as far as chance goes, in another.
    pub(crate) fn next_verifier(&mut self) -> u64 {
        self.verifier = self.verifier.wrapping_add(VERIFIER_STEP);
        self.verifier
    }

    /// Keeps a sentence for whoever looks after the node, unless too many wait.
    pub fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push_back(text);
        }
    }

    /// The next thing that a person who looks after the node should know.
    pub fn take_note(&mut self) -> Option<String> {
        self.notes.pop_front()
    }

    /// There is such a thing.
    #[inline]
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Counters.
    pub fn stats(&self) -> DoorStats {
        self.stats
    }

    /// Something of a record has begun, or ended, or the last poll has left a flush that it has begun: what
    /// the volumes say of it is to be polled, and [`Exports::settle`] called again, in this turn.
    #[inline]
    pub fn take_started(&mut self) -> bool {
        std::mem::take(&mut self.started)
    }

    /// When something here is due, at the latest: [`Exports::refresh`], [`Exports::tell_time`], [`Exports::settle`], or what
    /// had to wait.
    #[inline]
    pub fn deadline(&self, now: Time) -> Time {
        if self.release || self.started {
            return now;
        }
        let at = self.refresh.at.min(self.timed.at());
        if !self.unresolved.is_empty() || !self.claims.is_empty() {
            return at.min(self.next_due());
        }
        at
    }

    fn next_due(&self) -> Time {
        let retries = self.unresolved.iter().filter_map(|at| self.exports[at].record.due());
        let questions = self.claims.iter().filter_map(|claim| claim.twin.due());
        retries.chain(questions).fold(Time::NEVER, Time::min)
    }
}
