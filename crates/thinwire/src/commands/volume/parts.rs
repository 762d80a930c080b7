//! Parts of volumes, read by commands that look at what is written on them.

use thinwire_volume::{Completion, ErrorKind, Io, IoError, Op};

use super::wait_for;
use crate::error::{Failure, Outcome};
use crate::open::OpenVolume;
use crate::signals::Signals;

/// Bytes of a block of a bitmap.
const BLOCK: u64 = 4096;

/// Of the end of a part that is to be one: 1 MiB.
const END_BYTES: u64 = 1 << 20;

/// One I/O, to its end.
fn io_of(
    parts: &mut [Box<dyn OpenVolume>],
    at: usize,
    io: Io,
    signals: &Signals,
) -> Outcome<Completion> {
    parts[at].volume().submit(io);
    let mut done: Vec<Completion> = Vec::new();
    wait_for(parts, at, signals, |volume| {
        volume.poll(&mut done);
        done.pop()
    })
}

/// The first bytes of a part.
pub(super) fn read(
    parts: &mut [Box<dyn OpenVolume>],
    part: usize,
    bytes: u64,
    signals: &Signals,
) -> Outcome<Vec<u8>> {
    read_from(parts, part, 0, bytes, signals)
}

/// So many bytes of a part, from an offset on.
pub(super) fn read_from(
    parts: &mut [Box<dyn OpenVolume>],
    part: usize,
    offset: u64,
    bytes: u64,
    signals: &Signals,
) -> Outcome<Vec<u8>> {
    let all = try_read(parts, part, offset, bytes, signals)?;
    all.map_err(|e| Failure::failed(format!("cannot be read: {}", parts[part].failed_at(&e))))
}

/// As much of the end of a part as marks of others stand in. What cannot be read is nothing to who overwrites whatever is there.
pub(super) fn read_end(
    parts: &mut [Box<dyn OpenVolume>],
    part: usize,
    force: bool,
    signals: &Signals,
) -> Outcome<Vec<u8>> {
    let all = parts[part].volume().geometry().bytes;
    let bytes = all.min(END_BYTES);
    match try_read(parts, part, all - bytes, bytes, signals)? {
        Err(_) if force => Ok(Vec::new()),
        ends => ends
            .map_err(|e| Failure::failed(format!("cannot be read: {}", parts[part].failed_at(&e)))),
    }
}

/// As [`read_from`]; why the volume does not give them is told apart from why nobody could ask.
fn try_read(
    parts: &mut [Box<dyn OpenVolume>],
    part: usize,
    offset: u64,
    bytes: u64,
    signals: &Signals,
) -> Outcome<Result<Vec<u8>, IoError>> {
    let longest = u64::from(parts[part].volume().geometry().io_bytes_max);
    let mut all = Vec::new();
    while (all.len() as u64) < bytes {
        let at = all.len() as u64;
        let io = Io::new(0, Op::Read, offset + at, longest.min(bytes - at));
        let read = io_of(parts, part, io, signals)?;
        if let Err(error) = read.result {
            return Ok(Err(error));
        }
        all.extend_from_slice(&read.data.to_vec());
    }
    Ok(Ok(all))
}

/// What can be read of blocks of 4096 bytes.
#[derive(Default)]
pub(super) struct ReadBlocks {
    /// Of a block that cannot be read all bits are set, which is no block of a bitmap.
    pub bytes: Vec<u8>,
    /// Those that cannot, counted from 0.
    pub unread: Vec<usize>,
    /// Why not the last one of them.
    pub why: Option<IoError>,
}

/// So many bytes of a part, from an offset on, as far as it gives them.
pub(super) fn read_blocks(
    parts: &mut [Box<dyn OpenVolume>],
    part: usize,
    offset: u64,
    bytes: u64,
    signals: &Signals,
) -> Outcome<ReadBlocks> {
    let mut all = ReadBlocks::default();
    if let Ok(bytes) = try_read(parts, part, offset, bytes, signals)? {
        return Ok(ReadBlocks { bytes, ..all });
    }
    for block in 0..bytes.div_ceil(BLOCK) {
        let at = block * BLOCK;
        let length = BLOCK.min(bytes - at);
        match try_read(parts, part, offset + at, length, signals)? {
            Ok(bytes) => all.bytes.extend_from_slice(&bytes),
            // Of what is away, or busy, no block says anything.
            Err(error) if error.kind != ErrorKind::Io => {
                let failed = parts[part].failed_at(&error);
                return Err(Failure::failed(format!("its bitmap cannot be read: {failed}")));
            }
            Err(error) => {
                all.bytes.resize(all.bytes.len() + length as usize, 0xff);
                all.unread.push(block as usize);
                all.why = Some(error);
            }
        }
    }
    Ok(all)
}
