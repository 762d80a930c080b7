//! Snapshots that are taken of all that a volume is made of, as one, while it is used: each is of one moment, on all servers or on none, whoever dies.

use thinwire_modules::Child;
use thinwire_modules::cuts::{CutAsk, CutError, CutNumber, Cutter};
use thinwire_modules::meta::LABEL_AREA_BYTES;
use thinwire_modules::thin::{ThinPool, VolumeReport};
use thinwire_volume::Volume;

use super::ComposedVolume;
use super::at_rest::AtRest;
use super::cuts::Cuts;
use super::draw::WILD_SECTORS;
use super::shape::VolumeShape;
use crate::coverage::Coverage;
use crate::model::{Ack, Model, Violation};
use crate::stamp::SECTOR_BYTES;

/// So many are there at once, or may be: most pools have room for all of them.
const CUTS_MAX: usize = 4;

/// Whether it is there, by what its user was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    There,
    MayBe,
    Gone,
}

/// A snapshot.
struct WholeCut {
    id: u64,
    /// Of each sector the oldest version that it may hold.
    floors: Vec<u64>,
    /// The newest that any may hold.
    ceiling: u64,
    /// What was acknowledged while it was taken.
    acks: Vec<Ack>,
    /// Something was lost meanwhile: what was acknowledged before may not be in it.
    is_in_doubt: bool,
    stands: Stands,
}

enum Task {
    Take(WholeCut),
    Delete(WholeCut),
}

/// All snapshots of a volume.
#[derive(Default)]
pub struct WholeCuts {
    cuts: Vec<WholeCut>,
    /// By which run. Others come and go meanwhile, some of which never have the volume: it is over with that run, and with no other, and each counts
    /// its numbers from 1 on.
    under_way: Option<(u32, CutNumber, Task)>,
    drawn: u64,
}

fn wrong<T>(why: String) -> Result<T, Violation> {
    Err(Violation(why))
}

impl WholeCuts {
    /// Nothing is under way by that run.
    pub fn are_settled(&self, run: u32) -> bool {
        self.under_way.as_ref().is_none_or(|(of, ..)| *of != run)
    }

    /// Begins what is wanted; what it has begun is told to `trace`. True if a snapshot is taken from now on.
    pub fn begin(
        &mut self,
        run: u32,
        cutter: &Cutter,
        model: &mut Model,
        wanted: &mut Cuts,
        trace: &mut dyn FnMut(&str, u64),
    ) -> bool {
        if self.under_way.is_some() {
            return false;
        }
        let lives = |cut: &&WholeCut| cut.stands != Stands::Gone;
        let has_room = self.cuts.iter().filter(lives).count() < CUTS_MAX;
        if wanted.to_take > 0 && has_room {
            wanted.to_take -= 1;
            self.drawn += 1;
            let id = self.drawn << 32 | 1;
            let (floors, acks) = (model.acknowledged(), Vec::new());
            let (stands, is_in_doubt) = (Stands::MayBe, false);
            let cut = WholeCut { id, floors, ceiling: u64::MAX, acks, is_in_doubt, stands };
            model.note_acks();
            let ask = CutAsk::Take { id, name: format!("cut{}", self.drawn), at: 0 };
            trace("cuts", id);
            self.under_way = Some((run, cutter.ask(ask), Task::Take(cut)));
            return true;
        } else if wanted.to_delete > 0 || wanted.to_take > 0 {
            wanted.to_delete = wanted.to_delete.saturating_sub(1);
            // Also of what may be there: then it is not any more.
            let lives = |cut: &WholeCut| cut.stands != Stands::Gone;
            let Some(at) = self.cuts.iter().position(lives) else { return false };
            let cut = self.cuts.remove(at);
            trace("drops cut", cut.id);
            let number = cutter.ask(CutAsk::Drop { id: cut.id });
            self.under_way = Some((run, number, Task::Delete(cut)));
        }
        false
    }

    /// What was acknowledged to that run and not flushed may be lost.
    pub fn on_loss(&mut self, run: u32) {
        if let Some((of, _, Task::Take(cut))) = &mut self.under_way {
            cut.is_in_doubt |= *of == run;
        }
    }

    /// Hears how what that run has begun has ended, and tells it to `trace`.
    ///
    /// # Errors
    /// It has not, for no reason that there is.
    pub fn tend(
        &mut self,
        run: u32,
        cutter: &Cutter,
        model: &mut Model,
        coverage: &mut Coverage,
        trace: &mut dyn FnMut(&str, u64),
    ) -> Result<(), Violation> {
        let mut ended = Vec::new();
        cutter.poll_ended(&mut ended);
        for (number, result) in ended {
            let is_it =
                |(of, begun, _): &mut (u32, CutNumber, Task)| (*of, *begun) == (run, number);
            let Some((.., task)) = self.under_way.take_if(is_it) else { continue };
            trace("has cut", u64::from(result.is_ok()));
            let cut = match (task, result) {
                (_, Err(error @ (CutError::ReadOnly | CutError::Buffered))) => {
                    return wrong(format!("a cut ended with {error}"));
                }
                (Task::Take(mut cut), result) => {
                    (cut.ceiling, cut.acks) = (model.last_version(), model.take_acks());
                    cut.stands = match result {
                        Ok(_) => {
                            coverage.whole_cuts_taken += 1;
                            Stands::There
                        }
                        Err(CutError::InDoubt(_) | CutError::Closed) => Stands::MayBe,
                        Err(error) => {
                            coverage.whole_cuts_late += u64::from(error == CutError::Late);
                            Stands::Gone
                        }
                    };
                    cut
                }
                (Task::Delete(cut), result) => {
                    let stands = match result {
                        Ok(_) => Stands::Gone,
                        // Nothing was begun.
                        Err(CutError::Unsettled(_) | CutError::Part(_)) => cut.stands,
                        Err(_) => Stands::MayBe,
                    };
                    WholeCut { stands, ..cut }
                }
            };
            self.cuts.push(cut);
        }
        Ok(())
    }

    /// The process of that run is gone: of what it had under way nobody knows.
    pub fn run_ended(&mut self, run: u32, model: &mut Model) {
        match self.under_way.take_if(|(of, ..)| *of == run) {
            Some((.., Task::Take(mut cut))) => {
                (cut.ceiling, cut.acks) = (model.last_version(), model.take_acks());
                self.cuts.push(cut);
            }
            Some((.., Task::Delete(cut))) => {
                self.cuts.push(WholeCut { stands: Stands::MayBe, ..cut });
            }
            None => {}
        }
    }
}

impl ComposedVolume {
    /// What a snapshot is of that all pools have; `Err` if only some have it.
    fn of_cut(id: u64, found: &[Vec<VolumeReport>]) -> Result<Option<Vec<u64>>, Violation> {
        let of = |report: &Vec<VolumeReport>| {
            report.iter().find(|of| of.cut.is_some() && of.incarnation == id).cloned()
        };
        let of: Vec<Option<VolumeReport>> = found.iter().map(of).collect();
        if of.iter().all(Option::is_none) {
            return Ok(None);
        }
        let kept = |of: &Option<VolumeReport>| of.as_ref().is_some_and(|of| of.cut == Some(true));
        if !of.iter().all(kept) {
            let stands: Vec<_> = of.iter().map(|of| of.as_ref().map(|of| of.cut)).collect();
            return wrong(format!("cut {id:#x} is there in half: {stands:?}"));
        }
        Ok(Some(of.into_iter().flatten().map(|of| of.volume).collect()))
    }

    /// Looks at all snapshots while nobody uses the volume; how many there are.
    ///
    /// # Errors
    /// One is not there, is there in half, or holds what it may not.
    pub fn check_whole_cuts(&self, seed: u64) -> Result<u64, Violation> {
        let VolumeShape::Over(over) = &self.shape else { return Ok(0) };
        let open = |number: usize, _: &thinwire_buffer::Pool| {
            let of = self.disks[number].pool.as_ref().expect("all of its parts are in pools");
            of.open_at_rest().unwrap_or_else(|e| panic!("{e:?}")).0
        };
        let mut at_rest = AtRest::over(open, seed);
        // Whoever opens it says how the last one has ended.
        at_rest.settle_cuts(&self.shape)?;
        let pools = self.disks.iter().map(|disk| disk.pool.as_ref().expect("as above"));
        let pools: Result<Vec<ThinPool>, _> = pools.map(|pool| pool.open_pool()).collect();
        let pools = pools.map_err(|e| Violation(format!("a pool at rest: {e:?}")))?;
        let found: Vec<_> = pools.iter().map(|pool| pool.report().volumes).collect();
        let known = |of: &&VolumeReport| {
            of.cut.is_some() && !self.whole_cuts.cuts.iter().any(|cut| cut.id == of.incarnation)
        };
        if let Some(of) = found.iter().flatten().find(known) {
            return wrong(format!("{of:?} is of a cut that nobody asked for"));
        }
        let mut count = 0;
        for cut in &self.whole_cuts.cuts {
            let id = cut.id;
            let numbers = match (Self::of_cut(id, &found)?, cut.stands) {
                (Some(numbers), Stands::There | Stands::MayBe) => numbers,
                (None, Stands::Gone | Stands::MayBe) => continue,
                (Some(_), Stands::Gone) => {
                    return wrong(format!("cut {id:#x} was told not to be there"));
                }
                (None, Stands::There) => {
                    return wrong(format!("cut {id:#x} was told to be there"));
                }
            };
            count += 1;
            let part = |(pool, number): (&ThinPool, u64)| -> Result<Child, Violation> {
                let part = pool.open_volume(number).map_err(|e| Violation(e.to_string()))?;
                let bytes = part.geometry().bytes - LABEL_AREA_BYTES;
                Child::within(Box::new(part), LABEL_AREA_BYTES, bytes).map_err(Violation)
            };
            let parts: Result<Vec<_>, _> = pools.iter().zip(numbers).map(part).collect();
            let whole = over.module.open_over(parts?, &over.options);
            let mut whole = whole.map_err(|e| Violation(e.to_string()))?;
            let image = at_rest.read_all(&mut *whole)?;
            let image = &image[..image.len() - WILD_SECTORS * SECTOR_BYTES];
            let (none, nothing) = (vec![0; cut.floors.len()], Vec::new());
            let (floors, acks) = match cut.is_in_doubt {
                true => (&none, &nothing),
                false => (&cut.floors, &cut.acks),
            };
            self.model.check_moment(image, floors, cut.ceiling, acks).map_err(|v| {
                Violation(format!("cut {id:#x}, of versions up to {}: {}", cut.ceiling, v.0))
            })?;
        }
        Ok(count)
    }
}
