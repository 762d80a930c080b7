//! How much the disks of one shard may do in a turn, in bytes, and which of them (`docs/design.md`, "One call a
//! turn for all disks").
//!
//! What is left of a turn is shared: each disk that was refused something in the turn before has an equal share,
//! which it may save up for an operation that is larger, and one more share is for whoever comes first. So nobody
//! waits for ever, and one that has little to do hardly at all. Who has saved enough and is refused, since others
//! have saved, too, goes first in the next turn.

use std::cell::RefCell;

use crate::turn;

/// Bytes that the polls of one turn give to engines, or copy for them: the kernel copies or pins them while it
/// takes the calls in, and has a page ready for each, some 100 to 500 us in all. A larger operation counts for
/// as much, and has its turn.
pub(super) const TURN_BYTES_MAX: u64 = 1 << 20;

/// An operation of few bytes counts for as much: a turn begins 64 of them.
const OP_BYTES_MIN: u64 = TURN_BYTES_MAX / 64;

/// What is left of the turn of this thread's shard.
#[derive(Debug, Default)]
struct Turn {
    number: Option<u64>,
    /// Of each that was refused in the turn before.
    share: u64,
    /// Of whoever comes first.
    spare: u64,
    used: u64,
    /// Disks that were refused in this turn.
    refused: u64,
    /// Who goes first, and with how much.
    first: Option<(u64, u64)>,
    /// Who does in the next turn.
    next_first: Option<(u64, u64)>,
    /// The number of the last disk.
    disks: u64,
}

thread_local! {
    static TURN: RefCell<Turn> = RefCell::default();
}

/// Which turn a disk finds itself in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    /// That of the last time.
    Same,
    /// Another one.
    New,
    /// Nobody counts any, or nobody does any more.
    Uncounted,
}

impl Turn {
    fn begin(&mut self, number: Option<u64>) {
        self.number = number;
        self.share = TURN_BYTES_MAX / (self.refused + 1);
        self.spare = TURN_BYTES_MAX - self.share * self.refused;
        (self.used, self.refused) = (0, 0);
        self.first = self.next_first.take();
    }
}

/// What one disk may do in its turn.
#[derive(Debug)]
pub(super) struct Allowance {
    disk: u64,
    turn: Option<u64>,
    saved: u64,
    is_refused: bool,
}

impl Allowance {
    /// Of a disk of this thread.
    pub fn new() -> Self {
        let disk = TURN.with_borrow_mut(|turn| {
            turn.disks += 1;
            turn.disks
        });
        Allowance { disk, turn: None, saved: 0, is_refused: false }
    }

    /// The disk is polled, or asked: perhaps in another turn than the last time. On a thread whose turns nobody
    /// counts each poll is one.
    pub fn begin(&mut self) -> Begun {
        let number = turn::number();
        TURN.with_borrow_mut(|turn| {
            if number.is_none() {
                let disks = turn.disks;
                *turn = Turn { disks, spare: TURN_BYTES_MAX, ..Turn::default() };
                (self.turn, self.saved, self.is_refused) = (None, 0, false);
                return Begun::Uncounted;
            }
            if turn.number != number {
                turn.begin(number);
            }
            let is_new = std::mem::replace(&mut self.turn, number) != number;
            if is_new {
                let was_refused = std::mem::take(&mut self.is_refused);
                let saved = if was_refused { self.saved + turn.share } else { 0 };
                self.saved = saved.min(TURN_BYTES_MAX);
                Begun::New
            } else {
                Begun::Same
            }
        })
    }

    /// Takes an operation of so many bytes out of this turn. False: not in this one. What the disk has saved
    /// counts if it `may_spend` that: it does not while it saves for another operation.
    pub fn take(&mut self, bytes: u64, may_spend: bool) -> bool {
        let cost = bytes.clamp(OP_BYTES_MIN, TURN_BYTES_MAX);
        let saved = if may_spend { self.saved } else { 0 };
        TURN.with_borrow_mut(|turn| {
            if saved + turn.spare >= cost {
                let kept = match turn.first {
                    Some((disk, _)) if disk == self.disk => 0,
                    Some((_, cost)) => cost,
                    None => 0,
                };
                if turn.used + cost + kept <= TURN_BYTES_MAX {
                    turn.used += cost;
                    let own = cost.min(saved);
                    self.saved -= own;
                    turn.spare -= cost - own;
                    turn.first.take_if(|(disk, _)| *disk == self.disk);
                    return true;
                }
                turn.next_first.get_or_insert((self.disk, cost));
            }
            turn.refused += u64::from(!std::mem::replace(&mut self.is_refused, true));
            false
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Disks with as many operations of one size as they may begin, polled in this order: what each does in so
    /// many turns.
    fn busy<const N: usize>(sizes: [u64; N], turns: usize) -> [Vec<u64>; N] {
        // Those of an earlier call have gone, with what they wanted.
        TURN.set(Turn::default());
        let mut disks = sizes.map(|bytes| (Allowance::new(), bytes));
        let mut taken = [(); N].map(|()| Vec::new());
        for _ in 0..turns {
            turn::begin();
            for ((disk, bytes), taken) in disks.iter_mut().zip(&mut taken) {
                disk.begin();
                let mut count = 0;
                while disk.take(*bytes, true) {
                    count += 1;
                }
                taken.push(count * (*bytes).clamp(OP_BYTES_MIN, TURN_BYTES_MAX));
            }
        }
        taken
    }

    fn check_turns<const N: usize>(taken: &[Vec<u64>; N]) {
        for turn in 0..taken[0].len() {
            let used: u64 = taken.iter().map(|of_disk| of_disk[turn]).sum();
            assert!(used <= TURN_BYTES_MAX, "{used} bytes in turn {turn}");
        }
    }

    #[test]
    fn one_disk_has_all_of_each_turn() {
        for bytes in [512, 4 * KIB, 128 * KIB, 1024 * KIB, 4096 * KIB] {
            assert_eq!(busy([bytes], 5), [vec![TURN_BYTES_MAX; 5]]);
        }
    }

    #[test]
    fn disks_of_one_shard_share_a_turn_fairly() {
        let taken = busy([128 * KIB; 16], 400);
        check_turns(&taken);
        let all: Vec<u64> = taken.iter().map(|of_disk| of_disk.iter().sum()).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*most <= 2 * least, "{all:?}");
        assert!(all.iter().sum::<u64>() > 400 * TURN_BYTES_MAX / 2, "turns are used: {all:?}");
    }

    #[test]
    fn who_needs_a_whole_turn_gets_it_beside_those_who_always_want_more() {
        let taken = busy([4 * KIB, 128 * KIB, 4096 * KIB, 4 * KIB], 400);
        check_turns(&taken);
        for of_disk in &taken {
            let longest = of_disk.split(|&bytes| bytes > 0).map(<[u64]>::len).max();
            assert!(longest < Some(16), "nothing for {longest:?} turns");
        }
        let all: Vec<u64> = taken.iter().map(|of_disk| of_disk.iter().sum()).collect();
        assert!(all.iter().all(|&bytes| bytes > 400 * TURN_BYTES_MAX / 16), "{all:?}");
    }

    #[test]
    fn who_has_little_to_do_is_hardly_held_up_by_who_has_much() {
        let (mut busy, mut other) = (Allowance::new(), Allowance::new());
        let mut waited = 0;
        for _ in 0..100 {
            turn::begin();
            busy.begin();
            while busy.take(4 * KIB, true) {}
            other.begin();
            waited = if other.take(4 * KIB, true) { 0 } else { waited + 1 };
            assert!(waited < 2);
        }
    }

    /// A large copy beside the same disk's own small operations, on a shard where all want more than there is.
    #[test]
    fn who_saves_for_a_large_operation_is_not_kept_from_it_by_its_own_small_ones() {
        TURN.set(Turn::default());
        let mut disks: Vec<_> = (0..8).map(|_| Allowance::new()).collect();
        let (mut copies, mut waited) = (0, 0);
        for _ in 0..200 {
            turn::begin();
            for (nth, disk) in disks.iter_mut().enumerate() {
                disk.begin();
                let mut may_spend = true;
                if nth == 0 {
                    may_spend = disk.take(512 * KIB, true);
                    waited = if may_spend { 0 } else { waited + 1 };
                    copies += u32::from(may_spend);
                    assert!(waited < 16, "a copy waits for {waited} turns");
                }
                while disk.take(4 * KIB, may_spend) {}
            }
        }
        assert!(copies > 10, "{copies}");
    }
}
