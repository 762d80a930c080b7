//! Pools of which another writer has been granted a part: what needs that is told so, before the pool has heard of it by an event.

use thinwire_buffer::Pool as Memory;
use thinwire_volume::{Completion, CutAct, CutOrder, ErrorKind, Io, KeptWriter, Op, Volume};

use super::super::*;
use super::crashes::come_up;
use super::made::BLOCK;
use super::world::*;

/// A volume with a snapshot, in a pool of which nothing is in memory but what opening takes, and whose metadata part refuses all reads like that.
fn refused(kind: ErrorKind) -> (World, u64) {
    let mut world = World::new(Setup::default());
    let volume = world.create(200 * BLOCK);
    world.open_volume(volume);
    world.write(volume, 0, 200);
    world.wait();
    world.snapshot(volume);
    world.rest();
    let world =
        come_up(&world.setup, world.data.content(), world.metadata.content(), false).unwrap();
    world.metadata.fail("read", 1);
    world.metadata.fail_with(kind);
    (world, volume)
}

/// What an operation comes to.
fn ended(world: &mut World, op: PoolOp) -> PoolError {
    let number = world.pool.begin(op);
    for _ in 0..20_000 {
        world.pass(10);
        world.pool.poll();
        let mut ended = Vec::new();
        world.pool.poll_ops(&mut ended);
        if let Some((of, result)) = ended.pop() {
            assert_eq!(of, number);
            return result.expect_err("what it takes cannot be read");
        }
    }
    panic!("it does not end")
}

/// What an I/O comes to, whatever else polls the pool.
fn io_ended(world: &mut World, volume: u64, io: Io) -> ErrorKind {
    let mut handle = world.pool.open_volume(volume).unwrap();
    handle.submit(io);
    for _ in 0..20_000 {
        let mut done: Vec<Completion> = Vec::new();
        handle.poll(&mut done);
        if let Some(ended) = done.pop() {
            return ended.result.expect_err("what it takes cannot be read").kind;
        }
        world.pass(10);
    }
    panic!("it does not end")
}

/// All that needs a node says what the part below has said for good, and that it is damaged of all else.
#[test]
fn who_needs_a_node_of_a_part_that_is_anothers_is_told_so() {
    for kind in [ErrorKind::Fenced, ErrorKind::ContentChanged, ErrorKind::Io, ErrorKind::Away] {
        let ops = |volume| {
            let name = || "x".to_owned();
            let kept = Box::<KeptWriter>::default();
            [
                PoolOp::Snapshot { volume, name: name(), incarnation: 77, at: 1 },
                PoolOp::Clone { volume, name: name(), incarnation: 77, at: 1 },
                PoolOp::Delete { volume },
                PoolOp::Measure { volume },
                PoolOp::StoreWriter { volume, kept },
            ]
        };
        let told = |error: &PoolError| match error {
            PoolError::Stopped { kind, .. } => *kind,
            PoolError::Damaged(_) => ErrorKind::Io,
            other => panic!("{other:?}"),
        };
        let wants = match kind {
            ErrorKind::Away => ErrorKind::Io,
            kind => kind,
        };
        for nth in 0..ops(1).len() {
            let (mut world, volume) = refused(kind);
            let op = ops(volume)[nth].clone();
            let error = ended(&mut world, op.clone());
            assert_eq!(told(&error), wants, "{op:?}: {error:?}");
        }
        let order = CutOrder { act: CutAct::Take, id: 5, at: 1, name: "cut".into() };
        let memory = Memory::new(0);
        for io in [order.io(5, &memory), KeptWriter::default().to_io(5, &memory)] {
            let (mut world, volume) = refused(kind);
            let op = io.op;
            assert_eq!(io_ended(&mut world, volume, io), wants, "{op:?}");
        }
    }
}

/// Once the pool has stopped for it, too.
#[test]
fn who_asks_a_pool_that_was_fenced_is_told_so() {
    for kind in [ErrorKind::Fenced, ErrorKind::Io] {
        let mut world = World::new(Setup::default());
        let volume = world.create(200 * BLOCK);
        world.pool.0.borrow_mut().stop(kind, "it was said".into());
        let why = "it was said".to_owned();
        let op = PoolOp::Rename { volume, name: "x".into() };
        assert_eq!(ended(&mut world, op), PoolError::Stopped { kind, why });
        let io = KeptWriter::default().to_io(5, &Memory::new(0));
        assert_eq!(io_ended(&mut world, volume, io), kind);
    }
}

/// Records of which another has the part are not there to be read, which is no damage either.
#[test]
fn records_that_are_anothers_are_not_told_as_damaged() {
    let mut world = World::new(Setup::default());
    let volume = world.create(20 * BLOCK);
    let fault = crate::meta::tree::TreeFault::Unwritten(
        Io::new(0, Op::Read, 0, 4096).error(ErrorKind::Fenced, "disk"),
    );
    world.pool.0.borrow_mut().lose_writers(fault);
    let io = Io::new(7, Op::LoadWriter, 0, 0);
    assert_eq!(io_ended(&mut world, volume, io), ErrorKind::Fenced);
}
