//! What labels say of whatever parts are given, and `thinwire volume assemble`: nothing is changed.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use thinwire_modules::meta::{Assembly, AssemblyError, Finding, SeenPart, assemble};
use thinwire_modules::mirror::{OpeningRefusal, OpeningWish, find_mirror};
use thinwire_modules::{Crypt, Options};

use super::{JsonWhole, hex, options_of, read_labels};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::last_resort::catch_signals;
use crate::mirrored::{refused, standings};
use crate::open::{Ending, OpenVolume, let_go, let_go_failed, open_on};
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// The labels of all, each opened to be read; why not of those that cannot be.
pub(super) fn look_at(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
) -> Outcome<Vec<Outcome<SeenPart>>> {
    let seen = look_further(parts, common, |_, _, _| Ok(()))?;
    Ok(seen.into_iter().map(|seen| seen.map(|(seen, ())| seen)).collect())
}

/// The same, and of each part what `further` finds there by what its labels say: it gets the part as the only one of a list.
pub(super) fn look_further<T>(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
    further: impl Fn(&mut [Box<dyn OpenVolume>], &SeenPart, &Signals) -> Outcome<T>,
) -> Outcome<Vec<Outcome<(SeenPart, T)>>> {
    let (signals, _) = catch_signals(2, &parts.iter().collect::<Vec<_>>())?;
    let mut options = options_of(common, &signals)?;
    options.read_only = true;
    let host = Host::new()?;
    let mut seen = Vec::new();
    for spec in parts {
        let mut part = match open_on(&host, spec, &options, Some(&signals)) {
            Ok(part) => [part],
            Err(failure) => {
                seen.push(Err(failure));
                continue;
            }
        };
        let found = read_labels(&mut part, &signals).and_then(|(_, mut found)| {
            let found = found.swap_remove(0);
            let more = further(&mut part, &found, &signals)?;
            Ok((found, more))
        });
        match found {
            Ok(found) => seen.push(Ok(found)),
            Err(failure) => {
                let_go_failed(&mut *part[0], false);
                return Err(failure);
            }
        }
        let_go(&mut *part[0], Ending::Orderly)?;
    }
    Ok(seen)
}

/// The wholes that these are parts of, and in which places those are.
pub(super) fn wholes_of(seen: &[Outcome<SeenPart>]) -> Vec<([u8; 16], Vec<usize>)> {
    let mut wholes: Vec<([u8; 16], Vec<usize>)> = Vec::new();
    for (place, part) in seen.iter().enumerate() {
        let Ok(SeenPart { found: Ok(Finding::Label(found)), .. }) = part else { continue };
        let whole = found.label.whole;
        match wholes.iter_mut().find(|(uuid, _)| *uuid == whole) {
            Some((_, places)) => places.push(place),
            None => wholes.push((whole, vec![place])),
        }
    }
    wholes
}

/// `volume assemble --json`.
#[derive(Serialize)]
struct Assembled {
    schema: u32,
    volumes: Vec<JsonWhole>,
    /// What is in the way of others.
    refused: Vec<String>,
}

/// Shows which volumes parts make.
pub fn assemble_all(specs: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    // What is printed is read from another folder, perhaps.
    let mut specs = specs.to_vec();
    let whole_path = |path: &Path| std::path::absolute(path);
    for spec in &mut specs {
        let absolute = spec.try_map_paths(&whole_path);
        absolute.map_err(|e| Failure::failed(format!("{spec}: {e}")))?;
    }
    let specs = &specs[..];
    let seen = look_at(specs, common)?;
    let mut refused = Vec::new();
    for (place, part) in seen.iter().enumerate() {
        match part.as_ref().map(|part| &part.found) {
            Err(why) => refused.push(format!("{} cannot be opened: {why}", specs[place])),
            Ok(Ok(Finding::Blank)) => refused.push(format!("{} has no label", specs[place])),
            Ok(Err(error)) => refused.push(format!("{} {error}", specs[place])),
            Ok(Ok(Finding::Label(_))) => {}
        }
    }
    let mut found = Vec::new();
    for (_, places) in wholes_of(&seen) {
        let parts: Vec<_> = places.iter().filter_map(|&place| seen[place].clone().ok()).collect();
        match whole_of(&parts, &places, specs) {
            Ok(Made { json, missing, note, .. }) if !missing.is_empty() => refused.push(format!(
                "{:?} can be used, but legs {missing} (counted from 0) are not among these, and it is described with all of them: {}",
                json.name,
                note.unwrap_or_default()
            )),
            Ok(made) => found.push((made.json, made.options)),
            Err(NotMade { why, .. }) => refused.push(why),
        }
    }
    let is_any = !found.is_empty();
    if common.json {
        let volumes = found.into_iter().map(|(json, _)| json).collect();
        let refused = refused.clone();
        output::say_json(&Assembled { schema: SCHEMA, volumes, refused })?;
    } else if is_any {
        let texts: Vec<_> = found.iter().map(|(json, whole)| toml_of(json, whole)).collect();
        output::say(&texts.join("\n"))?;
    }
    match &refused[..] {
        [] if is_any => Ok(()),
        [] => Err(Failure::failed("there is no volume")),
        all => Err(Failure::failed(all.join("\nthinwire: "))),
    }
}

/// What these parts of one whole make.
///
/// # Errors
/// They make nothing.
pub(super) fn whole_of(
    parts: &[SeenPart],
    places: &[usize],
    specs: &[VolumeSpec],
) -> Result<Made, NotMade> {
    let describe = |e: AssemblyError| NotMade {
        why: e.describe(&|place| specs[places[place]].to_string()),
        lacks: if let AssemblyError::Missing { roles, .. } = &e { roles.len() } else { 0 },
    };
    let module = parts.iter().find_map(|part| match &part.found {
        Ok(Finding::Label(found)) => Some(found.label.module),
        _ => None,
    });
    let Some(module) = module.filter(|module| module.is_mirror()) else {
        let whole = assemble(parts).map_err(describe)?;
        let json = json_whole(&whole, places, specs);
        return Ok(Made { json, options: whole.options, note: None, missing: String::new() });
    };
    let own: Vec<_> = places.iter().map(|&place| specs[place].clone()).collect();
    let seen: Vec<_> = parts.iter().cloned().map(Some).collect();
    let whole = find_mirror(&seen).map_err(describe)?;
    let legs = whole.described();
    let plan = whole.plan(OpeningWish::default()).map_err(|refusal| NotMade {
        why: refused(&refusal, &whole, &own, "").message,
        lacks: lacks_of(&refusal, legs.iter().filter(|leg| whole.places[**leg].is_none()).count()),
    })?;
    let is_whole = plan.current.count_ones() as usize == legs.len();
    let note = (!is_whole).then(|| standings(&whole, &own));
    let missing: Vec<_> =
        legs.iter().filter(|leg| whole.places[**leg].is_none()).map(usize::to_string).collect();
    let json = JsonWhole {
        name: whole.name.clone(),
        uuid: hex(&whole.uuid),
        kind: module.name,
        bytes: whole.bytes,
        parts: legs.iter().filter_map(|leg| Some(own[whole.places[*leg]?].to_string())).collect(),
    };
    Ok(Made { json, options: whole.options, note, missing: missing.join(", ") })
}

/// How many legs more would have to be there of a mirror that is refused for that, of which so many are not.
fn lacks_of(refusal: &OpeningRefusal, absent: usize) -> usize {
    match refusal {
        OpeningRefusal::Missing { legs } => legs.count_ones() as usize,
        // Any that is not there may be the one in sync: nobody knows which, so none may be left out.
        OpeningRefusal::NoneInSync | OpeningRefusal::Old { .. } => absent,
        _ => 0,
    }
}

/// Why parts make nothing.
pub(super) struct NotMade {
    /// For people.
    pub why: String,
    /// So many others would have to be there, with which they may make something; none if something else is wrong with these.
    pub lacks: usize,
}

/// What parts make.
pub(super) struct Made {
    /// Where they are, those that are there.
    pub json: JsonWhole,
    /// What their module is told.
    pub options: Options,
    /// What a user should know of a whole that can be used.
    pub note: Option<String>,
    /// Which parts are not there, counted from 0; empty if all are.
    pub missing: String,
}

fn json_whole(whole: &Assembly, places: &[usize], specs: &[VolumeSpec]) -> JsonWhole {
    let parts = whole.parts.iter().map(|part| specs[places[part.place]].to_string());
    JsonWhole {
        name: whole.name.clone(),
        uuid: hex(&whole.uuid),
        kind: whole.module.name,
        bytes: whole.bytes,
        parts: parts.collect(),
    }
}

/// How to describe it.
fn toml_of(json: &JsonWhole, options: &Options) -> String {
    let quoted = |text: &String| toml::Value::from(text.as_str()).to_string();
    let mut text = format!(
        "# {}, {} bytes\n[[volume]]\nname = {}\nkind = \"{}\"\nlabels = true\n",
        json.uuid,
        json.bytes,
        quoted(&json.name),
        json.kind
    );
    for (name, value) in options.iter() {
        let _ = writeln!(text, "{name} = {value}");
    }
    if json.kind == Crypt::NAME {
        text += "key = \"NAME\" # of the key that it was made with, or its path\n";
    }
    let parts: Vec<_> = json.parts.iter().map(quoted).collect();
    let _ = writeln!(text, "children = [{}]", parts.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of legs that are not there each may be the one in sync: one in use of two that are away excuses nothing.
    #[test]
    fn what_has_no_leg_in_sync_lacks_all_that_are_not_there() {
        for absent in 0..4 {
            assert_eq!(lacks_of(&OpeningRefusal::NoneInSync, absent), absent);
        }
        assert_eq!(lacks_of(&OpeningRefusal::Missing { legs: 0b101 }, 3), 2);
    }
}
