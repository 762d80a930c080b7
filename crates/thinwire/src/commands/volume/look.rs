//! `thinwire volume dump` and `thinwire volume assemble`: they change nothing.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use thinwire_modules::meta::{Assembly, AssemblyError, Finding, Label, SeenPart, assemble};
use thinwire_modules::mirror::{LegState, MirrorState, NO_GENERATION, OpeningWish, find_mirror};
use thinwire_modules::{Crypt, Integrity, IntegrityState, Options, SumLayout};

use super::{JsonWhole, hex, options_of, read_labels};
use crate::cli::VolumeCommon;
use crate::crypted::said_of;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::last_resort::catch_signals;
use crate::mirrored::{refused, standings};
use crate::open::{Ending, let_go, let_go_failed, open_on};
use crate::output;
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// The labels of all, each opened to be read; why not of those that cannot be.
pub(super) fn look_at(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
) -> Outcome<Vec<Outcome<SeenPart>>> {
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
        match read_labels(&mut part, &signals) {
            Ok((_, found)) => seen.extend(found.into_iter().map(Ok)),
            Err(failure) => {
                let_go_failed(&mut *part[0], false);
                return Err(failure);
            }
        }
        let_go(&mut *part[0], Ending::Orderly)?;
    }
    Ok(seen)
}

/// `volume dump --json`.
#[derive(Serialize)]
struct Dumped {
    schema: u32,
    parts: Vec<JsonPart>,
}

#[derive(Serialize)]
struct JsonPart {
    volume: String,
    /// `blank`, `label`, or `error`.
    found: &'static str,
    /// Why there is no label to go by, or why the other copy of one is none.
    why: Option<String>,
    label: Option<JsonLabel>,
}

#[derive(Serialize)]
struct JsonLabel {
    name: String,
    whole: String,
    part: String,
    kind: &'static str,
    role: u16,
    generation: u64,
    data_start: u64,
    data_bytes: u64,
    whole_bytes: u64,
    opening: String,
    /// How many there were.
    openings: u64,
    /// That which is half drawn.
    next_opening: Option<String>,
    /// Of all parts, in order.
    parts: Vec<String>,
    options: Vec<(&'static str, u64)>,
    features: [u64; 3],
    is_content: bool,
    /// The id of the key that an encrypted one needs, and its blocks.
    key: Option<String>,
    /// Where the data begins that has sums, and how much is on record together.
    sums: Option<String>,
    /// What it says of a mirror.
    mirror: Option<JsonState>,
}

/// What the label of a leg says of its mirror.
#[derive(Serialize)]
struct JsonState {
    /// Names what the data is.
    generation: String,
    /// When that was drawn, in seconds since 1970; 0 if unknown.
    drawn_at: u64,
    /// The one that is half drawn.
    next: Option<String>,
    incarnation: String,
    /// The generations before, the newest first.
    history: Vec<String>,
    region_bytes: u64,
    /// Of each leg: `in sync`, `resyncing`, `behind`, `failed` or `removed`, and the generation at which it was left.
    legs: Vec<(&'static str, Option<String>)>,
}

fn json_state(label: &Label) -> Option<JsonState> {
    label.module.is_mirror().then_some(())?;
    let state = MirrorState::decode(&label.state).ok()?;
    let leg = |leg: &LegState| match leg {
        LegState::InSync => ("in sync", None),
        LegState::Resyncing { at } => ("resyncing", Some(hex(&at.last))),
        LegState::Behind { at } => ("behind", Some(hex(&at.last))),
        LegState::Failed { at } => ("failed", Some(hex(&at.last))),
        LegState::Removed { at } => ("removed", Some(hex(&at.last))),
    };
    Some(JsonState {
        generation: hex(&state.generation),
        drawn_at: state.drawn_at,
        next: (state.next != NO_GENERATION).then(|| hex(&state.next)),
        incarnation: hex(&state.incarnation),
        history: state.history.iter().map(hex).collect(),
        region_bytes: 1 << state.region_shift,
        legs: state.legs.iter().map(leg).collect(),
    })
}

/// How the sums of its blocks stand there, of a label that says so.
fn sums_of(label: &Label) -> Option<String> {
    let state = (label.module.name == Integrity::NAME)
        .then(|| IntegrityState::decode(&label.state, label.whole_bytes))?;
    Some(match state {
        Ok(state) => format!(
            "of blocks of 4096 bytes, which begin at {}; regions of {} bytes",
            label.data_start + SumLayout::of(label.part().bytes).data_offset,
            state.region_bytes()
        ),
        Err(fault) => format!("it {fault}"),
    })
}

fn json_label(label: &Label, seen: &SeenPart) -> JsonLabel {
    let features = label.features;
    JsonLabel {
        name: label.name.clone(),
        whole: hex(&label.whole),
        part: hex(&label.part().uuid),
        kind: label.module.name,
        role: label.role,
        generation: label.generation,
        data_start: label.data_start,
        data_bytes: label.part().bytes,
        whole_bytes: label.whole_bytes,
        opening: hex(&label.opening),
        openings: label.openings,
        next_opening: (label.next_opening != [0; 16]).then(|| hex(&label.next_opening)),
        parts: label.parts.iter().map(|part| hex(&part.uuid)).collect(),
        options: label.options.iter().collect(),
        features: [features.compatible, features.read_only_compatible, features.incompatible],
        is_content: label.content == seen.content,
        mirror: json_state(label),
        key: said_of(label),
        sums: sums_of(label),
    }
}

/// Shows what each label says.
pub fn dump(parts: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    let seen = look_at(parts, common)?;
    let json = |(spec, seen): (&VolumeSpec, &Outcome<SeenPart>)| {
        let (found, why, label) = match seen.as_ref().map(|seen| (seen, &seen.found)) {
            Err(why) => ("error", Some(format!("cannot be opened: {why}")), None),
            Ok((_, Ok(Finding::Blank))) => ("blank", None, None),
            Ok((seen, Ok(Finding::Label(found)))) => {
                let why = found.passed_over.as_ref().map(|fault| format!("the other copy {fault}"));
                ("label", why, Some(json_label(&found.label, seen)))
            }
            Ok((_, Err(error))) => ("error", Some(error.to_string()), None),
        };
        JsonPart { volume: spec.to_string(), found, why, label }
    };
    let all: Vec<_> = parts.iter().zip(&seen).map(json).collect();
    let without = all.iter().filter(|part| part.label.is_none()).count();
    if common.json {
        output::say_json(&Dumped { schema: SCHEMA, parts: all })?;
    } else {
        let texts: Vec<_> = all.iter().map(text_of).collect();
        output::say(&texts.join("\n\n"))?;
    }
    match without {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} of {} have no label", parts.len()))),
    }
}

fn text_of(part: &JsonPart) -> String {
    let JsonPart { volume, found, why, label } = part;
    let mut text = match (label, why) {
        (None, None) => format!("{volume} is {found}: it has no label"),
        (None, Some(why)) => format!("{volume} {why}"),
        (Some(label), _) => {
            format!("{volume} is part {} (counted from 0) of {:?}", label.role, label.name)
        }
    };
    let Some(label) = label else { return output::printable(&text) };
    if let Some(why) = why {
        let _ = write!(text, "\n  {why}");
    }
    if !label.is_content {
        text += "\n  it holds another content than when it got this label: it is not used";
    }
    let options = label.options.iter().map(|(name, value)| format!("{name} = {value}"));
    let mut opening = match label.openings {
        0 => "none yet".to_owned(),
        count => format!("{}, number {count}", label.opening),
    };
    if let Some(next) = &label.next_opening {
        let _ = write!(opening, "; {next} was cut off");
    }
    let mut rows = vec![
        ("whole", format!("{}, {} bytes", label.whole, label.whole_bytes)),
        (
            "kind",
            std::iter::once(label.kind.to_owned()).chain(options).collect::<Vec<_>>().join(", "),
        ),
        ("part", label.part.clone()),
        ("data", format!("{} bytes from {} on", label.data_bytes, label.data_start)),
        ("generation", label.generation.to_string()),
    ];
    match &label.mirror {
        None => rows.push(("opening", opening)),
        Some(state) => {
            let next =
                state.next.as_ref().map_or(String::new(), |next| format!("; {next} was cut off"));
            rows.push(("data is", format!("{}{next}", state.generation)));
            rows.push(("it was", state.history.join(" ")));
            let leg = |(nth, (standing, at)): (usize, &(&str, Option<String>))| match at {
                Some(at) => format!("leg {nth} {standing}, at {at}"),
                None => format!("leg {nth} {standing}"),
            };
            let legs: Vec<_> = state.legs.iter().enumerate().map(leg).collect();
            rows.push(("legs", legs.join("; ")));
        }
    }
    rows.push(("parts", label.parts.join(" ")));
    for (what, value) in rows {
        let _ = write!(text, "\n  {what:<12}{value}");
    }
    if let Some(key) = &label.key {
        let _ = write!(text, "\n  {:<12}{key}", "key");
    }
    if let Some(sums) = &label.sums {
        let _ = write!(text, "\n  {:<12}{sums}", "sums");
    }
    output::printable(&text)
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
            Err(why) => refused.push(why),
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

/// What these parts of one whole make; or why they make nothing.
pub(super) fn whole_of(
    parts: &[SeenPart],
    places: &[usize],
    specs: &[VolumeSpec],
) -> Result<Made, String> {
    let describe = |e: AssemblyError| e.describe(&|place| specs[places[place]].to_string());
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
    let plan = whole
        .plan(OpeningWish::default())
        .map_err(|refusal| refused(&refusal, &whole, &own, "").message)?;
    let legs = whole.described();
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
