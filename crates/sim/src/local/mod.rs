//! Users of disks of their own machine, as behind a face over a local store: no target stands between, nobody
//! writes again what a disk has lost, and whoever has written hears of it from a flush or not at all.
//!
//! A machine under a time of its own, beside the world with the wire: the two have nothing in common.
//! Disks fail flushes, alone or with all that lies on their device, lose writes in the background and tell
//! of that late; the process is killed, and the power fails.
//!
//! * `store.rs`: what a store tells of losses, watched
//! * `user.rs`: a volume with a workload, checked

mod store;
mod user;

use thinwire_link::rng::Rng;
use thinwire_volume::OwingCanary;

pub use self::store::StoreCanary;
use self::user::LocalUser;
use crate::client::Workload;
use crate::coverage::Coverage;
use crate::medium::{MediumConfig, MediumHandle};
use crate::model::Violation;
use crate::run::RunReport;
use crate::trace::Trace;
use crate::world::{MS, SECOND};

/// A fault planted below users of local disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalCanary {
    /// In what tells a flush of a loss.
    Owing(OwingCanary),
    /// In the store below that.
    Store(StoreCanary),
}

/// One disk of the machine, and what is done on it.
#[derive(Clone, Copy, Debug)]
pub struct LocalDisk {
    /// What the disk is like.
    pub config: MediumConfig,
    /// Its logical block.
    pub block_bytes: u32,
    /// What its user does.
    pub workload: Workload,
}

/// What becomes of the machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalPlan {
    /// How long things go wrong, in ns.
    pub duration_ns: u64,
    /// Mean time between two ends of the process, in ns; 0: it goes on.
    pub ends_ns: u64,
    /// Share of these that are power failures.
    pub power: f64,
    /// Longest delay between something being due and a turn, in ns.
    pub lag_ns: u64,
}

/// A machine with disks, one process that has them all, and a time of its own.
pub struct LocalMachine {
    users: Vec<LocalUser>,
    plan: LocalPlan,
    rng: Rng,
    now: u64,
    /// When the process ends next; `u64::MAX`: never.
    ends_at: u64,
    /// Counts the lives of the process.
    run: u32,
    trace: Trace,
    coverage: Coverage,
}

/// All I/O is answered this long after all is well.
const RECOVERY_NS: u64 = 60 * SECOND;
/// Behind so many flushes everybody has heard of all losses: one fails by itself, one for what was
/// lost, one for what was acknowledged behind that.
const FLUSHES_THAT_TELL: u32 = 3;

impl LocalMachine {
    /// One with these disks, which nobody has opened yet.
    pub fn new(
        seed: u64,
        plan: LocalPlan,
        disks: Vec<(MediumHandle, LocalDisk)>,
        canary: Option<LocalCanary>,
        prints: bool,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let users = disks.into_iter().enumerate().map(|(nth, (medium, disk))| {
            LocalUser::new(format!("local{nth}"), medium, disk, canary, Rng::new(rng.bits()))
        });
        LocalMachine {
            users: users.collect(),
            plan,
            rng,
            now: 0,
            ends_at: u64::MAX,
            run: 0,
            trace: Trace::new(prints),
            coverage: Coverage::default(),
        }
    }

    /// Lets things go wrong, heals, and sees whether every promise was kept.
    ///
    /// # Errors
    /// One was not.
    pub fn run(mut self) -> Result<RunReport, Violation> {
        self.draw_end();
        let limit = self.plan.duration_ns;
        while self.now < limit {
            self.step(limit)?;
        }
        self.ends_at = u64::MAX;
        self.users.iter().for_each(|user| user.medium.end_failures());
        self.trace.note(self.now, "locals", "heal", 0);
        self.users.iter_mut().for_each(|user| user.add_budget(12));
        self.until_answered()?;
        for _ in 0..FLUSHES_THAT_TELL {
            self.flush_all()?;
        }
        self.users.iter_mut().for_each(LocalUser::is_well_now);
        self.users.iter_mut().for_each(|user| user.add_budget(12));
        self.until_answered()?;
        self.flush_all()?;
        self.end_process(true);
        for user in &mut self.users {
            user.check_image()?;
            user.harvest(&mut self.coverage);
        }
        Ok(RunReport { coverage: self.coverage, trace_hash: self.trace.hash() })
    }

    fn draw_end(&mut self) {
        self.ends_at = match self.plan.ends_ns {
            0 => u64::MAX,
            mean => self.now + self.rng.between(mean / 2, 2 * mean),
        };
    }

    fn flush_all(&mut self) -> Result<(), Violation> {
        self.users.iter_mut().for_each(LocalUser::flush);
        self.until_answered()
    }

    fn until_answered(&mut self) -> Result<(), Violation> {
        let limit = self.now + RECOVERY_NS;
        while !self.users.iter().all(LocalUser::is_finished) {
            if self.now >= limit {
                let left: Vec<_> = self.users.iter().map(LocalUser::describe).collect();
                let text =
                    format!("locals: not within {} ms; {}", RECOVERY_NS / MS, left.join("; "));
                return Err(Violation(text));
            }
            self.step(limit)?;
        }
        Ok(())
    }

    /// Time goes on to the next event, `limit` at the latest.
    fn step(&mut self, limit: u64) -> Result<(), Violation> {
        let at = match self.users[0].runs() {
            true => self.users.iter().map(|user| user.next_time(self.now)).min(),
            // Its lock is free when what the last process had submitted has landed.
            false => self.users.iter().map(|user| user.medium.locked_until()).max(),
        };
        let at = at.expect("it has disks").min(limit).min(self.ends_at);
        self.now = at.max(self.now + 1);
        for user in &self.users {
            user.medium.advance(self.now);
        }
        if self.now >= self.ends_at {
            let power = self.rng.chance(self.plan.power);
            self.end_process(power);
            self.draw_end();
        }
        let free = |user: &LocalUser| user.medium.locked_until() <= self.now;
        if !self.users[0].runs() && self.users.iter().all(free) {
            self.run += 1;
            self.trace.note(self.now, "locals", "start run", self.run.into());
            self.users.iter_mut().for_each(|user| user.start(self.run));
        }
        // A device may have lost what is another's.
        self.users.iter_mut().for_each(LocalUser::look_for_losses);
        for user in &mut self.users {
            user.turn(self.now, self.plan.lag_ns, &mut self.coverage, &mut self.trace)?;
        }
        Ok(())
    }

    fn end_process(&mut self, power: bool) {
        if !self.users[0].runs() {
            return;
        }
        let what = if power { "power fails" } else { "is killed" };
        self.trace.note(self.now, "locals", what, 0);
        self.coverage.local_ends += 1;
        self.users.iter_mut().for_each(|user| user.end(power));
    }
}
