//! Legs of a mirror that are added, removed and replaced while it is in use, and grow with it, as whoever describes the mirror knows of
//! them: what was told is so, and what was not is asked for again, be it of the next run of a host.

use thinwire_link::rng::Rng;
use thinwire_volume::{LegStanding, MirrorReport};

use super::shape::{VolumeOver, VolumeShape};
use crate::stamp::SECTOR_BYTES;
use crate::world::World;

/// A mirror is given no more legs than these.
const LEGS_MAX: usize = 4;
/// Its legs grow by so many blocks of 4 KiB at a time, at most; and in all.
const GROWTH_BLOCKS: u64 = 40;
const GROWTHS_MAX: u64 = 4;

/// What is wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegWish {
    /// This disk is a leg more.
    Add(usize),
    /// This one is none any more.
    Remove(usize),
    /// The second one comes in the place of the first.
    Replace(usize, usize),
    /// All legs become so large, in bytes of their disks, and the mirror with them.
    Grow(u64),
    /// This leg, of which it is not known which disk was to be it, is none.
    Clear(usize),
}

/// The mirror of a volume whose legs are changed.
pub struct LegChanges {
    /// Which one that is, of all of the volume from the top down.
    pub mirror: usize,
    /// All disks that stand below it, or may.
    pub ground: Vec<usize>,
    /// Legs that stay, as bits.
    fixed: u8,
    /// The others: the disk, and which leg it is.
    legs: Vec<(usize, usize)>,
    /// Legs of which was told that they have gone, as bits.
    gone: u8,
    /// So often the mirror was asked for one more, and nobody knows yet which that is, or whether it came; and those of them that it may be.
    in_doubt: u32,
    doubted: u8,
    /// Disks that are none.
    spares: Vec<usize>,
    wish: Option<LegWish>,
    number: u64,
    /// So large its legs are to be by now, and may become; none if it does not grow.
    sizes: Option<(u64, u64)>,
    /// Nothing more is wished for, but that what was begun ends.
    pub is_over: bool,
}

impl LegChanges {
    /// Of the first mirror with legs that `may_go`, by their disks; none if there is no such mirror.
    pub fn of(shape: &VolumeShape, may_go: impl Fn(usize) -> bool) -> Option<Self> {
        let (mut at, mut found) = (0, None);
        shape.walk(&mut |shape| {
            if !shape.top().is_some_and(|top| top.is_mirror()) {
                return;
            }
            let (mut fixed, mut legs) = (0, Vec::new());
            for (leg, part) in shape.parts().iter().enumerate() {
                match part {
                    VolumeShape::Disk(disk) if may_go(*disk) => legs.push((*disk, leg)),
                    _ => fixed |= 1 << leg,
                }
            }
            if found.is_none() && !legs.is_empty() {
                found = Some((at, shape.disks(), fixed, legs));
            }
            at += 1;
        });
        let (mirror, ground, fixed, legs) = found?;
        let (gone, in_doubt, doubted, is_over) = (0, 0, 0, false);
        let (spares, wish, number, sizes) = (Vec::new(), None, 0, None);
        #[rustfmt::skip]
        let changes = LegChanges { mirror, ground, fixed, legs, gone, in_doubt, doubted, spares, wish, number, sizes, is_over };
        Some(changes)
    }

    /// It grows, too, if all of its legs can, which have so many bytes. How large they may become.
    pub fn let_grow(&mut self, bytes: u64) -> u64 {
        if self.fixed != 0 {
            return bytes;
        }
        let most = bytes + GROWTHS_MAX * GROWTH_BLOCKS * 4096;
        self.sizes = Some((bytes, most));
        most
    }

    /// It grows.
    pub fn may_grow(&self) -> bool {
        self.sizes.is_some()
    }

    /// Disks that are legs, and may be none.
    pub fn disks(&self) -> impl Iterator<Item = (usize, usize)> {
        self.legs.iter().copied()
    }

    /// One more disk may be a leg.
    pub fn add_spare(&mut self, disk: usize) {
        self.ground.push(disk);
        self.spares.push(disk);
    }

    /// What is wished for, and its number.
    pub fn wish(&self) -> Option<(u64, LegWish)> {
        self.wish.map(|wish| (self.number, wish))
    }

    /// It has come true, or is given up.
    pub fn end_wish(&mut self) {
        self.wish = None;
    }

    fn wish_for(&mut self, wish: LegWish) {
        self.wish = Some(wish);
        self.number += 1;
    }

    /// Somebody wishes for something, if all that was wished for is over.
    pub fn draw(&mut self, rng: &mut Rng) -> Option<LegWish> {
        if self.is_over || self.wish.is_some() {
            return None;
        }
        let count = self.fixed.count_ones() as usize + self.legs.len();
        let of = |disks: &[usize], rng: &mut Rng| {
            (!disks.is_empty()).then(|| disks[rng.below(disks.len() as u64) as usize])
        };
        let legs: Vec<_> = self.legs.iter().map(|(disk, _)| *disk).collect();
        let (spare, leg) = (of(&self.spares, rng), of(&legs, rng));
        let wish = match (rng.below(4), spare, leg) {
            (0, Some(spare), _) if count < LEGS_MAX => LegWish::Add(spare),
            (1, Some(spare), Some(leg)) => LegWish::Replace(leg, spare),
            // Of two legs none goes: that is refused.
            (2, _, Some(leg)) if count > 2 || rng.chance(0.1) => LegWish::Remove(leg),
            (3, ..) => {
                let (bytes, most) = self.sizes.as_mut()?;
                let more = *bytes + rng.between(1, GROWTH_BLOCKS) * 4096;
                if more > *most {
                    return None;
                }
                *bytes = more;
                LegWish::Grow(more)
            }
            _ => return None,
        };
        self.wish_for(wish);
        self.wish
    }

    /// Which leg a disk is.
    pub fn leg_of(&self, disk: usize) -> Option<usize> {
        self.legs.iter().find(|(of, _)| *of == disk).map(|(_, leg)| *leg)
    }

    /// A disk is that leg, and described as such.
    pub fn describe(&mut self, shape: &mut VolumeShape, disk: usize, leg: usize) {
        self.legs.push((disk, leg));
        self.spares.retain(|spare| *spare != disk);
        let over = shape.mirror_over(&self.ground).expect("it is there");
        over.parts.push(VolumeShape::Disk(disk));
    }

    /// A disk is no leg any more.
    pub fn forget(&mut self, shape: &mut VolumeShape, disk: usize) {
        let leg = self.leg_of(disk).expect("it is one");
        self.gone |= 1 << leg;
        self.doubted &= !(1 << leg);
        self.legs.retain(|(of, _)| *of != disk);
        self.spares.push(disk);
        let over = shape.mirror_over(&self.ground).expect("it is there");
        over.parts.retain(|part| !matches!(part, VolumeShape::Disk(of) if *of == disk));
    }

    /// This leg, of which no disk was known, is no leg any more.
    pub fn has_gone(&mut self, leg: usize) {
        (self.in_doubt, self.doubted) = (0, 0);
        self.gone |= 1 << leg;
    }

    /// The mirror is asked for one more.
    pub fn may_come(&mut self) {
        self.in_doubt += 1;
        self.doubted |= self.gone;
    }

    /// It has answered: that leg, which is the one that came if an answer was lost before, or none.
    pub fn has_come(&mut self, leg: Option<usize>) {
        self.in_doubt = leg.map_or(self.in_doubt.saturating_sub(1), |_| 0);
        self.gone &= leg.map_or(u8::MAX, |leg| !(1 << leg));
        if self.in_doubt == 0 {
            self.doubted = 0;
        }
    }

    /// A leg that is on record, and of which nobody knows a disk.
    pub fn leftover(&self, report: &MirrorReport) -> Option<usize> {
        let is_known =
            |leg: usize| self.fixed >> leg & 1 == 1 || self.legs.iter().any(|(_, of)| *of == leg);
        let is_one = |leg: &usize| report.legs[*leg].standing != LegStanding::Removed;
        (0..report.legs.len()).filter(is_one).find(|leg| !is_known(*leg))
    }

    /// What was begun, and is not wished for any more, is to end.
    pub fn clean_up(&mut self, report: &MirrorReport) {
        let Some(leg) = self.leftover(report).filter(|_| self.wish.is_none()) else { return };
        match (self.fixed.count_ones() as usize + self.legs.len(), self.spares.first()) {
            (..2, Some(&spare)) => self.wish_for(LegWish::Add(spare)),
            _ => self.wish_for(LegWish::Clear(leg)),
        }
    }

    /// All that was told is so.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, report: &MirrorReport) -> Result<(), String> {
        let goes = match self.wish {
            Some(LegWish::Remove(disk) | LegWish::Replace(disk, _)) => self.leg_of(disk),
            Some(LegWish::Clear(_) | LegWish::Add(_) | LegWish::Grow(_)) | None => None,
        };
        let fixed = (0..8).filter(|leg| self.fixed >> leg & 1 == 1);
        for leg in fixed.chain(self.legs.iter().map(|(_, leg)| *leg)) {
            match report.legs.get(leg).map(|at| at.standing) {
                None => return Err(format!("leg {leg} was added, and is on record no more")),
                Some(LegStanding::Removed) if goes != Some(leg) => {
                    return Err(format!("leg {leg} was removed, and nobody wanted that"));
                }
                Some(_) => {}
            }
        }
        let is_back = |leg: &usize| report.legs[*leg].standing != LegStanding::Removed;
        let mut gone =
            (0..report.legs.len()).filter(|leg| (self.gone & !self.doubted) >> leg & 1 == 1);
        match gone.find(is_back) {
            Some(leg) => Err(format!("leg {leg} had gone, and is on record again")),
            None => Ok(()),
        }
    }
}

impl World {
    /// Disks that are legs, or may be, become as large as they are to be: once more where a power failure has taken that back. What is
    /// there is somebody's rest.
    pub(super) fn grow_legs(&mut self) {
        let Some(composed) = &self.composed else { return };
        let Some(changes) = &composed.volume.changes else { return };
        let Some((bytes, _)) = changes.sizes else { return };
        let spares = changes.spares.iter().copied();
        for disk in changes.disks().map(|(disk, _)| disk).chain(spares) {
            let at = &composed.volume.disks[disk];
            let (was, _) = at.medium.sizes();
            let Some(export) = at.export.as_ref().filter(|_| was < bytes) else { continue };
            self.exports[export.number].grow(bytes);
            let rest = vec![0xb0 | disk as u8; (bytes - was) as usize];
            at.medium.write_durably(was as usize / SECTOR_BYTES, rest);
        }
    }
}

impl VolumeShape {
    /// The mirror below which some of these disks stand.
    fn mirror_over(&mut self, ground: &[usize]) -> Option<&mut VolumeOver> {
        let is_over = self.disks().iter().any(|disk| ground.contains(disk));
        let VolumeShape::Over(over) = self else { return None };
        match over.module.is_mirror() {
            true => is_over.then_some(over),
            false => over.parts.iter_mut().find_map(|part| part.mirror_over(ground)),
        }
    }
}
