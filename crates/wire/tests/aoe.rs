//! Every AoE frame, request and answer, against the bytes kept in `tests/golden/aoe`: a change of the format shows as a
//! change of those files. After a deliberate change, run with `THINWIRE_BLESS=1` and look at
//! the difference. Then what is refused, and `docs/aoe.md` against the code.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use common::hex;
use proptest::prelude::*;
use thinwire_wire::aoe::*;

const HERE: ShelfSlot = ShelfSlot { shelf: 0x0102, slot: 0x03 };
const TAG: u32 = 0x1112_1314;
const MACS: [[u8; MAC_BYTES]; 2] =
    [[0x02, 0x11, 0x22, 0x33, 0x44, 0x55], [0x02, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5]];
const IDENTITY: DriveIdentity<'_> = DriveIdentity {
    sectors: 0x0000_0001_2345_6789,
    serial: "1.3 disk0",
    firmware: "0.1.0",
    model: "Thinwire",
    has_write_cache: true,
};

/// A frame to keep: its header and body, and the data behind them.
struct Sample {
    name: &'static str,
    frame: Frame<'static>,
    data: Vec<u8>,
}

impl Sample {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.frame.put(&mut out);
        out.extend_from_slice(&self.data);
        out
    }
}

fn payload(sectors: usize) -> Vec<u8> {
    (0..sectors * SECTOR_BYTES).map(|at| (at % 251) as u8).collect()
}

fn ata(command: AtaCommand, sector: u64, sectors: u8) -> AtaRegisters {
    AtaRegisters::request(command, sector, sectors).expect("a sector in reach")
}

/// Directives, as they stand on the wire.
fn directives(command: DirectiveCommand) -> &'static [[u8; DIRECTIVE_BYTES]] {
    Box::leak(Box::new(MACS.map(|mac| Directive::new(command, mac).to_bytes())))
}

fn samples() -> Vec<Sample> {
    use AtaCommand::*;
    let mut list = Vec::new();
    let mut add = |name, header, body, data| {
        list.push(Sample { name, frame: Frame { header, body }, data });
    };
    let ask = |command| Header::request(HERE, command, TAG);
    let none = Vec::new;

    // Command 0: each request, and what answers it.
    let header = ask(AoeCommand::IssueAta);
    let answer = header.answer(HERE);
    let identify = IDENTITY.to_bytes().to_vec();
    let (near, far) = (0x0a0b_0c0d, 0x2122_2324_2526);
    for (request, reply, command, sector, sectors, sent, got) in [
        ("read", "read-answer", ReadSectors, near, 1, none(), payload(1)),
        ("read-ext", "read-ext-answer", ReadSectorsExt, far, 2, none(), payload(2)),
        ("write", "write-answer", WriteSectors, near, 1, payload(1), none()),
        ("write-ext", "write-ext-answer", WriteSectorsExt, far, 2, payload(2), none()),
        ("flush", "flush-answer", FlushCache, 0, 0, none(), none()),
        ("flush-ext", "flush-ext-answer", FlushCacheExt, 0, 0, none(), none()),
        ("identify", "identify-answer", IdentifyDevice, 0, 1, none(), identify),
    ] {
        let registers = ata(command, sector, sectors);
        add(request, header, Body::Ata(registers), sent);
        add(reply, answer, Body::Ata(registers.done()), got);
    }
    let power = ata(CheckPowerMode, 0, 0);
    add("check-power", header, Body::Ata(power), none());
    add("check-power-answer", answer, Body::Ata(power.awake()), none());
    let smart = AtaRegisters { command_status: 0xb0, error_feature: 0xd8, ..power };
    add("unsupported", header, Body::Ata(smart), none());
    add("unsupported-answer", answer, Body::Ata(smart.failed(ata_error::ABRT)), none());
    let read = ata(ReadSectorsExt, far, 2);
    add("beyond-the-end-answer", answer, Body::Ata(read.failed(ata_error::IDNF)), none());
    add("medium-failed-answer", answer, Body::Ata(read.failed(ata_error::UNC)), none());

    // Command 1: a broadcast, then each sub-command.
    let query = ConfigQuery::request;
    let all = Header { device: ShelfSlot::ALL, ..ask(AoeCommand::QueryConfig) };
    add("query-all", all, Body::Query(query(ConfigCommand::Read, b"")), none());
    for (request, reply, command, config) in [
        ("query-read", "query-read-answer", ConfigCommand::Read, &b""[..]),
        ("query-exact", "query-exact-answer", ConfigCommand::Exact, b"set of disk0"),
        ("query-prefix", "query-prefix-answer", ConfigCommand::Prefix, b"set of"),
        ("query-set", "query-set-answer", ConfigCommand::Set, b"set of disk0"),
        ("query-force-set", "query-force-set-answer", ConfigCommand::ForceSet, b"set of disk0"),
    ] {
        let header = ask(AoeCommand::QueryConfig);
        let now = ConfigQuery {
            buffers: 0x3132,
            firmware: 0x4142,
            sectors_max: 0x11,
            version: VERSION,
            ..query(command, b"set of disk0")
        };
        add(request, header, Body::Query(query(command, config)), none());
        add(reply, header.answer(HERE), Body::Query(now), none());
    }

    // Command 2.
    let header = ask(AoeCommand::MaskList);
    let answer = header.answer(HERE);
    let (to_add, now) = (directives(DirectiveCommand::Add), directives(DirectiveCommand::None));
    let (read, edit) = (MaskCommand::Read, MaskCommand::Edit);
    add("mask-read", header, Body::Mask(MaskList::new(read, &[])), none());
    add("mask-read-answer", answer, Body::Mask(MaskList::new(read, now)), none());
    add("mask-edit", header, Body::Mask(MaskList::new(edit, to_add)), none());
    add("mask-edit-answer", answer, Body::Mask(MaskList::new(edit, now)), none());
    let full = MaskList::stopped(MaskError::ListFull, 1);
    add("mask-full-answer", answer, Body::Mask(full), none());

    // Command 3.
    let header = ask(AoeCommand::Reserve);
    for (request, reply, command, macs, now) in [
        ("reserve-read", "reserve-read-answer", ReserveCommand::Read, &[][..], &MACS[..]),
        ("reserve-set", "reserve-set-answer", ReserveCommand::Set, &MACS[..], &MACS[..]),
        ("reserve-force-set", "reserve-force-set-answer", ReserveCommand::ForceSet, &MACS, &MACS),
        ("release", "release-answer", ReserveCommand::Set, &[], &[]),
    ] {
        add(request, header, Body::Reserve(Reservation::new(command, macs)), none());
        let now = Body::Reserve(Reservation::new(command, now));
        add(reply, header.answer(HERE), now, none());
    }

    // What a server refuses.
    for (name, command, code) in [
        ("refused-unknown-command", 4, ErrorCode::UnknownCommand),
        ("refused-bad-argument", 0, ErrorCode::BadArgument),
        ("refused-device-unavailable", 0, ErrorCode::DeviceUnavailable),
        ("refused-config-present", 1, ErrorCode::ConfigPresent),
        ("refused-unsupported-version", 1, ErrorCode::UnsupportedVersion),
        ("refused-reserved", 3, ErrorCode::Reserved),
    ] {
        let request = Header { command, ..ask(AoeCommand::IssueAta) };
        add(name, request.refuse(HERE, code), Body::Refused, none());
    }
    list
}

/// What is kept, by the names of samples.
fn kept() -> &'static BTreeMap<String, Vec<u8>> {
    static KEPT: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    let vectors = || samples().iter().map(|s| (file_name(s), s.bytes())).collect::<Vec<_>>();
    KEPT.get_or_init(|| hex::kept("aoe", &vectors()))
}

fn put(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.put(&mut out);
    out
}

fn file_name(sample: &Sample) -> String {
    format!("{}.hex", sample.name)
}

/// The kept frames, not the ones built here, are what must be understood, and with padding behind them.
#[test]
fn golden_frames_are_understood() {
    let (mut asked, mut answered, mut codes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for sample in samples() {
        let mut bytes = kept()[&file_name(&sample)].clone();
        assert_eq!(Frame::parse(&bytes), Ok(sample.frame), "{}", sample.name);
        bytes.extend_from_slice(&[0xaa; 60]);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame, sample.frame, "{}: with padding", sample.name);
        if !sample.data.is_empty() {
            assert!(bytes[DATA_OFFSET..].starts_with(&sample.data), "{}", sample.name);
        }
        match frame.header {
            h if h.is_error => drop(codes.insert(h.error)),
            h if h.is_response => drop(answered.insert(h.command)),
            h => drop(asked.insert(h.command)),
        }
    }
    let commands: BTreeSet<u8> = AoeCommand::ALL.iter().map(|&c| c as u8).collect();
    assert_eq!((&asked, &answered), (&commands, &commands));
    assert_eq!(codes, ErrorCode::ALL.iter().map(|&c| c as u8).collect());
}

#[test]
fn golden_requests_are_what_the_drive_is_asked_for() {
    let drive = Drive { sectors: 1 << 47, request_sectors_max: 17 };
    let mut seen = BTreeSet::new();
    for sample in samples() {
        let Body::Ata(registers) = sample.frame.body else { continue };
        if sample.frame.header.is_response {
            let good =
                !["unsupported", "beyond", "medium"].iter().any(|w| sample.name.starts_with(w));
            assert_eq!(registers.is_done(), good, "{}", sample.name);
            continue;
        }
        let (near, far) = (0x0a0b_0c0d, 0x2122_2324_2526);
        let expected = match sample.name {
            "read" => Ok(AtaIo::Read { sector: near, sectors: 1 }),
            "read-ext" => Ok(AtaIo::Read { sector: far, sectors: 2 }),
            "write" => Ok(AtaIo::Write { sector: near, sectors: 1 }),
            "write-ext" => Ok(AtaIo::Write { sector: far, sectors: 2 }),
            "flush" | "flush-ext" => Ok(AtaIo::Flush),
            "identify" => Ok(AtaIo::Identify),
            "check-power" => Ok(AtaIo::CheckPower),
            _ => Err(AtaRefused::Unsupported),
        };
        assert_eq!(registers.decode(drive, sample.data.len()), expected, "{}", sample.name);
        seen.insert(registers.command_status);
    }
    assert!(AtaCommand::ALL.iter().all(|&command| seen.contains(&(command as u8))));
}

#[test]
fn a_frame_cut_short_is_refused_or_says_less() {
    for sample in samples() {
        let bytes = sample.bytes();
        let whole = put(&sample.frame).len();
        for end in 0..bytes.len() {
            match Frame::parse(&bytes[..end]) {
                Err(why) if end < HEADER_BYTES => assert_eq!(why, FrameRefused::Truncated),
                Err(why) => {
                    assert!(end < whole, "{} of {end}: {why}", sample.name);
                    assert_eq!(why.code(), Some(ErrorCode::BadArgument), "{}", sample.name);
                }
                // All of it is there but data.
                Ok(frame) => {
                    assert!(end >= whole, "{} of {end}", sample.name);
                    assert_eq!(frame, sample.frame);
                    let Body::Ata(registers) = frame.body else { continue };
                    let drive = Drive { sectors: 1 << 47, request_sectors_max: 255 };
                    let got = registers.decode(drive, end.saturating_sub(DATA_OFFSET));
                    if sample.name.starts_with("write") && !frame.header.is_response {
                        assert_eq!(got, Err(AtaRefused::Payload), "{} of {end}", sample.name);
                    }
                }
            }
        }
    }
}

/// As others write them: octet by octet, not by the code under test.
#[test]
fn frames_of_others_are_understood() {
    // Linux asks all interfaces who is there, and Ethernet pads it.
    let mut all = vec![0x10, 0, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0];
    all.resize(46, 0);
    let frame = Frame::parse(&all).unwrap();
    assert!(frame.header.device.covers(HERE) && !frame.header.is_response);
    assert_eq!(frame.body, Body::Query(ConfigQuery::request(ConfigCommand::Read, b"")));

    let drive = Drive { sectors: 1 << 32, request_sectors_max: 17 };
    let decode = |bytes: &[u8]| match Frame::parse(bytes).unwrap().body {
        Body::Ata(registers) => registers.decode(drive, bytes.len() - DATA_OFFSET),
        other => panic!("{other:?}"),
    };
    // Linux: IDENTIFY DEVICE with device register 0xa0, then two sectors from 0x12345678 on with 48 bits.
    let head = [0x10, 0, 0, 7, 1, 0, 0, 1, 0x80, 0];
    let identify = [0, 0, 1, 0xec, 0, 0, 0, 0xa0, 0, 0, 0, 0];
    let with = |registers: [u8; 12]| [&head[..], &registers].concat();
    assert_eq!(decode(&with(identify)), Ok(AtaIo::Identify));
    let read = [0x40, 0, 2, 0x24, 0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0];
    assert_eq!(decode(&with(read)), Ok(AtaIo::Read { sector: 0x1234_5678, sectors: 2 }));
    // With 28 bits, and the drive's own bits above them; D is not ours to judge.
    let read = [0x10, 0, 2, 0x20, 0x78, 0x56, 0x34, 0xe2, 9, 9, 9, 9];
    assert_eq!(decode(&with(read)), Ok(AtaIo::Read { sector: 0x0234_5678, sectors: 2 }));
    let mut write = with([0x43, 0, 1, 0x34, 1, 0, 0, 0, 0, 0, 0, 0]);
    write.resize(DATA_OFFSET + SECTOR_BYTES, 0x5a);
    assert_eq!(decode(&write), Ok(AtaIo::Write { sector: 1, sectors: 1 }));

    // A server's answer, with a string.
    let answer = [0x18, 0, 0, 7, 1, 1, 0, 0, 0, 9, 0, 16, 0x40, 0x18, 2, 0x11, 0, 2, b'h', b'i'];
    let frame = Frame::parse(&answer).unwrap();
    assert!(frame.header.is_response && frame.header.device == ShelfSlot::new(7, 1));
    let Body::Query(query) = frame.body else { panic!("{frame:?}") };
    assert_eq!((query.buffers, query.firmware, query.sectors_max), (16, 0x4018, 2));
    assert_eq!((query.version, query.command, query.config), (1, ConfigCommand::Exact, &b"hi"[..]));
}

#[test]
fn each_frame_is_refused_for_its_reason() {
    let head = |command| Header { command, ..Header::request(HERE, AoeCommand::IssueAta, TAG) };
    let with = |command, body: &[u8]| [&head(command).to_bytes()[..], body].concat();
    let long = [&[0, 0, 0, 0, 0, 0, 0x04, 0x01][..], &[0; 1025]].concat();
    let cases = [
        (FrameRefused::Truncated, vec![0x10; 9]),
        (FrameRefused::Version, [0x20; 60].to_vec()),
        (FrameRefused::Command, with(4, &[0; 60])),
        (FrameRefused::Argument, with(0, &[0; 11])),
        (FrameRefused::ConfigCommand, with(1, &[0, 0, 0, 0, 0, 5, 0, 0])),
        (FrameRefused::ConfigLength, with(1, &long)),
        (FrameRefused::ConfigString, with(1, &[0, 0, 0, 0, 0, 0, 0, 2, b'h'])),
        (FrameRefused::MaskCommand, with(2, &[0, 2, 0, 0])),
        (FrameRefused::Directives, with(2, &[0, 1, 0, 2, 0, 1, 2, 0, 0, 0, 0, 1, 0, 1, 2])),
        (FrameRefused::ReserveCommand, with(3, &[3, 0])),
        (FrameRefused::Addresses, with(3, &[1, 1, 2, 0, 0, 0, 0])),
    ];
    for (why, bytes) in &cases {
        assert_eq!(Frame::parse(bytes), Err(*why));
        // Who asked gets an answer if there is a header.
        let Some(code) = why.code() else { continue };
        let header = Header::parse(bytes).unwrap();
        let answer = header.refuse(HERE, code);
        let frame = Frame { header: answer, body: Body::Refused };
        assert_eq!(Frame::parse(&put(&frame)), Ok(frame), "{why}");
        assert_eq!((answer.tag, answer.code()), (header.tag, Some(code)), "{why}");
    }
    assert_eq!(cases.map(|(why, _)| why), FrameRefused::ALL);
}

#[test]
fn what_is_too_long_to_send_is_cut() {
    let text = [b'x'; CONFIG_BYTES_MAX + 1];
    let macs = [[2; MAC_BYTES]; 300];
    let directives = [[0; DIRECTIVE_BYTES]; 300];
    let bodies = [
        (AoeCommand::QueryConfig, Body::Query(ConfigQuery::request(ConfigCommand::Set, &text))),
        (AoeCommand::MaskList, Body::Mask(MaskList::new(MaskCommand::Edit, &directives))),
        (AoeCommand::Reserve, Body::Reserve(Reservation::new(ReserveCommand::Set, &macs))),
    ];
    let lengths = bodies.map(|(command, body)| {
        let bytes = put(&Frame { header: Header::request(HERE, command, TAG), body });
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(put(&frame), bytes);
        bytes.len()
    });
    assert_eq!(lengths, [10 + 8 + 1024, 10 + 4 + 255 * 8, 10 + 2 + 255 * 6]);
}

#[test]
fn addresses_cover_devices() {
    for (shelf, slot, covered) in [
        (0x0102, 3, true),
        (ANY_SHELF, 3, true),
        (0x0102, ANY_SLOT, true),
        (ANY_SHELF, ANY_SLOT, true),
        (0x0102, 4, false),
        (0x0103, ANY_SLOT, false),
        (ANY_SHELF, 4, false),
    ] {
        let address = ShelfSlot::new(shelf, slot);
        assert_eq!(address.covers(HERE), covered, "{address}");
        assert_eq!(address.is_one(), shelf != ANY_SHELF && slot != ANY_SLOT, "{address}");
    }
    assert_eq!(HERE.to_string(), "258.3");
}

/// The rows of the tables below this heading, without the head of each.
fn rows<'a>(document: &'a str, section: &str) -> Vec<Vec<&'a str>> {
    let start = format!("\n## {section}\n");
    let (_, text) = document.split_once(&start).unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split("\n## ").next().unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with('|') && line.as_bytes()[2].is_ascii_digit())
        .map(|line| line.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`')).collect())
        .collect()
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{text} is no number"))
}

#[test]
fn the_document_says_the_same() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/aoe.md");
    let document = std::fs::read_to_string(path).expect("the document is there");
    macro_rules! same {
        ($section:literal, $list:ty) => {
            let said: Vec<_> = rows(&document, $section)
                .iter()
                .map(|r| (number(r[0]), r[1].to_string()))
                .collect();
            let ours: Vec<_> =
                <$list>::ALL.iter().map(|&n| (n as u64, n.name().to_string())).collect();
            assert_eq!(said, ours, $section);
        };
    }
    same!("Commands", AoeCommand);
    same!("Errors", ErrorCode);
    same!("ATA commands", AtaCommand);
    same!("Config commands", ConfigCommand);
    same!("Mask commands", MaskCommand);
    same!("Mask errors", MaskError);
    same!("Directives", DirectiveCommand);
    same!("Reserve commands", ReserveCommand);
    for why in FrameRefused::ALL {
        let answer = why.code().map_or("none", ErrorCode::name);
        let row = format!("| `{why}` | `{answer}` |");
        assert!(document.contains(&row), "no row {row}");
    }
    for why in AtaRefused::ALL {
        let answer = match why.by() {
            RefusedBy::Drive(ata_error::ABRT) => "drive: ABRT",
            RefusedBy::Drive(ata_error::IDNF) => "drive: IDNF",
            RefusedBy::Drive(_) => panic!("{why}: a third error"),
            RefusedBy::Server(code) => code.name(),
        };
        let row = format!("| `{why}` | `{answer}` |");
        assert!(document.contains(&row), "no row {row}");
    }
    // Words with one value for all drives, and no word is set that the document leaves out.
    let data = DriveIdentity { sectors: 0, serial: "", firmware: "", model: "", ..IDENTITY };
    let data = DriveIdentity { has_write_cache: false, ..data }.to_bytes();
    let view = IdentifyView::parse(&data).unwrap();
    let mut told = BTreeSet::new();
    for row in rows(&document, "IDENTIFY DEVICE") {
        let (first, last) = row[0].split_once(" to ").unwrap_or((row[0], row[0]));
        let words = number(first) as usize..=number(last) as usize;
        told.extend(words.clone());
        if row[1].starts_with("0x") {
            assert_eq!(u64::from(view.word(*words.start())), number(row[1]), "word {}", row[0]);
        }
    }
    assert!((0..256).all(|at| view.word(at) == 0 || told.contains(&at)));
}

proptest! {
    /// Whatever comes, nothing panics, and what is understood says the same when it is written again.
    #[test]
    fn any_bytes(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120), command in 0..5_u8,
        flags in 0..16_u8, version in 0..3_u8, small: bool, sectors: u64, payload in 0..9000_usize,
    ) {
        if let [first, _, _, _, _, number, ..] = &mut bytes[..] {
            (*first, *number) = (version << 4 | flags, command);
        }
        // Counts and lengths that fit now and then.
        for at in [10, 11, 13, 15, 16] {
            if small && let Some(byte) = bytes.get_mut(at) {
                *byte %= 4;
            }
        }
        let _ = IdentifyView::parse(&bytes);
        let Ok(frame) = Frame::parse(&bytes) else { return Ok(()) };
        let again = put(&frame);
        prop_assert!(again.len() <= bytes.len());
        prop_assert_eq!(Frame::parse(&again), Ok(frame));
        match frame.body {
            Body::Ata(registers) => {
                let drive = Drive { sectors, request_sectors_max: registers.sectors };
                if let Ok(AtaIo::Read { sector, sectors: n } | AtaIo::Write { sector, sectors: n }) =
                    registers.decode(drive, payload)
                {
                    prop_assert!(n > 0 && sector + u64::from(n) <= sectors);
                }
                prop_assert!(registers.done().is_done());
            }
            Body::Mask(mask) => prop_assert_eq!(mask.iter().count(), mask.directives.len()),
            _ => {}
        }
    }

    /// A request for any sectors in reach asks for just these.
    #[test]
    fn any_sectors(command in prop::sample::select(AtaCommand::ALL), sector in 0..1_u64 << 48, n in 1..=255_u8) {
        let drive = Drive { sectors: u64::MAX, request_sectors_max: 255 };
        let Some(registers) = AtaRegisters::request(command, sector, n) else { return Ok(()) };
        let parsed = AtaRegisters::parse(&registers.to_bytes()).unwrap();
        prop_assert_eq!(parsed, registers);
        let io = parsed.decode(drive, usize::from(n) * SECTOR_BYTES);
        if command.has_sectors() && io != Err(AtaRefused::Range) {
            let expected = match command.is_write() {
                true => AtaIo::Write { sector, sectors: n },
                false => AtaIo::Read { sector, sectors: n },
            };
            prop_assert_eq!(io, Ok(expected));
        }
    }

    /// What a drive says of its size is read back.
    #[test]
    fn any_size(sectors in 0..1_u64 << 48, serial: String, model: String, has_write_cache: bool) {
        let drive = DriveIdentity { sectors, serial: &serial, firmware: "1", model: &model, has_write_cache };
        let data = drive.to_bytes();
        let view = IdentifyView::parse(&data).unwrap();
        prop_assert_eq!((view.sectors(), view.has_write_cache()), (sectors.min(LBA48_SECTORS_MAX), has_write_cache));
        prop_assert!(view.is_sound());
        prop_assert!(view.model().iter().all(|byte| (b' '..=b'~').contains(byte)));
    }
}
