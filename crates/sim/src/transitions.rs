//! Which changes of state runs have gone through, of those that the tables of an initiator have, and which of them a
//! crash was aimed at.
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

/// A number for each part, and each way from one of its states to another.
type Counts = [[[u64; STATES_MAX]; STATES_MAX]; PARTS];

/// How often each part has gone from each state to each other, and how often that brought a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transitions {
    counts: Counts,
    crashes: Counts,
}

/// A change of state, by the numbers of part and states in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    part: usize,
    from: usize,
    to: usize,
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

impl Change {
    /// All that the tables have.
    pub fn all() -> impl Iterator<Item = Change> {
        let of = |part: usize| {
            TABLES[part].changes.iter().map(move |&(from, to)| Change { part, from, to })
        };
        (0..PARTS).flat_map(of)
    }

    /// As "part: from > to".
    pub fn name(self) -> String {
        let table = &TABLES[self.part];
        format!("{}: {} > {}", table.part, table.states[self.from], table.states[self.to])
    }

    /// Of which part.
    pub fn part(self) -> &'static str {
        TABLES[self.part].part
    }

    fn of(self, counts: &Counts) -> u64 {
        counts[self.part][self.from][self.to]
    }
}

impl Transitions {
    /// Counts what has changed since `before`, which is `now` afterwards, and tells `changed` of each.
    pub fn observe(&mut self, before: &mut States, now: States, mut changed: impl FnMut(Change)) {
        for (part, (before, now)) in before.iter_mut().zip(now).enumerate() {
            let from = std::mem::replace(before, now);
            if from != now {
                let table = &TABLES[part];
                let change = Change { part, from: table.state(from), to: table.state(now) };
                self.counts[part][change.from][change.to] += 1;
                changed(change);
            }
        }
    }

    /// This change brought a crash.
    pub fn note_crash(&mut self, at: Change) {
        self.crashes[at.part][at.from][at.to] += 1;
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Transitions) {
        let sum = |counts: &mut Counts, others: &Counts| {
            let others = others.as_flattened().as_flattened();
            let counts = counts.as_flattened_mut().as_flattened_mut();
            counts.iter_mut().zip(others).for_each(|(count, more)| *count += more);
        };
        sum(&mut self.counts, &other.counts);
        sum(&mut self.crashes, &other.crashes);
    }

    /// Those of the tables, by name, and how often they have happened.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        Change::all().map(|change| (change.name(), change.of(&self.counts)))
    }

    /// As [`Transitions::iter`]: how often a crash was aimed at them and hit.
    pub fn crashes(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        Change::all().map(|change| (change.name(), change.of(&self.crashes)))
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
        let mut told = Vec::new();
        transitions.observe(&mut before, start, |change| told.push(change));
        assert!(told.is_empty());
        let later = ["Seeking", "Apart", "Idle", "Clean", "Away", "Draining"];
        transitions.observe(&mut before, later, |change| told.push(change));
        transitions.observe(&mut before, later, |_| unreachable!("nothing has changed"));
        transitions.note_crash(told[1]);
        let mut sum = transitions;
        sum.add(&transitions);
        let seen: Vec<_> = sum.iter().filter(|&(_, count)| count > 0).collect();
        let seen: Vec<_> = seen.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(seen, [("association: Idle > Seeking", 2), ("closing: Open > Draining", 2)]);
        let hit: Vec<_> = sum.crashes().filter(|&(_, count)| count > 0).collect();
        assert_eq!(hit, [("closing: Open > Draining".to_owned(), 2)]);
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
