//! Snapshots and clones that are taken of a volume while it is used, and what each of them has to hold: all that was acknowledged before it was
//! asked for, and nothing that was submitted after it had been told.

use thinwire_buffer::{Pool, SegList};
use thinwire_modules::thin::{
    OpNumber, PoolDone, PoolError, PoolOp, ThinPool, ThinVolume, VolumeReport,
};
use thinwire_volume::{Completion, Io, Op, Volume};

use super::draw::WILD_SECTORS;
use super::shape::THIN_NAME;
use crate::coverage::Coverage;
use crate::model::{Model, Violation};
use crate::stamp::SECTOR_BYTES;

/// So many bytes of each are looked at as soon as it is there.
const LOOK_BYTES: u64 = 64 << 10;
/// So many bytes at the start of a clone are written once it was looked at, and what with: nobody else writes that.
const CLONE_BYTES: usize = 4096;
const CLONE_BYTE: u8 = 0xc1;
/// One of so many is a clone.
const CLONES_EACH: u64 = 3;
/// What is done with one that is looked at.
const READ: u64 = 1;
const WRITE: u64 = 2;
const FLUSH: u64 = 3;

/// A snapshot.
struct Cut {
    name: String,
    /// Of each sector the oldest version that it may hold.
    floors: Vec<u64>,
    /// The newest that any may hold.
    ceiling: u64,
    /// It is there; otherwise it may be.
    is_sure: bool,
    /// Its number, once that is known.
    number: Option<u64>,
    /// What it began with when it was looked at first: it stays so.
    began: Vec<u8>,
    /// It can be written.
    is_clone: bool,
    /// Its first bytes may have been written, and were, durably.
    may_be_written: bool,
    is_written: bool,
}

impl Cut {
    fn new(name: String, floors: Vec<u64>, is_clone: bool) -> Self {
        Cut {
            name,
            floors,
            ceiling: 0,
            is_sure: false,
            number: None,
            began: Vec::new(),
            is_clone,
            may_be_written: false,
            is_written: false,
        }
    }

    /// Goes on with what is done with it, behind what has ended like that. False if that was all.
    fn go_on(&mut self, volume: &mut ThinVolume, ended: Completion) -> bool {
        match (ended.token, ended.result) {
            (READ, Ok(())) => {
                self.began = ended.data.to_vec();
                if self.is_clone {
                    let mut write = Io::new(WRITE, Op::Write, 0, CLONE_BYTES as u64);
                    let bytes = Pool::new(0).copy_of(&[CLONE_BYTE; CLONE_BYTES]);
                    write.data = SegList::of(bytes.freeze());
                    self.may_be_written = true;
                    volume.submit(write);
                }
                self.is_clone
            }
            (WRITE, Ok(())) => {
                volume.submit(Io::new(FLUSH, Op::Flush, 0, 0));
                true
            }
            (FLUSH, Ok(())) => {
                self.is_written = true;
                false
            }
            _ => false,
        }
    }

    /// What it would hold if nobody had written it; none if what was written is not there, or half of it.
    fn unwritten(&self, image: &[u8]) -> Option<Vec<u8>> {
        if !self.may_be_written {
            return Some(image.to_vec());
        }
        let (own, rest) = image.split_at(CLONE_BYTES);
        for (is, was) in own.chunks(SECTOR_BYTES).zip(self.began.chunks(SECTOR_BYTES)) {
            let is_own = is.iter().all(|byte| *byte == CLONE_BYTE);
            if !is_own && (self.is_written || is != was) {
                return None;
            }
        }
        Some([&self.began[..CLONE_BYTES], rest].concat())
    }
}

/// What is under way.
enum Task {
    Take(Cut),
    Delete(Cut),
}

/// All snapshots of a volume.
#[derive(Default)]
pub struct Cuts {
    /// So many more are to be taken, and deleted.
    pub to_take: u32,
    /// Likewise.
    pub to_delete: u32,
    cuts: Vec<Cut>,
    /// The names of those that were told to be deleted, or refused: none is there ever again.
    gone: Vec<String>,
    /// By which run. Others come and go meanwhile, some of which never have the volume.
    under_way: Option<(u32, OpNumber, Task)>,
    /// One that is looked at, by its number, and by which run.
    looks: Option<(u32, u64, ThinVolume)>,
    /// The run that has found the numbers.
    found_by: u32,
    drawn: u64,
    /// Disks below the pool may fail what no module makes good.
    pub may_fail: bool,
}

impl Cuts {
    /// Nothing is under way by that run, and nothing else is wanted.
    pub fn are_settled(&self, run: u32) -> bool {
        self.under_way.as_ref().is_none_or(|(of, ..)| *of != run)
            && self.looks.as_ref().is_none_or(|(of, ..)| *of != run)
    }

    /// Begins what is wanted, if it can be begun. Who is not the last that has opened the pool does not, and nobody beside another.
    pub fn begin(&mut self, run: u32, thin: &ThinPool, model: &Model) {
        if self.found_by != run || self.under_way.is_some() || self.looks.is_some() {
            return;
        }
        if self.to_take > 0 {
            self.to_take -= 1;
            self.drawn += 1;
            let report = thin.report();
            let home = report.volumes.iter().find(|volume| volume.name == THIN_NAME);
            let Some(home) = home else { return };
            let (name, incarnation) = (format!("cut{}", self.drawn), self.drawn << 32 | 1);
            let (volume, is_clone) = (home.volume, self.drawn.is_multiple_of(CLONES_EACH));
            let cut = Cut::new(name.clone(), model.acknowledged(), is_clone);
            let op = match is_clone {
                true => PoolOp::Clone { volume, name, incarnation, at: 0 },
                false => PoolOp::Snapshot { volume, name, incarnation, at: 0 },
            };
            self.under_way = Some((run, thin.begin(op), Task::Take(cut)));
        } else if self.to_delete > 0 {
            self.to_delete -= 1;
            let Some(at) = self.cuts.iter().position(|cut| cut.number.is_some()) else { return };
            let mut cut = self.cuts.remove(at);
            cut.is_sure = false;
            let volume = cut.number.expect("just looked at");
            self.under_way = Some((run, thin.begin(PoolOp::Delete { volume }), Task::Delete(cut)));
        }
    }

    /// Hears how what that run has begun has ended.
    ///
    /// # Errors
    /// It has not, for no reason that there is.
    pub fn tend(
        &mut self,
        run: u32,
        thin: &ThinPool,
        model: &Model,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        if let Some((of, number, volume)) = &mut self.looks
            && *of == run
        {
            let (mut done, number) = (Vec::new(), *number);
            volume.poll(&mut done);
            if let Some(ended) = done.pop() {
                let cut = self.cuts.iter_mut().find(|cut| cut.number == Some(number));
                if !cut.is_some_and(|cut| cut.go_on(volume, ended)) {
                    self.looks = None;
                }
            }
        }
        let mut ended = Vec::new();
        thin.poll_ops(&mut ended);
        for (number, result) in ended {
            let is_it = |(of, begun, _): &mut (u32, OpNumber, Task)| (*of, *begun) == (run, number);
            let Some((.., task)) = self.under_way.take_if(is_it) else { continue };
            match (task, result) {
                (Task::Take(mut cut), Ok(PoolDone::Created { volume })) => {
                    coverage.cuts_taken += 1;
                    cut.ceiling = model.last_version();
                    (cut.is_sure, cut.number) = (true, Some(volume));
                    if self.found_by != run {
                        // Another has opened the pool meanwhile: whoever opens it next finds it.
                        cut.number = None;
                        self.cuts.push(cut);
                        continue;
                    }
                    self.cuts.push(cut);
                    let mut opened = match thin.open_volume(volume) {
                        Ok(opened) => opened,
                        Err(_) if self.may_fail => continue,
                        Err(e) => return Err(Violation(e.to_string())),
                    };
                    let bytes = opened.geometry().bytes.min(LOOK_BYTES);
                    opened.submit(Io::new(READ, Op::Read, 0, bytes));
                    self.looks = Some((run, volume, opened));
                }
                (Task::Delete(cut), Ok(_)) => {
                    coverage.cuts_deleted += 1;
                    self.gone.push(cut.name);
                }
                // Disks that are away for long hold up everybody.
                (
                    Task::Take(cut),
                    Err(PoolError::NoRoom | PoolError::NoBlocks | PoolError::Undrained),
                ) => self.gone.push(cut.name),
                (Task::Delete(mut cut), Err(PoolError::NoRoom)) => {
                    cut.is_sure = true;
                    self.cuts.push(cut);
                }
                // Whether it was done whoever opens the pool next finds out.
                (Task::Take(mut cut) | Task::Delete(mut cut), Err(_)) if self.may_fail => {
                    cut.ceiling = if cut.ceiling == 0 { model.last_version() } else { cut.ceiling };
                    cut.number = None;
                    self.cuts.push(cut);
                }
                (_, result) => {
                    return Err(Violation(format!("a change of the pool ended with {result:?}")));
                }
            }
        }
        Ok(())
    }

    /// The process of that run is gone: of what it had under way nobody knows.
    pub fn run_ended(&mut self, run: u32, model: &Model) {
        let under_way = self.under_way.take_if(|(of, ..)| *of == run);
        if let Some((.., Task::Take(mut cut) | Task::Delete(mut cut))) = under_way {
            cut.ceiling = if cut.ceiling == 0 { model.last_version() } else { cut.ceiling };
            cut.number = None;
            self.cuts.push(cut);
        }
        self.looks.take_if(|(of, ..)| *of == run);
        // Numbers are looked up by whoever opens the pool next.
        if self.found_by == run {
            self.cuts.iter_mut().for_each(|cut| cut.number = None);
        }
    }

    /// A pool was opened by that run: which numbers they have there.
    ///
    /// # Errors
    /// One that was told to be there is not, or one that was told not to be is.
    pub fn find(&mut self, run: u32, thin: &ThinPool) -> Result<(), Violation> {
        self.found_by = run;
        let report = thin.report();
        let is_gone = |volume: &&VolumeReport| self.gone.contains(&volume.name);
        if let Some(back) = report.volumes.iter().find(is_gone) {
            return Err(Violation(format!("snapshot {} was told not to be there", back.name)));
        }
        for cut in &mut self.cuts {
            let found = report.volumes.iter().find(|volume| volume.name == cut.name);
            cut.number = found.map(|volume| volume.volume);
            if cut.is_sure && found.is_none() {
                return Err(Violation(format!("snapshot {} was told to be there", cut.name)));
            }
        }
        // What may have been there and is not never was, or is no more.
        self.cuts.retain(|cut| cut.number.is_some());
        Ok(())
    }

    /// Those that are there, by their numbers.
    pub fn numbers(&self) -> Vec<u64> {
        self.cuts.iter().filter_map(|cut| cut.number).collect()
    }

    /// A snapshot that is there, by its name.
    pub fn last_sure(&self) -> Option<&str> {
        let sure =
            self.cuts.iter().rfind(|cut| cut.is_sure && !cut.is_clone && cut.number.is_some());
        sure.map(|cut| &*cut.name)
    }

    /// That one holds what it has to.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, number: u64, image: &[u8], model: &Model) -> Result<(), Violation> {
        let cut = self.cuts.iter().find(|cut| cut.number == Some(number));
        let Some(cut) = cut else { return Ok(()) };
        let Some(image) = cut.unwritten(image) else {
            return Err(Violation(format!("clone {} has lost what was written to it", cut.name)));
        };
        if !image.starts_with(&cut.began) {
            return Err(Violation(format!("snapshot {} has changed", cut.name)));
        }
        // What is written over one another is at the end.
        let image = &image[..image.len() - WILD_SECTORS * SECTOR_BYTES];
        model.check_cut(image, &cut.floors, cut.ceiling).map_err(|v| {
            Violation(format!("snapshot {}, of versions up to {}: {}", cut.name, cut.ceiling, v.0))
        })
    }
}
