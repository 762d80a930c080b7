//! [`LabelledPart`]: a part of a whole that is in use, whose labels are written beside that, through a [`PartDoor`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use thinwire_volume::{
    Completion, ErrorKind, Geometry, Identity, Io, IoError, Layer, Token, Volume, VolumeEvent,
};

/// That of what is submitted through the door: whoever uses the part as data has no such token.
pub const BESIDE_TOKEN: Token = Token::MAX;

/// How errors of a part name that.
const NAME: &str = "labels";

/// Closed for good when a part has said that somebody else writes it by now: from then on nothing goes to any part of the whole, since who has
/// one of them has them all, or is about to (rule 18). Clones are of one whole.
#[derive(Clone, Default)]
pub struct PartFence {
    is_closed: Rc<Cell<bool>>,
    canary: FenceCanary,
}

/// A fault planted in it, which tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FenceCanary {
    #[default]
    None,
    /// What a part says of who writes it by now is not heard.
    IgnoresFence,
    /// Only the part that has said it is given nothing more.
    OnePartOnly,
}

impl PartFence {
    fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    fn close(&mut self) {
        match self.canary {
            FenceCanary::None => self.is_closed.set(true),
            FenceCanary::IgnoresFence => {}
            FenceCanary::OnePartOnly => self.is_closed = Rc::new(Cell::new(true)),
        }
    }
}

/// A part, as it is, and a door through which one I/O at a time goes there beside what the whole submits.
pub struct LabelledPart {
    below: Box<dyn Volume>,
    door: PartDoor,
    fence: PartFence,
    /// What came when the fence was closed.
    refused: Vec<Completion>,
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
    /// What the whole makes ready for itself before that.
    room: Room,
    /// How often something was said to the whole.
    count: u64,
    is_gone: bool,
}

/// How what a part has more stands to the whole.
#[derive(Clone, Copy, Debug)]
enum Room {
    NotAsked,
    Asked(u64),
    Heard,
    Ended(Result<(), RoomError>),
}

/// Why what a part has more could not be made ready. Nothing of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomError {
    /// It could not be written.
    Unwritten(IoError),
    /// Something that was written there may be gone again.
    Lost,
    /// The whole is about to end, or has stopped.
    Ended,
}

impl LabelledPart {
    /// Of a part of the whole that has this fence.
    pub fn new(part: Box<dyn Volume>, fence: PartFence) -> (Self, PartDoor) {
        let door = PartDoor(Rc::new(RefCell::new(Inner {
            waiting: None,
            is_out: false,
            done: Vec::new(),
            geometry: part.geometry(),
            identity: part.identity(),
            bytes: None,
            is_told: true,
            room: Room::NotAsked,
            count: 0,
            is_gone: false,
        })));
        let refused = Vec::new();
        (LabelledPart { below: part, door: door.clone(), fence, refused }, door)
    }
}

impl PartDoor {
    /// So many bytes of data are the whole's from now on: its label says so, durably.
    pub fn grow(&self, bytes: u64) {
        let inner = &mut *self.0.borrow_mut();
        (inner.bytes, inner.is_told) = (Some(bytes), false);
        inner.count += 1;
    }

    /// How often it has grown, or was asked to.
    pub(crate) fn count(&self) -> u64 {
        self.0.borrow().count
    }

    /// Has the whole make room ready, so that it can use so many bytes of data once the label says so.
    pub(crate) fn ask_room(&self, bytes: u64) {
        let inner = &mut *self.0.borrow_mut();
        inner.room = Room::Asked(bytes);
        inner.count += 1;
    }

    /// The bytes that it was asked for, once.
    pub(crate) fn hear_room(&self) -> Option<u64> {
        let room = &mut self.0.borrow_mut().room;
        match *room {
            Room::Asked(bytes) => {
                *room = Room::Heard;
                Some(bytes)
            }
            _ => None,
        }
    }

    /// So that has ended: of what is ready all is durable.
    pub(crate) fn end_room(&self, ended: Result<(), RoomError>) {
        self.0.borrow_mut().room = Room::Ended(ended);
    }

    /// How it has ended, once it has, and once.
    pub(crate) fn take_room(&self) -> Option<Result<(), RoomError>> {
        let room = &mut self.0.borrow_mut().room;
        let Room::Ended(ended) = *room else { return None };
        *room = Room::NotAsked;
        Some(ended)
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
        match self.fence.is_closed() {
            false => self.below.submit(io),
            true => self.refused.push(fenced(&io)),
        }
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        let is_fenced = |completion: &Completion| matches!(completion.result, Err(error) if error.kind == ErrorKind::Fenced);
        if done[start..].iter().any(is_fenced) {
            self.fence.close();
        }
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
            match self.fence.is_closed() {
                true => inner.done.push(fenced(&io)),
                false => {
                    inner.is_out = true;
                    self.below.submit(io);
                }
            }
        }
        done.append(&mut self.refused);
    }

    /// Though nothing was under way there that would have said so.
    fn on_events(&mut self, events: &mut [VolumeEvent]) {
        if events.iter().any(|event| matches!(event, VolumeEvent::Fenced { .. })) {
            self.fence.close();
        }
    }

    fn taken(&self) -> usize {
        self.below.outstanding() - usize::from(self.door.0.borrow().is_out) + self.refused.len()
    }
}

fn fenced(io: &Io) -> Completion {
    Completion::new(io.token, Err(io.error(ErrorKind::Fenced, NAME)))
}

impl Drop for LabelledPart {
    fn drop(&mut self) {
        self.door.0.borrow_mut().is_gone = true;
    }
}

#[cfg(test)]
mod tests;
