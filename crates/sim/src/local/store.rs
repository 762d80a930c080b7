//! A store as it is, and what it has told of losses: against that it is judged which flushes may fail.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::Time;
use thinwire_volume::{
    CacheReport, Completion, Geometry, Identity, Io, MirrorReport, Volume, VolumeEvent,
};

/// A fault in what a store tells of losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCanary {
    /// It tells nobody.
    Forgets,
    /// It tells of each once more, with the next completions.
    Repeats,
}

/// How often the store has heard of a loss, shared with who judges.
pub type Heard = Rc<Cell<u64>>;

/// The store.
pub struct WatchedStore<V> {
    below: V,
    heard: Heard,
    canary: Option<StoreCanary>,
    /// Losses that are told once more, and how many of them were.
    repeats: (u64, u64),
    /// What the canary has added to, or kept from, the events of the store.
    seen: u64,
    news: Vec<VolumeEvent>,
}

impl<V: Volume> WatchedStore<V> {
    /// Over a store that has just been opened.
    pub fn new(below: V, heard: Heard, canary: Option<StoreCanary>) -> Self {
        let seen = below.events();
        WatchedStore { below, heard, canary, repeats: (0, 0), seen, news: Vec::new() }
    }

    /// Takes in what the store has to tell.
    fn look(&mut self) {
        if self.below.events() == self.seen {
            return;
        }
        self.seen = self.below.events();
        let mut news = Vec::new();
        self.below.poll_events(&mut news);
        let losses = news.iter().filter(|event| **event == VolumeEvent::Lost).count() as u64;
        self.heard.set(self.heard.get() + losses);
        match self.canary {
            Some(StoreCanary::Forgets) => news.retain(|event| *event != VolumeEvent::Lost),
            Some(StoreCanary::Repeats) => self.repeats.0 += losses,
            None => {}
        }
        self.news.append(&mut news);
    }
}

impl<V: Volume> Volume for WatchedStore<V> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        self.below.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.below.poll(done);
        if done.len() > before && self.repeats.1 < self.repeats.0 {
            self.repeats.1 += 1;
            self.news.push(VolumeEvent::Lost);
        }
        self.look();
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events() + self.repeats.1
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.look();
        events.append(&mut self.news);
    }

    fn wind_up(&mut self) {
        self.below.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below.caches(found);
    }

    fn is_timed(&self) -> bool {
        self.below.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.below.turn(now)
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }
}
