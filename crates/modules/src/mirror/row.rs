//! The row of mirrors among modules ([`KEEPING_MODULES`](crate::KEEPING_MODULES)).

use super::{BITMAP_BYTES, LEGS_MAX, NAME};
use crate::meta::LABEL_AREA_BYTES;
use crate::{KeptOnParts, Module, ModuleError, ModuleOption, OptionUnit};

/// Where the bitmaps begin on a leg, in bytes: behind the labels.
pub const BITMAP_OFFSET: u64 = LABEL_AREA_BYTES;
/// Where data starts on a leg of a mirror, in bytes, at the earliest.
pub const MIRROR_DATA_START: u64 = BITMAP_OFFSET + BITMAP_BYTES;

const _: () = assert!(MIRROR_DATA_START == 1536 << 10);

/// How long a leg may take, in milliseconds. Said wherever the mirror is opened, and kept in no label: each opening may have another.
pub const LEG_TIMEOUT: ModuleOption = ModuleOption {
    name: "leg_timeout_ms",
    help: "a leg that does not answer for so long is dropped, in ms (5000)",
    bounds: 100..=60_000,
    multiple_of: 1,
    unit: OptionUnit::Milliseconds,
};

/// Its row: it is opened by [`Mirror::open`], and by no list of volumes.
pub(crate) const MODULE: Module = Module {
    name: NAME,
    help: "the same data on each of 2 to 8 volumes (with `labels = true`)",
    children: 2..=LEGS_MAX,
    options: &[LEG_TIMEOUT],
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
