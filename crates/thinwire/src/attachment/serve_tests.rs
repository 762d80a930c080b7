//! Tests of an attachment's loop, with a face of no protocol over a memory volume.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use thinwire_buffer::{Pool, Time};
use thinwire_node::Lane;
use thinwire_volume::{Closing, Completion, Geometry, Identity, Io, Part, Volume};

use super::*;
use crate::control::{ControlClient, ControlRequest, Response};
use crate::host::Host;
use crate::open::VolumeHealth;
use crate::rundir::RunDir;
use crate::testing::{MemoryVolume, Mischief, TempDir};

/// How often a face looks for what it waits for.
const LOOK_EVERY_NS: i64 = 5_000_000;
const SOON: Duration = Duration::from_secs(10);
const DETACHED: Response = Response::Detached { unheard: None, still_used: None };
const AWAY: &str = "tw://node1/disk0";

/// What a test tells the face and volume, and hears from them.
#[derive(Default)]
struct Script {
    busy: Option<&'static str>,
    /// Whether it is busy takes it for as long as this to find out.
    is_slow: bool,
    /// `busy` was called so often.
    asked: u64,
    /// Closing by force takes so many more calls, or for ever.
    lingers: u64,
    /// Another part of the host is turned all the time, so that nothing sleeps for long.
    has_company: bool,
    /// Turns of that.
    turns: u64,
    /// What polite closing says, the last first; then Ok.
    closings: Vec<io::ErrorKind>,
    dies: bool,
    fails_flush: bool,
    /// All that was written is known to be flushed.
    is_flushed: bool,
    /// `force` of each close.
    closed: Vec<bool>,
    /// Who uses the face when it is gone.
    user: Option<&'static str>,
    /// What the reporter heard.
    notes: Vec<String>,
    flushes: u64,
    volume_closed: Option<Ending>,
    /// The volume's target is away: flushes do not end.
    is_away: bool,
    /// Something stays outstanding there.
    is_stuck: bool,
    /// Once the face is gone: whether the volume has ended was looked at so often.
    looks: u64,
}

type Shared = Arc<Mutex<Script>>;

/// As a block device: while it waits for an answer a timer wakes its host, and nothing else does. Who
/// does not read that is woken at once again.
struct FakeFace {
    script: Shared,
    timer: OwnedFd,
    timer_runs: bool,
    gone: bool,
}

impl FakeFace {
    fn new(script: Shared) -> Self {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        FakeFace { script, timer, timer_runs: false, gone: false }
    }

    fn set_timer(&mut self, wanted: bool) {
        if wanted != self.timer_runs {
            let period = Timespec { tv_sec: 0, tv_nsec: if wanted { LOOK_EVERY_NS } else { 0 } };
            let spec = Itimerspec { it_interval: period, it_value: period };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).unwrap();
            self.timer_runs = wanted;
        }
    }

    /// True if the timer has fired since.
    fn take_tick(&self) -> bool {
        rustix::io::read(&self.timer, &mut [0; 8]).is_ok()
    }

    fn close_step(&mut self, force: bool) -> io::Result<()> {
        let mut script = self.script.lock().unwrap();
        if force && script.lingers > 0 {
            script.lingers -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        script.closed.push(force);
        match script.closings.pop().filter(|_| !force) {
            Some(kind) => Err(io::Error::new(kind, "the node is mounted")),
            None => Ok(()),
        }
    }
}

impl Face for FakeFace {
    fn path(&self) -> String {
        "/fake".into()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn turn(&mut self, volume: &mut dyn Volume) -> io::Result<bool> {
        volume.poll(&mut Vec::new());
        match self.script.lock().unwrap().dies {
            true => Err(io::Error::other("the kernel went away")),
            false => Ok(self.take_tick()),
        }
    }

    fn busy(&mut self) -> Poll<Option<String>> {
        let mut script = self.script.lock().unwrap();
        script.asked += 1;
        let answer = match script.is_slow {
            true => Poll::Pending,
            false => Poll::Ready(script.busy.map(str::to_owned)),
        };
        drop(script);
        self.set_timer(answer.is_pending());
        answer
    }

    fn close(&mut self, force: bool) -> io::Result<()> {
        if self.gone {
            return Ok(());
        }
        self.take_tick();
        let closed = self.close_step(force);
        self.gone = closed.is_ok();
        self.set_timer(closed.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock));
        closed
    }

    fn last_word(&mut self) -> Option<String> {
        self.script.lock().unwrap().user.filter(|_| self.gone).map(str::to_owned)
    }
}

/// A memory volume that does as the script says, and counts its flushes there.
struct Scripted {
    inner: MemoryVolume,
    script: Shared,
}

impl Scripted {
    /// What the script has told since, and what it is told.
    fn catch_up(&mut self) {
        let mut script = self.script.lock().unwrap();
        if script.fails_flush {
            self.inner.mischief = Mischief::FailAll;
        }
        if script.is_away {
            self.inner.mischief = Mischief::NeverComplete;
        }
        script.flushes = self.inner.flushes();
    }
}

impl Volume for Scripted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&mut self, io: Io) {
        self.catch_up();
        self.inner.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
        self.catch_up();
    }

    fn outstanding(&self) -> usize {
        let mut script = self.script.lock().unwrap();
        script.looks += 1;
        self.inner.outstanding() + usize::from(script.is_stuck)
    }
}

/// Such a volume on a host, until it is shown.
struct Told {
    host: Host,
    inner: MemoryVolume,
    script: Shared,
}

impl OpenVolume for Told {
    fn volume(&mut self) -> &mut dyn Volume {
        &mut self.inner
    }

    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }

    fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    fn turn(&mut self, _: Wait) -> Outcome<bool> {
        unreachable!("the host is turned")
    }

    fn show(&mut self, face: Box<dyn Face>) -> Outcome<Shown> {
        let inner = std::mem::replace(&mut self.inner, MemoryVolume::new(512, 512));
        let volume = Scripted { inner, script: self.script.clone() };
        Shown::new(&self.host, face, Box::new(volume), &[], &[])
    }

    fn watch(&mut self, fd: BorrowedFd<'_>) -> Outcome {
        self.host.watch(fd)
    }

    fn health(&self) -> VolumeHealth {
        let mut script = self.script.lock().unwrap();
        script.looks += 1;
        let state = if script.is_away { State::Away } else { State::Attached };
        VolumeHealth { state, may_lose: !script.is_flushed, ..self.inner.health() }
    }

    fn close(&mut self, ending: Ending) -> Outcome<Unheard> {
        self.script.lock().unwrap().volume_closed = Some(ending);
        let unheard = (ending == Ending::BarAway).then(|| AWAY.to_owned());
        Ok(Unheard(unheard.into_iter().collect()))
    }
}

/// Something else on the host, which wants a turn every millisecond.
struct Beside(Shared);

impl Part for Beside {
    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.0.lock().unwrap().turns += 1;
        turn.now + Duration::from_millis(1)
    }
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

struct Paths(Arc<Mutex<Vec<String>>>, Shared);

impl Reporter for Paths {
    fn note(&mut self, text: &str) {
        self.1.lock().unwrap().notes.push(text.to_owned());
    }

    fn ready(&mut self, path: &str) -> Outcome {
        self.0.lock().unwrap().push(path.to_owned());
        Ok(())
    }
}

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

/// Waits until the face has been asked who uses it, while that is slow to be found out.
fn see_asked(script: &Shared) {
    let start = Instant::now();
    while script.lock().unwrap().asked == 0 {
        assert!(start.elapsed() < SOON, "nobody asks the face");
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
    let said = last_flush_failed(&io.error(ErrorKind::Io, "remote"), true).message;
    let wanted = "the target's medium reported an error: writes since the last flush may be lost";
    assert_eq!(said, wanted);
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
