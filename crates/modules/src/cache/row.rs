//! The row of caches among modules ([`MODULES`](crate::MODULES)).

use std::time::Duration;

use thinwire_volume::{Geometry, Io};

use super::Cache;
use crate::write_back::WriteBack;
use crate::{
    Below, Child, Composite, IdentityHash, Layout, Module, ModuleError, ModuleOption, OptionUnit,
    Options, common_geometry,
};

const SIZE: ModuleOption = ModuleOption {
    name: "size",
    help: "memory for what was read (64M)",
    bounds: Cache::BYTES_MIN..=1 << 50,
    multiple_of: 1,
    unit: OptionUnit::Bytes,
};

/// What it has unless it is said.
const SIZE_DEFAULT: u64 = 64 << 20;

const MAX_AGE: ModuleOption = ModuleOption {
    name: "max_age_ms",
    help: "what was read is kept no longer than that",
    bounds: 1..=86_400_000,
    multiple_of: 1,
    unit: OptionUnit::Milliseconds,
};

const WRITE_BACK: ModuleOption = ModuleOption {
    name: "write_back",
    help: "memory for what is written and goes down later",
    bounds: WriteBack::BYTES_MIN..=1 << 50,
    multiple_of: 1,
    unit: OptionUnit::Bytes,
};

pub(crate) const MODULE: Module = Module {
    name: Kept::NAME,
    help: "a volume, with what was read of it in memory",
    children: 1..=1,
    options: &[SIZE, WRITE_BACK, MAX_AGE],
    ios_each_max: 1,
    keeps: None,
    build: |children, options| {
        let kept = Box::new(Kept::over(children)?);
        let size = options.get(&SIZE).unwrap_or(SIZE_DEFAULT);
        let mut cache = match options.get(&WRITE_BACK) {
            Some(room) => Cache::new(Box::new(WriteBack::new(kept, room)), size),
            None => Cache::new(kept, size),
        };
        if options.get(&WRITE_BACK).is_some() {
            cache.keep_writes();
        }
        if let Some(age) = options.get(&MAX_AGE) {
            cache.set_max_age(Duration::from_millis(age));
        }
        Ok(Box::new(cache))
    },
};

pub(super) fn bytes_of(options: &Options) -> u64 {
    let size = options.get(&SIZE).unwrap_or(SIZE_DEFAULT);
    size.saturating_add(options.get(&WRITE_BACK).map_or(0, WriteBack::bytes_of))
}

pub(super) fn has_max_age(options: &Options) -> bool {
    options.get(&MAX_AGE).is_some()
}

/// All of a volume, as it is.
struct Kept(());

impl Kept {
    fn over(children: Vec<Child>) -> Result<Composite<Self>, ModuleError> {
        MODULE.check_count(children.len())?;
        let geometry = common_geometry(Self::NAME, &children)?;
        let block = u64::from(geometry.block_bytes);
        let bytes = children[0].geometry().bytes / block * block;
        // How much of it is in memory makes no other volume of it.
        let identity = IdentityHash::new(Self::NAME);
        Ok(Composite::new(Kept(()), Geometry { bytes, ..geometry }, identity, children))
    }
}

impl Layout for Kept {
    const NAME: &'static str = "cache";
    const HAS_RECORD_BELOW: bool = true;

    #[inline]
    fn submit(&mut self, io: Io, below: &mut Below) {
        below.pass_on(0, io.offset, io);
    }

    fn grow(&mut self, _: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let block = u64::from(whole.block_bytes);
        Some(bytes / block * block)
    }
}
