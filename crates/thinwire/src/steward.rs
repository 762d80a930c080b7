//! The thread beside the shards of a target: it takes signals, and answers `status` and `reload` on the target's
//! control socket (`target-NODE.sock` in the run directory). Shards only give their figures away, and take keys and
//! limits, between two turns; whatever takes longer is done here.
//!
//! SIGHUP has the configuration read again (`reload.rs`), unless the terminal has gone that the target was started
//! from. Else the first signal ends the target in order, and what that waits for is told; the second ends the wait. A disk
//! that does not answer holds its shard all the same: then the process ends some seconds later, as by kill -9, and
//! names all that do not (`last_resort.rs`).

mod coming;
mod errands;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use thinwire_runtime::disk;
use thinwire_runtime::inquiry::{ExportChange, Inquiry, OpenExports, ShardReport, TargetChange};

use self::coming::{open_all, sync_beforehand};
use self::errands::Errands;
use crate::config::TargetSettings;
use crate::config_file;
use crate::control::{
    ControlServer, Controlled, DetachProgress, PoolProgress, Response, State, TargetState,
};
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::health;
use crate::last_resort::{held_up, paths_of};
use crate::notify;
use crate::pool::{PoolAsk, PoolName};
use crate::privileges::{Confined, ConfinedOnce};
use crate::reload::{self, ExportPlan, Reloaded};
use crate::rundir::{Claim, RunDir, TARGET_PREFIX, TargetRecord, node_of};
use crate::serve::target_keys;
use crate::signals::{Signals, signal_name};
use crate::trees::NodeName;
use crate::work::{WorkAsk, no_export};

/// A shard that does not answer for this long is told of as silent.
const PATIENCE: Duration = Duration::from_millis(300);
/// The same, if it is to take what has changed: that holds within a second.
const RELOAD_PATIENCE: Duration = Duration::from_secs(1);
/// How long shards may take to open what a reload adds.
const PREPARE_PATIENCE: Duration = Duration::from_secs(10);
/// Exports that were taken away of which the shard is remembered.
const FORMER_PLACES_MAX: usize = 256;
/// How often it is looked whether exports that are taken away have been closed.
const LEAVING_LOOK: Duration = Duration::from_millis(10);
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
        if other != name
            && node_of(&other) == Some(&config.node)
            && !dir.is_alive(&other)
            && let Err(why) = dir.claim(&other).map(drop)
        {
            tracing::warn!("what a target of this name left stays: {why}");
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
    let mut record = TargetRecord::of_this_process(&config.node, config.insecure);
    let volumes = || config.exports.iter().map(|export| &export.volume);
    record.pools = volumes().flat_map(PoolName::all_in).collect();
    record.volumes = volumes().flat_map(NodeName::all_in).collect();
    record.pools.dedup();
    claim.write(&record)?;
    let control = dir.listen(claim.name()).and_then(ControlServer::new);
    let control =
        control.map_err(|e| Failure::failed(format!("cannot make the control socket: {e}")))?;
    Ok((claim, control))
}

/// The thread, before it runs.
pub struct Steward<'a> {
    /// What is served.
    pub config: TargetSettings,
    /// Its exports, and the shard of each; also of those that were taken away.
    pub places: Vec<(String, u8)>,
    /// Reads that again.
    pub read: &'a (dyn Fn() -> Outcome<TargetSettings> + Sync),
    /// Those that end a target, and SIGHUP.
    pub signals: &'a Signals,
    /// How the shards are told.
    pub endings: &'a Endings,
    /// How they are asked.
    pub inquiry: &'a Inquiry,
    /// Who may ask; nobody, if there is no run directory.
    pub control: Option<ControlServer>,
    /// All shards serve.
    pub serving: &'a AtomicBool,
    /// What the process has left, once that is known.
    pub confined: &'a ConfinedOnce,
    /// Readable when nothing is to be looked after any more.
    pub over: &'a OwnedFd,
    /// How long after a second signal that is waited for: [`LAST_PATIENCE`].
    pub last_patience: Duration,
    /// What ends the process then, whatever holds it, and says why.
    pub give_up: &'a (dyn Fn(&str) + Sync),
}

impl Steward<'_> {
    /// Answers and takes signals until there is nothing to look after any more.
    pub fn run(mut self) {
        // However this ends, a target that takes no signals must not go on.
        let _end = RingAtEnd(&self.endings.stop);
        let had_terminal = !is_without_terminal();
        let mut signals = 0;
        let mut given_up = None;
        let mut errands = Errands::default();
        loop {
            let control = self.control.as_ref().map(ControlServer::fd);
            let fds = [Some(self.over.as_fd()), Some(self.signals.fd()), control];
            let mut fds: Vec<_> =
                fds.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let left = given_up.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let look = errands.look();
            let left = left.into_iter().chain(look).min();
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
                let volumes = self.config.exports.iter().map(|export| &export.volume);
                return (self.give_up)(&held_up(&disk::waited_for(), &paths_of(volumes)));
            }
            match self.signals.take() {
                Some(libc::SIGHUP) if !(had_terminal && is_without_terminal()) => {
                    let _told = self.view(signals, &mut errands).reload();
                }
                Some(signal) => {
                    signals += 1;
                    self.on_signal(signal, signals);
                    if signals == 2 {
                        given_up = Some(Instant::now() + self.last_patience);
                    }
                }
                None => {}
            }
            if let Some(mut control) = self.control.take() {
                control.turn(&mut self.view(signals, &mut errands));
                errands.finish(&mut control);
                self.control = Some(control);
            }
        }
    }

    /// What may be seen and done after so many signals.
    fn view<'v>(&'v mut self, signals: u32, errands: &'v mut Errands) -> View<'v> {
        let state = match (signals, self.serving.load(Ordering::Acquire)) {
            (0, false) => TargetState::Starting,
            (0, true) => TargetState::Serving,
            _ => TargetState::Stopping,
        };
        View {
            config: &mut self.config,
            places: &mut self.places,
            read: self.read,
            inquiry: self.inquiry,
            confined: self.confined,
            errands,
            state,
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

/// There is no terminal that this process belongs to, or not any more.
fn is_without_terminal() -> bool {
    let opened = std::fs::File::open("/dev/tty");
    opened.is_err_and(|e| e.raw_os_error() == Some(libc::ENXIO))
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
    config: &'a mut TargetSettings,
    places: &'a mut Vec<(String, u8)>,
    read: &'a (dyn Fn() -> Outcome<TargetSettings> + Sync),
    inquiry: &'a Inquiry,
    confined: &'a ConfinedOnce,
    errands: &'a mut Errands,
    state: TargetState,
}

impl Controlled for View<'_> {
    fn status(&self) -> Response {
        let reports = match self.state {
            TargetState::Serving => self.inquiry.ask(PATIENCE),
            _ => Vec::new(),
        };
        let mut all = health::target(&*self.config, self.state, PATIENCE, &reports);
        all.privileges = self.confined.get().map(Confined::status);
        Response::Target(Box::new(all))
    }

    fn reload(&mut self) -> Result<Reloaded, String> {
        // Who waits for it to be ready waits on.
        let is_told = self.state != TargetState::Starting;
        is_told.then(notify::reloading);
        let done = self.read_again();
        is_told.then(notify::ready);
        match &done {
            Ok(done) if done.changes.is_empty() => tracing::info!("reloaded: nothing has changed"),
            Ok(done) => tracing::warn!("reloaded: {}", done.describe().join("; ")),
            Err(why) => tracing::error!("not reloaded, and goes on as before: {why}"),
        }
        done
    }

    fn change_pool(&mut self, ask: &PoolAsk) -> PoolProgress {
        let has = |export: &ExportSpec| PoolName::all_in(&export.volume).contains(&ask.pool);
        match errands::place_of(self, has) {
            Ok(Some(shard)) => self.errands.begin(self.inquiry, shard, ask),
            Ok(None) => {
                errands::refused(format!("no export is a volume of the pool {}", ask.pool.name))
            }
            Err(why) => errands::refused(why.into()),
        }
    }

    fn work(&mut self, ask: &WorkAsk) -> PoolProgress {
        let has = |export: &ExportSpec| ask.volume.is_in(&export.name, &export.volume);
        match errands::place_of(self, has) {
            Ok(Some(shard)) => self.errands.begin(self.inquiry, shard, ask),
            Ok(None) => errands::refused(no_export(&ask.volume.name)),
            Err(why) => errands::refused(why.into()),
        }
    }

    fn detach(&mut self, _: bool) -> Result<DetachProgress, String> {
        let pid = std::process::id();
        Err(format!("it is a target: stop its service, or send SIGTERM to its process {pid}"))
    }
}

impl View<'_> {
    fn read_again(&mut self) -> Result<Reloaded, String> {
        if self.state == TargetState::Stopping {
            return Err("it is ending".into());
        }
        config_file::read_again();
        let next = (self.read)().map_err(|failure| failure.message)?;
        let changes = reload::changes(self.config, &next)?;
        // What it has allowed at its start is its user's affair.
        if next.memory().all() > self.config.memory().all() {
            next.check_memory()?;
        }
        next.unused.iter().for_each(|unused| tracing::warn!("{unused}"));
        let mut done = Reloaded { changes, ..Reloaded::default() };
        if done.changes.is_empty() {
            return Ok(done);
        }
        // Shards that have not begun find them when they do.
        let patience = match self.state {
            TargetState::Serving => RELOAD_PATIENCE,
            _ => Duration::ZERO,
        };
        let plan = ExportPlan::of(&self.config.exports, &next.exports);
        let exports = self.prepare(&plan, &next)?;
        let all = exports.as_ref().map(|change| change.all.clone());
        let change = TargetChange { keys: target_keys(&next), limits: next.limits, exports };
        let ended = self.inquiry.change(&change, patience);
        for (shard, ended) in (0..).zip(ended) {
            match ended {
                Some(count) => done.ended += count as u64,
                None => done.late.push(shard),
            }
        }
        if let Some(all) = all {
            keep_places(self.places, all);
        }
        if !plan.removed.is_empty() {
            done.leaving = self.wait_for_leaving();
        }
        *self.config = next;
        Ok(done)
    }

    /// Has the shards prepare exports that come and go; `None` if none do, and have no other weight.
    fn prepare(
        &self,
        plan: &ExportPlan,
        next: &TargetSettings,
    ) -> Result<Option<ExportChange>, String> {
        if plan.is_empty() && plan.weights.is_empty() {
            return Ok(None);
        }
        if self.state != TargetState::Serving {
            return Err("exports change once it serves: it is still starting".into());
        }
        next.refuse_shared().map_err(|failure| failure.message)?;
        next.check_caches()?;
        let shards = self.inquiry.shards();
        let mut all: Vec<(String, u8)> = Vec::new();
        let mut added = vec![Vec::new(); usize::from(shards)];
        let place = |name: &str| {
            let known = self.places.iter().find(|(known, _)| known == name);
            known.map(|&(_, shard)| shard)
        };
        let mut counts = vec![0; usize::from(shards)];
        let stay = next.exports.iter().filter_map(|export| place(&export.name));
        stay.for_each(|shard| counts[usize::from(shard)] += 1);
        for export in &next.exports {
            // A pool is one shard's, and a disk that has slices.
            let has_common = |other: &&ExportSpec| {
                other.name != export.name && other.volume.shares_common_with(&export.volume)
            };
            let beside = self.config.exports.iter().find(has_common);
            let beside = beside.and_then(|other| place(&other.name));
            let shard = beside.or_else(|| place(&export.name)).unwrap_or_else(|| {
                let least = (0..shards).min_by_key(|&at| counts[usize::from(at)]);
                let least = least.expect("there is a shard");
                counts[usize::from(least)] += 1;
                least
            });
            all.push((export.name.clone(), shard));
            if plan.added.iter().any(|added| added.name == export.name) {
                if export.volume.is_store() {
                    sync_beforehand(export)?;
                }
                added[usize::from(shard)].push(export.clone());
            }
        }
        let open = |specs: Vec<ExportSpec>| -> OpenExports {
            let state_dir = next.state_dir.clone();
            Box::new(move |pool| open_all(&specs, &state_dir, pool))
        };
        let opens = added.into_iter().map(open).collect();
        self.inquiry.prepare(opens, PREPARE_PATIENCE).map_err(|why| why.join("; "))?;
        let (removed, weights) = (plan.removed.clone(), plan.weights.clone());
        let added = plan.added.iter().map(|export| export.name.clone()).collect();
        Ok(Some(ExportChange { removed, added, weights, all }))
    }

    /// Exports whose files are still open when that has had its time.
    fn wait_for_leaving(&self) -> Vec<String> {
        let end = Instant::now() + RELOAD_PATIENCE;
        loop {
            let reports = self.inquiry.ask(PATIENCE);
            let leaving = reports.into_iter().flatten().flat_map(|report| report.leaving);
            let leaving: Vec<String> = leaving.collect();
            if leaving.is_empty() || Instant::now() >= end {
                return leaving;
            }
            std::thread::sleep(LEAVING_LOOK);
        }
    }
}

/// From now on exports have these places. One that was taken away comes back to the shard that had it: that remembers who
/// was granted it.
fn keep_places(places: &mut Vec<(String, u8)>, all: Vec<(String, u8)>) {
    places.retain(|(former, _)| !all.iter().any(|(name, _)| name == former));
    places.drain(..places.len().saturating_sub(FORMER_PLACES_MAX));
    places.extend(all);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use thinwire_runtime::disk::LettingGo;

    use super::*;
    use crate::testing::{TempDir, target_settings};

    /// What it says when it ends the process within `wait` after so many signals, while a shard does not end.
    fn gives_up(signals: usize, wait: Duration) -> Option<String> {
        let (taken, hand) = Signals::by_hand();
        let (endings, over) = (Endings::new().unwrap(), bell().unwrap());
        let (tell, told) = mpsc::channel();
        let steward = Steward {
            config: target_settings(),
            places: Vec::new(),
            read: &|| Ok(target_settings()),
            signals: &taken,
            endings: &endings,
            inquiry: &Inquiry::new(1).unwrap(),
            control: None,
            serving: &AtomicBool::new(false),
            confined: &ConfinedOnce::new(),
            over: &over,
            last_patience: Duration::from_millis(50),
            give_up: &|why| tell.send(why.to_owned()).unwrap(),
        };
        std::thread::scope(|scope| {
            let _over = RingAtEnd(&over);
            scope.spawn(|| steward.run());
            (0..signals).for_each(|_| hand.send(libc::SIGTERM));
            told.recv_timeout(wait).ok()
        })
    }

    #[test]
    fn a_second_signal_ends_the_process_although_a_shard_does_not_end() {
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(20));
        assert_eq!(gives_up(1, short), None, "an end in order takes as long as it takes");
        assert!(gives_up(2, long).is_some() && gives_up(3, long).is_some());
    }

    #[test]
    fn all_that_hang_are_named_in_the_end() {
        let names = ["/steward/a", "/steward/b"];
        let _hang = names.map(|name| LettingGo::of(name.as_ref()));
        let why = gives_up(2, Duration::from_secs(20)).unwrap();
        assert!(names.iter().all(|name| why.contains(name)), "{why}");
    }

    #[test]
    fn a_hangup_has_the_configuration_read_again_and_ends_nothing() {
        let (taken, hand) = Signals::by_hand();
        let (endings, over) = (Endings::new().unwrap(), bell().unwrap());
        let (tell, told) = mpsc::channel();
        let steward = Steward {
            config: target_settings(),
            places: Vec::new(),
            read: &|| {
                tell.send(()).unwrap();
                Err(Failure::usage("it is broken"))
            },
            signals: &taken,
            endings: &endings,
            inquiry: &Inquiry::new(1).unwrap(),
            control: None,
            serving: &AtomicBool::new(true),
            confined: &ConfinedOnce::new(),
            over: &over,
            last_patience: Duration::ZERO,
            give_up: &|_| unreachable!("nobody wants its end"),
        };
        std::thread::scope(|scope| {
            let _over = RingAtEnd(&over);
            scope.spawn(|| steward.run());
            for _ in 0..3 {
                hand.send(libc::SIGHUP);
                told.recv_timeout(Duration::from_secs(20)).unwrap();
            }
            let mut fds = [PollFd::new(&endings.stop, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0));
        });
    }

    #[test]
    fn a_reload_is_applied_whole_or_not_at_all() {
        let dir = TempDir::new("steward-reload");
        let key = crate::keys::make("alice", dir.path(), false).unwrap();
        let settings = |more: &str| {
            let words = format!(
                "thinwire target --name n --link eth1 --key {} --export a=memory:1M{more}",
                key.path.display()
            );
            let cli = <crate::cli::Cli as clap::Parser>::try_parse_from(words.split(' ')).unwrap();
            let crate::cli::Command::Target(args) = cli.command else { unreachable!() };
            TargetSettings::assemble(&args)
        };
        let mut config = settings("").unwrap();
        let (before, inquiry) = (config.clone(), Inquiry::new(2).unwrap());
        let reload = |config: &mut TargetSettings, state, next: &str| {
            let read = || settings(next);
            let confined = &ConfinedOnce::new();
            let places = &mut Vec::new();
            let errands = &mut Errands::default();
            let inquiry = &inquiry;
            let mut view = View { config, places, read: &read, inquiry, confined, errands, state };
            view.reload()
        };
        let (starting, stopping) = (TargetState::Starting, TargetState::Stopping);
        assert_eq!(reload(&mut config, starting, ""), Ok(Reloaded::default()));
        for (state, next, named) in [
            (starting, ",block=4096", "export `a` (its block"),
            (starting, ",weight=2", "still starting"),
            (starting, ",keys=thinwire-test-nobody", "thinwire-test-nobody"),
            (stopping, ",read-keys=alice", "ending"),
        ] {
            let why = reload(&mut config, state, next).unwrap_err();
            assert!(why.contains(named), "{next}: {why}");
            assert_eq!(config, before, "{next}");
        }
        let done = reload(&mut config, starting, ",read-keys=alice").unwrap();
        assert_eq!((done.changes.len(), done.ended, &done.late[..]), (1, 0, &[0, 1][..]));
        assert_eq!(config, settings(",read-keys=alice").unwrap());
    }
    #[test]
    fn an_export_comes_back_to_the_shard_that_had_it() {
        let places = |names: &[&str]| -> Vec<(String, u8)> {
            names.iter().map(|name| (name.to_string(), name.len() as u8)).collect()
        };
        let mut known = places(&["a", "bb", "ccc"]);
        keep_places(&mut known, places(&["a", "dddd"]));
        assert_eq!(known, places(&["bb", "ccc", "a", "dddd"]));
        for n in 0..2 * FORMER_PLACES_MAX {
            keep_places(&mut known, vec![(format!("e{n}"), 0)]);
        }
        assert_eq!(known.len(), FORMER_PLACES_MAX + 1);
        assert_eq!(known.last().unwrap().0, format!("e{}", 2 * FORMER_PLACES_MAX - 1));
    }
}
