//! The targets of this machine, as `status` shows them.

use std::time::Duration;

use super::{ALWAYS, lasting, path_line, timer};
use crate::control::{
    ControlClient, ControlError, ExportStatus, KeyStatus, LinkStatus, PrivilegesStatus,
    SessionStatus, TargetState, TargetStatus,
};
use crate::error::Outcome;
use crate::health::empty_status;
use crate::output;
use crate::rundir::{ProcessLife, RunDir, TargetRecord};
use crate::size::show_size;
use crate::work::drawn;

/// One target; `None` if it has gone meanwhile.
pub fn look(dir: &RunDir, name: &str, patience: Duration) -> Outcome<Option<TargetStatus>> {
    if !dir.is_alive(name) {
        return bury(dir, name);
    }
    let (state, detail) = match ControlClient::target(dir, name, patience) {
        Ok(status) => return Ok(Some(status)),
        Err(ControlError::Forbidden) => {
            let (state, told) = for_others(dir.life(name));
            (state, Some(told))
        }
        Err(ControlError::Absent) => (TargetState::Starting, None),
        Err(ControlError::Ended) if !dir.is_alive(name) => return bury(dir, name),
        Err(e) => (TargetState::Unresponsive, Some(e.to_string())),
    };
    Ok(dir.target_record(name).map(|record| of_record(&record, state, detail)))
}

/// What can be said to somebody else than the target's user.
fn for_others(life: ProcessLife) -> (TargetState, String) {
    let (state, told) = match life {
        ProcessLife::Unknown => {
            (TargetState::Unresponsive, "no permission to tell whether its process lives")
        }
        _ => (TargetState::Alive, "its process lives; no permission to ask it more"),
    };
    (state, format!("{told}: run this as root or as the user who started it"))
}

/// A dead target: cleaned up and reported, once.
fn bury(dir: &RunDir, name: &str) -> Outcome<Option<TargetStatus>> {
    let Some(record) = dir.target_record(name) else { return Ok(None) };
    let gone = format!("target `{}` was left by a process that is gone", record.node);
    let detail = match dir.claim(name) {
        // The claim takes the files away.
        Ok(Some(_)) => format!("{gone}; cleaned up: removed its control socket and its record"),
        // Somebody was quicker: cleans up, or is the next target.
        Ok(None) => return Ok(None),
        Err(e) => format!("{gone}; cannot clean up: {e}"),
    };
    let mut status = of_record(&record, TargetState::Stale, Some(detail));
    status.pid = 0;
    Ok(Some(status))
}

fn of_record(record: &TargetRecord, state: TargetState, detail: Option<String>) -> TargetStatus {
    let status = empty_status(&record.node, state, record.insecure, record.pid);
    TargetStatus { detail, ..status }
}

/// A table, and below it what does not fit into one.
pub fn text(targets: &[TargetStatus]) -> String {
    let row = |t: &TargetStatus| {
        let count = |count: u64| match t.state {
            TargetState::Serving => count.to_string(),
            _ => "-".to_owned(),
        };
        let links: Vec<_> = t.links.iter().map(|link| link.name.as_str()).collect();
        vec![
            t.node.clone(),
            t.state.word().to_owned(),
            if t.pid == 0 { "-".to_owned() } else { t.pid.to_string() },
            count(u64::from(t.shards)),
            count(t.session_count),
            count(t.counters.requests),
            match (t.insecure, t.keys.is_empty(), t.authenticate_only) {
                (true, _, _) => "INSECURE",
                (false, true, _) => "-",
                (false, false, true) => "keys, not encrypted",
                (false, false, false) => "keys",
            }
            .to_owned(),
            if links.is_empty() { "-".to_owned() } else { links.join(",") },
        ]
    };
    let rows: Vec<_> = targets.iter().map(row).collect();
    let header = ["TARGET", "STATE", "PID", "SHARDS", "SESSIONS", "REQUESTS", "SECURITY", "LINKS"];
    let mut text = output::table(&header, &rows);
    for target in targets {
        for line in lines(target) {
            text += &format!("\n{}: {line}", target.node);
        }
        for export in target.exports.iter().filter(|export| !export.nodes.is_empty()) {
            text +=
                &format!("\n\n{}: export {}:\n{}", target.node, export.name, drawn(&export.nodes));
        }
    }
    text
}

fn lines(target: &TargetStatus) -> Vec<String> {
    let mut lines: Vec<String> = target.links.iter().map(link_line).collect();
    for KeyStatus { name, ids } in &target.keys {
        let used =
            target.sessions.iter().filter(|s| s.key.as_ref().is_some_and(|k| k.name == *name));
        let ids = ids.join(", ");
        lines.push(format!("takes key {name} ({ids}), which {} of its sessions use", used.count()));
    }
    for (name, limit) in target.limits.iter().filter(|(_, limit)| limit.refused > 0) {
        let (value, refused) = (limit.value, limit.refused);
        lines.push(format!("its limit {name} ({value}) was met {refused} times"));
    }
    for export in &target.exports {
        lines.push(export_line(export));
        for leaf in &export.leaves {
            let timer = timer(leaf.timer.as_deref(), leaf.seconds_left);
            let timer = timer.map_or(String::new(), |timer| format!(", {timer}"));
            let (name, state, leaf_name) = (&export.name, leaf.state.word(), leaf.name());
            lines.push(format!("export {name} stands on {leaf_name}, which is {state}{timer}"));
            lines.extend(leaf.paths.iter().map(|path| path_line(path, Some(&leaf_name))));
            lines.extend(leaf.detail.as_ref().map(|detail| format!("{leaf_name}: {detail}")));
        }
    }
    for offer in &target.offers {
        let not = offer.not_promised.join("; ");
        lines.push(format!(
            "offers {}: INSECURE, and {}'s clients are not promised all: {not}",
            offer.offer, offer.protocol
        ));
    }
    for session in &target.sessions {
        lines.push(session_line(session));
        let paths = session.paths.iter();
        lines.extend(paths.map(|path| path_line(path, Some(&session.initiator))));
    }
    if target.spin.as_deref() == Some(ALWAYS) {
        let taken = match target.shards {
            1 => "a whole processor".to_owned(),
            shards => format!("{shards} whole processors"),
        };
        lines.push(format!("never sleeps (--spin always): it takes {taken}"));
    }
    lines.extend(target.privileges.as_ref().map(PrivilegesStatus::describe));
    if !target.drops.is_empty() {
        let drops = target.drops.iter().map(|(reason, count)| format!("{count} as {reason}"));
        lines.push(format!("dropped {}", drops.collect::<Vec<_>>().join(", ")));
    }
    lines.extend(target.control.and_then(|control| control.describe()));
    lines.extend(target.detail.clone());
    lines
}

fn link_line(link: &LinkStatus) -> String {
    let dropped = |count: u64| match count {
        0 => String::new(),
        count => format!(" ({count} dropped)"),
    };
    format!(
        "link {} at {}: {} frames received{}, {} sent{}",
        link.name,
        link.address,
        link.rx_frames,
        dropped(link.rx_dropped),
        link.tx_frames,
        dropped(link.tx_dropped)
    )
}

fn export_line(export: &ExportStatus) -> String {
    let (name, volume, size) = (&export.name, &export.volume, show_size(export.bytes));
    let mut line =
        format!("export {name} of {volume}, {size} in blocks of {} bytes", export.block_bytes);
    line += &export.io.as_ref().map_or(String::new(), |io| format!(", {io}"));
    if export.shards.len() > 1 {
        let shards: Vec<_> = export.shards.iter().map(u32::to_string).collect();
        line += &format!(", by shards {}", shards.join(", "));
    }
    line += &match &export.writer {
        _ if export.read_only => ", read-only".to_owned(),
        None => ", nobody writes".to_owned(),
        Some(writer) => {
            let who = if writer.name.is_empty() { "somebody without a name" } else { &writer.name };
            let generation = export.generation;
            match (writer.attached, writer.silent_s, writer.lease_s) {
                (true, _, _) => {
                    let since = match writer.held_s {
                        Some(seconds) => format!("for {}", lasting(seconds)),
                        None => "since before this target started".to_owned(),
                    };
                    format!(", written by {who} under generation {generation} {since}")
                }
                (false, Some(silent), Some(lease)) if lease > 0.0 => format!(
                    ", held by {who}, which has been silent for {silent:.0} s: another may have it \
                     in {lease:.0} s"
                ),
                // A writer of another protocol has no lease.
                (false, Some(silent), None) => format!(
                    ", held by {who}, which has been silent for {silent:.0} s, and keeps it: another must say \
                     --take-over"
                ),
                (false, Some(silent), _) => format!(
                    ", held by {who}, which has been silent for {silent:.0} s: another may have it"
                ),
                (false, None, _) => format!(
                    ", held by {who} since before this target started: another must say --take-over"
                ),
            }
        }
    };
    line += match export.record.as_str() {
        "reading" => "; who may write is being read, and writers wait for it",
        "unread" => "; who may write cannot be read, so no writer is let in",
        "unsettled" => "; who may write cannot be stored, so nobody writes until it can",
        _ => "",
    };
    if let Some(cache) = &export.cache {
        line += &format!("; {}", cache.describe());
    }
    // What is drawn says how legs stand.
    for mirror in export.mirrors.iter().filter(|_| export.nodes.is_empty()) {
        line += &format!("; {}", mirror.describe());
    }
    if export.losses > 0 {
        line += &format!("; unflushed writes may have been lost {} times", export.losses);
    }
    if let Some(fault) = &export.fault {
        line += &format!("; {fault}");
    }
    line
}

fn session_line(session: &SessionStatus) -> String {
    let exports = match session.exports.is_empty() {
        true => "without an export".to_owned(),
        false => format!("with {}", session.exports.join(", ")),
    };
    let key = session
        .key
        .as_ref()
        .map_or(String::new(), |key| format!(", key {} ({}), {}", key.name, key.id, key.suite));
    format!("session of {} {exports}{key}, heard {:.1} s ago", session.initiator, session.idle_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{
        CacheStatus, LeafStatus, MirrorLegStatus, MirrorStatus, State, WriterStatus,
    };
    use crate::testing::TempDir;
    use crate::work::NodeStatus;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn the_dead_are_reported_once_and_cleaned() {
        let temp = TempDir::new("status-target");
        let dir = RunDir::create(&temp.path().join("run")).unwrap();
        let name = "target-node1";
        let claim = dir.claim(name).unwrap().unwrap();
        claim.write(&TargetRecord::of_this_process("node1", true)).unwrap();
        // Alive, but without a control socket yet.
        assert_eq!(look(&dir, name, SOON).unwrap().unwrap().state, TargetState::Starting);
        let listener = dir.listen(name).unwrap();
        let at_once = Duration::from_millis(1);
        let seen = look(&dir, name, at_once).unwrap().unwrap();
        assert_eq!(seen.state, TargetState::Unresponsive);
        drop(listener);
        claim.abandon();
        assert!(temp.path().join("run/target-node1.sock").exists());
        let seen = look(&dir, name, SOON).unwrap().unwrap();
        assert_eq!((seen.state, seen.pid, seen.node.as_str()), (TargetState::Stale, 0, "node1"));
        let said = text(&[seen]);
        for word in ["stale", "INSECURE", "`node1` was left", "removed its control socket"] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert_eq!(look(&dir, name, SOON).unwrap(), None);
        assert_eq!(std::fs::read_dir(temp.path().join("run")).unwrap().count(), 0);
    }

    /// 10 GiB that nobody has.
    fn export(name: &str, volume: &str) -> ExportStatus {
        ExportStatus {
            name: name.into(),
            volume: volume.into(),
            bytes: 10 << 30,
            block_bytes: 512,
            read_only: false,
            io: None,
            shard: 0,
            shards: vec![0],
            writer: None,
            generation: 3,
            record: "settled".into(),
            losses: 0,
            fault: None,
            copied_bytes: 0,
            cache: None,
            mirrors: Vec::new(),
            leaves: Vec::new(),
            nodes: Vec::new(),
        }
    }

    /// What is drawn says how legs stand, so that the line of the export does not.
    #[test]
    fn what_an_export_is_made_of_is_drawn_behind_the_lines_of_its_target() {
        let node = |depth, name: &str, bytes, leg: Option<usize>| NodeStatus {
            depth,
            name: name.into(),
            kind: "file".into(),
            bytes,
            leg,
            standing: leg.map(|_| "in sync".into()),
            ..NodeStatus::default()
        };
        let leg =
            MirrorLegStatus { standing: "in sync".into(), lacks: 0, retry_s: None, why: None };
        let mut home = export("home", "pool.toml#home");
        home.mirrors = vec![MirrorStatus { legs: vec![leg] }];
        let mut target = empty_status("gw", TargetState::Serving, true, 9);
        target.exports = vec![export("plain", "file:/srv/plain.img"), home.clone()];
        let mirror = home.mirrors[0].describe();
        assert!(text(&[target.clone()]).contains(&mirror), "{mirror}");
        target.exports[1].nodes =
            vec![node(0, "home", 8 << 20, None), node(1, "/srv/a.img", 16 << 20, Some(0))];
        let said = text(&[target]);
        assert!(!said.contains(&mirror), "{said}");
        let drawn = said.split("\n\ngw: export home:\nVOLUME").nth(1).expect(&said);
        let rows: Vec<_> = drawn.lines().skip(1).map(str::trim_end).collect();
        assert_eq!(rows.len(), 2, "{said}");
        assert!(rows[0].starts_with("home ") && rows[0].contains("8 MiB"), "{said}");
        assert!(
            rows[1].starts_with("  /srv/a.img ") && rows[1].contains("leg 0, in sync"),
            "{said}"
        );
        assert!(!said.contains("export plain:"), "{said}");
    }

    #[test]
    fn an_export_says_who_holds_it_and_when_another_may() {
        let mut export = export("disk0", "file:/srv/disk0.img");
        let said = export_line(&export);
        let head = "export disk0 of file:/srv/disk0.img, 10 GiB in blocks of 512 bytes";
        assert_eq!(said, format!("{head}, nobody writes"));
        export.io = Some("buffered".into());
        assert_eq!(export_line(&export), format!("{head}, buffered, nobody writes"));
        let writer = |attached, silent_s, lease_s| {
            let held_s = Some(100.0);
            Some(WriterStatus { name: "b (pid 7)".into(), attached, held_s, silent_s, lease_s })
        };
        for (writer, words) in [
            (
                writer(true, Some(0.1), Some(29.9)),
                "written by b (pid 7) under generation 3 for 100 s",
            ),
            (writer(false, Some(12.0), Some(18.0)), "silent for 12 s: another may have it in 18 s"),
            (writer(false, Some(40.0), Some(0.0)), "silent for 40 s: another may have it"),
            (
                writer(false, Some(40.0), None),
                "silent for 40 s, and keeps it: another must say --take-over",
            ),
            (writer(false, None, None), "another must say --take-over"),
        ] {
            export.writer = writer;
            let said = export_line(&export);
            assert!(said.ends_with(words), "{words}: {said}");
        }
        let mut since_before = writer(true, Some(0.1), Some(29.9)).unwrap();
        since_before.held_s = None;
        export.writer = Some(since_before);
        assert!(
            export_line(&export).ends_with("under generation 3 since before this target started")
        );
        export.record = "reading".into();
        assert!(
            export_line(&export)
                .ends_with("; who may write is being read, and writers wait for it")
        );
        (export.record, export.losses) = ("unsettled".into(), 2);
        let said = export_line(&export);
        assert!(said.contains("nobody writes until it can; unflushed"), "{said}");
        export.fault = Some("its image became shorter".into());
        assert!(export_line(&export).ends_with("2 times; its image became shorter"));
        let cache =
            CacheStatus { bytes: 256 << 20, used: 1 << 20, dirty: 0, hits: 0, misses: 0, ahead: 0 };
        export.cache = Some(cache);
        assert!(export_line(&export).contains("; cache of 256 MiB, 1 MiB used; unflushed"));
        export.cache = Some(CacheStatus { hits: 1999, misses: 1, ..cache });
        let said = export_line(&export);
        assert!(said.contains("1 MiB used, answered 99 % of 2000 reads; unflushed"), "{said}");
        export.cache = Some(CacheStatus { dirty: 4096, ..cache });
        assert!(export_line(&export).contains("1 MiB used, 4 KiB not written yet; unflushed"));
        (export.read_only, export.record) = (true, "unread".into());
        let said = export_line(&export);
        assert!(said.contains(", read-only; who may write cannot be read"), "{said}");
    }

    #[test]
    fn a_leaf_that_is_away_is_shown_with_its_export() {
        let mut target = empty_status("gw", TargetState::Serving, true, 9);
        target.drops.insert("duplicate".into(), 4);
        target.exports.push(ExportStatus {
            leaves: vec![LeafStatus {
                uri: "tw://node2/b?link=eth1".into(),
                member: None,
                state: State::Away,
                paths: Vec::new(),
                timer: Some("reconnect".into()),
                seconds_left: Some(1.4),
                batch: None,
                integrity: None,
                detail: None,
            }],
            ..export("big", "linear:[...]")
        });
        let said = text(&[target]);
        let leaf =
            "gw: export big stands on tw://node2/b?link=eth1, which is away, reconnect in 1 s";
        assert!(said.contains(leaf) && said.ends_with("gw: dropped 4 as duplicate"), "{said}");
    }
}
