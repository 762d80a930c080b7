//! Real disks: files and block devices of this machine, behind the [`Disk`] interface.
//!
//! [`open`] finds out what a path is, locks it, and learns its size, alignment, identity and writer
//! record; [`open_store`] makes a volume of it, and [`SpreadDisk`] one for each of several threads. System calls go through io_uring, or through a few
//! threads where that is refused.
//!
//! [`Disk`]: thinwire_volume::Disk

mod align;
mod allowance;
mod any;
mod common;
mod domain;
mod engine;
mod error;
mod gateway;
mod identity;
mod jobs;
mod letting_go;
mod lock;
mod open;
mod real;
mod recorded;
#[cfg(test)]
mod records_fuzz;
mod restricted;
pub(crate) mod ring;
mod slots;
mod spread;
pub mod state_file;
mod taken;
mod threads;
mod unused;
mod uring;
mod window;
mod worker;
mod writer;

pub use any::AnyDisk;
pub use domain::sync_before;
pub use error::DiskOpenError;
pub(crate) use identity::Hash;
pub use letting_go::{LettingGo, waited_for};
pub use open::{Backend, DiskOptions, OpenedDisk, OpenedStore, open, open_store};
pub use recorded::{HeldLeaf, StateRecord, recorded};
pub use restricted::{RingRestrictions, ring_restrictions};
pub use ring::HeldRing;
pub use spread::SpreadDisk;
pub use taken::{RangeHolder, TakenRanges};
pub use unused::{UnusedGrant, UnusedGrants};

#[cfg(test)]
mod shared_tests;
