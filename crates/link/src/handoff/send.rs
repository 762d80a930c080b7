//! The thread that sends for another.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use thinwire_buffer::TxBatch;

use super::Shared;

/// A batch that another thread sends, and its owner takes back.
struct Lent {
    /// Not dropped by whoever it is lent to, even if that one panics.
    batch: ManuallyDrop<TxBatch>,
    since: Instant,
}

// SAFETY: a batch refers to payloads by references that are counted without atomics, which its owner
// may clone and drop at the same time. The thread it is lent to only reads the bytes, which nobody
// changes while a reference exists: it neither clones nor drops a segment, because a lent batch is
// not cleared ([`TxBatch::lend`]), and every batch, sent or not, goes back by [`Desk::sent`].
unsafe impl Send for Lent {}

#[derive(Default)]
struct Queues {
    to_send: VecDeque<Lent>,
    sent: Vec<Lent>,
    stop: bool,
    error: Option<io::Error>,
}

struct Desk {
    queues: Mutex<Queues>,
    wake: Condvar,
    handoffs: AtomicU64,
    handed_over_ns: AtomicU64,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owner's end.
pub(super) struct Sender {
    desk: Arc<Desk>,
    link_fd: Option<OwnedFd>,
    /// Emptied batches, for their storage.
    spare: Vec<TxBatch>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    pub fn new(link: Arc<Shared>) -> io::Result<Self> {
        let link_fd = link.lock().0.fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
        let desk = Arc::new(Desk {
            queues: Mutex::default(),
            wake: Condvar::new(),
            handoffs: AtomicU64::new(0),
            handed_over_ns: AtomicU64::new(0),
        });
        let theirs = desk.clone();
        let thread = std::thread::Builder::new().name("send".into());
        let thread = thread.spawn(move || run(&link, &theirs))?;
        Ok(Sender { desk, link_fd, spare: Vec::new(), thread: Some(thread) })
    }

    /// The link's descriptor, for an owner that receives by itself.
    pub fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link_fd.as_ref().map(AsFd::as_fd)
    }

    /// Batches handed over.
    pub fn handoffs(&self) -> u64 {
        self.desk.handoffs.load(Ordering::Relaxed)
    }

    /// The time that passed, in all, until the other thread had those in which a request ends.
    pub fn handed_over_ns(&self) -> u64 {
        self.desk.handed_over_ns.load(Ordering::Relaxed)
    }

    /// Hands a batch over; `batch` is empty afterwards. The error is of an earlier one.
    pub fn send(&mut self, batch: &mut TxBatch) -> io::Result<()> {
        self.let_go();
        let mut lent = std::mem::replace(batch, self.spare.pop().unwrap_or_default());
        lent.lend(true);
        let mut queues = self.desk.lock();
        queues.to_send.push_back(Lent { batch: ManuallyDrop::new(lent), since: Instant::now() });
        let error = queues.error.take();
        drop(queues);
        self.desk.wake.notify_one();
        error.map_or(Ok(()), Err)
    }

    /// Lets go of the payloads that have been sent.
    pub fn let_go(&mut self) {
        let mut queues = self.desk.lock();
        while let Some(lent) = queues.sent.pop() {
            let mut batch = ManuallyDrop::into_inner(lent.batch);
            batch.lend(false);
            batch.clear();
            self.spare.push(batch);
        }
    }
}

impl Drop for Sender {
    /// Everything that was handed over is sent first: the last may be a goodbye.
    fn drop(&mut self) {
        self.desk.lock().stop = true;
        self.desk.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.let_go();
    }
}

fn run(link: &Shared, desk: &Desk) {
    loop {
        let mut queues = desk.lock();
        let mut lent = loop {
            if let Some(lent) = queues.to_send.pop_front() {
                break lent;
            }
            if queues.stop {
                return;
            }
            queues = desk.wake.wait(queues).unwrap_or_else(PoisonError::into_inner);
        };
        drop(queues);
        desk.handoffs.fetch_add(1, Ordering::Relaxed);
        // Nobody waits for the others: acknowledgements alone, or the beginning of long data.
        if lent.batch.last_pieces() > 0 {
            let waited = lent.since.elapsed().as_nanos() as u64;
            desk.handed_over_ns.fetch_add(waited, Ordering::Relaxed);
        }
        let result = link.lock().0.send(&mut lent.batch);
        let mut queues = desk.lock();
        queues.sent.push(lent);
        if let Err(error) = result {
            queues.error = Some(error);
        }
    }
}
