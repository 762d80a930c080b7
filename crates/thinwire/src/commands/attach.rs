//! `thinwire attach`.

use crate::cli::AttachArgs;
use crate::error::{Failure, Outcome};
use crate::open::require_insecure;
use crate::uri::VolumeSpec;

/// Refuses until the faces are wired in.
pub fn run(args: &AttachArgs) -> Outcome {
    if let VolumeSpec::Remote(_) = &args.volume {
        require_insecure(args.insecure, "reaching a target")?;
    }
    Err(Failure::failed("attaching is not part of this build yet"))
}
