//! [`Model`]: what each sector of each volume may hold, now and after a crash, by who wrote it and when.

use std::collections::BTreeMap;

use super::disk::SECTOR;

/// What a sector may hold.
#[derive(Clone, Copy, Debug)]
pub struct May {
    /// Who wrote it; 0 for zeroes.
    pub stamp: u64,
    pub submitted: u64,
    pub completed: u64,
    /// When somebody was told that it is durable.
    pub durable: u64,
    /// It may have had no effect: a discard, or what has failed.
    pub is_weak: bool,
}

/// The content of a volume, in one life of it.
#[derive(Clone)]
pub struct Life {
    pub sectors: Vec<Vec<May>>,
}

impl Life {
    pub fn new(bytes: u64) -> Self {
        let zero = May { stamp: 0, submitted: 0, completed: 0, durable: 0, is_weak: false };
        Life { sectors: vec![vec![zero]; (bytes / SECTOR) as usize] }
    }

    pub fn grow(&mut self, bytes: u64) {
        let grown = Life::new(bytes);
        let len = self.sectors.len();
        self.sectors.extend_from_slice(&grown.sectors[len..]);
    }

    /// Something is written from now on. What stamps say is unlike in each sector.
    pub fn write(
        &mut self,
        first: u64,
        count: u64,
        stamp: impl Fn(u64) -> u64,
        now: u64,
        is_weak: bool,
    ) {
        for at in first..first + count {
            let may = May {
                stamp: stamp(at),
                submitted: now,
                completed: u64::MAX,
                durable: u64::MAX,
                is_weak,
            };
            self.sectors[at as usize].push(may);
        }
    }

    fn of(&mut self, first: u64, count: u64, submitted: u64) -> impl Iterator<Item = &mut May> {
        let range = first as usize..(first + count) as usize;
        self.sectors[range].iter_mut().flatten().filter(move |may| may.submitted == submitted)
    }

    /// It has ended: durably, or with an error.
    pub fn end(
        &mut self,
        (first, count, submitted): (u64, u64, u64),
        now: u64,
        is_durable: bool,
        has_failed: bool,
    ) {
        for may in self.of(first, count, submitted) {
            may.completed = now;
            may.is_weak |= has_failed;
            if is_durable && !has_failed {
                may.durable = now;
            }
        }
    }

    /// It had no effect.
    pub fn forget(&mut self, (first, count, submitted): (u64, u64, u64)) {
        for sector in &mut self.sectors[first as usize..(first + count) as usize] {
            sector.retain(|may| may.submitted != submitted);
        }
    }

    /// A flush that was submitted then has ended.
    pub fn flush(&mut self, submitted: u64, now: u64) {
        for may in self.sectors.iter_mut().flatten() {
            if may.completed < submitted {
                may.durable = may.durable.min(now);
            }
        }
    }

    /// What has completed, and is not durable, may be gone.
    pub fn lose(&mut self) {
        let is_in_doubt = |may: &&mut May| may.completed < u64::MAX && may.durable == u64::MAX;
        self.sectors.iter_mut().flatten().filter(is_in_doubt).for_each(|may| may.is_weak = true);
    }

    /// What reads may see that begin and end then.
    pub fn seen(&self, sector: usize, from: u64, upto: u64) -> Vec<u64> {
        let all = &self.sectors[sector];
        let is_over = |may: &May| {
            all.iter().any(|later| {
                !later.is_weak && later.submitted > may.completed && later.completed < from
            })
        };
        let seen = all.iter().filter(|may| may.submitted <= upto && !is_over(may));
        seen.map(|may| may.stamp).collect()
    }

    /// What may be there after a crash at that time, by which what was told to be durable since then may be gone.
    pub fn left(&self, sector: usize, time: u64, since: u64) -> Vec<u64> {
        let all = &self.sectors[sector];
        let is_over = |may: &May| {
            all.iter().any(|later| {
                !later.is_weak && later.submitted > may.completed && later.durable <= since
            })
        };
        let left = all.iter().filter(|may| may.submitted <= time && !is_over(may));
        left.map(|may| may.stamp).collect()
    }

    /// As it is at a cut: what completed, durably if the cut is.
    pub fn cut(&self, begun: u64) -> Life {
        let mut life = self.clone();
        for sector in &mut life.sectors {
            sector.retain(|may| may.submitted < begun);
            let all = sector.clone();
            sector.retain(|may| {
                !all.iter().any(|later| {
                    !later.is_weak && later.submitted > may.completed && later.completed < u64::MAX
                })
            });
            sector.iter_mut().for_each(|may| may.durable = 0);
        }
        life
    }
}

/// When something of a volume was asked for, and when it was told that it is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When {
    pub begun: u64,
    pub ended: Option<u64>,
}

/// A volume, with all of its lives, by their incarnations.
#[derive(Clone)]
pub struct Known {
    pub lives: BTreeMap<u64, (When, Life)>,
    pub now: u64,
    pub deleted: Option<When>,
    pub origin: u64,
    pub is_read_only: bool,
    pub bytes: u64,
}

impl Known {
    pub fn life(&mut self) -> &mut Life {
        &mut self.lives.get_mut(&self.now).expect("it lives").1
    }
}

/// All volumes that there have been.
pub type Model = BTreeMap<u64, Known>;
