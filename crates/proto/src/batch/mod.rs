//! When requests that wait are sent, and how many share a frame (Gonzalez-Ferez and Bilas, section
//! VI). A policy decides; [`Batcher`] keeps what it holds back. One policy a file.
//!
//! Only new requests (at a target: new completions) are ever held back. What was lost,
//! acknowledgements, credits and everything else goes with the next turn whatever the policy says.

mod backlog;
mod doorbell;
mod fixed;
mod none;
mod tyche;

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use thinwire_wire::{DATA_OFFSET, DataHeader, HEADER_BYTES, Request};

use crate::{Item, Time};
pub use tyche::TycheConfig;

/// Requests of more payload than this gain nothing from company (section VI): `static` and `tyche`
/// let them go at once, and a target does not keep their answers for those of others.
pub const SMALL_BYTES: u64 = 4096;
/// Requests of a frame that leave room before its payload for the headers of their data. Of a
/// larger batch all requests go first, so that one frame carries them.
const BESIDE_DATA: usize = 2;
const _: () = {
    let pair = Request::BYTES + DataHeader::BYTES;
    assert!(HEADER_BYTES + BESIDE_DATA * pair <= DATA_OFFSET);
};

/// Which policy, and whether blocks share frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batching {
    /// See [`BatchPolicy`]. Default: backlog.
    pub policy: BatchPolicy,
    /// Payloads of several requests may share a frame (section VI-B). Default: true, since a frame
    /// costs more than the bytes in it. False also under [`BatchPolicy::None`].
    pub data: bool,
}

impl Default for Batching {
    fn default() -> Self {
        Batching { policy: BatchPolicy::Backlog, data: true }
    }
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchPolicy {
    /// Each at once, in a frame of its own.
    None,
    /// When so many wait, or the first has waited for 5 ms. Bound: 1 to [`BatchPolicy::LEVEL_MAX`];
    /// a number beyond counts as the nearest within.
    Static(u16),
    /// The same, of as many as lately gave the best throughput.
    Tyche(TycheConfig),
    /// When 16 wait, or 64 KiB, or the first has waited for 50 us.
    Doorbell,
    /// All that a turn of the loop finds. The default: a turn is as long as the transmit path is
    /// busy with the frames of the last one, so an idle wire is never kept waiting, and under load
    /// batches form by themselves.
    Backlog,
}

impl BatchPolicy {
    /// The most requests of a batch: the document's `max_batch_level`. A frame has room for a few
    /// more items.
    pub const LEVEL_MAX: u16 = 64;

    /// True if a target holds the completions of requests that came in one frame until all of them
    /// are completed (section VI-A, "Completions are sent as batch messages as well").
    pub fn answers_together(self) -> bool {
        matches!(self, BatchPolicy::Static(_) | BatchPolicy::Tyche(_))
    }
}

impl fmt::Display for BatchPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchPolicy::None => f.write_str("none"),
            BatchPolicy::Static(level) => write!(f, "static:{level}"),
            BatchPolicy::Tyche(_) => f.write_str("tyche"),
            BatchPolicy::Doorbell => f.write_str("doorbell"),
            BatchPolicy::Backlog => f.write_str("backlog"),
        }
    }
}

impl FromStr for BatchPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(level) = text.strip_prefix("static:") {
            let level = level.parse().ok().filter(|level| (1..=Self::LEVEL_MAX).contains(level));
            return level.map(BatchPolicy::Static).ok_or_else(|| {
                format!("{text}: a static batch has 1 to {} requests", Self::LEVEL_MAX)
            });
        }
        match text {
            "none" => Ok(BatchPolicy::None),
            "tyche" => Ok(BatchPolicy::Tyche(TycheConfig::default())),
            "doorbell" => Ok(BatchPolicy::Doorbell),
            "backlog" => Ok(BatchPolicy::Backlog),
            _ => Err(format!(
                "{text}: not a batching policy; there are none, static:N, tyche, doorbell, backlog"
            )),
        }
    }
}

/// What waits in the batch queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Requests, at least one.
    requests: usize,
    /// Bytes of their payloads, in whichever direction these travel.
    bytes: u64,
    /// Since when the first has waited.
    oldest: Time,
}

/// What a policy decides. One that holds nothing says no more than how many share a frame.
trait Policy: fmt::Debug {
    /// Whether a request of so many bytes of payload waits in the queue at all.
    fn holds(&self, bytes: u64) -> bool {
        let _ = bytes;
        false
    }

    /// How many of those that wait are to be sent now.
    fn release(&mut self, now: Time, waiting: Waiting) -> usize {
        let _ = now;
        waiting.requests
    }

    /// When that changes although nothing new comes.
    fn deadline(&self, waiting: Waiting) -> Time {
        waiting.oldest
    }

    /// The most requests of one frame.
    fn frame_max(&self) -> usize;

    /// Requests of so many bytes of payload in all were completed.
    fn on_completed(&mut self, now: Time, bytes: u64) {
        let _ = (now, bytes);
    }

    /// The number of requests that it waits for at present; 1 if it does not wait.
    fn level(&self) -> usize {
        1
    }
}

/// Requests that a policy holds back, and the policy. Allocates nothing once warm.
#[derive(Debug)]
pub(crate) struct Batcher {
    policy: Box<dyn Policy>,
    /// It may hold something back, and wants to hear of completions.
    active: bool,
    data: bool,
    queue: VecDeque<Held>,
    bytes: u64,
    /// Requests that may share a frame, as the policy last said.
    frame_max: usize,
}

/// A request in the queue, with its data if it is a write (at a target: a completion, and the data
/// of a read).
#[derive(Clone, Copy, Debug)]
struct Held {
    items: [Option<Item>; 2],
    bytes: u64,
    since: Time,
}

impl Batcher {
    pub const HELD_BYTES: usize = size_of::<Held>();

    pub fn new(batching: Batching) -> Self {
        let bounded = |level: u16| level.clamp(1, BatchPolicy::LEVEL_MAX);
        let policy: Box<dyn Policy> = match batching.policy {
            BatchPolicy::None => Box::new(none::None),
            BatchPolicy::Static(level) => Box::new(fixed::Fixed::new(bounded(level).into())),
            BatchPolicy::Tyche(config) => {
                let level_max = bounded(config.level_max);
                Box::new(tyche::Tyche::new(TycheConfig { level_max, ..config }))
            }
            BatchPolicy::Doorbell => Box::new(doorbell::Doorbell),
            BatchPolicy::Backlog => Box::new(backlog::Backlog),
        };
        let frame_max = policy.frame_max();
        let data = batching.data && batching.policy != BatchPolicy::None;
        let active = !matches!(batching.policy, BatchPolicy::None | BatchPolicy::Backlog);
        Batcher { policy, active, data, queue: VecDeque::new(), bytes: 0, frame_max }
    }

    /// Takes a request in, unless it is to go at once. `bytes` is its payload's size.
    #[inline]
    pub fn hold(&mut self, now: Time, items: [Option<Item>; 2], bytes: u64) -> bool {
        self.active && self.take_in(now, items, bytes)
    }

    fn take_in(&mut self, now: Time, items: [Option<Item>; 2], bytes: u64) -> bool {
        if !self.policy.holds(bytes) {
            return false;
        }
        self.queue.push_back(Held { items, bytes, since: now });
        self.bytes += bytes;
        true
    }

    fn waiting(&self) -> Option<Waiting> {
        let oldest = self.queue.front()?.since;
        Some(Waiting { requests: self.queue.len(), bytes: self.bytes, oldest })
    }

    /// Moves what is to be sent now to `out`.
    #[inline]
    pub fn release(&mut self, now: Time, out: &mut VecDeque<Item>) {
        if let Some(waiting) = self.waiting() {
            self.let_go(now, waiting, out);
        }
    }

    fn let_go(&mut self, now: Time, waiting: Waiting, out: &mut VecDeque<Item>) {
        let count = self.policy.release(now, waiting).min(waiting.requests);
        self.frame_max = self.policy.frame_max();
        if self.frame_max > BESIDE_DATA {
            let is_request = |item: &mut Item| matches!(item, Item::Request { .. });
            let waiting = self.queue.iter_mut().take(count);
            out.extend(waiting.filter_map(|held| held.items[0].take_if(is_request)));
        }
        for held in self.queue.drain(..count) {
            self.bytes -= held.bytes;
            out.extend(held.items.into_iter().flatten());
        }
    }

    /// When [`Batcher::release`] has something to do although nothing new comes.
    pub fn deadline(&self) -> Option<Time> {
        self.waiting().map(|waiting| self.policy.deadline(waiting))
    }

    /// A request of so many bytes of payload was completed.
    #[inline]
    pub fn on_completed(&mut self, now: Time, bytes: u64) {
        if self.active {
            self.policy.on_completed(now, bytes);
        }
    }

    /// Requests that are held back.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Requests that may share a frame.
    pub fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Requests begin a frame of their own rather than ride behind the payload of others, so that
    /// a batch is not torn by what waits before it.
    pub fn begins_frames(&self) -> bool {
        self.active
    }

    /// Payloads of several requests may share a frame.
    pub fn shares_data(&self) -> bool {
        self.data
    }

    /// The number of requests that the policy waits for at present.
    pub fn level(&self) -> usize {
        self.policy.level()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn request(sequence: u32) -> [Option<Item>; 2] {
        [Some(Item::Request { slot: 0, sequence }), None]
    }

    fn batcher(policy: &str) -> Batcher {
        Batcher::new(Batching { policy: policy.parse().unwrap(), data: true })
    }

    /// Holds `count` requests of 4 KiB at `at`, and says how many are let go at once.
    fn offer(batcher: &mut Batcher, at: Time, count: u32) -> usize {
        for sequence in 0..count {
            assert!(batcher.hold(at, request(sequence), 4096));
        }
        let mut out = VecDeque::new();
        batcher.release(at, &mut out);
        out.len()
    }

    #[test]
    fn names_are_read_and_written_alike() {
        for name in ["none", "static:1", "static:64", "tyche", "doorbell", "backlog"] {
            assert_eq!(name.parse::<BatchPolicy>().unwrap().to_string(), name);
        }
        for name in ["", "static", "static:", "static:0", "static:65", "static:-1", "Tyche"] {
            let error = name.parse::<BatchPolicy>().unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn backlog_and_none_hold_nothing() {
        for name in ["backlog", "none"] {
            let mut batcher = batcher(name);
            assert!(!batcher.hold(Time(1), request(1), 512), "{name}");
            assert_eq!((batcher.queued(), batcher.deadline()), (0, None));
        }
        assert_eq!(batcher("none").frame_max(), 1);
        assert!(!batcher("none").shares_data());
        assert!(batcher("backlog").frame_max() > 64);
    }

    #[test]
    fn static_waits_for_its_number_or_five_milliseconds() {
        let mut batcher = batcher("static:8");
        let start = Time(1_000_000);
        assert_eq!(offer(&mut batcher, start, 7), 0);
        assert_eq!(offer(&mut batcher, start + Duration::from_millis(1), 1), 8);
        // Whole batches go; what is left waits from when it came.
        let later = start + Duration::from_millis(2);
        assert_eq!(offer(&mut batcher, later, 19), 16);
        assert_eq!(batcher.queued(), 3);
        let due = later + Duration::from_millis(5);
        assert_eq!(batcher.deadline(), Some(due));
        let mut out = VecDeque::new();
        batcher.release(Time(due.0 - 1), &mut out);
        assert_eq!(out.len(), 0);
        batcher.release(due, &mut out);
        assert_eq!(out.len(), 3);
        assert_eq!((batcher.frame_max(), batcher.level()), (8, 8));
    }

    #[test]
    fn levels_out_of_bounds_count_as_the_nearest() {
        let with = |policy| Batcher::new(Batching { policy, data: true });
        let tyche = |level_max| BatchPolicy::Tyche(TycheConfig { level_max, ..Default::default() });
        let start = Time(1_000_000_000);
        for policy in [BatchPolicy::Static(0), tyche(0)] {
            let mut batcher = with(policy);
            assert_eq!(offer(&mut batcher, start, 3), 3, "{policy:?}");
            // Long enough for tyche to look at its level.
            batcher.on_completed(start, 4096);
            batcher.on_completed(start + Duration::from_secs(1), 4096);
            assert_eq!(batcher.level(), 1, "{policy:?}");
        }
        assert_eq!(with(BatchPolicy::Static(u16::MAX)).level(), 64);
    }

    #[test]
    fn large_requests_do_not_wait_for_static_and_tyche() {
        for name in ["static:8", "tyche"] {
            let mut batcher = batcher(name);
            assert!(!batcher.hold(Time(1), request(1), 8192), "{name}");
            assert!(batcher.hold(Time(1), request(1), 4096), "{name}");
        }
    }

    #[test]
    fn the_doorbell_rings_for_any_of_three_reasons() {
        let start = Time(1_000_000);
        let mut doorbell = batcher("doorbell");
        assert_eq!(offer(&mut doorbell, start, 15), 0);
        assert_eq!(offer(&mut doorbell, start, 1), 16);
        assert!(doorbell.hold(start, request(1), 32 << 10));
        assert!(doorbell.hold(start, request(2), 32 << 10));
        let mut out = VecDeque::new();
        doorbell.release(start, &mut out);
        assert_eq!(out.len(), 2);
        assert_eq!(offer(&mut doorbell, start, 1), 0);
        assert_eq!(doorbell.deadline(), Some(start + Duration::from_micros(50)));
        doorbell.release(start + Duration::from_micros(50), &mut out);
        assert_eq!((out.len(), doorbell.queued()), (3, 0));
    }

    /// What so many writes of 512 bytes become.
    fn writes(policy: &str, count: u32) -> Vec<Item> {
        let mut batcher = batcher(policy);
        for sequence in 1..=count {
            let items = [request(sequence)[0], Some(data(sequence))];
            assert!(batcher.hold(Time(5), items, 512));
        }
        let mut out = VecDeque::new();
        batcher.release(Time(5), &mut out);
        out.into()
    }

    fn data(sequence: u32) -> Item {
        Item::Data { slot: 0, sequence, offset: 0, length: 512 }
    }

    #[test]
    fn two_writes_share_a_frame_with_their_data() {
        let expected = [1, 2, 3, 4].map(|s| [request(s)[0].unwrap(), data(s)]).concat();
        assert_eq!(writes("static:2", 4), expected);
    }

    #[test]
    fn of_more_writes_all_requests_go_first() {
        let requests = [1, 2, 3].map(|s| request(s)[0].unwrap());
        assert_eq!(writes("static:3", 3), [requests, [1, 2, 3].map(data)].concat());
    }

    #[test]
    fn a_completion_stays_behind_its_data() {
        let mut batcher = batcher("doorbell");
        let complete = |sequence| Item::Complete { slot: 0, sequence };
        for sequence in 1..=16 {
            assert!(batcher.hold(Time(5), [Some(data(sequence)), Some(complete(sequence))], 512));
        }
        let mut out = VecDeque::new();
        batcher.release(Time(5), &mut out);
        let pairs = (1..=16).flat_map(|sequence| [data(sequence), complete(sequence)]);
        assert!(pairs.eq(out));
    }
}
