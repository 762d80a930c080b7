//! A target on its machine: its process, and the threads of that.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, RxFrame, SegList};
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::{SimLink, Steer};
use thinwire_node::{Lane, Node, NodeCanary, PartId};
use thinwire_proto::{DropReason, Drops, Time};
use thinwire_target::{
    ExportConfig, ExportOpening, SESSION_NUMBER, Target, TargetConfig, TargetKeys, session_lane,
};
use thinwire_volume::{Effect, Letter, PartEvent, Volume};
use thinwire_wire::FrameError;

use crate::coming::Presence;
use crate::coverage::Coverage;
use crate::dialect::{AoeLane, EbdLane};
use crate::export::Export;
use crate::gateway::{LANES, LeafHand, LeafSettings};
use crate::keys::entropy;
use crate::machine::Machine;
use crate::mail::Mail;
use crate::medium::MediumHandle;
use crate::spread::Spreading;

/// How a target ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// kill -9: what it had submitted to its disks still lands.
    Kill,
    /// The machine loses power: unflushed writes are kept, lost or torn.
    Power,
}

/// A thread of a target's process: exports and sessions of its own, and links of its own that share
/// the addresses of the others.
pub struct ServerShard {
    /// Its links, and when it runs.
    pub machine: Machine,
    /// What runs on it, while the process does.
    pub(crate) served: Option<Served>,
    /// Greetings that another shard has handed over.
    letters: VecDeque<Letter>,
    /// The keys that its target accepts, as far as it has been told.
    pub(crate) keys: Option<TargetKeys>,
}

/// A thread's node, and what is on it.
pub(crate) struct Served {
    pub node: Node,
    /// There is none while what its exports stand on is being attached, and when it has been let go of.
    pub target: Option<PartId<Target>>,
    /// Other servers' exports that its own stand on.
    pub leaves: Vec<LeafHand>,
    seed: u64,
}

impl ServerShard {
    fn new(machine: Machine) -> Self {
        ServerShard { machine, served: None, letters: VecDeque::new(), keys: None }
    }

    /// The target, while the process runs.
    pub fn target(&self) -> Option<&Target> {
        let served = self.served.as_ref()?;
        served.node.get(served.target?)
    }

    /// The target, to do something with between two turns.
    pub fn target_mut(&mut self) -> Option<&mut Target> {
        let served = self.served.as_mut()?;
        served.node.get_mut(served.target?)
    }

    /// A descriptor of a volume is readable.
    pub fn disk_ready(&mut self, now: Time) {
        if let Some(Served { node, target: Some(target), .. }) = &mut self.served {
            node.post(now, *target, PartEvent::Readable);
        }
    }

    /// Its process runs.
    pub fn runs(&self) -> bool {
        self.served.is_some()
    }
}

/// What happens around a turn of a shard.
#[derive(Clone, Copy)]
pub struct TurnScene<'a> {
    /// Whether the process dies over what a part has done.
    pub dies: &'a dyn Fn() -> bool,
    /// Whether a shard of the server can poll something.
    pub is_ready: &'a dyn Fn(usize, &Server) -> bool,
    /// It is in the middle of another shard's.
    pub is_between: bool,
}

/// Letters that wait for one shard, at most: as in the runtime.
const LETTERS_MAX: usize = 64;

/// A machine for a target.
pub struct Server {
    /// Its threads; those without an export have nothing to do, and do not run.
    pub shards: Vec<ServerShard>,
    /// Settings for its next start.
    pub config: TargetConfig,
    /// Faults of its links, if they are wrapped.
    pub faults: Option<FaultConfig>,
    /// It does not wait for the lock of its files: what rule 2 forbids.
    pub ignores_lock: bool,
    /// A fault in its next nodes.
    pub node_canary: NodeCanary,
    /// Settings for its attachments to other servers, from its next start on.
    pub leaf_settings: LeafSettings,
    /// What its shards say to one another.
    pub mail: Mail,
    /// What each frame that a shard sends takes of its processor, in ns: it has no other turn meanwhile.
    pub frame_ns: u64,
    /// What it offers in other protocols, on its first shard.
    pub ebd: Option<EbdLane>,
    /// And in AoE.
    pub aoe: Option<AoeLane>,
    /// Some of its exports are on all of its shards.
    pub spreading: Option<Spreading>,
    instance: u64,
    /// It stops at this time at the latest.
    pub(crate) stop_by: Option<u64>,
    /// It has let go of its targets, and is letting go of what they stood on.
    pub(crate) is_leaving: bool,
    /// It is killed in its next turn, after so many calls.
    dies_after: Option<u32>,
    pub(crate) pool: Pool,
}

impl Server {
    /// A machine on which nothing runs yet.
    pub fn new(stations: Vec<u32>, config: TargetConfig, faults: Option<FaultConfig>) -> Self {
        Server {
            shards: vec![ServerShard::new(Machine::new(stations))],
            config,
            faults,
            ignores_lock: false,
            node_canary: NodeCanary::None,
            leaf_settings: LeafSettings::default(),
            mail: Mail::default(),
            frame_ns: 0,
            ebd: None,
            aoe: None,
            spreading: None,
            instance: 0,
            stop_by: None,
            is_leaving: false,
            dies_after: None,
            pool: Pool::new(16 << 20),
        }
    }

    /// From its next start on it has so many shards: each export is on the one after that of the
    /// export before it.
    pub fn set_shards(&mut self, count: usize) {
        let Machine { stations, burst, seals, .. } = &self.shards[0].machine;
        let (stations, burst, seals) = (stations.clone(), *burst, seals.clone());
        self.shards.resize_with(count, || {
            let mut machine = Machine::new(stations.clone());
            machine.burst = burst;
            machine.seals = seals.clone();
            ServerShard::new(machine)
        });
    }

    /// The numbers of its stations on the wire, one for each link.
    pub fn stations(&self) -> &[u32] {
        &self.shards[0].machine.stations
    }

    /// Those, and those on which it speaks other protocols.
    pub fn all_stations(&self) -> impl Iterator<Item = u32> + '_ {
        self.stations().iter().copied().chain(self.foreign_stations())
    }

    /// The stations on which it speaks other protocols, in the order of their guests.
    fn foreign_stations(&self) -> impl Iterator<Item = u32> + '_ {
        let of_ebd = self.ebd.as_ref().map(|lane| lane.station);
        of_ebd.into_iter().chain(self.aoe.as_ref().map(|lane| lane.station))
    }

    /// Its process runs.
    pub fn runs(&self) -> bool {
        self.shards.iter().any(ServerShard::runs)
    }

    /// The targets of its shards, while its process runs.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.shards.iter().filter_map(ServerShard::target)
    }

    /// Turns of all its shards so far.
    pub fn turns(&self) -> u64 {
        self.shards.iter().map(|shard| shard.machine.turns).sum()
    }

    /// Does not run before this (SIGSTOP); 0 if it does.
    pub fn freeze(&mut self, until: u64) {
        self.shards.iter_mut().for_each(|shard| shard.machine.frozen_until = until);
    }

    /// Something has changed that it should look at.
    pub fn wake(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.machine.dirty = true);
    }

    /// How many of the shards serve, if it has so many exports: the first export is on the first, and
    /// so on. All do if some exports are on all.
    pub fn serving(&self, exports: usize) -> usize {
        if self.spreading.is_some() {
            return self.shards.len();
        }
        self.shards.len().min(exports.max(1))
    }

    /// The exports of one shard of server `me`.
    pub fn exports_of<'a>(
        &self,
        me: usize,
        shard: usize,
        exports: &'a [Export],
    ) -> impl Iterator<Item = &'a Export> + use<'a> {
        let mine = move |e: &&Export| e.server == me;
        let count = self.serving(exports.iter().filter(mine).count());
        let of_it = move |&(nth, _): &(usize, _)| nth % count == shard;
        exports.iter().filter(mine).enumerate().filter(of_it).map(|(_, export)| export)
    }

    /// When the locks of its exports are free.
    pub fn locked_until(&self, me: usize, exports: &[Export]) -> u64 {
        if self.ignores_lock {
            return 0;
        }
        let mine = exports.iter().filter(|e| e.server == me);
        mine.flat_map(Export::own_media).map(MediumHandle::locked_until).max().unwrap_or(0)
    }

    /// Starts the process; `exports` are all exports, of which it serves those of server `me`. It serves
    /// at once, unless some of them stand on other servers' exports: see [`Server::look_at_leaves`].
    pub fn start(
        &mut self,
        me: usize,
        exports: &mut [Export],
        net: &thinwire_link::sim::SimNet,
        clock: &std::rc::Rc<std::cell::Cell<u64>>,
        seed: u64,
        coverage: &mut Coverage,
    ) {
        assert!(!self.runs());
        self.deal_shards(seed);
        let count = self.serving(exports.iter().filter(|e| e.server == me).count());
        let steer = steering(self.config.node.clone(), count);
        let of_station = |&station| net.reopen_shared(station, count, steer.clone()).into();
        let mut links: Vec<VecDeque<SimLink>> = self.stations().iter().map(of_station).collect();
        let mut dice = Rng::new(seed);
        self.instance = dice.bits();
        if let Some(keys) = &mut self.config.keys {
            keys.entropy = entropy(seed);
        }
        let foreign: Vec<u32> = self.foreign_stations().collect();
        for (index, shard) in self.shards.iter_mut().enumerate().take(count) {
            let own = links.iter_mut().map(|of_station| of_station.pop_front());
            let own = own.map(|link| link.expect("one for each shard"));
            let mut own: Vec<SimLink> = own.collect();
            shard.machine.foreign = if index == 0 { foreign.clone() } else { Vec::new() };
            own.extend(shard.machine.foreign.iter().map(|&station| net.reopen(station)));
            let params = shard.machine.take_links(index, own, self.faults.as_ref(), clock);
            let mut node = Node::new(params);
            node.set_canary(self.node_canary);
            let leaves = Vec::new();
            shard.served = Some(Served { node, target: None, leaves, seed: dice.bits() });
            shard.machine.frozen_until = 0;
        }
        self.stop_by = None;
        self.is_leaving = false;
        self.dies_after = None;
        coverage.sharded += u64::from(count > 1);
        let now = Time(clock.get());
        self.attach_leaves(me, exports, now, &mut dice);
        if self.leaves().next().is_none() {
            self.serve(me, exports, coverage);
        }
    }

    /// Opens the exports of server `me`, and offers them.
    pub(crate) fn serve(&mut self, me: usize, exports: &mut [Export], coverage: &mut Coverage) {
        let names = exports.iter().filter(|e| e.server == me).map(|e| e.name.clone());
        let names: Vec<String> = names.collect();
        let count = self.serving(names.len());
        let all: Vec<(String, u8)> =
            names.into_iter().enumerate().map(|(nth, name)| (name, (nth % count) as u8)).collect();
        for (index, shard) in self.shards.iter_mut().enumerate().take(count) {
            let Some(Served { node, target, seed, .. }) = &mut shard.served else { continue };
            let (config, pool) = (self.config.clone(), self.pool.clone());
            let own = session_lane(index as u8, &config.node);
            let lane = Lane { sessions: own..=own | SESSION_NUMBER, outside: index == 0 };
            let links = node.links().take(shard.machine.stations.len()).collect::<Vec<_>>();
            let of_links = (0..links.len()).collect();
            shard.keys = config.keys.clone();
            let mut part = Target::new(config, links, index as u8, pool, *seed);
            part.set_instance(self.instance);
            let own = shard.machine.stations.len();
            let foreign = own..own + shard.machine.foreign.len();
            let mut infos = node.links().skip(own).collect::<Vec<_>>().into_iter();
            if index == 0 {
                let of_ebd = self.ebd.iter().zip(&mut infos);
                of_ebd.for_each(|(ebd, info)| part.add_guest(Box::new(ebd.open(info, *seed))));
                let of_aoe = self.aoe.iter().zip(&mut infos);
                of_aoe.for_each(|(aoe, info)| part.add_guest(Box::new(aoe.open(info, *seed))));
            }
            let part = node.add(part, of_links, &lane);
            foreign.for_each(|link| _ = node.give_foreign_link(part, link));
            *target = Some(part);
        }
        let mine = exports.iter_mut().enumerate().filter(|(_, e)| e.server == me);
        for (nth, (index, export)) in mine.enumerate() {
            // Without the lock nobody may touch it.
            if let Some((change, seed)) = export.change.take().filter(|_| !self.ignores_lock) {
                export.apply(change, seed, &self.pool, coverage);
            }
            export.home = nth % count;
            if export.is_spread && self.serves_spread() {
                self.serve_spread((nth, count), export, coverage);
                continue;
            }
            let shard = &mut self.shards[nth % count];
            let served = shard.served.as_mut().expect("it has just begun");
            let mut remote = |leaf| served.port(index, leaf);
            let volume = export.open(index, self.ignores_lock, &self.pool, &mut remote);
            export.own_media().for_each(|medium| medium.set_thread(nth % count));
            let (name, read_only) = (export.name.clone(), export.read_only);
            let target = shard.target_mut().expect("it has just begun");
            target.add_export(ExportConfig { name, volume, read_only });
        }
        for target in self.shards.iter_mut().filter_map(ServerShard::target_mut) {
            target.set_all_exports(&all);
        }
        self.wake();
    }

    /// The target that has this export for itself.
    pub(crate) fn target_with(&mut self, name: &str) -> Option<&mut Target> {
        let shards = self.shards.iter_mut();
        let shard = shards.into_iter().find(|s| s.target().is_some_and(|t| t.has_export(name)))?;
        shard.machine.dirty = true;
        shard.target_mut()
    }

    /// The next volume that is left of an export which was taken away.
    pub(crate) fn take_gone(&mut self) -> Option<(ExportOpening, Box<dyn Volume>)> {
        self.shards.iter_mut().filter_map(ServerShard::target_mut).find_map(Target::take_gone)
    }

    /// Opens an export that had been taken away, and offers it where it was, by an exchange of which all shards hear first. False if it does not serve.
    pub(crate) fn offer_again(&mut self, index: usize, export: &mut Export) -> bool {
        let shard = &mut self.shards[export.home];
        if shard.target().is_none() {
            return false;
        }
        let mut remote = |_| unreachable!("it has no leaves");
        let volume = export.open(index, self.ignores_lock, &self.pool, &mut remote);
        export.own_media().for_each(|medium| medium.set_thread(export.home));
        let (name, read_only) = (export.name.clone(), export.read_only);
        for target in self.shards.iter_mut().filter_map(ServerShard::target_mut) {
            target.begin_exchange(std::slice::from_ref(&name));
        }
        let shard = &mut self.shards[export.home];
        shard.machine.dirty = true;
        let target = shard.target_mut().expect("it has just been looked at");
        target.add_export(ExportConfig { name, volume, read_only });
        true
    }

    /// All shards of server `me` learn which exports there are by now.
    pub(crate) fn tell_of_all(&mut self, me: usize, exports: &[Export]) {
        let there = exports.iter().filter(|e| e.server == me && e.presence == Presence::There);
        let all: Vec<(String, u8)> = there.map(|e| (e.name.clone(), e.home as u8)).collect();
        for target in self.shards.iter_mut().filter_map(ServerShard::target_mut) {
            target.set_all_exports(&all);
        }
    }

    /// Ends the process at once.
    pub fn crash(
        &mut self,
        me: usize,
        how: Crash,
        exports: &mut [Export],
        coverage: &mut Coverage,
    ) {
        if !self.runs() {
            return;
        }
        for leaf in self.leaves() {
            leaf.harvest(coverage);
        }
        for shard in &mut self.shards {
            if let Some(target) = shard.target() {
                harvest(target, coverage);
            }
            shard.served = None;
            shard.letters.clear();
            shard.machine.deadline = u64::MAX;
        }
        for export in exports.iter_mut().filter(|e| e.server == me) {
            export.upheavals += 1;
            if let Some(tree) = export.tree() {
                tree.memory.borrow_mut().crash(how);
            }
            export.own_media().for_each(|medium| match how {
                Crash::Kill => medium.kill(),
                Crash::Power => medium.power_failure(),
            });
        }
    }

    /// It is killed in its next turn, after so many calls of its parts.
    pub fn die_after(&mut self, steps: u32) {
        self.dies_after = Some(steps);
        self.wake();
    }

    /// Begins an orderly end, which takes at most until `by`.
    pub fn shut_down(&mut self, by: u64) {
        if !self.runs() || self.stop_by.is_some() {
            return;
        }
        self.stop_by = Some(by);
        for target in self.shards.iter_mut().filter_map(ServerShard::target_mut) {
            target.shut_down();
        }
        self.wake();
    }

    /// True if the process has ended in order: the caller ends it with [`Server::crash`].
    pub fn has_stopped(&mut self, now: u64) -> bool {
        let is_idle = || self.targets().all(Target::is_idle);
        let is_over = self.runs() && self.stop_by.is_some_and(|by| by <= now || is_idle());
        is_over && self.has_left(now)
    }

    /// One turn of a shard's loop. Returns how many frames it sent; `None` if it is killed in the middle
    /// of it. None is sent if the process dies, as `dies` tells, over what a part has done.
    pub fn turn(
        &mut self,
        shard: usize,
        now: u64,
        scene: &TurnScene<'_>,
        coverage: &mut Coverage,
    ) -> Option<u64> {
        let Some(mut served) = self.shards[shard].served.take() else { return Some(0) };
        let sent = self.turn_served(shard, &mut served, now, scene, coverage);
        self.shards[shard].served = Some(served);
        sent
    }

    fn turn_served(
        &mut self,
        shard: usize,
        served: &mut Served,
        now: u64,
        scene: &TurnScene<'_>,
        coverage: &mut Coverage,
    ) -> Option<u64> {
        let Served { node, target, .. } = served;
        let ServerShard { machine, letters, .. } = &mut self.shards[shard];
        let mut left = self.dies_after;
        let mut dies_now = || match &mut left {
            None => false,
            Some(0) => true,
            Some(steps) => {
                *steps -= 1;
                false
            }
        };
        let time = Time(now);
        machine.receive(&self.pool, |link, frame| node.on_frame(time, link, frame));
        for Letter { link, from, frame, .. } in letters.drain(..) {
            let bytes = self.pool.copy_of(&frame).freeze();
            let (waited, queued) = (Duration::ZERO, Duration::ZERO);
            let frame = &mut RxFrame { from, bytes, rest: SegList::new(), waited, queued };
            if let Some(target) = *target {
                node.post(time, target, PartEvent::Letter { link, frame });
            }
        }
        while let Some(content) = self.mail.take(shard, now) {
            coverage.door_letters += 1;
            if let Some(target) = *target {
                node.post(time, target, PartEvent::Parcel(content));
            }
        }
        while node.settle_step(time) {
            if dies_now() || !self.turn_between(shard, now, scene, coverage) {
                return None;
            }
        }
        while node.close_step(time) {
            if dies_now() {
                return None;
            }
        }
        if (scene.dies)() {
            return Some(0);
        }
        let machine = &mut self.shards[shard].machine;
        if self.dies_after.is_some() {
            // The frames of one link have gone, those of the others not.
            machine.send(&mut node.out()[..1]);
            return None;
        }
        let sent = machine.send(node.out());
        machine.deadline = node.deadline().0.min(self.stop_by.unwrap_or(u64::MAX));
        let mut posted = Vec::new();
        while let Some((_, effect)) = node.take_effect() {
            match effect {
                Effect::Letter(letter) => posted.push(letter),
                Effect::Parcel(parcel) => self.mail.send(now, shard, parcel),
                Effect::Note(..) => {}
            }
        }
        for letter in posted {
            let other = &mut self.shards[usize::from(letter.shard)];
            if other.letters.len() < LETTERS_MAX {
                other.letters.push_back(letter);
                other.machine.dirty = true;
                coverage.handed_over += 1;
            }
        }
        Some(sent)
    }
}

/// Which of so many shards of a node a frame is for, as packet filters tell (rule 10): frames outside
/// sessions are for the first, which also has all attachments of the process.
fn steering(node: String, count: usize) -> Steer {
    Rc::new(move |frame| {
        let upper = frame.get(SESSION_AT..SESSION_AT + 4)?;
        let upper = u32::from_be_bytes(upper.try_into().expect("four bytes"));
        if upper == 0 || LANES.contains(&upper) {
            return Some(0);
        }
        (0..count).find(|&shard| session_lane(shard as u8, &node) == upper & !SESSION_NUMBER)
    })
}

/// Where the receiver's session id stands in a frame.
const SESSION_AT: usize = 8;

/// Adds the figures of a target that ends.
pub fn harvest(target: &Target, coverage: &mut Coverage) {
    let stats = target.stats();
    coverage.repeated += stats.repeated;
    coverage.altered_writes += stats.altered;
    for cache in target.exports().iter().filter_map(|export| export.cache) {
        coverage.cache_hits += cache.hits;
        coverage.cache_misses += cache.misses;
        coverage.cache_ahead += cache.ahead;
    }
    coverage.late_duplicates += stats.drops.get(DropReason::LateDuplicate);
    coverage.duplicate_frames += stats.drops.get(DropReason::Duplicate);
    coverage.damaged_frames += stats.drops.get(DropReason::Frame(FrameError::Checksum));
    coverage.unknown_sessions += stats.drops.get(DropReason::UnknownSession);
    coverage.unknown_keys += stats.drops.get(DropReason::UnknownKey);
    harvest_drops(&stats.drops, coverage);
}

/// Adds what was dropped, and apart from that what keys have kept out.
pub(crate) fn harvest_drops(drops: &Drops, coverage: &mut Coverage) {
    coverage.drops.add(drops);
    coverage.forged_frames += drops.get(DropReason::Frame(FrameError::Forged));
    coverage.other_suites += drops.get(DropReason::Frame(FrameError::Suite));
    coverage.insecure += drops.get(DropReason::Insecure);
}
