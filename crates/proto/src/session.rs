//! One end of a session: what arrives, what time brings, what the owner asks for. Sending is in
//! `transmit.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_wire::{AckRanges, Frame, Header, Message, Probe, ProbeReply, flags};

use crate::path::{Path, PathReport, PathState, Room};
use crate::probe::ProbeEvent;
use crate::received::Verdict;
use crate::recovery::{AckOutcome, ITEMS_MAX};
use crate::{Content, DropReason, Item, Rng, Time};

/// Paths of one session, at most: a path number is never reused within an epoch.
const PATHS_MAX: usize = 16;
/// Losses of large frames in a row, while small ones pass, that make a black hole (rule 11). One
/// burst that overflows a buffer is one loss, however many frames it takes.
const BLACK_HOLE_LOSSES: u32 = 4;
/// And they spread over at least this long.
const BLACK_HOLE_TIME: Duration = Duration::from_millis(30);
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
        /// Which path.
        path: u8,
        /// Bytes of the largest frame in use.
        used: usize,
        /// Bytes of the largest frame that both links allow.
        limit: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub link: usize,
    pub addr: Addr,
    pub path: u8,
    pub token: u64,
    pub size: u16,
}

/// One end of a session. Time never goes backwards between calls.
#[derive(Debug)]
pub struct Session {
    pub(crate) config: SessionConfig,
    pub(crate) paths: Vec<Path>,
    pub(crate) queue: VecDeque<Item>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) room: Room,
    pub(crate) granted: (u32, u64),
    pub(crate) granted_sent: (u32, u64),
    /// Bytes that are worth a message of their own: a quarter of the first grant.
    grant_step: u64,
    peer_granted: (u32, u64),
    pub(crate) rng: Rng,
    pub(crate) stats: SessionStats,
    notices: VecDeque<Notice>,
    last_heard: Time,
    /// Items that were lost, in the order they are to be sent again; kept for its storage.
    lost: Vec<Item>,
}

impl Session {
    /// A session that has just been agreed on, without paths. `room` is what this end can take in
    /// on each path.
    pub fn new(now: Time, config: SessionConfig, room: Room) -> Self {
        let rng = Rng::new(config.seed);
        Session {
            config,
            paths: Vec::new(),
            queue: VecDeque::with_capacity(256),
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
            lost: Vec::with_capacity(4 * ITEMS_MAX),
        }
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
        if self.notices.len() < 64 {
            self.notices.push_back(notice);
        }
    }

    /// Adds a path to `addr` over `link`. `known` paths (the handshake went over them) carry frames
    /// at once; others are probed first. Returns false if there are too many, or it is there.
    /// `base` and `limit` are frame sizes in bytes.
    pub fn add_path(
        &mut self,
        now: Time,
        link: usize,
        addr: Addr,
        known: Option<Room>,
        base: usize,
        limit: usize,
    ) -> bool {
        let there = self.paths.iter().any(|p| p.link == link && p.addr == addr);
        if there || self.paths.len() >= PATHS_MAX {
            return false;
        }
        let id = self.paths.len() as u8;
        self.insert_path(now, id, link, addr, known, base, limit);
        true
    }

    fn insert_path(
        &mut self,
        now: Time,
        id: u8,
        link: usize,
        addr: Addr,
        known: Option<Room>,
        base: usize,
        limit: usize,
    ) {
        let state = if known.is_some() { PathState::Active } else { PathState::Candidate };
        let room = known.unwrap_or(ROOM_UNKNOWN);
        self.paths.push(Path::new(now, id, link, addr, state, base, limit, room));
        if known.is_some() {
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

    /// Items that wait to be sent.
    pub fn queued(&self) -> usize {
        self.queue.len()
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

    /// Takes in the header of a frame of this session: epoch, path, packet number,
    /// acknowledgements, credits. `waited` is how long the frame had lain in this machine's queues:
    /// congestion control counts the network's time only (Swift's fabric delay). On `Ok` the caller acts on all messages of the frame, in order;
    /// on `Err` on none of them.
    pub fn accept(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        waited: Duration,
        frame: &Frame<'_>,
        content: &mut dyn Content,
    ) -> Result<(), DropReason> {
        let header = frame.header();
        if header.epoch != self.config.epoch {
            return Err(DropReason::Epoch);
        }
        let at = self.path_at(header.path).ok_or(DropReason::Path)?;
        let path = &mut self.paths[at];
        if path.link != link || path.addr != from {
            return Err(DropReason::Path);
        }
        let verdict = path.received.insert(header.packet_number);
        let eliciting = frame.messages().any(|m| !matches!(m, Message::AckRanges(_)));
        match verdict {
            Verdict::Duplicate => {
                // Its acknowledgement may have been lost.
                path.ack.on_received(now, now - waited, Verdict::OutOfOrder, eliciting);
                return Err(DropReason::Duplicate);
            }
            Verdict::TooOld => return Err(DropReason::TooOld),
            Verdict::TooFarAhead => return Err(DropReason::TooFarAhead),
            Verdict::InOrder | Verdict::OutOfOrder => {}
        }
        path.ack.on_received(now, now - waited, verdict, eliciting);
        path.last_heard = now;
        if path.state == PathState::Dead && self.config.role == Role::Target {
            // The initiator sends on it, so it may well be back: find out.
            path.prober.ask_again(now);
        }
        self.last_heard = now;
        self.stats.frames_received += 1;
        if header.flags & flags::CREDIT != 0 {
            self.take_grant(header);
        }
        if header.flags & flags::ACK != 0 {
            let at = self.on_header_ack(now, waited, header, content);
            // What the header has no room for may be in the long form behind it: nothing is lost
            // before that has been read.
            let more = frame.messages().any(|m| matches!(m, Message::AckRanges(_)));
            if let Some(at) = at.filter(|_| !more) {
                self.detect_loss(now, at);
            }
        }
        Ok(())
    }

    fn take_grant(&mut self, header: &Header) {
        let (slots, bytes) = &mut self.peer_granted;
        if (header.credit_slots.wrapping_sub(*slots) as i32) > 0 {
            *slots = header.credit_slots;
        }
        *bytes = (*bytes).max(header.credit_bytes);
    }

    /// Acts on the messages that concern the session itself; false for all others.
    pub fn on_message(
        &mut self,
        now: Time,
        message: &Message<'_>,
        content: &mut dyn Content,
    ) -> bool {
        match message {
            Message::AckRanges(ranges) => self.on_ack_ranges(now, ranges, content),
            Message::Credit(credit) => {
                if let Some(at) = self.path_at(credit.path) {
                    self.paths[at].peer_room =
                        Room { frames: credit.frames.max(1), bytes: credit.bytes.max(2048) };
                }
            }
            Message::Ping(_) => {}
            _ => return false,
        }
        true
    }

    pub(crate) fn path_at(&self, id: u8) -> Option<usize> {
        self.paths.iter().position(|p| p.id == id)
    }

    fn on_header_ack(
        &mut self,
        now: Time,
        waited: Duration,
        header: &Header,
        content: &mut dyn Content,
    ) -> Option<usize> {
        let at = self.path_at(header.ack_path)?;
        let mut outcome = AckOutcome::default();
        let sent = &mut self.paths[at].sent;
        let mut acked = |item| content.acked(item);
        let largest = header.ack_largest;
        let mut known = sent.on_ack_range(now, largest, largest, &mut outcome, &mut acked);
        // Runs of ones in the bitmap are ranges below the largest.
        let mut bits = header.ack_bitmap;
        let mut below = largest;
        while bits != 0 && known.is_some() {
            let gap = u64::from(bits.trailing_zeros());
            bits = if gap == 64 { 0 } else { bits >> gap };
            let run = u64::from(bits.trailing_ones());
            bits = if run == 64 { 0 } else { bits >> run };
            let Some(last) = below.checked_sub(gap + 1) else { break };
            let first = last.saturating_sub(run - 1).max(1);
            if last == 0 {
                break;
            }
            known = sent.on_ack_range(now, first, last, &mut outcome, &mut acked);
            below = first;
        }
        self.after_ack(now, waited, at, outcome, header.ack_delay);
        Some(at)
    }

    fn on_ack_ranges(&mut self, now: Time, ranges: &AckRanges, content: &mut dyn Content) {
        let Some(at) = self.path_at(ranges.path) else { return };
        let mut outcome = AckOutcome::default();
        for &(first, last) in ranges.ranges() {
            let sent = &mut self.paths[at].sent;
            let acked = |item| content.acked(item);
            if sent.on_ack_range(now, first, last, &mut outcome, acked).is_none() {
                break;
            }
        }
        self.after_ack(now, Duration::ZERO, at, outcome, ranges.delay);
        self.detect_loss(now, at);
    }

    fn after_ack(
        &mut self,
        now: Time,
        waited: Duration,
        at: usize,
        outcome: AckOutcome,
        delay_units: u16,
    ) {
        let path = &mut self.paths[at];
        if outcome.frames > 0 {
            path.pto_count = 0;
            path.pto_frames = 0;
            if outcome.frame_bytes_largest as usize > path.frame_bytes_base {
                path.large_lost = 0;
            }
            // Timers need the whole time, with what both ends took; the window only the network's.
            if let Some(rtt) = outcome.rtt {
                path.rtt.sample(now, rtt);
            }
            let ends = waited + Duration::from_micros(u64::from(delay_units) * 4);
            let fabric = outcome.rtt.map(|rtt| rtt.saturating_sub(ends));
            path.window.on_acked(now, outcome.frames, fabric, path.rtt.smoothed, path.frame_bytes);
        }
    }

    fn detect_loss(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        let threshold = path.rtt.time_threshold();
        let base = path.frame_bytes_base;
        let lost = &mut self.lost;
        let outcome = path.sent.detect_loss(now, threshold, base, |item| lost.push(item));
        if outcome.frames > 0 {
            path.window.on_lost(outcome.frames);
            path.frames_lost += u64::from(outcome.frames);
            if outcome.large > 0 {
                path.lose_large(now);
            }
            self.stats.frames_lost += u64::from(outcome.frames);
            self.requeue_lost();
            self.check_black_hole(now, at);
        }
    }

    /// Lost information goes before new information.
    fn requeue_lost(&mut self) {
        while let Some(item) = self.lost.pop() {
            self.queue.push_front(item);
        }
    }

    fn check_black_hole(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        let recently = path.rtt.probe_timeout() * 8;
        if path.large_lost < BLACK_HOLE_LOSSES
            || now.since(path.large_lost_since) < BLACK_HOLE_TIME
            || path.frame_bytes == path.frame_bytes_base
            || now.since(path.last_heard) > recently.max(Duration::from_millis(200))
        {
            return;
        }
        path.frame_bytes = path.frame_bytes_base;
        path.large_lost = 0;
        path.prober.search_size_later(now);
        let (id, used, limit) = (path.id, path.frame_bytes, path.frame_bytes_limit);
        let lost = &mut self.lost;
        path.sent.lose_all(|item| lost.push(item));
        self.requeue_lost();
        self.notice(Notice::FrameSize { path: id, used, limit });
    }

    /// A probe for this session arrived; the answer goes out with the next transmit. A target
    /// learns of a new path by it. `base` and `limit` are the link's frame sizes.
    pub fn on_probe(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        header: &Header,
        probe: &Probe,
        base: usize,
        limit: usize,
    ) -> Result<(), DropReason> {
        if header.epoch != self.config.epoch {
            return Err(DropReason::Epoch);
        }
        if probe.size != header.length {
            return Err(DropReason::Range);
        }
        let room = Room { frames: probe.room_frames.max(1), bytes: probe.room_bytes.max(2048) };
        let at = match self.path_at(header.path) {
            Some(at) => at,
            None if self.config.role == Role::Target && self.paths.len() < PATHS_MAX => {
                self.insert_path(now, header.path, link, from, Some(room), base, limit);
                self.paths.len() - 1
            }
            None => return Err(DropReason::Path),
        };
        let path = &mut self.paths[at];
        if path.link != link || path.addr != from {
            return Err(DropReason::Path);
        }
        path.last_heard = now;
        path.peer_room = room;
        self.last_heard = now;
        if path.state == PathState::Dead && self.config.role == Role::Target {
            path.prober.ask_again(now);
        }
        if self.replies.len() < 64 {
            self.replies.push(Reply {
                link,
                addr: from,
                path: header.path,
                token: probe.token,
                size: probe.size,
            });
        }
        Ok(())
    }

    /// An answer to one of our probes arrived.
    pub fn on_probe_reply(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        header: &Header,
        reply: &ProbeReply,
    ) -> Result<(), DropReason> {
        if header.epoch != self.config.epoch {
            return Err(DropReason::Epoch);
        }
        let at = self.path_at(header.path).ok_or(DropReason::Path)?;
        let path = &mut self.paths[at];
        if path.link != link || path.addr != from {
            return Err(DropReason::Path);
        }
        let (size, rtt) = path
            .prober
            .on_reply(now, reply.token, path.frame_bytes_limit)
            .ok_or(DropReason::Unasked)?;
        path.last_heard = now;
        path.peer_room =
            Room { frames: reply.room_frames.max(1), bytes: reply.room_bytes.max(2048) };
        if size > path.frame_bytes {
            path.frame_bytes = size;
            path.window.restart(size);
        }
        let id = path.id;
        let limit = path.frame_bytes_limit;
        let used = path.frame_bytes;
        let settled_low = size > 0 && path.prober.size_settled() && used < limit;
        if path.state != PathState::Active {
            path.state = PathState::Active;
            path.pto_count = 0;
            path.rtt.restart(now, rtt);
            path.window.restart(path.frame_bytes);
            self.notice(Notice::PathUp(id));
        }
        self.last_heard = now;
        if settled_low {
            self.notice(Notice::FrameSize { path: id, used, limit });
        }
        Ok(())
    }

    /// Lets time pass: timers that are due fire.
    pub fn on_time(&mut self, now: Time) {
        for at in 0..self.paths.len() {
            self.path_on_time(now, at);
        }
    }

    fn path_on_time(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        let sizes = (path.frame_bytes_base, path.frame_bytes, path.frame_bytes_limit);
        let keep_alive = self.config.role == Role::Initiator;
        match path.prober.on_time(now, path.state, path.rtt.smoothed, keep_alive, sizes) {
            ProbeEvent::None => {}
            ProbeEvent::Silent => {
                self.path_dead(now, at);
                return;
            }
            ProbeEvent::SizeSettled => {
                let (path, used, limit) = (path.id, path.frame_bytes, path.frame_bytes_limit);
                self.notice(Notice::FrameSize { path, used, limit });
            }
        }
        let path = &mut self.paths[at];
        if path.sent.loss_at.is_some_and(|due| due <= now) {
            self.detect_loss(now, at);
        } else if path.pto_at().is_some_and(|due| due <= now) {
            self.on_probe_timeout(now, at);
        }
    }

    fn on_probe_timeout(&mut self, now: Time, at: usize) {
        self.stats.probe_timeouts += 1;
        let others = self
            .paths
            .iter()
            .enumerate()
            .any(|(other, p)| other != at && p.state == PathState::Active && p.pto_count < 2);
        let path = &mut self.paths[at];
        path.pto_count += 1;
        path.pto_frames = 2;
        // The timer runs from here, also if nothing is wanted any more of what is in flight.
        path.sent.last_eliciting = now;
        let lost = &mut self.lost;
        path.sent.oldest(2, |item| lost.push(item));
        self.requeue_lost();
        let path = &mut self.paths[at];
        self.queue.push_front(Item::Ping);
        if path.sent.only_large_in_flight(path.frame_bytes_base) {
            path.lose_large(now);
        }
        let silence = if others { 30 } else { 300 };
        if path.pto_count >= 3 && now.since(path.last_heard) > Duration::from_millis(silence) {
            self.path_dead(now, at);
        } else {
            if path.pto_count == 2 {
                path.prober.ask_now(now);
            }
            self.check_black_hole(now, at);
        }
    }

    fn path_dead(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        path.state = PathState::Dead;
        path.pto_count = 0;
        path.pto_frames = 0;
        path.prober.ask_now(now);
        let lost = &mut self.lost;
        let outcome = path.sent.lose_all(|item| lost.push(item));
        path.frames_lost += u64::from(outcome.frames);
        self.stats.frames_lost += u64::from(outcome.frames);
        let id = path.id;
        self.requeue_lost();
        self.notice(Notice::PathDown(id));
    }

    /// When to call [`Session::on_time`] and [`Session::transmit`] next, at the latest. In the past
    /// if there is something to send now.
    pub fn deadline(&self, now: Time) -> Time {
        let mut at = Time(u64::MAX);
        let keep_alive = self.config.role == Role::Initiator;
        for path in &self.paths {
            let sizes = (path.frame_bytes_base, path.frame_bytes, path.frame_bytes_limit);
            let timers = [
                path.ack.deadline(),
                path.sent.loss_at,
                path.pto_at(),
                path.prober.deadline(
                    path.state,
                    path.rtt.smoothed,
                    path.last_heard,
                    keep_alive,
                    sizes,
                ),
                (!self.queue.is_empty() && path.state == PathState::Active)
                    .then(|| if path.can_send(now) { now } else { path.paced_until.max(now) })
                    .filter(|_| path.sent.in_flight_bytes == 0 || path.can_send(now)),
            ];
            at = timers.into_iter().flatten().fold(at, Time::min);
        }
        if !self.replies.is_empty() { now } else { at }
    }
}
