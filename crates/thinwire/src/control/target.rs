//! How a target is: one element of `targets` in `status --json` (`docs/status.md`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BatchStatus, PathStatus, State};

/// A target and all its shards. A process that is starting, ending or silent tells less: no exports, no
/// sessions, no counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The node name that discovery answers to.
    pub node: String,
    /// See [`TargetState`].
    pub state: TargetState,
    /// Frames are neither authenticated nor encrypted.
    pub insecure: bool,
    /// Threads, each with exports and sessions of its own.
    pub shards: u32,
    /// Their `--spin`: `off`, `on` or `always`; null if it does not tell, and from a process of an earlier
    /// version.
    #[serde(default)]
    pub spin: Option<String>,
    /// Where it listens; counts are of all shards.
    pub links: Vec<LinkStatus>,
    /// What it offers.
    pub exports: Vec<ExportStatus>,
    /// Sessions of initiators; of each shard the first 256.
    pub sessions: Vec<SessionStatus>,
    /// How many sessions there are.
    pub session_count: u64,
    /// What has happened since it started.
    pub counters: TargetCounters,
    /// Frames and messages that were dropped, by reason (`docs/protocol.md` names them); those that happened
    /// only.
    pub drops: BTreeMap<String, u64>,
    /// Its process; 0 if it is gone.
    pub pid: i32,
    /// More about the state, for people.
    pub detail: Option<String>,
}

/// The state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    /// It opens its volumes; nothing can be attached yet.
    Starting,
    /// Its exports can be attached.
    Serving,
    /// On its way out.
    Stopping,
    /// The process lives; more is told to its user and to root only.
    Alive,
    /// The process lives but does not answer.
    Unresponsive,
    /// The process was killed; this was what it left, and it has been cleaned up.
    Stale,
}

impl TargetState {
    /// The word for people, the same as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            TargetState::Starting => "starting",
            TargetState::Serving => "serving",
            TargetState::Stopping => "stopping",
            TargetState::Alive => "alive",
            TargetState::Unresponsive => "unresponsive",
            TargetState::Stale => "stale",
        }
    }
}

/// One link of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// As it is named on the command line.
    pub name: String,
    /// This end's address.
    pub address: String,
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that the kernel dropped for lack of room, as far as it tells.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that the kernel refused.
    pub tx_dropped: u64,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// What initiators call it.
    pub name: String,
    /// What it is made of, as it was named.
    pub volume: String,
    /// Its size.
    pub bytes: u64,
    /// Its logical block, in bytes.
    pub block_bytes: u32,
    /// Nobody may write it.
    pub read_only: bool,
    /// How its files and devices of this machine are read and written: `direct`, or `buffered` if some
    /// are through the page cache; null if it has none, and from a process of an earlier version.
    #[serde(default)]
    pub io: Option<String>,
    /// The shard that serves it, or, of one that all serve, the one that decides who writes, and syncs.
    pub shard: u32,
    /// All shards that serve it, of those that answered; empty from a process of an earlier version.
    #[serde(default)]
    pub shards: Vec<u32>,
    /// Who holds it for writing; null if nobody does.
    pub writer: Option<WriterStatus>,
    /// The present writer generation; 0 if it was never written.
    pub generation: u64,
    /// Who may write is `settled` (stored durably), `reading` (not known yet: who wants to write waits),
    /// `changing` (being stored: what was before is in force until then), `unread` (cannot be read: no writer
    /// is let in) or `unsettled` (could be neither stored nor put back: nobody writes until that succeeds).
    pub record: String,
    /// How often writes that no flush had covered may have been lost, and initiators were told.
    pub losses: u64,
    /// What is wrong with what it lies on, for people; null if nothing is known.
    #[serde(default)]
    pub fault: Option<String>,
    /// Bytes that had to be copied for its store, on all shards.
    pub copied_bytes: u64,
    /// What it keeps in memory of what was read; null without a cache, and from a process of an earlier version.
    #[serde(default)]
    pub cache: Option<CacheStatus>,
    /// The exports of other targets that it stands on.
    pub leaves: Vec<LeafStatus>,
}

/// The cache of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// The memory that it may take.
    pub bytes: u64,
    /// Content that it could answer from now.
    pub used: u64,
    /// Reads answered from it.
    pub hits: u64,
    /// Reads that went to the store.
    pub misses: u64,
    /// Bytes read ahead of streams; 0 from a process of an earlier version.
    #[serde(default)]
    pub ahead: u64,
}

/// Who holds an export for writing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriterStatus {
    /// What the initiator calls itself.
    pub name: String,
    /// It is attached now.
    pub attached: bool,
    /// How long it has held the export, however often it has come back; null if since before this target
    /// started, and from a process of an earlier version.
    #[serde(default)]
    pub held_s: Option<f64>,
    /// How long it has been silent; null if it attached before this target started.
    pub silent_s: Option<f64>,
    /// When another may have the export if it stays silent; null if only when it has come back, or with
    /// `--take-over`.
    pub lease_s: Option<f64>,
}

/// A remote volume that another volume stands on, or one of the members of its attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeafStatus {
    /// The volume, as a URI.
    pub uri: String,
    /// Which member it is, counted from 0, if the attachment has several; null otherwise, and from a process of
    /// an earlier version.
    #[serde(default)]
    pub member: Option<u32>,
    /// `attached`, `away`, `fenced`, `changed` or `detaching`.
    pub state: State,
    /// The ways to its target.
    pub paths: Vec<PathStatus>,
    /// The timer that decides what happens next, if one runs: `reconnect` or `fail-after`.
    pub timer: Option<String>,
    /// How long until that timer fires.
    pub seconds_left: Option<f64>,
    /// How requests share frames; null from a process of an earlier version.
    #[serde(default)]
    pub batch: Option<BatchStatus>,
    /// More about the state, for people.
    pub detail: Option<String>,
}

impl LeafStatus {
    /// What people call it.
    pub fn name(&self) -> String {
        match self.member {
            None => self.uri.clone(),
            Some(member) => format!("member {member} of {}", self.uri),
        }
    }
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// What the initiator calls itself.
    pub initiator: String,
    /// Names of the exports that it has open.
    pub exports: Vec<String>,
    /// The ways to it; `remote` is its address.
    pub paths: Vec<PathStatus>,
    /// How long it has not been heard.
    pub idle_s: f64,
    /// The shard that has it.
    pub shard: u32,
}

/// What has happened since a target started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetCounters {
    /// Requests given to volumes.
    pub requests: u64,
    /// Requests that came again and were answered as before.
    pub repeated: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Writers fenced.
    pub fenced: u64,
    /// Attaches refused since another process of the same identity is alive.
    pub twins: u64,
    /// Bytes copied between frames and stores.
    pub copied_bytes: u64,
}
