//! To whom a flush goes.

use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, Io, IoFlags, Op, Volume};

use crate::{Linear, Options};

const GEOMETRY: thinwire_volume::Geometry = Puppet::GEOMETRY;

struct World {
    volume: Box<dyn Volume>,
    parts: [Puppet; 2],
    last: u64,
}

impl World {
    /// Two parts, of which both have nothing to flush: they were when it was opened.
    fn flushed() -> Self {
        let parts = [0, 1].map(|nth| Puppet::new(nth, GEOMETRY));
        let module = crate::Module::find("linear").unwrap();
        let volume = module.open(Puppet::boxed(&parts), &Options::default()).unwrap();
        let mut world = World { volume, parts, last: 0 };
        assert_eq!(world.flush_now(), [true, true], "what was there before nobody knows");
        world
    }

    fn submit(&mut self, io: Io) -> u64 {
        self.last += 1;
        self.volume.submit(Io { token: self.last, ..io });
        self.last
    }

    /// At the first block of that part.
    fn change(&mut self, part: u64, op: Op, flags: IoFlags) -> Io {
        let offset = part * GEOMETRY.bytes;
        let mut io = Io { flags, ..Io::new(0, op, offset, 512) };
        if op == Op::Write {
            let data = thinwire_buffer::Pool::new(0).get_zeroed(512).freeze();
            io.data = thinwire_buffer::SegList::of(data);
        }
        self.submit(io);
        self.parts[part as usize].take_one()
    }

    fn succeed(&mut self, part: u64, io: &Io) {
        self.parts[part as usize].succeed(io);
        assert_eq!(self.polled().len(), 1);
    }

    fn polled(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.volume.poll(&mut done);
        done
    }

    /// What of a flush goes to each part.
    fn flush(&mut self) -> [Option<Io>; 2] {
        self.submit(Io::new(0, Op::Flush, 0, 0));
        [0, 1].map(|part: usize| {
            let mut taken = self.parts[part].take();
            assert!(taken.len() < 2 && taken.iter().all(|io| io.op == Op::Flush), "{taken:?}");
            taken.pop()
        })
    }

    /// Flushes it, and says to which parts that goes.
    fn flush_now(&mut self) -> [bool; 2] {
        let went = self.flush();
        for (part, io) in self.parts.iter().zip(&went) {
            io.iter().for_each(|io| part.succeed(io));
        }
        let done = self.polled();
        assert!(matches!(&done[..], [one] if one.token == self.last && one.result.is_ok()));
        assert_eq!(self.volume.outstanding(), 0);
        went.map(|io| io.is_some())
    }
}

#[test]
fn a_flush_goes_where_something_was_changed() {
    let mut world = World::flushed();
    assert_eq!(world.flush_now(), [false, false], "nothing was");
    for op in [Op::Write, Op::WriteZeroes, Op::Discard] {
        let io = world.change(1, op, IoFlags::default());
        world.succeed(1, &io);
        assert_eq!(world.flush_now(), [false, true], "{op}");
        assert_eq!(world.flush_now(), [false, false], "{op}: that was all");
    }
    let io = world.change(0, Op::Write, IoFlags::default());
    world.parts[0].fail(&io);
    assert_eq!(world.polled().len(), 1);
    assert_eq!(world.flush_now(), [true, false], "what fails may have done something");
}

#[test]
fn reads_leave_nothing_and_nobodys_word_is_taken() {
    let mut world = World::flushed();
    world.submit(Io::new(0, Op::BlockStatus, 0, 512));
    let io = world.parts[0].take_one();
    world.succeed(0, &io);
    assert_eq!(world.flush_now(), [false, false]);
    let fua = IoFlags { fua: true, ..IoFlags::default() };
    let io = world.change(0, Op::Write, fua);
    world.succeed(0, &io);
    assert_eq!(world.flush_now(), [true, false], "not all volumes keep what that means");
}

#[test]
fn what_ends_beside_a_flush_is_left_to_the_next() {
    let mut world = World::flushed();
    let first = world.change(0, Op::Write, IoFlags::default());
    world.succeed(0, &first);
    let late = world.change(0, Op::Write, IoFlags::default());
    let went = world.flush();
    let io = went[0].as_ref().unwrap();
    world.succeed(0, &late);
    world.succeed(0, io);
    assert_eq!(world.flush_now(), [true, false], "that one may have come too late");
    assert_eq!(world.flush_now(), [false, false]);
}

#[test]
fn a_flush_waits_for_one_that_is_under_way() {
    let mut world = World::flushed();
    let io = world.change(1, Op::Write, IoFlags::default());
    world.succeed(1, &io);
    let [_, first] = world.flush();
    let [none, second] = world.flush();
    assert!(none.is_none());
    let (first, second) = (first.unwrap(), second.expect("nobody knows how the first ends"));
    assert!(world.polled().is_empty(), "none has ended");
    world.parts[1].fail(&first);
    assert!(matches!(&world.polled()[..], [one] if one.result.is_err()));
    world.succeed(1, &second);
    assert_eq!(world.flush_now(), [false, true], "one has failed, whatever became of the other");
    assert_eq!(world.flush_now(), [false, false]);
}

#[test]
fn one_part_alone_is_always_asked() {
    let part = Puppet::new(0, GEOMETRY);
    let mut volume = Linear::new(Puppet::boxed(std::slice::from_ref(&part))).unwrap();
    for token in [1, 2] {
        volume.submit(Io::new(token, Op::Flush, 0, 0));
        part.succeed(&part.take_one());
        let mut done = Vec::new();
        volume.poll(&mut done);
        assert_eq!(done.len(), 1);
    }
}
