//! What is at the bottom of a volume, and what else a description says of it as a whole.

use std::fs::metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use thinwire_modules::{Cache, Layout, Qos, Readonly};

use super::{NodeName, VolumeSpec};

impl VolumeSpec {
    /// What is at the bottom, in order: the volume itself unless it is made of others.
    pub fn leaves(&self) -> Vec<&VolumeSpec> {
        match self {
            VolumeSpec::Over { children, .. } => {
                children.iter().flat_map(VolumeSpec::leaves).collect()
            }
            VolumeSpec::Share { .. } => Vec::new(),
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
        let (children, places) = match self {
            VolumeSpec::Over { children, places, .. } => (children, places),
            VolumeSpec::Share { .. } => return,
            _ => return found.push(place),
        };
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
        let children = match self {
            VolumeSpec::Over { children, .. } => children,
            VolumeSpec::Share { .. } => return,
            _ => return found.push(is_below),
        };
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
        let (children, is_mirror) = match self {
            VolumeSpec::Over { children, module, labels, .. } => {
                (children, *labels && module.is_mirror())
            }
            VolumeSpec::Share { .. } => return,
            _ => return found.push(is_below),
        };
        let is_below = is_below || is_mirror;
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
        !self.is_network() && !matches!(self, VolumeSpec::Over { .. } | VolumeSpec::Share { .. })
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
        if let VolumeSpec::Over { children, places, place, .. } = &mut spec {
            places.clear();
            *place = None;
            children.iter_mut().for_each(|child| *child = child.unplaced());
        }
        spec
    }

    /// The numbers of budgets in it that others may share.
    pub fn shares(&self) -> Vec<u64> {
        let VolumeSpec::Over { module, options, children, .. } = self else { return Vec::new() };
        let own = Qos::limits_of(module, options).and_then(|(_, share)| share);
        own.into_iter().chain(children.iter().flat_map(VolumeSpec::shares)).collect()
    }
}

#[cfg(test)]
mod tests;
