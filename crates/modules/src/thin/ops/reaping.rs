//! Giving back what was deleted, a node at a time; what cannot be read waits, and nothing waits for it.

use std::time::Duration;

use thinwire_buffer::Time;

use crate::meta::tree::{TreeFault, TreeStop};
use crate::thin::{Core, PoolCanary, PoolEvent};

/// What could not be read of deleted volumes is tried again after so long, then after twice as long, and so on up to the other.
pub(super) const REAP_AGAIN: Duration = Duration::from_secs(1);
const REAP_AGAIN_MAX: Duration = Duration::from_secs(600);

impl Core {
    /// Gives back a node of what was deleted.
    pub(super) fn step_reap(&mut self) {
        if !self.ops.reaps || self.ops.reap_sleeps || self.ops.reap_rests {
            return;
        }
        let passed_over = self.trees.passed_over();
        if self.commits.is_stopped() {
            self.ops.reaps = false;
            return;
        }
        let reaped = self.trees.has_doomed().and_then(|has| {
            if !has {
                return Ok((false, None));
            }
            let mut change = self.trees.change_in_background()?;
            let damaged = change.reap()?.damaged;
            change.apply()?;
            Ok((true, damaged))
        });
        match reaped {
            Ok((more, damaged)) => {
                // What is damaged for good stays so until somebody checks the pool.
                let passes_over = passed_over > 0;
                let lasts = |fault: &TreeFault| passes_over || !fault.may_pass();
                let is_for_good = damaged.is_some();
                self.ops.unreaped = damaged.or(self.ops.unreaped.take().filter(lasts));
                match more {
                    true => self.commits.on_change(self.now),
                    false if passes_over => self.reap_later(),
                    false => self.end_reaping(),
                }
                if is_for_good {
                    self.tell_unreaped();
                }
            }
            Err(TreeStop::Wait) => self.ops.reap_sleeps = true,
            Err(TreeStop::Commit | TreeStop::NoNodes | TreeStop::NoBlocks)
                if self.wants_commit() || self.commits.is_under_way() =>
            {
                self.commits.is_wanted = true;
                self.ops.reap_sleeps = true;
            }
            Err(TreeStop::Fault(fault))
                if fault.may_pass() && self.canary != PoolCanary::ReapsOnce =>
            {
                // The others go on.
                let goes_on = self.trees.passed_over() > passed_over
                    && self.canary != PoolCanary::ReapsInOrder;
                self.ops.unreaped = Some(fault);
                if !goes_on {
                    self.reap_later();
                }
            }
            // It stays as it is until somebody checks the pool.
            Err(stop) => {
                self.ops.unreaped = Some(match stop {
                    TreeStop::Fault(fault) => fault,
                    // There is no room to begin.
                    _ => TreeFault::NoReserve,
                });
                self.end_reaping();
                self.tell_unreaped();
            }
        }
    }

    /// What is left cannot be read by now: it is tried again, less and less often. What passes by the next time is not worth to be told.
    fn reap_later(&mut self) {
        self.ops.reap_rests = true;
        if self.ops.reap_again == Time::NEVER {
            if self.ops.reap_wait > REAP_AGAIN {
                self.tell_unreaped();
            }
            self.ops.reap_again = self.now + self.ops.reap_wait;
            self.ops.reap_wait = (2 * self.ops.reap_wait).min(REAP_AGAIN_MAX);
        }
        if self.canary == PoolCanary::ReapsInOrder {
            self.trees.try_all_doomed();
        }
    }

    fn end_reaping(&mut self) {
        (self.ops.reaps, self.ops.reap_wait) = (false, REAP_AGAIN);
        self.ops.has_told_unreaped &= self.ops.unreaped.is_some();
    }

    fn tell_unreaped(&mut self) {
        if !std::mem::replace(&mut self.ops.has_told_unreaped, true) {
            self.report.news.push(PoolEvent::Unreaped);
        }
    }
}
