//! What is asked reaches the works that it is about, and no others.

use std::path::PathBuf;
use std::rc::Rc;

use thinwire_buffer::Time;
use thinwire_modules::{METER_WINDOW, Meter, Metered};
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Io, LegAbsence, LegReport, LegStanding, Op, Scrub, Volume};

use super::*;
use crate::budgets::OpenBudgets;
use crate::uri::VolumeSpec;

/// Something that works for itself, and keeps what it is told.
#[derive(Default)]
struct Fake {
    whole: u8,
    pace: WorkPace,
    told: Vec<String>,
    legs: Vec<LegReport>,
    scrub: ScrubReport,
}

impl Scrub for Fake {
    fn begin_scrub(&mut self, from: u64) {
        self.told.push(format!("scrub from {from}"));
        self.scrub = ScrubReport { is_running: true, bytes: 100, ..ScrubReport::default() };
    }

    fn end_scrub(&mut self) {
        self.told.push("stop".into());
        self.scrub.is_running = false;
    }

    fn scrub_report(&self) -> ScrubReport {
        self.scrub.clone()
    }
}

impl Work for Fake {
    fn whole(&self) -> [u8; 16] {
        [self.whole; 16]
    }

    fn pace(&self) -> WorkPace {
        self.pace
    }

    fn set_pace(&mut self, pace: WorkPace) {
        self.pace = pace;
    }

    fn try_now(&mut self) {
        self.told.push("try".into());
    }

    fn left(&self) -> u64 {
        self.legs.iter().map(|leg| leg.lacks).max().unwrap_or(0)
    }

    fn mirror(&self) -> Option<MirrorReport> {
        let report =
            MirrorReport { is_open: true, legs: self.legs.clone(), ..MirrorReport::default() };
        (!self.legs.is_empty()).then_some(report)
    }
}

fn named(name: &str) -> NodeName {
    NodeName { file: PathBuf::from("/etc/v.toml"), name: name.into() }
}

fn node(
    depth: usize,
    name: &str,
    kind: &'static str,
    whole: u8,
    leg: Option<usize>,
) -> OutlineNode {
    let whole = (whole > 0).then_some([whole; 16]);
    let (node, name) = (Some(named(name)), name.to_owned());
    OutlineNode { depth, node, name, kind, bytes: 4096, whole, leg, ..OutlineNode::default() }
}

/// A stripe over a mirror, one leg of which has sums and which was described the other way round, and over a volume with sums.
fn tree() -> (Vec<OutlineNode>, Vec<Fake>) {
    let outline = vec![
        node(0, "all", "stripe", 0, None),
        node(1, "home", "mirror", 1, None),
        node(2, "sums", "integrity", 2, Some(1)),
        node(3, "a", "file", 0, None),
        node(2, "b", "tw", 0, Some(0)),
        node(1, "other", "integrity", 3, None),
        node(2, "c", "file", 0, None),
    ];
    let leg = |standing, lacks| LegReport {
        standing,
        lacks,
        absence: LegAbsence::default(),
        replaces: None,
    };
    let legs = vec![leg(LegStanding::InSync, 0), leg(LegStanding::Resyncing, 2048)];
    let fake = |whole| Fake { whole, ..Fake::default() };
    (outline, vec![Fake { legs, ..fake(1) }, fake(2), fake(3)])
}

fn ask(
    works: &mut [Fake],
    outline: &[OutlineNode],
    name: &str,
    action: WorkAction,
    percent: Option<u8>,
) -> Response {
    let ask = WorkAsk { volume: named(name), request: WorkRequest { action, percent } };
    perform(&ask, ("disk0", outline), &mut |visit| works.iter_mut().for_each(|work| visit(work)))
}

fn nodes(response: Response) -> Vec<NodeStatus> {
    match response {
        Response::Volume { nodes } => nodes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_asked_is_done_to_all_that_a_volume_is_made_of_and_to_nothing_else() {
    let (outline, mut works) = tree();
    let paused = |works: &[Fake]| works.iter().map(|w| w.pace.is_paused).collect::<Vec<_>>();
    ask(&mut works, &outline, "home", WorkAction::Pause, None);
    assert_eq!(paused(&works), [true, true, false]);
    ask(&mut works, &outline, "sums", WorkAction::Resume, Some(7));
    assert_eq!(paused(&works), [true, false, false]);
    assert_eq!([works[0].pace.percent, works[1].pace.percent], [50, 7]);
    assert_eq!(works[1].told, ["try"]);
    ask(&mut works, &outline, "all", WorkAction::Pause, None);
    assert_eq!((paused(&works), works[1].pace.percent), (vec![true; 3], 7));
    // That of a scrub says nothing of whether it is paused.
    ask(&mut works, &outline, "other", WorkAction::Scrub { from: 0 }, Some(100));
    assert_eq!((works[2].pace.is_paused, works[2].pace.percent), (true, 100));
}

#[test]
fn limits_are_those_of_a_volume_that_has_some() {
    let spec: VolumeSpec = "qos:[memory:1M]?iops=5".parse().unwrap();
    let budget = OpenBudgets::default().of(&spec).unwrap();
    let slow = OutlineNode { budget: budget.clone(), ..node(1, "slow", "qos", 0, None) };
    let outline = [node(0, "all", "linear", 0, None), slow, node(2, "a", "file", 0, None)];
    let tell = |name: &str, limit: (&str, Option<u64>)| {
        let limits = vec![(limit.0.to_owned(), limit.1)];
        ask(&mut [], &outline, name, WorkAction::Limits { limits }, None)
    };
    let now = nodes(tell("slow", ("bandwidth", Some(4096))));
    assert!(now[0].describe().contains("iops 5, bandwidth 4 KiB, until it is opened again"));
    assert_eq!(budget.unwrap().budget.limits().all.bandwidth, 4096);
    // Whoever asks for all sees it.
    let all = nodes(ask(&mut [], &outline, "all", WorkAction::Status, None));
    assert_eq!(
        all.iter().map(|node| node.limits.is_some()).collect::<Vec<_>>(),
        [false, true, false]
    );
    for (name, limit, why) in [
        ("all", ("iops", None), "of kind linear"),
        ("slow", ("iops", Some(0)), "iops is 1 to"),
        ("slow", ("chunk", Some(1)), "chunk"),
        ("nobody", ("iops", None), "no volume nobody open"),
    ] {
        match tell(name, limit) {
            Response::Refused { why: said } => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_mirror_scrubs_its_legs_and_nobody_does_it_twice() {
    let (outline, mut works) = tree();
    ask(&mut works, &outline, "all", WorkAction::Scrub { from: 5 }, None);
    let told = |works: &[Fake]| works.iter().map(|work| work.told.len()).collect::<Vec<_>>();
    assert_eq!(told(&works), [1, 0, 1]);
    assert_eq!(works[0].told, ["scrub from 5"]);
    ask(&mut works, &outline, "sums", WorkAction::Scrub { from: 0 }, None);
    assert_eq!(told(&works), [1, 1, 1], "who names it wants it");
    let nodes = nodes(ask(&mut works, &outline, "all", WorkAction::Stop, None));
    assert!(nodes.iter().filter_map(|node| node.work.as_ref()).all(|work| !work.scrub.running));
    for (name, action, why) in [
        ("a", WorkAction::Pause, "does nothing for itself"),
        ("c", WorkAction::Scrub { from: 0 }, "does nothing for itself"),
        ("nobody", WorkAction::Status, "no volume nobody open"),
    ] {
        match ask(&mut works, &outline, name, action, None) {
            Response::Refused { why: said } => assert!(said.contains(why), "{said}"),
            other => panic!("{other:?}"),
        }
    }
}

/// One below gives each block from one of its legs.
#[test]
fn a_mirror_below_a_mirror_is_scrubbed_too() {
    let outline = [
        node(0, "home", "mirror", 1, None),
        node(1, "pair", "stripe", 0, Some(0)),
        node(2, "inner", "mirror", 2, None),
        node(3, "sums", "integrity", 3, Some(0)),
        node(4, "a", "file", 0, None),
        node(3, "b", "file", 0, Some(1)),
        node(2, "other", "integrity", 4, None),
        node(1, "c", "tw", 0, Some(1)),
    ];
    let mut works: Vec<_> = (1..5).map(|whole| Fake { whole, ..Fake::default() }).collect();
    ask(&mut works, &outline, "home", WorkAction::Scrub { from: 0 }, None);
    let told: Vec<_> = works.iter().map(|work| work.told.len()).collect();
    assert_eq!(told, [1, 1, 0, 0]);
}

#[test]
fn a_scrub_says_which_legs_it_has_not_read() {
    let report =
        |unread_legs| ScrubReport { module: "mirror", unread_legs, ..ScrubReport::default() };
    let line = |legs| ScrubStatus::from(&report(legs)).line();
    assert_eq!(line(0), "mirror: 0 bytes were read, all as it was written");
    assert_eq!(
        line(0b101),
        "mirror: 0 bytes were read, as it was written, but not all was read of leg 0 and leg 2"
    );
}

/// The standing of a leg is that by the labels, wherever it is described.
#[test]
fn a_tree_is_told_with_how_all_of_it_stands() {
    let (mut outline, mut works) = tree();
    outline[4].state = Some("away");
    let all = nodes(ask(&mut works, &outline, "all", WorkAction::Status, None));
    let said: Vec<_> = all.iter().map(|node| (node.depth, node.describe())).collect();
    let said: Vec<_> = said.iter().map(|(depth, text)| (*depth, text.as_str())).collect();
    assert_eq!(
        said,
        [
            (0, ""),
            (1, "2 KiB left to copy at most"),
            (2, "leg 1, resyncing, 2 KiB to copy at most"),
            (3, ""),
            (2, "leg 0, in sync, away"),
            (1, ""),
            (2, ""),
        ]
    );
    works[0].pace = WorkPace { is_paused: true, percent: 20 };
    works[0].begin_scrub(0);
    works[0].scrub.position = 50;
    let home = nodes(ask(&mut works, &outline, "home", WorkAction::Status, None));
    assert_eq!((home.len(), home[0].depth, home[1].depth), (4, 0, 1));
    assert_eq!(
        home[0].describe(),
        "2 KiB left to copy at most, scrub: 50 B of 100 B were read, paused, at 20 % of what users get"
    );
    // Asked for by itself, it is nobody's leg.
    let sums = nodes(ask(&mut works, &outline, "sums", WorkAction::Status, None));
    assert_eq!((sums[0].leg, &sums[0].standing), (None, &None));
}

/// What nobody drives any more does not hear that time has passed: its rates are of the time before.
#[test]
fn what_is_away_has_counters_and_no_rates() {
    let (mut outline, mut works) = tree();
    let meter = Rc::new(Meter::default());
    let mut used =
        Metered::new(Box::new(Puppet::new(1, Puppet::GEOMETRY)), meter.clone(), None, None);
    used.turn(Time(1));
    used.submit(Io::new(1, Op::Read, 0, 512));
    used.turn(Time(1) + METER_WINDOW);
    outline[4].meter = Some(meter);
    for (state, rate) in [(Some("attached"), 1), (Some("away"), 0)] {
        outline[4].state = state;
        let all = nodes(ask(&mut works, &outline, "all", WorkAction::Status, None));
        let io = all[4].io.expect("it has a meter");
        assert_eq!((io.reads, io.read_iops), (1, rate), "{state:?}");
        assert_eq!(all.iter().filter(|node| node.io.is_some()).count(), 1);
    }
}

#[test]
fn the_words_are_fixed() {
    let ask = WorkAsk {
        volume: named("home"),
        request: WorkRequest { action: WorkAction::Scrub { from: 9 }, percent: Some(3) },
    };
    let text = r#"{"volume":{"file":"/etc/v.toml","name":"home"},"request":{"action":{"scrub":{"from":9}},"percent":3}}"#;
    assert_eq!(serde_json::to_string(&ask).unwrap(), text);
    assert_eq!(serde_json::from_str::<WorkAsk>(text).unwrap(), ask);
    for (action, word) in [
        (WorkAction::Status, "status"),
        (WorkAction::Stop, "stop"),
        (WorkAction::Resync, "resync"),
        (WorkAction::Pause, "pause"),
        (WorkAction::Resume, "resume"),
    ] {
        assert_eq!(serde_json::to_string(&action).unwrap(), format!("\"{word}\""));
    }
}

#[test]
fn one_that_grows_says_how_far_it_is_and_that_it_is_paused() {
    let work = WorkStatus {
        grown: Some(1 << 20),
        grows_by: 4 << 20,
        paused: true,
        percent: 50,
        ..WorkStatus::default()
    };
    let mut said = Vec::new();
    work.describe("mirror", &mut said);
    assert_eq!(said, ["growing: 1 MiB of 4 MiB are zeroed", "paused"]);
    // Earlier versions say nothing of it.
    let mut json = serde_json::to_value(&work).unwrap();
    let fields = json.as_object_mut().unwrap();
    ["grown", "grows_by"].iter().for_each(|field| assert!(fields.remove(*field).is_some()));
    let read: WorkStatus = serde_json::from_value(json).unwrap();
    assert_eq!((read.grown, read.grows_by), (None, 0));
}

/// Of what has failed the place is told, once.
#[test]
fn what_has_failed_is_told_below_the_tree() {
    let node = |depth, name: &str, failure: Option<&str>| NodeStatus {
        depth,
        name: name.into(),
        kind: "file".into(),
        failure: failure.map(str::to_owned),
        ..NodeStatus::default()
    };
    let nodes = [
        node(0, "home", Some("home: read")),
        node(1, "one.img", None),
        node(1, "sums", Some("home leg 1, sums: read")),
        node(2, "two.img", Some("home leg 1, sums (two.img): read")),
        node(1, "three.img", Some("home leg 2 (three.img): write")),
    ];
    let text = drawn(&nodes);
    let told: Vec<_> = text.lines().skip(6).collect();
    let expected = [
        "failed last: home leg 1, sums (two.img): read",
        "failed last: home leg 2 (three.img): write",
    ];
    assert_eq!(told, expected);
    assert_eq!(drawn(&nodes[1..2]).lines().count(), 2);
}
