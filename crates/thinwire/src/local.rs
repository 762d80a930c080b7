//! Local volumes, opened without any network.

use crate::error::{Failure, Outcome};
use crate::open::{OpenOptions, OpenVolume};
use crate::uri::VolumeSpec;

/// Opens a path, `memory:` or `null:` volume.
pub fn open(spec: &VolumeSpec, options: &OpenOptions) -> Outcome<Box<dyn OpenVolume>> {
    let _ = options;
    Err(Failure::failed(format!("{spec}: local volumes are not part of this build yet")))
}
