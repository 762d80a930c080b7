//! `thinwire bench --breakdown`.

use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_proto::StageSums;
use thinwire_runtime::stages::{LIFE, StageClocks};
use thinwire_volume::Geometry;
use thinwire_wire::clock_kind;

use super::bench::{Progress, READING_FLAG, run_number};
use crate::bench::{
    BenchPlan, BenchReport, Breakdown, BreakdownCell, BreakdownRun, Engine, NodesRun, Stop, Tally,
    failure,
};
use crate::cli::{BenchArgs, BenchPattern, MIX_DEFAULT};
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::open::{Ending, OpenVolume, VolumeOptions, let_go, let_go_failed, open_volume};
use crate::output;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// The sizes of the document's tables.
const SIZES: [u64; 4] = [4 << 10, 8 << 10, 64 << 10, 128 << 10];

/// The longest of one pattern and size: the clocks are asked twice in each half of it.
const CELL_MAX: Duration = LIFE.saturating_mul(2);

/// Measures the stages of each pattern and size, first of all time, then of processor time.
pub fn break_down(args: &BenchArgs) -> Outcome {
    refuse_others(&args.volume)?;
    if args.iodepth > 1 || args.jobs > 1 {
        return Err(Failure::usage(
            "--breakdown: stages follow each other only with one I/O outstanding, so without \
             --iodepth and --jobs",
        ));
    }
    let patterns =
        args.rw.map_or(vec![BenchPattern::RandRead, BenchPattern::RandWrite], |rw| vec![rw]);
    let sizes = args.bs.map_or(SIZES.to_vec(), |bs| vec![bs]);
    let cells = (patterns.len() * sizes.len()) as u32;
    if args.runtime > CELL_MAX * cells {
        return Err(Failure::usage(format!(
            "--breakdown: --runtime is {} s at most for {cells} pairs of pattern and size: the stage \
             clocks stop when nobody has asked for them for {} s",
            (CELL_MAX * cells).as_secs(),
            LIFE.as_secs()
        )));
    }
    let reads_only = patterns.iter().all(|pattern| pattern.reads_only());
    if !reads_only {
        refuse_in_use(&args.volume, "writing to it")?;
    }
    let (signals, _) = catch_signals(2, &[&args.volume])?;
    let mut options =
        VolumeOptions::new(args.security.read()?, &args.wire, args.run_dir.run_dir.clone());
    options.submission = args.submission;
    options.flags.reading = Some(READING_FLAG);
    options.read_only = reads_only;
    options.take_over = args.take_over && !reads_only;
    options.hurry = signals.hurry();
    let mut open = open_volume(&args.volume, &options, Some(&signals))?;
    open.watch(signals.fd())?;
    let cost = [clock_kind::PHYSICAL, clock_kind::VIRTUAL].map(StageClocks::cost_ns);
    let mut table = Breakdown::new(args.volume.to_string(), cost);
    let runtime = args.runtime / cells;
    let mut stand = Stand {
        geometry: open.volume().geometry(),
        pool: open.pool().clone(),
        open: &mut *open,
        signals: &signals,
        is_tree: matches!(args.volume, VolumeSpec::Over { .. }),
        bar: Progress::new(true, args.runtime),
        before: Duration::ZERO,
        has_written: false,
    };
    let mut measure = || -> Outcome {
        for &rw in &patterns {
            for &bs in &sizes {
                table.cells.push(stand.cell(args, rw, bs, runtime, cost[0])?);
            }
        }
        stand.bar.end();
        match stand.is_tree {
            true => stand.open.begin_node_stages(clock_kind::OFF),
            false => drop(stand.stages(clock_kind::OFF)?),
        }
        Ok(())
    };
    let measured = measure();
    let has_written = stand.has_written;
    if let Err(failure) = measured {
        let_go_failed(&mut *open, has_written);
        return Err(failure);
    }
    let_go(&mut *open, Ending::Orderly)?;
    match (args.json, &table.cells[..]) {
        (false, _) => output::say(&table.text()),
        (true, [one]) if args.rw.is_some() && args.bs.is_some() => output::say_json(one),
        (true, _) => output::say_json(&table),
    }
}

/// The stages are those of one session.
fn refuse_others(volume: &VolumeSpec) -> Outcome {
    let what = match volume {
        VolumeSpec::Remote(remote) if remote.members == 1 => return Ok(()),
        VolumeSpec::Remote(_) => {
            "has several members: leave that away, the stages are those of one session"
        }
        // A row for each that it is made of.
        VolumeSpec::Over { .. } => return Ok(()),
        _ => "is local, and has none of the stages",
    };
    let why = "--breakdown needs a remote volume, one export of a target (tw://...), or a volume made of others";
    Err(Failure::usage(format!("{why}; {volume} {what}")))
}

/// The volume, and what measuring it needs.
struct Stand<'a> {
    open: &'a mut dyn OpenVolume,
    geometry: Geometry,
    pool: Pool,
    signals: &'a Signals,
    /// It is made of others.
    is_tree: bool,
    bar: Progress,
    /// What the cells so far took.
    before: Duration,
    /// A cell has come to write.
    has_written: bool,
}

impl Stand<'_> {
    /// One pattern and size. A tenth of the time is for warming up.
    fn cell(
        &mut self,
        args: &BenchArgs,
        rw: BenchPattern,
        bs: u64,
        runtime: Duration,
        clock_ns: f64,
    ) -> Outcome<BreakdownCell> {
        let plan = |runtime| BenchPlan {
            rw,
            mix: args.mix.unwrap_or(MIX_DEFAULT),
            bs: 0,
            iodepth: 1,
            jobs: 1,
            runtime,
            blocks: 0,
            verify: false,
            seed: args.seed,
            timeline: None,
            stamps: true,
        };
        let half = runtime / 2;
        let warm = plan(half / 10).fit(bs, args.size, &self.geometry)?;
        let plan = plan(half * 9 / 10).fit(bs, args.size, &self.geometry)?;
        if self.is_tree {
            let mut measure = |kind| -> Outcome<(NodesRun, Tally)> {
                self.run(warm)?;
                self.open.begin_node_stages(kind);
                let tally = self.run(plan)?;
                self.before += half;
                Ok((NodesRun::new(self.open.node_stages(), &tally)?, tally))
            };
            let (physical, tally) = measure(clock_kind::PHYSICAL)?;
            let (cpu, _) = measure(clock_kind::VIRTUAL)?;
            let report = BenchReport::new(args.volume.to_string(), &plan, 1, &tally);
            return Ok(BreakdownCell::of_nodes(report, &tally, &physical, &cpu, clock_ns));
        }
        let mut measure = |kind| -> Outcome<(BreakdownRun, Tally)> {
            self.run(warm)?;
            let at_start = self.stages(kind)?;
            let tally = self.run(plan)?;
            let at_end = self.stages(kind)?;
            self.before += half;
            Ok((BreakdownRun::new(at_start, at_end, &tally)?, tally))
        };
        let (physical, tally) = measure(clock_kind::PHYSICAL)?;
        let (cpu, _) = measure(clock_kind::VIRTUAL)?;
        let report = BenchReport::new(args.volume.to_string(), &plan, 1, &tally);
        Ok(BreakdownCell::new(report, &tally, &physical, &cpu, clock_ns))
    }

    fn run(&mut self, plan: BenchPlan) -> Outcome<Tally> {
        let engine = Engine::new(plan, &self.pool, run_number());
        self.has_written |= plan.writes();
        let (bar, before) = (&mut self.bar, self.before);
        let mut show = |time, ios| bar.show(before + time, ios);
        let tally = engine.run(self.open, &Stop::default(), Some(self.signals), &mut show)?;
        failure(&tally).map_or(Ok(tally), Err)
    }

    fn stages(&mut self, kind: u8) -> Outcome<[StageSums; 2]> {
        Ok(self.open.stages(kind)?.expect("a remote volume has stages"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_broken_down_is_called_what_it_is() {
        for (volume, named) in [
            ("tw://n/a?link=e", None),
            ("null:1M", Some("null:1048576 is local")),
            ("linear:[null:1M,memory:512]", None),
            ("linear:[tw://n/a?link=e,tw://m/b?link=e]", None),
        ] {
            let refused = refuse_others(&volume.parse().unwrap()).err().map(|e| e.message);
            let (refused, named) = (refused.unwrap_or_default(), named.unwrap_or_default());
            assert!(refused.contains(named) && refused.is_empty() == named.is_empty(), "{refused}");
        }
    }
}
