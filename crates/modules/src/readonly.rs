//! [`Readonly`]: a volume that nobody changes.

#[cfg(test)]
mod tests;

use thinwire_volume::{Features, Geometry, Io, Volume};

use crate::{Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, common_geometry};

pub(super) const MODULE: Module = Module {
    name: Readonly::NAME,
    help: "a volume that nobody can change",
    children: 1..=1,
    options: &[],
    ios_each_max: 1,
    keeps: None,
    build: |children, _| Ok(Box::new(Readonly::over(children)?)),
};

/// All of a volume, and what it grows by, to be read only: its geometry says so, and whoever checks I/Os
/// ([`Geometry::check`]) refuses those that would change it, as of every volume that is read-only.
pub struct Readonly;

impl Readonly {
    /// Over the only volume of `children`.
    ///
    /// # Errors
    /// It is not the only one, or takes less in an I/O than one of its blocks.
    pub fn new(children: Vec<Box<dyn Volume>>) -> Result<Composite<Self>, ModuleError> {
        Self::over(Child::all(children))
    }

    fn over(children: Vec<Child>) -> Result<Composite<Self>, ModuleError> {
        MODULE.check_count(children.len())?;
        let geometry = common_geometry(Self::NAME, &children)?;
        let block = u64::from(geometry.block_bytes);
        let bytes = children[0].geometry().bytes / block * block;
        let features =
            Features { read_only: true, discard: false, write_zeroes: false, ..geometry.features };
        let identity = IdentityHash::new(Self::NAME);
        Ok(Composite::new(Readonly, Geometry { bytes, features, ..geometry }, identity, children))
    }
}

impl Layout for Readonly {
    const NAME: &'static str = "readonly";
    const HAS_RECORD_BELOW: bool = true;

    /// # Panics
    /// If it would change something: it was to be checked, and what lies below is not to pay for that.
    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        assert!(!io.op.is_write(), "a {} of a volume that is read-only", io.op);
        below.pass_on(0, io.offset, io);
    }

    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        Some(bytes / block * block)
    }
}
