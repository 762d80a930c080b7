//! The last stage of the gate: an unsealed frame as checked values.

use crate::{AckRanges, Feedback, FrameError, HEADER_BYTES, Header, Kind, Message};

/// The bit of a message's flags that makes an unknown type skippable.
pub mod message_type {
    /// Message flag: whoever does not know this type skips it.
    pub const SKIPPABLE: u8 = 1 << 0;
}

/// An unsealed frame that passed the gate. Borrows the received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: Header,
    feedback: Feedback,
    /// What was received, or its first piece; the messages are in it.
    bytes: &'a [u8],
    has_ack_ranges: bool,
    has_others: bool,
}

impl<'a> Frame<'a> {
    /// Checks a frame whole that needs no unsealing, or has been unsealed: both parts of its header and
    /// its messages. `bytes` may be longer than the frame (link padding). Does not look at the tag.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let header = Header::parse(bytes, bytes.len())?;
        Self::open(header, bytes)
    }

    /// What follows [`Header::parse`] once the frame is unsealed. Of a frame that was received in pieces
    /// `bytes` is the first. Refused as truncated if the messages do not end in it.
    #[inline]
    pub fn open(header: Header, bytes: &'a [u8]) -> Result<Self, FrameError> {
        let feedback = Feedback::parse(header.kind, bytes)?;
        if header.messages_end as usize > bytes.len() {
            return Err(FrameError::Truncated);
        }
        let (has_ack_ranges, has_others) = (false, false);
        let mut frame = Frame { header, feedback, bytes, has_ack_ranges, has_others };
        let length = usize::from(header.length);
        let mut payload_left = length - usize::from(header.data_offset);
        let mut rest = &bytes[HEADER_BYTES..header.messages_end as usize];
        let mut count = 0;
        while !rest.is_empty() {
            let (number, flags, body) = split(&mut rest).ok_or(FrameError::MessageLength)?;
            if flags & !message_type::SKIPPABLE != 0 {
                return Err(FrameError::Reserved);
            }
            let Some(known) = Message::check(number, body)? else {
                if flags & message_type::SKIPPABLE == 0 {
                    return Err(FrameError::MessageUnknown);
                }
                continue;
            };
            if flags != 0 {
                return Err(FrameError::Reserved);
            }
            let payload = payload_left.checked_sub(known.payload_bytes as usize);
            payload_left = payload.ok_or(FrameError::Payload)?;
            if known.kind != header.kind {
                return Err(FrameError::MessageMisplaced);
            }
            match number {
                AckRanges::TYPE => frame.has_ack_ranges = true,
                _ => frame.has_others = true,
            }
            count += 1;
        }
        match header.kind {
            Kind::Session => {
                if payload_left != 0 {
                    return Err(FrameError::Payload);
                }
            }
            // Outside a session there is exactly one message; only probes are padded, with bytes
            // that mean nothing.
            kind => {
                if count != 1 {
                    return Err(FrameError::MessageMisplaced);
                }
                if kind != Kind::Probe && header.data_offset != header.length {
                    return Err(FrameError::Payload);
                }
            }
        }
        Ok(frame)
    }

    /// The public part of the header.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The sealed part of the header.
    #[inline]
    pub fn feedback(&self) -> &Feedback {
        &self.feedback
    }

    /// True if the long form of an acknowledgement is among the messages.
    #[inline]
    pub fn has_ack_ranges(&self) -> bool {
        self.has_ack_ranges
    }

    /// True if there is a message that is itself to be acknowledged: any but an acknowledgement.
    #[inline]
    pub fn is_eliciting(&self) -> bool {
        self.has_others
    }

    /// The messages in order. Cannot fail: the frame was checked whole.
    #[inline]
    pub fn messages(&self) -> MessageIter<'a> {
        MessageIter {
            rest: &self.bytes[HEADER_BYTES..self.header.messages_end as usize],
            payload_at: self.header.data_offset as usize,
        }
    }
}

impl<'a> Message<'a> {
    /// The message that `bytes` are, whole and nothing else: as it stands within what a key seals.
    pub fn alone(mut bytes: &'a [u8]) -> Result<Message<'a>, FrameError> {
        let (number, flags, body) = split(&mut bytes).ok_or(FrameError::MessageLength)?;
        if !bytes.is_empty() {
            return Err(FrameError::MessageLength);
        }
        if flags != 0 {
            return Err(FrameError::Reserved);
        }
        Message::check(number, body)?;
        Message::read(number, body, 0).ok_or(FrameError::MessageUnknown)
    }
}

/// Takes the first message off the message area: its type, its flags, and what follows its first four
/// bytes. `None` if there is no whole one.
#[inline]
fn split<'a>(rest: &mut &'a [u8]) -> Option<(u8, u8, &'a [u8])> {
    let &[number, flags, high, low] = rest.first_chunk::<4>()?;
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len % 4 != 0 {
        return None;
    }
    let body = rest.get(4..len)?;
    *rest = &rest[len..];
    Some((number, flags, body))
}

/// See [`Frame::messages`].
#[derive(Clone, Debug)]
pub struct MessageIter<'a> {
    rest: &'a [u8],
    payload_at: usize,
}

impl<'a> Iterator for MessageIter<'a> {
    type Item = Message<'a>;

    /// Each message has been checked: it is only read here. Those of unknown types are passed over.
    fn next(&mut self) -> Option<Message<'a>> {
        loop {
            let (number, _, body) = split(&mut self.rest)?;
            let message = Message::read(number, body, self.payload_at);
            if let Some(Message::Data(data)) = &message {
                self.payload_at += data.length as usize;
            }
            if message.is_some() {
                return message;
            }
        }
    }
}
