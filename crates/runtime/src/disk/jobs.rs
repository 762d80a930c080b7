//! What takes long and has no system call that an engine can make: writer records (several calls, with
//! syncs between them) and block status (up to a thousand seeks). A thread of its own does them, one
//! after another, so that no shard waits for them: records first, since readers may ask for as many
//! block statuses as they like.

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
    /// See [`DiskOpKind::KeepSize`].
    KeepSize(u64),
    /// The content was cut while it was served: at the next opening it is another life of it.
    Cut,
}

/// Does one; the errno if it fails.
pub(super) type Worker = Box<dyn FnMut(&mut Work) -> Result<(), i32> + Send>;

/// Operations for a thread, and what it has done.
pub(super) struct Jobs {
    shared: Arc<Shared>,
    /// Begins with the first operation.
    thread: Option<JoinHandle<()>>,
    outstanding: usize,
    /// Recycled.
    ended: Vec<Ended>,
}

type Ended = (Token, Work, Result<(), i32>);

#[derive(Default)]
struct Queue {
    records: VecDeque<(Token, Work)>,
    statuses: VecDeque<(Token, Work)>,
    stop: bool,
}

struct Shared {
    /// Until the thread takes it.
    worker: Mutex<Option<Worker>>,
    queue: Mutex<Queue>,
    work: Condvar,
    ended: Mutex<Vec<Ended>>,
    /// Readable exactly while `ended` is not empty: only changed under its lock.
    bell: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Nothing runs yet. Fails if the process may not have more descriptors.
    pub fn new(worker: Worker) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            worker: Mutex::new(Some(worker)),
            queue: Mutex::default(),
            work: Condvar::new(),
            ended: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        Ok(Jobs { shared, thread: None, outstanding: 0, ended: Vec::new() })
    }

    /// Takes an operation of one of these kinds. If no thread can be had for it, it ends with
    /// EAGAIN, and the next is tried anew.
    pub fn submit(&mut self, op: DiskOp) {
        let DiskOp { token, offset, len, kind } = op;
        let work = match kind {
            DiskOpKind::BlockStatus(extents) => Work::BlockStatus { offset, len, extents },
            DiskOpKind::LoadWriter(record) => Work::LoadWriter(record),
            DiskOpKind::StoreWriter(record) => Work::StoreWriter(record),
            DiskOpKind::KeepSize => Work::KeepSize(len),
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
        {
            let mut queue = lock(&self.shared.queue);
            match work {
                Work::BlockStatus { .. } => queue.statuses.push_back((token, work)),
                Work::LoadWriter(_) | Work::StoreWriter(_) | Work::KeepSize(_) | Work::Cut => {
                    queue.records.push_back((token, work))
                }
            }
        }
        self.shared.work.notify_one();
    }

    /// The content was cut. Nobody is told how it ends to have that remembered: as little can be done as
    /// about a cut that was not noticed.
    pub fn cut(&mut self) {
        if self.start().is_ok() {
            self.outstanding += 1;
            lock(&self.shared.queue).records.push_front((Token::MAX, Work::Cut));
            self.shared.work.notify_one();
        }
    }

    fn start(&mut self) -> io::Result<()> {
        if self.thread.is_some() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name("disk-jobs".into()).stack_size(128 << 10);
        self.thread = Some(builder.spawn(move || shared.work())?);
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
        {
            let mut ended = lock(&self.shared.ended);
            if ended.is_empty() {
                return;
            }
            self.ended.append(&mut ended);
            let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
        }
        self.outstanding -= self.ended.len();
        done.extend(self.ended.drain(..).filter_map(|(token, work, result)| {
            let kind = match work {
                Work::BlockStatus { extents, .. } => DiskOpKind::BlockStatus(extents),
                Work::LoadWriter(record) => DiskOpKind::LoadWriter(record),
                Work::StoreWriter(record) => DiskOpKind::StoreWriter(record),
                Work::KeepSize(_) => DiskOpKind::KeepSize,
                Work::Cut => return None,
            };
            Some(DiskDone { token, result, kind })
        }));
    }

    /// Readable when [`Jobs::take`] has something.
    pub fn fd(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }

    /// Waits for what runs, and forgets what waits, but for a cut. The bell rings in any case.
    pub fn stop(&mut self) {
        {
            let mut queue = lock(&self.shared.queue);
            queue.records.retain(|(_, work)| matches!(work, Work::Cut));
            queue.statuses.clear();
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
    fn work(&self) {
        let Some(mut worker) = lock(&self.worker).take() else { return };
        loop {
            let mut queue = lock(&self.queue);
            let (token, mut work) = loop {
                let next = queue.records.pop_front().or_else(|| queue.statuses.pop_front());
                if let Some(job) = next {
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
        let mut all = lock(&self.ended);
        all.push(ended);
        self.ring();
    }

    fn ring(&self) {
        // Fails only if it would overflow, and then it is readable already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

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

    #[test]
    fn records_go_before_block_statuses_and_the_bell_is_silent_when_all_is_taken() {
        let (go, gate) = mpsc::channel::<()>();
        let mut jobs = Jobs::new(Box::new(move |_| gate.recv().map_err(|_| libc::EIO))).unwrap();
        let status = || DiskOpKind::BlockStatus(Vec::new());
        for (token, kind) in [
            (0, status()),
            (1, status()),
            (2, status()),
            (3, DiskOpKind::StoreWriter(Box::default())),
        ] {
            jobs.submit(DiskOp { token, offset: 0, len: 1, kind });
        }
        let is_ringing = |jobs: &Jobs| {
            // SAFETY: the descriptor lives as long as `jobs`.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(jobs.fd()) };
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).unwrap() > 0
        };
        let mut done = Vec::new();
        for _ in 0..4 {
            go.send(()).unwrap();
            let before = done.len();
            while done.len() == before {
                jobs.take(&mut done);
                std::thread::yield_now();
            }
            assert!(!is_ringing(&jobs), "nobody would answer it");
        }
        let order: Vec<Token> = done.iter().map(|one| one.token).collect();
        // The thread had begun with the first, or not yet.
        assert!(order == [0, 3, 1, 2] || order == [3, 0, 1, 2], "{order:?}");
    }
}
