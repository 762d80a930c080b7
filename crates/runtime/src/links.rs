//! The links of a shard: received frames go one way, batches to send the other.

use std::io;
use std::rc::Rc;

use thinwire_buffer::{Addr, Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::{Link, LinkStats};
use thinwire_proto::{LinkParams, Room};

use crate::stages::StageClocks;
use crate::wait::{Token, Waiter};

/// Frames taken from one link in one turn, at most (rule 13: a turn takes a bounded batch).
const FRAMES_PER_TURN: usize = 128;

/// The links of one shard, by index.
pub struct Links {
    links: Vec<Box<dyn Link>>,
    rx: RxBatch,
    /// Frames to send, one batch per link.
    pub out: Vec<TxBatch>,
    pool: Pool,
    clocks: Rc<StageClocks>,
}

impl Links {
    /// Takes the links over; their memory for received frames comes from `pool`.
    pub fn new(links: Vec<Box<dyn Link>>, pool: Pool) -> Self {
        let out = links.iter().map(|_| TxBatch::new()).collect();
        Links { links, rx: RxBatch::new(), out, pool, clocks: Rc::new(StageClocks::new()) }
    }

    /// The clocks that see frames come and go.
    pub fn clocks(&self) -> &Rc<StageClocks> {
        &self.clocks
    }

    /// What the protocol needs to know of each.
    pub fn params(&self) -> Vec<LinkParams> {
        let params = |link: &dyn Link| LinkParams {
            addr: link.local(),
            frame_bytes_base: link.frame_bytes_base(),
            frame_bytes_max: link.frame_bytes_max(),
            room: Room { frames: link.room().frames, bytes: link.room().bytes },
        };
        self.links.iter().map(|link| params(link.as_ref())).collect()
    }

    /// Waits for all of them under the tokens `first`, `first + 1`, ...
    pub fn register(&self, waiter: &mut Waiter, first: Token) -> io::Result<()> {
        for (at, link) in self.links.iter().enumerate() {
            if let Some(fd) = link.fd() {
                waiter.add(fd, first + at as Token)?;
            }
        }
        Ok(())
    }

    /// Hands what has arrived on one link to `take`. Returns how many frames.
    pub fn receive(
        &mut self,
        at: usize,
        mut take: impl FnMut(usize, &RxFrame),
    ) -> io::Result<usize> {
        let count = self.links[at].recv(&self.pool, FRAMES_PER_TURN, &mut self.rx)?;
        self.clocks.taken();
        for frame in self.rx.drain(..) {
            self.clocks.act_on(frame.waited, frame.queued);
            take(at, &frame);
        }
        Ok(count)
    }

    /// Hands what has arrived on any link to `take`. Returns how many frames.
    pub fn receive_all(&mut self, mut take: impl FnMut(usize, &RxFrame)) -> io::Result<usize> {
        let mut count = 0;
        for at in 0..self.links.len() {
            count += self.receive(at, &mut take)?;
        }
        Ok(count)
    }

    /// Sends everything in `out`: one call per link.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.clocks.is_on() {
            let last_pieces = self.out.iter().map(TxBatch::last_pieces).sum();
            if !self.clocks.sending(last_pieces) {
                self.out.iter_mut().for_each(TxBatch::forget_last_pieces);
            }
        }
        for (link, batch) in self.links.iter_mut().zip(&mut self.out) {
            if !batch.is_empty() {
                link.send(batch)?;
            }
        }
        if self.clocks.is_on() {
            self.clocks.set_handed_over(self.links.iter().map(|link| link.handed_over_ns()).sum());
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// The name of one, as the user gave it.
    pub fn name(&self, at: usize) -> &str {
        self.links[at].name()
    }

    /// This end's address on one.
    pub fn local(&self, at: usize) -> Addr {
        self.links[at].local()
    }

    /// Counters of one.
    pub fn stats(&self, at: usize) -> LinkStats {
        self.links[at].stats()
    }
}
