//! What an attachment says of itself: where it stands, why it failed, its counters.

use std::fmt;
use std::time::Duration;

use thinwire_proto::{BatchPolicy, Drops, PathReport, SessionStats};
use thinwire_seal::Suite;
use thinwire_volume::{ErrorKind, LeafGrant};
use thinwire_wire::Status;

/// Where an attachment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Looking for the target, or asking it.
    Connecting,
    /// In use.
    Attached,
    /// In use, but the target does not answer: I/O waits.
    Away,
    /// The target has lost unflushed writes; they are being sent again.
    Replaying,
    /// An orderly end is under way.
    Detaching,
    /// Ended in order.
    Closed,
    /// Ended for good: fenced, other content, or refused at first.
    Failed,
}

impl Phase {
    /// For status.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Connecting => "connecting",
            Phase::Attached => "attached",
            Phase::Away => "away",
            Phase::Replaying => "replaying",
            Phase::Detaching => "detaching",
            Phase::Closed => "closed",
            Phase::Failed => "failed",
        }
    }
}

/// Why the first attach failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The target said no, with this status and sentence.
    Refused {
        /// Why.
        status: Status,
        /// In words.
        text: String,
        /// With [`Status::Busy`]: when the holder's lease ends, if it does.
        seconds_left: Option<u32>,
    },
    /// Several targets have that name; their addresses.
    Ambiguous(Vec<String>),
    /// There is no key, and `--insecure` was not said.
    Insecure,
    /// Integrity was asked for, and the target granted the export without it.
    Unchecked,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Refused { text, .. } => write!(f, "the target refused: {text}"),
            AttachError::Ambiguous(addresses) => write!(
                f,
                "several targets have that node name, at {}: name one by its address",
                addresses.join(", ")
            ),
            AttachError::Insecure => f.write_str(
                "without a key frames can be read and forged by anybody on the network: give the file \
                 of one with --key, or say --insecure if that is acceptable",
            ),
            AttachError::Unchecked => f.write_str(
                "the target does not check data end to end: leave integrity=on away, or use a newer target",
            ),
        }
    }
}

impl std::error::Error for AttachError {}

/// The timer that matters to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timer {
    /// I/O fails when this runs out.
    FailAfter(Duration),
    /// The next attempt to reach the target.
    Reconnect(Duration),
}

/// Counters of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitiatorStats {
    /// Dropped frames and messages, by reason.
    pub drops: Drops,
    /// Requests sent.
    pub requests: u64,
    /// Writes sent again after a restart of the target.
    pub replayed: u64,
    /// Of those, how many failed: the next flush says so.
    pub replay_failures: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Bytes copied in user space.
    pub copied_bytes: u64,
    /// Data that did not fit its sums.
    pub altered: AlteredStats,
}

/// What did not fit its sums, on an attachment with integrity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlteredStats {
    /// Writes that the target refused.
    pub writes: u64,
    /// Of these, the ones that had been altered in this process's memory.
    pub here: u64,
    /// Reads.
    pub reads: u64,
    /// I/Os that failed for it, replays included: those were made once more in vain, or could not be.
    pub failed: u64,
}

impl AlteredStats {
    /// How often data did not fit.
    pub fn all(&self) -> u64 {
        self.writes + self.reads
    }
}

/// What an attachment is doing, for status.
#[derive(Clone, Debug)]
pub struct InitiatorReport {
    /// Where it stands.
    pub phase: Phase,
    /// Why it failed, if it did.
    pub failure: Option<ErrorKind>,
    /// Its paths.
    pub paths: Vec<PathReport>,
    /// The timer that runs, if one does.
    pub timer: Option<Timer>,
    /// I/Os outstanding or waiting.
    pub outstanding: usize,
    /// Bytes of unflushed writes that are kept.
    pub retained_bytes: usize,
    /// How many effects these are; some, such as discards, have no bytes.
    pub retained_entries: usize,
    /// The generation under which it writes; 0 before the first attach.
    pub writer_generation: u64,
    /// Under so many generations before that one nobody has written, one after the other, at least: its target says so.
    pub idle_generations: u32,
    /// It only reads, and somebody else was on record as the writer when it was attached, or is by now.
    pub is_held: bool,
    /// Its data is checked by sums, end to end.
    pub integrity: bool,
    /// The id of its session at the target, whose first byte is the shard that has it; 0 without one.
    pub target_session: u64,
    /// What was said to it last while it is not let in ([`crate::Initiator::hint`]).
    pub hint: Option<String>,
    /// How the frames of its session are sealed; none without a key, or a session.
    pub suite: Option<Suite>,
    /// Counters.
    pub stats: InitiatorStats,
    /// Counters of the present session.
    pub session: SessionStats,
    /// When requests are sent, and how many share a frame.
    pub batch_policy: BatchPolicy,
    /// The number of requests that the batching policy waits for.
    pub batch_level: usize,
}

impl InitiatorReport {
    /// What it was granted to write.
    pub fn grant(&self) -> LeafGrant {
        let generation = self.writer_generation;
        LeafGrant { since: generation.saturating_sub(u64::from(self.idle_generations)), generation }
    }
}
