//! `thinwire key`: makes keys, and tells their ids.

use std::path::Path;

use serde::Serialize;

use crate::cli::{KeyAction, KeyArgs};
use crate::error::Outcome;
use crate::keys::{self, KeyFile};
use crate::output;
use crate::rundir::SCHEMA;

/// `key --json`.
#[derive(Serialize)]
struct Json {
    schema: u32,
    name: String,
    path: String,
    /// In the order of the file; the last is the one that is shown to targets.
    ids: Vec<String>,
}

/// Does it.
pub fn run(args: &KeyArgs) -> Outcome {
    match &args.action {
        KeyAction::New { name, dir, add, json } => new(name, dir, *add, *json),
        KeyAction::Id { key, json } => {
            let file = KeyFile::read(key)?;
            match json {
                true => output::say_json(&shown(&file)),
                false => file.ids().try_for_each(|id| output::say(&id.to_string())),
            }
        }
    }
}

fn new(name: &str, dir: &Path, adds: bool, json: bool) -> Outcome {
    let file = keys::make(name, dir, adds)?;
    match json {
        true => output::say_json(&shown(&file)),
        false => output::say(&file.path.display().to_string()),
    }
}

fn shown(file: &KeyFile) -> Json {
    let (name, path) = (file.name.clone(), file.path.display().to_string());
    Json { schema: SCHEMA, name, path, ids: file.ids().map(|id| id.to_string()).collect() }
}
