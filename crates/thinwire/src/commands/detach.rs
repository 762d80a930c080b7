//! `thinwire detach`.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;

use crate::cli::DetachArgs;
use crate::control::{ControlClient, ControlError, ControlRequest, Response};
use crate::error::{Failure, Outcome};
use crate::leftover;
use crate::output;
use crate::process::signal_exactly;
use crate::rundir::{RunDir, SCHEMA, elsewhere, node_of};

/// How long an attachment may take to say whether it will detach.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a forced detach may take before the process is killed. All in all it ends within 2 s.
const FORCE_PATIENCE: Duration = Duration::from_millis(1000);

/// How long a killed process may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_millis(700);

/// How long a process that said goodbye may take to be gone.
const GOODBYE_PATIENCE: Duration = Duration::from_secs(2);

/// After this long a polite detach is said to be slow, and what else there is.
const SLOW: Duration = Duration::from_secs(5);

/// `detach --json`.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    name: &'a str,
    /// `orderly`, `unheard` (in order, but a target that is away has not heard of it), `forced`, `killed`
    /// or `stale`.
    how: &'a str,
    /// More, for people.
    detail: Option<String>,
}

/// How an attachment ended.
struct End {
    how: &'static str,
    detail: Option<String>,
}

/// Ends the attachment, or fails and says why.
pub fn run(args: &DetachArgs) -> Outcome {
    let name = args.name.as_str();
    let Some(dir) = RunDir::open(&args.run_dir.run_dir)? else { return Err(unknown(args, &[])) };
    let names = dir.names()?;
    if !names.iter().any(|known| known == name) {
        return Err(unknown(args, &names));
    }
    dir.refuse_planted(name)?;
    let end = if !dir.is_alive(name) {
        End { how: "stale", detail: bury(&dir, name)? }
    } else if args.force {
        force(&dir, name)?
    } else {
        ask(&dir, name)?
    };
    if let Some(detail) = &end.detail {
        output::complain(detail);
    }
    match args.json {
        true => output::say_json(&Json { schema: SCHEMA, name, how: end.how, detail: end.detail }),
        false => Ok(()),
    }
}

fn unknown(args: &DetachArgs, names: &[String]) -> Failure {
    let there = match names {
        [] => "there are none".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    if let Some(target) = target_of(args) {
        return target;
    }
    Failure::failed(format!(
        "no attachment `{}` in {}; {there}{}",
        args.name,
        args.run_dir.run_dir.display(),
        elsewhere(&args.run_dir.run_dir)
    ))
}

/// What is said if a target has the name.
fn target_of(args: &DetachArgs) -> Option<Failure> {
    let dir = RunDir::open(&args.run_dir.run_dir).ok()??;
    let is_named = |target: &String| {
        node_of(target) == Some(&args.name) || node_of(target) == node_of(&args.name)
    };
    let target = dir.targets().ok()?.into_iter().find(is_named)?;
    let pid = dir.target_record(&target)?.pid;
    Some(Failure::failed(format!(
        "`{}` is a target, no attachment: it ends with SIGTERM to its process {pid}, or with its service",
        args.name
    )))
}

/// The polite way: as long as it takes, or not at all.
fn ask(dir: &RunDir, name: &str) -> Outcome<End> {
    let silent = |e: ControlError| match e {
        ControlError::Forbidden => forbidden(name),
        e => Failure::failed(format!("cannot detach `{name}`: {e}; --force ends it in any case")),
    };
    let mut client = match ControlClient::ask(dir, name, ControlRequest::Detach { force: false }) {
        Ok(client) => client,
        // Still at its first attach, which a signal ends in order.
        Err(ControlError::Absent) => return cancel(dir, name),
        Err(e) => return Err(silent(e)),
    };
    let refused = |why: String| {
        Failure::failed(format!("`{name}` stays attached: {why}; --force detaches all the same"))
    };
    match client.answer(PATIENCE).map_err(silent)? {
        Response::Detaching => {}
        Response::Refused { why } => return Err(refused(why)),
        other => return Err(silent(ControlError::Garbled(format!("{other:?}")))),
    }
    let mut warned = false;
    let unheard = loop {
        match client.answer(SLOW) {
            Ok(Response::Detached { unheard, .. }) => break unheard,
            Ok(Response::Refused { why }) => return Err(refused(why)),
            Ok(Response::Failed { why }) => {
                return Err(Failure::failed(format!("`{name}`: {why}")));
            }
            Ok(other) => return Err(silent(ControlError::Garbled(format!("{other:?}")))),
            Err(ControlError::Silent) if !warned => {
                warned = true;
                output::complain(&format!(
                    "still detaching `{name}`: what it holds must reach the target first; --force gives it up"
                ));
            }
            Err(ControlError::Silent) => {}
            Err(e) => {
                dir.wait_gone(name, Instant::now() + GOODBYE_PATIENCE);
                let detail = bury(dir, name)?.unwrap_or_default();
                return Err(Failure::failed(format!(
                    "`{name}` did not end in order ({e}): writes since its last flush may be lost. {detail}"
                )));
            }
        }
    };
    if !dir.wait_gone(name, Instant::now() + GOODBYE_PATIENCE) {
        return Err(Failure::failed(format!(
            "`{name}` is detached, but its process does not end; --force kills it"
        )));
    }
    Ok(match unheard {
        None => End { how: "orderly", detail: None },
        Some(detail) => End { how: "unheard", detail: Some(detail) },
    })
}

/// Of another user, who alone may detach it, and root. Force does not help.
fn forbidden(name: &str) -> Failure {
    Failure::failed(format!(
        "cannot detach `{name}`: no permission to ask it; run it as root or as the user who attached it"
    ))
}

/// The failure of a signal to an attachment's process.
fn no_signal(name: &str, tried: &str, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => forbidden(name),
        _ => Failure::failed(format!("{tried}: {error}")),
    }
}

/// Ends an attachment that is not usable yet.
fn cancel(dir: &RunDir, name: &str) -> Outcome<End> {
    if let Some(record) = dir.record(name) {
        signal_exactly(record.pid, record.start_ticks, Signal::TERM)
            .map_err(|e| no_signal(name, &format!("cannot end process {}", record.pid), e))?;
    }
    match dir.wait_gone(name, Instant::now() + GOODBYE_PATIENCE) {
        true => Ok(End { how: "orderly", detail: bury(dir, name)? }),
        false => Err(Failure::failed(format!("`{name}` does not end; --force kills it"))),
    }
}

/// The way that always works: asks for a second, then kills.
fn force(dir: &RunDir, name: &str) -> Outcome<End> {
    let deadline = Instant::now() + FORCE_PATIENCE;
    let left = || deadline.saturating_duration_since(Instant::now());
    let record = dir.record(name);
    let mut outcome = Err(ControlError::Silent);
    if let Ok(mut client) = ControlClient::ask(dir, name, ControlRequest::Detach { force: true }) {
        outcome = client.answer(left());
        while matches!(outcome, Ok(Response::Detaching)) {
            outcome = client.answer(left());
        }
    }
    if let Ok(Response::Refused { why }) = &outcome {
        output::complain(&format!("`{name}` would not go: {why}"));
    }
    if dir.wait_gone(name, deadline) {
        let detail = match outcome {
            Ok(Response::Failed { why }) => Some(why),
            Ok(Response::Detached { still_used, .. }) => {
                still_used.map(|who| format!("`{name}`: {who}"))
            }
            _ => None,
        };
        let left_behind = bury(dir, name)?;
        return Ok(End { how: "forced", detail: detail.or(left_behind) });
    }
    let record = record.or_else(|| dir.record(name)).ok_or_else(|| {
        Failure::failed(format!(
            "`{name}` does not answer, and its record in {} cannot be read: find its process and kill it",
            dir.path().display()
        ))
    })?;
    signal_exactly(record.pid, record.start_ticks, Signal::KILL).map_err(|e| {
        let tried = format!("`{name}` does not answer; cannot kill process {}", record.pid);
        no_signal(name, &tried, e)
    })?;
    if !dir.wait_gone(name, Instant::now() + KILL_PATIENCE) {
        return Err(Failure::failed(format!(
            "`{name}`: process {} was killed but is not gone yet; the kernel still waits for its I/O",
            record.pid
        )));
    }
    bury(dir, name)?;
    let why = match outcome {
        // It has done all that it can, and lets go of its volume now.
        Ok(Response::Detached { .. } | Response::Failed { .. }) => format!(
            "`{name}` is detached, but there was no answer from a disk of {}, so its process was killed: the \
             kernel keeps the lock of that disk until it has answered",
            record.uri
        ),
        _ => format!("`{name}` did not answer, so its process was killed"),
    };
    Ok(End { how: "killed", detail: Some(why) })
}

/// Cleans up after a process that is gone. What was found, if anything was.
fn bury(dir: &RunDir, name: &str) -> Outcome<Option<String>> {
    let Some(claim) = dir.claim(name)? else { return Ok(None) };
    let Some(record) = claim.stale() else { return Ok(None) };
    let cleaned = leftover::clean(record);
    match cleaned.failed.is_empty() {
        true => Ok(Some(cleaned.describe(name))),
        false => Err(Failure::failed(cleaned.describe(name))),
    }
}
