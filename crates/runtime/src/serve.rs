//! One shard of a target.

use std::cell::{Ref, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_initiator::Initiator;
use thinwire_link::Link;
use thinwire_node::{Lane, PartId};
use thinwire_target::{
    ExportConfig, SESSION_NUMBER, SpreadConfig, Target, TargetConfig, session_lane,
};

use crate::clock::entropy;
use crate::inquiry::{Inquiry, LeafReport, LinkReport, SESSIONS_TOLD_MAX, ShardReport};
use crate::shard::{Shard, SharedShard};
use crate::shards::{Idle, Mail};
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
    /// Called once nobody is served any more, with whether anybody could be: ends what it stands on.
    pub end: Option<Box<dyn FnOnce(bool)>>,
}

impl OpenedExport {
    /// Of a volume with at most one descriptor, which stands on nothing else.
    pub fn new(config: ExportConfig, fd: Option<RawFd>) -> Self {
        let fds = fd.into_iter().collect();
        OpenedExport { config, fds, ports: Vec::new(), leaves: Vec::new(), direct: None, end: None }
    }

    /// Lets go of what nobody was served: the volume, then what it stands on. Not while its shard is
    /// borrowed, whose turns that may take.
    pub fn discard(self) {
        drop(self.config);
        if let Some(end) = self.end {
            end(false);
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
    /// With the names of their exports.
    leaves: Vec<(String, OpenedLeaf)>,
    /// Exports with files or devices of this machine, and whether I/O on these is direct.
    direct: Vec<(String, bool)>,
    ends: Vec<Box<dyn FnOnce(bool)>>,
    /// It has turned as a target.
    has_served: bool,
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
            direct: Vec::new(),
            ends: Vec::new(),
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
        let shard = &mut *self.shard.borrow_mut();
        for port in export.ports {
            shard.node().give_port(port, self.target);
        }
        let name = &export.config.name;
        self.leaves.extend(export.leaves.into_iter().map(|leaf| (name.clone(), leaf)));
        self.direct.extend(export.direct.map(|direct| (name.clone(), direct)));
        let target = shard.get_mut(self.target);
        match spread {
            Some(spread) => target.add_spread_export(export.config, spread),
            None => target.add_export(export.config),
        }
        self.ends.extend(export.end);
        Ok(())
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
                inquiry.answer(self.index, || self.report());
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
    fn turn_until_told(&self) -> io::Result<WaitToken> {
        let shard = &mut *self.shard.borrow_mut();
        loop {
            shard.turn(None)?;
            if let Some(told) = shard.ready().min() {
                return Ok(told);
            }
        }
    }

    /// How it is. Between two turns.
    pub fn report(&self) -> ShardReport {
        let (shard, target) = (self.shard(), self.target());
        let now = shard.now();
        let link = |&at: &usize| {
            let links = shard.links();
            let name = links.name(at).to_string();
            LinkReport { name, addr: links.local(at), stats: links.stats(at) }
        };
        let leaf = |(export, leaf): &(String, OpenedLeaf)| LeafReport {
            export: export.clone(),
            uri: leaf.uri.clone(),
            member: leaf.member,
            links: leaf.links.iter().map(|&at| shard.links().name(at).to_string()).collect(),
            report: shard.get(leaf.initiator).report(now),
        };
        ShardReport {
            index: self.index,
            now,
            exports: target.exports(),
            leaves: self.leaves.iter().map(leaf).collect(),
            direct: self.direct.clone(),
            sessions: target.first_sessions(SESSIONS_TOLD_MAX),
            session_count: target.session_count(),
            links: self.links.iter().map(link).collect(),
            stats: target.stats(),
        }
    }

    /// Lets go of the exports, and ends what they stood on. There is no target any more then; its links
    /// stay open. Once.
    pub(crate) fn let_go(&mut self) {
        let target = self.shard.borrow_mut().node().remove(self.target);
        // With it go the volumes, and their ports.
        drop(target);
        self.ends.drain(..).for_each(|end| end(self.has_served));
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
