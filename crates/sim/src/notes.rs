//! What a gateway writes down of grants of its leaves that it has not used: a small file for each leaf, replaced and
//! removed as `runtime/src/disk/unused.rs` does it, and what becomes of that when it fails, the process dies over
//! it or the machine loses its power.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thinwire_link::rng::Rng;
use thinwire_volume::LeafGrant;

use crate::server::Crash;

/// How far a change of a note came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteReach {
    /// It was not begun.
    Nothing,
    /// A process finds it; a power failure may take it back.
    There,
    /// It is durable.
    Durable,
}

/// What becomes of a change of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteFate {
    /// It is durable.
    Done,
    /// It fails, having come so far.
    Failed(NoteReach),
    /// The process dies over it, having come so far.
    Dies(NoteReach),
}

/// What happened to notes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoteStats {
    /// Changes that failed.
    pub failures: u64,
    /// Changes over which the process died.
    pub crashes: u64,
    /// Changes that a power failure took back.
    pub losses: u64,
    /// Grants that were taken back.
    pub taken_back: u64,
}

/// A file.
#[derive(Debug, Default)]
struct NoteFile {
    /// As a process finds it, and as a power failure leaves it.
    current: Option<LeafGrant>,
    durable: Option<LeafGrant>,
}

/// The notes of a gateway's export, by leaf.
#[derive(Debug)]
pub struct Notes {
    files: BTreeMap<usize, NoteFile>,
    /// As the process knows them.
    held: BTreeMap<usize, LeafGrant>,
    /// Grants, by leaf and generation, of which it is written down for good that nobody has used them: they are
    /// no reason to fence anybody.
    noted: BTreeSet<(usize, u64)>,
    /// Grants, by leaf and generation, that are in use by now, or somebody else's to have: no note may say again
    /// that nobody has used them.
    gone: BTreeSet<(usize, u64)>,
    /// Changes that fail, and those over which the process dies.
    rates: (f64, f64),
    /// What becomes of the next ones; of later ones chance decides.
    script: VecDeque<NoteFate>,
    rng: Rng,
    dies: bool,
    /// A fault to plant: nothing is written down.
    pub(crate) forgotten: bool,
    /// A fault to plant: that a note is not there counts as durable.
    pub(crate) unsynced: bool,
    breach: Option<String>,
    pub(crate) stats: NoteStats,
}

impl Default for Notes {
    fn default() -> Self {
        Notes {
            files: BTreeMap::new(),
            held: BTreeMap::new(),
            noted: BTreeSet::new(),
            gone: BTreeSet::new(),
            rates: (0.0, 0.0),
            script: VecDeque::new(),
            rng: Rng::new(0x6e6f_7465),
            dies: false,
            forgotten: false,
            unsynced: false,
            breach: None,
            stats: NoteStats::default(),
        }
    }
}

impl Notes {
    /// Shares of the changes that fail from now on, and over which the process dies; `seed` is of their dice.
    pub fn set_rates(&mut self, failure: f64, crash: f64, seed: u64) {
        (self.rates, self.rng) = ((failure, crash), Rng::new(seed));
    }

    /// No change fails any more.
    pub fn end_failures(&mut self) {
        self.rates = (0.0, 0.0);
    }

    /// What becomes of the next changes: for scripted tests.
    pub fn script(&mut self, fates: impl IntoIterator<Item = NoteFate>) {
        self.script = fates.into_iter().collect();
    }

    /// Counters.
    pub fn stats(&self) -> NoteStats {
        self.stats
    }

    /// The process dies before it says another word.
    pub fn dies(&self) -> bool {
        self.dies
    }

    /// The process ends as if it had died over a note: it could not begin.
    pub(crate) fn die(&mut self) {
        self.dies = true;
    }

    /// A leaf has just been granted to the process: that it has not used this is written down at once. If that
    /// fails it goes on.
    pub(crate) fn granted(&mut self, leaf: usize, grant: LeafGrant) {
        let generation = grant.generation;
        self.noted.remove(&(leaf, generation));
        // Of those before it the leaf's target vouches.
        self.gone.retain(|&(of, one)| of != leaf || !(grant.since..=generation).contains(&one));
        let before = self.files.get(&leaf).and_then(|file| file.current);
        let grant = grant.behind(before);
        self.held.insert(leaf, grant);
        if self.forgotten || self.change(leaf, Some(grant)).is_ok() {
            self.noted.insert((leaf, generation));
        }
    }

    /// What the process holds of so many leaves.
    pub(crate) fn held(&self, leaves: usize) -> Vec<LeafGrant> {
        (0..leaves).map(|leaf| self.held.get(&leaf).copied().unwrap_or_default()).collect()
    }

    /// What it holds is about to be used.
    pub(crate) fn forget(&mut self) -> Result<(), ()> {
        let held: Vec<usize> = self.held.keys().copied().collect();
        held.into_iter().try_for_each(|leaf| self.change(leaf, None))?;
        self.gone.extend(self.held.iter().map(|(&leaf, grant)| (leaf, grant.generation)));
        Ok(())
    }

    /// The grant of this leaf is about to be taken back, and the generation to be granted once more, perhaps to
    /// somebody else.
    pub(crate) fn take_back(&mut self, leaf: usize) -> Result<(), ()> {
        let Some(grant) = self.held.remove(&leaf) else { return Ok(()) };
        self.noted.remove(&(leaf, grant.generation));
        self.change(leaf, grant.taken_back())?;
        self.gone.insert((leaf, grant.generation));
        self.stats.taken_back += 1;
        Ok(())
    }

    /// Whether it is written down for good that nobody has used this grant.
    pub(crate) fn has_noted(&self, leaf: usize, generation: u64) -> bool {
        self.noted.contains(&(leaf, generation))
    }

    /// The process has ended.
    pub(crate) fn crash(&mut self, how: Crash) {
        self.held.clear();
        self.dies = false;
        if how == Crash::Power {
            self.lose_power();
        }
        for (&leaf, file) in &self.files {
            let Some(LeafGrant { since, generation }) = file.current else { continue };
            if (since..=generation).any(|one| self.gone.contains(&(leaf, one))) {
                let text = format!(
                    "a note is there that leaf {leaf} was not used under {since} to {generation}, and it was"
                );
                self.breach.get_or_insert(text);
            }
        }
    }

    /// How a note has come back that had been removed for good, if one has.
    pub(crate) fn breach(&self) -> Option<String> {
        self.breach.clone()
    }

    fn lose_power(&mut self) {
        for file in self.files.values_mut().filter(|file| file.current != file.durable) {
            if self.rng.chance(0.5) {
                file.durable = file.current;
            } else {
                file.current = file.durable;
                self.stats.losses += 1;
            }
        }
    }

    fn change(&mut self, leaf: usize, to: Option<LeafGrant>) -> Result<(), ()> {
        if self.dies {
            return Err(());
        }
        let fate = self.fate();
        let is_there = self.files.get(&leaf).is_some_and(|file| file.current.is_some());
        if self.unsynced && to.is_none() && !is_there {
            return Ok(());
        }
        let reach = match fate {
            NoteFate::Done => NoteReach::Durable,
            NoteFate::Failed(reach) | NoteFate::Dies(reach) => reach,
        };
        let file = self.files.entry(leaf).or_default();
        if reach != NoteReach::Nothing {
            file.current = to;
        }
        if reach == NoteReach::Durable {
            file.durable = to;
        }
        match fate {
            NoteFate::Done => return Ok(()),
            NoteFate::Failed(_) => self.stats.failures += 1,
            NoteFate::Dies(_) => (self.dies, self.stats.crashes) = (true, self.stats.crashes + 1),
        }
        Err(())
    }

    fn fate(&mut self) -> NoteFate {
        if let Some(fate) = self.script.pop_front() {
            return fate;
        }
        let (failure, crash) = self.rates;
        let (dies, fails) = (self.rng.chance(crash), self.rng.chance(failure));
        if !dies && !fails {
            return NoteFate::Done;
        }
        let reaches = [NoteReach::Nothing, NoteReach::There, NoteReach::Durable];
        let reach = reaches[self.rng.below(3) as usize];
        if dies { NoteFate::Dies(reach) } else { NoteFate::Failed(reach) }
    }
}
