//! Turns behind which only reads have come.

use std::time::Duration;

use super::world::{Order, SMALL, World, formatted, state};
use super::*;
use LegState::InSync;

/// Regions that are open three seconds behind a write, beside reads that never end.
fn open_beside_reads(canary: MirrorCanary) -> usize {
    let both = state(9, &[InSync; 2]);
    let contents = [0, 1].map(|leg| formatted(leg, &both, [0, 0])).to_vec();
    let mut world = World::open(contents, Order::Turns, 1);
    world.is_recording = false;
    world.mirror.set_canary(canary);
    world.write(SMALL, 1, 1, false);
    world.wait();
    for _ in 0..30_000 {
        world.read(0);
        world.turn();
        while world.waiting() > 0 {
            assert!(world.step(), "it waits for nothing");
        }
        world.now = world.now + Duration::from_micros(100);
    }
    world.mirror.regions.open_count()
}

#[test]
fn reads_that_never_end_keep_it_from_nothing() {
    assert_eq!(open_beside_reads(MirrorCanary::None), 0);
    assert_eq!(open_beside_reads(MirrorCanary::SteadyForever), 1, "planted, and not found");
}
