//! What is free and may not have been discarded: behind a crash the discards are missing of what the last commits had freed (rule 10). So all that is
//! free is discarded once, by and by.
//!
//! Which blocks that are is written nowhere: it would take a write for each that is freed. Where a pool has ended in order before all was
//! done, its label says from where on something is left ([`PoolHead::untrimmed`]); behind a crash that is all.

use std::time::Duration;

use thinwire_buffer::Time;

use super::commit::{DISCARD_BYTES_MAX, DISCARDS_MAX};
use super::opening::Phase;
use super::{Core, PoolCanary, PoolHead};
use crate::meta::Label;
use crate::meta::tree::TreeStop;

/// So often something is discarded in the background.
const EVERY: Duration = Duration::from_millis(20);

/// How far it is.
pub(super) struct Trim {
    /// The first block that was not looked at; none if nothing is left.
    pub next: Option<u64>,
    /// Something may be discarded in this opening; else what is left is left to the next.
    may: bool,
    at: Time,
}

impl Trim {
    /// Of a pool whose newest label is this, and whose data may be discarded; in which something was, unless it is new.
    pub fn new(head: &PoolHead, label: &Label, is_new: bool, may: bool) -> Self {
        // The opening that it has now may be one more.
        let openings = label.openings;
        let has_ended = head.ended != 0 && (openings == head.ended || openings == head.ended + 1);
        let next = match has_ended || is_new {
            true => head.untrimmed.checked_sub(1),
            false => Some(0),
        };
        Trim { next, may, at: Time::ZERO }
    }
}

impl Core {
    /// What is to be discarded now, if it is time for that.
    pub(super) fn step_trim(&mut self) {
        if self.now < self.next_trim() {
            return;
        }
        let Some(mut next) = self.trim.next else { return };
        self.is_calm = false;
        self.trim.at = self.now + EVERY;
        let most = (DISCARD_BYTES_MAX >> self.head.block_shift).max(1);
        for _ in 0..DISCARDS_MAX {
            match self.trees.hold_free(next, most) {
                Ok((run, upto)) => {
                    next = upto;
                    if let Some((first, count)) = run {
                        self.commits.discard(first, count);
                        if self.canary == PoolCanary::TrimsUnheld {
                            (first..first + count).for_each(|block| self.trees.give_out(block));
                        }
                    }
                }
                Err(TreeStop::Commit) => {
                    self.commits.is_wanted = true;
                    break;
                }
                Err(TreeStop::Wait) => break,
                // It is left to the next opening.
                Err(_) => {
                    self.trim.at = Time::NEVER;
                    break;
                }
            }
            if next >= self.trees.total()[1] {
                self.trim.next = None;
                return;
            }
        }
        self.trim.next = Some(next);
    }

    /// When there is something to discard by itself: not before those have ended that are under way, each of which
    /// wakes the pool.
    pub(super) fn next_trim(&self) -> Time {
        let is_left = self.trim.next.is_some() && self.trim.may && self.phase == Phase::Serving;
        let is_held = self.winds_up || self.commits.is_stopped() || self.commits.is_discarding();
        match is_left && !is_held {
            true => self.trim.at,
            false => Time::NEVER,
        }
    }
}
