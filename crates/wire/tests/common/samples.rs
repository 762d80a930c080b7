//! One sample of every message and of every kind of frame, with values that tell every byte of
//! every field apart.

use super::{frame, frame_with};
use thinwire_wire::*;

/// A session id, as a receiver chose it.
pub const SESSION: u64 = 0x0102_0304_0506_0708;

/// Every message, with its file name among the golden vectors.
pub fn messages() -> Vec<(&'static str, Message<'static>)> {
    const RANGES: [(u64, u64); 2] = [(0x1122_3344_5566_7780, 0x1122_3344_5566_7788), (0x21, 0x2f)];
    const V6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    const ADDRESSES: [Address; 4] = [
        Address::Mac([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]),
        Address::V4([10, 0, 0, 2], 34997),
        Address::V6(V6, 34997),
        Address::Sim(0x0a0b_0c0d),
    ];
    let ranges = Ranges::new(&RANGES);
    let id = *b"\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f";
    vec![
        (
            "request",
            Message::Request(Request {
                slot: 0x0102,
                op: OpCode::Write as u8,
                op_flags: op_flags::FUA,
                sequence: 0x1112_1314,
                attachment: 0x2122_2324,
                generation: 0x3132_3334,
                address: 0x4142_4344_4546_4748,
                length: 0x5152_5354,
            }),
        ),
        (
            "data",
            Message::Data(Data {
                slot: 0x0102,
                sequence: 0x1112_1314,
                offset: 0x0001_0200,
                length: 0x0000_0200,
                payload_at: DATA_OFFSET,
            }),
        ),
        (
            "complete",
            Message::Complete(Complete {
                slot: 0x0102,
                status: Status::NoSpace as u16,
                sequence: 0x1112_1314,
                verifier: 0x6162_6364_6566_6768,
                length: 0x7172_7374,
            }),
        ),
        ("ack-ranges", Message::AckRanges(AckRanges { path: 3, delay: 0x0405, ranges })),
        ("credit", Message::Credit(Credit { path: 2, frames: 0x0102_0304, bytes: 0x1112_1314 })),
        (
            "reset",
            Message::Reset(Reset { slot: 0x0102, sequence: 0x1112_1314, length: 0x0003_0000 }),
        ),
        ("reset-done", Message::ResetDone(ResetDone { slot: 0x0102, sequence: 0x1112_1314 })),
        (
            "event",
            Message::Event(Event {
                code: event_code::RESIZE,
                attachment: 0x2122_2324,
                generation: 0x3132_3334,
                value: 0x8182_8384_8586_8788,
            }),
        ),
        ("ping", Message::Ping(Ping {})),
        (
            "attach",
            Message::Attach(Attach {
                transaction: 0x9192_9394,
                flags: attach_flags::RESUME,
                writer_generation: 0xa1a2_a3a4_a5a6_a7a8,
                export: "disk0",
            }),
        ),
        (
            "attached",
            Message::Attached(Attached {
                transaction: 0x9192_9394,
                attachment: 0x2122_2324,
                generation: 0x3132_3334,
                block_bytes: 4096,
                preferred_bytes: 0x0001_0000,
                io_bytes_max: 0x0010_0000,
                bytes: 0x0000_00b4_b5b6_b000,
                identity: id,
                incarnation: 0xc1c2_c3c4_c5c6_c7c8,
                writer_generation: 0xa1a2_a3a4_a5a6_a7a8,
                verifier: 0x6162_6364_6566_6768,
                features: feature::DISCARD | feature::BLOCK_STATUS,
                idle_generations: 0xd1d2_d3d4,
            }),
        ),
        (
            "attach-refused",
            Message::AttachRefused(AttachRefused {
                transaction: 0x9192_9394,
                status: Status::Busy as u16,
                seconds_left: 0x0102_0304,
                text: "held by café",
            }),
        ),
        (
            "detach",
            Message::Detach(Detach {
                transaction: 0x9192_9394,
                attachment: 0x2122_2324,
                generation: 0x3132_3334,
            }),
        ),
        ("detached", Message::Detached(Detached { transaction: 0x9192_9394 })),
        ("bye", Message::Bye(Bye { status: Status::ShuttingDown as u16 })),
        (
            "ask-clocks",
            Message::AskClocks(AskClocks { transaction: 0x9192_9394, kind: clock_kind::PHYSICAL }),
        ),
        (
            "clocks",
            Message::Clocks(Clocks {
                transaction: 0x9192_9394,
                clock: 0x0102_0304_0506_0708,
                requests: 0x1112_1314_1516_1718,
                arrived: 0x2122_2324_2526_2728,
                received: 0x3132_3334_3536_3738,
                taken: 0x4142_4344_4546_4748,
                submitted: 0x5152_5354_5556_5758,
                stored: 0x6162_6364_6566_6768,
                sent: 0x7172_7374_7576_7778,
                handed_over: 0x8182_8384_8586_8788,
            }),
        ),
        (
            "sums",
            Message::Sums(Sums {
                slot: 0x0102,
                sequence: 0x1112_1314,
                sums: b"\x21\x22\x23\x24\x31\x32\x33\x34\x41\x42\x43\x44",
            }),
        ),
        (
            "hello",
            Message::Hello(Hello {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                session: SESSION,
                initiator: id,
                instance: 0xe1e2_e3e4_e5e6_e7e8,
                frame_bytes_max: 8982,
                security: 1,
                member: 3,
                room_frames: 0x0102_0304,
                room_bytes: 0x1112_1314,
                cookie: 0x2122_2324_2526_2728,
                node: "node1",
                export: "disk0",
                name: "laptop",
            }),
        ),
        (
            "retry",
            Message::Retry(Retry { nonce: 0xd1d2_d3d4_d5d6_d7d8, cookie: 0x2122_2324_2526_2728 }),
        ),
        (
            "keyed-hello",
            Message::KeyedHello(KeyedHello {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                session: SESSION,
                key: *b"\x51\x52\x53\x54\x55\x56\x57\x58",
                cookie: 0x2122_2324_2526_2728,
                suites: 5,
                node: "node1",
                secret: b"what only a key opens",
            }),
        ),
        (
            "keyed-answer",
            Message::KeyedAnswer(KeyedAnswer {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                secret: b"and what answers it",
            }),
        ),
        (
            "welcome",
            Message::Welcome(Welcome {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                session: 0xf1f2_f3f4_f5f6_f7f8,
                instance: 0xe9ea_ebec_edee_eff0,
                epoch: 0x0a0b_0c0d,
                slots: 0x0180,
                frame_bytes_max: 8982,
                request_bytes_max: 0x0010_0000,
                room_frames: 0x0102_0304,
                room_bytes: 0x1112_1314,
                credit_bytes: 0x2122_2324_2526_2728,
                addresses: Addresses::new(&ADDRESSES),
            }),
        ),
        (
            "refuse",
            Message::Refuse(Refuse {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                status: Status::Insecure as u16,
                text: "this target demands keys",
            }),
        ),
        ("unknown-session", Message::UnknownSession(UnknownSession { session: SESSION })),
        (
            "discover",
            Message::Discover(Discover {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                session: 0xf1f2_f3f4_0000_0000,
                first: 0x0102,
                spread_ms: 50,
                cookie: 0x2122_2324_2526_2728,
                node: "",
            }),
        ),
        (
            "offer",
            Message::Offer(Offer {
                nonce: 0xd1d2_d3d4_d5d6_d7d8,
                instance: 0xe9ea_ebec_edee_eff0,
                total: 3,
                first: 1,
                cookie: 0x2122_2324_2526_2728,
                node: "node1",
                exports: exports(&["disk0", "scratch"]),
            }),
        ),
        (
            "probe",
            Message::Probe(Probe {
                token: 0xf9fa_fbfc_fdfe_ff00,
                room_frames: 0x0102_0304,
                room_bytes: 0x1112_1314,
            }),
        ),
        (
            "probe-reply",
            Message::ProbeReply(ProbeReply {
                token: 0xf9fa_fbfc_fdfe_ff00,
                room_frames: 0x0102_0304,
                room_bytes: 0x1112_1314,
            }),
        ),
    ]
}

/// Names of exports to send.
pub fn exports(names: &[&str]) -> OfferedExports<'static> {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    OfferedExports::fitting(names.leak(), "", usize::MAX)
}

/// Every message as bytes.
pub fn message_bytes() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = |message: &Message<'_>| {
        let mut out = Vec::new();
        message.emit(&mut out);
        out
    };
    messages().iter().map(|(name, message)| (*name, bytes(message))).collect()
}

/// The bytes of the sample of that name.
pub fn bytes_of(name: &str) -> Vec<u8> {
    message_bytes().into_iter().find(|(n, _)| *n == name).expect("a sample of that name").1
}

/// A payload whose every byte tells its place.
pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8)) as u8).collect()
}

/// The header of a session frame with every field set.
pub fn session_header() -> Header {
    Header {
        session: SESSION,
        epoch: 0x0a0b_0c0d,
        packet_number: 0x1213_1415_1617_1819,
        path: 1,
        ..Header::new(Kind::Session)
    }
}

/// The sealed part of it, likewise.
pub fn feedback() -> Feedback {
    Feedback {
        flags: flags::ACK | flags::CREDIT,
        ack_path: 2,
        ack_delay: 0x2122,
        ack_largest: 0x3132_3334_3536_3738,
        ack_bitmap: 0x4142_4344_4546_4748,
        credit_slots: 0x5152_5354,
        credit_bytes: 0x6162_6364_6566_6768,
    }
}

/// A message of a type that this version does not know and may skip.
pub fn skippable() -> Vec<u8> {
    vec![0x7f, 1, 0, 8, 0xde, 0xad, 0xbe, 0xef]
}

/// One after the other, all messages that stand in a SESSION frame and have no payload.
fn of_a_session() -> Vec<u8> {
    let is_plain = |m: &Message<'_>| m.kind() == Kind::Session && m.number() != Data::TYPE;
    let mut out = Vec::new();
    messages().iter().filter(|(_, m)| is_plain(m)).for_each(|(_, m)| m.emit(&mut out));
    out
}

/// Whole frames: one or more of every kind.
pub fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let plain =
        Header { session: SESSION, epoch: 7, packet_number: 9, ..Header::new(Kind::Session) };
    let outside = |kind, session| Header { session, ..Header::new(kind) };
    let data = |slot, offset, length| {
        let mut out = Vec::new();
        DataHeader { slot, sequence: 5, offset, length }.emit(&mut out);
        out
    };
    let mut probe = Vec::new();
    Probe { token: 1, room_frames: 64, room_bytes: 1 << 20 }.emit(&mut probe);
    let padding = vec![0; 1400 - HEADER_BYTES - probe.len()];
    let probe_frame = {
        let mut header =
            Header { path: 1, epoch: 7, packet_number: 10, ..outside(Kind::Probe, SESSION) };
        let mut out = vec![0; HEADER_BYTES];
        out.extend_from_slice(&probe);
        header.messages_end = out.len() as u16;
        header.data_offset = out.len() as u16;
        out.extend_from_slice(&padding);
        header.length = out.len() as u16;
        header.write(&mut out);
        super::seal(&mut out);
        out
    };
    vec![
        ("session-empty", frame_with(session_header(), feedback(), &[], &[])),
        ("session-all", frame_with(session_header(), feedback(), &of_a_session(), &[])),
        (
            "session-write",
            frame(plain, &[bytes_of("request"), data(0x0102, 0, 512)].concat(), &payload(512)),
        ),
        (
            "session-read",
            frame(
                plain,
                &[data(3, 512, 512), data(4, 0, 1024), bytes_of("complete")].concat(),
                &payload(1536),
            ),
        ),
        ("session-skip", frame(plain, &[skippable(), bytes_of("ping")].concat(), &[])),
        ("hello", frame(outside(Kind::Hello, 0), &bytes_of("hello"), &[])),
        ("retry", frame(outside(Kind::Retry, SESSION), &bytes_of("retry"), &[])),
        ("keyed-hello", frame(outside(Kind::KeyedHello, 0), &bytes_of("keyed-hello"), &[])),
        (
            "keyed-answer",
            frame(outside(Kind::KeyedAnswer, SESSION), &bytes_of("keyed-answer"), &[]),
        ),
        ("welcome", frame(outside(Kind::Welcome, SESSION), &bytes_of("welcome"), &[])),
        ("refuse", frame(outside(Kind::Refuse, SESSION), &bytes_of("refuse"), &[])),
        ("discover", frame(outside(Kind::Discover, 0), &bytes_of("discover"), &[])),
        ("offer", frame(outside(Kind::Offer, 0xf1f2_f3f4_0000_0000), &bytes_of("offer"), &[])),
        ("probe", probe_frame),
        (
            "probe-reply",
            frame(
                Header {
                    path: 1,
                    epoch: 7,
                    packet_number: 10,
                    ..outside(Kind::ProbeReply, SESSION)
                },
                &bytes_of("probe-reply"),
                &[],
            ),
        ),
        (
            "unknown-session",
            frame(outside(Kind::UnknownSession, 0), &bytes_of("unknown-session"), &[]),
        ),
    ]
}
