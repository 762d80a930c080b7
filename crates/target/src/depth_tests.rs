//! Stores of many kinds, each beside one that is given all at once: they do hardly less, and have as little as
//! they need for it.

use thinwire_proto::SipRng;

use super::*;

const US: u64 = 1_000;
const SECOND: u64 = 1_000_000 * US;
/// The loop looks so often at what has ended.
const TURN: u64 = 20 * US;
/// Somebody has always so many requests more.
const GREEDY: usize = 128;

/// How a store works.
#[derive(Clone, Copy)]
struct Store {
    /// It does so many things at a time.
    wide: usize,
    /// For so long each: 4 KiB and every byte more.
    page_ns: u64,
    mib_ns: u64,
    /// So many in a hundred take a tenth of that, or a thousand: it has them in memory.
    hits: u64,
    /// Each takes between nothing and twice as long, by chance.
    is_random: bool,
    /// It tells of all at once when it has nothing left to do.
    tells_together: bool,
}

const SERIAL: Store = Store {
    wide: 1,
    page_ns: 50 * US,
    mib_ns: 5_000 * US,
    hits: 0,
    is_random: false,
    tells_together: false,
};

/// What a store did: cost a second, and requests that it had on average.
#[derive(Debug)]
struct Did {
    cost: u64,
    had: f64,
}

/// Requests of these bytes in turn, for `seconds`, of which the last two thirds are looked at.
fn run(store: Store, bytes: &[u32], seconds: u64, is_bounded: bool) -> Did {
    let mut depth = Depth::new();
    let mut rng = SipRng::new(7);
    let mut now = 0;
    // When each channel is free, and what is under way: the time at which it ends, and what is told of it.
    let mut free = vec![0u64; store.wide];
    let mut under_way: Vec<(u64, Begun)> = Vec::new();
    let (mut cost, mut had, mut looks, mut next) = (0, 0.0, 0.0, 0);
    let from = seconds * SECOND / 3;
    while now < seconds * SECOND {
        while under_way.len() < GREEDY {
            let len = bytes[next % bytes.len()];
            if is_bounded && !depth.has_room(REQUEST_COST + len) {
                break;
            }
            next += 1;
            let mut takes = store.page_ns + store.mib_ns * u64::from(len - 4096) / (1 << 20);
            if rng.next_u64() % 100 < store.hits {
                takes /= 100;
            }
            if store.is_random {
                takes = takes / 8 + rng.next_u64() % (2 * takes);
            }
            let channel = free.iter_mut().min().expect("it is at least one wide");
            let ends = now.max(*channel) + takes;
            *channel = ends;
            under_way.push((ends, depth.begin(Time(now), 0, REQUEST_COST + len)));
        }
        let first = match store.tells_together {
            true => under_way.iter().map(|&(ends, _)| ends).max(),
            false => under_way.iter().map(|&(ends, _)| ends).min(),
        };
        let before = now;
        now = first.expect("somebody always waits").max(now + TURN).next_multiple_of(TURN);
        if now > from {
            had += under_way.len() as f64 * (now - before) as f64;
            looks += (now - before) as f64;
        }
        under_way.retain(|&(ends, begun)| {
            if ends <= now {
                depth.end(Time(now), begun, true);
                cost += if now > from { u64::from(begun.cost) } else { 0 };
            }
            ends > now
        });
    }
    let cost = u128::from(cost) * u128::from(SECOND) / u128::from(now - from);
    Did { cost: cost as u64, had: had / looks }
}

/// It does at least so much in a hundred of what it does with all at once, with so many requests at most.
#[track_caller]
fn compare(store: Store, bytes: &[u32], percent: u64, had_max: f64) {
    let (all, own) = (run(store, bytes, 6, false), run(store, bytes, 6, true));
    println!("{all:?} {own:?}");
    assert!(100 * own.cost >= percent * all.cost, "{own:?} of {all:?}");
    assert!(own.had <= had_max, "{own:?}");
}

#[test]
fn one_that_does_one_thing_at_a_time() {
    compare(SERIAL, &[4096], 90, 3.0);
    compare(SERIAL, &[128 << 10], 90, 3.0);
    compare(SERIAL, &[4096, 4096, 4096, 128 << 10], 90, 4.0);
}

#[test]
fn one_that_is_wide() {
    for wide in [4, 16, 32] {
        compare(Store { wide, ..SERIAL }, &[4096], 85, 3.0 * wide as f64);
    }
    compare(Store { wide: 8, ..SERIAL }, &[128 << 10], 85, 24.0);
}

#[test]
fn one_whose_requests_take_a_random_time() {
    let random = Store { is_random: true, ..SERIAL };
    compare(random, &[4096], 85, 4.0);
    compare(Store { wide: 16, ..random }, &[4096], 80, 48.0);
    // A disk that turns.
    compare(Store { page_ns: 4_000 * US, ..random }, &[4096], 85, 6.0);
}

/// The time of a request says nothing there.
#[test]
fn one_that_has_much_of_it_in_memory() {
    for hits in [50, 90, 99] {
        let half = Store { hits, page_ns: 400 * US, wide: 8, ..SERIAL };
        compare(half, &[4096], 70, 128.0);
    }
}

#[test]
fn one_that_tells_of_all_together() {
    compare(Store { tells_together: true, page_ns: 20 * US, ..SERIAL }, &[4096], 70, 32.0);
}

/// Half of what it is given hangs.
#[test]
fn who_can_go_on_does_while_others_hang() {
    let mut depth = Depth::new();
    let mut now = Time(SECOND);
    let (mut hanging, mut done) = (0, 0);
    for next in 0..2000 {
        while !depth.has_room(8192) {
            now = now + STALL;
            assert_eq!(now, depth.changed_at() + STALL);
            depth.on_stall(now);
        }
        let begun = depth.begin(now, 0, 8192);
        if next % 2 == 0 && hanging < GREEDY {
            hanging += 1;
        } else {
            now = now + Duration::from_micros(50);
            depth.end(now, begun, true);
            done += 1;
        }
    }
    assert_eq!((hanging, done), (128, 1872));
    assert!(now < Time(2 * SECOND), "{now:?}");
}

/// What costs a store nothing is always let in.
#[test]
fn a_flush_waits_for_no_room() {
    let mut depth = Depth::new();
    let begun: Vec<Begun> = (0..4).map(|_| depth.begin(Time(1), 0, 8192)).collect();
    assert!(!depth.has_room(8192) && depth.has_room(0));
    let flush = depth.begin(Time(1), 0, 0);
    depth.end(Time(2), flush, true);
    depth.end(Time(2), begun[0], true);
    assert!(depth.has_room(8192) && !depth.has_room(8193));
}
