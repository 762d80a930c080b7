//! How a target is: one element of `targets` in `status --json` (`docs/status.md`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    BatchStatus, CacheStatus, ControlCounters, IntegrityStatus, MirrorStatus, PathStatus, State,
};
use crate::work::NodeStatus;

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
    /// The keys that it takes: whose they are, and which; none from a process of an earlier version.
    #[serde(default)]
    pub keys: Vec<KeyStatus>,
    /// Frames are authenticated, and not encrypted.
    #[serde(default)]
    pub authenticate_only: bool,
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
    /// Exports that it does not serve any more, since another target has taken its place there: what they are made of was
    /// granted to that one. Empty from a process of an earlier version.
    #[serde(default)]
    pub fenced: Vec<String>,
    /// What it offers in other protocols, too; none from a process of an earlier version.
    #[serde(default)]
    pub offers: Vec<OfferStatus>,
    /// Sessions of initiators; of each shard the first 256.
    pub sessions: Vec<SessionStatus>,
    /// How many sessions there are.
    pub session_count: u64,
    /// What has happened since it started.
    pub counters: TargetCounters,
    /// Frames and messages that were dropped, by reason (`docs/protocol.md` names them); those that happened
    /// only.
    pub drops: BTreeMap<String, u64>,
    /// What initiators may have, by the limit's name; of each shard. Empty from a process of an earlier version.
    #[serde(default)]
    pub limits: BTreeMap<String, LimitStatus>,
    /// What came to its control socket and was refused; null if it does not tell, and from a process of an
    /// earlier version.
    #[serde(default)]
    pub control: Option<ControlCounters>,
    /// Its process; 0 if it is gone.
    pub pid: i32,
    /// What it may still do; null before it serves, and from a process of an earlier version.
    #[serde(default)]
    pub privileges: Option<PrivilegesStatus>,
    /// More about the state, for people.
    pub detail: Option<String>,
}

/// What a target has left of what it was started with (`docs/security.md`, "Privileges").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivilegesStatus {
    /// Its user, or the number of that if it has no name.
    pub user: String,
    /// That user's number.
    pub uid: u32,
    /// Its group's.
    pub gid: u32,
    /// The capabilities that it has, as the kernel calls them.
    pub capabilities: Vec<String>,
    /// Why it has kept some; null if it has none, or was told to keep all.
    pub kept_for: Option<String>,
    /// It gains nothing by starting a program.
    pub no_new_privs: MeasureStatus,
    /// Its memory goes into no core dump, and no other process of its user can look into it.
    pub not_dumpable: MeasureStatus,
    /// System calls that it does not make are refused.
    pub seccomp: MeasureStatus,
    /// Its rings take the calls of a disk only.
    pub io_uring: MeasureStatus,
    /// System calls that were refused, by name, and how often; those that happened only.
    pub refused_calls: BTreeMap<String, u32>,
}

impl PrivilegesStatus {
    /// In one line, for people.
    pub fn describe(&self) -> String {
        let mut text = format!("runs as user {} (id {})", self.user, self.uid);
        text += &match (self.capabilities.as_slice(), &self.kept_for) {
            ([], _) => " without capabilities".to_owned(),
            (some, None) if some.len() > 8 => format!(" with {} capabilities", some.len()),
            (some, None) => format!(" with {}", some.join(", ")),
            (some, Some(why)) => format!(" with {}, because {why}", some.join(", ")),
        };
        for (what, measure) in [
            ("no_new_privs", &self.no_new_privs),
            ("not dumpable", &self.not_dumpable),
            ("seccomp", &self.seccomp),
            ("io_uring restricted", &self.io_uring),
        ] {
            text += &match &measure.why {
                _ if measure.taken => format!("; {what}: yes"),
                Some(why) => format!("; {what}: no ({why})"),
                None => format!("; {what}: no"),
            };
        }
        if !self.refused_calls.is_empty() {
            let calls =
                self.refused_calls.iter().map(|(name, count)| format!("{name} {count} times"));
            text += &format!("; refused system calls: {}", calls.collect::<Vec<_>>().join(", "));
        }
        text
    }
}

/// Whether a measure is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureStatus {
    /// It is in force.
    pub taken: bool,
    /// Why not; null if it is.
    pub why: Option<String>,
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
    /// How the mirrors in it stand; empty if there is none, and from a process of an earlier version.
    #[serde(default)]
    pub mirrors: Vec<MirrorStatus>,
    /// The exports of other targets that it stands on.
    pub leaves: Vec<LeafStatus>,
    /// Of a volume made of others: it, and behind each all that it is made of; else empty, and from a process of an earlier version.
    #[serde(default)]
    pub nodes: Vec<NodeStatus>,
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
    /// What was found altered; null if it is not checked end to end, and from a process of an earlier version.
    #[serde(default)]
    pub integrity: Option<IntegrityStatus>,
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
    /// The key that opened it; null without one, and from a process of an earlier version.
    #[serde(default)]
    pub key: Option<SessionKeyStatus>,
    /// The ways to it; `remote` is its address.
    pub paths: Vec<PathStatus>,
    /// How long it has not been heard.
    pub idle_s: f64,
    /// The shard that has it.
    pub shard: u32,
}

/// An export that is offered in another protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferStatus {
    /// As it is typed.
    pub offer: String,
    /// The export.
    pub export: String,
    /// `EBD` or `AoE`.
    pub protocol: String,
    /// Frames are neither authenticated nor encrypted: always, since no such protocol has keys.
    pub insecure: bool,
    /// What the protocol cannot promise its clients (`docs/dialects.md`), a sentence each.
    pub not_promised: Vec<String>,
}

/// A limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// How much there may be.
    pub value: u64,
    /// How often something was refused for it, or gave way, on all shards.
    pub refused: u64,
}

/// The keys of one who may come to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Whose they are.
    pub name: String,
    /// Their ids.
    pub ids: Vec<String>,
}

/// The key of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKeyStatus {
    /// Whose it is.
    pub name: String,
    /// Which of theirs.
    pub id: String,
    /// How frames are sealed.
    pub suite: String,
    /// How often this end has gone to another key of the session.
    pub rekeys: u64,
}

/// What has happened since a target started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetCounters {
    /// Requests given to volumes.
    pub requests: u64,
    /// Requests that came again and were answered as before.
    pub repeated: u64,
    /// Writes refused since their data had been altered on its way; 0 from a process of an earlier version.
    #[serde(default)]
    pub altered: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Writers fenced.
    pub fenced: u64,
    /// Attaches refused since another process of the same identity is alive.
    pub twins: u64,
    /// Bytes copied between frames and stores.
    pub copied_bytes: u64,
}
