//! From what attachments, sessions and shards report to what `status` shows of them.

use std::collections::BTreeMap;
use std::time::Duration;

use thinwire_initiator::{AlteredStats, InitiatorReport, Phase, Timer};
use thinwire_proto::{PathReport, PathState, Time};
use thinwire_runtime::inquiry::{LeafReport, SESSIONS_TOLD_MAX, ShardReport};
use thinwire_target::{ExportReport, RecordReport};
use thinwire_volume::ErrorKind;

use crate::config::TargetSettings;
use crate::control::{
    BatchStatus, CacheStatus, ExportStatus, IntegrityStatus, KeyStatus, LeafStatus, LinkStatus,
    MirrorStatus, OfferStatus, PathStatus, SessionKeyStatus, SessionStatus, State, TargetCounters,
    TargetState, TargetStatus, WriterStatus,
};
use crate::export::ExportSpec;
use crate::open::VolumeHealth;
use crate::work::ToldTree;

/// Paths, whose links are called as `link` says.
pub fn paths(reports: &[PathReport], now: Time, link: impl Fn(usize) -> String) -> Vec<PathStatus> {
    let path = |path: &PathReport| PathStatus {
        link: link(path.link),
        remote: path.addr.to_string(),
        state: match path.state {
            PathState::Active => "up".into(),
            PathState::Candidate => "probing".into(),
            PathState::Dead => "down".into(),
        },
        frame_bytes: path.frame_bytes as u32,
        frame_bytes_limit: path.frame_bytes_limit as u32,
        full_size_retry_s: path.full_size_retry.map(|at| at.since(now).as_secs_f64()),
        rtt_us: (path.frames_sent > 0).then_some(path.rtt.as_secs_f64() * 1e6),
        lost: path.frames_lost,
    };
    reports.iter().map(path).collect()
}

/// An attachment, be it all of a volume or a part of it. One that failed for good fails `until` then.
pub fn leaf(
    uri: &str,
    report: &InitiatorReport,
    now: Time,
    link: impl Fn(usize) -> String,
    until: &str,
) -> LeafStatus {
    let timer = report.timer.as_ref().map(|timer| match timer {
        Timer::FailAfter(left) => ("fail-after", *left),
        Timer::Reconnect(left) => ("reconnect", *left),
    });
    LeafStatus {
        uri: uri.to_owned(),
        member: None,
        state: match (report.phase, report.failure) {
            (_, Some(ErrorKind::Fenced)) => State::Fenced,
            (Phase::Failed, _) => State::Changed,
            (Phase::Away | Phase::Connecting, _) => State::Away,
            (Phase::Detaching | Phase::Closed, _) => State::Detaching,
            (Phase::Attached | Phase::Replaying, _) => State::Attached,
        },
        paths: paths(&report.paths, now, link),
        timer: timer.map(|(name, _)| name.to_owned()),
        seconds_left: timer.map(|(_, left)| left.as_secs_f64()),
        batch: Some(BatchStatus {
            policy: report.batch_policy.to_string(),
            level: report.batch_level as u64,
            requests: report.session.requests_sent,
            frames: report.session.request_frames,
        }),
        integrity: report.integrity.then(|| {
            let AlteredStats { writes, here, reads, failed } = report.stats.altered;
            IntegrityStatus { writes, here, reads, failed }
        }),
        detail: match (report.failure, report.phase, &report.hint) {
            (Some(kind), _, _) => Some(format!("{}; I/O fails until {until}", kind.describe())),
            (None, Phase::Replaying, _) => Some("writing again what the target lost".to_owned()),
            // Without the key anybody could have said it.
            (None, Phase::Away, Some(hint)) => {
                Some(format!("not let in again; it is told: {hint}"))
            }
            _ => None,
        },
    }
}

/// How a volume is that is made of these: as the one which is worst off, with the paths of all.
pub fn together(leaves: impl Iterator<Item = VolumeHealth>) -> VolumeHealth {
    let mut together = Together::default();
    leaves.for_each(|leaf| together.add(leaf));
    together.into_health()
}

/// The same, one after the other. Takes nothing from the allocator for what is local.
#[derive(Default)]
pub struct Together {
    all: Option<VolumeHealth>,
    batches: u32,
}

impl Together {
    /// One more is below the volume.
    pub fn add(&mut self, other: VolumeHealth) {
        self.batches += u32::from(other.batch.is_some());
        let Some(all) = &mut self.all else {
            self.all = Some(other);
            return;
        };
        if severity(other.state) > severity(all.state) {
            (all.state, all.timer, all.detail) = (other.state, other.timer, other.detail);
        }
        all.paths.extend(other.paths);
        all.unflushed |= other.unflushed;
        all.may_lose |= other.may_lose;
        if other.suite != all.suite {
            all.suite = None;
        }
        all.integrity = match (all.integrity, other.integrity) {
            (Some(all), Some(other)) => Some(all.with(&other)),
            (all, other) => all.or(other),
        };
        all.batch = all.batch.take().or(other.batch);
    }

    /// How the volume is.
    pub fn into_health(self) -> VolumeHealth {
        let mut all = self.all.unwrap_or_else(VolumeHealth::local);
        // One level says nothing of several sessions.
        all.batch = all.batch.filter(|_| self.batches == 1);
        all
    }
}

/// The worse, the more.
fn severity(state: State) -> u8 {
    match state {
        State::Attached | State::Alive => 0,
        State::Connecting => 1,
        State::Detaching => 2,
        State::Away | State::Unresponsive => 3,
        State::Changed | State::Stale => 4,
        State::Fenced => 5,
    }
}

/// What all shards of this process tell together, as far as they did within `patience`.
pub fn target(
    config: &TargetSettings,
    state: TargetState,
    patience: Duration,
    reports: &[Option<ShardReport>],
) -> TargetStatus {
    let mut all = empty_status(&config.node, state, config.insecure, std::process::id() as i32);
    for (limit, value) in config.limits.iter() {
        all.limits.entry(limit.name().to_owned()).or_default().value = value;
    }
    all.authenticate_only = config.authenticate_only;
    all.keys.extend(config.keys.iter().map(|key| KeyStatus {
        name: key.name.clone(),
        ids: key.ids().map(|id| id.to_string()).collect(),
    }));
    all.offers.extend(config.offers.iter().map(|offer| OfferStatus {
        offer: offer.to_string(),
        export: offer.export.clone(),
        protocol: offer.protocol.name().to_owned(),
        insecure: true,
        not_promised: offer.protocol.not_promised().into_iter().map(str::to_owned).collect(),
    }));
    all.shards = reports.len() as u32;
    all.spin = Some(config.spin.to_string());
    let (mut silent, mut untold) = (Vec::new(), 0);
    for (index, report) in reports.iter().enumerate() {
        match report {
            Some(report) => untold += add(&mut all, config, report),
            None => silent.push(index.to_string()),
        }
    }
    // As the user gave them.
    let place = |name: &str| config.exports.iter().position(|export| export.name == name);
    all.exports.sort_by_key(|export| place(&export.name));
    for export in &mut all.exports {
        if !export.shards.contains(&export.shard) {
            let why =
                || format!("shard {}, which decides who writes it, did not answer", export.shard);
            export.fault = export.fault.take().or_else(|| Some(why()));
        }
    }
    let mut details: Vec<String> = all.fenced.iter().map(|name| fenced(name)).collect();
    if !silent.is_empty() {
        let seconds = patience.as_secs_f64();
        let silent = silent.join(", ");
        details.push(format!("no answer within {seconds} s of shard {silent}, not shown here"));
    }
    if untold > 0 {
        details.push(format!(
            "what {untold} exports are made of is not shown, since a shard has too many volumes to tell of all: `thinwire volume status EXPORT` shows each"
        ));
    }
    if all.session_count > all.sessions.len() as u64 {
        let (shown, count) = (all.sessions.len(), all.session_count);
        details.push(format!(
            "{shown} of {count} sessions are shown, at most {SESSIONS_TOLD_MAX} of each shard"
        ));
    }
    all.detail = (!details.is_empty()).then(|| details.join("; "));
    all
}

/// What is said of an export that another target serves by now.
fn fenced(export: &str) -> String {
    format!(
        "export {export} is not served: what it is made of was granted to another target, which has taken the place of this one"
    )
}

/// Of a target that tells nothing of itself.
pub fn empty_status(node: &str, state: TargetState, insecure: bool, pid: i32) -> TargetStatus {
    TargetStatus {
        node: node.to_owned(),
        state,
        insecure,
        keys: Vec::new(),
        authenticate_only: false,
        shards: 0,
        spin: None,
        links: Vec::new(),
        exports: Vec::new(),
        fenced: Vec::new(),
        offers: Vec::new(),
        sessions: Vec::new(),
        session_count: 0,
        counters: TargetCounters::default(),
        drops: BTreeMap::new(),
        limits: BTreeMap::new(),
        control: None,
        pid,
        privileges: None,
        detail: None,
    }
}

/// What a shard tells; of how many exports it does not tell what they are made of.
fn add(all: &mut TargetStatus, config: &TargetSettings, report: &ShardReport) -> usize {
    let shard = u32::from(report.index);
    let mut untold = 0;
    all.session_count += report.session_count as u64;
    add_links(&mut all.links, report);
    for export in &report.exports {
        // One that a reload has made a store of may be known there yet.
        let is_store = |spec: &&ExportSpec| spec.name == export.name && spec.volume.is_store();
        let tree = report.trees.iter().find(|(name, _)| *name == export.name);
        let tree = tree.filter(|_| !config.exports.iter().any(|spec| is_store(&spec)));
        let tree = tree.map(|(_, words)| ToldTree::of_words(words));
        untold += usize::from(tree.as_ref().is_some_and(|tree| tree.nodes.is_none()));
        let nodes = tree.and_then(|tree| tree.nodes).unwrap_or_default();
        add_export(
            &mut all.exports,
            ExportStatus { nodes, ..export_status(config, export, report) },
        );
    }
    all.fenced.extend(report.fenced.iter().cloned());
    let link = |at: usize| report.links[at].name.clone();
    all.sessions.extend(report.sessions.iter().map(|session| SessionStatus {
        initiator: session.initiator.clone(),
        exports: session.exports.clone(),
        key: session.key.as_ref().map(|key| SessionKeyStatus {
            name: key.principal.clone(),
            id: key.key.to_string(),
            suite: key.suite.to_string(),
            rekeys: key.rekeys,
        }),
        paths: paths(&session.paths, report.now, link),
        idle_s: report.now.since(session.last_heard).as_secs_f64(),
        shard,
    }));
    let (sum, stats) = (&mut all.counters, &report.stats);
    sum.requests += stats.requests;
    sum.repeated += stats.repeated;
    sum.altered += stats.altered;
    sum.sessions += stats.sessions;
    sum.fenced += stats.fenced;
    sum.twins += stats.twins;
    sum.copied_bytes += stats.copied_bytes;
    for (limit, count) in stats.limits.iter() {
        all.limits.entry(limit.name().to_owned()).or_default().refused += count;
    }
    for (reason, count) in stats.drops.iter() {
        *all.drops.entry(reason.to_owned()).or_default() += count;
    }
    untold
}

/// What one shard says of an export, which others may serve, too: most is known by the one that owns it.
fn add_export(exports: &mut Vec<ExportStatus>, mut export: ExportStatus) {
    let Some(known) = exports.iter_mut().find(|known| known.name == export.name) else {
        return exports.push(export);
    };
    if export.shards.contains(&export.shard) {
        std::mem::swap(known, &mut export);
    }
    known.copied_bytes += export.copied_bytes;
    known.shards.append(&mut export.shards);
    known.shards.sort_unstable();
    known.fault = known.fault.take().or(export.fault);
}

/// All shards have the same links, in the same order.
fn add_links(links: &mut Vec<LinkStatus>, report: &ShardReport) {
    for (at, link) in report.links.iter().enumerate() {
        if at == links.len() {
            let (name, address) = (link.name.clone(), link.addr.to_string());
            links.push(LinkStatus { name, address, ..LinkStatus::default() });
        }
        let sum = &mut links[at];
        sum.rx_frames += link.stats.rx_frames;
        sum.rx_bytes += link.stats.rx_bytes;
        sum.rx_dropped += link.stats.rx_dropped;
        sum.tx_frames += link.stats.tx_frames;
        sum.tx_bytes += link.stats.tx_bytes;
        sum.tx_dropped += link.stats.tx_dropped;
    }
}

/// What has become of an image that was cut.
const SHRUNK: &str = "its image became shorter while it was served: reads beyond the new end and all writes \
                      fail until this target is started again";

fn export_status(
    config: &TargetSettings,
    export: &ExportReport,
    report: &ShardReport,
) -> ExportStatus {
    let spec = config.exports.iter().find(|spec| spec.name == export.name);
    let writer = export.writer.as_ref().map(|writer| WriterStatus {
        name: writer.name.clone(),
        attached: writer.attached,
        held_s: writer.since.map(|at| report.now.since(at).as_secs_f64()),
        silent_s: writer.last_heard.map(|at| report.now.since(at).as_secs_f64()),
        lease_s: writer.lease_end.map(|at| at.since(report.now).as_secs_f64()),
    });
    let leaves = report.leaves.iter().filter(|leaf| leaf.export == export.name);
    let direct = report.direct.iter().find(|(name, _)| *name == export.name);
    ExportStatus {
        name: export.name.clone(),
        volume: spec.map_or(String::new(), |spec| spec.volume.to_string()),
        bytes: export.geometry.bytes,
        block_bytes: export.geometry.block_bytes,
        read_only: export.read_only || export.geometry.features.read_only,
        io: direct.map(|(_, direct)| if *direct { "direct" } else { "buffered" }.to_owned()),
        shard: u32::from(export.branch_of.unwrap_or(report.index)),
        shards: vec![u32::from(report.index)],
        writer,
        generation: export.generation,
        record: match export.record {
            RecordReport::Settled => "settled",
            RecordReport::Reading => "reading",
            RecordReport::Changing => "changing",
            RecordReport::Unread => "unread",
            RecordReport::Unsettled => "unsettled",
        }
        .to_owned(),
        losses: export.losses,
        fault: export.has_shrunk.then(|| SHRUNK.to_owned()),
        copied_bytes: export.copied_bytes,
        mirrors: MirrorStatus::of(&export.mirrors),
        cache: CacheStatus::of(export.cache),
        leaves: leaves.map(|leaf| leaf_of_target(leaf, report)).collect(),
        nodes: Vec::new(),
    }
}

/// What an export stands on.
pub fn leaf_of_target(told: &LeafReport, report: &ShardReport) -> LeafStatus {
    let link = |at: usize| told.links[at].clone();
    let told_of = leaf(&told.uri, &told.report, report.now, link, "this target is started again");
    LeafStatus { member: told.member.map(u32::from), ..told_of }
}

#[cfg(test)]
mod tests;
