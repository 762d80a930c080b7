//! The row of mirrors among modules ([`KEEPING_MODULES`](crate::KEEPING_MODULES)).

use super::{LEGS_MAX, MIRROR_DATA_START, NAME};
use crate::{KeptOnParts, Module, ModuleError};

/// Its row: it is opened by [`Mirror::open`], and by no list of volumes.
pub(crate) const MODULE: Module = Module {
    name: NAME,
    help: "the same data on each of 2 to 8 volumes (with `labels = true`)",
    children: 2..=LEGS_MAX,
    options: &[],
    ios_each_max: 1,
    keeps: Some(KeptOnParts { data_start: MIRROR_DATA_START, bytes: bytes_of, may_lack: true }),
    build: |_, _| {
        let why = "keeps what its legs lack on these: describe it in a file, with `labels = true`, and name it as FILE.toml#NAME";
        Err(ModuleError::new(NAME, why))
    },
};

/// What all legs have room for, in whole blocks of each.
fn bytes_of(legs: &[(u64, u32)]) -> u64 {
    let block = legs.iter().map(|leg| u64::from(leg.1)).max().unwrap_or(1);
    legs.iter().map(|leg| leg.0 / block * block).min().unwrap_or(0)
}
