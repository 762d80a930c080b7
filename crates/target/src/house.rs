//! What all sessions of a target share: the door to the exports, links, settings.

use std::rc::Rc;
use std::sync::Arc;

use thinwire_buffer::{Addr, LinkInfo, Pool, Room};
use thinwire_exports::{ExportOpening, Exports};
use thinwire_proto::{Drops, SipRng, Stage, StageObserver, Time};
use thinwire_volume::Op;

use crate::fair::Fair;
use crate::guests::Guests;
use crate::{LimitCounts, TargetConfig};

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
    /// Writes refused since their data did not fit its sums.
    pub altered: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// What was refused, or had to give way, for a limit.
    pub limits: LimitCounts,
    /// Writers fenced.
    pub fenced: u64,
    /// Attaches refused since another process with the same identity is alive.
    pub twins: u64,
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
    pub exports: Exports,
    /// Whose requests go to them first.
    pub fair: Fair,
    /// Exports of other shards, and which.
    pub elsewhere: Vec<(String, u8)>,
    /// Exports that all shards have, and how many shards there are.
    pub spread: Vec<(String, u8)>,
    /// There are more, or fewer, sessions to share the room of the links.
    pub room_changed: bool,
    /// Requests in the stores, by the place of the session that they are of, which may have ended.
    pub in_store: Vec<u32>,
    /// All but what the door counts.
    pub stats: TargetStats,
    pub next_epoch: u32,
    /// By the place of a session: whose it is.
    pub owners: Vec<Option<Owner>>,
    /// Of the session that was opened last.
    pub session_number: u64,
    /// Exports that were fenced, of all shards, the last one of each name: nothing is said of them.
    pub silent: Vec<ExportOpening>,
    /// Exports that have come while this target serves, of all shards: what is said of earlier ones of their names is not said of these.
    pub came: Vec<ExportOpening>,
    /// Other protocols in front of the door.
    pub guests: Guests,
    /// By place: which of their sessions has it.
    pub seats: Vec<Option<u64>>,
}

/// Whose a session is, for limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Who has the key that opened it.
    pub principal: Option<Arc<str>>,
    /// The address, whatever its ports.
    pub host: Addr,
}

/// By what sessions are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The principal of their key; those without one have none in common.
    Key,
    /// The address.
    Address,
}

impl Owner {
    /// Whether the other counts with this one.
    pub fn is_as(&self, other: &Owner, by: By) -> bool {
        match by {
            By::Key => self.principal.is_some() && self.principal == other.principal,
            By::Address => self.host == other.host,
        }
    }
}

impl House {
    /// The room that each of `sessions` sessions gets on its paths.
    pub fn room(&self, sessions: usize) -> Room {
        let frames = self.links.iter().map(|l| l.room.frames).min().unwrap_or(8);
        let bytes = self.links.iter().map(|l| l.room.bytes).min().unwrap_or(1 << 16);
        Room { frames, bytes }.shared_by(sessions)
    }
}

/// A request crosses a border. Only reads and writes are measured.
#[inline]
pub(crate) fn cross(observer: &Option<Rc<dyn StageObserver>>, stage: Stage, op: Op) {
    if let (Some(observer), Op::Read | Op::Write) = (observer, op) {
        observer.cross(stage);
    }
}
