//! `thinwire lab`.

use std::cell::Cell;

use thinwire_lab::{LabArgs, LabError};

use crate::error::{Failure, Outcome};
use crate::signals::Signals;

/// Runs the laboratory with this very executable as what is measured.
pub fn run(args: &LabArgs) -> Outcome {
    let executable = std::env::current_exe()
        .map_err(|e| Failure::failed(format!("cannot tell which executable this is: {e}")))?;
    let done = if args.is_echo() {
        // Ended as any other program: it has nothing to clean up.
        thinwire_lab::run(args, &executable, &|| false)
    } else {
        let signals = Signals::catch()
            .map_err(|e| Failure::failed(format!("cannot take over signals: {e}")))?;
        let interrupted = Cell::new(false);
        thinwire_lab::run(args, &executable, &|| {
            interrupted.set(interrupted.get() || signals.take().is_some());
            interrupted.get()
        })
    };
    done.map_err(|e| match e {
        LabError::Usage(why) => Failure::usage(why),
        other => Failure::failed(other.to_string()),
    })
}
