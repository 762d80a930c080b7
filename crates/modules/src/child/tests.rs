//! A stretch of a volume is to a module, and to everybody above, what a slice of that volume is.

use thinwire_buffer::Pool;
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, ErrorKind, Io, IoError, Op, VolumeEvent};

use super::*;
use crate::{MODULES, Module, Options};

const START: u64 = 12 << 10;
const BYTES: u64 = 136 << 10;
const SHAPE: Geometry = Geometry { bytes: START + BYTES + 512, ..Puppet::GEOMETRY };

fn puppets(count: usize) -> Vec<Puppet> {
    (0..count).map(|number| Puppet::new(number as u8 + 1, SHAPE)).collect()
}

fn over_stretches(module: &Module, puppets: &[Puppet]) -> Box<dyn Volume> {
    let within = |volume| Child::within(volume, START, BYTES).unwrap();
    let children = Puppet::boxed(puppets).into_iter().map(within).collect();
    module.open_over(children, &Options::default()).unwrap()
}

fn over_slices(module: &Module, puppets: &[Puppet]) -> Box<dyn Volume> {
    let slice = |volume| -> Box<dyn Volume> {
        Box::new(Slice::new(vec![volume], START, Some(BYTES)).unwrap())
    };
    let children = Puppet::boxed(puppets).into_iter().map(slice).collect();
    module.open(children, &Options::default()).unwrap()
}

fn polled(volume: &mut dyn Volume) -> Vec<Completion> {
    let mut done = Vec::new();
    volume.poll(&mut done);
    done
}

/// Each module, over as many as it takes of one, two and three.
fn each(check: impl Fn(&Module, usize)) {
    for module in MODULES {
        let counts = (1..=3).filter(|count| module.children.contains(count));
        counts.for_each(|count| check(module, count));
    }
}

/// Wholes that were made before stretches were there have the names that they had.
#[test]
fn it_has_the_shape_and_the_identity_of_a_slice() {
    each(|module, count| {
        let (ours, slices) = (puppets(count), puppets(count));
        let (ours, slices) = (over_stretches(module, &ours), over_slices(module, &slices));
        assert_eq!(ours.geometry(), slices.geometry());
        assert_eq!(ours.identity(), slices.identity());
    });
}

/// What stands on it knows it by what it was made with.
#[test]
fn one_that_has_grown_has_the_identity_that_it_had() {
    each(|module, count| {
        let (ours, before) = (puppets(count), puppets(count));
        let grown = |volume| {
            let child = Child::within(volume, START, BYTES - 8192).unwrap();
            Child { bytes: Some(BYTES), ..child }.made_with(BYTES - 8192)
        };
        let last = ours.len() - 1;
        let children = Puppet::boxed(&ours).into_iter().enumerate().map(|(nth, volume)| {
            // Behind one that has grown begins another.
            match nth == last {
                true => grown(volume),
                false => Child::within(volume, START, BYTES).unwrap(),
            }
        });
        let ours = module.open_over(children.collect(), &Options::default()).unwrap();
        let children = Puppet::boxed(&before).into_iter().enumerate().map(|(nth, volume)| {
            let bytes = if nth == last { BYTES - 8192 } else { BYTES };
            Child::within(volume, START, bytes).unwrap()
        });
        let before = module.open_over(children.collect(), &Options::default()).unwrap();
        assert_eq!(ours.identity(), before.identity(), "{}", module.name);
        assert!(ours.geometry().bytes >= before.geometry().bytes, "{}", module.name);
    });
}

#[test]
fn each_io_goes_where_it_goes_over_slices() {
    let pool = Pool::new(1 << 20);
    each(|module, count| {
        let (ours, slices) = (puppets(count), puppets(count));
        let mut pair = [over_stretches(module, &ours), over_slices(module, &slices)];
        let bytes = pair[0].geometry().bytes;
        for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::BlockStatus, Op::Flush] {
            if op.is_write() && pair[0].geometry().features.read_only {
                continue;
            }
            for (offset, len) in [(0, 512), (bytes - 512, 512), (60 << 10, 64 << 10), (0, bytes)] {
                let (offset, len) = if op == Op::Flush { (0, 0) } else { (offset, len) };
                for volume in &mut pair {
                    let mut io = Io::new(7, op, offset, len);
                    if op == Op::Write {
                        io.data.push(pool.get_zeroed(len as usize).freeze());
                    }
                    volume.submit(io);
                    // Some hand it down by the next poll only.
                    assert!(polled(&mut **volume).is_empty());
                }
                let mut reached = 0;
                for (puppet, other) in ours.iter().zip(&slices) {
                    let [got, wanted] = [puppet.take(), other.take()];
                    let range = |io: &Io| (io.op, io.offset, io.len, io.data.bytes());
                    let ranges = |ios: &[Io]| ios.iter().map(range).collect::<Vec<_>>();
                    assert_eq!(
                        ranges(&got),
                        ranges(&wanted),
                        "{module:?}: {op} of {len} at {offset}"
                    );
                    reached += got.len();
                    got.iter().for_each(|io| puppet.fail(io));
                    wanted.iter().for_each(|io| other.fail(io));
                }
                assert!(reached > 0, "{module:?}: {op} of {len} at {offset}");
                // Errors are of its own bytes.
                let [got, wanted] = pair.each_mut().map(|volume| polled(&mut **volume));
                let results =
                    |done: &[Completion]| done.iter().map(|c| c.result).collect::<Vec<_>>();
                assert_eq!(
                    results(&got),
                    results(&wanted),
                    "{module:?}: {op} of {len} at {offset}"
                );
            }
        }
    });
}

#[test]
fn an_error_is_told_in_the_bytes_of_the_whole() {
    let puppets = puppets(1);
    let mut volume = over_stretches(Module::find("linear").unwrap(), &puppets);
    volume.submit(Io::new(7, Op::WriteZeroes, 1024, 512));
    let part = puppets[0].take_one();
    assert_eq!((part.offset, part.len), (START + 1024, 512));
    puppets[0].fail(&part);
    let (kind, op, module) = (ErrorKind::NoSpace, Op::WriteZeroes, "puppet");
    let error = IoError { kind, op, offset: 1024, len: 512, module };
    assert_eq!(polled(&mut *volume)[0].result, Err(error));
}

/// What lies behind it is not its own, however much that becomes.
#[test]
fn it_stays_as_it_is_when_the_volume_grows() {
    each(|module, count| {
        for event in [
            VolumeEvent::Resized { bytes: 2 * SHAPE.bytes },
            VolumeEvent::Lost,
            VolumeEvent::Shrunk,
            VolumeEvent::Unreachable { bytes: 512 },
        ] {
            let (ours, slices) = (puppets(count), puppets(count));
            let mut pair = [over_stretches(module, &ours), over_slices(module, &slices)];
            let before = pair[0].geometry();
            [&ours, &slices].iter().for_each(|puppets| puppets[count - 1].tell(event.clone()));
            let [got, wanted] = pair.each_mut().map(|volume| {
                let mut events = Vec::new();
                volume.poll_events(&mut events);
                events
            });
            assert_eq!(got, wanted, "{module:?}");
            let is_news = !matches!(event, VolumeEvent::Resized { .. });
            assert_eq!(got.len(), usize::from(is_news), "{module:?}: {event:?}");
            assert_eq!(pair[0].geometry(), before);
        }
    });
}

#[test]
fn what_the_volume_does_not_have_is_refused() {
    let within = |start, bytes| {
        let volume = Puppet::boxed(&[Puppet::new(1, Geometry { block_bytes: 4096, ..SHAPE })]);
        Child::within(volume.into_iter().next().unwrap(), start, bytes).err()
    };
    assert_eq!(within(4096, 8192), None);
    for (start, bytes, says) in [
        (512, 4096, "has blocks of 4096 bytes, and 512 is no multiple of that"),
        (4096, 1536, "has blocks of 4096 bytes, and 1536 is no multiple of that"),
        (4096, 152 << 10, "has 152064 bytes, and its data would end at 159744"),
        (u64::MAX - 4095, 8192, "has 152064 bytes, and its data would end at 18446744073709555712"),
    ] {
        assert_eq!(within(start, bytes).as_deref(), Some(says));
    }
}
