//! A target's loop.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_link::Link;
use thinwire_target::{ExportConfig, Target, TargetConfig};

use crate::clock::{Clock, entropy};
use crate::links::Links;
use crate::shards::Mail;
use crate::wait::{WaitToken, Waiter};

/// Tokens of links start here; below are the others.
const LINKS: WaitToken = 1 << 32;
const MAIL: WaitToken = 1 << 31;
const DISKS: WaitToken = 1;
const STOP: WaitToken = 0;
/// How long an orderly end may take.
const STOP_TIME: Duration = Duration::from_secs(3);

/// One shard of a target: its links, volumes and sessions.
pub struct TargetShard {
    target: Target,
    links: Links,
    waiter: Waiter,
    clock: Clock,
    disks: Vec<WaitToken>,
    mail: Option<Mail>,
    pool: Pool,
}

impl TargetShard {
    /// A shard on these links. `pool` is where received frames and the data of reads live.
    pub fn new(
        config: TargetConfig,
        links: Vec<Box<dyn Link>>,
        shard: u8,
        pool: Pool,
    ) -> io::Result<Self> {
        let links = Links::new(links, pool.clone());
        let mut waiter = Waiter::new()?;
        links.register(&mut waiter, LINKS)?;
        let mut target = Target::new(config, links.params(), shard, pool.clone(), entropy());
        target.set_observer(links.clocks().clone());
        Ok(TargetShard {
            target,
            links,
            waiter,
            clock: Clock::new(),
            disks: Vec::new(),
            mail: None,
            pool,
        })
    }

    /// Whether an idle shard spins for a while before it sleeps. Default: yes.
    pub fn set_spin(&mut self, spin: bool) {
        self.waiter.set_spin(spin);
    }

    /// Joins the other shards of the target: greetings go to and fro through `mail`.
    pub(crate) fn join(&mut self, mail: Mail) -> io::Result<()> {
        self.waiter.add(mail.bell(), MAIL)?;
        self.mail = Some(mail);
        Ok(())
    }

    /// Offers a volume. `fd` is readable when the volume has completions; it belongs to the volume
    /// and so stays open as long as the shard.
    pub fn add_export(&mut self, export: ExportConfig, fd: Option<RawFd>) -> io::Result<()> {
        if let Some(fd) = fd {
            let token = DISKS + self.disks.len() as WaitToken;
            self.waiter.add_disk(fd, token)?;
            self.disks.push(token);
        }
        self.target.add_export(export);
        Ok(())
    }

    /// The state machine, for status.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The state machine, for what is set before serving.
    pub fn target_mut(&mut self) -> &mut Target {
        &mut self.target
    }

    /// One turn: drains every source, acts, sends. Then waits, unless something is to be done at
    /// once. Returns the tokens' verdict: true if `stop` became readable.
    fn turn(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut stop = false;
        let Self { target, links, waiter, clock, mail, pool, .. } = self;
        let now = clock.now();
        links.receive_probed(|link, frame| target.on_frame(now, link, frame));
        for &token in waiter.ready() {
            if token >= LINKS {
                let at = (token - LINKS) as usize;
                links.receive(at, |link, frame| target.on_frame(now, link, frame))?;
            } else if token == STOP {
                stop = true;
            } else if (DISKS..MAIL).contains(&token) {
                target.disk_ready();
            } else if let (MAIL, Some(mail)) = (token, mail.as_ref()) {
                mail.receive(pool, |link, frame| target.on_forward(now, link, frame));
            }
        }
        if let Some(mail) = mail {
            while let Some(forward) = target.next_forward() {
                mail.send(forward);
            }
        }
        // Memory stores complete at once: their answers go with this turn's frames.
        target.turn(now, &mut links.out);
        links.flush()?;
        while let Some(note) = target.take_note() {
            tracing::warn!("{note}");
        }
        let wait = target.deadline(now).since(now);
        let wait = timeout.map_or(wait, |t| t.min(wait));
        let wait = links.again_within().map_or(wait, |again| wait.min(again));
        let bounded = (wait <= Duration::from_secs(3600)).then_some(wait);
        waiter.wait_probing(bounded, || target.network_time(), || links.probe())?;
        Ok(stop)
    }

    /// Serves until `stop` is readable, then ends in order: initiators are told, what is under way
    /// is finished (for a bounded time).
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        self.waiter.add(stop, STOP)?;
        while !self.turn(None)? {}
        self.waiter.remove(stop)?;
        self.target.shut_down();
        let end = self.clock.now() + STOP_TIME;
        loop {
            self.turn(Some(Duration::from_millis(20)))?;
            let all_is_said = self.target.is_idle() && self.links.again_within().is_none();
            if all_is_said || self.clock.now() >= end {
                return Ok(());
            }
        }
    }

    /// Serves for a bounded number of turns; for tests and benchmarks.
    pub fn run_turns(&mut self, turns: usize, timeout: Duration) -> io::Result<()> {
        for _ in 0..turns {
            self.turn(Some(timeout))?;
        }
        Ok(())
    }
}
