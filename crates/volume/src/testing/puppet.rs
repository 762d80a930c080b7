//! [`Puppet`]: a volume that does as it is told, for tests of what stands on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thinwire_buffer::Time;

use crate::{Completion, ErrorKind, Features, Geometry, Identity, Io, Volume, VolumeEvent};

/// Completes what it is told to, when it is told to. A handle: the test keeps a clone of what it gives
/// away.
///
/// # Panics
/// When it is submitted what its geometry does not allow.
#[derive(Clone)]
pub struct Puppet(Rc<Told>);

struct Told {
    geometry: Cell<Geometry>,
    identity: Cell<Identity>,
    /// Submitted, and not taken by the test.
    seen: RefCell<Vec<Io>>,
    ready: RefCell<Vec<Completion>>,
    outstanding: Cell<usize>,
    losses: Cell<u64>,
    /// What has happened to it besides, and how much of that has been told.
    news: RefCell<Vec<VolumeEvent>>,
    told: Cell<u64>,
    refreshes: Cell<usize>,
    may_grow: Cell<bool>,
    is_busy: Cell<bool>,
    polls: Cell<usize>,
    questions: Cell<usize>,
    /// What time it was told last, and when it wants to be told next.
    is_timed: Cell<bool>,
    turned: Cell<Option<Time>>,
    wants: Cell<Time>,
}

impl Puppet {
    /// Able to do everything.
    pub const FEATURES: Features =
        Features { read_only: false, discard: true, write_zeroes: true, block_status: true };

    /// 8 KiB in blocks of 512 bytes.
    pub const GEOMETRY: Geometry = Geometry {
        bytes: 8192,
        block_bytes: 512,
        preferred_bytes: 4096,
        io_bytes_max: 1 << 20,
        features: Self::FEATURES,
    };

    /// What each of them says it has copied.
    pub const COPIED_BYTES: u64 = 100;

    /// One with an identity of its own for each `number`.
    pub fn new(number: u8, geometry: Geometry) -> Self {
        let identity = Identity { identity: [number; 16], incarnation: number.into() };
        Puppet(Rc::new(Told {
            geometry: Cell::new(geometry),
            identity: Cell::new(identity),
            seen: RefCell::default(),
            ready: RefCell::default(),
            outstanding: Cell::new(0),
            losses: Cell::new(0),
            news: RefCell::default(),
            told: Cell::new(0),
            refreshes: Cell::new(0),
            may_grow: Cell::new(false),
            is_busy: Cell::new(false),
            polls: Cell::new(0),
            questions: Cell::new(0),
            is_timed: Cell::new(false),
            turned: Cell::new(None),
            wants: Cell::new(Time::NEVER),
        }))
    }

    /// Clones of these, as a module takes its volumes.
    pub fn boxed(puppets: &[Puppet]) -> Vec<Box<dyn Volume>> {
        puppets.iter().map(|puppet| Box::new(puppet.clone()) as Box<dyn Volume>).collect()
    }

    /// What was submitted since the last call.
    pub fn take(&self) -> Vec<Io> {
        self.0.seen.take()
    }

    /// The only I/O that was.
    ///
    /// # Panics
    /// If there was none, or more than one.
    pub fn take_one(&self) -> Io {
        let mut seen = self.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.pop().expect("there is one")
    }

    /// The next poll brings this.
    pub fn complete(&self, completion: Completion) {
        self.0.ready.borrow_mut().push(completion);
    }

    /// The next poll says that this has succeeded.
    pub fn succeed(&self, io: &Io) {
        self.complete(Completion::new(io.token, Ok(())));
    }

    /// The next poll says that there was no space for this.
    pub fn fail(&self, io: &Io) {
        self.complete(Completion::new(io.token, Err(io.error(ErrorKind::NoSpace, "puppet"))));
    }

    /// Says that it has lost something `count` times.
    pub fn set_losses(&self, count: u64) {
        self.0.losses.set(count);
    }

    /// Says that this has happened to it.
    pub fn tell(&self, event: VolumeEvent) {
        if let VolumeEvent::Resized { bytes } = event {
            self.0.geometry.set(Geometry { bytes, ..self.0.geometry.get() });
        }
        self.0.news.borrow_mut().push(event);
    }

    /// Says from now on that there is something to look at.
    pub fn may_grow(&self) {
        self.0.may_grow.set(true);
    }

    /// From now on it is at work for nobody, or not any more.
    pub fn be_busy(&self, is_busy: bool) {
        self.0.is_busy.set(is_busy);
    }

    /// How often it was asked to look whether it has grown.
    pub fn refreshes(&self) -> usize {
        self.0.refreshes.get()
    }

    /// Starts over with other content.
    pub fn be_born_again(&self) {
        let Identity { identity, incarnation } = self.0.identity.get();
        self.0.identity.set(Identity { identity, incarnation: incarnation + 1 });
    }

    /// Is timed from now on, which is to be said before anybody asks, and wants to be told the time again then.
    pub fn want_turn(&self, at: Time) {
        self.0.is_timed.set(true);
        self.0.wants.set(at);
    }

    /// What time it was told last.
    pub fn turned(&self) -> Option<Time> {
        self.0.turned.get()
    }

    /// How often it was polled.
    pub fn polls(&self) -> usize {
        self.0.polls.get()
    }

    /// How often it was asked what is outstanding, or whether anything has happened to it.
    pub fn questions(&self) -> usize {
        self.0.questions.get()
    }
}

impl Volume for Puppet {
    fn geometry(&self) -> Geometry {
        self.0.geometry.get()
    }

    fn identity(&self) -> Identity {
        self.0.identity.get()
    }

    fn submit(&mut self, io: Io) {
        assert!(io.op.is_record() || self.geometry().check(&io) == Ok(()), "{io:?}");
        self.0.outstanding.update(|count| count + 1);
        self.0.seen.borrow_mut().push(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let ready = &mut *self.0.ready.borrow_mut();
        self.0.polls.update(|count| count + 1);
        self.0.outstanding.update(|count| count.saturating_sub(ready.len()));
        done.append(ready);
    }

    fn outstanding(&self) -> usize {
        self.0.questions.update(|count| count + 1);
        self.0.outstanding.get()
    }

    fn copied_bytes(&self) -> u64 {
        Self::COPIED_BYTES
    }

    fn events(&self) -> u64 {
        self.0.questions.update(|count| count + 1);
        self.0.losses.get() + self.0.told.get() + self.0.news.borrow().len() as u64
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let news = &mut *self.0.news.borrow_mut();
        self.0.told.update(|count| count + news.len() as u64);
        events.append(news);
    }

    fn is_at_rest(&self) -> bool {
        self.0.outstanding.get() == 0 && !self.0.is_busy.get()
    }

    fn is_timed(&self) -> bool {
        self.0.is_timed.get()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.0.turned.set(Some(now));
        self.0.wants.get()
    }

    fn refresh(&mut self) -> bool {
        self.0.refreshes.update(|count| count + 1);
        self.0.may_grow.get()
    }
}
