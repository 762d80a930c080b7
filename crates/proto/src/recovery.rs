//! Sent frames of a path until they are acknowledged or lost (RFC 9002, section 6).

use std::collections::VecDeque;
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

/// A frame is lost when this many sent after it were acknowledged.
const PACKET_THRESHOLD: u64 = 3;

#[derive(Debug)]
struct SentFrame {
    sent_at: Time,
    bytes: u32,
    /// Neither acknowledged nor lost, and asks for an acknowledgement.
    open: bool,
    items: Vec<Item>,
}

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

/// The frames of one path, by number.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Number of `frames[0]`.
    first: u64,
    frames: VecDeque<SentFrame>,
    largest_acked: u64,
    pub in_flight_bytes: usize,
    pub in_flight_frames: usize,
    pub last_eliciting: Time,
    /// When the earliest frame that is overtaken counts as lost.
    pub loss_at: Option<Time>,
    spare: Vec<Vec<Item>>,
}

impl Sent {
    pub fn new() -> Self {
        Sent {
            first: 1,
            frames: VecDeque::new(),
            largest_acked: 0,
            in_flight_bytes: 0,
            in_flight_frames: 0,
            last_eliciting: Time::ZERO,
            loss_at: None,
            spare: Vec::new(),
        }
    }

    /// Numbers begin here instead of at 1. Before the first frame.
    pub fn start_at(&mut self, number: u64) {
        assert!(self.next_number() == 1, "numbers are never reused");
        self.first = number;
    }

    /// The number of the next frame.
    pub fn next_number(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    /// An empty list for the items of the next frame.
    pub fn items(&mut self) -> Vec<Item> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(ITEMS_MAX))
    }

    /// Takes back a list that was not used.
    pub fn return_items(&mut self, mut items: Vec<Item>) {
        items.clear();
        // A closed frame has given its list back already; what is left of it has no storage.
        if items.capacity() > 0 && self.spare.len() < 4096 {
            self.spare.push(items);
        }
    }

    /// The next frame has been sent. Without items it asks for no acknowledgement.
    pub fn record(&mut self, now: Time, bytes: usize, items: Vec<Item>) {
        let open = !items.is_empty();
        if open {
            self.in_flight_bytes += bytes;
            self.in_flight_frames += 1;
            self.last_eliciting = now;
        }
        self.frames.push_back(SentFrame { sent_at: now, bytes: bytes as u32, open, items });
        self.retire();
    }

    fn retire(&mut self) {
        while self.frames.front().is_some_and(|f| !f.open) && self.frames.len() > 1 {
            let frame = self.frames.pop_front().expect("not empty");
            self.first += 1;
            self.return_items(frame.items);
        }
    }

    fn close(&mut self, index: usize) -> Option<(Time, u32, Vec<Item>)> {
        let frame = self.frames.get_mut(index)?;
        if !frame.open {
            return None;
        }
        frame.open = false;
        self.in_flight_bytes -= frame.bytes as usize;
        self.in_flight_frames -= 1;
        Some((frame.sent_at, frame.bytes, std::mem::take(&mut frame.items)))
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
        if last >= self.next_number() || first > last {
            return None;
        }
        for number in first.max(self.first)..=last {
            let index = (number - self.first) as usize;
            let Some((sent_at, bytes, mut items)) = self.close(index) else { continue };
            outcome.frames += 1;
            outcome.bytes += bytes as usize;
            outcome.frame_bytes_largest = outcome.frame_bytes_largest.max(bytes);
            if number > self.largest_acked && number == last {
                outcome.rtt = Some(now.since(sent_at));
            }
            for item in items.drain(..) {
                acked(item);
            }
            self.return_items(items);
        }
        self.largest_acked = self.largest_acked.max(last);
        Some(())
    }

    /// Finds what is lost by now, after acknowledgements or when [`Sent::loss_at`] has come.
    pub fn detect_loss(
        &mut self,
        now: Time,
        time_threshold: Duration,
        base_bytes: usize,
        mut lost: impl FnMut(Item),
    ) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        self.loss_at = None;
        let mut index = 0;
        while let Some(frame) = self.frames.get(index) {
            let number = self.first + index as u64;
            if number >= self.largest_acked {
                break;
            }
            if frame.open {
                let expires = frame.sent_at + time_threshold;
                if number + PACKET_THRESHOLD <= self.largest_acked || expires <= now {
                    self.lose(index, base_bytes, &mut outcome, &mut lost);
                } else {
                    self.loss_at = Some(self.loss_at.map_or(expires, |at| at.min(expires)));
                }
            }
            index += 1;
        }
        self.retire();
        outcome
    }

    /// Everything in flight counts as lost: the path is gone.
    pub fn lose_all(&mut self, mut lost: impl FnMut(Item)) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        for index in 0..self.frames.len() {
            self.lose(index, 0, &mut outcome, &mut lost);
        }
        self.loss_at = None;
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
        let Some((_, bytes, mut items)) = self.close(index) else { return };
        outcome.frames += 1;
        outcome.bytes += bytes as usize;
        outcome.large += u32::from(bytes as usize > base_bytes);
        for item in items.drain(..) {
            lost(item);
        }
        self.return_items(items);
    }

    /// The information of the oldest `frames` in flight, for a probe; they stay in flight.
    pub fn oldest(&self, frames: usize, mut again: impl FnMut(Item)) {
        for frame in self.frames.iter().filter(|f| f.open).take(frames) {
            frame.items.iter().for_each(|&item| again(item));
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
            s.record(Time(i * 1000), 100, vec![Item::Attach(i as u32 + 1)]);
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

    #[test]
    fn numbers_are_never_reused() {
        let mut s = sent(3);
        s.lose_all(|_| {});
        assert_eq!(s.next_number(), 4);
        s.record(Time(0), 80, vec![]);
        assert_eq!((s.next_number(), s.in_flight_frames), (5, 0));
    }
}
