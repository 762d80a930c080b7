//! `thinwire-lab flood`: what a flood of forged greetings and frames costs an initiator that has a key, beside the
//! same flood sent to where nobody listens.

mod forge;

use std::time::Duration;

use crate::args::FloodArgs;
use crate::contender::{
    bench_flags, bench_report, fill, guard, monotonic, serve, strs, uri, words,
};
use crate::error::{LabError, Outcome};
use crate::experiments::Table;
use crate::figures::Figures;
use crate::point::{Carrier, Load, Pattern, Protection, Wire};
use crate::stand::{Laboratory, Network, Process, Side, VOLUME_MIB};
use crate::stats::Spread;
pub use forge::{ForgeArgs, run as forge};

/// What an initiator keeps beside a flood, of what it has beside one that goes astray: at least.
const KEPT_MIN: f64 = 0.70;

/// What the honest initiator does.
const LOAD: Load = Load::new(Pattern::RandRead, 4096, 32);
const HONEST: u32 = 1;
const FORGER: u32 = 2;

/// Until all is attached and the forger has begun, in seconds.
const BEFORE: f64 = 1.5;

/// What is forged, after which of the frames that were heard.
const FLOODS: [(&str, &[&str]); 3] = [
    ("greetings", &["greeting "]),
    ("frames of the session", &["session "]),
    ("both", &["greeting ", "session "]),
];

/// What one run has shown.
struct Run {
    /// Of the honest initiator. None of its I/Os failed: that would have ended the experiment.
    figures: Figures,
    /// Frames a second.
    flood: f64,
}

/// A target with a key, an initiator that has it, and somebody else on the same switch.
struct Stand<'l> {
    lab: &'l Laboratory<'l>,
    carrier: Carrier,
    guard: Vec<String>,
    target: Process,
    network: Network<'l>,
}

impl<'l> Stand<'l> {
    fn set_up(lab: &'l Laboratory<'l>, carrier: Carrier) -> Outcome<Self> {
        let network = Network::new(lab, Wire { initiators: 2, ..Wire::FREE })?;
        // A switch that lets nobody have another's address: without that a forger needs no flood.
        let mac = network.mac(Side::Initiator(HONEST), 1).replace('-', ":");
        let port = ["bridge", "fdb", "replace", &mac, "dev", "i1-1", "master", "static", "sticky"];
        network.run(Side::Switch, &port, "")?;
        // The addresses from which it forges are there: for others the kernel would keep what is sent to them.
        let own = ["ip", "route", "add", "local", "10.77.1.128/25", "dev", "eth1"];
        network.run(Side::Initiator(FORGER), &own, "")?;
        let guard = guard(lab, Some(Protection::Encrypted))?;
        let flags = words!["--export", format!("disk0=memory:{VOLUME_MIB}M")];
        let target = serve(lab, &network, carrier, &guard, &flags, &[])?;
        fill(lab, &network, HONEST, &guard, &uri(&network, carrier, HONEST, 0))?;
        Ok(Stand { lab, carrier, guard, target, network })
    }

    /// The honest one's load beside a flood of frames like these, that reaches the target or not.
    fn run(&self, like: &[&str], astray: bool, seconds: f64) -> Outcome<Run> {
        self.lab.check()?;
        let own = self.lab.echo();
        // At the switch: what an XDP program takes is heard behind it by nobody.
        let argv = words![own, "forge", "--dev", "i1-1"];
        let mut ear = self.network.start(Side::Switch, &strs(&argv))?;
        ear.until_says(self.lab, "listening", Duration::from_secs(10))?;
        let begin = monotonic() + BEFORE;
        let run_dir = self.lab.fresh_path("run");
        let mut argv = words![self.lab.executable(), "bench"];
        argv.push(uri(&self.network, self.carrier, HONEST, 0));
        argv.extend(words!["--run-dir", run_dir.display()]);
        argv.extend(words!["--start-at", format!("{begin:.6}")]);
        argv.extend(self.guard.iter().cloned());
        argv.extend(bench_flags(&LOAD, seconds));
        let honest = self.network.start(Side::Initiator(HONEST), &strs(&argv))?;
        let heard = ear.finish(self.lab, Duration::from_secs(10))?.0;
        let mut argv = words![own, "forge", "--dev", "eth1"];
        argv.extend(words!["--seconds", begin + seconds + 0.2 - monotonic()]);
        for kind in like {
            let frame = heard.lines().find_map(|line| line.strip_prefix(kind));
            let frame = frame.ok_or_else(|| LabError::Failed(format!("no {kind}was heard")))?;
            argv.extend(words!["--like", frame]);
        }
        if astray {
            argv.extend(words!["--astray"]);
        }
        let forger = self.network.start(Side::Initiator(FORGER), &strs(&argv))?;
        let patience = Duration::from_secs_f64(seconds) + Duration::from_secs(60);
        let said = forger.finish(self.lab, patience)?.0;
        let (figures, _) = bench_report(&honest.finish(self.lab, patience)?.0)?;
        Ok(Run { figures, flood: rate(&said)? })
    }
}

/// Frames a second, of what a forger says: `sent N in S s`.
fn rate(said: &str) -> Outcome<f64> {
    let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [sent, seconds] if seconds > 0.0 => Ok(sent / seconds),
        _ => Err(LabError::Failed(format!("the forger said `{}`", said.trim()))),
    }
}

/// Measures and prints nothing but progress; the table. Blocks until it is done.
pub fn run(lab: &Laboratory<'_>, args: &FloodArgs) -> Outcome<Table> {
    let mut table = table();
    for carrier in [Carrier::Packet, Carrier::Xdp, Carrier::Udp] {
        let stand = Stand::set_up(lab, carrier)?;
        let before = stand.target.memory_mib();
        let mut rounds: Vec<Vec<[Run; 2]>> = FLOODS.iter().map(|_| Vec::new()).collect();
        for round in 0..args.rounds {
            for ((what, like), found) in FLOODS.into_iter().zip(&mut rounds) {
                let astray = stand.run(like, true, args.seconds)?;
                let hit = stand.run(like, false, args.seconds)?;
                eprintln!(
                    "flood: {}, {what}, round {}: {:.0} of {:.0} IOPS beside {:.0} k and {:.0} k frames/s",
                    carrier.word(),
                    round + 1,
                    hit.figures.iops,
                    astray.figures.iops,
                    hit.flood / 1e3,
                    astray.flood / 1e3
                );
                found.push([astray, hit]);
            }
        }
        add(&mut table, carrier, &rounds, [before, stand.target.memory_mib()]);
    }
    Ok(table)
}

fn table() -> Table {
    let header = [
        "link",
        "forged",
        "IOPS beside a flood that goes astray",
        "that reaches the target",
        "kept",
        "at least 0.70",
        "k frames/s, astray and not",
        "MiB of the target before and after",
    ];
    Table::new("An initiator with a key, 32 encrypted reads of 4 KiB, beside a flood", &header)
}

fn add(table: &mut Table, carrier: Carrier, rounds: &[Vec<[Run; 2]>], memory: [Option<f64>; 2]) {
    for ((what, _), runs) in FLOODS.into_iter().zip(rounds) {
        let spread = |of: &dyn Fn(&[Run; 2]) -> f64| Spread::of(runs.iter().map(of));
        let show = |spread: Option<Spread>, digits| spread.map_or("–".into(), |s| s.show(digits));
        // Within a round, as everywhere.
        let kept = spread(&|[astray, hit]| hit.figures.iops / astray.figures.iops);
        let is_met = kept.is_some_and(|kept| kept.median >= KEPT_MIN);
        let rates = [0, 1].map(|n| show(spread(&|runs| runs[n].flood / 1e3), 0));
        let memory = memory.map(|mib| mib.map_or("–".into(), |mib| format!("{mib:.0}")));
        table.rows.push(vec![
            carrier.word().into(),
            what.into(),
            show(spread(&|[astray, _]| astray.figures.iops), 0),
            show(spread(&|[_, hit]| hit.figures.iops), 0),
            show(kept, 2),
            if is_met { "met" } else { "missed" }.into(),
            rates.join(", "),
            memory.join(", "),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forger_says_how_much_it_sent() {
        assert_eq!(rate("sent 500 in 0.250 s\n").unwrap(), 2000.0);
        assert!(rate("").is_err());
    }

    #[test]
    fn the_bar_is_about_what_is_kept() {
        let run = |iops| Run { figures: Figures { iops, ..Figures::default() }, flood: 1e6 };
        let rounds = [71.0, 69.0, 100.0].map(|iops| vec![[run(100.0), run(iops)]]);
        let mut table = table();
        add(&mut table, Carrier::Udp, &rounds, [Some(10.0), None]);
        let verdicts: Vec<&str> = table.rows.iter().map(|row| &row[5][..]).collect();
        assert_eq!(verdicts, ["met", "missed", "met"]);
        assert_eq!(table.rows[0][7], "10, –");
    }
}
