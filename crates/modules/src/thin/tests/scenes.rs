//! Sequences that break without a rule, one by one, some with the fault that breaks it.

use std::time::Duration;

use thinwire_buffer::{Pool as Memory, SegList};
use thinwire_volume::{ErrorKind, Io, IoFlags, Op, Volume};

use super::super::*;
use super::made::BLOCK;
use super::model::May;
use super::world::*;
use crate::meta::tree::TreeCanary;

const NONE: IoFlags = IoFlags {
    fua: false,
    no_hole: false,
    one_extent: false,
    for_patch: false,
    verified: false,
    uncached: false,
    meta: false,
};
const FUA: IoFlags = IoFlags { fua: true, ..NONE };
const NO_HOLE: IoFlags = IoFlags { no_hole: true, ..NONE };

/// Two volumes; the first has all blocks but the last few.
fn filled(left: u64, plant: PoolCanary) -> (World, u64, u64) {
    let mut world = World::new(Setup { seed: 5, blocks: 16, ..Setup::default() });
    let [a, b] = [(); 2].map(|()| world.create(20 * BLOCK));
    world.open_volume(a);
    world.open_volume(b);
    world.write(a, 0, (16 - left) * 8);
    world.wait();
    world.rest();
    world.canary(plant);
    (world, a, b)
}

fn some_turns(world: &mut World) {
    for _ in 0..30 {
        world.turn();
        world.pass(100);
    }
}

/// A slow read of a block that is discarded meanwhile, and that another volume asks for (rule 10).
fn slow_read(plant: PoolCanary) -> World {
    let (mut world, a, b) = filled(0, plant);
    world.data.hang(Some(Op::Read));
    world.ask(a, Op::Read, NONE, 0, 8);
    some_turns(&mut world);
    world.ask(a, Op::Discard, NONE, 0, 8);
    some_turns(&mut world);
    world.write(b, 0, 8);
    some_turns(&mut world);
    world.data.hang(None);
    world.wait();
    world
}

#[test]
fn a_block_that_is_being_read_is_not_given_up() {
    let mut world = slow_read(PoolCanary::None);
    world.is_right();
    assert_eq!(world.failed.get(&ErrorKind::NoSpace), Some(&1));
    world.write(2, 0, 8);
    world.wait();
    world.read_all(2);
    world.is_right();
    assert_eq!(world.failed.get(&ErrorKind::NoSpace), Some(&1));
}

#[test]
fn a_read_that_locks_nothing_is_found() {
    assert!(slow_read(PoolCanary::ReadsUnlocked).wrong.is_some());
}

/// A slow discard of a block that another volume asks for (rule 10).
fn slow_discard(plant: PoolCanary) -> World {
    let (mut world, a, b) = filled(0, plant);
    world.data.hang(Some(Op::Discard));
    world.ask(a, Op::Discard, NONE, 8, 8);
    some_turns(&mut world);
    world.write(b, 0, 8);
    some_turns(&mut world);
    world.data.hang(None);
    world.wait();
    world.read_all(b);
    world
}

#[test]
fn a_block_that_is_being_discarded_is_waited_for() {
    let world = slow_discard(PoolCanary::None);
    world.is_right();
    assert_eq!(world.failed.len(), 0);
}

#[test]
fn a_block_that_is_given_out_while_it_is_being_discarded_is_found() {
    assert!(slow_discard(PoolCanary::GivesOutEarly).wrong.is_some());
}

/// A volume is deleted, of which there is a snapshot, and another one is written.
fn deleted_origin(plant: PoolCanary) -> (World, u64) {
    let (mut world, a, b) = filled(6, PoolCanary::None);
    let snapshot = world.snapshot(a);
    world.write(a, 0, 8);
    world.wait();
    world.open.remove(&a);
    world.rest();
    world.canary(plant);
    assert_eq!(world.run(PoolOp::Delete { volume: a }), Some(PoolDone::Done));
    world.rest();
    // More than there is room for.
    for block in 0..14 {
        world.write(b, block * 8, 8);
        world.wait();
    }
    world.read_all(snapshot);
    world.rest();
    (world, snapshot)
}

#[test]
fn what_a_snapshot_has_stays_when_its_origin_is_deleted() {
    let (mut world, snapshot) = deleted_origin(PoolCanary::None);
    world.is_right();
    assert_eq!(world.check(), []);
    let measured = world.run(PoolOp::Measure { volume: snapshot });
    let all = PoolDone::Measured { own_bytes: 10 * BLOCK, shared_bytes: 0 };
    assert_eq!(measured, Some(all), "what was shared is its own now");
}

#[test]
fn a_deletion_that_gives_back_what_is_shared_is_found() {
    let (mut world, _) = deleted_origin(PoolCanary::DeletesShared);
    assert!(!world.check().is_empty());
    assert!(world.wrong.is_some());
}

/// A volume that fills its pool, whose snapshot is deleted while nothing can be made durable, and that is written then. How many writes had
/// ended by the time that it could.
fn overwritten(plant: PoolCanary) -> (World, usize) {
    let (mut world, a, _) = filled(0, PoolCanary::None);
    let snapshot = world.snapshot(a);
    world.write(a, 3, 10);
    world.wait();
    assert_eq!(
        world.failed.remove(&ErrorKind::NoSpace),
        Some(1),
        "both blocks are the snapshot's, too"
    );
    world.rest();
    world.canary(plant);
    world.metadata.hang(Some(Op::Flush));
    world.begin(PoolOp::Delete { volume: snapshot });
    some_turns(&mut world);
    world.write(a, 3, 10);
    some_turns(&mut world);
    let early = 1 - world.outstanding();
    world.metadata.hang(None);
    world.wait();
    (world, early)
}

#[test]
fn what_deleted_snapshots_had_can_be_overwritten_in_a_full_pool() {
    let (mut world, early) = overwritten(PoolCanary::None);
    assert_eq!(early, 0, "a crash would have brought the snapshot back");
    // Half a block, whole blocks, and what another one may not have.
    for (first, count) in [(1, 2), (8, 16), (0, 128)] {
        world.write(1, first, count);
        world.wait();
    }
    assert_eq!(world.failed.len(), 0);
    world.write(2, 0, 8);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1));
    world.read_all(1);
    world.rest();
    world.is_right();
    assert_eq!(world.check(), []);
    // With two snapshots one may be deleted: the blocks are still another's.
    let [first, second] = [(); 2].map(|()| world.snapshot(1));
    world.run(PoolOp::Delete { volume: first });
    world.rest();
    world.write(1, 0, 8);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1));
    world.read_all(second);
    world.is_right();
}

#[test]
fn an_overwrite_before_the_deletion_is_durable_is_found() {
    assert_eq!(overwritten(PoolCanary::OwnBeforeDurable).1, 1);
}

/// Rule 14.
#[test]
fn a_full_pool_refuses_what_takes_room_and_does_the_rest() {
    let (mut world, a, b) = filled(1, PoolCanary::None);
    // Two blocks, where there is one: neither is written.
    world.write(b, 3, 10);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1));
    world.ask(b, Op::WriteZeroes, NO_HOLE, 0, 16);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1));
    world.read_all(b);
    // One fits; what is mapped is written, flushed, read.
    world.write(b, 3, 5);
    world.ask(a, Op::Write, FUA, 5, 20);
    world.wait();
    world.flush(a);
    let snapshot = world.snapshot(a);
    world.write(a, 0, 1);
    world.wait();
    assert_eq!(world.failed.remove(&ErrorKind::NoSpace), Some(1), "it would have to be copied");
    [a, b, snapshot].into_iter().for_each(|volume| world.read_all(volume));
    world.is_right();
    // What is given back is there for others.
    world.ask(b, Op::Discard, NONE, 0, 8);
    world.wait();
    world.write(a, 0, 1);
    world.wait();
    world.read_all(a);
    world.is_right();
    assert_eq!(world.failed.len(), 0);
    world.open.clear();
    for volume in [a, b, snapshot] {
        assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    }
    world.rest();
    assert_eq!(world.pool.report().data_used_bytes, 0);
}

#[test]
fn a_write_waits_for_what_a_deleted_volume_gives_back() {
    let (mut world, a, b) = filled(0, PoolCanary::None);
    world.open.remove(&a);
    assert_eq!(world.run(PoolOp::Delete { volume: a }), Some(PoolDone::Done));
    world.write(b, 0, 8 * 16);
    world.wait();
    world.read_all(b);
    world.is_right();
    assert_eq!(world.failed.len(), 0);
}

/// Without room for nodes nothing new is begun, and deletions go on.
#[test]
fn a_pool_without_metadata_deletes() {
    let mut world = World::new(Setup { blocks: 4000, ..Setup::default() });
    // Each block of a tree of its own, so that nodes run out.
    let mut count = 0;
    loop {
        let (name, incarnation) = (world.name(), world.incarnation());
        let made = world.run(PoolOp::Create { name, bytes: 1 << 20, incarnation, at: 0 });
        let Some(PoolDone::Created { volume }) = made else { break };
        world.open_volume(volume);
        world.write(volume, 1, 3);
        world.wait();
        if world.failed.contains_key(&ErrorKind::NoSpace) {
            break;
        }
        count += 1;
        assert!(count < 2000, "it is never full");
    }
    let mut events = Vec::new();
    world.pool.poll_events(&mut events);
    // What is kept back is not used: so the last level need not be reached.
    assert!(world.op_errors.iter().all(|error| *error == PoolError::NoRoom));
    world.open.clear();
    for volume in super::random::living(&world) {
        assert_eq!(
            world.run(PoolOp::Delete { volume }),
            Some(PoolDone::Done),
            "{:?}",
            world.op_errors
        );
    }
    world.rest();
    assert_eq!(world.pool.report().data_used_bytes, 0);
    assert_eq!(world.check(), []);
    world.create(1 << 20);
}

#[test]
fn levels_are_told_once_each_time_they_are_reached() {
    let mut world = World::new(Setup { blocks: 100, ..Setup::default() });
    let volume = world.create(100 * BLOCK);
    world.open_volume(volume);
    let mut told = Vec::new();
    let mut upto = |world: &mut World, from: u64, blocks: u64| {
        world.write(volume, from * 8, (blocks - from) * 8);
        world.wait();
        world.rest();
        told.clear();
        world.pool.poll_events(&mut told);
        told.clone()
    };
    assert_eq!(upto(&mut world, 0, 79), []);
    assert_eq!(upto(&mut world, 79, 81), [PoolEvent::DataFull { percent: 80 }]);
    // Around a level nobody is told again and again, but once it has been left behind.
    for (kept, tells) in [(76, false), (75, false), (74, true)] {
        world.ask(volume, Op::Discard, NONE, kept * 8, (81 - kept) * 8);
        world.wait();
        world.rest();
        let told = upto(&mut world, kept, 81);
        assert_eq!(told.len(), usize::from(tells), "{kept}");
    }
    assert_eq!(upto(&mut world, 81, 94), []);
    assert_eq!(upto(&mut world, 94, 100), [PoolEvent::DataFull { percent: 95 }]);
    world.ask(volume, Op::Discard, NONE, 0, 800);
    world.wait();
    world.rest();
    world.pool.poll_events(&mut Vec::new());
    let both = [80, 95].map(|percent| PoolEvent::DataFull { percent });
    let told = upto(&mut world, 0, 96);
    assert_eq!(told, both);
}

/// What a volume holds beside a write that was held: the write is not in the snapshot.
#[test]
fn writes_wait_while_a_volume_is_cut() {
    let mut world = World::new(Setup { seed: 4, ..Setup::default() });
    let volume = world.create(20 * BLOCK);
    world.open_volume(volume);
    world.write(volume, 0, 32);
    world.wait();
    world.flush(volume);
    world.data.hang(Some(Op::Write));
    world.write(volume, 0, 8);
    world.turn();
    let (name, incarnation) = (world.name(), world.incarnation());
    world.begin(PoolOp::Snapshot { volume, name, incarnation, at: 0 });
    world.write(volume, 8, 8);
    some_turns(&mut world);
    assert_eq!(world.outstanding(), 2);
    assert!(world.has_op(), "it was cut beside a write");
    // Reads go on.
    world.ask(volume, Op::Read, NONE, 16, 8);
    some_turns(&mut world);
    assert_eq!(world.outstanding(), 2);
    world.data.hang(None);
    world.wait();
    let snapshot = world.model.keys().max().copied().unwrap();
    world.read_all(volume);
    world.read_all(snapshot);
    world.is_right();
    let held: Vec<&May> =
        world.model[&snapshot].lives.values().flat_map(|(_, life)| &life.sectors[8]).collect();
    assert_eq!(held.len(), 1);
}

/// What is under way does not end: nobody has to look meanwhile, and after a while writers come on. What is refused anyway holds nobody.
#[test]
fn a_cut_does_not_wait_for_ever() {
    let mut world = World::new(Setup { seed: 4, ..Setup::default() });
    let volume = world.create(20 * BLOCK);
    world.open_volume(volume);
    world.write(volume, 0, 32);
    world.wait();
    world.flush(volume);
    world.data.hang(Some(Op::Write));
    world.write(volume, 0, 8);
    world.turn();
    let (taken, incarnation) = ("volume 1".to_owned(), world.incarnation());
    world.begin(PoolOp::Snapshot { volume, name: taken, incarnation, at: 0 });
    some_turns(&mut world);
    assert!(!world.has_op(), "it waits for what it does not need");
    assert_eq!(world.op_errors.pop(), Some(PoolError::NameTaken { volume }));
    let (name, incarnation) = (world.name(), world.incarnation());
    world.begin(PoolOp::Snapshot { volume, name, incarnation, at: 0 });
    world.write(volume, 8, 8);
    some_turns(&mut world);
    assert!(world.has_op());
    let wish = world.pool.turn(world.now).since(world.now);
    assert!(wish > Duration::from_secs(1), "it is told to look again at once: {wish:?}");
    (0..4).for_each(|_| some_turns(&mut world));
    assert!(!world.has_op(), "it holds writers for ever");
    assert_eq!(world.op_errors.pop(), Some(PoolError::Undrained));
    world.data.hang(None);
    world.wait();
    world.read_all(volume);
    world.is_right();
}

/// Whoever wrote goes in the middle of a cut.
/// Whether who is stopped by a full transaction goes on as soon as a commit has taken that over, which does not end here.
fn goes_on_beside_a_commit(plant: TreeCanary) -> bool {
    let mut world = World::new(Setup { open_nodes_max: 12, rows_max: Some(4), ..Setup::default() });
    let volume = world.create(40 * BLOCK);
    world.rest();
    world.open_volume(volume);
    world.tree_canary(plant);
    world.metadata.hang(Some(Op::Flush));
    for block in 0..40 {
        world.write(volume, block * 8, 8);
        (0..50).for_each(|_| world.turn());
        if world.pool.0.borrow().commits.is_under_way() {
            return world.outstanding() == 0;
        }
    }
    panic!("no transaction gets full");
}

#[test]
fn who_waits_for_the_next_transaction_does_not_wait_for_a_commit_to_end() {
    assert!(goes_on_beside_a_commit(TreeCanary::None));
    assert!(!goes_on_beside_a_commit(TreeCanary::OpensSilently));
}

#[test]
fn a_volume_may_be_closed_while_it_is_cut() {
    let mut world = World::new(Setup { seed: 4, ..Setup::default() });
    let volume = world.create(20 * BLOCK);
    let mut handle = world.pool.open_volume(volume).unwrap();
    world.data.hang(Some(Op::Write));
    let mut io = Io::new(1, Op::Write, 0, BLOCK);
    io.data = SegList::of(Memory::new(0).copy_of(&[7; BLOCK as usize]).freeze());
    handle.submit(io);
    let number =
        world.pool.begin(PoolOp::Snapshot { volume, name: "cut".into(), incarnation: 77, at: 0 });
    world.pool.poll();
    drop(handle);
    world.data.hang(None);
    let mut ended = Vec::new();
    for _ in 0..10_000 {
        world.pool.poll();
        world.pool.poll_ops(&mut ended);
    }
    let [(of, Ok(PoolDone::Created { .. }))] = ended[..] else { panic!("{ended:?}") };
    assert_eq!(of, number);
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let mut world = World::new(Setup::default());
    let volume = world.create(4 * BLOCK);
    let refused = |world: &mut World, op: PoolOp| {
        assert_eq!(world.run(op.clone()), None, "{op:?}");
        world.op_errors.pop().unwrap()
    };
    let create =
        |name: &str, bytes| PoolOp::Create { name: name.into(), bytes, incarnation: 5, at: 0 };
    let is = |error: PoolError, text: &str| assert!(error.to_string().contains(text), "{error}");
    is(refused(&mut world, create("volume 1", BLOCK)), "volume 1 is called that");
    is(refused(&mut world, create("", BLOCK)), "1 to 63 bytes");
    is(refused(&mut world, create(&"x".repeat(64), BLOCK)), "1 to 63 bytes");
    is(refused(&mut world, create("a\nb", BLOCK)), "control characters");
    is(refused(&mut world, create("b", 0)), "multiple of 4096");
    is(refused(&mut world, create("b", 100)), "multiple of 4096");
    is(refused(&mut world, PoolOp::Delete { volume: 77 }), "no volume 77");
    is(refused(&mut world, PoolOp::Measure { volume: 77 }), "no volume 77");
    let back = PoolOp::RollBack { volume, to: volume, incarnation: 9 };
    is(refused(&mut world, back), "no snapshot");
    is(refused(&mut world, PoolOp::Resize { volume, bytes: BLOCK }), "only grows");
    assert_eq!(world.run(create("äöü", BLOCK)), Some(PoolDone::Created { volume: 2 }));
    let rename = PoolOp::Rename { volume, name: "äöü".into() };
    is(refused(&mut world, rename), "volume 2 is called that");
    world.open_volume(volume);
    assert!(matches!(world.pool.open_volume(volume), Err(PoolError::IsOpen { .. })));
    assert!(matches!(world.pool.open_volume(99), Err(PoolError::NoVolume { .. })));
}

/// Rule 11: what is changed is committed after a second at the latest, and a handle says when it wants to be told the time.
#[test]
fn what_is_changed_is_committed_in_time() {
    let mut world = World::new(Setup::default());
    let volume = world.create(4 * BLOCK);
    world.open_volume(volume);
    world.rest();
    let start = world.now;
    assert_eq!(world.pool.turn(start), Time::NEVER);
    world.write(volume, 0, 8);
    world.wait();
    let handle = world.open.get_mut(&volume).unwrap();
    let second = std::time::Duration::from_secs(1);
    assert_eq!(handle.turn(start), start + second);
    assert!(!handle.is_wound_up());
    assert_eq!(handle.turn(start + second), start + second, "it has to be polled");
    let mut done = Vec::new();
    (0..10).for_each(|_| handle.poll(&mut done));
    assert!(handle.is_wound_up() && handle.is_at_rest());
    // What that has freed comes back with another one, as late, and then there is nothing left to do.
    assert_eq!(handle.turn(start + second), start + 2 * second);
    assert!(!world.pool.is_idle());
    assert_eq!(handle.turn(start + 2 * second), start + 2 * second, "it has to be polled");
    (0..10).for_each(|_| handle.poll(&mut done));
    assert!(world.pool.is_idle());
    world.now = start + 2 * second;
    assert_eq!(world.pool.turn(world.now), Time::NEVER);
}

#[test]
fn a_pool_for_reading_changes_nothing() {
    let mut world = World::new(Setup::default());
    let volume = world.create(8 * BLOCK);
    world.open_volume(volume);
    world.write(volume, 0, 20);
    world.wait();
    world.flush(volume);
    let World { mut setup, clock, data, metadata, pool, open, model, .. } = world;
    drop((pool, open));
    let before = [data.content(), metadata.content()];
    setup.read_only = true;
    let mut world = World::over(setup, data, metadata, clock);
    world.model = model;
    world.read_all(volume);
    assert!(world.open[&volume].geometry().features.read_only);
    world.flush(volume);
    assert_eq!(world.run(PoolOp::Delete { volume: 9 }), None);
    assert_eq!(world.op_errors, [PoolError::ReadOnly]);
    world.is_right();
    let after = [world.data.content(), world.metadata.content()];
    assert!(before == after, "something was written");
    assert_eq!(world.check(), []);
}
