//! `thinwire volume grow` of a volume with labels: it grows by what its parts have grown by.

use serde::Serialize;

use super::{live::OpenElsewhere, options_of};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::growth::{Grown, GrowthNotes};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, let_go, open_volume};
use crate::output;
use crate::pool::PoolPlace;
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// `volume grow --json`.
#[derive(Serialize)]
struct AllGrown<'a> {
    schema: u32,
    volumes: &'a [Grown],
}

/// Has it, and what it is made of, grow: those below first.
pub fn grow(spec: &VolumeSpec, take_over: bool, common: &VolumeCommon) -> Outcome {
    let is_pool = matches!(spec.pool(), Some((_, None)));
    if !(spec.is_labelled() || is_pool) || spec.cut().is_some() {
        return Err(Failure::usage(format!(
            "{spec} has no labels that say how large it is: name a volume that is described with `labels = true`, as FILE.toml#NAME; all others are as large \
             as what they are made of makes them, whenever they are opened"
        )));
    }
    if let Some(user) = OpenElsewhere::of(spec, common)? {
        return say(&user.grow()?, common);
    }
    refuse_in_use(spec, "having it grow")?;
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    let notes = GrowthNotes::default();
    (options.take_over, options.growth) = (take_over, Some(notes.clone()));
    options.pool = spec.pool().map(|_| PoolPlace::growing());
    let mut open = open_volume(spec, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))?;
    // It goes with the volume.
    drop(options.pool.take().and_then(|place| place.take()));
    let ended = let_go(&mut *open, Ending::Orderly);
    ended.and(say(&notes.take(), common))
}

/// What has become of all of them, of which the last is the one that was named.
fn say(all: &[Grown], common: &VolumeCommon) -> Outcome {
    if common.json {
        output::say_json(&AllGrown { schema: SCHEMA, volumes: all })?;
    }
    let Some((top, below)) = all.split_last() else {
        return Err(Failure::failed("it is only read, and so stays as large as it is"));
    };
    if !common.json {
        // Those that have not are of interest where it has not, either.
        let told = below.iter().filter(|grown| grown.why.is_none() || top.why.is_some());
        told.for_each(|grown| output::complain(&grown.line()));
    }
    match &top.why {
        None if common.json => Ok(()),
        None if top.metadata.is_some() => output::say(&top.line()),
        None => output::say(&format!("{} has {} bytes", top.name, top.bytes)),
        Some(_) => Err(Failure::failed(top.line())),
    }
}
