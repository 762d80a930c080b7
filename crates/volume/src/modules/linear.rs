//! [`Linear`]: volumes one behind the other.
//!
//! * What lies within one volume goes down with another offset and token, neither copied nor split.
//! * What crosses a border is cut there, by reference, and completed once: with the first error, or
//!   with the answers in their order.
//! * A flush goes to every volume. It fails as soon as one of them failed it: what another has read
//!   since may show the loss, and must not be heard of first.

#[cfg(test)]
mod tests;

use thinwire_buffer::SegList;

use super::slab::Slab;
use crate::stores::{EXTENTS_MAX, push_extent};
use crate::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, IoError, Op, Token, Volume,
    WriterRecord,
};

const MODULE: &str = "linear";

/// Why volumes cannot be put one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinearError {
    /// There are none.
    #[error("there is no volume to begin with: name at least one")]
    Empty,
    /// What comes behind it would not begin at a block.
    #[error(
        "volume {index}, counted from 0, has {bytes} bytes, and the largest block of all is \
         {block_bytes} bytes: make its size a multiple of that (nearest sizes: {smaller} and \
         {larger})",
        smaller = .bytes / u64::from(*.block_bytes) * u64::from(*.block_bytes),
        larger = u128::from(.bytes.div_ceil(u64::from(*.block_bytes))) * u128::from(*.block_bytes)
    )]
    OddSize {
        /// Which volume.
        index: usize,
        /// Its size.
        bytes: u64,
        /// The largest block of all volumes.
        block_bytes: u32,
    },
    /// It takes less in one I/O than what would be one block.
    #[error(
        "volume {index}, counted from 0, takes at most {io_bytes_max} bytes in one I/O, and the \
         largest block of all is {block_bytes} bytes: leave it out, or those with larger blocks"
    )]
    ShortIo {
        /// Which volume.
        index: usize,
        /// Its longest I/O.
        io_bytes_max: u32,
        /// The largest block of all volumes.
        block_bytes: u32,
    },
    /// The sum of all sizes is no 64-bit number.
    #[error(
        "together the volumes have more than {} bytes, which no offset can reach: leave out volume \
         {index}, counted from 0, and those behind it",
        u64::MAX
    )]
    TooLarge {
        /// The first volume that does not fit.
        index: usize,
    },
}

/// A volume below, and where it lies.
struct Child {
    volume: Box<dyn Volume>,
    start: u64,
    end: u64,
}

/// An I/O below.
struct Part {
    child: usize,
    /// What an offset there lacks to be one here.
    shift: u64,
    of: Whole,
}

/// What an I/O below is a part of.
#[derive(Clone, Copy)]
enum Whole {
    /// It is all of the I/O with this token.
    Itself(Token),
    /// One of several.
    Split { split: u32, piece: usize },
}

/// An I/O that has become several.
struct Split {
    token: Token,
    op: Op,
    /// Parts that are not complete.
    pending: usize,
    /// The first thing that went wrong.
    error: Option<IoError>,
    /// It is completed already: a flush that failed.
    is_told: bool,
    /// What the parts have answered, in the order of their ranges; empty if they answer nothing.
    pieces: Vec<Piece>,
}

#[derive(Default)]
struct Piece {
    len: u64,
    data: SegList,
    extents: Vec<Extent>,
}

/// Volumes one behind the other: the first byte of each is behind the last of the one before.
///
/// Its shape is that of the volumes when it was made: what they grow by later cannot be reached.
/// Nothing allocates once warm, but the answer to a block status.
pub struct Linear {
    children: Vec<Child>,
    geometry: Geometry,
    identity: Identity,
    parts: Slab<Part>,
    splits: Slab<Split>,
    spare_pieces: Vec<Vec<Piece>>,
    outstanding: usize,
    /// A part of a flush failed after that had been told of another: the next flush that succeeds tells
    /// of it.
    owed: Option<IoError>,
}

impl Linear {
    /// Puts `children` one behind the other, in this order.
    ///
    /// # Errors
    /// If they have no blocks in common.
    pub fn new(children: Vec<Box<dyn Volume>>) -> Result<Self, LinearError> {
        let shapes: Vec<Geometry> = children.iter().map(|child| child.geometry()).collect();
        let all = |able: fn(&Features) -> bool| shapes.iter().all(|shape| able(&shape.features));
        let block_bytes =
            shapes.iter().map(|shape| shape.block_bytes).max().ok_or(LinearError::Empty)?;
        let mut geometry = Geometry {
            bytes: 0,
            block_bytes,
            preferred_bytes: 0,
            io_bytes_max: u32::MAX,
            features: Features {
                read_only: !all(|features| !features.read_only),
                discard: all(|features| features.discard),
                write_zeroes: all(|features| features.write_zeroes),
                block_status: all(|features| features.block_status),
            },
        };
        let mut placed = Vec::with_capacity(children.len());
        let mut hash = Fnv::new();
        for (index, (volume, shape)) in children.into_iter().zip(&shapes).enumerate() {
            let Geometry { bytes, io_bytes_max, .. } = *shape;
            if !bytes.is_multiple_of(u64::from(block_bytes)) {
                return Err(LinearError::OddSize { index, bytes, block_bytes });
            }
            if io_bytes_max < block_bytes {
                return Err(LinearError::ShortIo { index, io_bytes_max, block_bytes });
            }
            let start = geometry.bytes;
            let end = start.checked_add(bytes).ok_or(LinearError::TooLarge { index })?;
            geometry.bytes = end;
            geometry.preferred_bytes = geometry.preferred_bytes.max(shape.preferred_bytes);
            geometry.io_bytes_max = geometry.io_bytes_max.min(io_bytes_max);
            // A volume that has grown moves those behind it: other content, under the same names.
            let Identity { identity, incarnation } = volume.identity();
            hash.add(&start.to_be_bytes());
            hash.add(&identity);
            hash.add(&incarnation.to_be_bytes());
            placed.push(Child { volume, start, end });
        }
        geometry.io_bytes_max -= geometry.io_bytes_max % block_bytes;
        Ok(Linear {
            children: placed,
            geometry,
            identity: hash.identity(),
            parts: Slab::new(),
            splits: Slab::new(),
            spare_pieces: Vec::new(),
            outstanding: 0,
            owed: None,
        })
    }

    /// Hands an I/O down. Its range is in this volume's bytes.
    #[inline]
    fn pass_on(&mut self, child: usize, mut io: Io, of: Whole) {
        let below = &mut self.children[child];
        let shift = if io.op == Op::Flush { 0 } else { below.start };
        io.offset -= shift;
        io.token = self.parts.insert(Part { child, shift, of }).into();
        below.volume.submit(io);
    }

    /// Hands down one part of several.
    fn pass_piece(&mut self, child: usize, io: Io, split: u32) {
        let whole = self.splits.get_mut(split);
        let piece = whole.pending;
        whole.pending += 1;
        if matches!(io.op, Op::Read | Op::BlockStatus) {
            whole.pieces.push(Piece { len: io.len, ..Piece::default() });
        }
        self.pass_on(child, io, Whole::Split { split, piece });
    }

    fn begin_split(&mut self, io: &Io) -> u32 {
        let pieces = self.spare_pieces.pop().unwrap_or_default();
        let (token, op) = (io.token, io.op);
        self.splits.insert(Split { token, op, pending: 0, error: None, is_told: false, pieces })
    }

    /// Cuts an I/O at the borders, of which there is one in it at least.
    fn split(&mut self, first: usize, io: &Io) {
        let split = self.begin_split(io);
        let end = io.offset + io.len;
        let (mut child, mut at) = (first, io.offset);
        while at < end {
            let len = self.children[child].end.min(end) - at;
            // A volume may be empty.
            if len > 0 {
                let mut part = Io { flags: io.flags, ..Io::new(0, io.op, at, len) };
                if io.op == Op::Write {
                    io.data.slice_into((at - io.offset) as usize, len as usize, &mut part.data);
                }
                self.pass_piece(child, part, split);
            }
            at += len;
            child += 1;
        }
    }

    /// Takes in what `child` has completed, and makes it the completion of what it was a part of.
    /// False if there is nothing to tell, or not yet.
    #[inline]
    fn take_in(&mut self, child: usize, completion: &mut Completion) -> bool {
        let part = self.parts.remove(completion.token);
        debug_assert!(
            part.as_ref().is_some_and(|part| part.child == child),
            "volume {child} completes {}, which is not outstanding there",
            completion.token
        );
        let Some(part) = part else { return false };
        if let Err(error) = &mut completion.result {
            error.offset += part.shift;
        }
        match part.of {
            Whole::Itself(token) => {
                completion.token = token;
                true
            }
            Whole::Split { split, piece } => self.join(split, piece, completion),
        }
    }

    /// As [`Linear::take_in`], of one part of several.
    fn join(&mut self, index: u32, piece: usize, completion: &mut Completion) -> bool {
        let split = self.splits.get_mut(index);
        split.pending -= 1;
        if let Err(error) = completion.result {
            match split.is_told {
                true => self.owed = Some(error),
                false => _ = split.error.get_or_insert(error),
            }
        }
        if let Some(piece) = split.pieces.get_mut(piece) {
            piece.data = std::mem::take(&mut completion.data);
            piece.extents = std::mem::take(&mut completion.extents);
        }
        let is_whole = split.pending == 0;
        if is_whole && split.op == Op::Flush && !split.is_told && split.error.is_none() {
            split.error = self.owed.take();
        }
        let is_lost = split.op == Op::Flush && split.error.is_some();
        let tells = !split.is_told && (is_whole || is_lost);
        if tells {
            split.is_told = true;
            *completion = Completion::new(split.token, split.error.map_or(Ok(()), Err));
            match split.op {
                _ if split.error.is_some() => {}
                Op::Read => completion.data = join_data(&mut split.pieces),
                Op::BlockStatus => completion.extents = join_extents(&mut split.pieces),
                _ => {}
            }
        }
        if is_whole && let Some(Split { mut pieces, .. }) = self.splits.remove(index.into()) {
            pieces.clear();
            self.spare_pieces.push(pieces);
        }
        tells
    }
}

impl Volume for Linear {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Made of those of the volumes and of where each begins: another if any of them is another.
    fn identity(&self) -> Identity {
        self.identity
    }

    fn submit(&mut self, mut io: Io) {
        debug_assert_eq!(self.geometry.check(&io), Ok(()), "{io:?}");
        self.outstanding += 1;
        let token = io.token;
        if io.op == Op::Flush {
            if self.children.len() == 1 {
                return self.pass_on(0, io, Whole::Itself(token));
            }
            let split = self.begin_split(&io);
            for child in 0..self.children.len() {
                let part = Io { flags: io.flags, ..Io::new(0, Op::Flush, io.offset, io.len) };
                self.pass_piece(child, part, split);
            }
            return;
        }
        let child = self.children.partition_point(|child| child.end <= io.offset);
        let room = self.children[child].end - io.offset;
        if io.op == Op::BlockStatus && io.flags.one_extent {
            io.len = io.len.min(room);
        }
        if io.len <= room {
            self.pass_on(child, io, Whole::Itself(token));
        } else {
            self.split(child, &io);
        }
    }

    /// Polls them all, outstanding or not: a descriptor of one may have become readable.
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        let mut kept = start;
        for child in 0..self.children.len() {
            let first = kept;
            self.children[child].volume.poll(done);
            for at in first..done.len() {
                if !self.take_in(child, &mut done[at]) {
                    continue;
                }
                if kept != at {
                    done.swap(kept, at);
                }
                if matches!(done[kept].result, Err(error) if error.op == Op::Flush) {
                    // What the others have completed may have seen the loss.
                    done[start..=kept].rotate_right(1);
                }
                kept += 1;
            }
            done.truncate(kept);
        }
        self.outstanding -= kept - start;
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn copied_bytes(&self) -> u64 {
        self.children.iter().map(|child| child.volume.copied_bytes()).sum()
    }

    fn losses(&self) -> u64 {
        self.children.iter().map(|child| child.volume.losses()).sum()
    }

    /// No volume of several can keep it: it is kept by whoever serves this one.
    fn load_writer(&mut self) -> Result<WriterRecord, IoError> {
        Err(Io::new(0, Op::Read, 0, 0).error(ErrorKind::Unsupported, MODULE))
    }

    fn store_writer(&mut self, _: WriterRecord) -> Result<(), IoError> {
        Err(Io::new(0, Op::Write, 0, 0).error(ErrorKind::Unsupported, MODULE))
    }
}

/// What a read got, in the order of the bytes.
fn join_data(pieces: &mut Vec<Piece>) -> SegList {
    let mut all = SegList::new();
    for piece in pieces.drain(..) {
        debug_assert_eq!(piece.data.bytes() as u64, piece.len, "a read of another length");
        if all.is_empty() {
            all = piece.data;
        } else {
            all.append(piece.data);
        }
    }
    all
}

/// The answers to a block status, up to the first that is shorter than its range.
fn join_extents(pieces: &mut Vec<Piece>) -> Vec<Extent> {
    let mut all = Vec::new();
    for piece in pieces.drain(..) {
        let told: u64 = piece.extents.iter().map(|extent| extent.len).sum();
        if all.is_empty() {
            all = piece.extents;
        } else {
            piece.extents.into_iter().for_each(|extent| push_extent(&mut all, extent));
        }
        if told < piece.len || all.len() >= EXTENTS_MAX {
            break;
        }
    }
    all.truncate(EXTENTS_MAX);
    all
}

/// FNV-1a of 128 bits: the same in every process, on every machine.
struct Fnv(u128);

impl Fnv {
    fn new() -> Self {
        Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
        }
    }

    /// The incarnation is the same hash, folded.
    fn identity(&self) -> Identity {
        let incarnation = (self.0 >> 64) as u64 ^ self.0 as u64;
        Identity { identity: self.0.to_be_bytes(), incarnation }
    }
}
