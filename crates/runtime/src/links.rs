//! The links of a shard: received frames go one way, batches to send the other.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, LinkInfo, Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::{Link, LinkStats, Outlet};

use crate::stages::StageClocks;
use crate::wait::{WaitToken, Waiter};

/// Frames taken from one link in one turn, at most (rule 13: a turn takes a bounded batch).
const FRAMES_PER_TURN: usize = 128;

/// The links of one shard, by index.
pub struct Links {
    links: Vec<Box<dyn Link>>,
    rx: RxBatch,
    /// The link that the last frames came from: also those that wait in `rx`.
    last: usize,
    /// How long those that were handed on had waited, at most.
    waited: Option<Duration>,
    /// What became of the frames to send, by link.
    outlets: Vec<Outlet>,
    again_within: Option<Duration>,
    /// One of them holds something back.
    holds_back: bool,
    /// By link: it cannot be used any more.
    dead: Vec<bool>,
    /// Those of them that are waited for still.
    fallen: Vec<usize>,
    pool: Pool,
    clocks: Rc<StageClocks>,
}

impl Links {
    /// Takes the links over; their memory for received frames comes from `pool`.
    pub fn new(links: Vec<Box<dyn Link>>, pool: Pool) -> Self {
        let clocks = Rc::new(StageClocks::new());
        let outlets = vec![Outlet::default(); links.len()];
        let dead = vec![false; links.len()];
        let pool = pool.for_received();
        Links {
            links,
            rx: RxBatch::new(),
            last: 0,
            waited: None,
            outlets,
            again_within: None,
            holds_back: false,
            dead,
            fallen: Vec::new(),
            pool,
            clocks,
        }
    }

    /// The clocks that see frames come and go.
    pub fn clocks(&self) -> &Rc<StageClocks> {
        &self.clocks
    }

    /// What the protocol needs to know of each.
    pub fn params(&self) -> Vec<LinkInfo> {
        self.links.iter().map(|link| link.info()).collect()
    }

    /// Another one, waited for under the token `first` and its number.
    pub fn add(
        &mut self,
        link: Box<dyn Link>,
        waiter: &mut Waiter,
        first: WaitToken,
    ) -> io::Result<()> {
        for fd in link.sources().into_iter().flatten() {
            waiter.add(fd, first + self.links.len() as WaitToken)?;
        }
        self.links.push(link);
        self.outlets.push(Outlet::default());
        self.dead.push(false);
        Ok(())
    }

    /// Waits for all of them under the tokens `first`, `first + 1`, ...
    pub fn register(&self, waiter: &mut Waiter, first: WaitToken) -> io::Result<()> {
        for (at, link) in self.links.iter().enumerate() {
            for fd in link.sources().into_iter().flatten() {
                waiter.add(fd, first + at as WaitToken)?;
            }
        }
        Ok(())
    }

    /// A link has failed in a way that is no loss of frames: it is silent from now on, as a wire is that was
    /// cut, and the paths over the others go on.
    ///
    /// # Errors
    /// It was the last.
    #[cold]
    fn lose(&mut self, at: usize, error: io::Error) -> io::Result<()> {
        if self.dead.iter().enumerate().all(|(other, &dead)| dead || other == at) {
            return Err(error);
        }
        self.dead[at] = true;
        self.fallen.push(at);
        let name = self.links[at].name();
        tracing::error!("link {name} failed and is not used until the next start: {error}");
        Ok(())
    }

    /// Waits no more for links that have failed.
    #[inline]
    pub fn unregister_fallen(&mut self, waiter: &mut Waiter) {
        for at in self.fallen.drain(..) {
            for fd in self.links[at].sources().into_iter().flatten() {
                // What cannot be waited for does not end a wait, either.
                let _ = waiter.remove(fd);
            }
        }
    }

    /// Takes what has arrived on the link that the last frames came from, for
    /// [`Links::receive_probed`]. True if there is something.
    pub fn probe(&mut self) -> io::Result<bool> {
        if self.rx.is_empty()
            && let Some(link) = self.links.get_mut(self.last)
            && !self.dead[self.last]
        {
            match link.probe(&self.pool, FRAMES_PER_TURN, &mut self.rx) {
                Ok(0) => {}
                Ok(_) => self.clocks.taken(),
                Err(error) => self.lose(self.last, error)?,
            }
        }
        Ok(!self.rx.is_empty())
    }

    /// Hands what a probe has taken to `take`. Returns how many frames.
    pub fn receive_probed(&mut self, mut take: impl FnMut(usize, &mut RxFrame)) -> usize {
        let count = self.rx.len();
        // The first has waited longest.
        if let Some(first) = self.rx.front() {
            self.waited = self.waited.max(Some(first.waited));
        }
        // A drain costs more where there is one, and would move each.
        while let Some(frame) = self.rx.front_mut() {
            self.clocks.act_on(frame.waited, frame.queued);
            take(self.last, frame);
            self.rx.pop_front();
        }
        count
    }

    /// How long the frames that were handed on since the last call had waited for that, at most
    /// ([`RxFrame::waited`]); nothing if there were none.
    pub fn take_waited(&mut self) -> Option<Duration> {
        self.waited.take()
    }

    fn fetch(&mut self, at: usize) -> io::Result<()> {
        if self.dead[at] {
            return Ok(());
        }
        match self.links[at].recv(&self.pool, FRAMES_PER_TURN, &mut self.rx) {
            Ok(0) => {}
            Ok(_) => {
                self.last = at;
                self.clocks.taken();
            }
            Err(error) => {
                self.rx.clear();
                self.lose(at, error)?;
            }
        }
        Ok(())
    }

    /// Hands what has arrived on one link to `take`, after what a probe has taken. Returns how many
    /// frames.
    pub fn receive(
        &mut self,
        at: usize,
        mut take: impl FnMut(usize, &mut RxFrame),
    ) -> io::Result<usize> {
        let probed = self.receive_probed(&mut take);
        self.fetch(at)?;
        Ok(probed + self.receive_probed(take))
    }

    /// How soon [`Links::receive_due`] is to be called, if at all.
    pub fn due_in(&mut self) -> Option<Duration> {
        let living = self.links.iter_mut().zip(&self.dead).filter(|(_, dead)| !**dead);
        let soonest = living.filter_map(|(link, _)| link.due_in()).min();
        self.holds_back = soonest.is_some();
        soonest
    }

    /// As [`Links::receive`], of all links that hold something back whose time has come.
    pub fn receive_due(&mut self, mut take: impl FnMut(usize, &mut RxFrame)) -> io::Result<usize> {
        let mut frames = 0;
        if self.holds_back {
            for at in 0..self.links.len() {
                if self.links[at].due_in() == Some(Duration::ZERO) {
                    frames += self.receive(at, &mut take)?;
                }
            }
        }
        Ok(frames)
    }

    /// Sends everything in `out`, by link: one call for each. What a full queue does not take stays
    /// there, to be sent first by the next flush.
    pub fn flush(&mut self, out: &mut [TxBatch]) -> io::Result<()> {
        if self.clocks.is_on() {
            let last_pieces = out.iter().map(TxBatch::last_pieces).sum();
            if !self.clocks.sending(last_pieces) {
                out.iter_mut().for_each(TxBatch::forget_last_pieces);
            }
        }
        self.again_within = None;
        for (at, batch) in out.iter_mut().enumerate() {
            let outlet = &mut self.outlets[at];
            if self.dead[at] {
                batch.clear();
            } else if !batch.is_empty() || outlet.again_within().is_some() {
                if let Err(error) = outlet.send(self.links[at].as_mut(), batch) {
                    batch.clear();
                    self.lose(at, error)?;
                    continue;
                }
                let soonest = self.again_within.into_iter().chain(outlet.again_within()).min();
                self.again_within = soonest;
            }
        }
        if self.clocks.is_on() {
            self.clocks.set_handed_over(self.outlets.iter().map(Outlet::handed_over_ns).sum());
        }
        Ok(())
    }

    /// How soon to flush again, if the last flush left something to send.
    pub fn again_within(&self) -> Option<Duration> {
        self.again_within
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
        self.links[at].info().addr
    }

    /// Counters of one.
    pub fn stats(&self, at: usize) -> LinkStats {
        let mut stats = self.links[at].stats();
        stats.tx_dropped += self.outlets[at].dropped();
        stats
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use thinwire_buffer::{FrameSizes, Room};
    use thinwire_link::fault::{FaultConfig, FaultLink};
    use thinwire_link::{Outgoing, Sources, WAITING_FRAMES_MAX};

    use super::*;

    /// Takes as many frames a call as it is told to, and has another as often as it is asked, up to nine.
    struct Narrow {
        sent: Rc<RefCell<Vec<u8>>>,
        takes: usize,
        /// Keeps the frames that it has taken for so many calls.
        keeps: usize,
        arrives: u8,
        /// How long its frames have waited; one less with each.
        waited: u8,
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
            self.sent.borrow_mut().extend(batch.frames()[..count].iter().map(|f| f.head[0]));
            batch.sent(count);
            self.keeps = self.keeps.saturating_sub(1);
            Ok(Outgoing { unsent: self.keeps, ..Outgoing::default() })
        }
        fn recv(&mut self, pool: &Pool, _: usize, out: &mut RxBatch) -> io::Result<usize> {
            if self.arrives == 9 {
                return Ok(0);
            }
            self.arrives += 1;
            out.push_back(RxFrame {
                from: Addr::Sim(2),
                bytes: pool.copy_of(&[self.arrives]).freeze(),
                rest: Default::default(),
                waited: Duration::from_secs(self.waited.saturating_sub(self.arrives).into()),
                queued: Duration::ZERO,
            });
            Ok(1)
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

    fn narrow() -> (Links, Rc<RefCell<Vec<u8>>>) {
        let sent = Rc::default();
        let link = Narrow { sent: Rc::clone(&sent), takes: 1, keeps: 0, arrives: 0, waited: 9 };
        (Links::new(vec![Box::new(link)], Pool::new(1 << 20)), sent)
    }

    #[test]
    fn what_does_not_fit_goes_first_with_the_next_flush() {
        let (mut links, sent) = narrow();
        let mut out = [TxBatch::new()];
        let push = |out: &mut [TxBatch; 1], number| out[0].push(Addr::Sim(2)).head.push(number);
        push(&mut out, 1);
        push(&mut out, 2);
        links.flush(&mut out).unwrap();
        assert!(links.again_within().is_some());
        push(&mut out, 3);
        links.flush(&mut out).unwrap();
        assert!(links.again_within().is_some());
        links.flush(&mut out).unwrap();
        assert!(links.again_within().is_none());
        assert_eq!(*sent.borrow(), [1, 2, 3]);
        for _ in 0..WAITING_FRAMES_MAX + 11 {
            push(&mut out, 4);
        }
        links.flush(&mut out).unwrap();
        assert_eq!((out[0].len(), links.stats(0).tx_dropped), (WAITING_FRAMES_MAX, 10));
    }

    #[test]
    fn what_waits_in_a_ring_of_the_link_is_tried_again() {
        let link = Narrow { sent: Rc::default(), takes: 9, keeps: 3, arrives: 0, waited: 0 };
        let mut links = Links::new(vec![Box::new(link)], Pool::new(1 << 20));
        let mut out = [TxBatch::new()];
        out[0].push(Addr::Sim(2)).head.push(1);
        let mut flush = |links: &mut Links| {
            links.flush(&mut out).unwrap();
            links.again_within().is_some()
        };
        assert_eq!([(); 4].map(|_| flush(&mut links)), [true, true, false, false]);
    }

    #[test]
    fn what_is_held_back_is_looked_at_in_its_time() {
        let (mut links, _) = narrow();
        let mut got = Vec::new();
        let look = |links: &mut Links, got: &mut Vec<u8>| {
            links.receive_due(|_, frame| got.push(frame.bytes[0])).unwrap()
        };
        assert_eq!((links.due_in(), look(&mut links, &mut got)), (None, 0));
        let delay = FaultConfig { delay_ns_min: 7, delay_ns_max: 7, ..FaultConfig::default() };
        let now_ns = Rc::new(Cell::new(0));
        let clock = now_ns.clone();
        let narrow = std::mem::take(&mut links.links).remove(0);
        let faulty = FaultLink::new(narrow, &delay, Box::new(move || clock.get()));
        links.links.push(Box::new(faulty));
        links.receive(0, |_, _| panic!("it is held back")).unwrap();
        assert_eq!(links.due_in(), Some(Duration::from_nanos(7)));
        assert_eq!(look(&mut links, &mut got), 0);
        now_ns.set(7);
        assert_eq!(links.due_in(), Some(Duration::ZERO));
        assert_eq!(look(&mut links, &mut got), 9);
        assert_eq!(got, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    /// Its descriptor is none any more.
    struct Broken;

    impl Link for Broken {
        fn name(&self) -> &str {
            "broken"
        }
        fn info(&self) -> LinkInfo {
            narrow().0.links[0].info()
        }
        fn send(&mut self, _: &mut TxBatch) -> io::Result<Outgoing> {
            Err(io::ErrorKind::NotConnected.into())
        }
        fn recv(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
            Err(io::ErrorKind::NotConnected.into())
        }
        fn sources(&self) -> Sources<'_> {
            [None; 3]
        }
        fn due_in(&mut self) -> Option<Duration> {
            Some(Duration::ZERO)
        }
        fn stats(&self) -> LinkStats {
            LinkStats::default()
        }
    }

    #[test]
    fn a_link_that_fails_is_silent_and_the_others_go_on() {
        type Use = fn(&mut Links) -> io::Result<()>;
        let flush = |links: &mut Links| {
            let mut out = [TxBatch::new(), TxBatch::new()];
            out.iter_mut().for_each(|batch| batch.push(Addr::Sim(2)).head.push(7));
            links.flush(&mut out[..links.len()])
        };
        let uses: [Use; 3] =
            [flush, |links| links.receive(0, |_, _| ()).map(drop), |links| links.probe().map(drop)];
        for first in uses {
            let sent = Rc::default();
            let link = Narrow { sent: Rc::clone(&sent), takes: 9, keeps: 0, arrives: 0, waited: 0 };
            let pool = Pool::new(1 << 20);
            let mut links = Links::new(vec![Box::new(Broken), Box::new(link)], pool.clone());
            first(&mut links).unwrap();
            assert_eq!((&links.dead[..], &links.fallen[..]), (&[true, false][..], &[0][..]));
            sent.borrow_mut().clear();
            flush(&mut links).unwrap();
            let mut out = [TxBatch::new(), TxBatch::new()];
            links.flush(&mut out).unwrap();
            assert_eq!((&sent.borrow()[..], links.due_in()), (&[7][..], None));
            assert_eq!(links.receive(1, |_, _| ()).unwrap(), 1);
            assert_eq!(links.receive(0, |_, _| ()).unwrap(), 0);
            // Nobody can be reached any more.
            let mut alone = Links::new(vec![Box::new(Broken)], pool);
            assert!(first(&mut alone).is_err());
        }
    }

    #[test]
    fn what_a_probe_took_comes_before_what_arrived_later() {
        let (mut links, _) = narrow();
        assert!(links.probe().unwrap());
        assert!(links.probe().unwrap(), "what is here already");
        let mut got = Vec::new();
        assert_eq!(links.receive(0, |_, frame| got.push(frame.bytes[0])).unwrap(), 2);
        assert_eq!(got, [1, 2]);
        assert_eq!(links.take_waited(), Some(Duration::from_secs(8)), "the first of them");
        assert_eq!(links.receive_probed(|_, _| panic!("nothing is left")), 0);
        assert_eq!(links.take_waited(), None);
    }
}
