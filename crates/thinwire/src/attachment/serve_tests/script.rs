//! A face, a volume and a reporter that do as a script says, which a test and the attachment in another thread
//! share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use thinwire_buffer::{Pool, SegList, Time};
use thinwire_volume::{
    CacheReport, Closing, Completion, Geometry, Identity, Op, Part, Volume, VolumeEvent,
};

use super::*;
use crate::open::VolumeHealth;
use crate::testing::Mischief;

/// How often a face looks for what it waits for.
const LOOK_EVERY_NS: i64 = 5_000_000;
/// So long caches may stand still.
pub(super) const PATIENCE: Duration = Duration::from_millis(600);
/// The leaf that is let go of unheard.
pub(super) const AWAY: &str = "tw://node1/disk0";

/// What a test tells the face and volume, and hears from them.
#[derive(Default)]
pub(super) struct Script {
    pub busy: Option<&'static str>,
    /// Whether it is busy takes it for as long as this to find out.
    pub is_slow: bool,
    /// `busy` was called so often.
    pub asked: u64,
    /// Closing by force takes so many more calls, or for ever.
    pub lingers: u64,
    /// Another part of the host is turned all the time, so that nothing sleeps for long.
    pub has_company: bool,
    /// Turns of that.
    pub turns: u64,
    /// What polite closing says, the last first; then Ok.
    pub closings: Vec<io::ErrorKind>,
    pub dies: bool,
    pub fails_flush: bool,
    /// All that was written is known to be flushed.
    pub is_flushed: bool,
    /// `force` of each close.
    pub closed: Vec<bool>,
    /// Who uses the face when it is gone.
    pub user: Option<&'static str>,
    /// What the reporter heard.
    pub notes: Vec<String>,
    pub flushes: u64,
    pub volume_closed: Option<Ending>,
    /// The volume's target is away: flushes do not end.
    pub is_away: bool,
    /// The face writes, and the volume loses that.
    pub loses: bool,
    /// It has done so.
    pub has_lost: bool,
    /// So many bytes are in a cache of it.
    pub dirty: u64,
    /// Something stays outstanding there.
    pub is_stuck: bool,
    /// Once the face is gone: whether the volume has ended was looked at so often.
    pub looks: u64,
}

pub(super) type Shared = Arc<Mutex<Script>>;

/// As a block device: while it waits for an answer a timer wakes its host, and nothing else does. Who
/// does not read that is woken at once again.
pub(super) struct FakeFace {
    script: Shared,
    timer: OwnedFd,
    timer_runs: bool,
    gone: bool,
    has_written: bool,
}

impl FakeFace {
    pub fn new(script: Shared) -> Self {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap();
        FakeFace { script, timer, timer_runs: false, gone: false, has_written: false }
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
        let (dies, loses) = {
            let script = self.script.lock().unwrap();
            (script.dies, script.loses)
        };
        let writes = loses && !std::mem::replace(&mut self.has_written, loses);
        if writes {
            let data = SegList::of(Pool::new(0).copy_of(&[7; 512]).freeze());
            volume.submit(Io { data, user: 1, ..Io::new(9, Op::Write, 0, 512) });
        }
        match dies {
            true => Err(io::Error::other("the kernel went away")),
            false => Ok(self.take_tick() | writes),
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
    losses: u64,
    told: u64,
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
        let seen = done.len();
        self.inner.poll(done);
        {
            let mut script = self.script.lock().unwrap();
            let loses = script.loses && done.len() > seen;
            self.losses += u64::from(loses);
            script.has_lost |= loses;
        }
        self.catch_up();
    }

    fn outstanding(&self) -> usize {
        let mut script = self.script.lock().unwrap();
        script.looks += 1;
        self.inner.outstanding() + usize::from(script.is_stuck)
    }

    fn events(&self) -> u64 {
        self.losses
    }

    fn is_wound_up(&self) -> bool {
        self.script.lock().unwrap().dirty == 0
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        let dirty = self.script.lock().unwrap().dirty;
        found.push(CacheReport { dirty, ..CacheReport::default() });
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        if std::mem::replace(&mut self.told, self.losses) != self.losses {
            events.push(VolumeEvent::Lost);
        }
    }
}

/// Such a volume on a host, until it is shown.
pub(super) struct Told {
    pub host: Host,
    pub inner: MemoryVolume,
    pub script: Shared,
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
        let script = self.script.clone();
        let volume = Scripted { inner, script, losses: 0, told: 0 };
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

    fn wind_up_patience(&self) -> Duration {
        PATIENCE
    }

    fn close(&mut self, ending: Ending) -> Outcome<Unheard> {
        self.script.lock().unwrap().volume_closed = Some(ending);
        let unheard = (ending == Ending::BarAway).then(|| AWAY.to_owned());
        Ok(Unheard(unheard.into_iter().collect()))
    }
}

/// Something else on the host, which wants a turn every millisecond.
pub(super) struct Beside(pub Shared);

impl Part for Beside {
    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        self.0.lock().unwrap().turns += 1;
        turn.now + Duration::from_millis(1)
    }
}

pub(super) struct Paths(pub Arc<Mutex<Vec<String>>>, pub Shared);

impl Reporter for Paths {
    fn note(&mut self, text: &str) {
        self.1.lock().unwrap().notes.push(text.to_owned());
    }

    fn ready(&mut self, path: &str) -> Outcome {
        self.0.lock().unwrap().push(path.to_owned());
        Ok(())
    }
}
