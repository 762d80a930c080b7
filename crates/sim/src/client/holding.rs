//! A client that keeps what it was given as it was given, as a face does for somebody who reads slowly, and looks at it
//! again: it must still be what it was.

use std::collections::VecDeque;

use thinwire_buffer::SegList;
use thinwire_link::rng::Rng;

use super::Client;
use crate::coverage::Coverage;
use crate::model::Violation;

/// How long it is kept, and what is kept now.
#[derive(Debug)]
pub struct Holding {
    /// The share of its reads that are kept.
    pub share: f64,
    /// For so long at most, in ns.
    pub ns_max: u64,
    /// Dice of their own: who holds nothing does all that it did before there was such a thing.
    pub dice: Rng,
    /// A fault: it never lets go.
    pub is_greedy: bool,
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    token: u64,
    until: u64,
    data: SegList,
    /// What it was.
    bytes: Vec<u8>,
}

/// So many reads are kept at once, at most.
const HELD_MAX: usize = 64;

impl Holding {
    /// Nothing yet.
    pub fn new(share: f64, ns_max: u64, dice: Rng) -> Self {
        Holding { share, ns_max, dice, is_greedy: false, held: VecDeque::new() }
    }

    /// Perhaps keeps the data of a read.
    pub(super) fn keep(&mut self, now: u64, token: u64, data: SegList, bytes: Vec<u8>) {
        if self.held.len() < HELD_MAX && self.dice.chance(self.share) {
            let until = now + self.dice.between(self.ns_max / 4, self.ns_max);
            self.held.push_back(Held { token, until, data, bytes });
        }
    }

    /// The process is gone, and what it held.
    pub(super) fn clear(&mut self) {
        self.held.clear();
    }
}

impl Client {
    /// Looks at what it has held for long enough, or at all of it if it is `over`, and lets go.
    pub(super) fn look_at_held(
        &mut self,
        now: u64,
        over: bool,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let Some(holding) = &mut self.holding else { return Ok(()) };
        let mut changed = None;
        holding.held.retain_mut(|held| {
            let stays = !over && held.until > now;
            if !stays {
                coverage.reads_held += 1;
                if held.data.to_vec() != held.bytes {
                    changed = Some(held.token);
                }
                if holding.is_greedy {
                    std::mem::forget(std::mem::take(&mut held.data));
                }
            }
            stays
        });
        match changed {
            None => Ok(()),
            Some(token) => {
                let text = format!("what I/O {token} has read changed while it was held");
                Err(self.violation(text))
            }
        }
    }
}
