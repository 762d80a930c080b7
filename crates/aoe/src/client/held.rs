//! What the server refuses: it is held, and asked for again one piece at a time, outside of the window. So what is not
//! refused goes on, and what is does not fill the way of others.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::Op;

/// Pieces that were refused when they were sent last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Of reads and flushes, and of writes.
    pieces: [u32; 2],
    /// No piece is asked for again before, unless one is done.
    pub again_after: Time,
}

impl Held {
    pub const NONE: Held = Held { pieces: [0; 2], again_after: Time::ZERO };

    pub fn add(&mut self, op: Op) {
        self.pieces[usize::from(op == Op::Write)] += 1;
    }

    pub fn take(&mut self, op: Op) {
        self.pieces[usize::from(op == Op::Write)] -= 1;
    }

    /// Of such, how many there are.
    pub fn like(&self, op: Op) -> u32 {
        self.pieces[usize::from(op == Op::Write)]
    }

    pub fn is_empty(&self) -> bool {
        self.pieces == [0; 2]
    }

    /// One was asked for again.
    pub fn on_sent(&mut self, now: Time, timeout: Duration) {
        self.again_after = now + timeout;
    }

    /// One is done: the server may take others, too.
    pub fn on_done(&mut self, now: Time) {
        self.again_after = now;
    }
}
