//! What goes through, and what does not.

use thinwire_buffer::Pool;

use super::*;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::{Puppet, finish};
use thinwire_volume::{Completion, ErrorKind, Extent, Identity, IoFlags, Op, VolumeEvent};

const SHAPE: Geometry = Puppet::GEOMETRY;

fn over(puppet: &Puppet) -> Composite<Readonly> {
    Readonly::new(Puppet::boxed(std::slice::from_ref(puppet))).unwrap_or_else(|e| panic!("{e}"))
}

fn polled_one(volume: &mut dyn Volume) -> Completion {
    let mut done = Vec::new();
    volume.poll(&mut done);
    assert_eq!(done.len(), 1);
    done.remove(0)
}

#[test]
fn what_would_change_it_is_refused_as_read_only() {
    let readonly = over(&Puppet::new(1, SHAPE));
    let Geometry { features, .. } = readonly.geometry();
    let only =
        Features { read_only: true, discard: false, write_zeroes: false, block_status: true };
    assert_eq!(features, only, "as a file that may not be written");
    assert_eq!(readonly.geometry(), Geometry { features, ..SHAPE });
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        let mut io = Io::new(1, op, 0, 512);
        if op == Op::Write {
            io.data.push(Pool::new(0).get_zeroed(512).freeze());
        }
        assert_eq!(readonly.geometry().check(&io), Err(ErrorKind::ReadOnly), "{op}");
    }
}

#[test]
#[should_panic(expected = "a write zeroes of a volume that is read-only")]
fn what_was_not_checked_goes_nowhere() {
    let readonly = Readonly::new(Puppet::boxed(&[Puppet::new(1, SHAPE)])).unwrap();
    let mut below = Below::new(Child::all(vec![Box::new(readonly)]));
    Readonly.submit(Io::new(1, Op::WriteZeroes, 0, 512), &mut below);
}

#[test]
fn what_changes_nothing_goes_down_as_it_is() {
    let puppet = Puppet::new(1, SHAPE);
    let mut readonly = over(&puppet);
    for op in [Op::Read, Op::BlockStatus, Op::Flush] {
        let (offset, len) = if op == Op::Flush { (0, 0) } else { (512, 4096) };
        let mut io = Io::new(7, op, offset, len);
        io.flags = IoFlags { one_extent: true, ..IoFlags::default() };
        let flags = io.flags;
        readonly.submit(io);
        let part = puppet.take_one();
        assert_eq!((part.op, part.flags, part.offset, part.len), (op, flags, offset, len));
        let mut answer = Completion::new(part.token, Ok(()));
        if op == Op::BlockStatus {
            answer.extents = vec![Extent { len: 512, hole: true, zero: true }];
        }
        let extents = answer.extents.clone();
        puppet.complete(answer);
        let done = polled_one(&mut readonly);
        assert_eq!((done.token, done.result, done.extents), (7, Ok(()), extents));
    }
}

#[test]
fn it_reads_as_what_it_stands_on() {
    let pool = Pool::new(1 << 20);
    let mut store = MemoryStore::new(64 << 10, 512, Identity::default(), &pool);
    for block in 0..128 {
        let mut io = Io::new(1, Op::Write, block * 512, 512);
        io.data.push(pool.copy_of(&[block as u8; 512]).freeze());
        assert_eq!(finish(&mut store, &mut || {}, io).result, Ok(()));
    }
    let mut readonly = Readonly::new(vec![Box::new(store)]).unwrap();
    let read = finish(&mut readonly, &mut || {}, Io::new(1, Op::Read, 0, 64 << 10)).data.to_vec();
    let expected: Vec<u8> = (0..128).flat_map(|block| [block; 512]).collect();
    assert!(read == expected);
}

#[test]
fn it_grows_with_what_it_stands_on() {
    let puppet = Puppet::new(1, SHAPE);
    let mut readonly = over(&puppet);
    puppet.tell(VolumeEvent::Resized { bytes: 2 * SHAPE.bytes });
    let mut events = Vec::new();
    readonly.poll_events(&mut events);
    assert_eq!(events, [VolumeEvent::Resized { bytes: 2 * SHAPE.bytes }]);
    assert_eq!(readonly.geometry().bytes, 2 * SHAPE.bytes);
}
