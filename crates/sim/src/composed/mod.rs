//! Volumes composed of disks, of all modules, with labels: made, opened, used, lost and found again, by hosts that have disks of
//! their own or stand on exports of servers, one host at a time.
//!
//! * `shape.rs`: what a volume is made of; `draw.rs`: what a seed makes of it
//! * `at_rest.rs`: volumes made and looked at while nothing goes wrong
//! * `growing.rs`: from disks to the volume on top of them, as whoever opens one does it
//! * `disks.rs`: the disks as a host has them; `returning.rs`: legs of mirrors that come back; `changes.rs`: those that come and go for good
//! * `host.rs`: a machine that composes one; `user.rs`: what is done with it, and how answers are judged; `cuts.rs`: snapshots
//! * `scrubbing.rs`: scrubs beside users, and of what has rotted
//! * `pools.rs`: volumes of pools that servers export; `whole_cuts.rs`: snapshots of several of these as one
//! * `chaos.rs`: what goes wrong; `course.rs`: the course of a run, and its verdict
//! * `enumerate.rs`: every crash of short workloads on one machine, over disks that lose what was not flushed (`crash_disk.rs`), and what is promised of these
//!   (`promises.rs`); legs that fail before one, or are opened alone behind it (`enumerate/apart.rs`)

mod at_rest;
mod changes;
mod chaos;
mod course;
mod crash_disk;
mod cuts;
mod disks;
mod draw;
mod enumerate;
mod growing;
mod host;
mod pools;
mod promises;
mod returning;
mod scrubbing;
mod shape;
mod user;
mod whole_cuts;

use thinwire_volume::{Identity, LegReport, LegStanding, MirrorReport, Volume};

use self::changes::LegChanges;
use self::cuts::Cuts;
use self::host::{HostScene, end_in_order};
use self::scrubbing::{Scrubbed, Troubles};
use self::whole_cuts::WholeCuts;
use crate::medium::MediumHandle;
use crate::model::{ContentLife, Model, Violation};
use crate::server::Crash;
use crate::world::World;

pub use self::course::run_volumes;
pub use self::disks::{ComposedDisk, DiskExport};
pub use self::enumerate::{Enumerated, enumerate};
pub use self::host::VolumeHost;
pub use self::pools::PoolStore;
pub use self::shape::{VolumeOver, VolumeShape};
pub use self::user::VolumeUser;

/// A copy of a leg is put back within so many runs, and as long as legs have been told to stand otherwise so often since: labels know what 32
/// generations were, of which an opening, and whatever becomes of a leg, draws two at most.
const RUNS_KNOWN: u32 = 3;
const STANDINGS_KNOWN: u64 = 13;

/// A volume that hosts compose, and what is known of it.
pub struct ComposedVolume {
    /// What it is made of.
    pub shape: VolumeShape,
    /// Its disks, by their numbers.
    pub disks: Vec<ComposedDisk>,
    /// What it may hold.
    pub model: Model,
    /// Its snapshots.
    pub cuts: Cuts,
    /// Those that are taken of several volumes of pools as one.
    pub whole_cuts: WholeCuts,
    /// There may be no room for a write.
    pub may_fill: bool,
    /// Some disk fails what no module above makes good.
    pub may_fail: bool,
    /// The disks that do, by their numbers.
    pub failing: Vec<usize>,
    /// Runs of hosts that ended otherwise than in order.
    pub crashes: u64,
    /// What scrubs beside users have found.
    pub scrubbed: Scrubbed,
    /// The mirror whose legs are changed while it is in use, if there is one.
    pub changes: Option<LegChanges>,
    /// A leg of a mirror that somebody may put back as it was at an earlier moment, with the content of that.
    pub old_leg: Option<(usize, Option<OldCopy>)>,
    /// What it was when it was opened first, and how large.
    pub known: Option<(Identity, u64)>,
}

/// What a leg held once.
pub struct OldCopy {
    content: Vec<u8>,
    /// Of whichever run was the last by then.
    run: u32,
    /// How often it was told of a leg by then that it stands otherwise.
    standings: u64,
}

impl ComposedVolume {
    /// Several hosts may have it, one after the other.
    pub fn may_be_shared(&self) -> bool {
        self.disks.iter().all(|disk| disk.export.is_some())
    }

    /// Disks of the host.
    pub fn own_media(&self) -> impl Iterator<Item = &MediumHandle> {
        self.disks.iter().filter(|disk| disk.export.is_none()).map(|disk| &disk.medium)
    }
}

/// All legs of all mirrors of a volume have all data.
fn have_all_legs(volume: &dyn Volume) -> bool {
    let mut mirrors = Vec::new();
    volume.mirrors(&mut mirrors);
    let has_all = |leg: &LegReport| match leg.standing {
        LegStanding::InSync => leg.lacks == 0,
        standing => standing == LegStanding::Removed,
    };
    let is_whole = |report: &MirrorReport| report.is_open && report.legs.iter().all(has_all);
    mirrors.iter().all(is_whole)
}

/// How a run of a host ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEnd {
    /// In order.
    Closed,
    /// Another has its disks.
    Fenced,
    /// It was not given a disk, or not all of them in time.
    Refused(String),
    /// Something that cannot be done without was not there.
    Absent(String),
    /// It was killed in the middle of a turn, at a moment that somebody waited for.
    Killed(Ambush),
}

/// A moment at which a host is to die: nothing of that turn reaches anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmbushAt {
    /// Something that changes something, or a flush, was completed for its user.
    Answer,
    /// The same, behind the drop of a leg.
    AnswerBehindDrop,
    /// A leg is in sync that was not.
    InSync,
    /// So many turns after something that changes something was submitted.
    Write(u32),
    /// So many turns after it began to take a snapshot of several volumes as one, or to delete one.
    Cut(u32),
    /// So many turns after it began to change the legs of a mirror.
    Change(u32),
    /// So many turns after it began to open the volume.
    Opening(u32),
    /// It has ended in order.
    End,
}

/// Who waits for such a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambush {
    /// The moment that is waited for.
    pub at: AmbushAt,
    /// Whose power fails at that moment, too: of servers, bit by bit.
    pub servers: u64,
    /// The host's own power fails, too.
    pub power: bool,
}

/// What is composed in a world.
pub struct Composed {
    /// The volume.
    pub volume: ComposedVolume,
    /// Those that may have it.
    pub hosts: Vec<VolumeHost>,
    /// Runs that ended since the last look, with how.
    pub ended: Vec<(usize, HostEnd)>,
    /// Moments at which a host lost what it kept.
    upheavals: u64,
}

impl World {
    /// What may have become of the disks of the composed volume.
    fn life_of_composed(&self) -> ContentLife {
        let Some(composed) = &self.composed else { return ContentLife::default() };
        let mut life = ContentLife { upheavals: composed.upheavals, losses: 0, in_doubt: false };
        let mut add = |of: ContentLife| {
            life.upheavals += of.upheavals;
            life.losses += of.losses;
            life.in_doubt |= of.in_doubt;
        };
        for disk in &composed.volume.disks {
            match &disk.export {
                Some(export) => add(self.exports[export.number].life()),
                None => {
                    let (losses, in_doubt) = disk.medium.losses();
                    add(ContentLife { upheavals: disk.medium.upheavals(), losses, in_doubt });
                }
            }
        }
        life
    }

    /// What has gone wrong by now for the composed volume, if that is known.
    fn troubles_of_composed(&self) -> Option<Troubles> {
        let life = self.life_of_composed();
        self.composed.as_ref().and_then(|composed| composed.volume.troubles(life))
    }

    /// Starts a run of a host, once its disks are free. False if that is not yet.
    pub fn start_host(&mut self, host: usize, take_over: bool) -> bool {
        let Some(composed) = &mut self.composed else { return false };
        let Composed { volume, hosts, .. } = composed;
        let h = &mut hosts[host];
        if h.process.is_some() {
            return true;
        }
        if volume.own_media().any(|medium| medium.locked_until() > self.now) {
            return false;
        }
        self.runs += 1;
        let seed = self.rng.bits();
        h.take_over = take_over;
        self.coverage.take_overs += u64::from(take_over);
        self.trace.note(self.now, &h.name, "starts run", u64::from(self.runs));
        h.start((self.now, self.runs, seed), volume, &self.net, &self.clock);
        true
    }

    /// A leg is put back as it was when this was called before, if nobody has it; or what it is now is kept for that.
    pub fn put_back_leg(&mut self) {
        let now = self.now;
        let Some(composed) = &mut self.composed else { return };
        let ComposedVolume { disks, old_leg, .. } = &mut composed.volume;
        let Some((leg, old)) = old_leg else { return };
        let disk = &disks[*leg];
        let server = disk.export.as_ref().map(|export| self.exports[export.number].server);
        let is_free = composed.hosts.iter().all(|host| host.process.is_none())
            && server.is_none_or(|server| !self.servers[server].runs())
            && disk.medium.locked_until() <= now;
        if !is_free {
            return;
        }
        let run = composed.hosts.iter().map(|host| host.run).max().unwrap_or(0);
        let told = &self.coverage;
        let standings = told.legs_in_sync + told.legs_resyncing + told.legs_behind;
        match old {
            // Labels know an old copy by what their last generations were, and by where a leg was left; of an older one they say that it
            // was written apart, or is very old.
            Some(old)
                if run <= old.run + RUNS_KNOWN && standings <= old.standings + STANDINGS_KNOWN =>
            {
                self.trace.note(now, "somebody", "puts back leg", *leg as u64);
                self.coverage.legs_put_back += 1;
                disk.medium.write_durably(0, old.content.clone());
            }
            _ => *old = Some(OldCopy { content: disk.medium.durable(), run, standings }),
        }
    }

    /// Ends a host's process at once; with its power what its own disks have not flushed.
    pub fn crash_host(&mut self, host: usize, how: Crash) {
        let Some(composed) = &mut self.composed else { return };
        let Composed { volume, hosts, upheavals, .. } = composed;
        let h = &mut hosts[host];
        if h.process.is_none() {
            return;
        }
        self.trace.note(self.now, &h.name, "crashes", how as u64);
        self.coverage.host_crashes += 1;
        h.crash(volume, &mut self.coverage);
        *upheavals += 1;
        volume.crashes += 1;
        volume.own_media().for_each(|medium| match how {
            Crash::Kill => medium.kill(),
            Crash::Power => medium.power_failure(),
        });
    }

    /// Has hosts do what they have to do.
    pub(crate) fn turn_hosts(&mut self) -> Result<(), Violation> {
        let life = self.life_of_composed();
        let Some(mut composed) = self.composed.take() else { return Ok(()) };
        let turned = self.turn_each(&mut composed, life);
        self.composed = Some(composed);
        turned
    }

    fn turn_each(&mut self, composed: &mut Composed, life: ContentLife) -> Result<(), Violation> {
        composed.volume.model.note_losses(life);
        composed.volume.note_made(life);
        for at in 0..composed.hosts.len() {
            let Composed { volume, hosts, ended, .. } = composed;
            let is_contested = hosts.len() > 1;
            let host = &mut hosts[at];
            if host.process.is_none() {
                continue;
            }
            let is_ready = host.is_ready(volume.own_media());
            let (now, lag) = (self.now, self.lag_ns);
            if !host.machine.wakes(now, &self.net, is_ready, &mut self.rng, lag) {
                continue;
            }
            let (trace, name) = (&mut self.trace, host.name.clone());
            let mut note = |what: &str, value: u64| trace.note(now, &name, what, value);
            let coverage = &mut self.coverage;
            let scene = HostScene { now, volume, life, is_contested, coverage };
            let Some(end) = host.turn(scene, &mut note)? else { continue };
            note(&format!("ends: {end:?}"), 0);
            let coverage = &mut self.coverage;
            match end {
                HostEnd::Closed => {
                    let mut scene = HostScene { now, volume, life, is_contested, coverage };
                    end_in_order(host, &mut scene);
                }
                _ => {
                    coverage.hosts_fenced += u64::from(end == HostEnd::Fenced);
                    host.crash(volume, coverage);
                    volume.crashes += 1;
                }
            }
            // What it had asked its own disks for still lands.
            volume.own_media().for_each(MediumHandle::kill);
            let ambush = match end {
                HostEnd::Killed(ambush) => Some(ambush),
                HostEnd::Closed => host.ambush.take_if(|ambush| ambush.at == AmbushAt::End),
                _ => None,
            };
            if let Some(ambush) = ambush {
                self.coverage.ambushes += 1;
                if ambush.power {
                    volume.own_media().for_each(MediumHandle::forget_turn);
                    volume.own_media().for_each(MediumHandle::power_failure);
                }
                for server in (0..self.servers.len()).filter(|at| ambush.servers >> at & 1 == 1) {
                    self.crash_server(server, Crash::Power);
                }
            }
            ended.push((at, end));
        }
        Ok(())
    }
}
