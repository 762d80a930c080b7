//! [`WholeGrowth`]: a whole that is in use becomes as large as its parts have become (rule 24), or says something else in its labels.

use std::fmt;

use thinwire_volume::{IoError, Volume};

use super::{
    Assembly, Label, LabelWork, Labels, OpeningError, PartDoor, RoomError, WholeOpening, WholeSizes,
};
use crate::cuts::CutRecord;
use crate::{Integrity, IntegrityState, SumGrowthError, SumLayout};

/// Has a whole grow while it is used, by drawing another opening, with whose second phase the larger sizes come: what a crash leaves is what it leaves of
/// any opening. Only when all labels say them, durably, the whole has more bytes to offer. What the module keeps in the labels is changed in the same way.
/// A volume with sums makes ready what comes before that, and the labels say what of both.
///
/// A state machine beside the whole: its labels are written through the [`PartDoor`]s of its parts, which go on when those are polled.
pub struct WholeGrowth {
    whole: Assembly,
    /// In the order of the parts, as all here.
    doors: Vec<PartDoor>,
    /// What the labels say; none while they are being written, or if that has failed.
    labels: Option<Vec<(Labels, Label)>>,
    /// Who writes those of the first part otherwise, cuts and writers: it lends them.
    record: Option<CutRecord>,
    /// What the module makes ready first, or has.
    room: Option<AskedRoom>,
    /// With the sizes that come with it, if it grows.
    opening: Option<(WholeOpening, Option<WholeSizes>)>,
    canary: GrowthCanary,
}

/// What comes when the only part is ready for it.
struct AskedRoom {
    id: [u8; 16],
    sizes: WholeSizes,
    state: Vec<u8>,
    is_ready: bool,
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GrowthCanary {
    #[default]
    None,
    /// What it grows by is offered before labels say so.
    OffersEarly,
}

/// Why it does not grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrowthError {
    /// Its parts have no room that it could use.
    NoRoom,
    /// Of a volume with sums: why it does not use what its part has.
    Sums(SumGrowthError),
    /// What its part has more could not be written: it is as large as before.
    Unwritten(IoError),
    /// What was written there may be gone again: it is as large as before.
    Lost,
    /// It is about to end, and as large as before.
    Ended,
    /// Labels could not be written: whether it has grown is found out when it is opened the next time.
    Labels(OpeningError),
    /// They could not be before: nothing more is written to them until it was opened again.
    Failed,
    /// A cut of it is being taken: try again.
    Busy,
    /// What its module keeps is not what it was when somebody looked.
    Changed,
}

impl fmt::Display for GrowthError {
    /// A sentence whose subject is the whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrowthError::NoRoom => f.write_str("its parts have no room that it could use"),
            GrowthError::Sums(error) => write!(f, "it {error}"),
            GrowthError::Unwritten(error) => {
                write!(f, "what its part has grown by cannot be zeroed: {error}")
            }
            GrowthError::Lost => {
                f.write_str("its part may have lost some of what was zeroed there: try again")
            }
            GrowthError::Ended => f.write_str("it is about to end"),
            GrowthError::Labels(error) => write!(
                f,
                "its labels could not be written, so it is found out whether it has grown when it is opened the next time: {error}"
            ),
            GrowthError::Failed => f.write_str(
                "its labels could not be written before: open it anew, and have it grow then",
            ),
            GrowthError::Busy => {
                f.write_str("it is growing, or a snapshot of it is being taken: try again")
            }
            GrowthError::Changed => f.write_str(
                "its labels say something else by now than they did a moment ago: try again",
            ),
        }
    }
}

impl std::error::Error for GrowthError {}

impl WholeGrowth {
    /// Of a whole that is open for writing, with the doors of its parts, and the labels that its opening has written, in the order of the parts; but for those of
    /// the first part, if `record` has them.
    pub fn new(
        whole: Assembly,
        doors: Vec<PartDoor>,
        labels: Vec<(Labels, Label)>,
        record: Option<CutRecord>,
    ) -> Self {
        let own = labels.len() + usize::from(record.is_some());
        assert!(doors.len() == whole.parts.len() && own == doors.len(), "of each part");
        let (labels, canary) = (Some(labels), GrowthCanary::None);
        WholeGrowth { whole, doors, labels, record, room: None, opening: None, canary }
    }

    /// Plants a fault, which tests must find.
    #[cfg(test)]
    pub(crate) fn set_canary(&mut self, canary: GrowthCanary) {
        self.canary = canary;
    }

    /// What it is, as its labels say.
    pub fn whole(&self) -> &Assembly {
        &self.whole
    }

    /// How many bytes its parts have as volumes, and in blocks of how many.
    pub fn volumes(&self) -> Vec<(u64, u32)> {
        let of = |door: &PartDoor| {
            let geometry = door.geometry();
            (geometry.bytes, geometry.block_bytes)
        };
        self.doors.iter().map(of).collect()
    }

    /// The whole is not in use any more.
    pub fn is_over(&self) -> bool {
        self.doors.iter().any(PartDoor::is_gone)
    }

    /// Begins to grow by what the parts have room for now. `id` is a random number, drawn for this.
    ///
    /// # Errors
    /// It does not: nothing was written. [`GrowthError::Busy`] if it is growing.
    pub fn begin(&mut self, id: [u8; 16]) -> Result<(), GrowthError> {
        self.refuse_busy()?;
        if self.room.is_some() {
            return Err(GrowthError::Busy);
        }
        let sizes = self.whole.with_room(&self.volumes()).ok_or(GrowthError::NoRoom)?;
        match self.whole.module.name == Integrity::NAME {
            true => self.ask_room(id, &sizes),
            false => self.begin_labels(id, sizes, None),
        }
    }

    /// What the part of a volume with sums has more is zeroed before any label says so.
    fn ask_room(&mut self, id: [u8; 16], sizes: &WholeSizes) -> Result<(), GrowthError> {
        let state = IntegrityState::decode(&self.label()?.state, self.whole.bytes);
        let state = state.map_err(|_| GrowthError::Failed)?;
        let (state, bytes) = state
            .grow(self.whole.parts[0].data_bytes, sizes.part_bytes[0])
            .map_err(|error| match error {
                SumGrowthError::NoRoom => GrowthError::NoRoom,
                other => GrowthError::Sums(other),
            })?;
        let sizes = WholeSizes { whole_bytes: SumLayout::of(bytes).bytes, part_bytes: vec![bytes] };
        self.doors[0].ask_room(bytes);
        self.room = Some(AskedRoom { id, sizes, state: state.encode(), is_ready: false });
        Ok(())
    }

    /// Begins to have the labels say these sizes, and that the modules keep that.
    fn begin_labels(
        &mut self,
        id: [u8; 16],
        sizes: WholeSizes,
        states: Option<Vec<Vec<u8>>>,
    ) -> Result<(), GrowthError> {
        let labels = self.take_labels()?;
        let mut opening = WholeOpening::new(&self.whole, id, labels);
        opening.grow(sizes.clone());
        if let Some(states) = states {
            opening.restate(states);
        }
        opening.begin(&mut self.doors);
        if self.canary == GrowthCanary::OffersEarly {
            self.offer(&sizes);
        }
        self.opening = Some((opening, Some(sizes)));
        Ok(())
    }

    /// What the label of its first part says, as it was written last.
    ///
    /// # Errors
    /// It is being written, or could not be.
    pub fn label(&mut self) -> Result<Label, GrowthError> {
        self.refuse_busy()?;
        // Behind one that failed nobody knows: what is in memory may be what did not get there.
        let labels = self.labels.as_ref().ok_or(GrowthError::Failed)?;
        let first = match &self.record {
            Some(record) => Some(record.label()),
            None => labels.first().map(|(_, label)| label.clone()),
        };
        first.ok_or(GrowthError::Failed)
    }

    /// Begins to have its module keep another state in the label of its only part, if that has `from` there now: [`WholeOpening::restate`]. `id` is a random
    /// number, drawn for this.
    ///
    /// # Errors
    /// It does not: nothing was written.
    ///
    /// # Panics
    /// If it has several parts.
    pub fn begin_restate(
        &mut self,
        id: [u8; 16],
        from: &[u8],
        to: Vec<u8>,
    ) -> Result<(), GrowthError> {
        assert_eq!(self.doors.len(), 1, "of one part");
        if self.label()?.state != from {
            return Err(GrowthError::Changed);
        }
        let labels = self.take_labels()?;
        let mut opening = WholeOpening::new(&self.whole, id, labels);
        opening.restate(vec![to]);
        opening.begin(&mut self.doors);
        self.opening = Some((opening, None));
        Ok(())
    }

    /// Begins to have the labels of all parts say what the whole does beside its users; none for what is usual. `id` is a random number, drawn for this.
    ///
    /// # Errors
    /// It does not: nothing was written.
    pub fn begin_work(&mut self, id: [u8; 16], work: Option<LabelWork>) -> Result<(), GrowthError> {
        self.refuse_busy()?;
        let mut labels = self.take_labels()?;
        labels.iter_mut().for_each(|(_, label)| label.work = work);
        let mut opening = WholeOpening::new(&self.whole, id, labels);
        opening.begin(&mut self.doors);
        self.opening = Some((opening, None));
        Ok(())
    }

    fn refuse_busy(&self) -> Result<(), GrowthError> {
        match (self.is_over(), &self.opening) {
            (true, _) => Err(GrowthError::Failed),
            (false, Some(_)) => Err(GrowthError::Busy),
            (false, None) => Ok(()),
        }
    }

    /// The labels of all parts, for an opening of its own.
    fn take_labels(&mut self) -> Result<Vec<(Labels, Label)>, GrowthError> {
        if self.labels.is_none() {
            return Err(GrowthError::Failed);
        }
        let lent = match &self.record {
            Some(record) => Some(record.lend().ok_or(GrowthError::Busy)?),
            None => None,
        };
        Ok(lent.into_iter().chain(self.labels.take().into_iter().flatten()).collect())
    }

    /// Goes on with a growth; never waits. Says how it has ended, once it has: how many bytes the whole has. While the only part of a volume with sums is made ready, its
    /// label may be written for others: [`WholeGrowth::turn`] is for these.
    ///
    /// # Errors
    /// See [`GrowthError`].
    pub fn turn_growth(&mut self) -> Option<Result<u64, GrowthError>> {
        let Some(room) = &mut self.room else { return self.turn() };
        if !room.is_ready {
            match self.doors[0].take_room()? {
                Ok(()) => room.is_ready = true,
                Err(error) => {
                    self.room = None;
                    return Some(Err(match error {
                        RoomError::Unwritten(error) => GrowthError::Unwritten(error),
                        RoomError::Lost => GrowthError::Lost,
                        RoomError::Ended => GrowthError::Ended,
                    }));
                }
            }
        }
        if self.opening.is_some() {
            return None;
        }
        let AskedRoom { id, sizes, state, .. } = self.room.take()?;
        match self.begin_labels(id, sizes.clone(), Some(vec![state.clone()])) {
            Ok(()) => None,
            // It stays ready.
            Err(GrowthError::Busy) => {
                self.room = Some(AskedRoom { id, sizes, state, is_ready: true });
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Goes on with what was begun last; never waits. Says how it has ended, once it has: how many bytes the whole has.
    ///
    /// # Errors
    /// See [`GrowthError`].
    pub fn turn(&mut self) -> Option<Result<u64, GrowthError>> {
        let (opening, _) = self.opening.as_mut()?;
        let ended = opening.turn(&mut self.doors)?;
        let (opening, sizes) = self.opening.take()?;
        let drawn = opening.drawn();
        let mut labels = opening.into_labels();
        if let Some(record) = &self.record {
            let (lent, label) = labels.remove(0);
            record.take_back(lent, label);
        }
        if let Err(error) = ended {
            return Some(Err(GrowthError::Labels(error)));
        }
        (self.whole.opening, self.whole.openings) = drawn;
        self.labels = Some(labels);
        if let Some(sizes) = sizes {
            self.whole.set_sizes(&sizes);
            self.offer(&sizes);
        }
        Some(Ok(self.whole.bytes))
    }

    fn offer(&self, sizes: &WholeSizes) {
        for (door, bytes) in self.doors.iter().zip(&sizes.part_bytes) {
            door.grow(*bytes);
        }
    }
}
