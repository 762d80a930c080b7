//! What a simulated machine has whatever runs on it: links, and a moment to wake up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_buffer::{LinkInfo, Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::fault::{FaultConfig, FaultLink};
use thinwire_link::rng::Rng;
use thinwire_link::sim::{SimLink, SimNet};
use thinwire_link::{Link, Outlet};

use crate::damage::Damage;
use crate::lending::{LendingConfig, LendingLink, LendingStats, RegionView};
use crate::narrow::{NarrowConfig, NarrowLink, NarrowStats, OutletCanary, Passage};
use crate::sealed::SealWatch;

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
    /// The queues of its links are narrow.
    pub narrow: Option<NarrowConfig>,
    /// Sees what it sends and takes in, in a world with keys.
    pub seals: Option<Rc<RefCell<SealWatch>>>,
    /// Its links receive into memory of their own.
    pub lending: Option<LendingConfig>,
    /// Its memory, or the links to it, alter data.
    pub damage: Option<Damage>,
    /// The stations of links behind the others on which other protocols are spoken.
    pub foreign: Vec<u32>,
    /// Which of the links that share its stations are its own.
    lane: usize,
    links: Vec<Box<dyn Link>>,
    /// What waits for them stays in the batches, as in a shard.
    outlets: Vec<Outlet>,
    /// Watched where links are narrow.
    passages: Vec<Rc<RefCell<Passage>>>,
    /// What the links of earlier processes have done.
    narrow_before: NarrowStats,
    /// Watched where links lend, and what those of earlier processes have lent.
    regions: Vec<RegionView>,
    lent_before: LendingStats,
    /// Something waits, and is to be tried again then.
    again_at: u64,
    /// The beginning of time, for who measures spans.
    epoch: Instant,
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
            narrow: None,
            seals: None,
            lending: None,
            damage: None,
            foreign: Vec::new(),
            lane: 0,
            links: Vec::new(),
            outlets: Vec::new(),
            passages: Vec::new(),
            narrow_before: NarrowStats::default(),
            regions: Vec::new(),
            lent_before: LendingStats::default(),
            again_at: u64::MAX,
            epoch: Instant::now(),
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
        self.narrow_before = self.narrow_stats();
        self.lent_before = self.lending_stats();
        self.links.clear();
        self.outlets.clear();
        self.passages.clear();
        self.regions.clear();
        self.again_at = u64::MAX;
        self.links_due = u64::MAX;
        self.clock = clock.clone();
        self.batches.clear();
        for link in links {
            let place = u64::from(link.number()) + ((lane as u64) << 32);
            let link: Box<dyn Link> = match faults {
                None => Box::new(link),
                Some(faults) => {
                    let seed = faults.seed + place + clock.get();
                    let clock = clock.clone();
                    let clock = Box::new(move || clock.get());
                    let mut config = FaultConfig { seed, ..*faults };
                    if self.foreign.contains(&(place as u32)) {
                        // What an adapter finds to be damaged it drops.
                        config.rates.loss += std::mem::take(&mut config.rates.corrupt);
                        // See `StationConfig::protocol`.
                        config.rates.dup = 0.0;
                    }
                    Box::new(FaultLink::new(link, &config, clock))
                }
            };
            let link = match self.narrow {
                None => link,
                Some(config) => {
                    let passage = Rc::<RefCell<Passage>>::default();
                    self.passages.push(passage.clone());
                    Box::new(NarrowLink::new(link, config, place, clock.clone(), passage))
                }
            };
            let link = match self.lending {
                None => link,
                Some(config) => {
                    let link = LendingLink::new(link, config);
                    self.regions.push(link.region());
                    Box::new(link)
                }
            };
            self.links.push(link);
            self.outlets.push(Outlet::default());
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
                let own = self.stations.get(at);
                if let (Some(seals), Some(&station)) = (&self.seals, own) {
                    let machine = self.stations[0];
                    seals.borrow_mut().arrived(self.clock.get(), machine, station, &frame);
                }
                if let (Some(damage), Some(_)) = (&mut self.damage, own) {
                    damage.look(pool, &mut frame);
                }
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

    /// Sends these frames, by link; returns how many have gone. What a link does not take stays there, to be sent
    /// first by the next call.
    pub fn send(&mut self, batches: &mut [TxBatch]) -> u64 {
        let mut frames = 0;
        let now = self.clock.get();
        let clock = || self.epoch + Duration::from_nanos(now);
        self.again_at = u64::MAX;
        for (at, batch) in batches.iter_mut().enumerate().take(self.links.len()) {
            let (link, outlet) = (&mut self.links[at], &mut self.outlets[at]);
            frames += batch.len() as u64;
            if let (Some(seals), Some(_)) = (&self.seals, self.stations.get(at)) {
                let by = self.stations[0];
                batch.frames().iter().for_each(|frame| seals.borrow_mut().look(by, frame));
            }
            match (self.passages.get(at), self.narrow) {
                (Some(passage), Some(NarrowConfig { canary, .. })) => {
                    passage.borrow_mut().begin(batch);
                    outlet.send_at(&mut **link, batch, clock).expect("simulated links do not fail");
                    passage.borrow_mut().end(batch, outlet.dropped());
                    plant(canary, batch);
                }
                _ => {
                    outlet.send_at(&mut **link, batch, clock).expect("simulated links do not fail");
                }
            }
            frames -= batch.len() as u64;
            if let Some(within) = outlet.again_within() {
                self.again_at = self.again_at.min(now + within.as_nanos() as u64);
            }
        }
        self.look_at_links();
        frames
    }

    /// What the queues of its links have done, if they are narrow.
    pub fn narrow_stats(&self) -> NarrowStats {
        let mut sum = self.narrow_before;
        for passage in &self.passages {
            let stats = passage.borrow().stats();
            sum.partial += stats.partial;
            sum.full += stats.full;
            sum.dropped += stats.dropped;
        }
        sum
    }

    /// What its links have received into memory of their own, if they have such.
    pub fn lending_stats(&self) -> LendingStats {
        let mut sum = self.lent_before;
        for region in &self.regions {
            let stats = region.stats();
            sum.lent += stats.lent;
            sum.short += stats.short;
        }
        sum
    }

    /// Pieces of memory of its links that somebody refers to.
    pub fn lent(&self) -> usize {
        self.regions.iter().map(RegionView::lent).sum()
    }

    /// Whether it is turned now. It is once something is due, after a delay of its scheduler.
    pub fn wakes(&mut self, now: u64, net: &SimNet, is_due: bool, rng: &mut Rng, lag: u64) -> bool {
        if self.frozen_until > now {
            return false;
        }
        let arrived = self.stations.iter().any(|&s| net.waiting(s, self.lane) > 0)
            || self.foreign.iter().any(|&station| net.waiting(station, 0) > 0);
        let due_at = self.deadline.min(self.links_due).min(self.again_at);
        let is_due = is_due || arrived || self.dirty || due_at <= now;
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
            None => self.deadline.min(self.links_due).min(self.again_at).max(now + 1_000),
        };
        at.max(self.frozen_until)
    }
}

/// What waits for a narrow link is as a broken outlet would leave it.
fn plant(canary: OutletCanary, waiting: &mut TxBatch) {
    match canary {
        OutletCanary::Forgets => waiting.clear(),
        OutletCanary::Repeats if !waiting.is_empty() => {
            let first = &waiting.frames()[0];
            let (to, head, data) = (first.to, first.head.clone(), first.data.clone());
            let twice = waiting.push(to);
            (twice.head, twice.data) = (head, data);
        }
        OutletCanary::Repeats | OutletCanary::None => {}
    }
}
