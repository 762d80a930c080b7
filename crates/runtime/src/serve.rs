//! One shard of a target.

use std::cell::{Ref, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_link::Link;
use thinwire_node::{Lane, PartId};
use thinwire_target::{ExportConfig, SESSION_NUMBER, Target, TargetConfig, session_lane};

use crate::clock::entropy;
use crate::shard::{Shard, SharedShard};
use crate::shards::Mail;
use crate::wait::WaitToken;

const STOP: WaitToken = 0;
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
    /// Called once nobody is served any more: ends what it stands on.
    pub end: Option<Box<dyn FnOnce()>>,
}

impl OpenedExport {
    /// Of a volume with at most one descriptor, which stands on nothing else.
    pub fn new(config: ExportConfig, fd: Option<RawFd>) -> Self {
        OpenedExport { config, fds: fd.into_iter().collect(), ports: Vec::new(), end: None }
    }
}

/// A target and its shard: links, volumes and sessions.
pub struct TargetShard {
    shard: SharedShard,
    target: PartId<Target>,
    ends: Vec<Box<dyn FnOnce()>>,
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
            shard.add(target, links, &lane)
        };
        TargetShard { shard, target, ends: Vec::new() }
    }

    /// Whether an idle shard spins for a while before it sleeps. Default: yes.
    pub fn set_spin(&mut self, spin: bool) {
        self.shard.borrow_mut().set_spin(spin);
    }

    /// Joins the other shards of the target: greetings go to and fro through `mail`.
    pub(crate) fn join(&mut self, mail: Mail) -> io::Result<()> {
        self.shard.borrow_mut().join(self.target, mail)
    }

    /// Offers a volume.
    pub fn add_export(&mut self, export: OpenedExport) -> io::Result<()> {
        let shard = &mut *self.shard.borrow_mut();
        for fd in export.fds {
            shard.add_volume(fd, Some(self.target))?;
        }
        for port in export.ports {
            shard.node().give_port(port, self.target);
        }
        shard.get_mut(self.target).add_export(export.config);
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

    /// Serves until `stop` is readable, then ends in order: initiators are told, what is under way
    /// is finished (for a bounded time).
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let shard = &mut *self.shard.borrow_mut();
        shard.watch(stop, STOP)?;
        loop {
            shard.turn(None)?;
            if shard.ready().any(|token| token == STOP) {
                break;
            }
        }
        shard.unwatch(stop)?;
        shard.get_mut(self.target).shut_down();
        let end = shard.now() + STOP_TIME;
        loop {
            shard.turn(Some(STOP_LOOK))?;
            let all_is_said = shard.get(self.target).is_idle() && shard.has_sent();
            if all_is_said || shard.now() >= end {
                return Ok(());
            }
        }
    }

    /// Lets go of the exports, and ends what they stood on. There is no target any more then; its links
    /// stay open. Once.
    pub(crate) fn let_go(&mut self) {
        let target = self.shard.borrow_mut().node().remove(self.target);
        // With it go the volumes, and their ports.
        drop(target);
        self.ends.drain(..).for_each(|end| end());
    }

    /// Serves for a bounded number of turns; for tests and benchmarks.
    pub fn run_turns(&mut self, turns: usize, timeout: Duration) -> io::Result<()> {
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
