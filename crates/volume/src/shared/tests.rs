//! What several have of one volume: by hand, and by the suite of all volumes beside another share.

use thinwire_buffer::{Pool, SegList};

use super::*;
use crate::stores::MemoryStore;
use crate::testing::{Puppet, exercise};
use crate::{Identity, IoFlags};

const HALF: u64 = Puppet::GEOMETRY.bytes / 2;

fn claim(start: u64, end: u64) -> ByteClaim {
    ByteClaim { start, end, is_read: false }
}

/// A puppet, and a share of each half of it.
fn halves(canary: SharedCanary) -> (Puppet, VolumeShare, VolumeShare) {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let shared = SharedVolume::with_canary(Box::new(puppet.clone()), canary);
    let share = |start, end| shared.share(claim(start, end)).unwrap();
    let (left, right) = (share(0, HALF), share(HALF, u64::MAX));
    (puppet, left, right)
}

fn write(token: Token, offset: u64, fua: bool) -> Io {
    let data = SegList::of(Pool::new(0).copy_of(&[7; 512]).freeze());
    let flags = IoFlags { fua, ..IoFlags::default() };
    Io { data, flags, ..Io::new(token, Op::Write, offset, 512) }
}

fn flush(token: Token) -> Io {
    Io::new(token, Op::Flush, 0, 0)
}

fn poll(share: &mut VolumeShare) -> Vec<(Token, bool)> {
    let mut done = Vec::new();
    share.poll(&mut done);
    done.iter().map(|one| (one.token, one.result.is_ok())).collect()
}

/// What has happened to it, if its count says that there is something.
fn events(share: &mut VolumeShare, seen: &mut u64) -> Vec<VolumeEvent> {
    let mut events = Vec::new();
    if std::mem::replace(seen, share.events()) != share.events() {
        share.poll_events(&mut events);
    }
    events
}

/// It has written, and all of that has completed.
fn has_written(puppet: &Puppet, share: &mut VolumeShare, offset: u64) {
    share.submit(write(1, offset, false));
    puppet.succeed(&puppet.take_one());
    assert_eq!(poll(share), [(1, true)]);
}

/// A sync of one fails, of which the volume says nothing itself: who else hears of it.
fn told_of_a_failure(sync: Io, canary: SharedCanary) -> [Vec<VolumeEvent>; 3] {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let shared = SharedVolume::with_canary(Box::new(puppet.clone()), canary);
    let mut shares = [(0, 1024), (1024, 2048), (2048, 3072)]
        .map(|(start, end)| shared.share(claim(start, end)).unwrap());
    let mut seen = [0; 3];
    for (share, offset) in shares.iter_mut().zip([0, 1024, 2048]) {
        has_written(&puppet, share, offset);
    }
    // What the last one has written is durable.
    shares[2].submit(flush(2));
    puppet.succeed(&puppet.take_one());
    assert_eq!(poll(&mut shares[2]), [(2, true)]);
    shares[0].submit(sync);
    puppet.fail(&puppet.take_one());
    // Nobody but who has asked needs to poll for it.
    assert_eq!(poll(&mut shares[0]).len(), 1);
    let [a, b, c] = &mut shares;
    let [x, y, z] = &mut seen;
    [events(a, x), events(b, y), events(c, z)]
}

#[test]
fn a_sync_that_fails_is_told_to_all_who_have_unflushed_writes() {
    for sync in [flush(9), write(9, 0, true)] {
        let told = told_of_a_failure(sync, SharedCanary::None);
        assert_eq!(told, [vec![], vec![VolumeEvent::Lost], vec![]]);
    }
    // Canary.
    let told = told_of_a_failure(flush(9), SharedCanary::FailureToldOne);
    assert_eq!(told, [vec![], vec![], vec![]]);
}

#[test]
fn who_polls_hears_that_another_has_something_to_hear_of() {
    let (puppet, mut left, mut right) = halves(SharedCanary::None);
    has_written(&puppet, &mut right, HALF);
    let (before, of_right) = (left.events(), right.events());
    left.submit(flush(2));
    puppet.fail(&puppet.take_one());
    assert_eq!(poll(&mut left), [(2, false)]);
    // Whoever asks all volumes once one has news, as the door does, is led to the other.
    assert_ne!(left.events(), before);
    assert_ne!(right.events(), of_right);
    let mut told = Vec::new();
    left.poll_events(&mut told);
    assert_eq!(told, []);
    right.poll_events(&mut told);
    assert_eq!(told, [VolumeEvent::Lost]);
    right.poll_events(&mut told);
    assert_eq!(told.len(), 1, "once");
}

#[test]
fn writes_that_a_flush_does_not_cover_are_in_doubt() {
    let (puppet, mut left, mut right) = halves(SharedCanary::None);
    has_written(&puppet, &mut right, HALF);
    // One more is outstanding when the flush begins, so that does not cover it.
    right.submit(write(2, HALF, false));
    right.submit(flush(3));
    puppet.take().iter().for_each(|io| puppet.succeed(io));
    assert_eq!(poll(&mut right), [(2, true), (3, true)]);
    left.submit(flush(4));
    puppet.fail(&puppet.take_one());
    poll(&mut left);
    let mut told = Vec::new();
    right.poll_events(&mut told);
    assert_eq!(told, [VolumeEvent::Lost]);
}

#[test]
fn what_happens_to_the_volume_is_told_to_all_and_once() {
    let (puppet, mut left, mut right) = halves(SharedCanary::None);
    let (mut of_left, mut of_right) = (left.events(), right.events());
    for event in [
        VolumeEvent::Lost,
        VolumeEvent::Resized { bytes: 1 << 20 },
        VolumeEvent::Fenced { of: None },
        VolumeEvent::Shrunk,
    ] {
        puppet.tell(event.clone());
        assert_eq!(events(&mut left, &mut of_left), std::slice::from_ref(&event));
        assert_eq!(events(&mut right, &mut of_right), [event]);
        assert_eq!(events(&mut right, &mut of_right), []);
    }
    // A flush that fails with a loss that all have been told of is no other one.
    has_written(&puppet, &mut right, HALF);
    left.submit(flush(2));
    puppet.tell(VolumeEvent::Lost);
    puppet.fail(&puppet.take_one());
    assert_eq!(poll(&mut left), [(2, false)]);
    assert_eq!(events(&mut right, &mut of_right), [VolumeEvent::Lost]);
    assert_eq!(events(&mut right, &mut of_right), []);
}

#[test]
fn who_comes_late_hears_of_what_stays_so() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let shared = SharedVolume::new(Box::new(puppet.clone()));
    let mut early = shared.share(claim(0, 1024)).unwrap();
    let lasting = [VolumeEvent::Shrunk, VolumeEvent::Fenced { of: None }];
    for event in [&lasting[..], &[VolumeEvent::Lost]].concat() {
        puppet.tell(event);
    }
    let mut of_early = 0;
    assert_eq!(events(&mut early, &mut of_early).len(), 3);
    let mut late = shared.share(claim(1024, 2048)).unwrap();
    // As who takes it in does, it counts from what it finds.
    let mut of_late = late.events();
    assert_eq!(poll(&mut late), []);
    assert_eq!(events(&mut late, &mut of_late), lasting);
    assert_eq!(events(&mut early, &mut of_early), []);
    assert_eq!(poll(&mut late), []);
    assert_eq!(events(&mut late, &mut of_late), []);
}

#[test]
fn nobody_gets_what_another_has() {
    let shared = |canary| {
        let puppet = Puppet::new(1, Puppet::GEOMETRY);
        SharedVolume::with_canary(Box::new(puppet), canary)
    };
    let disk = shared(SharedCanary::None);
    let _left = disk.share(claim(1024, 2048)).unwrap();
    for (start, end) in [(1024, 2048), (0, 1536), (0, u64::MAX), (1536, 4096), (2048 - 512, 2560)] {
        let wanted = claim(start, end);
        assert_eq!(disk.share(wanted).err(), Some(claim(1024, 2048)), "{wanted}");
        // Nor to read what is written.
        assert!(disk.share(ByteClaim { is_read: true, ..wanted }).is_err(), "{wanted}");
    }
    let read = |start, end| ByteClaim { start, end, is_read: true };
    let _before = disk.share(read(0, 1024)).unwrap();
    let _too = disk.share(read(512, 1024)).expect("both only read");
    let _behind = disk.share(claim(2048, u64::MAX)).unwrap();
    assert_eq!(disk.share(claim(1 << 30, 1 << 31)).err(), Some(claim(2048, u64::MAX)));
    // Canary: an overlap by one block.
    let deaf = shared(SharedCanary::LastBlockOpen);
    let _left = deaf.share(claim(1024, 2048)).unwrap();
    assert!(deaf.share(claim(2048 - 512, 2560)).is_ok());
}

#[test]
fn what_is_not_its_own_never_reaches_the_volume() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let shared = SharedVolume::new(Box::new(puppet.clone()));
    let mut share = shared.share(claim(1024, 2048)).unwrap();
    let mut reader = shared.share(ByteClaim { is_read: true, ..claim(2048, 4096) }).unwrap();
    assert!(reader.geometry().features.read_only && !share.geometry().features.read_only);
    let range = |op, offset, len| Io::new(1, op, offset, len);
    for io in [
        write(1, 512, false),
        write(1, 2048, false),
        range(Op::Read, 512, 1024),
        range(Op::Discard, 1536, 1024),
        range(Op::WriteZeroes, 0, 8192),
        range(Op::BlockStatus, 2048, 512),
        range(Op::Read, u64::MAX - 511, 512),
        range(Op::LoadWriter, 0, 0),
        range(Op::StoreWriter, 0, 0),
        range(Op::Cut, 0, 0),
    ] {
        let what = format!("{io:?}");
        share.submit(io);
        assert_eq!((share.outstanding(), poll(&mut share)), (1, vec![(1, false)]), "{what}");
        assert!(puppet.take().is_empty(), "{what}");
    }
    reader.submit(write(1, 2048, false));
    assert_eq!(poll(&mut reader), [(1, false)]);
    assert!(puppet.take().is_empty());
    share.submit(range(Op::Read, 1024, 1024));
    reader.submit(range(Op::Read, 2048, 512));
    assert_eq!(puppet.take().len(), 2);
}

/// One polls, and takes in what another waits for.
fn is_called(canary: SharedCanary) -> bool {
    let (puppet, mut left, mut right) = halves(canary);
    let now = Time(7);
    right.submit(write(5, HALF, false));
    puppet.succeed(&puppet.take_one());
    assert_eq!((right.turn(now), poll(&mut left)), (Time::NEVER, vec![]));
    let is_called = right.turn(now) == now;
    assert_eq!((right.outstanding(), left.turn(now)), (1, Time::NEVER));
    assert_eq!((poll(&mut right), right.turn(now)), (vec![(5, true)], Time::NEVER));
    is_called
}

#[test]
fn who_has_something_to_take_in_is_called() {
    assert!(is_called(SharedCanary::None));
    assert!(!is_called(SharedCanary::OthersAsleep));
    // A volume that waits for something itself is told the time.
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    puppet.want_turn(Time(9));
    let shared = SharedVolume::new(Box::new(puppet.clone()));
    let mut share = shared.share(claim(0, 512)).unwrap();
    assert!(share.is_timed());
    assert_eq!(share.turn(Time(3)), Time(9));
    assert_eq!(puppet.turned(), Some(Time(3)));
}

#[test]
fn one_goes_while_the_other_goes_on() {
    let puppet = Puppet::new(1, Puppet::GEOMETRY);
    let shared = SharedVolume::new(Box::new(puppet.clone()));
    let mut left = shared.share(claim(0, HALF)).unwrap();
    let mut right = shared.share(claim(HALF, u64::MAX)).unwrap();
    // Work of the volume for itself is the business of those who stay.
    puppet.be_busy(true);
    assert!(right.is_at_rest());
    right.submit(write(1, HALF, false));
    left.submit(write(1, 0, false));
    assert!(!right.is_at_rest());
    let [of_right, of_left] = <[Io; 2]>::try_from(puppet.take()).unwrap();
    drop(right);
    // Its write may still land, so nobody gets these bytes.
    assert!(shared.share(claim(HALF, u64::MAX)).is_err());
    puppet.succeed(&of_right);
    puppet.tell(VolumeEvent::Lost);
    assert_eq!(poll(&mut left), []);
    let mut right = shared.share(claim(HALF, u64::MAX)).unwrap();
    puppet.succeed(&of_left);
    assert_eq!((poll(&mut right), poll(&mut left)), (vec![], vec![(1, true)]));
    // What happened before is no news of one that has come since.
    let mut told = Vec::new();
    right.poll_events(&mut told);
    assert_eq!(told, []);
    left.poll_events(&mut told);
    assert_eq!(told, [VolumeEvent::Lost]);
    drop(right);
    assert!(!left.is_at_rest(), "the last one");
    puppet.be_busy(false);
    assert!(left.is_at_rest());
}

#[test]
fn a_share_is_a_volume_beside_another() {
    const AREA: u64 = 2 << 20;
    let pool = Pool::new(16 << 20);
    let store = MemoryStore::new(2 * AREA, 512, Identity::default(), &pool);
    let shared = SharedVolume::new(Box::new(store));
    let mut left = shared.share(claim(0, AREA)).unwrap();
    let mut right = shared.share(claim(AREA, u64::MAX)).unwrap();
    let mut io = Io::new(1, Op::Write, AREA, 4096);
    io.data = SegList::of(pool.copy_of(&[7; 4096]).freeze());
    right.submit(io);
    assert_eq!(poll(&mut right), [(1, true)]);
    let report = exercise(&mut left, &mut || {}, 14, 2000);
    assert!(report.ios > 1000, "{report:?}");
    right.submit(Io::new(2, Op::Read, AREA, 4096));
    let mut done = Vec::new();
    right.poll(&mut done);
    let read = done[0].data.to_vec();
    assert!(read == [7; 4096], "what the other did was its own");
}
