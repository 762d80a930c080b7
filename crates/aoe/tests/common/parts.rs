//! Stores that a test can do something to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume, VolumeEvent};

/// A store that outlives the target that serves it: the medium.
#[derive(Clone)]
pub struct SharedStore(Rc<RefCell<Box<dyn Volume>>>);

impl SharedStore {
    pub fn new(store: Box<dyn Volume>) -> Self {
        SharedStore(Rc::new(RefCell::new(store)))
    }

    /// What was under way ends, and nobody hears of it.
    pub fn settle(&mut self) {
        self.0.borrow_mut().poll(&mut Vec::new());
    }
}

impl Volume for SharedStore {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry()
    }
    fn identity(&self) -> Identity {
        self.0.borrow().identity()
    }
    fn submit(&mut self, io: Io) {
        self.0.borrow_mut().submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.0.borrow_mut().poll(done);
    }
    fn outstanding(&self) -> usize {
        self.0.borrow().outstanding()
    }
}

/// A volume that keeps writes while its gate is shut, and says that it has lost something when it is told to.
pub struct Slow {
    inner: Box<dyn Volume>,
    gate: Rc<Cell<bool>>,
    losses: Rc<Cell<u64>>,
    kept: Vec<Io>,
    told: u64,
}

impl Slow {
    pub fn new(inner: Box<dyn Volume>, gate: Rc<Cell<bool>>, losses: Rc<Cell<u64>>) -> Self {
        let told = losses.get();
        Slow { inner, gate, losses, kept: Vec::new(), told }
    }
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn submit(&mut self, io: Io) {
        match self.gate.get() || !io.op.is_write() {
            true => self.inner.submit(io),
            false => self.kept.push(io),
        }
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.gate.get() {
            // The last first: a volume may do so.
            while let Some(io) = self.kept.pop() {
                self.inner.submit(io);
            }
        }
        self.inner.poll(done);
    }
    fn outstanding(&self) -> usize {
        self.kept.len() + self.inner.outstanding()
    }
    fn events(&self) -> u64 {
        self.losses.get()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let lost = self.losses.get() > self.told;
        events.extend(lost.then_some(VolumeEvent::Lost));
        self.told = self.losses.get();
    }
}

/// A volume whose record of who writes cannot be read, or stored, while it is told so.
pub struct Unrecorded {
    inner: Box<dyn Volume>,
    fails: Rc<Cell<Option<Op>>>,
    failed: Vec<Completion>,
}

impl Unrecorded {
    pub fn new(inner: Box<dyn Volume>, fails: Rc<Cell<Option<Op>>>) -> Self {
        Unrecorded { inner, fails, failed: Vec::new() }
    }
}

impl Volume for Unrecorded {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn submit(&mut self, io: Io) {
        match self.fails.get() == Some(io.op) {
            true => {
                let error = io.error(ErrorKind::Io, "unrecorded");
                self.failed.push(Completion::new(io.token, Err(error)));
            }
            false => self.inner.submit(io),
        }
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.failed);
        self.inner.poll(done);
    }
    fn outstanding(&self) -> usize {
        self.failed.len() + self.inner.outstanding()
    }
}
