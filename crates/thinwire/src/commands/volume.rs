//! `thinwire volume`: labels are written, shown, and put together.
//!
//! * `check.rs`: whether labels are sound, and what to do where they are not
//! * `create.rs`: parts get labels
//! * `look.rs`: what stands in labels, and which volumes those make
//! * `resync.rs`: legs of mirrors get what they lack

mod check;
mod create;
mod look;
mod resync;

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::meta::{LabelOutcome, Labels, SeenPart};
use thinwire_volume::Volume;

use crate::cli::{VolumeAction, VolumeArgs, VolumeCommon, WireArgs};
use crate::error::{Failure, Outcome};
use crate::open::{OpenVolume, VolumeOptions, Wait};
use crate::signals::Signals;

/// How long a turn may wait, so that signals are heard.
const NAP: Duration = Duration::from_millis(200);

/// Does it.
pub fn run(args: &VolumeArgs) -> Outcome {
    match &args.action {
        VolumeAction::Create { volume, force, take_over, common } => {
            create::create(volume, *force, *take_over, common)
        }
        VolumeAction::Resync { volume, degraded, from, common } => {
            resync::resync(volume, *degraded, *from, common)
        }
        VolumeAction::Check { parts, common } => check::check(parts, common),
        VolumeAction::Dump { parts, common } => look::dump(parts, common),
        VolumeAction::Assemble { parts, common } => look::assemble_all(parts, common),
    }
}

/// A whole, and where its parts are.
#[derive(Serialize)]
struct JsonWhole {
    name: String,
    uuid: String,
    kind: &'static str,
    bytes: u64,
    /// In the order in which the module takes them.
    parts: Vec<String>,
}

fn options_of(common: &VolumeCommon, signals: &Signals) -> Outcome<VolumeOptions> {
    let security = common.security.read()?;
    let mut options =
        VolumeOptions::new(security, &WireArgs::default(), common.run_dir.run_dir.clone());
    options.hurry = signals.hurry();
    Ok(options)
}

fn read_labels(
    parts: &mut [Box<dyn OpenVolume>],
    signals: &Signals,
) -> Outcome<(Vec<Labels>, Vec<SeenPart>)> {
    let (mut readers, mut seen) = (Vec::new(), Vec::new());
    for part in parts {
        let mut labels = Labels::new(0, part.pool());
        let found = match labels.read(part.volume()) {
            Err(e) => Err(e),
            Ok(()) => match finish(&mut **part, &mut labels, signals)? {
                LabelOutcome::Read(found) => found,
                other => unreachable!("{other:?} of a read"),
            },
        };
        seen.push(SeenPart { found, content: part.volume().identity() });
        readers.push(labels);
    }
    Ok((readers, seen))
}

/// Goes on with what `labels` has begun, to its end.
fn finish(
    part: &mut dyn OpenVolume,
    labels: &mut Labels,
    signals: &Signals,
) -> Outcome<LabelOutcome> {
    wait_for(part, signals, |volume| labels.turn(volume))
}

fn wait_for<T>(
    part: &mut dyn OpenVolume,
    signals: &Signals,
    mut look: impl FnMut(&mut dyn Volume) -> Option<T>,
) -> Outcome<T> {
    part.watch(signals.fd())?;
    loop {
        if let Some(found) = look(part.volume()) {
            return Ok(found);
        }
        if signals.take().is_some() {
            return Err(Failure::failed("interrupted"));
        }
        part.turn(Wait::Until(Instant::now() + NAP))?;
    }
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
