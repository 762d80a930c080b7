//! A face as a part: what it is told, and what it leaves.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use thinwire_volume::testing::Puppet;
use thinwire_volume::{Effect, PartEvent};

use super::*;

/// Submits what it is told to, one read each turn.
#[derive(Default)]
struct Told {
    reads: u64,
    dies: bool,
    turns: usize,
    /// Turns before which it was not told that its descriptor is readable.
    gone_on: usize,
    completed: usize,
    /// When it wants to be called again.
    due: Option<Time>,
    /// What polite closing says, once.
    refusal: Option<io::ErrorKind>,
}

struct Fake {
    told: Rc<RefCell<Told>>,
    fd: OwnedFd,
}

impl Face for Fake {
    fn path(&self) -> String {
        "/fake".into()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        let told = &mut *self.told.borrow_mut();
        told.turns += 1;
        let mut done = Vec::new();
        volume.poll(&mut done);
        told.completed += done.len();
        if told.dies {
            return Err(io::Error::other("the kernel went away"));
        }
        let any = !done.is_empty() || told.reads > 0;
        if told.reads > 0 {
            volume.submit(Io::new(told.reads, Op::Read, 0, 512));
            told.reads -= 1;
        }
        Ok(any)
    }

    fn end_turn(&mut self, _: Time) -> Time {
        self.told.borrow().due.unwrap_or(Time::NEVER)
    }

    fn go_on(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        self.told.borrow_mut().gone_on += 1;
        self.turn(volume)
    }

    fn busy(&mut self) -> Poll<Option<String>> {
        Poll::Ready(None)
    }

    fn close(&mut self, force: bool) -> io::Result<()> {
        match self.told.borrow_mut().refusal.take() {
            Some(kind) if !force => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

const START: Time = Time(1_000_000_000);

fn part() -> (FacePart, Rc<RefCell<Told>>, Puppet) {
    let (told, puppet) = (Rc::default(), Puppet::new(1, Puppet::GEOMETRY));
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let face = Fake { told: Rc::clone(&told), fd };
    (FacePart::new(Box::new(face), Box::new(puppet.clone())), told, puppet)
}

/// A turn of it: what it says to a person, and when it wants another one.
fn turn(part: &mut FacePart, now: Time) -> (Vec<(Gravity, String)>, Time) {
    part.on_event(now, PartEvent::Readable);
    part.settle(now);
    let mut effects = Vec::new();
    let at = Part::close(part, &mut Closing { now, out: &mut [], effects: &mut effects });
    let said = |effect| match effect {
        Effect::Note(gravity, text) => (gravity, text),
        other => panic!("{other:?}"),
    };
    (effects.into_iter().map(said).collect(), at)
}

#[test]
fn it_asks_for_turns_as_long_as_something_happens() {
    let (mut part, told, puppet) = part();
    assert_eq!(turn(&mut part, START).1, Time::NEVER);
    told.borrow_mut().reads = 2;
    assert_eq!(turn(&mut part, START).1, START);
    assert_eq!(turn(&mut part, START).1, START);
    assert_eq!(turn(&mut part, START).1, Time::NEVER);
    assert_eq!(part.outstanding(), 2);
    puppet.take().iter().for_each(|io| puppet.succeed(io));
    assert_eq!(turn(&mut part, START).1, START);
    assert_eq!((told.borrow().completed, part.outstanding()), (2, 0));
}

/// Asking its clients' sockets costs a system call, and a completion says nothing of them.
#[test]
fn a_face_is_told_whether_its_descriptor_was_readable() {
    let (mut part, told, puppet) = part();
    told.borrow_mut().reads = 1;
    // Before the first turn nobody has looked.
    part.settle(START);
    let io = puppet.take().pop().unwrap();
    puppet.succeed(&io);
    part.settle(START);
    assert_eq!((told.borrow().turns, told.borrow().gone_on, told.borrow().completed), (2, 1, 1));
    part.on_event(START, PartEvent::Below);
    part.settle(START);
    assert_eq!((told.borrow().turns, told.borrow().gone_on), (3, 2));
    part.on_event(START, PartEvent::Readable);
    part.settle(START);
    assert_eq!((told.borrow().turns, told.borrow().gone_on), (4, 2));
}

#[test]
fn a_face_is_called_again_when_it_wants() {
    let (mut part, told, _) = part();
    told.borrow_mut().due = Some(START + REFRESH);
    assert_eq!(turn(&mut part, START).1, START + REFRESH);
    told.borrow_mut().reads = 1;
    assert_eq!(turn(&mut part, START).1, START);
    part.close(true).unwrap();
    assert_eq!(turn(&mut part, START).1, Time::NEVER);
}

#[test]
fn growth_is_looked_for_once_a_second_and_told() {
    let (mut part, told, puppet) = part();
    puppet.may_grow();
    let second = START + REFRESH;
    assert_eq!(turn(&mut part, START), (Vec::new(), second));
    assert_eq!((turn(&mut part, START).1, puppet.refreshes()), (second, 1));
    assert_eq!((turn(&mut part, second).1, puppet.refreshes()), (second + REFRESH, 2));
    puppet.tell(VolumeEvent::Resized { bytes: 1 << 20 });
    let turns = told.borrow().turns;
    let (notes, at) = turn(&mut part, second);
    let said = "the volume has grown to 1048576 bytes".to_owned();
    assert_eq!((notes, at), (vec![(Gravity::News, said)], second));
    assert_eq!((told.borrow().turns, part.geometry().bytes), (turns + 1, 1 << 20));
}

#[test]
fn a_loss_is_told_to_a_person_and_a_shorter_file_is_not() {
    let (mut part, _, puppet) = part();
    puppet.tell(VolumeEvent::Lost);
    puppet.tell(VolumeEvent::Shrunk);
    let notes = turn(&mut part, START).0;
    assert!(matches!(&notes[..], [(Gravity::Warning, text)] if text.contains("may be lost")));
    assert_eq!(turn(&mut part, START).0, []);
}

#[test]
fn a_dead_face_is_not_turned_again_and_is_told_once() {
    let (mut part, told, _) = part();
    told.borrow_mut().dies = true;
    let (notes, at) = turn(&mut part, START);
    let said = "the face died: the kernel went away".to_owned();
    assert_eq!(part.trouble(), Some(said.as_str()));
    assert_eq!((notes, at), (vec![(Gravity::Failure, said)], START));
    assert_eq!(turn(&mut part, START), (Vec::new(), Time::NEVER));
    assert_eq!(told.borrow().turns, 1);
}

/// A part may be told several times before it is closed.
#[test]
fn what_happened_early_in_a_turn_asks_for_another_one() {
    let (mut part, told, _) = part();
    turn(&mut part, START);
    told.borrow_mut().dies = true;
    part.settle(START);
    assert_eq!(turn(&mut part, START).1, START, "nobody has looked at it");
}

#[test]
fn what_a_closed_face_left_ends_before_the_last_flush() {
    let (mut part, told, puppet) = part();
    told.borrow_mut().reads = 1;
    told.borrow_mut().refusal = Some(io::ErrorKind::WouldBlock);
    turn(&mut part, START);
    assert_eq!(part.close(false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    turn(&mut part, START);
    let turns = told.borrow().turns;
    assert_eq!(turns, 2, "closing needs it");
    part.close(false).unwrap();
    let read = puppet.take_one();
    assert_eq!(turn(&mut part, START).1, Time::NEVER);
    puppet.fail(&read);
    assert_eq!(turn(&mut part, START).1, START, "somebody waits for that");
    assert_eq!((part.outstanding(), part.flushed(), told.borrow().turns), (0, None, turns));
    part.flush();
    let flush = puppet.take_one();
    assert_eq!((flush.op, part.flushed()), (Op::Flush, None));
    puppet.succeed(&flush);
    assert_eq!(turn(&mut part, START).1, START);
    assert_eq!((part.flushed(), part.last_flush()), (Some(&Ok(())), Some(&Ok(()))));
}

#[test]
fn force_ends_a_face_that_will_not_close() {
    let (mut part, told, _) = part();
    told.borrow_mut().dies = true;
    turn(&mut part, START);
    part.close(true).unwrap();
    turn(&mut part, START);
    assert_eq!(told.borrow().turns, 1);
}

#[test]
fn a_request_is_expected_of_who_has_all_its_answers() {
    let (mut part, told, puppet) = part();
    assert_eq!(part.expects(), Expects::Request);
    told.borrow_mut().reads = 1;
    turn(&mut part, START);
    assert_eq!(part.expects(), Expects::Nothing, "it waits for its volume");
    puppet.succeed(&puppet.take_one());
    turn(&mut part, START);
    assert_eq!((told.borrow().completed, part.expects()), (1, Expects::Request));
    told.borrow_mut().dies = true;
    turn(&mut part, START);
    assert_eq!(part.expects(), Expects::Nothing);
}

/// A volume that is timed is told the time before the face is turned and behind that, and what it wishes then counts.
#[test]
fn a_volume_that_is_timed_decides_when_it_is_told_the_time() {
    let (told, puppet) = (Rc::default(), Puppet::new(1, Puppet::GEOMETRY));
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let face = Fake { told: Rc::clone(&told), fd };
    let wish = START + Duration::from_millis(7);
    puppet.want_turn(wish);
    let mut part = FacePart::new(Box::new(face), Box::new(puppet.clone()));
    part.on_event(START, PartEvent::Readable);
    part.settle(START);
    assert_eq!(puppet.turned(), Some(START));
    let later = START + Duration::from_millis(1);
    let mut closing = Closing { now: later, out: &mut [], effects: &mut Vec::new() };
    assert_eq!(Part::close(&mut part, &mut closing), wish);
    assert_eq!(puppet.turned(), Some(later));
    // Nobody polls it any more.
    told.borrow_mut().dies = true;
    turn(&mut part, later);
    puppet.want_turn(later);
    assert_eq!(turn(&mut part, later).1, Time::NEVER);
}
