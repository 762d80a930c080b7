//! Ranges of a disk that came to be somebody's while it was in use, as slices of one file or device do by a reload. All who have some of it are granted the
//! whole, once, under one generation: by that alone nobody who is back in another run finds out that others have had its bytes meanwhile. So
//! it is written down, before they have them, under which generation they came to. That stays: who has been served under a later one is past it.
//!
//! ```text
//!  0      8       16    24           32   48
//!  | TWR1 | start | end | generation | by | ... | checksum |     big endian, 40 bytes of each range
//! ```

use std::io;
use std::path::{Path, PathBuf};

use thinwire_volume::{ByteClaim, LeafGrant};

use super::identity::Hash;
use super::state_file;

const MAGIC: [u8; 8] = *b"TWR1\0\0\0\0";
const ENTRY_BYTES: usize = 40;
/// More than these are put together, the oldest first: at worst, somebody is fenced for nothing.
const ENTRIES_MAX: usize = 64;
/// Whose it is, is not known: all others are meant.
const ANYBODY: [u8; 16] = [0; 16];

/// Where they are written down.
#[derive(Clone, Debug)]
pub struct TakenRanges(PathBuf);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub start: u64,
    pub end: u64,
    /// Of the disk, when it was taken.
    pub generation: u64,
    /// The hash of who has it.
    pub by: [u8; 16],
}

impl Taken {
    /// Somebody else than `by` has some of these.
    fn is_from(&self, by: [u8; 16], claims: &[ByteClaim]) -> bool {
        let has_some = |of: &ByteClaim| self.start < of.end && of.start < self.end;
        (self.by == ANYBODY || self.by != by) && claims.iter().any(has_some)
    }

    /// Of anybody, all that both have.
    fn with(&self, other: &Taken) -> Self {
        Taken {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
            generation: self.generation.max(other.generation),
            by: ANYBODY,
        }
    }
}

impl TakenRanges {
    /// In this directory, where grants are written down, too.
    pub fn new(state_dir: &Path) -> Self {
        TakenRanges(state_dir.to_owned())
    }

    /// Whoever is called `by` comes to have these bytes of the disk with this identity, which is held under this generation. Those that it only reads
    /// do not count. Blocks.
    ///
    /// # Errors
    /// It cannot be written down: nobody may have them, then.
    pub fn add(
        &self,
        identity: &[u8; 16],
        by: &str,
        claims: &[ByteClaim],
        generation: u64,
    ) -> io::Result<()> {
        let mut all = self.read(identity, generation)?;
        let by = hash(by);
        for claim in claims.iter().filter(|claim| !claim.is_read) {
            let new = Taken { start: claim.start, end: claim.end, generation, by };
            all.retain(|of| (of.start, of.end, of.by) != (new.start, new.end, by));
            all.push(new);
        }
        bound(&mut all);
        state_file::replace(&self.path(identity), &to_bytes(&all))
    }

    /// Others than `by` have come to have some of these bytes under this generation, or a later one. Blocks.
    pub fn is_taken(
        &self,
        identity: &[u8; 16],
        by: &str,
        claims: &[ByteClaim],
        generation: u64,
    ) -> bool {
        let Ok(all) = self.read(identity, generation) else { return true };
        all.iter().any(|of| of.generation >= generation && of.is_from(hash(by), claims))
    }

    /// Where the grants begin, the one of now included, before which others than `by` may have had some of these bytes: 0 if they never did by what is
    /// written down. Blocks.
    pub fn first_behind(
        &self,
        identity: &[u8; 16],
        by: &str,
        claims: &[ByteClaim],
        now: LeafGrant,
    ) -> u64 {
        let before = now.generation.saturating_sub(1);
        let Ok(mut all) = self.read(identity, before) else { return now.generation + 1 };
        if all.iter().any(|of| of.generation > before) {
            // What was granted since began again from an older copy of the disk.
            all.iter_mut().for_each(|of| of.generation = of.generation.min(before));
            if let Err(error) = state_file::replace(&self.path(identity), &to_bytes(&all)) {
                tracing::debug!("ranges taken: {error}");
            }
        }
        let others = all.iter().filter(|of| of.is_from(hash(by), claims));
        // Who was served under that, or an earlier one, does not go on; who was under the next, does.
        others.map(|of| of.generation.saturating_add(2)).max().unwrap_or(0)
    }

    /// What is written down; of what is damaged, that anybody may have had all under that generation.
    fn read(&self, identity: &[u8; 16], generation: u64) -> io::Result<Vec<Taken>> {
        let Some(bytes) = state_file::read(&self.path(identity))? else { return Ok(Vec::new()) };
        if let Some(all) = from_bytes(&bytes) {
            return Ok(all);
        }
        let all = vec![Taken { start: 0, end: u64::MAX, generation, by: ANYBODY }];
        state_file::replace(&self.path(identity), &to_bytes(&all))?;
        Ok(all)
    }

    fn path(&self, identity: &[u8; 16]) -> PathBuf {
        state_file::path("taken", identity, &self.0)
    }
}

fn hash(by: &str) -> [u8; 16] {
    Hash::of(by.as_bytes()).value()
}

/// Puts together what is oldest.
fn bound(all: &mut Vec<Taken>) {
    while all.len() > ENTRIES_MAX {
        all.sort_by_key(|of| std::cmp::Reverse(of.generation));
        let (Some(oldest), Some(next)) = (all.pop(), all.pop()) else { return };
        all.push(oldest.with(&next));
    }
}

pub(super) fn to_bytes(all: &[Taken]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for of in all {
        for number in [of.start, of.end, of.generation] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(of.by);
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
        Some(Taken { start, end, generation, by: *bytes.last_chunk()? })
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

    /// In a directory that is removed behind it.
    fn with_ranges(name: &str, test: impl FnOnce(&TakenRanges)) {
        let dir = std::env::temp_dir().join(format!("tw-taken-{name}-{}", std::process::id()));
        test(&TakenRanges::new(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn who_had_some_of_it_before_others_came_goes_on_from_what_is_behind() {
        with_ranges("others", |ranges| {
            let behind = |by: &str, of: ByteClaim, generation| {
                ranges.first_behind(&DISK, by, &[of], LeafGrant::alone(generation))
            };
            assert_eq!(behind("b", claim(0, 100), 6), 0);
            ranges.add(&DISK, "a", &[claim(10, 20), claim(50, 60)], 5).unwrap();
            let reads = ByteClaim { is_read: true, ..claim(70, 80) };
            ranges.add(&DISK, "a", &[reads], 5).unwrap();
            assert_eq!(behind("b", claim(0, 11), 6), 7);
            assert_eq!(
                [claim(0, 10), claim(20, 50), claim(60, 90)].map(|of| behind("b", of, 6)),
                [0; 3]
            );
            // It has them itself, by whatever other name it may be asked for, and of no other disk.
            assert_eq!(behind("a", claim(0, 100), 6), 0);
            assert_eq!(
                ranges.first_behind(&[8; 16], "b", &[claim(0, 100)], LeafGrant::alone(6)),
                0
            );
            // Whoever comes last, each is behind the other.
            ranges.add(&DISK, "b", &[claim(15, 55)], 8).unwrap();
            assert_eq!([behind("a", claim(10, 20), 9), behind("b", claim(15, 55), 9)], [10, 7]);
            assert!(ranges.is_taken(&DISK, "a", &[claim(54, 90)], 8));
            assert!(!ranges.is_taken(&DISK, "a", &[claim(55, 90)], 8));
            assert!(!ranges.is_taken(&DISK, "a", &[claim(54, 90)], 9));
            assert!(!ranges.is_taken(&DISK, "b", &[claim(54, 90)], 8));
        });
    }

    #[test]
    fn what_is_damaged_or_from_another_history_fences_once() {
        with_ranges("damaged", |ranges| {
            ranges.add(&DISK, "a", &[claim(10, 20)], 5).unwrap();
            let behind = |generation| {
                let now = LeafGrant::alone(generation);
                ranges.first_behind(&DISK, "b", &[claim(0, 11)], now)
            };
            // The disk is an older copy of itself.
            assert_eq!([behind(3), behind(4), behind(5)], [4; 3]);
            std::fs::write(ranges.path(&DISK), b"TWR1").unwrap();
            assert!(behind(6) > 6);
            assert_eq!(behind(7), 7, "who was served under 6 goes on");
            std::fs::write(ranges.path(&DISK), b"TWR1").unwrap();
            assert!(ranges.is_taken(&DISK, "a", &[claim(10, 20)], 8));
        });
    }

    #[test]
    fn there_are_never_many() {
        with_ranges("many", |ranges| {
            for nth in 0..500_u64 {
                ranges.add(&DISK, &format!("{nth}"), &[claim(nth, nth + 1)], nth).unwrap();
            }
            let all = ranges.read(&DISK, 500).unwrap();
            assert_eq!(all.len(), ENTRIES_MAX);
            for nth in 0..500_u64 {
                let now = LeafGrant::alone(600);
                let behind = ranges.first_behind(&DISK, "w", &[claim(nth, nth + 1)], now);
                assert!(behind >= nth + 2, "{nth}: {behind}");
            }
            // Each is as it was if it comes again.
            ranges.add(&DISK, "499", &[claim(499, 500)], 600).unwrap();
            assert_eq!(ranges.read(&DISK, 600).unwrap().len(), ENTRIES_MAX);
        });
    }
}
