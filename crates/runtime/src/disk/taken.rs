//! Ranges of a disk that came to be somebody's while it was in use, as slices of one file or device do by a reload. All who have some of it are granted the
//! whole, once, under one generation: by that alone nobody who is back in another run finds out that others have had its bytes meanwhile. So
//! it is written down, before they have them, under which generation they came to. That stays: who has been served under a later one is past it. Who has
//! some last, and has what tells of that on record, is past what others had before.
//!
//! ```text
//!  0      8       16    24           32     48     64
//!  | TWR1 | start | end | generation | by   | disk | ... | checksum |     big endian, 56 bytes of each range
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use thinwire_volume::{ByteClaim, LeafGrant};

use super::identity::Hash;
use super::state_file;

const MAGIC: [u8; 8] = *b"TWR1\0\0\0\0";
const ENTRY_BYTES: usize = 56;
/// More than these are put together, the oldest first: at worst, somebody is fenced for nothing.
const ENTRIES_MAX: usize = 4096;
/// Whose it is, or of which disk, is not known: all others are meant.
const ANY: [u8; 16] = [0; 16];

/// Where they are written down.
#[derive(Clone, Debug)]
pub struct TakenRanges(PathBuf);

/// Somebody's bytes of a disk.
#[derive(Clone, Copy, Debug)]
pub struct RangeHolder<'a> {
    /// Of the disk. Copies of one may have the same.
    pub identity: &'a [u8; 16],
    /// What the disk is called.
    pub disk: &'a str,
    /// What whoever has them is, so that what is called so keeps one record of its writer.
    pub by: &'a str,
    /// The bytes.
    pub claims: &'a [ByteClaim],
}

impl RangeHolder<'_> {
    fn by(&self) -> [u8; 16] {
        hash(self.by)
    }

    fn disk(&self) -> [u8; 16] {
        hash(self.disk)
    }

    /// What is written down of them.
    fn entries(&self, generation: u64) -> impl Iterator<Item = Taken> {
        let (by, disk) = (self.by(), self.disk());
        let written = self.claims.iter().filter(|claim| !claim.is_read);
        written.map(move |of| Taken { start: of.start, end: of.end, generation, by, disk })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub start: u64,
    pub end: u64,
    /// Of the disk, when it was taken.
    pub generation: u64,
    /// The hash of who has it.
    pub by: [u8; 16],
    /// The hash of what the disk was called.
    pub disk: [u8; 16],
}

impl Taken {
    /// Somebody else has some of these.
    fn is_from(&self, holder: &RangeHolder<'_>) -> bool {
        let has_some = |of: &ByteClaim| self.start < of.end && of.start < self.end;
        (self.by == ANY || self.by != holder.by()) && holder.claims.iter().any(has_some)
    }

    /// What is left of it without these bytes.
    fn without(self, taken: &Taken) -> impl Iterator<Item = Taken> {
        let before = Taken { end: self.end.min(taken.start), ..self };
        let behind = Taken { start: self.start.max(taken.end), ..self };
        [before, behind].into_iter().filter(|left| left.start < left.end)
    }

    /// Of anybody, all that both have.
    fn with(&self, other: &Taken) -> Self {
        Taken {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
            generation: self.generation.max(other.generation),
            by: ANY,
            disk: ANY,
        }
    }
}

impl TakenRanges {
    /// In this directory, where grants are written down, too.
    pub fn new(state_dir: &Path) -> Self {
        TakenRanges(state_dir.to_owned())
    }

    /// Somebody comes to have bytes of a disk that is held under this generation. Those that it only reads do not count. Blocks.
    ///
    /// # Errors
    /// It cannot be written down: nobody may have them, then.
    pub fn add(&self, holder: &RangeHolder<'_>, generation: u64) -> io::Result<()> {
        let _alone = alone();
        let mut all = self.read(holder.identity, generation)?;
        for new in holder.entries(generation) {
            // One of a later generation is of when the disk was not yet an older copy of itself.
            all.retain(|of| of.generation > generation || Taken { generation, ..*of } != new);
            all.push(new);
        }
        self.write(holder.identity, all)
    }

    /// Whoever has come to have these bytes under this generation, by what is written down, has on record that it has: what others had of them
    /// before concerns it no more. Whoever else is behind them is behind this one as well. Of one that only reads nothing is written down. Blocks.
    ///
    /// # Errors
    /// It cannot be written down: at worst, its writer is fenced once for nothing.
    pub fn settle(&self, holder: &RangeHolder<'_>, generation: u64) -> io::Result<()> {
        let _alone = alone();
        let mut all = self.read(holder.identity, generation)?;
        let written: Vec<_> = holder.entries(generation).filter(|own| all.contains(own)).collect();
        for own in written {
            let is_before = |of: &Taken| of.generation <= generation && of.disk == own.disk;
            let (before, mut kept): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|of| is_before(of) && of.by != own.by);
            kept.extend(before.into_iter().flat_map(|of| of.without(&own)));
            all = kept;
        }
        self.write(holder.identity, all)
    }

    /// Others have come to have some of these bytes under this generation, or a later one. Blocks.
    pub fn is_taken(&self, holder: &RangeHolder<'_>, generation: u64) -> bool {
        let _alone = alone();
        let Ok(all) = self.read(holder.identity, generation) else { return true };
        all.iter().any(|of| of.generation >= generation && of.is_from(holder))
    }

    /// Where the grants begin, the one of now included, before which others may have had some of these bytes: 0 if they never did by what is
    /// written down. Blocks.
    pub fn first_behind(&self, holder: &RangeHolder<'_>, now: LeafGrant) -> u64 {
        let _alone = alone();
        let before = now.generation.saturating_sub(1);
        let Ok(mut all) = self.read(holder.identity, before) else { return now.generation + 1 };
        // What was granted began again from an older copy of the disk: what is ahead of it counts as of just now, once.
        let ahead: Vec<_> = all.iter().copied().filter(|of| of.generation > before).collect();
        let mut has_changed = false;
        for of in ahead {
            let is_twin = |twin: &Taken| {
                twin.generation <= before && Taken { generation: of.generation, ..*twin } == of
            };
            if !all.iter().any(is_twin) {
                all.push(Taken { generation: before, ..of });
                has_changed = true;
            }
        }
        let counts = |of: &&Taken| of.generation <= before && of.is_from(holder);
        // Who was served under that, or an earlier one, does not go on; who was under the next, does.
        let behind = all.iter().filter(counts).map(|of| of.generation.saturating_add(2)).max();
        if has_changed && let Err(error) = self.write(holder.identity, all) {
            tracing::debug!("ranges taken: {error}");
        }
        behind.unwrap_or(0)
    }

    /// What is written down; of what is damaged, that anybody may have had all under that generation.
    fn read(&self, identity: &[u8; 16], generation: u64) -> io::Result<Vec<Taken>> {
        let Some(bytes) = state_file::read(&self.path(identity))? else { return Ok(Vec::new()) };
        if let Some(all) = from_bytes(&bytes) {
            return Ok(all);
        }
        let all = vec![Taken { start: 0, end: u64::MAX, generation, by: ANY, disk: ANY }];
        self.write(identity, all.clone())?;
        Ok(all)
    }

    fn write(&self, identity: &[u8; 16], mut all: Vec<Taken>) -> io::Result<()> {
        bound(&mut all);
        state_file::replace(&self.path(identity), &to_bytes(&all))
    }

    fn path(&self, identity: &[u8; 16]) -> PathBuf {
        state_file::path("taken", identity, &self.0)
    }
}

/// One thread at a time reads and writes them: shards, and those that store records.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hash(by: &str) -> [u8; 16] {
    Hash::of(by.as_bytes()).value()
}

/// Puts together what is oldest.
fn bound(all: &mut Vec<Taken>) {
    if all.len() <= ENTRIES_MAX {
        return;
    }
    all.sort_by_key(|of| of.generation);
    let old = all.drain(..=all.len() - ENTRIES_MAX);
    let oldest = old.reduce(|all, of| all.with(&of)).expect("two or more");
    all.push(oldest);
}

pub(super) fn to_bytes(all: &[Taken]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for of in all {
        for number in [of.start, of.end, of.generation] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(of.by);
        bytes.extend(of.disk);
    }
    bytes.extend(Hash::sum_of(&bytes));
    bytes
}

pub(super) fn from_bytes(bytes: &[u8]) -> Option<Vec<Taken>> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    let (entries, rest) = content.strip_prefix(&MAGIC)?.as_chunks::<ENTRY_BYTES>();
    if *sum != Hash::sum_of(content) || !rest.is_empty() {
        return None;
    }
    let entry = |bytes: &[u8; ENTRY_BYTES]| {
        let number = |at: usize| Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let (start, end, generation) = (number(0)?, number(8)?, number(16)?);
        let (by, disk) = (*bytes.get(24..)?.first_chunk()?, *bytes.last_chunk()?);
        Some(Taken { start, end, generation, by, disk })
    };
    entries.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: [u8; 16] = [7; 16];

    fn claim(start: u64, end: u64) -> ByteClaim {
        ByteClaim { start, end, is_read: false }
    }

    fn holder<'a>(by: &'a str, claims: &'a [ByteClaim]) -> RangeHolder<'a> {
        RangeHolder { identity: &DISK, disk: "big.img", by, claims }
    }

    /// In a directory that is removed behind it.
    fn with_ranges(name: &str, test: impl FnOnce(&TakenRanges)) {
        let dir = std::env::temp_dir().join(format!("tw-taken-{name}-{}", std::process::id()));
        test(&TakenRanges::new(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    fn behind(ranges: &TakenRanges, by: &str, of: ByteClaim, generation: u64) -> u64 {
        ranges.first_behind(&holder(by, &[of]), LeafGrant::alone(generation))
    }

    #[test]
    fn who_had_some_of_it_before_others_came_goes_on_from_what_is_behind() {
        with_ranges("others", |ranges| {
            let behind = |by: &str, of: ByteClaim, generation| behind(ranges, by, of, generation);
            let add = |by, claims: &[ByteClaim], at| ranges.add(&holder(by, claims), at).unwrap();
            assert_eq!(behind("b", claim(0, 100), 6), 0);
            add("a", &[claim(10, 20), claim(50, 60)], 5);
            add("a", &[ByteClaim { is_read: true, ..claim(70, 80) }], 5);
            assert_eq!(behind("b", claim(0, 11), 6), 7);
            let free = [claim(0, 10), claim(20, 50), claim(60, 90)];
            assert_eq!(free.map(|of| behind("b", of, 6)), [0; 3]);
            // It has them itself, and of no other disk anybody.
            assert_eq!(behind("a", claim(0, 100), 6), 0);
            let all = [claim(0, 100)];
            let other = RangeHolder { identity: &[8; 16], ..holder("b", &all) };
            assert_eq!(ranges.first_behind(&other, LeafGrant::alone(6)), 0);
            // Whoever comes last, each is behind the other.
            add("b", &[claim(15, 55)], 8);
            assert_eq!([behind("a", claim(10, 20), 9), behind("b", claim(15, 55), 9)], [10, 7]);
            let is_taken =
                |by, of: ByteClaim, generation| ranges.is_taken(&holder(by, &[of]), generation);
            assert!(is_taken("a", claim(54, 90), 8) && !is_taken("a", claim(55, 90), 8));
            assert!(!is_taken("a", claim(54, 90), 9) && !is_taken("b", claim(54, 90), 8));
        });
    }

    /// One goes, another one comes, and the first comes again, all under one generation.
    #[test]
    fn who_comes_last_goes_on_once_that_is_on_record() {
        with_ranges("last", |ranges| {
            let [wide, narrow] = [[claim(10, 30)], [claim(15, 40)]];
            ranges.add(&holder("n", &narrow), 5).unwrap();
            ranges.add(&holder("w", &wide), 5).unwrap();
            let seen = |ranges: &TakenRanges| {
                [("w", wide[0]), ("n", narrow[0]), ("x", claim(10, 15)), ("x", claim(30, 40))]
                    .map(|(by, of)| behind(ranges, by, of, 6))
            };
            assert_eq!(seen(ranges), [7; 4], "nothing tells that the first came last");
            // Of who only reads nothing was written down, nor is it told anything, whatever it had.
            ranges.settle(&holder("r", &[claim(0, 100)]), 5).unwrap();
            assert_eq!(seen(ranges), [7; 4]);
            // Of a copy of the disk nothing is told, nor of another run.
            let copy = RangeHolder { disk: "copy.img", ..holder("w", &wide) };
            ranges.settle(&copy, 5).unwrap();
            ranges.settle(&holder("w", &wide), 6).unwrap();
            assert_eq!(seen(ranges), [7; 4]);
            ranges.settle(&holder("w", &wide), 5).unwrap();
            assert_eq!(seen(ranges), [0, 7, 7, 7]);
            // What is left of the other one is still its.
            assert_eq!(
                [behind(ranges, "n", claim(30, 40), 6), behind(ranges, "x", claim(39, 41), 6)],
                [0, 7]
            );
        });
    }

    /// Several come by one reload, and their records are stored by threads of their own.
    #[test]
    fn what_several_threads_write_down_is_there() {
        with_ranges("threads", |ranges| {
            let names: Vec<_> = (0..8).map(|nth| format!("{nth}")).collect();
            std::thread::scope(|scope| {
                for (nth, name) in (0..).zip(&names) {
                    scope.spawn(move || {
                        let claims = [claim(nth * 10, nth * 10 + 10)];
                        ranges.add(&holder(name, &claims), 5).unwrap();
                        ranges.settle(&holder(name, &claims), 5).unwrap();
                    });
                }
            });
            for (nth, name) in (0..).zip(&names) {
                let of = claim(nth * 10, nth * 10 + 10);
                assert_eq!([behind(ranges, name, of, 6), behind(ranges, "x", of, 6)], [0, 7]);
            }
        });
    }

    #[test]
    fn what_is_damaged_or_from_another_history_fences_once() {
        with_ranges("damaged", |ranges| {
            ranges.add(&holder("a", &[claim(10, 20)]), 5).unwrap();
            let behind = |generation| behind(ranges, "b", claim(0, 11), generation);
            // The disk is an older copy of itself; and then it is itself again.
            assert_eq!([behind(3), behind(4), behind(5), behind(6)], [4, 4, 4, 7]);
            // Also if it was taken in between, by the same.
            ranges.add(&holder("a", &[claim(10, 20)]), 4).unwrap();
            assert_eq!(behind(6), 7);
            std::fs::write(ranges.path(&DISK), b"TWR1").unwrap();
            assert_eq!(behind(6), 7);
            assert_eq!(behind(7), 7, "who was served under 6 goes on");
            std::fs::write(ranges.path(&DISK), b"TWR1").unwrap();
            assert!(ranges.is_taken(&holder("a", &[claim(10, 20)]), 8));
        });
    }

    #[test]
    fn there_are_never_too_many() {
        let of = |nth: u64| Taken {
            start: nth,
            end: nth + 1,
            generation: nth,
            by: [1; 16],
            disk: [2; 16],
        };
        let mut all: Vec<_> = (0..ENTRIES_MAX as u64 + 400).map(of).collect();
        bound(&mut all);
        assert_eq!(all.len(), ENTRIES_MAX);
        for nth in 0..ENTRIES_MAX as u64 + 400 {
            let is_told = |of: &Taken| of.start <= nth && nth < of.end && of.generation >= nth;
            assert!(all.iter().any(is_told), "{nth}");
        }
        assert_eq!(all.iter().filter(|of| of.by == ANY).count(), 1);
    }
}
