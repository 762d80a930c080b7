//! What modules keep on their parts, whatever module it is: labels (`docs/format.md`).
//!
//! [`Label`] is what one says, and how that stands in 4 KiB; it touches no volume. [`Labels`] reads and writes
//! the two copies of it that a part has, so that a crash at any moment leaves one. [`assemble`] says what whole parts make,
//! [`label_parts`] what parts of a new one say, [`occupant`] what those would overwrite. [`WholeMaking`] writes them, and [`WholeOpening`] has all parts
//! know that the whole is opened for writing once more, so that old copies of parts are found out. [`WholeGrowth`] does that while it is in use, and larger,
//! through the [`PartDoor`]s of its parts.

mod assembly;
mod beside;
mod early;
mod fault;
mod finding;
mod growing;
mod label;
mod labels;
mod making;
mod opening;
mod recorded;
mod signature;
pub mod tree;

use label::LABEL_VERSION;
use labels::copy_of;

pub(crate) use assembly::check_one_whole;
pub use assembly::{
    Assembly, AssemblyError, FoundPart, NewPart, NewWhole, SeenPart, StalePart, WholeSizes,
    assemble, label_parts,
};
pub(crate) use beside::RoomError;
pub use beside::{BESIDE_TOKEN, LabelledPart, PartDoor, PartFence};
pub use early::{ReaderFence, WATCH_PERIOD, WatchedPart};
pub use fault::LabelFault;
pub use finding::{Finding, FoundLabel, LabelError};
#[cfg(test)]
pub(crate) use growing::GrowthCanary;
pub use growing::{GrowthError, WholeGrowth};
pub use label::{
    LABEL_AREA_BYTES, LABEL_BYTES, LABEL_LEAVES_MAX, LABEL_NAME_BYTES_MAX, LABEL_ROW_BYTES,
    LABEL_ROWS_MAX, LABEL_STATE_BYTES_MAX, Label, LabelFeatures, LabelImage, LabelPart, LabelWork,
};
pub use labels::{LABEL_OFFSETS, LabelOutcome, Labels};
pub use making::{MadePart, MakingError, WholeMaking, marks_on, occupant};
pub use opening::{OpeningError, WholeOpening};
pub use recorded::RecordedWhole;
pub use signature::EndMark;
