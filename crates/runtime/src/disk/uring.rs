//! System calls through io_uring, in the ring of the thread.

use std::fs::File;
use std::io;
use std::os::fd::RawFd;

use io_uring::{opcode, types};

use super::engine::{Engine, PAUSE_TIME};
use super::ring::{self, Place};
use super::slots::SystemCall;

/// A disk's place in the ring of its thread.
pub(super) struct Uring {
    place: Place,
}

/// In memory that stays: the kernel reads it when a pause is submitted, by when its disk may be gone.
static PAUSE: types::Timespec = types::Timespec::new().nsec(PAUSE_TIME.subsec_nanos());

impl Uring {
    /// A place for `file`. Fails where io_uring is refused (EPERM, ENOSYS) or memory is short.
    pub fn new(file: &File) -> io::Result<Self> {
        Ok(Uring { place: Place::new(ring::of_this_thread()?, file) })
    }
}

impl Engine for Uring {
    unsafe fn start(&mut self, slot: u32, request: SystemCall) {
        let durable_flag = |durable| if durable { libc::RWF_DSYNC } else { 0 };
        let file = self.place.file();
        let entry = match request {
            SystemCall::Read { at, len, offset } => {
                opcode::Read::new(file, at, len).offset(offset).build()
            }
            SystemCall::ReadPieces { pieces, count, offset } => {
                opcode::Readv::new(file, pieces, count).offset(offset).build()
            }
            SystemCall::Write { pieces, count, offset, durable } => {
                opcode::Writev::new(file, pieces, count)
                    .offset(offset)
                    .rw_flags(durable_flag(durable))
                    .build()
            }
            SystemCall::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            SystemCall::Pause => opcode::Timeout::new(&PAUSE).build(),
            SystemCall::Nothing => opcode::Nop::new().build(),
            SystemCall::Bell(fd) => {
                opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build()
            }
            SystemCall::Allocate { mode, offset, len } => {
                opcode::Fallocate::new(file, len).offset(offset).mode(mode).build()
            }
        };
        // SAFETY: what the entry points to stays valid until it is reaped: the caller's promise, and
        // the time of a pause does anyway. A bell and nothing have no memory.
        unsafe { self.place.start(slot, entry) };
    }

    fn enter(&mut self) {
        self.place.enter();
    }

    fn reap(&mut self, ended: &mut Vec<(u32, i32)>) {
        self.place.reap(ended);
    }

    fn wait(&mut self) {
        self.place.wait();
    }

    fn fd(&self) -> RawFd {
        self.place.ring_fd()
    }
}
