//! What a gateway is granted of its leaves before it has all of them.

use std::io;

use thinwire_runtime::disk::{DiskOptions, UnusedGrant, UnusedGrants};
use thinwire_volume::LeafGrant;

use super::tree::Leaf;
use crate::open::VolumeOptions;
use crate::uri::VolumeSpec;

/// Where is written down what is granted, and for whom: each who stands on a leaf remembers for itself under which grants it did.
#[derive(Clone)]
pub(super) struct Notes {
    place: UnusedGrants,
    /// Those who share it; none of what is somebody's alone.
    holders: Vec<String>,
}

impl Notes {
    /// Of a tree that is opened in this way; none if nobody wants it.
    pub fn of(
        options: &VolumeOptions,
        disk_options: &DiskOptions,
        holders: &[String],
    ) -> Option<Self> {
        options.is_served.then(|| Notes {
            place: UnusedGrants::new(&disk_options.state_dir),
            holders: holders.to_owned(),
        })
    }

    /// A leaf was granted, for each of its holders, in order. Blocks.
    pub fn granted(&self, identity: &[u8; 16], leaf: &str, grant: LeafGrant) -> Vec<UnusedGrant> {
        if self.holders.is_empty() {
            return vec![self.place.granted(identity, leaf, grant)];
        }
        let of = |holder: &String| self.place.granted(identity, &name_for(leaf, holder), grant);
        self.holders.iter().map(of).collect()
    }

    /// A leaf was granted before these holders came, and others may have written under that what they come to hold.
    pub fn came_late(&self, identity: &[u8; 16], leaf: &str, grant: LeafGrant) -> Vec<UnusedGrant> {
        let of = |holder: &String| {
            self.place.came_late(identity, &name_for(leaf, holder), grant.generation)
        };
        self.holders.iter().map(of).collect()
    }
}

impl Notes {
    /// Others come to have, under this grant, what that holder had of a leaf. Blocks.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn others_come(
        &self,
        identity: &[u8; 16],
        (leaf, holder): (&str, &str),
        grant: LeafGrant,
    ) -> io::Result<()> {
        self.place.others_come(identity, &name_for(leaf, holder), grant.generation)
    }
}

fn name_for(leaf: &str, holder: &str) -> String {
    format!("{leaf} for {holder}")
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
