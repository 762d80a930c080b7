//! The loop that copies.

use thinwire_buffer::{SegList, Segment};
use thinwire_volume::{Completion, Geometry, Io, Op};

use super::map::{MAP_TOKEN, Map, MapPart};
use super::pair::{CopyPair, SLOTS, Taken, Watch};
use crate::error::{Failure, Outcome};

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes that were read and written as data.
    pub data_bytes: u64,
}

/// One part in work: first on the source, then on the destination.
#[derive(Clone, Copy, Default)]
struct CopiedPart {
    offset: u64,
    len: u64,
    /// Bytes of it in the request that is outstanding at the destination.
    step: u64,
}

struct Job<'a, 'b> {
    pair: &'b mut CopyPair<'a>,
    to: Geometry,
    map: Map,
    blank: bool,
    slots: [CopiedPart; SLOTS],
    free: Vec<usize>,
    zeroes: Segment,
    copied: Copied,
    done_bytes: u64,
}

/// Copies the whole source to the beginning of the destination and flushes. `blank`: the
/// destination is known to read as zeroes. Nothing is outstanding on return, unless an error or a
/// signal ended it.
pub fn copy(pair: &mut CopyPair<'_>, blank: bool, watch: &mut Watch<'_>) -> Outcome<Copied> {
    let (from, to, piece) = pair.fit()?;
    let align = u64::from(from.block_bytes.max(to.block_bytes));
    let zeroes = pair.destination.pool().get_zeroed(piece as usize);
    let mut job = Job {
        pair,
        to,
        map: Map::new(from.bytes, piece, align, from.features.block_status),
        blank,
        slots: [CopiedPart::default(); SLOTS],
        free: (0..SLOTS).rev().collect(),
        zeroes: zeroes.freeze(),
        copied: Copied { bytes: from.bytes, data_bytes: 0 },
        done_bytes: 0,
    };
    let mut taken = Taken::default();
    loop {
        job.start();
        if job.map.is_done() && job.free.len() == SLOTS {
            break;
        }
        job.pair.take(&mut taken)?;
        for completion in taken.source.drain(..) {
            job.on_source(completion)?;
        }
        for completion in taken.destination.drain(..) {
            job.on_destination(completion)?;
        }
        watch.glance(job.done_bytes)?;
    }
    job.pair.destination.volume().submit(Io::new(0, Op::Flush, 0, 0));
    while taken.destination.is_empty() {
        job.pair.take(&mut taken)?;
        watch.glance(job.done_bytes)?;
    }
    let flushed = taken.destination.pop().expect("not empty");
    flushed.result.map_err(|e| job.pair.io_failure(false, e))?;
    (watch.progress)(from.bytes);
    Ok(job.copied)
}

impl Job<'_, '_> {
    /// Starts as much as there are slots for.
    fn start(&mut self) {
        if let Some(io) = self.map.ask() {
            self.pair.source.volume().submit(io);
        }
        while !self.free.is_empty() {
            match self.map.next() {
                None => return,
                Some(MapPart::Data { offset, len }) => {
                    let token = self.take_slot(offset, len);
                    let io = Io::new(token as u64, Op::Read, offset, len);
                    self.pair.source.volume().submit(io);
                }
                Some(MapPart::Zeroes { offset, len }) if !self.blank => {
                    let token = self.take_slot(offset, len);
                    self.write_zeroes(token);
                }
                Some(MapPart::Zeroes { len, .. }) => self.done_bytes += len,
            }
        }
    }

    fn take_slot(&mut self, offset: u64, len: u64) -> usize {
        let token = self.free.pop().expect("checked by the caller");
        self.slots[token] = CopiedPart { offset, len, step: 0 };
        token
    }

    fn on_source(&mut self, completion: Completion) -> Outcome {
        if completion.token == MAP_TOKEN {
            self.map.answer(&completion);
            return Ok(());
        }
        completion.result.map_err(|e| self.pair.io_failure(true, e))?;
        let token = completion.token as usize;
        let CopiedPart { offset, len, .. } = self.slots[token];
        if completion.data.bytes() as u64 != len {
            return Err(Failure::failed(format!(
                "source: the read of {len} bytes at {offset} gave {} bytes",
                completion.data.bytes()
            )));
        }
        if is_zero(&completion.data) {
            match self.blank {
                true => {
                    self.done_bytes += len;
                    self.free.push(token);
                }
                false => self.write_zeroes(token),
            }
            return Ok(());
        }
        self.copied.data_bytes += len;
        self.slots[token].step = len;
        let mut io = Io::new(token as u64, Op::Write, offset, len);
        // What the source gave is what the destination gets: no byte is moved here.
        io.data = completion.data;
        self.write(io);
        Ok(())
    }

    fn write(&mut self, io: Io) {
        self.pair.has_written = true;
        self.pair.destination.volume().submit(io);
    }

    /// Makes a slot's range read as zeroes: at once if the destination can, else piece by piece.
    fn write_zeroes(&mut self, token: usize) {
        let CopiedPart { offset, len, .. } = self.slots[token];
        let able = self.to.features.write_zeroes;
        let step = if able { len } else { len.min(self.zeroes.len() as u64) };
        let op = if able { Op::WriteZeroes } else { Op::Write };
        let mut io = Io::new(token as u64, op, offset, step);
        if !able {
            io.data = SegList::of(self.zeroes.slice(0, step as usize));
        }
        self.slots[token].step = step;
        self.write(io);
    }

    fn on_destination(&mut self, completion: Completion) -> Outcome {
        completion.result.map_err(|e| self.pair.io_failure(false, e))?;
        let token = completion.token as usize;
        let slot = &mut self.slots[token];
        slot.offset += slot.step;
        slot.len -= slot.step;
        self.done_bytes += slot.step;
        match slot.len {
            0 => self.free.push(token),
            // Only zeroes are written in steps.
            _ => self.write_zeroes(token),
        }
        Ok(())
    }
}

fn is_zero(data: &SegList) -> bool {
    data.iter().all(|segment| {
        let (words, rest) = segment.as_chunks::<16>();
        words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|b| *b == 0)
    })
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
