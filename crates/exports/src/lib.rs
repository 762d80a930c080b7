//! Exports: the one door to the volumes that a node offers, whatever language is spoken in front of it
//! (`docs/protocol.md`, "Attachments", "Writer generations", "Restart and replay"; rules 2, 3, 4, 7
//! and 13).
//!
//! A dialect (the native protocol is one) knows sessions, frames and retransmission. Behind the door
//! is what all dialects must agree on: who may write, who is fenced, what may have been lost. The door
//! owns the volumes and gives none of them out, so that a dialect that passes it by does not compile:
//!
//! 1. [`Exports::open_read`] and [`Exports::claim`] lead to a [`Pass`]: one export, opened by one user.
//!    A claim to write is decided by [`Exports::settle`], durably recorded before it is granted.
//! 2. [`Exports::admit`] shows a pass for one I/O and gives a [`Permit`], unless the pass means
//!    nothing any more, or the I/O must wait.
//! 3. [`Exports::submit`] spends the permit. The [`IoTicket`] that comes with it is the user's own; it
//!    comes back from [`Exports::poll`] with the completion and the verifier that stands for it.
//!
//! Nothing here blocks: writer records are I/Os of the volumes. One `Exports` is one shard's.
//!
//! * `users.rs`: what a dialect tells and is told; `dialect.rs`: one that is a guest of another's host
//! * `exports.rs`: the exports and their verifiers; `report.rs`: what status tells of them
//! * `passes.rs`: what is open, and for whom
//! * `claims.rs`: who may write next; `holder.rs`: who does
//! * `record.rs`: the stored writer record, and what becomes of it when it cannot be changed
//! * `twin.rs`: two live processes with one identity
//! * `events.rs`: losses and growth of the volumes
//! * `ios.rs`: I/Os in the volumes, flushes together, doubtful durability
//! * `timed.rs`: time for volumes that wait for it
//! * `marks.rs`: which of many exports have something to be done
//! * `leaving.rs`: exports that are taken away; `fenced.rs`: those that somebody else serves by now;
//!   `opening.rs`: which of those that have one name
//! * `spread.rs`, `owner.rs`, `branch.rs`: one export on several shards
//!
//! An I/O without a permit does not compile, and nobody else makes one:
//!
//! ```compile_fail,E0451
//! # use thinwire_exports::{Exports, IoTicket, Pass, Permit};
//! # use thinwire_volume::{ErrorKind, Io, Op};
//! fn read(exports: &mut Exports, pass: Pass, ticket: IoTicket) -> Result<(), ErrorKind> {
//!     let permit = Permit { pass: 0, export: 0 };
//!     exports.submit(permit, Io::new(0, Op::Read, 0, 512), ticket, |_| {})
//! }
//! ```
//!
//! ```
//! # use thinwire_exports::{Exports, IoTicket, Pass, Permit};
//! # use thinwire_volume::{ErrorKind, Io, Op};
//! fn read(exports: &mut Exports, pass: Pass, ticket: IoTicket) -> Result<(), ErrorKind> {
//!     let permit = exports.admit(ticket.session, pass).expect("a good pass");
//!     exports.submit(permit, Io::new(0, Op::Read, 0, 512), ticket, |_| {})
//! }
//! ```
#![forbid(unsafe_code)]

mod branch;
mod claims;
mod dialect;
mod events;
mod exports;
mod fenced;
mod holder;
mod ios;
mod leaving;
mod marks;
mod opening;
mod owner;
mod passes;
mod record;
mod report;
mod spread;
mod timed;
mod twin;
mod users;

pub use claims::WriteClaim;
pub use dialect::{Dialect, DialectDesk, Done, Refused, Submitted, Wish};
pub use exports::{DoorCanary, DoorStats, ExportConfig, Exports, ExportsConfig};
pub use ios::{IoTicket, Permit};
pub use opening::ExportOpening;
pub use record::RecordedWriter;
pub use report::{ExportReport, RecordReport, WriterReport};
pub use spread::{DoorLetter, SpreadConfig};
pub use users::{Denial, Denied, Granted, InitiatorRun, NoEntry, Pass, User, Users};
