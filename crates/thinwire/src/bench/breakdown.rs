//! Where the time of one I/O goes: the rows of Gonzalez-Ferez and Bilas, Tables I and II, from the
//! stage clocks of both sides.
//!
//! Each row is the difference of two stamps. The total is measured apart from them, by the
//! benchmark, so what the rows leave unexplained is a row of its own. A row follows the last frame
//! of a message: what is done for earlier frames while later ones are on the wire delays nothing.

use serde::Serialize;
use thinwire_proto::StageSums;

use super::engine::Tally;
use super::report::Report;
use crate::error::{Failure, Outcome};
use crate::rundir::SCHEMA;
use crate::size::show_size;

/// Looks at the clock for one I/O: six of the initiator, four of the target.
const LOOKS: f64 = 10.0;

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
    pub cells: Vec<Cell>,
}

/// A pattern and a size.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Of the run with physical clocks.
    #[serde(flatten)]
    pub report: Report,
    /// In the order of the table.
    pub breakdown: Vec<Row>,
}

/// A stage.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name in the document.
    pub row: &'static str,
    /// All time.
    pub physical_us: Time,
    /// The time in which its thread had a processor; null for stages that no one thread crosses.
    pub virtual_us: Option<Time>,
}

/// How long a stage took, in us.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Time {
    /// Over all I/Os.
    pub mean: f64,
}

/// What the clocks showed over a run of `ios` I/Os.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    ours: StageSums,
    theirs: StageSums,
    issued: u64,
    seen: u64,
    ios: u64,
}

impl Run {
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
        Ok(Run { ours, theirs, issued, seen, ios: tally.ios })
    }

    /// Mean time in us between two borders, given as sums.
    fn between(&self, from: u64, to: u64) -> f64 {
        to.wrapping_sub(from) as i64 as f64 / self.ios as f64 / 1000.0
    }

    /// The rows that one thread crosses.
    fn own(&self) -> [f64; 7] {
        let Run { ours: o, theirs: t, .. } = self;
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

    /// Hand-overs to threads that send, and to those that act on what was received; wake-ups; the
    /// network.
    fn between_threads(&self) -> [f64; 4] {
        let Run { ours: o, theirs: t, .. } = self;
        let handed = self.between(0, o.handed_over.wrapping_add(t.handed_over));
        let queued = self.between(o.received, o.taken) + self.between(t.received, t.taken);
        let waited = self.between(o.arrived, o.received) + self.between(t.arrived, t.received);
        // There and back: of each clock only differences, so it does not matter whether the two
        // show the same time.
        let away = self.between(o.sent, o.arrived) - self.between(t.arrived, t.sent);
        [handed, queued, waited, away - handed]
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

impl Cell {
    /// From a run with physical clocks, whose figures are `tally`, and one with virtual ones.
    pub fn new(report: Report, tally: &Tally, physical: &Run, cpu: &Run, clock_ns: f64) -> Self {
        let [in_out, is, tr, ts, ir, out, store] = physical.own();
        let [wq, rec, irq, network] = physical.between_threads();
        let v = cpu.own();
        let total = tally.latency_ns.mean() / 1000.0;
        let time = |mean| Time { mean: round(mean) };
        let row = |row, physical_us: f64, virtual_us: Option<f64>| Row {
            row,
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
        rows.push(row("clocks", clock_ns * LOOKS / 1000.0, None));
        Cell { report, breakdown: rows }
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
        text += &format!("{:<11}", "");
        for cell in &self.cells {
            let word = if cell.report.rw.contains("read") { "read" } else { "write" };
            column(&mut text, &format!("{word} {}", show_size(u64::from(cell.report.bs))));
        }
        let names = self.cells.first().map_or(&[][..], |cell| &cell.breakdown[..]);
        for (at, name) in names.iter().enumerate() {
            if matches!(name.row, "remainder" | "total") {
                text += &format!("\n{}", "-".repeat(11 + 17 * self.cells.len()));
            }
            text += &format!("\n{:<11}", name.row);
            for cell in &self.cells {
                let row = &cell.breakdown[at];
                let cpu = row.virtual_us.map_or(String::new(), |t| format!(" ({:.2})", t.mean));
                column(&mut text, &format!("{:.2}{cpu}", row.physical_us.mean));
            }
        }
        text += &format!("\n{:<11}", "MiB/s");
        for cell in &self.cells {
            column(&mut text, &format!("{:.1}", cell.report.mib_per_s));
        }
        text
    }
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Both sides' clocks after ten I/Os whose stages took 1, 2, 3 ... us, on clocks of which the
    /// target's is behind by an hour.
    fn ten() -> ([StageSums; 2], Tally) {
        let mut sums = [StageSums::default(); 2];
        let mut tally = Tally::new();
        for io in 0..10u64 {
            let mut now = 1 << 40 | io << 20;
            let start = now;
            let mut step = |us: u64| {
                now += us * 1000;
                now
            };
            let hour = 3_600_000_000_000;
            let [o, t] = &mut sums;
            tally.issued_ns = tally.issued_ns.wrapping_add(step(0));
            o.first += step(1); // In/Out
            o.sent += step(2); // Ty-IS
            t.arrived = t.arrived.wrapping_add(step(10).wrapping_sub(hour)); // network
            t.received = t.received.wrapping_add(step(3).wrapping_sub(hour)); // CS-IRQ
            t.taken = t.taken.wrapping_add(step(4).wrapping_sub(hour)); // CS-Rec
            t.first = t.first.wrapping_add(step(5).wrapping_sub(hour)); // Ty-TR
            t.second = t.second.wrapping_add(step(6).wrapping_sub(hour)); // store
            t.sent = t.sent.wrapping_add(step(7).wrapping_sub(hour)); // Ty-TS
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

    #[test]
    fn rows_are_what_lies_between_their_borders() {
        let (sums, tally) = ten();
        let run = Run::new([StageSums::default(); 2], sums, &tally).unwrap();
        let plan = super::super::plan::tests::plan(crate::cli::Pattern::RandRead);
        let report = Report::new("tw://n/e".into(), &plan, 1, &tally);
        let cell = Cell::new(report, &tally, &run, &run, 30.0);
        let rows: Vec<_> = cell.breakdown.iter().map(|r| (r.row, r.physical_us.mean)).collect();
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
        assert_eq!(rows[13], ("clocks", 0.3));
        let mut all = Breakdown::new("tw://n/e".into(), [30.0, 300.0]);
        all.cells.push(cell);
        let text = all.text();
        for (row, times) in [("Ty-IR", "11.00 (11.00)"), ("network", "28.00")] {
            let line = format!("{row:<11}{times:>17}");
            assert!(text.lines().any(|l| l == line), "{text}");
        }
    }

    #[test]
    fn sums_of_others_requests_are_refused() {
        let (mut sums, tally) = ten();
        sums[1].requests = 11;
        let error = Run::new([StageSums::default(); 2], sums, &tally).unwrap_err();
        assert!(error.message.contains("the target's 11"), "{error}");
    }
}
