//! What may be read, and what may not, one promise at a time.

use super::*;

const R: Range = Range { first: 3, count: 1 };
const L: ContentLife = ContentLife { upheavals: 0, losses: 0, in_doubt: false };

fn bytes(m: &Model, version: u64) -> Vec<u8> {
    let mut out = vec![0; SECTOR_BYTES];
    if version > 0 {
        m.fill(1, R, version, &mut out);
    }
    out
}

fn read(m: &mut Model, version: u64) -> Check {
    let ticket = m.begin_read(Some(1), R, L);
    let data = bytes(m, version);
    m.end_read(&ticket, R, &data, L)
}

fn written(count: u64) -> Model {
    let mut m = Model::new("x", 8192);
    assert!(m.run_started(1, 1));
    for _ in 0..count {
        let v = m.begin_write(1, R, ModelEffect::Data);
        m.end_write(1, R, v, true, false);
    }
    m
}

#[test]
fn a_read_sees_the_newest_acknowledged_write() {
    let mut m = written(2);
    assert!(read(&mut m, 2).is_ok());
    assert!(read(&mut m, 1).is_err() && read(&mut m, 0).is_err() && read(&mut m, 3).is_err());
    let open = m.begin_write(1, R, ModelEffect::Data);
    assert!(read(&mut m, open).is_ok(), "the read waits for it, or not");
    m.end_write(1, R, open, false, false);
    assert!(read(&mut m, 2).is_ok() && read(&mut m, open).is_ok());
    let mut torn = bytes(&m, 2);
    torn[300] ^= 1;
    let ticket = m.begin_read(Some(1), R, L);
    assert!(m.end_read(&ticket, R, &torn, L).is_err());
}

/// In the moment that no verifier covers, and in no other; and never what was durable.
#[test]
fn a_read_may_miss_what_nobody_has_heard_of_yet() {
    let doubt = ContentLife { in_doubt: true, ..L };
    let lost = ContentLife { losses: 1, ..L };
    for (begin, end, excused) in
        [(L, L, false), (doubt, L, true), (L, lost, true), (L, doubt, false)]
    {
        let mut m = written(1);
        let v = m.begin_write(1, R, ModelEffect::Data);
        m.end_write(1, R, v, true, true);
        let v = m.begin_write(1, R, ModelEffect::Data);
        m.end_write(1, R, v, true, false);
        let [older, durable, acknowledged] = [1, 2, 3].map(|version| bytes(&m, version));
        let tickets = [m.begin_read(Some(1), R, begin), m.begin_status(Some(1), R, begin)];
        m.note_losses(ContentLife { losses: 7, ..L });
        for ticket in tickets {
            assert_eq!(m.end_read(&ticket, R, &durable, end).is_ok(), excused);
            assert!(m.end_read(&ticket, R, &older, end).is_err());
        }
        // What came behind the loss is not lost.
        let v = m.begin_write(1, R, ModelEffect::Data);
        m.end_write(1, R, v, true, false);
        for ticket in [m.begin_read(Some(1), R, begin), m.begin_status(Some(1), R, begin)] {
            assert!(m.end_read(&ticket, R, &acknowledged, end).is_err());
        }
    }
}

/// A run patches a block with what it had read before the loss, whatever it has read since.
#[test]
fn what_is_patched_may_change_back_after_a_loss() {
    for patches in [false, true] {
        let mut m = written(2);
        m.run_ended(1);
        assert!(m.run_started(2, 2));
        let later = ContentLife { upheavals: 1, ..L };
        if patches {
            m.begin_patch(2, R, L);
            m.begin_patch(2, R, later);
        }
        let mut see = |version| {
            let ticket = m.begin_read(Some(2), R, later);
            let data = bytes(&m, version);
            m.end_read(&ticket, R, &data, later)
        };
        assert_eq!((see(1), see(2).is_ok()), (Ok(()), patches));
    }
}

/// A client that is not told of losses is the writer, is not, hears of one and is it again: what it was told before may be gone,
/// but for what it had flushed. Without a loss nothing is.
#[test]
fn what_a_former_grant_of_a_run_had_written_may_be_lost() {
    for (is_lost, flushes, excused) in
        [(false, false, false), (true, false, true), (true, true, false)]
    {
        let mut m = written(2);
        if flushes {
            let mark = m.begin_flush();
            m.end_flush(1, mark, true).unwrap();
        }
        m.run_ended(1);
        if is_lost {
            m.forget_unflushed(1);
        }
        m.run_adopts(1, 3, std::iter::empty(), std::iter::empty());
        assert_eq!(read(&mut m, 1).is_ok(), excused, "{is_lost} {flushes}");
    }
}

#[test]
fn a_crash_of_the_run_leaves_what_was_flushed() {
    for (last, allowed) in [(0, false), (1, true), (2, true)] {
        let mut m = written(1);
        let mark = m.begin_flush();
        let v = m.begin_write(1, R, ModelEffect::Data);
        m.end_write(1, R, v, true, false);
        m.end_flush(1, mark, true).unwrap();
        m.run_ended(1);
        assert_eq!(m.check_image(&image(&m, last)).is_ok(), allowed);
    }
}

fn image(m: &Model, version: u64) -> Vec<u8> {
    let mut image = vec![0; 8192];
    image[3 * SECTOR_BYTES..4 * SECTOR_BYTES].copy_from_slice(&bytes(m, version));
    image
}

#[test]
fn a_discard_leaves_the_old_or_zeroes() {
    let mut m = written(1);
    let v = m.begin_write(1, R, ModelEffect::Discard);
    m.end_write(1, R, v, true, true);
    assert!(read(&mut m, 0).is_ok() && read(&mut m, 1).is_ok());
    let v = m.begin_write(1, R, ModelEffect::Zeroes);
    m.end_write(1, R, v, true, true);
    assert!(read(&mut m, 0).is_ok() && read(&mut m, 1).is_err());
}

#[test]
fn a_failed_replay_must_be_told() {
    let mut m = written(1);
    m.replay_failed(1);
    assert!(read(&mut m, 0).is_ok() && read(&mut m, 1).is_ok());
    let mark = m.begin_flush();
    assert!(m.end_flush(1, mark, true).is_err());
    m.end_flush(1, mark, false).unwrap();
    assert!(m.end_flush(1, mark, true).is_ok());
}

/// Acknowledged when the status was asked for, lost when it was answered.
#[test]
fn a_status_may_miss_what_a_failed_replay_has_lost() {
    for lost in [false, true] {
        let mut m = written(2);
        let ticket = m.begin_status(Some(1), R, L);
        assert!(m.check_zero(&ticket, R, L).is_err());
        if lost {
            m.replay_failed(1);
        }
        assert_eq!(m.check_zero(&ticket, R, L).is_ok(), lost);
    }
}

#[test]
fn an_old_writer_must_not_write_after_the_grant() {
    let mut m = written(2);
    m.run_ended(1);
    assert!(m.run_started(2, 2) && !m.run_started(3, 1));
    let see = |m: &mut Model, version, upheavals| {
        let life = ContentLife { upheavals, ..L };
        let ticket = m.begin_read(Some(2), R, life);
        let data = bytes(m, version);
        m.end_read(&ticket, R, &data, life)
    };
    see(&mut m, 1, 0).unwrap();
    assert!(see(&mut m, 2, 0).is_err());
    see(&mut m, 2, 1).unwrap();
}
