//! Which part of an effect lies under durable ones that came later, for a replay that goes around them.
//!
//! Of each byte that some cover has, the newest one counts: it is later than an effect exactly if any is. So
//! ranges that do not overlap, each with the number of its cover, say all, and whoever asks looks only at
//! those in its own range. It is made when a replay begins, a little at a time.

use std::collections::BTreeMap;

/// The covers, by the bytes of which they are the newest.
#[derive(Debug, Default)]
pub(crate) struct Covers {
    /// From each offset: where that ends, and the number of the cover.
    newest: BTreeMap<u64, (u64, u64)>,
}

impl Covers {
    pub fn clear(&mut self) {
        self.newest.clear();
    }

    /// One more, newer than all others. Returns how many ranges were looked at.
    pub fn lay(&mut self, offset: u64, end: u64, number: u64) -> usize {
        let mut looks = 1;
        let before = self.newest.range_mut(..offset).next_back();
        if let Some((_, older)) = before.filter(|(_, older)| older.0 > offset) {
            let (older_end, older_number) = std::mem::replace(older, (offset, older.1));
            if older_end > end {
                self.newest.insert(end, (older_end, older_number));
            }
        }
        while let Some((&at, &(older_end, older_number))) = self.newest.range(offset..end).next() {
            self.newest.remove(&at);
            if older_end > end {
                self.newest.insert(end, (older_end, older_number));
            }
            looks += 1;
        }
        self.newest.insert(offset, (end, number));
        looks
    }

    /// The first part between `start` and `end` that no cover later than `number` has, its offset and
    /// length; and how many ranges were looked at.
    pub fn gap(&self, number: u64, start: u64, end: u64) -> (Option<(u64, u64)>, usize) {
        let (mut start, mut looks) = (start, 1);
        if let Some((_, &(covered, by))) = self.newest.range(..=start).next_back()
            && covered > start
            && by > number
        {
            start = covered;
        }
        let mut stop = end;
        if start < end {
            for (&at, &(covered, by)) in self.newest.range(start..end) {
                looks += 1;
                match by > number {
                    true if at > start => {
                        stop = at;
                        break;
                    }
                    true => start = covered,
                    false => {}
                }
            }
        }
        ((start < stop).then(|| (start, stop - start)), looks)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::{Pool, SegList};
    use thinwire_proto::SipRng;
    use thinwire_volume::{IoFlags, Op};

    use super::*;
    use crate::durability::Durability;
    use crate::retained::LOOKS_PER_TURN;
    use crate::slots::{Owner, Pending};
    use crate::{InitiatorConfig, TargetName};

    /// As if each byte were looked up among all of them.
    #[test]
    fn gaps_are_where_no_later_cover_is() {
        let mut dice = SipRng::new(1);
        for _ in 0..300 {
            let mut covers = Covers::default();
            let mut newest = [0; 64];
            for number in 1..=dice.below(30) {
                let offset = dice.below(60);
                let end = offset + 1 + dice.below(64 - offset);
                covers.lay(offset, end, number);
                newest[offset as usize..end as usize].fill(number);
            }
            for _ in 0..20 {
                let (number, start) = (dice.below(30), dice.below(60));
                let end = start + 1 + dice.below(64 - start);
                let is_open = |at: &u64| newest[*at as usize] <= number;
                let from = (start..end).find(is_open);
                let expected = from
                    .map(|from| (from, (from..end).find(|at| !is_open(at)).unwrap_or(end) - from));
                assert_eq!(covers.gap(number, start, end).0, expected, "{covers:?}");
            }
        }
    }

    /// A log of thousands of writes, each written again with FUA: none is to be sent, and finding that out is
    /// the work of many turns, a little of each. Nor does it take longer than the log is long.
    #[test]
    fn a_replay_looks_at_a_little_of_the_log_in_each_turn() {
        const COUNT: u64 = 4000;
        let config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
        let mut d = Durability::new(&config, &Pool::new(0));
        d.begin(1);
        let write = |at: u64, fua| {
            let (owner, flags) = (Owner::User(1), IoFlags { fua, ..IoFlags::default() });
            let (offset, data) = (at * 512, SegList::new());
            Pending { flags, offset, len: 512, data, ..Pending::new(owner, Op::Write) }
        };
        for fua in [false, true] {
            (0..COUNT).for_each(|at| d.on_effect(write(at, fua), 1));
        }
        d.on_effect(write(COUNT, false), 1);
        d.on_verifier(2);
        let mut turns = 0;
        let last = loop {
            d.begin_turn();
            turns += 1;
            if let Some(io) = d.next_replay() {
                break io;
            }
            assert!(
                d.is_replaying() && d.goes_on(),
                "it wants another turn, and nothing else starts"
            );
        };
        assert_eq!(last.offset, COUNT * 512);
        let looks = 3 * COUNT as usize;
        assert!((looks / LOOKS_PER_TURN..2 * looks / LOOKS_PER_TURN).contains(&turns), "{turns}");
        d.replay_started(last.offset + last.len);
        assert!(d.next_replay().is_none() && !d.goes_on(), "an answer is waited for");
        d.on_replayed(2 * COUNT, d.mark(), 2, true);
        assert!(d.next_replay().is_none() && !d.is_replaying());
    }

    /// Finding the next request may take all that a turn may look at. If there is no credit for it, to look again
    /// at once finds the same.
    #[test]
    fn a_replay_that_waits_for_credit_does_not_ask_for_turns() {
        let config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
        let mut d = Durability::new(&config, &Pool::new(0));
        d.begin(1);
        let write = |at: u64, blocks: u64, fua| {
            let (owner, flags) = (Owner::User(1), IoFlags { fua, ..IoFlags::default() });
            let (offset, len, data) = (at * 512, blocks * 512, SegList::new());
            Pending { flags, offset, len, data, ..Pending::new(owner, Op::WriteZeroes) }
        };
        let covered = 2 * LOOKS_PER_TURN as u64;
        d.on_effect(write(0, covered + 1, false), 1);
        (0..covered).for_each(|at| d.on_effect(write(at, 1, true), 1));
        d.on_verifier(2);
        let io = loop {
            d.begin_turn();
            match d.next_replay() {
                Some(io) => break io,
                None => assert!(d.goes_on(), "covers are still to be laid"),
            }
        };
        assert_eq!((io.offset, io.len), (covered * 512, 512));
        for _ in 0..3 {
            assert!(!d.goes_on(), "it waits for somebody else");
            d.begin_turn();
            assert!(d.next_replay().is_some());
        }
        d.replay_started(io.offset + io.len);
        assert!(d.goes_on(), "the rest of the log has not been looked at");
    }
}
