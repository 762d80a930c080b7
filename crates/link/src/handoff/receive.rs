//! The network thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use thinwire_buffer::{Addr, Memory, Pool, RxBatch, RxFrame, SegList};

use super::Shared;

/// Frames taken from the link at once.
const FRAMES_PER_CALL: usize = 64;
/// Parcels (a frame each, or a train of them) that may wait in the notification queue: what comes
/// beyond stays with the kernel, whose room the protocol knows.
const QUEUE_MAX: usize = 4096;
/// When it is full, look again after 1 ms.
const FULL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Memory that the network thread keeps for reuse.
const POOL_FREE_BYTES_MAX: usize = 16 << 20;
/// Unused buffers that wait to go back, at most.
const SPARE_MAX: usize = 1024;

/// A piece of memory with the frames in it: one, or a whole train.
struct Parcel {
    memory: Memory,
    frames: Vec<Placed>,
    since: Instant,
}

/// Where in the memory a frame lies.
struct Placed {
    from: Addr,
    offset: usize,
    len: usize,
    waited: Duration,
}

/// Between the two threads.
struct Desk {
    queue: Mutex<VecDeque<Parcel>>,
    /// Unused memory on its way back.
    spare: Mutex<Vec<Memory>>,
    /// Readable while parcels wait.
    bell: OwnedFd,
    /// Readable once the network thread shall end.
    stop: OwnedFd,
    error: Mutex<Option<io::Error>>,
    /// The network thread is no more.
    has_ended: AtomicBool,
    copied_bytes: AtomicU64,
}

/// Tells the owner that the network thread ends, however that comes.
struct Ending<'a>(&'a Desk);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
        ring(&self.0.bell);
    }
}

/// The owner's end.
pub(super) struct Receiver {
    desk: Arc<Desk>,
    /// Unused memory that goes back with the next call's end; kept for its storage.
    unused: Vec<Memory>,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ring(fd: &OwnedFd) {
    // Fails only if it would overflow, and then it is readable already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

impl Receiver {
    /// A thread that sleeps on `sources`, the link's own.
    pub fn new(link: Arc<Shared>, sources: [Option<OwnedFd>; 3]) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let desk = Arc::new(Desk {
            queue: Mutex::default(),
            spare: Mutex::default(),
            bell: eventfd(0, flags)?,
            stop: eventfd(0, flags)?,
            error: Mutex::default(),
            has_ended: AtomicBool::new(false),
            copied_bytes: AtomicU64::new(0),
        });
        let theirs = desk.clone();
        let thread = std::thread::Builder::new().name("network".into());
        let thread = thread.spawn(move || {
            let _ending = Ending(&theirs);
            if let Err(error) = run(&link, sources, &theirs) {
                *lock(&theirs.error) = Some(error);
            }
        })?;
        Ok(Receiver { desk, unused: Vec::new(), thread: Some(thread) })
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.desk.bell.as_fd()
    }

    /// See [`take_home`].
    pub fn copied_bytes(&self) -> u64 {
        self.desk.copied_bytes.load(Ordering::Relaxed)
    }

    /// Takes over what waits in the notification queue. Fails from when the network thread has ended.
    pub fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let desk = &*self.desk;
        let before = out.len();
        let mut now = None;
        let mut is_silenced = false;
        while out.len() - before < max {
            let Some(parcel) = lock(&desk.queue).pop_front() else {
                // Silence the bell, then look again: what is put there in between rings anew.
                let mut count = [0; 8];
                let _ = rustix::io::read(&desk.bell, &mut count);
                is_silenced = true;
                if lock(&desk.queue).is_empty() {
                    break;
                }
                continue;
            };
            let queued = now.get_or_insert_with(Instant::now).duration_since(parcel.since);
            let whole = pool.adopt(parcel.memory).freeze();
            self.unused.extend(pool.give_up(whole.len()));
            for placed in parcel.frames {
                let Placed { from, offset, len, waited } = placed;
                let (bytes, rest) = (whole.slice(offset, len), SegList::new());
                out.push_back(RxFrame { from, bytes, rest, waited: waited + queued, queued });
            }
        }
        // What was put there in between, and is not taken, has nobody else to tell of it.
        if is_silenced && out.len() - before >= max {
            ring(&desk.bell);
        }
        if !self.unused.is_empty() {
            let mut spare = lock(&desk.spare);
            self.unused.truncate(SPARE_MAX.saturating_sub(spare.len()));
            spare.append(&mut self.unused);
        }
        let has_ended = desk.has_ended.load(Ordering::Acquire);
        match lock(&desk.error).take() {
            Some(error) => Err(error),
            None if has_ended => Err(io::Error::other("the thread that receives has ended")),
            None => Ok(out.len() - before),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        ring(&self.desk.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(link: &Shared, sources: [Option<OwnedFd>; 3], desk: &Desk) -> io::Result<()> {
    let pool = Pool::new(POOL_FREE_BYTES_MAX);
    let mut batch = RxBatch::new();
    // Since the queue is full: nothing else wakes it then.
    let mut pause = None;
    let fds = std::iter::once(&desk.stop).chain(sources.iter().flatten());
    let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    loop {
        let watched = if pause.is_some() { &mut fds[..1] } else { &mut fds[..] };
        // The link may have to be looked at although nothing rings.
        let due = || Timespec::try_from(link.lock().0.due_in()?).ok();
        match poll(watched, pause.or_else(due).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        pause = None;
        loop {
            if lock(&desk.queue).len() >= QUEUE_MAX {
                pause = Some(FULL_PAUSE);
                break;
            }
            for memory in lock(&desk.spare).drain(..) {
                drop(pool.adopt(memory));
            }
            let (got, copied) = link.recv(&pool, FRAMES_PER_CALL, &mut batch);
            desk.copied_bytes.fetch_add(copied, Ordering::Relaxed);
            if !batch.is_empty() {
                pack(&mut batch, desk);
                ring(&desk.bell);
            }
            if got? == 0 {
                break;
            }
        }
    }
}

/// Puts frames into the notification queue, those of one piece of memory together.
fn pack(batch: &mut RxBatch, desk: &Desk) {
    let since = Instant::now();
    while let Some(first) = batch.pop_front() {
        let place = |frame: &RxFrame| Placed {
            from: frame.from,
            offset: frame.bytes.offset(),
            len: frame.bytes.len(),
            waited: frame.waited,
        };
        let mut frames = vec![place(&first)];
        while batch.front().is_some_and(|next| next.bytes.shares_memory(&first.bytes)) {
            frames.extend(batch.pop_front().map(|next| place(&next)));
        }
        let memory = first.bytes.into_memory();
        let memory = memory.expect("the frames of a train come together, and no link keeps any");
        lock(&desk.queue).push_back(Parcel { memory, frames, since });
    }
}
