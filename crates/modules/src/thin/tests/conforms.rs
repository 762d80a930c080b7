//! Volumes of a pool do what every volume must do.

use thinwire_buffer::Pool as Memory;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::{Puppet, exercise, tells_losses};
use thinwire_volume::{Completion, Features, Geometry, Identity, Io, Op, Volume};

use super::super::*;
use super::made::{METADATA, labels_of, make, open};
use crate::meta::LABEL_AREA_BYTES;

fn store(bytes: u64) -> Box<dyn Volume> {
    Box::new(MemoryStore::new(bytes, 512, Identity::default(), &Memory::new(1 << 20)))
}

/// A pool over memory, with blocks of that size.
pub fn pool_of(blocks: u64, block_bytes: u32) -> ThinPool {
    let [data, metadata] = labels_of(blocks, block_bytes, METADATA);
    let mut part = store(LABEL_AREA_BYTES + METADATA);
    make(&mut *part, &metadata);
    let bytes = LABEL_AREA_BYTES + blocks * u64::from(block_bytes);
    let config = PoolConfig::new(&Memory::new(4 << 20));
    let pool = open(store(bytes), part, data, config).unwrap();
    while !pool.is_ready() {
        pool.poll();
    }
    pool
}

/// Does an operation.
pub fn run(pool: &ThinPool, op: PoolOp) -> PoolDone {
    let number = pool.begin(op);
    let mut ended = Vec::new();
    while ended.is_empty() {
        pool.poll();
        pool.poll_ops(&mut ended);
    }
    let (of, result) = ended.remove(0);
    assert_eq!(of, number);
    result.unwrap()
}

pub fn create(pool: &ThinPool, name: &str, bytes: u64) -> u64 {
    let done = run(pool, PoolOp::Create { name: name.into(), bytes, incarnation: 3, at: 0 });
    let PoolDone::Created { volume } = done else { panic!("{done:?}") };
    volume
}

#[test]
fn volumes_pass_the_exercise() {
    for (seed, block_bytes) in [(1, 4096), (2, 65536), (3, 1 << 20), (4, 16384)] {
        let pool = pool_of((8 << 20) / u64::from(block_bytes), block_bytes);
        let volume = create(&pool, "a", (2 << 20) + 4096);
        let mut handle = pool.open_volume(volume).unwrap();
        exercise(&mut handle, &mut || {}, seed, 1500);
        let name = "clone".into();
        let clone = PoolOp::Clone { volume, name, incarnation: 9, at: 0 };
        let PoolDone::Created { volume: clone } = run(&pool, clone) else { panic!() };
        let mut handle = pool.open_volume(clone).unwrap();
        exercise(&mut handle, &mut || {}, seed + 100, 1500);
        // Rest is when everybody's I/O has ended.
        while !pool.is_idle() {
            pool.commit();
            pool.poll();
        }
        assert!(handle.is_at_rest());
    }
}

/// A pool whose data is a puppet, with a volume of a mapped block.
fn over_puppet() -> (Puppet, ThinPool, ThinVolume) {
    let [label, metadata] = labels_of(64, 4096, METADATA);
    let mut part = store(LABEL_AREA_BYTES + METADATA);
    make(&mut *part, &metadata);
    let features = Features { discard: false, ..Puppet::FEATURES };
    let geometry = Geometry { bytes: LABEL_AREA_BYTES + 64 * 4096, features, ..Puppet::GEOMETRY };
    let puppet = Puppet::new(1, geometry);
    let config = PoolConfig::new(&Memory::new(4 << 20));
    let pool = open(Box::new(puppet.clone()), part, label, config).unwrap();
    while !pool.is_ready() {
        pool.poll();
    }
    let number =
        pool.begin(PoolOp::Create { name: "a".into(), bytes: 1 << 16, incarnation: 3, at: 0 });
    assert_eq!(number, 1);
    settle(&puppet, &pool);
    let mut handle = pool.open_volume(1).unwrap();
    handle.submit(write(7, 0, 8192));
    for _ in 0..10 {
        settle(&puppet, &pool);
    }
    let mut done = Vec::new();
    handle.poll(&mut done);
    assert_eq!(done.len(), 1);
    // The second one gives back what the first one has freed.
    for _ in 0..2 {
        pool.commit();
        for _ in 0..10 {
            settle(&puppet, &pool);
        }
    }
    assert!(pool.is_idle());
    (puppet, pool, handle)
}

fn write(token: u64, offset: u64, len: usize) -> Io {
    let data = thinwire_buffer::SegList::of(Memory::new(0).get_zeroed(len).freeze());
    Io { data, ..Io::new(token, Op::Write, offset, len as u64) }
}

/// Whatever was asked for succeeds.
fn settle(puppet: &Puppet, pool: &ThinPool) {
    for _ in 0..10 {
        puppet.take().iter().for_each(|io| puppet.succeed(io));
        pool.poll();
    }
}

#[test]
fn losses_are_told_once_and_in_time() {
    let (puppet, _pool, mut handle) = over_puppet();
    tells_losses(&puppet, &mut handle, &mut || {});
}

/// Payload goes by reference, and neighbours go together.
#[test]
fn what_is_mapped_is_passed_on_as_it_is() {
    let (puppet, _pool, mut handle) = over_puppet();
    let io = write(1, 512, 6144);
    let memory = io.data.single().unwrap().clone();
    handle.submit(io);
    let below = puppet.take_one();
    assert!(below.data.single().unwrap().shares_memory(&memory));
    assert_eq!(below.len, 6144, "two blocks that lie together");
    puppet.succeed(&below);
    let read = Io::new(2, Op::Read, 0, 8192);
    handle.submit(read);
    let below = puppet.take_one();
    assert_eq!((below.op, below.len), (Op::Read, 8192));
    let data = Memory::new(0).get_zeroed(8192).freeze();
    let mut completion = Completion::new(below.token, Ok(()));
    completion.data.push(data.clone());
    puppet.complete(completion);
    let mut done = Vec::new();
    handle.poll(&mut done);
    assert_eq!(done.len(), 2);
    let read = done.iter().find(|of| of.token == 2).unwrap();
    assert!(read.data.single().unwrap().shares_memory(&data));
    assert_eq!(handle.copied_bytes(), Puppet::COPIED_BYTES);
}

/// An error below is told with its range in the volume.
#[test]
fn errors_name_the_range_of_the_volume() {
    let (puppet, _pool, mut handle) = over_puppet();
    handle.submit(Io::new(1, Op::Read, 4096, 512));
    let below = puppet.take_one();
    assert_ne!(below.offset, 4096);
    puppet.fail(&below);
    let mut done = Vec::new();
    handle.poll(&mut done);
    let error = done.pop().unwrap().result.unwrap_err();
    assert_eq!((error.op, error.offset, error.len, error.module), (Op::Read, 4096, 512, "puppet"));
}

/// A flush of what is mapped durably is one of the data; it fails before whatever comes with it, and all after it fail; so does what has not
/// ended before it, since a block that was written may be the volume's no more.
#[test]
fn a_failed_flush_sticks_and_comes_first() {
    let (puppet, pool, mut handle) = over_puppet();
    handle.submit(write(1, 0, 512));
    handle.submit(Io::new(2, Op::Flush, 0, 0));
    let [below, flush]: [Io; 2] = puppet.take().try_into().unwrap();
    assert_eq!(flush.op, Op::Flush);
    puppet.succeed(&below);
    puppet.fail(&flush);
    let before = handle.events();
    let mut done = Vec::new();
    handle.poll(&mut done);
    let order: Vec<u64> = done.iter().map(|completion| completion.token).collect();
    assert_eq!(order, [2, 1]);
    assert!(done.iter().all(|completion| completion.result.is_err()));
    assert_ne!(handle.events(), before);
    let mut events = Vec::new();
    handle.poll_events(&mut events);
    assert_eq!(events, [VolumeEvent::Lost]);
    assert!(pool.stopped().is_some());
    done.clear();
    handle.submit(Io::new(3, Op::Flush, 0, 0));
    handle.submit(write(4, 0, 512));
    handle.submit(Io::new(5, Op::Discard, 0, 4096));
    handle.poll(&mut done);
    assert!(done.len() == 3 && done.iter().all(|completion| completion.result.is_err()));
    // Reads go on.
    handle.submit(Io::new(6, Op::Read, 0, 512));
    assert_eq!(puppet.take_one().op, Op::Read);
}

/// What was told to a part that is gone may still arrive there: no block changes hands any more.
#[test]
fn a_part_that_is_gone_is_not_given_out() {
    let (puppet, pool, mut handle) = over_puppet();
    handle.submit(write(1, 16384, 4096));
    handle.submit(write(2, 0, 4096));
    for io in puppet.take() {
        let error = io.error(thinwire_volume::ErrorKind::OutcomeUnknown, "puppet");
        puppet.complete(Completion::new(io.token, Err(error)));
    }
    let mut done = Vec::new();
    handle.poll(&mut done);
    assert_eq!(done.len(), 2);
    let mut events = Vec::new();
    handle.poll_events(&mut events);
    assert_eq!(events, [VolumeEvent::Lost]);
    assert!(pool.stopped().unwrap().contains("not there any more"));
    done.clear();
    handle.submit(write(3, 16384, 4096));
    handle.poll(&mut done);
    assert!(done[0].result.is_err() && puppet.take().is_empty());
}

/// A handle whose writes are held for a snapshot goes, and then the data part: nobody is left to let go on.
#[test]
fn a_held_handle_may_go_before_the_pool_stops() {
    let (puppet, pool, mut handle) = over_puppet();
    let volume = handle.number();
    handle.submit(write(1, 16384, 4096));
    let below = puppet.take_one();
    let cut = PoolOp::Snapshot { volume, name: "cut".into(), incarnation: 77, at: 0 };
    let number = pool.begin(cut);
    pool.poll();
    drop(handle);
    let error = below.error(thinwire_volume::ErrorKind::OutcomeUnknown, "puppet");
    puppet.complete(Completion::new(below.token, Err(error)));
    let mut ended = Vec::new();
    pool.poll();
    pool.poll_ops(&mut ended);
    ended.retain(|(of, _)| *of == number);
    assert!(matches!(ended[..], [(_, Err(PoolError::Stopped { .. }))]), "{ended:?}");
}

/// Each handle is told of what another one has brought up.
#[test]
fn a_poll_of_another_handle_wakes() {
    let pool = pool_of(64, 65536);
    let [a, b] = ["a", "b"].map(|name| create(&pool, name, 1 << 20));
    let [mut x, mut y] = [a, b].map(|volume| pool.open_volume(volume).unwrap());
    pool.take_woken(&mut Vec::new());
    x.submit(Io::new(1, Op::Read, 0, 512));
    let mut done = Vec::new();
    y.poll(&mut done);
    assert_eq!((done.len(), x.outstanding(), y.outstanding()), (0, 1, 0));
    let mut woken = Vec::new();
    pool.take_woken(&mut woken);
    assert_eq!(woken, [a]);
    assert_eq!(x.turn(Time::ZERO), Time::ZERO, "it has to be polled");
    x.poll(&mut done);
    assert_eq!((done.len(), x.outstanding()), (1, 0));
    // A handle that goes leaves what it asked for.
    x.submit(write(2, 0, 4096));
    drop(x);
    pool.poll();
    assert!(pool.open_volume(a).is_ok());
}

#[test]
fn names_of_volumes_are_their_pools_numbers_and_lives() {
    let pool = pool_of(64, 65536);
    let [a, b] = ["a", "b"].map(|name| create(&pool, name, 1 << 20));
    let [x, y] = [a, b].map(|volume| pool.open_volume(volume).unwrap().identity());
    assert_ne!(x.identity, y.identity);
    assert_eq!((x.incarnation, y.incarnation), (3, 3));
    assert_eq!(pool.open_volume(a).unwrap().identity(), x);
}
