//! A volume that a command has opened, whatever it is made of: local stores, attachments, modules over
//! them.

mod bottom;
mod build;
mod climbing;
mod commons;
mod ends;
mod failures;
mod fit;
mod grants;
mod outline;
mod passage;
mod place;
mod returning;
mod top;
mod tree;

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_buffer::{Pool, Time};
use thinwire_frontend::{Face, FacePart};
use thinwire_initiator::Initiator;
use thinwire_modules::cuts::Cutter;
use thinwire_modules::thin::ThinPool;
use thinwire_node::PartId;
use thinwire_proto::{StageObserver, StageSums};
use thinwire_runtime::disk::DiskOptions;
use thinwire_volume::{IoError, Unaligned, Volume};

use self::bottom::{Bottom, end_together};
use self::place::{first_failing, meters_to};
use self::top::Top;
use self::tree::Leaf;
use crate::attachment::shown::Shown;
use crate::attachment::writing_down::{self, WritingDown};
use crate::bench::NodeStages;
use crate::error::{Failure, Outcome};
use crate::growth::WholeDesk;
use crate::host::Host;
use crate::known_keys::KnownKeys;
use crate::mirrored::longest_leg_timeout;
use crate::network::is_readable;
use crate::open::{
    Ending, OnRecord, OpenVolume, Unheard, VolumeHealth, VolumeOptions, WIND_UP_PATIENCE, Wait,
};
use crate::pool::PoolName;
use crate::signals::Signals;
use crate::trees::NodeName;
use crate::uri::VolumeSpec;

pub use self::commons::Commons;
pub use self::outline::OutlineNode;
pub use self::passage::{LegDoor, LegReturn, NOT_BROUGHT};
pub use self::place::{FailedAt, TreePlace, last_failure};
pub use self::tree::{TellOutline, Tree};

/// What of that is left, at least, when no mirror waits for a leg any more.
const LEG_PATIENCE: Duration = Duration::from_secs(5);
/// How often is looked whether it is in order, where nobody tells.
const WIND_UP_GLANCE: Duration = Duration::from_millis(5);

/// Opens a volume on a host. See [`crate::open::open_volume`] for the contract.
pub fn open_on(
    host: &Host,
    spec: &VolumeSpec,
    options: &VolumeOptions,
    disk_options: DiskOptions,
    signals: Option<&Signals>,
) -> Outcome<Box<dyn OpenVolume>> {
    host.shard_mut().set_spin(options.wire.spin());
    let tree = Tree::open(host, spec, options, disk_options, signals)?;
    for fd in tree.fds() {
        // It is outside of all parts: who submits takes its completions.
        let watched = host.shard_mut().add_volume(fd, None::<PartId<Initiator>>);
        watched.map_err(|e| Failure::failed(format!("cannot use epoll: {e}")))?;
    }
    Ok(over(host, tree, options, longest_leg_timeout(spec)))
}

/// Puts on top what users need.
fn over(
    host: &Host,
    tree: Tree,
    options: &VolumeOptions,
    leg_timeout: Duration,
) -> Box<dyn OpenVolume> {
    let fds = tree.fds();
    let Tree { volume, mut bottom, ports, .. } = tree;
    bottom.await_user(true);
    let top = Top::new(volume, options.read_only);
    let pool = host.pool();
    let below = Below {
        block_bytes: top.geometry().block_bytes,
        is_timed: top.is_timed(),
        bottom,
        host: host.clone(),
        pool: pool.clone(),
        fds,
        ports,
        shown: None,
        hurry: options.hurry.clone(),
        wind_up_patience: WIND_UP_PATIENCE.max(leg_timeout + LEG_PATIENCE),
    };
    match options.any_byte {
        true => {
            let volume = Some(Unaligned::new(top, pool));
            Box::new(Opened { volume, top: Unaligned::inner_mut, below })
        }
        false => Box::new(Opened { volume: Some(top), top: |top| top, below }),
    }
}

/// What an open volume stands on, about to be let go of.
pub struct Leaving<'a> {
    bottom: &'a mut Bottom,
    hurry: Option<Arc<OwnedFd>>,
}

impl Leaving<'_> {
    /// Ends these, all at the same time. The first failure, after all have been tried.
    pub fn end_all(host: &Host, all: Vec<(Leaving<'_>, Ending)>) -> Outcome<Unheard> {
        let hurry = all.iter().find_map(|(leaving, _)| leaving.hurry.clone());
        let bottoms = all.into_iter().map(|(leaving, ending)| (leaving.bottom, ending));
        end_together(host, bottoms.collect(), hurry.as_deref())
    }
}

/// Nobody asks for it who has shown it.
const SHOWN: &str = "the volume is with its face";

/// See the [module](self). `V` is [`Top`], or a module over it that `top` looks through.
struct Opened<V> {
    /// Let go of before its leaves. Not here once it is shown.
    volume: Option<V>,
    top: fn(&mut V) -> &mut Top,
    below: Below,
}

/// What an open volume stands on, and how it is driven.
struct Below {
    block_bytes: u32,
    is_timed: bool,
    bottom: Bottom,
    host: Host,
    pool: Pool,
    /// Readable when something local has completions.
    fds: Vec<RawFd>,
    /// Ports in it, by number.
    ports: Vec<usize>,
    /// With its face.
    shown: Option<PartId<FacePart>>,
    /// Readable when letting go in order is to be given up.
    hurry: Option<Arc<OwnedFd>>,
    /// Of [`OpenVolume::wind_up_patience`].
    wind_up_patience: Duration,
}

impl Below {
    /// Goes on with legs that come back.
    fn tend(&mut self) {
        let tended = self.bottom.tend();
        for &fd in &tended.fds {
            if let Err(e) = self.host.shard_mut().add_volume(fd, self.shown) {
                tracing::warn!("cannot hear of a disk that was added: {e}");
            }
        }
        self.fds.extend(tended.fds);
        for port in tended.ports {
            match self.shown {
                Some(part) => self.host.shard_mut().node().give_port(port, part),
                None => self.ports.push(port),
            }
        }
    }
}

impl<V> Opened<V> {
    fn top(&mut self) -> &mut Top {
        (self.top)(self.volume.as_mut().expect(SHOWN))
    }

    /// In how long a volume that is timed has to be told the time again, at the latest; `None` if it need not be.
    fn tell_time(&mut self) -> Option<Duration> {
        if !self.below.is_timed {
            return None;
        }
        let now = self.below.host.shard().now();
        let wish = self.top().turn(now);
        (wish != Time::NEVER).then(|| wish.since(now))
    }

    /// Waits a while until what the volume keeps for itself is in order.
    fn wind_up(&mut self) -> Outcome {
        let patience = self.below.wind_up_patience;
        self.top().wind_up();
        let mut writing_down = WritingDown::begin(self.dirty(), Instant::now());
        let (mut done, mut is_hurried) = (Vec::new(), false);
        while !self.top().is_wound_up() {
            let stood_still = writing_down.stood_still(self.dirty(), Instant::now());
            is_hurried = self.below.hurry.as_deref().is_some_and(is_readable);
            if stood_still >= patience || is_hurried {
                break;
            }
            let left = patience - stood_still;
            let wished = self.tell_time().map_or(left, |time| left.min(time));
            let until = Instant::now() + wished.min(WIND_UP_GLANCE);
            self.below.host.turn(Wait::Until(until))?;
            self.tell_time();
            self.top().poll(&mut done);
        }
        if !self.top().is_wound_up() {
            let dirty = self.dirty();
            if dirty > 0 {
                return Err(match is_hurried {
                    true => writing_down::hurried(dirty),
                    false => writing_down::failed(dirty, patience, None),
                });
            }
            tracing::warn!(
                "not all of it has ended in order: its mirrors resync when they are opened"
            );
        }
        Ok(())
    }

    /// What its caches hold, and the volume does not have, in bytes.
    fn dirty(&mut self) -> u64 {
        self.top().cache().map_or(0, |cache| cache.dirty)
    }
}

impl<V: Volume + 'static> OpenVolume for Opened<V> {
    fn volume(&mut self) -> &mut dyn Volume {
        self.volume.as_mut().expect(SHOWN)
    }

    fn block_bytes(&self) -> u32 {
        self.below.block_bytes
    }

    fn pool(&self) -> &Pool {
        &self.below.pool
    }

    fn turn(&mut self, wait: Wait) -> Outcome<bool> {
        let wished = self.tell_time();
        let is_ready = self.top().gather();
        // Without links nobody waits for a turn: stores complete by themselves.
        if !is_ready || self.below.bottom.has_remote() {
            // What gathering has led to may be due earlier.
            let wished = wished.into_iter().chain(self.tell_time()).min();
            let wait = wished.map_or(wait, |time| wait.at_most(time));
            self.below.host.turn(if is_ready { Wait::No } else { wait })?;
            if self.tell_time() == Some(Duration::ZERO) {
                // What it has begun goes down, since nobody may be told of its end.
                self.below.host.turn(Wait::No)?;
            }
        }
        self.below.tend();
        Ok(self.top().gather())
    }

    fn show(&mut self, face: Box<dyn Face>) -> Outcome<Shown> {
        let volume = Box::new(self.volume.take().expect(SHOWN));
        let Below { host, fds, ports, shown, bottom, .. } = &mut self.below;
        let face = Shown::new(host, face, volume, fds, ports)?;
        // Its users hear of no place.
        bottom.await_user(false);
        *shown = Some(face.part());
        Ok(face)
    }

    fn tend(&mut self) {
        self.below.tend();
    }

    fn watch(&mut self, fd: BorrowedFd<'_>) -> Outcome {
        self.below.host.watch(fd)
    }

    fn pools(&self) -> Vec<(VolumeSpec, ThinPool)> {
        self.below.host.commons().all()
    }

    fn outline(&self) -> Vec<OutlineNode> {
        self.below.bottom.outline()
    }

    fn failed_at(&mut self, error: &IoError) -> FailedAt {
        let outline = self.outline();
        let (at, error) = first_failing(&outline, error);
        if !outline.is_empty() {
            self.below.bottom.heard(&meters_to(&outline, at));
        }
        FailedAt::of(&outline, at, &error)
    }

    fn cuts(&self) -> Vec<(PoolName, Cutter)> {
        self.below.host.cuts().all()
    }

    fn wholes(&self) -> Vec<(NodeName, WholeDesk)> {
        self.below.host.wholes().all()
    }

    fn known_keys(&self) -> Rc<KnownKeys> {
        self.below.host.known_keys()
    }

    /// That of the leaf which is worst off, with the paths of all.
    fn health(&self) -> VolumeHealth {
        let bottom = &self.below.bottom;
        let mut all = bottom.health();
        let statuses = bottom.statuses();
        if bottom.count() > 1 || statuses.len() > 1 {
            all.leaves = statuses;
        }
        all
    }

    fn stages(&mut self, kind: u8) -> Outcome<Option<[StageSums; 2]>> {
        match &mut self.below.bottom.leaves[..] {
            [Leaf::Remote(leaf)] if self.below.bottom.commons.is_empty() => leaf.stages(kind),
            _ => Ok(None),
        }
    }

    fn begin_node_stages(&mut self, kind: u8) {
        self.below.host.shard().links().clocks().ask(kind);
        for node in self.below.bottom.outline() {
            node.meter.iter().for_each(|meter| meter.reset_stage());
        }
    }

    fn node_stages(&self) -> Vec<NodeStages> {
        let mut nodes: Vec<NodeStages> = Vec::new();
        let mut is_of_pool = false;
        for OutlineNode { depth, name, meter, pool, .. } in self.below.bottom.outline() {
            let Some(meter) = meter else { continue };
            let mut stage = meter.stage();
            // Its volumes do not go through the pool, as others see it, but what that has below is below them.
            if let Some(volume) = nodes.last_mut().filter(|_| is_of_pool) {
                volume.stage.below = volume.stage.below.wrapping_add(stage.below);
                stage.below = 0;
            }
            is_of_pool = pool.is_some();
            nodes.push(NodeStages { depth, name, stage });
        }
        nodes
    }

    fn stage_ns(&self) -> u64 {
        match self.below.bottom.has_remote() || self.below.bottom.is_made_of_others() {
            true => self.below.host.shard().links().clocks().now(),
            false => 0,
        }
    }

    fn on_record(&mut self) -> OnRecord {
        let all = self.below.bottom.on_record();
        let has = |wanted| all.contains(&wanted);
        match (has(OnRecord::Stranger), has(OnRecord::Known)) {
            (true, _) => OnRecord::Stranger,
            (false, true) => OnRecord::Known,
            (false, false) => OnRecord::No,
        }
    }

    fn wind_up_patience(&self) -> Duration {
        self.below.wind_up_patience
    }

    fn is_held(&self) -> bool {
        let mut is_held = false;
        self.below.bottom.each(&mut |leaf, _| {
            is_held |= matches!(leaf, Leaf::Remote(leaf) if leaf.is_held());
        });
        is_held
    }

    fn close(&mut self, ending: Ending) -> Outcome<Unheard> {
        let mut wound = Ok(());
        if matches!(ending, Ending::Orderly) && self.below.is_timed && self.volume.is_some() {
            wound = self.wind_up();
        }
        // Whoever watched does not listen any more.
        self.below.host.shard_mut().unwatch_all();
        let Below { host, bottom, hurry, .. } = &mut self.below;
        let ended = bottom.end(host, ending, hurry.as_deref());
        wound.and(ended)
    }

    fn leave(&mut self) -> Option<Leaving<'_>> {
        // Whoever watched does not listen any more.
        self.below.host.shard_mut().unwatch_all();
        let Below { bottom, hurry, .. } = &mut self.below;
        Some(Leaving { bottom, hurry: hurry.clone() })
    }
}

#[cfg(test)]
mod tests;
