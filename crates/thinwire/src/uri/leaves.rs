//! What is at the bottom of a volume, and whether two volumes stand on the same.

use std::collections::HashMap;
use std::fs::metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use thinwire_modules::{Cache, Layout, Qos, Readonly};
use thinwire_wire::aoe::ShelfSlot;

use super::{NodeAddress, NodeName, VolumeSpec};

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

/// Something that a volume stands on.
#[derive(Clone, Copy, Debug)]
struct Footing<'a> {
    /// As it is named.
    spec: &'a VolumeSpec,
    /// The pool that has it, if it is part of one: the volume of it that was named.
    pool: Option<&'a VolumeSpec>,
}

impl Footing<'_> {
    /// Both are parts of one pool, which is opened once for all of its volumes.
    fn is_shared_with(&self, other: &Footing<'_>) -> bool {
        match (self.pool, other.pool) {
            (Some(one), Some(other)) => one.is_of_pool_of(other),
            _ => false,
        }
    }
}

/// A volume of a pool that another one is made of, or is.
#[derive(Clone, Copy, Debug)]
pub struct PoolUse<'a> {
    /// That of the pool.
    pub volume: &'a VolumeSpec,
    /// Something above it has nothing changed.
    pub is_read: bool,
    /// Something above it may do without: a mirror.
    pub may_lack: bool,
}

/// What many volumes stand on, to find those that share something. Looks at the files of each once.
#[derive(Debug, Default)]
pub struct Ground<'a> {
    /// Of each leaf the first volume that stands on it, and the first that is written. Whose pool has it shares it with the
    /// other volumes of that.
    users: HashMap<LeafKey<'a>, [Option<(usize, Footing<'a>)>; 2]>,
}

impl<'a> Ground<'a> {
    /// Takes in the volume of this number, which is higher than all before. The first of those that share a leaf
    /// with it, unless both are only read; and the leaf as both name it.
    pub fn add(
        &mut self,
        number: usize,
        volume: &'a VolumeSpec,
        read_only: bool,
    ) -> Option<(usize, [&'a VolumeSpec; 2])> {
        let leaves = volume.keyed_leaves();
        let is_read = |key: &LeafKey<'_>| read_only && !matches!(key, LeafKey::OfPool(..));
        let other = |(leaf, key): &(Footing<'a>, LeafKey<'a>)| {
            let [first, written] = *self.users.get(key)?;
            let (number, other) = if is_read(key) { written } else { first }?;
            (!leaf.is_shared_with(&other)).then_some((number, [other.spec, leaf.spec]))
        };
        let found = leaves.iter().filter_map(other).min_by_key(|(number, _)| *number);
        for (leaf, key) in leaves {
            let is_read = is_read(&key);
            let [first, written] = self.users.entry(key).or_default();
            first.get_or_insert((number, leaf));
            if !is_read {
                written.get_or_insert((number, leaf));
            }
        }
        found
    }
}

/// That two leaves are one.
pub fn same([one, other]: [&VolumeSpec; 2]) -> String {
    let kind = match one {
        VolumeSpec::Remote(_) => "export",
        VolumeSpec::Ebd(_) | VolumeSpec::Aoe(_) => "device",
        VolumeSpec::Over { .. } => "volume",
        _ => "file",
    };
    format!("{one} and {other} are the same {kind}")
}

impl VolumeSpec {
    /// What is at the bottom, in order: the volume itself unless it is made of others.
    pub fn leaves(&self) -> Vec<&VolumeSpec> {
        match self {
            VolumeSpec::Over { children, .. } => {
                children.iter().flat_map(VolumeSpec::leaves).collect()
            }
            leaf => vec![leaf],
        }
    }

    /// Of each leaf, in the same order, where a file names it.
    pub fn leaf_places(&self) -> Vec<Option<&str>> {
        let mut found = Vec::new();
        self.gather_places(None, &mut found);
        found
    }

    /// `place` is that of this volume, or of the list in which it is.
    fn gather_places<'a>(&'a self, place: Option<&'a str>, found: &mut Vec<Option<&'a str>>) {
        let VolumeSpec::Over { children, places, .. } = self else { return found.push(place) };
        for (at, child) in children.iter().enumerate() {
            child.gather_places(places.get(at).map(String::as_str).or(place), found);
        }
    }

    /// Of each leaf, in the same order, whether something above it may do without: a mirror.
    pub fn leaves_that_may_lack(&self) -> Vec<bool> {
        let mut found = Vec::new();
        self.gather_lacking(false, &mut found);
        found
    }

    /// Of each leaf, in the same order, whether something above it has nothing changed.
    pub fn leaves_that_are_read(&self) -> Vec<bool> {
        let mut found = Vec::new();
        self.gather_read(false, &mut found);
        found
    }

    fn gather_read(&self, is_below: bool, found: &mut Vec<bool>) {
        let VolumeSpec::Over { children, .. } = self else { return found.push(is_below) };
        let is_below = is_below || self.only_reads();
        children.iter().for_each(|child| child.gather_read(is_below, found));
    }

    /// It changes nothing of what it is made of.
    pub fn only_reads(&self) -> bool {
        self.cut().is_some()
            || matches!(self, VolumeSpec::Over { module, .. } if module.name == Readonly::NAME)
    }

    /// It tells its users that writes are done which are in memory yet.
    pub fn buffers_writes(&self) -> bool {
        let VolumeSpec::Over { module, options, .. } = self else { return false };
        let is_said = |(name, bytes): (&str, u64)| name == "write_back" && bytes > 0;
        Cache::bytes_of(module, options).is_some() && options.iter().any(is_said)
    }

    /// Caches in it, of all kinds, take so much memory, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        let VolumeSpec::Over { module, options, children, .. } = self else { return 0 };
        let own = Cache::bytes_of(module, options).unwrap_or(0);
        children.iter().map(VolumeSpec::cache_bytes).fold(own, u64::saturating_add)
    }

    /// Refuses a cache over what somebody else may write meanwhile, of which nobody would tell it: what is read from another
    /// machine, or from a block device that may be mounted beside. Unless what is old may be seen for so long. `read_only`:
    /// nothing of all this is written.
    ///
    /// # Errors
    /// Which, and what to say.
    pub fn refuse_stale_caches(&self, read_only: bool) -> Result<(), String> {
        let VolumeSpec::Over { module, options, children, .. } = self else { return Ok(()) };
        if Cache::bytes_of(module, options).is_some() && !Cache::has_max_age(options) {
            let are_read = children.iter().flat_map(VolumeSpec::leaves_that_are_read);
            let mut leaves = children.iter().flat_map(VolumeSpec::leaves).zip(are_read);
            let found = leaves.find_map(|(leaf, is_read)| {
                Some((leaf, leaf.changes_unheard(read_only || is_read)?))
            });
            if let Some((leaf, why)) = found {
                return Err(format!(
                    "{self}: {leaf} {why}, and what was read before would be given for ever: say how old it may be \
                     (max_age_ms=1000), or have no cache over it"
                ));
            }
        }
        let read_only = read_only || self.only_reads();
        children.iter().try_for_each(|child| child.refuse_stale_caches(read_only))
    }

    /// Why somebody else may write this leaf without a word.
    fn changes_unheard(&self, is_read: bool) -> Option<&'static str> {
        let is_device =
            |path: &Path| metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
        match self {
            VolumeSpec::Remote(_) if is_read => {
                Some("is only read here: others may write it meanwhile")
            }
            VolumeSpec::Ebd(_) | VolumeSpec::Aoe(_) => {
                Some("is nobody's alone by its protocol: others may write it meanwhile")
            }
            VolumeSpec::Path(path) if is_read && is_device(path) => {
                Some("is a block device that is only read here: a mount may write it meanwhile")
            }
            _ => None,
        }
    }

    fn gather_lacking(&self, is_below: bool, found: &mut Vec<bool>) {
        let VolumeSpec::Over { children, module, labels, .. } = self else {
            return found.push(is_below);
        };
        let is_below = is_below || *labels && module.is_mirror();
        children.iter().for_each(|child| child.gather_lacking(is_below, found));
    }

    /// Collects the mirrors in it.
    pub fn mirrors<'a>(&'a self, found: &mut Vec<&'a VolumeSpec>) {
        if let VolumeSpec::Over { children, module, labels, .. } = self {
            if *labels && module.is_mirror() {
                found.push(self);
            }
            children.iter().for_each(|child| child.mirrors(found));
        }
    }

    /// Its writer record has its place in the labels of what is on top of it, or of a volume of a pool in that.
    pub fn keeps_writer(&self) -> bool {
        let VolumeSpec::Over { children, labels, .. } = self else { return false };
        if self.cut().is_some() {
            return false;
        }
        match (labels, &children[..]) {
            (true, _) => true,
            // What is over one has that one's, as far as it has none itself.
            (false, [one]) => one.keeps_writer(),
            (false, _) => false,
        }
    }

    /// Something that is reached over links is part of it.
    pub fn has_remote(&self) -> bool {
        self.leaves().iter().any(|leaf| leaf.is_network())
    }

    /// It is reached over links.
    pub fn is_network(&self) -> bool {
        matches!(self, VolumeSpec::Remote(_) | VolumeSpec::Ebd(_) | VolumeSpec::Aoe(_))
    }

    /// It is one store of this machine.
    pub fn is_store(&self) -> bool {
        !self.is_network() && !matches!(self, VolumeSpec::Over { .. })
    }

    /// Changes the paths in it.
    pub fn try_map_paths<E>(
        &mut self,
        map: &impl Fn(&Path) -> Result<PathBuf, E>,
    ) -> Result<(), E> {
        match self {
            VolumeSpec::Path(path) => *path = map(path)?,
            VolumeSpec::Over { node, children, key, .. } => {
                if let Some(key) = key.as_mut().filter(|key| key.contains('/')) {
                    *key = map(Path::new(key))?.display().to_string();
                }
                if let Some(node) = node {
                    node.file = map(&node.file)?;
                }
                children.iter_mut().try_for_each(|child| child.try_map_paths(map))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Collects those of it that files describe.
    pub fn nodes<'a>(&'a self, found: &mut Vec<&'a NodeName>) {
        if let VolumeSpec::Over { node, children, .. } = self {
            found.extend(node);
            children.iter().for_each(|child| child.nodes(found));
        }
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
        self.gather_keyed(None, &mut found);
        found
    }

    fn gather_keyed<'a>(
        &'a self,
        pool: Option<&'a VolumeSpec>,
        found: &mut Vec<(Footing<'a>, LeafKey<'a>)>,
    ) {
        let VolumeSpec::Over { children, node, .. } = self else {
            let footing = Footing { spec: self, pool };
            return found.extend(self.leaf_key().map(|key| (footing, key)));
        };
        let below = match (self.inner(), node) {
            (Some(_), Some(node)) => {
                let file = node.file.canonicalize().unwrap_or_else(|_| node.file.clone());
                let footing = Footing { spec: self, pool: None };
                found.push((footing, LeafKey::OfPool(file, &node.name)));
                pool.or(Some(self))
            }
            _ => pool,
        };
        children.iter().for_each(|child| child.gather_keyed(below, found));
    }

    /// Its parts have labels, and it is no pool.
    pub fn is_labelled(&self) -> bool {
        matches!(self, VolumeSpec::Over { module, labels: true, .. } if !module.has_volumes())
    }

    /// Whoever opens it for writing writes labels on its parts, or below: those of pools aside.
    pub fn writes_labels(&self) -> bool {
        let VolumeSpec::Over { children, .. } = self else { return false };
        self.is_labelled() || children.iter().any(VolumeSpec::writes_labels)
    }

    /// Of a cut of a whole its name.
    pub fn cut(&self) -> Option<&str> {
        match self {
            VolumeSpec::Over { module, labels: true, inner, .. } if !module.has_volumes() => {
                inner.as_deref()
            }
            _ => None,
        }
    }

    /// Snapshots of all that it is made of can be taken as one: by what it is called, there are such.
    pub fn can_be_cut(&self) -> bool {
        match self {
            VolumeSpec::Over { module, labels: true, node: Some(_), children, .. } => {
                self.cut().is_none()
                    && !module.has_volumes()
                    // Its labels are written by itself.
                    && !module.is_mirror()
                    && children.iter().all(VolumeSpec::may_be_in_cut)
            }
            _ => false,
        }
    }

    fn may_be_in_cut(&self) -> bool {
        match self {
            VolumeSpec::Remote(_) => true,
            VolumeSpec::Over { .. } if self.inner().is_some() => true,
            // Without labels nobody knows a snapshot of it for what it was taken of.
            VolumeSpec::Over { module, labels, children, .. } => {
                *labels && !module.has_volumes() && children.iter().all(VolumeSpec::may_be_in_cut)
            }
            _ => false,
        }
    }

    /// Of what is part of a whole the snapshot that a cut of that name has of it: of a volume of a pool there, of an export another
    /// export of that target.
    ///
    /// # Errors
    /// It has none: a sentence.
    pub fn in_cut(&self, cut: &str) -> Result<VolumeSpec, String> {
        let mut of = self.clone();
        match &mut of {
            VolumeSpec::Remote(remote) => remote.export = format!("{}.{cut}", remote.export),
            VolumeSpec::Over { node, inner: Some(inner), module, .. } if module.has_volumes() => {
                *inner = format!("{inner}.{cut}");
                if let Some(node) = node {
                    node.name = format!("{}.{cut}", node.name);
                }
            }
            VolumeSpec::Over { children, .. } => {
                for child in children {
                    *child = child.in_cut(cut)?;
                }
            }
            _ => {
                return Err(format!(
                    "{self} is no volume of a pool, nor the export of one, and has no snapshots"
                ));
            }
        }
        Ok(of)
    }

    /// Of a volume of a pool its name there.
    pub fn inner(&self) -> Option<&str> {
        match self {
            VolumeSpec::Over { module, labels: true, inner, .. } if module.has_volumes() => {
                inner.as_deref()
            }
            _ => None,
        }
    }

    /// The pool of a volume of one, and the name of that; of a pool itself no name. None of anything else.
    pub fn pool(&self) -> Option<(VolumeSpec, Option<&str>)> {
        let VolumeSpec::Over { module, labels: true, inner, .. } = self else { return None };
        if !module.has_volumes() {
            return None;
        }
        let name = inner.as_deref();
        let mut pool = self.clone();
        if let VolumeSpec::Over { inner, node, .. } = &mut pool {
            *inner = None;
            if let (Some(node), Some(name)) = (node, name) {
                let base = node.name.len() - name.len() - 1;
                node.name.truncate(base);
            }
        }
        Some((pool, name))
    }

    /// It is a volume of the same pool, or that pool itself.
    pub fn is_of_pool_of(&self, other: &VolumeSpec) -> bool {
        match (self, other) {
            (
                VolumeSpec::Over { node: Some(one), .. },
                VolumeSpec::Over { node: Some(two), .. },
            ) => self.pool().is_some() && other.pool().is_some() && one.is_beside(two),
            _ => false,
        }
    }

    /// The same volume, wherever in a file it is described by now.
    pub fn is_same(&self, other: &VolumeSpec) -> bool {
        self.unplaced() == other.unplaced()
    }

    fn unplaced(&self) -> VolumeSpec {
        let mut spec = self.clone();
        if let VolumeSpec::Over { children, places, .. } = &mut spec {
            places.clear();
            children.iter_mut().for_each(|child| *child = child.unplaced());
        }
        spec
    }

    /// Both have volumes of one pool.
    pub fn shares_pool_with(&self, other: &VolumeSpec) -> bool {
        let theirs = other.pool_uses();
        let is_shared =
            |own: PoolUse<'_>| theirs.iter().any(|other| own.volume.is_of_pool_of(other.volume));
        self.pool_uses().into_iter().any(is_shared)
    }

    /// The numbers of budgets in it that others may share.
    pub fn shares(&self) -> Vec<u64> {
        let VolumeSpec::Over { module, options, children, .. } = self else { return Vec::new() };
        let own = Qos::limits_of(module, options).and_then(|(_, share)| share);
        own.into_iter().chain(children.iter().flat_map(VolumeSpec::shares)).collect()
    }

    /// The volumes of pools in it, in order, but for those that pools in it stand on.
    pub fn pool_uses(&self) -> Vec<PoolUse<'_>> {
        let mut found = Vec::new();
        self.gather_pool_uses(false, false, &mut found);
        found
    }

    fn gather_pool_uses<'a>(&'a self, is_read: bool, may_lack: bool, found: &mut Vec<PoolUse<'a>>) {
        let VolumeSpec::Over { children, module, labels, .. } = self else { return };
        if self.inner().is_some() {
            return found.push(PoolUse { volume: self, is_read, may_lack });
        }
        let is_read = is_read || self.only_reads();
        let may_lack = may_lack || *labels && module.is_mirror();
        children.iter().for_each(|child| child.gather_pool_uses(is_read, may_lack, found));
    }

    /// The same volume, but for what its volumes of pools stand on: as it is opened when the pools are.
    pub fn over_pools(&self) -> VolumeSpec {
        let is_of_pool = self.inner().is_some();
        let mut over = self.clone();
        if let VolumeSpec::Over { children, .. } = &mut over {
            match is_of_pool {
                true => children.clear(),
                false => children.iter_mut().for_each(|child| *child = child.over_pools()),
            }
        }
        over
    }

    /// Two leaves of it that are the same file, device or export: written at two places at once, it would
    /// be destroyed. Slices of it may lie apart, but each leaf is opened by itself, with a grant, a lock and losses
    /// of its own. Control path: looks at the files.
    fn twins(&self) -> Option<[&VolumeSpec; 2]> {
        let leaves = self.keyed_leaves();
        leaves.iter().enumerate().find_map(|(at, (leaf, key))| {
            let twin = leaves[..at].iter().find(|(_, other)| other == key);
            twin.map(|(twin, _)| [twin.spec, leaf.spec])
        })
    }

    /// Refuses a volume of which something is part twice.
    ///
    /// # Errors
    /// The names of both.
    pub fn refuse_twins(&self) -> Result<(), String> {
        match self.twins() {
            Some(twins) => {
                let why = "each can be a part only once, also by way of slices of it";
                Err(format!("{}: {why}", same(twins)))
            }
            None => Ok(()),
        }
    }

    /// The same of a leaf of this volume and one of the other, unless one pool has it, of which both have volumes.
    pub fn shared_with<'a>(&'a self, other: &'a VolumeSpec) -> Option<[&'a VolumeSpec; 2]> {
        let theirs = other.keyed_leaves();
        self.keyed_leaves().into_iter().find_map(|(leaf, key)| {
            let is_it = |(twin, other): &&(Footing<'_>, LeafKey<'_>)| {
                *other == key && !leaf.is_shared_with(twin)
            };
            theirs.iter().find(is_it).map(|(twin, _)| [leaf.spec, twin.spec])
        })
    }
}

#[cfg(test)]
mod tests;
