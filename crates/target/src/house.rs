//! What all sessions of a target share: exports, attachments, requests in the stores.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, Room};
use thinwire_proto::{Drops, SipRng, Stage, StageObserver, Time};
use thinwire_volume::{Completion, Identity, IoError, Op, Volume, WriterRecord};

use crate::twin::Twin;
use crate::{TargetCanary, TargetConfig};

/// Counters of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetStats {
    /// Dropped frames and messages, by reason.
    pub drops: Drops,
    /// Requests given to volumes.
    pub requests: u64,
    /// Requests answered from the completion cache.
    pub repeated: u64,
    /// Bytes copied in user space on their way to or from a store, stores not counted.
    pub copied_bytes: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Writers fenced.
    pub fenced: u64,
    /// Attaches refused since another process with the same identity is alive.
    pub twins: u64,
}

/// Who holds an export for writing, as far as this process knows.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub initiator: [u8; 16],
    /// Which run of it.
    pub instance: u64,
    /// Runs with its identity that asked while it was alive: they are others.
    pub twins: Vec<u64>,
    pub name: String,
    /// The session of its attachment, which may have ended.
    pub session: u64,
    /// When that session was last heard, once it has ended.
    pub last_heard: Time,
}

/// Sentences that wait for the driver, at most.
const NOTES_MAX: usize = 16;
/// Initiators of which an export remembers the last grant.
const GRANTS_KEPT: usize = 64;

/// Whether what is stored is known to be [`Export::writer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    /// It is, durably.
    Settled,
    /// It could not be read when it was last tried: nobody may write.
    Unread(IoError),
    /// A change of it failed, and so did putting it back: either may be found after a crash. Nobody
    /// is served as a writer, fenced or told no until that succeeds; tried again at that time.
    Unresolved(Time),
}

pub(crate) struct Export {
    pub name: String,
    pub volume: Box<dyn Volume>,
    pub read_only: bool,
    /// Changes whenever unflushed writes may have been lost.
    pub verifier: u64,
    /// What the volume counted when that was chosen.
    pub losses: u64,
    /// The record in force.
    pub writer: WriterRecord,
    pub record: RecordState,
    pub holder: Option<Holder>,
    /// Initiators that were granted it for writing, and in which of their sessions last, by number.
    pub granted: VecDeque<([u8; 16], u64)>,
    pub flush_running: bool,
    /// Flushes that came while one was running: the next one serves them all (rule 13).
    pub flush_waiting: Vec<u64>,
    /// Flushes that the running one serves besides its own.
    pub flush_riders: Vec<u64>,
}

impl Export {
    pub fn identity(&self) -> Identity {
        self.volume.identity()
    }

    /// Takes note of a grant for writing.
    pub fn note_grant(&mut self, initiator: [u8; 16], session_number: u64) {
        self.granted.retain(|(known, _)| *known != initiator);
        if self.granted.len() == GRANTS_KEPT {
            self.granted.pop_front();
        }
        self.granted.push_back((initiator, session_number));
    }
}

/// One export opened in one session.
#[derive(Clone, Debug)]
pub(crate) struct Attachment {
    pub export: usize,
    pub session: u64,
    pub generation: u32,
    pub read_only: bool,
    pub fenced: bool,
    pub live: bool,
    /// Requests in the store.
    pub outstanding: usize,
}

/// A request in a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub peer: usize,
    pub session: u64,
    pub slot: u16,
    pub sequence: u32,
    pub attachment: usize,
    pub op: u8,
    /// It is durable once completed.
    pub fua: bool,
    /// The export's verifier when the request was given to the store.
    pub verifier: u64,
    pub length: u32,
    /// The initiator has its completion already (canary).
    pub told: bool,
}

/// An attach that waits until an earlier writer's requests have left the store (rule 2).
#[derive(Clone, Debug)]
pub(crate) struct PendingAttach {
    pub peer: usize,
    pub session: u64,
    pub transaction: u32,
    pub export: usize,
    pub generation: u64,
    pub initiator: [u8; 16],
    pub instance: u64,
    pub session_number: u64,
    pub name: String,
    /// Whether another run of the same initiator may hold the export.
    pub twin: Twin,
    /// The record could not be changed, and may have been all the same: see
    /// [`RecordState::Unresolved`].
    pub failed: Option<IoError>,
}

pub(crate) struct House {
    /// Of the frame or turn that is being acted on.
    pub now: Time,
    /// Is told where requests stand, if somebody wants to know.
    pub observer: Option<Rc<dyn StageObserver>>,
    pub config: TargetConfig,
    pub links: Vec<LinkInfo>,
    pub pool: Pool,
    pub rng: SipRng,
    pub instance: u64,
    pub exports: Vec<Export>,
    /// Exports of other shards, and which.
    pub elsewhere: Vec<(String, u8)>,
    pub attachments: Vec<Attachment>,
    pub pending: Vec<PendingAttach>,
    /// Requests that were held back for a pending attach are to be tried again.
    pub release: bool,
    /// There are more, or fewer, sessions to share the room of the links.
    pub room_changed: bool,
    /// A record is not resolved: see [`RecordState::Unresolved`].
    pub unresolved: bool,
    pub operations: Vec<Option<Operation>>,
    pub operations_free: Vec<usize>,
    /// Requests in the stores, by the place of the session that they are of, which may have ended.
    pub in_store: Vec<u32>,
    /// Recycled between polls.
    pub done: Vec<Completion>,
    /// How many of them there were after each export had been polled.
    pub done_ends: Vec<usize>,
    pub stats: TargetStats,
    /// What a person who looks after the target should know, oldest first.
    pub notes: VecDeque<String>,
    pub next_epoch: u32,
    pub next_generation: u32,
}

impl House {
    /// A request crosses a border. Only reads and writes are measured.
    #[inline]
    pub fn cross(&self, stage: Stage, op: Op) {
        if let (Some(observer), Op::Read | Op::Write) = (&self.observer, op) {
            observer.cross(stage);
        }
    }

    pub fn add_operation(&mut self, operation: Operation) -> u64 {
        self.in_store[operation.peer] += 1;
        match self.operations_free.pop() {
            Some(at) => {
                self.operations[at] = Some(operation);
                at as u64
            }
            None => {
                self.operations.push(Some(operation));
                (self.operations.len() - 1) as u64
            }
        }
    }

    pub fn take_operation(&mut self, token: u64) -> Operation {
        let at = token as usize;
        let operation = self.operations[at].take().expect("a store completes what it was given");
        self.in_store[operation.peer] -= 1;
        self.operations_free.push(at);
        operation
    }

    /// The room that each of `sessions` sessions gets on its paths.
    pub fn room(&self, sessions: usize) -> Room {
        let frames = self.links.iter().map(|l| l.room.frames).min().unwrap_or(8);
        let bytes = self.links.iter().map(|l| l.room.bytes).min().unwrap_or(1 << 16);
        Room { frames, bytes }.shared_by(sessions)
    }

    /// Requests of attachments to `export` that are in the store, readers' not counted.
    pub fn writer_outstanding(&self, export: usize) -> usize {
        self.attachments
            .iter()
            .filter(|a| a.export == export && !a.read_only)
            .map(|a| a.outstanding)
            .sum()
    }

    /// Another session is about to be granted `export`: its present writers' new requests wait, so
    /// that the store runs dry of them. So they do while it is not known who the writer is.
    pub fn is_held_back(&self, export: usize, session: u64) -> bool {
        let waits = |p: &PendingAttach| {
            p.export == export && p.session != session && p.twin == Twin::Cleared
        };
        self.pending.iter().any(waits)
            || matches!(self.exports[export].record, RecordState::Unresolved(_))
    }

    /// Keeps a sentence for whoever looks after the target, unless too many wait.
    pub fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push_back(text);
        }
    }

    /// Chooses a new verifier if the volume may have lost something. To be called before anybody is
    /// told of anything that ended since.
    pub fn check_losses(&mut self, export: usize) {
        if matches!(self.config.canary, TargetCanary::SameVerifier | TargetCanary::LossesUnnoticed)
        {
            return;
        }
        let e = &mut self.exports[export];
        let losses = e.volume.losses();
        if losses != e.losses {
            e.losses = losses;
            e.verifier = self.rng.next_u64();
        }
    }

    pub fn lease(&self) -> Duration {
        self.config.lease
    }
}
