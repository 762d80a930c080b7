//! What a simulated machine has whatever runs on it: links, and a moment to wake up.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::Link;
use thinwire_link::fault::{FaultConfig, FaultLink};
use thinwire_link::rng::Rng;
use thinwire_link::sim::{SimLink, SimNet};

/// Links of one process on a machine, and when it runs.
pub struct Machine {
    /// The numbers of its stations on the simulated wire, one for each link.
    pub stations: Vec<u32>,
    /// It does not run before this (SIGSTOP); 0 if it does.
    pub frozen_until: u64,
    /// Turns of its loop so far.
    pub turns: u64,
    /// Its process asks to be turned at this time at the latest.
    pub deadline: u64,
    /// It has something to do at once.
    pub dirty: bool,
    /// Frames that one turn takes in from each link, at most.
    pub burst: usize,
    /// Which of the links that share its stations are its own.
    lane: usize,
    links: Vec<Box<dyn Link>>,
    batches: Vec<TxBatch>,
    received: RxBatch,
    /// A link holds something back until then.
    links_due: u64,
    clock: Rc<Cell<u64>>,
    wake_at: Option<u64>,
}

impl Machine {
    /// A machine with a station of the network on each of its links.
    pub fn new(stations: Vec<u32>) -> Self {
        Machine {
            stations,
            frozen_until: 0,
            turns: 0,
            deadline: u64::MAX,
            dirty: false,
            burst: 512,
            lane: 0,
            links: Vec::new(),
            batches: Vec::new(),
            received: RxBatch::new(),
            links_due: u64::MAX,
            clock: Rc::default(),
            wake_at: None,
        }
    }

    /// A new process opens the links; the links of an old one are dead. Returns what the protocol
    /// needs to know of them.
    pub fn open_links(
        &mut self,
        net: &SimNet,
        faults: Option<&FaultConfig>,
        clock: &Rc<Cell<u64>>,
    ) -> Vec<LinkInfo> {
        let links = self.stations.iter().map(|&station| net.reopen(station)).collect();
        self.take_links(0, links, faults, clock)
    }

    /// As [`Machine::open_links`], with links that are open already, each of which shares its station
    /// with others.
    pub fn take_links(
        &mut self,
        lane: usize,
        links: Vec<SimLink>,
        faults: Option<&FaultConfig>,
        clock: &Rc<Cell<u64>>,
    ) -> Vec<LinkInfo> {
        self.lane = lane;
        self.links.clear();
        self.links_due = u64::MAX;
        self.clock = clock.clone();
        self.batches.clear();
        for link in links {
            let link: Box<dyn Link> = match faults {
                None => Box::new(link),
                Some(faults) => {
                    let place = u64::from(link.number()) + ((lane as u64) << 32);
                    let seed = faults.seed + place + clock.get();
                    let clock = clock.clone();
                    let clock = Box::new(move || clock.get());
                    let config = FaultConfig { seed, ..*faults };
                    Box::new(FaultLink::new(link, &config, clock))
                }
            };
            self.links.push(link);
            self.batches.push(TxBatch::new());
        }
        self.dirty = true;
        self.deadline = 0;
        self.links.iter().map(|link| link.info()).collect()
    }

    /// Hands all frames that wait to `take`, with the number of their link.
    pub fn receive(&mut self, pool: &Pool, mut take: impl FnMut(usize, &mut RxFrame)) {
        let pool = &pool.for_received();
        for (at, link) in self.links.iter_mut().enumerate() {
            link.recv(pool, self.burst, &mut self.received).expect("simulated links do not fail");
            for mut frame in self.received.drain(..) {
                take(at, &mut frame);
            }
        }
        self.look_at_links();
    }

    fn look_at_links(&mut self) {
        let soonest = self.links.iter_mut().filter_map(|link| link.due_in()).min();
        let due = |within: Duration| self.clock.get() + within.as_nanos() as u64;
        self.links_due = soonest.map_or(u64::MAX, due);
    }

    /// One batch for each link, to be filled by whoever has no node.
    pub fn batches(&mut self) -> &mut [TxBatch] {
        &mut self.batches
    }

    /// Sends what was filled into [`Machine::batches`]; returns how many frames.
    pub fn send_own(&mut self) -> u64 {
        let mut batches = std::mem::take(&mut self.batches);
        let frames = self.send(&mut batches);
        self.batches = batches;
        frames
    }

    /// Sends these frames, by link; returns how many.
    pub fn send(&mut self, batches: &mut [TxBatch]) -> u64 {
        let mut frames = 0;
        for (link, batch) in self.links.iter_mut().zip(batches) {
            frames += batch.len() as u64;
            link.send(batch).expect("simulated links do not fail");
        }
        self.look_at_links();
        frames
    }

    /// Whether it is turned now. It is once something is due, after a delay of its scheduler.
    pub fn wakes(&mut self, now: u64, net: &SimNet, is_due: bool, rng: &mut Rng, lag: u64) -> bool {
        if self.frozen_until > now {
            return false;
        }
        let arrived = self.stations.iter().any(|&s| net.waiting(s, self.lane) > 0);
        let is_due =
            is_due || arrived || self.dirty || self.deadline <= now || self.links_due <= now;
        if !is_due {
            self.wake_at = None;
            return false;
        }
        let at = *self.wake_at.get_or_insert_with(|| now + rng.between(lag / 8, lag));
        if at > now {
            return false;
        }
        // The next turn is later, however much there is to do.
        self.wake_at = None;
        self.dirty = false;
        self.turns += 1;
        true
    }

    /// It runs, and no turn of it is on its way.
    pub fn rests(&self, now: u64) -> bool {
        self.frozen_until <= now && self.wake_at.is_none()
    }

    /// When it may have something to do, unless frames arrive.
    pub fn next_time(&self, now: u64) -> u64 {
        let at = match self.wake_at {
            Some(at) => at,
            None if self.dirty => now + 1_000,
            None => self.deadline.min(self.links_due).max(now + 1_000),
        };
        at.max(self.frozen_until)
    }
}
