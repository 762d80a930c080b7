//! What a node drives: parts, what they are told and what they leave behind (`docs/design.md`, "One
//! node for everything that needs driving").
//!
//! A part never calls another part and never waits. It is told of frames, events, I/Os and
//! completions; whatever it wants of others it leaves behind: I/Os in its [`Port`](crate::Port)s,
//! completions for whoever polls it, frames and effects at the end of a turn. So parts may form any
//! graph without circles, and one turn can be replayed call by call.

use std::any::Any;
use std::time::Duration;

use thinwire_buffer::{Addr, Room, RxFrame, Time, TxBatch};

use crate::Volume;

/// Whatever needs driving: a store, an initiator, a target, a search. Belongs to one thread.
///
/// In a turn it gets any number of frames and events, then [`Part::settle`] as often as something has
/// come for it, then [`Part::close`] once. A part for which nothing has come, and whose deadline lies
/// ahead, is not called at all.
pub trait Part: Any {
    /// The volume that it is, if others may stand on it: the node submits their I/Os and polls it for
    /// their completions.
    fn volume(&mut self) -> Option<&mut dyn Volume> {
        None
    }

    /// A frame for it has arrived on the link of this number, among the links that it was given. It may
    /// be changed where it lies.
    fn on_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        let _ = (now, link, frame);
    }

    /// A frame of another protocol has arrived on a link that it has for itself, counted as all its links.
    fn on_foreign_frame(&mut self, now: Time, link: usize, frame: &mut RxFrame) {
        let _ = (now, link, frame);
    }

    /// Something else has happened.
    fn on_event(&mut self, now: Time, event: PartEvent<'_>) {
        let _ = (now, event);
    }

    /// How much may be on the way to it on a link: others use that, too, and they have become more or
    /// fewer (`docs/protocol.md`, "Credits"; rule 9).
    fn on_room(&mut self, link: usize, room: Room) {
        let _ = (link, room);
    }

    /// Acts on whatever has come: polls the volumes that it stands on, answers what can be answered.
    fn settle(&mut self, now: Time) {
        let _ = now;
    }

    /// The end of a turn: fires timers and leaves what is to be sent and done. Returns when it must be
    /// closed again at the latest, though nothing comes; [`Time::NEVER`] if it need not.
    fn close(&mut self, turn: &mut Closing<'_>) -> Time;

    /// How soon something may come for it that is worth staying awake for.
    fn expects(&self) -> Expects {
        Expects::Nothing
    }
}

/// See [`Part::expects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expects {
    /// Something at work on this machine, such as a store.
    Work,
    /// An answer from the network, which takes as long as this there and back.
    Answer(Duration),
    /// More frames than one of an answer that has begun: who sleeps over some of them misses nothing, since the last one decides when
    /// the answer is there.
    Rest,
    /// A request of a client of this machine that has all its answers: its descriptor tells of that.
    Request,
    /// Nothing is on its way.
    Nothing,
}

/// What a part is told besides frames.
#[derive(Debug)]
pub enum PartEvent<'a> {
    /// A descriptor of its own, or of one of the volumes inside it, is readable.
    Readable,
    /// Something has happened to a volume that it stands on: see [`Volume::poll_events`].
    Below,
    /// A frame that came to another part of the same kind, on another thread, for this one.
    Letter {
        /// The link that it came on, counted as for [`Part::on_frame`].
        link: usize,
        /// The frame.
        frame: &'a mut RxFrame,
    },
    /// What the part of the same kind on another shard has to say: see [`Parcel`].
    Parcel(Box<dyn Any + Send>),
}

/// What a part finds at the end of a turn.
pub struct Closing<'a> {
    /// The turn's time.
    pub now: Time,
    /// Frames to send, one batch for each link that it was given.
    pub out: &'a mut [TxBatch],
    /// What it wants done outside of the node.
    pub effects: &'a mut Vec<Effect>,
}

/// What a part wants done outside of its node.
#[derive(Debug)]
pub enum Effect {
    /// A frame for the part of the same kind on another shard.
    Letter(Letter),
    /// Something to say to it.
    Parcel(Parcel),
    /// A sentence for the person who looks after it.
    Note(Gravity, String),
}

/// How much a sentence matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gravity {
    /// Good to know.
    News,
    /// Something is not as it should be; it goes on.
    Warning,
    /// Something does not go on.
    Failure,
}

/// What a part says to the part of the same kind on another shard. Unlike a [`Letter`] it is never lost,
/// and those from one shard to another arrive in their order: whoever sends them bounds how many there are.
#[derive(Debug)]
pub struct Parcel {
    /// Index of the shard that it is for.
    pub shard: u8,
    /// For [`PartEvent::Parcel`] there. Only parts look into it.
    pub content: Box<dyn Any + Send>,
}

/// A frame for another shard, as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Index of the shard that it is for.
    pub shard: u8,
    /// The link it came on.
    pub link: usize,
    /// Its sender.
    pub from: Addr,
    /// Its bytes.
    pub frame: Vec<u8>,
}
