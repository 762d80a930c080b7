//! [`Slice`]: a part of a volume.

#[cfg(test)]
mod tests;

use thinwire_volume::{Geometry, Identity, Io, Volume};

use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, ModuleOption, OptionUnit,
    Options, common_geometry,
};

const OFFSET: ModuleOption = ModuleOption {
    name: "offset",
    help: "its first byte there (0)",
    bounds: 0..=u64::MAX,
    multiple_of: 512,
    unit: OptionUnit::Bytes,
};
const SIZE: ModuleOption = ModuleOption {
    name: "size",
    help: "its bytes (all that follow)",
    bounds: 512..=u64::MAX,
    multiple_of: 512,
    unit: OptionUnit::Bytes,
};

pub(super) const MODULE: Module = Module {
    name: Slice::NAME,
    help: "a part of a volume",
    children: 1..=1,
    options: &[OFFSET, SIZE],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| {
        let (offset, size) = (options.get(&OFFSET), options.get(&SIZE));
        Ok(Box::new(Slice::over(children, offset.unwrap_or(0), size)?))
    },
};

/// From one byte of a volume on, so many bytes, or all that follow, also what the volume grows by.
pub struct Slice {
    offset: u64,
    size: Option<u64>,
}

impl Slice {
    /// Of the only volume of `children`.
    ///
    /// # Errors
    /// It is not the only one, does not reach so far, or has blocks that it would cut.
    pub fn new(
        children: Vec<Box<dyn Volume>>,
        offset: u64,
        size: Option<u64>,
    ) -> Result<Composite<Self>, ModuleError> {
        Self::over(Child::all(children), offset, size)
    }

    fn over(
        children: Vec<Child>,
        offset: u64,
        size: Option<u64>,
    ) -> Result<Composite<Self>, ModuleError> {
        let wrong = |why| Err(ModuleError::of_child(Self::NAME, 0, why));
        MODULE.check_count(children.len())?;
        let geometry = common_geometry(Self::NAME, &children)?;
        let (bytes, block) = (children[0].geometry().bytes, u64::from(geometry.block_bytes));
        let ends = [Some(offset), size];
        if let Some(odd) = ends.into_iter().flatten().find(|end| !end.is_multiple_of(block)) {
            return wrong(format!(
                "has blocks of {block} bytes, and {odd} is no multiple of that: give another offset or size"
            ));
        }
        let slice = Slice { offset, size };
        let Some(bytes) = slice.bytes(bytes, block).filter(|&bytes| bytes > 0) else {
            let end = u128::from(offset) + u128::from(size.unwrap_or(block));
            return wrong(format!(
                "has {bytes} bytes, and the slice would end at {end}: give a smaller offset or size"
            ));
        };
        let identity = Self::hash(offset, size);
        Ok(Composite::new(slice, Geometry { bytes, ..geometry }, identity, children))
    }

    /// What one that is told so has of the volume that it is a part of: from one byte up to, not including, another, or [`u64::MAX`] if
    /// it has all that follow. None of another module.
    pub fn bytes_of(module: &Module, options: &Options) -> Option<(u64, u64)> {
        if module.name != Self::NAME {
            return None;
        }
        let start = options.get(&OFFSET).unwrap_or(0);
        let end = options.get(&SIZE).map_or(u64::MAX, |size| start.saturating_add(size));
        Some((start, end))
    }

    fn hash(offset: u64, size: Option<u64>) -> IdentityHash {
        let mut identity = IdentityHash::new(Self::NAME);
        identity.add(&offset.to_be_bytes());
        identity.add(&size.unwrap_or(0).to_be_bytes());
        identity
    }

    /// What a slice of a volume of that identity is known by.
    pub(super) fn identity_over(offset: u64, size: Option<u64>, below: Identity) -> Identity {
        let mut identity = Self::hash(offset, size);
        identity.add_volume(below);
        identity.identity()
    }

    /// How much it is of a volume of so many bytes; none if that does not reach so far.
    fn bytes(&self, whole: u64, block: u64) -> Option<u64> {
        let rest = (whole / block * block).checked_sub(self.offset)?;
        match self.size {
            Some(size) => (size <= rest).then_some(size),
            None => Some(rest),
        }
    }
}

impl Layout for Slice {
    const NAME: &'static str = "slice";

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        below.pass_on(0, self.offset + io.offset, io);
    }

    /// One of a given size stays as it is, which is no news.
    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        self.bytes(bytes, whole.block_bytes.into())
    }
}
