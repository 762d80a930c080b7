//! Legs of mirrors that come back while these are in use (rule 22 of volumes), each a disk at a server: given up as a whole, attached
//! anew, its labels read under that, and brought to its mirror. What becomes a leg for the first time gets its label in between
//! (`newcomers.rs`); what is none any more is let go of.

mod newcomers;

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_modules::meta::{Finding, LabelOutcome, Labels, WholeMaking};
use thinwire_modules::mirror::{LEG_LABEL_TOKEN, LegKeeper, LegsInUse, MirrorError, MirrorLeg};
use thinwire_volume::Volume;

use super::disks::HostDisks;
use super::growing::FoundLegs;
use super::shape::VolumeShape;
use crate::coverage::Coverage;
use crate::world::{MS, SECOND};

pub use self::newcomers::Coming;

/// After so long it is tried again, in ns.
const RETRY_NS: u64 = 200 * MS;
/// The orderly end of what is no leg any more takes no longer.
const LEAVE_NS: u64 = 2 * SECOND;

/// What a mirror and its host say to one another.
#[derive(Default)]
struct Passage {
    /// Which disk is this leg's, while the mirror has it; of legs that are brought back.
    by_leg: Vec<Option<usize>>,
    /// What the mirror has given up, by disk; and what it has removed.
    given: Vec<(usize, Box<dyn Volume>)>,
    over: Vec<(usize, Box<dyn Volume>)>,
    /// Legs that do not come back, as bits.
    out: u8,
    /// The mirror has stopped, and takes none any more.
    has_stopped: bool,
    back: Vec<(usize, usize, MirrorLeg)>,
    taking: Option<usize>,
    taken: Vec<(usize, Result<(), MirrorError>)>,
    is_awaited: bool,
}

struct Keeper(Rc<RefCell<Passage>>);

impl LegKeeper for Keeper {
    fn keeps(&self, leg: usize) -> bool {
        self.0.borrow().by_leg.get(leg).is_some_and(Option::is_some)
    }

    fn give_up(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        let disk = passage.by_leg[leg].take().expect("it is kept");
        passage.given.push((disk, volume));
        passage.is_awaited = true;
    }

    fn let_go(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        let disk = passage.by_leg[leg].take().expect("it is kept");
        passage.over.push((disk, volume));
        passage.is_awaited = true;
    }

    fn look(&mut self, legs: LegsInUse) {
        self.0.borrow_mut().out = legs.out;
    }

    fn stop(&mut self) {
        self.0.borrow_mut().has_stopped = true;
    }

    fn awaits(&self) -> bool {
        self.0.borrow().is_awaited
    }

    fn take(&mut self) -> Option<(usize, MirrorLeg)> {
        let passage = &mut *self.0.borrow_mut();
        let (disk, leg, back) = passage.back.pop()?;
        passage.taking = Some(disk);
        Some((leg, back))
    }

    fn taken(&mut self, leg: usize, result: Result<(), MirrorError>) {
        let passage = &mut *self.0.borrow_mut();
        let disk = passage.taking.take().expect("it was taken");
        if result.is_ok() {
            passage.by_leg.resize(passage.by_leg.len().max(leg + 1), None);
            passage.by_leg[leg] = Some(disk);
        }
        passage.taken.push((disk, result));
    }
}

/// How far one is.
enum Way {
    /// The mirror has it.
    Used,
    /// It is being let go of; it is not attached again before that moment, or never.
    Ending(Option<u64>),
    /// Likewise in order, which takes no longer than until then: it does not come back.
    Leaving(u64),
    Waiting(u64),
    Attaching,
    Reading(Box<dyn Volume>, Labels),
    Brought,
    /// What becomes a leg: it is looked what is there; it waits for its label; it gets that; it has it.
    Looking(Box<dyn Volume>, Labels),
    Offered(Box<dyn Volume>, Labels, bool),
    Making(Box<dyn Volume>, Box<WholeMaking>),
    Made(Box<dyn Volume>),
    /// It does not come back.
    Out,
}

struct Comer {
    disk: usize,
    passage: Rc<RefCell<Passage>>,
    way: Way,
    /// Which leg it is, if that is known.
    leg: Option<usize>,
    /// It is to get a label.
    is_new: bool,
}

/// All legs of a volume that come back.
#[derive(Default)]
pub struct Returning {
    comers: Vec<Comer>,
    /// Disks below the mirror whose legs are changed while it is in use; and the way to it.
    changing: Vec<usize>,
    changed: Option<Rc<RefCell<Passage>>>,
}

impl Returning {
    /// Of a volume in which the legs of the mirror over these disks are changed, if there are any.
    pub fn of(changing: Vec<usize>) -> Self {
        Returning { changing, ..Returning::default() }
    }

    /// The keeper of a mirror, of whose legs some are in it; none if it has no leg that comes back, or may come.
    pub fn keeper(
        &mut self,
        found: &FoundLegs<'_>,
        disks: &HostDisks,
    ) -> Option<Box<dyn LegKeeper>> {
        let passage = Rc::<RefCell<Passage>>::default();
        let mut by_leg = vec![None; found.places.len()];
        let mut is_any = false;
        for (place, part) in found.parts.iter().enumerate() {
            let VolumeShape::Disk(disk) = part else { continue };
            if !disks.is_remote(*disk) {
                continue;
            }
            is_any = true;
            let leg = found.places.iter().position(|at| *at == Some(place));
            let used = leg.filter(|leg| found.used[*leg]);
            let way = match used {
                Some(_) => Way::Used,
                // One that came too late is attached already.
                None if disks.is_attached(*disk) => Way::Attaching,
                None => Way::Waiting(0),
            };
            if let Some(leg) = used {
                by_leg[leg] = Some(*disk);
            }
            passage.borrow_mut().is_awaited |= used.is_none();
            let passage = passage.clone();
            self.comers.push(Comer { disk: *disk, passage, way, leg, is_new: false });
        }
        passage.borrow_mut().by_leg = by_leg;
        let mut below = found.parts.iter().flat_map(VolumeShape::disks);
        if below.any(|disk| self.changing.contains(&disk)) {
            self.changed = Some(passage.clone());
            is_any = true;
        }
        is_any.then(|| Box::new(Keeper(passage)) as Box<dyn LegKeeper>)
    }

    /// It is in no mirror now.
    pub fn is_away(&self, disk: usize) -> bool {
        self.comers.iter().any(|comer| comer.disk == disk && !matches!(comer.way, Way::Used))
    }

    /// How far those are that are in no mirror.
    pub fn describe(&self) -> String {
        let away = self.comers.iter().filter_map(|comer| {
            let way = match &comer.way {
                Way::Used | Way::Out => return None,
                Way::Ending(_) | Way::Leaving(_) => "ends",
                Way::Waiting(_) => "waits",
                Way::Attaching => "is attached",
                Way::Reading(..) => "is read",
                Way::Brought => "is brought",
                Way::Looking(..) => "is looked at",
                Way::Offered(..) => "waits for a label",
                Way::Making(..) => "gets a label",
                Way::Made(_) => "has a label",
            };
            Some(format!("disk {} {way}", comer.disk))
        });
        away.collect::<Vec<_>>().join(", ")
    }

    /// None is: nothing is left to wait for.
    pub fn are_all_used(&self) -> bool {
        self.comers.iter().all(|comer| matches!(comer.way, Way::Used | Way::Out))
    }

    /// Goes on with all of them. When there is something to do without anything having happened.
    pub fn tend(&mut self, now: u64, disks: &mut HostDisks, coverage: &mut Coverage) -> u64 {
        let mut next = u64::MAX;
        for comer in &mut self.comers {
            comer.hear(now, disks, coverage);
            while comer.step(now, disks) {}
            next = next.min(match comer.way {
                Way::Ending(Some(at)) | Way::Waiting(at) => at.max(now + MS),
                Way::Ending(None) => now + MS,
                Way::Leaving(until) => until,
                _ => u64::MAX,
            });
        }
        for comer in &self.comers {
            let is_its = |other: &&Comer| Rc::ptr_eq(&other.passage, &comer.passage);
            let is_used = |other: &Comer| matches!(other.way, Way::Used | Way::Out);
            let is_awaited = !self.comers.iter().filter(is_its).all(is_used);
            let passage = &mut *comer.passage.borrow_mut();
            let is_heard = passage.given.is_empty() && passage.over.is_empty();
            passage.is_awaited = is_awaited || !is_heard;
        }
        next
    }
}

impl Comer {
    /// What the mirror has done with it.
    fn hear(&mut self, now: u64, disks: &mut HostDisks, coverage: &mut Coverage) {
        let passage = self.passage.clone();
        let passage = &mut *passage.borrow_mut();
        if let Some(at) = passage.given.iter().position(|(disk, _)| *disk == self.disk) {
            // With its port goes what was outstanding.
            passage.given.swap_remove(at);
            coverage.legs_given_up += 1;
            self.abort(disks, Some(now));
        }
        if let Some(at) = passage.taken.iter().position(|(disk, _)| *disk == self.disk) {
            match passage.taken.swap_remove(at).1 {
                Ok(()) => {
                    coverage.legs_back += 1;
                    self.way = Way::Used;
                }
                Err(_) => self.abort(disks, Some(now + RETRY_NS)),
            }
        }
        if let Some(at) = passage.over.iter().position(|(disk, _)| *disk == self.disk) {
            passage.over.swap_remove(at);
            disks.close(self.disk);
            self.way = Way::Leaving(now + LEAVE_NS);
        }
        // Removed while it was away; or nobody is to have it any more.
        let is_out = self.leg.is_some_and(|leg| passage.out >> leg & 1 == 1) && !self.is_new;
        if is_out || passage.has_stopped {
            match self.way {
                Way::Used | Way::Brought | Way::Leaving(_) | Way::Out => {}
                Way::Waiting(_) => self.way = Way::Out,
                Way::Ending(_) => self.way = Way::Ending(None),
                _ => self.abort(disks, None),
            }
        }
    }

    /// Lets go of it at once, until then or for good.
    fn abort(&mut self, disks: &mut HostDisks, then: Option<u64>) {
        self.way = Way::Ending(then);
        disks.abort(self.disk);
    }

    /// Takes the next step, if it can be taken now.
    fn step(&mut self, now: u64, disks: &mut HostDisks) -> bool {
        let is_attached = matches!(
            self.way,
            Way::Attaching
                | Way::Reading(..)
                | Way::Looking(..)
                | Way::Offered(..)
                | Way::Making(..)
                | Way::Made(_)
        );
        if is_attached && disks.has_failed(self.disk) {
            self.abort(disks, Some(now + RETRY_NS));
            return true;
        }
        match &mut self.way {
            Way::Used | Way::Brought | Way::Out | Way::Offered(..) | Way::Made(_) => false,
            Way::Leaving(until) => {
                if now >= *until {
                    self.abort(disks, None);
                } else if disks.take_off(self.disk) {
                    self.way = Way::Out;
                } else {
                    return false;
                }
                true
            }
            Way::Ending(then) => {
                if !disks.take_off(self.disk) {
                    return false;
                }
                self.way = then.map_or(Way::Out, Way::Waiting);
                true
            }
            Way::Waiting(until) if now < *until => false,
            // It was described when the process began, and not when it opened the volume.
            Way::Waiting(_) if disks.is_attached(self.disk) => {
                self.abort(disks, Some(now));
                true
            }
            Way::Waiting(_) => {
                disks.attach(now, self.disk, self.is_new);
                self.way = Way::Attaching;
                true
            }
            Way::Attaching => {
                let Some(mut volume) = disks.open(self.disk) else { return false };
                let token = if self.is_new { 0 } else { LEG_LABEL_TOKEN };
                let mut labels = Labels::new(token, disks.pool());
                labels.read(&mut *volume).expect("it can have labels");
                self.way = match self.is_new {
                    true => Way::Looking(volume, labels),
                    false => Way::Reading(volume, labels),
                };
                true
            }
            Way::Looking(..) | Way::Making(..) => self.step_new(now, disks),
            Way::Reading(volume, labels) => {
                let Some(LabelOutcome::Read(read)) = labels.turn(&mut **volume) else {
                    return false;
                };
                let way = std::mem::replace(&mut self.way, Way::Brought);
                let Way::Reading(volume, labels) = way else { unreachable!("it reads") };
                match read {
                    Ok(Finding::Label(found)) if found.label.content == volume.identity() => {
                        let label = found.label;
                        let leg = usize::from(label.role);
                        self.leg = Some(leg);
                        let back = (self.disk, leg, MirrorLeg { volume, labels, label });
                        self.passage.borrow_mut().back.push(back);
                    }
                    _ => {
                        drop(volume);
                        self.abort(disks, Some(now + RETRY_NS));
                    }
                }
                true
            }
        }
    }
}
