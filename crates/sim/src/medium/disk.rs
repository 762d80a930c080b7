//! The disk as a process has it.

use thinwire_volume::{
    Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Extent, SyncScope, WriterRecord,
};

use super::MediumHandle;
use super::effects::Flight;
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
            identity: self.handle.identity(),
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
        // One that a script has made slow is slow enough.
        let is_slow = m.rng.chance(m.config.slow) && most < 1_000_000_000;
        let factor = if is_slow { 100 } else { 1 };
        let effect_at = m.now + m.rng.between(least, most) * factor;
        let done_at = effect_at + m.rng.between(0, least.max(1));
        let mark = m.next_number;
        m.flights.push(Flight {
            owner: self.owner,
            op,
            submitted_at: m.now,
            effect_at,
            done_at,
            mark,
            result: None,
            has_lost: false,
        });
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        let m = &mut *self.handle.medium.borrow_mut();
        if m.owner == self.owner {
            done.append(&mut m.ready);
            m.woken = false;
            m.hear_losses();
        }
    }

    fn wake_soon(&mut self) {
        let m = &mut *self.handle.medium.borrow_mut();
        m.wakes_at.get_or_insert(m.now + 200_000);
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

    fn sync_scope(&self) -> SyncScope {
        SyncScope::new([self.handle.medium.borrow().device.domain.clone()])
    }

    fn load_writer(&mut self) -> Result<WriterRecord, i32> {
        let scope = self.sync_scope();
        let mark = scope.begin();
        let loaded = self.handle.medium.borrow_mut().load_record();
        scope.end(mark, loaded.is_err());
        loaded
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), i32> {
        let scope = self.sync_scope();
        let mark = scope.begin();
        let stored = self.handle.medium.borrow_mut().store_record(record);
        scope.end(mark, stored.is_err());
        stored
    }
}
