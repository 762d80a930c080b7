//! [`Effects`]: whether a flush has anything to do at a volume below.

#[cfg(test)]
mod tests;

use thinwire_volume::{Io, Op};

/// What an I/O leaves to a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// What it changes, however it ends, and also if it is said to be durable by then: not all that may stand below keep that.
    Change,
    /// It is a flush.
    Flush,
}

impl Effect {
    #[inline]
    pub fn of(io: &Io) -> Self {
        match io.op {
            Op::Flush => Effect::Flush,
            Op::Read | Op::BlockStatus | Op::LoadWriter => Effect::None,
            // Of what is durable by itself, as a cut, no more is known here.
            _ => Effect::Change,
        }
    }
}

/// What a volume has to make durable. It begins with what was there before, of which nobody knows.
pub(super) struct Effects {
    /// Something has changed it that no flush has covered that was submitted since.
    has_unflushed: bool,
    /// Flushes that are under way: what is durable is not known before they have ended.
    flushes: u32,
}

impl Effects {
    pub fn new() -> Self {
        Effects { has_unflushed: true, flushes: 0 }
    }

    /// A flush has something to do there, or to wait for.
    pub fn needs_flush(&self) -> bool {
        self.has_unflushed || self.flushes > 0
    }

    /// Something goes there.
    #[inline]
    pub fn on_submission(&mut self, effect: Effect) {
        if effect == Effect::Flush {
            self.has_unflushed = false;
            self.flushes += 1;
        }
    }

    /// It has ended. What was under way beside a flush is not covered by that.
    #[inline]
    pub fn on_completion(&mut self, effect: Effect, is_ok: bool) {
        match effect {
            Effect::None => {}
            Effect::Change => self.has_unflushed = true,
            Effect::Flush => {
                self.flushes -= 1;
                self.has_unflushed |= !is_ok;
            }
        }
    }
}
