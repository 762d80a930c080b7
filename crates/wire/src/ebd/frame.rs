//! A frame as a value.

use core::fmt;

use super::form::{EbdForm, NakReason, Operation, Type};

/// What an answer has in common with its request, besides the sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tag {
    /// Of the idealised form.
    Ideal {
        /// Chosen by the client.
        identifier: u8,
        /// Which device of the server.
        major: u8,
        /// Which device of the server.
        minor: u8,
    },
    /// Of the implemented form.
    Implemented {
        /// Which device of the client.
        client: u8,
        /// By which the server knows the client. In the request of a handshake the minor of the server's device.
        index: u8,
        /// Chosen by the client. In a handshake it is the block size, in bytes.
        handle: u32,
        /// Used by handshakes only.
        reserved: u32,
    },
}

/// One frame, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is for.
    pub operation: Operation,
    /// From a server.
    pub is_answer: bool,
    /// The server is to say at once that it has this request: in the implemented form only.
    pub wants_wack: bool,
    /// By which client and server know what it is about.
    pub tag: Tag,
    /// From a server: how many sectors the client may have asked for at one time. In the request of a handshake flags.
    pub credit: u16,
    /// Sectors: of a request all it is about, of the answer to a READ those that it carries. Of a NAK its reason.
    pub length: u8,
    /// The first sector that it is about.
    pub sector: u32,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EbdError {
    /// Shorter than its header.
    Truncated,
    /// No such operation, or one that this side does not say.
    Type,
}

impl fmt::Display for EbdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EbdError::Truncated => "shorter than its header",
            EbdError::Type => "no such operation",
        })
    }
}

impl core::error::Error for EbdError {}

impl Frame {
    /// The form of these bytes, if they are of any: the first octet says it.
    pub fn form_of(bytes: &[u8]) -> Option<EbdForm> {
        Type::from_octet(*bytes.first()?).map(|kind| kind.form)
    }

    /// The frame that begins these bytes, of whatever form. What follows its header is not looked at: a payload, or
    /// what the link has padded it with.
    ///
    /// # Errors
    /// See [`EbdError`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Frame, EbdError> {
        let kind = Type::from_octet(*bytes.first().ok_or(EbdError::Truncated)?);
        let kind = kind.ok_or(EbdError::Type)?;
        let word = |at: &[u8; 4]| u32::from_le_bytes(*at);
        let (tag, credit, length, sector) = match kind.form {
            EbdForm::Ideal => {
                let [_, identifier, major, minor, credit, length, sector @ ..] =
                    bytes.first_chunk::<10>().ok_or(EbdError::Truncated)?;
                let tag = Tag::Ideal { identifier: *identifier, major: *major, minor: *minor };
                (tag, u16::from(*credit), *length, word(sector))
            }
            EbdForm::Implemented => {
                let header = bytes.first_chunk::<18>().ok_or(EbdError::Truncated)?;
                let [_, client, index, length, low, high, rest @ ..] = header;
                let [s0, s1, s2, s3, h0, h1, h2, h3, reserved @ ..] = rest;
                let tag = Tag::Implemented {
                    client: *client,
                    index: *index,
                    handle: word(&[*h0, *h1, *h2, *h3]),
                    reserved: word(reserved),
                };
                let credit = u16::from_le_bytes([*low, *high]);
                (tag, credit, *length, word(&[*s0, *s1, *s2, *s3]))
            }
        };
        let Type { operation, is_answer, wants_wack, .. } = kind;
        Ok(Frame { operation, is_answer, wants_wack, tag, credit, length, sector })
    }

    /// Which form it is of.
    #[inline]
    pub fn form(&self) -> EbdForm {
        match self.tag {
            Tag::Ideal { .. } => EbdForm::Ideal,
            Tag::Implemented { .. } => EbdForm::Implemented,
        }
    }

    /// Its header, as it stands on the wire: [`EbdForm::header_bytes`] of it count. A credit that the form cannot say is
    /// said as the most that it can.
    #[inline]
    pub fn header(&self) -> ([u8; 18], usize) {
        let Frame { operation, is_answer, wants_wack, tag, credit, length, sector } = *self;
        let form = self.form();
        let kind = Type { form, operation, is_answer, wants_wack }.to_octet();
        let credit = credit.min(form.credit_max());
        let mut bytes = [0; 18];
        match tag {
            Tag::Ideal { identifier, major, minor } => {
                bytes[..6].copy_from_slice(&[kind, identifier, major, minor, credit as u8, length]);
                bytes[6..10].copy_from_slice(&sector.to_le_bytes());
            }
            Tag::Implemented { client, index, handle, reserved } => {
                bytes[..4].copy_from_slice(&[kind, client, index, length]);
                bytes[4..6].copy_from_slice(&credit.to_le_bytes());
                bytes[6..10].copy_from_slice(&sector.to_le_bytes());
                bytes[10..14].copy_from_slice(&handle.to_le_bytes());
                bytes[14..].copy_from_slice(&reserved.to_le_bytes());
            }
        }
        (bytes, form.header_bytes())
    }

    /// The answer of an operation to this request, about as many sectors from `sector` on.
    #[inline]
    pub fn answer(&self, operation: Operation, credit: u16, length: u8, sector: u32) -> Frame {
        let (is_answer, wants_wack) = (true, false);
        Frame { operation, is_answer, wants_wack, credit, length, sector, ..*self }
    }

    /// The NAK of this request for a reason, about its sectors from `sector` on.
    pub fn nak(&self, why: NakReason, credit: u16, sector: u32) -> Frame {
        self.answer(Operation::Nak, credit, why as u8, sector)
    }
}
