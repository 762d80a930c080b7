//! [`Observed`]: a volume that a test looks into while something stands on it.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_volume::{Completion, Geometry, Identity, Io, Volume};

/// A handle: the test keeps a clone of what it gives away, and uses it while nothing is outstanding there.
#[derive(Clone)]
pub struct Observed(Rc<RefCell<dyn Volume>>);

impl Observed {
    pub fn new(volume: impl Volume + 'static) -> Self {
        Observed(Rc::new(RefCell::new(volume)))
    }
}

impl Volume for Observed {
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
