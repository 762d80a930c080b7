//! Tests of an attachment's loop, with a face of no protocol over a memory volume.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use thinwire_node::Lane;
use thinwire_volume::Io;

use self::script::{AWAY, Beside, FakeFace, PATIENCE, Paths, Script, Shared, Told};
use super::*;
use crate::control::{ControlClient, ControlRequest, Response};
use crate::host::Host;
use crate::rundir::RunDir;
use crate::testing::{MemoryVolume, TempDir};

#[path = "serve_tests/script.rs"]
mod script;

const SOON: Duration = Duration::from_secs(10);
const DETACHED: Response = Response::Detached { unheard: None, still_used: None };

/// Serves in another thread while `ask` asks; returns what became of both.
fn serving<T>(script: &Shared, ask: impl FnOnce(&RunDir) -> T) -> (T, Outcome) {
    let temp = TempDir::new("serve");
    let dir = RunDir::create(temp.path()).unwrap();
    let ready = Arc::new(Mutex::new(Vec::new()));
    let result = std::thread::scope(|scope| {
        let (path, ready_there) = (temp.path(), ready.clone());
        let serving = scope.spawn(move || serve(path, script.clone(), ready_there));
        let start = Instant::now();
        while ready.lock().unwrap().is_empty() && !serving.is_finished() {
            assert!(start.elapsed() < SOON);
            std::thread::yield_now();
        }
        let asked = catch_unwind(AssertUnwindSafe(|| ask(&dir)));
        let asked = asked.unwrap_or_else(|failure| {
            // Nobody else would end it, and the failure would never be told.
            if let Ok(mut script) = script.lock() {
                (script.is_slow, script.lingers) = (false, 0);
            }
            let _ = ControlClient::ask(&dir, "a", ControlRequest::Detach { force: true });
            resume_unwind(failure)
        });
        (asked, serving.join().unwrap())
    });
    assert_eq!(ready.lock().unwrap().first().map(String::as_str), Some("/fake"));
    assert!(dir.names().unwrap().is_empty(), "the attachment's files are still there");
    result
}

fn serve(path: &Path, script: Shared, ready: Arc<Mutex<Vec<String>>>) -> Outcome {
    let dir = RunDir::open(path)?.unwrap();
    let claim = dir.claim("a")?.unwrap();
    let control = ControlServer::new(dir.listen("a").unwrap()).unwrap();
    let face = FakeFace::new(script.clone());
    let host = Host::new().unwrap();
    if script.lock().unwrap().has_company {
        host.shard_mut().add(Beside(script.clone()), Vec::new(), &Lane::ALL);
    }
    let mut paths = Paths(ready, script.clone());
    let parts = Parts {
        open: Box::new(Told { host, inner: MemoryVolume::new(1 << 20, 512), script }),
        face: Box::new(face),
        control,
        signals: &Signals::none(),
        claim: &claim,
        record: Record::of_this_process("a", "memory:1M".into(), "nbd", false),
        spin: Spin::On,
    };
    AttachmentServer::new(parts)?.run(&mut paths)
}

fn detach(dir: &RunDir, force: bool) -> Vec<Response> {
    let mut client = ControlClient::ask(dir, "a", ControlRequest::Detach { force }).unwrap();
    let mut answers = vec![client.answer(SOON).unwrap()];
    while answers.last() == Some(&Response::Detaching) {
        answers.push(client.answer(SOON).unwrap());
    }
    answers
}

#[test]
fn an_orderly_detach_closes_flushes_and_says_so() {
    let script = Shared::default();
    script.lock().unwrap().closings = vec![io::ErrorKind::WouldBlock; 3];
    let ((status, record, answers), result) = serving(&script, |dir| {
        let status = ControlClient::status(dir, "a", SOON).unwrap();
        (status, dir.record("a").unwrap(), detach(dir, false))
    });
    assert_eq!(result, Ok(()));
    assert_eq!((status.state, status.path.as_deref()), (State::Attached, Some("/fake")));
    assert_eq!(record.path.as_deref(), Some("/fake"));
    assert_eq!(answers, [Response::Detaching, DETACHED]);
    let script = script.lock().unwrap();
    assert_eq!(script.closed, [false; 4]);
    assert_eq!((script.flushes, script.volume_closed), (1, Some(Ending::Orderly)));
}

#[test]
fn a_busy_face_is_left_alone_unless_forced() {
    let script = Shared::default();
    script.lock().unwrap().busy = Some("2 NBD clients are connected");
    let (answers, result) = serving(&script, |dir| (detach(dir, false), detach(dir, true)));
    assert_eq!(result, Ok(()));
    assert_eq!(answers.0, [Response::Refused { why: "2 NBD clients are connected".into() }]);
    assert_eq!(answers.1, [Response::Detaching, DETACHED]);
    let script = script.lock().unwrap();
    assert_eq!(
        (script.closed.as_slice(), script.volume_closed),
        (&[true][..], Some(Ending::Force))
    );
    assert_eq!(script.flushes, 0);
}

#[test]
fn who_uses_what_was_taken_away_is_told() {
    let script = Shared::default();
    script.lock().unwrap().user = Some("/dev/loop0 is mounted");
    let (answers, result) = serving(&script, |dir| detach(dir, true));
    assert_eq!(result, Ok(()));
    let still_used = Some("/dev/loop0 is mounted".to_owned());
    assert_eq!(answers[1], Response::Detached { unheard: None, still_used });
    let notes = &script.lock().unwrap().notes;
    assert!(notes[0].contains("by force") && notes[1].contains("is mounted"), "{notes:?}");
}

/// Waits until the rest of the host has had some more turns.
fn see_others_served(script: &Shared) {
    let turns = || script.lock().unwrap().turns;
    let (start, before) = (Instant::now(), turns());
    while turns() < before + 20 {
        assert!(start.elapsed() < SOON, "nothing else on the host is served");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the face has been asked who uses it, while that is slow to be found out.
fn see_asked(script: &Shared) {
    let start = Instant::now();
    while script.lock().unwrap().asked == 0 {
        assert!(start.elapsed() < SOON, "nobody asks the face");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until what the face writes is lost. It is announced before its first turn: of a volume that is away by
/// then the write would never end, and would rightly be waited for.
fn see_lost(script: &Shared) {
    let start = Instant::now();
    while !script.lock().unwrap().has_lost {
        assert!(start.elapsed() < SOON, "nothing is lost");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn others_are_served_while_a_face_finds_out_who_uses_it() {
    let script = Shared::default();
    let first = Script { is_slow: true, has_company: true, ..Script::default() };
    *script.lock().unwrap() = first;
    let ask = |dir: &RunDir| {
        ControlClient::ask(dir, "a", ControlRequest::Detach { force: false }).unwrap()
    };
    let (answers, result) = serving(&script, |dir| {
        // Found to be in use: it stays, and those who asked are told.
        let (mut first, mut second) = (ask(dir), ask(dir));
        see_asked(&script);
        see_others_served(&script);
        let mut answers = vec![first.answer(SOON).unwrap(), second.answer(SOON).unwrap()];
        let state = ControlClient::status(dir, "a", SOON).unwrap().state;
        assert_eq!(state, State::Attached, "nothing is decided");
        let mut told = script.lock().unwrap();
        (told.is_slow, told.busy) = (false, Some("/dev/loop0 is mounted"));
        drop(told);
        answers.extend([first.answer(SOON).unwrap(), second.answer(SOON).unwrap()]);
        // Found to be free: it goes.
        let mut told = script.lock().unwrap();
        (told.is_slow, told.asked, told.busy) = (true, 0, None);
        drop(told);
        let mut third = ask(dir);
        see_asked(&script);
        see_others_served(&script);
        script.lock().unwrap().is_slow = false;
        answers.extend([third.answer(SOON).unwrap(), third.answer(SOON).unwrap()]);
        answers
    });
    assert_eq!(result, Ok(()));
    let refused = Response::Refused { why: "/dev/loop0 is mounted".into() };
    let detaching = || Response::Detaching;
    assert_eq!(answers[..4], [detaching(), detaching(), refused.clone(), refused]);
    assert_eq!(answers[4..], [Response::Detaching, DETACHED]);
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::Orderly));
}

/// Nobody calls meanwhile: only the face says when there is something to see.
#[test]
fn a_face_that_has_found_out_who_uses_it_is_heard() {
    let script = Shared::default();
    script.lock().unwrap().is_slow = true;
    let (answers, result) = serving(&script, |dir| {
        let request = ControlRequest::Detach { force: false };
        let mut polite = ControlClient::ask(dir, "a", request).unwrap();
        let detaching = polite.answer(SOON).unwrap();
        // It sleeps by then.
        std::thread::sleep(Duration::from_millis(50));
        script.lock().unwrap().is_slow = false;
        [detaching, polite.answer(SOON).unwrap()]
    });
    assert_eq!((result, answers), (Ok(()), [Response::Detaching, DETACHED]));
}

#[test]
fn a_face_that_goes_by_force_is_heard() {
    let script = Shared::default();
    *script.lock().unwrap() = Script { dies: true, lingers: 3, ..Script::default() };
    let start = Instant::now();
    let ((), result) = serving(&script, |_| {});
    assert!(result.unwrap_err().message.contains("the kernel went away"));
    assert!(start.elapsed() < FORCED_CLOSE_MAX, "it was given up");
    assert_eq!(script.lock().unwrap().closed, [true]);
}

#[test]
fn force_does_not_wait_for_an_answer() {
    let script = Shared::default();
    script.lock().unwrap().is_slow = true;
    let (answers, result) = serving(&script, |dir| {
        let polite = ControlRequest::Detach { force: false };
        let mut polite = ControlClient::ask(dir, "a", polite).unwrap();
        see_asked(&script);
        let forced = detach(dir, true);
        (forced, [polite.answer(SOON).unwrap(), polite.answer(SOON).unwrap()])
    });
    assert_eq!(result, Ok(()));
    assert_eq!(answers.0, [Response::Detaching, DETACHED]);
    assert_eq!(answers.1, [Response::Detaching, DETACHED]);
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::Force));
}

#[test]
fn others_are_served_while_a_face_goes_by_force() {
    let script = Shared::default();
    *script.lock().unwrap() = Script { lingers: u64::MAX, has_company: true, ..Script::default() };
    let ((state, answers), result) = serving(&script, |dir| {
        let request = ControlRequest::Detach { force: true };
        let mut forced = ControlClient::ask(dir, "a", request).unwrap();
        let detaching = forced.answer(SOON).unwrap();
        see_others_served(&script);
        let state = ControlClient::status(dir, "a", SOON).unwrap().state;
        script.lock().unwrap().lingers = 3;
        (state, [detaching, forced.answer(SOON).unwrap()])
    });
    assert_eq!(result, Ok(()));
    assert_eq!((state, answers), (State::Detaching, [Response::Detaching, DETACHED]));
    let script = script.lock().unwrap();
    assert_eq!((&script.closed[..], script.lingers), (&[true][..], 0));
}

#[test]
fn a_face_that_does_not_go_is_not_waited_for() {
    let script = Shared::default();
    script.lock().unwrap().lingers = u64::MAX;
    let start = Instant::now();
    let (answers, result) = serving(&script, |dir| detach(dir, true));
    assert_eq!((result, answers), (Ok(()), vec![Response::Detaching, DETACHED]));
    assert!(start.elapsed() >= FORCED_CLOSE_MAX);
    assert!(script.lock().unwrap().closed.is_empty());
}

/// A face that is evicted and takes longer than it is waited for, while what it left does not end.
fn see_a_late_face_off(script: Script) {
    let script = Arc::new(Mutex::new(Script { dies: true, lingers: u64::MAX, ..script }));
    let ((), result) = serving(&script, |dir| {
        let looks = || script.lock().unwrap().looks;
        let looks_in = |time| {
            let before = looks();
            std::thread::sleep(time);
            looks() - before
        };
        let start = Instant::now();
        while looks() == 0 {
            assert!(start.elapsed() < SOON, "it is waited for");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() + Duration::from_millis(200) > FORCED_CLOSE_MAX);
        // One for each time that it says that there is something to see, at most.
        let looks_then = looks_in(Duration::from_millis(500));
        assert!(looks_then < 500, "{looks_then} turns in half a second");
        script.lock().unwrap().lingers = 3;
        let start = Instant::now();
        while script.lock().unwrap().closed.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(2), "nobody hears that it has gone");
            std::thread::sleep(Duration::from_millis(1));
        }
        let looks_then = looks_in(Duration::from_millis(500));
        assert!(looks_then < 10, "{looks_then} turns in half a second for nothing");
        assert_eq!(script.lock().unwrap().volume_closed, None);
        detach(dir, true);
    });
    assert!(result.unwrap_err().message.contains("the kernel went away"));
}

#[test]
fn a_late_face_is_seen_off_while_something_is_outstanding() {
    see_a_late_face_off(Script { is_stuck: true, ..Script::default() });
}

#[test]
fn a_late_face_is_seen_off_during_the_last_flush() {
    see_a_late_face_off(Script { is_away: true, ..Script::default() });
}

#[test]
fn a_face_found_busy_while_closing_serves_on() {
    let script = Shared::default();
    script.lock().unwrap().closings = vec![io::ErrorKind::ResourceBusy];
    let (answers, result) = serving(&script, |dir| {
        let first = detach(dir, false);
        let status = ControlClient::status(dir, "a", SOON).unwrap();
        (first, status.state, detach(dir, false))
    });
    assert_eq!(result, Ok(()));
    let refused = Response::Refused { why: "the node is mounted".into() };
    assert_eq!(answers.0, [Response::Detaching, refused]);
    assert_eq!(answers.1, State::Attached);
    assert_eq!(answers.2, [Response::Detaching, DETACHED]);
}

/// A signal after a detach that was refused is the first.
#[test]
fn only_a_signal_is_answered_with_what_the_next_one_does() {
    assert_eq!(stays("it is mounted", 0), "stays attached: it is mounted");
    let after = "stays attached: it is mounted; a second signal detaches all the same";
    assert_eq!(stays("it is mounted", 1), after);
}

#[test]
fn a_failed_last_flush_is_told() {
    let script = Shared::default();
    let (answers, result) = serving(&script, |dir| {
        script.lock().unwrap().fails_flush = true;
        detach(dir, false)
    });
    let failure = result.unwrap_err();
    assert!(failure.message.contains("may be lost"), "{failure}");
    assert!(!failure.message.contains("bytes at"), "{failure}");
    assert_eq!(answers[1], Response::Failed { why: failure.message });
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::AfterLoss));
}

#[test]
fn a_failed_last_flush_that_nothing_depends_on_speaks_of_no_loss() {
    let script = Shared::default();
    script.lock().unwrap().is_flushed = true;
    let (_, result) = serving(&script, |dir| {
        script.lock().unwrap().fails_flush = true;
        detach(dir, false)
    });
    let failure = result.unwrap_err();
    assert!(failure.message.contains("reported an error at the last flush"), "{failure}");
    assert!(!failure.message.contains("lost"), "{failure}");
}

#[test]
fn a_target_s_medium_is_called_so() {
    let io = Io::new(0, thinwire_volume::Op::Flush, 0, 0);
    let said = |place| last_flush_failed(&io.error(ErrorKind::Io, "remote"), place, true).message;
    let wanted = "the target's medium reported an error: writes since the last flush may be lost";
    assert_eq!(said(""), wanted);
    let place = "stripe \"data\" part 1 (tw://node1/a)";
    assert_eq!(said(place), format!("{place}: {wanted}"));
}

#[test]
fn a_dead_face_ends_the_attachment_but_not_the_data() {
    let script = Shared::default();
    script.lock().unwrap().dies = true;
    let ((), result) = serving(&script, |_| {});
    assert!(result.unwrap_err().message.contains("the kernel went away"));
    assert_eq!(script.lock().unwrap().flushes, 1);
}

#[test]
fn who_is_away_is_let_go_of_and_named() {
    let script = Shared::default();
    let (answers, result) = serving(&script, |dir| {
        script.lock().unwrap().is_away = true;
        detach(dir, false)
    });
    assert_eq!(result, Ok(()));
    let Response::Detached { unheard: Some(said), .. } = &answers[1] else { panic!("{answers:?}") };
    assert!(said.contains(AWAY) && said.contains("--take-over"), "{said}");
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::BarAway));
}

/// Nothing has to reach it any more, but what it has lost somebody has to hear.
#[test]
fn who_is_away_and_has_lost_something_is_not_let_go_of_as_if_nothing_were() {
    let script = Shared::default();
    script.lock().unwrap().loses = true;
    let (_, result) = serving(&script, |dir| {
        see_lost(&script);
        script.lock().unwrap().is_away = true;
        detach(dir, false)
    });
    assert!(result.unwrap_err().message.contains("may be lost"));
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::AfterLoss));
}

/// A target that is away knows nothing of what is in a cache: that was acknowledged, and does not go unsaid.
#[test]
fn what_a_cache_could_not_write_down_is_named() {
    let script = Shared::default();
    script.lock().unwrap().dirty = 3 << 20;
    let start = Instant::now();
    let (answers, result) = serving(&script, |dir| {
        script.lock().unwrap().is_away = true;
        detach(dir, false)
    });
    assert!(start.elapsed() >= PATIENCE, "it may come back");
    let failure = result.unwrap_err();
    assert!(failure.message.starts_with("3 MiB that were written into a cache"), "{failure}");
    assert_eq!(answers[1], Response::Failed { why: failure.message });
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::AfterLoss));
}

/// It is tried again for a while, and not for ever.
#[test]
fn what_a_cache_is_refused_is_named() {
    let script = Shared::default();
    script.lock().unwrap().dirty = 4096;
    let start = Instant::now();
    let (_, result) = serving(&script, |dir| {
        script.lock().unwrap().fails_flush = true;
        detach(dir, false)
    });
    assert!(start.elapsed() >= PATIENCE, "it may be taken yet");
    let message = result.unwrap_err().message;
    assert!(message.contains("4 KiB that were written into a cache"), "{message}");
    assert!(message.contains(ErrorKind::Io.describe()), "{message}");
    assert_eq!(script.lock().unwrap().volume_closed, Some(Ending::AfterLoss));
}
