//! Between a shard and the thread that keeps its block device: orders one way, answers the other. By channels, which need no
//! descriptor; the shard looks for answers by a [`Ticker`](super::ticker::Ticker).

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Instant;

/// The shard's end. Dropping it ends the thread, once that has done what it was ordered before.
pub struct Post<O, A> {
    orders: Sender<O>,
    answers: Receiver<A>,
}

impl<O: Send + 'static, A: Send + 'static> Post<O, A> {
    /// Starts the thread.
    pub fn start(
        name: &str,
        keep: impl FnOnce(&Receiver<O>, &Sender<A>) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (outbox, answers) = channel();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || keep(&inbox, &outbox))?;
        Ok(Post { orders, answers })
    }

    /// Tells it what to do.
    pub fn order(&self, order: O) {
        // If it has ended, the missing answer will tell.
        let _ = self.orders.send(order);
    }

    /// An answer, if there is one.
    pub fn answer(&self) -> Result<Option<A>, TryRecvError> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits for an answer, at most until `deadline`. The caller serves nothing meanwhile.
    pub fn answer_until(&self, deadline: Instant) -> Result<A, RecvTimeoutError> {
        self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    }
}
