//! Bytes to values and back: the native protocol of Thinwire, as `docs/protocol.md` defines it, and that of
//! other systems whose disks it can be, each in a module of its own: [`aoe`], [`ebd`].
//!
//! A frame is a fixed header, then messages, then payload. It goes through one gate, in stages:
//! [`Header::parse`] checks the public part of its header, by which its session is found; then it is
//! unsealed (`thinwire-proto`, since that is done with scattered memory); then [`Frame::open`] checks the
//! rest whole (counts, reserved bits, which message may stand in which kind of frame), so that iterating
//! the messages afterwards cannot fail.
//!
//! All messages stand in one table, [`MESSAGES`], each kind of number in one list (`numbers.rs`).
//!
//! No I/O, no clock, no unsafe code, no panic on any input.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ack_ranges;
pub mod aoe;
mod attaching;
mod discovery;
pub mod ebd;
mod error;
mod field;
mod frame;
mod greeting;
mod header;
mod message;
mod numbers;
mod sums;
mod table;

pub use ack_ranges::{ACK_RANGES_MAX, AckRanges, Ranges};
pub use attaching::{Attach, AttachRefused, Attached};
pub use discovery::{Discover, Offer, OfferedExports};
pub use error::FrameError;
pub use field::{NAME_BYTES_MAX, SECRET_BYTES_MAX, TEXT_BYTES_MAX};
pub use frame::{Frame, MessageIter, message_type};
pub use greeting::{
    Address, Addresses, Hello, KeyedAnswer, KeyedHello, MEMBERS_MAX, Refuse, Retry,
    SECRET_ANSWER_AT, UnknownSession, WELCOME_ADDRESSES_MAX, Welcome,
};
pub use header::{
    BASE_FRAME_BYTES_MIN, DATA_OFFSET, FRAME_BYTES_MAX, Feedback, HEADER_BYTES, Header,
    PUBLIC_BYTES, SUITE_CRC32C, SUITE_MAX, TAG_AT, TAG_BYTES, VERSION,
};
pub use message::*;
pub use numbers::{
    Kind, OpCode, Status, attach_flags, clock_kind, event_code, feature, flags, op_flags,
};
pub use sums::{SUM_BYTES, SUMS_MAX, Sums};
pub use table::{MESSAGES, Message, MessageRow, Sender};
