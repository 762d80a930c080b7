//! Data that is checked end to end (`docs/protocol.md`, "Integrity"): what memory or a link has altered is found, on
//! whichever side, and made good where that can be done.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_initiator::AlteredStats;
use thinwire_link::rng::Rng;
use thinwire_link::sim::Verdict;
use thinwire_sim::damage::{BadBuffers, Damage};
use thinwire_sim::server::Crash;
use thinwire_sim::world::SECOND;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{Frame, Message};

use crate::scene::{Scene, at};

/// A client whose data is checked, attached.
fn checked() -> Scene {
    let mut s = Scene::new();
    let client = s.client();
    s.world.clients[client].config.integrity = true;
    s.attach(client);
    // Larger frames than the first have been probed by then.
    s.pass(Duration::from_secs(1));
    s
}

fn altered(s: &Scene) -> AlteredStats {
    s.stats(0).altered
}

fn refused(s: &Scene) -> u64 {
    s.world.servers[0].targets().map(|target| target.stats().altered).sum()
}

/// Of 1, 8 and more blocks, also such that begin and end within one: bits, places and sums, as the dice fall.
#[test]
fn integrity_a_write_that_is_altered_once_is_sent_again_and_twice_fails() {
    let mut s = checked();
    let (mut writes, mut failed) = (0, 0);
    for round in 0..40 {
        let range = at(16 + round as usize * 3, [1, 8, 9, 40, 200][round as usize % 5]);
        for times in [1, 2] {
            let damage = Damage::of_the_next(Rng::new(round), times);
            s.world.servers[0].shards[0].machine.damage = Some(damage);
            let result = s.run(Op::Write, range);
            s.world.servers[0].shards[0].machine.damage = None;
            // Of a longer one several frames may be altered before it is looked at.
            if range.count <= 9 {
                assert_eq!(result, if times == 1 { Ok(()) } else { Err(ErrorKind::Altered) });
                (writes, failed) = (writes + times, failed + times - 1);
                assert_eq!((altered(&s).writes, altered(&s).failed), (writes, failed));
            } else {
                assert!(matches!(result, Ok(()) | Err(ErrorKind::Altered)), "{result:?}");
                assert!(altered(&s).writes > writes, "nothing was found");
                (writes, failed) = (altered(&s).writes, altered(&s).failed);
            }
            s.write(range);
            s.read(range);
        }
    }
    assert_eq!((altered(&s).here, refused(&s)), (0, altered(&s).writes));
    assert_eq!(s.flush(), Ok(()));
    s.end();
}

#[test]
fn integrity_a_read_that_is_altered_once_is_made_again_and_twice_fails() {
    let mut s = checked();
    s.write(at(0, 256));
    let (mut reads, mut failed) = (0, 0);
    for round in 0..40 {
        let range = at(16 + round as usize * 3, [1, 8, 9][round as usize % 3]);
        for times in [1, 2] {
            s.world.clients[0].machine.damage = Some(Damage::of_the_next(Rng::new(round), times));
            let result = s.run(Op::Read, range);
            s.world.clients[0].machine.damage = None;
            assert_eq!(result, if times == 1 { Ok(()) } else { Err(ErrorKind::Altered) });
            (reads, failed) = (reads + times, failed + times - 1);
            assert_eq!(altered(&s), AlteredStats { reads, failed, ..AlteredStats::default() });
        }
        // A request that goes elsewhere is no other thing.
        let damage = Damage::of_the_next(Rng::new(round), 1);
        s.world.servers[0].shards[0].machine.damage = Some(damage);
        assert_eq!(s.run(Op::Read, range), Ok(()));
        let damage = s.world.servers[0].shards[0].machine.damage.take().unwrap();
        reads += damage.stats().places;
        assert_eq!(altered(&s).reads, reads);
    }
    s.end();
}

/// Its memory goes bad when the write was acknowledged, and is needed again: the flush says so.
#[test]
fn integrity_what_goes_bad_while_it_is_retained_is_not_written_by_a_replay() {
    let mut s = checked();
    let buffers = BadBuffers::new(Rng::new(5), 1.0, (SECOND, SECOND));
    s.world.clients[0].buffers = Some(buffers);
    s.write(at(16, 8));
    s.world.clients[0].buffers.as_mut().unwrap().rest();
    s.write(at(64, 8));
    s.restart(Crash::Power);
    s.read(at(0, 8));
    assert_eq!((s.stats(0).replayed, altered(&s).here), (2, 0), "it was still good");
    s.world.clients[0].buffers = Some(BadBuffers::new(Rng::new(5), 1.0, (SECOND, SECOND)));
    s.write(at(128, 8));
    s.pass(Duration::from_secs(2));
    s.restart(Crash::Power);
    s.read(at(0, 8));
    assert_eq!((s.stats(0).replayed, s.stats(0).replay_failures), (5, 1));
    assert_eq!((altered(&s).here, altered(&s).failed), (1, 1));
    assert_eq!(s.flush(), Err(ErrorKind::Io), "something that was acknowledged is lost");
    assert_eq!(s.flush(), Ok(()));
    s.read(at(16, 8));
    s.read(at(64, 8));
    s.world.clients[0].buffers = None;
    s.write(at(128, 8));
    s.end();
}

/// A replay whose data is altered on its way goes through the second time.
#[test]
fn integrity_a_replay_that_is_altered_once_is_sent_again() {
    let mut s = checked();
    (0..5).for_each(|nth| s.write(at(16 + nth * 16, 8)));
    let damage = Damage::of_the_next(Rng::new(1), 1);
    s.world.servers[0].shards[0].machine.damage = Some(damage);
    s.restart(Crash::Power);
    s.read(at(0, 128));
    // Two in one frame may have changed places.
    assert!((1..=2).contains(&altered(&s).writes), "{:?}", altered(&s));
    assert_eq!((altered(&s).failed, s.stats(0).replay_failures), (0, 0));
    assert_eq!(s.flush(), Ok(()));
    s.end();
}

/// Without it no sum is sent.
#[test]
fn integrity_is_only_where_it_was_asked_for() {
    for integrity in [false, true] {
        let mut s = if integrity { checked() } else { Scene::new().with_client() };
        let sums = Rc::<Cell<u64>>::default();
        let count = sums.clone();
        s.world.set_judge(move |_, _, bytes| {
            let frame = Frame::parse(bytes).expect("a frame without a key");
            let of_frame = frame.messages().filter(|m| matches!(m, Message::Sums(_))).count();
            count.set(count.get() + of_frame as u64);
            Verdict::Pass
        });
        s.write(at(0, 64));
        s.read(at(0, 64));
        s.run(Op::WriteZeroes, at(8, 8)).unwrap();
        assert_eq!(s.flush(), Ok(()));
        assert_eq!(sums.get(), if integrity { 2 } else { 0 });
        assert_eq!((altered(&s), refused(&s)), (AlteredStats::default(), 0));
        s.end();
    }
}
