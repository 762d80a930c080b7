//! Which member does what, over volumes that do as they are told, and the suite over one store with several ends.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_buffer::{Pool, SegList};

use super::*;
use thinwire_volume::ErrorKind;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::{Puppet, exercise};

const BYTES: u64 = 1 << 30;

/// So many ends of one volume.
fn members(count: usize, bytes: u64) -> Vec<Puppet> {
    (0..count).map(|_| Puppet::new(7, Geometry { bytes, ..Puppet::GEOMETRY })).collect()
}

fn over(puppets: &[Puppet]) -> Dealt {
    Dealt::new(Puppet::boxed(puppets)).unwrap()
}

fn polled(dealt: &mut Dealt) -> Vec<Completion> {
    let mut done = Vec::new();
    dealt.poll(&mut done);
    done
}

#[test]
fn it_is_the_volume_that_its_members_are() {
    let puppets = members(3, BYTES);
    let dealt = over(&puppets);
    assert_eq!(dealt.identity(), puppets[0].identity());
    assert_eq!(dealt.geometry(), puppets[0].geometry());
    let others = [Puppet::new(1, Puppet::GEOMETRY), Puppet::new(2, Puppet::GEOMETRY)];
    assert_eq!(Dealt::new(Puppet::boxed(&others)).err().unwrap().child, Some(1));
    puppets[2].be_born_again();
    assert_eq!(Dealt::new(Puppet::boxed(&puppets)).err().unwrap().child, Some(2));
    assert!(Dealt::new(Vec::new()).is_err());
}

/// Whatever touches a byte meets there whatever else does.
#[test]
fn an_address_is_one_members() {
    let puppets = members(3, BYTES);
    let mut dealt = over(&puppets);
    for chunk in [0, 1, 2, 3, 4, BYTES / CHUNK_BYTES - 1] {
        for (offset, len) in [(0, CHUNK_BYTES), (0, 512), (CHUNK_BYTES - 512, 512)] {
            dealt.submit(Io::new(1, Op::Read, chunk * CHUNK_BYTES + offset, len));
            let io = puppets[chunk as usize % 3].take_one();
            assert_eq!((io.offset, io.len), (chunk * CHUNK_BYTES + offset, len));
            puppets[chunk as usize % 3].succeed(&io);
            assert_eq!(polled(&mut dealt).len(), 1);
        }
    }
    assert!(puppets.iter().all(|puppet| puppet.take().is_empty()));
}

#[test]
fn what_crosses_a_border_is_cut_there_by_reference() {
    let puppets = members(2, BYTES);
    let mut dealt = over(&puppets);
    let payload = Pool::new(0).get_zeroed(CHUNK_BYTES as usize + 1024).freeze();
    let mut io = Io::new(5, Op::Write, CHUNK_BYTES - 512, CHUNK_BYTES + 1024);
    io.data = SegList::of(payload.clone());
    dealt.submit(io);
    let [first, second] = [puppets[0].take(), puppets[1].take()];
    let ranges = |ios: &[Io]| ios.iter().map(|io| (io.offset, io.len)).collect::<Vec<_>>();
    assert_eq!(ranges(&first), [(CHUNK_BYTES - 512, 512), (2 * CHUNK_BYTES, 512)]);
    assert_eq!(ranges(&second), [(CHUNK_BYTES, CHUNK_BYTES)]);
    for (puppet, ios) in puppets.iter().zip([&first, &second]) {
        assert!(ios.iter().all(|io| io.data.as_slice()[0].shares_memory(&payload)));
        assert_eq!((polled(&mut dealt).len(), dealt.outstanding()), (0, 1));
        ios.iter().for_each(|io| puppet.succeed(io));
    }
    assert_eq!(polled(&mut dealt)[0].token, 5);

    // What was lent below is lent here.
    dealt.submit(Io::new(6, Op::Read, CHUNK_BYTES - 512, 1024));
    for (puppet, byte) in puppets.iter().zip([1, 2]) {
        let io = puppet.take_one();
        let mut completion = Completion::new(io.token, Ok(()));
        completion.data = SegList::of(Pool::new(0).copy_of(&[byte; 512]).freeze());
        puppet.complete(completion);
    }
    let read = polled(&mut dealt).pop().unwrap().data;
    assert_eq!((read.as_slice().len(), read.to_vec()), (2, [[1; 512], [2; 512]].concat()));
}

#[test]
fn a_flush_is_of_all() {
    let puppets = members(3, BYTES);
    let mut dealt = over(&puppets);
    dealt.submit(Io::new(1, Op::Flush, 0, 0));
    for puppet in &puppets {
        assert!(polled(&mut dealt).is_empty());
        puppet.succeed(&puppet.take_one());
    }
    assert_eq!(polled(&mut dealt)[0].result, Ok(()));
    dealt.submit(Io::new(2, Op::WriteZeroes, 0, BYTES));
    while dealt.outstanding() > 0 {
        puppets.iter().for_each(|puppet| puppet.take().iter().for_each(|io| puppet.succeed(io)));
        assert!(polled(&mut dealt).iter().all(|one| one.result.is_ok()));
    }
    dealt.submit(Io::new(3, Op::Flush, 0, 0));
    puppets[1].fail(&puppets[1].take_one());
    assert!(polled(&mut dealt)[0].result.is_err());
}

/// However long a discard is, members have a bounded number of parts of it at once.
#[test]
fn a_long_discard_goes_in_steps() {
    let puppets = members(2, BYTES);
    let mut dealt = over(&puppets);
    dealt.submit(Io {
        flags: IoFlags { fua: true, ..IoFlags::default() },
        ..Io::new(1, Op::Discard, 512, BYTES - 512)
    });
    dealt.submit(Io::new(2, Op::Read, 0, 512));
    let (mut told, mut next) = (Vec::new(), 512);
    while told.len() < 2 {
        let mut parts: Vec<Io> = Vec::new();
        for puppet in &puppets {
            let ios = puppet.take();
            assert!(ios.len() <= 33, "{} at once", ios.len());
            ios.iter().for_each(|io| puppet.succeed(io));
            parts.extend(ios.into_iter().filter(|io| io.op == Op::Discard));
        }
        parts.sort_unstable_by_key(|io| io.offset);
        for io in parts {
            assert!(io.flags.fua && io.offset == next, "{io:?}");
            next += io.len;
        }
        assert_eq!(dealt.outstanding(), 2 - told.len());
        told.extend(polled(&mut dealt).iter().map(|one| (one.token, one.result)));
    }
    assert_eq!((next, dealt.outstanding()), (BYTES, 0));
    assert_eq!(told, [(2, Ok(())), (1, Ok(()))]);

    dealt.submit(Io::new(3, Op::WriteZeroes, 0, BYTES));
    for puppet in &puppets {
        puppet.take().iter().for_each(|io| puppet.fail(io));
    }
    let failed = polled(&mut dealt);
    assert_eq!((failed.len(), failed[0].token, dealt.outstanding()), (1, 3, 0));
    let error = failed[0].result.unwrap_err();
    assert_eq!((error.kind, error.op), (ErrorKind::NoSpace, Op::WriteZeroes));
    assert!(puppets.iter().all(|puppet| puppet.take().is_empty()), "nothing more is begun");
}

#[test]
fn a_block_status_tells_of_a_step() {
    let puppets = members(2, BYTES);
    let mut dealt = over(&puppets);
    dealt.submit(Io::new(1, Op::BlockStatus, 0, BYTES));
    assert_eq!(puppets.iter().map(|puppet| puppet.take().len()).sum::<usize>(), 64);
    let flags = IoFlags { one_extent: true, ..IoFlags::default() };
    dealt.submit(Io { flags, ..Io::new(2, Op::BlockStatus, 512, BYTES - 512) });
    assert_eq!(puppets[0].take_one().len, CHUNK_BYTES - 512);
}

/// It has grown when all members have; what one has lost is told.
#[test]
fn losses_and_growth_are_told() {
    let puppets = members(2, BYTES);
    let mut dealt = over(&puppets);
    let told = |dealt: &mut Dealt| {
        let mut events = Vec::new();
        dealt.poll_events(&mut events);
        events
    };
    puppets[1].tell(VolumeEvent::Resized { bytes: 2 * BYTES });
    assert_eq!(told(&mut dealt), []);
    assert_eq!(dealt.geometry().bytes, BYTES);
    puppets[0].tell(VolumeEvent::Resized { bytes: 3 * BYTES });
    puppets[1].tell(VolumeEvent::Lost);
    let bytes = 2 * BYTES;
    assert_eq!(told(&mut dealt), [VolumeEvent::Lost, VolumeEvent::Resized { bytes }]);
    assert_eq!(dealt.geometry().bytes, bytes);
    dealt.submit(Io::new(1, Op::Read, bytes - 512, 512));
    assert_eq!(puppets[1].take_one().offset, bytes - 512);
}

/// One of several ends of a store, which completes for itself.
struct End {
    store: Rc<RefCell<MemoryStore>>,
    ready: Vec<Completion>,
}

impl Volume for End {
    fn geometry(&self) -> Geometry {
        self.store.borrow().geometry()
    }

    fn identity(&self) -> Identity {
        self.store.borrow().identity()
    }

    fn submit(&mut self, io: Io) {
        let mut store = self.store.borrow_mut();
        store.submit(io);
        while store.outstanding() > 0 {
            store.poll(&mut self.ready);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.ready.len()
    }
}

#[test]
fn it_conforms() {
    for count in [1, 2, 3] {
        let store = MemoryStore::new(3 << 20, 512, Identity::default(), &Pool::new(4 << 20));
        let store = Rc::new(RefCell::new(store));
        let end = |_| Box::new(End { store: store.clone(), ready: Vec::new() }) as Box<dyn Volume>;
        let mut dealt = Dealt::new((0..count).map(end).collect()).unwrap();
        assert!(exercise(&mut dealt, &mut || {}, count, 3000).ios > 3000);
    }
}
