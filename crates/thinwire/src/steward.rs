//! The thread beside the shards of a target: it takes signals, and answers `status` on the target's control
//! socket (`target-NODE.sock` in the run directory). Shards only give their figures away, between two
//! turns; whatever takes longer is done here.
//!
//! The first signal ends the target in order, and what that waits for is told; the second ends the wait. A disk
//! that does not answer holds its shard all the same: then the process ends some seconds later, as by kill -9.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thinwire_runtime::inquiry::{Inquiry, ShardReport};

use crate::config::TargetSettings;
use crate::control::{ControlServer, Controlled, DetachProgress, Response, State, TargetState};
use crate::error::{Failure, Outcome};
use crate::health;
use crate::rundir::{Claim, RunDir, TARGET_PREFIX, TargetRecord, node_of};
use crate::signals::{Signals, signal_name};

/// A shard that does not answer for this long is told of as silent.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long an orderly end may take: requests in the stores, then the leaves of each export.
const STOP_SECONDS: u64 = 3;
const LEAVES_SECONDS: u64 = crate::remote::CLOSE_PATIENCE.as_secs();
/// How long after a second signal the end is waited for.
pub const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// What tells shards to end, from whatever thread. Each is readable once it has been said, and stays so.
#[derive(Clone, Debug)]
pub struct Endings {
    /// In order.
    pub stop: Arc<OwnedFd>,
    /// At once.
    pub hurry: Arc<OwnedFd>,
}

impl Endings {
    /// Nothing is said yet.
    pub fn new() -> Outcome<Self> {
        Ok(Endings { stop: bell()?, hurry: bell()? })
    }
}

/// An eventfd that nobody has rung.
pub fn bell() -> Outcome<Arc<OwnedFd>> {
    let made = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    made.map(Arc::new).map_err(|e| Failure::failed(format!("cannot make an eventfd: {e}")))
}

fn ring(bell: &OwnedFd) {
    // It fails only when it has been rung 2^64 times.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes the target known in the run directory, and listens there. One whose name another process has
/// there, which serves another network, has its process id behind it.
pub fn register<'a>(
    dir: &'a RunDir,
    config: &TargetSettings,
) -> Outcome<(Claim<'a>, ControlServer)> {
    let name = format!("{TARGET_PREFIX}{}", config.node);
    for other in dir.targets()? {
        // Of a process that was killed: nobody else may come for it.
        if other != name && node_of(&other) == Some(&config.node) && !dir.is_alive(&other) {
            drop(dir.claim(&other)?);
        }
    }
    let claim = match dir.claim(&name)? {
        Some(claim) => Some(claim),
        None => dir.claim(&format!("{name}@{}", std::process::id()))?,
    };
    let taken = || Failure::failed(format!("{name} is taken in {}", dir.path().display()));
    let claim = claim.ok_or_else(taken)?;
    if dir.target_record(claim.name()).is_some() {
        tracing::info!("removed what a target of this name left that was killed");
    }
    claim.write(&TargetRecord::of_this_process(&config.node, config.insecure))?;
    let control = dir.listen(claim.name()).and_then(ControlServer::new);
    let control =
        control.map_err(|e| Failure::failed(format!("cannot make the control socket: {e}")))?;
    Ok((claim, control))
}

/// The thread, before it runs.
pub struct Steward<'a> {
    /// What is served.
    pub config: &'a TargetSettings,
    /// Those that end a target.
    pub signals: &'a Signals,
    /// How the shards are told.
    pub endings: &'a Endings,
    /// How they are asked.
    pub inquiry: &'a Inquiry,
    /// Who may ask; nobody, if there is no run directory.
    pub control: Option<ControlServer>,
    /// All shards serve.
    pub serving: &'a AtomicBool,
    /// Readable when nothing is to be looked after any more.
    pub over: &'a OwnedFd,
    /// How long after a second signal that is waited for: [`LAST_PATIENCE`].
    pub last_patience: Duration,
    /// What ends the process then, whatever holds it.
    pub give_up: &'a (dyn Fn() + Sync),
}

impl Steward<'_> {
    /// Answers and takes signals until there is nothing to look after any more.
    pub fn run(mut self) {
        // However this ends, a target that takes no signals must not go on.
        let _end = RingAtEnd(&self.endings.stop);
        let mut signals = 0;
        let mut given_up = None;
        loop {
            let control = self.control.as_ref().map(ControlServer::fd);
            let fds = [Some(self.over.as_fd()), Some(self.signals.fd()), control];
            let mut fds: Vec<_> =
                fds.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let left = given_up.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return tracing::error!("cannot wait for signals: {e}"),
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            drop(fds);
            if given_up.is_some_and(|at| at <= Instant::now()) {
                tracing::error!(
                    "a disk of this machine does not answer: ends without it, as by kill -9. The kernel \
                     keeps the lock of that image until the disk has answered; writers stay on record"
                );
                return (self.give_up)();
            }
            if let Some(signal) = self.signals.take() {
                signals += 1;
                self.on_signal(signal, signals);
                if signals == 2 {
                    given_up = Some(Instant::now() + self.last_patience);
                }
            }
            if let Some(control) = &mut self.control {
                let state = match (signals, self.serving.load(Ordering::Acquire)) {
                    (0, false) => TargetState::Starting,
                    (0, true) => TargetState::Serving,
                    _ => TargetState::Stopping,
                };
                control.turn(&mut View { config: self.config, inquiry: self.inquiry, state });
            }
        }
    }

    fn on_signal(&self, signal: i32, nth: u32) {
        let signal = signal_name(signal);
        if nth > 1 {
            tracing::warn!("{signal}, a second time: ends at once");
            return ring(&self.endings.hurry);
        }
        tracing::info!("{signal}: ends in order");
        if self.serving.load(Ordering::Acquire) {
            let reports = self.inquiry.ask(PATIENCE);
            tell_what_is_waited_for(reports.iter().flatten());
        }
        ring(&self.endings.stop);
    }
}

/// Makes an eventfd readable when it is dropped.
pub struct RingAtEnd<'a>(pub &'a OwnedFd);

impl Drop for RingAtEnd<'_> {
    fn drop(&mut self) {
        ring(self.0);
    }
}

/// What does not answer, and must before its export ends in order.
fn tell_what_is_waited_for<'r>(reports: impl Iterator<Item = &'r ShardReport>) {
    for report in reports {
        let mut exports: Vec<&str> = Vec::new();
        for leaf in &report.leaves {
            let status = health::leaf_of_target(leaf, report);
            if status.state != State::Away {
                continue;
            }
            if !exports.contains(&leaf.export.as_str()) {
                exports.push(&leaf.export);
            }
            // Exports end one after the other.
            let seconds = STOP_SECONDS + LEAVES_SECONDS * exports.len() as u64;
            tracing::warn!(
                "export {}: waits for {}, which is away: what was written to it and not flushed must \
                 reach it first. Given up after {seconds} s, or at once with a second signal",
                leaf.export,
                leaf.uri
            );
        }
    }
}

/// What the control socket sees.
struct View<'a> {
    config: &'a TargetSettings,
    inquiry: &'a Inquiry,
    state: TargetState,
}

impl Controlled for View<'_> {
    fn status(&self) -> Response {
        let reports = match self.state {
            TargetState::Serving => self.inquiry.ask(PATIENCE),
            _ => Vec::new(),
        };
        Response::Target(Box::new(health::target(self.config, self.state, PATIENCE, &reports)))
    }

    fn detach(&mut self, _: bool) -> Result<DetachProgress, String> {
        let pid = std::process::id();
        Err(format!("it is a target: stop its service, or send SIGTERM to its process {pid}"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::testing::target_settings;

    /// Whether it ends the process within `wait` after so many signals, while a shard does not end.
    fn gives_up(signals: usize, wait: Duration) -> bool {
        let (taken, hand) = Signals::by_hand();
        let (endings, over) = (Endings::new().unwrap(), bell().unwrap());
        let (tell, told) = mpsc::channel();
        let steward = Steward {
            config: &target_settings(),
            signals: &taken,
            endings: &endings,
            inquiry: &Inquiry::new(1).unwrap(),
            control: None,
            serving: &AtomicBool::new(false),
            over: &over,
            last_patience: Duration::from_millis(50),
            give_up: &|| tell.send(()).unwrap(),
        };
        std::thread::scope(|scope| {
            let _over = RingAtEnd(&over);
            scope.spawn(|| steward.run());
            (0..signals).for_each(|_| hand.send(libc::SIGTERM));
            told.recv_timeout(wait).is_ok()
        })
    }

    #[test]
    fn a_second_signal_ends_the_process_although_a_shard_does_not_end() {
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(20));
        assert!(!gives_up(1, short), "an end in order takes as long as it takes");
        assert!(gives_up(2, long) && gives_up(3, long));
    }
}
