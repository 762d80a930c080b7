//! What a crash has left of a mirror is opened with some of its legs alone, which have all that was promised. What is written then is there once the
//! others are back; and where others were served as well, alone, all are served again only when somebody has said whose data counts.

use thinwire_link::rng::Rng;
use thinwire_modules::mirror::OpeningWish;
use thinwire_volume::{Io, LegStanding, Op, Volume, WorkPace};

use super::super::at_rest::AtRest;
use super::super::crash_disk::{Countdown, CrashDisk, DiskContent};
use super::super::growing::{MirrorAt, NotGrown};
use super::super::promises::{Act, Promised};
use super::super::shape::VolumeShape;
use super::{SECTORS_EACH, Script, not_opened, one, over, wait_for_legs};
use crate::model::Violation;
use crate::swarm::pick;

/// What is written to legs alone, by the side that they are of: no workload has it.
const STAMPS: [u8; 2] = [240, 250];

/// A disk below a mirror that fails from some moment of a workload on, until the power is back.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    disk: usize,
    /// Before this one of the acts, or behind the last.
    pub act: usize,
    /// The mirror that drops a leg for it, and which.
    mirror: MirrorAt,
    leg: usize,
}

impl Failing {
    /// One of a workload of so many acts, in some; none if no mirror makes it good.
    pub fn drawn(shape: &VolumeShape, acts: usize, rng: &mut Rng) -> Option<Self> {
        if !rng.chance(0.4) {
            return None;
        }
        let mut all = Vec::new();
        for mirror in mirrors(shape) {
            for (leg, part) in mirror.parts().iter().enumerate() {
                // Those of another mirror are that one's.
                let of_others: Vec<_> = mirrors(part).iter().flat_map(|of| of.disks()).collect();
                let own = part.disks().into_iter().filter(|disk| !of_others.contains(disk));
                all.extend(own.map(|disk| (disk, MirrorAt::of(&mirror.disks()), leg)));
            }
        }
        let act = rng.below(acts as u64 + 1) as usize;
        let (disk, mirror, leg) = (!all.is_empty()).then(|| pick(rng, &all))?;
        Some(Failing { disk, act, mirror, leg })
    }

    /// It does from now on.
    pub fn begin(&self, disks: &[CrashDisk]) {
        disks[self.disk].fail();
    }
}

/// All mirrors of a shape with more than one leg.
fn mirrors(shape: &VolumeShape) -> Vec<&VolumeShape> {
    let mut found = Vec::new();
    shape.walk(&mut |shape| {
        if shape.top().is_some_and(|top| top.is_mirror()) && shape.parts().len() > 1 {
            found.push(shape);
        }
    });
    found
}

/// Those among them over which nothing has labels: a mirror that is served alone is another content (rule 23), which whoever has it on record
/// refuses before `volume adopt`.
fn mirrors_unrecorded(shape: &VolumeShape) -> Vec<&VolumeShape> {
    match shape {
        VolumeShape::Over(over) if over.module.is_mirror() => {
            mirrors(shape).into_iter().take(1).collect()
        }
        VolumeShape::Over(over) if !over.has_labels => {
            over.parts.iter().flat_map(mirrors_unrecorded).collect()
        }
        _ => Vec::new(),
    }
}

/// Some legs of a mirror, and the others.
struct Sides {
    mirror: MirrorAt,
    /// All that there is stands on this mirror: what is written to one side is nowhere else.
    is_all: bool,
    sides: [Side; 2],
}

struct Side {
    legs: Vec<usize>,
    /// Below them.
    disks: Vec<usize>,
    /// One of them that has all that was acknowledged.
    whole: Option<usize>,
}

impl Sides {
    /// Of which the first one has all data.
    fn drawn(shape: &VolumeShape, failed: Option<&Failing>, rng: &mut Rng) -> Option<Self> {
        let all = mirrors_unrecorded(shape);
        let of = *(!all.is_empty()).then(|| &all[rng.below(all.len() as u64) as usize])?;
        let (mirror, legs) = (MirrorAt::of(&of.disks()), of.parts().len());
        let failed = failed.filter(|failing| failing.mirror == mirror).map(|failing| failing.leg);
        let first = rng.between(1, (1 << legs) - 2);
        let side = |is_first: bool| {
            let legs: Vec<_> =
                (0..legs).filter(|leg| (first >> leg & 1 == 1) == is_first).collect();
            let disks = legs.iter().flat_map(|leg| of.parts()[*leg].disks()).collect();
            let whole = legs.iter().copied().find(|leg| Some(*leg) != failed);
            Side { legs, disks, whole }
        };
        let mut sides = [side(true), side(false)];
        if sides[0].whole.is_none() {
            sides.reverse();
        }
        Some(Sides { mirror, is_all: of.disks().len() == shape.disks().len(), sides })
    }
}

impl Script {
    /// Looks at what a crash has left as somebody does who has not got all legs of a mirror; false if there is no mirror. `has_failed`: a disk had, before the crash.
    ///
    /// # Errors
    /// A promise was broken.
    pub(super) fn look_apart(
        &self,
        contents: &[DiskContent],
        (promised, has_failed): (&Promised, bool),
        crash: u64,
    ) -> Result<bool, Violation> {
        let rng = &mut Rng::new(self.seed ^ crash.wrapping_mul(0x6170_6172_7421_2121));
        let failed = self.failing.as_ref().filter(|_| has_failed);
        let Some(sides) = Sides::drawn(&self.shape, failed, rng) else { return Ok(false) };
        let told = |violation: Violation| {
            let Sides { mirror, sides: [one, other], .. } = &sides;
            let (one, other) = (&one.legs, &other.legs);
            Violation(format!("legs {one:?} of {mirror:?} without {other:?}: {}", violation.0))
        };
        self.serve_sides(contents, promised, &sides, rng).map_err(told)?;
        Ok(true)
    }

    fn serve_sides(
        &self,
        contents: &[DiskContent],
        promised: &Promised,
        sides: &Sides,
        rng: &mut Rng,
    ) -> Result<(), Violation> {
        let [_, other] = &sides.sides;
        let both = sides.is_all && other.whole.is_some() && rng.chance(0.5);
        let mut contents = contents.to_vec();
        let mut served = vec![self.serve_alone(&mut contents, promised, sides, 0, rng)?];
        if both {
            served.push(self.serve_alone(&mut contents, promised, sides, 1, rng)?);
        }
        let disks = self.disks(&contents, &Countdown::never());
        let mut at_rest = self.at_rest(&disks, rng);
        let mut truth = 0;
        if both {
            match at_rest.open(&self.shape) {
                Ok(_) => return Err(Violation("served apart, they are served as one".into())),
                Err(NotGrown::Refused(why)) if why.contains("written apart") => {}
                Err(other) => return Err(Violation(format!("served apart, {other:?}"))),
            }
            truth = rng.below(2) as usize;
            let from = Some(served[truth].1);
            at_rest.settings.wish =
                Some((sides.mirror, OpeningWish { from, ..OpeningWish::default() }));
        }
        let (expected, _) = &served[truth];
        // On disks that do all at once a resync is over before anybody reads: what is not copied yet is to be seen, too.
        at_rest.settings.is_paused = rng.chance(0.5);
        let opened = at_rest.open(&self.shape).map_err(not_opened);
        let (mut volume, _thin) = opened.map_err(|v| Violation(format!("then {}", v.0)))?;
        for state in ["back", "whole"] {
            let found = self.read_blocks(&mut at_rest, &mut *volume, None)?;
            if let Some(at) = expected.iter().zip(&found).position(|(one, other)| one != other) {
                return Err(Violation(format!(
                    "sector {} of block {} reads as {} when its legs are {state}, and read as {} (paused: {})",
                    at % SECTORS_EACH,
                    self.blocks[at / SECTORS_EACH],
                    found[at],
                    expected[at],
                    at_rest.settings.is_paused
                )));
            }
            volume.works(&mut |work| work.set_pace(WorkPace::default()));
            wait_for_legs(&mut at_rest, &mut *volume)?;
        }
        at_rest.end(volume)?;
        self.check_legs(&disks)
    }

    /// Whoever opens it draws other numbers than any other.
    fn at_rest(&self, disks: &[CrashDisk], rng: &mut Rng) -> AtRest<'static> {
        let mut at_rest = AtRest::over(over(disks), rng.bits());
        at_rest.settings = self.settings;
        at_rest
    }

    /// Opens it with that side's legs alone, which somebody has to ask for unless the others are known to be behind; reads it, writes to it and ends it, in order or
    /// not. What it reads then, which stays, and a leg that has it; these disks hold what they are left with.
    fn serve_alone(
        &self,
        contents: &mut [DiskContent],
        promised: &Promised,
        sides: &Sides,
        side: usize,
        rng: &mut Rng,
    ) -> Result<(Vec<u8>, usize), Violation> {
        let (there, away) = (&sides.sides[side], &sides.sides[1 - side]);
        let disks = self.disks(contents, &Countdown::never());
        let mut at_rest = self.at_rest(&disks, rng);
        at_rest.away = away.disks.clone();
        let opened = match at_rest.open(&self.shape) {
            Ok(_) if away.whole.is_some() => {
                return Err(Violation(format!(
                    "{:?} are served without {:?}, which may have more, and nobody has asked for that",
                    there.legs, away.legs
                )));
            }
            Ok(opened) => opened,
            Err(NotGrown::Absent(why)) if why.contains("may have newer data") => {
                let wish = OpeningWish { degraded: true, ..OpeningWish::default() };
                at_rest.settings.wish = Some((sides.mirror, wish));
                at_rest.open(&self.shape).map_err(not_opened)?
            }
            Err(other) => return Err(Violation(format!("unasked, {other:?}"))),
        };
        let (mut volume, _thin) = opened;
        let mut expected = self.read_blocks(&mut at_rest, &mut *volume, Some(promised))?;
        for (&block, sectors) in self.blocks.iter().zip(expected.chunks_mut(SECTORS_EACH)).take(2) {
            let (io, stamp) = Act::Write(block, 1, STAMPS[side], false).io(9, &at_rest);
            match one(&mut at_rest, &mut *volume, io)?.result {
                Ok(()) => sectors.fill(stamp),
                Err(error) => return Err(Violation(format!("alone: {error}"))),
            }
        }
        let flushed = one(&mut at_rest, &mut *volume, Io::new(9, Op::Flush, 0, 0))?.result;
        flushed.map_err(|error| Violation(format!("alone: {error}")))?;
        if self.read_blocks(&mut at_rest, &mut *volume, None)? != expected {
            return Err(Violation("alone it reads otherwise than it was written".into()));
        }
        let mut mirrors = Vec::new();
        volume.mirrors(&mut mirrors);
        // Of one that is all of it.
        let is_in_sync = |leg: &usize| mirrors[0].legs[*leg].standing == LegStanding::InSync;
        let in_sync = (0..mirrors[0].legs.len()).find(is_in_sync).unwrap_or(there.legs[0]);
        match rng.chance(0.5) {
            true => at_rest.end(volume)?,
            false => drop(volume),
        }
        for (at, disk) in disks.iter().enumerate().filter(|(at, _)| !away.disks.contains(at)) {
            contents[at] = if rng.chance(0.5) { disk.content() } else { disk.after(&[]) };
        }
        Ok((expected, in_sync))
    }
}
