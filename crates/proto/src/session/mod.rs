//! One end of a session: what it is made of, what its owner asks for, when it wants to be called.
//! What arrives is in `intake.rs`, the paths' coming and going in `liveness.rs`, sending in
//! `transmit.rs`, planted faults in `canary.rs`.

mod canary;
mod intake;
mod liveness;
mod queue;
mod transmit;

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, Room};
use thinwire_wire::Header;

pub use self::canary::SessionCanary;
use self::queue::{QUEUE_STORAGE, QUEUED_ITEMS_MAX, Queue};
use crate::batch::{Batcher, Batching};
use crate::path::{Path, PathReport, PathState};
use crate::probe::PROBE_BYTES;
use crate::recovery::{ITEMS_MAX, SENT_ITEM_BYTES, SENT_ITEMS_MAX};
use crate::{DropReason, Item, SessionKeys, SipRng, Time};

/// Paths of one session, at most: a path number is never reused within an epoch.
const PATHS_MAX: usize = 16;
/// Answers to probes that wait for the end of a turn, at most.
const REPLIES_MAX: usize = 64;
/// Notices that wait to be read, at most.
const NOTICES_MAX: usize = 64;
/// Until the peer says how much it can take in.
const ROOM_UNKNOWN: Room = Room { frames: 8, bytes: 64 * 1024 };

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Adds paths, keeps idle ones alive.
    Initiator,
    /// Learns paths from probes.
    Target,
}

/// What both ends agreed on in the handshake.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Which end this is.
    pub role: Role,
    /// The id on frames that we receive.
    pub local_id: u64,
    /// The id on frames that we send.
    pub remote_id: u64,
    /// Which life of the session.
    pub epoch: u32,
    /// Seed for probe tokens.
    pub seed: u64,
    /// When requests (at a target: completions) are sent.
    pub batching: Batching,
    /// Tests only: see [`SessionCanary`].
    pub canary: SessionCanary,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Frames sent.
    pub frames_sent: u64,
    /// Items sent in them.
    pub items_sent: u64,
    /// Frames sent for an acknowledgement only.
    pub ack_frames: u64,
    /// Requests sent, or completions at a target; repetitions count.
    pub requests_sent: u64,
    /// Frames that carried at least one.
    pub request_frames: u64,
    /// Frames received and accepted.
    pub frames_received: u64,
    /// Frames declared lost.
    pub frames_lost: u64,
    /// Probe timeouts.
    pub probe_timeouts: u64,
}

/// Something a person may want to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A path carries frames (again).
    PathUp(u8),
    /// A path stopped answering.
    PathDown(u8),
    /// A path does not carry frames as large as its links do: the frame size in use, and the limit.
    FrameSize {
        /// Number of the path.
        path: u8,
        /// Bytes of the largest frame in use.
        used: usize,
        /// Bytes of the largest frame that both links allow.
        limit: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// Which path, among those of the session.
    pub at: usize,
    pub token: u64,
}

/// One end of a session. Time never goes backwards between calls.
#[derive(Debug)]
pub struct Session {
    pub(crate) config: SessionConfig,
    pub(crate) paths: Vec<Path>,
    pub(crate) queue: Queue,
    batcher: Batcher,
    pub(crate) replies: Vec<Reply>,
    pub(crate) room: Room,
    pub(crate) granted: (u32, u64),
    pub(crate) granted_sent: (u32, u64),
    /// Bytes that are worth a message of their own: a quarter of the first grant.
    grant_step: u64,
    peer_granted: (u32, u64),
    pub(crate) rng: SipRng,
    pub(crate) stats: SessionStats,
    notices: VecDeque<Notice>,
    last_heard: Time,
    /// When the last was sent of what has been answered or acknowledged.
    answered: Time,
    /// Packet numbers of each path begin here.
    first_number: u64,
    /// What its frames are sealed with; none in a session without keys.
    keys: Option<SessionKeys>,
    /// When this wanted to be called next.
    planned: Cell<Time>,
    /// When it was last called much later than that.
    resumed_at: Time,
    /// Timers have rested since, and have not been let fire.
    timers_owed: bool,
    /// Items of the frame that is being built; kept for its storage.
    items: Vec<Item>,
}

impl Session {
    /// A session that has just been agreed on, without paths. `room` is what this end can take in
    /// on each path.
    pub fn new(now: Time, config: SessionConfig, room: Room) -> Self {
        let rng = SipRng::new(config.seed);
        let batcher = Batcher::new(config.batching);
        Session {
            config,
            paths: Vec::new(),
            queue: Queue::new(),
            batcher,
            replies: Vec::new(),
            room,
            granted: (0, 0),
            granted_sent: (0, 0),
            grant_step: 1,
            peer_granted: (0, 0),
            rng,
            stats: SessionStats::default(),
            notices: VecDeque::new(),
            last_heard: now,
            answered: Time::ZERO,
            first_number: 1,
            keys: None,
            planned: Cell::new(Time(u64::MAX)),
            resumed_at: Time::ZERO,
            timers_owed: false,
            items: Vec::with_capacity(ITEMS_MAX),
        }
    }

    /// Tests only: packet numbers begin here, at most 2^32, instead of at 1. Before the first path.
    pub fn set_first_number(&mut self, number: u64) {
        self.first_number = number;
    }

    /// All its frames are sealed with these, from the first on.
    pub fn set_keys(&mut self, keys: SessionKeys) {
        self.keys = Some(keys);
    }

    /// What its frames are sealed with, if with keys.
    pub fn keys(&self) -> Option<&SessionKeys> {
        self.keys.as_ref()
    }

    /// The id on frames that this end receives.
    pub fn local_id(&self) -> u64 {
        self.config.local_id
    }

    /// The id on frames that this end sends.
    pub fn remote_id(&self) -> u64 {
        self.config.remote_id
    }

    /// Which life of the session this is.
    pub fn epoch(&self) -> u32 {
        self.config.epoch
    }

    /// When the peer was last heard on any path.
    pub fn last_heard(&self) -> Time {
        self.last_heard
    }

    /// Counters.
    pub fn stats(&self) -> SessionStats {
        self.stats
    }

    /// Figures of all paths.
    pub fn path_reports(&self) -> impl Iterator<Item = PathReport> + '_ {
        self.paths.iter().map(Path::report)
    }

    /// True if some path carries frames.
    pub fn is_connected(&self) -> bool {
        self.paths.iter().any(|p| p.state == PathState::Active)
    }

    /// The next thing a person may want to read.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn notice(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }

    /// Adds a path to `addr` over `link`. `known` paths (the handshake went over them) carry frames
    /// at once; others are probed first. `sizes` are what both ends allow, as far as that is known.
    /// Returns false if there are too many, or it is there.
    pub fn add_path(
        &mut self,
        now: Time,
        link: usize,
        addr: Addr,
        known: Option<Room>,
        sizes: FrameSizes,
    ) -> bool {
        let there = self.paths.iter().any(|p| p.link == link && p.addr == addr);
        if there || self.paths.len() >= PATHS_MAX {
            return false;
        }
        let id = self.paths.len() as u8;
        let state = if known.is_some() { PathState::Active } else { PathState::Candidate };
        let room = known.unwrap_or(ROOM_UNKNOWN);
        self.insert_path(now, id, link, addr, state, room, sizes);
        true
    }

    fn insert_path(
        &mut self,
        now: Time,
        id: u8,
        link: usize,
        addr: Addr,
        state: PathState,
        room: Room,
        sizes: FrameSizes,
    ) {
        let mut path = Path::new(now, id, link, addr, state, sizes, room);
        path.sent.start_at(self.first_number);
        self.paths.push(path);
        // What may be in flight is shared by the paths.
        let share = SENT_ITEMS_MAX / self.paths.len().next_power_of_two();
        for path in &mut self.paths {
            let outcome = path.set_sent_items_max(share, |item| self.queue.push_lost(item));
            self.stats.frames_lost += u64::from(outcome.frames);
        }
        if state == PathState::Active {
            self.notice(Notice::PathUp(id));
        }
    }

    /// This end's room on every path is now `room` (it is shared by the sessions on a socket).
    pub fn set_room(&mut self, room: Room) {
        if self.room == room {
            return;
        }
        self.room = room;
        for at in 0..self.paths.len() {
            self.queue.push_back(Item::Credit(self.paths[at].id));
        }
    }

    /// Queues an item behind those that wait.
    pub fn send(&mut self, item: Item) {
        self.queue.push_back(item);
    }

    /// Queues a request and the data of a write (at a target: a completion, and before it the data
    /// of a read), which belong together, to be sent when the batching policy says so. `bytes` is
    /// the size of its payload, in whichever direction that travels.
    #[inline]
    pub fn send_batched(&mut self, now: Time, items: [Option<Item>; 2], bytes: u64) {
        if self.batcher.hold(now, items, bytes) {
            return;
        }
        let [first, second] = items;
        if let Some(item) = first {
            self.queue.push_back(item);
        }
        if let Some(item) = second {
            self.queue.push_back(item);
        }
    }

    /// Tells the batching policy that a request of so many bytes of payload is completed.
    #[inline]
    pub fn on_completed(&mut self, now: Time, bytes: u64) {
        self.batcher.on_completed(now, bytes);
    }

    /// The number of requests that the batching policy waits for at present.
    pub fn batch_level(&self) -> usize {
        self.batcher.level()
    }

    /// The network's part of a round trip, smoothed, on the fastest of the paths on which frames wait
    /// for their acknowledgement; `None` if none does. What either end takes is not in it.
    pub fn network_time(&self) -> Option<Duration> {
        let waits = |path: &&Path| path.sent.in_flight_frames > 0;
        self.paths.iter().filter(waits).map(|p| Duration::from_nanos(p.network_ns)).min()
    }

    /// Items that wait to be sent.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.batcher.queued()
    }

    /// Items that frames in flight carry: kept until acknowledged or lost.
    pub fn in_flight_items(&self) -> usize {
        self.paths.iter().map(|path| path.sent.len()).sum()
    }

    /// Memory that a session holds at most, in bytes, whatever its peer does, as long as its owner
    /// ends it when it [is overrun](Session::is_overrun). What the batching policy holds back is not
    /// in it: the owner bounds that by its slots (`docs/protocol.md`, "Bounds").
    pub const BYTES_MAX: usize = size_of::<Session>()
        + PATHS_MAX * size_of::<Path>()
        + SENT_ITEMS_MAX * SENT_ITEM_BYTES
        + QUEUE_STORAGE * size_of::<Item>()
        + ITEMS_MAX * size_of::<Item>()
        + REPLIES_MAX * size_of::<Reply>()
        + NOTICES_MAX * size_of::<Notice>();

    /// Memory for a request that the batching policy holds back, in bytes.
    pub const HELD_BYTES: usize = 2 * Batcher::HELD_BYTES;

    /// More waits to be sent than any honest peer can bring about: the owner is to end the session.
    /// Nothing is ever dropped instead, since what it answers has been acknowledged
    /// (`docs/protocol.md`, "Bounds").
    pub fn is_overrun(&self) -> bool {
        self.queue.len() > QUEUED_ITEMS_MAX
    }

    /// Its keys have met so many forgeries that the owner is to end it, and open another.
    pub fn is_worn(&self) -> bool {
        self.keys.as_ref().is_some_and(SessionKeys::are_worn)
    }

    /// Raises what the peer may send, as running totals of requests and of their bytes.
    pub fn grant(&mut self, slots: u32, bytes: u64) {
        if self.granted == (0, 0) {
            self.grant_step = (bytes / 4).min(1 << 20);
        }
        self.granted = (slots, bytes);
        // Frames carry the totals anyway; when a quarter is waiting to be told, tell it reliably.
        let untold = bytes.saturating_sub(self.granted_sent.1);
        let slots_untold = slots.wrapping_sub(self.granted_sent.0);
        if untold >= self.grant_step || slots_untold >= 32 {
            self.granted_sent = self.granted;
            if let Some(path) = self.paths.first() {
                self.queue.push_back(Item::Credit(path.id));
            }
        }
    }

    /// What the peer allows this end: running totals of requests and of their bytes.
    pub fn peer_grant(&self) -> (u32, u64) {
        self.peer_granted
    }

    /// The first grant, from the handshake.
    pub fn set_peer_grant(&mut self, slots: u32, bytes: u64) {
        self.peer_granted = (slots, bytes);
    }

    /// A target has not seen yet that the other end of this path receives.
    pub(crate) fn is_unproved(&self, at: usize) -> bool {
        self.config.role == Role::Target && self.paths[at].state == PathState::Candidate
    }

    /// The path that a frame of this epoch says it is on, if it came from there.
    fn path_of(&self, header: &Header, link: usize, from: Addr) -> Result<usize, DropReason> {
        if header.epoch != self.config.epoch {
            return Err(DropReason::Epoch);
        }
        let at = self.path_at(header.path).ok_or(DropReason::Path)?;
        let path = &self.paths[at];
        if path.link != link || path.addr != from {
            return Err(DropReason::Path);
        }
        Ok(at)
    }

    pub(crate) fn path_at(&self, id: u8) -> Option<usize> {
        // Ids are given in order, so most stand where they say.
        let at = usize::from(id);
        match self.paths.get(at) {
            Some(path) if path.id == id => Some(at),
            _ => self.paths.iter().position(|p| p.id == id),
        }
    }

    /// When to call [`Session::on_time`] and [`Session::transmit`] next, at the latest. In the past
    /// if there is something to send now.
    pub fn deadline(&self, now: Time) -> Time {
        let mut at = Time(u64::MAX);
        // Timers that expired while this machine stood still.
        let timers_from = self.resumed_at + liveness::CATCH_UP;
        let keep_alive = self.config.role == Role::Initiator;
        for (at_path, path) in self.paths.iter().enumerate() {
            let mut first = path.sent.loss_at.unwrap_or(Time::NEVER);
            if let Some(due) = path.pto_at() {
                first = first.min(due);
            }
            // What it may not ask now, it may when something comes.
            if !self.is_unproved(at_path) || path.allowance >= PROBE_BYTES {
                let (state, rtt) = (path.state, path.rtt.smoothed);
                let asks =
                    path.prober.deadline(state, rtt, path.last_heard, keep_alive, path.sizes);
                first = first.min(asks.unwrap_or(Time::NEVER));
            }
            at = at.min(first.max(timers_from));
            if let Some(due) = path.ack.deadline() {
                at = at.min(due);
            }
            if !self.queue.is_empty() && path.state == PathState::Active {
                if path.can_send(now) {
                    at = at.min(now);
                } else if path.sent.in_flight_bytes == 0 {
                    at = at.min(path.paced_until.max(now));
                }
            }
        }
        if self.is_connected()
            && let Some(due) = self.batcher.deadline()
        {
            at = at.min(due);
        }
        let at = if self.replies.is_empty() { at } else { now };
        self.planned.set(at.max(now));
        at
    }
}
