//! Opening an export in a session: ATTACH, ATTACHED, ATTACH_REFUSED
//! (`docs/protocol.md`, "Attachments").

use alloc::vec::Vec;

use crate::field::{Field, Reader, put_text, put_variable};
use crate::message::{attach_flags, feature};
use crate::{FrameError, NAME_BYTES_MAX, TEXT_BYTES_MAX};

/// Initiator to target: open an export in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach<'a> {
    /// Chosen by the initiator, echoed.
    pub transaction: u32,
    /// See [`attach_flags`].
    pub flags: u8,
    /// With RESUME: the generation under which the initiator was writing.
    pub writer_generation: u64,
    /// The export's name.
    pub export: &'a str,
}

impl<'a> Attach<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x0a;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.transaction.put(out);
            self.flags.put(out);
            [0u8; 3].put(out);
            self.writer_generation.put(out);
            put_text(self.export, NAME_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let transaction = r.get()?;
        let flags: u8 = r.get()?;
        if r.get::<[u8; 3]>()? != [0; 3] || flags & !attach_flags::KNOWN != 0 {
            return Err(FrameError::Reserved);
        }
        let attach = Attach {
            transaction,
            flags,
            writer_generation: r.get()?,
            export: r.text(NAME_BYTES_MAX)?,
        };
        r.end()?;
        Ok(attach)
    }
}

/// Target to initiator: attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// From the ATTACH.
    pub transaction: u32,
    /// Handle for requests.
    pub attachment: u32,
    /// Generation of the handle.
    pub generation: u32,
    /// Logical block in bytes.
    pub block_bytes: u32,
    /// Preferred granularity in bytes.
    pub preferred_bytes: u32,
    /// Longest read or write in bytes.
    pub io_bytes_max: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Names the volume.
    pub identity: [u8; 16],
    /// Which life of the content.
    pub incarnation: u64,
    /// The generation under which this attachment writes.
    pub writer_generation: u64,
    /// The target's verifier now.
    pub verifier: u64,
    /// See [`feature`].
    pub features: u8,
}

impl Attached {
    /// The message type number.
    pub const TYPE: u8 = 0x0b;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.transaction.put(out);
            self.attachment.put(out);
            self.generation.put(out);
            self.block_bytes.put(out);
            self.preferred_bytes.put(out);
            self.io_bytes_max.put(out);
            self.bytes.put(out);
            self.identity.put(out);
            self.incarnation.put(out);
            self.writer_generation.put(out);
            self.verifier.put(out);
            self.features.put(out);
        });
    }

    pub(crate) fn parse(body: &[u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let attached = Attached {
            transaction: r.get()?,
            attachment: r.get()?,
            generation: r.get()?,
            block_bytes: r.get()?,
            preferred_bytes: r.get()?,
            io_bytes_max: r.get()?,
            bytes: r.get()?,
            identity: r.get()?,
            incarnation: r.get()?,
            writer_generation: r.get()?,
            verifier: r.get()?,
            features: r.get()?,
        };
        r.end()?;
        if attached.features & !feature::KNOWN != 0 {
            return Err(FrameError::Reserved);
        }
        let block_ok = matches!(attached.block_bytes, 512 | 4096);
        if !block_ok
            || !attached.bytes.is_multiple_of(u64::from(attached.block_bytes))
            || attached.io_bytes_max < attached.block_bytes
            || !attached.io_bytes_max.is_multiple_of(attached.block_bytes)
        {
            return Err(FrameError::MessageValue);
        }
        Ok(attached)
    }
}

/// Target to initiator: not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRefused<'a> {
    /// From the ATTACH.
    pub transaction: u32,
    /// A [`crate::Status`].
    pub status: u16,
    /// With Busy: after how many seconds the present holder is given up; `u32::MAX` if never.
    pub seconds_left: u32,
    /// A sentence for a person: with Busy, who holds it.
    pub text: &'a str,
}

impl<'a> AttachRefused<'a> {
    /// The message type number.
    pub const TYPE: u8 = 0x0c;

    /// Appends the message.
    pub fn emit(&self, out: &mut Vec<u8>) {
        put_variable(Self::TYPE, out, |out| {
            self.transaction.put(out);
            self.status.put(out);
            0u16.put(out);
            self.seconds_left.put(out);
            put_text(self.text, TEXT_BYTES_MAX, out);
        });
    }

    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = Reader(body);
        let (transaction, status) = (r.get()?, r.get()?);
        if r.get::<u16>()? != 0 {
            return Err(FrameError::Reserved);
        }
        let refused = AttachRefused {
            transaction,
            status,
            seconds_left: r.get()?,
            text: r.text(TEXT_BYTES_MAX)?,
        };
        r.end()?;
        Ok(refused)
    }
}
