//! What must hold of every frame that a parser takes.

use thinwire_wire::*;

/// What a parser makes of a frame. `consumed` is the frame without link padding.
pub struct Parsed<'a> {
    pub header: Header,
    pub feedback: Feedback,
    pub messages: Vec<Message<'a>>,
    pub consumed: usize,
}

/// What the shipped parser makes of it.
pub fn real(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
    let frame = Frame::parse(bytes)?;
    Ok(Parsed {
        header: *frame.header(),
        feedback: *frame.feedback(),
        messages: frame.messages().collect(),
        consumed: frame.header().length as usize,
    })
}

/// Checks everything the protocol relies on in an accepted frame.
pub fn consistent(bytes: &[u8], parsed: &Parsed<'_>) -> Result<(), String> {
    let ensure = |ok: bool, what: &str| if ok { Ok(()) } else { Err(what.to_owned()) };
    let h = &parsed.header;
    let (end, data, length) = (h.messages_end as usize, h.data_offset as usize, h.length as usize);
    ensure(HEADER_BYTES <= end && end <= data && data <= length, "borders out of order")?;
    ensure(length <= bytes.len() && parsed.consumed == length, "longer than what came")?;

    // Payloads lie one behind the other from the data offset to the end.
    let mut at = data;
    for message in &parsed.messages {
        if let Message::Data(d) = message {
            ensure(d.payload_at == at, "payload elsewhere")?;
            ensure(d.length > 0, "empty payload")?;
            at = at.checked_add(d.length as usize).ok_or("payload beyond memory")?;
            let range = bytes.get(d.payload_at..at);
            ensure(at <= length && range.is_some(), "payload beyond the frame")?;
        }
        ensure(message.kind() == h.kind, "message in the wrong kind of frame")?;
    }
    ensure(at == length || h.kind != Kind::Session, "payload that nobody owns")?;

    // Written again, the frame is the same, but for the tag and the gap that nobody reads.
    let mut again = vec![0; HEADER_BYTES];
    h.write(&mut again);
    parsed.feedback.write(&mut again);
    let tag = TAG_AT..TAG_AT + TAG_BYTES;
    again[tag.clone()].copy_from_slice(&bytes[tag]);
    let mut messages = parsed.messages.iter();
    let mut rest = bytes.get(HEADER_BYTES..end).ok_or("messages beyond the frame")?;
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let (raw, tail) = rest.split_at_checked(length).ok_or("message beyond the messages")?;
        ensure(length >= 4, "message without length")?;
        if raw[1] & message_type::SKIPPABLE != 0 {
            again.extend_from_slice(raw);
        } else {
            messages.next().ok_or("a message was swallowed")?.emit(&mut again);
        }
        rest = tail;
    }
    ensure(messages.next().is_none(), "a message out of nothing")?;
    again.extend_from_slice(bytes.get(again.len()..length).unwrap_or_default());
    ensure(again == bytes[..length], "written again, it differs")
}
