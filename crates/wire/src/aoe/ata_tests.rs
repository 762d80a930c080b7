//! What a drive of ours refuses, and what it says of itself. The frames are tested by `tests/aoe_golden.rs`.

use super::*;

const IDENTITY: DriveIdentity<'_> = DriveIdentity {
    sectors: 0x0000_0001_2345_6789,
    serial: "1.3 disk0",
    firmware: "0.1.0",
    model: "Thinwire",
    has_write_cache: true,
};

fn ata(command: AtaCommand, sector: u64, sectors: u8) -> AtaRegisters {
    AtaRegisters::request(command, sector, sectors).expect("a sector in reach")
}

#[test]
fn each_request_is_refused_for_its_reason() {
    use AtaCommand::*;
    let drive = Drive { sectors: 1000, request_sectors_max: 16 };
    let no_e = |r: AtaRegisters| AtaRegisters { flags: r.flags & !ata_flags::EXTENDED, ..r };
    let no_w = |r: AtaRegisters| AtaRegisters { flags: r.flags & !ata_flags::WRITE, ..r };
    let cases = [
        (
            AtaRefused::Unsupported,
            AtaRegisters { command_status: 0x25, ..ata(ReadSectors, 0, 1) },
            0,
        ),
        (AtaRefused::AddressMode, no_e(ata(ReadSectorsExt, 0, 1)), 0),
        (AtaRefused::Empty, ata(ReadSectors, 0, 0), 0),
        (AtaRefused::Direction, no_w(ata(WriteSectors, 0, 1)), 512),
        (AtaRefused::TooLong, ata(ReadSectorsExt, 0, 17), 0),
        (AtaRefused::Range, ata(ReadSectorsExt, 999, 2), 0),
        (AtaRefused::Payload, ata(WriteSectorsExt, 998, 2), 1023),
    ];
    for (why, registers, payload) in cases {
        assert_eq!(registers.decode(drive, payload), Err(why));
        match why.by() {
            RefusedBy::Server(code) => assert_eq!(code, ErrorCode::BadArgument),
            RefusedBy::Drive(error) => {
                let answer = registers.failed(error);
                assert_eq!((answer.command_status, answer.error_feature), (0x41, error), "{why}");
                assert!(!answer.is_done());
            }
        }
    }
    assert_eq!(cases.map(|(why, ..)| why), AtaRefused::ALL);
    // The last sectors are there, and the drives' own limits are those of their commands.
    assert!(ata(WriteSectorsExt, 998, 2).decode(drive, 1024).is_ok());
    let large = Drive { sectors: u64::MAX, request_sectors_max: 255 };
    let last = LBA28_SECTORS_MAX - 1;
    assert!(ata(ReadSectors, last, 1).decode(large, 0).is_ok());
    assert_eq!(ata(ReadSectors, last, 2).decode(large, 0), Err(AtaRefused::Range));
    assert_eq!(AtaRegisters::request(ReadSectors, LBA28_SECTORS_MAX, 1), None);
    let last = LBA48_SECTORS_MAX - 1;
    assert!(ata(ReadSectorsExt, last, 1).decode(large, 0).is_ok());
    assert_eq!(ata(ReadSectorsExt, last, 2).decode(large, 0), Err(AtaRefused::Range));
    assert_eq!(AtaRegisters::request(ReadSectorsExt, LBA48_SECTORS_MAX, 1), None);
}

#[test]
fn a_drive_says_what_clients_look_at() {
    let data = IDENTITY.to_bytes();
    // As Linux and iPXE read it: at fixed octets, the lowest first.
    assert_eq!(u16::from_le_bytes([data[166], data[167]]) & 0x0400, 0x0400, "word 83");
    assert_eq!(u16::from_le_bytes([data[172], data[173]]) & 0x0400, 0x0400, "word 86");
    assert_eq!(data[200..208], IDENTITY.sectors.to_le_bytes(), "words 100 to 103");
    assert_eq!(data[120..124], 0x0fff_ffff_u32.to_le_bytes(), "words 60 and 61");
    // Texts have their octets exchanged in pairs.
    assert_eq!(data[20..30], *b".1 3idks 0");
    assert_eq!(data[54..62], *b"hTniiwer");
    let view = IdentifyView::parse(&data).unwrap();
    assert_eq!(view.sectors(), IDENTITY.sectors);
    assert_eq!((view.serial(), view.firmware()), (*b"1.3 disk0           ", *b"0.1.0   "));
    assert_eq!(view.model(), *b"Thinwire                                ");
    assert!(view.has_lba48() && view.has_write_cache() && view.is_sound());
    assert!(IdentifyView::parse(&data[..511]).is_none());
    let mut other = data;
    other[200] ^= 1;
    assert!(!IdentifyView::parse(&other).unwrap().is_sound());

    // A small drive, whose texts do not fit or cannot be said.
    let long = "\u{e9}\n".repeat(40);
    let small = DriveIdentity { sectors: 2016, serial: &long, model: "", ..IDENTITY };
    let small = DriveIdentity { has_write_cache: false, ..small }.to_bytes();
    let view = IdentifyView::parse(&small).unwrap();
    assert_eq!((view.serial(), view.model()), ([b'?'; 20], [b' '; 40]));
    assert_eq!((view.sectors(), view.word(60), view.word(61)), (2016, 2016, 0));
    assert_eq!([54, 55, 56, 57, 58].map(|at| view.word(at)), [2, 16, 63, 2016, 0]);
    assert!(!view.has_write_cache() && view.is_sound() && view.word(256) == 0);
    let huge = DriveIdentity { sectors: u64::MAX, ..IDENTITY }.to_bytes();
    assert_eq!(IdentifyView::parse(&huge).unwrap().sectors(), LBA48_SECTORS_MAX);
    // A drive of others that has 28 bits only.
    let mut old = data;
    (old[167], old[173]) = (0, 0);
    assert_eq!(IdentifyView::parse(&old).unwrap().sectors(), LBA28_SECTORS_MAX);
}
