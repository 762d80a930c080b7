//! A wrapper that moves a link's work to threads of its own: the document's pipelines, kept so that
//! they can be measured against the default, in which one thread does everything (Gonzalez-Ferez
//! and Bilas, sections II and V).
//!
//! * [`Pipeline::receive_thread`]: a *network thread* takes frames from the link and hands them over
//!   through a notification queue. Waking whoever waits for that queue is the document's CS-Rec.
//! * [`Pipeline::send_thread`]: frames to send are handed to a thread that sends them: the work queue
//!   of the document's target (CS-WQ), and the queue mode of its initiator.
//!
//! What lies in memory of a pool is not copied: a received frame's memory goes to the receiving
//! thread's pool, and an unused buffer of that pool comes back for it, the document's page interchange.
//! What lies in memory of the link itself (`xdp`) is copied, and counted.

mod receive;
mod send;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thinwire_buffer::{LinkInfo, PAGE_BYTES, Pool, RxBatch, RxFrame, TxBatch};

use self::receive::Receiver;
use self::send::Sender;
use crate::{HEAD_BYTES, Link, LinkStats, Outgoing, Sources};

/// Where a copied frame begins, so that its payload is page aligned.
const START: usize = PAGE_BYTES - HEAD_BYTES;

/// Which threads a link gets besides the one that owns it. None by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pipeline {
    /// A thread that receives.
    pub receive_thread: bool,
    /// A thread that sends.
    pub send_thread: bool,
}

/// A link that threads take turns to use.
struct Shared(Mutex<Unsent>);

/// The link itself.
struct Unsent(Box<dyn Link>);

// SAFETY: what keeps a link from being sent is memory that is counted without atomics: a pool's, in
// what it keeps for receiving, and its own. [`HandoffLink::new`] is not public, and gets links that
// were opened a moment ago and share none with anybody. `recv` is called by one thread only for as
// long as others know the link (the network thread if there is one, else the owner), and with that
// thread's pool; what it returns in memory of the link is let go of before the lock is
// ([`Shared::recv`]). `send` counts nothing, because what it is given is lent ([`TxBatch::lend`]) or
// the caller's own. The link is dropped by its owner, after the threads have been joined.
unsafe impl Send for Unsent {}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Unsent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives, and takes home what came in memory of the link. Returns what the link did, and how
    /// many bytes were copied, also if the link failed.
    fn recv(&self, pool: &Pool, max: usize, out: &mut RxBatch) -> (io::Result<usize>, u64) {
        let mut intake = Intake { before: out.len(), link: self.lock(), out };
        let Intake { before, ref mut link, ref mut out } = intake;
        let got = link.0.recv(pool, max, out);
        let copied = out.iter_mut().skip(before).map(|frame| take_home(frame, pool)).sum();
        (got, copied)
    }
}

/// A link that is locked to receive. If it panics, what it had received goes before the lock does.
struct Intake<'a> {
    before: usize,
    out: &'a mut RxBatch,
    link: MutexGuard<'a, Unsent>,
}

impl Drop for Intake<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.out.truncate(self.before);
        }
    }
}

/// A link whose receiving, sending or both are done by threads of its own.
pub(crate) struct HandoffLink {
    name: String,
    // The threads end, in this order, before the link does.
    receiver: Option<Receiver>,
    sender: Option<Sender>,
    link: Arc<Shared>,
    /// Of the link, if there is no network thread that watches them.
    sources: [Option<OwnedFd>; 3],
    /// See [`take_home`].
    copied_bytes: u64,
}

/// Copies a frame that lies in memory of the link. Such memory is given back uncounted by atomics,
/// which must happen while the link is locked. Returns how many bytes that were.
fn take_home(frame: &mut RxFrame, pool: &Pool) -> u64 {
    if !frame.bytes.is_lent() && frame.rest.is_empty() {
        return 0;
    }
    let len = frame.len();
    let mut whole = pool.get(START + len);
    frame.copy_to(0, &mut whole[START..]);
    frame.bytes = whole.freeze().slice(START, len);
    frame.rest.clear();
    len as u64
}

impl HandoffLink {
    /// Moves the work of `link`, which must share no memory with anybody, to threads.
    ///
    /// # Errors
    /// If a thread or what it waits with cannot be made. A link without a descriptor has no network
    /// thread.
    pub(crate) fn new(link: Box<dyn Link>, pipeline: Pipeline) -> io::Result<Self> {
        let name = link.name().to_owned();
        let own = |fd: Option<BorrowedFd<'_>>| fd.map(|fd| fd.try_clone_to_owned()).transpose();
        let [first, second, third] = link.sources();
        let mut sources = [own(first)?, own(second)?, own(third)?];
        let link = Arc::new(Shared(Mutex::new(Unsent(link))));
        let receives = pipeline.receive_thread && sources.iter().any(Option::is_some);
        let receiver = receives
            .then(|| Receiver::new(link.clone(), std::mem::take(&mut sources)))
            .transpose()?;
        let sender = pipeline.send_thread.then(|| Sender::new(link.clone())).transpose()?;
        Ok(HandoffLink { name, receiver, sender, link, sources, copied_bytes: 0 })
    }
}

impl Link for HandoffLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> LinkInfo {
        self.link.lock().0.info()
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        match &mut self.sender {
            // What the thread cannot send, it tries again by itself.
            Some(sender) => {
                sender.send(batch)?;
                Ok(Outgoing { unsent: 0, handed_over_ns: sender.handed_over_ns() })
            }
            None => self.link.lock().0.send(batch),
        }
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        if let Some(sender) = &mut self.sender {
            sender.let_go();
        }
        match &mut self.receiver {
            Some(receiver) => receiver.recv(pool, max, out),
            None => {
                let (got, copied) = self.link.recv(pool, max, out);
                self.copied_bytes += copied;
                got
            }
        }
    }

    /// That of the notification queue if there is a network thread, else the link's.
    fn sources(&self) -> Sources<'_> {
        match &self.receiver {
            Some(receiver) => [Some(receiver.bell()), None, None],
            None => self.sources.each_ref().map(|fd| fd.as_ref().map(AsFd::as_fd)),
        }
    }

    /// The link's, unless a network thread looks by itself.
    fn due_in(&mut self) -> Option<Duration> {
        match self.receiver {
            Some(_) => None,
            None => self.link.lock().0.due_in(),
        }
    }

    fn stats(&self) -> LinkStats {
        let mut stats = self.link.lock().0.stats();
        if let Some(sender) = &self.sender {
            stats.handoffs += sender.handoffs();
            stats.tx_dropped += sender.dropped();
        }
        stats.copied_bytes += self.copied_bytes;
        stats.copied_bytes += self.receiver.as_ref().map_or(0, Receiver::copied_bytes);
        stats
    }
}

#[cfg(test)]
mod tests;
