//! `thinwire status`.

mod targets;

use std::time::Duration;

use serde::Serialize;

use crate::attachment::unix_ms;
use crate::cli::StatusArgs;
use crate::control::{
    AttachmentStatus, ControlClient, ControlError, MirrorStatus, PathStatus, State, TargetStatus,
};
use crate::error::{Failure, Outcome};
use crate::leftover;
use crate::output;
use crate::rundir::{ProcessLife, Record, RunDir, SCHEMA, TARGET_PREFIX, elsewhere, node_of};
use crate::work::drawn;

/// An attachment or a target that does not answer for this long is called unresponsive.
const PATIENCE: Duration = Duration::from_millis(500);

/// The `spin` that costs a processor.
const ALWAYS: &str = "always";

/// `status --json` (`docs/status.md`).
#[derive(Serialize)]
struct Json {
    schema: u32,
    attachments: Vec<AttachmentStatus>,
    targets: Vec<TargetStatus>,
}

/// Asks all attachments and targets (or one) how they are; cleans up after those whose process was killed.
pub fn run(args: &StatusArgs) -> Outcome {
    let (mut attachments, mut targets) = (Vec::new(), Vec::new());
    let run_dir = &args.run_dir.run_dir;
    if let Some(dir) = RunDir::open(run_dir)? {
        dir.planted().iter().for_each(|odd| output::complain(odd));
        let (names, nodes) = select(args.name.as_deref(), dir.names()?, dir.targets()?)?;
        for name in names {
            attachments.extend(look(&dir, &name)?);
        }
        for name in nodes {
            targets.extend(targets::look(&dir, &name, PATIENCE)?);
        }
    }
    let texts = [
        (!attachments.is_empty()).then(|| text(&attachments)),
        (!targets.is_empty()).then(|| targets::text(&targets)),
    ];
    let nothing = attachments.is_empty() && targets.is_empty();
    if args.json {
        output::say_json(&Json { schema: SCHEMA, attachments, targets })?;
    } else if !nothing {
        let text = texts.into_iter().flatten().collect::<Vec<_>>().join("\n\n");
        output::say(&output::printable(&text))?;
    }
    let place = || format!("in {}{}", run_dir.display(), elsewhere(run_dir));
    match &args.name {
        Some(name) if nothing => Err(Failure::failed(format!(
            "there is no attachment and no target `{name}` {}",
            place()
        ))),
        None if nothing && !args.json => {
            output::say(&format!("no attachments and no targets {}", place()))
        }
        _ => Ok(()),
    }
}

/// Which attachments and targets are asked for: all, the attachment of a name, or the targets of a node,
/// called so or with `target-` before it.
///
/// # Errors
/// An attachment and a target have that name.
fn select(
    wanted: Option<&str>,
    mut names: Vec<String>,
    mut targets: Vec<String>,
) -> Outcome<(Vec<String>, Vec<String>)> {
    let Some(wanted) = wanted else { return Ok((names, targets)) };
    names.retain(|name| name == wanted);
    let node = wanted.strip_prefix(TARGET_PREFIX);
    let is_wanted = |found: &str| found == wanted || Some(found) == node;
    targets.retain(|name| node_of(name).is_some_and(is_wanted));
    if !names.is_empty() && targets.iter().any(|name| node_of(name) == Some(wanted)) {
        return Err(Failure::failed(format!(
            "`{wanted}` is an attachment and a target: say {TARGET_PREFIX}{wanted} for the target, or no \
             name for all"
        )));
    }
    Ok((names, targets))
}

/// One attachment; `None` if it has gone meanwhile.
fn look(dir: &RunDir, name: &str) -> Outcome<Option<AttachmentStatus>> {
    if !dir.is_alive(name) {
        return bury(dir, name);
    }
    let (state, detail) = match ControlClient::status(dir, name, PATIENCE) {
        Ok(status) => return Ok(Some(status)),
        Err(ControlError::Forbidden) => {
            let (state, told) = for_others(dir.life(name));
            (state, Some(told))
        }
        Err(ControlError::Absent) => (State::Connecting, None),
        Err(ControlError::Ended) if !dir.is_alive(name) => return bury(dir, name),
        Err(e) => (State::Unresponsive, Some(e.to_string())),
    };
    Ok(dir.record(name).map(|record| of_record(record, state, detail)))
}

/// What can be said to somebody else than the attachment's user.
fn for_others(life: ProcessLife) -> (State, String) {
    let (state, told) = match life {
        ProcessLife::Unknown => {
            (State::Unresponsive, "no permission to tell whether its process lives")
        }
        _ => (State::Alive, "its process lives; no permission to ask it more"),
    };
    (state, format!("{told}: run this as root or as the user who attached it"))
}

/// A dead attachment: cleaned up and reported, once.
fn bury(dir: &RunDir, name: &str) -> Outcome<Option<AttachmentStatus>> {
    let Some(record) = dir.record(name) else {
        return Ok(None);
    };
    let detail = match dir.claim(name) {
        Ok(Some(claim)) => match claim.stale() {
            Some(record) => leftover::clean(record).describe(name),
            None => return Ok(None),
        },
        // Somebody was quicker: cleans up, or attaches anew.
        Ok(None) => return Ok(None),
        Err(e) => format!("its process is gone; cannot clean up: {e}"),
    };
    let mut status = of_record(record, State::Stale, Some(detail));
    status.pid = 0;
    Ok(Some(status))
}

fn of_record(record: Record, state: State, detail: Option<String>) -> AttachmentStatus {
    let connecting = state == State::Connecting;
    let gives_up = record.gives_up_ms.filter(|_| connecting);
    AttachmentStatus {
        name: record.name,
        uri: record.uri,
        frontend: record.frontend,
        path: record.path,
        state,
        insecure: record.insecure,
        key: record.key,
        suite: None,
        paths: Vec::new(),
        leaves: Vec::new(),
        timer: gives_up.map(|_| "attach".to_owned()),
        seconds_left: gives_up.map(|ms| ms.saturating_sub(unix_ms()) as f64 / 1000.0),
        read_only: false,
        bytes: 0,
        outstanding: 0,
        pid: record.pid,
        batch: None,
        integrity: None,
        mirrors: Vec::new(),
        cache: None,
        nodes: Vec::new(),
        spin: None,
        control: None,
        detail,
    }
}

/// A table, and below it what does not fit into one.
fn text(attachments: &[AttachmentStatus]) -> String {
    let row = |a: &AttachmentStatus| {
        vec![
            a.name.clone(),
            a.state.word().to_owned(),
            a.path.clone().unwrap_or("-".into()),
            timer(a.timer.as_deref(), a.seconds_left).unwrap_or("-".into()),
            security(a),
            a.uri.clone(),
        ]
    };
    let rows: Vec<_> = attachments.iter().map(row).collect();
    let mut text = output::table(&["NAME", "STATE", "PATH", "TIMER", "SECURITY", "URI"], &rows);
    for a in attachments {
        let mut lines = Vec::new();
        for leaf in &a.leaves {
            let timer = timer(leaf.timer.as_deref(), leaf.seconds_left);
            let timer = timer.map_or(String::new(), |timer| format!(", {timer}"));
            let detail = leaf.detail.as_ref().map_or(String::new(), |detail| format!(": {detail}"));
            let name = leaf.name();
            lines.push(format!("{name} is {}{timer}{detail}", leaf.state.word()));
            lines.extend(leaf.paths.iter().map(|path| path_line(path, Some(&name))));
        }
        if a.leaves.is_empty() {
            lines.extend(a.paths.iter().map(|path| path_line(path, None)));
        }
        lines.extend(a.key.as_ref().map(|key| format!("shows key {key}")));
        if a.spin.as_deref() == Some(ALWAYS) {
            lines.push("never sleeps (--spin always): it takes a whole processor".to_owned());
        }
        // What is drawn says how legs stand.
        if a.nodes.is_empty() {
            lines.extend(a.mirrors.iter().map(MirrorStatus::describe));
        }
        lines.extend(a.cache.map(|cache| cache.describe()));
        lines.extend(a.integrity.map(|integrity| integrity.describe()));
        lines.extend(a.control.and_then(|control| control.describe()));
        // That of the whole is that of the leaf which is worst off.
        let is_told = a.detail.is_some() && a.leaves.iter().any(|leaf| leaf.detail == a.detail);
        lines.extend(a.detail.clone().filter(|_| !is_told));
        for line in lines {
            text += &format!("\n{}: {line}", a.name);
        }
        if !a.nodes.is_empty() {
            text += &format!("\n\n{}:\n{}", a.name, drawn(&a.nodes));
        }
    }
    text
}

/// `INSECURE`, or the suite, or `key` if that is not known.
fn security(a: &AttachmentStatus) -> String {
    match (a.insecure, &a.suite, &a.key) {
        (true, _, _) => "INSECURE".to_owned(),
        (false, Some(suite), _) => suite.clone(),
        (false, None, Some(_)) => "key".to_owned(),
        (false, None, None) => "-".to_owned(),
    }
}

fn timer(timer: Option<&str>, seconds_left: Option<f64>) -> Option<String> {
    match (timer?, seconds_left) {
        (timer, Some(left)) => Some(format!("{timer} in {left:.0} s")),
        (timer, None) => Some(timer.to_owned()),
    }
}

/// How long something has lasted, in the largest unit of which it has two.
fn lasting(seconds: f64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "days"), (3600, "h"), (60, "min")];
    let seconds = seconds as u64;
    let unit = UNITS.into_iter().find(|(length, _)| seconds >= 2 * length);
    let (length, unit) = unit.unwrap_or((1, "s"));
    format!("{} {unit}", seconds / length)
}

/// One path; `of`: whose it is, if that is not clear.
fn path_line(path: &PathStatus, of: Option<&str>) -> String {
    let rtt = path.rtt_us.map_or(String::new(), |rtt| format!(", {rtt:.0} us round trip"));
    let of = of.map_or(String::new(), |of| format!(" ({of})"));
    format!(
        "path {} to {}{of} is {}, frames of {}{rtt}, {} lost",
        path.link,
        path.remote,
        path.state,
        frame_size(path),
        path.lost
    )
}

/// The frame size in use; if it is not the full one, when that is tried again.
fn frame_size(path: &PathStatus) -> String {
    let used = path.frame_bytes;
    match path.full_size_retry_s {
        Some(seconds) => format!(
            "{used} bytes (of {}; the full size is tried again in {seconds:.0} s)",
            path.frame_bytes_limit
        ),
        None => format!("{used} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::LeafStatus;
    use crate::leftover::Leftover;
    use crate::testing::TempDir;

    #[test]
    fn the_dead_are_reported_once_and_cleaned() {
        let temp = TempDir::new("status");
        let dir = RunDir::create(&temp.path().join("run")).unwrap();
        let socket = temp.path().join("disk.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let claim = dir.claim("a").unwrap().unwrap();
        let mut record = Record::of_this_process("a", "null:512".into(), "nbd", true);
        record.gives_up_ms = Some(unix_ms() + 60_000);
        record.leftovers.push(Leftover::Socket { path: socket.clone() });
        claim.write(&record).unwrap();
        // Alive, but without a control socket yet.
        let seen = look(&dir, "a").unwrap().unwrap();
        assert_eq!((seen.state, seen.timer.as_deref()), (State::Connecting, Some("attach")));
        assert!(seen.seconds_left.is_some_and(|left| (0.0..=60.0).contains(&left)));
        let listener = dir.listen("a").unwrap();
        assert_eq!(look(&dir, "a").unwrap().unwrap().state, State::Unresponsive);
        drop(listener);
        claim.abandon();
        let seen = look(&dir, "a").unwrap().unwrap();
        assert_eq!((seen.state, seen.pid), (State::Stale, 0));
        assert!(seen.detail.as_ref().unwrap().contains("disk.sock"), "{seen:?}");
        assert!(text(&[seen]).contains("INSECURE"));
        assert!(!socket.exists());
        assert_eq!(look(&dir, "a").unwrap(), None);
        assert!(dir.names().unwrap().is_empty());
    }

    #[test]
    fn a_name_means_an_attachment_or_a_target() {
        let all = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let select = |wanted| {
            select(wanted, all(&["a", "both"]), all(&["target-both", "target-n", "target-n@7"]))
        };
        for (wanted, names, targets) in [
            ("a", &["a"][..], &[][..]),
            ("n", &[], &["target-n", "target-n@7"]),
            ("target-n", &[], &["target-n", "target-n@7"]),
            ("target-both", &[], &["target-both"]),
            ("other", &[], &[]),
        ] {
            assert_eq!(select(Some(wanted)).unwrap(), (all(names), all(targets)), "{wanted}");
        }
        assert_eq!(select(None).unwrap().1.len(), 3);
        let error = select(Some("both")).unwrap_err();
        assert!(error.message.contains("say target-both for the target"), "{error}");
    }

    #[test]
    fn of_each_leaf_all_is_shown_that_it_tells() {
        let record = Record::of_this_process("big", "linear:[...]".into(), "nbd", true);
        let detail = |said: &str| Some(said.to_owned());
        let mut status = of_record(record, State::Changed, detail("other content"));
        let leaf = |uri: &str, state, detail| LeafStatus {
            uri: uri.into(),
            member: None,
            state,
            paths: Vec::new(),
            timer: None,
            seconds_left: None,
            batch: None,
            integrity: None,
            detail,
        };
        status.leaves = vec![
            leaf("tw://a/x", State::Attached, detail("writing again")),
            leaf("tw://b/y", State::Changed, detail("other content")),
            leaf("tw://c/z", State::Away, None),
        ];
        let said = text(&[status]);
        let lines: Vec<_> = said.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "big: tw://a/x is attached: writing again",
                "big: tw://b/y is changed: other content",
                "big: tw://c/z is away",
            ],
            "each once, also what is that of the whole"
        );
    }

    #[test]
    fn who_may_not_ask_a_live_one_is_told_that_it_lives() {
        let (state, told) = for_others(ProcessLife::Alive);
        assert!(state == State::Alive && told.contains("as root"), "{told}");
        let (state, told) = for_others(ProcessLife::Unknown);
        assert!(state == State::Unresponsive && told.contains("no permission"), "{told}");
    }

    #[test]
    fn how_long_is_said_in_one_unit() {
        for (seconds, said) in
            [(0.4, "0 s"), (119.0, "119 s"), (150.0, "2 min"), (7300.0, "2 h"), (2e5, "2 days")]
        {
            assert_eq!(lasting(seconds), said);
        }
    }

    #[test]
    fn a_path_below_its_full_size_says_when_that_is_tried_again() {
        let mut path = PathStatus {
            link: "eth1".into(),
            remote: "02-00-00-00-00-02".into(),
            state: "up".into(),
            frame_bytes: 1500,
            frame_bytes_limit: 9000,
            full_size_retry_s: Some(41.6),
            rtt_us: None,
            lost: 0,
        };
        let said = frame_size(&path);
        assert_eq!(said, "1500 bytes (of 9000; the full size is tried again in 42 s)");
        (path.frame_bytes, path.full_size_retry_s) = (9000, None);
        assert_eq!(frame_size(&path), "9000 bytes");
    }
}
