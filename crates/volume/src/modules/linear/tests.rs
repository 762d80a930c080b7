//! Each rule of the module over volumes that do as they are told, and the suite over real ones.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_buffer::Pool;

use super::*;
use crate::IoFlags;
use crate::stores::{FileStore, MemoryStore, NullStore};
use crate::testing::{MemDisk, exercise};

const ABLE: Features =
    Features { read_only: false, discard: true, write_zeroes: true, block_status: true };

const SHAPE: Geometry = Geometry {
    bytes: 8192,
    block_bytes: 512,
    preferred_bytes: 4096,
    io_bytes_max: 1 << 20,
    features: ABLE,
};

/// Completes what it is told to, when it is told to.
struct Told {
    geometry: Geometry,
    identity: Identity,
    seen: Vec<Io>,
    ready: Vec<Completion>,
    losses: u64,
    polls: usize,
}

/// The volume and its test hold it together.
#[derive(Clone)]
struct Puppet(Rc<RefCell<Told>>);

impl Puppet {
    fn new(number: u8, geometry: Geometry) -> Self {
        let identity = Identity { identity: [number; 16], incarnation: number.into() };
        let (seen, ready) = (Vec::new(), Vec::new());
        let told = Told { geometry, identity, seen, ready, losses: 0, polls: 0 };
        Puppet(Rc::new(RefCell::new(told)))
    }

    /// What was submitted since the last call.
    fn take(&self) -> Vec<Io> {
        std::mem::take(&mut self.0.borrow_mut().seen)
    }

    /// The only I/O that was.
    fn take_one(&self) -> Io {
        let mut seen = self.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.pop().unwrap()
    }

    fn complete(&self, completion: Completion) {
        self.0.borrow_mut().ready.push(completion);
    }

    fn succeed(&self, io: &Io) {
        self.complete(Completion::new(io.token, Ok(())));
    }

    fn fail(&self, io: &Io) {
        self.complete(Completion::new(io.token, Err(io.error(ErrorKind::NoSpace, "puppet"))));
    }
}

impl Volume for Puppet {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }

    fn identity(&self) -> Identity {
        self.0.borrow().identity
    }

    fn submit(&mut self, io: Io) {
        assert_eq!(self.geometry().check(&io), Ok(()), "{io:?}");
        self.0.borrow_mut().seen.push(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let told = &mut *self.0.borrow_mut();
        told.polls += 1;
        done.append(&mut told.ready);
    }

    fn outstanding(&self) -> usize {
        unreachable!("its own count is enough")
    }

    fn copied_bytes(&self) -> u64 {
        100
    }

    fn losses(&self) -> u64 {
        self.0.borrow().losses
    }
}

fn linear_of(puppets: &[Puppet]) -> Result<Linear, LinearError> {
    Linear::new(puppets.iter().map(|puppet| Box::new(puppet.clone()) as Box<dyn Volume>).collect())
}

/// Three volumes of 8192 bytes.
fn three() -> (Linear, [Puppet; 3]) {
    let puppets = [1, 2, 3].map(|number| Puppet::new(number, SHAPE));
    (linear_of(&puppets).unwrap(), puppets)
}

fn polled(linear: &mut Linear) -> Vec<Completion> {
    let mut done = Vec::new();
    linear.poll(&mut done);
    done
}

/// The only completion there is.
fn polled_one(linear: &mut Linear) -> Completion {
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
fn a_flush_goes_to_all() {
    let (mut linear, puppets) = three();
    linear.submit(Io::new(4, Op::Flush, 0, 0));
    let parts = puppets.each_ref().map(Puppet::take_one);
    assert!(parts.iter().all(|part| part.op == Op::Flush));
    for (puppet, part) in puppets.iter().zip(&parts) {
        assert!(polled(&mut linear).is_empty());
        puppet.succeed(part);
    }
    let completion = polled_one(&mut linear);
    assert_eq!((completion.token, completion.result), (4, Ok(())));
}

#[test]
fn a_flush_that_one_fails_is_told_at_once_and_before_what_saw_the_loss() {
    let (mut linear, puppets) = three();
    linear.submit(Io::new(4, Op::Flush, 0, 0));
    let flushes = puppets.each_ref().map(Puppet::take_one);
    for (token, offset) in [(5, 0), (6, 16384)] {
        linear.submit(Io::new(token, Op::Discard, offset, 512));
    }
    for child in [0, 2] {
        puppets[child].succeed(&puppets[child].take_one());
    }
    puppets[1].fail(&flushes[1]);
    puppets[1].0.borrow_mut().losses = 3;
    let done = polled(&mut linear);
    // Counted when its completions are looked at, though volume 0 was polled before.
    assert_eq!(linear.losses(), 3);
    assert_eq!(done.iter().map(|one| one.token).collect::<Vec<_>>(), [4, 5, 6]);
    let error = flushes[1].error(ErrorKind::NoSpace, "puppet");
    assert_eq!((done[0].result, error.offset), (Err(error), 0));
    assert_eq!(linear.outstanding(), 0);

    // The token may be used again while the others are still at it.
    linear.submit(Io::new(4, Op::Flush, 0, 0));
    let again = puppets.each_ref().map(Puppet::take_one);
    puppets[0].fail(&flushes[0]);
    puppets[2].succeed(&flushes[2]);
    assert!(polled(&mut linear).is_empty());
    puppets.iter().zip(&again).for_each(|(puppet, part)| puppet.succeed(part));
    // What the first flush lost after it had failed is told, though this one succeeds.
    assert_eq!(polled_one(&mut linear).result.unwrap_err().kind, ErrorKind::NoSpace);
    linear.submit(Io::new(4, Op::Flush, 0, 0));
    puppets.iter().for_each(|puppet| puppet.succeed(&puppet.take_one()));
    assert_eq!(polled_one(&mut linear).result, Ok(()), "once");
    puppets[2].0.borrow_mut().losses = 1;
    assert_eq!(linear.losses(), 4);
}

#[test]
fn all_are_polled_every_time_and_what_was_there_stays() {
    let (mut linear, puppets) = three();
    let mut done = vec![Completion::new(99, Ok(()))];
    linear.submit(Io::new(4, Op::Flush, 0, 0));
    for puppet in &puppets {
        puppet.fail(&puppet.take_one());
    }
    linear.poll(&mut done);
    assert_eq!(done.iter().map(|one| one.token).collect::<Vec<_>>(), [99, 4]);
    linear.poll(&mut done);
    assert!(puppets.iter().all(|puppet| puppet.0.borrow().polls == 2));
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
fn its_identity_is_that_of_all_in_their_order() {
    let [a, b, c] = [1, 2, 3].map(|number| Puppet::new(number, SHAPE));
    let of = |puppets: &[&Puppet]| {
        linear_of(&puppets.iter().map(|&puppet| puppet.clone()).collect::<Vec<_>>())
            .unwrap()
            .identity()
    };
    let known = of(&[&a, &b]);
    assert_eq!(known, of(&[&a, &b]));
    let reborn = Puppet::new(2, SHAPE);
    reborn.0.borrow_mut().identity.incarnation += 1;
    let longer = Puppet::new(1, Geometry { bytes: 8704, ..SHAPE });
    let others = [of(&[&b, &a]), of(&[&a, &c]), of(&[&a, &reborn]), of(&[&a]), of(&[&longer, &b])];
    for other in others {
        assert!(other.identity != known.identity && other.incarnation != known.incarnation);
    }
}

#[test]
fn the_hash_is_that_of_the_book() {
    for (bytes, hash) in [
        (&b""[..], 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d),
        (b"a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964),
        (b"foobar", 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18),
    ] {
        let mut fnv = Fnv::new();
        fnv.add(bytes);
        assert_eq!(fnv.0, hash, "{bytes:?}");
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refusal = |shapes: &[Geometry]| {
        let puppets: Vec<_> = shapes.iter().map(|&shape| Puppet::new(1, shape)).collect();
        linear_of(&puppets).err().unwrap()
    };
    assert_eq!(refusal(&[]), LinearError::Empty);
    let coarse = Geometry { block_bytes: 4096, ..SHAPE };
    let odd = Geometry { bytes: 4608, ..SHAPE };
    let error = refusal(&[SHAPE, odd, coarse]);
    assert_eq!(error, LinearError::OddSize { index: 1, bytes: 4608, block_bytes: 4096 });
    assert_eq!(
        error.to_string(),
        "volume 1, counted from 0, has 4608 bytes, and the largest block of all is 4096 bytes: \
         make its size a multiple of that (nearest sizes: 4096 and 8192)"
    );
    let short = Geometry { io_bytes_max: 2048, ..SHAPE };
    let error = refusal(&[coarse, short]);
    assert_eq!(error, LinearError::ShortIo { index: 1, io_bytes_max: 2048, block_bytes: 4096 });
    let huge = Geometry { bytes: 1 << 63, ..SHAPE };
    assert_eq!(refusal(&[SHAPE, huge, huge]), LinearError::TooLarge { index: 2 });
}

#[test]
fn it_keeps_no_record() {
    let mut linear = Linear::new(vec![Box::new(NullStore::new(512, 512))]).unwrap();
    let errors = [
        linear.load_writer().unwrap_err(),
        linear.store_writer(WriterRecord::default()).unwrap_err(),
    ];
    let unsupported = (ErrorKind::Unsupported, "linear");
    assert_eq!(errors.map(|error| (error.kind, error.module)), [unsupported; 2]);
    // Nor does a volume that says nothing of records.
    let error = Puppet::new(1, SHAPE).load_writer().unwrap_err();
    assert_eq!((error.kind, error.module), (ErrorKind::Unsupported, "volume"));
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
