//! Messages of a session, and of its paths, of fixed size (`docs/protocol.md`, "Messages").

use alloc::vec::Vec;

use crate::FrameError;
use crate::field::{Body, message, only, value};
use crate::numbers::op_flags;

/// Received data is accounted in units of this many bytes, and DATA is cut at multiples of it.
pub const UNIT_BYTES: usize = 512;

message! {
    /// Initiator to target: do this. Takes `length` bytes of credit with it.
    Request = 0x01 {
        /// Number of the slot, from 0.
        slot: u16,
        /// An [`OpCode`](crate::OpCode); unknown numbers complete as unsupported.
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
    } check |r| only(op_flags::KNOWN, r.op_flags)
}

message! {
    /// Either way: `length` bytes of the payload belong at `offset` of this use of this slot.
    /// The payloads of a frame follow each other in the order of their DATA messages.
    DataHeader = 0x02 {
        /// Number of the slot, from 0.
        slot: u16 => zero 2,
        /// Which use of the slot.
        sequence: u32,
        /// Where in the request's data; a multiple of [`UNIT_BYTES`], unless it is a list of extents.
        offset: u32,
        /// Bytes in this frame.
        length: u32,
    } check |d| value(d.length != 0)
}

/// A DATA message with the place of its payload in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Number of the slot, from 0.
    pub slot: u16,
    /// Which use of it.
    pub sequence: u32,
    /// Where in the request's data.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
    /// Where the bytes are in the frame.
    pub payload_at: usize,
}

impl Data {
    /// The message type number.
    pub const TYPE: u8 = DataHeader::TYPE;
    /// Length of the message on the wire.
    pub const BYTES: usize = DataHeader::BYTES;

    fn header(&self) -> DataHeader {
        let Data { slot, sequence, offset, length, .. } = *self;
        DataHeader { slot, sequence, offset, length }
    }
}

impl Body<'_> for Data {
    #[inline]
    fn read(body: &[u8], payload_at: usize) -> Result<Self, FrameError> {
        let DataHeader { slot, sequence, offset, length } = DataHeader::read(body, payload_at)?;
        Ok(Data { slot, sequence, offset, length, payload_at })
    }

    #[inline]
    fn payload_bytes(&self) -> u32 {
        self.length
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.header().emit(out);
    }

    fn each_field(&self, see: &mut dyn FnMut(&'static str, &[u8])) {
        self.header().each_field(see);
    }
}

message! {
    /// Target to initiator: this use of this slot is finished.
    Complete = 0x03 {
        /// Number of the slot, from 0.
        slot: u16,
        /// A [`Status`](crate::Status).
        status: u16,
        /// Which use of the slot.
        sequence: u32,
        /// The target's verifier when the request took effect.
        verifier: u64,
        /// How many bytes of data the target sends for it (reads and block status).
        length: u32,
    }
}

message! {
    /// How much the sender of this can take in on a path.
    Credit = 0x05 {
        /// Number of the path.
        path: u8 => zero 3,
        /// Frames of the largest size.
        frames: u32,
        /// Bytes of frames.
        bytes: u32,
    }
}

message! {
    /// Initiator to target: this use of the slot is given up.
    Reset = 0x06 {
        /// Number of the slot, from 0.
        slot: u16 => zero 2,
        /// Which use of the slot.
        sequence: u32,
        /// Bytes of credit that the request took, in case it never arrived.
        length: u32,
    }
}

message! {
    /// Target to initiator: nothing more will happen for this use of the slot.
    ResetDone = 0x07 {
        /// Number of the slot, from 0.
        slot: u16 => zero 2,
        /// Which use of the slot.
        sequence: u32,
    }
}

message! {
    /// Target to initiator: something happened to an attachment.
    Event = 0x08 {
        /// See [`event_code`](crate::event_code); unknown codes are ignored.
        code: u16 => zero 2,
        /// Attachment handle, or 0 for the whole session.
        attachment: u32,
        /// Generation of the handle.
        generation: u32,
        /// Depends on the code.
        value: u64,
    }
}

message! {
    /// Asks for nothing but an acknowledgement.
    Ping = 0x09 {}
}

message! {
    /// Initiator to target: the attachment is no longer used; everything of it has completed.
    Detach = 0x0d {
        /// Chosen by the initiator, echoed.
        transaction: u32,
        /// Attachment handle.
        attachment: u32,
        /// Generation of the handle.
        generation: u32,
    }
}

message! {
    /// Target to initiator: detached.
    Detached = 0x0e {
        /// From the Detach.
        transaction: u32,
    }
}

message! {
    /// Either way: this session ends now, in order.
    Bye = 0x0f {
        /// A [`Status`](crate::Status): Ok, or ShuttingDown.
        status: u16 => zero 2,
    }
}

message! {
    /// Initiator to target: run the stage clocks of this kind, and tell what they show.
    AskClocks = 0x10 {
        /// Chosen by the initiator, echoed.
        transaction: u32,
        /// See [`clock_kind`](crate::clock_kind); unknown kinds count as off.
        kind: u8 => zero 3,
    }
}

message! {
    /// Target to initiator: what the stage clocks show. All but the first three fields are sums,
    /// modulo 2^64, over the requests so far, of the time in ns at which each crossed a border.
    Clocks = 0x11 {
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
    }
}

message! {
    /// Is this path there, and does it carry a frame of this size? Padded to it.
    Probe = 0x30 {
        /// Echoed in the reply.
        token: u64,
        /// How many frames the prober can take in on this path.
        room_frames: u32,
        /// How many bytes.
        room_bytes: u32,
    }
}

message! {
    /// Answer to a probe; not padded.
    ProbeReply = 0x31 {
        /// From the probe.
        token: u64,
        /// How many frames the answering side can take in on this path.
        room_frames: u32,
        /// How many bytes.
        room_bytes: u32,
    }
}
