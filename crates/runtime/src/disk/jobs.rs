//! What takes long and has no system call that an engine can make: writer records (several calls, with
//! syncs between them) and block status (up to a thousand seeks). A thread of its own does them, one
//! after another, so that no shard waits for them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use thinwire_volume::{DiskDone, DiskOp, DiskOpKind, Extent, Token, WriterRecord};

/// An operation that a thread can take along.
#[derive(Debug)]
pub(super) enum Work {
    /// See [`DiskOpKind::BlockStatus`].
    BlockStatus { offset: u64, len: u64, extents: Vec<Extent> },
    /// See [`DiskOpKind::LoadWriter`].
    LoadWriter(Box<WriterRecord>),
    /// See [`DiskOpKind::StoreWriter`].
    StoreWriter(Box<WriterRecord>),
}

/// Does one; the errno if it fails.
pub(super) type Worker = Box<dyn FnMut(&mut Work) -> Result<(), i32> + Send>;

/// Operations for a thread, and what it has done.
pub(super) struct Jobs {
    shared: Arc<Shared>,
    /// Until the thread begins, which it does with the first operation.
    worker: Option<Worker>,
    thread: Option<JoinHandle<()>>,
    outstanding: usize,
    /// Recycled.
    ended: Vec<Ended>,
}

type Ended = (Token, Work, Result<(), i32>);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Token, Work)>,
    stop: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    ended: Mutex<Vec<Ended>>,
    /// Readable once something has ended, and until that is taken.
    bell: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Nothing runs yet. Fails if the process may not have more descriptors.
    pub fn new(worker: Worker) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            ended: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        Ok(Jobs { shared, worker: Some(worker), thread: None, outstanding: 0, ended: Vec::new() })
    }

    /// Takes an operation of one of the three kinds. If no thread can be had for it, it ends with
    /// EAGAIN.
    pub fn submit(&mut self, op: DiskOp) {
        let DiskOp { token, offset, len, kind } = op;
        let work = match kind {
            DiskOpKind::BlockStatus(extents) => Work::BlockStatus { offset, len, extents },
            DiskOpKind::LoadWriter(record) => Work::LoadWriter(record),
            DiskOpKind::StoreWriter(record) => Work::StoreWriter(record),
            DiskOpKind::Read(_)
            | DiskOpKind::Write { .. }
            | DiskOpKind::Flush
            | DiskOpKind::PunchHole
            | DiskOpKind::ZeroRange => unreachable!("an engine does this"),
        };
        self.outstanding += 1;
        if let Err(error) = self.start() {
            tracing::error!("no thread for the disk's records: {error}");
            return self.shared.end((token, work, Err(libc::EAGAIN)));
        }
        lock(&self.shared.queue).jobs.push_back((token, work));
        self.shared.work.notify_one();
    }

    fn start(&mut self) -> io::Result<()> {
        if self.thread.is_some() {
            return Ok(());
        }
        let worker =
            self.worker.take().ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name("disk-jobs".into()).stack_size(128 << 10);
        self.thread = Some(builder.spawn(move || shared.work(worker))?);
        Ok(())
    }

    /// Operations that were submitted and not taken.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Appends what has ended.
    pub fn take(&mut self, done: &mut Vec<DiskDone>) {
        if self.outstanding == 0 {
            return;
        }
        let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
        self.ended.append(&mut lock(&self.shared.ended));
        self.outstanding -= self.ended.len();
        done.extend(self.ended.drain(..).map(|(token, work, result)| {
            let kind = match work {
                Work::BlockStatus { extents, .. } => DiskOpKind::BlockStatus(extents),
                Work::LoadWriter(record) => DiskOpKind::LoadWriter(record),
                Work::StoreWriter(record) => DiskOpKind::StoreWriter(record),
            };
            DiskDone { token, result, kind }
        }));
    }

    /// Readable when [`Jobs::take`] has something.
    pub fn fd(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }

    /// Waits for what runs, and forgets what waits. The bell rings in any case.
    pub fn stop(&mut self) {
        {
            let mut queue = lock(&self.shared.queue);
            queue.jobs.clear();
            queue.stop = true;
        }
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.ring();
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn work(&self, mut worker: Worker) {
        loop {
            let mut queue = lock(&self.queue);
            let (token, mut work) = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.stop {
                    return;
                }
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            let result = worker(&mut work);
            self.end((token, work, result));
        }
    }

    fn end(&self, ended: Ended) {
        lock(&self.ended).push(ended);
        self.ring();
    }

    fn ring(&self) {
        // Fails only if it would overflow, and then it is readable already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    #[test]
    fn what_a_thread_has_done_comes_back_in_order_and_rings() {
        let mut count = 0;
        let mut jobs = Jobs::new(Box::new(move |work| {
            let Work::StoreWriter(record) = work else { panic!("{work:?}") };
            count += 1;
            record.generation = count;
            if count == 2 { Err(libc::EIO) } else { Ok(()) }
        }))
        .unwrap();
        for token in 0..3 {
            let kind = DiskOpKind::StoreWriter(Box::default());
            jobs.submit(DiskOp { token, offset: 0, len: 0, kind });
        }
        let mut done = Vec::new();
        while done.len() < 3 {
            // SAFETY: the descriptor lives as long as `jobs`.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(jobs.fd()) };
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap();
            jobs.take(&mut done);
        }
        assert_eq!(jobs.outstanding(), 0);
        let seen = done.into_iter().map(|one| {
            let DiskOpKind::StoreWriter(record) = one.kind else { panic!() };
            (one.token, record.generation, one.result)
        });
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [(0, 1, Ok(())), (1, 2, Err(libc::EIO)), (2, 3, Ok(()))]
        );
    }
}
