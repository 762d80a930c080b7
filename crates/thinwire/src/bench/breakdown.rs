//! Where the time of one I/O goes: the rows of Gonzalez-Ferez and Bilas, Tables I and II, from the
//! stage clocks of both sides.
//!
//! Each row is the difference of two stamps, that of the network in each direction, too, if both
//! sides have one clock. The clocks of two machines show different times: then the network's row is
//! the time that the initiator waited less that which the target took, and the table says so.
//!
//! Stamps follow each other, so rows would add up to the total whatever the target said. Hence no
//! row is less than nothing: where a stamp is wrong by more than the network takes, a row would be,
//! and what it lacks is in the remainder. The total is measured apart from the stages, by the
//! benchmark. A row follows the last frame of a message: what is done for earlier frames while
//! later ones are on the wire delays nothing.

use std::borrow::Cow;

use serde::Serialize;
use thinwire_proto::StageSums;

use super::engine::Tally;
use super::report::BenchReport;
use crate::error::{Failure, Outcome};
use crate::rundir::SCHEMA;
use crate::size::show_size;

/// Looks at the clock for one I/O: six of the initiator, four of the target.
const LOOKS: f64 = 10.0;
/// Letters of the longest name of a row, and a space.
const NAME: usize = 14;

/// `bench --breakdown --json`: one object; with `--rw` and `--bs` its only cell instead.
#[derive(Clone, Debug, Serialize)]
pub struct Breakdown {
    /// Version of this format.
    pub schema: u32,
    /// The volume.
    pub uri: String,
    /// What one look at the physical clock costs, in ns.
    pub clock_ns: f64,
    /// What one at the virtual clock costs, which is a system call: about as much is in each
    /// virtual time, so the physical ones are measured without it, in a run of their own.
    pub virtual_clock_ns: f64,
    /// One for each pattern and size.
    pub cells: Vec<BreakdownCell>,
}

/// A pattern and a size.
#[derive(Clone, Debug, Serialize)]
pub struct BreakdownCell {
    /// Of the run with physical clocks.
    #[serde(flatten)]
    pub report: BenchReport,
    /// Both sides have one clock: the network was measured each way, and is not a difference.
    pub one_clock: bool,
    /// In the order of the table.
    pub breakdown: Vec<BreakdownRow>,
}

/// A stage.
#[derive(Clone, Debug, Serialize)]
pub struct BreakdownRow {
    /// Its name in the document; of a volume made of others that of each volume in it.
    pub row: Cow<'static, str>,
    /// All time.
    pub physical_us: StageMean,
    /// The time in which its thread had a processor; null for stages that no one thread crosses.
    pub virtual_us: Option<StageMean>,
}

/// How long a stage took, in us.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StageMean {
    /// Over all I/Os.
    pub mean: f64,
}

/// What the clocks showed over a run of `ios` I/Os.
#[derive(Clone, Copy, Debug)]
pub struct BreakdownRun {
    ours: StageSums,
    theirs: StageSums,
    issued: u64,
    seen: u64,
    ios: u64,
}

impl BreakdownRun {
    /// From what the clocks of both sides showed before and after it.
    ///
    /// # Errors
    /// If they have not counted the same requests.
    pub fn new(before: [StageSums; 2], after: [StageSums; 2], tally: &Tally) -> Outcome<Self> {
        let [ours, theirs] = [0, 1].map(|side| difference(after[side], before[side]));
        let counts = [ours.requests, theirs.requests, tally.ios];
        if counts.iter().any(|&count| count != tally.ios) || tally.ios == 0 {
            return Err(Failure::failed(format!(
                "the stages cannot be told apart: {} I/Os were done, this side's clocks saw {}, the \
                 target's {}. Somebody else uses the target's shard, or it was restarted",
                tally.ios, ours.requests, theirs.requests
            )));
        }
        let (issued, seen) = (tally.issued_ns, tally.seen_ns);
        Ok(BreakdownRun { ours, theirs, issued, seen, ios: tally.ios })
    }

    /// Mean time in us between two borders, given as sums.
    fn between(&self, from: u64, to: u64) -> f64 {
        to.wrapping_sub(from) as i64 as f64 / self.ios as f64 / 1000.0
    }

    /// The rows that one thread crosses.
    fn own(&self) -> [f64; 7] {
        let BreakdownRun { ours: o, theirs: t, .. } = self;
        [
            self.between(self.issued, o.first),
            self.between(o.first, o.sent),
            self.between(t.taken, t.first),
            self.between(t.second, t.sent),
            self.between(o.taken, o.second),
            self.between(o.second, self.seen),
            self.between(t.first, t.second),
        ]
    }

    /// Hand-overs to threads that send, and to those that act on what was received; wake-ups.
    fn between_threads(&self) -> [f64; 3] {
        let BreakdownRun { ours: o, theirs: t, .. } = self;
        let handed = self.between(0, o.handed_over.wrapping_add(t.handed_over));
        let queued = self.between(o.received, o.taken) + self.between(t.received, t.taken);
        let waited = self.between(o.arrived, o.received) + self.between(t.arrived, t.received);
        [handed, queued, waited]
    }

    /// The network there and back, from the thread that sends to the receive queue. `None` if the
    /// two sides' times cannot be compared.
    fn each_way(&self) -> Option<[f64; 2]> {
        let BreakdownRun { ours: o, theirs: t, .. } = self;
        let left = |side: &StageSums| side.sent.wrapping_add(side.handed_over);
        let ways = [self.between(left(o), t.arrived), self.between(left(t), o.arrived)];
        (o.clock != 0 && o.clock == t.clock).then_some(ways)
    }

    /// The same as a difference, from times of one side each.
    fn away(&self) -> f64 {
        let BreakdownRun { ours: o, theirs: t, .. } = self;
        let handed = self.between(0, o.handed_over.wrapping_add(t.handed_over));
        self.between(o.sent, o.arrived) - self.between(t.arrived, t.sent) - handed
    }
}

fn difference(after: StageSums, before: StageSums) -> StageSums {
    StageSums {
        clock: after.clock,
        requests: after.requests.wrapping_sub(before.requests),
        arrived: after.arrived.wrapping_sub(before.arrived),
        received: after.received.wrapping_sub(before.received),
        taken: after.taken.wrapping_sub(before.taken),
        first: after.first.wrapping_sub(before.first),
        second: after.second.wrapping_sub(before.second),
        sent: after.sent.wrapping_sub(before.sent),
        handed_over: after.handed_over.wrapping_sub(before.handed_over),
    }
}

impl BreakdownCell {
    /// From a run with physical clocks, whose figures are `tally`, and one with virtual ones.
    pub fn new(
        report: BenchReport,
        tally: &Tally,
        physical: &BreakdownRun,
        cpu: &BreakdownRun,
        clock_ns: f64,
    ) -> Self {
        let positive = |us: f64| us.max(0.0);
        let [in_out, is, tr, ts, ir, out, store] = physical.own().map(positive);
        let [wq, rec, irq] = physical.between_threads().map(positive);
        let ways = physical.each_way().map(|ways| ways.map(positive));
        let network = ways.map_or_else(|| physical.away(), |[there, back]| there + back);
        let v = cpu.own();
        let total = tally.latency_ns.mean() / 1000.0;
        let time = |mean| StageMean { mean: round(mean) };
        let row = |row: &'static str, physical_us: f64, virtual_us: Option<f64>| BreakdownRow {
            row: row.into(),
            physical_us: time(physical_us),
            virtual_us: virtual_us.map(time),
        };
        let mut rows = vec![
            row("In/Out", in_out, Some(v[0])),
            row("Ty-IS", is, Some(v[1])),
            row("Ty-TR", tr, Some(v[2])),
            row("Ty-TS", ts, Some(v[3])),
            row("Ty-IR", ir, Some(v[4])),
            row("CS-WQ", wq, None),
            row("CS-Rec", rec, None),
            row("CS-IRQ", irq, None),
            row("CS-Out", out, Some(v[5])),
            row("store", store, Some(v[6])),
            row("network", network, None),
        ];
        let explained =
            [in_out, is, tr, ts, ir, wq, rec, irq, out, store, network].iter().sum::<f64>();
        rows.push(row("remainder", total - explained, None));
        rows.push(row("total", total, None));
        if let Some([there, back]) = ways {
            rows.push(row("network there", there, None));
            rows.push(row("network back", back, None));
        }
        rows.push(row("clocks", clock_ns * LOOKS / 1000.0, None));
        BreakdownCell { report, one_clock: ways.is_some(), breakdown: rows }
    }
}

impl Breakdown {
    /// Of a volume, without cells.
    pub fn new(uri: String, [clock_ns, virtual_clock_ns]: [f64; 2]) -> Self {
        let (clock_ns, virtual_clock_ns) = (round(clock_ns), round(virtual_clock_ns));
        Breakdown { schema: SCHEMA, uri, clock_ns, virtual_clock_ns, cells: Vec::new() }
    }

    /// For people: the document's table.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}\none I/O outstanding; mean times in us, in brackets those with a processor (each with \
             about {:.2} us for the clock)\n\n",
            self.uri,
            self.virtual_clock_ns / 1000.0
        );
        let column = |text: &mut String, word: &str| *text += &format!("{word:>17}");
        if self.cells.iter().any(|cell| !cell.one_clock) {
            text += "the two sides' clocks are not one: network is what the initiator waited less what \
                     the target took\n\n";
        }
        let names = self.cells.first().map_or(&[][..], |cell| &cell.breakdown[..]);
        let longest = names.iter().map(|row| row.row.chars().count() + 1).max();
        let width = longest.unwrap_or(NAME).max(NAME);
        text += &format!("{:<width$}", "");
        for cell in &self.cells {
            let word = if cell.report.rw.contains("read") { "read" } else { "write" };
            column(&mut text, &format!("{word} {}", show_size(u64::from(cell.report.bs))));
        }
        for (at, name) in names.iter().enumerate() {
            if matches!(&*name.row, "remainder" | "total") {
                text += &format!("\n{}", "-".repeat(width + 17 * self.cells.len()));
            }
            text += &format!("\n{:<width$}", name.row);
            for cell in &self.cells {
                let row = &cell.breakdown[at];
                let cpu = row.virtual_us.map_or(String::new(), |t| format!(" ({:.2})", t.mean));
                column(&mut text, &format!("{:.2}{cpu}", row.physical_us.mean));
            }
        }
        text += &format!("\n{:<width$}", "MiB/s");
        for cell in &self.cells {
            column(&mut text, &format!("{:.1}", cell.report.mib_per_s));
        }
        text
    }
}

pub(super) fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    /// Both sides' clocks after ten I/Os whose stages took 1, 2, 3 ... us. The target's, which bears
    /// the number `clock`, is behind by so many ns.
    fn ten(clock: u64, behind: u64) -> ([StageSums; 2], Tally) {
        let mut sums = [7, clock].map(|clock| StageSums { clock, ..Default::default() });
        let mut tally = Tally::new();
        for io in 0..10u64 {
            let mut now = 1 << 40 | io << 20;
            let start = now;
            let mut step = |us: u64| {
                now += us * 1000;
                now
            };
            let [o, t] = &mut sums;
            tally.issued_ns = tally.issued_ns.wrapping_add(step(0));
            o.first += step(1); // In/Out
            o.sent += step(2); // Ty-IS
            t.arrived = t.arrived.wrapping_add(step(10).wrapping_sub(behind)); // network
            t.received = t.received.wrapping_add(step(3).wrapping_sub(behind)); // CS-IRQ
            t.taken = t.taken.wrapping_add(step(4).wrapping_sub(behind)); // CS-Rec
            t.first = t.first.wrapping_add(step(5).wrapping_sub(behind)); // Ty-TR
            t.second = t.second.wrapping_add(step(6).wrapping_sub(behind)); // store
            t.sent = t.sent.wrapping_add(step(7).wrapping_sub(behind)); // Ty-TS
            t.handed_over += 2000; // CS-WQ
            o.arrived += step(20); // network, and those 2
            o.received += step(8); // CS-IRQ
            o.taken += step(9); // CS-Rec
            o.second += step(11); // Ty-IR
            tally.seen_ns = tally.seen_ns.wrapping_add(step(12)); // CS-Out
            o.requests += 1;
            t.requests += 1;
            tally.ios += 1;
            // Half a microsecond that no stage explains.
            tally.latency_ns.record(step(0) - start + 500).unwrap();
        }
        tally.elapsed = Duration::from_secs(1);
        (sums, tally)
    }

    fn cell(clock: u64, behind: u64) -> BreakdownCell {
        let (sums, tally) = ten(clock, behind);
        let run = BreakdownRun::new([StageSums::default(); 2], sums, &tally).unwrap();
        let plan = super::super::plan::tests::plan(crate::cli::BenchPattern::RandRead);
        let report = BenchReport::new("tw://n/e".into(), &plan, 1, &tally);
        BreakdownCell::new(report, &tally, &run, &run, 30.0)
    }

    fn physical(cell: &BreakdownCell) -> Vec<(&str, f64)> {
        cell.breakdown.iter().map(|r| (&*r.row, r.physical_us.mean)).collect()
    }

    fn text(cell: BreakdownCell) -> String {
        let mut all = Breakdown::new("tw://n/e".into(), [30.0, 300.0]);
        all.cells.push(cell);
        all.text()
    }

    #[test]
    fn rows_are_what_lies_between_their_borders() {
        // Clocks of two machines, and one that both have.
        for cell in [cell(8, HOUR), cell(7, 0)] {
            let rows = physical(&cell);
            let expected = [
                ("In/Out", 1.0),
                ("Ty-IS", 2.0),
                ("Ty-TR", 5.0),
                ("Ty-TS", 7.0),
                ("Ty-IR", 11.0),
                ("CS-WQ", 2.0),
                ("CS-Rec", 13.0),
                ("CS-IRQ", 11.0),
                ("CS-Out", 12.0),
                ("store", 6.0),
                ("network", 28.0),
            ];
            assert_eq!(rows[..11], expected);
            // The histogram keeps three digits.
            assert!((rows[11].1 - 0.5).abs() < 0.1 && (rows[12].1 - 98.5).abs() < 0.1, "{rows:?}");
            assert_eq!(*rows.last().unwrap(), ("clocks", 0.3));
            let text = text(cell);
            for (row, times) in [("Ty-IR", "11.00 (11.00)"), ("network", "28.00")] {
                let line = format!("{row:<NAME$}{times:>17}");
                assert!(text.lines().any(|l| l == line), "{text}");
            }
        }
    }

    #[test]
    fn with_one_clock_the_network_is_measured_each_way() {
        let one = cell(7, 0);
        assert_eq!(physical(&one)[13..15], [("network there", 10.0), ("network back", 18.0)]);
        assert!(one.one_clock && !text(one).contains("not one"));
        let two = cell(8, HOUR);
        assert_eq!(physical(&two).len(), 14);
        assert!(!two.one_clock && text(two).contains("not one"));
    }

    #[test]
    fn stamps_that_disagree_are_in_the_remainder() {
        for (behind, lacking) in [(40_000, 30.0), (40_000u64.wrapping_neg(), 22.0)] {
            let cell = cell(7, behind);
            let rows = physical(&cell);
            let (name, remainder) = rows[11];
            assert_eq!(name, "remainder");
            assert!((remainder - 0.5 + lacking).abs() < 0.1, "{rows:?}");
        }
    }

    #[test]
    fn sums_of_others_requests_are_refused() {
        let (mut sums, tally) = ten(7, 0);
        sums[1].requests = 11;
        let error = BreakdownRun::new([StageSums::default(); 2], sums, &tally).unwrap_err();
        assert!(error.message.contains("the target's 11"), "{error}");
    }
}
