//! The disk as a process has it.

use thinwire_volume::{Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, SyncMark, SyncScope, Token};

use super::MediumHandle;
use super::effects::{Flight, SLOW_NS};
use super::records::is_record;
use crate::stamp::SECTOR_BYTES;

/// A process's disk. Dead once the process is: see [`MediumHandle::kill`].
pub struct SimDisk {
    pub(super) handle: MediumHandle,
    pub(super) owner: u32,
    /// Which of its process's rings it is.
    pub(super) ring: usize,
    /// What it is given is done at once: for a command that waits, while time stands still.
    pub(super) at_once: bool,
    /// Operations of the record that are on their way.
    pub(super) syncs: Vec<(Token, SyncMark)>,
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

    /// It only shrinks while nobody has it.
    fn refresh(&mut self, block_bytes: u32) -> u64 {
        let block = u64::from(block_bytes);
        let m = self.handle.medium.borrow();
        let is_owner = self.ring == m.owner_ring;
        let bytes = if is_owner { m.config.bytes } else { m.size_offered };
        bytes / block * block
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
        m.watch_syncs(self.owner, self.ring, &op);
        if is_record(&op.kind) {
            self.syncs.push((op.token, SyncScope::new([m.device.domain.clone()]).begin()));
        }
        let (least, most) = m.config.latency_ns;
        // One that a script has made slow is slow enough.
        let is_slow = m.rng.chance(m.config.slow) && most < SLOW_NS;
        let factor = if is_slow { 100 } else { 1 };
        let takes = m.rng.between(least, most) * factor;
        let effect_at = if self.at_once { m.now } else { m.occupy(takes) };
        let mut done_at = effect_at + m.rng.between(0, least.max(1));
        if m.config.tells_late_ns > 0 {
            done_at += m.rng.between(0, m.config.tells_late_ns);
        }
        let (effect_at, done_at) = if self.at_once { (m.now, m.now) } else { (effect_at, done_at) };
        m.note_slow(m.now, done_at);
        let mark = m.next_number;
        m.flights.push(Flight {
            owner: self.owner,
            ring: self.ring,
            op,
            submitted_at: m.now,
            effect_at,
            done_at,
            mark,
            result: None,
            has_lost: false,
            at_once: self.at_once,
        });
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        let m = &mut *self.handle.medium.borrow_mut();
        if m.owner != self.owner {
            return;
        }
        // For whoever waits for it without letting time pass.
        m.advance(m.now);
        let before = done.len();
        m.take_ready(self.ring, done);
        let scope = SyncScope::new([m.device.domain.clone()]);
        for one in done[before..].iter().filter(|one| is_record(&one.kind)) {
            let of_it = self.syncs.iter().position(|(token, _)| *token == one.token);
            let (_, mark) = self.syncs.swap_remove(of_it.expect("it was submitted"));
            scope.end(mark, one.result.is_err());
        }
    }

    fn wake_soon(&mut self) {
        let m = &mut *self.handle.medium.borrow_mut();
        let at = m.now + 200_000;
        if m.owner == self.owner {
            m.rings[self.ring].wakes_at.get_or_insert(at);
        }
    }

    fn sync_scope(&self) -> SyncScope {
        SyncScope::new([self.handle.medium.borrow().device.domain.clone()])
    }
}

impl Drop for SimDisk {
    /// Nobody will hear how these end.
    fn drop(&mut self) {
        let scope = self.sync_scope();
        for (_, mark) in self.syncs.drain(..) {
            scope.end(mark, true);
        }
    }
}
