//! What a gateway is granted of its leaves before it has all of them.

use std::io;

use thinwire_runtime::disk::{DiskOptions, RangeHolder, TakenRanges, UnusedGrant, UnusedGrants};
use thinwire_volume::{ByteClaim, LeafGrant};

use super::tree::Leaf;
use crate::open::VolumeOptions;
use crate::uri::VolumeSpec;

/// Where is written down what is granted, and for whom: each who stands on a leaf remembers for itself under which grants it did.
#[derive(Clone)]
pub(super) struct Notes {
    place: UnusedGrants,
    taken: TakenRanges,
    /// Those who share it; none of what is somebody's alone.
    holders: Vec<Holding>,
}

/// Who stands on something that others stand on as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HolderName {
    /// As people call it.
    pub name: String,
    /// What it is: two of one structure are one volume, with one record of its writer.
    pub structure: String,
}

impl HolderName {
    pub fn of(volume: &VolumeSpec) -> Self {
        HolderName { name: volume.to_string(), structure: volume.structure() }
    }
}

/// The same, and what it has.
#[derive(Clone, Debug)]
pub(super) struct Holding {
    pub by: HolderName,
    /// Of a file or device.
    pub claims: Vec<ByteClaim>,
}

impl Holding {
    /// By what its note of a leaf is known. What has bytes of a disk by a name that a file gives may be something else the next time.
    fn note_of(&self, leaf: &str) -> String {
        let HolderName { name, structure } = &self.by;
        match &self.claims[..] {
            [] => format!("{leaf} for {name}"),
            _ => format!("{leaf} for {name}, {structure}"),
        }
    }

    fn range<'a>(&'a self, identity: &'a [u8; 16], disk: &'a str) -> RangeHolder<'a> {
        RangeHolder { identity, disk, by: &self.by.structure, claims: &self.claims }
    }
}

impl Notes {
    /// Of a tree that is opened in this way; none if nobody wants it.
    pub fn of(
        options: &VolumeOptions,
        disk_options: &DiskOptions,
        holders: &[Holding],
    ) -> Option<Self> {
        options.is_served.then(|| Notes {
            place: UnusedGrants::new(&disk_options.state_dir),
            taken: TakenRanges::new(&disk_options.state_dir),
            holders: holders.to_owned(),
        })
    }

    /// A leaf was granted, for each of its holders, in order. Blocks.
    pub fn granted(&self, identity: &[u8; 16], leaf: &str, grant: LeafGrant) -> Vec<UnusedGrant> {
        if self.holders.is_empty() {
            return vec![self.place.granted(identity, leaf, grant)];
        }
        let of = |holding: &Holding| {
            let unused = self.place.granted(identity, &holding.note_of(leaf), grant);
            match &holding.claims[..] {
                [] => unused,
                _ => {
                    let range = holding.range(identity, leaf);
                    unused.not_before(self.taken.first_behind(&range, grant))
                }
            }
        };
        self.holders.iter().map(of).collect()
    }

    /// A leaf was granted before these holders came, and others may have written under that what they come to hold.
    pub fn came_late(&self, identity: &[u8; 16], leaf: &str, grant: LeafGrant) -> Vec<UnusedGrant> {
        let of = |holding: &Holding| {
            let name = holding.note_of(leaf);
            let unused = self.place.came_late(identity, &name, grant.generation);
            unused.settling(&self.taken, &holding.range(identity, leaf))
        };
        self.holders.iter().map(of).collect()
    }

    /// Whether others have come to have something of a disk under this grant that one of these holders has. Blocks.
    pub fn is_taken(&self, identity: &[u8; 16], leaf: &str, grant: LeafGrant) -> bool {
        let is_taken = |holding: &Holding| {
            self.taken.is_taken(&holding.range(identity, leaf), grant.generation)
        };
        self.holders.iter().any(is_taken)
    }

    /// Somebody comes to have these bytes of a disk under this grant. Blocks.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn take(
        &self,
        identity: &[u8; 16],
        leaf: &str,
        (by, claim): (&HolderName, ByteClaim),
        grant: LeafGrant,
    ) -> io::Result<()> {
        let holding = Holding { by: by.clone(), claims: vec![claim] };
        self.taken.add(&holding.range(identity, leaf), grant.generation)
    }
}

/// Writes down what is granted of the leaves of a tree, of each as soon as it is: until all of them are there,
/// nobody knows what they make.
pub(super) struct Grants {
    /// None if nobody wants it.
    place: Option<Notes>,
    /// By leaf; empty of what has no grant.
    unused: Vec<Vec<UnusedGrant>>,
}

impl Grants {
    /// Nothing is granted yet.
    pub fn new(place: Option<Notes>) -> Self {
        Grants { place, unused: Vec::new() }
    }

    /// Writes down those of `leaves` that are open and that are not written down yet; they are called as in
    /// `specs`.
    pub fn note(&mut self, leaves: &[Leaf], specs: &[&VolumeSpec]) {
        let Some(place) = &self.place else { return };
        self.unused.resize_with(specs.len(), Vec::new);
        for ((leaf, spec), unused) in leaves.iter().zip(specs).zip(&mut self.unused) {
            if unused.is_empty()
                && let Some((identity, grant)) = leaf.granted()
            {
                let noted = place.granted(&identity.identity, &spec.to_string(), grant);
                if let Leaf::Local(leaf) = leaf {
                    leaf.set_unused(noted.clone());
                }
                *unused = noted;
            }
        }
    }

    /// It is not there after all: what was granted is nobody's.
    pub fn let_go(&mut self, leaf: usize) {
        if let Some(unused) = self.unused.get_mut(leaf) {
            unused.clear();
        }
    }

    /// All are there.
    pub fn keep(&self, leaves: &[Leaf]) {
        for (leaf, unused) in leaves.iter().zip(&self.unused) {
            if let (Leaf::Local(leaf), false) = (leaf, unused.is_empty()) {
                leaf.keep_grant();
            }
        }
    }

    /// What was written down, by leaf.
    pub fn into_unused(self) -> Vec<Vec<UnusedGrant>> {
        self.unused
    }
}
