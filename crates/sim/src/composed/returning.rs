//! Legs of mirrors that come back while these are in use (rule 22 of volumes), each a disk at a server: given up as a whole, attached
//! anew, its labels read under that, and brought to its mirror.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_modules::meta::{Finding, LabelOutcome, Labels};
use thinwire_modules::mirror::{LEG_LABEL_TOKEN, LegKeeper, MirrorError, MirrorLeg};
use thinwire_volume::Volume;

use super::disks::HostDisks;
use super::shape::VolumeShape;
use crate::coverage::Coverage;
use crate::world::MS;

/// After so long it is tried again, in ns.
const RETRY_NS: u64 = 200 * MS;

/// What a mirror and its host say to one another.
#[derive(Default)]
struct Passage {
    /// Which disk is this leg's, while the mirror has it; of legs that are brought back.
    by_leg: Vec<Option<usize>>,
    /// What the mirror has given up, by disk.
    given: Vec<(usize, Box<dyn Volume>)>,
    back: Vec<(usize, usize, MirrorLeg)>,
    taking: Option<usize>,
    taken: Vec<(usize, Result<(), MirrorError>)>,
    is_awaited: bool,
}

struct Keeper(Rc<RefCell<Passage>>);

impl LegKeeper for Keeper {
    fn keeps(&self, leg: usize) -> bool {
        self.0.borrow().by_leg[leg].is_some()
    }

    fn give_up(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        let disk = passage.by_leg[leg].take().expect("it is kept");
        passage.given.push((disk, volume));
        passage.is_awaited = true;
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
            passage.by_leg[leg] = Some(disk);
        }
        passage.taken.push((disk, result));
    }
}

/// How far one is.
enum Way {
    /// The mirror has it.
    Used,
    /// It is being let go of; it is not attached again before that moment.
    Ending(u64),
    Waiting(u64),
    Attaching,
    Reading(Box<dyn Volume>, Labels),
    Brought,
}

struct Comer {
    disk: usize,
    passage: Rc<RefCell<Passage>>,
    way: Way,
}

/// All legs of a volume that come back.
#[derive(Default)]
pub struct Returning {
    comers: Vec<Comer>,
}

impl Returning {
    /// The keeper of a mirror over these parts, of which some are in it; none if it has no leg that comes back.
    pub fn keeper(
        &mut self,
        parts: &[VolumeShape],
        used: &[bool],
        disks: &HostDisks,
    ) -> Option<Box<dyn LegKeeper>> {
        let passage = Rc::<RefCell<Passage>>::default();
        let mut by_leg = vec![None; parts.len()];
        for (leg, part) in parts.iter().enumerate() {
            let VolumeShape::Disk(disk) = part else { continue };
            if !disks.is_remote(*disk) {
                continue;
            }
            // One that came too late is attached already.
            let way = if used[leg] { Way::Used } else { Way::Attaching };
            by_leg[leg] = used[leg].then_some(*disk);
            self.comers.push(Comer { disk: *disk, passage: passage.clone(), way });
        }
        if !self.comers.iter().any(|comer| Rc::ptr_eq(&comer.passage, &passage)) {
            return None;
        }
        let mut of_it = passage.borrow_mut();
        of_it.is_awaited = used.iter().any(|used| !used);
        of_it.by_leg = by_leg;
        drop(of_it);
        Some(Box::new(Keeper(passage)))
    }

    /// It is in no mirror now.
    pub fn is_away(&self, disk: usize) -> bool {
        self.comers.iter().any(|comer| comer.disk == disk && !matches!(comer.way, Way::Used))
    }

    /// How far those are that are in no mirror.
    pub fn describe(&self) -> String {
        let away = self.comers.iter().filter_map(|comer| {
            let way = match &comer.way {
                Way::Used => return None,
                Way::Ending(_) => "ends",
                Way::Waiting(_) => "waits",
                Way::Attaching => "is attached",
                Way::Reading(..) => "is read",
                Way::Brought => "is brought",
            };
            Some(format!("disk {} {way}", comer.disk))
        });
        away.collect::<Vec<_>>().join(", ")
    }

    /// None is: nothing is left to wait for.
    pub fn are_all_used(&self) -> bool {
        self.comers.iter().all(|comer| matches!(comer.way, Way::Used))
    }

    /// Goes on with all of them. When there is something to do without anything having happened.
    pub fn tend(&mut self, now: u64, disks: &mut HostDisks, coverage: &mut Coverage) -> u64 {
        let mut next = u64::MAX;
        for comer in &mut self.comers {
            comer.hear(now, disks, coverage);
            while comer.step(now, disks) {}
            if let Way::Ending(at) | Way::Waiting(at) = comer.way {
                next = next.min(at.max(now + MS));
            }
        }
        for comer in &self.comers {
            let is_its = |other: &&Comer| Rc::ptr_eq(&other.passage, &comer.passage);
            let is_used = |other: &Comer| matches!(other.way, Way::Used);
            let is_awaited = !self.comers.iter().filter(is_its).all(is_used);
            let passage = &mut *comer.passage.borrow_mut();
            passage.is_awaited = is_awaited || !passage.given.is_empty();
        }
        next
    }
}

impl Comer {
    /// What the mirror has done with it.
    fn hear(&mut self, now: u64, disks: &mut HostDisks, coverage: &mut Coverage) {
        let passage = &mut *self.passage.borrow_mut();
        if let Some(at) = passage.given.iter().position(|(disk, _)| *disk == self.disk) {
            // With its port goes what was outstanding.
            passage.given.swap_remove(at);
            coverage.legs_given_up += 1;
            disks.abort(self.disk);
            self.way = Way::Ending(now);
        }
        if let Some(at) = passage.taken.iter().position(|(disk, _)| *disk == self.disk) {
            match passage.taken.swap_remove(at).1 {
                Ok(()) => {
                    coverage.legs_back += 1;
                    self.way = Way::Used;
                }
                Err(_) => {
                    disks.abort(self.disk);
                    self.way = Way::Ending(now + RETRY_NS);
                }
            }
        }
    }

    /// Takes the next step, if it can be taken now.
    fn step(&mut self, now: u64, disks: &mut HostDisks) -> bool {
        match &mut self.way {
            Way::Used | Way::Brought => false,
            Way::Ending(then) => {
                if !disks.take_off(self.disk) {
                    return false;
                }
                self.way = Way::Waiting(*then);
                true
            }
            Way::Waiting(until) if now < *until => false,
            Way::Waiting(_) => {
                disks.attach(now, self.disk);
                self.way = Way::Attaching;
                true
            }
            Way::Attaching => {
                if disks.has_failed(self.disk) {
                    disks.abort(self.disk);
                    self.way = Way::Ending(now + RETRY_NS);
                    return true;
                }
                let Some(mut volume) = disks.open(self.disk) else { return false };
                let mut labels = Labels::new(LEG_LABEL_TOKEN, disks.pool());
                labels.read(&mut *volume).expect("it has had labels");
                self.way = Way::Reading(volume, labels);
                true
            }
            Way::Reading(volume, labels) => {
                if disks.has_failed(self.disk) {
                    disks.abort(self.disk);
                    self.way = Way::Ending(now + RETRY_NS);
                    return true;
                }
                let Some(LabelOutcome::Read(read)) = labels.turn(&mut **volume) else {
                    return false;
                };
                let way = std::mem::replace(&mut self.way, Way::Brought);
                let Way::Reading(volume, labels) = way else { unreachable!("it reads") };
                match read {
                    Ok(Finding::Label(found)) if found.label.content == volume.identity() => {
                        let label = found.label;
                        let leg = usize::from(label.role);
                        let back = (self.disk, leg, MirrorLeg { volume, labels, label });
                        self.passage.borrow_mut().back.push(back);
                    }
                    _ => {
                        drop(volume);
                        disks.abort(self.disk);
                        self.way = Way::Ending(now + RETRY_NS);
                    }
                }
                true
            }
        }
    }
}
