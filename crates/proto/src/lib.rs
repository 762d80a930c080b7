//! The protocol as state machines: what both ends of a session share.
//!
//! Pure: no clock, socket, thread, file or entropy in here. Time ([`Time`]), randomness (a seed)
//! and frames are arguments; frames to send come out. So the same code runs on real links and,
//! deterministically, in the simulator.
//!
//! * [`Session`] carries *items* (requests, data, completions, control messages) over one or more
//!   [`Path`]s: packet numbers, acknowledgements, loss recovery, congestion windows, frame sizes.
//! * [`Content`] is what an owner of a session (target or initiator) implements: the bytes behind
//!   an item are asked for when a frame is built, so what was lost is sent again as it is needed
//!   *then*, and an item that nobody needs any more is not sent again.
//! * [`BatchPolicy`] says when requests are sent and how many share a frame.
//! * [`StageObserver`] is told where requests stand.
//! * [`UnitMap`] and [`sequence_order`] are the arithmetic of slots, [`Pieces`] their received data.
//! * [`sums_of`] and [`sums_fit`] are what data is checked by from end to end.
//! * [`Sealed`] and [`Unsealed`] are the gate that every received frame goes through.
//!
//! Order of calls: feed every received frame through [`Session::accept`], then act on its messages;
//! at the end of the turn call [`Session::on_time`] and [`Session::transmit`]; sleep until
//! [`Session::deadline`] at most. `now` never goes backwards.
#![forbid(unsafe_code)]

mod ack;
mod batch;
mod checksum;
mod congestion;
mod drops;
mod gate;
mod item;
mod keys;
mod outside;
mod path;
mod pieces;
mod probe;
mod received;
mod recovery;
mod rng;
mod rtt;
mod session;
mod siphash;
mod stage;
mod sums;
mod units;

pub use batch::{BatchPolicy, Batching, SMALL_BYTES, TycheConfig};
pub use checksum::seal;
pub use drops::{DropReason, Drops};
pub use gate::{Sealed, Unsealed};
pub use item::{Content, Item, Said};
pub use keys::{RekeyLimits, SessionKeys};
pub use outside::{addr_from_wire, addr_to_wire, outside_frame};
pub use path::{AMPLIFICATION_MAX, Path, PathReport, PathState};
pub use pieces::{Arrived, Pieces};
pub use received::{Arrival, Received};
pub use rng::SipRng;
pub use session::{Notice, Role, Session, SessionCanary, SessionConfig, SessionStats};
pub use siphash::{SipKey, siphash};
pub use stage::{Stage, StageObserver, StageSums};
pub use sums::{PIECE_BYTES, SumCanary, sums_fit, sums_of, sums_of_part};
pub use thinwire_buffer::Time;
pub use units::{UNITS_MAX, UnitMap, sequence_order};

/// Where the slots' sequences begin in tests of their wrap: it comes with the fifth use.
pub const SEQUENCE_HIGH: u32 = u32::MAX - 4;
/// Where packet numbers begin in tests of large ones: they soon need more than 32 bits. A receiver
/// takes none that is further ahead.
pub const NUMBER_HIGH: u64 = u32::MAX as u64 - 40;
