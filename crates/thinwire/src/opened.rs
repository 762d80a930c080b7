//! A volume that a command has opened, whatever it is made of: local stores, attachments, modules over
//! them.

mod ends;
mod grants;
mod top;

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_buffer::{Pool, Time};
use thinwire_frontend::Face;
use thinwire_initiator::Initiator;
use thinwire_modules::Dealt;
use thinwire_node::PartId;
use thinwire_proto::StageSums;
use thinwire_runtime::disk::{DiskOptions, HeldLeaf, UnusedGrant};
use thinwire_runtime::serve::{Awaited, OpenedLeaf};
use thinwire_volume::{Port, Unaligned, Volume};

use self::ends::{end, end_remotes, remotes};
use self::grants::Grants;
use self::top::Top;
use crate::aoe::AoeLeaf;
use crate::attachment::shown::Shown;
use crate::ebd::EbdLeaf;
use crate::error::{Failure, Outcome};
use crate::health;
use crate::host::Host;
use crate::labelled::{Opening, open_whole};
use crate::local::LocalLeaf;
use crate::mirrored::open_mirror;
use crate::network::{Interrupt, NetworkLeaf, is_readable};
use crate::open::{Ending, OnRecord, OpenVolume, Unheard, VolumeHealth, VolumeOptions, Wait};
use crate::remote::RemoteLeaf;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// Leaves that are attached at the same time: each asks who is there, and every attachment on a link
/// hears all answers.
const AT_ONCE: usize = 32;

/// So long a volume may take to bring in order what it keeps for itself; without it, it opens as after a crash.
const WIND_UP_PATIENCE: Duration = Duration::from_secs(5);
/// How often is looked whether it is, where nobody tells.
const WIND_UP_GLANCE: Duration = Duration::from_millis(5);

/// What is at the bottom of an open volume.
enum Leaf {
    Local(LocalLeaf),
    Remote(Box<dyn NetworkLeaf>),
    /// It could not be opened, for this reason, and a mirror above it may go without.
    Absent(String),
}

impl Leaf {
    fn local(&self) -> Option<&LocalLeaf> {
        match self {
            Leaf::Local(leaf) => Some(leaf),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        }
    }

    fn health(&self) -> VolumeHealth {
        match self {
            Leaf::Local(leaf) => {
                VolumeHealth { may_lose: leaf.has_written(), ..VolumeHealth::local() }
            }
            Leaf::Remote(leaf) => leaf.health(),
            Leaf::Absent(_) => VolumeHealth::local(),
        }
    }
}

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
    Ok(over(host, tree, options))
}

/// A volume that was built.
enum Root {
    Port(Port),
    Other(Box<dyn Volume>),
}

impl Root {
    fn boxed(self) -> Box<dyn Volume> {
        match self {
            Root::Port(port) => Box::new(port),
            Root::Other(volume) => volume,
        }
    }
}

/// A volume, and what is at its bottom.
pub struct Tree {
    /// The volume on top. Let go of before the leaves.
    volume: Root,
    leaves: Vec<Leaf>,
    /// What was written down of their grants, as [`VolumeOptions::is_served`] says.
    unused: Vec<Option<UnusedGrant>>,
    /// Ports in it, by number.
    pub ports: Vec<usize>,
}

impl Tree {
    /// Opens all, or none: what is remote is attached at the same time.
    pub fn open(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        disk_options: DiskOptions,
        signals: Option<&Signals>,
    ) -> Outcome<Self> {
        let twice = |why| Failure::failed(format!("cannot open {spec}: {why}"));
        spec.refuse_twins().map_err(twice)?;
        let mut leaves = Vec::new();
        let mut ports = Vec::new();
        let mut grants = Grants::new(options, &disk_options);
        let stop = disk_options.stop.clone();
        let opened = Self::open_leaves(
            host,
            spec,
            options,
            disk_options,
            signals,
            (&mut leaves, &mut grants),
        )
        .and_then(|()| {
            let opening = Opening {
                interrupt: Interrupt { signals, stop: stop.as_deref() },
                until: options.patience.map(|patience| Instant::now() + patience),
                // What is written down of grants is by their place.
                in_order: options.is_served,
                read_only: options.read_only,
                wish: options.wish,
            };
            build((host, &opening), spec, &mut leaves.iter(), &mut ports)
        });
        match opened {
            Ok(volume) => {
                grants.keep(&leaves);
                Ok(Tree { volume, leaves, unused: grants.into_unused(), ports })
            }
            Err(failure) => {
                // Those that are open are let go of in order; local ones that nobody has written are put
                // back as they were.
                let mut remotes = remotes(&mut leaves);
                let hurry = options.hurry.as_deref();
                let _ = end_remotes(host, &mut remotes, |leaf| !leaf.is_granted(), hurry);
                Err(failure)
            }
        }
    }

    fn open_leaves(
        host: &Host,
        spec: &VolumeSpec,
        options: &VolumeOptions,
        disk_options: DiskOptions,
        signals: Option<&Signals>,
        (leaves, grants): (&mut Vec<Leaf>, &mut Grants),
    ) -> Outcome {
        let stop = disk_options.stop.clone();
        let (all, places) = (spec.leaves(), spec.leaf_places());
        let may_lack = spec.leaves_that_may_lack();
        for specs in all.chunks(AT_ONCE) {
            let first = leaves.len();
            for spec in specs {
                leaves.push(match spec {
                    VolumeSpec::Remote(remote) => {
                        Leaf::Remote(Box::new(RemoteLeaf::begin(host, remote, options)?))
                    }
                    VolumeSpec::Ebd(device) => {
                        Leaf::Remote(Box::new(EbdLeaf::begin(host, device, options)?))
                    }
                    VolumeSpec::Aoe(device) => {
                        Leaf::Remote(Box::new(AoeLeaf::begin(host, device, options)?))
                    }
                    store => {
                        let disk_options = disk_options.clone();
                        let opened = LocalLeaf::open(host, store, options, disk_options, signals);
                        match opened {
                            Ok(leaf) => Leaf::Local(leaf),
                            Err(e) if may_lack[leaves.len()] => Leaf::Absent(e.message),
                            // What is wrong with a name is put right where it stands.
                            Err(e) => {
                                return Err(match places[leaves.len()] {
                                    Some(place) => e.context(place),
                                    None => e,
                                });
                            }
                        }
                    }
                });
                grants.note(leaves, &all);
            }
            let interrupt = Interrupt { signals, stop: stop.as_deref() };
            for at in first..leaves.len() {
                let Leaf::Remote(leaf) = &leaves[at] else { continue };
                let mut note = || grants.note(leaves, &all);
                match leaf.wait_open(options, &interrupt, &mut note) {
                    Err(e) if may_lack[at] && !interrupt.has_come() => {
                        let absent = std::mem::replace(&mut leaves[at], Leaf::Absent(e.message));
                        let hurry = options.hurry.as_deref();
                        let _ = end_remotes(host, &mut remotes(&mut [absent]), |_| true, hurry);
                    }
                    opened => opened?,
                }
            }
        }
        Ok(())
    }

    /// Readable when something local has completions.
    pub fn fds(&self) -> Vec<RawFd> {
        let fd = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => leaf.fd(),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        };
        self.leaves.iter().filter_map(fd).collect()
    }

    /// Whether all I/O on its files and devices of this machine is direct; `None` if it has none.
    pub fn direct(&self) -> Option<bool> {
        let direct = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => leaf.direct(),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        };
        self.leaves.iter().filter_map(direct).reduce(|one, other| one && other)
    }

    /// Which of its files and devices of this machine have something to answer; `None` if it has none.
    pub fn awaited(&self) -> Option<Awaited> {
        let awaited = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => Some(leaf.awaited()),
            Leaf::Remote(_) | Leaf::Absent(_) => None,
        };
        let all: Vec<_> = self.leaves.iter().filter_map(awaited).collect();
        (!all.is_empty()).then(|| -> Awaited {
            Box::new(move |_| all.iter().filter_map(|awaited| awaited()).collect())
        })
    }

    /// What it stands on at other targets.
    pub fn remote_leaves(&self) -> Vec<OpenedLeaf> {
        let opened = |leaf: &Leaf| match leaf {
            Leaf::Remote(leaf) => leaf.opened(),
            Leaf::Local(_) | Leaf::Absent(_) => Vec::new(),
        };
        self.leaves.iter().flat_map(opened).collect()
    }

    /// Its leaves, in order, and what was written down of their grants; they are called as in `spec`.
    pub fn held_leaves(&self, spec: &VolumeSpec) -> Vec<HeldLeaf> {
        let held = |(leaf, unused): (&VolumeSpec, &Option<UnusedGrant>)| HeldLeaf {
            name: leaf.to_string(),
            unused: unused.clone(),
        };
        spec.leaves().into_iter().zip(&self.unused).map(held).collect()
    }

    /// The volume, and what ends its leaves in order once nobody uses it any more, giving that up when
    /// `hurry` is readable. It is told whether anybody could use it.
    pub fn into_parts(
        self,
        host: &Host,
        hurry: Option<Arc<OwnedFd>>,
    ) -> (Box<dyn Volume>, impl FnOnce(bool) -> Outcome<Unheard> + use<>) {
        let (mut leaves, host) = (self.leaves, host.clone());
        let end = move |was_served| {
            let ending = if was_served { Ending::Orderly } else { Ending::Unused };
            end(&host, &mut leaves, ending, hurry.as_deref())
        };
        (self.volume.boxed(), end)
    }
}

/// Puts the volumes on their leaves, which are taken in order.
fn build(
    by: (&Host, &Opening<'_>),
    spec: &VolumeSpec,
    leaves: &mut std::slice::Iter<'_, Leaf>,
    ports: &mut Vec<usize>,
) -> Outcome<Root> {
    if let VolumeSpec::Over { module, options, children, labels, .. } = spec {
        let mut built = Vec::new();
        for child in children {
            let (own, rest) = leaves.as_slice().split_at(child.leaves().len());
            *leaves = rest.iter();
            built.push(build(by, child, &mut own.iter(), ports).map(Root::boxed));
        }
        let (host, opening) = by;
        if *labels && module.keeps.is_some() {
            return open_mirror(host, options, children, built, opening)
                .map(Root::Other)
                .map_err(|e| e.context(format_args!("cannot open {spec}")));
        }
        let built: Outcome<Vec<_>> = built.into_iter().collect();
        if *labels {
            let opened = open_whole(host, (module, options), children, built?, opening);
            return opened
                .map(Root::Other)
                .map_err(|e| e.context(format_args!("cannot open {spec}")));
        }
        return module.open(built?, options).map(Root::Other).map_err(|e| {
            let e = match e.child {
                // As the user calls it, not as the module does.
                Some(child) => format!("{} {}", children[child], e.why),
                None => e.to_string(),
            };
            Failure::failed(format!("cannot open {spec}: {e}"))
        });
    }
    Ok(match leaves.next().expect("one for each leaf of the spec") {
        Leaf::Absent(why) => return Err(Failure::failed(why.clone())),
        Leaf::Local(leaf) => Root::Other(Box::new(leaf.volume())),
        Leaf::Remote(leaf) => {
            let mut members = leaf.ports();
            ports.extend(members.iter().map(Port::number));
            match members.len() {
                1 => Root::Port(members.remove(0)),
                _ => {
                    let boxed = |port| Box::new(port) as Box<dyn Volume>;
                    let dealt = Dealt::new(members.into_iter().map(boxed).collect());
                    let dealt = dealt.map_err(|e| {
                        Failure::failed(format!("cannot attach {}: {e}", leaf.uri()))
                    })?;
                    Root::Other(Box::new(dealt))
                }
            }
        }
    })
}

/// Puts on top what users need.
fn over(host: &Host, tree: Tree, options: &VolumeOptions) -> Box<dyn OpenVolume> {
    let fds = tree.fds();
    let Tree { volume, leaves, ports, .. } = tree;
    let top = Top::new(volume, options.read_only);
    let (block_bytes, is_timed) = (top.geometry().block_bytes, top.is_timed());
    let host = host.clone();
    let pool = host.pool();
    let hurry = options.hurry.clone();
    match options.any_byte {
        true => {
            let volume = Some(Unaligned::new(top, pool.clone()));
            let top = Unaligned::inner_mut;
            Box::new(Opened {
                volume,
                top,
                is_timed,
                host,
                pool,
                block_bytes,
                leaves,
                fds,
                ports,
                hurry,
            })
        }
        false => {
            let volume = Some(top);
            Box::new(Opened {
                volume,
                top: |top| top,
                is_timed,
                host,
                pool,
                block_bytes,
                leaves,
                fds,
                ports,
                hurry,
            })
        }
    }
}

/// Nobody asks for it who has shown it.
const SHOWN: &str = "the volume is with its face";

/// See the [module](self). `V` is [`Top`], or a module over it that `top` looks through.
struct Opened<V> {
    /// Let go of before its leaves. Not here once it is shown.
    volume: Option<V>,
    top: fn(&mut V) -> &mut Top,
    is_timed: bool,
    leaves: Vec<Leaf>,
    host: Host,
    pool: Pool,
    block_bytes: u32,
    /// Readable when something local has completions.
    fds: Vec<RawFd>,
    /// Ports in it, by number.
    ports: Vec<usize>,
    /// Readable when letting go in order is to be given up.
    hurry: Option<Arc<OwnedFd>>,
}

impl<V> Opened<V> {
    fn top(&mut self) -> &mut Top {
        (self.top)(self.volume.as_mut().expect(SHOWN))
    }

    /// In how long a volume that is timed has to be told the time again, at the latest; `None` if it need not be.
    fn tell_time(&mut self) -> Option<Duration> {
        if !self.is_timed {
            return None;
        }
        let now = self.host.shard().now();
        let wish = self.top().turn(now);
        (wish != Time::NEVER).then(|| wish.since(now))
    }

    /// Waits a while until what the volume keeps for itself is in order.
    fn wind_up(&mut self) -> Outcome {
        let until = Instant::now() + WIND_UP_PATIENCE;
        self.top().wind_up();
        let mut done = Vec::new();
        while !self.top().is_wound_up() && Instant::now() < until {
            if self.hurry.as_deref().is_some_and(is_readable) {
                break;
            }
            let wished = self.tell_time().map_or(until, |time| until.min(Instant::now() + time));
            let nap = Instant::now() + WIND_UP_GLANCE;
            self.host.turn(Wait::Until(wished.min(nap)))?;
            self.tell_time();
            self.top().poll(&mut done);
        }
        Ok(())
    }

    fn remotes(&self) -> impl Iterator<Item = &dyn NetworkLeaf> {
        self.leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Remote(leaf) => Some(&**leaf),
            Leaf::Local(_) | Leaf::Absent(_) => None,
        })
    }
}

impl<V: Volume + 'static> OpenVolume for Opened<V> {
    fn volume(&mut self) -> &mut dyn Volume {
        self.volume.as_mut().expect(SHOWN)
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn turn(&mut self, wait: Wait) -> Outcome<bool> {
        let wished = self.tell_time();
        let is_ready = self.top().gather();
        // Without links nobody waits for a turn: stores complete by themselves.
        if !is_ready || self.remotes().next().is_some() {
            // What gathering has led to may be due earlier.
            let wished = wished.into_iter().chain(self.tell_time()).min();
            let wait = wished.map_or(wait, |time| wait.at_most(time));
            self.host.turn(if is_ready { Wait::No } else { wait })?;
            if self.tell_time() == Some(Duration::ZERO) {
                // What it has begun goes down, since nobody may be told of its end.
                self.host.turn(Wait::No)?;
            }
        }
        Ok(self.top().gather())
    }

    fn show(&mut self, face: Box<dyn Face>) -> Outcome<Shown> {
        let volume = Box::new(self.volume.take().expect(SHOWN));
        Shown::new(&self.host, face, volume, &self.fds, &self.ports)
    }

    fn watch(&mut self, fd: BorrowedFd<'_>) -> Outcome {
        self.host.watch(fd)
    }

    /// That of the leaf which is worst off, with the paths of all.
    fn health(&self) -> VolumeHealth {
        let mut all = health::together(self.leaves.iter().map(Leaf::health));
        let statuses: Vec<_> = self.remotes().flat_map(NetworkLeaf::status).collect();
        if self.leaves.len() > 1 || statuses.len() > 1 {
            all.leaves = statuses;
        }
        all
    }

    fn stages(&mut self, kind: u8) -> Outcome<Option<[StageSums; 2]>> {
        match &mut self.leaves[..] {
            [Leaf::Remote(leaf)] => leaf.stages(kind),
            _ => Ok(None),
        }
    }

    fn stage_ns(&self) -> u64 {
        match self.remotes().next() {
            Some(_) => self.host.shard().links().clocks().now(),
            None => 0,
        }
    }

    fn on_record(&mut self) -> OnRecord {
        let of = |leaf: &Leaf| match leaf {
            Leaf::Local(leaf) => leaf.on_record(),
            Leaf::Remote(_) | Leaf::Absent(_) => OnRecord::No,
        };
        let all: Vec<OnRecord> = self.leaves.iter().map(of).collect();
        let has = |wanted| all.contains(&wanted);
        match (has(OnRecord::Stranger), has(OnRecord::Known)) {
            (true, _) => OnRecord::Stranger,
            (false, true) => OnRecord::Known,
            (false, false) => OnRecord::No,
        }
    }

    fn close(&mut self, ending: Ending) -> Outcome<Unheard> {
        if matches!(ending, Ending::Orderly) && self.is_timed && self.volume.is_some() {
            self.wind_up()?;
        }
        // Whoever watched does not listen any more.
        self.host.shard_mut().unwatch_all();
        end(&self.host, &mut self.leaves, ending, self.hurry.as_deref())
    }
}

#[cfg(test)]
mod tests;
