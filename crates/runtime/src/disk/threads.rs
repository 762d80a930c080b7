//! System calls by a few threads, where io_uring is refused.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags};

use super::engine::{Engine, PAUSE_TIME, SLOTS};
use super::slots::SystemCall;

/// Threads for each disk. They wait for the device most of the time; this many keep a device busy.
const THREADS: usize = 8;

struct Job {
    slot: u32,
    request: SystemCall,
}

// SAFETY: the pointers lead to memory that belongs to the slot and that nobody else touches until
// the job's result is reaped (the promise made to `Engine::start`); until then one thread uses them.
unsafe impl Send for Job {}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

struct Shared {
    file: Arc<File>,
    queue: Mutex<Queue>,
    work: Condvar,
    ended: Mutex<Vec<(u32, i32)>>,
    some_ended: Condvar,
    /// Readable exactly while `ended` is not empty: only changed under its lock.
    event: OwnedFd,
}

/// A few threads that make the calls one by one.
pub(super) struct Threads {
    shared: Arc<Shared>,
    started: Vec<Job>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Threads for `file`. Fails when the process may not have more threads or descriptors.
    pub fn new(file: &Arc<File>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file: file.clone(),
            queue: Mutex::new(Queue { jobs: VecDeque::with_capacity(SLOTS), stop: false }),
            work: Condvar::new(),
            ended: Mutex::new(Vec::with_capacity(SLOTS)),
            some_ended: Condvar::new(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let mut threads =
            Threads { shared, started: Vec::with_capacity(SLOTS), threads: Vec::new() };
        for number in 0..THREADS {
            let shared = threads.shared.clone();
            let builder = std::thread::Builder::new().name(format!("disk-{number}"));
            // On failure the value is dropped, which stops those that run.
            threads.threads.push(builder.stack_size(128 << 10).spawn(move || shared.work())?);
        }
        Ok(threads)
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock().expect("no thread panics");
            let job = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.stop {
                    return;
                }
                queue = self.work.wait(queue).expect("no thread panics");
            };
            drop(queue);
            let result = match self.perform(job.request) {
                Ok(count) => count as i32,
                Err(errno) => -errno.raw_os_error(),
            };
            let mut ended = self.ended.lock().expect("no thread panics");
            ended.push((job.slot, result));
            if ended.len() == 1 {
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            }
            self.some_ended.notify_one();
        }
    }

    fn perform(&self, request: SystemCall) -> Result<usize, Errno> {
        let file = &*self.file;
        match request {
            SystemCall::Pause => {
                std::thread::sleep(PAUSE_TIME);
                Ok(0)
            }
            SystemCall::Nothing => Ok(0),
            SystemCall::Bell(fd) => {
                // SAFETY: whoever waits for a bell keeps it open until this has ended.
                let bell = unsafe { BorrowedFd::borrow_raw(fd) };
                poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], None)
            }
            SystemCall::Read { at, len, offset } => {
                // SAFETY: `at` leads to `len` initialised bytes that are this job's alone.
                let place = unsafe { std::slice::from_raw_parts_mut(at, len as usize) };
                rustix::io::pread(file, place, offset)
            }
            SystemCall::ReadPieces { pieces, count, offset } => {
                // SAFETY: `count` pieces, of initialised memory that is this job's alone; `IoSliceMut` has the
                // layout of `iovec`.
                let places = unsafe {
                    let pieces = pieces.cast_mut().cast::<IoSliceMut>();
                    std::slice::from_raw_parts_mut(pieces, count as usize)
                };
                rustix::io::preadv(file, places, offset)
            }
            SystemCall::Write { pieces, count, offset, durable } => {
                // SAFETY: `count` pieces, of memory that nobody writes until the job has ended;
                // `IoSlice` has the layout of `iovec`.
                let pieces =
                    unsafe { std::slice::from_raw_parts(pieces.cast::<IoSlice>(), count as usize) };
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                rustix::io::pwritev2(file, pieces, offset, flags)
            }
            SystemCall::Sync => fdatasync(file).map(|()| 0),
            SystemCall::Allocate { mode, offset, len } => {
                let mode = FallocateFlags::from_bits_retain(mode as u32);
                fallocate(file, mode, offset, len).map(|()| 0)
            }
        }
    }
}

impl Engine for Threads {
    unsafe fn start(&mut self, slot: u32, request: SystemCall) {
        self.started.push(Job { slot, request });
    }

    fn enter(&mut self) {
        if self.started.is_empty() {
            return;
        }
        let count = self.started.len();
        self.shared.queue.lock().expect("no thread panics").jobs.extend(self.started.drain(..));
        if count == 1 {
            self.shared.work.notify_one();
        } else {
            self.shared.work.notify_all();
        }
    }

    fn reap(&mut self, out: &mut Vec<(u32, i32)>) {
        let mut ended = self.shared.ended.lock().expect("no thread panics");
        if !ended.is_empty() {
            out.append(&mut ended);
            let _ = rustix::io::read(&self.shared.event, &mut [0u8; 8]);
        }
    }

    fn wait(&mut self) {
        let mut ended = self.shared.ended.lock().expect("no thread panics");
        while ended.is_empty() {
            ended = self.shared.some_ended.wait(ended).expect("no thread panics");
        }
    }

    fn fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.queue.lock().expect("no thread panics").stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
