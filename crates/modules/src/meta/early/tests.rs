//! A part that is only read, over a volume whose label says what it is told to.

use thinwire_buffer::SegList;
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Geometry, Identity, Op};

use super::*;
use crate::meta::{LABEL_BYTES, LABEL_OFFSETS, Label, NewPart, NewWhole, label_parts};
use crate::{Module, Options};

fn label(generation: u64, opening: u8) -> Label {
    let content = Identity { identity: [7; 16], incarnation: 1 };
    let parts = [1, 2].map(|nth| NewPart { uuid: [nth; 16], content, bytes: 4 << 20 });
    let module = Module::find("linear").unwrap();
    let bytes = parts.iter().map(|part| part.data_bytes(module)).sum();
    let options = &Options::default();
    let whole = NewWhole { name: "home", uuid: [9; 16], module, options, bytes };
    let label = label_parts(&whole, &parts).unwrap().remove(0);
    Label { generation, opening: [opening; 16], openings: 1, ..label }
}

/// A part, and what stands below it.
struct World {
    part: WatchedPart,
    puppet: Puppet,
    pool: Pool,
    now: Time,
    /// What its label says; none if it has none.
    opening: Option<u8>,
    /// Another label was written behind that.
    is_rewritten: bool,
    /// Reads of data that went down.
    read: usize,
    /// Reads of labels fail.
    fails: bool,
}

impl World {
    fn new(canary: WatchCanary, fence: &ReaderFence) -> Self {
        let geometry = Geometry { bytes: 4 << 20, ..Puppet::GEOMETRY };
        let (puppet, pool) = (Puppet::new(1, geometry), Pool::new(1 << 20));
        let part = WatchedPart::new(Box::new(puppet.clone()), fence.clone(), &pool);
        let (part, opening, read) = (WatchedPart { canary, ..part }, Some(1), 0);
        let (now, fails, is_rewritten) = (Time::ZERO, false, false);
        World { part, puppet, pool, now, opening, is_rewritten, read, fails }
    }

    fn answer(&mut self, io: &Io) {
        let image = |generation| match self.opening {
            Some(opening) => label(generation, opening).encode().unwrap().to_vec(),
            None => vec![0; LABEL_BYTES],
        };
        let bytes = match LABEL_OFFSETS.iter().position(|at| *at == io.offset) {
            Some(_) if self.fails => {
                let error = io.error(ErrorKind::Io, "puppet");
                return self.puppet.complete(Completion::new(io.token, Err(error)));
            }
            Some(0) => image(2),
            Some(_) => image(if self.is_rewritten { 3 } else { 1 }),
            None => {
                self.read += 1;
                vec![7; io.len as usize]
            }
        };
        let mut completion = Completion::new(io.token, Ok(()));
        completion.data = SegList::of(self.pool.copy_of(&bytes).freeze());
        self.puppet.complete(completion);
    }

    /// Until nothing is under way: what has come.
    fn settle(&mut self) -> Vec<Result<(), ErrorKind>> {
        let mut done = Vec::new();
        loop {
            self.part.poll(&mut done);
            let asked = self.puppet.take();
            if asked.is_empty() {
                assert_eq!(self.part.outstanding(), 0);
                return done.into_iter().map(|one| one.result.map_err(|e| e.kind)).collect();
            }
            asked.iter().for_each(|io| self.answer(io));
        }
    }

    fn read(&mut self) -> Result<(), ErrorKind> {
        self.part.submit(Io::new(1, Op::Read, 1 << 20, 4096));
        self.settle().remove(0)
    }

    fn wait(&mut self, ms: u64) -> Time {
        self.now = self.now + Duration::from_millis(ms);
        let next = self.part.turn(self.now);
        assert!(self.settle().is_empty());
        next
    }
}

fn world(canary: WatchCanary) -> World {
    World::new(canary, &ReaderFence::default())
}

const FENCED: Result<(), ErrorKind> = Err(ErrorKind::Fenced);

#[test]
fn what_is_used_is_looked_at_while_it_is() {
    let mut world = world(WatchCanary::None);
    assert_eq!((world.read(), world.read), (Ok(()), 1));
    for _ in 0..5 {
        assert!(world.wait(600) < Time::NEVER);
        assert_eq!(world.read(), Ok(()));
    }
    world.opening = Some(2);
    // That look had begun before.
    assert_eq!(world.read(), Ok(()));
    world.wait(600);
    assert_eq!((world.read(), world.read), (FENCED, 7));
    // For good, whatever it says then, and without another look.
    world.opening = Some(1);
    assert_eq!(world.wait(5000), Time::NEVER);
    assert_eq!((world.read(), world.read), (FENCED, 7));
}

#[test]
fn any_label_that_is_written_tells_of_a_writer() {
    let mut world = world(WatchCanary::None);
    assert_eq!(world.read(), Ok(()));
    world.is_rewritten = true;
    world.wait(600);
    assert_eq!(world.read(), FENCED);
}

/// Nobody wakes for what is not used; what comes then waits for a look.
#[test]
fn what_comes_after_a_rest_is_read_behind_a_look() {
    let mut world = world(WatchCanary::None);
    assert_eq!(world.read(), Ok(()));
    assert!(world.wait(600) < Time::NEVER);
    assert_eq!(world.wait(60_000), Time::NEVER);
    assert_eq!((world.read(), world.read), (Ok(()), 2));
    world.wait(600);
    world.wait(60_000);
    world.opening = Some(2);
    assert_eq!((world.read(), world.read), (FENCED, 2));
}

#[test]
fn one_part_stops_all_of_its_whole_and_that_is_told_once() {
    let fence = ReaderFence::default();
    let mut both = [(); 2].map(|()| World::new(WatchCanary::None, &fence));
    assert!(both.iter_mut().all(|world| world.read().is_ok()));
    // Of a leg that the writer goes without the label stays as it was.
    both[1].opening = Some(2);
    both.iter_mut().for_each(|world| _ = world.wait(600));
    assert!(both.iter_mut().all(|world| world.read() == FENCED));
    assert!(fence.take_closed() && !fence.take_closed() && fence.is_closed());
}

#[test]
fn what_has_no_label_is_read_until_it_has_one_and_a_look_that_fails_says_nothing() {
    let mut world = world(WatchCanary::None);
    world.opening = None;
    assert_eq!(world.read(), Ok(()));
    world.wait(600);
    world.fails = true;
    world.wait(1100);
    assert_eq!(world.read(), Ok(()));
    (world.fails, world.opening) = (false, Some(1));
    world.wait(600);
    assert_eq!(world.read(), FENCED);
}

/// The checks above find whoever looks too seldom.
#[test]
fn planted_faults_are_found() {
    let mut once = world(WatchCanary::LooksOnce);
    assert_eq!(once.read(), Ok(()));
    once.opening = Some(2);
    once.wait(600);
    once.wait(5000);
    assert_eq!(once.read(), Ok(()), "it does not look again");
    let mut first = world(WatchCanary::ReadsFirst);
    assert_eq!(first.read(), Ok(()));
    first.part.is_fresh = false;
    first.opening = Some(2);
    assert_eq!((first.read(), first.read), (Ok(()), 2), "it reads before it looks");
}
