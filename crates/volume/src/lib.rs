//! Everything with blocks: the [`Volume`] interface, the stores at the bottom, and modules that
//! are volumes made of volumes. Knows no network.
#![forbid(unsafe_code)]

mod disk;
mod error;
mod io;
pub mod stores;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unaligned;

pub use disk::{Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, WriterRecord};
pub use error::{ErrorKind, IoError};
pub use io::{Completion, Extent, Features, Geometry, Identity, Io, IoFlags, Op, Token, Volume};
pub use unaligned::Unaligned;
