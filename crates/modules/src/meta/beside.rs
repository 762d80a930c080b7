//! [`LabelledPart`]: a part of a whole that is in use, whose labels are written beside that, through a [`PartDoor`].

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_volume::{Completion, Geometry, Identity, Io, Layer, Token, Volume};

/// That of what is submitted through the door: whoever uses the part as data has no such token.
pub const BESIDE_TOKEN: Token = Token::MAX;

/// A part, as it is, and a door through which one I/O at a time goes there beside what the whole submits.
pub struct LabelledPart {
    below: Box<dyn Volume>,
    door: PartDoor,
}

/// The door: itself a volume, whose I/Os are handed down and brought back when the part is polled. A handle: clones are of one door.
#[derive(Clone)]
pub struct PartDoor(Rc<RefCell<Inner>>);

struct Inner {
    waiting: Option<Io>,
    /// That is below.
    is_out: bool,
    done: Vec<Completion>,
    /// Of the part, when it was polled last.
    geometry: Geometry,
    identity: Identity,
    /// So many bytes of its data are the whole's from now on; whether the whole knows that.
    bytes: Option<u64>,
    is_told: bool,
    /// How often that has changed.
    count: u64,
    is_gone: bool,
}

impl LabelledPart {
    /// Of a part.
    pub fn new(part: Box<dyn Volume>) -> (Self, PartDoor) {
        let door = PartDoor(Rc::new(RefCell::new(Inner {
            waiting: None,
            is_out: false,
            done: Vec::new(),
            geometry: part.geometry(),
            identity: part.identity(),
            bytes: None,
            is_told: true,
            count: 0,
            is_gone: false,
        })));
        (LabelledPart { below: part, door: door.clone() }, door)
    }
}

impl PartDoor {
    /// So many bytes of data are the whole's from now on: its label says so, durably.
    pub fn grow(&self, bytes: u64) {
        let inner = &mut *self.0.borrow_mut();
        (inner.bytes, inner.is_told) = (Some(bytes), false);
        inner.count += 1;
    }

    /// How often it has grown.
    pub(crate) fn growths(&self) -> u64 {
        self.0.borrow().count
    }

    /// The bytes of data that it has, if that was not told.
    pub(crate) fn take_growth(&self) -> Option<u64> {
        let inner = &mut *self.0.borrow_mut();
        match std::mem::replace(&mut inner.is_told, true) {
            true => None,
            false => inner.bytes,
        }
    }

    /// The part is not in use any more.
    pub fn is_gone(&self) -> bool {
        self.0.borrow().is_gone
    }
}

impl Volume for PartDoor {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }

    fn identity(&self) -> Identity {
        self.0.borrow().identity
    }

    fn submit(&mut self, io: Io) {
        let inner = &mut *self.0.borrow_mut();
        assert!(inner.waiting.is_none() && !inner.is_out, "one at a time");
        inner.waiting = Some(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.0.borrow_mut().done);
    }

    fn outstanding(&self) -> usize {
        let inner = self.0.borrow();
        usize::from(inner.waiting.is_some() || inner.is_out) + inner.done.len()
    }
}

impl Layer for LabelledPart {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        self.below.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        let inner = &mut *self.door.0.borrow_mut();
        inner.geometry = self.below.geometry();
        if inner.is_out {
            let own = done[start..].iter().position(|completion| completion.token == BESIDE_TOKEN);
            if let Some(at) = own {
                inner.done.push(done.remove(start + at));
                inner.is_out = false;
            }
        }
        if let Some(io) = inner.waiting.take() {
            debug_assert_eq!(io.token, BESIDE_TOKEN);
            inner.is_out = true;
            self.below.submit(io);
        }
    }

    fn taken(&self) -> usize {
        self.below.outstanding() - usize::from(self.door.0.borrow().is_out)
    }
}

impl Drop for LabelledPart {
    fn drop(&mut self) {
        self.door.0.borrow_mut().is_gone = true;
    }
}
