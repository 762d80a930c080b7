//! How much a store is given at once while several sessions share the shard: as much as has it do what it can, and
//! hardly more, since whoever comes next waits behind all of it (`docs/protocol.md`, rule 13; `docs/design.md`,
//! "Shares").
//!
//! Now and then the store is given twice as much for a while, or half. What it did with that in a second says
//! whether to stay there. Nothing is assumed of it but that it does no less with more: it may be slow or fast, do one
//! thing at a time or many, have some of it in memory, or tell of several ends at once. Latencies would not do:
//! where one request in ten takes a hundred times as long as the others, they say nothing of a queue.

use std::time::Duration;

use thinwire_proto::Time;

use crate::fair::REQUEST_COST;

/// Whoever waits while nothing has begun or ended for so long is let in: a part of the store may hang, and the
/// rest not.
pub(crate) const STALL: Duration = Duration::from_millis(50);
/// From one trial to the next, if the last one changed nothing.
const PAUSE: Duration = Duration::from_millis(500);
/// What a store does is seen over so long, and so many requests, at least.
const ROUND: Duration = Duration::from_millis(10);
const ROUND_REQUESTS: u32 = 64;
/// It is given less if it does so much with that, in percent of what it did before, and more for so much.
const ENOUGH_PERCENT: u128 = 95;
const WORTH_PERCENT: u128 = 110;
/// No store is given less, in cost: a request of a page. One that is larger goes alone.
const LEAST: u64 = 2 * REQUEST_COST as u64;
/// What it begins with.
const FIRST: u64 = 4 * LEAST;
/// None is given more.
const MOST: u64 = 1 << 40;
/// Nor, of what is done at once, so that each poll of it is worth while.
const BURST_MOST: u64 = 1 << 20;

/// A request that a store has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// The line that it is of.
    pub line: u16,
    cost: u32,
    round: u32,
    at: Time,
}

/// What a round finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// What the store does with the limit.
    None,
    /// With twice as much.
    More,
    /// With half.
    Less,
}

/// What one store has, and may have.
#[derive(Debug)]
pub(crate) struct Depth {
    limit: u64,
    /// Cost of what it was given and has not let go of.
    cost: u64,
    /// So much may be given to it at one time, while it lets go of all at once.
    burst: u64,
    trial: Trial,
    /// The next trial is with more; when it is.
    next_is_more: bool,
    trial_at: Time,
    /// Of this round: its number, when the first request that was begun in it ended and the last, and what
    /// ended after the first.
    round: u32,
    ends: Option<(Time, Time)>,
    ended: u32,
    ended_cost: u64,
    /// And whether somebody was not let in, the most that the store had, and the largest request: it goes alone,
    /// whatever the limit.
    was_full: bool,
    peak: u64,
    largest: u64,
    /// What the store did without a trial: cost in a time, times 2^20.
    rate: u128,
    /// When something began or ended last.
    changed_at: Time,
}

impl Depth {
    pub fn new() -> Self {
        Depth {
            limit: FIRST,
            cost: 0,
            burst: 0,
            trial: Trial::None,
            next_is_more: true,
            trial_at: Time::ZERO,
            round: 0,
            ends: None,
            ended: 0,
            ended_cost: 0,
            was_full: false,
            peak: 0,
            largest: 0,
            rate: 0,
            changed_at: Time::ZERO,
        }
    }

    /// Whether the store may have a request of this cost now, besides what it has.
    pub fn has_room(&mut self, cost: u32) -> bool {
        let limit = match self.trial {
            Trial::None => self.limit,
            Trial::More => 2 * self.limit,
            Trial::Less => (self.limit / 2).max(LEAST),
        };
        let after = self.cost + u64::from(cost);
        let has_room = cost == 0 || self.cost == 0 || after <= limit.max(self.burst);
        self.was_full |= !has_room;
        has_room
    }

    /// It is given one, of this line.
    pub fn begin(&mut self, now: Time, line: u16, cost: u32) -> Begun {
        if self.cost == 0 && now > self.changed_at + ROUND {
            // It had nothing to do: that is not to be seen as its rate.
            self.next_round();
        }
        self.cost += u64::from(cost);
        self.peak = self.peak.max(self.cost);
        self.largest = self.largest.max(cost.into());
        self.changed_at = now;
        Begun { line, cost, round: self.round, at: now }
    }

    /// It has let go of one, or did not take it.
    pub fn end(&mut self, now: Time, begun: Begun, was_taken: bool) {
        self.cost -= u64::from(begun.cost);
        self.changed_at = now;
        if !was_taken || begun.cost == 0 {
            return;
        }
        if now > begun.at {
            self.burst = 0;
        } else if self.cost == 0 {
            self.burst = (2 * self.burst).clamp(2 * LEAST, BURST_MOST);
        }
        if let Some((first, last)) = self.ends {
            // All that ends at one time does so before or behind the end of a round.
            let is_over = now > last && self.ended >= ROUND_REQUESTS;
            if is_over && last >= first + ROUND {
                self.decide(last, last.since(first));
            }
        }
        if begun.round != self.round {
            return;
        }
        let (first, _) = *self.ends.get_or_insert((now, now));
        self.ends = Some((first, now));
        if now > first {
            self.ended += 1;
            self.ended_cost += u64::from(begun.cost);
        }
    }

    fn decide(&mut self, now: Time, took: Duration) {
        let rate = (u128::from(self.ended_cost) << 20) / took.as_nanos().max(1);
        let compared = 100 * rate / self.rate.max(1);
        self.trial = match self.trial {
            _ if !self.was_full => {
                // It is not what holds them back.
                self.limit = self.limit.min(2 * self.peak).max(LEAST);
                Trial::None
            }
            Trial::None => {
                self.rate = rate;
                self.limit = self.limit.max(self.largest);
                match (now >= self.trial_at, self.next_is_more || self.limit == LEAST) {
                    (false, _) => Trial::None,
                    (true, true) => Trial::More,
                    (true, false) => Trial::Less,
                }
            }
            Trial::More if compared > WORTH_PERCENT => {
                self.limit = (2 * self.limit).min(MOST);
                self.rate = rate;
                Trial::More
            }
            Trial::Less if compared >= ENOUGH_PERCENT => {
                self.limit = (self.limit / 2).max(LEAST);
                if self.limit > LEAST { Trial::Less } else { self.turn_round(now) }
            }
            Trial::More | Trial::Less => self.turn_round(now),
        };
        self.next_round();
    }

    /// The next trial is the other way.
    fn turn_round(&mut self, now: Time) -> Trial {
        // Once that is over, too, there is nothing to be found out for a while.
        self.trial_at = if self.next_is_more { now } else { now + PAUSE };
        self.next_is_more = !self.next_is_more;
        Trial::None
    }

    fn next_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        (self.ends, self.ended, self.ended_cost) = (None, 0, 0);
        (self.was_full, self.peak, self.largest) = (false, self.cost, 0);
    }

    /// When something began or ended last.
    pub fn changed_at(&self) -> Time {
        self.changed_at
    }

    /// Nothing does, and somebody waits: it may have more, whatever it has.
    pub fn on_stall(&mut self, now: Time) {
        self.limit = (2 * self.limit.max(self.cost)).min(MOST);
        self.changed_at = now;
        (self.trial, self.next_is_more) = (Trial::None, false);
        self.next_round();
    }
}

#[cfg(test)]
#[path = "depth_tests.rs"]
mod tests;
