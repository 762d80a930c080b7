//! Whether two volumes stand on the same: what of one machine slices share, and what else is refused.

use std::collections::HashMap;
use std::fmt;
use std::fs::metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use thinwire_modules::Slice;
use thinwire_volume::ByteClaim;
use thinwire_wire::aoe::ShelfSlot;

use super::{NodeAddress, VolumeSpec};

/// What a leaf is, under whatever name. Memory and null volumes are new for each who names them, and
/// have none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LeafKey<'a> {
    /// Device and inode.
    File(u64, u64),
    Device(u64),
    /// By the address that was given: the same target under another is not recognised.
    Export(&'a NodeAddress, &'a str),
    /// A server's station, and the device there.
    EbdDevice([u8; 6], u8, u8),
    /// An interface, and the device there.
    AoeDevice(&'a str, ShelfSlot),
    /// A volume of a pool: the file that describes the pool, and its name there. Nobody has it twice, not even to read.
    OfPool(PathBuf, &'a str),
}

/// What a slice has of a leaf: it stands on that with nothing between but other slices, and has no labels there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cutout<'a> {
    /// The uppermost of these slices.
    by: &'a VolumeSpec,
    /// As if it were written.
    pub claim: ByteClaim,
}

impl<'a> Cutout<'a> {
    /// What a volume has of the one below it, if it is a slice without labels; `above`: who stands on the volume so.
    pub fn below(volume: &'a VolumeSpec, above: Option<Cutout<'a>>) -> Option<Self> {
        let VolumeSpec::Over { module, options, labels: false, .. } = volume else { return None };
        let (start, end) = Slice::bytes_of(module, options)?;
        let Some(Cutout { by, claim }) = above else {
            let claim = ByteClaim { start, end, is_read: false };
            return Some(Cutout { by: volume, claim });
        };
        let end = end.min(start.saturating_add(claim.end));
        let claim = ByteClaim { start: start.saturating_add(claim.start).min(end), end, ..claim };
        Some(Cutout { by, claim })
    }
}

/// Something that a volume stands on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Footing<'a> {
    /// As it is named.
    spec: &'a VolumeSpec,
    /// The pool that has it, if it is part of one: the volume of it that was named.
    pool: Option<&'a VolumeSpec>,
    /// What a slice has of it, if only slices are right above.
    cutout: Option<Cutout<'a>>,
}

impl Footing<'_> {
    /// Both can be there: they are parts of one pool, which is opened once for all of its volumes, or slices of one file or device that
    /// lie apart, which is, too.
    fn is_shared_with(&self, other: &Footing<'_>) -> bool {
        match (self.pool, other.pool) {
            (Some(one), Some(other)) if one.is_of_pool_of(other) => true,
            _ => self.lies_apart_from(other),
        }
    }

    fn lies_apart_from(&self, other: &Footing<'_>) -> bool {
        match (self.shared_cutout(), other.shared_cutout()) {
            (Some(one), Some(other)) => !one.claim.is_against(&other.claim),
            _ => false,
        }
    }

    /// What a slice has of what others can have slices of.
    fn shared_cutout(&self) -> Option<&Cutout<'_>> {
        self.cutout.as_ref().filter(|_| self.spec.can_be_shared())
    }
}

/// Two that cannot both be there: what they stand on is the same.
#[derive(Clone, Copy, Debug)]
pub struct Clash<'a>([Footing<'a>; 2]);

impl<'a> Clash<'a> {
    /// The leaf, as both name it.
    pub fn leaves(&self) -> [&'a VolumeSpec; 2] {
        self.0.map(|footing| footing.spec)
    }

    /// One of them is a slice, so that it may be asked why.
    pub fn has_slices(&self) -> bool {
        self.0.iter().any(|footing| footing.cutout.is_some())
    }

    /// What of it can be, as a sentence goes on.
    pub fn advice(&self) -> &'static str {
        let [one, other] = &self.0;
        match (one.shared_cutout(), other.shared_cutout()) {
            (Some(_), Some(_)) => "slices of one file or device must lie apart",
            (None, None) if one.cutout.is_some() && other.cutout.is_some() => {
                "each can be a part only once, also by way of slices of it: have its target export slices"
            }
            _ => {
                "each can be a part only once, also by way of slices of it, unless all that stands on it are slices without labels that \
                 lie apart"
            }
        }
    }
}

impl fmt::Display for Clash<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = &self.0;
        if let (Some(own), Some(theirs)) = (one.shared_cutout(), other.shared_cutout()) {
            let (Cutout { by, claim }, Cutout { by: of, claim: with }) = (own, theirs);
            return write!(f, "{by} ({claim}) and {of} ({with}) overlap on {}", one.spec);
        }
        let kind = match one.spec {
            VolumeSpec::Remote(_) => "export",
            VolumeSpec::Ebd(_) | VolumeSpec::Aoe(_) => "device",
            VolumeSpec::Over { .. } => "volume",
            _ => "file",
        };
        write!(f, "{} and {} are the same {kind}", one.spec, other.spec)
    }
}

/// Who stands on a leaf, by number.
#[derive(Debug, Default)]
struct Standing<'a> {
    /// Of those that have all of it, or say nothing of what they have: the first, and the first that is written. Whose pool has it
    /// shares it with the other volumes of that.
    whole: [Option<(usize, Footing<'a>)>; 2],
    /// All slices, and whether they are only read.
    slices: Vec<(usize, Footing<'a>, bool)>,
}

impl<'a> Standing<'a> {
    /// The first of them with which this cannot be.
    fn against(&self, leaf: &Footing<'a>, is_read: bool) -> Option<(usize, Footing<'a>)> {
        let [first, written] = self.whole;
        let whole = if is_read { written } else { first };
        let slices = self.slices.iter().filter(|(.., other)| !(is_read && *other));
        let all = whole.into_iter().chain(slices.map(|(number, footing, _)| (*number, *footing)));
        all.filter(|(_, other)| !leaf.is_shared_with(other)).min_by_key(|(number, _)| *number)
    }

    fn add(&mut self, number: usize, leaf: Footing<'a>, is_read: bool) {
        if leaf.shared_cutout().is_some() {
            return self.slices.push((number, leaf, is_read));
        }
        let [first, written] = &mut self.whole;
        first.get_or_insert((number, leaf));
        if !is_read {
            written.get_or_insert((number, leaf));
        }
    }
}

/// What many volumes stand on, to find those that share something. Looks at the files of each once.
#[derive(Debug, Default)]
pub struct Ground<'a> {
    users: HashMap<LeafKey<'a>, Standing<'a>>,
}

impl<'a> Ground<'a> {
    /// Takes in the volume of this number, which is higher than all before. The first of those with which it cannot be, since both stand on the
    /// same leaf, and are not only read, and how.
    pub fn add(
        &mut self,
        number: usize,
        volume: &'a VolumeSpec,
        read_only: bool,
    ) -> Option<(usize, Clash<'a>)> {
        let leaves = volume.keyed_leaves();
        let is_read = |key: &LeafKey<'_>| read_only && !matches!(key, LeafKey::OfPool(..));
        let other = |(leaf, key): &(Footing<'a>, LeafKey<'a>)| {
            let (number, other) = self.users.get(key)?.against(leaf, is_read(key))?;
            Some((number, Clash([other, *leaf])))
        };
        let found = leaves.iter().filter_map(other).min_by_key(|(number, _)| *number);
        for (leaf, key) in leaves {
            let is_read = is_read(&key);
            self.users.entry(key).or_default().add(number, leaf, is_read);
        }
        found
    }
}

impl VolumeSpec {
    /// It can be opened once for several slices of it: a file or device of this machine.
    pub fn can_be_shared(&self) -> bool {
        matches!(self, VolumeSpec::Path(_))
    }

    /// Both are the same file or device of this machine. Control path: looks at the files, unless their names are the same.
    pub fn is_same_disk(&self, other: &VolumeSpec) -> bool {
        let key = || self.leaf_key().filter(|_| self.can_be_shared());
        self.can_be_shared() && self == other
            || key().is_some_and(|key| other.leaf_key() == Some(key))
    }

    /// `None` also for a file that is not there: whoever opens it says so.
    fn leaf_key(&self) -> Option<LeafKey<'_>> {
        match self {
            VolumeSpec::Path(path) => {
                let meta = metadata(path).ok()?;
                Some(match meta.file_type().is_block_device() {
                    true => LeafKey::Device(meta.rdev()),
                    false => LeafKey::File(meta.dev(), meta.ino()),
                })
            }
            VolumeSpec::Remote(remote) => Some(LeafKey::Export(&remote.node, &remote.export)),
            VolumeSpec::Ebd(device) => {
                Some(LeafKey::EbdDevice(device.station, device.major, device.minor))
            }
            VolumeSpec::Aoe(spec) => Some(LeafKey::AoeDevice(&spec.ifname, spec.device)),
            _ => None,
        }
    }

    /// What it stands on, as far as that can be told apart; of pools also their volumes.
    fn keyed_leaves<'a>(&'a self) -> Vec<(Footing<'a>, LeafKey<'a>)> {
        let mut found = Vec::new();
        self.gather_keyed(None, None, &mut found);
        found
    }

    fn gather_keyed<'a>(
        &'a self,
        pool: Option<&'a VolumeSpec>,
        cutout: Option<Cutout<'a>>,
        found: &mut Vec<(Footing<'a>, LeafKey<'a>)>,
    ) {
        let VolumeSpec::Over { children, node, .. } = self else {
            let footing = Footing { spec: self, pool, cutout };
            return found.extend(self.leaf_key().map(|key| (footing, key)));
        };
        let below = match (self.inner(), node) {
            (Some(_), Some(node)) => {
                let file = node.file.canonicalize().unwrap_or_else(|_| node.file.clone());
                let footing = Footing { spec: self, pool: None, cutout };
                found.push((footing, LeafKey::OfPool(file, &node.name)));
                pool.or(Some(self))
            }
            _ => pool,
        };
        let cutout = Cutout::below(self, cutout);
        children.iter().for_each(|child| child.gather_keyed(below, cutout, found));
    }

    /// Two of its leaves that are the same file, device or export: written at two places at once, it would
    /// be destroyed. Control path: looks at the files.
    pub(super) fn twins(&self) -> Option<Clash<'_>> {
        let leaves = self.keyed_leaves();
        leaves.iter().enumerate().find_map(|(at, (leaf, key))| {
            // Also of two volumes of one pool.
            let is_its = |(twin, other): &&(Footing<'_>, LeafKey<'_>)| {
                other == key && !leaf.lies_apart_from(twin)
            };
            leaves[..at].iter().find(is_its).map(|(twin, _)| Clash([*twin, *leaf]))
        })
    }

    /// Refuses a volume of which something is part twice, other than by slices that lie apart.
    ///
    /// # Errors
    /// The names of both.
    pub fn refuse_twins(&self) -> Result<(), String> {
        match self.twins() {
            Some(clash) => Err(format!("{clash}: {}", clash.advice())),
            None => Ok(()),
        }
    }

    /// The same of a leaf of this volume and one of the other, unless one pool has it, of which both have volumes, or both have slices of it
    /// that lie apart.
    pub fn shared_with<'a>(&'a self, other: &'a VolumeSpec) -> Option<Clash<'a>> {
        let theirs = other.keyed_leaves();
        self.keyed_leaves().into_iter().find_map(|(leaf, key)| {
            let is_it = |(twin, other): &&(Footing<'_>, LeafKey<'_>)| {
                *other == key && !leaf.is_shared_with(twin)
            };
            theirs.iter().find(is_it).map(|(twin, _)| Clash([leaf, *twin]))
        })
    }
}

#[cfg(test)]
mod tests;
