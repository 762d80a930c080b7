//! What a disk's thread does: records of who writes, sizes that are kept, and block status.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use thinwire_volume::Extent;

use super::common::Common;
use super::jobs::{Work, Worker};

/// A block status looks at no more than this many extents: each costs a system call.
const EXTENTS_MAX: usize = 1024;

/// What a disk's thread does. Nobody else looks at the record.
pub(super) fn worker(common: Arc<Common>) -> Worker {
    Box::new(move |work| {
        let Common { file, scope, .. } = &*common;
        match work {
            Work::BlockStatus { offset, len, extents } => {
                block_status(file, *offset, *len, extents)
            }
            Work::LoadWriter(record) => {
                common.writer().load(file, scope).map(|found| **record = found)
            }
            Work::StoreWriter(_) if common.info().read_only => Err(libc::EROFS),
            Work::StoreWriter(record) => common.writer().store(file, scope, **record),
            Work::Cut => common.writer().cut(file, scope),
            Work::KeepSize(bytes) => common.writer().keep_size(file, scope, *bytes),
        }
    })
}

fn block_status(file: &File, offset: u64, len: u64, out: &mut Vec<Extent>) -> Result<(), i32> {
    let end = offset + len;
    let run = |len, hole| Extent { len, hole, zero: hole };
    let mut at = offset;
    for _ in 0..EXTENTS_MAX / 2 {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            // Nothing but holes up to the end of the file.
            Err(Errno::NXIO) => end,
            // The file system does not tell.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => at,
            Err(errno) => return Err(errno.raw_os_error()),
        };
        if data > at {
            out.push(run(data - at, true));
        }
        if data == end {
            break;
        }
        let hole = match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(end),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => end,
            Err(errno) => return Err(errno.raw_os_error()),
        };
        out.push(run(hole - data, false));
        at = hole;
        if at == end {
            break;
        }
    }
    Ok(())
}
