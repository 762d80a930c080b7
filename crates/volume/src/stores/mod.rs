//! Volumes at the bottom: memory, null, a file or device, and the write-back test wrapper.

mod file;
mod memory;
mod null;
mod ranges;
mod writeback;

pub use file::{FileStore, FileStoreError};
pub use memory::MemoryStore;
pub use null::NullStore;
pub use writeback::Writeback;

use crate::Extent;

/// The longest read or write that any store takes in one I/O, in bytes. Longer ones gain nothing
/// over a network and would hold large buffers; the submitter splits them.
pub const IO_BYTES_MAX: u32 = 1 << 20;

/// A block status answers with at most this many extents; the asker continues where they end.
pub const EXTENTS_MAX: usize = 1024;

/// Appends a run to a list of extents, joining it to the last if they are of one kind.
pub fn push_extent(extents: &mut Vec<Extent>, run: Extent) {
    if run.len == 0 {
        return;
    }
    match extents.last_mut() {
        Some(last) if (last.hole, last.zero) == (run.hole, run.zero) => last.len += run.len,
        _ => extents.push(run),
    }
}
