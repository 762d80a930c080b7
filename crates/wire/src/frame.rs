//! The gate: a received frame as checked values.

use crate::message::*;
use crate::{
    AckRanges, Attach, AttachRefused, Attached, Discover, FrameError, HEADER_BYTES, Header, Hello,
    Kind, Offer, Refuse, Retry, Welcome,
};

/// Message type numbers and the bit that makes an unknown type skippable.
pub mod message_type {
    /// Message flag: whoever does not know this type skips it.
    pub const SKIPPABLE: u8 = 1 << 0;
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

/// Any message, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each variant is its type
pub enum Message<'a> {
    Request(Request),
    Data(Data),
    Complete(Complete),
    AckRanges(AckRanges<'a>),
    Credit(Credit),
    Reset(Reset),
    ResetDone(ResetDone),
    Event(Event),
    Ping(Ping),
    Attach(Attach<'a>),
    Attached(Attached),
    AttachRefused(AttachRefused<'a>),
    Detach(Detach),
    Detached(Detached),
    Bye(Bye),
    AskClocks(AskClocks),
    Clocks(Clocks),
    Hello(Hello<'a>),
    Retry(Retry),
    Welcome(Welcome<'a>),
    Refuse(Refuse<'a>),
    UnknownSession(UnknownSession),
    Discover(Discover<'a>),
    Offer(Offer<'a>),
    Probe(Probe),
    ProbeReply(ProbeReply),
}

impl<'a> Message<'a> {
    /// The only kind of frame this message may stand in.
    pub fn kind(&self) -> Kind {
        match self {
            Message::Hello(_) => Kind::Hello,
            Message::Retry(_) => Kind::Retry,
            Message::Welcome(_) => Kind::Welcome,
            Message::Refuse(_) => Kind::Refuse,
            Message::UnknownSession(_) => Kind::UnknownSession,
            Message::Discover(_) => Kind::Discover,
            Message::Offer(_) => Kind::Offer,
            Message::Probe(_) => Kind::Probe,
            Message::ProbeReply(_) => Kind::ProbeReply,
            _ => Kind::Session,
        }
    }

    fn parse(number: u8, body: &'a [u8], payload_at: usize) -> Result<Option<Self>, FrameError> {
        Ok(Some(match number {
            Request::TYPE => {
                let request = Request::parse(body)?;
                request.check()?;
                Message::Request(request)
            }
            DataHeader::TYPE => {
                let d = DataHeader::parse(body)?;
                if d.length == 0 {
                    return Err(FrameError::MessageValue);
                }
                Message::Data(Data {
                    slot: d.slot,
                    sequence: d.sequence,
                    offset: d.offset,
                    length: d.length,
                    payload_at,
                })
            }
            Complete::TYPE => Message::Complete(Complete::parse(body)?),
            AckRanges::TYPE => Message::AckRanges(AckRanges::parse(body)?),
            Credit::TYPE => Message::Credit(Credit::parse(body)?),
            Reset::TYPE => Message::Reset(Reset::parse(body)?),
            ResetDone::TYPE => Message::ResetDone(ResetDone::parse(body)?),
            Event::TYPE => Message::Event(Event::parse(body)?),
            Ping::TYPE => Message::Ping(Ping::parse(body)?),
            Attach::TYPE => Message::Attach(Attach::parse(body)?),
            Attached::TYPE => Message::Attached(Attached::parse(body)?),
            AttachRefused::TYPE => Message::AttachRefused(AttachRefused::parse(body)?),
            Detach::TYPE => Message::Detach(Detach::parse(body)?),
            Detached::TYPE => Message::Detached(Detached::parse(body)?),
            Bye::TYPE => Message::Bye(Bye::parse(body)?),
            AskClocks::TYPE => Message::AskClocks(AskClocks::parse(body)?),
            Clocks::TYPE => Message::Clocks(Clocks::parse(body)?),
            Hello::TYPE => Message::Hello(Hello::parse(body)?),
            Retry::TYPE => {
                let retry = Retry::parse(body)?;
                retry.check()?;
                Message::Retry(retry)
            }
            Welcome::TYPE => Message::Welcome(Welcome::parse(body)?),
            Refuse::TYPE => Message::Refuse(Refuse::parse(body)?),
            UnknownSession::TYPE => Message::UnknownSession(UnknownSession::parse(body)?),
            Discover::TYPE => Message::Discover(Discover::parse(body)?),
            Offer::TYPE => Message::Offer(Offer::parse(body)?),
            Probe::TYPE => Message::Probe(Probe::parse(body)?),
            ProbeReply::TYPE => Message::ProbeReply(ProbeReply::parse(body)?),
            _ => return Ok(None),
        }))
    }
}

/// A frame that passed the gate. Borrows the received bytes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    header: Header,
    /// What was received, or its first piece; the messages are in it.
    bytes: &'a [u8],
    has_ack_ranges: bool,
    has_others: bool,
}

impl<'a> Frame<'a> {
    /// Checks a received frame whole. `bytes` may be longer than the frame (link padding).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        Self::parse_head(bytes, bytes.len())
    }

    /// [`Frame::parse`] for a frame that was received in pieces: `bytes` is the first, `total` the
    /// bytes of all. Refused as truncated if the messages do not end in the first piece: see
    /// [`messages_end`].
    pub fn parse_head(bytes: &'a [u8], total: usize) -> Result<Self, FrameError> {
        let header = Header::parse(bytes, total)?;
        if header.messages_end as usize > bytes.len() {
            return Err(FrameError::Truncated);
        }
        let mut frame = Frame { header, bytes, has_ack_ranges: false, has_others: false };
        let mut walk = frame.messages();
        let mut count = 0;
        loop {
            match walk.step() {
                Ok(Some(message)) => {
                    if message.kind() != header.kind {
                        return Err(FrameError::MessageMisplaced);
                    }
                    if let Message::Probe(probe) = &message
                        && probe.size != header.length
                    {
                        return Err(FrameError::MessageValue);
                    }
                    match message {
                        Message::AckRanges(_) => frame.has_ack_ranges = true,
                        _ => frame.has_others = true,
                    }
                    count += 1;
                }
                Ok(None) => break,
                Err(error) => return Err(error),
            }
        }
        match header.kind {
            Kind::Session => {
                if walk.payload_at != header.length as usize {
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

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// True if the long form of an acknowledgement is among the messages.
    pub fn has_ack_ranges(&self) -> bool {
        self.has_ack_ranges
    }

    /// True if there is a message that is itself to be acknowledged: any but an acknowledgement.
    pub fn is_eliciting(&self) -> bool {
        self.has_others
    }

    /// The messages in order. Cannot fail: the frame was checked whole.
    pub fn messages(&self) -> MessageIter<'a> {
        MessageIter {
            rest: &self.bytes[HEADER_BYTES..self.header.messages_end as usize],
            payload_at: self.header.data_offset as usize,
            end: self.header.length as usize,
        }
    }
}

/// Where the messages of an unchecked frame claim to end, if there is enough of it to tell.
#[inline]
pub fn messages_end(bytes: &[u8]) -> Option<usize> {
    let field = bytes.get(36..38)?;
    Some(usize::from(u16::from_be_bytes([field[0], field[1]])))
}

/// See [`Frame::messages`].
#[derive(Clone, Debug)]
pub struct MessageIter<'a> {
    rest: &'a [u8],
    payload_at: usize,
    end: usize,
}

impl<'a> MessageIter<'a> {
    fn step(&mut self) -> Result<Option<Message<'a>>, FrameError> {
        loop {
            let Some(&[number, flags, high, low]) = self.rest.first_chunk::<4>() else {
                return if self.rest.is_empty() {
                    Ok(None)
                } else {
                    Err(FrameError::MessageLength)
                };
            };
            let len = usize::from(u16::from_be_bytes([high, low]));
            if len < 4 || len % 4 != 0 || len > self.rest.len() {
                return Err(FrameError::MessageLength);
            }
            let (message, rest) = self.rest.split_at(len);
            self.rest = rest;
            if flags & !message_type::SKIPPABLE != 0 {
                return Err(FrameError::Reserved);
            }
            match Message::parse(number, &message[4..], self.payload_at)? {
                Some(_) if flags != 0 => return Err(FrameError::Reserved),
                Some(message) => {
                    if let Message::Data(data) = &message {
                        let length = data.length as usize;
                        if length > self.end - self.payload_at {
                            return Err(FrameError::Payload);
                        }
                        self.payload_at += length;
                    }
                    return Ok(Some(message));
                }
                None if flags & message_type::SKIPPABLE != 0 => continue,
                None => return Err(FrameError::MessageUnknown),
            }
        }
    }
}

impl<'a> Iterator for MessageIter<'a> {
    type Item = Message<'a>;
    fn next(&mut self) -> Option<Message<'a>> {
        self.step().ok().flatten()
    }
}
