//! An attachment with real links: something to submit to and poll.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_initiator::{Initiator, InitiatorConfig, InitiatorReport};
use thinwire_link::Link;
use thinwire_proto::Time;

use crate::clock::{Clock, entropy};
use crate::links::Links;
use crate::wait::{WaitStats, WaitToken, Waiter};

/// Tokens of links start here; below are the caller's own descriptors.
const LINKS: WaitToken = 1 << 32;

/// Links, clock and waiting of one attachment. Drives an [`Initiator`] that lives elsewhere, for
/// example inside a module over it.
pub struct Driver {
    links: Links,
    waiter: Waiter,
    clock: Clock,
    pool: Pool,
}

impl Driver {
    /// Begins to attach: see [`Remote::new`].
    pub fn begin(
        mut config: InitiatorConfig,
        links: Vec<Box<dyn Link>>,
        pool: Pool,
    ) -> io::Result<(Initiator, Self)> {
        let clock = Clock::new();
        if config.instance == 0 {
            config.instance = entropy();
        }
        if config.initiator == [0; 16] {
            // Zeroes name nobody: an attachment without a name of its own is somebody new.
            config.initiator[..8].copy_from_slice(&entropy().to_be_bytes());
            config.initiator[8..].copy_from_slice(&entropy().to_be_bytes());
        }
        let links = Links::new(links, pool.clone());
        let mut waiter = Waiter::new()?;
        links.register(&mut waiter, LINKS)?;
        let mut initiator =
            Initiator::new(clock.now(), config, links.params(), pool.clone(), entropy());
        initiator.set_observer(links.clocks().clone());
        Ok((initiator, Driver { links, waiter, clock, pool }))
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The clock that the initiator's times are of.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The links, for their names and counters.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Whether waiting may spin. Default: yes.
    pub fn set_spin(&mut self, spin: bool) {
        self.waiter.set_spin(spin);
    }

    /// Counters of the waiting.
    pub fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }

    /// Ends a wait while `fd` is readable. `token` is below 2^32.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, token: WaitToken) -> io::Result<()> {
        assert!(token < LINKS);
        self.waiter.add(fd, token)
    }

    /// Takes in what the last wait found. Call it before submitting, so that a turn's work goes
    /// into a turn's frames. Returns true if a frame arrived.
    pub fn receive(&mut self, initiator: &mut Initiator) -> io::Result<bool> {
        let Self { links, waiter, clock, .. } = self;
        let now = clock.now();
        let mut frames = links.receive_probed(|link, frame| initiator.on_frame(now, link, frame));
        for &token in waiter.ready() {
            if token >= LINKS {
                let at = (token - LINKS) as usize;
                frames += links.receive(at, |link, frame| initiator.on_frame(now, link, frame))?;
            }
        }
        Ok(frames > 0)
    }

    /// Sends what there is to send.
    pub fn send(&mut self, initiator: &mut Initiator) -> io::Result<()> {
        initiator.turn(self.clock.now(), &mut self.links.out);
        self.links.flush()
    }

    /// Looks, without waiting, what [`Driver::receive`] would find.
    pub fn look(&mut self) -> io::Result<bool> {
        self.waiter.look()
    }

    /// Waits for a frame, a watched descriptor, a timer of the volume, or `timeout` at most.
    /// Spins for a while if that has lately paid. Returns at once if completions wait.
    pub fn wait(&mut self, initiator: &Initiator, timeout: Option<Duration>) -> io::Result<()> {
        if initiator.has_completions() {
            self.waiter.look()?;
            return Ok(());
        }
        let own = self.timeout(initiator);
        let timeout = timeout.map_or(own, |t| t.min(own));
        let bounded = (timeout < Duration::from_secs(3600)).then_some(timeout);
        let Self { links, waiter, .. } = self;
        waiter.wait_probing(bounded, || initiator.network_time(), || links.probe())?;
        Ok(())
    }

    /// The time until the volume needs a turn although nothing arrives.
    pub fn timeout(&self, initiator: &Initiator) -> Duration {
        let now = self.clock.now();
        let wait = initiator.deadline(now).since(now);
        self.links.again_within().map_or(wait, |again| wait.min(again))
    }

    /// The watched descriptors that the last wait found readable.
    pub fn ready(&self) -> impl Iterator<Item = WaitToken> + '_ {
        self.waiter.ready().iter().copied().filter(|&token| token < LINKS)
    }

    /// Readable when a turn has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waiter.fd()
    }
}

/// A remote volume and its links, driven by the thread that owns it.
///
/// Submit I/Os to [`Remote::volume`], call [`Remote::turn`], take completions from
/// `volume().poll(..)`, and when there is nothing to do call [`Remote::wait`]. Nothing blocks but
/// `wait`.
pub struct Remote {
    initiator: Initiator,
    driver: Driver,
}

impl Remote {
    /// Begins to attach. [`Initiator::is_open`] tells when that is done,
    /// [`Initiator::first_error`] if it failed. `pool` is where received frames and the data of
    /// reads live; buffers for writes may come from it too.
    pub fn new(config: InitiatorConfig, links: Vec<Box<dyn Link>>, pool: Pool) -> io::Result<Self> {
        let (initiator, driver) = Driver::begin(config, links, pool)?;
        Ok(Remote { initiator, driver })
    }

    /// Takes the two parts apart, for a module that owns the initiator.
    pub fn into_parts(self) -> (Initiator, Driver) {
        (self.initiator, self.driver)
    }

    /// The volume: submit and poll. Its geometry is known once it is open.
    pub fn volume(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// The volume, to look at.
    pub fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// Links, clock and pool.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Pool {
        self.driver.pool()
    }

    /// The time on this volume's clock.
    pub fn now(&self) -> Time {
        self.driver.clock().now()
    }

    /// Figures for status.
    pub fn report(&self) -> InitiatorReport {
        self.initiator.report(self.now())
    }

    /// See [`Driver::set_spin`].
    pub fn set_spin(&mut self, spin: bool) {
        self.driver.set_spin(spin);
    }

    /// Wakes [`Remote::wait`] while `fd` is readable. `token` is below 2^32.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, token: WaitToken) -> io::Result<()> {
        self.driver.watch(fd, token)
    }

    /// See [`Driver::receive`].
    pub fn receive(&mut self) -> io::Result<bool> {
        self.driver.receive(&mut self.initiator)
    }

    /// See [`Driver::send`].
    pub fn send(&mut self) -> io::Result<()> {
        self.driver.send(&mut self.initiator)
    }

    /// [`Remote::receive`] and [`Remote::send`] with a look before them: for callers without a loop
    /// of their own. Returns true if something happened.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.driver.look()?;
        let got = self.receive()?;
        self.send()?;
        Ok(got || self.initiator.has_completions())
    }

    /// See [`Driver::wait`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.driver.wait(&self.initiator, timeout)
    }

    /// See [`Driver::ready`].
    pub fn ready(&self) -> impl Iterator<Item = WaitToken> + '_ {
        self.driver.ready()
    }
}
