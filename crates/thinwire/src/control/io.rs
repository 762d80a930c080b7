//! What status says of the I/Os of a volume in a tree.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thinwire_modules::MeterReport;

use crate::size::show_size;

/// What has gone to a volume since it was opened, and how fast it goes: an element of `nodes` has it (`docs/status.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IoStatus {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes, write-zeroes and discards.
    pub writes: u64,
    /// Bytes of writes.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// I/Os that have completed, all kinds.
    pub completed: u64,
    /// Those among them that failed.
    pub failed: u64,
    /// How long all of them took, together, in us.
    pub busy_us: u64,
    /// Reads in a second, lately; this and all below are 0 if nobody uses it.
    pub read_iops: u64,
    /// Bytes read in a second.
    pub read_bandwidth: u64,
    /// Writes in a second.
    pub write_iops: u64,
    /// Bytes written in a second.
    pub write_bandwidth: u64,
    /// The mean time of what completed lately, in ns.
    pub latency_ns: u64,
}

impl IoStatus {
    /// What a meter has counted.
    pub fn of(report: &MeterReport) -> Self {
        IoStatus {
            reads: report.reads,
            read_bytes: report.read_bytes,
            writes: report.writes,
            written_bytes: report.written_bytes,
            flushes: report.flushes,
            completed: report.completed,
            failed: report.failed,
            busy_us: report.busy_ns / 1000,
            read_iops: report.recent.read_iops,
            read_bandwidth: report.recent.read_bandwidth,
            write_iops: report.recent.write_iops,
            write_bandwidth: report.recent.write_bandwidth,
            latency_ns: report.recent.latency_ns,
        }
    }

    /// Nobody uses it now: it is not there.
    pub fn at_rest(self) -> Self {
        IoStatus {
            read_iops: 0,
            read_bandwidth: 0,
            write_iops: 0,
            write_bandwidth: 0,
            latency_ns: 0,
            ..self
        }
    }

    /// How fast it goes, in words: reads, writes, and how long one takes; nothing of what is not done.
    pub fn rates(&self) -> [String; 3] {
        let rate = |iops: u64, bandwidth: u64| match iops {
            0 => String::new(),
            iops => format!("{iops}/s {}/s", show_size(bandwidth)),
        };
        let latency = match self.latency_ns {
            0 => String::new(),
            ns => show_time(Duration::from_nanos(ns)),
        };
        [
            rate(self.read_iops, self.read_bandwidth),
            rate(self.write_iops, self.write_bandwidth),
            latency,
        ]
    }
}

/// In the unit that keeps it short.
fn show_time(time: Duration) -> String {
    match time.as_nanos() {
        ns @ ..10_000_000 => format!("{} us", ns / 1000),
        ns @ ..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        ns => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_is_not_shown() {
        assert_eq!(IoStatus::default().rates(), [const { String::new() }; 3]);
        let io = IoStatus {
            read_iops: 1200,
            read_bandwidth: 1200 * 4096,
            latency_ns: 85_400,
            ..IoStatus::default()
        };
        assert_eq!(io.rates(), ["1200/s 4.7 MiB/s", "", "85 us"]);
        assert_eq!(
            IoStatus { reads: 7, ..io }.at_rest(),
            IoStatus { reads: 7, ..IoStatus::default() }
        );
        for (ms, shown) in [(9, "9000 us"), (10, "10 ms"), (9999, "9999 ms"), (20_000, "20 s")] {
            assert_eq!(show_time(Duration::from_millis(ms)), shown);
        }
    }
}
