//! Mirrors that are open for reading: nothing is written, and reads tell one truth.

use super::disk::{Content, Disk};
use super::world::{DISK_BYTES, Order, SMALL, World, config, formatted, leg, state};
use super::*;
use LegState::{Behind, InSync};

const DATA: u64 = MIRROR_DATA_START / 4096;

/// As a crash leaves it, with these bits: each block says whose it is.
fn torn(bits: [u8; 2], says: [LegState; 2]) -> Vec<Content> {
    let of = |leg: usize| {
        let mut content = formatted(leg, &state(9, &says), bits);
        for block in [0, SMALL] {
            content.insert(DATA + block, vec![leg as u8 + 1; 4096].into());
        }
        content
    };
    (0..2).map(of).collect()
}

fn open(disks: &[Disk], canary: MirrorCanary) -> World {
    let legs = disks.iter().map(leg).collect();
    let config = MirrorConfig { read_only: true, ..config(false) };
    let mut mirror = Mirror::open(legs, config).unwrap_or_else(|e| panic!("{e}"));
    mirror.canary = canary;
    let mut world = World::new(mirror, disks.to_vec(), Order::Turns, 1);
    world.is_recording = false;
    world
}

fn disks(contents: Vec<Content>) -> Vec<Disk> {
    contents.into_iter().map(|content| Disk::new(DISK_BYTES, content)).collect()
}

/// What many reads of a block see.
fn seen(world: &mut World, block: u64) -> Vec<u8> {
    world.reads.clear();
    (0..200).for_each(|_| world.read(block));
    world.wait();
    let mut seen: Vec<u8> = world.reads.iter().map(|(_, bytes)| bytes[0]).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

/// Rule 4: what was open at a crash is read from one leg, though no record says so.
#[test]
fn what_was_open_is_read_from_one_leg_and_nothing_is_written() {
    let disks = disks(torn([0, 0b11], [InSync; 2]));
    disks.iter().for_each(Disk::be_read_only);
    for _ in 0..2 {
        let mut world = open(&disks, MirrorCanary::None);
        assert!(world.mirror.geometry().features.read_only);
        assert_eq!(seen(&mut world, SMALL), [1]);
        assert_eq!(seen(&mut world, 0), [1, 2], "all legs serve what was not open");
        world.flush();
        world.wait();
        world.pass(9);
        assert_eq!((world.errors, disks[0].writes() + disks[1].writes()), (0, 0));
        assert_eq!(world.mirror.turn(world.now), Time::NEVER);
        // Without that leg nobody knows.
        world.disks[0].fail(Some(ErrorKind::Away));
        assert_eq!((seen(&mut world, SMALL), world.errors), (vec![], 200));
        assert_eq!(seen(&mut world, 0), [2]);
        world.disks[0].fail(None);
    }
    assert_eq!(seen(&mut open(&disks, MirrorCanary::TwoTruths), SMALL), [1, 2]);
}

/// One that lacks something is neither read nor copied to.
#[test]
fn a_leg_that_is_behind_is_left_alone() {
    let behind = [InSync, Behind { at: [8; 16].into() }];
    let mut contents = torn([0b10; 2], behind);
    contents[1] = formatted(1, &state(8, &[InSync; 2]), [0, 0]);
    let disks = disks(contents);
    let mut world = open(&disks, MirrorCanary::None);
    assert_eq!(seen(&mut world, 0), [1]);
    world.pass(9);
    assert_eq!(letters(&world), "SB");
    assert_eq!(disks[0].writes() + disks[1].writes(), 0);
    let back = leg(&Disk::new(DISK_BYTES, disks[1].content())).unwrap();
    world.mirror.return_leg(1, back).unwrap_err();
}

#[test]
fn a_leg_that_is_read_only_is_not_opened_for_writing() {
    let disks = disks(torn([0, 0], [InSync; 2]));
    disks[1].be_read_only();
    let legs = disks.iter().map(leg).collect();
    let refused = Mirror::open(legs, config(false)).err().unwrap().to_string();
    assert!(refused.contains("volume 1, counted from 0, is read-only: open"), "{refused}");
}
