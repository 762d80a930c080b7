//! The thread that sends for another.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thinwire_buffer::TxBatch;

use super::Shared;
use crate::{Outlet, WAITING_FRAMES_MAX};

/// How long everything that waits may take when the link is closed.
const CLOSING_TIME: Duration = Duration::from_secs(1);

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
    /// In `to_send`.
    frames: usize,
    sent: Vec<Lent>,
    /// When to give up what is not sent; `None` as long as the link is used.
    stop: Option<Instant>,
    error: Option<io::Error>,
    /// The thread is no more.
    has_ended: bool,
}

struct Desk {
    queues: Mutex<Queues>,
    wake: Condvar,
    handoffs: AtomicU64,
    handed_over_ns: AtomicU64,
    /// Frames that were never sent.
    dropped: AtomicU64,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The owner's end.
pub(super) struct Sender {
    desk: Arc<Desk>,
    /// Emptied batches, for their storage.
    spare: Vec<TxBatch>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    pub fn new(link: Arc<Shared>) -> io::Result<Self> {
        let desk = Arc::new(Desk {
            queues: Mutex::default(),
            wake: Condvar::new(),
            handoffs: AtomicU64::new(0),
            handed_over_ns: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let theirs = desk.clone();
        let thread = std::thread::Builder::new().name("send".into());
        let thread = thread.spawn(move || run(&link, &theirs))?;
        Ok(Sender { desk, spare: Vec::new(), thread: Some(thread) })
    }

    /// Batches handed over.
    pub fn handoffs(&self) -> u64 {
        self.desk.handoffs.load(Ordering::Relaxed)
    }

    /// The time that passed, in all, until the other thread had those in which a request ends.
    pub fn handed_over_ns(&self) -> u64 {
        self.desk.handed_over_ns.load(Ordering::Relaxed)
    }

    /// Frames that were dropped here, not by the link.
    pub fn dropped(&self) -> u64 {
        self.desk.dropped.load(Ordering::Relaxed)
    }

    /// Hands a batch over; `batch` is empty afterwards. The error is of an earlier one, or that the
    /// thread has ended.
    pub fn send(&mut self, batch: &mut TxBatch) -> io::Result<()> {
        self.let_go();
        if batch.is_empty() {
            return Ok(());
        }
        let mut queues = self.desk.lock();
        if queues.has_ended {
            let error = queues.error.take();
            drop(queues);
            batch.clear();
            return Err(
                error.unwrap_or_else(|| io::Error::other("the thread that sends has ended"))
            );
        }
        if queues.frames > 0 && queues.frames + batch.len() > WAITING_FRAMES_MAX {
            drop(queues);
            self.desk.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
            batch.clear();
            return Ok(());
        }
        queues.frames += batch.len();
        let mut lent = std::mem::replace(batch, self.spare.pop().unwrap_or_default());
        lent.lend(true);
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
        self.desk.lock().stop = Some(Instant::now() + CLOSING_TIME);
        self.desk.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.let_go();
    }
}

/// The sending thread's hands. When it ends, however that comes, all that it was lent goes back, and
/// the owner is told.
struct Hands<'a> {
    desk: &'a Desk,
    lent: Option<Lent>,
}

impl Drop for Hands<'_> {
    fn drop(&mut self) {
        let mut queues = self.desk.lock();
        let unsent = std::mem::take(&mut queues.to_send);
        queues.sent.extend(self.lent.take().into_iter().chain(unsent));
        queues.has_ended = true;
    }
}

fn run(link: &Shared, desk: &Desk) {
    let mut hands = Hands { desk, lent: None };
    let mut outlet = Outlet::default();
    loop {
        let mut queues = desk.lock();
        let lent = loop {
            if let Some(lent) = queues.to_send.pop_front() {
                queues.frames -= lent.batch.len();
                break hands.lent.insert(lent);
            }
            if queues.stop.is_some() {
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
        let result = send_whole(link, desk, &mut outlet, &mut lent.batch);
        let mut queues = desk.lock();
        queues.sent.extend(hands.lent.take());
        if let Err(error) = result {
            queues.error = Some(error);
        }
    }
}

/// Sends all of a batch, as long as the kernel's queue takes something now and then: waiting for
/// that is what the thread is for.
fn send_whole(
    link: &Shared,
    desk: &Desk,
    outlet: &mut Outlet,
    batch: &mut TxBatch,
) -> io::Result<()> {
    let dropped_before = outlet.dropped();
    loop {
        let result = outlet.send(link.lock().0.as_mut(), batch);
        let (Ok(_), Some(pause)) = (&result, outlet.again_within()) else {
            desk.dropped.fetch_add(outlet.dropped() - dropped_before, Ordering::Relaxed);
            return result.map(|_| ());
        };
        if desk.lock().stop.is_some_and(|stop| Instant::now() > stop) {
            desk.dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        std::thread::sleep(pause);
    }
}
