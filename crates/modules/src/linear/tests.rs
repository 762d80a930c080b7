//! Each rule of the module over volumes that do as they are told, and the suite over real ones.

use thinwire_buffer::{Pool, SegList};

use super::*;
use thinwire_volume::stores::{EXTENTS_MAX, FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise};
use thinwire_volume::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, IoError, IoFlags, Op, VolumeEvent,
};

type Whole = Composite<Linear>;

const ABLE: Features = Puppet::FEATURES;
const SHAPE: Geometry = Puppet::GEOMETRY;

fn linear_of(puppets: &[Puppet]) -> Result<Whole, ModuleError> {
    Linear::new(Puppet::boxed(puppets))
}

/// Three volumes of 8192 bytes.
fn three() -> (Whole, [Puppet; 3]) {
    let puppets = [1, 2, 3].map(|number| Puppet::new(number, SHAPE));
    (linear_of(&puppets).unwrap(), puppets)
}

fn polled(linear: &mut Whole) -> Vec<Completion> {
    let mut done = Vec::new();
    linear.poll(&mut done);
    done
}

/// The only completion there is.
fn polled_one(linear: &mut Whole) -> Completion {
    let mut done = polled(linear);
    assert_eq!(done.len(), 1);
    done.pop().unwrap()
}

fn payload(pool: &Pool, bytes: usize) -> SegList {
    let mut data = SegList::new();
    // In segments whose borders are not those of the volumes.
    let all: Vec<u8> = (0..bytes).map(|at| (at / 512) as u8).collect();
    all.chunks(3000).for_each(|part| data.push(pool.copy_of(part).freeze()));
    data
}

#[test]
fn what_lies_within_one_goes_there() {
    let (mut linear, puppets) = three();
    for (token, offset, len, child, below) in [
        (7, 0, 8192, 0, 0),
        (8, 7680, 512, 0, 7680),
        (9, 8192, 512, 1, 0),
        (10, 16384, 8192, 2, 0),
        (11, 24064, 512, 2, 7680),
    ] {
        linear.submit(Io::new(token, Op::Read, offset, len));
        let io = puppets[child].take_one();
        assert_eq!((io.op, io.offset, io.len), (Op::Read, below, len));
        assert_eq!((polled(&mut linear).len(), linear.outstanding()), (0, 1));
        puppets[child].succeed(&io);
        let completion = polled_one(&mut linear);
        assert_eq!((completion.token, completion.result), (token, Ok(())));
        assert_eq!(linear.outstanding(), 0);
    }
    assert!(puppets.iter().all(|puppet| puppet.take().is_empty()));
}

#[test]
fn a_write_across_borders_is_cut_by_reference() {
    let (mut linear, puppets) = three();
    let pool = Pool::new(1 << 20);
    let data = payload(&pool, 9216);
    let mut io = Io::new(5, Op::Write, 7680, 9216);
    io.flags.fua = true;
    io.data = data.clone();
    linear.submit(io);
    let parts = puppets.each_ref().map(Puppet::take_one);
    let ranges = parts.each_ref().map(|part| (part.offset, part.len, part.flags.fua));
    assert_eq!(ranges, [(7680, 512, true), (0, 8192, true), (0, 512, true)]);
    let joined: Vec<u8> = parts.iter().flat_map(|part| part.data.to_vec()).collect();
    assert_eq!(joined, data.to_vec());
    let whole = data.as_slice();
    for segment in parts.iter().flat_map(|part| part.data.iter()) {
        assert!(whole.iter().any(|original| original.shares_memory(segment)), "copied");
    }
    // In no particular order, and told once.
    for child in [2, 0] {
        puppets[child].succeed(&parts[child]);
        assert!(polled(&mut linear).is_empty());
    }
    assert_eq!(linear.outstanding(), 1);
    puppets[1].succeed(&parts[1]);
    assert_eq!(polled_one(&mut linear).token, 5);
    assert_eq!((linear.outstanding(), linear.copied_bytes()), (0, 300));
}

#[test]
fn a_read_across_borders_is_joined_in_order() {
    let (mut linear, puppets) = three();
    let pool = Pool::new(1 << 20);
    let data = payload(&pool, 9216);
    linear.submit(Io::new(5, Op::Read, 7680, 9216));
    let parts = puppets.each_ref().map(Puppet::take_one);
    let mut at = 0;
    let answers = parts.each_ref().map(|part| {
        let mut answer = Completion::new(part.token, Ok(()));
        data.slice_into(at, part.len as usize, &mut answer.data);
        at += part.len as usize;
        answer
    });
    // The last volume answers first.
    for (puppet, answer) in puppets.iter().zip(answers).rev() {
        assert!(polled(&mut linear).is_empty());
        puppet.complete(answer);
    }
    let completion = polled_one(&mut linear);
    assert_eq!(completion.data.to_vec(), data.to_vec());
    assert!(completion.data.as_slice()[0].shares_memory(&data.as_slice()[0]));
}

#[test]
fn zeroes_and_discards_are_cut() {
    let (mut linear, puppets) = three();
    for op in [Op::WriteZeroes, Op::Discard] {
        let mut io = Io::new(1, op, 4096, 16384);
        io.flags.no_hole = op == Op::WriteZeroes;
        linear.submit(io);
        for (puppet, range) in puppets.iter().zip([(4096, 4096), (0, 8192), (0, 4096)]) {
            let part = puppet.take_one();
            assert_eq!((part.op, part.offset, part.len), (op, range.0, range.1));
            assert_eq!(part.flags.no_hole, op == Op::WriteZeroes);
            puppet.succeed(&part);
        }
        assert_eq!(polled_one(&mut linear).result, Ok(()));
    }
}

#[test]
fn an_empty_volume_is_passed_over() {
    let sizes = [0, 8192, 0, 8192].map(|bytes| Geometry { bytes, ..SHAPE });
    let puppets = sizes.map(|shape| Puppet::new(1, shape));
    let mut linear = linear_of(&puppets).unwrap();
    linear.submit(Io::new(1, Op::Discard, 0, 16384));
    let counts = puppets.each_ref().map(|puppet| puppet.take().len());
    assert_eq!(counts, [0, 1, 0, 1]);
}

#[test]
fn the_first_error_wins_and_names_the_range_here() {
    let (mut linear, puppets) = three();
    linear.submit(Io::new(1, Op::Read, 9216, 512));
    puppets[1].fail(&puppets[1].take_one());
    let (kind, module) = (ErrorKind::NoSpace, "puppet");
    let error = IoError { kind, op: Op::Read, offset: 9216, len: 512, module };
    assert_eq!(polled_one(&mut linear).result, Err(error));

    linear.submit(Io::new(2, Op::Read, 4096, 16384));
    let parts = puppets.each_ref().map(Puppet::take_one);
    puppets[2].fail(&parts[2]);
    assert!(polled(&mut linear).is_empty(), "the others may still have an effect");
    puppets[1].fail(&parts[1]);
    let pool = Pool::new(1 << 20);
    let mut good = Completion::new(parts[0].token, Ok(()));
    good.data = payload(&pool, 4096);
    puppets[0].complete(good);
    let completion = polled_one(&mut linear);
    let error = IoError { kind, op: Op::Read, offset: 16384, len: 4096, module };
    assert_eq!((completion.token, completion.result), (2, Err(error)));
    assert!(completion.data.is_empty());

    // Nothing of it is left for the next.
    linear.submit(Io::new(3, Op::Discard, 0, 24576));
    for puppet in &puppets {
        puppet.succeed(&puppet.take_one());
    }
    assert_eq!(polled_one(&mut linear).result, Ok(()));
}

#[test]
fn a_block_status_ends_where_an_answer_does() {
    let run = |len, hole| Extent { len, hole, zero: hole };
    let (mut linear, puppets) = three();
    let mut ask = |answers: [&[Extent]; 3]| {
        linear.submit(Io::new(1, Op::BlockStatus, 4096, 20480));
        for (puppet, answer) in puppets.iter().zip(answers) {
            let mut completion = Completion::new(puppet.take_one().token, Ok(()));
            completion.extents = answer.to_vec();
            puppet.complete(completion);
        }
        polled_one(&mut linear).extents
    };
    let first = [run(512, true), run(3584, false)];
    let all = ask([&first, &[run(8192, false)], &[run(8192, true)]]);
    assert_eq!(all, [run(512, true), run(11776, false), run(8192, true)]);
    let short = ask([&first, &[run(512, false)], &[run(8192, true)]]);
    assert_eq!(short, [run(512, true), run(4096, false)]);
    assert_eq!(ask([&first[..1], &[run(8192, true)], &[run(8192, true)]]), first[..1]);

    // Of one extent only the first is asked.
    let mut io = Io::new(2, Op::BlockStatus, 4096, 20480);
    io.flags = IoFlags { one_extent: true, ..IoFlags::default() };
    linear.submit(io);
    assert_eq!(puppets[0].take_one().len, 4096);
    assert!(puppets[1].take().is_empty() && puppets[2].take().is_empty());
}

#[test]
fn block_status_answers_are_no_longer_than_those_of_a_store() {
    let shape = Geometry { bytes: 1 << 20, ..SHAPE };
    let puppets = [1, 2].map(|number| Puppet::new(number, shape));
    let mut linear = linear_of(&puppets).unwrap();
    linear.submit(Io::new(1, Op::BlockStatus, 0, 2 << 20));
    for puppet in &puppets {
        let mut completion = Completion::new(puppet.take_one().token, Ok(()));
        let run = |at: u64| Extent { len: 1024, hole: at % 2 == 0, zero: false };
        completion.extents = (0..1024).map(run).collect();
        puppet.complete(completion);
    }
    assert_eq!(polled_one(&mut linear).extents.len(), EXTENTS_MAX);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "volume 1 completes 0, which is not outstanding there")]
fn a_completion_from_the_wrong_volume_is_noticed() {
    let (mut linear, puppets) = three();
    linear.submit(Io::new(1, Op::Read, 0, 512));
    puppets[1].succeed(&puppets[0].take_one());
    polled(&mut linear);
}

#[test]
fn its_shape_is_what_all_can_do() {
    let puppets = [
        Puppet::new(1, SHAPE),
        Puppet::new(
            2,
            Geometry {
                bytes: 4096,
                block_bytes: 4096,
                preferred_bytes: 65536,
                io_bytes_max: 10_000,
                features: Features { read_only: true, discard: false, ..ABLE },
            },
        ),
    ];
    let linear = linear_of(&puppets).unwrap();
    let expected = Geometry {
        bytes: 12288,
        block_bytes: 4096,
        preferred_bytes: 65536,
        io_bytes_max: 8192,
        features: Features { read_only: true, discard: false, ..ABLE },
    };
    assert_eq!(linear.geometry(), expected);
    for features in
        [Features { write_zeroes: false, ..ABLE }, Features { block_status: false, ..ABLE }, ABLE]
    {
        let puppets = [ABLE, features].map(|f| Puppet::new(1, Geometry { features: f, ..SHAPE }));
        assert_eq!(linear_of(&puppets).unwrap().geometry().features, features);
    }
}

#[test]
fn where_each_begins_is_part_of_its_identity() {
    let [a, b] = [1, 2].map(|number| Puppet::new(number, SHAPE));
    let of = |puppets: [&Puppet; 2]| linear_of(&puppets.map(Clone::clone)).unwrap().identity();
    let longer = |number| Puppet::new(number, Geometry { bytes: 8704, ..SHAPE });
    let known = of([&a, &b]);
    let moved = of([&longer(1), &b]);
    assert!(moved.identity != known.identity && moved.incarnation != known.incarnation);
    assert_eq!(of([&a, &longer(2)]), known, "nothing lies behind the last");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refusal = |shapes: &[Geometry]| {
        let puppets: Vec<_> = shapes.iter().map(|&shape| Puppet::new(1, shape)).collect();
        linear_of(&puppets).err().unwrap().to_string()
    };
    assert_eq!(refusal(&[]), "linear has no volume to begin with: name at least one");
    let coarse = Geometry { block_bytes: 4096, ..SHAPE };
    let odd = Geometry { bytes: 4608, ..SHAPE };
    assert_eq!(
        refusal(&[SHAPE, odd, coarse]),
        "linear: volume 1, counted from 0, has 4608 bytes, and the largest block of all is 4096 \
         bytes: make its size a multiple of that (nearest sizes: 4096 and 8192)"
    );
    let short = Geometry { io_bytes_max: 2048, ..SHAPE };
    assert_eq!(
        refusal(&[coarse, short]),
        "linear: volume 1, counted from 0, takes at most 2048 bytes in one I/O, and the largest \
         block of all is 4096 bytes: leave it out, or those with larger blocks"
    );
    let huge = Geometry { bytes: 1 << 63, ..SHAPE };
    let error = refusal(&[SHAPE, huge, huge]);
    assert!(error.contains("volume 2") && error.contains("18446744073709551615"), "{error}");
}

fn memory(pool: &Pool, kib: u64, block: u32) -> Box<dyn Volume> {
    Box::new(MemoryStore::new(kib << 10, block, Identity::default(), pool))
}

fn linear(children: Vec<Box<dyn Volume>>) -> Box<dyn Volume> {
    Box::new(Linear::new(children).unwrap())
}

#[test]
fn it_conforms_over_one_and_over_three() {
    let pool = Pool::new(8 << 20);
    for seed in 0..2 {
        let mut one = linear(vec![memory(&pool, 1 << 10, 512)]);
        let mut three = linear(vec![
            memory(&pool, 12, 512),
            memory(&pool, 100, 4096),
            memory(&pool, 1 << 10, 512),
        ]);
        for volume in [&mut one, &mut three] {
            assert!(exercise(&mut **volume, &mut || {}, seed, 3000).ios > 3000);
        }
    }
}

#[test]
fn it_conforms_over_what_completes_in_its_own_order() {
    let pool = Pool::new(8 << 20);
    let mut seed = 0;
    let mut file = |kib: u64| -> Box<dyn Volume> {
        seed += 1;
        Box::new(FileStore::new(MemDisk::new(kib << 10, 512, seed), 512, &pool).unwrap())
    };
    let mut volume = linear(vec![file(11), file(90), memory(&pool, 60, 512), file(400)]);
    let report = exercise(&mut *volume, &mut || {}, 1, 3000);
    assert!(report.ios > 3000 && report.overlaps > 500, "{report:?}");
}

#[test]
fn it_conforms_over_itself() {
    let pool = Pool::new(8 << 20);
    let mut sizes = [8, 20, 4, 64, 12, 300, 88, 700].into_iter();
    let mut pair = || {
        let stores = sizes.by_ref().take(2).map(|kib| memory(&pool, kib, 512)).collect();
        linear(stores)
    };
    let pairs = [pair(), pair(), pair(), pair()];
    let [a, b, c, d] = pairs;
    let mut volume = linear(vec![linear(vec![a, b]), linear(vec![c, d])]);
    assert_eq!(volume.geometry().bytes, 1196 << 10);
    for seed in 0..2 {
        assert!(exercise(&mut *volume, &mut || {}, seed, 3000).ios > 3000);
    }
}

#[test]
fn it_grows_with_the_last_and_says_what_cannot_be_reached() {
    let (mut linear, puppets) = three();
    let identity = linear.identity();
    let polled = |linear: &mut Whole| {
        let mut events = vec![];
        linear.poll_events(&mut events);
        events
    };
    puppets[0].tell(VolumeEvent::Resized { bytes: 8192 + 512 });
    puppets[2].tell(VolumeEvent::Resized { bytes: 16384 });
    puppets[1].tell(VolumeEvent::Lost);
    puppets[1].tell(VolumeEvent::Shrunk);
    assert_eq!(linear.events(), 4);
    // What is below has told before, what stands above not yet.
    let beyond = Io::new(1, Op::Read, 24576, 512);
    assert_eq!(linear.geometry().check(&beyond), Err(ErrorKind::Invalid));
    let shape = Geometry { bytes: 32768, ..linear.geometry() };
    let unreachable = |bytes| VolumeEvent::Unreachable { bytes };
    let resized = VolumeEvent::Resized { bytes: 32768 };
    assert_eq!(
        polled(&mut linear),
        [VolumeEvent::Lost, resized, unreachable(512), VolumeEvent::Shrunk]
    );
    assert_eq!((linear.geometry(), linear.identity()), (shape, identity));
    assert_eq!(polled(&mut linear), []);
    linear.submit(beyond);
    assert_eq!(puppets[2].take_one().offset, 8192);
    // Others inside tell of theirs.
    puppets[1].tell(unreachable(4096));
    assert_eq!(polled(&mut linear), [unreachable(4608)]);
    // One that can grow is enough to be looked at, and none is left out for it.
    assert!(!linear.refresh());
    puppets[0].may_grow();
    assert!(linear.refresh());
    assert_eq!(puppets.each_ref().map(Puppet::refreshes), [2; 3]);
}

/// Each level owes what it could not tell yet, and a flush pays the debt of one level: whoever stands on the highest
/// is told once for the flush that failed, and at most once for each level behind it.
#[test]
fn what_several_volumes_fail_is_told_by_as_many_more_flushes_as_there_are_levels() {
    let puppets: [Puppet; 8] = std::array::from_fn(|n| Puppet::new(n as u8, Puppet::GEOMETRY));
    let mut level = Puppet::boxed(&puppets);
    let mut levels = 0;
    while level.len() > 1 {
        let mut pairs = Vec::new();
        while let (Some(b), Some(a)) = (level.pop(), level.pop()) {
            pairs.insert(0, linear(vec![a, b]));
        }
        (level, levels) = (pairs, levels + 1);
    }
    let mut whole = level.pop().expect("there is one");
    let mut flush = |fails: bool| {
        whole.submit(Io::new(1, Op::Flush, 0, 0));
        let mut told = Vec::new();
        for puppet in &puppets {
            // None where the last one has succeeded.
            for part in puppet.take() {
                match fails {
                    true => puppet.fail(&part),
                    false => puppet.succeed(&part),
                }
            }
            whole.poll(&mut told);
        }
        assert_eq!(told.len(), 1, "each flush is told once");
        told[0].result.is_ok()
    };
    assert!(!flush(true));
    let more = (0..10).take_while(|_| !flush(false)).count();
    assert_eq!((levels, more), (3, 3));
    assert!(flush(false));
}
