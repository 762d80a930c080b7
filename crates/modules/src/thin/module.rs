//! The row of pools among modules: what labels call them. A pool is opened by [`ThinPool::open`](super::ThinPool::open) only.

use super::NAME;
use crate::meta::LABEL_AREA_BYTES;
use crate::{KeptOnParts, Module, ModuleError};

/// Its row. Part 0 has the data, part 1 the metadata.
pub static THIN_MODULE: Module = Module {
    name: NAME,
    help: "volumes that take room as they are written, with snapshots and clones (data, metadata)",
    children: 2..=2,
    options: &[],
    ios_each_max: 8,
    keeps: Some(KeptOnParts { data_start: LABEL_AREA_BYTES, bytes: bytes_of }),
    build: |_, _| Err(ModuleError::new(NAME, "is opened as a pool, and its volumes out of that")),
};

/// What the data part has room for.
fn bytes_of(parts: &[(u64, u32)]) -> u64 {
    parts.first().map_or(0, |&(bytes, _)| bytes)
}
