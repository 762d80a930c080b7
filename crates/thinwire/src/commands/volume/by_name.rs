//! `thinwire volume status NAME`: what an attachment or an export is made of that no file describes.

use std::path::Path;
use std::time::Duration;

use super::live::say_tree;
use crate::cli::VolumeCommon;
use crate::control::{ControlClient, ControlRequest, Response};
use crate::error::{Failure, Outcome};
use crate::rundir::RunDir;
use crate::size::check_name;
use crate::uri::{NodeName, VolumeSpec};
use crate::work::{NodeStatus, WorkAction, WorkRequest, no_export};

/// So long each of those that may have it may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// So long one may take to tell of a tree that is too large for its status.
const TREE_PATIENCE: Duration = Duration::from_secs(10);

/// The name that this is, if it may be one of an attachment or an export.
pub fn name_of(spec: &VolumeSpec) -> Option<&str> {
    let VolumeSpec::Path(path) = spec else { return None };
    path.to_str().filter(|name| check_name("name", name).is_ok())
}

/// Shows what the attachment, or the export of a target of this machine, of that name is made of.
///
/// # Errors
/// There is none, or more than one, or it is made of nothing else.
pub fn show(name: &str, common: &VolumeCommon) -> Outcome {
    let run_dir = &common.run_dir.run_dir;
    let found = RunDir::open(run_dir)?.map_or_else(|| Ok(Vec::new()), |dir| find(&dir, name))?;
    let (by, nodes) = one_of(found, name, run_dir)?;
    if nodes.is_empty() {
        return Err(Failure::failed(format!(
            "{by} has {name} open, which is not made of other volumes: `thinwire status` shows how it is"
        )));
    }
    say_tree(&by, &nodes, common.json)
}

/// Who has something of that name open, and what that is made of. Who does not answer is passed over, as it is where a description is named.
fn find(dir: &RunDir, name: &str) -> Outcome<Vec<(String, Vec<NodeStatus>)>> {
    let mut found = Vec::new();
    if dir.names()?.iter().any(|attachment| attachment == name)
        && let Ok(status) = ControlClient::status(dir, name, PATIENCE)
    {
        found.push((format!("attachment {name}"), status.nodes));
    }
    for target in dir.targets()? {
        let Ok(status) = ControlClient::target(dir, &target, PATIENCE) else { continue };
        for export in status.exports.into_iter().filter(|export| export.name == name) {
            let nodes = match export.nodes.is_empty() {
                true => all_of(dir, &target, name)?,
                false => export.nodes,
            };
            found.push((format!("target {}", status.node), nodes));
        }
    }
    Ok(found)
}

/// What that export is made of, of which its target says nothing beside all others: they may be too many. None if it is made of nothing else.
fn all_of(dir: &RunDir, target: &str, export: &str) -> Outcome<Vec<NodeStatus>> {
    let volume = NodeName::of_opened(export);
    let request = WorkRequest { action: WorkAction::Status, percent: None };
    let asked = ControlClient::ask(dir, target, ControlRequest::Volume { volume, request });
    match asked.and_then(|mut asked| asked.answer(TREE_PATIENCE)) {
        Ok(Response::Volume { nodes }) if nodes.len() > 1 => Ok(nodes),
        Ok(Response::Volume { .. }) => Ok(Vec::new()),
        Ok(Response::Refused { why }) if why == no_export(export) => Ok(Vec::new()),
        Ok(Response::Refused { why }) => Err(Failure::failed(format!("target {target}: {why}"))),
        Ok(other) => Err(Failure::failed(format!("target {target} says {other:?}"))),
        Err(why) => Err(Failure::failed(format!(
            "target {target} does not say what {export} is made of: {why}"
        ))),
    }
}

fn one_of(
    mut found: Vec<(String, Vec<NodeStatus>)>,
    name: &str,
    run_dir: &Path,
) -> Outcome<(String, Vec<NodeStatus>)> {
    let Some(first) = found.pop() else {
        return Err(Failure::failed(format!(
            "no attachment and no export of a target that answers in {} is called {name}: `thinwire status` shows all, and a volume that a file describes is FILE.toml#NAME",
            run_dir.display()
        )));
    };
    if found.is_empty() {
        return Ok(first);
    }
    let all: Vec<_> = found.iter().chain([&first]).map(|(by, _)| by.as_str()).collect();
    Err(Failure::failed(format!(
        "several have something called {name} open ({}): `thinwire status` shows each",
        all.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_path_and_nothing_that_a_file_describes() {
        for (text, name) in [
            ("disk0", Some("disk0")),
            ("./disk0", None),
            ("/srv/disk0", None),
            ("memory:1M", None),
            ("linear:[disk0]", None),
        ] {
            assert_eq!(name_of(&text.parse().unwrap()), name, "{text}");
        }
    }

    #[test]
    fn one_is_shown_and_of_several_all_are_named() {
        let run_dir = Path::new("/run/thinwire");
        let of = |by: &[&str]| {
            let found = by.iter().map(|by| (by.to_string(), Vec::new()));
            one_of(found.collect(), "disk0", run_dir).map(|(by, _)| by).map_err(|e| e.message)
        };
        assert_eq!(of(&["target a"]).as_deref(), Ok("target a"));
        let why = of(&["attachment disk0", "target a"]).unwrap_err();
        assert!(why.contains("(attachment disk0, target a)"), "{why}");
        let why = of(&[]).unwrap_err();
        assert!(why.contains("in /run/thinwire is called disk0") && why.contains("#NAME"), "{why}");
    }
}
