//! `thinwire reload`.

use std::time::Duration;

use serde::Serialize;

use crate::cli::ReloadArgs;
use crate::control::{ControlClient, ControlError};
use crate::error::{Failure, Outcome};
use crate::output;
use crate::reload::Reloaded;
use crate::rundir::{RunDir, SCHEMA, TARGET_PREFIX, elsewhere, node_of};

/// How long a target may take to read its files.
const PATIENCE: Duration = Duration::from_secs(20);

/// `reload --json`.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    node: &'a str,
    #[serde(flatten)]
    reloaded: &'a Reloaded,
}

/// Has the target, or all of that node name, read its configuration again.
pub fn run(args: &ReloadArgs) -> Outcome {
    let path = &args.run_dir.run_dir;
    let dir = RunDir::open(path)?;
    let mut names = dir.as_ref().map(RunDir::targets).transpose()?.unwrap_or_default();
    names.retain(|name| dir.as_ref().is_some_and(|dir| dir.is_alive(name)));
    let there: Vec<&str> = names.iter().filter_map(|name| node_of(name)).collect();
    let there = if there.is_empty() {
        "there is none".into()
    } else {
        format!("there are: {}", there.join(", "))
    };
    if let Some(node) = &args.node {
        let node = node.strip_prefix(TARGET_PREFIX).unwrap_or(node);
        names.retain(|name| node_of(name) == Some(node));
    } else if names.len() > 1 {
        return Err(Failure::usage(format!("say which target; {there}")));
    }
    let (Some(dir), false) = (&dir, names.is_empty()) else {
        let which = args.node.as_ref().map(|node| format!(" `{node}`")).unwrap_or_default();
        let (path, elsewhere) = (path.display(), elsewhere(path));
        return Err(Failure::failed(format!("no target{which} in {path}; {there}{elsewhere}")));
    };
    let refusals = names.iter().filter_map(|name| one(dir, name, args.json).err());
    match refusals.reduce(|all, more| Failure::failed(format!("{all}\nthinwire: {more}"))) {
        None => Ok(()),
        Some(refusal) => Err(refusal),
    }
}

fn one(dir: &RunDir, name: &str, json: bool) -> Outcome {
    dir.refuse_planted(name)?;
    let node = node_of(name).unwrap_or(name);
    let reloaded = ControlClient::reload(dir, name, PATIENCE).map_err(|e| match e {
        ControlError::Forbidden => Failure::failed(format!(
            "cannot reload {node}: no permission to ask it; run it as root or as the target's user"
        )),
        ControlError::Silent => Failure::failed(format!(
            "{node} has not answered in {} s: whether it reads its configuration is not known",
            PATIENCE.as_secs()
        )),
        e => Failure::failed(format!("cannot reload {node}: {e}")),
    })?;
    let reloaded =
        reloaded.map_err(|why| Failure::failed(format!("{node} goes on as before: {why}")))?;
    if json {
        return output::say_json(&Json { schema: SCHEMA, node, reloaded: &reloaded });
    }
    let lines = reloaded.describe();
    lines.iter().try_for_each(|line| output::say(&output::printable(&format!("{node}: {line}"))))
}
