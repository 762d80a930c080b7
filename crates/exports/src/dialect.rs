//! Another protocol in front of the same door, beside the one whose target has the door: what it is told, and what it
//! is given.
//!
//! Its frames come over links of their own. Its clients have places among the sessions of the host, so that limits and
//! turns count them as any other.

use thinwire_buffer::{Addr, RxFrame, Time, TxBatch};
use thinwire_volume::{Completion, ErrorKind, Io, Op};

use crate::exports::Exports;
use crate::users::{NoEntry, Pass, Users};

/// The server of a dialect. It is called by its host only, on the host's thread; nothing in it waits.
pub trait Dialect: Users {
    /// A frame has come on its link.
    fn on_frame(&mut self, now: Time, frame: &mut RxFrame, desk: &mut dyn DialectDesk);

    /// It is the turn of a wish that stood in line ([`Submitted::InLine`]). `None` if it was given up since.
    fn take_from_line(&mut self, session: u64, slot: u16) -> Option<Wish>;

    /// A wish that stood in line was refused by the door.
    fn on_refused(&mut self, now: Time, wish: Wish, why: Refused);

    /// An I/O of a wish has ended, under this verifier. The session may have ended meanwhile.
    fn on_completion(&mut self, now: Time, done: Done<'_>);

    /// Wishes that were held back ([`Submitted::Held`]) may be tried again.
    fn on_release(&mut self, now: Time, desk: &mut dyn DialectDesk);

    /// An export is being taken away: whoever has it open has it no more.
    fn on_removed(&mut self, now: Time, export: usize, desk: &mut dyn DialectDesk);

    /// The end of a turn: acts on what the door has decided, and on what is due.
    fn end_turn(&mut self, now: Time, desk: &mut dyn DialectDesk);

    /// Leaves its frames.
    fn transmit(&mut self, now: Time, out: &mut TxBatch);

    /// When [`Dialect::end_turn`] is to be called next, though nothing comes.
    fn deadline(&self, now: Time) -> Time;

    /// Its clients are told that the node ends, and nothing new is taken.
    fn shut_down(&mut self);

    /// It has nothing more to say to anybody.
    fn is_idle(&self) -> bool;
}

/// What the host of a dialect does for it.
pub trait DialectDesk {
    /// The door.
    fn exports(&mut self) -> &mut Exports;

    /// A place for a client of this station: the id of its session, which is told to the door.
    ///
    /// # Errors
    /// There is no room, in a sentence.
    fn seat(&mut self, now: Time, from: Addr) -> Result<u64, String>;

    /// The client is gone: whatever it had open is closed, and the place free.
    fn leave(&mut self, session: u64, last_heard: Time);

    /// How many wishes a session may have: their slots are below it.
    fn slots(&self) -> u16;

    /// Gives an I/O to the door, or has it stand in line behind others.
    fn submit(&mut self, now: Time, wish: Wish) -> Submitted;

    /// A wish that stands in line is given up. Nothing happens if it does not.
    fn withdraw(&mut self, session: u64, slot: u16);
}

/// An I/O that a client wants done.
#[derive(Debug)]
pub struct Wish {
    /// Whose it is.
    pub session: u64,
    /// The pass that is shown for it.
    pub pass: Pass,
    /// Which of that session's it is.
    pub slot: u16,
    /// Tells the uses of a slot apart.
    pub number: u32,
    /// What is to be done. Its token is the door's.
    pub io: Io,
}

/// What has become of a wish.
#[derive(Debug)]
pub enum Submitted {
    /// A volume has it.
    Begun,
    /// It waits for its turn: [`Dialect::take_from_line`].
    InLine(Wish),
    /// It has to wait until a claim is decided: [`Dialect::on_release`].
    Held(Wish),
    /// It was refused.
    Refused(Refused),
}

/// Why a wish was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The pass means nothing, or nothing any more.
    Pass(NoEntry),
    /// The pass or the volume does not allow it.
    Io(ErrorKind),
}

/// An I/O that has ended.
pub struct Done<'a> {
    /// Of [`Wish`].
    pub session: u64,
    /// Of [`Wish`].
    pub slot: u16,
    /// Of [`Wish`].
    pub number: u32,
    /// What it was.
    pub op: Op,
    /// See [`Exports::poll`].
    pub verifier: u64,
    /// How it ended, with its data.
    pub completion: &'a mut Completion,
}
