//! What goes where, by arithmetic that is as simple as can be: block by block.

use thinwire_buffer::{Pool, SegList};

use super::*;
use crate::observed::Observed;
use thinwire_volume::stores::{EXTENTS_MAX, MemoryStore};
use thinwire_volume::testing::{Puppet, SplitMix64, finish};
use thinwire_volume::{
    Completion, ErrorKind, Extent, Geometry, Identity, IoError, IoFlags, VolumeEvent,
};

const BLOCK: u64 = 512;
const KIB: u64 = 1 << 10;
/// How many volumes, and how long chunks are.
const KINDS: [(usize, u64); 8] = [
    (1, 4 * KIB),
    (2, 4 * KIB),
    (3, 4 * KIB),
    (5, 4 * KIB),
    (1, 64 * KIB),
    (2, 64 * KIB),
    (3, 64 * KIB),
    (5, 64 * KIB),
];

/// A stripe over volumes of so many bytes that do as they are told.
fn stripe_of(count: usize, chunk: u64, bytes: u64) -> (Composite<Stripe>, Vec<Puppet>) {
    let shape = Geometry { bytes, ..Puppet::GEOMETRY };
    let puppets: Vec<_> = (0..count).map(|number| Puppet::new(number as u8, shape)).collect();
    (Stripe::new(Puppet::boxed(&puppets), chunk).unwrap_or_else(|e| panic!("{e}")), puppets)
}

/// Where a byte lies.
fn place(count: usize, chunk: u64, at: u64) -> (usize, u64) {
    let nth = at / chunk;
    ((nth % count as u64) as usize, nth / count as u64 * chunk + at % chunk)
}

fn polled(volume: &mut dyn Volume) -> Vec<Completion> {
    let mut done = Vec::new();
    volume.poll(&mut done);
    done
}

fn polled_one(volume: &mut dyn Volume) -> Completion {
    let mut done = polled(volume);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

/// Bytes of which each block is another, in segments whose borders are those of nothing.
fn payload(pool: &Pool, seed: u64, bytes: u64) -> SegList {
    let block = |nth: u64| (seed ^ (nth << 32)).to_le_bytes().repeat(BLOCK as usize / 8);
    let all: Vec<u8> = (0..bytes / BLOCK).flat_map(block).collect();
    let mut data = SegList::new();
    all.chunks(3000).for_each(|part| data.push(pool.copy_of(part).freeze()));
    data
}

#[test]
fn what_lies_within_one_chunk_goes_there_as_it_is() {
    for (count, chunk) in KINDS {
        let (mut stripe, puppets) = stripe_of(count, chunk, 4 * chunk);
        assert_eq!(stripe.geometry().bytes, 4 * chunk * count as u64);
        for nth in 0..4 * count as u64 {
            for (from, len) in [(0, chunk), (0, BLOCK), (chunk - BLOCK, BLOCK), (BLOCK, BLOCK)] {
                let offset = nth * chunk + from;
                let flags = IoFlags { for_patch: true, ..IoFlags::default() };
                stripe.submit(Io { flags, ..Io::new(7, Op::Read, offset, len) });
                let (child, below) = place(count, chunk, offset);
                let io = puppets[child].take_one();
                let expected = (Op::Read, below, len, flags);
                assert_eq!((io.op, io.offset, io.len, io.flags), expected);
                puppets[child].fail(&io);
                let (kind, module) = (ErrorKind::NoSpace, "puppet");
                let error = IoError { kind, op: Op::Read, offset, len, module };
                assert_eq!(polled_one(&mut stripe).result, Err(error));
            }
        }
        assert!(puppets.iter().all(|puppet| puppet.take().is_empty()));
    }
}

/// What each volume has of a range, found block by block: where it begins there, and the blocks in their order.
fn shares(count: usize, chunk: u64, range: std::ops::Range<u64>) -> Vec<(u64, Vec<u64>)> {
    let mut shares = vec![(0, Vec::new()); count];
    for at in range.step_by(BLOCK as usize) {
        let (child, below) = place(count, chunk, at);
        let (start, blocks) = &mut shares[child];
        if blocks.is_empty() {
            *start = below;
        }
        assert_eq!(below, *start + blocks.len() as u64 * BLOCK, "it lies together");
        blocks.push(at);
    }
    shares
}

/// Some range of the volume, of up to `most` bytes, whose ends are anywhere.
fn some_range(rng: &mut SplitMix64, bytes: u64, most: u64) -> (u64, u64) {
    let len = (1 + rng.below(most.min(bytes) / BLOCK)) * BLOCK;
    (rng.below((bytes - len) / BLOCK + 1) * BLOCK, len)
}

#[test]
fn a_long_io_becomes_one_for_each_volume() {
    let pool = Pool::new(32 << 20);
    let mut rng = SplitMix64::new(1);
    for (count, chunk) in KINDS {
        let (mut stripe, puppets) = stripe_of(count, chunk, 16 * chunk + 512);
        let bytes = stripe.geometry().bytes;
        for nth in 0..60 {
            let (offset, len) = some_range(&mut rng, bytes, 1 << 20);
            let op = if nth % 2 == 0 { Op::Write } else { Op::Read };
            let data = payload(&pool, nth, len);
            let all = data.to_vec();
            let mut io = Io::new(nth, op, offset, len);
            io.flags.fua = op == Op::Write;
            if op == Op::Write {
                io.data = data.clone();
            }
            stripe.submit(io);
            let mut answers = Vec::new();
            let expected = shares(count, chunk, offset..offset + len);
            for (puppet, (start, blocks)) in puppets.iter().zip(&expected) {
                if blocks.is_empty() {
                    assert!(puppet.take().is_empty(), "it has nothing of that");
                    continue;
                }
                let part = puppet.take_one();
                assert_eq!((part.op, part.offset), (op, *start));
                assert_eq!(
                    (part.len, part.flags.fua),
                    (blocks.len() as u64 * BLOCK, op == Op::Write)
                );
                let place = |at: &u64| (at - offset) as usize..(at - offset + BLOCK) as usize;
                let share: Vec<u8> =
                    blocks.iter().flat_map(|at| all[place(at)].iter().copied()).collect();
                let mut answer = Completion::new(part.token, Ok(()));
                match op {
                    Op::Write => {
                        assert!(part.data.to_vec() == share, "bytes of another place");
                        let is_lent = |one: &_| data.iter().any(|whole| whole.shares_memory(one));
                        assert!(part.data.iter().all(is_lent), "payload was copied");
                    }
                    _ => share
                        .chunks(5000)
                        .for_each(|part| answer.data.push(pool.copy_of(part).freeze())),
                }
                answers.push((puppet, answer));
            }
            while !answers.is_empty() {
                assert!(polled(&mut stripe).is_empty() && stripe.outstanding() == 1);
                let (puppet, answer) =
                    answers.swap_remove(rng.below(answers.len() as u64) as usize);
                puppet.complete(answer);
            }
            let completion = polled_one(&mut stripe);
            assert_eq!((completion.token, completion.result), (nth, Ok(())));
            assert!(op == Op::Write || completion.data.to_vec() == all, "bytes in another order");
        }
    }
}

#[test]
fn a_read_is_joined_by_reference() {
    let (mut stripe, puppets) = stripe_of(2, 4096, 64 * KIB);
    let pool = Pool::new(1 << 20);
    stripe.submit(Io::new(1, Op::Read, 512, 32 * KIB));
    let mut lent = Vec::new();
    for puppet in &puppets {
        let part = puppet.take_one();
        let mut answer = Completion::new(part.token, Ok(()));
        answer.data = SegList::of(pool.get_zeroed(part.len as usize).freeze());
        lent.push(answer.data.clone());
        puppet.complete(answer);
    }
    let data = polled_one(&mut stripe).data;
    let segments: Vec<_> = lent.iter().flat_map(SegList::iter).collect();
    assert!(data.iter().all(|one| segments.iter().any(|lent| lent.shares_memory(one))), "copied");
    // Nobody else holds it then.
    drop(lent);
    let first = data.as_slice()[0].clone();
    drop(data);
    assert!(first.is_unique(), "something of the answer was kept");
}

#[test]
fn bytes_lie_where_arithmetic_says() {
    let pool = Pool::new(64 << 20);
    for (nth, (count, chunk)) in (0..).zip(KINDS) {
        let mut rng = SplitMix64::new(nth);
        let store = |_| {
            // Six rows, and a rest that no chunk lies in.
            let bytes = 6 * chunk + 2048;
            Observed::new(MemoryStore::new(bytes, 512, Identity::default(), &pool))
        };
        let mut stores: Vec<Observed> = (0..count).map(store).collect();
        let boxed = stores.iter().map(|store| Box::new(store.clone()) as Box<dyn Volume>);
        let mut stripe = Stripe::new(boxed.collect(), chunk).unwrap();
        let bytes = stripe.geometry().bytes;
        assert_eq!(bytes, 6 * chunk * count as u64);
        let mut model = vec![0; bytes as usize];
        for step in 0..300 {
            let (offset, len) = some_range(&mut rng, bytes, 1 << 20);
            let range = offset as usize..(offset + len) as usize;
            let mut io = Io::new(step, Op::Write, offset, len);
            match rng.below(10) {
                0 => {
                    io.op = Op::WriteZeroes;
                    model[range].fill(0);
                }
                1..=4 => {
                    io.op = Op::Read;
                    let data = finish(&mut stripe, &mut || {}, io).data.to_vec();
                    assert!(data == model[range], "{count} of {chunk}: {offset}, {len}");
                    continue;
                }
                _ => {
                    io.data = payload(&pool, step + 1, len);
                    io.data.copy_to(&mut model[range]);
                }
            }
            assert_eq!(finish(&mut stripe, &mut || {}, io).result, Ok(()));
        }
        assert!(model.iter().any(|byte| *byte != 0));
        for (child, store) in stores.iter_mut().enumerate() {
            let io = Io::new(1, Op::Read, 0, 6 * chunk);
            let there = finish(store, &mut || {}, io).data.to_vec();
            for (at, block) in model.chunks(BLOCK as usize).enumerate() {
                let (of, below) = place(count, chunk, at as u64 * BLOCK);
                let below = below as usize;
                let is_there = of != child || there[below..below + BLOCK as usize] == *block;
                assert!(is_there, "{count} of {chunk}: block {at} is not at {below} of {child}");
            }
            let rest = finish(store, &mut || {}, Io::new(1, Op::Read, 6 * chunk, 2048));
            assert!(rest.data.to_vec().iter().all(|byte| *byte == 0), "behind the last chunk");
        }
    }
}

/// What takes no payload takes no time and no memory for chunks, of which there are 2^38 at each volume here.
#[test]
fn a_discard_of_all_is_one_for_each_volume() {
    const EACH: u64 = 1 << 50;
    let (mut stripe, puppets) = stripe_of(5, 4096, EACH);
    assert_eq!(stripe.geometry().bytes, 5 * EACH);
    for op in [Op::Discard, Op::WriteZeroes] {
        // The first of all volumes, or the last, has one block less.
        for (offset, less) in
            [(0, [0, 0, 0, 0, 0]), (512, [512, 0, 0, 0, 0]), (0, [0, 0, 0, 0, 512])]
        {
            let len = 5 * EACH - less.iter().sum::<u64>();
            let flags = IoFlags { fua: true, no_hole: true, ..IoFlags::default() };
            stripe.submit(Io { flags, ..Io::new(1, op, offset, len) });
            for (child, puppet) in puppets.iter().enumerate() {
                let part = puppet.take_one();
                let begin = if child == 0 { offset } else { 0 };
                let expected = (op, flags, begin, EACH - less[child]);
                assert_eq!((part.op, part.flags, part.offset, part.len), expected);
                puppet.succeed(&part);
            }
            assert_eq!(polled_one(&mut stripe).result, Ok(()));
        }
    }
}

#[test]
fn the_last_bytes_that_64_bits_reach_are_dealt() {
    const EACH: u64 = 1 << 63;
    // As many chunks as lie below 2^64, in whole rows.
    let shape = Geometry { bytes: EACH - 4096, ..Puppet::GEOMETRY };
    let puppets = [1, 2].map(|number| Puppet::new(number, shape));
    let mut stripe = Stripe::new(Puppet::boxed(&puppets), 4096).unwrap();
    let bytes = stripe.geometry().bytes;
    assert_eq!(bytes, u64::MAX - 8191);
    for (op, len) in [(Op::Discard, bytes), (Op::Read, 16384), (Op::BlockStatus, 8 << 20)] {
        stripe.submit(Io::new(1, op, bytes - len, len));
        for puppet in &puppets {
            let part = puppet.take_one();
            let within = len.min(1024 * 4096).min(bytes) / 2;
            let expected = if op == Op::Discard { len / 2 } else { within };
            assert_eq!((part.offset, part.len), (EACH - 4096 - len / 2, expected), "{op}");
        }
    }
}

#[test]
fn an_error_of_any_share_is_told_of_the_whole_range() {
    let (mut stripe, puppets) = stripe_of(3, 4096, 64 * KIB);
    for bad in 0..3 {
        stripe.submit(Io::new(1, Op::Discard, 1024, 40 * KIB));
        let parts: Vec<Io> = puppets.iter().map(Puppet::take_one).collect();
        puppets[bad].fail(&parts[bad]);
        assert!(polled(&mut stripe).is_empty(), "the others may still have an effect");
        for other in (0..3).filter(|&other| other != bad) {
            puppets[other].succeed(&parts[other]);
        }
        let (kind, module) = (ErrorKind::NoSpace, "puppet");
        let error = IoError { kind, op: Op::Discard, offset: 1024, len: 40 * KIB, module };
        assert_eq!(polled_one(&mut stripe).result, Err(error));
        // Nothing of it is left for the next.
        stripe.submit(Io::new(2, Op::Discard, 0, 12 * KIB));
        puppets.iter().for_each(|puppet| puppet.succeed(&puppet.take_one()));
        assert_eq!(polled_one(&mut stripe).result, Ok(()));
    }
    // A flush has no range, and is no share.
    stripe.submit(Io::new(3, Op::Flush, 0, 0));
    let parts: Vec<Io> = puppets.iter().map(Puppet::take_one).collect();
    puppets[1].fail(&parts[1]);
    assert_eq!(polled_one(&mut stripe).result.map_err(|e| (e.op, e.len)), Err((Op::Flush, 0)));
}

const fn run(len: u64, hole: bool) -> Extent {
    Extent { len, hole, zero: hole }
}

/// What a stripe of two volumes, in chunks of 4096 bytes, makes of their answers to a question.
fn status(offset: u64, len: u64, answers: [&[Extent]; 2]) -> Vec<Extent> {
    let (mut stripe, puppets) = stripe_of(2, 4096, 64 * KIB);
    stripe.submit(Io::new(1, Op::BlockStatus, offset, len));
    for (puppet, answer) in puppets.iter().zip(answers) {
        let mut completion = Completion::new(puppet.take_one().token, Ok(()));
        completion.extents = answer.to_vec();
        puppet.complete(completion);
    }
    polled_one(&mut stripe).extents
}

#[test]
fn answers_to_a_block_status_are_dealt_and_joined() {
    let all = |hole| [run(16 * KIB, hole)];
    assert_eq!(status(0, 32 * KIB, [&all(true), &all(true)]), [run(32 * KIB, true)]);
    let turns: Vec<_> = (0..8).map(|nth| run(4096, nth % 2 == 1)).collect();
    assert_eq!(status(0, 32 * KIB, [&all(false), &all(true)]), turns);
    // One begins and ends within chunks, and runs do.
    let first = [run(512, true), run(3072 + 4096, false), run(4096, true)];
    let joined = status(512, 19 * KIB + 512, [&first, &[run(8192, false)]]);
    assert_eq!(joined, [run(512, true), run(3072 + 3 * 4096, false), run(4096, true)]);
}

#[test]
fn a_block_status_ends_where_the_first_answer_does() {
    let long = [run(16 * KIB, false)];
    // The first chunk of the first volume, one and a half, and as much of the second.
    assert_eq!(status(0, 32 * KIB, [&[run(512, true)], &long]), [run(512, true)]);
    assert_eq!(status(0, 32 * KIB, [&[run(4096, false)], &long]), [run(8192, false)]);
    let half = [run(6144, true)];
    let told = [run(4096, true), run(4096, false), run(2048, true)];
    assert_eq!(status(0, 32 * KIB, [&half, &long]), told);
    let told = [run(4096, false), run(4096, true), run(4096, false), run(2048, true)];
    assert_eq!(status(0, 32 * KIB, [&long, &half]), told);
}

#[test]
fn a_block_status_has_a_bound() {
    let (mut stripe, puppets) = stripe_of(2, 4096, 1 << 50);
    let ask = |stripe: &mut Composite<Stripe>, offset, one_extent| {
        let mut io = Io::new(1, Op::BlockStatus, offset, (2 << 50) - offset);
        io.flags.one_extent = one_extent;
        stripe.submit(io);
        puppets.iter().flat_map(Puppet::take).collect::<Vec<Io>>()
    };
    let asked = |parts: &[Io]| parts.iter().map(|io| (io.offset, io.len)).collect::<Vec<_>>();
    // 1024 chunks, of which the first is not whole.
    let parts = ask(&mut stripe, 512, false);
    assert_eq!(asked(&parts), [(512, 512 * 4096 - 512), (0, 512 * 4096)]);
    // Answers that are as long as those of a store, and differ everywhere, are one that is no longer.
    for (puppet, part) in puppets.iter().zip(&parts) {
        let mut completion = Completion::new(part.token, Ok(()));
        let extents = (0..part.len / 512).map(|nth| run(512, nth % 2 == 0));
        completion.extents = extents.take(EXTENTS_MAX).collect();
        puppet.complete(completion);
    }
    assert_eq!(polled_one(&mut stripe).extents.len(), EXTENTS_MAX);
    // Of one extent only the first chunk is asked.
    for offset in [512, 4096 + 512] {
        let parts = ask(&mut stripe, offset, true);
        assert_eq!(asked(&parts), [(512, 4096 - 512)]);
        assert!(parts[0].flags.one_extent);
        let mut completion = Completion::new(parts[0].token, Ok(()));
        completion.extents = vec![run(1024, true)];
        puppets[(offset / 4096) as usize].complete(completion);
        assert_eq!(polled_one(&mut stripe).extents, [run(1024, true)]);
    }
}

#[test]
fn its_chunks_are_part_of_its_identity() {
    let of = |chunk| stripe_of(2, chunk, 1 << 20).0.identity();
    assert_eq!(of(4096), of(4096));
    let differs = (of(4096).identity, of(4096).incarnation);
    assert!(differs.0 != of(8192).identity && differs.1 != of(8192).incarnation);
}

#[test]
fn it_is_as_large_as_the_smallest_allows() {
    let bytes = |sizes: &[u64], chunk| {
        let shape = |&bytes: &u64| Puppet::new(1, Geometry { bytes, ..Puppet::GEOMETRY });
        let puppets: Vec<Puppet> = sizes.iter().map(shape).collect();
        Stripe::new(Puppet::boxed(&puppets), chunk).map(|stripe| stripe.geometry().bytes)
    };
    assert_eq!(bytes(&[9 * KIB, 30 * KIB, 70 * KIB], 4096), Ok(24 * KIB));
    assert_eq!(bytes(&[4096], 4096), Ok(4096));
    let refused = |sizes: &[u64]| bytes(sizes, 4096).unwrap_err().to_string();
    assert_eq!(
        refused(&[8192, 3584, 512]),
        "stripe: volume 1, counted from 0, has 3584 bytes, and a chunk has 4096: leave it out, or \
         make chunks smaller"
    );
    assert_eq!(refused(&[]), "stripe has no volume to begin with: name at least one");
    assert_eq!(
        refused(&[1 << 63, 1 << 63]),
        "stripe would have more than 18446744073709551615 bytes, which no offset can reach: leave \
         volumes out"
    );
}

#[test]
fn it_grows_by_whole_rows_as_the_smallest_does() {
    let (mut stripe, puppets) = stripe_of(3, 4096, 8192);
    let identity = stripe.identity();
    let mut grown = |child: usize, bytes| {
        puppets[child].tell(VolumeEvent::Resized { bytes });
        let mut events = vec![];
        stripe.poll_events(&mut events);
        (events, stripe.geometry().bytes)
    };
    let nothing = |bytes| (vec![], bytes);
    let resized = |bytes| (vec![VolumeEvent::Resized { bytes }], bytes);
    assert_eq!(grown(0, 1 << 20), nothing(24 * KIB));
    assert_eq!(grown(2, 16 * KIB), nothing(24 * KIB));
    assert_eq!(grown(1, 8704), nothing(24 * KIB), "less than a row");
    assert_eq!(grown(1, 12 * KIB + 512), resized(36 * KIB));
    assert_eq!(grown(1, 1 << 20), resized(48 * KIB), "the third is the smallest now");
    assert_eq!(grown(2, 20 * KIB), resized(60 * KIB));
    // A size that was known before is no step back.
    assert_eq!(grown(0, 1 << 20), nothing(60 * KIB));
    assert_eq!(stripe.identity(), identity);
    // What has come is dealt as what was there.
    stripe.submit(Io::new(1, Op::Discard, 0, 60 * KIB));
    let parts: Vec<Io> = puppets.iter().map(Puppet::take_one).collect();
    assert!(parts.iter().all(|part| (part.offset, part.len) == (0, 20 * KIB)));
}

#[test]
fn growth_beyond_64_bits_cannot_be_reached() {
    let (mut stripe, puppets) = stripe_of(2, 4096, 8192);
    let mut events = vec![];
    for puppet in &puppets {
        puppet.tell(VolumeEvent::Resized { bytes: 1 << 63 });
    }
    stripe.poll_events(&mut events);
    let bytes = (1 << 63) - 8192;
    assert_eq!(events, [VolumeEvent::Unreachable { bytes }]);
    assert_eq!(stripe.geometry().bytes, 16 * KIB);
}
