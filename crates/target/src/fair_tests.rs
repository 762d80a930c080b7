//! Who goes next, over lines of several exports, turns and stores that take their time.

use thinwire_proto::SipRng;

use super::*;

const SLOTS: u16 = 128;

fn at(us: u64) -> Time {
    Time(1_000_000_000 + us * 1000)
}

fn request(op: OpCode, length: u32) -> Request {
    Request {
        op: op as u8,
        op_flags: 0,
        slot: 0,
        attachment: 0,
        sequence: 1,
        generation: 0,
        length,
        address: 0,
    }
}

fn read() -> Request {
    request(OpCode::Read, 4096)
}

fn fair(lines: usize) -> Fair {
    let mut fair = Fair::new(SLOTS, false);
    (0..lines).for_each(|line| fair.add_line(line));
    fair
}

/// Two sessions have come, one after the other.
fn shared(lines: usize, now: Time) -> Fair {
    let mut fair = fair(lines);
    assert!(!fair.is_shared(now, 0));
    assert!(fair.is_shared(now, 1));
    fair
}

/// Whose requests go now; their stores are done with them at once, if `done`.
fn served(fair: &mut Fair, now: Time, line: usize, done: bool) -> Vec<usize> {
    let next = || {
        let (place, _) = fair.next(now)?;
        let mark = fair.begin(now, line, place, &read());
        assert_eq!(mark.place(), place);
        if done {
            fair.end(now, mark, true);
        }
        Some(place)
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn who_is_alone_passes_by() {
    let mut fair = fair(1);
    for us in 0..10_000 {
        assert!(!fair.is_shared(at(us), 7));
    }
    assert!(fair.is_shared(at(10_000), 8) && fair.is_shared(at(20_000), 8));
    assert!(fair.is_shared(at(1_009_999), 8), "for a second");
    assert!(!fair.is_shared(at(1_010_000), 8));
    // A session that is gone is nobody else.
    fair.forget(8);
    assert!(!fair.is_shared(at(1_010_001), 3) && !fair.is_shared(at(1_010_002), 3));
    let mut first_come = Fair::new(SLOTS, true);
    first_come.add_line(0);
    assert!((0..64).all(|place| !first_come.is_shared(at(0), place)));
}

#[test]
fn a_mark_is_that_of_its_place() {
    assert_eq!(Mark::unshared(1023).place(), 1023);
    assert!(!Mark::unshared(1023).is_noted());
    for note in [0, 1, 1 << 20] {
        let mark = Mark::noted(1023, note);
        assert_eq!((mark.place(), mark.is_noted(), mark.note()), (1023, true, note));
    }
}

/// A turn is as long as it takes for a few requests; what is left has the next one at once.
#[test]
fn turns_are_short_while_sessions_come_in_turns() {
    let mut fair = shared(1, at(0));
    (0..128).for_each(|slot| fair.wait(0, 0, slot, &read()));
    assert_eq!(served(&mut fair, at(0), 0, true).len(), 16);
    // Of the same turn.
    fair.end_turn(at(1));
    assert_eq!(served(&mut fair, at(1), 0, true).len(), 0);
    assert_eq!(fair.deadline(at(1)), at(1));
    // Somebody with little is first in the next.
    fair.wait(0, 1, 5, &read());
    let turn = served(&mut fair, at(2), 0, true);
    assert_eq!((turn[0], turn.len()), (1, 16));
    // One that is larger than a turn has one of its own.
    let large = request(OpCode::Read, 1 << 20);
    fair.wait(0, 1, 6, &large);
    fair.end_turn(at(2));
    assert_eq!(fair.next(at(3)), Some((1, 6)));
    assert_eq!(fair.next(at(3)), None);
    // Once nobody else has come for a while all that waits goes.
    fair.end_turn(at(3));
    assert_eq!(served(&mut fair, at(30_000), 0, true).len(), 128 - 16 - 15);
    assert!(!fair.is_waited_in() && fair.deadline(at(30_000)) == Time(u64::MAX));
}

/// With many sessions a turn is longer, since it costs something for each of them.
#[test]
fn a_turn_grows_with_the_sessions() {
    let mut fair = shared(1, at(0));
    for place in 0..64 {
        (0..SLOTS).for_each(|slot| fair.wait(0, place, slot, &read()));
    }
    let turn = served(&mut fair, at(0), 0, true);
    assert_eq!(turn.len(), 16 + 62 * 4);
    let of = |place| turn.iter().filter(|&&p| p == place).count();
    assert!((0..64).all(|place| of(place) == 0 || of(place) == 8), "{turn:?}");
}

#[test]
fn a_full_store_holds_up_nobody_elses() {
    let mut fair = shared(2, at(0));
    (0..8).for_each(|slot| fair.wait(0, 0, slot, &read()));
    let mut marks = Vec::new();
    while let Some((place, _)) = fair.next(at(0)) {
        marks.push(fair.begin(at(0), 0, place, &read()));
    }
    assert_eq!(marks.len(), 4);
    // It wakes nobody: its store will.
    assert_eq!(fair.deadline(at(0)), at(0) + STALL);
    (0..4).for_each(|slot| fair.wait(1, 1, slot, &read()));
    assert_eq!(served(&mut fair, at(1), 1, true), [1; 4]);
    fair.end(at(2), marks.pop().unwrap(), true);
    assert_eq!(fair.next(at(2)), Some((0, 4)));
    // It was not taken.
    let mark = fair.begin(at(2), 0, 0, &read());
    fair.end(at(2), mark, false);
    assert_eq!(fair.next(at(2)), Some((0, 5)));
    let _ = fair.begin(at(2), 0, 0, &read());
    assert_eq!(fair.next(at(3)), None);
    // It hangs: others go on after a while.
    let later = fair.deadline(at(3));
    assert_eq!((later, fair.next(later)), (at(0) + STALL, None), "it looks, and finds a later one");
    let later = fair.deadline(later);
    assert_eq!((later, fair.next(later)), (at(2) + STALL, Some((0, 6))));
}

/// Lines with their own sessions share a turn as if all stood in one.
#[test]
fn lines_share_by_their_sessions_and_their_weights() {
    let mut fair = shared(3, at(0));
    fair.set_weight(2, 3);
    // Two sessions, one, and one of weight 3.
    let lines = [0, 0, 1, 2];
    for (place, line) in lines.into_iter().enumerate() {
        (0..SLOTS).for_each(|slot| fair.wait(line, place, slot, &read()));
    }
    let mut counts = [0; 4];
    for turn in 0..2000 {
        let now = at(10 + turn);
        // They go on coming.
        fair.short_until = now + SHORT_TURNS;
        while let Some((place, slot)) = fair.next(now) {
            let mark = fair.begin(now, lines[place], place, &read());
            fair.end(now, mark, true);
            counts[place] += 1;
            fair.wait(lines[place], place, slot, &read());
        }
        fair.end_turn(now);
    }
    let sum: i32 = counts.iter().sum();
    for (count, weight) in counts.into_iter().zip([1, 1, 1, 3]) {
        let off = (count - sum * weight / 6).abs();
        assert!(off <= 32, "{counts:?}");
    }
}

/// Whatever happens: who waits is served once, unless it gives up, and what is begun is bounded.
#[test]
fn nobody_is_forgotten_or_served_twice() {
    for seed in 0..50 {
        let mut rng = SipRng::new(seed);
        let mut fair = shared(4, at(0));
        let mut waiting = std::collections::BTreeMap::new();
        let mut begun = Vec::new();
        let mut now = at(0);
        for _ in 0..3000 {
            let (place, slot) = ((rng.next_u64() % 9) as usize, (rng.next_u64() % 16) as u16);
            match rng.next_u64() % 16 {
                0 => {
                    fair.remove(place, slot);
                    waiting.remove(&(place, slot));
                }
                1 if rng.next_u64() % 8 == 0 => {
                    fair.forget(place);
                    waiting.retain(|&(other, _), _| other != place);
                }
                2..=8 => {
                    if !begun.is_empty() {
                        let mark = begun.swap_remove(rng.next_u64() as usize % begun.len());
                        fair.end(now, mark, slot > 0);
                    }
                }
                _ if waiting.contains_key(&(place, slot)) => assert!(fair.waits(place, slot)),
                _ => {
                    let line = (rng.next_u64() % 4) as usize;
                    let length = 512 << (rng.next_u64() % 12);
                    let op = [OpCode::Read, OpCode::Write, OpCode::Flush, OpCode::Discard];
                    let request = request(op[(rng.next_u64() % 4) as usize], length);
                    fair.is_shared(now, place);
                    fair.wait(line, place, slot, &request);
                    waiting.insert((place, slot), (line, request));
                }
            }
            assert_eq!(fair.is_waited_in(), !waiting.is_empty());
            if rng.next_u64() % 4 == 0 {
                while let Some(next) = fair.next(now) {
                    let (line, request) = waiting.remove(&next).expect("it waits");
                    begun.push(fair.begin(now, line, next.0, &request));
                }
                fair.end_turn(now);
                now = now + Duration::from_micros(rng.next_u64() % 100);
            }
        }
        // All stores let go of everything.
        while !waiting.is_empty() {
            begun.drain(..).for_each(|mark| fair.end(now, mark, true));
            now = now + Duration::from_micros(10);
            while let Some(next) = fair.next(now) {
                let (line, request) = waiting.remove(&next).expect("it waits");
                begun.push(fair.begin(now, line, next.0, &request));
            }
            assert!(!begun.is_empty() || waiting.is_empty(), "seed {seed}: nobody goes on");
            fair.end_turn(now);
        }
        assert_eq!(fair.waiting, 0);
        assert!(fair.notes.len() <= 9 * 16 + 16);
    }
}
