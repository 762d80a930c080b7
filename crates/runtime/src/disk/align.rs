//! What direct I/O needs here, if it is to be had.

use std::fs::File;

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::pread;
use thinwire_buffer::Pool;

/// The alignments worth trying where the kernel does not tell (before 6.1, and some file systems).
const PROBED: [usize; 2] = [512, 4096];

/// Turns direct I/O on and returns the alignment that it needs (512 or 4096), or leaves it off and
/// returns why.
pub(super) fn go_direct(file: &File, bytes: u64, block_bytes: u32) -> Result<u32, String> {
    let told = told_by_kernel(file)?;
    if let Some(align) = told {
        suits(align, block_bytes)?;
    }
    set(file, true).map_err(|error| format!("the file system has no direct I/O ({error})"))?;
    let align = match told {
        Some(align) => Ok(align),
        None => probe(file, bytes).ok_or_else(|| "no direct read succeeds".to_owned()),
    };
    let align = align.and_then(|align| suits(align, block_bytes).map(|()| align));
    if align.is_err() {
        let _ = set(file, false);
    }
    align
}

fn set(file: &File, direct: bool) -> rustix::io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    fcntl_setfl(file, flags)
}

fn suits(align: u32, block_bytes: u32) -> Result<(), String> {
    if align <= block_bytes {
        return Ok(());
    }
    Err(format!("direct I/O goes in units of {align} bytes here, blocks are {block_bytes} bytes"))
}

/// What statx says: nothing, an alignment, or that there is no direct I/O.
fn told_by_kernel(file: &File) -> Result<Option<u32>, String> {
    let stat = match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => stat,
        _ => return Ok(None),
    };
    if stat.stx_dio_offset_align == 0 {
        return Err("the file system has no direct I/O for this file".into());
    }
    // The volume's units: one number for memory and place, and no smaller than a sector.
    Ok(Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align).max(512)))
}

/// Reads at a place, and into memory, that are aligned to just this much.
fn probe(file: &File, bytes: u64) -> Option<u32> {
    let pool = Pool::new(0);
    PROBED.into_iter().find_map(|align| {
        let mut buf = pool.get(3 * align);
        let offset = if bytes >= 2 * align as u64 { align as u64 } else { 0 };
        match pread(file, &mut buf[align..2 * align], offset) {
            Ok(count) if count > 0 => Some(align as u32),
            _ => None,
        }
    })
}
