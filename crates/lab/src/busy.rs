//! `thinwire-lab busy`: whom spinning hurts. A pair beside 0 to 4 busy processes, spinning and never spinning, in
//! turns: what the pair does, and what the busy ones get of the processors.

use std::time::{Duration, Instant};

use crate::args::BusyArgs;
use crate::contender::{Abilities, Contender, set_up};
use crate::error::Outcome;
use crate::experiments::Table;
use crate::figures::Figures;
use crate::point::{Carrier, Load, Pattern, Point, Settings, Subject, Wire};
use crate::stand::{Laboratory, Process};
use crate::stats::Spread;

/// Busy processes beside the pair, at most.
const BUSY_MAX: usize = 4;
/// Outstanding requests.
const DEPTHS: [u32; 2] = [1, 32];
/// `--spin` of those who are compared.
const WORDS: [&str; 2] = ["off", "on"];

/// What a process that only works runs as: no system call, no sleep.
const BUSY: [&str; 3] = ["sh", "-c", "while :; do :; done"];

/// One measurement: the pair's figures, and the share of a processor that each busy process had.
struct Run {
    figures: Figures,
    busy_percent: Option<f64>,
}

/// Measures and prints the table. Blocks until it is done.
pub fn run(lab: &Laboratory<'_>, args: &BusyArgs) -> Outcome<Table> {
    let abilities = Abilities::ask(lab)?;
    let wire = Wire::FREE;
    let mut pairs = Vec::new();
    for word in WORDS {
        let settings = Settings { spin: Some(word), ..Settings::DEFAULT };
        let subject = Subject::Thinwire { carrier: Carrier::Packet, settings };
        let load = Load::new(Pattern::RandRead, 4096, 1);
        pairs.push(set_up(lab, &abilities, &Point { wire, load, subject })?);
    }
    let mut rows: Vec<Vec<[Vec<Run>; 2]>> = Vec::new();
    rows.resize_with(DEPTHS.len(), || (0..=BUSY_MAX).map(|_| [Vec::new(), Vec::new()]).collect());
    for round in 0..args.rounds {
        for (depth, by_busy) in DEPTHS.into_iter().zip(&mut rows) {
            let load = Load::new(Pattern::RandRead, 4096, depth);
            for (busy, sides) in by_busy.iter_mut().enumerate() {
                for turn in 0..WORDS.len() {
                    let side = (turn + round as usize) % WORDS.len();
                    eprintln!(
                        "busy: round {}, {depth} outstanding, {busy} busy, spin {}",
                        round + 1,
                        WORDS[side]
                    );
                    sides[side].push(measure(lab, &mut *pairs[side], &load, busy, args.seconds)?);
                }
            }
        }
    }
    Ok(table(&rows))
}

fn measure(
    lab: &Laboratory<'_>,
    pair: &mut dyn Contender,
    load: &Load,
    busy: usize,
    seconds: f64,
) -> Outcome<Run> {
    lab.check()?;
    let busy: Vec<Process> =
        (0..busy).map(|_| Process::start(lab, None, &BUSY)).collect::<Outcome<_>>()?;
    let worked = || busy.iter().map(Process::cpu).sum::<Duration>();
    let (before, start) = (worked(), Instant::now());
    let figures = pair.measure(load, seconds)?;
    let each = (worked() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    let busy_percent = (!busy.is_empty()).then(|| 100.0 * each / busy.len() as f64);
    Ok(Run { figures, busy_percent })
}

fn table(rows: &[Vec<[Vec<Run>; 2]>]) -> Table {
    let header = [
        "outstanding",
        "busy beside",
        "IOPS, off",
        "IOPS, on",
        "on over off",
        "median, us: off, on",
        "p99, us: off, on",
        "CPU, us an I/O: off, on",
        "of a processor each busy one had, %: off, on",
        "on over off",
    ];
    let mut table =
        Table::new("4 KiB random reads over packet, two sides beside busy processes", &header);
    for (depth, by_busy) in DEPTHS.into_iter().zip(rows) {
        for (busy, [off, on]) in by_busy.iter().enumerate() {
            let show = |runs: &[Run], digits, of: &dyn Fn(&Run) -> Option<f64>| {
                Spread::of(runs.iter().filter_map(of)).map_or("–".into(), |s| s.show(digits))
            };
            let middle = |digits, of: &dyn Fn(&Run) -> Option<f64>| {
                let one = |runs: &[Run]| Spread::of(runs.iter().filter_map(of)).map(|s| s.median);
                match (one(off), one(on)) {
                    (Some(off), Some(on)) => format!("{off:.digits$}, {on:.digits$}"),
                    _ => "–".into(),
                }
            };
            // Within a round, as everywhere.
            let ratio = |of: &dyn Fn(&Run) -> Option<f64>| {
                let ratios = off.iter().zip(on).filter_map(|(off, on)| Some(of(on)? / of(off)?));
                Spread::of(ratios).map_or("–".into(), |s| s.show(2))
            };
            let iops = |run: &Run| Some(run.figures.iops);
            let share = |run: &Run| run.busy_percent;
            table.rows.push(vec![
                depth.to_string(),
                busy.to_string(),
                show(off, 0, &iops),
                show(on, 0, &iops),
                ratio(&iops),
                middle(1, &|run| run.figures.p50_us),
                middle(1, &|run| run.figures.p99_us),
                middle(1, &|run| Some(run.figures.cpu_us())),
                middle(0, &share),
                ratio(&share),
            ]);
        }
    }
    table
}
