//! Sent frames of a path until they are acknowledged or lost (RFC 9002, section 6).
//!
//! Only frames that ask for an acknowledgement are kept: of the others nothing is ever wanted again,
//! and a peer decides how many there are. What the kept ones carried stands in one queue, so that a
//! frame costs what is in it (`docs/protocol.md`, "Bounds").

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use thinwire_buffer::TX_HEAD_BYTES;
use thinwire_wire::{Complete, HEADER_BYTES, Request};

use crate::{Item, Time};

/// Items in one frame, at most: a frame's list never grows, nor does its head of requests or
/// completions.
pub(crate) const ITEMS_MAX: usize = 72;
const _: () = {
    assert!(HEADER_BYTES + ITEMS_MAX * Request::BYTES <= TX_HEAD_BYTES);
    assert!(Complete::BYTES <= Request::BYTES);
};

/// Items that the frames of all paths of a session carry, at most, until they are acknowledged or
/// lost: 16 MiB of payload in frames of the base size, which carry the least. Beyond it a session
/// sends nothing new.
pub(crate) const SENT_ITEMS_MAX: usize = 16 << 10;

/// So few are taken out of a queue one by one sooner than together.
const ITEMS_FEW: u8 = 8;

/// A frame is lost when this many sent after it were acknowledged.
const PACKET_THRESHOLD: u64 = 3;

/// A frame that asks for an acknowledgement.
#[derive(Clone, Copy, Debug)]
struct SentFrame {
    number: u64,
    sent_at: Time,
    /// Where its items begin, counted modulo 2^32 from the first that this path ever sent.
    items_at: u32,
    bytes: u16,
    items: u8,
    /// Neither acknowledged nor lost.
    open: bool,
}
const _: () = assert!(ITEMS_MAX <= u8::MAX as usize && SENT_ITEMS_MAX.is_power_of_two());

/// Memory for each item in flight: it may have a frame of its own.
pub(crate) const SENT_ITEM_BYTES: usize = size_of::<Item>() + size_of::<SentFrame>();

/// What an acknowledgement changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckOutcome {
    pub frames: u32,
    pub bytes: usize,
    /// Time since the largest newly acknowledged frame was sent, if it was the largest ever.
    pub rtt: Option<Duration>,
    /// The largest frame newly acknowledged, in bytes.
    pub frame_bytes_largest: u32,
}

/// What went missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossOutcome {
    pub frames: u32,
    pub bytes: usize,
    /// Lost frames larger than the base size.
    pub large: u32,
}

/// The frames of one path that ask for an acknowledgement, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Sent {
    next_number: u64,
    frames: VecDeque<SentFrame>,
    /// What `frames` carried, in the same order, from `items_at` of the first on.
    items: VecDeque<Item>,
    largest_acked: u64,
    pub in_flight_bytes: usize,
    pub in_flight_frames: usize,
    pub last_eliciting: Time,
    /// When the earliest frame that is overtaken counts as lost.
    pub loss_at: Option<Time>,
}

impl Sent {
    pub fn new() -> Self {
        Sent {
            next_number: 1,
            frames: VecDeque::new(),
            items: VecDeque::new(),
            largest_acked: 0,
            in_flight_bytes: 0,
            in_flight_frames: 0,
            last_eliciting: Time::ZERO,
            loss_at: None,
        }
    }

    /// Numbers begin here instead of at 1. Before the first frame.
    pub fn start_at(&mut self, number: u64) {
        assert!(self.next_number == 1, "numbers are never reused");
        self.next_number = number;
    }

    /// The number of the next frame.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The largest number that was acknowledged, 0 before the first.
    pub fn largest_acked(&self) -> u64 {
        self.largest_acked
    }

    /// Items that are kept. Frames are never more.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Lets go of storage that was made for more than `max` items.
    pub fn shrink(&mut self, max: usize) {
        self.frames.shrink_to(max);
        self.items.shrink_to(max);
    }

    /// The next frame has been sent, which asks for no acknowledgement: all that is kept of it is that
    /// its number was used.
    pub fn record_number(&mut self) {
        self.next_number += 1;
    }

    /// The next frame has been sent. Without items it asks for no acknowledgement.
    pub fn record(&mut self, now: Time, bytes: usize, items: &[Item]) {
        let number = self.next_number;
        self.record_number();
        if items.is_empty() {
            return;
        }
        let items_at = self.frames.front().map_or(0, |first| first.items_at);
        self.frames.push_back(SentFrame {
            number,
            sent_at: now,
            items_at: items_at.wrapping_add(self.items.len() as u32),
            bytes: bytes as u16,
            items: items.len() as u8,
            open: true,
        });
        self.items.extend(items);
        self.in_flight_bytes += bytes;
        self.in_flight_frames += 1;
        self.last_eliciting = now;
    }

    /// Lets go of what stands first and is not in flight any more.
    fn retire(&mut self) {
        while let Some(first) = self.frames.front().filter(|first| !first.open) {
            match first.items {
                few @ ..=ITEMS_FEW => (0..few).for_each(|_| _ = self.items.pop_front()),
                many => _ = self.items.drain(..many as usize),
            }
            self.frames.pop_front();
        }
    }

    /// Where the first frame of this number or a later one stands. All numbers have a place each as
    /// long as nothing but acknowledgements went between.
    fn place(&self, number: u64) -> usize {
        let first = self.frames.front().map_or(number, |first| first.number);
        if number <= first {
            return 0;
        }
        let at = (number - first) as usize;
        if self.frames.get(at).is_some_and(|frame| frame.number == number) {
            return at;
        }
        self.frames.partition_point(|frame| frame.number < number)
    }

    /// The items of a frame that stands at `index`.
    fn items_of(&self, index: usize) -> Range<usize> {
        let (first, frame) = (&self.frames[0], &self.frames[index]);
        let from = frame.items_at.wrapping_sub(first.items_at) as usize;
        from..from + frame.items as usize
    }

    fn close(&mut self, index: usize) -> Option<SentFrame> {
        let frame = &mut self.frames[index];
        if !std::mem::take(&mut frame.open) {
            return None;
        }
        self.in_flight_bytes -= frame.bytes as usize;
        self.in_flight_frames -= 1;
        Some(*frame)
    }

    /// A frame of this number or a lower one is in flight.
    #[inline]
    pub fn reaches(&self, number: u64) -> bool {
        self.frames.front().is_some_and(|front| front.number <= number)
    }

    /// An acknowledgement of `[first, last]`. `None` if it names a frame that was never sent.
    pub fn on_ack_range(
        &mut self,
        now: Time,
        first: u64,
        last: u64,
        outcome: &mut AckOutcome,
        mut acked: impl FnMut(Item),
    ) -> Option<()> {
        if last >= self.next_number || first > last {
            return None;
        }
        if !self.reaches(last) {
            self.largest_acked = self.largest_acked.max(last);
            return Some(());
        }
        for index in self.place(first)..self.frames.len() {
            let number = self.frames[index].number;
            if number > last {
                break;
            }
            let Some(frame) = self.close(index) else { continue };
            outcome.frames += 1;
            outcome.bytes += frame.bytes as usize;
            outcome.frame_bytes_largest = outcome.frame_bytes_largest.max(u32::from(frame.bytes));
            if number > self.largest_acked && number == last {
                outcome.rtt = Some(now.since(frame.sent_at));
            }
            self.items.range(self.items_of(index)).for_each(|&item| acked(item));
        }
        self.largest_acked = self.largest_acked.max(last);
        self.retire();
        Some(())
    }

    /// A frame in flight has been overtaken. If none has, none can be lost, nor be on the way to it.
    #[inline]
    pub fn is_overtaken(&mut self) -> bool {
        let overtaken = self.largest_acked > 0 && self.reaches(self.largest_acked - 1);
        if !overtaken {
            self.loss_at = None;
        }
        overtaken
    }

    /// Finds what is lost by now, after acknowledgements or when [`Sent::loss_at`] has come. `lost`
    /// gets the newest item first.
    pub fn detect_loss(
        &mut self,
        now: Time,
        time_threshold: Duration,
        base_bytes: usize,
        mut lost: impl FnMut(Item),
    ) -> LossOutcome {
        self.loss_at = None;
        let mut outcome = LossOutcome::default();
        for index in (0..self.place(self.largest_acked)).rev() {
            let SentFrame { number, sent_at, open, .. } = self.frames[index];
            if !open {
                continue;
            }
            let expires = sent_at + time_threshold;
            if number + PACKET_THRESHOLD <= self.largest_acked || expires <= now {
                self.lose(index, base_bytes, &mut outcome, &mut lost);
            } else {
                self.loss_at = Some(self.loss_at.map_or(expires, |at| at.min(expires)));
            }
        }
        self.retire();
        outcome
    }

    /// Everything in flight counts as lost: the path is gone. `lost` gets the newest item first.
    pub fn lose_all(&mut self, lost: impl FnMut(Item)) -> LossOutcome {
        self.loss_at = None;
        self.lose_oldest(self.frames.len(), lost)
    }

    /// The oldest frames count as lost until no more than so many items are kept. `lost` gets the
    /// newest item first.
    pub fn lose_down_to(&mut self, items: usize, lost: impl FnMut(Item)) -> LossOutcome {
        let mut excess = self.items.len().saturating_sub(items);
        let sizes = self.frames.iter().map(|frame| frame.items as usize);
        let count = sizes.take_while(|&size| {
            let goes = excess > 0;
            excess = excess.saturating_sub(size);
            goes
        });
        self.lose_oldest(count.count(), lost)
    }

    /// The oldest `frames` count as lost. `lost` gets the newest item first.
    fn lose_oldest(&mut self, frames: usize, mut lost: impl FnMut(Item)) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        for index in (0..frames.min(self.frames.len())).rev() {
            self.lose(index, 0, &mut outcome, &mut lost);
        }
        self.retire();
        outcome
    }

    fn lose(
        &mut self,
        index: usize,
        base_bytes: usize,
        outcome: &mut LossOutcome,
        lost: &mut impl FnMut(Item),
    ) {
        let Some(frame) = self.close(index) else { return };
        outcome.frames += 1;
        outcome.bytes += frame.bytes as usize;
        outcome.large += u32::from(frame.bytes as usize > base_bytes);
        self.items.range(self.items_of(index)).rev().for_each(|&item| lost(item));
    }

    /// The information of the oldest `frames` in flight, for a probe; they stay in flight. `again`
    /// gets the newest item first.
    pub fn oldest(&self, frames: usize, mut again: impl FnMut(Item)) {
        let mut open = (0..self.frames.len()).filter(|&index| self.frames[index].open);
        let Some(last) = open.by_ref().take(frames).last() else { return };
        for index in (0..=last).rev().filter(|&index| self.frames[index].open) {
            self.items.range(self.items_of(index)).rev().for_each(|&item| again(item));
        }
    }

    /// True if every frame in flight is larger than the base size.
    pub fn only_large_in_flight(&self, base_bytes: usize) -> bool {
        self.in_flight_frames > 0
            && self.frames.iter().filter(|f| f.open).all(|f| f.bytes as usize > base_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(count: u64) -> Sent {
        let mut s = Sent::new();
        for i in 0..count {
            s.record(Time(i * 1000), 100, &[Item::Attach(i as u32 + 1)]);
        }
        s
    }

    fn ack(s: &mut Sent, first: u64, last: u64) -> (Option<()>, Vec<Item>) {
        let mut items = vec![];
        let mut outcome = AckOutcome::default();
        let known = s.on_ack_range(Time(10_000), first, last, &mut outcome, |i| items.push(i));
        (known, items)
    }

    #[test]
    fn past_expected_and_future_acknowledgements() {
        let mut s = sent(5);
        assert_eq!(ack(&mut s, 6, 6).0, None, "never sent");
        assert_eq!(ack(&mut s, 2, 3).1, [Item::Attach(2), Item::Attach(3)]);
        assert_eq!(ack(&mut s, 2, 3).1, [], "acknowledged before");
        assert_eq!(ack(&mut s, 1, 5).1.len(), 3);
        assert_eq!((s.in_flight_bytes, s.in_flight_frames), (0, 0));
    }

    #[test]
    fn three_later_frames_or_a_timeout_make_a_loss() {
        let mut s = sent(5);
        ack(&mut s, 4, 4);
        let mut lost = vec![];
        let slow = Duration::from_secs(1);
        s.detect_loss(Time(10_000), slow, 1500, |i| lost.push(i));
        assert_eq!(lost, [Item::Attach(1)]);
        assert_eq!(s.loss_at, Some(Time(1000) + slow));
        s.detect_loss(Time(1000) + slow, slow, 1500, |i| lost.push(i));
        assert_eq!(lost, [Item::Attach(1), Item::Attach(2)]);
        s.detect_loss(Time(2000) + slow, slow, 1500, |i| lost.push(i));
        assert_eq!((lost.len(), s.in_flight_frames, s.loss_at), (3, 1, None));
    }

    /// When the acknowledgement of a frame could have come that later ones have overtaken nobody knows.
    #[test]
    fn only_the_largest_number_so_far_tells_a_round_trip() {
        let mut s = sent(5);
        let mut round_trip = |number| {
            let mut outcome = AckOutcome::default();
            s.on_ack_range(Time(10_000), number, number, &mut outcome, |_| {});
            outcome.rtt
        };
        assert_eq!(round_trip(4), Some(Duration::from_nanos(7_000)));
        assert_eq!(round_trip(2), None);
        assert_eq!(round_trip(5), Some(Duration::from_nanos(6_000)));
    }

    #[test]
    fn numbers_are_never_reused() {
        let mut s = sent(3);
        s.lose_all(|_| {});
        assert_eq!(s.next_number(), 4);
        s.record(Time(0), 80, &[]);
        assert_eq!((s.next_number(), s.in_flight_frames), (5, 0));
    }

    /// Acknowledgements of ours are not acknowledged: however many go out behind a frame that stays
    /// open, nothing of them is kept, and their numbers are known all the same.
    #[test]
    fn frames_that_only_acknowledge_are_not_kept() {
        let mut s = sent(1);
        for _ in 0..100_000 {
            s.record(Time(1000), 600, &[]);
        }
        assert_eq!((s.frames.len(), s.items.len()), (1, 1));
        assert!(s.frames.capacity() + s.items.capacity() < 64);
        s.record(Time(2000), 100, &[Item::Attach(2), Item::Attach(3)]);
        s.record(Time(2000), 600, &[]);
        assert_eq!(s.next_number(), 100_004);
        assert_eq!(ack(&mut s, 100_004, 100_004).0, None, "never sent");
        assert_eq!(ack(&mut s, 5, 100_001), (Some(()), vec![]), "known, and nothing in them");
        assert_eq!(ack(&mut s, 2, 100_003).1, [Item::Attach(2), Item::Attach(3)]);
        let mut lost = vec![];
        s.detect_loss(Time(3000), Duration::from_secs(1), 1500, |i| lost.push(i));
        assert_eq!(lost, [Item::Attach(1)], "overtaken");
        assert_eq!((s.frames.len(), s.items.len(), s.in_flight_frames), (0, 0, 0));
    }

    /// What is lost goes to the head of a queue, item by item: the newest first.
    #[test]
    fn items_of_frames_of_many_sizes_are_told_apart() {
        let mut s = Sent::new();
        let mut next = 0;
        for round in 0..1000u64 {
            let items: Vec<_> = (0..round % 5).map(|i| Item::Attach(next + i as u32)).collect();
            next += items.len() as u32;
            s.record(Time(round), 100, &items);
        }
        let mut rest: Vec<_> = (0..next).map(Item::Attach).collect();
        // Numbers 3, 4 and 5 carried two, three and four of them.
        assert_eq!(ack(&mut s, 4, 5).1, rest.drain(3..10).collect::<Vec<_>>());
        let mut again = vec![];
        s.oldest(3, |i| again.push(i));
        again.reverse();
        assert_eq!(again, rest[..4], "of the frames 2, 3 and 7");
        let mut lost = vec![];
        s.lose_oldest(2, |i| lost.push(i));
        s.lose_all(|i| lost.push(i));
        assert_eq!(lost.len(), rest.len());
        lost[..3].reverse();
        lost[3..].reverse();
        assert_eq!(lost, rest);
        assert_eq!((s.frames.len(), s.items.len()), (0, 0));
    }
}
