//! Sleeping on everything at once, and when to spin instead (`docs/design.md`, "One
//! thread carries a frame all the way").
//!
//! Waking a sleeping thread costs tens of microseconds, more than a small I/O. So after work a
//! shard spins for a while before it sleeps, as long as that has lately paid: it keeps an estimate
//! of the time from going idle to the next event, and spins only if that is of the order of what a
//! wake-up costs. While it spins it yields, so that on a busy machine it spins on nobody's time.
//! [`Spin`] has it never spin, or never sleep.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::Timespec;

/// Longest spin, and the estimate above which spinning does not pay. About four times what waking
/// up both sides of a round trip costs.
const SPIN_MAX: Duration = Duration::from_micros(200);
/// What waking up costs, about. Where events come more often than that, sleeping costs more than
/// spinning.
const WAKE_UP: Duration = Duration::from_micros(25);
/// Where the network takes longer for a round trip, a wake-up does not show: frames wait in a queue
/// there, a slow link's, and a processor that spins would only wait for it.
const NETWORK_TIME_MAX: Duration = Duration::from_micros(500);
/// While it spins over a link, a look at everything comes after so many at that link alone.
const PROBES_PER_LOOK: u32 = 4;
/// Events that one wait can report.
const EVENTS: usize = 32;
/// When to spin instead of sleeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Never.
    Off,
    /// For up to 200 us, as long as that has lately paid.
    #[default]
    On,
    /// Always: it never sleeps, and takes all of a processor that nobody else wants.
    Always,
}

impl fmt::Display for Spin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spin::Off => "off",
            Spin::On => "on",
            Spin::Always => "always",
        })
    }
}

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Spin::Off),
            "on" => Ok(Spin::On),
            "always" => Ok(Spin::Always),
            _ => Err(format!("`{text}`: give on, off or always")),
        }
    }
}

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
    /// Waits that slept.
    pub slept: u64,
}

/// An epoll descriptor with an adaptive wait.
pub struct Waiter {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    ready: Vec<WaitToken>,
    /// Estimated time from going idle to the next event.
    gap: Duration,
    /// Since when nothing has come, over however many waits that a timer ended.
    idle_since: Option<Instant>,
    /// How often it was passed, as [`Waiter::pass`] says.
    passed: u32,
    spin: Spin,
    /// [`SPIN_MAX`], but for tests: while one yields on a busy machine, that is soon over.
    spin_max: Duration,
    stats: WaitStats,
}

impl Waiter {
    /// A waiter without descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Waiter {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS),
            ready: Vec::with_capacity(EVENTS),
            gap: SPIN_MAX,
            idle_since: None,
            passed: 0,
            spin: Spin::On,
            spin_max: SPIN_MAX,
            stats: WaitStats::default(),
        })
    }

    /// When to spin. Default: [`Spin::On`].
    pub fn set_spin(&mut self, spin: Spin) {
        self.spin = spin;
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
        if !self.ready.is_empty() {
            self.idle_since = None;
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
        self.wait_spinning(timeout, 1, || None, || Ok(false))
    }

    /// [`Waiter::wait`], but while it spins it asks `probe`, and only now and then the kernel about
    /// all descriptors. A probe takes what it finds at once, which saves a system call between the
    /// arrival of a frame and its receipt; then this returns true with no token ready.
    /// `network_time` says how long the network takes there and back, if something is on the way.
    pub fn wait_probing(
        &mut self,
        timeout: Option<Duration>,
        network_time: impl FnOnce() -> Option<Duration>,
        probe: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.wait_spinning(timeout, PROBES_PER_LOOK, network_time, probe)
    }

    /// Instead of a wait, when there is something to do anyway: asks `probe`, and only now and then
    /// looks at all descriptors.
    pub fn pass(&mut self, probe: impl FnOnce() -> io::Result<bool>) -> io::Result<()> {
        self.stats.ready += 1;
        self.passed = (self.passed + 1) % PROBES_PER_LOOK;
        if self.passed == 0 {
            self.look()?;
        } else {
            self.ready.clear();
            probe()?;
        }
        self.idle_since = None;
        Ok(())
    }

    fn wait_spinning(
        &mut self,
        timeout: Option<Duration>,
        probes_per_look: u32,
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
        let start = Instant::now();
        let idle_since = *self.idle_since.get_or_insert(start);
        let mut left = timeout;
        if self.pays(network_time) {
            let budget = (self.gap * 4).clamp(Duration::from_micros(30), self.spin_max);
            let budget = match self.spin {
                Spin::Always => timeout,
                _ => Some(timeout.map_or(budget, |t| t.min(budget))),
            };
            let mut probes = 0u32;
            loop {
                std::thread::yield_now();
                probes += 1;
                if probe()? || (probes % probes_per_look == 0 && self.look()?) {
                    self.stats.spun += 1;
                    self.idle_since = None;
                    self.learn(idle_since.elapsed());
                    return Ok(true);
                }
                if budget.is_some_and(|budget| start.elapsed() >= budget) {
                    break;
                }
            }
            self.stats.spun_in_vain += 1;
            if self.spin == Spin::Always {
                return Ok(false);
            }
            left = timeout.map(|t| t.saturating_sub(start.elapsed()));
        }
        self.stats.slept += 1;
        let ready = self.ask(left)?;
        let idle = idle_since.elapsed();
        // A timer of ours says nothing about when the next event comes, but that it has not yet.
        if ready || idle > SPIN_MAX {
            self.learn(idle);
        }
        Ok(ready)
    }

    fn pays(&self, network_time: impl FnOnce() -> Option<Duration>) -> bool {
        let shows = || network_time().is_none_or(|network_time| network_time <= NETWORK_TIME_MAX);
        match self.spin {
            Spin::Off => false,
            Spin::On => self.gap <= self.spin_max && (self.gap <= WAKE_UP || shows()),
            Spin::Always => true,
        }
    }

    fn learn(&mut self, gap: Duration) {
        // What lies far beyond counts only as "too long", so that one pause is soon forgotten.
        self.gap = (self.gap * 7 + gap.min(SPIN_MAX * 4)) / 8;
    }
}

#[cfg(test)]
mod tests {
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
        (waiter.spin_max, waiter.gap) = (LONG.unwrap(), LONG.unwrap());
        waiter
    }

    #[test]
    fn what_a_probe_finds_ends_a_wait_with_no_token() {
        let mut waiter = patient();
        let mut probes = 0;
        let found = waiter.wait_probing(
            LONG,
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
        for _ in 0..3 * PROBES_PER_LOOK {
            waiter
                .pass(|| {
                    probes += 1;
                    Ok(false)
                })
                .unwrap();
            heard += waiter.ready().len() as u32;
        }
        assert_eq!((probes, heard), (3 * (PROBES_PER_LOOK - 1), 3));
        assert_eq!(waiter.stats().slept, 0);
    }

    #[test]
    fn probes_do_not_hide_the_other_descriptors() {
        let mut waiter = patient();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        waiter.add(bell.as_fd(), 7).unwrap();
        let found = waiter.wait_probing(
            LONG,
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
        for _ in 0..100 {
            assert!(!waiter.wait(Some(Duration::from_micros(100))).unwrap());
        }
        let before = waiter.stats().spun_in_vain;
        assert!(before < 50, "{before} of 100");
        for _ in 0..100 {
            assert!(!waiter.wait(Some(Duration::from_micros(100))).unwrap());
        }
        assert_eq!(waiter.stats().spun_in_vain, before);
    }

    #[test]
    fn where_frames_queue_in_the_network_nobody_spins_for_them() {
        let mut waiter = Waiter::new().unwrap();
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        waiter.add(bell.as_fd(), 7).unwrap();
        let timeout = Some(Duration::from_micros(10));
        let mut spins = |gap, network_time| {
            waiter.gap = Duration::from_micros(gap);
            let before = waiter.stats().spun_in_vain;
            let network_time = || Duration::from_micros(network_time).into();
            waiter.wait_probing(timeout, network_time, || Ok(false)).unwrap();
            waiter.stats().spun_in_vain > before
        };
        assert!(spins(60, 100) && spins(60, 500));
        assert!(!spins(60, 501));
        assert!(spins(20, 501), "sleeping costs more");
        assert!(!spins(201, 100));
    }

    #[test]
    fn who_always_spins_never_sleeps_and_hears_everything() {
        let mut waiter = Waiter::new().unwrap();
        waiter.set_spin(Spin::Always);
        let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        waiter.add(bell.as_fd(), 7).unwrap();
        // What would keep it from spinning otherwise: nothing has come for long, and a slow network.
        waiter.gap = SPIN_MAX * 4;
        let slow = || Some(NETWORK_TIME_MAX * 2);
        let mut probes = 0;
        let mut count = || {
            probes += 1;
            Ok(false)
        };
        let start = Instant::now();
        assert!(!waiter.wait_probing(Some(Duration::from_millis(20)), slow, &mut count).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20), "a timer still ends it, on time");
        let ring = || {
            std::thread::sleep(Duration::from_millis(20));
            rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(ring);
            assert!(waiter.wait_probing(None, slow, &mut count).unwrap());
        });
        assert_eq!(waiter.ready(), [7]);
        assert!(probes > 2 * u64::from(PROBES_PER_LOOK), "{probes} probes");
        let stats = waiter.stats();
        assert_eq!((stats.spun, stats.spun_in_vain, stats.slept), (1, 1, 0));
    }

    #[test]
    fn words_for_spinning_are_understood_and_said() {
        for spin in [Spin::Off, Spin::On, Spin::Always] {
            assert_eq!(spin.to_string().parse(), Ok(spin));
        }
        assert!("never".parse::<Spin>().unwrap_err().contains("on, off or always"));
    }

    #[test]
    fn who_must_not_spin_does_not_probe() {
        let mut waiter = Waiter::new().unwrap();
        waiter.set_spin(Spin::Off);
        let probe = || -> io::Result<bool> { panic!("probed") };
        assert!(!waiter.wait_probing(Some(Duration::from_millis(1)), || None, probe).unwrap());
        let bell = rung();
        waiter.add(bell.as_fd(), 1).unwrap();
        assert!(waiter.wait_probing(LONG, || None, probe).unwrap());
    }
}
