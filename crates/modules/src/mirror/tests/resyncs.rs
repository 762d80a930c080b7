//! Resyncs that something stands in the way of.

use super::world::{Order, SMALL, World, differ, formatted, state};
use super::*;
use LegState::{Behind, InSync};

fn three() -> World {
    let contents = (0..3).map(|leg| formatted(leg, &state(9, &[InSync; 3]), [0, 0]));
    let mut world = World::open(contents.collect(), Order::Turns, 1);
    world.is_recording = false;
    world
}

/// Somebody writes into the region that is being copied, and a leg is away that is not copied to.
#[test]
fn a_resync_ends_beside_a_writer_when_another_leg_is_away() {
    let mut world = three();
    for disk in [2, 1] {
        world.disks[disk].fail(Some(ErrorKind::NoSpace));
        world.write(disk as u64, 1, 1, false);
        world.wait();
    }
    world.pass(1);
    world.bring_back(1);
    let mut count = 0_u8;
    while standing(&world)[1] != InSync {
        count += 1;
        assert!(count < 200, "it never ends");
        world.write(3, 1, count, false);
        world.wait();
        world.now = world.now + Duration::from_millis(25);
        world.turn();
        world.steps(3);
    }
    assert!(matches!(standing(&world)[2], Behind { .. }));
    world.bring_back(2);
    world.heal().unwrap();
    assert_eq!(differ(&world.disks), None);
}

/// What cannot be read is passed over, and tried again when the rest is there for good.
#[test]
fn a_block_that_cannot_be_read_holds_up_its_region_only() {
    let behind = state(9, &[InSync, Behind { at: [8; 16].into() }]);
    let old = state(8, &[InSync; 2]);
    let contents = vec![formatted(0, &behind, [0b10; 2]), formatted(1, &old, [0; 2])];
    let mut world = World::open(contents, Order::Turns, 1);
    world.is_recording = false;
    world.disks[0].fail_block(Some(MIRROR_DATA_START / 4096));
    world.pass(4);
    let lacks: Vec<_> = world.mirror.legs().map(|(_, bytes)| bytes).collect();
    assert_eq!(lacks, [0, 1 << 20], "the second region is there, and flushed");
    let reads = |world: &mut World| {
        world.turn();
        let count = world.disks[0].queued();
        while world.step() {}
        count
    };
    assert_eq!(reads(&mut world), 0, "not again at once");
    world.now = world.now + Duration::from_secs(2);
    assert_ne!(reads(&mut world), 0);
    world.write(SMALL, 1, 1, false);
    world.disks[0].fail_block(None);
    world.heal().unwrap();
    assert_eq!((differ(&world.disks), world.errors), (None, 0));
}
