//! One way between the two ends of a session: a local link and a station on it.

use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, Room};

use crate::ack::AckState;
use crate::congestion::Window;
use crate::probe::Prober;
use crate::received::Received;
use crate::recovery::{ITEMS_MAX, LossOutcome, SENT_ITEMS_MAX, Sent};
use crate::rtt::Rtt;
use crate::{Item, Time};

/// Who has not shown that it receives gets at most so many times the bytes that came from it (RFC 9000,
/// section 8.1).
pub const AMPLIFICATION_MAX: u64 = 3;

/// Whether a path can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Never answered yet; probed now and then. At a target: not proved to receive, so that it gets at
    /// most three times what came from it.
    Candidate,
    /// Carries frames.
    Active,
    /// Stopped answering; probed until it returns.
    Dead,
}

impl PathState {
    /// For status.
    pub fn name(self) -> &'static str {
        match self {
            PathState::Candidate => "candidate",
            PathState::Active => "active",
            PathState::Dead => "dead",
        }
    }
}

/// Figures of a path for status.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    /// Its number in the session.
    pub id: u8,
    /// Index of the local link.
    pub link: usize,
    /// The other end.
    pub addr: Addr,
    /// Whether it can be used.
    pub state: PathState,
    /// The frame size in use.
    pub frame_bytes: usize,
    /// The frame size that both links would allow.
    pub frame_bytes_limit: usize,
    /// When the full size is tried again (`docs/protocol.md`, "Paths and probing"). `None` if it is in
    /// use, if it is being looked for now, and on a path that is not active.
    pub full_size_retry: Option<Time>,
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Smallest round trip lately.
    pub rtt_base: Duration,
    /// Congestion window in bytes.
    pub window_bytes: usize,
    /// Bytes in flight.
    pub in_flight_bytes: usize,
    /// Frames sent that carried items.
    pub frames_sent: u64,
    /// Frames declared lost.
    pub frames_lost: u64,
}

/// Frame sizes of a path, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathSizes {
    /// What passes everywhere on its kind of link.
    pub base: usize,
    /// In use: what a probe has shown to pass.
    pub used: usize,
    /// What both links allow.
    pub limit: usize,
}

impl PathSizes {
    /// Before anything larger than the base is known to pass.
    fn new(sizes: FrameSizes) -> Self {
        // Whoever made the link may not have seen to it that the base is the smaller one.
        let FrameSizes { base, max: limit } = sizes.at_most(sizes.max);
        PathSizes { base, used: base, limit }
    }
}

/// One path of a session. Its fields are the session's business.
#[derive(Debug)]
pub struct Path {
    pub(crate) id: u8,
    pub(crate) link: usize,
    pub(crate) addr: Addr,
    pub(crate) state: PathState,
    pub(crate) sent: Sent,
    /// The first number that was sealed with the present key of the session.
    pub(crate) phase_from: u64,
    /// Items that its frames in flight may carry, of [`SENT_ITEMS_MAX`].
    sent_items_max: usize,
    pub(crate) rtt: Rtt,
    pub(crate) window: Window,
    /// The network's part of a round trip, in ns, smoothed.
    pub(crate) network_ns: u64,
    pub(crate) received: Received,
    pub(crate) ack: AckState,
    pub(crate) prober: Prober,
    pub(crate) peer_room: Room,
    pub(crate) sizes: PathSizes,
    pub(crate) pto_count: u32,
    /// Frames that may exceed the window because a probe timeout fired.
    pub(crate) pto_frames: u32,
    pub(crate) paced_until: Time,
    pub(crate) last_heard: Time,
    /// Times in a row that large frames were lost and none acknowledged, and since when (rule 11).
    pub(crate) large_lost: u32,
    pub(crate) large_lost_since: Time,
    pub(crate) frames_sent: u64,
    pub(crate) frames_lost: u64,
    /// Bytes that a target may send on it before it is proved to receive: see [`Path::pay`].
    pub(crate) allowance: u64,
}

impl Path {
    pub(crate) fn new(
        now: Time,
        id: u8,
        link: usize,
        addr: Addr,
        state: PathState,
        sizes: FrameSizes,
        peer_room: Room,
    ) -> Self {
        let sizes = PathSizes::new(sizes);
        Path {
            id,
            link,
            addr,
            state,
            sent: Sent::new(),
            phase_from: 0,
            sent_items_max: SENT_ITEMS_MAX,
            rtt: Rtt::default(),
            window: Window::new(sizes.base),
            network_ns: 0,
            received: Received::default(),
            ack: AckState::default(),
            prober: Prober::new(now),
            peer_room,
            sizes,
            pto_count: 0,
            pto_frames: 0,
            paced_until: Time::ZERO,
            last_heard: now,
            large_lost: 0,
            large_lost_since: Time::ZERO,
            frames_sent: 0,
            frames_lost: 0,
            allowance: 0,
        }
    }

    /// A frame of so many bytes came from an address that may be forged.
    pub(crate) fn earn(&mut self, bytes: u16) {
        self.allowance = self.allowance.saturating_add(AMPLIFICATION_MAX * u64::from(bytes));
    }

    /// Whether a frame of so many bytes may go to where nobody has shown to receive. If so, it is
    /// taken off what may.
    pub(crate) fn pay(&mut self, bytes: u64) -> bool {
        let left = self.allowance.checked_sub(bytes);
        self.allowance = left.unwrap_or(self.allowance);
        left.is_some()
    }

    /// Whether a frame with items may go out on this path now.
    pub(crate) fn can_send(&self, now: Time) -> bool {
        if self.state != PathState::Active || !self.has_room(1) {
            return false;
        }
        if self.pto_frames > 0 {
            return true;
        }
        let in_flight = self.sent.in_flight_bytes;
        if in_flight == 0 {
            return now >= self.paced_until;
        }
        in_flight + self.sizes.used <= self.window.bytes()
            && self.sent.in_flight_frames < self.peer_room.frames as usize
            && in_flight + self.sizes.used <= self.peer_room.bytes as usize
    }

    /// What so many frames may carry can be kept until it is acknowledged.
    fn has_room(&self, frames: usize) -> bool {
        self.sent.len() + frames * ITEMS_MAX <= self.sent_items_max
    }

    /// Sees to it that so many frames can be sent: if need be the oldest in flight count as lost.
    pub(crate) fn make_room(&mut self, frames: usize, lost: impl FnMut(Item)) -> LossOutcome {
        if self.has_room(frames) {
            return LossOutcome::default();
        }
        self.lose_down_to(self.sent_items_max - frames * ITEMS_MAX, lost)
    }

    /// Bounds what is kept of frames in flight. Those beyond it, the oldest, count as lost.
    pub(crate) fn set_sent_items_max(&mut self, max: usize, lost: impl FnMut(Item)) -> LossOutcome {
        self.sent_items_max = max;
        let outcome = self.lose_down_to(max, lost);
        self.sent.shrink(max);
        outcome
    }

    fn lose_down_to(&mut self, items: usize, lost: impl FnMut(Item)) -> LossOutcome {
        let outcome = self.sent.lose_down_to(items, lost);
        self.frames_lost += u64::from(outcome.frames);
        outcome
    }

    /// Large frames were lost.
    pub(crate) fn lose_large(&mut self, now: Time) {
        if self.large_lost == 0 {
            self.large_lost_since = now;
        }
        self.large_lost += 1;
    }

    /// Expected time for a further frame to be answered, for choosing among paths. A path that has
    /// not been used for a while is worth a try: without one, a single late answer would keep it
    /// out of use for good.
    pub(crate) fn expected_delay(&self, now: Time) -> Duration {
        if self.sent.in_flight_frames == 0 && self.rtt.is_old(now) {
            return Duration::ZERO;
        }
        let load = self.sent.in_flight_bytes as f64 / self.window.bytes().max(1) as f64;
        self.rtt.smoothed.mul_f64(1.0 + load)
    }

    /// When the next probe timeout fires.
    pub(crate) fn pto_at(&self) -> Option<Time> {
        (self.state == PathState::Active && self.sent.in_flight_frames > 0).then(|| {
            let first = self.rtt.probe_timeout();
            let timeout = match self.pto_count {
                0 => first,
                count => first * (1 << count.min(8)),
            };
            self.sent.last_eliciting + timeout.min(Duration::from_millis(500))
        })
    }

    pub(crate) fn report(&self) -> PathReport {
        PathReport {
            id: self.id,
            link: self.link,
            addr: self.addr,
            state: self.state,
            frame_bytes: self.sizes.used,
            frame_bytes_limit: self.sizes.limit,
            full_size_retry: self
                .prober
                .size_retry_at()
                .filter(|_| self.state == PathState::Active && self.sizes.used < self.sizes.limit),
            rtt: self.rtt.smoothed,
            rtt_base: self.window.base(),
            window_bytes: self.window.bytes(),
            in_flight_bytes: self.sent.in_flight_bytes,
            frames_sent: self.frames_sent,
            frames_lost: self.frames_lost,
        }
    }
}
