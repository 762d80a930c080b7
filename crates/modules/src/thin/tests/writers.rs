//! Who may write volumes of a pool as exports: records that are stored, crash, are nobody else's, and go with their volume.

use thinwire_buffer::{Pool as Memory, SegList};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{
    Completion, ErrorKind, Io, IoError, KeptWriter, LeafGeneration, Op, Volume, WriterRecord,
};

use super::super::writers::{of_rows, rows_of};
use super::super::*;
use super::crashes::{come_up, fates};
use super::disk::{Clock, Disk, NOBODYS, SECTOR};
use super::made::{BLOCK, METADATA, label_of};
use super::repairs::repair;
use super::world::*;
use crate::meta::tree::{TreeFault, TreeState};
use crate::meta::{LABEL_AREA_BYTES, LABEL_LEAVES_MAX};

/// The record of that generation of somebody with such a number: of each as many leaves as its generation says.
fn kept(holder: u8, generation: u64) -> KeptWriter {
    let leaf = |leaf| LeafGeneration { leaf: [leaf; 16], generation };
    let name = format!("node{holder} {}", "ä".repeat(generation as usize % 29));
    let record = WriterRecord::new(generation, [holder; 16], &name).with_written(generation / 2);
    KeptWriter { record, leaves: Some((1..=generation as u8).map(leaf).collect()) }
}

fn store(world: &mut World, volume: u64, kept: &KeptWriter) {
    let op = PoolOp::StoreWriter { volume, kept: Box::new(kept.clone()) };
    assert_eq!(world.run(op), Some(PoolDone::Done), "{:?}", world.op_errors);
}

/// What an I/O of the record of a volume comes to, whatever else polls it.
fn ended(world: &mut World, volume: &mut ThinVolume, io: Io) -> Completion {
    volume.submit(io);
    for _ in 0..20_000 {
        let mut done = Vec::new();
        volume.poll(&mut done);
        if let Some(ended) = done.pop() {
            assert!(done.is_empty() && volume.outstanding() == 0);
            return ended;
        }
        world.pass(10);
    }
    panic!("it does not end")
}

fn load(world: &mut World, volume: u64) -> Result<KeptWriter, IoError> {
    let mut handle = world.pool.open_volume(volume).unwrap();
    let ended = ended(world, &mut handle, Io::new(7, Op::LoadWriter, 0, 0));
    ended.result.map(|()| KeptWriter::from_data(&ended.data).expect("it is one"))
}

fn reopened(world: &World) -> World {
    come_up(&world.setup, world.data.content(), world.metadata.content(), false).unwrap()
}

/// The same, where that node cannot be read.
fn reopened_without(world: &World, node: u64) -> World {
    let (setup, clock) = (world.setup.clone(), Clock::default());
    let bytes = LABEL_AREA_BYTES + setup.blocks * BLOCK;
    let data = Disk::new(bytes, world.data.content(), NOBODYS, &clock, 1);
    let metadata = Disk::new(LABEL_AREA_BYTES + METADATA, world.metadata.content(), 0, &clock, 1);
    metadata.fail_reads_of([node]);
    World::over(setup, data, metadata, clock)
}

fn version_of(world: &mut World) -> (u8, bool) {
    let label = label_of(&mut world.metadata);
    let (state, head) = TreeState::decode(&label.state).unwrap();
    (head[0], state.roots[2].is_none())
}

#[test]
fn a_record_is_rows_of_its_bytes() {
    for generation in [1, 2, 3, 27, 28, LABEL_LEAVES_MAX as u64] {
        let kept = kept(9, generation);
        let mut rows = rows_of(&kept);
        assert_eq!(of_rows(&rows), Some(kept.clone()));
        assert_eq!(of_rows(&rows[1..]), None);
        assert_eq!(of_rows(&rows[..rows.len() - 1]), None);
        for (at, byte) in [(24, 65), (25, 2), (26, 65), (27, 1), (63, 1)] {
            let mut wrong = rows.clone();
            wrong[at / 64].0[at % 64] = byte;
            // A longer name, and one more leaf, may be what there is.
            let may = at == 63 && kept.record.name.as_str().len() >= 32;
            assert!(may || of_rows(&wrong) != Some(kept.clone()), "byte {at}");
        }
        rows.push(rows[0]);
        assert_eq!(of_rows(&rows), None);
    }
    for kept in [KeptWriter::default(), KeptWriter { leaves: None, ..kept(1, 5) }] {
        assert_eq!(of_rows(&rows_of(&kept)), Some(kept));
    }
}

/// Each volume has its own, through whatever opens it next; pools of before have none, and are as they were until one is stored.
#[test]
fn each_volume_has_a_record_of_its_own() {
    let mut world = World::new(Setup::default());
    let [a, b] = [(); 2].map(|()| world.create(20 * BLOCK));
    world.rest();
    assert_eq!(version_of(&mut world), (1, true), "as an earlier version has it");
    assert_eq!(load(&mut world, a), Ok(KeptWriter::default()));
    for (volume, kept) in [(a, kept(1, 40)), (b, kept(2, 3)), (a, kept(1, 41)), (b, kept(3, 2))] {
        let mut handle = world.pool.open_volume(volume).unwrap();
        let io = kept.to_io(5, &Memory::new(0));
        assert_eq!(ended(&mut world, &mut handle, io).result, Ok(()));
        drop(handle);
        assert_eq!(load(&mut world, volume), Ok(kept));
    }
    world.rest();
    assert_eq!(version_of(&mut world), (2, false));
    let mut world = reopened(&world);
    assert_eq!(load(&mut world, a), Ok(kept(1, 41)));
    assert_eq!(load(&mut world, b), Ok(kept(3, 2)), "with fewer leaves than before");
    let report = world.pool.report();
    assert_eq!(report.volumes[0].writer, Some(kept(1, 41).record));
    // With the last record goes what earlier versions do not know.
    for volume in [a, b] {
        assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    }
    world.rest();
    assert_eq!(version_of(&mut world), (1, true));
    assert_eq!(world.check(), []);
}

#[test]
fn what_is_no_record_or_may_not_be_stored_is_refused() {
    let mut world = World::new(Setup::default());
    let volume = world.create(20 * BLOCK);
    let snapshot = world.snapshot(volume);
    store(&mut world, volume, &kept(1, 4));
    let mut handle = world.pool.open_volume(volume).unwrap();
    let kind = |ended: Completion| ended.result.map_err(|error| error.kind);
    let mut most = kept(1, 5);
    most.leaves = Some(vec![LeafGeneration::default(); LABEL_LEAVES_MAX + 1]);
    let io = most.to_io(5, &Memory::new(0));
    assert_eq!(kind(ended(&mut world, &mut handle, io)), Err(ErrorKind::Unsupported));
    let bad = SegList::of(Memory::new(0).copy_of(&[1; 7]).freeze());
    let io = Io { data: bad, ..kept(1, 5).to_io(5, &Memory::new(0)) };
    assert_eq!(kind(ended(&mut world, &mut handle, io)), Err(ErrorKind::Invalid));
    drop(handle);
    for (volume, way) in [(volume, VolumeWay::Read), (snapshot, VolumeWay::Write)] {
        let mut handle = world.pool.open_volume_to(volume, way).unwrap();
        let io = kept(1, 5).to_io(5, &Memory::new(0));
        assert_eq!(kind(ended(&mut world, &mut handle, io)), Err(ErrorKind::ReadOnly));
    }
    assert_eq!(load(&mut world, volume), Ok(kept(1, 4)));
    // Behind a commit that has failed either may be there, and nobody is told that the new one is.
    let mut handle = world.pool.open_volume(volume).unwrap();
    world.metadata.fail("write", 1);
    let io = kept(1, 6).to_io(5, &Memory::new(0));
    assert_eq!(kind(ended(&mut world, &mut handle, io)), Err(ErrorKind::Io));
    drop(handle);
    assert_eq!(load(&mut world, volume), Ok(kept(1, 4)));
}

/// A copy has no writer, and a rollback keeps who is on record: no generation is used twice, and the incarnation is another.
fn copies(canary: PoolCanary) -> Result<(), String> {
    let mut world = World::new(Setup::default());
    world.canary(canary);
    let volume = world.create(20 * BLOCK);
    store(&mut world, volume, &kept(1, 4));
    let snapshot = world.snapshot(volume);
    let (name, incarnation) = (world.name(), world.incarnation());
    let done = world.run(PoolOp::Clone { volume, name, incarnation, at: 0 });
    let Some(PoolDone::Created { volume: clone }) = done else { panic!("{done:?}") };
    for copy in [snapshot, clone] {
        let found = load(&mut world, copy).unwrap();
        if !found.is_none() {
            return Err(format!("volume {copy} has a writer: {found:?}"));
        }
    }
    store(&mut world, clone, &kept(2, 1));
    let incarnation = world.incarnation();
    world.run(PoolOp::RollBack { volume, to: snapshot, incarnation });
    let mut world = reopened(&world);
    world.canary(canary);
    assert_eq!(load(&mut world, volume), Ok(kept(1, 4)));
    assert_eq!(load(&mut world, clone), Ok(kept(2, 1)));
    let report = world.pool.report();
    assert_eq!(report.volumes[0].incarnation, incarnation);
    // What is deleted has none any more, and nothing of it is left.
    assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
    world.rest();
    let mut world = reopened(&world);
    match world.check().first() {
        Some(finding) => Err(format!("checked: {finding}")),
        None => Ok(()),
    }
}

#[test]
fn copies_have_no_writer_and_rollbacks_keep_theirs() {
    copies(PoolCanary::None).unwrap();
    let why = copies(PoolCanary::InheritsWriter).unwrap_err();
    assert!(why.contains("has a writer"), "{why}");
    let why = copies(PoolCanary::KeepsWriter).unwrap_err();
    assert!(why.contains("there is no such volume"), "{why}");
}

/// Whoever comes up after a crash at any moment finds the last record that was told of, or one that was being stored.
fn explore(seed: u64, canary: PoolCanary) -> Result<usize, String> {
    let rows_max = (seed % 2 == 1).then_some(4);
    let setup = Setup { seed, is_prompt: seed % 3 == 0, rows_max, ..Setup::default() };
    let mut world = World::new(setup);
    let volumes = [(); 2].map(|()| world.create(12 * BLOCK));
    world.rest();
    world.canary(canary);
    let mut random = SplitMix64::new(seed);
    let from = world.clock.get();
    // Of each volume, when a record was begun, and told of.
    let mut all = [Vec::new(), Vec::new()];
    for generation in 1..=6 {
        let which = random.below(2) as usize;
        world.open_volume(volumes[which]);
        world.write(volumes[which], random.below(80), 8);
        let kept = kept(which as u8, if generation == 3 { 20 } else { generation });
        let begun = world.clock.get();
        store(&mut world, volumes[which], &kept);
        all[which].push((begun, world.clock.get(), kept));
        world.wait();
        world.close(volumes[which]);
    }
    let mut count = 0;
    for time in from..=world.clock.get() {
        let doubts = [&world.data, &world.metadata].map(|disk| disk.doubts(time));
        for [data, metadata] in fates(doubts, &mut random) {
            count += 1;
            let (data, metadata) =
                (world.data.after(time, &data), world.metadata.after(time, &metadata));
            let mut up = come_up(&world.setup, data, metadata, true)?;
            for (volume, all) in volumes.iter().zip(&all) {
                let found = load(&mut up, *volume).map_err(|error| error.to_string())?;
                let last = all.iter().rposition(|(_, told, _)| *told < time);
                let may = all.iter().enumerate().filter(|(nth, (begun, ..))| {
                    *begun <= time && last.is_none_or(|last| *nth >= last)
                });
                let mut may = may.map(|(_, (.., kept))| kept);
                let is_none = found.is_none() && last.is_none();
                if !is_none && !may.any(|kept| *kept == found) {
                    let (found, last) = (found.record, last.map(|last| all[last].2.record));
                    return Err(format!("at {time}: {found:?} is found, of {last:?}"));
                }
            }
            if let Some(finding) = up.check().first() {
                return Err(format!("at {time}: {finding}"));
            }
        }
    }
    Ok(count)
}

#[test]
fn a_record_is_there_whole_whenever_it_crashes() {
    let count: usize = (0..6).map(|seed| explore(seed, PoolCanary::None).unwrap()).sum();
    assert!(count > 1000, "only {count} crashes");
}

#[test]
fn a_record_that_is_told_before_its_commit_is_found() {
    let why = explore(1, PoolCanary::WriterToldEarly).unwrap_err();
    assert!(why.contains("is found, of"), "{why}");
}

/// Of which volumes there are records on the part, and where nodes with them are.
fn look_at(world: &mut World) -> (Vec<u64>, Vec<u64>) {
    let (label, content) = (label_of(&mut world.metadata), world.metadata.content());
    let mut reads = Vec::new();
    let mut read = |offset: u64| {
        reads.push(offset);
        let sectors = offset / SECTOR..(offset + 4096) / SECTOR;
        Ok::<_, ()>(sectors.flat_map(|at| *content[&at]).collect::<Vec<u8>>())
    };
    let seen = look_at_writers(&label, &mut read).unwrap().unwrap();
    (seen.writers.into_iter().map(|(volume, _)| volume).collect(), reads)
}

/// Looked at as it stands on the part, without the pool.
#[test]
fn writers_are_seen_where_they_stand() {
    for rows_max in [None, Some(4)] {
        let mut world = World::new(Setup { rows_max, ..Setup::default() });
        let volumes = [(); 40].map(|()| world.create(4 * BLOCK));
        let all: Vec<_> = (1..).zip(volumes).map(|(nth, volume)| (volume, kept(nth, 3))).collect();
        all.iter().for_each(|(volume, kept)| store(&mut world, *volume, kept));
        world.rest();
        let label = label_of(&mut world.metadata);
        let content = world.metadata.content();
        let look = |damaged: Option<u64>| {
            let mut reads = Vec::new();
            let mut read = |offset: u64| {
                reads.push(offset);
                let sectors = offset / SECTOR..(offset + 4096) / SECTOR;
                let bytes = sectors.flat_map(|at| *content[&at]).collect::<Vec<u8>>();
                Ok::<_, ()>(if damaged == Some(offset) { vec![7; 4096] } else { bytes })
            };
            let seen = look_at_writers(&label, &mut read).unwrap().unwrap();
            assert!(!seen.has_more);
            (seen, reads)
        };
        let (seen, reads) = look(None);
        let says: Vec<_> = all.iter().map(|(volume, kept)| (*volume, Some(kept.clone()))).collect();
        assert_eq!((seen.writers, seen.bad_nodes), (says, 0));
        assert!(reads.len() > 2, "{reads:?}");
        let (seen, _) = look(reads.last().copied());
        assert!(seen.bad_nodes == 1 && seen.writers.len() < all.len());
    }
}

/// Takes snapshots of a volume until there are no nodes for more.
fn fill_nodes(world: &mut World, volume: u64) -> Vec<u64> {
    let mut snapshots = Vec::new();
    while world.op_errors.is_empty() {
        let (name, incarnation) = (world.name(), world.incarnation());
        let done = world.run(PoolOp::Snapshot { volume, name, incarnation, at: 0 });
        if let Some(PoolDone::Created { volume }) = done {
            snapshots.push(volume);
        }
        assert!(snapshots.len() < 4000, "it does not fill up");
    }
    assert_eq!(world.op_errors.pop(), Some(PoolError::NoRoom));
    snapshots
}

/// A full pool: nobody could make room from above if who may write could not be on record.
#[test]
fn a_full_pool_has_room_for_a_record() {
    let mut world = World::new(Setup { blocks: 40, rows_max: Some(4), ..Setup::default() });
    let volume = world.create(60 * BLOCK);
    store(&mut world, volume, &kept(1, 63));
    fill_nodes(&mut world, volume);
    world.open_volume(volume);
    (0..60).for_each(|block| world.write(volume, block * 8, 8));
    world.wait();
    assert!(world.failed.contains_key(&ErrorKind::NoSpace), "it is full");
    for generation in 40..64 {
        store(&mut world, volume, &kept(1, generation));
    }
    world.close(volume);
    assert_eq!(load(&mut world, volume), Ok(kept(1, 63)));
}

/// First records of a full pool do not take what deleting takes. How many were stored.
fn first_records(canary: PoolCanary) -> Result<usize, String> {
    let mut world = World::new(Setup { blocks: 40, rows_max: Some(4), ..Setup::default() });
    world.canary(canary);
    let volumes = [(); 100].map(|()| world.create(4 * BLOCK));
    let snapshots = fill_nodes(&mut world, volumes[0]);
    let mut stored = 0;
    for volume in volumes {
        let op = PoolOp::StoreWriter { volume, kept: Box::new(kept(1, 60)) };
        match world.run(op) {
            Some(_) => stored += 1,
            None => assert_eq!(world.op_errors.pop(), Some(PoolError::NoRoom)),
        }
    }
    let done = world.run(PoolOp::Delete { volume: snapshots[0] });
    match done {
        Some(PoolDone::Done) => Ok(stored),
        _ => Err(format!("behind {stored} records nothing is deleted: {:?}", world.op_errors)),
    }
}

#[test]
fn first_records_leave_what_deleting_takes() {
    let stored = first_records(PoolCanary::None).unwrap();
    assert!(stored < 100, "it is not full");
    let why = first_records(PoolCanary::FirstWriterTakesKept).unwrap_err();
    assert!(why.contains("nothing is deleted"), "{why}");
}

/// Records of volumes that are no more are told of, and a repair takes them away, and those only.
#[test]
fn what_is_left_of_writers_is_told_and_taken_away() {
    for rows_max in [None, Some(4)] {
        let mut world = World::new(Setup { rows_max, ..Setup::default() });
        let volumes = [(); 9].map(|()| world.create(4 * BLOCK));
        for (nth, volume) in (1..).zip(volumes) {
            store(&mut world, volume, &kept(nth, 12));
        }
        world.canary(PoolCanary::KeepsWriter);
        let gone = [volumes[2], volumes[3], volumes[8]];
        for volume in gone {
            assert_eq!(world.run(PoolOp::Delete { volume }), Some(PoolDone::Done));
        }
        world.rest();
        let setup = Setup { repairs: true, ..world.setup.clone() };
        let up = |world: &World| {
            come_up(&setup, world.data.content(), world.metadata.content(), false).unwrap()
        };
        let mut world = up(&world);
        let left = gone.map(|volume| PoolFinding::LeftWriter { volume });
        assert_eq!(world.check(), left);
        assert!(left.iter().all(PoolRepair::can));
        assert_eq!(repair(&world.pool), (vec![], 3));
        world.rest();
        let mut world = up(&world);
        assert_eq!(world.check(), []);
        let (seen, _) = look_at(&mut world);
        let stay = volumes.iter().filter(|volume| !gone.contains(volume));
        assert!(seen.iter().eq(stay), "{seen:?}");
    }
}

/// What is no record is not taken away of a volume that is there, nor anything while not all volumes are known: it may be somebody's.
#[test]
fn what_may_be_somebodys_stays() {
    let mut world = World::new(Setup::default());
    let volumes = [(); 2].map(|()| world.create(4 * BLOCK));
    volumes.iter().for_each(|volume| store(&mut world, *volume, &kept(1, 3)));
    world.canary(PoolCanary::KeepsWriter);
    assert_eq!(world.run(PoolOp::Delete { volume: volumes[0] }), Some(PoolDone::Done));
    world.rest();
    let setup = Setup { repairs: true, ..world.setup.clone() };
    let mut world = come_up(&setup, world.data.content(), world.metadata.content(), false).unwrap();
    let fault = TreeFault::State { why: "cannot be read" };
    world.pool.0.borrow_mut().ops.damaged = Some(fault);
    world.pool.0.borrow_mut().odd_writers.push(volumes[1]);
    let found = world.check();
    assert_eq!(found, volumes.map(|volume| PoolFinding::Writer { volume }));
    // Not even if somebody asks for that.
    let left: Vec<_> = volumes.iter().map(|&volume| PoolFinding::LeftWriter { volume }).collect();
    for is_damaged in [true, false] {
        if !is_damaged {
            world.pool.0.borrow_mut().ops.damaged = None;
        }
        let mut repair = PoolRepair::new(&left[usize::from(!is_damaged)..]);
        while !repair.is_done() {
            if !repair.step(&world.pool).unwrap() {
                world.pool.poll();
            }
        }
        world.rest();
        assert_eq!(look_at(&mut world).0, volumes, "{is_damaged}");
    }
}

/// The record of a volume that is deleted goes with it, though some of the records could not be read when the pool was opened; what still cannot be stays, keeps
/// nothing from being deleted, and is told of.
#[test]
fn a_record_goes_with_its_volume_though_others_are_lost() {
    for is_readable in [true, false] {
        let mut world = World::new(Setup { rows_max: Some(4), ..Setup::default() });
        let volumes = [(); 9].map(|()| world.create(4 * BLOCK));
        volumes.iter().for_each(|volume| store(&mut world, *volume, &kept(1, 12)));
        world.rest();
        let (gone, (_, nodes)) = (volumes[4], look_at(&mut world));
        assert!(nodes.len() > 4, "{nodes:?}");
        let mut stays = 0;
        for node in &nodes {
            let mut up = reopened_without(&world, *node);
            assert!(up.pool.0.borrow().lost_writers.is_some());
            if is_readable {
                up.metadata.fail_reads_of([]);
            }
            assert_eq!(up.run(PoolOp::Delete { volume: gone }), Some(PoolDone::Done));
            up.rest();
            match &reopened(&up).check()[..] {
                [] => {}
                [PoolFinding::LeftWriter { volume }] if *volume == gone => stays += 1,
                found => panic!("{found:?}"),
            }
        }
        // Of a leaf that goes as a whole nothing is read.
        let may_stay = if is_readable { 0..=0 } else { 1..=nodes.len() - 1 };
        assert!(may_stay.contains(&stays), "{stays} of {}", nodes.len());
    }
}
