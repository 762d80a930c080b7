//! The bars: what the project set out to reach, each met or missed with its figures. Ratios are taken
//! within a round.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{NONE, Section, Table, batching, disks, ebd, faces, keys, links, pipelines, scaling};
use crate::document::document;
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Settings, Subject, Wire};
use crate::stats::Spread;
use crate::view::View;

const SMALL: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];
const LARGE: [Pattern; 2] = [Pattern::Read, Pattern::Write];
const CARRIERS: [Carrier; 2] = [Carrier::Packet, Carrier::Udp];
const ONE: Load = Load::new(Pattern::RandRead, 4096, 1);

/// Thinwire that sleeps as soon as there is nothing to do.
const SLEEPING: Subject =
    Subject::with(Carrier::Packet, Settings { spin: Some("off"), ..Settings::DEFAULT });

/// A bar and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// What is compared.
    pub text: String,
    /// The least or the most that is wanted.
    pub wanted: f64,
    /// Whether `wanted` is the least.
    pub at_least: bool,
    /// The ratio over the rounds, if it could be taken: of what there is.
    pub measured: Option<Spread>,
    /// The figures behind it.
    pub figures: String,
    /// How many of the points that it rests on have figures.
    pub there: usize,
    /// How many points it rests on.
    pub points: usize,
}

/// A bar and its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The bar.
    #[serde(flatten)]
    pub bar: Bar,
    /// As [`Bar::verdict`] says it.
    pub verdict: String,
}

impl Bar {
    /// Whether the median reaches what is wanted; `None`: not measured, or not wholly.
    pub fn met(&self) -> Option<bool> {
        let median = self.measured.filter(|_| self.there == self.points)?.median;
        Some(if self.at_least { median >= self.wanted } else { median <= self.wanted })
    }

    /// The spread, with as many digits as tell something; `–` if there is none.
    pub fn shown(&self) -> String {
        self.measured.map_or(NONE.into(), |s| s.show(if s.median < 1000.0 { 3 } else { 0 }))
    }

    /// With its verdict, for a file.
    pub fn judged(self) -> Judged {
        Judged { verdict: self.verdict(), bar: self }
    }

    /// `met`, `missed`, `not measured` or `partly measured (2 of 3)`.
    pub fn verdict(&self) -> String {
        match self.met() {
            Some(true) => "met".into(),
            Some(false) => "missed".into(),
            None if self.measured.is_none() => "not measured".into(),
            None => format!("partly measured ({} of {})", self.there, self.points),
        }
    }
}

/// Where nbdkit's best figure of small I/Os is looked for: every load of this pattern and size that it
/// is measured under without shaping, by whichever experiment.
fn small_loads(pattern: Pattern) -> Vec<Load> {
    let load = |depth| Load::new(pattern, 4096, depth);
    match pattern.reads() {
        true => scaling::DEPTHS.map(load).into_iter().chain([load(32).jobs(4)]).collect(),
        false => vec![load(1), load(16), load(32), load(32).jobs(4), load(128)],
    }
}

/// The same of large I/Os.
fn large_loads(pattern: Pattern) -> [Load; 4] {
    let load = |depth| Load::new(pattern, 131_072, depth);
    [load(8), load(32), load(8).jobs(4), load(32).jobs(4)]
}

/// The load under which nbdkit is best; the first if it was not measured.
fn best_of_nbdkit(view: &View, loads: &[Load], of: fn(&Figures) -> f64) -> Load {
    let median = |load: &Load| {
        view.spread(&free(*load, Subject::Nbdkit), of).map_or(0.0, |spread| spread.median)
    };
    let best = loads.iter().rev().max_by(|a, b| median(a).total_cmp(&median(b)));
    *best.expect("there are loads")
}

fn nbdkit_points(loads: &[Load]) -> Vec<Point> {
    loads.iter().map(|load| free(*load, Subject::Nbdkit)).collect()
}

pub(super) fn free(load: Load, subject: Subject) -> Point {
    Point { wire: Wire::FREE, load, subject }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for pattern in SMALL {
        for load in small_loads(pattern) {
            // Where nbdkit's best usually is; further loads of scaling are in the full form only.
            let likely = matches!(load.outstanding(), 32 | 128);
            let full = if likely { 4 } else { 3 };
            let quick = u32::from(likely && (pattern.reads() || load.jobs == 1));
            let mut group = Group::new(Wire::FREE, load);
            for carrier in CARRIERS {
                let echo = Subject::echo(carrier, false);
                group = group
                    .with(Subject::thinwire(carrier), SECONDS, full, quick)
                    .with(echo, SECONDS, full, quick);
            }
            groups.push(group.with(Subject::Nbdkit, SECONDS, full, quick));
        }
    }
    groups.push(
        Group::new(Wire::FREE, ONE)
            .with(Subject::thinwire(Carrier::Packet), SECONDS, 4, 1)
            .with(SLEEPING, SECONDS, 4, 1)
            .with(Subject::echo(Carrier::Packet, false), SECONDS, 4, 1)
            .with(Subject::echo(Carrier::Packet, true), SECONDS, 4, 1)
            .with(Subject::Nbdkit, SECONDS, 4, 1),
    );
    for pattern in LARGE {
        for (n, load) in large_loads(pattern).into_iter().enumerate() {
            let mut group = Group::new(Wire::FREE, load)
                .with(Subject::thinwire(Carrier::Udp), SECONDS, 3, 1)
                .with(Subject::echo(Carrier::Udp, false), SECONDS, 3, u32::from(n == 0))
                .with(Subject::Nbdkit, SECONDS, 3, 1);
            if n == 0 {
                let echo = Subject::echo(Carrier::Packet, false);
                group = group.with(Subject::thinwire(Carrier::Packet), SECONDS, 3, 1);
                group = group.with(echo, SECONDS, 3, 1);
            }
            groups.push(group);
        }
    }
    groups
}

/// Of a run.
const SECONDS: f64 = 1.5;

/// All bars, in the order in which they were set.
pub fn bars(view: &View) -> Vec<Bar> {
    let mut bars = Vec::new();
    small(view, &mut bars);
    one(view, &mut bars);
    large(view, &mut bars);
    shaped(view, &mut bars);
    slow(view, &mut bars);
    steps(view, &mut bars);
    backlog(view, &mut bars);
    faces::bars(view, &mut bars);
    disks::bars(view, &mut bars);
    ebd::bars(view, &mut bars);
    keys::bars(view, &mut bars);
    bars
}

/// What is wanted of a ratio of two points.
pub(super) struct Wanted {
    of: fn(&Figures) -> f64,
    at_least: bool,
    value: f64,
}

pub(super) const fn at_least(value: f64, of: fn(&Figures) -> f64) -> Wanted {
    Wanted { of, at_least: true, value }
}

pub(super) const fn at_most(value: f64, of: fn(&Figures) -> f64) -> Wanted {
    Wanted { of, at_least: false, value }
}

/// How many of these points have figures, and how many there are.
pub(super) fn count(view: &View, points: impl IntoIterator<Item = Point>) -> [usize; 2] {
    let points: BTreeSet<Point> = points.into_iter().collect();
    [points.iter().filter(|point| view.has(point)).count(), points.len()]
}

impl Wanted {
    /// `others`: the points that decided which two are compared.
    pub(super) fn bar(
        &self,
        view: &View,
        text: String,
        [a, b]: [Point; 2],
        others: &[Point],
    ) -> Bar {
        let show = |point: &Point| {
            view.spread(point, self.of).map_or(NONE.into(), |s| crate::draw::number(s.median))
        };
        let [there, points] = count(view, others.iter().copied().chain([a, b]));
        Bar {
            text,
            wanted: self.value,
            at_least: self.at_least,
            measured: view.ratio(&a, &b, self.of),
            figures: format!("{} to {}", show(&a), show(&b)),
            there,
            points,
        }
    }
}

fn small(view: &View, bars: &mut Vec<Bar>) {
    for carrier in CARRIERS {
        let word = carrier.word();
        for pattern in SMALL {
            // Its best figure of this run decides at what load all are compared.
            let loads = small_loads(pattern);
            let load = best_of_nbdkit(view, &loads, |f| f.iops);
            let others = nbdkit_points(&loads);
            let at = format!(
                "4 KiB {}, {} x {} outstanding, {word}",
                pattern.word(),
                load.jobs,
                load.depth
            );
            let ours = free(load, Subject::thinwire(carrier));
            let pair = [ours, free(load, Subject::Nbdkit)];
            let times = if carrier == Carrier::Udp { 4.0 } else { 2.5 };
            let wanted = at_least(times, |f| f.iops);
            bars.push(wanted.bar(view, format!("{at}: IOPS over nbdkit's"), pair, &others));
            if carrier == Carrier::Packet {
                let text = format!("{at}: CPU of both sides an I/O, over nbdkit's");
                bars.push(at_most(0.4, Figures::cpu_us).bar(view, text, pair, &others));
            }
            let pair = [ours, free(load, Subject::echo(carrier, false))];
            let wanted = at_least(0.7, |f| f.iops);
            bars.push(wanted.bar(view, format!("{at}: IOPS over the echo's"), pair, &others));
        }
        // The stretch: at whatever load.
        let (wanted, whose) = match carrier {
            Carrier::Udp => (600_000.0, "600 k"),
            _ => (document().says("iops.max"), "the document's 287 k"),
        };
        let points: Vec<Point> = small_loads(Pattern::RandRead)
            .into_iter()
            .map(|load| free(load, Subject::thinwire(carrier)))
            .collect();
        let found = points.iter().filter_map(|point| view.spread(point, |f| f.iops));
        let best = found.max_by(|a, b| a.median.total_cmp(&b.median));
        let [there, points] = count(view, points.iter().copied());
        bars.push(Bar {
            text: format!("stretch: 4 KiB random reads, {word}: IOPS over {whose}"),
            wanted: 1.0,
            at_least: true,
            measured: best.map(|s| s.times(1.0 / wanted)),
            figures: best.map_or(NONE.into(), |s| s.show(0)),
            there,
            points,
        });
    }
}

fn one(view: &View, bars: &mut Vec<Bar>) {
    let ours = free(ONE, Subject::thinwire(Carrier::Packet));
    let echo = |sleeps| free(ONE, Subject::echo(Carrier::Packet, sleeps));
    let text = "one 4 KiB read outstanding, packet: mean latency over";
    let mut push = |whose: &str, value, pair| {
        let wanted = at_most(value, |f| f.mean_us);
        bars.push(wanted.bar(view, format!("{text} {whose}"), pair, &[]));
    };
    push("nbdkit's", 0.7, [ours, free(ONE, Subject::Nbdkit)]);
    push("the spinning echo's", 1.5, [ours, echo(false)]);
    let sleeping = free(ONE, SLEEPING);
    push("the sleeping echo's, spinning switched off", 1.3, [sleeping, echo(true)]);
}

fn large(view: &View, bars: &mut Vec<Bar>) {
    for pattern in LARGE {
        let loads = large_loads(pattern);
        let load = best_of_nbdkit(view, &loads, |f| f.mib_per_s);
        let text = format!(
            "128 KiB {}s, {} x {} outstanding, udp: MiB/s over nbdkit's",
            pattern.word(),
            load.jobs,
            load.depth
        );
        let pair = [free(load, Subject::thinwire(Carrier::Udp)), free(load, Subject::Nbdkit)];
        let wanted = at_least(1.5, |f| f.mib_per_s);
        bars.push(wanted.bar(view, text, pair, &nbdkit_points(&loads)));
        let text =
            format!("128 KiB {}s, 8 outstanding, packet: MiB/s over the echo's", pattern.word());
        let echo = free(loads[0], Subject::echo(Carrier::Packet, false));
        let pair = [free(loads[0], Subject::thinwire(Carrier::Packet)), echo];
        bars.push(at_least(0.8, |f| f.mib_per_s).bar(view, text, pair, &[]));
    }
}

fn shaped(view: &View, bars: &mut Vec<Bar>) {
    for mbit in links::RATES {
        for outstanding in links::OUTSTANDING {
            for pattern in SMALL {
                for carrier in CARRIERS {
                    let load = links::load(pattern, outstanding);
                    let text = on_shaped(mbit, load, carrier, "payload over the echo's");
                    let point = |subject| Point { wire: links::wire(mbit), load, subject };
                    let pair = [Subject::thinwire(carrier), Subject::echo(carrier, false)];
                    let wanted = at_least(0.97, |f| f.mib_per_s);
                    bars.push(wanted.bar(view, text, pair.map(point), &[]));
                }
            }
        }
    }
}

/// Where everybody fills the link, what counts is what it takes.
fn slow(view: &View, bars: &mut Vec<Bar>) {
    let (mbit, outstanding) = (links::RATES[0], links::OUTSTANDING[0]);
    for pattern in SMALL {
        for carrier in CARRIERS {
            let load = links::load(pattern, outstanding);
            let what = "nbdkit's CPU of both sides an I/O over ours";
            let text = on_shaped(mbit, load, carrier, what);
            let point = |subject| Point { wire: links::wire(mbit), load, subject };
            let pair = [Subject::Nbdkit, Subject::thinwire(carrier)].map(point);
            bars.push(at_least(2.0, Figures::cpu_us).bar(view, text, pair, &[]));
        }
    }
}

/// The text of a bar of 4 KiB requests on a shaped link.
fn on_shaped(mbit: u32, load: Load, carrier: Carrier, what: &str) -> String {
    let (pattern, gbit, carrier) = (load.pattern.word(), f64::from(mbit) / 1000.0, carrier.word());
    let outstanding = load.outstanding();
    format!("4 KiB {pattern} at {gbit} Gb/s, {outstanding} outstanding, {carrier}: {what}")
}

fn steps(view: &View, bars: &mut Vec<Bar>) {
    let steps = [
        (pipelines::SPLIT, pipelines::SINGLE, "split to single"),
        (pipelines::SINGLE, pipelines::INLINE, "single to single and inline"),
    ];
    for pattern in SMALL {
        for (before, after, name) in steps {
            let text = format!(
                "one 4 KiB {}, {name}: total time of the one over the other",
                pattern.word()
            );
            let pair = [after, before].map(|subject| pipelines::point(pattern, 4096, subject));
            bars.push(at_most(1.0, |f| f.mean_us).bar(view, text, pair, &[]));
        }
    }
}

/// The share of another policy's IOPS that `backlog` reaches, and whose.
type Behind = (Spread, &'static str);

fn by_median(a: &Spread, b: &Spread) -> std::cmp::Ordering {
    a.median.total_cmp(&b.median)
}

/// Behind which policy `backlog` is furthest under a load, or ahead of which it is least: with each of
/// the others it is compared over the rounds that both have.
fn furthest(view: &View, load: Load, data: bool) -> Option<Behind> {
    let point = |name| batching::point(load, name, data);
    let others = batching::POLICIES.into_iter().filter(|&name| name != "backlog");
    let share = |name| Some((view.ratio(&point("backlog"), &point(name), |f| f.iops)?, name));
    others.filter_map(share).min_by(|(a, _), (b, _)| by_median(a, b))
}

/// `4 outstanding: 0.98 (0.91–1.04) of static:8; ...`
fn at_each(behind: &[(u32, Behind)]) -> String {
    let one = |(outstanding, (share, name)): &(u32, Behind)| {
        format!("{outstanding} outstanding: {} of {name}", share.show(2))
    };
    match behind {
        [] => NONE.into(),
        _ => behind.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

fn backlog(view: &View, bars: &mut Vec<Bar>) {
    for data in [false, true] {
        for pattern in SMALL {
            let with = if data { "with" } else { "without" };
            let name = format!("4 KiB {}, {with} data batching: backlog", pattern.word());
            let mut all = Vec::new();
            let mut behind: Vec<(u32, Behind)> = Vec::new();
            for load in batching::loads(pattern) {
                all.extend(batching::POLICIES.map(|name| batching::point(load, name, data)));
                behind.extend(furthest(view, load, data).map(|found| (load.outstanding(), found)));
            }
            let [there, points] = count(view, all);
            bars.push(Bar {
                text: format!("{name} over the best other policy, where it is furthest behind"),
                wanted: 0.97,
                at_least: true,
                // The worst of them stands for all.
                measured: behind.iter().map(|(_, (share, _))| *share).min_by(by_median),
                figures: at_each(&behind),
                there,
                points,
            });
            let load = Load::new(pattern, 4096, 1);
            let text = format!("{name} at 1 outstanding: mean latency over that of no batching");
            let pair = ["backlog", "none"].map(|policy| batching::point(load, policy, data));
            bars.push(at_most(1.03, |f| f.mean_us).bar(view, text, pair, &[]));
        }
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "The bars",
        &[
            "What the project set out to reach, as ratios within a round (medians, in parentheses the least and the \
             most). Those against nbdkit are taken at the depth and jobs of its best figure of this run, among all loads \
             of the pattern and size. A bar has a verdict only if every point that it rests on was measured.",
        ],
    );
    section.tables.push(table("What it must show", bars(view)));
    section
}

/// Bars with their verdicts.
pub(super) fn table(title: &str, bars: Vec<Bar>) -> Table {
    let header = ["bar", "wanted", "measured", "figures", "verdict"];
    let mut table = Table::new(title, &header);
    for bar in bars {
        let sign = if bar.at_least { "at least" } else { "at most" };
        table.rows.push(vec![
            bar.text.clone(),
            format!("{sign} {}", bar.wanted),
            bar.shown(),
            bar.figures.clone(),
            bar.verdict(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::plan_of_all;
    use crate::plan::Form;
    use crate::store::{Run, SampleStore, tests::folder};

    fn put(store: &mut SampleStore, point: Point, round: u32, figures: Figures) {
        let run = Run { round, visit: u64::from(round) + 1, seconds: 60.0 };
        store.put(&point, run, Ok(figures)).unwrap();
    }

    fn verdict(store: &SampleStore, text: &str) -> (String, Option<(f64, f64)>) {
        let found = bars(&View::new(store, &plan_of_all(), Form::Full));
        let bar = found.iter().find(|bar| bar.text.starts_with(text)).unwrap();
        (bar.verdict(), bar.measured.map(|s| (s.min, s.max)))
    }

    #[test]
    fn bars_are_met_and_missed_by_their_medians() {
        let folder = folder("bars");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        let load = large_loads(Pattern::Read)[0];
        // Twice nbdkit's rate over udp; over packet, 75 % of the echo's.
        let rates = [
            (Subject::thinwire(Carrier::Udp), 200.0),
            (Subject::Nbdkit, 100.0),
            (Subject::thinwire(Carrier::Packet), 75.0),
            (Subject::echo(Carrier::Packet, false), 100.0),
        ];
        for (subject, mib_per_s) in rates {
            for round in 0..3 {
                // A slow round slows both sides of a ratio.
                let mib_per_s = mib_per_s / f64::from(round + 1);
                let figures = Figures { mib_per_s, ..Figures::default() };
                put(&mut store, free(load, subject), round, figures);
            }
        }
        let missed = ("missed".to_owned(), Some((0.75, 0.75)));
        assert_eq!(verdict(&store, "128 KiB reads, 8 outstanding, packet"), missed);
        let udp = "128 KiB reads, 1 x 8 outstanding, udp";
        // Two of five points: nbdkit may be better at one of its other three loads.
        assert_eq!(verdict(&store, udp), ("partly measured (2 of 5)".into(), Some((2.0, 2.0))));
        for load in &large_loads(Pattern::Read)[1..] {
            let figures = Figures { mib_per_s: 50.0, ..Figures::default() };
            put(&mut store, free(*load, Subject::Nbdkit), 0, figures);
        }
        assert_eq!(verdict(&store, udp), ("met".into(), Some((2.0, 2.0))));
        let writes = verdict(&store, "128 KiB writes, 1 x 8 outstanding, udp");
        assert_eq!(writes, ("not measured".into(), None));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_bar_can_be_measured() {
        // Each figure a bar asks for is in somebody's plan: with everything stored, all have a verdict.
        let folder = folder("bars-all");
        let mut store = SampleStore::open(&folder, "b", "m").unwrap();
        for (point, _) in plan_of_all().iter().flat_map(Group::points) {
            let figures = Figures {
                iops: 1.0,
                mib_per_s: 1.0,
                mean_us: 1.0,
                cpu_client_us: 1.0,
                cpu_face_us: Some(1.0),
                p50_us: Some(1.0),
                p99_us: Some(2.0),
                copies: Some(Default::default()),
                ..Figures::default()
            };
            put(&mut store, point, 0, figures);
        }
        for bar in bars(&View::new(&store, &plan_of_all(), Form::Full)) {
            assert!(bar.met().is_some(), "{} is never measured", bar.text);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nbdkits_best_is_looked_for_wherever_it_is_measured() {
        let patterns = SMALL.iter().map(|p| (*p, 4096)).chain(LARGE.iter().map(|p| (*p, 131_072)));
        for (pattern, block) in patterns {
            let all = plan_of_all();
            let asked = all.iter().filter(|group| {
                let load = group.load;
                (group.wire, load.pattern, load.block) == (Wire::FREE, pattern, block)
                    && group.entries.iter().any(|entry| entry.subject == Subject::Nbdkit)
            });
            let asked: BTreeSet<Load> = asked.map(|group| group.load).collect();
            let looked: BTreeSet<Load> = match block {
                4096 => small_loads(pattern).into_iter().collect(),
                _ => large_loads(pattern).into_iter().collect(),
            };
            assert_eq!(asked, looked);
        }
    }

    #[test]
    fn no_point_of_a_bar_has_fewer_than_three_rounds() {
        let mut own: BTreeSet<Point> =
            plan().iter().flat_map(Group::points).map(|(point, _)| point).collect();
        for pattern in SMALL {
            let steps = [pipelines::SPLIT, pipelines::SINGLE];
            own.extend(steps.map(|subject| pipelines::point(pattern, 4096, subject)));
            for (mbit, outstanding, carrier) in links::RATES.iter().flat_map(|mbit| {
                let of = move |n| CARRIERS.map(move |carrier| (*mbit, n, carrier));
                links::OUTSTANDING.into_iter().flat_map(of)
            }) {
                let (wire, load) = (links::wire(mbit), links::load(pattern, outstanding));
                let pair = [Subject::thinwire(carrier), Subject::echo(carrier, false)];
                own.extend(pair.map(|subject| Point { wire, load, subject }));
            }
            let (wire, load) = (links::wire(1000), links::load(pattern, 128));
            own.insert(Point { wire, load, subject: Subject::Nbdkit });
            for load in batching::loads(pattern) {
                for name in batching::POLICIES {
                    own.extend([false, true].map(|data| batching::point(load, name, data)));
                }
            }
        }
        let all = plan_of_all();
        for (point, entry) in all.iter().flat_map(Group::points) {
            assert!(!own.remove(&point) || entry.full >= 3, "{point}: {} rounds", entry.full);
        }
        assert!(own.is_empty(), "in nobody's plan: {own:?}");
    }
}
