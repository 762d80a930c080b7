//! Room: who waits for it, who fails without it, and who needs none.

use super::*;

#[test]
fn writes_wait_for_room_and_all_of_it_is_made() {
    let mut stage = stage();
    let blocks = stage.volume.blocks.bytes_max() / PAGE;
    let mut tokens = Vec::new();
    for block in 0..2 * blocks {
        tokens.push(stage.submit(Op::Write, block * 2 * PAGE, PAGE, 1));
    }
    let mut ended = stage.polled();
    assert_eq!(ended.len() as u64, blocks, "as many as there is room for");
    assert_eq!(stage.volume.dirty_bytes(), stage.volume.blocks.bytes_max());
    // Nor are there ever more below than that.
    while ended.len() < tokens.len() {
        let down = stage.sent();
        assert!((1..=DOWN_IOS_MAX).contains(&down.len()), "it stands still");
        down.iter().for_each(|io| stage.below.succeed(io));
        ended.extend(stage.polled());
        assert!(stage.volume.dirty_bytes() <= stage.volume.blocks.bytes_max());
    }
    assert!(ended.iter().all(|(_, is_ok)| *is_ok));
    assert_eq!(ended.iter().map(|(token, _)| *token).collect::<Vec<_>>(), tokens);
}

#[test]
fn writes_for_which_no_room_can_be_made_fail() {
    let mut stage = stage();
    let blocks = stage.volume.blocks.bytes_max() / PAGE;
    for block in 0..=blocks {
        stage.submit(Op::Write, block * 2 * PAGE, PAGE, 1);
    }
    assert_eq!(stage.polled().len() as u64, blocks);
    let mut told = Vec::new();
    while told.is_empty() {
        let down = stage.sent();
        assert!(!down.is_empty(), "it stands still");
        for io in down {
            told.extend(stage.fail(&io, ErrorKind::NoSpace));
        }
    }
    assert_eq!(told, [(stage.next, false)]);
    // Another one tries again, with what is there.
    let token = stage.submit(Op::Write, blocks * 2 * PAGE, PAGE, 2);
    let io = stage.sent().remove(0);
    assert_eq!(stage.succeed(&io), [(token, true)]);
}

#[test]
fn what_is_long_goes_through() {
    let mut stage = stage();
    let len = stage.volume.blocks.bytes_max() / LONG_PARTS / 512 * 512 + 512;
    stage.write(0, 512, 1);
    let token = stage.submit(Op::Write, 0, len, 2);
    let io = stage.sent_one(Op::Write, 0, len, 2);
    assert_eq!(stage.succeed(&io), [(token, true)]);
    assert_eq!(stage.volume.dirty_bytes(), 0);
}

/// Nobody tells when a store in memory is done: whoever polls is asked to go on.
#[test]
fn what_is_too_much_for_one_poll_goes_on_in_the_next() {
    let pool = Pool::new(1 << 20);
    let below = MemoryStore::new(64 * MIB, 512, Identity::default(), &pool);
    let mut volume = WriteBack::new(Box::new(below), 32 * MIB);
    let mut done = Vec::new();
    let blocks = (ROUNDS_MAX * DOWN_IOS_MAX) as u64 + 100;
    for block in 0..blocks {
        let data = SegList::of(pool.copy_of(&[1; 512]).freeze());
        volume.submit(Io { data, ..Io::new(block, Op::Write, block * 2 * PAGE, 512) });
    }
    volume.poll(&mut done);
    done.clear();
    volume.submit(Io::new(1, Op::Flush, 0, 0));
    let mut polls = 0;
    while done.is_empty() {
        volume.poll(&mut done);
        polls += 1;
        assert!(!done.is_empty() || volume.turn(Time(5)) == Time(5), "nobody polls again");
    }
    assert!(polls > 1 && volume.dirty_bytes() == 0, "{polls}");
}

#[test]
fn half_of_the_room_is_kept_free() {
    let mut stage = stage();
    let half = stage.volume.blocks.bytes_max() / PAGE / 2;
    for block in 0..half {
        stage.write(block * PAGE, PAGE, 1);
    }
    assert!(stage.sent().is_empty());
    stage.write(half * PAGE, PAGE, 1);
    // What lies together goes together.
    stage.sent_one(Op::Write, 0, DOWN_BYTES_MAX, 1);
}

/// Also while all of it is being written below, and is written here once more: that is there twice.
#[test]
fn its_memory_is_bounded() {
    for len in [512, PAGE] {
        let mut stage = stage();
        let blocks = stage.volume.blocks.bytes_max() / PAGE;
        for block in 0..blocks {
            stage.submit(Op::Write, block * PAGE, len, 1);
        }
        stage.polled();
        stage.flush();
        let going = stage.volume.down_bytes;
        assert!(going > 0 && going <= WriteBack::BYTES_MIN / GOING_PARTS + PAGE, "{going}");
        for block in 0..blocks {
            stage.submit(Op::Write, block * PAGE, len, 2);
        }
        stage.polled();
        let memory = stage.volume.blocks.memory();
        assert!(memory <= WriteBack::BYTES_MIN + PAGE, "{memory} of {}", WriteBack::BYTES_MIN);
        assert!(memory > WriteBack::BYTES_MIN * 3 / 4, "{memory}");
        let sent = stage.sent();
        assert!(sent.iter().all(|io| io.data.to_vec().iter().all(|byte| *byte == 1)));
    }
}

#[test]
fn a_write_that_waits_for_room_holds_up_nothing() {
    held(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "it waits for ever")]
fn a_write_that_waits_for_room_with_its_lock_is_found() {
    held(WriteBackCanary::HeldKeepsLock);
}

fn held(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    let blocks = stage.volume.blocks.bytes_max() / PAGE;
    for block in 0..=blocks {
        stage.submit(Op::Write, block * 2 * PAGE, PAGE, 1);
    }
    assert_eq!(stage.polled().len() as u64, blocks);
    stage.sent();
    let token = stage.submit_as(Op::Write, blocks * 2 * PAGE, PAGE, 2, true);
    assert!(stage.polled().is_empty());
    let through = stage.sent();
    assert_eq!(through.len(), 1, "it waits for ever");
    assert_eq!(stage.succeed(&through[0]), [(token, true)]);
}

#[test]
fn what_goes_down_waits_for_what_goes_over_it() {
    busy(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "two of one place")]
fn what_goes_down_beside_what_goes_over_it_is_found() {
    busy(WriteBackCanary::BusyIgnored);
}

fn busy(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 4096, 1);
    let token = stage.submit(Op::WriteZeroes, 0, 8192, 0);
    let through = stage.sent_one(Op::WriteZeroes, 0, 8192, 0);
    let flush = stage.flush();
    assert!(stage.polled().is_empty() && stage.sent().is_empty(), "two of one place are below");
    assert_eq!(stage.succeed(&through), [(token, true)]);
    let last = stage.sent_one(Op::Flush, 0, 0, 0);
    assert_eq!(stage.succeed(&last), [(flush, true)]);
}

/// Rule 14: what a discard is to give back may be all the room there is.
#[test]
fn a_discard_goes_on_where_there_is_no_room_for_zeroes() {
    discarded_full(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "it makes room")]
fn a_discard_that_needs_room_is_found() {
    discarded_full(WriteBackCanary::DiscardNeedsRoom);
}

fn discarded_full(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 12288, 1);
    let token = stage.submit(Op::Discard, 512, 8192, 0);
    let zeroes = stage.sent_one(Op::WriteZeroes, 512, 8192, 0);
    assert_eq!(stage.fail(&zeroes, ErrorKind::NoSpace), [], "it makes room");
    let io = stage.sent_one(Op::Discard, 512, 8192, 0);
    assert_eq!(stage.succeed(&io), [(token, true)]);
    // Nothing of it was lost, and nothing that was there before it is shown.
    stage.flush();
    stage.sent_one(Op::Write, 0, 12288, 1);
}

#[test]
fn a_discard_takes_no_longer_the_more_is_here() {
    let mut stage = Stage::new(WriteBackCanary::None);
    (0..40).for_each(|nth| stage.write(nth * 8192, 512, 1));
    let token = stage.submit(Op::Discard, 0, 40 * 8192, 0);
    for nth in 0..32 {
        let zeroes = stage.sent_one(Op::WriteZeroes, nth * 8192, 512, 0);
        assert_eq!(stage.succeed(&zeroes), []);
    }
    let io = stage.sent_one(Op::Discard, 0, 40 * 8192, 0);
    assert_eq!(stage.succeed(&io), [(token, true)]);
    stage.flush();
    let down: Vec<_> = stage.sent().iter().map(|io| (io.op, io.offset)).collect();
    assert_eq!(down, (32..40).map(|nth| (Op::Write, nth * 8192)).collect::<Vec<_>>());
}
