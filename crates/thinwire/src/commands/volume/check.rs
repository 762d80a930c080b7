//! `thinwire volume check`: whether labels are sound, and what they make; it changes nothing.

use serde::Serialize;
use thinwire_modules::meta::{Finding, SeenPart};
use thinwire_modules::thin::PoolHead;

use super::hex;
use super::look::{look_at, whole_of, wholes_of};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::labelled::LOST_WITH_LABEL;
use crate::output;
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// `volume check --json`.
#[derive(Serialize)]
struct Checked {
    schema: u32,
    parts: Vec<JsonChecked>,
    volumes: Vec<JsonCheckedWhole>,
}

#[derive(Serialize)]
struct JsonChecked {
    volume: String,
    /// `sound`; `serves`, with something to put right; or `unusable`.
    state: &'static str,
    /// What is wrong, and what to do.
    why: Option<String>,
    /// The volume that it is a part of.
    name: Option<String>,
    role: Option<u16>,
    generation: Option<u64>,
    openings: Option<u64>,
}

#[derive(Serialize)]
struct JsonCheckedWhole {
    name: String,
    uuid: String,
    can_be_used: bool,
    /// Why not, and what to do.
    why: Option<String>,
    /// How its legs stand, if that is not well.
    note: Option<String>,
    /// Those of its parts that were given.
    parts: Vec<String>,
}

/// Says of each part, and of what they make, what is wrong and what to do.
pub fn check(specs: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    let seen = look_at(specs, common)?;
    let parts: Vec<_> = specs.iter().zip(&seen).map(checked).collect();
    let mut volumes = Vec::new();
    for (uuid, places) in wholes_of(&seen) {
        let of: Vec<_> = places.iter().filter_map(|&place| seen[place].clone().ok()).collect();
        let (note, why) = match whole_of(&of, &places, specs) {
            Ok(made) => (made.note, None),
            Err(why) => (None, Some(why)),
        };
        volumes.push(JsonCheckedWhole {
            name: places.iter().find_map(|&place| parts[place].name.clone()).unwrap_or_default(),
            uuid: hex(&uuid),
            can_be_used: why.is_none(),
            why,
            note,
            parts: places.iter().map(|&place| specs[place].to_string()).collect(),
        });
    }
    let unsound = parts.iter().filter(|part| part.state != "sound").count();
    let unusable = volumes.iter().filter(|volume| !volume.can_be_used).count();
    let whole_count = volumes.len();
    if common.json {
        output::say_json(&Checked { schema: SCHEMA, parts, volumes })?;
    } else {
        let lines = parts.iter().map(part_line).chain(volumes.iter().map(whole_line));
        output::say(&output::printable(&lines.collect::<Vec<_>>().join("\n")))?;
    }
    match (unsound, unusable) {
        (0, 0) => Ok(()),
        _ => Err(Failure::failed(format!(
            "parts that are not sound: {unsound} of {}; volumes that cannot be used: {unusable} of {whole_count}",
            specs.len()
        ))),
    }
}

fn checked((spec, seen): (&VolumeSpec, &Outcome<SeenPart>)) -> JsonChecked {
    let volume = spec.to_string();
    let unusable = |why: String| JsonChecked {
        volume: volume.clone(),
        state: "unusable",
        why: Some(why),
        name: None,
        role: None,
        generation: None,
        openings: None,
    };
    let (label, passed_over, is_content) = match seen.as_ref().map(|seen| (seen, &seen.found)) {
        Err(why) => return unusable(format!("cannot be opened: {why}")),
        Ok((_, Ok(Finding::Blank))) => {
            return unusable("has no label: it is no part, or was not made one to the end".into());
        }
        Ok((_, Err(error))) => return unusable(error.to_string()),
        Ok((seen, Ok(Finding::Label(found)))) => {
            (&found.label, &found.passed_over, found.label.content == seen.content)
        }
    };
    let mut wrong = Vec::new();
    if let Some(fault) = passed_over {
        wrong.push(format!(
            "the other copy of its label {fault}; the part serves, and the next opening for writing writes that copy anew"
        ));
    }
    if passed_over.is_some() && PoolHead::is_at_rest(label) == Some(false) {
        wrong.push(LOST_WITH_LABEL.into());
    }
    if !label.may_write() {
        wrong.push(
            "its label has features that allow only reading to this program: to write, use the one that wrote it"
                .into(),
        );
    }
    if !is_content {
        wrong.push("it holds another content than when it got its label: put the part back".into());
    }
    JsonChecked {
        volume: spec.to_string(),
        state: match (wrong.is_empty(), is_content) {
            (_, false) => "unusable",
            (true, _) => "sound",
            (false, _) => "serves",
        },
        why: (!wrong.is_empty()).then(|| wrong.join("; ")),
        name: Some(label.name.clone()),
        role: Some(label.role),
        generation: Some(label.generation),
        openings: Some(label.openings),
    }
}

fn part_line(part: &JsonChecked) -> String {
    let JsonChecked { volume, state, why, .. } = part;
    match (&part.name, part.role, why) {
        (Some(name), Some(role), None) => {
            format!("{volume} is part {role} (counted from 0) of {name:?}: {state}")
        }
        (Some(name), Some(role), Some(why)) => {
            format!("{volume} is part {role} (counted from 0) of {name:?}: {why}")
        }
        (_, _, why) => format!("{volume} {}", why.as_deref().unwrap_or(state)),
    }
}

fn whole_line(whole: &JsonCheckedWhole) -> String {
    let JsonCheckedWhole { name, why, note, parts, .. } = whole;
    match why {
        None => {
            let note = note.as_ref().map_or(String::new(), |note| format!("; {note}"));
            format!("{name:?} can be used: of {}{note}", parts.join(", "))
        }
        Some(why) => format!("{name:?} cannot be used: {why}"),
    }
}
