//! What shards and attachments report is told as it is, and added up.

use super::*;
use thinwire_buffer::Addr;
use thinwire_link::LinkStats;
use thinwire_proto::{BatchPolicy, SessionStats};
use thinwire_runtime::inquiry::LinkReport;
use thinwire_target::{SessionReport, TargetStats, WriterReport};

use crate::testing::target_settings;
use crate::work::NodeStatus;

/// Frames are shared in each session by itself.
#[test]
fn what_is_said_of_batches_is_said_of_one_session() {
    let local = VolumeHealth::local;
    let remote = |level| VolumeHealth {
        batch: Some(BatchStatus { policy: "backlog".into(), level, requests: 9, frames: 3 }),
        ..local()
    };
    let level =
        |leaves: &[VolumeHealth]| together(leaves.iter().cloned()).batch.map(|batch| batch.level);
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
        trees: Vec::new(),
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

/// Of two exports that are made of others, one of too much to tell; and what a reload has made a store of is none of these any more.
#[test]
fn what_exports_are_made_of_is_told_with_them() {
    let mut settings = target_settings();
    let told = |nodes| ToldTree { nodes }.to_words();
    let node = NodeStatus { name: "linear".into(), bytes: 4096, ..NodeStatus::default() };
    let mut shard = shard(0);
    shard.exports = vec![report("a"), report("b")];
    shard.trees = vec![("a".into(), told(Some(vec![node.clone()]))), ("b".into(), told(None))];
    let reports = [Some(shard)];
    let status = |settings: &TargetSettings| {
        target(settings, TargetState::Serving, Duration::from_millis(300), &reports)
    };
    let all = status(&settings);
    assert!(all.exports.iter().all(|export| export.nodes.is_empty()), "both are stores");
    assert!(!all.detail.is_some_and(|detail| detail.contains("made of")));
    for export in &mut settings.exports {
        export.volume = "linear:[memory:1M]".parse().unwrap();
    }
    let all = status(&settings);
    assert_eq!((&all.exports[0].nodes[..], all.exports[1].nodes.len()), (&[node][..], 0));
    let detail = all.detail.unwrap();
    assert!(detail.contains("what 1 exports are made of is not shown"), "{detail}");
}
