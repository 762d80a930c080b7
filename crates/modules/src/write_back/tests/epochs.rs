//! What a flush covers, and what it does not wait for.

use super::*;

/// Sectors of one block, each of which is written again as long as it goes down, so that the block is never clean: none of that
/// is older than the flush.
#[test]
fn a_block_that_is_never_clean_holds_up_no_flush() {
    let mut stage = stage();
    stage.write(0, 512, 1);
    stage.flush();
    let mut going = vec![stage.sent_one(Op::Write, 0, 512, 1)];
    stage.write(0, 512, 2);
    let flush = stage.flush();
    for turn in 0..20 {
        stage.write(2048, 512, 3);
        for io in &going {
            stage.write(io.offset, 512, 4);
        }
        assert!(stage.succeed(&going.remove(0)).is_empty());
        for io in stage.sent() {
            match io.op {
                Op::Flush if stage.succeed(&io) == [(flush, true)] => {
                    return assert!(turn < 3, "{turn} rounds");
                }
                Op::Flush => {}
                _ => going.push(io),
            }
        }
    }
    panic!("the flush is starved");
}

#[test]
fn what_is_written_into_a_block_later_makes_nothing_later() {
    later_write(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "all that it covers goes first")]
fn a_later_write_that_takes_a_block_from_a_flush_is_found() {
    later_write(WriteBackCanary::EpochOverwritten);
}

fn later_write(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    let blocks = DOWN_IOS_MAX as u64 + 8;
    (0..blocks).for_each(|block| stage.write(block * 2 * PAGE, PAGE, 1));
    let flush = stage.flush();
    let first = stage.sent();
    assert_eq!(first.len(), DOWN_IOS_MAX);
    // Those that have not gone yet are written again, as they are and beside that.
    for block in DOWN_IOS_MAX as u64..blocks {
        stage.write(block * 2 * PAGE, 512, 2);
    }
    first.iter().for_each(|io| assert!(stage.succeed(io).is_empty()));
    let rest = stage.sent();
    assert!(
        rest.len() == 8 && rest.iter().all(|io| io.op == Op::Write),
        "all that it covers goes first: {rest:?}"
    );
    assert_eq!(rest[0].data.to_vec()[..513], [[2; 512].as_slice(), &[1]].concat());
    rest.iter().for_each(|io| assert!(stage.succeed(io).is_empty()));
    let last = stage.sent_one(Op::Flush, 0, 0, 0);
    assert_eq!(stage.succeed(&last), [(flush, true)]);
}

#[test]
fn what_was_written_over_what_goes_down_goes_down_too() {
    overwritten(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "are not below")]
fn what_is_taken_for_down_since_its_place_was_written_is_found() {
    overwritten(WriteBackCanary::OverwrittenForgotten);
}

fn overwritten(canary: WriteBackCanary) {
    for is_there in [true, false] {
        let mut stage = Stage::new(canary);
        stage.write(0, 4096, 1);
        stage.flush();
        let old = stage.sent_one(Op::Write, 0, 4096, 1);
        stage.write(512, 512, 2);
        match is_there {
            true => drop(stage.succeed(&old)),
            false => drop(stage.fail(&old, ErrorKind::Io)),
        }
        stage.sent();
        assert_eq!(stage.volume.dirty_bytes(), PAGE, "the last bytes are not below");
        stage.flush();
        let sent = stage.sent().remove(0);
        match is_there {
            true => assert_eq!((sent.offset, sent.data.to_vec()), (512, vec![2; 512])),
            false => {
                let mut all = vec![1; 4096];
                all[512..1024].fill(2);
                assert!(sent.data.to_vec() == all, "as it was written last");
            }
        }
    }
}

#[test]
fn a_read_has_what_is_being_written_below() {
    going(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "[]")]
fn a_read_without_what_is_being_written_below_is_found() {
    going(WriteBackCanary::GoingNotRead);
}

fn going(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 4096, 1);
    stage.flush();
    stage.sent_one(Op::Write, 0, 4096, 1);
    stage.holds(0, 4096, 1);
}
