//! [`Composite`]: the base of modules, which does what all of them do alike.

use super::below::Below;
use super::shape::IdentityHash;
use crate::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume};

/// What makes a module the module that it is: where its I/Os go.
pub trait Layout {
    /// Its name in the table of modules, and in errors.
    const NAME: &'static str;

    /// Hands an I/O down, which is no flush and has passed [`Geometry::check`], by exactly one call of
    /// `below`.
    fn submit(&mut self, io: Io, below: &mut Below);
}

/// A volume made of volumes. Keeps the rules of [modules](super), but for where I/Os go, which its
/// [`Layout`] decides. Its shape is that of the volumes when it was made: what they grow by later cannot
/// be reached.
pub struct Composite<L> {
    layout: L,
    below: Below,
    geometry: Geometry,
    identity: Identity,
    /// What no volume below can do.
    refused: Vec<Completion>,
}

impl<L: Layout> Composite<L> {
    /// Of `children`, which the layout and the geometry have been made for. What else than their names
    /// makes another volume of it, as where each begins, is in `identity`, which they are added to.
    pub fn new(
        layout: L,
        geometry: Geometry,
        mut identity: IdentityHash,
        children: Vec<Box<dyn Volume>>,
    ) -> Self {
        children.iter().for_each(|child| identity.add_volume(&**child));
        let (identity, below) = (identity.identity(), Below::new(children));
        Composite { layout, below, geometry, identity, refused: Vec::new() }
    }
}

impl<L: Layout> Volume for Composite<L> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry.check(&io) == Ok(()), "{io:?}");
        match io.op {
            Op::Flush => self.below.flush(io),
            // No volume of several can keep it: it is kept by whoever serves this one.
            Op::LoadWriter | Op::StoreWriter => {
                let error = io.error(ErrorKind::Unsupported, L::NAME);
                self.refused.push(Completion::new(io.token, Err(error)));
            }
            _ => self.layout.submit(io, &mut self.below),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        done.append(&mut self.refused);
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding() + self.refused.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn losses(&self) -> u64 {
        self.below.losses()
    }
}
