//! The disk as a process has it.

use thinwire_volume::{
    Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Extent, Identity, WriterRecord,
};

use super::MediumHandle;
use super::effects::{EIO, Flight};
use crate::stamp::SECTOR_BYTES;

/// A process's disk. Dead once the process is: see [`MediumHandle::kill`].
pub struct SimDisk {
    pub(super) handle: MediumHandle,
    pub(super) owner: u32,
}

impl Disk for SimDisk {
    fn info(&self) -> DiskInfo {
        let m = self.handle.medium.borrow();
        DiskInfo {
            bytes: m.config.bytes,
            align_bytes: SECTOR_BYTES as u32,
            identity: Identity { identity: self.handle.identity, incarnation: 0 },
            read_only: false,
            punch_hole: true,
            zero_range: true,
        }
    }

    fn submit(&mut self, op: DiskOp) {
        let m = &mut *self.handle.medium.borrow_mut();
        assert_eq!(m.owner, self.owner, "a dead process submits nothing");
        if let DiskOpKind::Write { data, .. } = &op.kind {
            let aligned = |s: &thinwire_buffer::Segment| {
                (s.as_ptr() as usize).is_multiple_of(SECTOR_BYTES)
                    && s.len().is_multiple_of(SECTOR_BYTES)
            };
            assert!(data.iter().all(aligned), "direct I/O needs aligned memory");
        }
        m.watch_overlap(self.owner, &op);
        let (least, most) = m.config.latency_ns;
        let factor = if m.rng.chance(m.config.slow) { 100 } else { 1 };
        let effect_at = m.now + m.rng.between(least, most) * factor;
        // What a failed flush loses is lost when it says so: nobody could be told earlier.
        let is_flush = matches!(op.kind, DiskOpKind::Flush);
        let done_at = effect_at + if is_flush { 0 } else { m.rng.between(0, least.max(1)) };
        let mark = m.next_number;
        m.flights.push(Flight { owner: self.owner, op, effect_at, done_at, mark, result: None });
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        let m = &mut *self.handle.medium.borrow_mut();
        if m.owner == self.owner {
            done.append(&mut m.ready);
        }
    }

    fn block_status(&mut self, offset: u64, len: u64, out: &mut Vec<Extent>) -> Result<(), i32> {
        let m = self.handle.medium.borrow();
        let (mut at, end) = (offset as usize, (offset + len) as usize);
        while at < end {
            let next = ((at / 4096 + 1) * 4096).min(end);
            let hole = m.current[at / 4096 * 4096..][..4096].iter().all(|&b| b == 0);
            out.push(Extent { len: (next - at) as u64, hole, zero: hole });
            at = next;
        }
        Ok(())
    }

    fn load_writer(&mut self) -> WriterRecord {
        self.handle.medium.borrow().writer
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), i32> {
        let m = &mut *self.handle.medium.borrow_mut();
        let rate = m.config.record_failure;
        if m.chance(rate) {
            m.stats.record_failures += 1;
            return Err(EIO);
        }
        m.writer = record;
        Ok(())
    }
}
