//! `thinwire volume adopt`: parts that hold another content than when they got their labels are its parts from now on.

use serde::Serialize;

use super::{live::OpenElsewhere, options_of};
use crate::adoption::{Adopted, Adoptions};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, let_go, open_volume};
use crate::output;
use crate::pool::PoolPlace;
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// `volume adopt --json`.
#[derive(Serialize)]
struct AllAdopted<'a> {
    schema: u32,
    parts: &'a [Adopted],
}

/// Opens a volume for writing, and takes all parts whose labels fit, whatever those are by now.
pub fn adopt(spec: &VolumeSpec, take_over: bool, common: &VolumeCommon) -> Outcome {
    if let Some(user) = OpenElsewhere::of(spec, common)? {
        return Err(user.refuse("its parts are what they were, or it would not have opened"));
    }
    refuse_in_use(spec, "adopting its parts")?;
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    let adoptions = Adoptions::default();
    (options.take_over, options.adopt) = (take_over, Some(adoptions.clone()));
    // A pool has parts, too, which its volumes have not.
    options.pool = spec.pool().map(|_| PoolPlace::new(false));
    let ended = open_volume(spec, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))
        .and_then(|mut open| {
            // It goes with the volume.
            drop(options.pool.take().and_then(|place| place.take()));
            let_go(&mut *open, Ending::Orderly)
        });
    // Also if something above those parts was refused: they have been taken.
    let all = adoptions.take();
    match &ended {
        Err(_) if all.is_empty() => {}
        _ => say(&all, common)?,
    }
    ended
}

fn say(all: &[Adopted], common: &VolumeCommon) -> Outcome {
    if common.json {
        return output::say_json(&AllAdopted { schema: SCHEMA, parts: all });
    }
    if all.is_empty() {
        return output::say(
            "all of its parts hold what they held when they got their labels: nothing is changed",
        );
    }
    all.iter().try_for_each(|adopted| output::say(&adopted.line()))
}

/// What is adopted has labels.
pub fn check(spec: &VolumeSpec) -> Outcome {
    if let Some((pool, Some(_))) = spec.pool() {
        return Err(Failure::usage(format!(
            "{spec} is a volume of a pool: it is the pool that has parts; name {pool}"
        )));
    }
    match matches!(spec, VolumeSpec::Over { .. }) && spec.cut().is_none() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{spec} is made of no parts with labels: name a volume that a file describes, as FILE.toml#NAME"
        ))),
    }
}
