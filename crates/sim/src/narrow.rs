//! A link whose queue takes some of what it is given, or nothing for a while, as a kernel's does that is full;
//! and whether what waits for it leaves once, and in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{LinkInfo, Pool, RxBatch, TxBatch, TxFrame};
use thinwire_link::rng::Rng;
use thinwire_link::{Link, LinkStats, Outgoing, Sources};

use crate::world::MS;

/// How the queues of a machine's links are.
#[derive(Clone, Copy, Debug)]
pub struct NarrowConfig {
    /// Draws when they take what.
    pub seed: u64,
    /// They take all from then on, in ns.
    pub until_ns: u64,
    /// Share of the time in which they take all.
    pub open: f64,
    /// Share of the rest in which one takes nothing for longer than anybody waits for it.
    pub stuck: f64,
    /// A fault in what waits for them.
    pub canary: OutletCanary,
}

/// A fault in what becomes of frames that a queue did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OutletCanary {
    /// None: as it is.
    #[default]
    None,
    /// They are forgotten.
    Forgets,
    /// The first of them is sent twice.
    Repeats,
}

/// What queues have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NarrowStats {
    /// Calls of which a part was taken.
    pub partial: u64,
    /// Calls of which nothing was.
    pub full: u64,
    /// Frames that were given up.
    pub dropped: u64,
}

/// The frames that wait for a queue, by a number that each has.
#[derive(Debug, Default)]
pub struct Passage {
    waiting: VecDeque<u64>,
    stats: NarrowStats,
}

impl Passage {
    /// More are to be sent: those of the batch that did not wait already.
    ///
    /// # Panics
    /// Of those that wait some are missing, or there are others.
    pub fn begin(&mut self, batch: &TxBatch) {
        let new = batch.frames().get(self.waiting.len()..);
        let new = new.expect("frames that waited for a full queue are forgotten");
        self.waiting.extend(new.iter().map(number));
    }

    /// What was not taken waits, but for what was given up: so many in all since the link was opened.
    ///
    /// # Panics
    /// They are not those that did not leave.
    pub fn end(&mut self, batch: &TxBatch, dropped: u64) {
        let given_up = (dropped - std::mem::replace(&mut self.stats.dropped, dropped)) as usize;
        self.waiting.truncate(self.waiting.len() - given_up.min(self.waiting.len()));
        assert_eq!(self.waiting.len(), batch.len(), "frames that wait for a full queue");
    }

    fn leave(&mut self, frame: &TxFrame) {
        let next = self.waiting.pop_front();
        assert_eq!(next, Some(number(frame)), "a frame left that was not next");
    }

    /// What has happened.
    pub fn stats(&self) -> NarrowStats {
        self.stats
    }
}

/// Frames differ in their heads: packet numbers are there, and a checksum over all.
fn number(frame: &TxFrame) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    frame.head.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// How many frames a call may leave at the queue now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mouth {
    Open,
    Takes(usize),
    Full,
}

/// The link.
pub struct NarrowLink {
    below: Box<dyn Link>,
    config: NarrowConfig,
    rng: Rng,
    clock: Rc<Cell<u64>>,
    mouth: Mouth,
    changes_at: u64,
    passage: Rc<RefCell<Passage>>,
    taken: TxBatch,
}

impl NarrowLink {
    /// Over another; `place` tells it from the other links of the world, and `passage` sees its frames leave.
    pub fn new(
        below: Box<dyn Link>,
        config: NarrowConfig,
        place: u64,
        clock: Rc<Cell<u64>>,
        passage: Rc<RefCell<Passage>>,
    ) -> Self {
        let seed = config.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ clock.get();
        let (rng, taken) = (Rng::new(seed), TxBatch::new());
        NarrowLink { below, config, rng, clock, mouth: Mouth::Open, changes_at: 0, passage, taken }
    }

    fn look(&mut self) -> Mouth {
        let now = self.clock.get();
        if now >= self.config.until_ns {
            self.mouth = Mouth::Open;
        } else if now >= self.changes_at {
            let rng = &mut self.rng;
            let (mouth, most) = match rng.chance(self.config.open) {
                true => (Mouth::Open, 10 * MS),
                false if rng.chance(self.config.stuck) => (Mouth::Full, 150 * MS),
                false if rng.chance(0.5) => (Mouth::Full, 3 * MS),
                false => (Mouth::Takes(rng.between(1, 6) as usize), 10 * MS),
            };
            self.mouth = mouth;
            self.changes_at = now + rng.between(most / 20, most);
        }
        self.mouth
    }
}

impl Link for NarrowLink {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn info(&self) -> LinkInfo {
        self.below.info()
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        let count = match self.look() {
            Mouth::Open => batch.len(),
            Mouth::Takes(most) => most.min(batch.len()),
            Mouth::Full => 0,
        };
        let passage = &mut *self.passage.borrow_mut();
        for frame in &batch.frames()[..count] {
            passage.leave(frame);
            let copy = self.taken.push(frame.to);
            copy.head.extend_from_slice(&frame.head);
            copy.data = frame.data.clone();
        }
        passage.stats.partial += u64::from(0 < count && count < batch.len());
        passage.stats.full += u64::from(count == 0 && !batch.is_empty());
        batch.sent(count);
        let outgoing = self.below.send(&mut self.taken)?;
        assert!(self.taken.is_empty(), "simulated links take all");
        Ok(outgoing)
    }

    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        self.below.recv(pool, max, out)
    }

    fn sources(&self) -> Sources<'_> {
        self.below.sources()
    }

    fn due_in(&mut self) -> Option<Duration> {
        self.below.due_in()
    }

    fn stats(&self) -> LinkStats {
        self.below.stats()
    }
}
