//! Who wants no less than what can be told to be as it was written, or asks what stands below.

use super::*;

const VERIFIED: IoFlags = IoFlags {
    fua: false,
    no_hole: false,
    one_extent: false,
    for_patch: false,
    verified: true,
    uncached: false,
    meta: false,
};
const UNCACHED: IoFlags = IoFlags { uncached: true, ..VERIFIED };

fn stage(canary: CacheCanary) -> Stage {
    let mut stage = Stage::new();
    stage.cache.set_canary(canary);
    stage
}

#[test]
fn who_asks_what_stands_below_is_not_answered_from_here() {
    scrubbed(CacheCanary::None);
}

#[test]
#[should_panic(expected = "it was answered")]
fn a_scrub_that_is_answered_from_memory_is_found() {
    scrubbed(CacheCanary::ScrubsAnswered);
}

fn scrubbed(canary: CacheCanary) {
    let mut stage = stage(canary);
    stage.fill(0, 8192, 7);
    // By now it is another there.
    let io = stage.begin_with(Op::Read, 512, 1024, UNCACHED, 0);
    assert_eq!((io.offset, io.len, io.flags), (512, 1024, UNCACHED));
    assert_eq!(stage.answer(&io, 9).data.to_vec(), [9; 1024]);
    // Nor is that kept.
    stage.holds(0, 4096, 7);
    let io = stage.begin_with(Op::Read, 4 * PAGE, PAGE, UNCACHED, 0);
    stage.answer(&io, 9);
    assert!(!stage.has(4));
}

#[test]
fn only_what_is_verified_is_kept() {
    unverified(CacheCanary::None);
}

#[test]
#[should_panic(expected = "it was answered")]
fn what_is_kept_unverified_is_found() {
    unverified(CacheCanary::UnverifiedKept);
}

fn unverified(canary: CacheCanary) {
    let mut stage = stage(canary);
    let token = stage.submit(Op::Read, 0, PAGE, IoFlags::default(), 0);
    assert!(stage.poll().is_empty());
    let mut io = stage.below.take_one();
    if io.flags.verified {
        // Nobody has better: it is read as it is.
        let error = io.error(ErrorKind::BadSum, "puppet");
        stage.below.complete(Completion::new(io.token, Err(error)));
        assert!(stage.poll().is_empty());
        io = stage.below.take_one();
    }
    assert_eq!(io.flags, IoFlags::default());
    let answer = stage.answer(&io, 5);
    assert_eq!((answer.token, answer.data.to_vec()), (token, vec![5; 4096]));
    let io = stage.begin_with(Op::Read, 0, PAGE, VERIFIED, 0);
    // Who wants no less is told so at once.
    let error = io.error(ErrorKind::BadSum, "puppet");
    stage.below.complete(Completion::new(io.token, Err(error)));
    assert_eq!(stage.polled_one().result, Err(error));
    // What is good is kept, for all.
    let io = stage.begin(Op::Read, 0, PAGE);
    stage.answer(&io, 6);
    stage.submit(Op::Read, 0, PAGE, VERIFIED, 0);
    assert_eq!(stage.polled_one().data.to_vec(), [6; 4096]);
    // Another fault is no reason to ask again.
    let io = stage.begin(Op::Read, 4 * PAGE, PAGE);
    assert!(stage.fail(&io).result.is_err());
}

#[test]
fn what_is_read_ahead_is_verified() {
    let mut stage = Stage::with(Geometry { bytes: 4 << 20, ..GEOMETRY }, 4 * MIB);
    for page in 0..4 {
        stage.submit(Op::Read, page * PAGE, PAGE, IoFlags::default(), 0);
        stage.poll();
        let sent = stage.below.take();
        assert!(sent.iter().all(|io| io.flags.verified), "{sent:?}");
        sent.iter().for_each(|io| stage.below.fail(io));
        stage.poll();
    }
    assert!(stage.report().ahead > 0);
}
