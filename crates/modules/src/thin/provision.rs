//! Blocks for what has none, or has one that is others', too. The new block is whole, copied or zeroed around what is written, before
//! anything maps it (rule 12); and blocks are there before anything is written (rule 14).

use thinwire_buffer::SegList;
use thinwire_volume::{Io, IoFlags, Op};

use super::drive::{ALONE, AROUND};
use super::jobs::{Act, Stage};
use super::rows::{Mapping, VolumeRow};
use super::{Core, PoolCanary};
use crate::meta::tree::TreeStop;

/// So many I/Os are given blocks at a time: what their mappings take fits into the nodes that are kept back.
const PROVISIONING_MAX: u32 = 32;

/// Where a block of a volume is to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Of the volume.
    key: u64,
    /// Of the data, once there is one.
    block: Option<u64>,
    /// It is a new one, which is not mapped yet.
    is_new: bool,
    /// The block that has what stands around the write; none if that is zeroes.
    from: Option<u64>,
}

impl Core {
    /// Says where each block of a write goes, whose blocks were looked up, and are locked.
    pub(super) fn plan(&mut self, id: u32, row: &VolumeRow) -> Result<(), TreeStop> {
        let shift = self.head.block_shift;
        let job = self.jobs.get_mut(id);
        let ((first, last), act) = (job.blocks(shift), job.act);
        let mut targets = std::mem::take(&mut job.targets);
        let mut found = self.found.iter().peekable();
        for key in first..=last {
            let mapping = found.next_if(|(of, _)| *of == key).map(|(_, mapping)| *mapping);
            targets.push(match mapping {
                Some(mapping) if self.is_shared(row, &mapping) => {
                    Target { key, block: None, is_new: true, from: Some(mapping.block) }
                }
                Some(Mapping { block, .. }) => {
                    Target { key, block: Some(block), is_new: false, from: None }
                }
                None if act == Act::Blank => continue,
                None => Target { key, block: None, is_new: true, from: None },
            });
        }
        let job = self.jobs.get_mut(id);
        (job.targets, job.stage) = (targets, Stage::Reserve);
        self.reserve(id)
    }

    /// Takes blocks for those that lack one, then reads what is to stand around the write.
    pub(super) fn reserve(&mut self, id: u32) -> Result<(), TreeStop> {
        if let Some(stopped) = &self.commits.stopped {
            let kind = stopped.kind;
            self.fail(id, kind);
            return Ok(());
        }
        if !self.jobs.get_mut(id).is_provisioning {
            if self.commits.provisioning == PROVISIONING_MAX {
                self.commits.queue.push_back(id);
                return Ok(());
            }
            self.commits.provisioning += 1;
            self.jobs.get_mut(id).is_provisioning = true;
        }
        for at in 0..self.jobs.get_mut(id).targets.len() {
            if self.jobs.get_mut(id).targets[at].block.is_some() {
                continue;
            }
            match self.take_block(id) {
                Ok(block) => self.jobs.get_mut(id).targets[at].block = Some(block),
                Err(TreeStop::NoBlocks) if self.settle_where_it_is(id, at)? => {}
                Err(stop) => return Err(stop),
            }
        }
        let [head, tail] = self.around(id);
        let shift = self.head.block_shift;
        let job = self.jobs.get_mut(id);
        job.stage = Stage::Fetch;
        let (first, last) = job.blocks(shift);
        let from = |key| {
            let target = job.targets.iter().find(|target| target.key == key && target.is_new);
            target.and_then(|target| target.from)
        };
        let sources = [from(first).filter(|_| head > 0), from(last).filter(|_| tail > 0)];
        let end = job.at + job.len;
        for (which, source) in (0..).zip(sources) {
            let Some(source) = source else { continue };
            let block = self.data_start + (source << shift);
            let (offset, data, len) = match which {
                0 => (first << shift, block, head),
                _ => (end, block + self.head.block_bytes() - tail, tail),
            };
            self.send(id, AROUND + which, offset, Io::new(0, Op::Read, data, len));
        }
        match self.jobs.get_mut(id).pending {
            0 => self.fetched(id),
            _ => Ok(()),
        }
    }

    /// Has a write go to the block that it was to make a copy of, if nobody else has that any more: by the times of snapshots it is shared
    /// although they are deleted, and only counts tell. Asked when there is no room for copies.
    #[cold]
    fn settle_where_it_is(&mut self, id: u32, at: usize) -> Result<bool, TreeStop> {
        let job = self.jobs.get_mut(id);
        let (target, volume) = (job.targets[at], job.volume);
        let Some(block) = target.from else { return Ok(false) };
        let blocks = self.row_of(volume).blocks();
        let mut own = Vec::<(u64, Mapping)>::new();
        self.trees.own_rows(blocks, target.key..=target.key, &mut own)?;
        if own.is_empty() || self.trees.block_count(block)? > 1 {
            return Ok(false);
        }
        // Whoever had it might have it again after a crash, or if a label rots.
        let is_durable = !self.wants_commit() && !self.commits.is_under_way();
        if !is_durable && self.canary != PoolCanary::OwnBeforeDurable {
            return Err(TreeStop::Commit);
        }
        self.jobs.get_mut(id).targets[at] =
            Target { block: Some(block), is_new: false, from: None, ..target };
        Ok(true)
    }

    /// How many bytes of its first block are before a write, and of its last one behind it.
    fn around(&mut self, id: u32) -> [u64; 2] {
        let block = self.head.block_bytes();
        let job = self.jobs.get_mut(id);
        let end = job.at + job.len;
        [job.at & (block - 1), end.next_multiple_of(block) - end]
    }

    /// All is there: new blocks are written as a whole, the others where they are.
    pub(super) fn fetched(&mut self, id: u32) -> Result<(), TreeStop> {
        if self.jobs.get_mut(id).error.is_some() {
            self.finish(id);
            return Ok(());
        }
        let ([head, tail], shift) = (self.around(id), self.head.block_shift);
        let block_bytes = self.head.block_bytes();
        let longest = u64::from(self.data.geometry().io_bytes_max);
        let job = self.jobs.get_mut(id);
        job.stage = Stage::Move;
        let (start, end) = (job.at, job.at + job.len);
        let (first, last) = job.blocks(shift);
        let is_write = job.io.op == Op::Write;
        let targets = std::mem::take(&mut job.targets);
        let payload = std::mem::take(&mut job.io.data);
        let flags = IoFlags { meta: job.io.flags.meta, ..IoFlags::default() };
        let mut around = std::mem::take(&mut job.around);
        let is_half = self.canary == PoolCanary::HalfANewBlock;
        // What is put together, where it goes, and where its first byte is in the volume.
        let (mut data, mut to, mut offset) = (SegList::new(), 0, 0);
        for target in &targets {
            let block = target.block.expect("it was reserved");
            let (from, upto) = (start.max(target.key << shift), end.min((target.key + 1) << shift));
            let is_whole = target.is_new && !is_half;
            let before = if is_whole && target.key == first { head } else { 0 };
            let behind = if is_whole && target.key == last { tail } else { 0 };
            let place = self.data_start + (block << shift) + (from & (block_bytes - 1)) - before;
            let len = before + (upto - from) + behind;
            let so_far = data.bytes() as u64;
            if so_far > 0 && (to + so_far != place || so_far + len > longest) {
                let data = std::mem::take(&mut data);
                let io = Io { data, flags, ..Io::new(0, Op::Write, to, so_far) };
                self.send(id, ALONE, offset, io);
            }
            if data.is_empty() {
                (to, offset) = (place, from - before);
            }
            let mut surround = |len, which: usize, data: &mut SegList| match target.from {
                _ if len == 0 => {}
                Some(_) => data.append(std::mem::take(&mut around[which])),
                None => self.push_zeroes(len, data),
            };
            surround(before, 0, &mut data);
            match is_write {
                true => {
                    payload.slice_into((from - start) as usize, (upto - from) as usize, &mut data)
                }
                false => self.push_zeroes(upto - from, &mut data),
            }
            surround(behind, 1, &mut data);
        }
        let len = data.bytes() as u64;
        let io = Io { data, flags, ..Io::new(0, Op::Write, to, len) };
        self.send(id, ALONE, offset, io);
        self.jobs.get_mut(id).targets = targets;
        if self.canary == PoolCanary::MapsBeforeData && !self.commits.is_stopped() {
            let mapped = self.map_targets(id);
            debug_assert!(!matches!(mapped, Err(TreeStop::Fault(_))));
            // What is left does as if it had been mapped later.
            if mapped.is_ok() {
                self.jobs.get_mut(id).targets.clear();
            }
        }
        Ok(())
    }

    /// New blocks have their data, and get their place.
    pub(super) fn map(&mut self, id: u32) -> Result<(), TreeStop> {
        if let Some(stopped) = &self.commits.stopped {
            let kind = stopped.kind;
            self.fail(id, kind);
            return Ok(());
        }
        self.map_targets(id)?;
        self.jobs.get_mut(id).targets.clear();
        self.end_provisioning(id);
        self.next_part(id);
        Ok(())
    }

    fn map_targets(&mut self, id: u32) -> Result<(), TreeStop> {
        let job = self.jobs.get_mut(id);
        let volume = job.volume;
        let mut row = self.entries.get(&volume).expect("it is open").row;
        // They may use what is kept back: nobody begins who had no room without.
        let mut change = self.trees.change_to_free()?;
        let mut blocks = row.blocks();
        for target in job.targets.iter().filter(|target| target.is_new) {
            let block = target.block.expect("it was reserved");
            change.take_reserved(block);
            let mapping = Mapping { block, time: self.head.time };
            let (tree, before) = change.insert(blocks, target.key, &mapping)?;
            blocks = tree;
            match before {
                Some(before) => change.give_back_block(before.block)?,
                None => row.mapped += 1,
            }
        }
        row.root = blocks.at;
        let (volumes, _) = change.insert(self.volumes, volume, &row)?;
        change.apply()?;
        self.volumes = volumes;
        self.set_row(volume, row);
        Ok(())
    }

    /// Blocks that a job was given, and does not map, are free again.
    pub(super) fn give_up_targets(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        for target in job.targets.drain(..).filter(|target| target.is_new) {
            if let Some(block) = target.block {
                self.trees.give_out(block);
            }
        }
        self.end_provisioning(id);
    }

    /// Another one comes on in its place.
    fn end_provisioning(&mut self, id: u32) {
        if std::mem::take(&mut self.jobs.get_mut(id).is_provisioning) {
            self.commits.provisioning -= 1;
            self.ripe.extend(self.commits.queue.pop_front());
        }
    }
}
