//! One way's random decisions, and the frames it holds back.

use super::{FaultConfig, FaultStats};
use crate::rng::Rng;
use crate::sim::FaultRates;

/// A reordered frame waits for at most this many later ones.
const OVERTAKERS_MAX: u64 = 4;
/// And at most this long.
const REORDER_NS_MAX: u64 = 1_000_000;

/// What becomes of a frame that is not lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) is_twice: bool,
    pub(super) is_damaged: bool,
    /// Frames that must overtake it.
    overtakers: u32,
    delay_ns: u64,
}

impl Fate {
    pub(super) fn is_held(&self) -> bool {
        self.overtakers > 0 || self.delay_ns > 0
    }
}

/// The decisions of one way.
pub(super) struct Way {
    pub(super) rng: Rng,
    rates: FaultRates,
    delay_ns: (u64, u64),
}

impl Way {
    pub(super) fn new(config: &FaultConfig, seed: u64) -> Self {
        Way {
            rng: Rng::new(seed),
            rates: config.rates,
            delay_ns: (config.delay_ns_min, config.delay_ns_max),
        }
    }

    /// Decides about one frame; `None` if it is lost.
    pub(super) fn judge(&mut self, stats: &mut FaultStats) -> Option<Fate> {
        let rng = &mut self.rng;
        if rng.chance(self.rates.loss) {
            stats.lost += 1;
            return None;
        }
        let is_twice = rng.chance(self.rates.dup);
        let is_damaged = rng.chance(self.rates.corrupt);
        let is_late = rng.chance(self.rates.reorder);
        stats.duplicated += u64::from(is_twice);
        stats.corrupted += u64::from(is_damaged);
        stats.reordered += u64::from(is_late);
        Some(Fate {
            is_twice,
            is_damaged,
            overtakers: if is_late { rng.between(1, OVERTAKERS_MAX) as u32 } else { 0 },
            delay_ns: match self.delay_ns {
                (_, 0) => 0,
                (min, max) => rng.between(min, max),
            },
        })
    }
}

struct Held<T> {
    what: T,
    overtakers: u32,
    until_ns: u64,
}

/// Frames held back. Few, so a search through all of them is cheap.
pub(super) struct Hold<T> {
    held: Vec<Held<T>>,
}

impl<T> Hold<T> {
    pub(super) fn new() -> Self {
        Hold { held: Vec::new() }
    }

    pub(super) fn keep(&mut self, what: T, fate: Fate, now_ns: u64) {
        // A delayed frame waits for its time; a reordered one may be let go earlier.
        let (wait_ns, overtakers) = match fate.delay_ns {
            0 => (REORDER_NS_MAX, fate.overtakers),
            delay_ns => (delay_ns, u32::MAX),
        };
        self.held.push(Held { what, overtakers, until_ns: now_ns.saturating_add(wait_ns) });
    }

    /// A frame of this way passed those that are held.
    pub(super) fn one_passed(&mut self) {
        for held in &mut self.held {
            if held.overtakers != u32::MAX {
                held.overtakers = held.overtakers.saturating_sub(1);
            }
        }
    }

    /// Lets go of one frame that waited long enough: of those the one whose time came first.
    pub(super) fn release(&mut self, now_ns: u64) -> Option<T> {
        let ripe = |h: &Held<T>| h.overtakers == 0 || h.until_ns <= now_ns;
        let (i, _) = self
            .held
            .iter()
            .enumerate()
            .filter(|(_, held)| ripe(held))
            .min_by_key(|(_, held)| held.until_ns)?;
        // Not swap_remove: frames of one time leave in the order in which they came.
        Some(self.held.remove(i).what)
    }

    /// When the next frame's time comes.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.held.iter().map(|held| held.until_ns).min()
    }
}
