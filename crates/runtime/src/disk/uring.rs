//! System calls through io_uring: one ring for each disk.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, opcode, types};

use super::engine::{Engine, PAUSE_TIME, SLOTS};
use super::slots::SystemCall;

/// One ring, with the disk's descriptor registered in it.
///
/// The completion queue has room for twice the slots, so it cannot overflow. The ring belongs to
/// the thread that made it.
pub(super) struct Uring {
    ring: IoUring,
    /// In memory that stays: the kernel reads it when a pause is submitted.
    pause: Box<types::Timespec>,
}

const DISK: types::Fixed = types::Fixed(0);

impl Uring {
    /// A ring for `file`. Fails where io_uring is refused (EPERM, ENOSYS) or memory is short.
    pub fn new(file: &File) -> io::Result<Self> {
        let ring = build()?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(Uring { ring, pause: Box::new(types::Timespec::from(PAUSE_TIME)) })
    }

    fn call(&self, wait: usize) {
        loop {
            match self.ring.submitter().submit_and_wait(wait) {
                Ok(_) => return,
                Err(error) => match error.raw_os_error() {
                    // Interrupted, or short of memory for requests: nothing is lost, try again.
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => panic!("io_uring_enter on a ring of our own: {error}"),
                },
            }
        }
    }
}

/// The cheapest way of delivering completions that this kernel knows: cooperative task work (5.19,
/// a single issuer since 6.0) spares the interrupt of a running thread, and a flag in shared memory
/// tells whether a call is needed. A sleeping thread is woken as ever.
///
/// Deferred task work (6.1) would be cheaper still, but whoever sleeps on the ring's descriptor is
/// not woken by it (seen on 6.18: poll sleeps on while a worker has long finished).
fn build() -> io::Result<IoUring> {
    // And one each for a pause, a bell and nothing.
    let entries = SLOTS as u32 + 3;
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
    match builder.build(entries) {
        Err(error) if refused(&error) => IoUring::new(entries),
        other => other,
    }
}

impl Engine for Uring {
    unsafe fn start(&mut self, slot: u32, request: SystemCall) {
        let durable_flag = |durable| if durable { libc::RWF_DSYNC } else { 0 };
        let entry = match request {
            SystemCall::Read { at, len, offset } => {
                opcode::Read::new(DISK, at, len).offset(offset).build()
            }
            SystemCall::Write { pieces, count, offset, durable } => {
                opcode::Writev::new(DISK, pieces, count)
                    .offset(offset)
                    .rw_flags(durable_flag(durable))
                    .build()
            }
            SystemCall::Sync => opcode::Fsync::new(DISK).flags(types::FsyncFlags::DATASYNC).build(),
            SystemCall::Pause => opcode::Timeout::new(&*self.pause).build(),
            SystemCall::Nothing => opcode::Nop::new().build(),
            SystemCall::Bell(fd) => {
                opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build()
            }
            SystemCall::Allocate { mode, offset, len } => {
                opcode::Fallocate::new(DISK, len).offset(offset).mode(mode).build()
            }
        };
        let entry = entry.user_data(u64::from(slot));
        // SAFETY: what the entry points to stays valid until it is reaped: the caller's promise, or
        // ours for the time of a pause. A bell and nothing have no memory.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("as many entries as slots, and three");
    }

    fn enter(&mut self) {
        let queue = self.ring.submission();
        let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if needed {
            self.call(0);
        }
    }

    fn reap(&mut self, ended: &mut Vec<(u32, i32)>) {
        ended
            .extend(self.ring.completion().map(|entry| (entry.user_data() as u32, entry.result())));
    }

    fn wait(&mut self) {
        self.call(1);
    }

    fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel takes a ring down some time after it is closed; until then it would keep the
        // disk open and locked.
        let _ = self.ring.submitter().unregister_files();
    }
}
