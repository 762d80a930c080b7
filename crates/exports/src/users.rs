//! What a dialect tells the door, and is told.

use thinwire_buffer::Time;
use thinwire_volume::{Geometry, Identity};

/// One run of an initiator: who comes back after a crash has the same identity and another instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitiatorRun {
    /// Who it is, the same for all its life. Zeroes are nobody.
    pub initiator: [u8; 16],
    /// Which run of it.
    pub instance: u64,
}

/// A session of a dialect, as the door knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Unique among the sessions of all dialects that use this door, and never used again.
    pub session: u64,
    /// A later one of the same initiator has a higher one, on whatever shard.
    pub number: u64,
    /// Who is at its other end.
    pub run: InitiatorRun,
    /// Which of the sessions of that run that stand side by side. The first, 0, claims to write as if it were the
    /// only one; the others join it.
    pub member: u8,
    /// It lets itself be heard from time to time: once it has been silent for a lease, another may be granted what it
    /// writes. One of a protocol whose clients say nothing when they have nothing to do keeps it.
    pub is_leased: bool,
    /// What a person calls it.
    pub name: String,
}

/// One export, opened by one user: what the user shows with each I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Counted from 1; used again when the pass is closed.
    pub number: u32,
    /// Tells the uses of one number apart.
    pub generation: u32,
}

/// An export has been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// To be shown with each I/O.
    pub pass: Pass,
    /// Shape and abilities; read-only also if the export or the pass is.
    pub geometry: Geometry,
    /// Which content it is.
    pub identity: Identity,
    /// The writer's generation: its own, if it was opened for writing.
    pub writer_generation: u64,
    /// Under so many generations before that one nobody has written, one after the other, at least.
    pub idle_generations: u32,
    /// Of who only reads: somebody is on record as the writer.
    pub is_held: bool,
    /// See [`Exports::poll`](crate::Exports::poll).
    pub verifier: u64,
}

/// Why an export was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Another writer has it, or is about to.
    Busy,
    /// It can only be read.
    ReadOnly,
    /// Another writer has been granted it since: final.
    Fenced,
    /// It holds other content than when it was granted.
    OtherContent,
    /// Who may write cannot be read or recorded.
    Record,
}

/// An export was not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why not.
    pub why: Denial,
    /// When asking again may help, in seconds; 0: not by waiting; [`Denied::NEVER`]: by waiting for
    /// the present writer alone.
    pub seconds_left: u32,
    /// A sentence for a person.
    pub text: String,
}

impl Denied {
    /// The writer is gone and nothing counts down until another may have the export.
    pub const NEVER: u32 = u32::MAX;

    pub(crate) fn new(why: Denial, seconds_left: u32, text: String) -> Self {
        Denied { why, seconds_left, text }
    }
}

/// Why an I/O was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEntry {
    /// The pass is none of this user's, or closed.
    NoPass,
    /// Another writer was granted the export: final.
    Fenced,
    /// Another is about to be granted it, or it is not known who writes. To be shown again once
    /// [`Exports::take_release`](crate::Exports::take_release) says so.
    Waits,
}

/// The sessions of all dialects in front of a door, for what it has to ask and to tell them.
pub trait Users {
    /// The session has not ended.
    fn is_there(&mut self, session: u64) -> bool;

    /// Asks every session of a run, of all its members, whether it still lives, in a way that whoever lives must answer.
    /// False if it has no session.
    fn ask(&mut self, now: Time, run: InitiatorRun) -> bool;

    /// Any session of the run has answered what it was asked at `since`.
    fn has_answered(&mut self, run: InitiatorRun, since: Time) -> bool;

    /// A claim has been granted.
    fn on_granted(&mut self, session: u64, transaction: u32, granted: &Granted);

    /// A claim has been denied.
    fn on_denied(&mut self, session: u64, transaction: u32, denied: Denied);

    /// A writer's pass that could not be closed at once ([`Exports::close`](crate::Exports::close)) is.
    fn on_closed(&mut self, session: u64, transaction: u32);

    /// A pass means nothing any more: `by` was granted the export under a generation.
    fn on_fenced(&mut self, session: u64, pass: Pass, by: InitiatorRun, writer_generation: u64);

    /// The export of a pass has so many bytes now: more than it had, and it stays that large.
    fn on_resized(&mut self, session: u64, pass: Pass, bytes: u64);
}
