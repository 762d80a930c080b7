//! Where its I/Os go, what it refuses, and what becomes of it as its volume grows.

use thinwire_buffer::Pool;

use super::*;
use crate::observed::Observed;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::{Puppet, exercise, finish};
use thinwire_volume::{
    Completion, ErrorKind, Extent, Geometry, Identity, IoError, IoFlags, Op, VolumeEvent,
};

const SHAPE: Geometry = Puppet::GEOMETRY;

fn slice_of(puppet: &Puppet, offset: u64, size: Option<u64>) -> Composite<Slice> {
    let children = Puppet::boxed(std::slice::from_ref(puppet));
    Slice::new(children, offset, size).unwrap_or_else(|e| panic!("{e}"))
}

fn polled_one(volume: &mut dyn Volume) -> Completion {
    let mut done = Vec::new();
    volume.poll(&mut done);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

#[test]
fn each_io_goes_down_as_one_at_another_offset() {
    let puppet = Puppet::new(1, SHAPE);
    let mut slice = slice_of(&puppet, 1024, Some(4096));
    assert_eq!(slice.geometry(), Geometry { bytes: 4096, ..SHAPE });
    let pool = Pool::new(1 << 20);
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::BlockStatus] {
        for (offset, len) in [(0, 4096), (512, 512), (3584, 512)] {
            let mut io = Io::new(7, op, offset, len);
            io.flags = IoFlags {
                fua: true,
                no_hole: true,
                one_extent: true,
                for_patch: true,
                verified: true,
                uncached: true,
                meta: true,
            };
            if op == Op::Write {
                io.data.push(pool.get_zeroed(len as usize).freeze());
            }
            let (flags, data) = (io.flags, io.data.clone());
            slice.submit(io);
            let part = puppet.take_one();
            let expected = (op, flags, offset + 1024, len);
            assert_eq!((part.op, part.flags, part.offset, part.len), expected);
            assert!(data.iter().zip(part.data.iter()).all(|(one, other)| one.shares_memory(other)));
            puppet.succeed(&part);
            assert_eq!(polled_one(&mut slice).token, 7);
        }
    }
}

#[test]
fn answers_and_errors_are_told_in_its_own_bytes() {
    let puppet = Puppet::new(1, SHAPE);
    let mut slice = slice_of(&puppet, 1024, None);
    slice.submit(Io::new(1, Op::WriteZeroes, 512, 512));
    puppet.fail(&puppet.take_one());
    let (kind, module) = (ErrorKind::NoSpace, "puppet");
    let error = IoError { kind, op: Op::WriteZeroes, offset: 512, len: 512, module };
    assert_eq!(polled_one(&mut slice).result, Err(error));
    slice.submit(Io::new(2, Op::BlockStatus, 0, 2048));
    let mut answer = Completion::new(puppet.take_one().token, Ok(()));
    answer.extents = vec![Extent { len: 1024, hole: true, zero: true }];
    puppet.complete(answer);
    assert_eq!(polled_one(&mut slice).extents, [Extent { len: 1024, hole: true, zero: true }]);
}

#[test]
fn it_has_the_bytes_between_its_ends() {
    let pool = Pool::new(1 << 20);
    let mut store = MemoryStore::new(64 << 10, 512, Identity::default(), &pool);
    for block in 0..128 {
        let mut io = Io::new(1, Op::Write, block * 512, 512);
        io.data.push(pool.copy_of(&[block as u8; 512]).freeze());
        assert_eq!(finish(&mut store, &mut || {}, io).result, Ok(()));
    }
    let mut slice = Slice::new(vec![Box::new(store)], 5 * 512, Some(7 * 512)).unwrap();
    let read = finish(&mut slice, &mut || {}, Io::new(1, Op::Read, 0, 7 * 512)).data.to_vec();
    let expected: Vec<u8> = (5..12).flat_map(|block| [block; 512]).collect();
    assert!(read == expected);
}

#[test]
fn what_lies_around_it_is_left_alone() {
    let pool = Pool::new(8 << 20);
    let store = MemoryStore::new(1 << 20, 4096, Identity::default(), &pool);
    let mut whole = Observed::new(store);
    let around = [0, 900 << 10].map(|at| (at, 64 << 10));
    for (offset, len) in around {
        let mut io = Io::new(1, Op::Write, offset, len);
        io.data.push(pool.copy_of(&vec![0xa5; len as usize]).freeze());
        assert_eq!(finish(&mut whole, &mut || {}, io).result, Ok(()));
    }
    let (offset, size) = (64 << 10, (900 - 64) << 10);
    let mut slice = Slice::new(vec![Box::new(whole.clone())], offset, Some(size)).unwrap();
    assert!(exercise(&mut slice, &mut || {}, 1, 1000).ios > 1000);
    for (offset, len) in around {
        let io = Io::new(1, Op::Read, offset, len);
        let read = finish(&mut whole, &mut || {}, io).data.to_vec();
        assert!(read.iter().all(|&byte| byte == 0xa5), "what lies at {offset} was written");
    }
}

#[test]
fn its_place_is_part_of_its_identity() {
    let puppet = Puppet::new(1, SHAPE);
    let places = [(0, None), (0, Some(8192)), (512, None), (0, Some(512)), (512, Some(512))];
    let all = places.map(|(offset, size)| slice_of(&puppet, offset, size).identity());
    for (at, one) in all.iter().enumerate() {
        let (offset, size) = places[at];
        assert_eq!(*one, slice_of(&puppet, offset, size).identity());
        assert!(all[..at].iter().all(|other| other.identity != one.identity), "{:?}", places[at]);
    }
}

#[test]
fn what_it_cannot_be_is_refused() {
    let refusal = |shape: Geometry, offset, size| {
        let slice = Slice::new(Puppet::boxed(&[Puppet::new(1, shape)]), offset, size);
        slice.err().expect("it is refused").to_string()
    };
    let coarse = Geometry { block_bytes: 4096, ..SHAPE };
    let ends = |end: u128| {
        format!(
            "slice: volume 0, counted from 0, has 8192 bytes, and the slice would end at {end}: give \
             a smaller offset or size"
        )
    };
    assert_eq!(refusal(SHAPE, 0, Some(8704)), ends(8704));
    assert_eq!(refusal(SHAPE, 4096, Some(4608)), ends(8704));
    // Nothing would be left, or less than nothing.
    assert_eq!(refusal(SHAPE, 8192, None), ends(8704));
    assert_eq!(refusal(coarse, 12288, None), ends(16384));
    let most = u64::MAX - 511;
    assert_eq!(refusal(SHAPE, most, Some(most)), ends(2 * u128::from(most)));
    let odd = |odd| {
        format!(
            "slice: volume 0, counted from 0, has blocks of 4096 bytes, and {odd} is no multiple of \
             that: give another offset or size"
        )
    };
    assert_eq!(refusal(coarse, 512, None), odd(512));
    assert_eq!(refusal(coarse, 0, Some(4608)), odd(4608));
    let two = Slice::new(Puppet::boxed(&[1, 2].map(|n| Puppet::new(n, SHAPE))), 0, None);
    assert_eq!(two.err().map(|e| e.to_string()), Some("slice takes 1 volume, not 2".into()));
    // Up to the last byte it is none of these.
    assert_eq!(slice_of(&Puppet::new(1, SHAPE), 4096, Some(4096)).geometry().bytes, 4096);
    assert_eq!(slice_of(&Puppet::new(1, SHAPE), 7680, None).geometry().bytes, 512);
}

#[test]
fn one_without_a_size_grows_and_one_with_a_size_does_not() {
    let grown = |size, bytes| {
        let puppet = Puppet::new(1, Geometry { block_bytes: 4096, ..SHAPE });
        let mut slice = slice_of(&puppet, 4096, size);
        let identity = slice.identity();
        puppet.tell(VolumeEvent::Resized { bytes });
        assert_eq!(slice.geometry().bytes, 4096, "not told yet");
        let mut events = vec![];
        slice.poll_events(&mut events);
        assert_eq!(slice.identity(), identity);
        (events, slice.geometry().bytes)
    };
    let resized = |bytes| vec![VolumeEvent::Resized { bytes }];
    assert_eq!(grown(None, 16384), (resized(12288), 12288));
    // By whole blocks.
    assert_eq!(grown(None, 12288 + 512), (resized(8192), 8192));
    assert_eq!(grown(None, 8192 + 512), (vec![], 4096));
    assert_eq!(grown(Some(4096), 16384), (vec![], 4096));
}
