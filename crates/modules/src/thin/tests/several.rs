//! Several volumes that are open at once: how they end, and who hears of what.

use thinwire_buffer::Time;
use thinwire_volume::{Completion, Io, IoFlags, Op, Volume};

use super::super::*;
use super::disk::{Disk, SECTOR};
use super::made::{BLOCK, label_of};
use super::world::*;

/// Two volumes that are open, and have something.
fn two() -> (World, u64, u64) {
    let mut world = World::new(Setup { seed: 3, ..Setup::default() });
    let [a, b] = [(); 2].map(|()| world.create(20 * BLOCK));
    for volume in [a, b] {
        world.open_volume(volume);
        world.write(volume, 0, 8);
    }
    world.wait();
    (world, a, b)
}

fn end(world: &mut World, volume: u64) -> ThinVolume {
    let mut handle = world.open.remove(&volume).unwrap();
    handle.wind_up();
    for _ in 0..1000 {
        if handle.is_wound_up() {
            return handle;
        }
        handle.poll(&mut Vec::new());
        world.pass(10);
    }
    panic!("it does not end");
}

#[test]
fn a_pool_ends_with_the_last_of_its_volumes() {
    let (mut world, a, b) = two();
    let is_ended = |world: &World| world.pool.0.borrow().is_winding_parts;
    let first = end(&mut world, a);
    assert!(!is_ended(&world), "the other one goes on");
    // The first is still there, as it is between two ends.
    world.write(b, 8, 16);
    world.flush(b);
    world.read_all(b);
    let second = end(&mut world, b);
    assert!(is_ended(&world) && first.is_wound_up() && second.is_wound_up());
    assert!(!world.pool.0.borrow().trees.has_changes());
    world.is_right();
}

#[test]
fn a_volume_that_is_gone_keeps_no_pool_from_its_end() {
    let (mut world, a, b) = two();
    world.open.remove(&a);
    end(&mut world, b);
    assert!(world.pool.0.borrow().is_winding_parts);
}

/// As if it had been opened for writing.
fn opened(world: &mut World) {
    let core = &mut *world.pool.0.borrow_mut();
    let label = core.trees.label_mut();
    (label.opening, label.openings) = ([5; 16], 3);
}

/// What the two labels of a pool say that has ended in order, each when the other one is damaged: whether it is at rest, and that all is there.
fn with_one_label(plant: PoolCanary) -> [(Option<bool>, bool); 2] {
    let (mut world, a, b) = two();
    for volume in [a, b] {
        world.write(volume, 8, 64);
        world.wait();
    }
    world.canary(plant);
    opened(&mut world);
    end(&mut world, a);
    end(&mut world, b);
    let content = world.metadata.content();
    crate::meta::LABEL_OFFSETS.map(|offset| {
        let mut damaged = content.clone();
        let at = offset / SECTOR;
        let mut sector = *damaged[&at];
        sector[100] ^= 1;
        damaged.insert(at, std::rc::Rc::new(sector));
        let mut metadata = Disk::new(world.metadata.geometry().bytes, damaged, 0, &world.clock, 1);
        let label = label_of(&mut metadata);
        let next =
            World::over(world.setup.clone(), world.data.clone(), metadata, world.clock.clone());
        let mapped: u64 = next.pool.report().volumes.iter().map(|of| of.mapped_bytes).sum();
        (PoolHead::is_at_rest(&label), mapped == 2 * 9 * BLOCK)
    })
}

#[test]
fn whichever_label_rots_of_a_pool_at_rest_the_other_says_all() {
    assert_eq!(with_one_label(PoolCanary::None), [(Some(true), true); 2]);
}

#[test]
fn a_pool_that_notes_its_end_once_is_found() {
    assert_ne!(with_one_label(PoolCanary::EndsOnce), [(Some(true), true); 2]);
}

#[test]
fn a_pool_that_was_changed_since_is_not_at_rest() {
    let (mut world, a, b) = two();
    opened(&mut world);
    assert_eq!(PoolHead::is_at_rest(&label_of(&mut world.metadata)), Some(false));
    end(&mut world, a);
    end(&mut world, b);
    let mut label = label_of(&mut world.metadata);
    assert_eq!(PoolHead::is_at_rest(&label), Some(true));
    // Whoever opens it for writing has drawn another opening.
    label.openings += 1;
    assert_eq!(PoolHead::is_at_rest(&label), Some(false));
    label.role = 0;
    assert_eq!(PoolHead::is_at_rest(&label), None);
}

/// A loop that polls one volume, and then sleeps for the other, would do so until something else happens.
#[test]
fn who_brings_something_up_for_another_volume_does_not_sleep() {
    let (mut world, a, b) = two();
    world.rest();
    let mut done: Vec<Completion> = Vec::new();
    world.open.get_mut(&a).unwrap().submit(Io::new(7, Op::Read, 0, 4096));
    let other = world.open.get_mut(&b).unwrap();
    let mut polls = 0;
    while other.turn(world.now) > world.now {
        other.poll(&mut done);
        polls += 1;
        assert!(polls < 100, "nobody hears of it");
    }
    assert_eq!(done.len(), 0);
    let handle = world.open.get_mut(&a).unwrap();
    handle.poll(&mut done);
    assert_eq!(done.len(), 1);
    assert!(handle.turn(world.now) > world.now);
    // Of what nobody wants any more nobody is told.
    handle.submit(Io::new(8, Op::Read, 0, 4096));
    world.open.remove(&a);
    let other = world.open.get_mut(&b).unwrap();
    for _ in 0..100 {
        other.poll(&mut done);
    }
    assert!(other.turn(Time::ZERO) > world.now);
}

#[test]
fn a_volume_can_be_opened_to_be_read_only_while_another_is_written() {
    let (mut world, a, b) = two();
    world.open.remove(&a);
    let handle = world.pool.open_volume_to(a, VolumeWay::Read).unwrap();
    assert!(handle.geometry().features.read_only);
    assert_ne!(handle.identity(), world.open[&b].identity());
    assert_eq!(
        world.pool.open_volume(a).err(),
        Some(PoolError::IsOpen { volume: a }),
        "each is open once"
    );
    drop(handle);
    world.open_volume(a);
    world.ask(a, Op::Write, IoFlags::default(), 0, 8);
    world.wait();
    world.is_right();
}
