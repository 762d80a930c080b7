//! Opening an export in a session: ATTACH, ATTACHED, ATTACH_REFUSED
//! (`docs/protocol.md`, "Attachments").

use crate::FrameError;
use crate::field::{message, only, value};
use crate::numbers::{attach_flags, feature};

message! {
    /// Initiator to target: open an export in this session.
    Attach<'a> = 0x0a {
        /// Chosen by the initiator, echoed.
        transaction: u32,
        /// See [`attach_flags`].
        flags: u8 => zero 3,
        /// With RESUME: the generation under which the initiator was writing.
        writer_generation: u64,
        /// The export's name.
        export: &'a str as Name,
    } check |a| only(attach_flags::KNOWN, a.flags)
}

message! {
    /// Target to initiator: attached.
    Attached = 0x0b {
        /// From the ATTACH.
        transaction: u32,
        /// Handle for requests.
        attachment: u32,
        /// Generation of the handle.
        generation: u32,
        /// Logical block in bytes.
        block_bytes: u32,
        /// Preferred granularity in bytes.
        preferred_bytes: u32,
        /// Longest read or write in bytes.
        io_bytes_max: u32,
        /// Size in bytes.
        bytes: u64,
        /// Names the volume.
        identity: [u8; 16],
        /// Which life of the content.
        incarnation: u64,
        /// The generation under which this attachment writes.
        writer_generation: u64,
        /// The target's verifier now.
        verifier: u64,
        /// See [`feature`].
        features: u8 => zero 3,
        /// Under so many generations before that one nobody has written, one after the other, at least.
        idle_generations: u32,
    } check |a| a.check()
}

impl Attached {
    fn check(&self) -> Result<(), FrameError> {
        only(feature::KNOWN, self.features)?;
        value(
            matches!(self.block_bytes, 512 | 4096)
                && self.bytes.is_multiple_of(u64::from(self.block_bytes))
                && self.io_bytes_max >= self.block_bytes
                && self.io_bytes_max.is_multiple_of(self.block_bytes),
        )
    }
}

message! {
    /// Target to initiator: not attached.
    AttachRefused<'a> = 0x0c {
        /// From the ATTACH.
        transaction: u32,
        /// A [`crate::Status`].
        status: u16 => zero 2,
        /// With Busy: after how many seconds the present holder is given up; `u32::MAX` if never.
        seconds_left: u32,
        /// A sentence for a person: with Busy, who holds it.
        text: &'a str as Text,
    }
}
