//! Bytes to values and back: the native protocol of Thinwire, as `docs/protocol.md` defines it.
//!
//! A frame is a fixed [`Header`], then messages, then payload. [`Frame::parse`] is the one gate for
//! bytes from the wire: what it returns has been checked whole (version, kind, lengths, counts,
//! reserved bits, which message may stand in which kind of frame), so that iterating the messages
//! afterwards cannot fail. Checksums are verified by the caller before it parses
//! (`thinwire-proto`), because they run over scattered memory when sending.
//!
//! No I/O, no clock, no unsafe code, no panic on any input.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ack_ranges;
mod attaching;
mod discovery;
mod error;
mod field;
mod frame;
mod greeting;
mod header;
mod message;

pub use ack_ranges::{ACK_RANGES_MAX, AckRanges, Ranges};
pub use attaching::{Attach, AttachRefused, Attached};
pub use discovery::{Discover, Offer, OfferedExports};
pub use error::FrameError;
pub use field::{NAME_BYTES_MAX, TEXT_BYTES_MAX};
pub use frame::{Data, Frame, Message, MessageIter, message_type, messages_end};
pub use greeting::{Address, Addresses, Hello, Refuse, Retry, WELCOME_ADDRESSES_MAX, Welcome};
pub use header::{
    BASE_FRAME_BYTES_MIN, DATA_OFFSET, FRAME_BYTES_MAX, HEADER_BYTES, Header, Kind, VERSION,
    checksum_split, checksum_split_head, flags,
};
pub use message::{
    AskClocks, Bye, Clocks, Complete, Credit, DataHeader, Detach, Detached, Event, OpCode, Ping,
    Probe, ProbeReply, Request, Reset, ResetDone, Status, UNIT_BYTES, UnknownSession, attach_flags,
    clock_kind, event_code, feature, op_flags,
};
