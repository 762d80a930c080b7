//! The frames of the Ethernet Block Device (EBD), in both forms that its document has
//! (E. Van Hensbergen and F. Rawson, "Revisiting Link-Layer Storage Networking", sections 2.2 and 2.3;
//! `docs/ebd.md` says which octet is whose decision).
//!
//! A frame is a header of 10 octets (idealised form) or 18 (implemented form), then, if it carries one, a payload: at
//! most one block. Numbers are little-endian. Both forms say the same with different fields, so there is one value for
//! both, [`Frame`]; what tells frames apart that are on their way at the same time is a [`Tag`].
//!
//! * `form.rs`: the two forms, their operations and codes
//! * `frame.rs`: a frame as a value, from bytes and to bytes
//! * `handshake.rs`: what a handshake says

mod form;
mod frame;
mod handshake;

pub use form::{EbdForm, NakReason, Operation};
pub use frame::{EbdError, Frame, Tag};
pub use handshake::{EbdState, HandshakeAnswer, HandshakeAsk};

/// Bytes of a sector: what lengths and addresses count.
pub const SECTOR_BYTES: u32 = 512;
/// The EtherType used unless another is configured: "local experimental 2" of IEEE 802. The document names none.
pub const ETHERTYPE_DEFAULT: u16 = 0x88b6;
/// The largest device, in sectors: their number has 32 bits.
pub const SECTORS_MAX: u64 = u32::MAX as u64;
