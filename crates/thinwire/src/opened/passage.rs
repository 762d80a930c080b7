//! Between a mirror and what brings back its legs: [`LegReturn`] is the mirror's end, [`Passage`] what both see.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_modules::meta::Label;
use thinwire_modules::mirror::{FoundMirror, LegKeeper, LegsInUse, MirrorError, MirrorLeg};
use thinwire_volume::{LegAbsence, Volume};

use super::climbing::Chain;
use crate::uri::VolumeSpec;

/// A leg that is to be brought for the first time.
pub(super) struct NewComer {
    pub leg: usize,
    pub spec: VolumeSpec,
    /// Who has just labelled it lets go of it by then.
    pub until: Instant,
}

/// Who brings legs are numbered, as they stand in [`Returning`](super::returning::Returning); places are those of the mirror's description.
#[derive(Default)]
pub(super) struct Passage {
    /// Where it is in its tree, and what users call it by itself.
    pub mirror: String,
    pub name: String,
    /// Where it stands in the outline, and whether something above it buffers writes.
    pub node: usize,
    pub is_buffered: bool,
    /// Legs that are to be brought, which are on record and were not there before; and what has become of those.
    pub wanted: Vec<NewComer>,
    pub begun: Vec<(usize, Result<(), String>)>,
    /// Who brings what stands in a place, none for what is not brought back; and its leaves.
    pub by_place: Vec<Option<usize>>,
    pub leaves: Vec<Range<usize>>,
    /// Which leg is described there, as far as that is known for sure.
    pub legs: Vec<Option<usize>>,
    /// How many places there were when it was opened, and those behind these that are another's leg by now.
    described: usize,
    former: Vec<usize>,
    /// What names it, and its parts, in labels.
    whole: [u8; 16],
    parts: Vec<[u8; 16]>,
    /// By leg: who brings it, as long as the mirror has it; and those who do not bring theirs back.
    by_leg: Vec<Option<usize>>,
    staying: Vec<usize>,
    /// Those of whom the mirror has had something while it was used, and those of whom it never will.
    had: Vec<usize>,
    vain: Vec<usize>,
    /// What was attached and was no leg, as far as was seen then.
    pub unused: Vec<usize>,
    /// How its legs stand, once it is open and takes some back; those that have been in sync since that was asked last.
    pub stand: Option<LegsInUse>,
    was_in_sync: u8,
    /// What it has given up.
    pub given: Vec<(usize, Box<dyn Volume>)>,
    /// What it has removed, and does not have back.
    pub over: Vec<(usize, Box<dyn Volume>)>,
    /// Legs that are there with other content than they had.
    pub failed: Vec<usize>,
    /// What is brought, and as which leg; the one that is being taken.
    pub back: Vec<(usize, usize, MirrorLeg)>,
    taking: Option<usize>,
    /// How those were taken.
    pub taken: Vec<(usize, Result<(), MirrorError>)>,
    /// Any may still come.
    pub is_awaited: bool,
    /// The mirror has stopped, and takes none any more.
    pub has_stopped: bool,
    /// By who brings it: when it is tried again, and why it is not back.
    pub absences: Vec<(usize, Option<Instant>, String)>,
}

impl Passage {
    /// Of a mirror with so many places, whose leaves are these.
    pub fn new(
        (mirror, name): (String, String),
        by_place: Vec<Option<usize>>,
        leaves: Vec<Range<usize>>,
    ) -> Self {
        let (legs, described) = (vec![None; by_place.len()], by_place.len());
        Passage { mirror, name, by_place, leaves, legs, described, ..Passage::default() }
    }

    /// The mirror has been opened, of what was found: for each leg, in which place it is if it is used; and which legs are described, in which places.
    pub fn open(
        &mut self,
        whole: &FoundMirror,
        used: &[Option<usize>],
        described: &[(usize, usize)],
    ) {
        (self.whole, self.parts) = (whole.uuid, whole.parts.iter().map(|part| part.uuid).collect());
        self.by_leg =
            used.iter().map(|place| place.and_then(|place| self.by_place[place])).collect();
        let by_place = self.by_place.iter().flatten();
        let unused = by_place.filter(|number| !self.by_leg.contains(&Some(**number)));
        self.unused = unused.copied().collect();
        let was_found = |leg: usize| whole.places.get(leg).is_some_and(Option::is_some);
        // Of several that were found nowhere nobody knows which is which.
        let is_only = described.iter().filter(|(leg, _)| !was_found(*leg)).count() == 1;
        for &(leg, place) in described {
            if was_found(leg) || is_only {
                self.legs[place] = Some(leg);
            }
        }
    }

    /// That one brings this leg from now on, over that leaf, and whoever did before does not.
    pub fn add(&mut self, number: usize, leg: usize, leaf: usize) {
        for place in 0..self.legs.len() {
            if self.legs[place] == Some(leg) {
                self.legs[place] = None;
                self.former.push(place);
            }
        }
        self.by_place.push(Some(number));
        self.legs.push(Some(leg));
        self.leaves.push(leaf..leaf + 1);
        self.is_awaited = true;
    }

    /// What that one has brought does not come back when it is dropped: it stays with the mirror until it is removed.
    pub fn stays(&mut self, number: usize) {
        self.staying.push(number);
    }

    /// That one brings nothing any more. If the mirror has never had what it was about to bring, that was none of its leaves.
    pub fn ends(&mut self, number: usize) {
        if !self.had.contains(&number) && !self.vain.contains(&number) {
            self.vain.push(number);
        }
    }

    /// Which leg that one brings, as far as that is known for sure.
    pub fn leg_of(&self, number: usize) -> Option<usize> {
        let place = self.by_place.iter().position(|by| *by == Some(number))?;
        self.legs[place]
    }

    /// It has turned out to be that leg.
    pub fn is_leg(&mut self, number: usize, leg: usize) {
        if let Some(place) = self.by_place.iter().position(|by| *by == Some(number)) {
            self.legs[place] = Some(leg);
        }
    }

    /// The mirror has taken what that one has brought, as that leg.
    pub fn took(&mut self, number: usize, leg: usize) {
        let legs = self.by_leg.len().max(leg + 1);
        self.by_leg.resize(legs, None);
        self.by_leg[leg] = Some(number);
        self.had.push(number);
        self.is_leg(number, leg);
        self.was_in_sync &= !(1 << leg);
    }

    /// What that one brings is no leg any more, or has other content: it does not come back.
    pub fn is_out(&self, number: usize) -> bool {
        let stand = self.stand.unwrap_or_default();
        self.leg_of(number).is_some_and(|leg| stand.out >> leg & 1 == 1)
    }

    /// What that one brought has been in sync since this was asked last.
    pub fn take_in_sync(&mut self, number: usize) -> bool {
        let Some(leg) = self.leg_of(number) else { return false };
        let bit = 1 << leg;
        let was = self.was_in_sync & bit != 0;
        self.was_in_sync &= !bit;
        was
    }

    /// The mirror goes without this leaf.
    pub fn goes_without(&self, leaf: usize) -> bool {
        let Some(stand) = self.stand else { return false };
        let place = self.leaves.iter().position(|leaves| leaves.contains(&leaf));
        let leg = place.and_then(|place| self.legs[place]);
        leg.is_some_and(|leg| stand.used >> leg & 1 == 0)
    }

    /// This leaf was added while the mirror was used, and removed again, or has come to nothing: whoever opens the mirror next has no such leaf, unless somebody
    /// describes it all the same.
    pub fn has_removed(&self, leaf: usize) -> bool {
        let place = self.leaves.iter().position(|leaves| leaves.contains(&leaf));
        let Some(place) = place.filter(|place| *place >= self.described) else { return false };
        let removed = self.stand.unwrap_or_default().removed;
        let is_in_vain = || self.by_place[place].is_some_and(|by| self.vain.contains(&by));
        self.former.contains(&place)
            || is_in_vain()
            || self.legs[place].is_some_and(|leg| removed >> leg & 1 == 1)
    }

    /// Of which leg this label of something that is back is.
    ///
    /// # Errors
    /// It is of none of this mirror: what is there.
    pub fn leg_by(&self, number: usize, label: &Label) -> Result<usize, String> {
        let (leg, own) = (usize::from(label.role), label.part().uuid);
        let name = &label.name;
        if label.whole != self.whole {
            return Err(format!("is part {leg} of another volume, {name:?}"));
        }
        // One that was added meanwhile the mirror knows.
        if self.parts.get(leg).is_some_and(|part| *part != own) {
            return Err(format!("is another part than leg {leg} of {name:?} was"));
        }
        match self.leg_of(number) {
            Some(expected) if expected != leg => {
                Err(format!("is leg {leg} of {name:?}, not {expected}"))
            }
            _ => Ok(leg),
        }
    }

    /// Why what that one brings is not back, and when it is tried again.
    pub fn set_absence(&mut self, number: usize, until: Option<Instant>, why: &str) {
        match self.absences.iter_mut().find(|(of, ..)| *of == number) {
            Some((_, at, said)) if *at == until && *said == why => {}
            Some((_, at, said)) => (*at, *said) = (until, why.to_owned()),
            None => self.absences.push((number, until, why.to_owned())),
        }
    }
}

/// By which a leg is brought to a mirror that is in use. A handle.
#[derive(Clone)]
pub struct LegDoor(Rc<RefCell<Passage>>);

impl LegDoor {
    /// This leg is on record, its part has its label, and is there from now on. Between turns of whatever drives the mirror it is attached, or opened.
    ///
    /// # Errors
    /// It is of a kind that is not brought to a mirror in use: a sentence.
    pub fn bring(&self, leg: usize, spec: VolumeSpec) -> Result<(), String> {
        if Chain::leaf_of(&spec).is_none() {
            return Err(NOT_BROUGHT.into());
        }
        let until = Instant::now() + LET_GO_PATIENCE;
        self.0.borrow_mut().wanted.push(NewComer { leg, spec, until });
        Ok(())
    }

    /// What has become of that, once it is being attached, or was refused.
    pub fn take_begun(&self, leg: usize) -> Option<Result<(), String>> {
        let begun = &mut self.0.borrow_mut().begun;
        let at = begun.iter().position(|(of, _)| *of == leg)?;
        Some(begun.swap_remove(at).1)
    }
}

/// What can be brought to a mirror in use, and what not.
pub const NOT_BROUGHT: &str = "to a mirror in use a file, a device or an export (tw://) is brought, or one of these below modules of one part each: add anything else \
    while nobody uses the mirror";
/// Who has labelled a part has so long to let go of it.
const LET_GO_PATIENCE: Duration = Duration::from_secs(5);

/// The mirror's end of that.
pub struct LegReturn(pub(super) Rc<RefCell<Passage>>);

impl LegReturn {
    /// By which legs are brought that are new.
    pub fn door(&self) -> LegDoor {
        LegDoor(self.0.clone())
    }

    /// The mirror is open: see [`Passage::open`].
    pub fn open(
        self,
        whole: &FoundMirror,
        used: &[Option<usize>],
        described: &[(usize, usize)],
    ) -> Box<dyn LegKeeper> {
        self.0.borrow_mut().open(whole, used, described);
        Box::new(self)
    }
}

impl LegKeeper for LegReturn {
    fn keeps(&self, leg: usize) -> bool {
        let passage = self.0.borrow();
        let Some(&Some(number)) = passage.by_leg.get(leg) else { return false };
        let is_removed = passage.stand.unwrap_or_default().removed >> leg & 1 == 1;
        is_removed || !passage.staying.contains(&number)
    }

    fn give_up(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        if let Some(number) = passage.by_leg[leg].take() {
            passage.given.push((number, volume));
            passage.is_awaited = true;
        }
    }

    fn let_go(&mut self, leg: usize, volume: Box<dyn Volume>) {
        let passage = &mut *self.0.borrow_mut();
        if let Some(number) = passage.by_leg[leg].take() {
            passage.over.push((number, volume));
        }
    }

    fn awaits(&self) -> bool {
        self.0.borrow().is_awaited
    }

    fn take(&mut self) -> Option<(usize, MirrorLeg)> {
        let passage = &mut *self.0.borrow_mut();
        let (number, leg, back) = passage.back.pop()?;
        passage.taking = Some(number);
        Some((leg, back))
    }

    fn taken(&mut self, leg: usize, result: Result<(), MirrorError>) {
        let passage = &mut *self.0.borrow_mut();
        let Some(number) = passage.taking.take() else { return };
        if result.is_ok() {
            passage.took(number, leg);
        }
        passage.taken.push((number, result));
    }

    fn look(&mut self, legs: LegsInUse) {
        let passage = &mut *self.0.borrow_mut();
        passage.stand = Some(legs);
        passage.was_in_sync |= legs.in_sync;
    }

    fn stop(&mut self) {
        let passage = &mut *self.0.borrow_mut();
        passage.has_stopped = true;
        passage.is_awaited = false;
        // With its port goes what was outstanding.
        passage.back.clear();
    }

    fn take_failed(&mut self) -> Option<usize> {
        self.0.borrow_mut().failed.pop()
    }

    fn absence(&self, leg: usize) -> LegAbsence {
        let passage = self.0.borrow();
        let of =
            |(number, ..): &&(usize, Option<Instant>, String)| passage.leg_of(*number) == Some(leg);
        passage.absences.iter().find(of).map_or_else(LegAbsence::default, |(_, until, why)| {
            let now = Instant::now();
            let retry_in = until.map(|until| until.saturating_duration_since(now));
            LegAbsence { retry_in, why: why.clone() }
        })
    }
}

#[cfg(test)]
mod tests;
