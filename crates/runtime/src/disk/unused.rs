//! Grants of leaves that a gateway has not used yet. Of what its leaves make together it knows the name, and
//! where their generations are remembered, only when it has all of them. If one cannot be had, or the gateway is
//! killed before, the others have been granted to it for nothing: so it writes down at once, for each by
//! itself, that nobody has written under that generation, and takes that back before anybody can.
//!
//! ```text
//!  0      8       16           24         32
//!  | TWU2 | since | generation | checksum |     big endian
//! ```

use std::io;
use std::path::{Path, PathBuf};

use thinwire_volume::{ByteClaim, HeldGrant, LeafGrant};

use super::identity::Hash;
use super::state_file;
use super::taken::{RangeHolder, TakenRanges};

const MAGIC: [u8; 8] = *b"TWU2\0\0\0\0";

/// Where they are written down.
#[derive(Clone, Debug)]
pub struct UnusedGrants(PathBuf);

/// What is written down of one leaf.
#[derive(Clone, Debug)]
pub struct UnusedGrant {
    path: PathBuf,
    held: HeldGrant,
    /// Grants of before this one are nobody's to go on from, whatever is written down.
    first: u64,
    /// What is told once it is used.
    settles: Option<Settles>,
}

/// Where to tell that whoever came late to some bytes of a disk is on record, and which these are.
#[derive(Clone, Debug)]
struct Settles {
    ranges: TakenRanges,
    disk: String,
    by: String,
    claims: Vec<ByteClaim>,
}

impl UnusedGrants {
    /// In this directory, where the generations are remembered, too.
    pub fn new(state_dir: &Path) -> Self {
        UnusedGrants(state_dir.to_owned())
    }

    /// A leaf with this identity, which the user calls `name`, has just been granted: copies of an image may
    /// have one identity. If it cannot be written down, it counts as used: at worst, somebody is fenced
    /// for nothing. Blocks.
    pub fn granted(&self, identity: &[u8; 16], name: &str, grant: LeafGrant) -> UnusedGrant {
        let path = self.path(identity, name);
        let before = state_file::read(&path).ok().flatten().and_then(|bytes| from_bytes(&bytes));
        let grant = grant.behind(before);
        if let Err(error) = state_file::replace(&path, &to_bytes(grant)) {
            tracing::debug!("{}: {error}", path.display());
        }
        UnusedGrant { path, held: HeldGrant { leaf: *identity, grant }, first: 0, settles: None }
    }

    /// The same of a leaf that was granted under this generation before whoever is called `name` came to hold something of it: others may have
    /// written there under that, so nothing is written down, and no generation that is remembered goes on to it.
    pub fn came_late(&self, identity: &[u8; 16], name: &str, generation: u64) -> UnusedGrant {
        let (path, grant) = (self.path(identity, name), LeafGrant::alone(generation));
        let held = HeldGrant { leaf: *identity, grant };
        UnusedGrant { path, held, first: generation.saturating_add(1), settles: None }
    }

    fn path(&self, identity: &[u8; 16], name: &str) -> PathBuf {
        let mut hash = Hash::of(identity);
        hash.add(name.as_bytes());
        state_file::path("unused", &hash.value(), &self.0)
    }
}

impl UnusedGrant {
    /// The same, but others may have had under the grants before `first` what it is of.
    pub fn not_before(self, first: u64) -> Self {
        UnusedGrant { first: self.first.max(first), ..self }
    }

    /// The same, and once it is used, `ranges` are told that `holder` is past what others had of its bytes.
    pub fn settling(self, ranges: &TakenRanges, holder: &RangeHolder<'_>) -> Self {
        let RangeHolder { disk, by, claims, .. } = *holder;
        let (disk, by, claims) = (disk.to_owned(), by.to_owned(), claims.to_owned());
        let settles = Some(Settles { ranges: ranges.clone(), disk, by, claims });
        UnusedGrant { settles, ..self }
    }

    /// What it says.
    pub fn grant(&self) -> LeafGrant {
        let LeafGrant { since, generation } = self.held.grant;
        LeafGrant { since: since.max(self.first), generation }
    }

    /// The same, and of which leaf.
    pub fn held(&self) -> HeldGrant {
        HeldGrant { grant: self.grant(), ..self.held }
    }

    /// From now on it may be used: who is granted it has that on record. Blocks.
    pub fn forget(&self) -> io::Result<()> {
        state_file::remove(&self.path)?;
        let Some(Settles { ranges, disk, by, claims }) = &self.settles else { return Ok(()) };
        let holder = RangeHolder { identity: &self.held.leaf, disk, by, claims };
        if let Err(error) = ranges.settle(&holder, self.held.grant.generation) {
            // Its writer is fenced once more, then.
            tracing::debug!("ranges taken: {error}");
        }
        Ok(())
    }

    /// It is about to be taken back, and the generation to be granted once more, perhaps to somebody else.
    /// Blocks.
    pub fn take_back(&self) -> io::Result<()> {
        match self.held.grant.taken_back() {
            Some(before) => state_file::replace(&self.path, &to_bytes(before)),
            None => state_file::remove(&self.path),
        }
    }
}

pub(super) fn to_bytes(grant: LeafGrant) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&grant.since.to_be_bytes());
    bytes[16..24].copy_from_slice(&grant.generation.to_be_bytes());
    let sum = Hash::sum_of(&bytes[..24]);
    bytes[24..].copy_from_slice(&sum);
    bytes
}

pub(super) fn from_bytes(bytes: &[u8]) -> Option<LeafGrant> {
    let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let grant = LeafGrant { since: number(8)?, generation: number(16)? };
    (to_bytes(grant) == *bytes).then_some(grant)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bytes that were damaged together have been taken for another grant once.
    #[test]
    fn a_grant_is_not_read_with_two_other_bytes() {
        let written = to_bytes(LeafGrant { since: 182, generation: 126_976 });
        assert!(from_bytes(&written).is_some());
        for (at, sum_at) in (8..24).flat_map(|at| (24..32).map(move |sum_at| (at, sum_at))) {
            for flips in 1..=u16::MAX {
                let [one, other] = flips.to_be_bytes();
                let mut bytes = written;
                bytes[at] ^= one;
                bytes[sum_at] ^= other;
                if at < 20 && flips % 251 != 0 {
                    continue;
                }
                assert_eq!(from_bytes(&bytes), None, "{at} ^ {one}, {sum_at} ^ {other}");
            }
        }
    }

    #[test]
    fn grants_in_a_row_are_one_until_one_is_used() {
        let dir = std::env::temp_dir().join(format!("tw-unused-{}", std::process::id()));
        let unused = UnusedGrants::new(&dir);
        let alone = LeafGrant::alone;
        let granted = |generation| unused.granted(&[7; 16], "twp://a/b", alone(generation));
        assert_eq!(granted(4).grant(), LeafGrant { since: 4, generation: 4 });
        assert_eq!(granted(5).grant(), LeafGrant { since: 4, generation: 5 });
        // Of another leaf nothing is known, nor behind somebody else.
        assert_eq!(unused.granted(&[8; 16], "twp://a/b", alone(6)).grant().since, 6);
        assert_eq!(unused.granted(&[7; 16], "twp://a/c", alone(6)).grant().since, 6);
        assert_eq!(granted(7).grant().since, 7);
        // Taken back, and granted again: to this one, or to another first.
        granted(8).take_back().unwrap();
        assert_eq!(granted(9).grant().since, 9);
        granted(10).take_back().unwrap();
        let again = granted(10);
        assert_eq!(again.grant().since, 9);
        again.forget().unwrap();
        assert_eq!(granted(11).grant().since, 11);
        // What is damaged is worth nothing.
        std::fs::write(&granted(12).path, [0; 32]).unwrap();
        assert_eq!(granted(13).grant().since, 13);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
