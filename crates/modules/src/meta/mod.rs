//! What modules keep on their parts, whatever module it is: labels (`docs/format.md`).
//!
//! [`Label`] is what one says, and how that stands in 4 KiB; it touches no volume. [`Labels`] reads and writes
//! the two copies of it that a part has, so that a crash at any moment leaves one. [`assemble`] says what whole parts make,
//! [`label_parts`] what parts of a new one say, and [`what_is_there`] what those would overwrite.

mod assembly;
mod fault;
mod finding;
mod label;
mod labels;
mod signature;

use label::LABEL_VERSION;
use labels::copy_of;

pub use assembly::{
    Assembly, AssemblyError, FoundPart, NewPart, NewWhole, SeenPart, assemble, label_parts,
};
pub use fault::LabelFault;
pub use finding::{Finding, FoundLabel, LabelError};
pub use label::{
    LABEL_AREA_BYTES, LABEL_BYTES, LABEL_NAME_BYTES_MAX, LABEL_ROWS_MAX, LABEL_STATE_BYTES_MAX,
    Label, LabelFeatures, LabelImage, LabelPart,
};
pub use labels::{LABEL_OFFSETS, LabelOutcome, Labels};
pub use signature::what_is_there;
