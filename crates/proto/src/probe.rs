//! Probing a path: is it there, and how large a frame does it carry?
//! (`docs/protocol.md`, "Paths and probing".)

use std::time::Duration;

use thinwire_wire::{HEADER_BYTES, Probe};

use crate::Time;
use crate::path::{PathSizes, PathState};

/// Bytes of the smallest PROBE, and of every PROBE_REPLY.
pub(crate) const PROBE_BYTES: u64 = (HEADER_BYTES + Probe::BYTES) as u64;

/// Sizes tried below a link's own limit, in this order.
const SIZES: [usize; 8] = [60_000, 32_768, 16_384, 8_972, 8_384, 4_288, 1_500, 1_472];
/// A size that stays unanswered this often does not pass; a path that does is not there.
const TRIES: u32 = 3;
/// An active path is asked again after this at the latest: round trips that were measured when a
/// machine stood still must not make a question last for minutes.
const TIMEOUT_MAX: Duration = Duration::from_millis(500);
/// After falling back, the full size is tried again this much later.
const RETRY_SIZE: Duration = Duration::from_secs(10);
/// An initiator asks an idle path this often whether it is still there.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// A path that returns is asked at once, unless it was asked less than so long ago.
pub(crate) const JUST: Duration = Duration::from_millis(20);
/// Likewise one that has never answered: the answer to a first question may take long, and a new
/// question makes it worthless.
pub(crate) const JUST_FIRST: Duration = Duration::from_millis(500);

/// What a probe is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Liveness,
    Size(usize),
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    purpose: Purpose,
    sent_at: Time,
    tries: u32,
}

/// What became of a path's probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeEvent {
    /// Nothing new.
    None,
    /// The path does not answer.
    Silent,
    /// The search for the frame size ended below the limit, at this size.
    SizeSettled,
}

/// The probing state of one path.
#[derive(Clone, Debug)]
pub(crate) struct Prober {
    asked: Option<Asked>,
    next_at: Time,
    backoff: Duration,
    /// The size to try next; `None` when the search is over.
    size: Option<usize>,
    size_retry_at: Option<Time>,
    /// Whether the path is there is asked before anything else.
    alive_first: bool,
    warned: bool,
}

impl Prober {
    pub fn new(now: Time) -> Self {
        Prober {
            asked: None,
            next_at: now,
            backoff: Duration::from_millis(20),
            size: Some(usize::MAX),
            size_retry_at: None,
            alive_first: false,
            warned: false,
        }
    }

    /// Ask at once whether the path is there.
    pub fn ask_now(&mut self, now: Time) {
        self.alive_first = true;
        self.asked = None;
        self.next_at = now;
        self.backoff = Duration::from_millis(20);
    }

    /// There is reason to think that the other side hears us again, or does not know us any more: ask,
    /// unless that has been asked within `just`, and the answer is still to come.
    pub fn ask_again(&mut self, now: Time, just: Duration) {
        let asked = self.asked.filter(|asked| asked.purpose == Purpose::Liveness);
        if asked.is_none_or(|asked| asked.sent_at + just <= now) {
            self.ask_now(now);
        }
    }

    /// The frame size in use stopped working: search again later.
    pub fn search_size_later(&mut self, now: Time) {
        self.size = None;
        self.size_retry_at = Some(now + RETRY_SIZE);
    }

    fn timeout(asked: &Asked, rtt: Duration, backoff: Duration, state: PathState) -> Duration {
        match state {
            PathState::Active => {
                let first = (rtt * 4).max(Duration::from_millis(50));
                (first * (1 << asked.tries)).min(TIMEOUT_MAX)
            }
            PathState::Candidate | PathState::Dead => backoff,
        }
    }

    /// Time passes.
    pub fn on_time(
        &mut self,
        now: Time,
        state: PathState,
        rtt: Duration,
        keep_alive: bool,
        sizes: PathSizes,
    ) -> ProbeEvent {
        let PathSizes { base, used, limit } = sizes;
        let Some(asked) = &mut self.asked else { return ProbeEvent::None };
        if now < asked.sent_at + Self::timeout(asked, rtt, self.backoff, state) {
            return ProbeEvent::None;
        }
        asked.tries += 1;
        if state != PathState::Active {
            // Who keeps the path alive also brings it back; the other side only answers in time.
            let backoff_max = match state {
                PathState::Dead if keep_alive => Duration::from_millis(500),
                _ => Duration::from_secs(5),
            };
            self.backoff = (self.backoff * 2).min(backoff_max);
            self.asked = None;
            self.next_at = now;
            return ProbeEvent::None;
        }
        if asked.tries < TRIES {
            self.next_at = now;
            return ProbeEvent::None;
        }
        let purpose = asked.purpose;
        self.asked = None;
        self.next_at = now;
        match purpose {
            Purpose::Liveness => ProbeEvent::Silent,
            Purpose::Size(failed) => {
                let lower = SIZES.iter().copied().find(|&s| s < failed && s > used.max(base));
                self.size = lower;
                if lower.is_some() {
                    return ProbeEvent::None;
                }
                self.size_retry_at = Some(now + RETRY_SIZE * 6);
                if used < limit && !std::mem::replace(&mut self.warned, true) {
                    return ProbeEvent::SizeSettled;
                }
                ProbeEvent::None
            }
        }
    }

    /// Which probe to send now: its token and frame size (0 for the smallest).
    pub fn next(
        &mut self,
        now: Time,
        state: PathState,
        idle_since: Time,
        keep_alive: bool,
        sizes: PathSizes,
        new_token: impl FnOnce() -> u64,
    ) -> Option<(u64, usize)> {
        let PathSizes { used, limit, .. } = sizes;
        if self.waits_for_size() && keep_alive && now >= idle_since + KEEP_ALIVE {
            // It may be that nothing of any size passes: the search goes on afterwards.
            self.ask_now(now);
        }
        if let Some(asked) = &mut self.asked {
            if asked.tries == 0 || now < self.next_at || state != PathState::Active {
                return None;
            }
            // The same question again; marked so that it is sent once.
            self.next_at = Time(u64::MAX);
            let size = match asked.purpose {
                Purpose::Liveness => 0,
                Purpose::Size(size) => size,
            };
            asked.sent_at = now;
            return Some((asked.token, size));
        }
        if now < self.next_at {
            return None;
        }
        if self.size_retry_at.is_some_and(|at| at <= now) {
            self.size_retry_at = None;
            self.size = Some(usize::MAX);
        }
        let purpose = match (state, self.size) {
            (PathState::Candidate | PathState::Dead, _) => Purpose::Liveness,
            (PathState::Active, _) if self.alive_first => Purpose::Liveness,
            (PathState::Active, Some(size)) if size.min(limit) > used => {
                Purpose::Size(size.min(limit))
            }
            (PathState::Active, _) => {
                self.size = None;
                if !keep_alive || now < idle_since + KEEP_ALIVE {
                    return None;
                }
                Purpose::Liveness
            }
        };
        self.alive_first &= purpose != Purpose::Liveness;
        let asked = Asked { token: new_token(), purpose, sent_at: now, tries: 0 };
        self.asked = Some(asked);
        let size = match purpose {
            Purpose::Liveness => 0,
            Purpose::Size(size) => size,
        };
        Some((asked.token, size))
    }

    /// An answer came. `Some(size)` if the question was this path's: the size that passed, and how
    /// long it took.
    pub fn on_reply(&mut self, now: Time, token: u64, limit: usize) -> Option<(usize, Duration)> {
        let asked = self.asked.filter(|asked| asked.token == token)?;
        self.asked = None;
        self.next_at = now;
        self.backoff = Duration::from_millis(20);
        match asked.purpose {
            Purpose::Liveness => Some((0, now.since(asked.sent_at))),
            Purpose::Size(size) => {
                // Whatever failed above is not tried again before the retry.
                self.size = None;
                if size < limit && self.size_retry_at.is_none() {
                    self.size_retry_at = Some(now + RETRY_SIZE * 6);
                }
                Some((size, now.since(asked.sent_at)))
            }
        }
    }

    /// When the full size is tried again; `None` while no new search is set.
    pub fn size_retry_at(&self) -> Option<Time> {
        self.size_retry_at
    }

    fn waits_for_size(&self) -> bool {
        self.asked.is_some_and(|asked| asked.purpose != Purpose::Liveness)
    }

    /// True if the search for the size has ended.
    pub fn size_settled(&self) -> bool {
        self.size.is_none()
    }

    /// When this must be looked at again.
    pub fn deadline(
        &self,
        state: PathState,
        rtt: Duration,
        idle_since: Time,
        keep_alive: bool,
        sizes: PathSizes,
    ) -> Option<Time> {
        let PathSizes { used, limit, .. } = sizes;
        if let Some(asked) = &self.asked {
            let expires = asked.sent_at + Self::timeout(asked, rtt, self.backoff, state);
            let mut at = if asked.tries > 0 { expires.min(self.next_at) } else { expires };
            if self.waits_for_size() && keep_alive {
                at = at.min(idle_since + KEEP_ALIVE);
            }
            return Some(at);
        }
        let asks = self.alive_first || self.size.is_some_and(|s| s.min(limit) > used);
        match state {
            PathState::Active if asks => Some(self.next_at),
            PathState::Active => {
                let idle = keep_alive.then(|| (idle_since + KEEP_ALIVE).max(self.next_at));
                match (idle, self.size_retry_at) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                }
            }
            PathState::Candidate | PathState::Dead => Some(self.next_at),
        }
    }
}
