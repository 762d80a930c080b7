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

/// Not as one whose place another has taken: those who use it are answered.
const STOPPED: Result<(), ErrorKind> = Err(ErrorKind::Io);

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
    assert_eq!((world.read(), world.read), (STOPPED, 7));
    // For good, whatever it says then, and without another look.
    world.opening = Some(1);
    assert_eq!(world.wait(5000), Time::NEVER);
    assert_eq!((world.read(), world.read), (STOPPED, 7));
}

#[test]
fn any_label_that_is_written_tells_of_a_writer() {
    let mut world = world(WatchCanary::None);
    assert_eq!(world.read(), Ok(()));
    world.is_rewritten = true;
    world.wait(600);
    assert_eq!(world.read(), STOPPED);
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
    assert_eq!((world.read(), world.read), (STOPPED, 2));
}

#[test]
fn one_part_stops_all_of_its_whole_and_that_is_told_once() {
    let fence = ReaderFence::default();
    let mut both = [(); 2].map(|()| World::new(WatchCanary::None, &fence));
    assert!(both.iter_mut().all(|world| world.read().is_ok()));
    // Of a leg that the writer goes without the label stays as it was.
    both[1].opening = Some(2);
    both.iter_mut().for_each(|world| _ = world.wait(600));
    assert!(both.iter_mut().all(|world| world.read() == STOPPED));
    assert!(fence.take_closed() && !fence.take_closed() && fence.is_closed());
}

#[test]
fn what_has_no_label_is_read_until_it_has_one() {
    let mut world = world(WatchCanary::None);
    world.opening = None;
    assert_eq!(world.read(), Ok(()));
    world.wait(600);
    assert_eq!(world.read(), Ok(()));
    world.opening = Some(1);
    world.wait(600);
    assert_eq!(world.read(), STOPPED);
}

/// What was found before holds for its second and no longer, and the first look may be the one that fails.
#[test]
fn nothing_is_read_behind_a_look_that_fails() {
    let mut world = world(WatchCanary::None);
    world.fails = true;
    assert_eq!((world.read(), world.read), (Err(ErrorKind::Io), 0));
    world.fails = false;
    assert_eq!((world.read(), world.read), (Ok(()), 1));
    world.fails = true;
    assert!(world.wait(600) <= world.now + Duration::from_millis(400));
    assert_eq!((world.read(), world.read), (Ok(()), 2));
    world.wait(500);
    assert_eq!((world.read(), world.read), (Err(ErrorKind::Io), 2));
    world.fails = false;
    assert_eq!((world.read(), world.read), (Ok(()), 3));
}

impl World {
    /// A look begins and is late, a read comes behind its beginning, and somebody begins to write meanwhile.
    fn read_behind_a_late_look(&mut self) -> Vec<Result<(), ErrorKind>> {
        self.part.submit(Io::new(1, Op::Read, 1 << 20, 4096));
        // The first copy, as it was then; the second one is asked for.
        self.part.poll(&mut Vec::new());
        let asked = self.puppet.take();
        asked.iter().for_each(|io| self.answer(io));
        self.now = self.now + Duration::from_millis(5000);
        assert!(self.part.turn(self.now) > self.now, "it asks for the time that it is");
        self.part.submit(Io::new(2, Op::Read, 1 << 20, 4096));
        self.part.poll(&mut Vec::new());
        self.puppet.take().iter().for_each(|io| self.answer(io));
        self.opening = Some(2);
        self.settle()
    }
}

#[test]
fn a_late_look_does_not_vouch_for_what_came_behind_its_beginning() {
    let mut world = world(WatchCanary::None);
    // The first has waited for that look.
    assert_eq!((world.read_behind_a_late_look(), world.read), (vec![Ok(()), STOPPED], 1));
}

/// Nobody is woken for nothing while it waits for a label.
#[test]
fn a_look_that_is_under_way_costs_no_turns() {
    let mut world = world(WatchCanary::None);
    assert_eq!(world.read(), Ok(()));
    for (ms, next) in [(600, Some(400)), (300, Some(100)), (200, Some(500)), (500, None)] {
        world.now = world.now + Duration::from_millis(ms);
        let next = next.map_or(Time::NEVER, |next| world.now + Duration::from_millis(next));
        assert_eq!(world.part.turn(world.now), next, "behind {ms} ms");
    }
    world.settle();
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
    let mut late = world(WatchCanary::LateLooksVouch);
    assert_eq!((late.read_behind_a_late_look(), late.read), (vec![Ok(()); 2], 2), "it looks late");
}
