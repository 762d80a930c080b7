//! Hundreds of sessions with hundreds of exports: each pays for itself.

use std::time::{Duration, Instant};

use super::*;

/// A door to so many exports, each held by a session of its own and read by another.
fn crowd(count: u64) -> Exports {
    let mut exports = Exports::new(ExportsConfig::default(), 7, &Pool::new(0));
    let mut users = Dialect::default();
    for session in 0..count {
        let disk = FileStore::new(MemDisk::new(4096, 512, 1), 512, &Pool::new(0)).unwrap();
        let (name, volume) = (format!("e{session}"), Box::new(disk));
        exports.add(ExportConfig { name, volume, read_only: false });
        let user = User { session, ..user(1) };
        let export = session as usize;
        let claim =
            WriteClaim { user: &user, transaction: 1, export, resumes: None, takes_over: false };
        exports.claim(AT, claim).unwrap();
        exports.open_read(count + session, export);
    }
    settle(&mut exports, &mut users);
    assert_eq!(users.granted.len() as u64, count);
    exports
}

/// Whoever is heard, opens, takes over or goes costs the same however many others there are.
#[test]
fn what_one_session_does_costs_the_same_however_many_others_there_are() {
    let costs = |mut exports: Exports| {
        let mut users = Dialect::default();
        let [mut heard, mut opened, mut fenced] = [Duration::MAX; 3];
        for round in 0..50 {
            heard = heard.min(time(|| (0..32).for_each(|_| exports.heard(1, AT))));
            opened = opened.min(time(|| {
                let passer_by = 1 << 40 | round;
                exports.open_read(passer_by, 1);
                assert_eq!(exports.open_count(passer_by), 1);
                assert_eq!(exports.names_of(passer_by).count(), 1);
                exports.end_session(passer_by, AT);
            }));
            let (session, told) = (2 << 40 | round, users.fenced.len());
            let user = User { session, number: round, ..user(2) };
            let export = 0;
            let claim =
                WriteClaim { user: &user, transaction: 1, export, resumes: None, takes_over: true };
            exports.claim(AT, claim).unwrap();
            let mut spent = Duration::ZERO;
            while exports.is_waiting(session, 1) {
                exports.poll(|_, _, _, _| panic!("no I/O of a user"));
                spent += time(|| exports.settle(AT, &mut users));
            }
            fenced = fenced.min(spent);
            assert_eq!(users.fenced.len(), told + 1);
            exports.end_session(users.fenced[told].0, AT);
        }
        [heard, opened, fenced]
    };
    let (few, many) = (costs(crowd(4)), costs(crowd(8000)));
    for (few, many) in few.into_iter().zip(many) {
        // The clock itself takes some of it; and what is many does not lie in the cache, which others use, too. Were each of
        // them looked at, it would be thousands of times as much.
        assert!(many < 20 * few.max(Duration::from_micros(1)), "{many:?}, beside a few {few:?}");
    }
}

fn time(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}
