//! What is to be measured, in which order, and how long that takes.

use std::collections::BTreeMap;

use crate::composed::{ComposedSubject, Program};
use crate::contender::{set_up_key, start_after};
use crate::offered::{Medium, Protocol};
use crate::point::{JOINING, Load, Point, Subject, Wire};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A subset of the points with fewer rounds, in less than [`QUICK_SECONDS_MAX`].
    Quick,
    /// All points, in less than [`FULL_SECONDS_MAX`].
    Full,
}

/// Longest quick run, in seconds.
pub const QUICK_SECONDS_MAX: f64 = 540.0;
/// Longest full run, in seconds.
pub const FULL_SECONDS_MAX: f64 = 9600.0;
/// The same of what is about volumes made of volumes.
pub const ORCHESTRA_QUICK_SECONDS_MAX: f64 = 840.0;
/// The same, in full.
pub const ORCHESTRA_FULL_SECONDS_MAX: f64 = 7100.0;

/// Subjects that are compared: measured in turns on the same load, in another order each round.
#[derive(Clone, Debug)]
pub struct Group {
    /// The network that all of them run on.
    pub wire: Wire,
    /// The load of all of them.
    pub load: Load,
    /// Who is compared, each with its rounds.
    pub entries: Vec<Entry>,
}

/// A subject of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// The one that is measured.
    pub subject: Subject,
    /// How long a run takes. The same in both forms, so that its figures serve both.
    pub seconds: f64,
    /// Rounds in the full form.
    pub full: u32,
    /// Rounds in the quick form: at most as many, often none.
    pub quick: u32,
}

impl Entry {
    /// Measured for so many seconds in so many rounds.
    pub fn new(subject: Subject, seconds: f64, full: u32, quick: u32) -> Self {
        assert!(quick <= full, "the quick form is a subset");
        Entry { subject, seconds, full, quick }
    }

    /// Rounds in a form.
    pub fn rounds(&self, form: Form) -> u32 {
        match form {
            Form::Quick => self.quick,
            Form::Full => self.full,
        }
    }
}

impl Group {
    /// Without subjects yet.
    pub fn new(wire: Wire, load: Load) -> Self {
        Group { wire, load, entries: Vec::new() }
    }

    /// Adds a subject.
    pub fn with(mut self, subject: Subject, seconds: f64, full: u32, quick: u32) -> Self {
        self.entries.push(Entry::new(subject, seconds, full, quick));
        self
    }

    /// Adds an entry, or what it wants to that of the same subject.
    fn merge(&mut self, entry: Entry) {
        match self.entries.iter_mut().find(|own| own.subject == entry.subject) {
            Some(own) => {
                own.seconds = own.seconds.max(entry.seconds);
                own.full = own.full.max(entry.full);
                own.quick = own.quick.max(entry.quick);
            }
            None => self.entries.push(entry),
        }
    }

    /// The point of a subject.
    pub fn point(&self, subject: Subject) -> Point {
        Point { wire: self.wire, load: self.load, subject }
    }

    /// Points with their entries.
    pub fn points(&self) -> impl Iterator<Item = (Point, &Entry)> {
        self.entries.iter().map(|entry| (self.point(entry.subject), entry))
    }

    /// The most rounds of any subject.
    pub fn rounds(&self, form: Form) -> u32 {
        self.entries.iter().map(|entry| entry.rounds(form)).max().unwrap_or(0)
    }

    /// Who takes part in a round, from 0, in the order of their turns. What one leaves behind
    /// (processors that were idle, warm caches) meets another each time: over as many rounds as there
    /// are subjects, each begins once and follows each other once (of an odd number, some meet twice);
    /// a plan's three or four rounds are the first of these.
    pub fn turns(&self, form: Form, round: u32) -> Vec<(Point, Entry)> {
        let all: Vec<_> = self.points().map(|(point, entry)| (point, *entry)).collect();
        let taking = |(_, entry): &(Point, Entry)| round < entry.rounds(form);
        order(all.len(), round as usize).map(|at| all[at]).filter(taking).collect()
    }
}

/// The order of `count` subjects in a round: a row of the square of E. J. Williams ("Experimental
/// designs balanced for the estimation of residual effects of treatments"). Its first row goes to and
/// fro, 0, n-1, 1, n-2 and so on, in which each step is of another length; in each further row all move
/// on by one. An odd number has a place that stays empty.
fn order(count: usize, round: usize) -> impl Iterator<Item = usize> {
    let places = count.next_multiple_of(2);
    let first_row = (0..places).map(move |k| if k % 2 == 0 { k / 2 } else { places - 1 - k / 2 });
    first_row.map(move |at| (at + round) % places).filter(move |&at| at < count)
}

/// One group for each load on each wire, of all who are asked for under it, by whomever: what is
/// compared is measured in turns. A subject that several ask for gets the most rounds and the
/// longest runs that any of them wants. Groups of a wire follow each other, so that subjects keep
/// standing; apart from that the order is that of the first who asks.
pub fn merged(groups: impl IntoIterator<Item = Group>) -> Vec<Group> {
    let mut all: Vec<Group> = Vec::new();
    let mut places: BTreeMap<(Wire, Load), usize> = BTreeMap::new();
    let mut wires: Vec<Wire> = Vec::new();
    for group in groups {
        if !wires.contains(&group.wire) {
            wires.push(group.wire);
        }
        match places.get(&(group.wire, group.load)) {
            Some(&at) => group.entries.into_iter().for_each(|entry| all[at].merge(entry)),
            None => {
                places.insert((group.wire, group.load), all.len());
                all.push(group);
            }
        }
    }
    all.sort_by_key(|group| wires.iter().position(|wire| *wire == group.wire));
    all
}

/// Seconds that starting and ending the programs of one run take, beyond its measuring time.
fn overhead(subject: &Subject) -> f64 {
    match subject {
        Subject::Thinwire { .. } | Subject::Echo { .. } => 0.4,
        Subject::Disk { .. } | Subject::Vblade => 0.4,
        // A client of the idealised form is silent for two seconds when it begins.
        Subject::Offered { protocol: Protocol::EbdIdeal, .. } => 2.5,
        Subject::Offered { .. } => 0.5,
        Subject::Face { .. } | Subject::FaceAlone => 1.1,
        Subject::Nbdkit | Subject::NbdkitAlone | Subject::NbdkitFile | Subject::QemuNbd => 1.1,
        Subject::NbdkitHeld(_) => 1.1,
        // It ends when all is copied, not when its time is over.
        Subject::Copied { .. } => 1.5,
        Subject::Tgt => 0.5,
        // A file is read or written as a whole.
        Subject::Ext2 { mib, .. } => f64::from(*mib) / 150.0,
        // qemu-nbd begins anew, and fio takes a while to start.
        Subject::Composed(ComposedSubject::Qcow2 { snapshot }) => {
            if *snapshot {
                2.0
            } else {
                1.1
            }
        }
        Subject::Composed(ComposedSubject::TcpStream) => 0.3,
        Subject::Composed(_) => 0.5,
        Subject::MemoryCopy => 0.2,
        Subject::Null { .. } => 0.1,
    }
}

/// Seconds that setting a subject up takes.
pub fn set_up_seconds(subject: &Subject) -> f64 {
    match subject {
        // An image is written to a disk, and read again by some.
        Subject::Disk { .. } | Subject::NbdkitFile | Subject::NbdkitHeld(_) => 2.5,
        Subject::Ext2 { mib, .. } => 2.0 + f64::from(*mib) / 150.0,
        Subject::Offered { medium, .. } if *medium != Medium::Memory => 2.5,
        Subject::Composed(_) => 2.5,
        _ => 1.2,
    }
}

/// Seconds that a program takes, with its file system: it ends by itself.
fn program_seconds(program: Program) -> f64 {
    match program {
        Program::Postmark { files, transactions } => 2.0 + f64::from(files + transactions) / 2500.0,
        Program::Query(_) => 8.0,
        // fio takes a while to start.
        Program::Served(_) => 0.6,
    }
}

/// Seconds that one run of a point takes.
pub fn run_seconds(point: &Point, entry: &Entry) -> f64 {
    let measured = match point.load.joined_every_s {
        0 => entry.seconds,
        every => f64::from(every * (JOINING + 1)),
    };
    let program = point.load.program.map_or(0.0, program_seconds);
    let together = match point.wire.initiators {
        1 => 0.0,
        initiators => start_after(initiators),
    };
    measured + program + overhead(&point.subject) + together
}

/// Seconds that a plan takes from nothing.
pub fn estimate(groups: &[Group], form: Form) -> f64 {
    let mut seconds = 0.0;
    let mut standing: BTreeMap<String, f64> = BTreeMap::new();
    for group in groups {
        let points = group.points().filter(|(_, entry)| entry.rounds(form) > 0);
        let mut here = BTreeMap::new();
        for (point, entry) in points {
            seconds += f64::from(entry.rounds(form)) * run_seconds(&point, entry);
            here.insert(set_up_key(&point), set_up_seconds(&point.subject));
        }
        let new = here.iter().filter(|(key, _)| !standing.contains_key(*key));
        seconds += new.map(|(_, set_up)| set_up).sum::<f64>();
        standing = here;
    }
    seconds
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiments::{Experiment, ExperimentSuite};

    fn all_groups() -> impl Iterator<Item = Group> {
        [ExperimentSuite::Tyche, ExperimentSuite::Orchestra]
            .into_iter()
            .flat_map(ExperimentSuite::plan)
    }

    #[test]
    fn quick_is_a_subset_of_full_and_both_are_in_time() {
        for (suite, quick_max, full_max) in [
            (ExperimentSuite::Tyche, QUICK_SECONDS_MAX, FULL_SECONDS_MAX),
            (ExperimentSuite::Orchestra, ORCHESTRA_QUICK_SECONDS_MAX, ORCHESTRA_FULL_SECONDS_MAX),
        ] {
            let groups = suite.plan();
            let (quick, full) = (estimate(&groups, Form::Quick), estimate(&groups, Form::Full));
            println!("{suite:?}: quick {quick:.0} s, full {full:.0} s");
            assert!(quick < quick_max, "{suite:?}: quick takes {quick} s");
            assert!(full < full_max, "{suite:?}: full takes {full} s");
            assert!(
                groups.iter().flat_map(|g| &g.entries).all(|e| e.quick <= e.full && e.full > 0)
            );
        }
        for experiment in Experiment::ALL {
            let own = experiment.plan();
            println!(
                "{}: quick {:.0} s, full {:.0} s",
                experiment.name(),
                estimate(&own, Form::Quick),
                estimate(&own, Form::Full)
            );
            let quick = estimate(&own, Form::Quick);
            assert_eq!(quick == 0.0, experiment.is_full_only(), "{}", experiment.name());
        }
    }

    #[test]
    fn what_two_ask_for_is_measured_once_and_in_turns() {
        let group = |subject, seconds, rounds, depth| {
            let load = Load::new(crate::point::Pattern::Read, 4096, depth);
            Group::new(Wire::FREE, load).with(subject, seconds, rounds, 1)
        };
        let elsewhere = Group::new(Wire::TEN_GIGABIT, group(Subject::Tgt, 1.0, 1, 1).load);
        let all = merged([
            group(Subject::Nbdkit, 2.0, 3, 1),
            elsewhere.with(Subject::Tgt, 1.0, 1, 1),
            group(Subject::QemuNbd, 1.0, 2, 1),
            group(Subject::Nbdkit, 1.0, 4, 1),
            group(Subject::Nbdkit, 1.0, 1, 2),
        ]);
        let said: Vec<_> =
            all.iter().map(|g| (g.wire == Wire::FREE, g.load.depth, g.entries.len())).collect();
        assert_eq!(said, [(true, 1, 2), (true, 2, 1), (false, 1, 1)], "wires follow each other");
        assert_eq!(all[0].entries[0], Entry::new(Subject::Nbdkit, 2.0, 4, 1));
        let seconds = 4.0 * (2.0 + overhead(&Subject::Nbdkit));
        assert_eq!(
            estimate(&[group(Subject::Nbdkit, 2.0, 4, 1)], Form::Full),
            seconds + set_up_seconds(&Subject::Nbdkit)
        );
        let subjects = |round| -> Vec<Subject> {
            all[0].turns(Form::Full, round).iter().map(|(point, _)| point.subject).collect()
        };
        assert_eq!(subjects(0), [Subject::Nbdkit, Subject::QemuNbd]);
        assert_eq!(subjects(1), [Subject::QemuNbd, Subject::Nbdkit], "another one begins");
        assert_eq!(subjects(3), [Subject::Nbdkit]);
    }

    #[test]
    fn nobody_follows_the_same_one_again_and_again() {
        for count in 1..=16 {
            let places = count + count % 2;
            let mut followed = BTreeMap::new();
            let mut began = BTreeSet::new();
            for round in 0..places {
                let row: Vec<usize> = order(count, round).collect();
                let once: BTreeSet<_> = row.iter().collect();
                assert_eq!((row.len(), once.len()), (count, count), "all of {count}, each once");
                began.insert(row[0]);
                row.windows(2).for_each(|w| *followed.entry((w[0], w[1])).or_insert(0) += 1);
            }
            assert_eq!(began.len(), count);
            // Where the empty place was between two, they meet a second time.
            let most = if count % 2 == 0 { 1 } else { 2 };
            assert!(followed.values().all(|times| *times <= most), "{count}: {followed:?}");
            assert_eq!(followed.len(), count * (count - 1));
        }
        for group in all_groups() {
            let mut before: BTreeMap<Subject, Vec<Subject>> = BTreeMap::new();
            for round in 0..group.rounds(Form::Full) {
                let turns = group.turns(Form::Full, round);
                for pair in turns.windows(2) {
                    before.entry(pair[1].0.subject).or_default().push(pair[0].0.subject);
                }
            }
            let rounds = group.entries.iter().map(|entry| entry.full).min().unwrap_or(0);
            for (subject, before) in before.iter().filter(|_| group.entries.len() > 3) {
                let different: BTreeSet<_> = before.iter().collect();
                assert!(
                    different.len() + 1 >= before.len().min(rounds as usize),
                    "{} {}: {subject} after {before:?}",
                    group.wire,
                    group.load
                );
            }
        }
    }

    #[test]
    fn tyche_gets_the_time_that_its_interval_needs() {
        for group in all_groups() {
            for entry in &group.entries {
                if matches!(entry.subject, Subject::Thinwire { settings, .. } if settings.batch == Some("tyche"))
                {
                    // Ten unchanged intervals of a second, then the probes of its neighbours.
                    assert!(run_seconds(&group.point(entry.subject), entry) >= 13.0);
                }
            }
        }
    }

    #[test]
    fn plans_hold_each_load_and_each_subject_once() {
        let suites =
            [ExperimentSuite::Tyche, ExperimentSuite::Orchestra].map(ExperimentSuite::plan);
        for groups in Experiment::ALL.map(Experiment::plan).into_iter().chain(suites) {
            let loads: BTreeSet<_> = groups.iter().map(|g| (g.wire, g.load)).collect();
            assert_eq!(loads.len(), groups.len());
            for group in groups {
                let subjects: BTreeSet<_> = group.entries.iter().map(|e| e.subject).collect();
                assert_eq!(subjects.len(), group.entries.len(), "{} {}", group.wire, group.load);
            }
        }
    }
}
