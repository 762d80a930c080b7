//! `thinwire volume assemble`: which volumes parts make, and which those make in turn, as they are described. Nothing is changed.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thinwire_modules::meta::{Finding, LabelError, SeenPart};
use thinwire_modules::{Crypt, Module};

use super::JsonWhole;
use super::look::{Made, NotMade, look_by, whole_of, wholes_of};
use super::pool::with_pool_by;
use crate::cli::VolumeCommon;
use crate::crypted::{takes_key, volume_key_of};
use crate::error::{Failure, Outcome};
use crate::keys::KeyFile;
use crate::last_resort::{LastWords, catch_signals};
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::size::{NAME_BYTES_MAX, check_name};
use crate::trees::NodeName;
use crate::uri::{DEPTH_MAX, InFolders, VolumeSpec, in_folders};

/// Of one pool no more volumes are looked at.
const POOL_VOLUMES_MAX: usize = 1000;
/// A name that was given before has a number behind it, of so many bytes at most.
const NUMBER_BYTES_MAX: usize = 6;

type Uuid = [u8; 16];
type Look<'a> = dyn Fn(&[VolumeSpec]) -> Outcome<Vec<Outcome<SeenPart>>> + 'a;
type List<'a> = dyn Fn(&VolumeSpec) -> Outcome<Vec<String>> + 'a;

/// `volume assemble --json`.
#[derive(Serialize)]
struct Assembled {
    schema: u32,
    /// What others of these are made of stands before them.
    volumes: Vec<AssembledWhole>,
    /// What is in the way of others.
    refused: Vec<String>,
    /// What nobody looked at, and why.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct AssembledWhole {
    #[serde(flatten)]
    whole: JsonWhole,
    /// Those of its legs, counted from 0, that were not found: `parts` has not got them.
    missing_legs: Vec<usize>,
}

/// Shows which volumes parts make, that are given or are in folders which are, and which those make. `keys` are tried on what is encrypted.
pub fn assemble_all(specs: &[VolumeSpec], keys: &[String], common: &VolumeCommon) -> Outcome {
    // What is printed is read from another folder, perhaps.
    let whole_path = |path: &Path| std::path::absolute(path);
    let mut specs = specs.to_vec();
    for spec in &mut specs {
        let absolute = spec.try_map_paths(&whole_path);
        absolute.map_err(|e| Failure::failed(format!("{spec}: {e}")))?;
    }
    let caught = catch_signals(2, &specs.iter().collect::<Vec<_>>())?;
    // What was found by then is not all that there is.
    let go_on = || match caught.0.has_come() {
        true => Err(Failure::failed(
            "it was interrupted: nothing was written, and not all was looked at",
        )),
        false => Ok(()),
    };
    let look = |specs: &[VolumeSpec]| {
        let seen = look_by(specs, common, &caught.0);
        go_on().and(seen)
    };
    let list = |pool: &VolumeSpec| {
        let named = volumes_of_pool(pool, common, &caught);
        go_on().and(named)
    };
    let mut heap = Heap::new(&look, &list);
    for key in keys {
        KeyFile::read(key)?;
        heap.keys.push(match key.contains('/') {
            true => whole_path(Path::new(key)).map_or(key.clone(), |key| key.display().to_string()),
            false => key.clone(),
        });
    }
    let (folders, mut specs) = apart(specs);
    let mut where_not = String::new();
    if !folders.is_empty() {
        let known: Vec<_> = specs.iter().filter_map(path_of).collect();
        let InFolders { parts, seen, unreadable } = in_folders(&folders, &known);
        heap.notes.extend(unreadable.map(|why| format!("of what is in the folders, {why}")));
        if parts.is_empty() {
            where_not = format!(": none of {seen} files and devices in the folders has a label");
        }
        specs.extend(parts.into_iter().map(VolumeSpec::Path));
    }
    heap.add_parts(specs)?;
    heap.climb()?;
    let (made, refused) = heap.make();
    heap.refused.extend(refused);
    heap.note_lacking(&made);
    heap.say(made, &where_not, common.json)
}

/// The folders among these, and the rest.
fn apart(specs: Vec<VolumeSpec>) -> (Vec<PathBuf>, Vec<VolumeSpec>) {
    let (folders, rest): (Vec<_>, Vec<_>) =
        specs.into_iter().partition(|spec| path_of(spec).is_some_and(Path::is_dir));
    (folders.iter().filter_map(path_of).map(Path::to_owned).collect(), rest)
}

/// The names of the volumes of a pool, but for what was copied with its label, and would be taken for the same part.
fn volumes_of_pool(
    pool: &VolumeSpec,
    common: &VolumeCommon,
    caught: &(Signals, LastWords),
) -> Outcome<Vec<String>> {
    with_pool_by(pool, (true, false), false, common, caught, |open| {
        let volumes = open.pool.report().volumes.into_iter();
        let own = volumes.filter(|volume| volume.origin.is_none() && !volume.name.is_empty());
        Ok(own.map(|volume| volume.name).collect())
    })
}

fn path_of(spec: &VolumeSpec) -> Option<&Path> {
    match spec {
        VolumeSpec::Path(path) => Some(path),
        _ => None,
    }
}

/// Parts, those among them that are wholes of others, and what is said of them.
struct Heap<'a> {
    /// Reads the labels of all.
    look: &'a Look<'a>,
    /// Names the volumes of a pool.
    list: &'a List<'a>,
    keys: Vec<String>,
    /// Where labels were looked for, and what stands there.
    specs: Vec<VolumeSpec>,
    seen: Vec<Outcome<SeenPart>>,
    /// Of each, which whole it is, or a volume of, if it is one.
    of: Vec<Option<Uuid>>,
    /// The wholes that have been found, each behind what it is made of, and how each is described.
    described: Vec<(Uuid, VolumeSpec)>,
    refused: Vec<String>,
    notes: Vec<String>,
}

impl<'a> Heap<'a> {
    fn new(look: &'a Look<'a>, list: &'a List<'a>) -> Self {
        Heap {
            look,
            list,
            keys: Vec::new(),
            specs: Vec::new(),
            seen: Vec::new(),
            of: Vec::new(),
            described: Vec::new(),
            refused: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// What was given: each is to be a part.
    fn add_parts(&mut self, specs: Vec<VolumeSpec>) -> Outcome {
        for (seen, spec) in (self.look)(&specs)?.into_iter().zip(specs) {
            match seen.as_ref().map(|part| &part.found) {
                Err(why) => self.refused.push(format!("{spec} cannot be opened: {why}")),
                Ok(Ok(Finding::Blank)) => self.refused.push(format!("{spec} has no label")),
                Ok(Err(error)) => self.refused.push(format!("{spec} {error}")),
                Ok(Ok(Finding::Label(_))) => self.add(spec, seen, None),
            }
        }
        Ok(())
    }

    fn add(&mut self, spec: VolumeSpec, seen: Outcome<SeenPart>, of: Option<Uuid>) {
        self.specs.push(spec);
        self.seen.push(seen);
        self.of.push(of);
    }

    /// Looks at the volumes that were found, and at what those make, until there are no more.
    fn climb(&mut self) -> Outcome {
        // No description can be deeper, and each may lack something.
        for _ in 0..2 * DEPTH_MAX {
            let (mut made, _) = self.make();
            made.retain(|(uuid, _)| self.description(uuid).is_none());
            if made.is_empty() {
                return Ok(());
            }
            // What another one lacks may be what these make.
            if made.iter().any(|(_, whole)| lacking(whole).is_empty()) {
                made.retain(|(_, whole)| lacking(whole).is_empty());
            }
            let (mut of, mut above) = (Vec::new(), Vec::new());
            for (uuid, whole) in made {
                let spec = self.describe(uuid, &whole);
                match self.volumes_on(&spec) {
                    Ok(volumes) => {
                        of.extend(volumes.iter().map(|_| uuid));
                        above.extend(volumes);
                    }
                    Err(why) => self.notes.push(not_looked_at(&spec, &why)),
                }
            }
            let seen = (self.look)(&above)?;
            for ((seen, spec), of) in seen.into_iter().zip(above).zip(of) {
                match seen.as_ref().map(|volume| &volume.found) {
                    Err(why) => self.notes.push(not_looked_at(&spec, why)),
                    Ok(Ok(Finding::Label(_))) => self.add(spec, seen, Some(of)),
                    // It is in use as a disk.
                    Ok(
                        Ok(Finding::Blank) | Err(LabelError::Foreign(_) | LabelError::Unfit { .. }),
                    ) => {}
                    Ok(Err(error)) => self.refused.push(format!("{spec} {error}")),
                }
            }
        }
        Ok(())
    }

    /// What all of these make, each behind what it is made of, and why the rest makes nothing. What stands on a whole that is none any more, since a
    /// copy of a part has come up, is not there.
    fn make(&self) -> (Vec<(Uuid, Made)>, Vec<String>) {
        let mut seen = self.seen.clone();
        loop {
            let (mut made, mut refused) = (Vec::new(), Vec::new());
            for (uuid, places) in wholes_of(&seen) {
                let parts: Vec<_> =
                    places.iter().filter_map(|&place| seen[place].clone().ok()).collect();
                match whole_of(&parts, &places, &self.specs) {
                    Ok(whole) => made.push((uuid, whole)),
                    Err(NotMade { why, .. }) => refused.push(match mirror_of(&parts) {
                        Some(name) => format!("mirror {name:?}: {why}"),
                        None => why,
                    }),
                }
            }
            let is_made = |of: Uuid| made.iter().any(|(uuid, _)| *uuid == of);
            let is_gone = |&place: &usize| {
                seen[place].is_ok() && self.of[place].is_some_and(|of| !is_made(of))
            };
            let gone: Vec<_> = (0..seen.len()).filter(is_gone).collect();
            if gone.is_empty() {
                let nth = |uuid: &Uuid| self.described.iter().position(|(known, _)| known == uuid);
                made.sort_by_key(|(uuid, _)| nth(uuid).unwrap_or(usize::MAX));
                return (self.ordered(made), refused);
            }
            let none = Failure::failed("what it is made of makes nothing");
            gone.into_iter().for_each(|place| seen[place] = Err(none.clone()));
        }
    }

    /// The same, each behind what it is made of, which may have been described later.
    fn ordered(&self, mut made: Vec<(Uuid, Made)>) -> Vec<(Uuid, Made)> {
        let mut found = Vec::new();
        while !made.is_empty() {
            let waits = |(_, whole): &(Uuid, Made)| {
                let below = whole.children.iter().filter_map(|(_, place)| self.of[(*place)?]);
                below.into_iter().any(|of| made.iter().any(|(uuid, _)| *uuid == of))
            };
            // What is made of itself is refused by whoever opens it.
            let next = made.iter().position(|whole| !waits(whole)).unwrap_or(0);
            found.push(made.remove(next));
        }
        found
    }

    fn description(&self, uuid: &Uuid) -> Option<&VolumeSpec> {
        self.described.iter().find(|(known, _)| known == uuid).map(|(_, spec)| spec)
    }

    /// How it is described, under its own name, unless another has that already.
    fn describe(&mut self, uuid: Uuid, whole: &Made) -> VolumeSpec {
        let name = self.free_name(&whole.json.name);
        let children = self.children_of(&name, whole);
        let node = NodeName { file: PathBuf::new(), name };
        let module = Module::find(whole.json.kind).expect("it was found by that name");
        let spec = VolumeSpec::Over {
            node: Some(node),
            module,
            options: whole.options.clone(),
            children,
            places: Vec::new(),
            place: None,
            labels: true,
            inner: None,
            key: self.key_of(whole),
        };
        self.described.push((uuid, spec.clone()));
        spec
    }

    /// What it is described with under that name: something that is nowhere for each part that is not there.
    fn children_of(&self, name: &str, whole: &Made) -> Vec<VolumeSpec> {
        let child = |&(leg, place): &(usize, Option<usize>)| match place {
            Some(place) => self.specs[place].clone(),
            None => nowhere(name, leg),
        };
        whole.children.iter().map(child).collect()
    }

    fn free_name(&self, wanted: &str) -> String {
        let wanted = match check_name("volume name", wanted) {
            Ok(()) => wanted,
            Err(_) => "volume",
        };
        let beginning = &wanted[..wanted.len().min(NAME_BYTES_MAX - NUMBER_BYTES_MAX)];
        let others = (2..).map(|nth| format!("{beginning}-{nth}"));
        let is_free = |name: &String| {
            self.described.iter().all(|(_, described)| described.short_name() != *name)
        };
        let mut names = std::iter::once(wanted.to_owned()).chain(others);
        names.find(is_free).expect("there are more names than volumes")
    }

    /// Which of the keys that were given opens it, if it is encrypted.
    fn key_of(&self, whole: &Made) -> Option<String> {
        let (_, first) = whole.children.first()?;
        let SeenPart { found: Ok(Finding::Label(found)), .. } =
            self.seen[(*first)?].as_ref().ok()?
        else {
            return None;
        };
        let opens = |key: &&String| volume_key_of(&found.label, key, "").is_ok();
        self.keys.iter().filter(|_| takes_key(found.label.module)).find(opens).cloned()
    }

    /// What may be a part, of a whole that was found: itself, and of a pool its volumes.
    fn volumes_on(&mut self, spec: &VolumeSpec) -> Outcome<Vec<VolumeSpec>> {
        let VolumeSpec::Over { module, key, .. } = spec else { return Ok(Vec::new()) };
        if takes_key(module) && key.is_none() {
            return Err(Failure::failed(match self.keys.is_empty() {
                true => "it is encrypted; give its key with --volume-key",
                false => {
                    "it is encrypted, and with none of the keys that were given by --volume-key"
                }
            }));
        }
        if !module.has_volumes() {
            return Ok(vec![spec.clone()]);
        }
        let mut names = (self.list)(spec)?;
        if names.len() > POOL_VOLUMES_MAX {
            self.notes.push(format!(
                "{spec} has {} volumes, and {POOL_VOLUMES_MAX} of them were looked at",
                names.len()
            ));
            names.truncate(POOL_VOLUMES_MAX);
        }
        let of_name = |name: String| {
            let mut volume = spec.clone();
            if let VolumeSpec::Over { node: Some(node), inner, .. } = &mut volume {
                node.name = format!("{}@{name}", node.name);
                *inner = Some(name);
            }
            volume
        };
        Ok(names.into_iter().map(of_name).collect())
    }

    /// How to describe all of these.
    fn text(&self, made: &[(Uuid, Made)]) -> String {
        let texts = made.iter().map(|(uuid, whole)| {
            let described = self.description(uuid);
            toml_of(whole, described, &self.children_of(&self.name_of(uuid, whole), whole))
        });
        texts.collect::<Vec<_>>().join("\n")
    }

    /// By which name it is described.
    fn name_of(&self, uuid: &Uuid, whole: &Made) -> String {
        let described = self.description(uuid).map(VolumeSpec::short_name);
        described.unwrap_or_else(|| whole.json.name.clone())
    }

    /// What is said of legs that were not found.
    fn note_lacking(&mut self, made: &[(Uuid, Made)]) {
        for (uuid, whole) in made {
            let name = self.name_of(uuid, whole);
            for leg in lacking(whole) {
                let place = nowhere(&name, leg);
                let note = whole.note.as_deref().unwrap_or_default();
                self.notes.push(format!(
                    "{name:?} can be used without its leg {leg} (counted from 0), which is not among these: {place} stands for it, where nothing is; put in where it is: {note}"
                ));
            }
        }
    }

    /// Prints it; `where_not` is said if there is nothing.
    fn say(self, made: Vec<(Uuid, Made)>, where_not: &str, is_json: bool) -> Outcome {
        let (is_any, text) = (!made.is_empty(), self.text(&made));
        let renamed = |(uuid, whole): (Uuid, Made)| {
            let (name, missing_legs) = (self.name_of(&uuid, &whole), lacking(&whole));
            AssembledWhole { whole: JsonWhole { name, ..whole.json }, missing_legs }
        };
        let volumes: Vec<_> = made.into_iter().map(renamed).collect();
        let Heap { refused, notes, .. } = self;
        if is_json {
            let (refused, notes) = (refused.clone(), notes.clone());
            output::say_json(&Assembled { schema: SCHEMA, volumes, refused, notes })?;
        } else if is_any {
            output::say(&text)?;
        }
        notes.iter().for_each(|note| output::complain(&output::printable(note)));
        match &refused[..] {
            [] if is_any => Ok(()),
            [] => Err(Failure::failed(format!("there is no volume{where_not}"))),
            all => Err(Failure::failed(all.join("\nthinwire: "))),
        }
    }
}

/// Which legs of a mirror are not there, counted from 0.
fn lacking(whole: &Made) -> Vec<usize> {
    let absent = whole.children.iter().filter(|(_, place)| place.is_none());
    absent.map(|(leg, _)| *leg).collect()
}

/// What stands in a description for a leg of the mirror of that name which is not there.
fn nowhere(name: &str, leg: usize) -> VolumeSpec {
    VolumeSpec::Path(format!("/not-found/{name}-leg-{leg}").into())
}

/// The mirror that these are legs of: what is said of legs does not name it.
fn mirror_of(parts: &[SeenPart]) -> Option<&str> {
    let label = parts.iter().find_map(|part| match &part.found {
        Ok(Finding::Label(found)) => Some(&found.label),
        _ => None,
    });
    label.filter(|label| label.module.is_mirror()).map(|label| &*label.name)
}

fn not_looked_at(spec: &VolumeSpec, why: &Failure) -> String {
    format!("what stands on {spec} was not looked for: {why}")
}

/// As it is written down.
fn toml_of(whole: &Made, described: Option<&VolumeSpec>, children: &[VolumeSpec]) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let JsonWhole { name: by_label, uuid, kind, bytes, .. } = &whole.json;
    let name = described.map_or(by_label.clone(), VolumeSpec::short_name);
    let mut text = format!("# {uuid}, {bytes} bytes\n");
    if name != *by_label {
        let _ = writeln!(text, "# called {} by its labels", quoted(by_label));
    }
    let _ =
        write!(text, "[[volume]]\nname = {}\nkind = \"{kind}\"\nlabels = true\n", quoted(&name));
    for (name, value) in whole.options.iter() {
        let _ = writeln!(text, "{name} = {value}");
    }
    match described {
        Some(VolumeSpec::Over { key: Some(key), .. }) => {
            let _ = writeln!(text, "key = {}", quoted(key));
        }
        _ if *kind == Crypt::NAME => {
            text += "key = \"NAME\" # of the key that it was made with, or its path\n";
        }
        _ => {}
    }
    for leg in lacking(whole) {
        let _ =
            writeln!(text, "# leg {leg} (counted from 0) was not found: {}", nowhere(&name, leg));
    }
    let parts: Vec<_> = children.iter().map(|part| quoted(&part.to_string())).collect();
    let _ = writeln!(text, "children = [{}]", parts.join(", "));
    text
}
