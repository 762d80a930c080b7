//! A wrapper that makes a good link bad: loss, duplication, reordering, corruption, delay.
//!
//! It works on both ways of the link it wraps, each frame being judged once as it is sent and once
//! as it is received: a wrapper at one end is enough for a whole path, and two add up. The same
//! seed and the same frames make the same faults, with random numbers of its own for each way.
//!
//! *Reordering* holds a frame back until one to four later ones of its way have passed it; so that
//! none is held forever on a silent link, at most a millisecond: [`Link::due_in`] tells when the
//! wrapper is to be called for what it holds.

mod config;
mod hold;

use std::io;
use std::time::Duration;

use thinwire_buffer::{
    Addr, LinkInfo, PAGE_BYTES, Pool, RxBatch, RxFrame, SegList, TxBatch, TxFrame,
};

pub use config::{FaultConfig, FaultError};
use hold::{Hold, Way};

use crate::{ClockSource, Link, LinkStats, Outgoing, Outlet, Sources};

/// What the wrapper did so far, both ways together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames that vanished.
    pub lost: u64,
    /// Frames that were made twice.
    pub duplicated: u64,
    /// Frames held back to be overtaken.
    pub reordered: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
}

struct HeldTx {
    to: Addr,
    head: Vec<u8>,
    data: SegList,
}

/// A link with faults. See the module's text.
pub struct FaultLink<L> {
    inner: L,
    clock: ClockSource,
    tx: Way,
    held_tx: Hold<HeldTx>,
    tx_batch: TxBatch,
    outlet: Outlet,
    /// When the link underneath was last given what is to be sent.
    tried_ns: u64,
    rx: Way,
    held_rx: Hold<RxFrame>,
    rx_batch: RxBatch,
    stats: FaultStats,
}

impl<L: Link> FaultLink<L> {
    /// Wraps a link. `clock` gives a time in ns that never goes back; only differences count.
    pub fn new(inner: L, config: &FaultConfig, clock: ClockSource) -> Self {
        FaultLink {
            clock,
            tx: Way::new(config, config.seed),
            held_tx: Hold::new(),
            tx_batch: TxBatch::new(),
            outlet: Outlet::default(),
            tried_ns: 0,
            rx: Way::new(config, !config.seed),
            held_rx: Hold::new(),
            rx_batch: RxBatch::new(),
            inner,
            stats: FaultStats::default(),
        }
    }

    /// What it did so far.
    pub fn faults(&self) -> FaultStats {
        self.stats
    }

    /// The link underneath.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    fn judge_tx(&mut self, frame: &mut TxFrame, now_ns: u64) {
        let Some(fate) = self.tx.judge(&mut self.stats) else { return };
        if fate.is_twice {
            let copy = self.tx_batch.push(frame.to);
            copy.head.extend_from_slice(&frame.head);
            frame.data.iter().for_each(|segment| copy.data.push(segment.clone()));
        }
        if fate.is_damaged {
            // The payload is shared and must stay as it is: damage a copy.
            for segment in frame.data.iter() {
                frame.head.extend_from_slice(segment);
            }
            frame.data.clear();
            self.tx.rng.damage(&mut frame.head);
        }
        if fate.is_held() {
            let head = std::mem::take(&mut frame.head);
            let data = std::mem::take(&mut frame.data);
            self.held_tx.keep(HeldTx { to: frame.to, head, data }, fate, now_ns);
            return;
        }
        self.tx_batch.push_moved(frame);
        self.held_tx.one_passed();
        self.release_tx(now_ns);
    }

    fn release_tx(&mut self, now_ns: u64) {
        while let Some(held) = self.held_tx.release(now_ns) {
            let frame = self.tx_batch.push(held.to);
            frame.head = held.head;
            frame.data = held.data;
        }
    }

    fn judge_rx(&mut self, mut frame: RxFrame, pool: &Pool, now_ns: u64, out: &mut RxBatch) {
        let Some(fate) = self.rx.judge(&mut self.stats) else { return };
        if fate.is_twice {
            out.push_back(frame.clone());
        }
        if fate.is_damaged {
            let (start, len) = (frame.bytes.as_ptr() as usize % PAGE_BYTES, frame.len());
            let mut copy = pool.get(start + len);
            frame.copy_to(0, &mut copy[start..]);
            self.rx.rng.damage(&mut copy[start..]);
            frame.bytes = copy.freeze().slice(start, len);
            frame.rest.clear();
        }
        if fate.is_held() {
            self.held_rx.keep(frame, fate, now_ns);
            return;
        }
        out.push_back(frame);
        self.held_rx.one_passed();
        self.release_rx(now_ns, out);
    }

    fn release_rx(&mut self, now_ns: u64, out: &mut RxBatch) {
        while let Some(held) = self.held_rx.release(now_ns) {
            out.push_back(held);
        }
    }
}

impl<L: Link> Link for FaultLink<L> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn info(&self) -> LinkInfo {
        self.inner.info()
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        let now_ns = (self.clock)();
        for frame in batch.frames_mut() {
            self.judge_tx(frame, now_ns);
        }
        self.tx_batch.add_last_pieces(batch.last_pieces());
        batch.clear();
        self.release_tx(now_ns);
        self.tried_ns = now_ns;
        let inner = self.outlet.send(&mut self.inner, &mut self.tx_batch)?;
        Ok(Outgoing { unsent: self.tx_batch.len() + inner.unsent, ..inner })
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let now_ns = (self.clock)();
        let before = out.len();
        self.release_tx(now_ns);
        if !self.tx_batch.is_empty() {
            self.tried_ns = now_ns;
            self.outlet.send(&mut self.inner, &mut self.tx_batch)?;
        }
        self.release_rx(now_ns, out);
        // What arrived may all be lost or held: that must not look like an idle link.
        let mut batch = std::mem::take(&mut self.rx_batch);
        while out.len() - before < max {
            let wanted = max - (out.len() - before);
            if self.inner.recv(pool, wanted, &mut batch)? == 0 {
                break;
            }
            for frame in batch.drain(..) {
                self.judge_rx(frame, pool, now_ns, out);
            }
        }
        self.rx_batch = batch;
        Ok(out.len() - before)
    }

    fn sources(&self) -> Sources<'_> {
        self.inner.sources()
    }

    fn due_in(&mut self) -> Option<Duration> {
        let waits = self.outlet.again_within().filter(|_| !self.tx_batch.is_empty());
        let again_ns = waits.map(|within| self.tried_ns + within.as_nanos() as u64);
        let own_ns = [self.held_tx.next_ns(), self.held_rx.next_ns(), again_ns];
        let own_ns = own_ns.into_iter().flatten().min();
        let own = own_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub((self.clock)())));
        own.into_iter().chain(self.inner.due_in()).min()
    }

    /// The inner link's: what the wrapper does is counted in [`FaultLink::faults`].
    fn stats(&self) -> LinkStats {
        let inner = self.inner.stats();
        LinkStats { tx_dropped: inner.tx_dropped + self.outlet.dropped(), ..inner }
    }
}

#[cfg(test)]
mod tests;
