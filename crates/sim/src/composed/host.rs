//! [`VolumeHost`]: a machine that composes a volume of its disks and of exports, and uses it: one life of its process, from the first
//! attach to the last detach.

mod changing;
mod standing;

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Pool, Time};
use thinwire_initiator::InitiatorConfig;
use thinwire_link::fault::FaultConfig;
use thinwire_link::rng::Rng;
use thinwire_link::sim::SimNet;
use thinwire_modules::cuts::Cutter;
use thinwire_modules::mirror::MirrorDesk;
use thinwire_modules::thin::ThinPool;
use thinwire_volume::{ErrorKind, LegStanding, Op, Volume, VolumeEvent};

use self::changing::ChangeTask;
use super::changes::LegChanges;
use super::disks::HostDisks;
use super::growing::{Growing, GrowingScene, GrowingSettings, NotGrown};
use super::returning::Returning;
use super::scrubbing::HostScrub;
use super::user::{DueErrors, UserScene, VolumeUser};
use super::{Ambush, AmbushAt, ComposedVolume, HostEnd};
use crate::coverage::Coverage;
use crate::machine::Machine;
use crate::medium::MediumHandle;
use crate::model::{ContentLife, Range, Violation};
use crate::world::SECOND;

/// Between two turns of a process that is at work for itself, in ns, at least.
const LEAST_NS: u64 = 1_000;
/// While it is being opened.
const GROWING_NS: u64 = 5_000_000;
/// The orderly end takes no longer, as in the command.
const CLOSE_NS: u64 = 10 * SECOND;

/// A machine that has composed a volume, or is to.
pub struct VolumeHost {
    /// What it is called in traces.
    pub name: String,
    /// Its links.
    pub machine: Machine,
    /// Settings of its attachments.
    pub config: InitiatorConfig,
    /// How it opens volumes.
    pub settings: GrowingSettings,
    /// It waits so long for disks that are not there, in ns.
    pub patience_ns: u64,
    /// Whoever has the disks is fenced.
    pub take_over: bool,
    /// Fenced at one disk, it goes on for so long with the others, in ns, as one that does not look there.
    pub lingers_ns: u64,
    /// Faults of its links, if they are wrapped.
    pub faults: Option<FaultConfig>,
    /// What it does with the volume.
    pub user: VolumeUser,
    /// The process, if it runs.
    pub process: Option<HostProcess>,
    /// The number of its present run, unique in the world.
    pub run: u32,
    /// Its next run is to end in order, behind what is under way.
    pub is_closing: bool,
    /// It is to die at such a moment.
    pub ambush: Option<Ambush>,
    /// A scrub of it.
    pub scrub: HostScrub,
    /// Turns since it began to open the volume, and since something was submitted that somebody waits for.
    opening_turns: u32,
    write_turns: u32,
    /// The same, since a snapshot of several volumes was begun.
    cut_turns: u32,
    pool: Pool,
}

/// How far a process is.
enum Stage {
    /// Its disks are being attached, until then.
    Attaching(u64),
    Growing(Box<Growing>),
    Serving(Box<dyn Volume>),
    /// The last flush has ended.
    WindingUp(Box<dyn Volume>, u64),
    /// The volume is gone.
    Detaching(u64),
}

/// A process that composes a volume.
pub struct HostProcess {
    disks: HostDisks,
    returning: Returning,
    stage: Stage,
    thins: Vec<ThinPool>,
    cutter: Option<Cutter>,
    /// By what its mirrors are asked for something, each with the disks below it; and what is done of that.
    desks: Vec<(Vec<usize>, MirrorDesk)>,
    task: ChangeTask,
    dice: Rng,
    has_asked_to_flush: bool,
    /// Another has a disk of it, and then it ends.
    fenced_until: Option<u64>,
}

/// What is around a turn of a host.
pub struct HostScene<'a> {
    /// Now, in ns.
    pub now: u64,
    /// What it composes.
    pub volume: &'a mut ComposedVolume,
    /// What may have become of the disks.
    pub life: ContentLife,
    /// There is another host, which may take the disks.
    pub is_contested: bool,
    /// What is counted.
    pub coverage: &'a mut Coverage,
}

impl VolumeHost {
    /// A machine on which nothing runs yet.
    pub fn new(
        name: String,
        stations: Vec<u32>,
        config: InitiatorConfig,
        user: VolumeUser,
    ) -> Self {
        VolumeHost {
            name,
            machine: Machine::new(stations),
            config,
            settings: GrowingSettings::default(),
            patience_ns: 5 * SECOND,
            take_over: false,
            lingers_ns: 0,
            faults: None,
            user,
            process: None,
            run: 0,
            is_closing: false,
            ambush: None,
            scrub: HostScrub::default(),
            opening_turns: 0,
            write_turns: 0,
            cut_turns: 0,
            pool: Pool::new(16 << 20),
        }
    }

    /// Starts a run.
    pub fn start(
        &mut self,
        (now, run, seed): (u64, u32, u64),
        volume: &ComposedVolume,
        net: &SimNet,
        clock: &Rc<Cell<u64>>,
    ) {
        assert!(self.process.is_none());
        let links = self.machine.open_links(net, self.faults.as_ref(), clock);
        let mut dice = Rng::new(seed);
        let mut config = self.config.clone();
        config.take_over = self.take_over;
        let described = (&volume.disks[..], &volume.shape.disks()[..]);
        let mut disks = HostDisks::new(links, described, config, &self.pool, dice.bits());
        // In the order of what they are, as everybody does it: two cannot end with half each.
        disks.remote().for_each(|disk| disks.attach(now, disk, false));
        let changing = volume.changes.as_ref().map(|changes| changes.ground.clone());
        self.process = Some(HostProcess {
            disks,
            returning: Returning::of(changing.unwrap_or_default()),
            stage: Stage::Attaching(now + self.patience_ns),
            thins: Vec::new(),
            cutter: None,
            desks: Vec::new(),
            task: ChangeTask::default(),
            dice,
            has_asked_to_flush: false,
            fenced_until: None,
        });
        self.run = run;
        (self.is_closing, self.scrub) = (false, HostScrub::default());
        (self.opening_turns, self.write_turns, self.cut_turns) = (0, 0, 0);
        self.user.begin(run);
        self.machine.frozen_until = 0;
        self.machine.dirty = true;
    }

    /// The process is gone at once.
    pub fn crash(&mut self, volume: &mut ComposedVolume, coverage: &mut Coverage) {
        let Some(process) = self.process.take() else { return };
        process.disks.harvest(coverage);
        self.user.begin(0);
        self.machine.deadline = u64::MAX;
        volume.cuts.run_ended(self.run, &volume.model);
        volume.whole_cuts.run_ended(self.run, &mut volume.model);
        volume.model.run_ended(self.run);
    }

    /// Begins an orderly end.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.machine.dirty = true;
    }

    /// Its disks that are its own have something to say.
    pub fn is_ready<'a>(&self, mut own: impl Iterator<Item = &'a MediumHandle>) -> bool {
        self.process.is_some() && own.any(MediumHandle::is_ready)
    }

    /// One turn of its loop. How the run ended, if it did.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn turn(
        &mut self,
        mut scene: HostScene<'_>,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<HostEnd>, Violation> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let (now, time) = (scene.now, Time(scene.now));
        let node = &mut process.disks.node;
        self.machine.receive(&self.pool, |link, frame| node.on_frame(time, link, frame));
        node.settle(time);
        let end = self.step(&mut scene, trace)?;
        if end.is_some() {
            return Ok(end);
        }
        if self.opening_turns > 0 {
            self.opening_turns += 1;
            if let Some(ambush) = self.strike(AmbushAt::Opening(self.opening_turns)) {
                return Ok(Some(ambush));
            }
        }
        if let Some(Ambush { at: AmbushAt::Write(_), .. }) = self.ambush
            && (self.write_turns > 0 || self.user.has_changes())
        {
            self.write_turns += 1;
            if let Some(ambush) = self.strike(AmbushAt::Write(self.write_turns)) {
                return Ok(Some(ambush));
            }
        }
        self.cut_turns = match scene.volume.whole_cuts.are_settled(self.run) {
            true => 0,
            false => self.cut_turns + 1,
        };
        if self.cut_turns > 0
            && let Some(ambush) = self.strike(AmbushAt::Cut(self.cut_turns))
        {
            return Ok(Some(ambush));
        }
        if let Some(ambush) = self.strike_change(&scene) {
            return Ok(Some(ambush));
        }
        let process = self.process.as_mut().expect("it runs");
        let mut deadline = process.returning.tend(now, &mut process.disks, scene.coverage);
        process.disks.node.settle(time);
        let end = self.step(&mut scene, trace)?;
        if end.is_some() {
            return Ok(end);
        }
        let process = self.process.as_mut().expect("it runs");
        match &mut process.stage {
            Stage::Serving(volume) => {
                let wakes_at = volume.turn(time).0.min(self.user.wakes_at());
                deadline = deadline.min(wakes_at.max(now + LEAST_NS));
            }
            Stage::WindingUp(volume, until) => {
                deadline = deadline.min(volume.turn(time).0.min(*until).max(now + LEAST_NS));
            }
            // Parts may be at work for themselves: whoever waits for them comes often enough.
            Stage::Growing(_) => deadline = deadline.min(now + GROWING_NS),
            Stage::Attaching(until) | Stage::Detaching(until) => deadline = deadline.min(*until),
        }
        self.machine.dirty |= self.tend_changes(&mut scene)?;
        let process = self.process.as_mut().expect("it runs");
        let ends_at = process.fenced_until.unwrap_or(u64::MAX);
        deadline = deadline.min(process.changes_at(now)).min(ends_at);
        let node = &mut process.disks.node;
        node.settle(time);
        node.close(time);
        let frames = self.machine.send(node.out());
        trace("sent", frames);
        self.machine.deadline = node.deadline().0.min(deadline);
        self.machine.dirty |= node.has_ios();
        Ok(None)
    }

    /// The moment has come, if somebody waits for it.
    fn strike(&mut self, at: AmbushAt) -> Option<HostEnd> {
        self.ambush.take_if(|ambush| ambush.at == at).map(HostEnd::Killed)
    }

    /// What can be done now.
    fn step(
        &mut self,
        scene: &mut HostScene<'_>,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<HostEnd>, Violation> {
        if let Some(end) = self.look_at_disks(scene)? {
            return Ok(Some(end));
        }
        let now = scene.now;
        let process = self.process.as_mut().expect("it runs");
        match &mut process.stage {
            Stage::Attaching(until) => {
                let (until, disks) = (*until, &process.disks);
                if self.is_closing {
                    return Ok(Some(HostEnd::Closed));
                }
                if let Some(why) = disks.remote().find_map(|disk| disks.refusal(disk)) {
                    return Ok(Some(HostEnd::Refused(why)));
                }
                if disks.remote().all(|disk| disks.is_open(disk)) || now >= until {
                    self.opening_turns = 1;
                    trace("opens", u64::from(self.run));
                    process.stage = Stage::Growing(Box::new(Growing::new(&scene.volume.shape)));
                    self.machine.dirty = true;
                }
                Ok(None)
            }
            Stage::Growing(_) => self.grow(scene, trace),
            Stage::Serving(_) => self.serve(scene, trace),
            Stage::WindingUp(volume, until) => {
                volume.poll(&mut Vec::new());
                if !volume.is_wound_up() && now < *until {
                    return Ok(None);
                }
                let is_wound_up = volume.is_wound_up();
                let HostProcess { disks, returning, stage, .. } = process;
                *stage = Stage::Detaching(now + CLOSE_NS);
                for disk in disks.remote() {
                    match returning.is_away(disk) || !is_wound_up {
                        true => disks.abort(disk),
                        false => disks.close(disk),
                    }
                }
                self.machine.dirty = true;
                Ok(None)
            }
            Stage::Detaching(until) => {
                let disks = &process.disks;
                let is_over = disks.remote().all(|disk| disks.is_closed(disk));
                if !is_over && now < *until {
                    return Ok(None);
                }
                Ok(Some(HostEnd::Closed))
            }
        }
    }

    /// A disk may have been given to somebody else.
    fn look_at_disks(&mut self, scene: &HostScene<'_>) -> Result<Option<HostEnd>, Violation> {
        let process = self.process.as_ref().expect("it runs");
        let HostProcess { disks, returning, .. } = process;
        let mut is_fenced = false;
        for disk in disks.remote() {
            match disks.failure(disk).filter(|_| !returning.is_away(disk)) {
                None => {}
                Some(ErrorKind::Fenced) if scene.is_contested => is_fenced = true,
                Some(kind) => {
                    return Err(self.violation(format!("disk {disk} failed: {}", kind.describe())));
                }
            }
        }
        Ok(if is_fenced { self.end_fenced(scene.now) } else { None })
    }

    /// Another has a disk of it: it ends, now or later.
    fn end_fenced(&mut self, now: u64) -> Option<HostEnd> {
        let until = now + self.lingers_ns;
        let until = *self.process.as_mut()?.fenced_until.get_or_insert(until);
        (until <= now).then_some(HostEnd::Fenced)
    }

    fn grow(
        &mut self,
        scene: &mut HostScene<'_>,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<HostEnd>, Violation> {
        let process = self.process.as_mut().expect("it runs");
        let HostProcess { disks, returning, stage, thins, cutter, desks, dice, .. } = process;
        let Stage::Growing(growing) = stage else { unreachable!("it grows") };
        let pool = disks.pool().clone();
        let all = std::cell::RefCell::new(disks);
        let mut ground = GrowingScene {
            now: Time(scene.now),
            pool: &pool,
            dice,
            disk: &mut |disk| all.borrow_mut().open(disk),
            keeper: &mut |found| returning.keeper(found, &all.borrow()),
            desks,
            thins,
            cutter,
            settings: self.settings,
        };
        let grown = growing.turn(&mut ground);
        match grown {
            Ok(None) => Ok(None),
            Ok(Some(volume)) => {
                let disks = all.into_inner();
                // Each grant raises that of its disk. Who has disks of its own is the only one.
                let generation = match scene.volume.may_be_shared() {
                    true => disks.generations(),
                    false => u64::from(self.run),
                };
                let is_writer = scene.volume.model.run_started(self.run, generation);
                scene.coverage.composed += 1;
                trace("has the volume", u64::from(is_writer));
                let found = (volume.identity(), volume.geometry().bytes);
                let may_grow = scene.volume.changes.as_ref().is_some_and(LegChanges::may_grow);
                let expected = scene.volume.known.get_or_insert(found);
                let expected = match may_grow {
                    // Whoever has grown it may not have lived to say so; and who has lost it may not know.
                    true if is_writer && found.1 > expected.1 => {
                        scene.volume.model.grow(found.1);
                        expected.1 = found.1;
                        *expected
                    }
                    true if !is_writer => (expected.0, found.1),
                    _ => *expected,
                };
                *stage = Stage::Serving(volume);
                self.machine.dirty = true;
                if let (Some(thin), true) = (thins.first(), is_writer) {
                    scene.volume.cuts.find(self.run, thin)?;
                }
                if found != expected {
                    let text = format!("it is {found:?}, and was {expected:?}");
                    return Err(self.violation(text));
                }
                Ok(None)
            }
            Err(NotGrown::Absent(why)) => Ok(Some(HostEnd::Absent(why))),
            // Of a disk that fails the next opening may find more; in the end one has to.
            Err(NotGrown::Refused(why)) if scene.is_contested || scene.volume.may_fail => {
                Ok(Some(HostEnd::Refused(why)))
            }
            Err(NotGrown::Refused(why)) => {
                Err(self.violation(format!("its volume is not opened: {why}")))
            }
        }
    }

    fn serve(
        &mut self,
        scene: &mut HostScene<'_>,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<Option<HostEnd>, Violation> {
        let process = self.process.as_mut().expect("it runs");
        let Stage::Serving(volume) = &mut process.stage else { unreachable!("it serves") };
        let has_changes = scene.volume.changes.is_some();
        let ComposedVolume { model, may_fill, may_fail, whole_cuts, known, .. } =
            &mut *scene.volume;
        let is_thin = !process.thins.is_empty();
        let due = DueErrors { fenced: scene.is_contested, full: *may_fill, io: *may_fail };
        let (now, life, coverage) = (scene.now, scene.life, &mut *scene.coverage);
        let mut user_scene = UserScene { now, model, life, coverage, due, is_thin };
        let mut done = Vec::new();
        volume.poll(&mut done);
        // Taken before what may have seen the loss.
        let mut events = Vec::new();
        volume.poll_events(&mut events);
        if events.contains(&VolumeEvent::Lost) {
            self.user.on_loss(user_scene.model);
            whole_cuts.on_loss(self.run);
            user_scene.coverage.composed_losses += 1;
        }
        self.machine.dirty |= !done.is_empty();
        let mut broken = None;
        let has_answered = done
            .iter()
            .any(|completion| completion.result.is_ok() && self.user.is_change(completion.token));
        for completion in done {
            let code = completion.result.map_or_else(|e| e.kind as u64 + 1, |()| 0);
            trace("completed", completion.token << 8 | code);
            if let Err(violation) = self.user.take(completion, &mut user_scene) {
                broken = broken.or(Some(violation.0));
            }
        }
        if let Some(why) = broken {
            return Err(self.violation(why));
        }
        let (mut is_dropped, mut is_in_sync) = (false, false);
        for event in events {
            if let VolumeEvent::Resized { bytes } = event {
                trace("has grown to", bytes);
                user_scene.model.grow(bytes);
                known.iter_mut().for_each(|(_, known)| *known = bytes.max(*known));
            }
            if let VolumeEvent::Leg { leg, standing, .. } = event {
                trace(standing.name(), u64::from(leg));
                let coverage = &mut *user_scene.coverage;
                match standing {
                    LegStanding::InSync => {
                        is_in_sync = true;
                        coverage.legs_in_sync += 1;
                    }
                    LegStanding::Resyncing => coverage.legs_resyncing += 1,
                    LegStanding::Behind => {
                        is_dropped = true;
                        coverage.legs_behind += 1;
                    }
                    // Whether anybody wanted that is another matter.
                    LegStanding::Removed if has_changes => {}
                    LegStanding::Failed | LegStanding::Removed => {
                        return Err(self.violation(format!("leg {leg} has failed")));
                    }
                }
            }
        }
        if self.user.is_fenced()
            && let Some(end) = self.end_fenced(now)
        {
            return Ok(Some(end));
        }
        self.look_at_scrub(scene)?;
        let is_late = self.ambush.is_some_and(|ambush| ambush.at == AmbushAt::AnswerBehindDrop);
        if is_late && is_dropped {
            // A drop is told before what it was waited for with.
            self.ambush.iter_mut().for_each(|ambush| ambush.at = AmbushAt::Answer);
        }
        let moment = match (has_answered, is_in_sync) {
            (true, _) => self.strike(AmbushAt::Answer),
            (_, true) => self.strike(AmbushAt::InSync),
            _ => None,
        };
        if moment.is_some() {
            return Ok(moment);
        }
        let process = self.process.as_mut().expect("it runs");
        let HostProcess { stage, thins, cutter, has_asked_to_flush, .. } = process;
        let Stage::Serving(volume) = stage else { unreachable!("it serves") };
        let ComposedVolume { model, cuts, whole_cuts, shape, .. } = &mut *scene.volume;
        let coverage = &mut *scene.coverage;
        let mut user_scene = UserScene { now, model, life, coverage, due, is_thin };
        let told = match (thins.first(), &cutter) {
            (_, Some(cutter)) => {
                whole_cuts.tend(self.run, cutter, user_scene.model, user_scene.coverage, trace)
            }
            (Some(thin), None) => cuts.tend(self.run, thin, user_scene.model, user_scene.coverage),
            (None, None) => Ok(()),
        };
        if whole_cuts.are_settled(self.run) {
            self.user.calm_down();
        }
        told.map_err(|v| Violation(format!("{} (run {}): {}", self.name, self.run, v.0)))?;
        if !self.is_closing {
            self.user.submit_more(&mut **volume, &mut user_scene, trace);
            match (thins.first(), &cutter) {
                (_, Some(cutter)) => {
                    if whole_cuts.begin(self.run, cutter, user_scene.model, cuts, trace) {
                        self.user.hurry();
                        self.machine.dirty = true;
                    }
                }
                (Some(thin), None) => cuts.begin(self.run, thin, user_scene.model),
                (None, None) => {}
            }
            return Ok(None);
        }
        let is_settled = cuts.are_settled(self.run) && whole_cuts.are_settled(self.run);
        if self.user.outstanding() > 0 || !is_settled {
            return Ok(None);
        }
        // A mirror makes durable what it has been given before it says that nothing is open.
        let is_mirror = shape.top().is_some_and(|top| top.is_mirror());
        let flushes = !is_mirror || self.run % 2 == 0;
        if flushes && !std::mem::replace(has_asked_to_flush, true) {
            let nothing = Range { first: 0, count: 0 };
            self.user.submit(Op::Flush, nothing, false, &mut **volume, &mut user_scene);
            self.machine.dirty = true;
            return Ok(None);
        }
        volume.wind_up();
        let old = std::mem::replace(stage, Stage::Detaching(0));
        if let Stage::Serving(volume) = old {
            *stage = Stage::WindingUp(volume, now + CLOSE_NS);
        }
        self.machine.dirty = true;
        Ok(None)
    }

    fn violation(&self, why: String) -> Violation {
        Violation(format!("{} (run {}): {why}", self.name, self.run))
    }
}

/// Ends a run that has ended in order.
pub(super) fn end_in_order(host: &mut VolumeHost, scene: &mut HostScene<'_>) {
    let Some(process) = host.process.take() else { return };
    process.disks.harvest(scene.coverage);
    host.machine.deadline = u64::MAX;
    scene.volume.model.run_ended(host.run);
    host.user.begin(0);
    scene.coverage.detached += 1;
}
