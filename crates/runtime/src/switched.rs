//! A volume whose completions come by way of another thread: what a context switch costs when
//! nothing else is done (Gonzalez-Ferez and Bilas, section IV, the fake device BD-WCS).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use thinwire_volume::{Completion, Geometry, Identity, Io, Volume};

/// A volume over one that completes at once, such as a null store. Used for reading and writing only.
pub struct Switched<V> {
    inner: V,
    /// Completed, but not by the other thread.
    held: VecDeque<Completion>,
    /// For the other thread: how many to pass back.
    submit: Option<Sender<usize>>,
    back: Arc<Back>,
    thread: Option<JoinHandle<()>>,
}

struct Back {
    count: Mutex<usize>,
    bell: OwnedFd,
}

impl<V: Volume> Switched<V> {
    /// Starts the thread.
    pub fn new(inner: V) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let back = Arc::new(Back { count: Mutex::new(0), bell });
        let (submit, submitted) = channel();
        let theirs = back.clone();
        let thread = std::thread::Builder::new().name("device".into()).spawn(move || {
            while let Ok(count) = submitted.recv() {
                *theirs.count.lock().unwrap_or_else(PoisonError::into_inner) += count;
                // Fails only if it would overflow, and then it is readable already.
                let _ = rustix::io::write(&theirs.bell, &1u64.to_ne_bytes());
            }
        })?;
        let (held, submit, thread) = (VecDeque::new(), Some(submit), Some(thread));
        Ok(Switched { inner, held, submit, back, thread })
    }

    /// Readable when completions have come back.
    pub fn fd(&self) -> RawFd {
        self.back.bell.as_fd().as_raw_fd()
    }
}

impl<V: Volume> Volume for Switched<V> {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&mut self, io: Io) {
        self.inner.submit(io);
        let mut done = Vec::with_capacity(1);
        self.inner.poll(&mut done);
        let count = done.len();
        self.held.extend(done);
        // The thread lives as long as this.
        let _ = self.submit.as_ref().expect("until it is dropped").send(count);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut rings = [0; 8];
        if rustix::io::read(&self.back.bell, &mut rings).is_err() {
            return;
        }
        let mut count = self.back.count.lock().unwrap_or_else(PoisonError::into_inner);
        done.extend(self.held.drain(..std::mem::take(&mut *count)));
    }

    fn outstanding(&self) -> usize {
        self.held.len()
    }
}

impl<V> Drop for Switched<V> {
    fn drop(&mut self) {
        self.submit = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};
    use thinwire_volume::Op;
    use thinwire_volume::stores::NullStore;

    use super::*;

    #[test]
    fn every_completion_comes_back_by_the_other_thread_and_in_order() {
        let mut volume = Switched::new(NullStore::new(1 << 20, 512)).unwrap();
        for round in 0..100 {
            for token in [round, round + 1000] {
                volume.submit(Io::new(token, Op::Read, 0, 4096));
            }
            let mut done = Vec::new();
            while done.len() < 2 {
                assert_eq!(volume.outstanding(), 2 - done.len());
                poll(&mut [PollFd::new(&volume.back.bell, PollFlags::IN)], None).unwrap();
                volume.poll(&mut done);
            }
            assert_eq!(done.iter().map(|c| c.token).collect::<Vec<_>>(), [round, round + 1000]);
            assert!(done.iter().all(|c| c.result.is_ok() && c.data.bytes() == 4096));
        }
        assert_eq!(volume.outstanding(), 0);
    }
}
