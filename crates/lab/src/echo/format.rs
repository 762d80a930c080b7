//! The frames of the echo, big endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | kind: 1 read, 2 write, 3 data of reads, 4 writes done |
//! | 1 | 1 | entries |
//! | 2 | 2 | zero |
//! | 4 | 4 | bytes of a block |
//! | 8 | 4 | bytes of blocks in a frame, both ways; a piece is a block, or what of it fits |
//! | 12 | 4 | zero |
//! | 16 | 8 each | entries: number of the request (4), which piece of it (4) |
//! | [`HEAD_BYTES`] | piece each | pieces in the order of the entries, in kinds 2 and 3 |

use thinwire_buffer::{Addr, RxFrame, Segment, TxBatch};
use thinwire_link::HEAD_BYTES;

const FIXED_BYTES: usize = 16;
const ENTRY_BYTES: usize = 8;
/// Requests or completions in a frame without payload.
const SMALL_ENTRIES_MAX: usize = 32;
/// Entries of a frame with payload stand before it.
const LARGE_ENTRIES_MAX: usize = (HEAD_BYTES - FIXED_BYTES) / ENTRY_BYTES;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoKind {
    Read = 1,
    Write = 2,
    Data = 3,
    Done = 4,
}

impl EchoKind {
    fn has_payload(self) -> bool {
        matches!(self, EchoKind::Write | EchoKind::Data)
    }
}

/// How blocks are cut into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of blocks in a frame: several blocks, one, or a part of one.
    pub frame: u32,
}

impl Cut {
    /// `None` if a block is not a whole number of pieces, or larger than a MiB.
    pub fn new(block: u32, frame: u32) -> Option<Self> {
        let piece = block.min(frame);
        (piece > 0 && block % piece == 0 && block <= 1 << 20).then_some(Cut { block, frame })
    }

    /// Bytes of a piece: a block, or what of it fits into a frame.
    pub fn piece(self) -> u32 {
        self.block.min(self.frame)
    }

    /// Pieces of a block.
    pub fn pieces(self) -> u32 {
        self.block / self.piece()
    }
}

/// One entry of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of the request.
    pub number: u32,
    /// Which piece of its block; 0 without payload.
    pub piece: u32,
}

/// A received frame that makes sense.
#[derive(Debug)]
pub struct Parsed<'a> {
    pub kind: EchoKind,
    pub cut: Cut,
    frame: &'a RxFrame,
    entries: usize,
}

impl<'a> Parsed<'a> {
    /// `None` for whatever is not a frame of the echo.
    pub fn new(frame: &'a RxFrame) -> Option<Self> {
        // Whatever a link cuts frames into, their heads are in the first piece.
        let head = &frame.bytes;
        let kind = match *head.first()? {
            1 => EchoKind::Read,
            2 => EchoKind::Write,
            3 => EchoKind::Data,
            4 => EchoKind::Done,
            _ => return None,
        };
        let entries = usize::from(*head.get(1)?);
        let word = |at: usize| {
            head.get(at..at + 4).map(|b| u32::from_be_bytes(b.try_into().expect("four bytes")))
        };
        let cut = Cut::new(word(4)?, word(8)?)?;
        let entries_end = FIXED_BYTES + entries * ENTRY_BYTES;
        let end = match kind.has_payload() {
            true if entries > LARGE_ENTRIES_MAX => return None,
            true => HEAD_BYTES + entries * cut.piece() as usize,
            false => entries_end,
        };
        let is_whole = head.len() >= entries_end && frame.len() >= end;
        is_whole.then_some(Parsed { kind, cut, frame, entries })
    }

    /// Entries, each with the place of its piece in the frame; in frames without payload there is
    /// nothing at that place.
    pub fn entries(&self) -> impl Iterator<Item = (Entry, usize)> + '_ {
        (0..self.entries).map(move |n| {
            let at = FIXED_BYTES + n * ENTRY_BYTES;
            let word = |at: usize| {
                u32::from_be_bytes(self.frame.bytes[at..at + 4].try_into().expect("checked length"))
            };
            let payload = HEAD_BYTES + n * self.cut.piece() as usize;
            (Entry { number: word(at), piece: word(at + 4) }, payload)
        })
    }

    /// Copies a piece from its place.
    pub fn copy(&self, payload: usize, out: &mut [u8]) {
        self.frame.copy_to(payload, out);
    }
}

/// Puts entries into as few frames as they fit.
pub struct Packer {
    kind: EchoKind,
    cut: Cut,
    to: Addr,
    /// Entries of a full frame.
    entries_max: usize,
    /// Entries in the batch's last frame; 0 if it is not ours to add to.
    open: usize,
}

impl Packer {
    /// Frames of a kind, cut like this, for one receiver.
    pub fn new(kind: EchoKind, cut: Cut, to: Addr) -> Self {
        let entries_max = match kind.has_payload() {
            true => ((cut.frame / cut.piece()) as usize).min(LARGE_ENTRIES_MAX),
            false => SMALL_ENTRIES_MAX,
        };
        Packer { kind, cut, to, entries_max, open: 0 }
    }

    /// Adds an entry, with its piece if the kind has payload.
    pub fn add(&mut self, tx: &mut TxBatch, entry: Entry, piece: Option<Segment>) {
        debug_assert_eq!(piece.is_some(), self.kind.has_payload());
        if self.open == 0 || self.open == self.entries_max {
            self.open = 0;
            let head = &mut tx.push(self.to).head;
            head.extend_from_slice(&[self.kind as u8, 0, 0, 0]);
            head.extend_from_slice(&self.cut.block.to_be_bytes());
            head.extend_from_slice(&self.cut.frame.to_be_bytes());
            head.extend_from_slice(&[0; 4]);
            if self.kind.has_payload() {
                // The kernel copies slowly what changes its place in a cache line.
                head.resize(HEAD_BYTES, 0);
            }
        }
        let frame = tx.frames_mut().last_mut().expect("just pushed, or still open");
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&entry.number.to_be_bytes());
        bytes[4..].copy_from_slice(&entry.piece.to_be_bytes());
        match piece {
            Some(piece) => {
                let at = FIXED_BYTES + self.open * ENTRY_BYTES;
                frame.head[at..at + ENTRY_BYTES].copy_from_slice(&bytes);
                frame.data.push(piece);
            }
            None => frame.head.extend_from_slice(&bytes),
        }
        self.open += 1;
        frame.head[1] = self.open as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use thinwire_buffer::{Pool, SegList};

    fn flat(tx: &TxBatch) -> Vec<Vec<u8>> {
        tx.frames().iter().map(|f| [f.head.clone(), f.data.to_vec()].concat()).collect()
    }

    /// As it arrives, in pieces of so many bytes.
    fn arrived(bytes: &[u8], piece: usize) -> RxFrame {
        let pool = Pool::new(1 << 20);
        let mut pieces = bytes.chunks(piece.max(1)).map(|chunk| pool.copy_of(chunk).freeze());
        let mut rest = SegList::new();
        let first = pieces.next().unwrap_or_else(|| pool.copy_of(&[]).freeze());
        pieces.for_each(|piece| rest.push(piece));
        let (waited, queued) = (Duration::ZERO, Duration::ZERO);
        RxFrame { from: Addr::Group, bytes: first, rest, waited, queued }
    }

    #[test]
    fn requests_share_frames_and_come_back_as_they_were() {
        let cut = Cut::new(4096, 8192).unwrap();
        let mut tx = TxBatch::new();
        let mut packer = Packer::new(EchoKind::Read, cut, Addr::Group);
        for number in 0..40 {
            packer.add(&mut tx, Entry { number, piece: 0 }, None);
        }
        let frames = flat(&tx);
        assert_eq!(frames.len(), 2, "32 and 8");
        let frames: Vec<_> = frames.iter().map(|f| arrived(f, 9000)).collect();
        let parsed: Vec<_> = frames.iter().map(|f| Parsed::new(f).unwrap()).collect();
        assert!(parsed.iter().all(|p| p.kind == EchoKind::Read && p.cut == cut));
        let numbers: Vec<u32> =
            parsed.iter().flat_map(|p| p.entries().map(|(e, _)| e.number)).collect();
        assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn two_small_blocks_fill_a_frame_and_a_large_one_fills_several() {
        let pool = Pool::new(1 << 20);
        let (small, large) = (Cut::new(4096, 8192).unwrap(), Cut::new(131072, 8192).unwrap());
        assert_eq!((small.pieces(), large.pieces()), (1, 16));
        for (cut, entries, frames) in [(small, 5, 3), (large, 16, 16)] {
            let mut tx = TxBatch::new();
            let mut packer = Packer::new(EchoKind::Data, cut, Addr::Group);
            for piece in 0..entries {
                let mut memory = pool.get_zeroed(cut.piece() as usize);
                memory.fill(piece as u8);
                packer.add(&mut tx, Entry { number: 7, piece }, Some(memory.freeze()));
            }
            let flat = flat(&tx);
            assert_eq!(flat.len(), frames);
            let mut next = 0;
            for frame in &flat {
                // In one piece, and in pieces as AF_XDP has them.
                let (whole, cut_up) = (arrived(frame, 9000), arrived(frame, 3840));
                let (whole, cut_up) = (Parsed::new(&whole).unwrap(), Parsed::new(&cut_up).unwrap());
                assert!(whole.entries().eq(cut_up.entries()));
                for (entry, payload) in whole.entries() {
                    assert_eq!((entry.number, entry.piece), (7, next));
                    for parsed in [&whole, &cut_up] {
                        let mut bytes = vec![0xff; cut.piece() as usize];
                        parsed.copy(payload, &mut bytes);
                        assert!(bytes.iter().all(|&b| b == next as u8));
                    }
                    next += 1;
                }
            }
            assert_eq!(next, entries);
        }
    }

    #[test]
    fn what_is_cut_short_or_strange_is_no_frame() {
        let mut tx = TxBatch::new();
        let cut = Cut::new(4096, 4096).unwrap();
        let mut packer = Packer::new(EchoKind::Done, cut, Addr::Group);
        packer.add(&mut tx, Entry { number: 1, piece: 0 }, None);
        let frame = flat(&tx).remove(0);
        let is_frame = |bytes: &[u8]| Parsed::new(&arrived(bytes, 9000)).is_some();
        assert!(is_frame(&frame));
        for len in 0..frame.len() {
            assert!(!is_frame(&frame[..len]), "{len} bytes");
        }
        for (at, value) in [(0, 0), (0, 9), (0, 3), (1, 200), (4, 0xff)] {
            let mut bad = frame.clone();
            bad[at] = value;
            assert!(!is_frame(&bad), "byte {at} = {value}");
        }
        assert_eq!(Cut::new(12288, 8192), None);
    }
}
