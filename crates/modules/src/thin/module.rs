//! The row of pools among modules: what labels call them. A pool is opened by [`ThinPool::open`](super::ThinPool::open) only.

use super::NAME;
use super::head::{BLOCK_BYTES_DEFAULT, BLOCK_BYTES_LEAST, BLOCK_BYTES_MOST};
use crate::meta::LABEL_AREA_BYTES;
use crate::{KeptOnParts, Module, ModuleError, ModuleOption, OptionUnit, Options};

/// Bytes that a volume takes at once.
const BLOCK: ModuleOption = ModuleOption {
    name: "block",
    help: "bytes that a volume takes at once, a power of two (64K)",
    bounds: BLOCK_BYTES_LEAST as u64..=BLOCK_BYTES_MOST as u64,
    multiple_of: BLOCK_BYTES_LEAST as u64,
    unit: OptionUnit::Bytes,
};

/// What a pool was told of its blocks, in bytes.
pub fn block_bytes(options: &Options) -> u32 {
    options.get(&BLOCK).map_or(BLOCK_BYTES_DEFAULT, |bytes| bytes as u32)
}

/// Its row. Part 0 has the data, part 1 the metadata.
pub static THIN_MODULE: Module = MODULE;

pub(crate) const MODULE: Module = Module {
    name: NAME,
    help: "volumes that take room as they are written, with snapshots and clones (data, metadata)",
    children: 2..=2,
    options: &[BLOCK],
    ios_each_max: 8,
    keeps: Some(KeptOnParts { data_start: LABEL_AREA_BYTES, bytes: bytes_of, may_lack: false }),
    build: |_, _| Err(ModuleError::new(NAME, "is opened as a pool, and its volumes out of that")),
};

/// What the data part has room for.
fn bytes_of(parts: &[(u64, u32)]) -> u64 {
    parts.first().map_or(0, |&(bytes, _)| bytes)
}
