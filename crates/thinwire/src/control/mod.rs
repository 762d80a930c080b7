//! How `status`, `reload` and `detach` talk to an attachment's or a target's process: over its unix socket in the
//! run directory, one JSON object a line, one request a connection.
//!
//! | request | answers |
//! |---|---|
//! | `{"op":"status"}` | `{"answer":"status", ...}`; of a target `{"answer":"target", ...}` |
//! | `{"op":"reload"}` | `{"answer":"reloaded","changes":[...],"ended":N,"late":[...]}` of a target that has read its configuration again; `refused` if nothing was changed, and why |
//! | `{"op":"pool","pool":{"file":...,"name":...},"request":{"action":"snapshot","volume":...,"name":...}}` | `{"answer":"pool","said":...,"status":{...}}` of whoever has that pool open, once it is durable; or `refused` |
//! | `{"op":"volume","volume":{"file":...,"name":...},"request":{"action":"pause","percent":null}}` | `{"answer":"volume","nodes":[...]}` of whoever has that volume open: how all that it is made of stands once that was done; or `refused`. With an empty `file` and the action `status`: all that the attachment or the export of that name is made of |
//! | `{"op":"volume","volume":{"file":...,"name":...},"request":{"action":{"add":{"leg":null,"only_look":false}}}}` | `{"answer":"leg","leg":{"label":...}}`: what the part of one more leg of that mirror is to say, once that is on record, or would be; or `refused`. Then `{"bring":{"leg":N,"part":...}}` has that part attached, or opened |
//! | `{"op":"detach","force":false}` | `{"answer":"refused","why":...}`; or `{"answer":"detaching"}` and later, on the same connection, `detached` (with `"unheard":...` if a target has not heard of it, with `"still_used":...` if somebody uses what was taken away by force), `refused` (in use after all) or `{"answer":"failed","why":...}` |
//!
//! A line longer than [`LINE_BYTES_MAX`] or one that cannot be understood is answered with
//! `refused` and ends the connection. The file of the socket is its owner's alone; should somebody else have
//! connected all the same, which the kernel tells (SO_PEERCRED), whatever is asked is answered with
//! `{"answer":"forbidden","why":...}`. All of that is counted: [`ControlCounters`].

mod cache;
mod client;
mod io;
mod mirror;
mod server;
mod target;

pub use cache::CacheStatus;
pub use client::{ControlClient, ControlError};
pub use io::IoStatus;
pub use mirror::{MirrorLegStatus, MirrorStatus};
pub(crate) use mirror::{retry_s, why};
pub use server::{ControlServer, Controlled, DetachProgress, PoolProgress};
pub use target::{
    ExportStatus, KeyStatus, LeafStatus, LimitStatus, LinkStatus, MeasureStatus, OfferStatus,
    PrivilegesStatus, SessionKeyStatus, SessionStatus, TargetCounters, TargetState, TargetStatus,
    WriterStatus,
};

use serde::{Deserialize, Serialize};

use crate::cuts::CutStatus;
use crate::growth::Grown;
use crate::leg_changes::LegOffer;
use crate::pool::{PoolName, PoolRequest, PoolStatus};
use crate::reload::Reloaded;
use crate::trees::NodeName;
use crate::work::{NodeStatus, WorkRequest};

/// The longest request line in bytes.
pub const LINE_BYTES_MAX: usize = 4096;

/// What can be asked of an attachment or a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum ControlRequest {
    /// Tell state, paths and counters.
    Status,
    /// Read the configuration again. An attachment refuses that.
    Reload,
    /// Do that to a pool. Who has not got it open refuses that.
    Pool {
        /// The pool, as who has it calls it.
        pool: PoolName,
        /// What.
        request: PoolRequest,
    },
    /// Do that to a volume that works for itself. Who has not got it open refuses that.
    Volume {
        /// The volume, as who has it calls it.
        volume: NodeName,
        /// What.
        request: WorkRequest,
    },
    /// Go away. A target refuses that.
    Detach {
        /// Even if in use, without waiting for anything outstanding.
        force: bool,
    },
}

/// What came to a control socket, since it was opened, and was no request of its owner's or root's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlCounters {
    /// Connections of other users, which were told that they may not ask.
    pub strangers: u64,
    /// Lines that were no request, or longer than [`LINE_BYTES_MAX`].
    pub garbled: u64,
    /// Connections that were ended unanswered: there were too many, or no descriptor was left.
    pub crowded: u64,
}

impl ControlCounters {
    /// A sentence for the user; `None` if nothing of the kind has come.
    pub fn describe(&self) -> Option<String> {
        let parts = [
            (self.strangers, "connections of other users"),
            (self.garbled, "lines that were no request"),
            (self.crowded, "connections too many"),
        ];
        let parts: Vec<_> = parts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!parts.is_empty()).then(|| format!("its control socket refused {}", parts.join(", ")))
    }
}

/// What an attachment answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Response {
    /// The attachment's state, paths and counters.
    Status(Box<AttachmentStatus>),
    /// The target's state, exports, sessions and counters.
    Target(Box<TargetStatus>),
    /// It has read its configuration again, and acts on it.
    Reloaded(Reloaded),
    /// It was done to the pool, durably.
    Pool {
        /// A sentence for the user.
        said: String,
        /// How the pool stands now.
        status: Box<PoolStatus>,
    },
    /// It was done to the volume.
    Volume {
        /// How all stands that it is made of.
        nodes: Vec<NodeStatus>,
    },
    /// What the part of a leg is to say, which a mirror has more from now on, or would have.
    Leg {
        /// That.
        leg: Box<LegOffer>,
    },
    /// What the label of an encrypted volume says.
    Label {
        /// That, in hexadecimal digits.
        label: String,
    },
    /// What has become of volumes that were to grow, the one that was named last.
    Grown {
        /// Those.
        volumes: Vec<Grown>,
    },
    /// It was done to the snapshots of a volume over several pools, durably.
    Cuts {
        /// A sentence for the user.
        said: String,
        /// Those that were asked for.
        cuts: Vec<CutStatus>,
    },
    /// It will not do that; it goes on as before.
    Refused {
        /// A sentence for the user.
        why: String,
    },
    /// Who asks is neither its owner nor root.
    Forbidden {
        /// A sentence for the user.
        why: String,
    },
    /// It is on its way out; another answer follows.
    Detaching,
    /// It is out: flushed, the face gone.
    Detached {
        /// A sentence for the user if a target is away and has not heard of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unheard: Option<String>,
        /// A sentence for the user if somebody still uses what was taken away by force.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        still_used: Option<String>,
    },
    /// It is out, but not in order.
    Failed {
        /// A sentence for the user.
        why: String,
    },
}

impl Response {
    /// Puts the counters of the socket beside what its process tells of itself.
    fn with_counters(mut self, counters: ControlCounters) -> Self {
        match &mut self {
            Response::Status(status) => status.control = Some(counters),
            Response::Target(status) => status.control = Some(counters),
            _ => {}
        }
        self
    }
}

/// How an attachment is: one element of `status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachmentStatus {
    /// The attachment's name.
    pub name: String,
    /// The volume, as a URI.
    pub uri: String,
    /// `nbd`, `file` or `block`.
    pub frontend: String,
    /// The socket, address, file or node; null until it is usable.
    pub path: Option<String>,
    /// See [`State`].
    pub state: State,
    /// Frames are neither authenticated nor encrypted, of some part of it at least.
    pub insecure: bool,
    /// The name of the key that it shows, unless volumes name keys of their own; null without one, and from a
    /// process of an earlier version.
    #[serde(default)]
    pub key: Option<String>,
    /// The suite that its frames are sealed with, if they are and all with the same one; null otherwise, and
    /// from a process of an earlier version.
    #[serde(default)]
    pub suite: Option<String>,
    /// The ways to the target, or to all targets of a volume made of several; empty for local ones.
    pub paths: Vec<PathStatus>,
    /// Of a volume made of several: the remote ones among them, each with its paths; of an attachment with
    /// several members, each of these.
    #[serde(default)]
    pub leaves: Vec<LeafStatus>,
    /// The timer that decides what happens next, if one runs: `attach` (giving up the first attach),
    /// `reconnect` (the next attempt to reach the target) or `fail-after` (failing what waits).
    pub timer: Option<String>,
    /// How long until that timer fires.
    pub seconds_left: Option<f64>,
    /// Attached without the right to write.
    #[serde(default)]
    pub read_only: bool,
    /// Size of the volume in bytes, which may grow; 0 before it is attached, and from a process of an
    /// earlier version.
    #[serde(default)]
    pub bytes: u64,
    /// I/Os submitted and not yet completed.
    #[serde(default)]
    pub outstanding: u64,
    /// The attachment's process; 0 if it is gone.
    #[serde(default)]
    pub pid: i32,
    /// How requests share frames; null for local volumes, and with several remote ones or members, of which
    /// each of `leaves` has its own.
    #[serde(default)]
    pub batch: Option<BatchStatus>,
    /// What was found altered, of what is checked end to end; null if nothing of it is, and from a process of an
    /// earlier version.
    #[serde(default)]
    pub integrity: Option<IntegrityStatus>,
    /// How the mirrors in it stand; empty if there is none, and from a process of an earlier version.
    #[serde(default)]
    pub mirrors: Vec<MirrorStatus>,
    /// What the caches in it keep in memory, together; null if there is none, and from a process of an earlier version.
    #[serde(default)]
    pub cache: Option<CacheStatus>,
    /// Of a volume made of others: it, and behind each all that it is made of; empty of any other, and from a process of an earlier version.
    #[serde(default)]
    pub nodes: Vec<NodeStatus>,
    /// Its `--spin`: `off`, `on` or `always`; null if it does not tell, and from a process of an earlier
    /// version.
    #[serde(default)]
    pub spin: Option<String>,
    /// What came to its control socket and was refused; null if it does not tell, and from a process of an
    /// earlier version.
    #[serde(default)]
    pub control: Option<ControlCounters>,
    /// More about the state, for people.
    #[serde(default)]
    pub detail: Option<String>,
}

/// What did not fit the sums that were made of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegrityStatus {
    /// Writes that the target refused.
    pub writes: u64,
    /// Of these, the ones that had been altered in the memory of this process.
    pub here: u64,
    /// Reads.
    pub reads: u64,
    /// I/Os that failed for it; the others were made once more.
    pub failed: u64,
}

impl IntegrityStatus {
    /// For people.
    pub fn describe(&self) -> String {
        let IntegrityStatus { writes, here, reads, failed } = *self;
        if writes + reads == 0 {
            return "data is checked end to end (integrity=on); none was altered".to_owned();
        }
        format!(
            "data is checked end to end (integrity=on): {writes} writes ({here} of them in this machine's memory) \
             and {reads} reads were altered on their way; {failed} I/Os failed for it"
        )
    }

    /// Both together.
    pub fn with(&self, other: &IntegrityStatus) -> IntegrityStatus {
        IntegrityStatus {
            writes: self.writes + other.writes,
            here: self.here + other.here,
            reads: self.reads + other.reads,
            failed: self.failed + other.failed,
        }
    }
}

/// How the requests of an attachment have shared frames in its present session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchStatus {
    /// The policy, as `--batch` takes it.
    pub policy: String,
    /// The number of requests that it waits for at present.
    pub level: u64,
    /// Requests sent, repetitions among them.
    pub requests: u64,
    /// Frames that carried them.
    pub frames: u64,
}

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The first attach is under way; the face is not usable yet.
    Connecting,
    /// Usable, and the target answers.
    Attached,
    /// The target does not answer; I/O waits or fails, as the policy says.
    Away,
    /// Another initiator took over; final.
    Fenced,
    /// What answers is not the same content; final.
    Changed,
    /// On its way out.
    Detaching,
    /// The process lives; more is told to its user and to root only.
    Alive,
    /// The process lives but does not answer.
    Unresponsive,
    /// The process was killed; this was what it left, and it has been cleaned up.
    Stale,
}

impl State {
    /// The word for people, the same as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            State::Connecting => "connecting",
            State::Attached => "attached",
            State::Away => "away",
            State::Fenced => "fenced",
            State::Changed => "changed",
            State::Detaching => "detaching",
            State::Alive => "alive",
            State::Unresponsive => "unresponsive",
            State::Stale => "stale",
        }
    }
}

/// One way to the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The link, as the user named it.
    pub link: String,
    /// The target's address on it.
    pub remote: String,
    /// `up`, `probing` or `down`.
    pub state: String,
    /// The largest frame known to pass, in bytes.
    pub frame_bytes: u32,
    /// The largest frame that both ends' links carry, in bytes; 0 from a process of an earlier version.
    #[serde(default)]
    pub frame_bytes_limit: u32,
    /// In how many seconds frames of that size are tried again; null if they pass, or are being tried
    /// now.
    #[serde(default)]
    pub full_size_retry_s: Option<f64>,
    /// Smoothed round trip, once measured.
    pub rtt_us: Option<f64>,
    /// Frames found lost so far.
    #[serde(default)]
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_on_the_socket_are_fixed() {
        let request = |text: &str| serde_json::from_str::<ControlRequest>(text).ok();
        assert_eq!(request(r#"{"op":"status"}"#), Some(ControlRequest::Status));
        assert_eq!(request(r#"{"op":"reload"}"#), Some(ControlRequest::Reload));
        assert_eq!(
            request(r#"{"op":"detach","force":true}"#),
            Some(ControlRequest::Detach { force: true })
        );
        assert_eq!(request(r#"{"op":"detach","force":true,"x":1}"#), None);
        assert_eq!(request(r#"{"op":"format"}"#), None);
        for state in [TargetState::Serving, TargetState::Stopping, TargetState::Unresponsive] {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state.word()));
        }
        let reloaded = Reloaded {
            changes: vec!["x".into()],
            ended: 2,
            late: vec![1],
            leaving: vec!["y".into()],
        };
        let text = serde_json::to_string(&Response::Reloaded(reloaded)).unwrap();
        assert_eq!(
            text,
            r#"{"answer":"reloaded","changes":["x"],"ended":2,"late":[1],"leaving":["y"]}"#
        );
        let text = serde_json::to_string(&Response::Refused { why: "busy".into() }).unwrap();
        assert_eq!(text, r#"{"answer":"refused","why":"busy"}"#);
        let text = serde_json::to_string(&Response::Forbidden { why: "no".into() }).unwrap();
        assert_eq!(text, r#"{"answer":"forbidden","why":"no"}"#);
        // As the versions before say it, too.
        let text =
            serde_json::to_string(&Response::Detached { unheard: None, still_used: None }).unwrap();
        assert_eq!(text, r#"{"answer":"detached"}"#);
        let heard = serde_json::from_str::<Response>(&text).unwrap();
        assert_eq!(heard, Response::Detached { unheard: None, still_used: None });
        for state in [State::Attached, State::Alive, State::Stale, State::Unresponsive] {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state.word()));
        }
    }
}
