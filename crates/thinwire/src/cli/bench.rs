//! What `thinwire bench` is told.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{RunDirArg, SecurityArgs, Submission, WireArgs};
use crate::size::{parse_duration, parse_size};
use crate::uri::VolumeSpec;

/// The pattern of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum BenchPattern {
    /// Random reads
    RandRead,
    /// Random writes
    RandWrite,
    /// Reads in order
    Read,
    /// Writes in order
    Write,
    /// Random reads and writes, half each or as --mix says
    RandRw,
    /// Reads and writes in order, the same
    Rw,
}

impl BenchPattern {
    /// Nothing is written.
    pub fn reads_only(self) -> bool {
        matches!(self, BenchPattern::RandRead | BenchPattern::Read)
    }

    /// It has both, so how many of each can be said.
    pub fn is_mixed(self) -> bool {
        matches!(self, BenchPattern::RandRw | BenchPattern::Rw)
    }
}

/// How many of 100 I/Os of a mixed pattern read, if it is not said.
pub const MIX_DEFAULT: u32 = 50;

/// `thinwire bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire bench --insecure 'tw://node1/disk0?link=eth1' --rw randread --bs 4k --iodepth 32
  thinwire bench memory:1G --rw randrw --verify --runtime 5s --json
  thinwire bench --insecure tw+udp://10.0.0.2/disk0 --rw write --bs 128k --iodepth 8
  thinwire bench memory:1G --rw randrw --mix 70 --bs 8k --iodepth 16
  thinwire bench --insecure 'tw://node1/scratch?link=eth1' --breakdown
  thinwire bench /srv/scratch.img --rw randwrite --take-over

Write patterns destroy what is on the volume; they are refused while another writer holds it or is
on record. A file that is written keeps the extended attributes user.thinwire.id and
user.thinwire.writer. Exits with 1 if any I/O failed.")]
pub struct BenchArgs {
    /// What to measure
    pub volume: VolumeSpec,
    /// Pattern
    #[arg(long, value_enum, help = "Pattern [default: randread]")]
    pub rw: Option<BenchPattern>,
    /// How many of 100 I/Os of rw and randrw read, the others write [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub mix: Option<u32>,
    /// Bytes an I/O [default: 4k]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub bs: Option<u64>,
    /// I/Os each job keeps outstanding
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub iodepth: u32,
    /// Jobs: independent streams of I/Os
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: u32,
    /// How long, in seconds (10, 10s, 2m)
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_duration)]
    pub runtime: Duration,
    /// Use only the first SIZE bytes of the volume [default: all of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Stamp each block written with address, generation and checksum, and check what is read of what
    /// this run wrote
    #[arg(long)]
    pub verify: bool,
    /// Send requests from the thread that does everything else, or from a thread of its own, to
    /// measure what that costs
    #[arg(long, value_name = "inline|queue", default_value = "inline")]
    pub submission: Submission,
    /// Where the time of one I/O goes: the stages on both sides, one outstanding. Of random reads
    /// and writes of 4, 8, 64 and 128 KiB, or of what --rw and --bs say. Needs a remote volume that
    /// nobody else uses; of a volume made of others it is what each of these takes
    #[arg(long, conflicts_with_all = ["verify", "timeline", "shards"])]
    pub breakdown: bool,
    /// Attach at once, but begin to measure at this time of CLOCK_MONOTONIC, in seconds: for several
    /// initiators whose rates are added up. Fails if it is past by then
    #[arg(long, value_name = "SECONDS", hide = true, value_parser = parse_moment)]
    pub start_at: Option<f64>,
    /// Note the figures down this often (0.1 s at least), for the JSON's `timeline`
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "json")]
    pub timeline: Option<Duration>,
    /// Seed of the offsets and the data
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Take the volume away from the writer that holds it or is on record, fencing that one for good
    #[arg(long)]
    pub take_over: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub security: SecurityArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: WireArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run_dir: RunDirArg,
    /// Print one JSON object on stdout and nothing else there
    #[arg(long)]
    pub json: bool,
}

/// A time of CLOCK_MONOTONIC in seconds.
fn parse_moment(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() => Ok(seconds),
        _ => Err("give seconds, as in 1234.5".into()),
    }
}
