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
use crate::open::VolumeHealth;

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
    let mut silent = Vec::new();
    for (index, report) in reports.iter().enumerate() {
        match report {
            Some(report) => add(&mut all, config, report),
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

fn add(all: &mut TargetStatus, config: &TargetSettings, report: &ShardReport) {
    let shard = u32::from(report.index);
    all.session_count += report.session_count as u64;
    add_links(&mut all.links, report);
    for export in &report.exports {
        add_export(&mut all.exports, export_status(config, export, report));
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
    }
}

/// What an export stands on.
pub fn leaf_of_target(told: &LeafReport, report: &ShardReport) -> LeafStatus {
    let link = |at: usize| told.links[at].clone();
    let told_of = leaf(&told.uri, &told.report, report.now, link, "this target is started again");
    LeafStatus { member: told.member.map(u32::from), ..told_of }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_buffer::Addr;
    use thinwire_link::LinkStats;
    use thinwire_proto::{BatchPolicy, SessionStats};
    use thinwire_runtime::inquiry::LinkReport;
    use thinwire_target::{SessionReport, TargetStats, WriterReport};

    use crate::testing::target_settings;

    /// Frames are shared in each session by itself.
    #[test]
    fn what_is_said_of_batches_is_said_of_one_session() {
        let local = VolumeHealth::local;
        let remote = |level| VolumeHealth {
            batch: Some(BatchStatus { policy: "backlog".into(), level, requests: 9, frames: 3 }),
            ..local()
        };
        let level = |leaves: &[VolumeHealth]| {
            together(leaves.iter().cloned()).batch.map(|batch| batch.level)
        };
        assert_eq!(level(&[remote(2)]), Some(2));
        assert_eq!(level(&[local(), remote(2), local()]), Some(2));
        assert_eq!(level(&[remote(2), local(), remote(7)]), None);
        assert_eq!(level(&[remote(2), remote(2)]), None, "nor are their counts the same");
        assert_eq!(level(&[local()]), None);
    }

    fn shard(index: u8) -> ShardReport {
        let stats = LinkStats { rx_frames: 2, ..LinkStats::default() };
        let session = SessionReport {
            key: None,
            initiator: "i".into(),
            paths: Vec::new(),
            exports: Vec::new(),
            last_heard: Time(1_000_000_000),
        };
        ShardReport {
            index,
            now: Time(3_000_000_000),
            exports: Vec::new(),
            leaving: Vec::new(),
            fenced: Vec::new(),
            leaves: Vec::new(),
            direct: vec![("a".into(), false)],
            sessions: vec![session],
            session_count: 300,
            links: vec![LinkReport { name: "eth1".into(), addr: Addr::Sim(1), stats }],
            stats: TargetStats { requests: 5, ..TargetStats::default() },
        }
    }

    /// What an idle shard says of an export.
    fn report(name: &str) -> ExportReport {
        let features = thinwire_volume::Features {
            read_only: false,
            discard: true,
            write_zeroes: true,
            block_status: true,
        };
        ExportReport {
            name: name.into(),
            geometry: thinwire_volume::Geometry {
                bytes: 512,
                block_bytes: 512,
                preferred_bytes: 512,
                io_bytes_max: 512,
                features,
            },
            read_only: false,
            generation: 0,
            writer: None,
            record: RecordReport::Settled,
            losses: 0,
            has_shrunk: false,
            copied_bytes: 0,
            cache: None,
            mirrors: Vec::new(),
            outstanding: 0,
            branch_of: None,
        }
    }

    #[test]
    fn of_a_writer_and_of_leaves_all_is_told() {
        let mut shard = shard(0);
        let writer = WriterReport {
            name: "w".into(),
            attached: true,
            since: Some(Time(1_000_000_000)),
            last_heard: None,
            lease_end: None,
        };
        shard.exports.push(ExportReport {
            generation: 1,
            writer: Some(writer),
            record: RecordReport::Reading,
            has_shrunk: true,
            cache: Some(thinwire_volume::CacheReport {
                bytes: 1 << 20,
                used: 4096,
                dirty: 512,
                hits: 3,
                misses: 1,
                ahead: 8192,
            }),
            ..report("a")
        });
        for (uri, phase, batch_level) in
            [("tw://n/x", Phase::Attached, 1), ("tw://m/y", Phase::Away, 7)]
        {
            let report = InitiatorReport {
                suite: None,
                hint: Some("no".into()),
                phase,
                failure: None,
                paths: Vec::new(),
                timer: None,
                outstanding: 0,
                retained_bytes: 0,
                retained_entries: 0,
                is_held: false,
                integrity: phase == Phase::Away,
                writer_generation: 1,
                idle_generations: 0,
                target_session: 0,
                stats: Default::default(),
                session: SessionStats { requests_sent: 9, request_frames: 3, ..Default::default() },
                batch_policy: BatchPolicy::Doorbell,
                batch_level,
            };
            let (export, uri, links) = ("a".into(), uri.into(), Vec::new());
            shard.leaves.push(LeafReport { export, uri, member: None, links, report });
        }
        let patience = Duration::from_millis(300);
        let all = target(&target_settings(), TargetState::Serving, patience, &[Some(shard)]);
        let export = &all.exports[0];
        assert_eq!(export.record, "reading");
        assert!(export.fault.as_ref().unwrap().contains("became shorter"), "{export:?}");
        assert_eq!(export.io.as_deref(), Some("buffered"));
        let cache =
            CacheStatus { bytes: 1 << 20, used: 4096, dirty: 512, hits: 3, misses: 1, ahead: 8192 };
        assert_eq!(export.cache, Some(cache));
        assert_eq!(export.writer.as_ref().unwrap().held_s, Some(2.0));
        let details: Vec<_> = export.leaves.iter().map(|leaf| leaf.detail.as_deref()).collect();
        assert_eq!(details, [None, Some("not let in again; it is told: no")]);
        let integrity: Vec<_> = export.leaves.iter().map(|leaf| leaf.integrity).collect();
        assert_eq!(integrity, [None, Some(IntegrityStatus::default())]);
        let batches = export.leaves.iter().map(|leaf| leaf.batch.clone().unwrap());
        let batches: Vec<_> = batches.map(|b| (b.policy, b.level, b.requests, b.frames)).collect();
        let policy = || "doorbell".to_owned();
        assert_eq!(batches, [(policy(), 1, 9, 3), (policy(), 7, 9, 3)]);
    }

    #[test]
    fn of_an_export_that_all_shards_serve_its_owner_tells_most() {
        let patience = Duration::from_millis(300);
        for owner in 0..3 {
            let shard_of = |index: u8| {
                let mut shard = shard(index);
                shard.exports.push(ExportReport {
                    generation: if index == owner { 7 } else { 0 },
                    losses: u64::from(index == owner),
                    has_shrunk: index == 1,
                    copied_bytes: 10,
                    outstanding: 0,
                    branch_of: (index != owner).then_some(owner),
                    ..report("a")
                });
                Some(shard)
            };
            let reports = [0, 1, 2].map(shard_of);
            let all = target(&target_settings(), TargetState::Serving, patience, &reports);
            let [export] = &all.exports[..] else { panic!("{:?}", all.exports) };
            assert_eq!((export.shard, &export.shards[..]), (u32::from(owner), &[0, 1, 2][..]));
            assert_eq!((export.generation, export.losses, export.copied_bytes), (7, 1, 30));
            assert!(export.fault.is_some());
            let mut reports =
                [0, 1, 2].map(|index| if index == owner { None } else { shard_of(index) });
            for report in reports.iter_mut().flatten() {
                report.exports[0].has_shrunk = false;
            }
            let all = target(&target_settings(), TargetState::Serving, patience, &reports);
            let fault = all.exports[0].fault.as_ref().expect("nobody knows who writes");
            assert!(fault.starts_with(&format!("shard {owner}, which decides")), "{fault}");
        }
    }

    #[test]
    fn shards_add_up_and_what_is_missing_is_said() {
        let patience = Duration::from_millis(300);
        let reports = [Some(shard(0)), None, Some(shard(2))];
        let all = target(&target_settings(), TargetState::Serving, patience, &reports);
        assert_eq!((all.shards, all.session_count, all.counters.requests), (3, 600, 10));
        assert_eq!((all.links.len(), all.links[0].rx_frames), (1, 4));
        let sessions: Vec<_> = all.sessions.iter().map(|s| (s.shard, s.idle_s)).collect();
        assert_eq!(sessions, [(0, 2.0), (2, 2.0)]);
        let detail = all.detail.unwrap();
        assert!(detail.contains("within 0.3 s of shard 1, not shown"), "{detail}");
        assert!(detail.contains("2 of 600 sessions are shown"), "{detail}");
        let all = target(&target_settings(), TargetState::Starting, patience, &[]);
        assert_eq!((all.node.as_str(), all.detail), ("n", None));
    }
}
