//! Where blocks are: reads and writes of what is mapped, which go there by reference.

use thinwire_buffer::SegList;
use thinwire_volume::stores::{EXTENTS_MAX, push_extent};
use thinwire_volume::{Completion, ErrorKind, Extent, Io, Op};

use super::drive::{ALONE, Sub};
use super::jobs::{Act, Held, Stage};
use super::rows::{Mapping, VolumeRow};
use super::{Core, PoolCanary};
use crate::meta::tree::TreeStop;

/// A block status looks at so many leaves of a tree of blocks at most.
const STATUS_LEAVES: usize = 16;

/// Bytes of an I/O that lie together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Where, in bytes of the data part; none if no block has them.
    pub data: Option<u64>,
    /// Where in the volume.
    pub offset: u64,
    pub len: u64,
}

impl Core {
    /// Others may have that block, too: it is not to be written.
    #[inline]
    pub(super) fn is_shared(&self, row: &VolumeRow, mapping: &Mapping) -> bool {
        mapping.time < row.shared_before && self.canary != PoolCanary::SharedInPlace
    }

    /// Finds where these blocks are: those that are anywhere, in order.
    #[inline]
    fn look(&mut self, row: &VolumeRow, first: u64, last: u64) -> Result<(), TreeStop> {
        self.found.clear();
        let blocks = row.blocks();
        if last - first < 2 {
            for key in first..=last {
                if let Some(mapping) = self.trees.lookup(blocks, key)? {
                    self.found.push((key, mapping));
                }
            }
            return Ok(());
        }
        let mut next = Some(first);
        while let Some(from) = next {
            next = self.trees.rows(blocks, from..=last, &mut self.found)?;
        }
        Ok(())
    }

    /// Cuts a range of which all blocks were looked up.
    fn cut_runs(&mut self, offset: u64, len: u64) {
        self.runs.clear();
        let shift = self.head.block_shift;
        let (mut at, end) = (offset, offset + len);
        let mut found = self.found.iter().peekable();
        while at < end {
            let key = at >> shift;
            let upto = end.min((key + 1) << shift);
            let data =
                found.next_if(|(of, _)| *of == key).map(|(_, mapping)| self.place_of(mapping, at));
            let len = upto - at;
            match self.runs.last_mut() {
                Some(run) if run.data.map(|data| data + run.len) == data => run.len += len,
                _ => self.runs.push(Run { data, offset: at, len }),
            }
            at = upto;
        }
    }

    /// Where a byte of a volume is on the data part, whose block that is.
    #[inline]
    pub(super) fn place_of(&self, mapping: &Mapping, at: u64) -> u64 {
        let within = at & (self.head.block_bytes() - 1);
        self.data_start + (mapping.block << self.head.block_shift) + within
    }

    pub(super) fn row_of(&self, volume: u64) -> VolumeRow {
        self.entries.get(&volume).expect("it is open").row
    }

    /// Hands a part of a job down.
    #[inline]
    pub(super) fn send(&mut self, job: u32, piece: u32, offset: u64, mut io: Io) {
        let shift = offset.wrapping_sub(io.offset);
        io.token = self.subs.insert(Sub::Job { job, piece, shift }).into();
        self.jobs.get_mut(job).pending += 1;
        self.has_sent = true;
        self.data.submit(io);
    }

    /// A read that has its blocks locked.
    #[inline]
    pub(super) fn read(&mut self, id: u32) -> Result<(), TreeStop> {
        let job = self.jobs.get_mut(id);
        let ((first, last), volume) = (job.blocks(self.head.block_shift), job.volume);
        let (offset, len, flags) = (job.io.offset, job.io.len, job.io.flags);
        let row = self.row_of(volume);
        let losses = self.commits.losses;
        self.look(&row, first, last)?;
        self.cut_runs(offset, len);
        let job = self.jobs.get_mut(id);
        (job.stage, job.losses) = (Stage::Move, losses);
        if let [Run { data: Some(data), offset, len }] = self.runs[..] {
            let io = Io { flags, ..Io::new(0, Op::Read, data, len) };
            self.send(id, ALONE, offset, io);
            return Ok(());
        }
        let mut sent = false;
        for piece in 0..self.runs.len() {
            let Run { data, offset, len } = self.runs[piece];
            self.jobs.get_mut(id).pieces.push(len);
            match data {
                Some(data) => {
                    let io = Io { flags, ..Io::new(0, Op::Read, data, len) };
                    self.send(id, piece as u32, offset, io);
                    sent = true;
                }
                None => {
                    let mut zeroes = Completion::new(0, Ok(()));
                    self.push_zeroes(len, &mut zeroes.data);
                    self.jobs.get_mut(id).pieces.fill(piece, &mut zeroes);
                }
            }
        }
        if !sent {
            self.ripe.push_back(id);
        }
        Ok(())
    }

    /// Appends so many zeroes, which share memory.
    pub(super) fn push_zeroes(&self, mut len: u64, out: &mut SegList) {
        while len > 0 {
            let take = len.min(self.zeroes.len() as u64);
            out.push(self.zeroes.slice(0, take as usize));
            len -= take;
        }
    }

    /// A part of a write that has its blocks locked: where all of them are the volume's own it goes there.
    #[inline]
    pub(super) fn write(&mut self, id: u32) -> Result<(), TreeStop> {
        if let Some(kind) = self.commits.stopped.as_ref().map(|stopped| stopped.kind) {
            self.fail(id, kind);
            return Ok(());
        }
        let losses = self.commits.losses;
        let job = self.jobs.get_mut(id);
        job.losses = losses;
        if job.io.flags.meta && !job.takes_kept && job.io.op == Op::Write {
            self.note_metadata(id)?;
        }
        let job = self.jobs.get_mut(id);
        let ((first, last), volume) = (job.blocks(self.head.block_shift), job.volume);
        let (at, len, act) = (job.at, job.len, job.act);
        let row = self.row_of(volume);
        self.look(&row, first, last)?;
        let is_all = self.found.len() as u64 == last - first + 1;
        let is_own = (is_all || act == Act::Blank)
            && self.found.iter().all(|(_, mapping)| !self.is_shared(&row, mapping));
        let job = self.jobs.get_mut(id);
        // What zeroes a range keeps it locked to its end.
        let is_write = job.io.op == Op::Write;
        match (job.held, is_own) {
            (Held::Exclusive, true) if is_write => {
                self.unlock(id);
                if !self.lock(id, Held::Shared) {
                    return Ok(());
                }
            }
            (Held::Shared, false) => {
                self.unlock(id);
                if !self.lock(id, Held::Exclusive) {
                    return Ok(());
                }
            }
            _ => {}
        }
        if !is_own {
            return self.plan(id, &row);
        }
        self.cut_runs(at, len);
        self.write_in_place(id, volume);
        Ok(())
    }

    /// Writes to blocks of the volume's own, as they were cut.
    fn write_in_place(&mut self, id: u32, volume: u64) {
        let is_clean = !self.is_changed(volume);
        let job = self.jobs.get_mut(id);
        job.stage = Stage::Move;
        let is_write = job.io.op == Op::Write;
        job.is_durable = job.io.flags.fua && is_write && is_clean;
        if self.canary == PoolCanary::FuaWithoutMap && is_write {
            job.is_durable = job.io.flags.fua;
        }
        let (mut flags, start, is_one) = (job.io.flags, job.at, self.runs.len() == 1);
        flags.fua = job.is_durable;
        let mut sent = false;
        for piece in 0..self.runs.len() {
            let Run { data, offset, len } = self.runs[piece];
            // Where there are no blocks there are zeroes already.
            let Some(data) = data else { continue };
            let mut io = Io { flags, ..Io::new(0, Op::Write, data, len) };
            match is_write {
                true if is_one => io.data = std::mem::take(&mut self.jobs.get_mut(id).io.data),
                true => {
                    let from = (offset - start) as usize;
                    let job = self.jobs.get_mut(id);
                    job.io.data.slice_into(from, len as usize, &mut io.data);
                }
                false if self.data.geometry().features.write_zeroes => io.op = Op::WriteZeroes,
                false => self.push_zeroes(len, &mut io.data),
            }
            self.send(id, ALONE, offset, io);
            sent = true;
        }
        if !sent {
            self.ripe.push_back(id);
        }
    }

    /// Data was read, or written.
    pub(super) fn moved(&mut self, id: u32) -> Result<(), TreeStop> {
        let job = self.jobs.get_mut(id);
        if job.error.is_some() {
            self.finish(id);
            return Ok(());
        }
        if job.losses != self.commits.losses {
            return self.move_again(id);
        }
        if job.io.op == Op::Read {
            if job.data.is_empty() {
                job.data = job.pieces.join_data();
            }
            self.finish(id);
            return Ok(());
        }
        if !job.targets.is_empty() {
            job.stage = Stage::Map;
            return self.map(id);
        }
        self.next_part(id);
        Ok(())
    }

    /// What was moved may have been of a block that is not the volume's any more, since data was lost meanwhile: a read looks again, and
    /// what was written is said to be lost.
    #[cold]
    fn move_again(&mut self, id: u32) -> Result<(), TreeStop> {
        let job = self.jobs.get_mut(id);
        if job.io.op == Op::Read {
            job.data = SegList::new();
            job.pieces.clear();
            job.stage = Stage::Look;
            self.ripe.push_back(id);
            return Ok(());
        }
        let kind = self.commits.stopped.as_ref().map_or(ErrorKind::Io, |stopped| stopped.kind);
        self.fail(id, kind);
        Ok(())
    }

    /// A part of what a job changes is done.
    pub(super) fn next_part(&mut self, id: u32) {
        let is_early = self.canary == PoolCanary::FuaWithoutMap;
        let job = self.jobs.get_mut(id);
        job.at += job.len;
        let end = job.io.offset + job.io.len;
        if job.at < end {
            (job.len, job.act, job.stage) = (end - job.at, Act::Plain, Stage::Look);
            self.ripe.push_back(id);
        } else if job.io.flags.fua && !job.is_durable && !is_early {
            job.stage = Stage::Sync;
            self.ripe.push_back(id);
        } else {
            self.finish(id);
        }
    }

    /// Which parts of a range hold data.
    pub(super) fn status(&mut self, id: u32) -> Result<(), TreeStop> {
        let job = self.jobs.get_mut(id);
        let (first, last) = job.blocks(self.head.block_shift);
        let (volume, one_extent) = (job.volume, job.io.flags.one_extent);
        let (offset, end) = (job.io.offset, job.io.offset + job.io.len);
        let blocks = self.row_of(volume).blocks();
        self.found.clear();
        let mut next = Some(first);
        for _ in 0..STATUS_LEAVES {
            let Some(from) = next else { break };
            next = self.trees.rows(blocks, from..=last, &mut self.found)?;
            if one_extent && !self.found.is_empty() {
                break;
            }
        }
        // What was not looked at is not told of.
        let shift = self.head.block_shift;
        let end = next.map_or(end, |next| end.min(next << shift));
        let mut extents = Vec::new();
        let mut at = offset;
        let extent = |len, is_hole| Extent { len, hole: is_hole, zero: is_hole };
        for (key, _) in &self.found {
            let (start, upto) = (at.max(key << shift), end.min((key + 1) << shift));
            push_extent(&mut extents, extent(start - at, true));
            push_extent(&mut extents, extent(upto - start, false));
            at = upto;
            if extents.len() > EXTENTS_MAX {
                break;
            }
        }
        if extents.len() <= EXTENTS_MAX {
            push_extent(&mut extents, extent(end - at, true));
        }
        extents.truncate(if one_extent { 1 } else { EXTENTS_MAX });
        let job = self.jobs.get_mut(id);
        job.pieces.push(job.io.len);
        let mut answer = Completion::new(0, Ok(()));
        answer.extents = extents;
        job.pieces.fill(0, &mut answer);
        self.finish(id);
        Ok(())
    }
}
