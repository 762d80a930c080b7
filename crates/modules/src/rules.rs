//! What every module must keep, whatever it does with its volumes: the rules at the head of
//! [crate](crate), over volumes that do as they are told, then the suite over stores.

mod tests;

use thinwire_buffer::{Pool, SegList, Time};

use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise, finish};
use thinwire_volume::{
    Completion, ErrorKind, Features, Geometry, Identity, Io, Op, Volume, WriterRecord, load_writer,
    store_writer,
};

use crate::{Module, ModuleError, Options};

/// Of each volume: more than two chunks of any module.
const SHAPE: Geometry = Geometry { bytes: 136 << 10, ..Puppet::GEOMETRY };
/// More volumes than this are not tried.
const CHILDREN_MAX: usize = 3;

/// Holds a module to the rules, and panics at the first that it breaks. It must take volumes of one
/// size.
fn obey(module: &Module) {
    for count in 0..=CHILDREN_MAX {
        if !module.children.contains(&count) {
            assert!(
                module.open(Puppet::boxed(&puppets(count)), &Options::default()).is_err(),
                "it takes {count}"
            );
            continue;
        }
        size(module, count);
        flushes(module, count);
        if !is_read_only(module, count) {
            errors(module, count);
            payload(module, count);
        }
        amplification(module, count);
        counts(module, count);
        rest(module, count);
        turns(module, count);
        shape(module, count);
        identity(module, count);
        record(module, count);
        match is_read_only(module, count) {
            true => reads(module, count),
            false => suite(module, count),
        }
    }
}

/// Nothing is changed by way of it, whatever it stands on.
fn is_read_only(module: &Module, count: usize) -> bool {
    over(module, &puppets(count)).geometry().features.read_only
}

/// It is at rest when all volumes are, and has nothing outstanding.
fn rest(module: &Module, count: usize) {
    let puppets = puppets(count);
    let mut volume = over(module, &puppets);
    for puppet in &puppets {
        assert!(volume.is_at_rest(), "nothing is on its way");
        puppet.be_busy(true);
        assert!(!volume.is_at_rest(), "one of its volumes is at work");
        puppet.be_busy(false);
    }
    volume.submit(Io::new(1, Op::Read, 0, 512));
    assert!(!volume.is_at_rest(), "somebody waits");
}

/// All are told the time, and who wants to be told it again first decides.
fn turns(module: &Module, count: usize) {
    let puppets = puppets(count);
    let mut volume = over(module, &puppets);
    assert_eq!(volume.turn(Time(5)), Time::NEVER, "nobody waits for anything");
    assert!(!volume.is_timed());
    for (nth, puppet) in puppets.iter().enumerate().rev() {
        puppet.want_turn(Time(100 + nth as u64));
        assert!(volume.is_timed(), "since one of them is");
        assert_eq!(volume.turn(Time(7)), Time(100 + nth as u64), "the earliest of all");
    }
    assert!(puppets.iter().all(|puppet| puppet.turned() == Some(Time(7))), "all are told");
}

fn puppets(count: usize) -> Vec<Puppet> {
    (0..count).map(|number| Puppet::new(number as u8 + 1, SHAPE)).collect()
}

fn over(module: &Module, puppets: &[Puppet]) -> Box<dyn Volume> {
    module.open(Puppet::boxed(puppets), &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn polled(volume: &mut dyn Volume) -> Vec<Completion> {
    let mut done = Vec::new();
    volume.poll(&mut done);
    done
}

/// The only completion there is.
fn polled_one(volume: &mut dyn Volume) -> Completion {
    let mut done = polled(volume);
    assert_eq!(done.len(), 1, "{done:?}");
    done.remove(0)
}

/// One that says which bytes it holds.
fn write(pool: &Pool, token: u64, len: u64) -> Io {
    let bytes: Vec<u8> = (0..len).map(|at| (at / 512) as u8).collect();
    let mut data = SegList::new();
    // In segments whose borders are not those of the volumes.
    bytes.chunks(3000).for_each(|part| data.push(pool.copy_of(part).freeze()));
    Io { data, ..Io::new(token, Op::Write, 0, len) }
}

fn size(module: &Module, count: usize) {
    let Geometry { bytes, block_bytes, .. } = over(module, &puppets(count)).geometry();
    assert!(
        bytes > 0 && bytes.is_multiple_of(u64::from(block_bytes)),
        "it has a size: {bytes} bytes"
    );
}

/// A flush goes to all that were written; one that fails is told at once and first; what fails later is told by the next.
fn flushes(module: &Module, count: usize) {
    let puppets = puppets(count);
    let mut volume = over(module, &puppets);
    let volume = &mut *volume;
    let is_read_only = is_read_only(module, count);
    let pool = Pool::new(1 << 20);
    let flush = |volume: &mut dyn Volume| {
        if !is_read_only {
            volume.submit(write(&pool, 3, volume.geometry().bytes));
            for puppet in &puppets {
                puppet.take().iter().for_each(|io| puppet.succeed(io));
            }
            assert_eq!(polled_one(volume).result, Ok(()));
        }
        volume.submit(Io::new(4, Op::Flush, 0, 0));
        let parts: Vec<Vec<Io>> = puppets.iter().map(Puppet::take).collect();
        let is_one = |parts: &Vec<Io>| matches!(&parts[..], [part] if part.op == Op::Flush);
        assert!(parts.iter().all(is_one), "a flush goes to every volume that was written");
        parts.into_iter().flatten().collect::<Vec<_>>()
    };
    for (puppet, part) in puppets.iter().zip(&flush(volume)) {
        assert!(polled(volume).is_empty(), "a flush was completed before all were flushed");
        puppet.succeed(part);
    }
    assert_eq!(polled_one(volume).result, Ok(()));

    let (last, others) = puppets.split_last().expect("it has volumes");
    let failing = flush(volume);
    volume.submit(Io::new(5, Op::Read, 0, 512));
    assert!(polled(volume).is_empty(), "nobody has answered");
    for puppet in &puppets {
        puppet.take().iter().for_each(|io| puppet.complete(read_of(io)));
    }
    last.fail(&failing[others.len()]);
    last.set_losses(3);
    let done = polled(volume);
    assert_eq!(volume.events(), 3, "the losses of all are counted");
    let told: Vec<_> = done.iter().map(|completion| completion.token).collect();
    assert_eq!(told, [4, 5], "a failed flush is told at once, before what may have seen the loss");
    let error = failing[others.len()].error(ErrorKind::NoSpace, "puppet");
    assert_eq!(done[0].result, Err(error));
    assert_eq!(volume.outstanding(), 0, "what was told is not outstanding");

    // The token may be used again while others are still at it.
    let again = flush(volume);
    for (puppet, part) in others.iter().zip(&failing) {
        puppet.fail(part);
        assert!(polled(volume).is_empty(), "one flush was told twice");
    }
    puppets.iter().zip(&again).for_each(|(puppet, part)| puppet.succeed(part));
    let owed = polled_one(volume).result;
    assert_eq!(owed.is_err(), !others.is_empty(), "a late failure is told by the next flush");
    let once = flush(volume);
    puppets.iter().zip(&once).for_each(|(puppet, part)| puppet.succeed(part));
    assert_eq!(polled_one(volume).result, Ok(()), "a late failure is told once");
}

/// The answer to a read, or to whatever else.
fn read_of(io: &Io) -> Completion {
    let mut completion = Completion::new(io.token, Ok(()));
    if io.op == Op::Read {
        let zeroes = Pool::new(0).get_zeroed(io.len as usize).freeze();
        completion.data = SegList::of(zeroes);
    }
    completion
}

/// Whoever fails a part of a write: it is told once, when all have completed theirs.
fn errors(module: &Module, count: usize) {
    let pool = Pool::new(1 << 20);
    for bad in 0..count {
        let puppets = puppets(count);
        let mut volume = over(module, &puppets);
        let bytes = volume.geometry().bytes;
        for fails in [true, false] {
            volume.submit(write(&pool, 7, bytes));
            let parts: Vec<Vec<Io>> = puppets.iter().map(Puppet::take).collect();
            let mut fails = fails && !parts[bad].is_empty();
            let expected = fails;
            let mut left: usize = parts.iter().map(Vec::len).sum();
            // The one that fails comes first.
            for child in (0..count).cycle().skip(bad).take(count) {
                for io in &parts[child] {
                    match std::mem::take(&mut fails) {
                        true => puppets[child].fail(io),
                        false => puppets[child].succeed(io),
                    }
                    left -= 1;
                    assert_eq!(volume.outstanding(), 1);
                    if left > 0 {
                        assert!(polled(&mut *volume).is_empty(), "completed before all parts were");
                    }
                }
            }
            let completion = polled_one(&mut *volume);
            assert_eq!((completion.token, volume.outstanding()), (7, 0));
            assert_eq!(completion.result.is_err(), expected, "what one failed has failed");
            if let Err(error) = completion.result {
                assert_eq!((error.kind, error.module), (ErrorKind::NoSpace, "puppet"));
                let end = error.offset.checked_add(error.len);
                assert!(end.is_some_and(|end| end <= bytes), "{error} is not in its bytes");
            }
        }
    }
}

/// No I/O becomes more below than the table says, and none is kept for later.
fn amplification(module: &Module, count: usize) {
    let pool = Pool::new(1 << 20);
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush] {
        if op.is_write() && is_read_only(module, count) {
            continue;
        }
        let puppets = puppets(count);
        let mut volume = over(module, &puppets);
        let bytes = volume.geometry().bytes;
        volume.submit(match op {
            Op::Write => write(&pool, 7, bytes),
            Op::Flush => Io::new(7, op, 0, 0),
            _ => Io::new(7, op, 0, bytes),
        });
        // Some look first whether they have it themselves.
        assert!(polled(&mut *volume).is_empty(), "nobody has answered");
        let parts: Vec<Vec<Io>> = puppets.iter().map(Puppet::take).collect();
        assert!(parts.iter().any(|parts| !parts.is_empty()), "{op:?} goes nowhere");
        let most = parts.iter().map(Vec::len).max().unwrap_or_default();
        let stated = module.ios_each_max;
        assert!(most <= stated, "{op:?} became {most} for a volume where {stated} are stated");
        for (puppet, parts) in puppets.iter().zip(&parts) {
            parts.iter().for_each(|io| puppet.complete(read_of(io)));
        }
        assert_eq!(polled_one(&mut *volume).result, Ok(()));
        assert!(puppets.iter().all(|puppet| puppet.take().is_empty()), "{op:?} left some behind");
    }
}

/// Goes by reference, with its flags, whatever becomes of it on the way.
fn payload(module: &Module, count: usize) {
    let pool = Pool::new(1 << 20);
    let puppets = puppets(count);
    let mut volume = over(module, &puppets);
    let bytes = volume.geometry().bytes;
    let mut io = write(&pool, 7, bytes);
    (io.flags.fua, io.flags.meta) = (true, true);
    let whole = io.data.clone();
    volume.submit(io);
    let parts: Vec<Io> = puppets.iter().flat_map(Puppet::take).collect();
    let has_flags = |part: &Io| part.op != Op::Write || part.flags.fua && part.flags.meta;
    assert!(parts.iter().all(has_flags), "a lost flag");
    for segment in parts.iter().flat_map(|part| part.data.iter()) {
        let shares = |original: &_| segment.shares_memory(original);
        assert!(whole.iter().any(shares), "payload was copied");
    }
}

/// All are polled, and added up; what was polled before stays.
fn counts(module: &Module, count: usize) {
    let puppets = puppets(count);
    let mut volume = over(module, &puppets);
    let mut done = vec![Completion::new(99, Ok(()))];
    let before: Vec<usize> = puppets.iter().map(Puppet::polls).collect();
    volume.submit(Io::new(4, Op::Flush, 0, 0));
    puppets.iter().for_each(|puppet| puppet.fail(&puppet.take_one()));
    volume.poll(&mut done);
    assert_eq!(done.iter().map(|one| one.token).collect::<Vec<_>>(), [99, 4]);
    volume.poll(&mut done);
    let polls = puppets.iter().zip(before).map(|(puppet, before)| puppet.polls() - before);
    assert!(polls.into_iter().all(|polls| polls == 2), "all are polled every time");
    for (nth, puppet) in (1..).zip(&puppets) {
        puppet.set_losses(1);
        assert_eq!(volume.events(), nth, "the losses of all are counted");
    }
    let copied = Puppet::COPIED_BYTES * count as u64;
    assert!(volume.copied_bytes() >= copied, "what is copied below is counted");
}

/// Blocks, lengths and features that all have.
fn shape(module: &Module, count: usize) {
    const ABLE: Features = Puppet::FEATURES;
    let of = |odd: usize, geometry: Geometry| {
        let mut puppets = puppets(count);
        puppets[odd] = Puppet::new(odd as u8, geometry);
        over(module, &puppets).geometry()
    };
    for odd in 0..count {
        let coarse =
            Geometry { block_bytes: 4096, preferred_bytes: 65536, io_bytes_max: 10_000, ..SHAPE };
        let shape = of(odd, coarse);
        assert_eq!((shape.block_bytes, shape.io_bytes_max), (4096, 8192), "what all take");
        assert_eq!(shape.preferred_bytes, 65536);
        for features in [
            Features { read_only: true, ..ABLE },
            Features { discard: false, ..ABLE },
            Features { write_zeroes: false, ..ABLE },
            Features { block_status: false, ..ABLE },
            ABLE,
        ] {
            let shape = of(odd, Geometry { features, ..SHAPE });
            let all = match is_read_only(module, count) {
                true => {
                    Features { read_only: true, discard: false, write_zeroes: false, ..features }
                }
                false => features,
            };
            assert_eq!(shape.features, all, "features that all have");
        }
        let short = Geometry { io_bytes_max: 512, ..SHAPE };
        if count > 1 {
            let mut puppets = puppets(count);
            puppets[odd] = Puppet::new(1, short);
            puppets[(odd + 1) % count] = Puppet::new(2, coarse);
            let error = module.open(Puppet::boxed(&puppets), &Options::default()).err();
            let error = error.unwrap_or_else(|| panic!("no I/O is aligned and short enough"));
            assert_eq!((error.module, error.child), (module.name, Some(odd)), "{error}");
        }
    }
}

/// Another if any volume, its life or its place is another, or the module.
fn identity(module: &Module, count: usize) {
    let of = |puppets: &[Puppet]| over(module, puppets).identity();
    let all = puppets(count);
    let known = of(&all);
    assert_eq!(known, of(&puppets(count)), "the same in every process");
    let differs = |other: Identity, what: &str| {
        assert!(other.identity != known.identity, "not by {what}");
        assert!(other.incarnation != known.incarnation, "not by {what}");
    };
    for child in 0..count {
        let mut others = puppets(count);
        others[child] = Puppet::new(100, SHAPE);
        differs(of(&others), "who is below");
        let reborn = puppets(count);
        reborn[child].be_born_again();
        differs(of(&reborn), "which life of it");
    }
    if count > 1 {
        let turned: Vec<Puppet> = all.iter().rev().cloned().collect();
        differs(of(&turned), "their order");
    }
    for other in crate::MODULES.iter().filter(|other| *other != module) {
        if other.children.contains(&count) {
            differs(over(other, &all).identity(), "which module it is");
        }
    }
    assert!(all.iter().all(|puppet| puppet.identity() != known), "that of one of its volumes");
}

/// Those that are all of the only volume below, but for what they do to I/O.
const ARE_WHAT_IS_BELOW: [&str; 7] =
    ["readonly", "qos", "cache", "delay", "error", "trace", "pattern"];

/// The writer record is that of the volume below, or there is none.
fn record(module: &Module, count: usize) {
    let all = puppets(count);
    let mut volume = over(module, &all);
    if ARE_WHAT_IS_BELOW.contains(&module.name) {
        for op in [Op::LoadWriter, Op::StoreWriter] {
            let io =
                Io { data: WriterRecord::default().to_data(&Pool::new(0)), ..Io::new(7, op, 0, 0) };
            volume.submit(io);
            let mut done = Vec::new();
            volume.poll(&mut done);
            if volume.geometry().features.read_only && op == Op::StoreWriter {
                let kind = done[0].result.map_err(|error| error.kind);
                assert_eq!((kind, all[0].take().len()), (Err(ErrorKind::ReadOnly), 0));
                continue;
            }
            let below = all[0].take_one();
            assert_eq!((below.op, below.data.bytes(), done.len()), (op, WriterRecord::BYTES, 0));
            all[0].succeed(&below);
            volume.poll(&mut done);
            assert_eq!((done[0].token, done[0].result, volume.outstanding()), (7, Ok(()), 0));
        }
        return;
    }
    let errors = [
        load_writer(&mut *volume).expect_err("several volumes have no record"),
        store_writer(&mut *volume, WriterRecord::default())
            .expect_err("several volumes have no record"),
    ];
    let unsupported = (ErrorKind::Unsupported, module.name);
    assert_eq!(errors.map(|error| (error.kind, error.module)), [unsupported; 2]);
}

/// Of one that is read only: each block is as it lies below, also where it is over itself.
fn reads(module: &Module, count: usize) {
    let pool = Pool::new(8 << 20);
    let memory = |nth: usize| -> Box<dyn Volume> {
        let mut store = MemoryStore::new(96 << 10, 512, Identity::default(), &pool);
        for block in 0..192 {
            let mut io = Io::new(1, Op::Write, block * 512, 512);
            io.data.push(pool.copy_of(&[(block as usize + nth + 1) as u8; 512]).freeze());
            assert_eq!(finish(&mut store, &mut || {}, io).result, Ok(()));
        }
        Box::new(store)
    };
    let open = |children| module.open(children, &Options::default()).expect("they fit");
    let flat = || open((0..count).map(memory).collect());
    let mut volumes = [flat(), open((0..count).map(|_| flat()).collect())];
    for volume in &mut volumes {
        let bytes = volume.geometry().bytes;
        let mut seen = 0;
        for offset in (0..bytes).step_by(8192) {
            let io = Io::new(1, Op::Read, offset, 8192.min(bytes - offset));
            let data = finish(&mut **volume, &mut || {}, io).data.to_vec();
            let is_one =
                |block: &&[u8]| block[0] != 0 && block.iter().all(|byte| *byte == block[0]);
            seen += data.chunks(512).filter(is_one).count() as u64;
        }
        assert_eq!(seen, bytes / 512, "blocks of other bytes than lie below");
    }
}

/// Over stores that complete at once, in their own order, and over itself.
fn suite(module: &Module, count: usize) {
    const STORE_BYTES: u64 = 96 << 10;
    let pool = Pool::new(8 << 20);
    let open = |children: Result<Vec<_>, ModuleError>| module.open(children?, &Options::default());
    let memory = |nth: usize| -> Box<dyn Volume> {
        let block = if nth % 2 == 1 { 4096 } else { 512 };
        Box::new(MemoryStore::new(STORE_BYTES, block, Identity::default(), &pool))
    };
    let file = |nth: usize| -> Box<dyn Volume> {
        let disk = MemDisk::new(STORE_BYTES, 512, nth as u64);
        Box::new(FileStore::new(disk, 512, &pool).expect("a whole number of blocks"))
    };
    let mixed = |nth: usize| if nth == 0 { memory(nth) } else { file(nth) };
    let flat = |store: &dyn Fn(usize) -> Box<dyn Volume>| open(Ok((0..count).map(store).collect()));
    let nested = open((0..count).map(|_| flat(&mixed)).collect());
    for (seed, volume) in (1..).zip([flat(&memory), flat(&mixed), nested]) {
        let mut volume = volume.unwrap_or_else(|e| panic!("{e}"));
        let report = exercise(&mut *volume, &mut || {}, seed, 1000);
        assert!(report.ios > 1000 && report.blocks_checked > 1000, "{report:?}");
    }
}
