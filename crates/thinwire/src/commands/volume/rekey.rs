//! `thinwire volume rekey`: another key of a user's opens an encrypted volume from now on, and the one before no more.

use serde::Serialize;

use super::{live::OpenElsewhere, options_of};
use crate::cli::VolumeCommon;
use crate::crypted::takes_key;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, let_go, open_volume};
use crate::output;
use crate::rekeying::{NextKey, Rekeyed, Rekeying, StateChange};
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// What is asked for.
pub struct Wanted<'a> {
    pub spec: &'a VolumeSpec,
    /// The key from then on, which is there; else the newest of the file that the description names.
    pub to: Option<&'a str>,
    /// The same, which is made.
    pub new_key: Option<&'a str>,
    /// What opens it now, if the description names another.
    pub old_key: Option<&'a str>,
    pub take_over: bool,
}

/// `volume rekey --json`.
#[derive(Serialize)]
struct Changed<'a> {
    schema: u32,
    volume: &'a Rekeyed,
}

/// Does it, by whoever has it open, or itself.
pub fn rekey(wanted: &Wanted<'_>, common: &VolumeCommon) -> Outcome {
    let mut spec = wanted.spec.clone();
    let VolumeSpec::Over { module, node: Some(_), children, key: Some(described), .. } = &mut spec
    else {
        return Err(not_encrypted(wanted.spec));
    };
    if !takes_key(module) {
        return Err(not_encrypted(wanted.spec));
    }
    let next = match (wanted.to, wanted.new_key) {
        (_, Some(made)) => NextKey::Made(made.to_owned()),
        (Some(there), None) => NextKey::There(there.to_owned()),
        (None, None) => NextKey::There(described.clone()),
    };
    next.check()?;
    let named = described.clone();
    if let Some(old) = wanted.old_key {
        *described = old.to_owned();
    }
    let (old, rekeying) = (described.clone(), Rekeying::new(&children[0], next));
    if let Some(user) = OpenElsewhere::of(&spec, common)? {
        let label = user.encrypted_label()?;
        let rewrapped = rekeying.rewrap(&label, None, &old)?;
        let change = StateChange::new(&label, &rewrapped.state);
        user.rekey(change).map_err(|failure| in_doubt(failure, &rewrapped.rekeyed))?;
        return say(&rewrapped.rekeyed, &named, common);
    }
    refuse_in_use(&spec, "changing its key")?;
    let (signals, last_words) = catch_signals(2, &[&spec])?;
    let mut options = options_of(common, &signals)?;
    (options.take_over, options.rekey) = (wanted.take_over, Some(rekeying.clone()));
    let ended = open_volume(&spec, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))
        .and_then(|mut open| let_go(&mut *open, Ending::Orderly));
    match (rekeying.ended(), ended) {
        // What failed behind that is told all the same.
        (Some((rekeyed, true)), ended) => say(&rekeyed, &named, common).and(ended),
        (Some((rekeyed, false)), ended) => ended.map_err(|failure| in_doubt(failure, &rekeyed)),
        (None, Err(failure)) => Err(failure),
        (None, Ok(())) => Err(Failure::failed("it is only read, and so keeps its key")),
    }
}

fn not_encrypted(spec: &VolumeSpec) -> Failure {
    Failure::usage(format!(
        "{spec} has no key: name a volume of kind crypt that a file describes, as FILE.toml#NAME"
    ))
}

/// Labels were being written.
fn in_doubt(failure: Failure, rekeyed: &Rekeyed) -> Failure {
    let Rekeyed { key, file, .. } = rekeyed;
    let why = format!(
        ". It is opened by the key {key} ({file}) by now, or by the one before: keep both, and do the same again with `--to {file}`"
    );
    Failure { message: failure.message + &why, ..failure }
}

fn say(rekeyed: &Rekeyed, named: &str, common: &VolumeCommon) -> Outcome {
    if common.json {
        return output::say_json(&Changed { schema: SCHEMA, volume: rekeyed });
    }
    let Rekeyed { name, before, key, file, snapshots_of } = rekeyed;
    output::say(&match before {
        Some(before) => {
            format!("{name} is opened by the key {key} of {file}, and no more by {before}")
        }
        None => format!(
            "{name} was opened by the key {key} of {file} already; no label has the one before any more"
        ),
    })?;
    if !snapshots_of.is_empty() {
        let before = before.as_deref().unwrap_or("before");
        output::complain(&format!(
            "snapshots from before, of {}, are opened by the key {before}, or by one still older: keep it as long as you keep them",
            snapshots_of.join(" and ")
        ));
    }
    if crate::keys::path_of(named) != std::path::Path::new(file) {
        output::complain(&format!("describe it with: key = {file:?}"));
    }
    Ok(())
}
