//! `thinwire volume`: labels are written, shown, and put together.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_buffer::SegList;
use thinwire_modules::meta::{
    Assembly, Finding, LABEL_AREA_BYTES, Label, LabelError, LabelOutcome, Labels, NewPart,
    NewWhole, SeenPart, assemble, label_parts, what_is_there,
};
use thinwire_modules::{Module, Options};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_volume::stores::NullStore;
use thinwire_volume::{Completion, Io, Op, Volume};

use crate::cli::{VolumeAction, VolumeArgs, VolumeCommon, WireArgs};
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::host::Host;
use crate::last_resort::catch_signals;
use crate::open::{Ending, OpenVolume, VolumeOptions, Wait, let_go, let_go_failed, open_on};
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// How long a turn may wait, so that signals are heard.
const NAP: Duration = Duration::from_millis(200);

/// Does it.
pub fn run(args: &VolumeArgs) -> Outcome {
    match &args.action {
        VolumeAction::Create { volume, force, take_over, common } => {
            create(volume, *force, *take_over, common)
        }
        VolumeAction::Dump { parts, common } => dump(parts, common),
        VolumeAction::Assemble { parts, common } => show_wholes(parts, common),
    }
}

/// A volume that is described with labels: its name, and what it is.
struct Described<'a> {
    spec: &'a VolumeSpec,
    name: &'a str,
    module: &'static Module,
    options: &'a Options,
    children: &'a [VolumeSpec],
}

/// Those in a volume that are, each behind what it is made of.
fn described<'a>(spec: &'a VolumeSpec, found: &mut Vec<Described<'a>>) {
    let VolumeSpec::Over { node, module, options, children, labels, .. } = spec else { return };
    children.iter().for_each(|child| described(child, found));
    if let (true, Some(node)) = (labels, node) {
        let (module, name) = (*module, &*node.name);
        found.push(Described { spec, name, module, options, children });
    }
}

/// `volume create --json`.
#[derive(Serialize)]
struct Made {
    schema: u32,
    volumes: Vec<JsonWhole>,
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

fn create(spec: &VolumeSpec, force: bool, take_over: bool, common: &VolumeCommon) -> Outcome {
    let mut wanted = Vec::new();
    described(spec, &mut wanted);
    if wanted.last().is_none_or(|last| last.spec != spec) {
        return Err(Failure::usage(format!(
            "{spec} has no labels: describe it in a file, with `labels = true`, and name it as FILE.toml#NAME"
        )));
    }
    spec.refuse_twins().map_err(|why| Failure::failed(format!("cannot make {spec}: {why}")))?;
    refuse_in_use(spec, "making it")?;
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = take_over;
    let mut made = Vec::new();
    for volume in &wanted {
        let whole = create_one(volume, volume.spec == spec, force, &options, &signals);
        let whole = whole.map_err(|e| e.context(format_args!("cannot make {}", volume.spec)));
        made.extend(whole.inspect_err(|failure| last_words.set(failure))?);
    }
    if common.json {
        return output::say_json(&Made { schema: SCHEMA, volumes: made });
    }
    for whole in &made {
        let JsonWhole { name, kind, bytes, parts, .. } = whole;
        output::say(&format!("made {name}: {kind} of {}, {bytes} bytes", parts.join(", ")))?;
    }
    output::say(&format!("use it as {spec}"))
}

fn options_of(common: &VolumeCommon, signals: &Signals) -> Outcome<VolumeOptions> {
    let security = common.security.read()?;
    let mut options =
        VolumeOptions::new(security, &WireArgs::default(), common.run_dir.run_dir.clone());
    options.hurry = signals.hurry();
    Ok(options)
}

/// Makes one whose parts are there. Nothing if it is there itself, and is not what was asked for.
fn create_one(
    volume: &Described<'_>,
    is_asked_for: bool,
    force: bool,
    options: &VolumeOptions,
    signals: &Signals,
) -> Outcome<Option<JsonWhole>> {
    let host = Host::new()?;
    let mut parts: Vec<Box<dyn OpenVolume>> = Vec::new();
    let mut has_written = false;
    let done = open_all(&host, volume.children, options, signals, &mut parts).and_then(|()| {
        let force = force && is_asked_for;
        label_all(volume, is_asked_for, force, &mut parts, signals, &mut has_written)
    });
    let end = |parts: &mut [Box<dyn OpenVolume>]| -> Outcome {
        parts.iter_mut().try_for_each(|part| let_go(&mut **part, Ending::Orderly))
    };
    match done {
        Ok(whole) => end(&mut parts).map(|()| whole),
        Err(failure) => {
            parts.iter_mut().for_each(|part| let_go_failed(&mut **part, has_written));
            Err(failure)
        }
    }
}

fn open_all(
    host: &Host,
    specs: &[VolumeSpec],
    options: &VolumeOptions,
    signals: &Signals,
    parts: &mut Vec<Box<dyn OpenVolume>>,
) -> Outcome {
    for spec in specs {
        parts.push(open_on(host, spec, options, Some(signals))?);
    }
    Ok(())
}

fn label_all(
    volume: &Described<'_>,
    is_asked_for: bool,
    force: bool,
    parts: &mut [Box<dyn OpenVolume>],
    signals: &Signals,
    has_written: &mut bool,
) -> Outcome<Option<JsonWhole>> {
    let (mut labels, seen) = read_labels(parts, signals)?;
    if !is_asked_for && assemble(&seen).is_ok() {
        return Ok(None);
    }
    for (((part, labels), seen), spec) in
        parts.iter_mut().zip(&mut labels).zip(&seen).zip(volume.children)
    {
        if let Some(why) = occupant(&mut **part, seen, signals)? {
            if !force {
                return Err(Failure::failed(format!(
                    "{spec} holds {why}: it would be lost; name another volume, or say --force to overwrite that"
                )));
            }
            output::complain(&format!("{spec} held {why}, which is overwritten"));
            *has_written = true;
            labels.erase(part.volume()).map_err(|e| Failure::failed(format!("{spec} {e}")))?;
            if let LabelOutcome::Erased(Err(e)) = finish(&mut **part, labels, signals)? {
                return Err(Failure::failed(format!("{spec} {e}")));
            }
            clear(&mut **part, signals)?;
        }
    }
    let new: Vec<_> = parts
        .iter_mut()
        .map(|part| {
            let volume = part.volume();
            let (content, bytes) = (volume.identity(), volume.geometry().bytes);
            NewPart { uuid: new_uuid(), content, bytes }
        })
        .collect();
    let bytes = whole_bytes(volume, parts, &new)?;
    let Described { name, module, options, .. } = *volume;
    let whole = NewWhole { name, uuid: new_uuid(), module, options, bytes };
    let made = label_parts(&whole, &new).map_err(|e| Failure::failed(e.to_string()))?;
    for (((part, labels), label), spec) in
        parts.iter_mut().zip(&mut labels).zip(&made).zip(volume.children)
    {
        *has_written = true;
        let failed = |e: LabelError| Failure::failed(format!("{spec} {e}"));
        labels.write(label, part.volume()).map_err(failed)?;
        if let LabelOutcome::Written(Err(e)) = finish(&mut **part, labels, signals)? {
            return Err(failed(e));
        }
    }
    Ok(Some(JsonWhole {
        name: name.to_owned(),
        uuid: hex(&whole.uuid),
        kind: module.name,
        bytes,
        parts: volume.children.iter().map(VolumeSpec::to_string).collect(),
    }))
}

/// What is on a part that is not blank.
fn occupant(
    part: &mut dyn OpenVolume,
    seen: &SeenPart,
    signals: &Signals,
) -> Outcome<Option<String>> {
    if let Ok(Finding::Label(found)) = &seen.found {
        let Label { name, role, .. } = &found.label;
        return Ok(Some(format!("part {role} (counted from 0) of {name:?}")));
    }
    if let Err(error @ (LabelError::Unfit { .. } | LabelError::Unread(_))) = &seen.found {
        return Err(Failure::failed(format!("it {error}")));
    }
    let begins = read(part, LABEL_AREA_BYTES, signals)?;
    Ok(what_is_there(&begins).map(str::to_owned))
}

/// What the module makes of parts of these sizes.
fn whole_bytes(
    volume: &Described<'_>,
    parts: &mut [Box<dyn OpenVolume>],
    new: &[NewPart],
) -> Outcome<u64> {
    let mut stand_ins: Vec<Box<dyn Volume>> = Vec::new();
    for (part, new) in parts.iter_mut().zip(new) {
        let block_bytes = part.volume().geometry().block_bytes;
        stand_ins.push(Box::new(NullStore::new(new.data_bytes(), block_bytes)));
    }
    let opened = volume.module.open(stand_ins, volume.options).map_err(|e| match e.child {
        Some(child) => Failure::failed(format!("the data of {} {}", volume.children[child], e.why)),
        None => Failure::failed(e.to_string()),
    })?;
    Ok(opened.geometry().bytes)
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

/// Nothing of what was there before is found in the place of labels any more.
fn clear(part: &mut dyn OpenVolume, signals: &Signals) -> Outcome {
    let longest = u64::from(part.volume().geometry().io_bytes_max).min(LABEL_AREA_BYTES);
    let mut at = 0;
    while at < LABEL_AREA_BYTES {
        let len = longest.min(LABEL_AREA_BYTES - at);
        let mut io = Io::new(0, Op::Write, at, len);
        io.data = SegList::of(part.pool().get_zeroed(len as usize).freeze());
        io_of(part, io, signals)?
            .result
            .map_err(|e| Failure::failed(format!("its first MiB cannot be cleared: {e}")))?;
        at += len;
    }
    Ok(())
}

/// One I/O, to its end.
fn io_of(part: &mut dyn OpenVolume, io: Io, signals: &Signals) -> Outcome<Completion> {
    part.volume().submit(io);
    let mut done: Vec<Completion> = Vec::new();
    wait_for(part, signals, |volume| {
        volume.poll(&mut done);
        done.pop()
    })
}

/// The first bytes of a part.
fn read(part: &mut dyn OpenVolume, bytes: u64, signals: &Signals) -> Outcome<Vec<u8>> {
    let longest = u64::from(part.volume().geometry().io_bytes_max);
    let mut all = Vec::new();
    while (all.len() as u64) < bytes {
        let at = all.len() as u64;
        let read = io_of(part, Io::new(0, Op::Read, at, longest.min(bytes - at)), signals)?;
        read.result.map_err(|e| Failure::failed(format!("cannot be read: {e}")))?;
        all.extend_from_slice(&read.data.to_vec());
    }
    Ok(all)
}

/// The labels of all, each opened to be read.
fn look_at(parts: &[VolumeSpec], common: &VolumeCommon) -> Outcome<Vec<SeenPart>> {
    let (signals, _) = catch_signals(2, &parts.iter().collect::<Vec<_>>())?;
    let mut options = options_of(common, &signals)?;
    options.read_only = true;
    let host = Host::new()?;
    let mut seen = Vec::new();
    for spec in parts {
        let mut part = [open_on(&host, spec, &options, Some(&signals))?];
        match read_labels(&mut part, &signals) {
            Ok((_, found)) => seen.extend(found),
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
    /// Of all parts, in order.
    parts: Vec<String>,
    options: Vec<(&'static str, u64)>,
    features: [u64; 3],
    is_content: bool,
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
        parts: label.parts.iter().map(|part| hex(&part.uuid)).collect(),
        options: label.options.iter().collect(),
        features: [features.compatible, features.read_only_compatible, features.incompatible],
        is_content: label.content == seen.content,
    }
}

fn dump(parts: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    let seen = look_at(parts, common)?;
    let json = |(spec, seen): (&VolumeSpec, &SeenPart)| {
        let (found, why, label) = match &seen.found {
            Ok(Finding::Blank) => ("blank", None, None),
            Ok(Finding::Label(found)) => {
                let why = found.passed_over.as_ref().map(|fault| format!("the other copy {fault}"));
                ("label", why, Some(json_label(&found.label, seen)))
            }
            Err(error) => ("error", Some(error.to_string()), None),
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
    for (what, value) in [
        ("whole", format!("{}, {} bytes", label.whole, label.whole_bytes)),
        (
            "kind",
            std::iter::once(label.kind.to_owned()).chain(options).collect::<Vec<_>>().join(", "),
        ),
        ("part", label.part.clone()),
        ("data", format!("{} bytes from {} on", label.data_bytes, label.data_start)),
        ("generation", label.generation.to_string()),
        ("opening", label.opening.clone()),
        ("parts", label.parts.join(" ")),
    ] {
        let _ = write!(text, "\n  {what:<12}{value}");
    }
    output::printable(&text)
}

/// `volume assemble --json`.
#[derive(Serialize)]
struct Assembled {
    schema: u32,
    volumes: Vec<JsonWhole>,
    /// What is in the way of others.
    refused: Vec<String>,
}

fn show_wholes(specs: &[VolumeSpec], common: &VolumeCommon) -> Outcome {
    let seen = look_at(specs, common)?;
    let mut wholes: Vec<([u8; 16], Vec<usize>)> = Vec::new();
    let mut refused = Vec::new();
    for (place, part) in seen.iter().enumerate() {
        match &part.found {
            Ok(Finding::Blank) => refused.push(format!("{} has no label", specs[place])),
            Err(error) => refused.push(format!("{} {error}", specs[place])),
            Ok(Finding::Label(found)) => {
                let whole = found.label.whole;
                match wholes.iter_mut().find(|(uuid, _)| *uuid == whole) {
                    Some((_, places)) => places.push(place),
                    None => wholes.push((whole, vec![place])),
                }
            }
        }
    }
    let mut found = Vec::new();
    for (_, places) in wholes {
        let parts: Vec<_> = places.iter().map(|&place| seen[place].clone()).collect();
        match assemble(&parts) {
            Ok(whole) => found.push((json_whole(&whole, &places, specs), whole)),
            Err(e) => refused.push(e.describe(&|place| specs[places[place]].to_string())),
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
fn toml_of(json: &JsonWhole, whole: &Assembly) -> String {
    let quoted = |text: &String| toml::Value::from(text.as_str()).to_string();
    let mut text = format!(
        "# {}, {} bytes\n[[volume]]\nname = {}\nkind = \"{}\"\nlabels = true\n",
        json.uuid,
        json.bytes,
        quoted(&json.name),
        json.kind
    );
    for (name, value) in whole.options.iter() {
        let _ = writeln!(text, "{name} = {value}");
    }
    let parts: Vec<_> = json.parts.iter().map(quoted).collect();
    let _ = writeln!(text, "children = [{}]", parts.join(", "));
    text
}

/// Nobody has it, nor will.
fn new_uuid() -> [u8; 16] {
    *entropy_bytes().first_chunk().expect("there are 32")
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
