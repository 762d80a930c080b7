//! A link whose queue takes no more: how long to try again, and when to give up.

use std::io;
use std::time::{Duration, Instant};

use thinwire_buffer::TxBatch;

use crate::{Link, Outgoing};

/// How soon to try again what a link did not take: 10 Gb/s drain 120 kB in that time.
const RETRY: Duration = Duration::from_micros(100);

/// A queue that has taken nothing for so long is given up: what waits for it is dropped, as a wire
/// would. 10 Mb/s take a jumbo frame in 7 ms.
const STUCK: Duration = Duration::from_millis(50);

/// Frames that may wait for a full queue: those of two hundred sessions, eight each, which is the
/// least that a congestion window allows. What comes beyond is dropped.
pub const WAITING_FRAMES_MAX: usize = 2048;

/// The way out to one link: sends, and remembers whether its queue is full. Used by the thread that
/// sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outlet {
    /// When its queue last took something, if it is full.
    full_since: Option<Instant>,
    /// It has taken nothing for [`STUCK`]: what comes next has one try.
    is_stuck: bool,
    /// What the link said last.
    outgoing: Outgoing,
    dropped: u64,
}

impl Outlet {
    /// How soon to call [`Outlet::send`] again, if something waits.
    pub fn again_within(&self) -> Option<Duration> {
        (self.full_since.is_some() && !self.is_stuck).then_some(RETRY)
    }

    /// See [`Outgoing::handed_over_ns`], as of the last call.
    pub fn handed_over_ns(&self) -> u64 {
        self.outgoing.handed_over_ns
    }

    /// Frames that waited too long, or were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sends a batch. What a full queue does not take stays in it, in order, to be sent first by the
    /// next call; but of more than [`WAITING_FRAMES_MAX`] frames the last are dropped, and all if
    /// the queue has taken nothing for 50 ms. Of a batch that is lent only the latter holds. Returns
    /// what the link does.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    pub fn send(&mut self, link: &mut dyn Link, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.send_at(link, batch, Instant::now)
    }

    /// As [`Outlet::send`], at the moment that `clock` tells, which is asked if something is left: for who
    /// has a time of its own.
    ///
    /// # Errors
    /// Those of [`Link::send`].
    pub fn send_at(
        &mut self,
        link: &mut dyn Link,
        batch: &mut TxBatch,
        clock: impl FnOnce() -> Instant,
    ) -> io::Result<Outgoing> {
        let waiting = batch.len();
        let outgoing = link.send(batch)?;
        let before = std::mem::replace(&mut self.outgoing, outgoing);
        if batch.is_empty() && outgoing.unsent == 0 {
            (self.full_since, self.is_stuck) = (None, false);
            return Ok(outgoing);
        }
        let now = clock();
        let has_progress = batch.len() < waiting || outgoing.unsent < before.unsent;
        let since = self.full_since.filter(|_| !has_progress).unwrap_or(now);
        (self.full_since, self.is_stuck) = (Some(since), now - since > STUCK);
        let dropped = if self.is_stuck { batch.len() } else { batch.truncate(WAITING_FRAMES_MAX) };
        if self.is_stuck {
            batch.sent(dropped);
        }
        self.dropped += dropped as u64;
        // The clocks have been told of them.
        batch.forget_last_pieces();
        Ok(outgoing)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxBatch};

    use super::*;
    use crate::{LinkStats, Sources};

    /// Takes so many frames a call into a ring, and of the ring so many away.
    #[derive(Default)]
    struct Narrow {
        takes: usize,
        ring: usize,
        drains: usize,
    }

    impl Link for Narrow {
        fn name(&self) -> &str {
            "narrow"
        }
        fn info(&self) -> LinkInfo {
            let frame_bytes = FrameSizes { base: 1280, max: 1500 };
            let room = Room { frames: 64, bytes: 1 << 20 };
            LinkInfo { addr: Addr::Sim(1), frame_bytes, room }
        }
        fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
            let count = self.takes.min(batch.len());
            batch.sent(count);
            self.ring = (self.ring + count).saturating_sub(self.drains);
            Ok(Outgoing { unsent: self.ring, ..Outgoing::default() })
        }
        fn recv(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
            Ok(0)
        }
        fn sources(&self) -> Sources<'_> {
            [None; 3]
        }
        fn due_in(&mut self) -> Option<Duration> {
            None
        }
        fn stats(&self) -> LinkStats {
            LinkStats::default()
        }
    }

    /// Sends so many more frames at a time in ms, and says what waits, whether it is tried again,
    /// and what was dropped.
    fn sender(batch: &mut TxBatch) -> impl FnMut(&mut Narrow, u64, usize) -> (usize, bool, u64) {
        let (mut outlet, start) = (Outlet::default(), Instant::now());
        move |link, ms, count| {
            (0..count).for_each(|_| batch.push(Addr::Sim(2)).head.push(1));
            let clock = || start + Duration::from_millis(ms);
            outlet.send_at(link, batch, clock).unwrap();
            (batch.len(), outlet.again_within().is_some(), outlet.dropped())
        }
    }

    #[test]
    fn what_a_stuck_queue_does_not_take_is_dropped_until_it_takes_something() {
        let mut batch = TxBatch::new();
        let mut send = sender(&mut batch);
        let mut link = Narrow { takes: 0, drains: 9, ..Narrow::default() };
        assert_eq!(send(&mut link, 0, 3), (3, true, 0));
        link.takes = 1;
        assert_eq!(send(&mut link, 40, 0), (2, true, 0));
        link.takes = 0;
        assert_eq!(send(&mut link, 90, 0), (2, true, 0));
        assert_eq!(send(&mut link, 91, 0), (0, false, 2));
        assert_eq!(send(&mut link, 92, 2), (0, false, 4));
        link.takes = 1;
        assert_eq!(send(&mut link, 93, 2), (1, true, 4));
        assert_eq!(send(&mut link, 94, 0), (0, false, 4));
    }

    #[test]
    fn what_waits_in_a_ring_is_tried_again_as_long_as_it_moves() {
        let mut batch = TxBatch::new();
        let mut send = sender(&mut batch);
        let mut link = Narrow { takes: 9, drains: 1, ring: 0 };
        assert_eq!(send(&mut link, 0, 5), (0, true, 0));
        assert_eq!(send(&mut link, 40, 0), (0, true, 0));
        assert_eq!(send(&mut link, 80, 0), (0, true, 0), "slow, but it moves");
        link.drains = 0;
        assert_eq!(send(&mut link, 130, 0), (0, true, 0));
        assert_eq!(send(&mut link, 131, 0), (0, false, 0), "it does not move");
        link.drains = 9;
        assert_eq!(send(&mut link, 140, 1), (0, false, 0));
    }

    #[test]
    fn a_lent_batch_keeps_its_payloads() {
        let (pool, mut batch) = (Pool::new(1 << 20), TxBatch::new());
        for _ in 0..WAITING_FRAMES_MAX + 5 {
            batch.push(Addr::Sim(2)).data.push(pool.copy_of(&[7; 512]).freeze());
        }
        let live = pool.stats().live_bytes;
        batch.lend(true);
        let (mut outlet, mut link, start) = (Outlet::default(), Narrow::default(), Instant::now());
        outlet.send_at(&mut link, &mut batch, || start).unwrap();
        assert_eq!((batch.len(), outlet.dropped()), (WAITING_FRAMES_MAX + 5, 0));
        outlet.send_at(&mut link, &mut batch, || start + 2 * STUCK).unwrap();
        assert_eq!((batch.len(), outlet.dropped()), (0, WAITING_FRAMES_MAX as u64 + 5));
        assert_eq!(pool.stats().live_bytes, live);
        batch.lend(false);
        batch.clear();
        assert_eq!(pool.stats().live_bytes, 0);
        // The owner's own is cut.
        (0..WAITING_FRAMES_MAX + 5).for_each(|_| batch.push(Addr::Sim(2)).head.push(1));
        Outlet::default().send_at(&mut link, &mut batch, || start).unwrap();
        assert_eq!(batch.len(), WAITING_FRAMES_MAX);
    }
}
