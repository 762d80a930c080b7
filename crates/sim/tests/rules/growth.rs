//! Volumes that grow while they are attached (`docs/protocol.md`, "Growth").

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_link::sim::Verdict;
use thinwire_sim::image::Change;
use thinwire_sim::medium::RecordFate;
use thinwire_sim::server::Crash;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{Frame, Message, event_code};

use crate::scene::{Scene, at, ms};

const MIB: u64 = 1 << 20;
/// The first sector behind the first MiB.
const BEYOND: usize = 2048;
/// Offered within this.
const SOON: Duration = ms(2000);

fn is_resize(bytes: &[u8]) -> bool {
    let is = |m: Message<'_>| matches!(m, Message::Event(e) if e.code == event_code::RESIZE);
    Frame::parse(bytes).is_ok_and(|frame| frame.messages().any(is))
}

fn known(s: &Scene, client: usize) -> u64 {
    s.world.clients[client].initiator.as_ref().unwrap().known_bytes()
}

fn grow(s: &mut Scene, mib: u64) {
    s.world.exports[0].grow(mib * MIB);
}

/// Every client knows the size, in time.
fn until_known(s: &mut Scene, mib: u64) {
    let began = s.world.now;
    s.until("everybody knows the size", move |w| {
        let knows =
            |at: usize| w.clients[at].initiator.as_ref().unwrap().known_bytes() == mib * MIB;
        (0..w.clients.len()).all(knows)
    });
    let took = Duration::from_nanos(s.world.now - began);
    assert!(took <= SOON, "{took:?}");
}

#[test]
fn what_a_volume_grows_by_is_told_used_and_kept() {
    let mut s = Scene::new().with_client();
    let reader = s.client();
    s.world.clients[reader].config.read_only = true;
    s.attach(reader);
    for mib in [2, 3, 7] {
        grow(&mut s, mib);
        until_known(&mut s, mib);
        s.write(at(BEYOND, 8));
    }
    // Unflushed, it is written again; flushed, it is there.
    s.restart(Crash::Power);
    s.read(at(BEYOND, 8));
    s.write(at(7 * 2048 - 8, 8));
    assert_eq!(s.flush(), Ok(()));
    s.restart(Crash::Power);
    s.read(at(7 * 2048 - 8, 8));
    assert_eq!((known(&s, 0), known(&s, reader)), (7 * MIB, 7 * MIB));
    s.end();
}

#[test]
fn an_event_that_is_lost_or_doubled_is_told_all_the_same() {
    for doubles in [false, true] {
        let mut s = Scene::new().with_client();
        let seen = Rc::new(Cell::new(0));
        let count = seen.clone();
        s.world.set_judge(move |_, _, bytes| {
            if !is_resize(bytes) {
                return Verdict::Pass;
            }
            count.set(count.get() + 1);
            match (doubles, count.get()) {
                // Late enough for the next size to come before it.
                (true, 1) => Verdict::Delay(3_000_000_000),
                (false, 1..=3) => Verdict::Drop,
                _ => Verdict::Pass,
            }
        });
        grow(&mut s, 2);
        s.pass(ms(1500));
        grow(&mut s, 3);
        until_known(&mut s, 3);
        s.pass(ms(4000));
        assert!(seen.get() >= 3, "{} events", seen.get());
        assert_eq!(known(&s, 0), 3 * MIB, "an old size changes nothing");
        s.write(at(2 * BEYOND, 8));
        s.end();
    }
}

/// The target dies when the size is durable and nobody has been told, or while a session is cut off.
#[test]
fn who_was_not_told_before_a_crash_finds_it_when_coming_back() {
    for how in [Crash::Kill, Crash::Power] {
        let mut s = Scene::new().with_client();
        s.write(at(0, 8));
        s.world.set_judge(
            |_, _, bytes| {
                if is_resize(bytes) { Verdict::Drop } else { Verdict::Pass }
            },
        );
        grow(&mut s, 2);
        let medium = s.medium.clone();
        s.until("it is durable", move |_| medium.sizes().1 == 2 * MIB);
        s.pass(ms(50));
        assert_eq!(known(&s, 0), MIB, "nobody was told");
        s.restart(how);
        s.until("told", |w| w.clients[0].initiator.as_ref().unwrap().known_bytes() == 2 * MIB);
        s.write(at(BEYOND, 8));
        s.read(at(0, 8));
        s.end();
    }
}

/// A size that no sync has saved may be gone with the power; nobody was told of it.
#[test]
fn a_size_that_was_never_durable_is_never_told() {
    let mut lost = 0;
    for seed in 0..20 {
        let mut s = Scene::seeded(seed).with_client();
        s.write(at(0, 8));
        s.medium.set_record_failure(1.0);
        grow(&mut s, 2);
        s.pass(ms(3000));
        assert_eq!(known(&s, 0), MIB);
        s.medium.set_record_failure(0.0);
        s.restart(Crash::Power);
        s.write(at(8, 8));
        lost += u32::from(s.medium.sizes().0 == MIB);
        s.end();
    }
    assert!((1..20).contains(&lost), "{lost} of 20 were lost with the power");
}

/// It would go on with zeroes where it has written.
#[test]
fn who_was_away_while_it_was_cut_and_grew_again_finds_other_content() {
    for forgets_cuts in [false, true] {
        for (grown, lives) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let mut s = Scene::new().with_client();
            s.medium.configure(|config| config.forgets_cuts = forgets_cuts);
            s.write(at(BEYOND - 8, 8));
            assert_eq!(s.flush(), Ok(()));
            s.set_reach(0, false);
            s.world.exports[0].change = Some((Change::Shrunk, 1));
            s.restart(Crash::Kill);
            s.pass(ms(100));
            grow(&mut s, grown);
            s.pass(ms(2000));
            if lives == 2 {
                s.restart(Crash::Power);
            }
            s.set_reach(0, true);
            let token = s.submit(0, Op::Read, at(0, 8));
            let outcome = s.outcome(0, token).result;
            let expected = if forgets_cuts { Ok(()) } else { Err(ErrorKind::ContentChanged) };
            assert_eq!(outcome, expected, "{grown} {lives}");
        }
    }
}

/// Whoever is let in must find that again, whatever becomes of the power.
#[test]
fn a_cut_that_cannot_be_remembered_lets_nobody_in() {
    use RecordFate::{Dies, Failed};
    for (fate, seed) in [Failed(false), Failed(true), Dies(false), Dies(true)]
        .into_iter()
        .flat_map(|fate| (0..6).map(move |seed| (fate, seed)))
    {
        let mut s = Scene::seeded(seed).with_client();
        s.write(at(BEYOND - 8, 8));
        assert_eq!(s.flush(), Ok(()));
        s.set_reach(0, false);
        s.world.exports[0].change = Some((Change::Shrunk, 1));
        s.medium.script_records([fate]);
        s.restart(Crash::Kill);
        s.until("it ends", |w| w.died.contains(&0));
        // It is there to be found, and not durable: nor does that succeed now.
        s.medium.set_record_failure(1.0);
        s.world.start_server(0);
        s.pass(ms(100));
        match s.world.servers[0].runs() {
            true => {
                grow(&mut s, 1);
                s.pass(ms(100));
                s.world.crash_server(0, Crash::Power);
            }
            false => s.medium.power_failure(),
        }
        s.medium.set_record_failure(0.0);
        s.world.start_server(0);
        s.set_reach(0, true);
        let token = s.submit(0, Op::Read, at(0, 8));
        assert_eq!(s.outcome(0, token).result, Err(ErrorKind::ContentChanged), "{fate:?}");
    }
}

#[test]
fn it_grows_while_a_replay_runs() {
    let mut s = Scene::new().with_client();
    (0..8).for_each(|nth| s.write(at(nth * 8, 8)));
    s.medium.set_latency(300_000_000, 300_000_000);
    s.restart(Crash::Kill);
    s.until("it replays", |w| w.initiator(0).phase() == thinwire_initiator::Phase::Replaying);
    grow(&mut s, 2);
    let token = s.submit(0, Op::Read, at(0, 8));
    s.outcome(0, token).result.unwrap();
    s.medium.set_latency(20_000, 200_000);
    until_known(&mut s, 2);
    s.write(at(BEYOND, 8));
    s.end();
}
