//! Messages of fixed size (`docs/protocol.md`, "Messages").

use crate::FrameError;
use crate::field::{Zero, fixed_message};

/// Received data is accounted in units of this many bytes, and DATA is cut at multiples of it.
pub const UNIT_BYTES: usize = 512;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpCode {
    /// Target sends data.
    Read = 1,
    /// Initiator sends data.
    Write = 2,
    /// Make completed writes durable.
    Flush = 3,
    /// The content is no longer needed.
    Discard = 4,
    /// Reads as zeroes from now on.
    WriteZeroes = 5,
    /// Which parts hold data: target sends a list of extents.
    BlockStatus = 6,
}

impl OpCode {
    /// The operation with this number.
    pub fn from_number(number: u8) -> Option<OpCode> {
        Some(match number {
            1 => OpCode::Read,
            2 => OpCode::Write,
            3 => OpCode::Flush,
            4 => OpCode::Discard,
            5 => OpCode::WriteZeroes,
            6 => OpCode::BlockStatus,
            _ => return None,
        })
    }
}

/// Bits of [`Request::op_flags`].
pub mod op_flags {
    /// Durable before completion.
    pub const FUA: u8 = 1 << 0;
    /// Write-zeroes must not punch a hole.
    pub const NO_HOLE: u8 = 1 << 1;
    /// Block status may stop after one extent.
    pub const ONE_EXTENT: u8 = 1 << 2;
    /// All bits that this version knows.
    pub const KNOWN: u8 = FUA | NO_HOLE | ONE_EXTENT;
}

/// How a request, an attach or a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The medium failed.
    Io = 1,
    /// Out of range, unaligned, empty or too long.
    Invalid = 2,
    /// No space left.
    NoSpace = 3,
    /// Not for a read-only attachment or volume.
    ReadOnly = 4,
    /// No such operation here.
    Unsupported = 5,
    /// Another writer took over; final.
    Fenced = 6,
    /// No export of that name.
    NotFound = 7,
    /// Held by another writer.
    Busy = 8,
    /// The attachment handle means nothing (any more).
    NoAttachment = 9,
    /// The target is shutting down.
    ShuttingDown = 10,
    /// This side does not agree to run without keys.
    Insecure = 11,
    /// No common protocol version.
    Version = 12,
    /// No room for another session or attachment.
    TooMany = 13,
    /// The export is served by another shard: open a session of its own for it.
    WrongShard = 14,
    /// A re-attach found other content than the initiator was using; final.
    OtherContent = 15,
}

impl Status {
    /// The status with this number; numbers of later versions read as an I/O error.
    pub fn from_number(number: u16) -> Status {
        match number {
            0 => Status::Ok,
            2 => Status::Invalid,
            3 => Status::NoSpace,
            4 => Status::ReadOnly,
            5 => Status::Unsupported,
            6 => Status::Fenced,
            7 => Status::NotFound,
            8 => Status::Busy,
            9 => Status::NoAttachment,
            10 => Status::ShuttingDown,
            11 => Status::Insecure,
            12 => Status::Version,
            13 => Status::TooMany,
            14 => Status::WrongShard,
            15 => Status::OtherContent,
            _ => Status::Io,
        }
    }
}

/// Bits of `Attach::flags` and `Attached::flags`.
pub mod attach_flags {
    /// No writes through this attachment.
    pub const READ_ONLY: u8 = 1 << 0;
    /// Take the volume over from its present writer, who is fenced.
    pub const TAKE_OVER: u8 = 1 << 1;
    /// This is a re-attach: grant only if the writer generation is the one presented.
    pub const RESUME: u8 = 1 << 2;
    /// All bits that this version knows.
    pub const KNOWN: u8 = READ_ONLY | TAKE_OVER | RESUME;
}

/// Bits of `Attached::features`.
pub mod feature {
    /// The volume cannot be written.
    pub const READ_ONLY: u8 = 1 << 0;
    /// DISCARD works.
    pub const DISCARD: u8 = 1 << 1;
    /// WRITE_ZEROES works.
    pub const WRITE_ZEROES: u8 = 1 << 2;
    /// BLOCK_STATUS works.
    pub const BLOCK_STATUS: u8 = 1 << 3;
    /// All bits that this version knows.
    pub const KNOWN: u8 = READ_ONLY | DISCARD | WRITE_ZEROES | BLOCK_STATUS;
}

/// Values of [`Event::code`].
pub mod event_code {
    /// The volume's size is now `value` bytes.
    pub const RESIZE: u16 = 1;
    /// The target will go away in order; `value` is 0.
    pub const SHUTDOWN: u16 = 2;
    /// The attachment was taken over; `value` is the new writer generation.
    pub const FENCED: u16 = 3;
}

fixed_message! {
    /// Initiator to target: do this. Takes `length` bytes of credit with it.
    Request = 0x01, 32, {
        /// Number of the slot, from 0.
        slot: u16,
        /// An [`OpCode`]; unknown numbers complete as unsupported.
        op: u8,
        /// See [`op_flags`].
        op_flags: u8,
        /// Which use of the slot.
        sequence: u32,
        /// Attachment handle.
        attachment: u32,
        /// Generation of the handle.
        generation: u32,
        /// First byte, a multiple of the logical block.
        address: u64,
        /// Bytes, a multiple of the logical block.
        length: u32,
    } reserved 0
}

fixed_message! {
    /// Either way: `length` bytes of the payload belong at `offset` of this use of this slot.
    /// The payloads of a frame follow each other in the order of their DATA messages.
    DataHeader = 0x02, 20, {
        /// Number of the slot, from 0.
        slot: u16,
        /// Zero.
        reserved: Reserved16,
        /// Which use of the slot.
        sequence: u32,
        /// Where in the request's data; a multiple of [`UNIT_BYTES`], unless it is a list of extents.
        offset: u32,
        /// Bytes in this frame.
        length: u32,
    } reserved 0
}

/// Two bytes that are zero.
pub type Reserved16 = ReservedField<2>;
/// Bytes that are zero, kept in the struct so that field order is the wire's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservedField<const N: usize>;

impl<const N: usize> crate::field::Field for ReservedField<N> {
    const BYTES: usize = N;
    fn get(bytes: &[u8]) -> Option<Self> {
        Zero::<N>::get(bytes).map(|_| ReservedField)
    }
    fn put(self, out: &mut alloc::vec::Vec<u8>) {
        Zero::<N>.put(out);
    }
}

fixed_message! {
    /// Target to initiator: this use of this slot is finished.
    Complete = 0x03, 24, {
        /// Number of the slot, from 0.
        slot: u16,
        /// A [`Status`].
        status: u16,
        /// Which use of the slot.
        sequence: u32,
        /// The target's verifier when the request took effect.
        verifier: u64,
        /// How many bytes of data the target sends for it (reads and block status).
        length: u32,
    } reserved 0
}

fixed_message! {
    /// How much the sender of this can take in on a path.
    Credit = 0x05, 16, {
        /// Number of the path.
        path: u8,
        /// Zero.
        reserved_a: ReservedField<3>,
        /// Frames of the largest size.
        frames: u32,
        /// Bytes of frames.
        bytes: u32,
    } reserved 0
}

fixed_message! {
    /// Initiator to target: this use of the slot is given up.
    Reset = 0x06, 16, {
        /// Number of the slot, from 0.
        slot: u16,
        /// Zero.
        reserved: Reserved16,
        /// Which use of the slot.
        sequence: u32,
        /// Bytes of credit that the request took, in case it never arrived.
        length: u32,
    } reserved 0
}

fixed_message! {
    /// Target to initiator: nothing more will happen for this use of the slot.
    ResetDone = 0x07, 12, {
        /// Number of the slot, from 0.
        slot: u16,
        /// Zero.
        reserved: Reserved16,
        /// Which use of the slot.
        sequence: u32,
    } reserved 0
}

fixed_message! {
    /// Target to initiator: something happened to an attachment.
    Event = 0x08, 24, {
        /// See [`event_code`]; unknown codes are ignored.
        code: u16,
        /// Zero.
        reserved: Reserved16,
        /// Attachment handle, or 0 for the whole session.
        attachment: u32,
        /// Generation of the handle.
        generation: u32,
        /// Depends on the code.
        value: u64,
    } reserved 0
}

fixed_message! {
    /// Asks for nothing but an acknowledgement.
    Ping = 0x09, 4, {} reserved 0
}

fixed_message! {
    /// Initiator to target: the attachment is no longer used; everything of it has completed.
    Detach = 0x0d, 16, {
        /// Chosen by the initiator, echoed.
        transaction: u32,
        /// Attachment handle.
        attachment: u32,
        /// Generation of the handle.
        generation: u32,
    } reserved 0
}

fixed_message! {
    /// Target to initiator: detached.
    Detached = 0x0e, 8, {
        /// From the Detach.
        transaction: u32,
    } reserved 0
}

fixed_message! {
    /// Either way: this session ends now, in order.
    Bye = 0x0f, 8, {
        /// A [`Status`]: Ok, or ShuttingDown.
        status: u16,
        /// Zero.
        reserved: Reserved16,
    } reserved 0
}

/// Values of [`AskClocks::kind`].
pub mod clock_kind {
    /// Stop the clocks.
    pub const OFF: u8 = 0;
    /// All time.
    pub const PHYSICAL: u8 = 1;
    /// The time in which the serving thread had a processor.
    pub const VIRTUAL: u8 = 2;
}

fixed_message! {
    /// Initiator to target: run the stage clocks of this kind, and tell what they show.
    AskClocks = 0x10, 12, {
        /// Chosen by the initiator, echoed.
        transaction: u32,
        /// See [`clock_kind`]; unknown kinds count as off.
        kind: u8,
        /// Zero.
        reserved: ReservedField<3>,
    } reserved 0
}

fixed_message! {
    /// Target to initiator: what the stage clocks show. All but the first three fields are sums,
    /// modulo 2^64, over the requests so far, of the time in ns at which each crossed a border.
    Clocks = 0x11, 80, {
        /// From the AskClocks.
        transaction: u32,
        /// The same for machines whose clocks show the same time, and 0 for virtual time.
        clock: u64,
        /// Requests that crossed all borders.
        requests: u64,
        /// Their last frame was in the machine's receive queue.
        arrived: u64,
        /// It had been taken out of it.
        received: u64,
        /// The thread that serves had it.
        taken: u64,
        /// The request was handed to the store.
        submitted: u64,
        /// The store had completed it.
        stored: u64,
        /// The last frame of the answer was handed to be sent.
        sent: u64,
        /// Not times but their sum: how long the last frames waited for a thread that sends.
        handed_over: u64,
    } reserved 0
}

fixed_message! {
    /// The session id in your frame means nothing here.
    UnknownSession = 0x23, 12, {
        /// The id.
        session: u64,
    } reserved 0
}

fixed_message! {
    /// Is this path there, and does it carry a frame of `size` bytes? Padded to that size.
    Probe = 0x30, 24, {
        /// Echoed in the reply.
        token: u64,
        /// Bytes of this frame.
        size: u16,
        /// Zero.
        reserved: Reserved16,
        /// How many frames the prober can take in on this path.
        room_frames: u32,
        /// How many bytes.
        room_bytes: u32,
    } reserved 0
}

fixed_message! {
    /// Answer to a probe; not padded.
    ProbeReply = 0x31, 24, {
        /// From the probe.
        token: u64,
        /// Bytes of the probe frame as it arrived.
        size: u16,
        /// Zero.
        reserved: Reserved16,
        /// How many frames the answering side can take in on this path.
        room_frames: u32,
        /// How many bytes.
        room_bytes: u32,
    } reserved 0
}

impl Request {
    pub(crate) fn check(&self) -> Result<(), FrameError> {
        if self.op_flags & !op_flags::KNOWN != 0 { Err(FrameError::Reserved) } else { Ok(()) }
    }
}
