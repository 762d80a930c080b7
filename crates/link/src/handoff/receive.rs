//! The network thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use thinwire_buffer::{Addr, Memory, Pool, RxBatch, RxFrame, SegList};

use super::{Shared, take_home};

/// Frames taken from the link at once.
const FRAMES_PER_CALL: usize = 64;
/// Frames that may wait in the notification queue: what comes beyond stays with the kernel, whose
/// room the protocol knows.
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
    copied_bytes: AtomicU64,
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
    pub fn new(link: Arc<Shared>, fd: OwnedFd) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let desk = Arc::new(Desk {
            queue: Mutex::default(),
            spare: Mutex::default(),
            bell: eventfd(0, flags)?,
            stop: eventfd(0, flags)?,
            error: Mutex::default(),
            copied_bytes: AtomicU64::new(0),
        });
        let theirs = desk.clone();
        let thread = std::thread::Builder::new().name("network".into());
        let thread = thread.spawn(move || {
            if let Err(error) = run(&link, &fd, &theirs) {
                *lock(&theirs.error) = Some(error);
                ring(&theirs.bell);
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

    /// Takes over what waits in the notification queue.
    pub fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let desk = &*self.desk;
        let before = out.len();
        let mut now = None;
        while out.len() - before < max {
            let Some(parcel) = lock(&desk.queue).pop_front() else {
                // Silence the bell, then look again: what is put there in between rings anew.
                let mut count = [0; 8];
                let _ = rustix::io::read(&desk.bell, &mut count);
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
        if !self.unused.is_empty() {
            let mut spare = lock(&desk.spare);
            self.unused.truncate(SPARE_MAX.saturating_sub(spare.len()));
            spare.append(&mut self.unused);
        }
        match lock(&desk.error).take() {
            Some(error) => Err(error),
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

fn run(link: &Shared, fd: &OwnedFd, desk: &Desk) -> io::Result<()> {
    let pool = Pool::new(POOL_FREE_BYTES_MAX);
    let mut batch = RxBatch::new();
    let mut timeout = None;
    loop {
        let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(&desk.stop, PollFlags::IN)];
        let watched = if timeout.is_some() { &mut fds[1..] } else { &mut fds[..] };
        match poll(watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        timeout = None;
        loop {
            if lock(&desk.queue).len() >= QUEUE_MAX {
                timeout = Some(FULL_PAUSE);
                break;
            }
            for memory in lock(&desk.spare).drain(..) {
                drop(pool.adopt(memory));
            }
            let mut locked = link.lock();
            if locked.0.recv(&pool, FRAMES_PER_CALL, &mut batch)? == 0 {
                break;
            }
            let copied = batch.iter_mut().map(|frame| take_home(frame, &pool)).sum();
            drop(locked);
            desk.copied_bytes.fetch_add(copied, Ordering::Relaxed);
            pack(&pool, &mut batch, desk);
            ring(&desk.bell);
        }
    }
}

/// Puts frames into the notification queue, those of one piece of memory together.
fn pack(pool: &Pool, batch: &mut RxBatch, desk: &Desk) {
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
        let memory = match first.bytes.into_memory() {
            Ok(memory) => memory,
            // The link holds on to it, too.
            Err(shared) => {
                frames.truncate(1);
                frames[0].offset = 0;
                pool.copy_of(&shared).freeze().into_memory().expect("just made")
            }
        };
        lock(&desk.queue).push_back(Parcel { memory, frames, since });
    }
}
