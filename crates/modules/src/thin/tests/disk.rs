//! [`Disk`]: a part that does its I/Os in any order and late, fails some, loses or tears in a crash what was not flushed, and fills what is discarded
//! with bytes that are nobody's.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{
    Completion, ErrorKind, Features, Geometry, Identity, Io, Op, Volume, VolumeEvent,
};

pub use super::content::Content;

pub const SECTOR: u64 = 512;
/// What never was written, or was discarded.
pub const NOBODYS: u64 = 0xbad0_bad0_bad0_bad0;

pub type Sector = Rc<[u8; SECTOR as usize]>;
/// Time of all disks of a world: counts what happens.
pub type Clock = Rc<Cell<u64>>;

/// A sector that says one thing.
pub fn sector_of(stamp: u64) -> Sector {
    let mut bytes = [0; SECTOR as usize];
    bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    Rc::new(bytes)
}

/// Something that was written.
struct Change {
    submitted: u64,
    done: u64,
    durable: u64,
    /// Some of it may be there, and no flush knows.
    has_failed: bool,
    first: u64,
    sectors: Vec<Sector>,
}

struct Inner {
    geometry: Geometry,
    /// What is where nothing was written.
    blank: Sector,
    start: Content,
    now: Content,
    log: Vec<Change>,
    /// The last that was asked for what a crash leaves: how many were durable, and what they left.
    settled: RefCell<(usize, Content)>,
    clock: Clock,
    /// With what had been done when it was submitted, and its place in the log.
    queue: Vec<(Io, u64, Option<usize>)>,
    random: SplitMix64,
    is_prompt: bool,
    /// One in so many of these fails; none if 0.
    fails: BTreeMap<&'static str, u64>,
    /// How they do.
    refuses: ErrorKind,
    /// Reads of these offsets fail; and how many have.
    unread: BTreeSet<u64>,
    has_failed: u64,
    /// It does none of these.
    hangs: Option<Op>,
    discards: Vec<(u64, u64)>,
    forgets: bool,
    lost: u64,
    news: Vec<VolumeEvent>,
}

#[derive(Clone)]
pub struct Disk(Rc<RefCell<Inner>>);

impl Disk {
    pub fn new(bytes: u64, start: Content, blank: u64, clock: &Clock, seed: u64) -> Self {
        Disk(Rc::new(RefCell::new(Inner {
            geometry: Geometry {
                bytes,
                block_bytes: 512,
                preferred_bytes: 4096,
                io_bytes_max: 1 << 20,
                features: Features {
                    read_only: false,
                    discard: blank != 0,
                    write_zeroes: !seed.is_multiple_of(3),
                    block_status: false,
                },
            },
            blank: sector_of(blank),
            now: start.clone(),
            settled: RefCell::new((0, start.clone())),
            start,
            log: Vec::new(),
            clock: clock.clone(),
            queue: Vec::new(),
            random: SplitMix64::new(seed + 1),
            is_prompt: true,
            fails: BTreeMap::new(),
            refuses: ErrorKind::Io,
            unread: BTreeSet::new(),
            has_failed: 0,
            hangs: None,
            discards: Vec::new(),
            forgets: false,
            lost: 0,
            news: Vec::new(),
        })))
    }

    /// From now on it does all at the next poll, or some of it.
    pub fn be_prompt(&self, is_prompt: bool) {
        self.0.borrow_mut().is_prompt = is_prompt;
    }

    /// From now on one in so many fails of these: "read", "write" or "flush".
    pub fn fail(&self, what: &'static str, one_in: u64) {
        self.0.borrow_mut().fails.insert(what, one_in);
    }

    /// From now on what fails does so.
    pub fn fail_with(&self, kind: ErrorKind) {
        self.0.borrow_mut().refuses = kind;
    }

    /// From now on reads of these offsets fail, and no others.
    pub fn fail_reads_of(&self, offsets: impl IntoIterator<Item = u64>) {
        self.0.borrow_mut().unread = offsets.into_iter().collect();
    }

    /// So many reads have failed.
    pub fn failed_reads(&self) -> u64 {
        self.0.borrow().has_failed
    }

    /// From now on it does none of these, or all it is asked for.
    pub fn hang(&self, what: Option<Op>) {
        self.0.borrow_mut().hangs = what;
    }

    /// It has so many bytes from now on.
    pub fn grow(&self, bytes: u64) {
        self.0.borrow_mut().geometry.bytes = bytes;
    }

    pub fn without_discards(&self) {
        self.0.borrow_mut().geometry.features.discard = false;
    }

    /// Loses some of what it has done and not flushed, and says so.
    pub fn lose(&self) {
        let inner = &mut *self.0.borrow_mut();
        inner.forget();
        inner.lost += 1;
        inner.news.push(VolumeEvent::Lost);
    }

    /// From now on it loses such when a flush fails, and does not say so.
    pub fn forget_behind_failed_flushes(&self) {
        self.0.borrow_mut().forgets = true;
    }

    /// What was discarded since the last call: offset and length.
    pub fn discards(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0.borrow_mut().discards)
    }

    pub fn content(&self) -> Content {
        self.0.borrow().now.clone()
    }

    /// How many writes of it may be lost or not, at that time.
    pub fn doubts(&self, time: u64) -> usize {
        let inner = self.0.borrow();
        let is_in_doubt = |change: &&Change| change.submitted <= time && change.durable > time;
        inner.log.iter().filter(is_in_doubt).count()
    }

    /// What a crash at that time leaves, where of each of these writes these sectors are there, as bits, the last one for all that follow.
    pub fn after(&self, time: u64, fates: &[u8]) -> Content {
        self.0.borrow().after(time, fates)
    }
}

impl Inner {
    fn after(&self, time: u64, fates: &[u8]) -> Content {
        let mut changes: Vec<_> =
            self.log.iter().filter(|change| change.submitted <= time).collect();
        changes.sort_by_key(|change| (change.done.min(time + 1), change.submitted));
        let mut fates = fates.iter();
        let mut order: Vec<_> = changes
            .iter()
            .filter(|change| change.durable > time)
            .map(|change| change.submitted)
            .collect();
        order.sort_unstable();
        let fate_of: BTreeMap<u64, u8> =
            order.into_iter().map(|at| (at, *fates.next().expect("one for each"))).collect();
        let behind = changes.iter().position(|change| change.durable > time);
        let mut content = self.settled(&changes[..behind.unwrap_or(changes.len())]);
        for change in &changes[behind.unwrap_or(changes.len())..] {
            let fate = fate_of.get(&change.submitted).copied().unwrap_or(0xff);
            for (at, sector) in change.sectors.iter().enumerate() {
                if fate >> at.min(7) & 1 == 1 {
                    content.insert(change.first + at as u64, sector.clone());
                }
            }
        }
        content
    }

    /// What these have made of it, the first that were done, all durable: they stay so, and more follow them.
    fn settled(&self, changes: &[&Change]) -> Content {
        let mut kept = self.settled.borrow_mut();
        if kept.0 > changes.len() {
            *kept = (0, self.start.clone());
        }
        for change in &changes[kept.0..] {
            for (at, sector) in (change.first..).zip(&change.sectors) {
                kept.1.insert(at, sector.clone());
            }
        }
        kept.0 = changes.len();
        kept.1.clone()
    }

    /// Loses most of what is done and not durable.
    fn forget(&mut self) {
        let now = self.tick();
        let mut random = SplitMix64::new(self.random.next());
        let is_done = |change: &&mut Change| change.done <= now && !change.has_failed;
        let mut done: Vec<_> = self.log.iter_mut().filter(is_done).collect();
        done.sort_by_key(|change| change.done);
        self.now = self.start.clone();
        for change in done {
            if change.durable > now && !random.one_in(4) {
                change.sectors.clear();
            }
            for (at, sector) in (change.first..).zip(&change.sectors) {
                self.now.insert(at, sector.clone());
            }
        }
    }

    fn tick(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn fails(&mut self, op: Op) -> bool {
        let what = match op {
            Op::Read => "read",
            Op::Flush => "flush",
            _ => "write",
        };
        let one_in = self.fails.get(what).copied().unwrap_or(0);
        one_in > 0 && self.random.one_in(one_in)
    }

    fn execute(&mut self, io: Io, covers: u64, own: Option<usize>) -> Completion {
        let mut completion = Completion::new(io.token, Ok(()));
        let is_unread = io.op == Op::Read && self.unread.contains(&io.offset);
        self.has_failed += u64::from(is_unread);
        if is_unread || self.fails(io.op) {
            let now = self.tick();
            if let Some(own) = own {
                (self.log[own].done, self.log[own].has_failed) = (now, true);
            }
            if io.op == Op::Flush && self.forgets {
                self.forget();
            }
            completion.result = Err(io.error(self.refuses, "disk"));
            return completion;
        }
        let first = io.offset / SECTOR;
        match io.op {
            Op::Read => {
                let mut bytes = Vec::new();
                for at in first..first + io.len / SECTOR {
                    bytes.extend_from_slice(&self.now.get(&at).unwrap_or(&self.blank)[..]);
                }
                completion.data = SegList::of(Pool::new(0).copy_of(&bytes).freeze());
            }
            Op::Flush => {
                let now = self.tick();
                let is_covered = |change: &&mut Change| change.done <= covers && !change.has_failed;
                for change in self.log.iter_mut().filter(is_covered) {
                    change.durable = change.durable.min(now);
                }
            }
            _ => {
                let now = self.tick();
                let change = &mut self.log[own.expect("it changes something")];
                change.done = now;
                if io.flags.fua {
                    change.durable = now;
                }
                for (at, sector) in (first..).zip(&change.sectors) {
                    self.now.insert(at, sector.clone());
                }
            }
        }
        completion
    }
}

impl Volume for Disk {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        let inner = &mut *self.0.borrow_mut();
        assert_eq!(inner.geometry.check(&io), Ok(()), "{io:?}");
        let (first, count) = (io.offset / SECTOR, io.len / SECTOR);
        let sectors: Option<Vec<Sector>> = match io.op {
            Op::Write => {
                let bytes = io.data.to_vec();
                let chunks = bytes.chunks(SECTOR as usize);
                Some(chunks.map(|chunk| Rc::new(chunk.try_into().expect("whole"))).collect())
            }
            Op::WriteZeroes => Some(vec![sector_of(0); count as usize]),
            Op::Discard => {
                inner.discards.push((io.offset, io.len));
                Some(vec![sector_of(NOBODYS); count as usize])
            }
            _ => None,
        };
        let now = inner.tick();
        let own = sectors.map(|sectors| {
            let (done, durable) = (u64::MAX, u64::MAX);
            let has_failed = false;
            inner.log.push(Change { submitted: now, done, durable, has_failed, first, sectors });
            inner.log.len() - 1
        });
        inner.queue.push((io, now, own));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let inner = &mut *self.0.borrow_mut();
        let mut queue = std::mem::take(&mut inner.queue);
        let mut at = 0;
        while at < queue.len() {
            if Some(queue[at].0.op) == inner.hangs {
                at += 1;
            } else if inner.is_prompt {
                let (io, covers, own) = queue.remove(at);
                done.push(inner.execute(io, covers, own));
            } else if inner.random.one_in(3) {
                let nth = inner.random.below((queue.len() - at) as u64) as usize + at;
                let nth = if Some(queue[nth].0.op) == inner.hangs { at } else { nth };
                let (io, covers, own) = queue.remove(nth);
                done.push(inner.execute(io, covers, own));
            } else {
                at += 1;
            }
        }
        inner.queue = queue;
    }

    fn outstanding(&self) -> usize {
        self.0.borrow().queue.len()
    }

    fn events(&self) -> u64 {
        self.0.borrow().lost
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        events.append(&mut self.0.borrow_mut().news);
    }
}
