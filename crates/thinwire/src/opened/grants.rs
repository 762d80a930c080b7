//! What a gateway is granted of its leaves before it has all of them.

use thinwire_runtime::disk::{DiskOptions, UnusedGrant, UnusedGrants};

use super::tree::Leaf;
use crate::open::VolumeOptions;
use crate::uri::VolumeSpec;

/// Writes down what is granted of the leaves of a tree, of each as soon as it is: until all of them are there,
/// nobody knows what they make.
pub(super) struct Grants {
    /// None if nobody wants it.
    place: Option<UnusedGrants>,
    /// By leaf.
    unused: Vec<Option<UnusedGrant>>,
}

impl Grants {
    /// Nothing is granted yet.
    pub fn new(options: &VolumeOptions, disk_options: &DiskOptions) -> Self {
        let place = options.is_served.then(|| UnusedGrants::new(&disk_options.state_dir));
        Grants { place, unused: Vec::new() }
    }

    /// Writes down those of `leaves` that are open and that are not written down yet; they are called as in
    /// `specs`.
    pub fn note(&mut self, leaves: &[Leaf], specs: &[&VolumeSpec]) {
        let Some(place) = &self.place else { return };
        self.unused.resize_with(specs.len(), || None);
        for ((leaf, spec), unused) in leaves.iter().zip(specs).zip(&mut self.unused) {
            let granted = match leaf {
                Leaf::Remote(leaf) if !leaf.is_granted() => continue,
                _ if unused.is_some() => continue,
                Leaf::Absent(_) => continue,
                Leaf::Remote(leaf) => leaf.granted(),
                Leaf::Local(leaf) => leaf.granted(),
            };
            if let (identity, generation @ 1..) = granted {
                let noted = place.granted(&identity.identity, &spec.to_string(), generation);
                if let Leaf::Local(leaf) = leaf {
                    leaf.set_unused(noted.clone());
                }
                *unused = Some(noted);
            }
        }
    }

    /// It is not there after all: what was granted is nobody's.
    pub fn let_go(&mut self, leaf: usize) {
        if let Some(unused) = self.unused.get_mut(leaf) {
            *unused = None;
        }
    }

    /// All are there.
    pub fn keep(&self, leaves: &[Leaf]) {
        for (leaf, unused) in leaves.iter().zip(&self.unused) {
            if let (Leaf::Local(leaf), Some(_)) = (leaf, unused) {
                leaf.keep_grant();
            }
        }
    }

    /// What was written down, by leaf.
    pub fn into_unused(self) -> Vec<Option<UnusedGrant>> {
        self.unused
    }
}
