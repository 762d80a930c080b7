//! Sleeping on everything at once, or spinning instead (`docs/design.md`, "When to sleep").
//!
//! Waking a sleeping thread costs tens of microseconds, more than a small I/O. So after work a
//! shard spins for a while before it sleeps, if [`crate::spin`] says so. While it spins it yields, so
//! that on a busy machine it spins on nobody's time. [`Spin`] has it never spin, or never sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::time::Timespec;
use thinwire_proto::Time;

use crate::clock::Clock;
pub(crate) use crate::spin::Next;
pub use crate::spin::Spin;
use crate::spin::Spinner;

/// Events that one wait can report.
const EVENTS: usize = 32;

/// A descriptor's number among those waited for.
pub type WaitToken = u64;

/// Counters of a waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Waits that found something at once.
    pub ready: u64,
    /// Waits that spun and found something.
    pub spun: u64,
    /// Waits that spun for nothing.
    pub spun_in_vain: u64,
    /// Those of them that ended because somebody else wanted the processor.
    pub made_way: u64,
    /// Waits that slept.
    pub slept: u64,
}

/// An epoll descriptor with an adaptive wait.
pub struct Waiter {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    ready: Vec<WaitToken>,
    clock: Clock,
    spinner: Spinner,
    stats: WaitStats,
}

impl Waiter {
    /// A waiter without descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Waiter {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS),
            ready: Vec::with_capacity(EVENTS),
            clock: Clock::new(),
            spinner: Spinner::new(),
            stats: WaitStats::default(),
        })
    }

    /// When to spin. Default: [`Spin::On`].
    pub fn set_spin(&mut self, spin: Spin) {
        self.spinner.set_mode(spin);
    }

    /// Reports `token` while `fd` is readable; adding it again changes the token. The descriptor
    /// must stay open until [`Waiter::remove`] or for the life of the waiter.
    pub fn add(&mut self, fd: BorrowedFd<'_>, token: WaitToken) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        match epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
            Err(rustix::io::Errno::EXIST) => {
                Ok(epoll::modify(&self.epoll, fd, data, epoll::EventFlags::IN)?)
            }
            added => Ok(added?),
        }
    }

    /// [`Waiter::add`] for the descriptor of a disk, which [`crate::disk::open_store`] gives as a
    /// number, since it belongs to the volume. It must be open during this call; when the volume
    /// closes it, it is no longer reported.
    pub fn add_disk(&mut self, fd: RawFd, token: WaitToken) -> io::Result<()> {
        // SAFETY: borrowed for this call only, in which the kernel checks the number itself.
        self.add(unsafe { BorrowedFd::borrow_raw(fd) }, token)
    }

    /// Stops reporting a descriptor.
    pub fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        epoll::delete(&self.epoll, fd)?;
        Ok(())
    }

    /// [`Waiter::remove`] by number, of one that may have been closed since, with which its report
    /// ended.
    pub(crate) fn remove_raw(&mut self, fd: RawFd) {
        // SAFETY: borrowed for this call only, in which the kernel checks the number itself.
        let _ = epoll::delete(&self.epoll, unsafe { BorrowedFd::borrow_raw(fd) });
    }

    /// Counters.
    pub fn stats(&self) -> WaitStats {
        self.stats
    }

    /// The tokens that the last wait found ready.
    pub fn ready(&self) -> &[WaitToken] {
        &self.ready
    }

    /// Readable while any of the descriptors is.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn ask(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.events.clear();
        self.ready.clear();
        let has_slept = timeout != Some(Duration::ZERO);
        let timeout = timeout
            .map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        // A link may have several descriptors under one token.
        for token in self.events.iter().map(|e| e.data.u64()) {
            if !self.ready.contains(&token) {
                self.ready.push(token);
            }
        }
        if !self.ready.is_empty() && self.spinner.is_idle() {
            self.spinner.found(self.clock.now(), has_slept);
        }
        Ok(!self.ready.is_empty())
    }

    /// Looks without waiting.
    pub fn look(&mut self) -> io::Result<bool> {
        self.ask(Some(Duration::ZERO))
    }

    /// Waits until a descriptor is readable or `timeout` (forever if none) is over: looks, spins as
    /// long as that has lately paid, then sleeps, unless it always spins. True if a descriptor is ready.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.wait_probing(timeout, Next::Descriptor, || None, || Ok(false))
    }

    /// Instead of a wait, when there is something to do anyway: asks `probe`, and only now and then
    /// looks at all descriptors.
    pub(crate) fn pass(&mut self, probe: impl FnOnce() -> io::Result<bool>) -> io::Result<()> {
        self.stats.ready += 1;
        let now = self.clock.now();
        if self.spinner.is_to_look(now, Next::Frame) {
            self.look()?;
        } else {
            self.ready.clear();
            probe()?;
        }
        if self.spinner.is_idle() {
            self.spinner.found(now, false);
        }
        Ok(())
    }

    /// [`Waiter::wait`], but while it spins it asks `probe`, and where a descriptor is not what is expected next only
    /// now and then the kernel about all of them. A probe takes what it finds at once, which saves a system call between
    /// the arrival of a frame and its receipt; then this returns true with no token ready.
    /// `network_time` says how long the network takes there and back, if something is on the way.
    pub(crate) fn wait_probing(
        &mut self,
        timeout: Option<Duration>,
        next: Next,
        network_time: impl FnOnce() -> Option<Duration>,
        mut probe: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<bool> {
        if self.look()? {
            self.stats.ready += 1;
            return Ok(true);
        }
        if timeout.is_some_and(|t| t.is_zero()) {
            return Ok(false);
        }
        let start = self.clock.now();
        let end = timeout.map_or(Time::NEVER, |timeout| start + timeout);
        let mut left = timeout;
        if self.spinner.begin(start, next, network_time, switches) {
            let mut round = start;
            loop {
                std::thread::yield_now();
                let yielded = self.clock.now();
                let is_mine = self.spinner.yielded(round, yielded, switches);
                if probe()? {
                    self.stats.spun += 1;
                    self.spinner.found(yielded, false);
                    return Ok(true);
                }
                if self.spinner.is_to_look(yielded, next) && self.look()? {
                    self.stats.spun += 1;
                    return Ok(true);
                }
                let now = self.clock.now();
                // A look that found nothing is short, too: it may have been interrupted there.
                let is_mine = is_mine && self.spinner.yielded(yielded, now, switches);
                self.stats.made_way += u64::from(!is_mine);
                if !self.spinner.goes_on(round, now) || !is_mine || now >= end {
                    break;
                }
                round = now;
            }
            self.stats.spun_in_vain += 1;
            if self.spinner.is_endless() {
                return Ok(false);
            }
            left = timeout.map(|_| end.since(self.clock.now()));
        }
        self.stats.slept += 1;
        self.ask(left)
    }

    /// What ended the last wait was a frame that had waited for its receiver for so long: the gap before it
    /// was shorter by that.
    pub fn arrived(&mut self, waited: Duration) {
        self.spinner.arrived(waited);
    }

    /// Something has just been sent, so an answer may come.
    pub fn sent(&mut self) {
        if self.spinner.is_idle() {
            self.spinner.sent(self.clock.now());
        }
    }
}

/// How often this thread has lost its processor to another while it wanted it.
fn switches() -> u64 {
    // SAFETY: a structure of numbers, for which zeroes are valid, that the kernel fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nivcsw as u64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    fn rung() -> OwnedFd {
        eventfd(1, EventfdFlags::CLOEXEC).unwrap()
    }

    /// A waiter that spins to the end of its wait, however long the others of a busy machine hold
    /// the processor that it yields.
    fn patient() -> Waiter {
        let mut waiter = Waiter::new().unwrap();
        waiter.set_spin(Spin::Always);
        waiter
    }

    #[test]
    fn what_a_probe_finds_ends_a_wait_with_no_token() {
        let mut waiter = patient();
        let mut probes = 0;
        let found = waiter.wait_probing(
            LONG,
            Next::Frame,
            || None,
            || {
                probes += 1;
                Ok(probes == 3)
            },
        );
        assert!(found.unwrap());
        assert_eq!((probes, waiter.ready()), (3, &[][..]));
        assert_eq!((waiter.stats().spun, waiter.stats().slept), (1, 0));
    }

    #[test]
    fn who_has_work_probes_and_hears_the_others_now_and_then() {
        let mut waiter = Waiter::new().unwrap();
        let bell = rung();
        waiter.add(bell.as_fd(), 7).unwrap();
        let (mut probes, mut heard) = (0, 0);
        for _ in 0..12 {
            waiter
                .pass(|| {
                    probes += 1;
                    Ok(false)
                })
                .unwrap();
            heard += waiter.ready().len();
        }
        // On a busy machine it looks more often.
        assert!(heard >= 3 && probes + heard == 12, "{probes}, {heard}");
        assert_eq!(waiter.stats().slept, 0);
    }

    #[test]
    fn probes_do_not_hide_the_other_descriptors() {
        let mut waiter = patient();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        waiter.add(bell.as_fd(), 7).unwrap();
        let found = waiter.wait_probing(
            LONG,
            Next::Frame,
            || None,
            || {
                rustix::io::write(&bell, &1u64.to_ne_bytes())?;
                Ok(false)
            },
        );
        assert!(found.unwrap());
        assert_eq!(waiter.ready(), [7]);
        assert_eq!((waiter.stats().spun, waiter.stats().slept), (1, 0));
    }

    /// Such as a link's socket and its group's: it is received from once a turn.
    #[test]
    fn descriptors_under_one_token_are_one() {
        let mut waiter = Waiter::new().unwrap();
        let bells = [rung(), rung(), rung()];
        for (bell, token) in bells.iter().zip([7, 8, 7]) {
            waiter.add(bell.as_fd(), token).unwrap();
        }
        assert!(waiter.look().unwrap());
        let mut ready = waiter.ready().to_vec();
        ready.sort_unstable();
        assert_eq!(ready, [7, 8]);
    }

    /// Such as the timer that tries a full queue again.
    #[test]
    fn timers_do_not_keep_an_idle_shard_spinning() {
        let mut waiter = Waiter::new().unwrap();
        for _ in 0..400 {
            assert!(!waiter.wait(Some(Duration::from_micros(100))).unwrap());
        }
        // Two of them, and on a busy machine those that made way.
        let spun = waiter.stats().spun_in_vain;
        assert!(spun < 50, "{spun} of 400");
    }

    #[test]
    fn who_always_spins_never_sleeps_and_hears_everything() {
        let mut waiter = Waiter::new().unwrap();
        waiter.set_spin(Spin::Always);
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        waiter.add(bell.as_fd(), 7).unwrap();
        let slow = || Some(Duration::from_secs(1));
        let start = Instant::now();
        let timeout = Some(Duration::from_millis(20));
        assert!(!waiter.wait_probing(timeout, Next::Frame, slow, || Ok(false)).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20), "a timer still ends it, on time");
        let mut probes = 0;
        let ring_late = || {
            probes += 1;
            if probes == 40 {
                rustix::io::write(&bell, &1u64.to_ne_bytes())?;
            }
            Ok(false)
        };
        assert!(waiter.wait_probing(None, Next::Frame, slow, ring_late).unwrap());
        assert_eq!(waiter.ready(), [7]);
        let stats = waiter.stats();
        assert_eq!((stats.spun, stats.spun_in_vain, stats.slept), (1, 1, 0));
    }

    /// Has this thread, and those that it starts, run on one processor only.
    fn stay_on_one_processor() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let all = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap());
        sched_setaffinity(None, &one).unwrap();
    }

    #[test]
    fn who_shares_its_processor_with_somebody_busy_makes_way() {
        stay_on_one_processor();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let start = Instant::now();
            let mut made_way = 0;
            while made_way == 0 && start.elapsed() < LONG.unwrap() {
                let mut waiter = Waiter::new().unwrap();
                assert!(!waiter.wait(Some(Duration::from_millis(20))).unwrap());
                let stats = waiter.stats();
                made_way = stats.made_way;
                assert_eq!((stats.spun, stats.spun_in_vain, stats.slept), (0, 1, 1));
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(made_way, 1);
        });
    }

    #[test]
    fn a_frame_that_had_waited_makes_no_long_gap() {
        let spins_after = |waited| {
            let mut waiter = Waiter::new().unwrap();
            let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            waiter.add(bell.as_fd(), 7).unwrap();
            for _ in 0..40 {
                assert!(!waiter.wait(Some(Duration::from_millis(1))).unwrap());
                rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
                assert!(waiter.wait(LONG).unwrap());
                waiter.arrived(waited);
                rustix::io::read(&bell, &mut [0; 8]).unwrap();
            }
            let before = waiter.stats().spun_in_vain;
            // If somebody else wants the processor: when that is forgotten.
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(1100));
                assert!(!waiter.wait(Some(Duration::from_millis(1))).unwrap());
            }
            waiter.stats().spun_in_vain > before
        };
        assert!(!spins_after(Duration::ZERO));
        assert!(spins_after(Duration::from_secs(1)), "it was there all the time");
    }

    #[test]
    fn who_must_not_spin_does_not_probe() {
        let mut waiter = Waiter::new().unwrap();
        waiter.set_spin(Spin::Off);
        let probe = || -> io::Result<bool> { panic!("probed") };
        assert!(
            !waiter
                .wait_probing(Some(Duration::from_millis(1)), Next::Frame, || None, probe)
                .unwrap()
        );
        let bell = rung();
        waiter.add(bell.as_fd(), 1).unwrap();
        assert!(waiter.wait_probing(LONG, Next::Frame, || None, probe).unwrap());
    }
}
