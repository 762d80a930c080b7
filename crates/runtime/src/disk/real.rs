//! A disk of the machine: the in-flight table between the [`Disk`] interface and an engine.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{FlockOperation, SeekFrom, flock, fstat, seek};
use rustix::io::Errno;
use thinwire_volume::{
    Disk, DiskDone, DiskInfo, DiskOp, DiskOpKind, Extent, SyncScope, WriterRecord,
};

use super::engine::{Engine, PAUSE, SLOTS};
use super::slots::{InFlight, Step, SystemCall};
use super::writer::WriterStore;

/// A block status looks at no more than this many extents: each costs a system call.
const EXTENTS_MAX: usize = 1024;

/// How often one poll goes back for what its own completions made possible.
const ROUNDS_MAX: usize = 4;

/// An open, locked file or block device.
///
/// At most [`SLOTS`] operations are in the kernel; more wait here, in order. Dropping the disk
/// waits for what is in the kernel, since the memory of it belongs to the kernel till then, forgets
/// what waits, and lets go of the lock.
pub(super) struct RealDisk<E: Engine> {
    pub file: Arc<File>,
    pub path: PathBuf,
    pub info: DiskInfo,
    /// A block device: it cannot shrink, and has no holes.
    pub device: bool,
    pub writer: WriterStore,
    scope: SyncScope,
    engine: E,
    slots: Vec<InFlight>,
    free: Vec<u32>,
    backlog: VecDeque<DiskOp>,
    ended: Vec<(u32, i32)>,
    /// A pause is under way.
    pausing: bool,
    /// Found shorter than it was when opened. Stays: what was there is gone.
    shrunk: bool,
}

/// What [`RealDisk::new`] is made of.
pub(super) struct Parts {
    pub file: Arc<File>,
    pub path: PathBuf,
    pub info: DiskInfo,
    pub device: bool,
    pub writer: WriterStore,
    pub scope: SyncScope,
}

impl<E: Engine> RealDisk<E> {
    pub fn new(parts: Parts, engine: E) -> Self {
        let Parts { file, path, info, device, writer, scope } = parts;
        RealDisk {
            file,
            path,
            info,
            device,
            writer,
            scope,
            engine,
            slots: (0..SLOTS).map(|_| InFlight::default()).collect(),
            free: (0..SLOTS as u32).rev().collect(),
            backlog: VecDeque::with_capacity(SLOTS),
            ended: Vec::with_capacity(SLOTS),
            pausing: false,
            shrunk: false,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.engine.fd()
    }

    fn start(&mut self, slot: u32) {
        let request = self.slots[slot as usize].request();
        // SAFETY: the slot owns the memory behind the request and is not touched before the engine
        // returns it; `slots` never grows, and dropping the disk waits for the engine first.
        unsafe { self.engine.start(slot, request) };
    }

    /// Looks whether the file still has its size. A write beyond the end of a file that was cut
    /// would make it long again, with zeroes in between that nobody wrote.
    fn check_size(&mut self) {
        if self.device || self.shrunk {
            return;
        }
        match fstat(&*self.file) {
            Ok(stat) if stat.st_size as u64 >= self.info.bytes => {}
            Ok(stat) => self.has_shrunk(Some(stat.st_size as u64)),
            Err(_) => self.has_shrunk(None),
        }
    }

    fn has_shrunk(&mut self, bytes: Option<u64>) {
        self.shrunk = true;
        tracing::error!(
            path = %self.path.display(),
            bytes_at_open = self.info.bytes,
            bytes_now = bytes,
            "the file became shorter while it was served: reads beyond its end and all writes fail \
             until it is opened again"
        );
    }

    /// Gives waiting operations to the engine, as far as there are slots.
    fn admit(&mut self, done: &mut Vec<DiskDone>) {
        let writes = |op: &DiskOp| !matches!(op.kind, DiskOpKind::Read(_));
        if self.backlog.iter().any(writes) {
            self.check_size();
        }
        while let Some(&slot) = self.free.last() {
            let Some(op) = self.backlog.pop_front() else { return };
            if self.shrunk && writes(&op) {
                let DiskOp { token, kind, .. } = op;
                done.push(DiskDone { token, result: Err(libc::EIO), kind });
                continue;
            }
            self.free.pop();
            self.slots[slot as usize].load(op);
            self.start(slot);
        }
    }

    /// Takes in what the engine has finished; true if a call was started anew.
    fn take_in(&mut self, done: &mut Vec<DiskDone>) -> bool {
        let mut again = false;
        let mut ended = std::mem::take(&mut self.ended);
        self.engine.reap(&mut ended);
        for (slot, result) in ended.drain(..) {
            if slot == PAUSE {
                self.pausing = false;
                continue;
            }
            match self.slots[slot as usize].advance(result) {
                Step::Again => {
                    self.start(slot);
                    again = true;
                }
                Step::Done(op, result) => {
                    self.free.push(slot);
                    if result == Err(libc::EIO) && matches!(op.kind, DiskOpKind::Read(_)) {
                        self.check_size();
                    }
                    done.push(DiskDone { token: op.token, result, kind: op.kind });
                }
            }
        }
        self.ended = ended;
        again
    }
}

impl<E: Engine> Disk for RealDisk<E> {
    fn info(&self) -> DiskInfo {
        self.info
    }

    fn submit(&mut self, op: DiskOp) {
        self.backlog.push_back(op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        for round in 0.. {
            self.admit(done);
            self.engine.enter();
            if round == ROUNDS_MAX {
                break;
            }
            let again = self.take_in(done);
            let waiting = !self.backlog.is_empty() && !self.free.is_empty();
            if !again && !waiting {
                break;
            }
        }
    }

    fn wake_soon(&mut self) {
        if !std::mem::replace(&mut self.pausing, true) {
            // SAFETY: a pause has no memory, and only one is under way.
            unsafe { self.engine.start(PAUSE, SystemCall::Pause) };
            self.engine.enter();
        }
    }

    fn block_status(&mut self, offset: u64, len: u64, out: &mut Vec<Extent>) -> Result<(), i32> {
        let end = offset + len;
        let run = |len, hole| Extent { len, hole, zero: hole };
        if self.device {
            out.push(run(len, false));
            return Ok(());
        }
        self.check_size();
        if self.shrunk {
            return Err(libc::EIO);
        }
        let mut at = offset;
        for _ in 0..EXTENTS_MAX / 2 {
            let data = match seek(&*self.file, SeekFrom::Data(at)) {
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
            let hole = match seek(&*self.file, SeekFrom::Hole(data)) {
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

    fn sync_scope(&self) -> SyncScope {
        self.scope.clone()
    }

    fn load_writer(&mut self) -> Result<WriterRecord, i32> {
        self.writer.load(&self.file, &self.scope)
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), i32> {
        if self.info.read_only {
            return Err(libc::EROFS);
        }
        self.writer.store(&self.file, &self.scope, record)
    }
}

impl<E: Engine> Drop for RealDisk<E> {
    fn drop(&mut self) {
        self.backlog.clear();
        self.engine.enter();
        while self.free.len() < self.slots.len() {
            self.engine.wait();
            self.take_in(&mut Vec::new());
            self.engine.enter();
        }
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}
