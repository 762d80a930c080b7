//! The bars: what the project set out to reach, each met or missed with its figures. Ratios are taken
//! within a round.

use serde::Serialize;

use super::{NONE, Section, Table, batching, links, pipelines};
use crate::document::document;
use crate::figures::Figures;
use crate::plan::Group;
use crate::point::{Carrier, Load, Pattern, Point, Settings, Subject, Wire};
use crate::stats::Spread;
use crate::view::View;

const SMALL: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];
const LARGE: [Pattern; 2] = [Pattern::Read, Pattern::Write];
const CARRIERS: [Carrier; 2] = [Carrier::Packet, Carrier::Udp];
/// Where nbdkit's best figure is looked for: outstanding of each job, jobs.
const DEPTHS: [(u32, u32); 3] = [(32, 1), (32, 4), (128, 1)];
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
    /// The ratio over the rounds, if it could be taken.
    pub measured: Option<Spread>,
    /// The figures behind it.
    pub figures: String,
}

impl Bar {
    /// Whether the median reaches what is wanted; `None`: not measured.
    pub fn met(&self) -> Option<bool> {
        let median = self.measured?.median;
        Some(if self.at_least { median >= self.wanted } else { median <= self.wanted })
    }

    /// `met`, `missed` or `not measured`.
    pub fn verdict(&self) -> &'static str {
        match self.met() {
            Some(true) => "met",
            Some(false) => "missed",
            None => "not measured",
        }
    }
}

fn small_load(pattern: Pattern, (depth, jobs): (u32, u32)) -> Load {
    Load::new(pattern, 4096, depth).jobs(jobs)
}

fn free(load: Load, subject: Subject) -> Point {
    Point { wire: Wire::FREE, load, subject }
}

pub fn plan() -> Vec<Group> {
    let mut groups = Vec::new();
    for pattern in SMALL {
        for (n, at) in DEPTHS.into_iter().enumerate() {
            let load = small_load(pattern, at);
            let quick = match (pattern.reads(), n) {
                (_, 0) => 2,
                (true, 1) => 1,
                _ => 0,
            };
            let mut group = Group::new(Wire::FREE, load);
            for carrier in CARRIERS {
                group = group.with(Subject::thinwire(carrier), 2.0, 5, quick).with(
                    Subject::echo(carrier, false),
                    2.0,
                    5,
                    quick,
                );
            }
            groups.push(group.with(Subject::Nbdkit, 2.0, 5, quick));
        }
    }
    groups.push(
        Group::new(Wire::FREE, ONE)
            .with(Subject::thinwire(Carrier::Packet), 2.0, 5, 2)
            .with(Subject::thinwire(Carrier::Udp), 2.0, 5, 0)
            .with(SLEEPING, 2.0, 5, 2)
            .with(Subject::echo(Carrier::Packet, false), 2.0, 5, 2)
            .with(Subject::echo(Carrier::Packet, true), 2.0, 5, 2)
            .with(Subject::Nbdkit, 2.0, 5, 2),
    );
    for pattern in LARGE {
        let load = Load::new(pattern, 131_072, 8);
        let mut group = Group::new(Wire::FREE, load);
        for carrier in CARRIERS {
            group = group.with(Subject::thinwire(carrier), 2.0, 5, 1).with(
                Subject::echo(carrier, false),
                2.0,
                5,
                2,
            );
        }
        groups.push(group.with(Subject::Nbdkit, 2.0, 5, 1));
    }
    groups
}

/// All bars, in the order in which they were set.
pub fn bars(view: &View) -> Vec<Bar> {
    let mut bars = Vec::new();
    small(view, &mut bars);
    one(view, &mut bars);
    large(view, &mut bars);
    shaped(view, &mut bars);
    steps(view, &mut bars);
    backlog(view, &mut bars);
    bars
}

fn bar(
    view: &View,
    text: String,
    a: &Point,
    b: &Point,
    of: fn(&Figures) -> f64,
    at_least: bool,
    wanted: f64,
) -> Bar {
    let show = |point: &Point| {
        view.spread(point, of).map_or(NONE.into(), |s| crate::draw::number(s.median))
    };
    let figures = format!("{} to {}", show(a), show(b));
    Bar { text, wanted, at_least, measured: view.ratio(a, b, of), figures }
}

fn small(view: &View, bars: &mut Vec<Bar>) {
    for carrier in CARRIERS {
        let word = carrier.word();
        for pattern in SMALL {
            // Its best figure of this run decides at what load all are compared.
            let iops = |at: &(u32, u32)| {
                view.spread(&free(small_load(pattern, *at), Subject::Nbdkit), |f| f.iops)
            };
            let median = |at: &(u32, u32)| iops(at).map_or(0.0, |s| s.median);
            let best = DEPTHS.into_iter().max_by(|a, b| median(a).total_cmp(&median(b)));
            let best = best.expect("there are loads");
            let load = small_load(pattern, best);
            let at =
                format!("4 KiB {}, {} x {} outstanding, {word}", pattern.word(), best.1, best.0);
            let ours = free(load, Subject::thinwire(carrier));
            let (nbdkit, echo) =
                (free(load, Subject::Nbdkit), free(load, Subject::echo(carrier, false)));
            let times = if carrier == Carrier::Udp { 4.0 } else { 2.5 };
            bars.push(bar(
                view,
                format!("{at}: IOPS over nbdkit's"),
                &ours,
                &nbdkit,
                |f| f.iops,
                true,
                times,
            ));
            if carrier == Carrier::Packet {
                let text = format!("{at}: CPU of both sides an I/O, over nbdkit's");
                bars.push(bar(view, text, &ours, &nbdkit, Figures::cpu_us, false, 0.4));
            }
            bars.push(bar(
                view,
                format!("{at}: IOPS over the echo's"),
                &ours,
                &echo,
                |f| f.iops,
                true,
                0.7,
            ));
        }
        // The stretch: at whatever load.
        let (wanted, whose) = match carrier {
            Carrier::Udp => (600_000.0, "600 k"),
            _ => (document().says("iops.max"), "the document's 287 k"),
        };
        let loads = DEPTHS.map(|at| small_load(Pattern::RandRead, at));
        let found =
            loads.map(|load| view.spread(&free(load, Subject::thinwire(carrier)), |f| f.iops));
        let best = found.into_iter().flatten().max_by(|a, b| a.median.total_cmp(&b.median));
        bars.push(Bar {
            text: format!("stretch: 4 KiB random reads, {word}: IOPS over {whose}"),
            wanted: 1.0,
            at_least: true,
            measured: best.map(|s| s.times(1.0 / wanted)),
            figures: best.map_or(NONE.into(), |s| s.show(0)),
        });
    }
}

fn one(view: &View, bars: &mut Vec<Bar>) {
    let ours = free(ONE, Subject::thinwire(Carrier::Packet));
    let echo = |sleeps| free(ONE, Subject::echo(Carrier::Packet, sleeps));
    let mean: fn(&Figures) -> f64 = |f| f.mean_us;
    let text = "one 4 KiB read outstanding, packet: mean latency over";
    let nbdkit = free(ONE, Subject::Nbdkit);
    bars.push(bar(view, format!("{text} nbdkit's"), &ours, &nbdkit, mean, false, 0.7));
    bars.push(bar(
        view,
        format!("{text} the spinning echo's"),
        &ours,
        &echo(false),
        mean,
        false,
        1.5,
    ));
    let sleeping = free(ONE, SLEEPING);
    let text = format!("{text} the sleeping echo's, spinning switched off");
    bars.push(bar(view, text, &sleeping, &echo(true), mean, false, 1.3));
}

fn large(view: &View, bars: &mut Vec<Bar>) {
    for pattern in LARGE {
        let load = Load::new(pattern, 131_072, 8);
        let point = |subject| free(load, subject);
        let rate: fn(&Figures) -> f64 = |f| f.mib_per_s;
        let text = format!("128 KiB {}s, udp: MiB/s over nbdkit's", pattern.word());
        let (udp, packet) =
            (point(Subject::thinwire(Carrier::Udp)), point(Subject::thinwire(Carrier::Packet)));
        bars.push(bar(view, text, &udp, &point(Subject::Nbdkit), rate, true, 1.5));
        let text = format!("128 KiB {}s, packet: MiB/s over the echo's", pattern.word());
        let echo = point(Subject::echo(Carrier::Packet, false));
        bars.push(bar(view, text, &packet, &echo, rate, true, 0.8));
    }
}

fn shaped(view: &View, bars: &mut Vec<Bar>) {
    for mbit in links::RATES {
        for pattern in SMALL {
            for carrier in CARRIERS {
                let load = links::load(pattern);
                let point = |subject| Point { wire: links::wire(mbit), load, subject };
                let text = format!(
                    "4 KiB {} at {} Gb/s, 128 outstanding, {}: payload over the echo's",
                    pattern.word(),
                    f64::from(mbit) / 1000.0,
                    carrier.word()
                );
                let ours = point(Subject::thinwire(carrier));
                let echo = point(Subject::echo(carrier, false));
                bars.push(bar(view, text, &ours, &echo, |f| f.mib_per_s, true, 0.97));
            }
        }
    }
}

fn steps(view: &View, bars: &mut Vec<Bar>) {
    let steps = [
        (pipelines::SPLIT, pipelines::SINGLE, "split to single"),
        (pipelines::SINGLE, pipelines::INLINE, "single to single and inline"),
    ];
    for pattern in SMALL {
        let point = |subject| pipelines::point(pattern, 4096, subject);
        for (before, after, name) in steps {
            let text = format!(
                "one 4 KiB {}, {name}: total time of the one over the other",
                pattern.word()
            );
            bars.push(bar(view, text, &point(after), &point(before), |f| f.mean_us, false, 1.0));
        }
    }
}

fn backlog(view: &View, bars: &mut Vec<Bar>) {
    for data in [false, true] {
        for pattern in SMALL {
            let with = if data { "with" } else { "without" };
            let name = format!("4 KiB {}, {with} data batching: backlog", pattern.word());
            // At every number of outstanding requests: the worst of them stands for all.
            let mut worst: Option<(Spread, u32, &str)> = None;
            for load in batching::loads(pattern) {
                let ours = batching::point(load, "backlog", data);
                let iops = |name| view.spread(&batching::point(load, name, data), |f| f.iops);
                let others = batching::POLICIES.into_iter().filter(|&name| name != "backlog");
                let best = others
                    .filter_map(|name| Some((name, iops(name)?.median)))
                    .max_by(|a, b| a.1.total_cmp(&b.1));
                let Some((name, _)) = best else { continue };
                let other = batching::point(load, name, data);
                let Some(share) = view.ratio(&ours, &other, |f| f.iops) else { continue };
                if worst.as_ref().is_none_or(|(spread, ..)| share.median < spread.median) {
                    worst = Some((share, load.outstanding(), name));
                }
            }
            bars.push(Bar {
                text: format!("{name} over the best other policy, where it is furthest behind"),
                wanted: 0.97,
                at_least: true,
                measured: worst.map(|(spread, ..)| spread),
                figures: worst
                    .map_or(NONE.into(), |(_, n, other)| format!("at {n} outstanding, {other}")),
            });
            let load = Load::new(pattern, 4096, 1);
            let point = |policy| batching::point(load, policy, data);
            let text = format!("{name} at 1 outstanding: mean latency over that of no batching");
            bars.push(bar(
                view,
                text,
                &point("backlog"),
                &point("none"),
                |f| f.mean_us,
                false,
                1.03,
            ));
        }
    }
}

pub fn section(view: &View) -> Section {
    let mut section = Section::new(
        "The bars",
        &[
            "What the project set out to reach, as ratios within a round (medians, in parentheses the least and the \
             most). Those of small I/Os are taken at the depth and jobs of nbdkit's best figure of this run.",
        ],
    );
    let header = ["bar", "wanted", "measured", "figures", "verdict"];
    let mut table = Table::new("What it must show", &header);
    for bar in bars(view) {
        let sign = if bar.at_least { "at least" } else { "at most" };
        table.rows.push(vec![
            bar.text.clone(),
            format!("{sign} {}", bar.wanted),
            bar.measured.map_or(NONE.into(), |s| s.show(3)),
            bar.figures.clone(),
            bar.verdict().into(),
        ]);
    }
    section.tables.push(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Form;
    use crate::store::{Run, Store, tests::folder};

    #[test]
    fn bars_are_met_and_missed_by_their_medians() {
        let folder = folder("bars");
        let mut store = Store::open(&folder, "b", "m").unwrap();
        let load = Load::new(Pattern::Read, 131_072, 8);
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
                let run = Run { round, visit: u64::from(round) + 1, seconds: 2.0 };
                store.put(&free(load, subject), run, Ok(figures)).unwrap();
            }
        }
        let found = bars(&View::new(&store, &crate::experiments::plan_of_all(), Form::Full));
        let verdict = |text: &str| {
            let bar = found.iter().find(|bar| bar.text.starts_with(text)).unwrap();
            (bar.verdict(), bar.measured.map(|s| (s.min, s.max)))
        };
        assert_eq!(verdict("128 KiB reads, udp"), ("met", Some((2.0, 2.0))));
        assert_eq!(verdict("128 KiB reads, packet"), ("missed", Some((0.75, 0.75))));
        assert_eq!(verdict("128 KiB writes, udp"), ("not measured", None));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_bar_can_be_measured() {
        // Each figure a bar asks for is in somebody's plan: with everything stored, all have a verdict.
        let folder = folder("bars-all");
        let mut store = Store::open(&folder, "b", "m").unwrap();
        for group in crate::experiments::plan_of_all() {
            for (point, _) in group.points() {
                let figures = Figures {
                    iops: 1.0,
                    mib_per_s: 1.0,
                    mean_us: 1.0,
                    cpu_client_us: 1.0,
                    ..Figures::default()
                };
                let run = Run { round: 0, visit: 1, seconds: 60.0 };
                store.put(&point, run, Ok(figures)).unwrap();
            }
        }
        for bar in bars(&View::new(&store, &crate::experiments::plan_of_all(), Form::Full)) {
            assert!(bar.met().is_some(), "{} is never measured", bar.text);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
