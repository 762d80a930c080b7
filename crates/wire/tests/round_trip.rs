//! Every message and the header, with arbitrary values, through bytes and back.

mod common;

use common::{frame, frame_with};
use proptest::prelude::*;
use thinwire_wire::*;

/// Writes `message` into a frame of its kind and reads it back.
fn comes_back(message: Message<'_>) -> Result<(), TestCaseError> {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    prop_assert_eq!(bytes.len() % 4, 0, "messages are padded to four bytes");
    let (messages, payload) = match message {
        Message::Data(d) => (bytes, vec![0x5a; d.length as usize]),
        _ => (bytes, Vec::new()),
    };
    let bytes = frame(Header::new(message.kind()), &messages, &payload);
    let parsed = Frame::parse(&bytes).map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert_eq!(parsed.messages().collect::<Vec<_>>(), vec![message]);
    Ok(())
}

/// Text as it may stand on the wire, up to `max` bytes.
fn text(max: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..=max).prop_map(move |chars| {
        let mut out = String::new();
        for c in chars {
            if !c.is_control() && out.len() + c.len_utf8() <= max {
                out.push(c);
            }
        }
        out
    })
}

fn address() -> impl Strategy<Value = Address> {
    prop_oneof![
        any::<[u8; 6]>().prop_map(Address::Mac),
        any::<([u8; 4], u16)>().prop_map(|(ip, port)| Address::V4(ip, port)),
        any::<([u8; 16], u16)>().prop_map(|(ip, port)| Address::V6(ip, port)),
        any::<u32>().prop_map(Address::Sim),
    ]
}

/// Ranges in the order of the wire: each wholly below the one before.
fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((1..1u64 << 50, 0..1u64 << 50), 1..=ACK_RANGES_MAX).prop_map(
        |steps| {
            let mut below = u64::MAX;
            let mut list = Vec::new();
            for (gap, width) in steps {
                let last = below - gap;
                let first = last - width;
                list.push((first, last));
                below = first;
            }
            list
        },
    )
}

proptest! {
    #[test]
    fn header(
        flag_bits in 0..4u8, session: u64, epoch: u32, packet_number: u64,
        path: u8, ack_path: u8, ack_delay: u16, ack_largest: u64, ack_bitmap: u64,
        credit_slots: u32, credit_bytes: u64,
    ) {
        let (ack, credit) = (flag_bits & flags::ACK != 0, flag_bits & flags::CREDIT != 0);
        let below = if ack_largest < 64 { (1u64 << ack_largest) - 1 } else { u64::MAX };
        let sent = Header { session, epoch, packet_number, path, ..Header::new(Kind::Session) };
        let feedback = Feedback {
            flags: flag_bits,
            ack_path: if ack { ack_path } else { 0 },
            ack_delay: if ack { ack_delay } else { 0 },
            ack_largest: if ack { ack_largest } else { 0 },
            ack_bitmap: if ack { ack_bitmap & below } else { 0 },
            credit_slots: if credit { credit_slots } else { 0 },
            credit_bytes: if credit { credit_bytes } else { 0 },
        };
        let bytes = frame_with(sent, feedback, &[], &[]);
        let size = HEADER_BYTES as u16;
        let expected = Header { length: size, data_offset: size, messages_end: size, ..sent };
        let parsed = Frame::parse(&bytes).unwrap();
        prop_assert_eq!((*parsed.header(), *parsed.feedback()), (expected, feedback));
    }

    #[test]
    fn request(
        slot: u16, op: u8, op_flags in 0..16u8, sequence: u32, attachment: u32, generation: u32,
        address: u64, length: u32,
    ) {
        comes_back(Message::Request(Request {
            slot, op, op_flags, sequence, attachment, generation, address, length,
        }))?;
    }

    #[test]
    fn data(slot: u16, sequence: u32, offset: u32, length in 1..(FRAME_BYTES_MAX - DATA_OFFSET) as u32) {
        comes_back(Message::Data(Data { slot, sequence, offset, length, payload_at: DATA_OFFSET }))?;
    }

    #[test]
    fn complete(slot: u16, status: u16, sequence: u32, verifier: u64, length: u32) {
        comes_back(Message::Complete(Complete { slot, status, sequence, verifier, length }))?;
    }

    #[test]
    fn ack_ranges(path: u8, delay: u16, list in ranges()) {
        comes_back(Message::AckRanges(AckRanges { path, delay, ranges: Ranges::new(&list) }))?;
    }

    #[test]
    fn sums(slot: u16, sequence: u32, list in proptest::collection::vec(any::<[u8; SUM_BYTES]>(), 1..=SUMS_MAX)) {
        comes_back(Message::Sums(Sums { slot, sequence, sums: list.as_flattened() }))?;
    }

    #[test]
    fn credit(path: u8, frames: u32, bytes: u32) {
        comes_back(Message::Credit(Credit { path, frames, bytes }))?;
    }

    #[test]
    fn resets(slot: u16, sequence: u32, length: u32) {
        comes_back(Message::Reset(Reset { slot, sequence, length }))?;
        comes_back(Message::ResetDone(ResetDone { slot, sequence }))?;
    }

    #[test]
    fn event(code: u16, attachment: u32, generation: u32, value: u64) {
        comes_back(Message::Event(Event { code, attachment, generation, value }))?;
    }

    #[test]
    fn attach(transaction: u32, flags in 0..8u8, writer_generation: u64, export in text(NAME_BYTES_MAX)) {
        comes_back(Message::Attach(Attach { transaction, flags, writer_generation, export: &export }))?;
    }

    #[test]
    fn attached(
        ids: (u32, u32, u32), preferred_bytes: u32, large_block: bool,
        blocks in 0..u64::MAX / 4096, io_blocks in 1..u32::MAX / 4096,
        identity: [u8; 16], lives: (u64, u64, u64), features in 0..64u8, idle_generations: u32,
    ) {
        let block_bytes = if large_block { 4096 } else { 512 };
        comes_back(Message::Attached(Attached {
            transaction: ids.0, attachment: ids.1, generation: ids.2,
            block_bytes, preferred_bytes,
            io_bytes_max: io_blocks * block_bytes,
            bytes: blocks * u64::from(block_bytes),
            identity, incarnation: lives.0, writer_generation: lives.1, verifier: lives.2, features,
            idle_generations,
        }))?;
    }

    #[test]
    fn attach_refused(transaction: u32, status: u16, seconds_left: u32, text in text(TEXT_BYTES_MAX)) {
        comes_back(Message::AttachRefused(AttachRefused { transaction, status, seconds_left, text: &text }))?;
    }

    #[test]
    fn detaching(transaction: u32, attachment: u32, generation: u32, status: u16) {
        comes_back(Message::Detach(Detach { transaction, attachment, generation }))?;
        comes_back(Message::Detached(Detached { transaction }))?;
        comes_back(Message::Bye(Bye { status }))?;
        comes_back(Message::Ping(Ping {}))?;
    }

    #[test]
    fn clocks(transaction: u32, kind: u8, all: [u64; 9]) {
        comes_back(Message::AskClocks(AskClocks { transaction, kind }))?;
        let [clock, requests, arrived, received, taken, submitted, stored, sent, handed_over] = all;
        comes_back(Message::Clocks(Clocks {
            transaction, clock, requests, arrived, received, taken, submitted, stored, sent, handed_over,
        }))?;
    }

    #[test]
    fn hello(
        nonce: u64, session in 1..=u64::MAX, initiator: [u8; 16], instance: u64,
        frame_bytes_max in BASE_FRAME_BYTES_MIN as u16..=u16::MAX, security in 0..2u8,
        member in 0..MEMBERS_MAX, room: (u32, u32), cookie: u64, node in text(NAME_BYTES_MAX),
        export in text(NAME_BYTES_MAX), name in text(NAME_BYTES_MAX),
    ) {
        comes_back(Message::Hello(Hello {
            nonce, session, initiator, instance, frame_bytes_max, security, member,
            room_frames: room.0, room_bytes: room.1, cookie, node: &node, export: &export,
            name: &name,
        }))?;
        let cookie = cookie.max(1);
        comes_back(Message::Retry(Retry { nonce, cookie }))?;
    }

    #[test]
    fn keyed(
        nonce: u64, session: u64, key: [u8; 8], cookie: u64, suites in 1..=u8::MAX,
        node in text(NAME_BYTES_MAX),
        secret in proptest::collection::vec(proptest::num::u8::ANY, 0..=SECRET_BYTES_MAX),
    ) {
        let secret = &secret[..];
        let node = &node;
        let hello = KeyedHello { nonce, session, key, cookie, suites, node, secret };
        comes_back(Message::KeyedHello(hello))?;
        comes_back(Message::KeyedAnswer(KeyedAnswer { nonce, secret }))?;
        // What the secret is sealed with is all the rest, and nothing of it.
        prop_assert_eq!(hello.prologue(), KeyedHello { secret: b"other", ..hello }.prologue());
        prop_assert_ne!(hello.prologue(), KeyedHello { cookie: !cookie, ..hello }.prologue());
        prop_assert_ne!(hello.prologue(), KeyedHello { suites: !suites, ..hello }.prologue());
    }

    #[test]
    fn welcome(
        nonce: u64, session in 1..=u64::MAX, instance: u64, epoch: u32,
        slots in 1..=u16::MAX, frame_bytes_max in BASE_FRAME_BYTES_MIN as u16..=u16::MAX,
        request_bytes_max in UNIT_BYTES as u32..=u32::MAX, room: (u32, u32), credit_bytes: u64,
        list in proptest::collection::vec(address(), 0..=WELCOME_ADDRESSES_MAX),
    ) {
        comes_back(Message::Welcome(Welcome {
            nonce, session, instance, epoch, slots, frame_bytes_max, request_bytes_max,
            room_frames: room.0, room_bytes: room.1, credit_bytes,
            addresses: Addresses::new(&list),
        }))?;
    }

    #[test]
    fn refuse(nonce: u64, status: u16, text in text(TEXT_BYTES_MAX), session: u64) {
        comes_back(Message::Refuse(Refuse { nonce, status, text: &text }))?;
        comes_back(Message::UnknownSession(UnknownSession { session }))?;
    }

    #[test]
    fn discover(nonce: u64, session: u64, first: u16, spread_ms: u16, cookie: u64, node in text(NAME_BYTES_MAX)) {
        comes_back(Message::Discover(Discover { nonce, session, first, spread_ms, cookie, node: &node }))?;
    }

    #[test]
    fn offer(
        nonce: u64, instance: u64, total: u16, first: u16, cookie: u64,
        node in text(NAME_BYTES_MAX),
        names in proptest::collection::vec(text(NAME_BYTES_MAX), 0..40), bytes_max in 200..2000usize,
    ) {
        let exports = OfferedExports::fitting(&names, &node, bytes_max);
        let offer = Offer { nonce, instance, total, first, cookie, node: &node, exports };
        comes_back(Message::Offer(offer))?;
        let mut bytes = Vec::new();
        offer.emit(&mut bytes);
        prop_assert!(bytes.len() <= bytes_max, "{} of {bytes_max}", bytes.len());
        let got: Vec<&str> = exports.iter().collect();
        prop_assert_eq!(&got[..], &names[..got.len()], "a prefix of the names");
        let next = names.get(got.len()).map_or(0, |n| n.len());
        let used: usize = 35 + node.len() + got.iter().map(|n| 1 + n.len()).sum::<usize>();
        prop_assert!(got.len() == names.len() || used + 1 + next + 3 > bytes_max, "as many as fit");
    }

    #[test]
    fn probes(token: u64, padding in 1..2000usize, room: (u32, u32)) {
        let size = (HEADER_BYTES + Probe::BYTES + padding) as u16;
        let (room_frames, room_bytes) = room;
        let probe = Probe { token, room_frames, room_bytes };
        let mut bytes = vec![0; HEADER_BYTES];
        probe.emit(&mut bytes);
        let end = bytes.len() as u16;
        bytes.resize(usize::from(size), 0);
        Header { length: size, data_offset: end, messages_end: end, ..Header::new(Kind::Probe) }
            .write(&mut bytes);
        let parsed = Frame::parse(&bytes).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(parsed.messages().collect::<Vec<_>>(), vec![Message::Probe(probe)]);
        comes_back(Message::ProbeReply(ProbeReply { token, room_frames, room_bytes }))?;
    }

    /// What a sender writes is never refused for its text, whatever a user typed.
    #[test]
    fn any_text_is_made_fit_for_the_wire(text in ".{0,300}", control in any::<char>()) {
        let text = format!("{control}{text}");
        let mut bytes = Vec::new();
        Refuse { nonce: 0, status: 0, text: &text }.emit(&mut bytes);
        let bytes = frame(Header::new(Kind::Refuse), &bytes, &[]);
        let parsed = Frame::parse(&bytes).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let message = parsed.messages().next();
        let Some(Message::Refuse(refuse)) = message else {
            return Err(TestCaseError::fail("not a refusal"));
        };
        prop_assert!(refuse.text.len() <= TEXT_BYTES_MAX);
        prop_assert!(refuse.text.len() + 4 > text.len().min(TEXT_BYTES_MAX));
    }
}
