//! What is lost is told by a flush: by hand, and by a disk that loses at random.

use thinwire_buffer::SegList;

use super::*;
use crate::testing::Puppet;
use crate::{IoFlags, VolumeEvent};

fn owing(is_heard: bool) -> (Owing<Puppet>, Puppet) {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    (Owing::new(puppet.clone(), is_heard), puppet)
}

fn write(token: Token, fua: bool) -> Io {
    let data = SegList::of(thinwire_buffer::Pool::new(0).copy_of(&[7; 512]).freeze());
    let flags = IoFlags { fua, ..IoFlags::default() };
    Io { data, flags, ..Io::new(token, Op::Write, 0, 512) }
}

fn flush(token: Token) -> Io {
    Io::new(token, Op::Flush, 0, 0)
}

/// How these I/Os end, of which the volume below says that all have succeeded.
fn succeed(owing: &mut Owing<Puppet>, puppet: &Puppet, ios: Vec<Io>) -> Vec<bool> {
    ios.into_iter().for_each(|io| owing.submit(io));
    puppet.take().iter().for_each(|io| puppet.succeed(io));
    poll(owing)
}

fn poll(owing: &mut Owing<Puppet>) -> Vec<bool> {
    let mut done = Vec::new();
    owing.poll(&mut done);
    done.iter().map(|one| one.result.is_ok()).collect()
}

fn events(owing: &mut Owing<Puppet>) -> Vec<VolumeEvent> {
    let mut events = Vec::new();
    owing.poll_events(&mut events);
    events
}

#[test]
fn a_loss_is_told_by_the_next_flush_and_once() {
    let (mut owing, puppet) = owing(false);
    assert_eq!(succeed(&mut owing, &puppet, vec![write(1, false), flush(2)]), [true; 2]);
    puppet.tell(VolumeEvent::Lost);
    let read = Io::new(4, Op::Read, 0, 512);
    assert_eq!(succeed(&mut owing, &puppet, vec![write(3, true), read]), [true; 2]);
    owing.submit(flush(5));
    puppet.succeed(&puppet.take_one());
    let mut done = Vec::new();
    owing.poll(&mut done);
    let error = done[0].result.unwrap_err();
    assert_eq!((error.kind, error.op, error.module), (ErrorKind::Io, Op::Flush, MODULE));
    assert_eq!(succeed(&mut owing, &puppet, vec![flush(6)]), [true]);
}

#[test]
fn a_loss_that_is_heard_of_with_completions_is_told_by_all_flushes_that_ran() {
    let (mut owing, puppet) = owing(false);
    succeed(&mut owing, &puppet, vec![write(1, false)]);
    [2, 3, 4].into_iter().for_each(|token| owing.submit(flush(token)));
    let below = puppet.take();
    below[..2].iter().for_each(|io| puppet.succeed(io));
    puppet.tell(VolumeEvent::Resized { bytes: 16384 });
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), [false; 2]);
    owing.submit(flush(5));
    puppet.succeed(&below[2]);
    puppet.succeed(&puppet.take_one());
    assert_eq!(poll(&mut owing), [false, true], "this one began behind it, and all have been told");
    // Whoever stands on it hears of both, the loss first.
    assert_eq!(events(&mut owing), [VolumeEvent::Lost, VolumeEvent::Resized { bytes: 16384 }]);
    assert_eq!(events(&mut owing), []);
}

#[test]
fn a_flush_that_fails_by_itself_has_not_told_others() {
    let (mut owing, puppet) = owing(false);
    succeed(&mut owing, &puppet, vec![write(1, false)]);
    owing.submit(flush(2));
    puppet.fail(&puppet.take_one());
    puppet.tell(VolumeEvent::Lost);
    let mut done = Vec::new();
    owing.poll(&mut done);
    assert_eq!(done[0].result.unwrap_err().module, "puppet", "its own error is not covered");
    assert_eq!(succeed(&mut owing, &puppet, vec![flush(3)]), [false]);
    assert_eq!(succeed(&mut owing, &puppet, vec![flush(4)]), [true]);
}

#[test]
fn a_write_that_ran_beside_a_loss_is_in_doubt_although_that_was_told() {
    let (mut owing, puppet) = owing(false);
    [write(1, false), flush(2)].into_iter().for_each(|io| owing.submit(io));
    let below = puppet.take();
    puppet.succeed(&below[1]);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), [false]);
    puppet.succeed(&below[0]);
    assert_eq!(poll(&mut owing), [true]);
    assert_eq!(succeed(&mut owing, &puppet, vec![flush(3)]), [false]);
    assert_eq!(succeed(&mut owing, &puppet, vec![write(4, false), flush(5)]), [true; 2]);
}

#[test]
fn a_loss_that_somebody_asked_for_first_is_owed_all_the_same() {
    let (mut owing, puppet) = owing(false);
    succeed(&mut owing, &puppet, vec![write(1, false)]);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(events(&mut owing), [VolumeEvent::Lost]);
    assert_eq!(succeed(&mut owing, &puppet, vec![flush(2)]), [false]);
}

#[test]
fn who_has_nothing_to_lose_or_hears_of_losses_is_owed_no_flush() {
    for (is_heard, fua) in [(false, true), (true, false)] {
        let (mut owing, puppet) = owing(is_heard);
        succeed(&mut owing, &puppet, vec![write(1, fua)]);
        puppet.tell(VolumeEvent::Lost);
        assert_eq!(succeed(&mut owing, &puppet, vec![flush(2)]), [true], "{is_heard} {fua}");
        assert_eq!(events(&mut owing), [VolumeEvent::Lost]);
    }
}

fn of(user: u8, io: Io) -> Io {
    Io { user, ..io }
}

/// Whether flushes of these users succeed, one after the other.
fn flushes<const N: usize>(
    owing: &mut Owing<Puppet>,
    puppet: &Puppet,
    users: [u8; N],
) -> [bool; N] {
    users.map(|user| succeed(owing, puppet, vec![of(user, flush(1))])[0])
}

#[test]
fn a_loss_is_told_to_each_user_once_whoever_has_written() {
    let (mut owing, puppet) = owing(false);
    succeed(&mut owing, &puppet, vec![of(1, write(1, false)), of(2, Io::new(2, Op::Read, 0, 512))]);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), []);
    assert!(owing.owes());
    // Who comes while the writer was not told may be the writer, by another way.
    assert_eq!(flushes(&mut owing, &puppet, [2, 2, 3, 3]), [false, true, false, true]);
    assert_eq!(flushes(&mut owing, &puppet, [1, 1, 2, 3]), [false, true, true, true]);
    assert!(!owing.owes());
    assert_eq!(flushes(&mut owing, &puppet, [4]), [true], "all are told whose writes it was");
}

#[test]
fn who_has_asked_for_nothing_yet_is_told_too() {
    let (mut owing, puppet) = owing(false);
    owing.begin_user(2);
    succeed(&mut owing, &puppet, vec![of(1, write(1, false))]);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), []);
    assert_eq!(flushes(&mut owing, &puppet, [1]), [false]);
    // Beginning again pays nothing, and owes nothing.
    owing.begin_user(2);
    assert_eq!(flushes(&mut owing, &puppet, [2]), [false]);
    owing.begin_user(2);
    assert_eq!(flushes(&mut owing, &puppet, [2, 1]), [true, true]);
}

#[test]
fn who_comes_and_goes_without_a_word_takes_nothing_with_it() {
    let (mut owing, puppet) = owing(false);
    succeed(&mut owing, &puppet, vec![of(1, write(1, false))]);
    owing.end_user(1);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), []);
    owing.begin_user(2);
    owing.end_user(2);
    assert!(owing.owes());
    assert_eq!(flushes(&mut owing, &puppet, [3, 3]), [false, true]);
    assert!(!owing.owes());
}

#[test]
fn what_a_user_was_not_told_the_next_one_is() {
    for tells_before in [false, true] {
        let (mut owing, puppet) = owing(false);
        succeed(&mut owing, &puppet, vec![of(1, write(1, false)), of(2, flush(2))]);
        if tells_before {
            puppet.tell(VolumeEvent::Lost);
            assert_eq!(poll(&mut owing), []);
        }
        owing.end_user(1);
        if !tells_before {
            puppet.tell(VolumeEvent::Lost);
            assert_eq!(poll(&mut owing), []);
        }
        assert_eq!(flushes(&mut owing, &puppet, [2, 2]), [false, true]);
        assert_eq!(flushes(&mut owing, &puppet, [1, 1]), [false, true]);
        assert_eq!(flushes(&mut owing, &puppet, [3]), [true]);
    }
}

#[test]
fn who_leaves_with_all_flushed_leaves_nothing_to_tell() {
    let (mut owing, puppet) = owing(false);
    succeed(&mut owing, &puppet, vec![of(1, write(1, false))]);
    assert_eq!(flushes(&mut owing, &puppet, [1]), [true]);
    owing.end_user(1);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), []);
    assert!(!owing.owes());
    assert_eq!(flushes(&mut owing, &puppet, [2]), [true]);
}

#[test]
fn a_write_of_a_user_that_has_left_is_in_doubt_too() {
    let (mut owing, puppet) = owing(false);
    owing.submit(of(1, write(1, false)));
    owing.end_user(1);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut owing), []);
    owing.submit(of(2, flush(2)));
    let below = puppet.take();
    puppet.succeed(&below[1]);
    assert_eq!(poll(&mut owing), [false]);
    puppet.succeed(&below[0]);
    assert_eq!(poll(&mut owing), [true]);
    assert!(owing.owes(), "it is acknowledged behind what was told");
    assert_eq!(flushes(&mut owing, &puppet, [3, 3]), [false, true]);
}

#[test]
fn each_of_all_users_there_can_be_is_told() {
    let (mut owing, puppet) = owing(false);
    for user in 0..=u8::MAX {
        succeed(&mut owing, &puppet, vec![of(user, write(user.into(), false))]);
    }
    puppet.tell(VolumeEvent::Lost);
    for user in 0..=u8::MAX {
        assert_eq!(flushes(&mut owing, &puppet, [user, user]), [false, true], "user {user}");
    }
}

#[test]
fn a_durable_write_beside_a_loss_fails_as_itself() {
    let (mut owing, puppet) = owing(false);
    let zeroes = |token| Io { op: Op::WriteZeroes, ..write(token, true) };
    [write(1, true), zeroes(2)].into_iter().for_each(|io| owing.submit(io));
    let below = puppet.take();
    puppet.tell(VolumeEvent::Lost);
    below.iter().for_each(|io| puppet.succeed(io));
    let mut done = Vec::new();
    owing.poll(&mut done);
    let errors = done.iter().map(|one| one.result.unwrap_err());
    let errors: Vec<_> = errors.map(|e| (e.kind, e.op, e.offset, e.len, e.module)).collect();
    let expected = [Op::Write, Op::WriteZeroes].map(|op| (ErrorKind::Io, op, 0, 512, MODULE));
    assert_eq!(errors, expected);
    assert_eq!(succeed(&mut owing, &puppet, vec![write(3, true), zeroes(4), flush(5)]), [true; 3]);
}
