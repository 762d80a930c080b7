//! Changes of the legs of a mirror, as its host has them done: a disk is attached, the mirror says what its label is to be, it gets that and comes as a leg;
//! or a leg goes, at once or behind another one that comes in its place. What a run leaves half done the next one goes on with.

use thinwire_modules::mirror::{
    MIRROR_DATA_START, MirrorAnswer, MirrorAsk, MirrorAskError, MirrorDesk, NewLeg,
};
use thinwire_volume::{LegStanding, MirrorReport, Volume};

use super::super::changes::{LegChanges, LegWish};
use super::super::growing::draw;
use super::super::returning::Coming;
use super::super::shape::VolumeShape;
use super::{HostEnd, HostProcess, HostScene, Stage, VolumeHost};
use crate::composed::AmbushAt;
use crate::coverage::Coverage;
use crate::model::Violation;
use crate::world::MS;

/// A mirror that cannot grow yet is asked again after so long, in ns.
const RETRY_NS: u64 = 300 * MS;

/// What a run has done of what is wished for.
#[derive(Default)]
pub(super) struct ChangeTask {
    /// The number of that.
    of: u64,
    /// What the mirror was asked, and has not answered.
    asked: Option<u64>,
    /// What the label of the disk is to be that becomes a leg.
    offer: Option<Box<NewLeg>>,
    /// The mirror knows which leg goes for which; and the one that comes has been in sync since.
    is_told: bool,
    was_in_sync: bool,
    /// It is asked for growth again then.
    retry_at: u64,
    /// Turns since it was begun.
    turns: u32,
}

/// What there is to change legs with.
struct ChangeScene<'a> {
    changes: &'a mut LegChanges,
    shape: &'a mut VolumeShape,
    coverage: &'a mut Coverage,
    desk: MirrorDesk,
    report: MirrorReport,
    /// How large the volume is.
    bytes: u64,
    now: u64,
}

impl VolumeHost {
    /// Goes on with what is wished for, behind a turn of the volume. True: there is more to do.
    ///
    /// # Errors
    /// What was told is not so.
    pub(super) fn tend_changes(&mut self, scene: &mut HostScene<'_>) -> Result<bool, Violation> {
        let Some(changes) = &mut scene.volume.changes else { return Ok(false) };
        let Some(process) = &mut self.process else { return Ok(false) };
        let Stage::Serving(volume) = &process.stage else { return Ok(false) };
        // Whoever has lost the volume, and has not heard of that, is not asked.
        if self.is_closing || scene.volume.model.run() != self.run {
            return Ok(false);
        }
        let Some(desk) = process.desk_over(&changes.ground) else { return Ok(false) };
        let mut reports = Vec::new();
        volume.mirrors(&mut reports);
        if reports.len() <= changes.mirror {
            return Ok(false);
        }
        let report = reports.swap_remove(changes.mirror);
        if !report.is_open || report.has_stopped {
            return Ok(false);
        }
        let (bytes, now) = (volume.geometry().bytes, scene.now);
        let (shape, coverage) = (&mut scene.volume.shape, &mut *scene.coverage);
        let mut scene = ChangeScene { changes, shape, coverage, desk, report, bytes, now };
        let tended =
            scene.changes.check(&scene.report).and_then(|()| process.tend_changes(&mut scene));
        tended.map_err(|why| self.violation(why))
    }

    /// The moment has come, if somebody waits for that turn of a change.
    pub(super) fn strike_change(&mut self, scene: &HostScene<'_>) -> Option<HostEnd> {
        let wish = scene.volume.changes.as_ref().and_then(LegChanges::wish);
        let task = &mut self.process.as_mut()?.task;
        if wish.is_none_or(|(number, _)| number != task.of) {
            return None;
        }
        task.turns += 1;
        let turns = task.turns;
        self.strike(AmbushAt::Change(turns))
    }
}

impl HostProcess {
    /// When it goes on by itself with what is wished for.
    pub(super) fn changes_at(&self, now: u64) -> u64 {
        if self.task.retry_at > now { self.task.retry_at } else { u64::MAX }
    }

    /// By what the mirror over these disks is asked for something.
    fn desk_over(&self, ground: &[usize]) -> Option<MirrorDesk> {
        let is_it = |below: &[usize]| below.iter().any(|disk| ground.contains(disk));
        self.desks.iter().find(|(below, _)| is_it(below)).map(|(_, desk)| desk.clone())
    }

    fn tend_changes(&mut self, scene: &mut ChangeScene<'_>) -> Result<bool, String> {
        let mut goes_on = false;
        for (disk, leg) in scene.changes.disks() {
            let is_one = scene.report.legs[leg].standing != LegStanding::Removed;
            // Another run has added it, or this one has given it up.
            if is_one && matches!(self.returning.coming(disk), Coming::Nowhere) {
                self.returning.bring(disk, false);
                goes_on = true;
            }
        }
        scene.changes.clean_up(&scene.report);
        let wish = scene.changes.wish();
        if wish.is_none_or(|(number, _)| number != self.task.of) {
            self.returning.forget_new(&mut self.disks);
            let of = wish.map_or(0, |(number, _)| number);
            self.task = ChangeTask { of, ..ChangeTask::default() };
        }
        let Some((_, wish)) = wish else { return Ok(goes_on) };
        let has_done = match wish {
            LegWish::Add(disk) => self.add(disk, false, scene),
            LegWish::Replace(old, new) if scene.changes.leg_of(new).is_some() => {
                return Ok(self.replace(old, new, scene)? | goes_on);
            }
            LegWish::Replace(_, new) => self.add(new, true, scene),
            LegWish::Remove(disk) => match scene.changes.leg_of(disk) {
                Some(leg) => self.remove(leg, Some(disk), scene),
                None => self.give_up(scene),
            },
            LegWish::Clear(leg) => self.remove(leg, None, scene),
            LegWish::Grow(bytes) => self.grow(bytes - MIRROR_DATA_START, scene),
        };
        Ok(has_done | goes_on)
    }

    /// Asks the mirror, once; the answer, once that is there, and whether it was asked just now.
    fn ask(&mut self, desk: &MirrorDesk, ask: MirrorAsk) -> (Option<MirrorAnswer>, bool) {
        match self.task.asked {
            Some(number) => (desk.take_ended(number), false),
            None => {
                self.task.asked = Some(desk.ask(ask));
                (None, true)
            }
        }
    }

    /// It does not come true.
    fn give_up(&mut self, scene: &mut ChangeScene<'_>) -> bool {
        scene.changes.end_wish();
        scene.coverage.changes_refused += 1;
        true
    }

    fn remove(&mut self, leg: usize, disk: Option<usize>, scene: &mut ChangeScene<'_>) -> bool {
        let (answer, goes_on) = self.ask(&scene.desk, MirrorAsk::Remove(leg));
        match answer {
            None | Some(Err(MirrorAskError::Closed)) => goes_on,
            // A run before this one has done it, and nobody was told.
            Some(Ok(_) | Err(MirrorAskError::NoLeg { .. })) => {
                match disk {
                    Some(disk) => scene.changes.forget(scene.shape, disk),
                    None => scene.changes.has_gone(leg),
                }
                scene.coverage.legs_removed += 1;
                scene.changes.end_wish();
                true
            }
            Some(Err(_)) => self.give_up(scene),
        }
    }

    fn add(&mut self, disk: usize, is_more_wished: bool, scene: &mut ChangeScene<'_>) -> bool {
        let geometry = match self.returning.coming(disk) {
            Coming::Nowhere => {
                self.returning.bring(disk, true);
                return true;
            }
            Coming::OnItsWay | Coming::Used => return false,
            Coming::Made => {
                let offer = self.task.offer.take().expect("it has a label");
                scene.changes.describe(scene.shape, disk, offer.label.role.into());
                self.returning.go_on(disk, &self.disks);
                self.task.asked = None;
                scene.coverage.legs_added += 1;
                if !is_more_wished {
                    scene.changes.end_wish();
                }
                return true;
            }
            Coming::Offered(volume) => volume.geometry(),
        };
        if self.task.offer.is_none() {
            let (uuid, leg) = (draw(&mut self.dice), scene.changes.leftover(&scene.report));
            let ask = MirrorAsk::Add { uuid, leg, only_look: false };
            let (answer, goes_on) = self.ask(&scene.desk, ask);
            if goes_on {
                scene.changes.may_come();
            }
            match answer {
                None | Some(Err(MirrorAskError::Closed)) => return goes_on,
                Some(Ok(done)) => {
                    scene.changes.has_come(done.leg.as_ref().map(|leg| leg.label.role.into()));
                    self.task.offer = done.leg;
                }
                Some(Err(_)) => {
                    scene.changes.has_come(None);
                    return self.give_up(scene);
                }
            }
        }
        let offer = self.task.offer.as_ref().expect("it was told");
        let room = geometry.bytes.saturating_sub(MIRROR_DATA_START);
        if room < offer.label.whole_bytes || offer.needs.misfit(&geometry).is_some() {
            return self.give_up(scene);
        }
        self.returning.make(disk, &offer.label, &self.disks);
        true
    }

    /// Both are legs: the first one goes as soon as the second has all data.
    fn replace(
        &mut self,
        old: usize,
        new: usize,
        scene: &mut ChangeScene<'_>,
    ) -> Result<bool, String> {
        let (Some(leg), Some(by)) = (scene.changes.leg_of(old), scene.changes.leg_of(new)) else {
            return Ok(self.give_up(scene));
        };
        let [is_out, is_in_sync] = [(leg, LegStanding::Removed), (by, LegStanding::InSync)]
            .map(|(leg, standing)| scene.report.legs[leg].standing == standing);
        self.task.was_in_sync |= is_in_sync;
        if !self.task.is_told {
            let (answer, goes_on) = self.ask(&scene.desk, MirrorAsk::Replace { leg, by });
            match answer {
                None | Some(Err(MirrorAskError::Closed)) => return Ok(goes_on),
                Some(Ok(_)) => self.task.is_told = true,
                // A run before this one has done it.
                Some(Err(MirrorAskError::NoLeg { leg: none })) if none == leg && is_out => {
                    return Ok(self.end_replacement(old, scene));
                }
                Some(Err(_)) => return Ok(self.give_up(scene)),
            }
        }
        if is_out && !self.task.was_in_sync {
            return Err(format!("leg {leg} has gone for leg {by}, which had never all data"));
        }
        match (scene.report.legs[by].replaces, is_out) {
            (Some(_), _) => Ok(false),
            (None, true) => Ok(self.end_replacement(old, scene)),
            // What was told just now the report does not know yet.
            (None, false) if self.task.asked.take().is_some() => Ok(true),
            (None, false) => Ok(self.give_up(scene)),
        }
    }

    /// It is as large as its legs have become, once all of them are there and known to be.
    fn grow(&mut self, bytes: u64, scene: &mut ChangeScene<'_>) -> bool {
        if scene.bytes >= bytes {
            scene.changes.end_wish();
            scene.coverage.mirrors_grown += 1;
            return true;
        }
        if scene.now < self.task.retry_at {
            return false;
        }
        let (answer, goes_on) = self.ask(&scene.desk, MirrorAsk::Grow);
        match answer {
            None | Some(Err(MirrorAskError::Closed)) => goes_on,
            Some(_) => {
                (self.task.asked, self.task.retry_at) = (None, scene.now + RETRY_NS);
                false
            }
        }
    }

    fn end_replacement(&mut self, old: usize, scene: &mut ChangeScene<'_>) -> bool {
        scene.changes.forget(scene.shape, old);
        scene.changes.end_wish();
        scene.coverage.legs_replaced += 1;
        true
    }
}
