//! Which changes of state runs have gone through, of those that the tables of an initiator have.
//!
//! An initiator is looked at twice in a turn of its loop. What happens between two looks is one change here: one that a
//! table has may have been two on the way, and some that no table has are not told of.

use std::sync::LazyLock;

use thinwire_initiator::STATE_TABLES;

/// Of one part.
const STATES_MAX: usize = 8;
const PARTS: usize = STATE_TABLES.len();

/// The states of the parts of an initiator, in the order of [`STATE_TABLES`].
pub type States = [&'static str; PARTS];

/// How often each part has gone from each state to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transitions {
    counts: [[[u64; STATES_MAX]; STATES_MAX]; PARTS],
}

/// A table, read.
struct Table {
    part: &'static str,
    states: Vec<&'static str>,
    /// From which state to which other.
    changes: Vec<(usize, usize)>,
}

static TABLES: LazyLock<Vec<Table>> =
    LazyLock::new(|| STATE_TABLES.iter().map(|&(part, text)| Table::read(part, text)).collect());

impl Table {
    fn read(part: &'static str, text: &'static str) -> Self {
        let cells = |line: &'static str| {
            let line = line.trim().trim_matches('|');
            line.split('|').map(str::trim).skip(1)
        };
        let mut lines = text.lines();
        let states: Vec<_> = cells(lines.next().expect("a head")).collect();
        let mut table = Table { part, states, changes: Vec::new() };
        for line in lines.skip(1) {
            for (from, cell) in cells(line).enumerate() {
                let after = cell.split(':').next().unwrap_or_default();
                if after != "·" {
                    table.changes.push((from, table.state(after)));
                }
            }
        }
        table.changes.sort_unstable();
        table.changes.dedup();
        table
    }

    fn state(&self, name: &str) -> usize {
        let found = self.states.iter().position(|&state| state == name);
        found.unwrap_or_else(|| panic!("{} has no state \"{name}\"", self.part))
    }
}

impl Transitions {
    /// What has changed since `before`, which is `now` afterwards.
    pub fn observe(&mut self, before: &mut States, now: States) {
        for (part, (before, now)) in before.iter_mut().zip(now).enumerate() {
            let from = std::mem::replace(before, now);
            if from != now {
                let table = &TABLES[part];
                self.counts[part][table.state(from)][table.state(now)] += 1;
            }
        }
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Transitions) {
        let counts = self.counts.as_flattened_mut().as_flattened_mut();
        let others = other.counts.as_flattened().as_flattened();
        counts.iter_mut().zip(others).for_each(|(count, more)| *count += more);
    }

    /// Those of the tables, as "part: from > to", and how often they have happened.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        TABLES.iter().zip(&self.counts).flat_map(|(table, counts)| {
            table.changes.iter().map(|&(from, to)| {
                let name = format!("{}: {} > {}", table.part, table.states[from], table.states[to]);
                (name, counts[from][to])
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_counted_for_the_part_that_has_it() {
        let start = ["Idle", "Apart", "Idle", "Clean", "Away", "Open"];
        let mut before = start;
        let mut transitions = Transitions::default();
        transitions.observe(&mut before, start);
        let later = ["Seeking", "Apart", "Idle", "Clean", "Away", "Draining"];
        transitions.observe(&mut before, later);
        transitions.observe(&mut before, later);
        let mut sum = transitions;
        sum.add(&transitions);
        let seen: Vec<_> = sum.iter().filter(|&(_, count)| count > 0).collect();
        let seen: Vec<_> = seen.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(seen, [("association: Idle > Seeking", 2), ("closing: Open > Draining", 2)]);
    }

    #[test]
    fn all_tables_are_read() {
        for table in TABLES.iter() {
            assert!((2..=STATES_MAX).contains(&table.states.len()), "{}", table.part);
            assert!(table.changes.len() >= table.states.len(), "{}", table.part);
            assert!(table.changes.iter().all(|&(from, to)| from != to), "{}", table.part);
        }
    }
}
