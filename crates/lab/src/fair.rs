//! `thinwire-lab fair`: what sessions of one target cost each other. One with a request outstanding beside one with
//! 512, and beside one like itself; many that want all they can get, and how equal their shares are.

use std::time::Duration;

use crate::args::FairArgs;
use crate::contender::{
    BARE, bench_flags, bench_report, fill, monotonic, serve, start_after, strs, uri, words,
};
use crate::error::{LabError, Outcome};
use crate::experiments::Table;
use crate::figures::Figures;
use crate::point::{Carrier, Load, Pattern, Wire};
use crate::stand::{Image, Laboratory, Network, Process, Side, VOLUME_MIB, is_installed};
use crate::stats::Spread;

/// A polite session's 99th percentile, over what it is beside an equal: at most.
const RATIO_MAX: f64 = 3.0;
/// Jain's index of equal initiators: at least.
const JAIN_MIN: f64 = 0.95;

/// What the polite one does.
const POLITE: Load = Load::new(Pattern::RandRead, 4096, 1);

/// What stands beside it, and the words for that.
const OTHERS: [(&str, Load); 5] = [
    ("an equal", POLITE),
    ("512 reads of 4 KiB", Load::new(Pattern::RandRead, 4096, 512)),
    ("512 reads of 128 KiB", Load::new(Pattern::RandRead, 128 << 10, 512)),
    ("512 writes of 4 KiB", Load::new(Pattern::RandWrite, 4096, 512)),
    ("512 writes of 128 KiB", Load::new(Pattern::RandWrite, 128 << 10, 512)),
];

/// What each of many does: half of them the first, half the second.
const MANY: [(&str, [Load; 2]); 3] = [
    ("32 reads of 4 KiB each", [Load::new(Pattern::RandRead, 4096, 32); 2]),
    (
        "128 reads of 4 KiB, or 8",
        [Load::new(Pattern::RandRead, 4096, 128), Load::new(Pattern::RandRead, 4096, 8)],
    ),
    (
        "32 reads of 4 KiB, or of 64 KiB",
        [Load::new(Pattern::RandRead, 4096, 32), Load::new(Pattern::RandRead, 64 << 10, 32)],
    ),
];

/// How the polite initiator's process is run: as any other, or so that it never waits for a processor.
const SCHEDULED: [(&str, &[&str], &[&str]); 2] =
    [("as any", &[], &[]), ("first", &["chrt", "-f", "5"], &["--spin", "off"])];

/// Where the target has its volume.
enum Medium {
    Memory,
    Disk(Image),
}

impl Medium {
    fn title(&self) -> &'static str {
        match self {
            Medium::Memory => "memory",
            Medium::Disk(_) => "disk",
        }
    }
}

/// A target and the initiators around it.
struct Stand<'l> {
    lab: &'l Laboratory<'l>,
    _target: Process,
    network: Network<'l>,
}

/// What a bench prints, and which one it was.
type Runs = Vec<Figures>;

impl<'l> Stand<'l> {
    fn set_up(lab: &'l Laboratory<'l>, initiators: u32, medium: &Medium) -> Outcome<Self> {
        let network = Network::new(lab, Wire { initiators, ..Wire::FREE })?;
        let volume = match medium {
            Medium::Memory => format!("memory:{VOLUME_MIB}M"),
            Medium::Disk(image) => image.path().to_owned(),
        };
        let state = lab.fresh_path("state");
        let flags = words!["--export", format!("disk0={volume}"), "--state-dir", state.display()];
        let target = serve(lab, &network, Carrier::Packet, &[BARE.to_owned()], &flags, &[])?;
        if let Medium::Memory = medium {
            fill(lab, &network, 1, &[BARE.to_owned()], &uri(&network, Carrier::Packet, 1, 0))?;
        }
        Ok(Stand { lab, _target: target, network })
    }

    /// Runs these loads beside each other, one of each initiator, with words before its command and flags.
    fn run(&self, loads: &[(Load, &[&str], &[&str])], seconds: f64) -> Outcome<Runs> {
        self.lab.check()?;
        let at = monotonic() + start_after(loads.len() as u32);
        let begin = |(n, (load, prefix, flags)): (usize, &(Load, &[&str], &[&str]))| {
            let n = n as u32 + 1;
            let run_dir = self.lab.fresh_path("run");
            let mut argv = prefix.iter().map(ToString::to_string).collect::<Vec<_>>();
            argv.extend(words![self.lab.executable(), "bench", BARE]);
            argv.push(uri(&self.network, Carrier::Packet, n, 0));
            argv.extend(words!["--run-dir", run_dir.display()]);
            argv.extend(words!["--start-at", format!("{at:.6}")]);
            argv.extend(flags.iter().map(ToString::to_string));
            argv.extend(bench_flags(load, seconds));
            self.network.start(Side::Initiator(n), &strs(&argv))
        };
        let running: Vec<Process> = loads.iter().enumerate().map(begin).collect::<Outcome<_>>()?;
        let patience = Duration::from_secs_f64(seconds) + Duration::from_secs(60);
        let end = |process: Process| process.finish(self.lab, patience);
        // Each of them ends by itself, so that none is left attached.
        let ends: Vec<Outcome<(String, Duration)>> = running.into_iter().map(end).collect();
        ends.into_iter().map(|end| Ok(bench_report(&end?.0)?.0)).collect()
    }
}

/// Measures and prints nothing but progress; the tables. Blocks until it is done.
pub fn run(lab: &Laboratory<'_>, args: &FairArgs) -> Outcome<Vec<Table>> {
    if !is_installed("chrt") {
        return Err(LabError::Failed("chrt (util-linux) is not installed".into()));
    }
    let mut media = vec![Medium::Memory];
    if !args.memory_only {
        media.push(Medium::Disk(Image::new(lab)?));
    }
    let mut polite = polite_table();
    for medium in &media {
        let stand = Stand::set_up(lab, 2, medium)?;
        for (word, prefix, flags) in SCHEDULED {
            let mut rounds: Vec<Vec<(Figures, Figures)>> = vec![Vec::new(); OTHERS.len()];
            for round in 0..args.rounds {
                eprintln!("fair: {}, {word}: round {}", medium.title(), round + 1);
                for ((_, other), found) in OTHERS.into_iter().zip(&mut rounds) {
                    // An equal is run as it is itself.
                    let of_other: (&[&str], &[&str]) =
                        if other == POLITE { (prefix, flags) } else { (&[], &[]) };
                    let loads = [(POLITE, prefix, flags), (other, of_other.0, of_other.1)];
                    let mut runs = stand.run(&loads, args.seconds)?;
                    let other = runs.pop().expect("two were run");
                    found.push((runs.pop().expect("two were run"), other));
                }
            }
            add_polite(&mut polite, medium.title(), word, &rounds);
        }
    }
    drop(media);
    let mut many = many_table(args.initiators);
    let stand = Stand::set_up(lab, args.initiators, &Medium::Memory)?;
    let mut rounds: Vec<Vec<Runs>> = vec![Vec::new(); MANY.len()];
    for round in 0..args.rounds.min(3) {
        eprintln!("fair: {} initiators: round {}", args.initiators, round + 1);
        for ((_, loads), found) in MANY.into_iter().zip(&mut rounds) {
            let each: Vec<(Load, &[&str], &[&str])> =
                (0..args.initiators as usize).map(|n| (loads[n % 2], &[][..], &[][..])).collect();
            found.push(stand.run(&each, args.seconds)?);
        }
    }
    add_many(&mut many, &rounds);
    Ok(vec![polite, many])
}

fn polite_table() -> Table {
    let title = "One session that reads 4 KiB with 1 outstanding, beside another one";
    let header = [
        "store",
        "its process is run",
        "beside",
        "its median, us",
        "its p99, us",
        "p99 over that beside an equal",
        "at most 3",
        "its IOPS",
        "the other's MiB/s",
    ];
    Table::new(title, &header)
}

fn add_polite(table: &mut Table, store: &str, word: &str, rounds: &[Vec<(Figures, Figures)>]) {
    for ((beside, load), runs) in OTHERS.into_iter().zip(rounds) {
        let show = |digits, of: &dyn Fn(&(Figures, Figures)) -> Option<f64>| {
            Spread::of(runs.iter().filter_map(of)).map_or("–".into(), |s| s.show(digits))
        };
        // Within a round, as everywhere.
        let ratios = runs
            .iter()
            .zip(&rounds[0])
            .filter_map(|((own, _), (equal, _))| Some(own.p99_us? / equal.p99_us?));
        let ratio = Spread::of(ratios).filter(|_| load != POLITE);
        table.rows.push(vec![
            store.into(),
            word.into(),
            beside.into(),
            show(0, &|(own, _)| own.p50_us),
            show(0, &|(own, _)| own.p99_us),
            ratio.map_or("–".into(), |s| s.show(1)),
            ratio.map_or("–", |s| verdict(s.median <= RATIO_MAX)).into(),
            show(0, &|(own, _)| Some(own.iops)),
            show(0, &|(_, other)| Some(other.mib_per_s)),
        ]);
    }
}

fn many_table(initiators: u32) -> Table {
    let title = format!("{initiators} initiators that want all they can get, memory");
    let header = [
        "each",
        "Jain's index of I/Os",
        "of I/Os by what they cost",
        "at least 0.95",
        "IOPS of all",
        "of the least, the most",
    ];
    Table::new(title, &header)
}

fn add_many(table: &mut Table, rounds: &[Vec<Runs>]) {
    for ((what, loads), runs) in MANY.into_iter().zip(rounds) {
        let iops = |runs: &Runs| runs.iter().map(|run| run.iops).collect::<Vec<_>>();
        // What a target shares out: bytes, and 4 KiB for each request.
        let costs = |runs: &Runs| {
            let cost =
                |(n, run): (usize, &Figures)| run.iops * f64::from(loads[n % 2].block + 4096);
            runs.iter().enumerate().map(cost).collect::<Vec<_>>()
        };
        let spread = |of: &dyn Fn(&Runs) -> f64| Spread::of(runs.iter().map(of));
        let by_cost = spread(&|runs| jain(&costs(runs)));
        let least = spread(&|runs| iops(runs).into_iter().fold(f64::INFINITY, f64::min));
        let most = spread(&|runs| iops(runs).into_iter().fold(0.0, f64::max));
        let show = |s: Option<Spread>, digits| s.map_or("–".into(), |s| s.show(digits));
        let middle = |s: Option<Spread>| s.map_or("–".into(), |s| format!("{:.0}", s.median));
        // The bar is about initiators that want the same.
        let is_bar = loads[0] == loads[1];
        table.rows.push(vec![
            what.into(),
            show(spread(&|runs| jain(&iops(runs))), 3),
            show(by_cost, 3),
            by_cost.filter(|_| is_bar).map_or("–", |s| verdict(s.median >= JAIN_MIN)).into(),
            show(spread(&|runs| iops(runs).iter().sum()), 0),
            format!("{}, {}", middle(least), middle(most)),
        ]);
    }
}

fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

/// R. Jain's index of fairness: 1 if all have the same, 1/n if one has everything.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) =
        shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_one_for_equals_and_small_for_one_who_has_all() {
        assert_eq!(jain(&[5.0; 64]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
    }

    #[test]
    fn bars_are_told_apart() {
        let run = |p99| Figures { p99_us: Some(p99), ..Figures::default() };
        let rounds: Vec<Vec<(Figures, Figures)>> =
            [50.0, 100.0, 151.0, 149.0, 50.0].map(|p99| vec![(run(p99), run(1.0)); 3]).into();
        let mut table = polite_table();
        add_polite(&mut table, "memory", "first", &rounds);
        let verdicts: Vec<&str> = table.rows.iter().map(|row| &row[6][..]).collect();
        assert_eq!(verdicts, ["–", "met", "missed", "met", "met"]);
        assert_eq!(table.rows[1][5], "2.0 (2.0–2.0)");
        let mut table = many_table(2);
        let of = |iops| Figures { iops, ..Figures::default() };
        let runs = [[4.0, 4.0], [1.0, 3.0], [17.0, 2.0]].map(|iops| vec![iops.map(of).into()]);
        add_many(&mut table, &runs);
        let shown =
            |row: usize| [&table.rows[row][1][..], &table.rows[row][2], &table.rows[row][3]];
        assert_eq!(shown(0), ["1.000", "1.000", "met"]);
        assert_eq!(shown(1), ["0.800", "0.800", "–"]);
        assert_eq!(shown(2), ["0.616", "1.000", "–"]);
    }
}
