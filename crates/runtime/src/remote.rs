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
use crate::wait::{Token, WaitStats, Waiter};

/// Tokens of links start here; below are the caller's own descriptors.
const LINKS: Token = 1 << 32;

/// A remote volume and its links, driven by the thread that owns it.
///
/// Submit I/Os to [`Remote::volume`], call [`Remote::turn`], take completions from
/// `volume().poll(..)`, and when there is nothing to do call [`Remote::wait`]. Nothing blocks but
/// `wait`.
pub struct Remote {
    initiator: Initiator,
    links: Links,
    waiter: Waiter,
    clock: Clock,
    pool: Pool,
}

impl Remote {
    /// Begins to attach. [`Initiator::is_open`] tells when that is done,
    /// [`Initiator::first_error`] if it failed. `pool` is where received frames and the data of
    /// reads live; buffers for writes may come from it too.
    pub fn new(
        mut config: InitiatorConfig,
        links: Vec<Box<dyn Link>>,
        pool: Pool,
    ) -> io::Result<Self> {
        let clock = Clock::new();
        if config.instance == 0 {
            config.instance = entropy();
        }
        let links = Links::new(links, pool.clone());
        let mut waiter = Waiter::new()?;
        links.register(&mut waiter, LINKS)?;
        let initiator =
            Initiator::new(clock.now(), config, links.params(), pool.clone(), entropy());
        Ok(Remote { initiator, links, waiter, clock, pool })
    }

    /// The volume: submit and poll. Its geometry is known once it is open.
    pub fn volume(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// The volume, to look at.
    pub fn initiator(&self) -> &Initiator {
        &self.initiator
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The time on this volume's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Figures for status.
    pub fn report(&self) -> InitiatorReport {
        self.initiator.report(self.clock.now())
    }

    /// The links, for their names and counters.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Counters of the waiting.
    pub fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }

    /// Wakes [`Remote::wait`] while `fd` is readable. `token` is below 2^32.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, token: Token) -> io::Result<()> {
        assert!(token < LINKS);
        self.waiter.add(fd, token)
    }

    /// Takes in what the last wait found. Call it before submitting, so that a turn's work goes
    /// into a turn's frames. Returns true if a frame arrived.
    pub fn receive(&mut self) -> io::Result<bool> {
        let Self { initiator, links, waiter, clock, .. } = self;
        let now = clock.now();
        let mut frames = 0;
        for &token in waiter.ready() {
            if token >= LINKS {
                let at = (token - LINKS) as usize;
                frames += links.receive(at, |link, frame| initiator.on_frame(now, link, frame))?;
            }
        }
        Ok(frames > 0)
    }

    /// Sends what there is to send.
    pub fn send(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        self.initiator.turn(now, &mut self.links.out);
        self.links.flush()
    }

    /// [`Remote::receive`] and [`Remote::send`] with a look in between: for callers without a loop
    /// of their own. Returns true if something happened.
    pub fn turn(&mut self) -> io::Result<bool> {
        self.waiter.look()?;
        let got = self.receive()?;
        self.send()?;
        Ok(got || self.initiator.has_completions())
    }

    /// The time until the volume needs a turn although nothing arrives.
    pub fn timeout(&self) -> Duration {
        let now = self.clock.now();
        self.initiator.deadline(now).since(now)
    }

    /// Waits for a frame, a watched descriptor, a timer of the volume, or `timeout` at most.
    /// Spins for a while if that has lately paid. Returns at once if completions wait.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.initiator.has_completions() {
            self.waiter.look()?;
            return Ok(());
        }
        let own = self.timeout();
        let timeout = timeout.map_or(own, |t| t.min(own));
        let bounded = (timeout < Duration::from_secs(3600)).then_some(timeout);
        self.waiter.wait(bounded)?;
        Ok(())
    }

    /// The caller's descriptors that the last wait found readable.
    pub fn ready(&self) -> impl Iterator<Item = Token> + '_ {
        self.waiter.ready().iter().copied().filter(|&token| token < LINKS)
    }

    /// Readable when [`Remote::turn`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waiter.fd()
    }
}
