//! One shard of a target.

mod asked;
mod letting_go;

use std::cell::{Ref, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_initiator::Initiator;
use thinwire_link::Link;
use thinwire_node::{Lane, PartId};
use thinwire_target::{
    ExportConfig, ExportOpening, SESSION_NUMBER, SpreadConfig, Target, TargetConfig, session_lane,
};

use crate::clock::{entropy, entropy_bytes};
use crate::disk::HeldRing;
use crate::inquiry::{Clerk, Inquiry, LeafReport, LinkReport, SESSIONS_TOLD_MAX, ShardReport};
use crate::shard::{Shard, SharedShard};
use crate::shards::{Guest, Idle, Mail};
use crate::wait::{Spin, WaitToken};

const STOP: WaitToken = 0;
const ASKED: WaitToken = 1;
const HURRY: WaitToken = 2;
/// How long an orderly end may take.
const STOP_TIME: Duration = Duration::from_secs(3);
/// How often it is looked at whether it has come.
const STOP_LOOK: Duration = Duration::from_millis(20);

/// A volume to offer, and what tells of its completions.
pub struct OpenedExport {
    /// The volume, its name and rights.
    pub config: ExportConfig,
    /// Readable when it has completions. They belong to the volume, which lives as long as the shard.
    pub fds: Vec<RawFd>,
    /// Ports in it, by number, to parts of the shard's node.
    pub ports: Vec<usize>,
    /// Those of the parts that are attachments, to tell how they are.
    pub leaves: Vec<OpenedLeaf>,
    /// Whether all I/O on its files and devices of this machine is direct; `None` if it has none.
    pub direct: Option<bool>,
    /// Which of its files and devices of this machine have something to answer, called with whether the volume has
    /// something outstanding. `None` if it has none.
    pub awaited: Option<Awaited>,
    /// Called after each turn: goes on with what is below it and neither in the volume nor a part. `None` if there is nothing such.
    pub tend: Option<Box<dyn FnMut() -> Tended>>,
    /// Called once it is offered: what is prepared for a reload may never be.
    pub offered: Option<Box<dyn FnOnce()>>,
    /// Called once nobody is served any more: ends what it stands on.
    pub end: Option<Box<dyn FnOnce(ExportEnd)>>,
    /// Does what is asked of volumes that it is made of ([`Inquiry::errand`]); one on each shard.
    pub clerk: Option<Box<dyn Clerk>>,
    /// See [`Target::set_weight`].
    pub weight: u16,
}

/// How an export ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportEnd {
    /// Nobody could be served.
    Unused,
    /// In order: what it stands on is to be made durable, and let go of.
    Orderly,
    /// Somebody else has what it stands on: that is to be let go of at once, without a last write.
    Fenced,
}

/// What [`OpenedExport::tend`] has changed.
#[derive(Default)]
pub struct Tended {
    /// Ports that are in the volume from now on, by number.
    pub ports: Vec<usize>,
    /// Readable, from now on, when something of it has completions.
    pub fds: Vec<RawFd>,
    /// All attachments that the export stands on, if they are others than before.
    pub leaves: Option<Vec<OpenedLeaf>>,
}

/// See [`OpenedExport::awaited`].
pub type Awaited = Box<dyn Fn(bool) -> Vec<PathBuf>>;

impl OpenedExport {
    /// Of a volume with at most one descriptor, which stands on nothing else.
    pub fn new(config: ExportConfig, fd: Option<RawFd>) -> Self {
        let fds = fd.into_iter().collect();
        OpenedExport {
            config,
            fds,
            ports: Vec::new(),
            leaves: Vec::new(),
            direct: None,
            awaited: None,
            tend: None,
            offered: None,
            end: None,
            clerk: None,
            weight: 1,
        }
    }

    /// Lets go of what nobody was served: the volume, then what it stands on. Not while its shard is
    /// borrowed, whose turns that may take.
    pub fn discard(self) {
        drop(self.config);
        if let Some(end) = self.end {
            end(ExportEnd::Unused);
        }
    }
}

/// An attachment that an export stands on, a part of the shard as long as that is served.
#[derive(Clone)]
pub struct OpenedLeaf {
    /// What is attached, as the user named it.
    pub uri: String,
    /// Which of its members this is, if it has several.
    pub member: Option<u8>,
    /// The part.
    pub initiator: PartId<Initiator>,
    /// The shard's numbers of its links.
    pub links: Vec<usize>,
}

/// What a shard listens to while it serves.
#[derive(Clone, Copy, Debug)]
pub struct Orders<'a> {
    /// Readable when it is to end in order.
    pub stop: BorrowedFd<'a>,
    /// Readable when that is to be given up.
    pub hurry: Option<BorrowedFd<'a>>,
    /// Who asks how it is.
    pub inquiry: Option<&'a Inquiry>,
    /// Other shards that serve an export together with it, which end when it does.
    pub idle: Option<&'a Idle>,
}

/// A target and its shard: links, volumes and sessions.
pub struct TargetShard {
    shard: SharedShard,
    target: PartId<Target>,
    index: u8,
    /// The target's links, by number.
    links: Vec<usize>,
    /// With their exports.
    leaves: Vec<(ExportOpening, OpenedLeaf)>,
    /// In the order in which they were added.
    exports: Vec<Shown>,
    /// What a reload is about to add.
    prepared: Vec<OpenedExport>,
    /// Exports that a reload has taken away, and whose volumes are still there.
    leaving: Vec<Shown>,
    /// Names of those of which somebody else has what they stood on.
    fenced: Vec<String>,
    /// This thread's ring, for disks that are opened when none can be made any more.
    _ring: Option<HeldRing>,
    /// Some export has to be tended.
    is_tended: bool,
    /// See [`OpenedExport::clerk`].
    clerk: Option<Box<dyn Clerk>>,
    /// What that does, and where the answers go.
    errands: Vec<(u64, Sender<String>)>,
    last_errand: u64,
    /// It has turned as a target.
    has_served: bool,
}

/// What is kept here of an export.
struct Shown {
    /// Which one of its name.
    opening: ExportOpening,
    direct: Option<bool>,
    awaited: Option<Awaited>,
    tend: Option<Box<dyn FnMut() -> Tended>>,
    end: Option<Box<dyn FnOnce(ExportEnd)>>,
}

impl TargetShard {
    /// A shard of its own on these links. `pool` is where received frames and the data of reads live.
    pub fn new(
        config: TargetConfig,
        links: Vec<Box<dyn Link>>,
        index: u8,
        pool: Pool,
    ) -> io::Result<Self> {
        let all = (0..links.len()).collect();
        let shard = Rc::new(RefCell::new(Shard::new(links, pool)?));
        Ok(TargetShard::on(shard, config, all, index))
    }

    /// On a shard that has parts already, on these links of it. It gets the frames of its own sessions,
    /// and, if it is the first of its node, those outside of sessions.
    pub fn on(shard: SharedShard, config: TargetConfig, links: Vec<usize>, index: u8) -> Self {
        let own = session_lane(index, &config.node);
        let lane = Lane { sessions: own..=own | SESSION_NUMBER, outside: index == 0 };
        let target = {
            let shard = &mut *shard.borrow_mut();
            let pool = shard.pool().clone();
            let mut config = config;
            if let Some(keys) = &mut config.keys {
                keys.entropy = entropy_bytes();
            }
            let mut target = Target::new(config, shard.infos(&links), index, pool, entropy());
            target.set_observer(shard.links().clocks().clone());
            shard.add(target, links.clone(), &lane)
        };
        TargetShard {
            shard,
            target,
            index,
            links,
            leaves: Vec::new(),
            exports: Vec::new(),
            prepared: Vec::new(),
            leaving: Vec::new(),
            fenced: Vec::new(),
            _ring: None,
            is_tended: false,
            clerk: None,
            errands: Vec::new(),
            last_errand: 0,
            has_served: false,
        }
    }

    /// When an idle shard spins. Default: [`Spin::On`].
    pub fn set_spin(&mut self, spin: Spin) {
        self.shard.borrow_mut().set_spin(spin);
    }

    /// Joins the other shards of the target: greetings go to and fro through `mail`.
    pub(crate) fn join(&mut self, mail: Mail) -> io::Result<()> {
        self.shard.borrow_mut().join(self.target, mail)
    }

    /// Offers a volume, or lets go of it as of one that nobody was served.
    pub fn add_export(&mut self, export: OpenedExport) -> io::Result<()> {
        self.offer(export, None)
    }

    /// The same; `spread`: other shards have volumes on the same content.
    pub(crate) fn offer(
        &mut self,
        export: OpenedExport,
        spread: Option<SpreadConfig>,
    ) -> io::Result<()> {
        let watch = |&fd: &RawFd| self.shard.borrow_mut().add_volume(fd, Some(self.target));
        if let Err(error) = export.fds.iter().try_for_each(watch) {
            export.discard();
            return Err(error);
        }
        let mut shard = self.shard.borrow_mut();
        for port in export.ports {
            shard.node().give_port(port, self.target);
        }
        let target = shard.get_mut(self.target);
        let opening = match spread {
            Some(spread) => target.add_spread_export(export.config, spread),
            None => target.add_export(export.config),
        };
        target.set_weight(&opening.name, export.weight);
        // Whoever hears of it may let go of what was offered before.
        drop(shard);
        self.leaves.extend(export.leaves.into_iter().map(|leaf| (opening.clone(), leaf)));
        let OpenedExport { direct, awaited, tend, offered, end, clerk, .. } = export;
        if let Some(offered) = offered {
            offered();
        }
        self.clerk = self.clerk.take().or(clerk);
        self.is_tended |= tend.is_some();
        self.exports.push(Shown { opening, direct, awaited, tend, end });
        Ok(())
    }

    /// Has another protocol in front of the exports.
    pub(crate) fn add_guest(&mut self, guest: Guest) -> io::Result<()> {
        let shard = &mut *self.shard.borrow_mut();
        let info = guest.link.info();
        let link = shard.add_link(guest.link)?;
        shard.get_mut(self.target).add_guest((guest.make)(info));
        shard.node().give_foreign_link(self.target, link);
        Ok(())
    }

    /// Keeps this thread's ring as long as this lives, and makes it if no disk has: exports may be added
    /// ([`Inquiry::prepare`]) when rings are refused.
    pub(crate) fn hold_ring(&mut self) {
        self._ring = HeldRing::of_this_thread();
    }

    /// The state machine, for status.
    pub fn target(&self) -> Ref<'_, Target> {
        Ref::map(self.shard.borrow(), |shard| shard.get(self.target))
    }

    /// Links and loop.
    pub fn shard(&self) -> Ref<'_, Shard> {
        self.shard.borrow()
    }

    /// The state machine, for what is set before serving.
    pub fn with_target<R>(&mut self, act: impl FnOnce(&mut Target) -> R) -> R {
        act(self.shard.borrow_mut().get_mut(self.target))
    }

    /// Serves until `stop` is readable, then ends in order: initiators are told, what is under way is
    /// finished (for a bounded time).
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        self.run_under(&Orders { stop, hurry: None, inquiry: None, idle: None })
    }

    /// Serves until `orders.stop` is readable, then ends in order: initiators are told, what is under way
    /// is finished (for a bounded time, or until `orders.hurry` is readable).
    pub fn run_under(&mut self, orders: &Orders<'_>) -> io::Result<()> {
        self.has_served = true;
        self.shard.borrow_mut().watch(orders.stop, STOP)?;
        if let Some(inquiry) = orders.inquiry {
            self.shard.borrow_mut().watch(inquiry.bell(self.index), ASKED)?;
        }
        while self.turn_until_told()? != STOP {
            if let Some(inquiry) = orders.inquiry {
                inquiry.answer(self.index, self);
            }
        }
        let shard = &mut *self.shard.borrow_mut();
        shard.unwatch_all();
        if let Some(hurry) = orders.hurry {
            shard.watch(hurry, HURRY)?;
        }
        shard.get_mut(self.target).shut_down();
        let end = shard.now() + STOP_TIME;
        loop {
            shard.turn(Some(STOP_LOOK))?;
            let mut all_is_said = shard.get(self.target).is_idle() && shard.has_sent();
            if let Some(idle) = orders.idle {
                idle.note(self.index, all_is_said);
                all_is_said &= idle.of_all();
            }
            if all_is_said || shard.now() >= end || shard.ready().any(|token| token == HURRY) {
                break;
            }
        }
        shard.unwatch_all();
        Ok(())
    }

    /// Turns until something is readable that is listened to, and tells what.
    fn turn_until_told(&mut self) -> io::Result<WaitToken> {
        loop {
            let (told, is_silent) = {
                let shard = &mut *self.shard.borrow_mut();
                let is_looked_at = !self.leaving.is_empty() || !self.errands.is_empty();
                if !self.errands.is_empty() {
                    // What was asked of a volume that does it in a turn of its own.
                    let _ = shard.get_mut(self.target);
                }
                shard.turn(is_looked_at.then_some(STOP_LOOK))?;
                (shard.ready().min(), shard.get(self.target).has_silent())
            };
            if !self.errands.is_empty() {
                self.tend_errands();
            }
            if !self.leaving.is_empty() {
                self.let_go_of_gone();
            }
            if is_silent {
                self.let_go_of_fenced();
                if self.target().serves_nobody() {
                    return Ok(STOP);
                }
            }
            if self.is_tended {
                self.tend();
            }
            if let Some(told) = told {
                return Ok(told);
            }
        }
    }

    /// Goes on with what exports stand on that is neither in a volume nor a part.
    fn tend(&mut self) {
        for shown in &mut self.exports {
            let Some(tend) = &mut shown.tend else { continue };
            let Tended { ports, fds, leaves } = tend();
            if let Some(leaves) = leaves {
                self.leaves.retain(|(of, _)| *of != shown.opening);
                self.leaves.extend(leaves.into_iter().map(|leaf| (shown.opening.clone(), leaf)));
            }
            let mut shard = self.shard.borrow_mut();
            ports.into_iter().for_each(|port| shard.node().give_port(port, self.target));
            for fd in fds {
                if let Err(e) = shard.add_volume(fd, Some(self.target)) {
                    let name = &shown.opening.name;
                    tracing::warn!("export {name}: cannot hear of a disk: {e}");
                }
            }
        }
    }

    /// Goes on with what the clerk does.
    #[cold]
    fn tend_errands(&mut self) {
        let mut ended = Vec::new();
        if let Some(mut clerk) = self.clerk.take() {
            clerk.tend(&mut ended, self);
            self.clerk = Some(clerk);
        }
        for (number, answer) in ended {
            let Some(at) = self.errands.iter().position(|(of, _)| *of == number) else { continue };
            // Who asked may have given up.
            let _ = self.errands.swap_remove(at).1.send(answer);
        }
    }

    /// How it is, but for what its clerk says. Between two turns.
    pub fn report(&self) -> ShardReport {
        let (shard, target) = (self.shard(), self.target());
        let now = shard.now();
        let link = |&at: &usize| {
            let links = shard.links();
            let name = links.name(at).to_string();
            LinkReport { name, addr: links.local(at), stats: links.stats(at) }
        };
        let leaf = |(of, leaf): &(ExportOpening, OpenedLeaf)| {
            // One that was let go of a moment ago is not there.
            let report = shard.find(leaf.initiator)?.report(now);
            Some(LeafReport {
                export: of.name.clone(),
                uri: leaf.uri.clone(),
                member: leaf.member,
                links: leaf.links.iter().map(|&at| shard.links().name(at).to_string()).collect(),
                report,
            })
        };
        ShardReport {
            index: self.index,
            now,
            exports: target.exports(),
            leaves: self.leaves.iter().filter_map(leaf).collect(),
            direct: self
                .exports
                .iter()
                .filter_map(|e| Some((e.opening.name.clone(), e.direct?)))
                .collect(),
            trees: Vec::new(),
            leaving: target.leaving().map(str::to_owned).collect(),
            fenced: self.fenced.clone(),
            sessions: target.first_sessions(SESSIONS_TOLD_MAX),
            session_count: target.session_count(),
            links: self.links.iter().map(link).collect(),
            stats: target.stats(),
        }
    }

    /// Serves for a bounded number of turns; for tests and benchmarks.
    pub fn run_turns(&mut self, turns: usize, timeout: Duration) -> io::Result<()> {
        self.has_served = true;
        for _ in 0..turns {
            self.shard.borrow_mut().turn(Some(timeout))?;
        }
        Ok(())
    }
}

impl Drop for TargetShard {
    /// Also if another shard could not begin: what was attached is let go of.
    fn drop(&mut self) {
        self.let_go();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::event::{EventfdFlags, eventfd};
    use thinwire_volume::stores::MemoryStore;
    use thinwire_volume::{Completion, Geometry, Identity, Io, Volume};

    use super::*;
    use crate::disk;

    /// Memory that ends what was submitted when it is polled so often, or never.
    struct Slow {
        inner: MemoryStore,
        after: Option<u32>,
        held: Vec<Io>,
    }

    impl Volume for Slow {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }

        fn identity(&self) -> Identity {
            self.inner.identity()
        }

        fn submit(&mut self, io: Io) {
            self.held.push(io);
        }

        fn poll(&mut self, done: &mut Vec<Completion>) {
            let Some(left) = &mut self.after else { return };
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.held.drain(..).for_each(|io| self.inner.submit(io));
            }
            self.inner.poll(done);
        }

        fn outstanding(&self) -> usize {
            self.held.len() + self.inner.outstanding()
        }
    }

    /// Before the first is let go of, which may keep the thread for ever.
    #[test]
    fn all_disks_that_hang_at_the_end_are_named_and_no_others() {
        let pool = Pool::new(0);
        let mut shard = TargetShard::new(TargetConfig::default(), vec![], 0, pool.clone()).unwrap();
        let paths: Vec<PathBuf> =
            ["a", "b", "c", "d"].map(|name| format!("/serve/{name}").into()).into();
        let named = |paths: &[PathBuf]| -> Vec<bool> {
            let waited_for = disk::waited_for();
            paths.iter().map(|path| waited_for.contains(path)).collect()
        };
        let seen = Rc::new(RefCell::new(Vec::new()));
        // Has them polled in each turn.
        let bells = [(); 4].map(|()| eventfd(1, EventfdFlags::NONBLOCK).unwrap());
        // The second answers in the end, the last while the others are waited for.
        let after = [None, Some(1), None, Some(8)];
        for ((path, after), bell) in paths.iter().zip(after).zip(&bells) {
            let inner = MemoryStore::new(1 << 20, 512, Identity::default(), &pool);
            let volume = Box::new(Slow { inner, after, held: Vec::new() });
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let config = ExportConfig { name, volume, read_only: false };
            let (path, all, seen) = (path.clone(), paths.clone(), seen.clone());
            let awaited: Awaited =
                Box::new(move |has_more| has_more.then(|| path.clone()).into_iter().collect());
            let end = move |_: ExportEnd| seen.borrow_mut().push(named(&all));
            let export = OpenedExport::new(config, Some(bell.as_raw_fd()));
            let export =
                OpenedExport { awaited: Some(awaited), end: Some(Box::new(end)), ..export };
            shard.add_export(export).unwrap();
        }
        shard.run_turns(1, Duration::ZERO).unwrap();
        assert_eq!(named(&paths), [false; 4]);
        shard.let_go();
        assert_eq!(*seen.borrow(), vec![vec![true, false, true, false]; 4]);
        assert_eq!(named(&paths), [false; 4], "they are let go of");
    }
}
