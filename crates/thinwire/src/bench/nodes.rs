//! Where the time of one I/O goes in a volume made of others: a row for each volume that it is made of, from the stage clock at the borders of each.
//!
//! A row is the time in which a volume had the I/O and none of those below it had any of it: with one outstanding, its own. Legs that
//! work at the same time count each for itself, so what is left of a mirror may be less than nothing when rows are added up: that is in the remainder.

use thinwire_modules::NodeStage;

use super::breakdown::{BreakdownCell, BreakdownRow, StageMean, round};
use super::engine::Tally;
use super::report::BenchReport;
use crate::error::{Failure, Outcome};

/// A volume of the tree, behind what it is a part of.
#[derive(Clone, Debug)]
pub struct NodeStages {
    /// How deep below the one that is measured, which is at 0.
    pub depth: usize,
    /// As it is named.
    pub name: String,
    /// What the clock showed.
    pub stage: NodeStage,
}

/// What the clock showed over a run, at all borders.
pub struct NodesRun {
    nodes: Vec<NodeStages>,
    issued: u64,
    seen: u64,
    ios: u64,
}

impl NodesRun {
    /// Of what was set back before the run.
    ///
    /// # Errors
    /// The clock has not seen the I/Os that were done.
    pub fn new(nodes: Vec<NodeStages>, tally: &Tally) -> Outcome<Self> {
        let seen = nodes.first().map_or(0, |top| top.stage.ios);
        if seen != tally.ios || tally.ios == 0 {
            return Err(Failure::failed(format!(
                "the stages cannot be told apart: {} I/Os were done, the clocks saw {seen}. They stop when nobody asks for them",
                tally.ios
            )));
        }
        Ok(NodesRun { nodes, issued: tally.issued_ns, seen: tally.seen_ns, ios: tally.ios })
    }

    /// Mean time in us between two borders, given as sums.
    fn between(&self, from: u64, to: u64) -> f64 {
        to.wrapping_sub(from) as i64 as f64 / self.ios as f64 / 1000.0
    }

    /// In, of each volume what is its own, and out.
    fn rows(&self) -> Vec<f64> {
        let top = &self.nodes[0].stage;
        let own = |node: &NodeStages| {
            let NodeStage { entered, left, below, .. } = node.stage;
            self.between(entered.wrapping_add(below), left)
        };
        let mut rows = vec![self.between(self.issued, top.entered)];
        rows.extend(self.nodes.iter().map(own));
        rows.push(self.between(top.left, self.seen));
        rows
    }
}

impl BreakdownCell {
    /// From a run with physical clocks, whose figures are `tally`, and one with virtual ones, of a volume made of others.
    pub fn of_nodes(
        report: BenchReport,
        tally: &Tally,
        physical: &NodesRun,
        cpu: &NodesRun,
        clock_ns: f64,
    ) -> Self {
        let own: Vec<f64> = physical.rows().into_iter().map(|us| us.max(0.0)).collect();
        let virtual_us = cpu.rows();
        let total = tally.latency_ns.mean() / 1000.0;
        let names =
            physical.nodes.iter().map(|node| format!("{}{}", "  ".repeat(node.depth), node.name));
        let names = ["In".to_owned()].into_iter().chain(names).chain(["Out".to_owned()]);
        let time = |mean| StageMean { mean: round(mean) };
        let row = |row: String, physical_us, virtual_us: Option<f64>| BreakdownRow {
            row: row.into(),
            physical_us: time(physical_us),
            virtual_us: virtual_us.map(time),
        };
        let mut rows: Vec<_> = names
            .zip(own.iter().zip(&virtual_us))
            .map(|(name, (own, cpu))| row(name, *own, Some(*cpu)))
            .collect();
        rows.push(row("remainder".into(), total - own.iter().sum::<f64>(), None));
        rows.push(row("total".into(), total, None));
        let looks = 2 * (physical.nodes.len() + 1);
        rows.push(row("clocks".into(), clock_ns * looks as f64 / 1000.0, None));
        BreakdownCell { report, one_clock: true, breakdown: rows }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::BenchPattern;

    /// Ten I/Os of a mirror, each 1 us on the way in, 2 of its own, 10 on one leg and 20 on the other from the same moment on, 3 more of its own, and 4 out.
    fn run() -> (NodesRun, Tally) {
        let mut tally = Tally::new();
        let mut stages = [NodeStage::default(); 3];
        for io in 0..10u64 {
            let start = 1 << 50 | io << 20;
            let at = |us: u64| start + us * 1000;
            tally.issued_ns = tally.issued_ns.wrapping_add(at(0));
            for (stage, [entered, left, below]) in
                stages.iter_mut().zip([[1, 26, 20], [3, 13, 0], [3, 23, 0]])
            {
                stage.ios += 1;
                stage.entered = stage.entered.wrapping_add(at(entered));
                stage.left = stage.left.wrapping_add(at(left));
                stage.below += below * 1000;
            }
            tally.seen_ns = tally.seen_ns.wrapping_add(at(30));
            tally.ios += 1;
            tally.latency_ns.record(30_500).unwrap();
        }
        tally.elapsed = Duration::from_secs(1);
        let names = [(0, "home"), (1, "a"), (1, "b")];
        let nodes = names.into_iter().zip(stages);
        let nodes =
            nodes.map(|((depth, name), stage)| NodeStages { depth, name: name.into(), stage });
        (NodesRun::new(nodes.collect(), &tally).unwrap(), tally)
    }

    #[test]
    fn a_volume_has_what_those_below_it_have_not() {
        let (physical, tally) = run();
        let plan = super::super::plan::tests::plan(BenchPattern::RandRead);
        let report = BenchReport::new("v.toml#home".into(), &plan, 1, &tally);
        let cell = BreakdownCell::of_nodes(report, &tally, &physical, &run().0, 30.0);
        let rows: Vec<_> =
            cell.breakdown.iter().map(|row| (&*row.row, row.physical_us.mean)).collect();
        let expected = [("In", 1.0), ("home", 5.0), ("  a", 10.0), ("  b", 20.0), ("Out", 4.0)];
        assert_eq!(rows[..5], expected);
        // Both legs at once, and half a microsecond that no stage explains; the histogram keeps three digits.
        assert!((rows[5].1 + 9.5).abs() < 0.1 && rows[5].0 == "remainder", "{rows:?}");
        assert_eq!((rows[6].0, rows[7]), ("total", ("clocks", 0.24)));
        assert!(cell.breakdown[..5].iter().all(|row| row.virtual_us.is_some()));
    }

    #[test]
    fn clocks_that_stopped_are_found_out() {
        let (run, mut tally) = run();
        tally.ios += 1;
        let error = NodesRun::new(run.nodes, &tally).err().unwrap();
        assert!(error.message.contains("11 I/Os were done, the clocks saw 10"), "{error}");
    }
}
