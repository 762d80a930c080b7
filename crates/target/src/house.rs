//! What all sessions of a target share: the door to the exports, links, settings.

use std::rc::Rc;

use thinwire_buffer::{LinkInfo, Pool, Room};
use thinwire_exports::Exports;
use thinwire_proto::{Drops, SipRng, Stage, StageObserver, Time};
use thinwire_volume::Op;

use crate::TargetConfig;

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
    /// Of the session that was opened last.
    pub session_number: u64,
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
