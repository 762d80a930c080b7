//! What bad input gets: a counter each, an answer where the protocol has one, and nobody else disturbed.

mod common;

use std::time::Duration;

use common::{DEVICE, Told, World, stamp, station};
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, AtaRefused, AtaRegisters, Body, ErrorCode, FrameRefused,
    IDENTIFY_BYTES, IdentifyView, ata_error,
};

const BAD: Told = Told::Server(ErrorCode::BadArgument as u8);

/// A frame, as one station after another sends it: how it is answered, and that others are served as before.
fn told(world: &mut World, frame: &[u8]) -> Told {
    let told = world.told(station(9), frame);
    assert_eq!(world.raw_read(station(1), 0), Told::Done(stamp(0, 8, 1)));
    told
}

fn world() -> World {
    let mut world = World::new();
    assert!(world.raw_write(station(1), 0, 1).is_done());
    world
}

#[test]
fn frames_that_are_none() {
    let mut world = world();
    let good = world.ata(AtaCommand::ReadSectorsExt, 0, 8, &[]);
    let at = |index: usize, value: u8| {
        let mut frame = good.clone();
        frame[index] = value;
        frame
    };
    let command = |number: u8, behind: &[u8]| [&at(5, number)[..10], behind].concat();
    let unsupported = Told::Server(ErrorCode::UnsupportedVersion as u8);
    let unknown = Told::Server(ErrorCode::UnknownCommand as u8);
    let cases = [
        (good[..9].to_vec(), FrameRefused::Truncated, Told::Nothing),
        (Vec::new(), FrameRefused::Truncated, Told::Nothing),
        (at(0, 0x20), FrameRefused::Version, unsupported.clone()),
        (at(0, 0x00), FrameRefused::Version, unsupported),
        (at(5, 4), FrameRefused::Command, unknown.clone()),
        (at(5, 0xff), FrameRefused::Command, unknown),
        (good[..21].to_vec(), FrameRefused::Argument, BAD),
        (command(1, &[0; 7]), FrameRefused::Argument, BAD),
        (command(1, &[0, 0, 0, 0, 0, 5, 0, 0]), FrameRefused::ConfigCommand, BAD),
        (command(1, &[0, 0, 0, 0, 0, 0, 4, 1]), FrameRefused::ConfigLength, BAD),
        (command(1, &[0, 0, 0, 0, 0, 0, 0, 3, 1, 2]), FrameRefused::ConfigString, BAD),
        (command(2, &[0, 2, 0, 0]), FrameRefused::MaskCommand, BAD),
        (command(2, &[0, 1, 0, 1, 0]), FrameRefused::Directives, BAD),
        (command(3, &[3, 0]), FrameRefused::ReserveCommand, BAD),
        (command(3, &[1, 1, 2]), FrameRefused::Addresses, BAD),
    ];
    for (frame, why, answer) in cases {
        let before = world.stats().frames(why);
        assert_eq!(told(&mut world, &frame), answer, "{why}");
        assert_eq!(world.stats().frames(why), before + 1, "{why}");
    }
    let all: u64 = FrameRefused::ALL.iter().map(|&why| world.stats().frames(why)).sum();
    assert_eq!(all, 15, "each is counted once, and all of them are named");
    // Padded is as good as not.
    let padded = [&good[..], &[0xaa; 38]].concat();
    assert!(told(&mut world, &padded).is_done());
}

#[test]
fn commands_that_no_drive_of_ours_does() {
    let mut world = world();
    let data = stamp(0, 18, 9);
    let registers = |flags: u8, command: u8, sectors: u8, sector: u64| {
        let [a, b, c, d, e, f, ..] = sector.to_le_bytes();
        let lba = [a, b, c, d, e, f];
        AtaRegisters { flags, error_feature: 0, sectors, command_status: command, lba }
    };
    let end = common::BYTES / 512;
    let abrt = Told::Drive(ata_error::ABRT);
    let idnf = Told::Drive(ata_error::IDNF);
    let cases = [
        // DMA, FUA, SMART, SECURITY ERASE, a packet.
        (registers(0x40, 0x25, 8, 0), 0, AtaRefused::Unsupported, abrt.clone()),
        (registers(0x41, 0x3d, 8, 0), 4096, AtaRefused::Unsupported, abrt.clone()),
        (registers(0x00, 0xb0, 1, 0), 0, AtaRefused::Unsupported, abrt.clone()),
        (registers(0x00, 0xf4, 1, 0), 0, AtaRefused::Unsupported, abrt.clone()),
        (registers(0x00, 0xa0, 1, 0), 0, AtaRefused::Unsupported, abrt.clone()),
        (registers(0x00, 0x24, 8, 0), 0, AtaRefused::AddressMode, abrt.clone()),
        (registers(0x40, 0x20, 8, 0), 0, AtaRefused::AddressMode, abrt.clone()),
        (registers(0x40, 0x24, 0, 0), 0, AtaRefused::Empty, abrt.clone()),
        (registers(0x41, 0x34, 0, 0), 0, AtaRefused::Empty, abrt),
        (registers(0x41, 0x24, 8, 0), 0, AtaRefused::Direction, BAD),
        (registers(0x40, 0x34, 8, 0), 4096, AtaRefused::Direction, BAD),
        (registers(0x40, 0x24, 18, 0), 0, AtaRefused::TooLong, BAD),
        (registers(0x40, 0x24, 255, 0), 0, AtaRefused::TooLong, BAD),
        (registers(0x41, 0x34, 18, 0), 9216, AtaRefused::TooLong, BAD),
        (registers(0x40, 0x24, 1, end), 0, AtaRefused::Range, idnf.clone()),
        (registers(0x40, 0x24, 8, end - 7), 0, AtaRefused::Range, idnf.clone()),
        (registers(0x40, 0x24, 1, (1 << 48) - 1), 0, AtaRefused::Range, idnf),
        (registers(0x41, 0x34, 8, 0), 4095, AtaRefused::Payload, BAD),
        (registers(0x41, 0x34, 8, 0), 0, AtaRefused::Payload, BAD),
    ];
    let count = cases.len() as u64;
    for (registers, bytes, why, answer) in cases {
        let mut frame = world.request(AoeCommand::IssueAta, &Body::Ata(registers));
        frame.extend_from_slice(&data[..bytes]);
        let before = world.stats().commands(why);
        assert_eq!(told(&mut world, &frame), answer, "{why} {registers:?}");
        assert_eq!(world.stats().commands(why), before + 1, "{why}");
    }
    let all: u64 = AtaRefused::ALL.iter().map(|&why| world.stats().commands(why)).sum();
    assert_eq!(all, count);
}

#[test]
fn what_is_for_nobody_here() {
    let mut world = world();
    let good = world.ata(AtaCommand::ReadSectorsExt, 0, 8, &[]);
    for (index, value) in [(3, 8), (2, 1), (4, 2), (4, 0)] {
        let mut frame = good.clone();
        frame[index] = value;
        assert_eq!(told(&mut world, &frame), Told::Nothing);
    }
    assert_eq!(world.stats().absent, 4);
    // An answer that nobody asked for, of another device.
    let mut frame = good.clone();
    (frame[0], frame[4]) = (0x18, 9);
    assert_eq!(told(&mut world, &frame), Told::Nothing);
    assert_eq!(world.stats().answers, 1);
}

/// Those with 28 bits, the flag A, and what tells of the drive.
#[test]
fn commands_that_a_drive_of_ours_does() {
    let (mut world, client) = (World::new(), station(1));
    let write = world.ata(AtaCommand::WriteSectors, 5, 8, &stamp(5, 8, 3));
    assert!(world.told(client, &write).is_done());
    let read = world.ata(AtaCommand::ReadSectors, 5, 8, &[]);
    assert_eq!(world.told(client, &read), Told::Done(stamp(5, 8, 3)));
    // W and E, and A, which is repeated and changes nothing.
    let mut write = world.ata(AtaCommand::WriteSectorsExt, 16, 8, &stamp(16, 8, 4));
    write[10] |= 0x02;
    let answer = world.ask_one(client, &write);
    let registers = answer.registers.expect("an ATA command");
    assert_eq!((registers.flags, registers.sectors, answer.bytes.len()), (0x43, 0, 22));
    assert_eq!(answer.header.device, DEVICE);
    for command in [AtaCommand::FlushCache, AtaCommand::FlushCacheExt] {
        let flush = world.ata(command, 0, 0, &[]);
        assert!(world.told(client, &flush).is_done());
    }
    let power = world.ata(AtaCommand::CheckPowerMode, 0, 0, &[]);
    let registers = world.ask_one(client, &power).registers.expect("an ATA command");
    assert_eq!((registers.command_status, registers.sectors), (0x40, 0xff));
    let identify = world.ata(AtaCommand::IdentifyDevice, 0, 1, &[]);
    let Told::Done(data) = world.told(client, &identify) else { panic!("it says what it is") };
    assert_eq!(data.len(), IDENTIFY_BYTES);
    let view = IdentifyView::parse(&data).unwrap();
    assert_eq!((view.sectors(), view.is_sound()), (common::BYTES / 512, true));
    assert!(view.has_lba48() && !view.has_write_cache());
    assert!(view.model().starts_with(b"Thinwire disk0 "), "{:?}", view.model());
    assert_eq!(view.serial(), *b"07070707070707070707");
}

/// Frames of any bytes, most of them nearly good ones, from several stations: whoever writes is served as before.
#[test]
fn any_bytes() {
    let mut world = world();
    let mut state = 88172645463325252u64;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let commands =
        [AtaCommand::ReadSectorsExt, AtaCommand::WriteSectorsExt, AtaCommand::FlushCache];
    for round in 0..20_000 {
        let data = stamp(0, next(18), round as u8);
        let mut frame = world.ata(commands[next(3)], 64 + next(3000) as u64, next(20) as u8, &data);
        if next(3) == 0 {
            frame[5] = next(5) as u8;
        }
        for _ in 0..next(4) {
            let at = next(frame.len().min(40));
            frame[at] = next(256) as u8;
        }
        frame.truncate(if next(4) == 0 { next(60) } else { frame.len() });
        // Neither masks nor reservations: who is not listened to is no test of the others.
        if frame.get(5).is_some_and(|command| *command == 2 || *command == 3) {
            frame[5] = 1;
        }
        world.receive(station(20 + next(4) as u8), &frame, Duration::ZERO);
        if round % 500 == 0 {
            world.pass(Duration::from_millis(2));
            let sector = round as u64 % 64 / 8 * 8;
            assert!(world.raw_write(station(1), sector, 3).is_done(), "round {round}");
            assert_eq!(world.raw_read(station(1), sector), Told::Done(stamp(sector, 8, 3)));
        }
    }
    let stats = world.stats();
    let refused: u64 = stats.frames_refused.iter().chain(&stats.commands_refused).sum();
    assert!(refused > 1000 && stats.absent > 100 && stats.reserved > 100, "{stats:?}");
}

/// More at once than there are buffers: what is beyond them is dropped, and counted.
#[test]
fn requests_beyond_the_buffers() {
    let (mut world, gate, _) = World::slow(vec![common::offer(false)]);
    let client = station(1);
    assert!(world.raw_write(client, 0, 1).is_done());
    gate.set(false);
    for at in 0..400 {
        let write = world.ata(AtaCommand::WriteSectorsExt, at, 1, &stamp(at, 1, 2));
        world.receive(client, &write, Duration::ZERO);
    }
    world.pass(Duration::from_millis(10));
    let beyond = world.stats().beyond_room;
    assert!((1..400).contains(&beyond), "{beyond}");
    gate.set(true);
    world.wake();
    let answers = world.said_to(client, Duration::from_millis(50));
    assert_eq!(answers.len() as u64, 400 - beyond);
}
