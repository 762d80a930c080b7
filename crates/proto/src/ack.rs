//! When to acknowledge, and what to put into an acknowledgement
//! (`docs/protocol.md`, "Acknowledgement and loss").

use std::time::Duration;

use thinwire_wire::{ACK_RANGES_MAX, AckRanges, Feedback, Ranges, flags};

use crate::Time;
use crate::received::{Arrival, Received};
use crate::rtt::ACK_DELAY_MAX;

/// An acknowledgement goes out at the latest after this many frames that ask for one: well below
/// the 64 that a header can name.
const FRAMES_MAX: u32 = 16;

/// What is still to be acknowledged on one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct AckState {
    pending: u32,
    urgent: bool,
    deadline: Option<Time>,
    /// The largest number so far, and when its frame arrived.
    largest: u64,
    largest_at: Time,
    /// Largest number in the last acknowledgement and in the one before it.
    reported: [u64; 2],
}

impl AckState {
    /// The frame of this number was taken in, which had entered this machine at `arrived`.
    pub fn on_received(
        &mut self,
        now: Time,
        arrived: Time,
        number: u64,
        verdict: Arrival,
        eliciting: bool,
    ) {
        if number > self.largest {
            (self.largest, self.largest_at) = (number, arrived);
        }
        if !eliciting {
            return;
        }
        self.pending += 1;
        self.urgent |= verdict == Arrival::OutOfOrder || self.pending >= FRAMES_MAX;
        self.deadline.get_or_insert(now + ACK_DELAY_MAX);
    }

    /// Something waits to be acknowledged; any frame may take it along.
    pub fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// A frame must be sent for it.
    pub fn is_due(&self, now: Time) -> bool {
        self.pending > 0 && (self.urgent || self.deadline.is_some_and(|at| at <= now))
    }

    /// When it must be sent at the latest.
    pub fn deadline(&self) -> Option<Time> {
        if self.urgent { Some(Time::ZERO) } else { self.deadline }
    }

    /// The header's bitmap cannot name everything since the acknowledgement before the last
    /// (either of which may have been lost).
    pub fn needs_ranges(&self, received: &Received) -> bool {
        self.pending > 0 && received.largest() > self.reported[1] + 64
    }

    fn delay(&self, now: Time) -> u16 {
        let units = now.since(self.largest_at).min(Duration::from_secs(1)).as_micros() / 4;
        u16::try_from(units).unwrap_or(u16::MAX)
    }

    /// Appends the long form.
    pub fn emit_ranges(&self, now: Time, path: u8, received: &Received, out: &mut Vec<u8>) {
        let mut list = [(0, 0); ACK_RANGES_MAX];
        let count = received.ranges(&mut list);
        let ranges = Ranges::new(&list[..count]);
        AckRanges { path, delay: self.delay(now), ranges }.emit(out);
    }

    /// Fills in a header's acknowledgement and takes note that it goes out.
    pub fn write(&mut self, now: Time, path: u8, received: &Received, feedback: &mut Feedback) {
        if received.largest() == 0 {
            return;
        }
        feedback.flags |= flags::ACK;
        feedback.ack_path = path;
        feedback.ack_largest = received.largest();
        feedback.ack_bitmap = received.bitmap();
        feedback.ack_delay = self.delay(now);
        if self.reported[0] != received.largest() {
            self.reported = [received.largest(), self.reported[0]];
        }
        self.pending = 0;
        self.urgent = false;
        self.deadline = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_000);

    fn at(us: u64) -> Time {
        START + Duration::from_micros(us)
    }

    /// The delay that is told at `now_us`, in us, after frames of these numbers arrived then.
    fn told(arrivals: &[(u64, u64)], now_us: u64) -> u16 {
        let (mut state, mut received) = (AckState::default(), Received::default());
        for &(number, us) in arrivals {
            let verdict = received.insert(number);
            state.on_received(at(us), at(us), number, verdict, true);
        }
        let mut feedback = Feedback::default();
        state.write(at(now_us), 0, &received, &mut feedback);
        assert_eq!(feedback.ack_largest, received.largest());
        feedback.ack_delay * 4
    }

    #[test]
    fn the_delay_is_that_of_the_largest_number() {
        assert_eq!(told(&[(1, 0), (2, 40)], 100), 60);
        // It came behind a gap.
        assert_eq!(told(&[(1, 0), (3, 40)], 100), 60);
        // What fills the gap later, or comes again, is not the largest.
        assert_eq!(told(&[(1, 0), (3, 40), (2, 80), (3, 90)], 100), 60);
    }
}
