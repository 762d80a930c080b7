//! Something has happened below: it may be that all of it is another's by now (rule 18).

use super::*;

/// With nothing here, with something here, and with something that could not go down a moment ago.
fn doubtful(canary: WriteBackCanary, before: usize) -> Stage {
    let mut stage = Stage::new(canary);
    if before > 0 {
        stage.write(0, 4096, 1);
    }
    if before > 1 {
        stage.pass(AGE_MAX);
        let io = stage.sent_one(Op::Write, 0, 4096, 1);
        assert!(stage.fail(&io, ErrorKind::Io).is_empty());
    }
    stage.below.tell(VolumeEvent::Stale);
    stage
}

#[test]
fn nothing_ends_here_once_something_has_happened_below() {
    (0..3).for_each(|before| asked_below(WriteBackCanary::None, before));
}

#[test]
#[should_panic(expected = "it ended here")]
fn writes_that_end_here_whatever_has_happened_are_found() {
    asked_below(WriteBackCanary::EventsUnheard, 0);
}

fn asked_below(canary: WriteBackCanary, before: usize) {
    for kind in [ErrorKind::Fenced, ErrorKind::ContentChanged, ErrorKind::ShuttingDown] {
        let mut stage = doubtful(canary, before);
        // Nobody has polled since.
        let token = stage.submit(Op::Write, 8192, 4096, 2);
        assert!(stage.polled().is_empty(), "it ended here");
        let sent = stage.sent();
        assert_eq!(sent.len(), 1 + usize::from(before > 0), "what is here is tried, too");
        // Nor is what is here read without asking.
        if before > 0 {
            let read = stage.submit(Op::Read, 0, 4096, 0);
            assert!(stage.polled().is_empty());
            let io = stage.sent_one(Op::Read, 0, 4096, 0);
            assert_eq!(stage.fail(&io, ErrorKind::Io), [(read, false)]);
        }
        let mut ended = Vec::new();
        for io in &sent {
            ended.extend(stage.fail(io, kind));
        }
        assert_eq!(ended, [(token, false)]);
        assert_eq!(stage.volume.losses, u64::from(before > 0));
    }
}

#[test]
fn what_ends_well_below_ends_the_doubt() {
    for before in 0..3 {
        let mut stage = doubtful(WriteBackCanary::None, before);
        let token = stage.submit(Op::Write, 8192, 4096, 2);
        assert!(stage.polled().is_empty());
        let sent = stage.sent();
        // What has failed otherwise says nothing.
        let own = sent.iter().find(|io| io.offset == 8192).unwrap();
        assert_eq!(stage.fail(own, ErrorKind::Io), [(token, false)]);
        let token = stage.submit(Op::Write, 8192, 4096, 2);
        assert!(stage.polled().is_empty());
        let again = stage.sent_one(Op::Write, 8192, 4096, 2);
        // Nor does what is told of once more.
        stage.below.tell(VolumeEvent::Lost);
        assert_eq!(stage.succeed(&again), [(token, true)]);
        let token = stage.submit(Op::Write, 8192, 4096, 3);
        assert!(stage.polled().is_empty(), "it was sent before that");
        let again = stage.sent_one(Op::Write, 8192, 4096, 3);
        assert_eq!(stage.succeed(&again), [(token, true)]);
        stage.write(8192, 4096, 4);
        assert!(stage.sent().is_empty());
    }
}

#[test]
fn what_is_given_up_is_told() {
    given_up(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "it is lost")]
fn what_is_given_up_without_a_word_is_found() {
    given_up(WriteBackCanary::LossUntold);
}

fn given_up(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 4096, 1);
    stage.write(8192, 4096, 1);
    stage.flush();
    let down = stage.sent();
    assert!(stage.succeed(&down[1]).is_empty());
    stage.fail(&down[0], ErrorKind::Fenced);
    let mut told = Vec::new();
    stage.volume.poll_events(&mut told);
    assert_eq!(told, [VolumeEvent::Lost], "it is lost");
}
