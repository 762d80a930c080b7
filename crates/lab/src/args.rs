//! The command line of `thinwire-lab`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::echo;
use crate::experiments::Experiment;
use crate::flood;
use crate::stream;
use crate::times;

const ABOUT: &str =
    "Measures Thinwire beside peers, limits and a paper's tables and figures, and makes a report";

/// `thinwire-lab`.
#[derive(Parser, Debug)]
#[command(name = "thinwire-lab", version, about = ABOUT, after_help = "\
Examples:
  thinwire-lab report --quick             all experiments, a subset of their points; report.html
  thinwire-lab report                     all points; may be interrupted and started again
  thinwire-lab report --draw              draw again what is stored, measure nothing
  thinwire-lab orchestra --quick          all about volumes made of volumes; orchestra.html
  thinwire-lab fig1 --only packet --only 4k --rounds 1 --seconds 0.5
  thinwire-lab list --quick
  thinwire-lab echo server --link eth1

Needs root, for network namespaces. What is measured is stored at once, in samples.jsonl of the
folder, with the build and the machine: a run that is started again measures what is not there. While
it measures it has the folder tw-lab-PID in /dev/shm (else in the temporary directory), for disks one in
that of the results, and namespaces, mounts, loop devices and control groups of that name; those of a
run that was killed go when the next one starts. Peers (nbdkit, qemu-nbd, tgt,
fio, iscsi-perf) take part if they are installed.

Exit codes: 0 done, 1 failed, 2 bad usage")]
pub struct LabArgs {
    /// The executable that is measured [default: `thinwire` in the folder of this one]
    #[arg(long, value_name = "PATH", global = true)]
    pub thinwire: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

impl LabArgs {
    /// Whether it is one side of the echo, which makes nothing that would have to be removed.
    pub fn is_echo(&self) -> bool {
        matches!(self.command, LabCommand::Echo(_) | LabCommand::Stream(_) | LabCommand::Forge(_))
    }
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Run all experiments and make one HTML page of them
    Report(ReportArgs),
    /// The bars that the project set itself, met or missed
    Bars(RunArgs),
    /// Where the time goes: receive path split, completion through a work queue
    Table2(RunArgs),
    /// Totals of the pipelines beside NBD
    Table3(RunArgs),
    /// Two fake devices: one completes at once, one forces a context switch
    Table4(RunArgs),
    /// Where the time goes: one thread for the receive path
    Table5(RunArgs),
    /// Where the time goes: one thread, completions inline
    Table6(RunArgs),
    /// Link utilisation over outstanding requests, 4 to 128 KiB
    Fig1(RunArgs),
    /// Batching policies: link utilisation
    Fig5(RunArgs),
    /// Batching policies: level
    Fig6(RunArgs),
    /// Batching policies with data batching: link utilisation
    Fig7(RunArgs),
    /// Two request sizes at once, over time
    Fig8(RunArgs),
    /// Results as a fraction of an echo with an empty protocol, and of a memory copy
    Limits(RunArgs),
    /// Side by side with nbdkit, qemu-nbd and tgt
    Peers(RunArgs),
    /// NBD, --block and --file as programs use them, beside nbdkit, qemu-nbd and tgt
    Faces(RunArgs),
    /// Images on a disk: direct, buffered, cached, limited; beside local use and nbdkit
    Disks(RunArgs),
    /// EBD and AoE beside the native protocol, NBD and vblade, and what a document states (full form only)
    Ebd(RunArgs),
    /// Without a key, encrypted, authenticated only; beside nbdkit and qemu-nbd with TLS
    Keys(RunArgs),
    /// Links shaped to 1 to 10 Gb/s, small and large frames, with and without a switch
    Links(RunArgs),
    /// Requests outstanding, initiators, links, shards
    Scaling(RunArgs),
    /// Run all experiments about volumes made of volumes, and make one HTML page of them
    Orchestra(ReportArgs),
    /// What each kind of volume costs, beside the bare export
    #[command(name = "orchestra-modules")]
    OrchestraModules(RunArgs),
    /// Stripes over one to three targets; pools and snapshots beside qcow2
    #[command(name = "orchestra-stripes")]
    OrchestraStripes(RunArgs),
    /// TCP and an empty protocol on a link of 1 Gb/s, 64 bytes to 128 KiB
    #[command(name = "orchestra-2.6")]
    Orchestra26(RunArgs),
    /// One disk of the document's speed beside memory over the network, one outstanding
    #[command(name = "orchestra-2.7")]
    Orchestra27(RunArgs),
    /// Direct, one and three storage nodes: throughput
    #[command(name = "orchestra-2.8")]
    Orchestra28(RunArgs),
    /// The same runs: response times
    #[command(name = "orchestra-2.9")]
    Orchestra29(RunArgs),
    /// The same runs: CPU of the initiator
    #[command(name = "orchestra-2.10")]
    Orchestra210(RunArgs),
    /// Postmark on ext4: direct
    #[command(name = "orchestra-table2.1")]
    OrchestraTable21(RunArgs),
    /// The same runs: one and three storage nodes relative to direct
    #[command(name = "orchestra-2.11")]
    Orchestra211(RunArgs),
    /// The same runs: where the time goes, I/Os a second
    #[command(name = "orchestra-2.12")]
    Orchestra212(RunArgs),
    /// Queries of TPC-H in sqlite on ext4: direct
    #[command(name = "orchestra-table2.2")]
    OrchestraTable22(RunArgs),
    /// The same runs: one and three storage nodes relative to direct
    #[command(name = "orchestra-2.13")]
    Orchestra213(RunArgs),
    /// The same runs: where the time goes, I/Os a second
    #[command(name = "orchestra-2.14")]
    Orchestra214(RunArgs),
    /// More and more operations a second for a client over the link of the storage
    #[command(name = "orchestra-2.15")]
    Orchestra215(RunArgs),
    /// Postmark: the kernel's time by layer
    #[command(name = "orchestra-2.16")]
    Orchestra216(RunArgs),
    /// TPC-H: the same
    #[command(name = "orchestra-2.17")]
    Orchestra217(RunArgs),
    /// List the points of all experiments and how long they take
    List(ListArgs),
    /// Whom spinning hurts: two sides beside 0 to 4 busy processes, with --spin off and on
    Busy(BusyArgs),
    /// What sessions cost each other: one with 1 outstanding beside one with 512, and 64 side by side
    Fair(FairArgs),
    /// What a flood of forged greetings and frames costs an initiator that has a key
    Flood(FloodArgs),
    /// The limit of a link: frames there and back with an empty protocol
    Echo(EchoArgs),
    /// Bytes over one TCP connection, for `orchestra-2.6`
    #[command(hide = true)]
    Stream(stream::StreamArgs),
    /// Hear frames, and send forged ones like them; for `flood`, in namespaces of its own
    #[command(hide = true)]
    Forge(flood::ForgeArgs),
}

impl LabCommand {
    /// The experiment that a subcommand runs, and how.
    pub fn experiment(&self) -> Option<(Experiment, &RunArgs)> {
        Some(match self {
            LabCommand::Bars(args) => (Experiment::Bars, args),
            LabCommand::Table2(args) => (Experiment::Table2, args),
            LabCommand::Table3(args) => (Experiment::Table3, args),
            LabCommand::Table4(args) => (Experiment::Table4, args),
            LabCommand::Table5(args) => (Experiment::Table5, args),
            LabCommand::Table6(args) => (Experiment::Table6, args),
            LabCommand::Fig1(args) => (Experiment::Fig1, args),
            LabCommand::Fig5(args) => (Experiment::Fig5, args),
            LabCommand::Fig6(args) => (Experiment::Fig6, args),
            LabCommand::Fig7(args) => (Experiment::Fig7, args),
            LabCommand::Fig8(args) => (Experiment::Fig8, args),
            LabCommand::Limits(args) => (Experiment::Limits, args),
            LabCommand::Peers(args) => (Experiment::Peers, args),
            LabCommand::Faces(args) => (Experiment::Faces, args),
            LabCommand::Disks(args) => (Experiment::Disks, args),
            LabCommand::Ebd(args) => (Experiment::Ebd, args),
            LabCommand::Keys(args) => (Experiment::Keys, args),
            LabCommand::Links(args) => (Experiment::Links, args),
            LabCommand::Scaling(args) => (Experiment::Scaling, args),
            LabCommand::OrchestraModules(args) => (Experiment::OrchestraModules, args),
            LabCommand::OrchestraStripes(args) => (Experiment::OrchestraStripes, args),
            LabCommand::Orchestra26(args) => (Experiment::Orchestra26, args),
            LabCommand::Orchestra27(args) => (Experiment::Orchestra27, args),
            LabCommand::Orchestra28(args) => (Experiment::Orchestra28, args),
            LabCommand::Orchestra29(args) => (Experiment::Orchestra29, args),
            LabCommand::Orchestra210(args) => (Experiment::Orchestra210, args),
            LabCommand::OrchestraTable21(args) => (Experiment::OrchestraTable21, args),
            LabCommand::Orchestra211(args) => (Experiment::Orchestra211, args),
            LabCommand::Orchestra212(args) => (Experiment::Orchestra212, args),
            LabCommand::OrchestraTable22(args) => (Experiment::OrchestraTable22, args),
            LabCommand::Orchestra213(args) => (Experiment::Orchestra213, args),
            LabCommand::Orchestra214(args) => (Experiment::Orchestra214, args),
            LabCommand::Orchestra215(args) => (Experiment::Orchestra215, args),
            LabCommand::Orchestra216(args) => (Experiment::Orchestra216, args),
            LabCommand::Orchestra217(args) => (Experiment::Orchestra217, args),
            LabCommand::Report(_)
            | LabCommand::Orchestra(_)
            | LabCommand::List(_)
            | LabCommand::Busy(_)
            | LabCommand::Fair(_)
            | LabCommand::Flood(_)
            | LabCommand::Echo(_)
            | LabCommand::Stream(_)
            | LabCommand::Forge(_) => return None,
        })
    }
}

/// How an experiment is run.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples (for any experiment):
  thinwire-lab fig1                       measure what is not stored yet, draw
  thinwire-lab fig1 --draw                draw what is stored
  thinwire-lab table2 --quick --json
  thinwire-lab faces --only nbd --rounds 3
  thinwire-lab disks --quick --out /srv/lab    images are made in that folder, on its disk
  thinwire-lab links --only udp --rounds 1 --seconds 0.5 --out /tmp/lab")]
pub struct RunArgs {
    /// Measure only the points and rounds of the quick form
    #[arg(long)]
    pub quick: bool,
    /// Measure only points whose names (thinwire-lab list) hold this word; repeatable: all of them
    #[arg(long, value_name = "WORD")]
    pub only: Vec<String>,
    /// Rounds of each point [default: as the list says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,
    /// How long each run takes [default: as the list says]
    #[arg(long, value_name = "SECONDS", value_parser = times::seconds)]
    pub seconds: Option<f64>,
    /// Start no round that would end after so many minutes; the same command goes on from there. A round
    /// is one run of each of those who are compared, from seconds to minutes
    #[arg(long, value_name = "N", value_parser = times::minutes)]
    pub minutes: Option<f64>,
    /// Measure nothing: draw what is stored
    #[arg(long)]
    pub draw: bool,
    /// Where samples, JSON, SVG and report go; while `disks` measures, its images are there, too
    #[arg(long, value_name = "FOLDER", default_value = "target/lab")]
    pub out: PathBuf,
    /// Say this in the report about what was measured, for example its commit
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Print one JSON object on stdout and nothing else there
    #[arg(long)]
    pub json: bool,
}

/// `thinwire-lab report` and `thinwire-lab orchestra`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  thinwire-lab report --quick --out /tmp/lab
  thinwire-lab report --label 'commit abc'
  thinwire-lab orchestra --quick --minutes 14")]
pub struct ReportArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: RunArgs,
    /// Show what this file says about the experiments: a line `## NAME`, then paragraphs. Before the
    /// first of them, `Written for: LABEL, full form` has other figures say so
    #[arg(long, value_name = "FILE")]
    pub remarks: Option<PathBuf>,
}

/// `thinwire-lab list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Only what the quick form measures
    #[arg(long)]
    pub quick: bool,
    /// Only points whose names hold this word; repeatable
    #[arg(long, value_name = "WORD")]
    pub only: Vec<String>,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

/// `thinwire-lab busy`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  thinwire-lab busy
  thinwire-lab busy --rounds 3 --seconds 1

Nothing is stored. The more processors a machine has, the more processes it takes to be busy: the table is
for one with two")]
pub struct BusyArgs {
    /// Rounds of each point
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long each run takes
    #[arg(long, value_name = "SECONDS", default_value = "1.5", value_parser = times::seconds)]
    pub seconds: f64,
}

/// `thinwire-lab fair`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  thinwire-lab fair
  thinwire-lab fair --rounds 3 --seconds 1 --memory-only
  thinwire-lab fair --out /srv/lab
  thinwire-lab fair --thinwire /usr/bin/thinwire    those of another version

Nothing is stored. Three processes on two processors wait for these, too, and one with a request outstanding
waits longest: where its process `is run first` it does not, and what is left is the target's")]
pub struct FairArgs {
    /// Rounds of each point; of many initiators 3 at most
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long each run takes
    #[arg(long, value_name = "SECONDS", default_value = "1.5", value_parser = times::seconds)]
    pub seconds: f64,
    /// How many initiators many are
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=128))]
    pub initiators: u32,
    /// Leave the disk out
    #[arg(long)]
    pub memory_only: bool,
    /// An image is made in this folder, on its disk
    #[arg(long, value_name = "FOLDER", default_value = "target/lab")]
    pub out: PathBuf,
}

/// `thinwire-lab flood`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire-lab flood
  thinwire-lab flood --rounds 2 --seconds 1

Nothing is stored. One process forges frames as fast as a processor can: new greetings made after one that
was heard, from its sender's address and from others', and frames of the session with tags that fit nothing")]
pub struct FloodArgs {
    /// Rounds of each point
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long each run takes
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = times::seconds)]
    pub seconds: f64,
}

/// `thinwire-lab echo`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  thinwire-lab echo server --link eth1
  thinwire-lab echo client --link eth1 --to 02-00-00-00-00-02 --bs 4096 --iodepth 128
  thinwire-lab echo client --link udp:10.0.0.1 --to 10.0.0.2:34997 --frame 4096 --rw write")]
pub struct EchoArgs {
    /// Which side.
    #[command(subcommand)]
    pub side: EchoSide,
}

/// A side of the echo.
#[derive(Subcommand, Debug)]
pub enum EchoSide {
    /// Answer until ended; prints `ready ADDRESS`
    Server(echo::ServerArgs),
    /// Ask, measure, print one JSON object
    Client(echo::ClientArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<LabArgs, clap::Error> {
        LabArgs::try_parse_from(std::iter::once("thinwire-lab").chain(line.split(' ')))
    }

    #[test]
    fn every_experiment_has_a_subcommand_of_its_name() {
        for experiment in Experiment::ALL {
            let lab = parse(&format!("{} --quick --thinwire /tmp/x", experiment.name())).unwrap();
            let (found, args) = lab.command.experiment().unwrap();
            assert_eq!(found, experiment);
            assert!(args.quick && args.out == *"target/lab");
            assert_eq!(lab.thinwire, Some("/tmp/x".into()));
        }
    }

    #[test]
    fn what_makes_sense_is_understood() {
        for line in [
            "report --quick --out /tmp/x --remarks f",
            "orchestra --quick --minutes 14 --out /tmp/x",
            "orchestra-2.10 --only x3 --json",
            "stream client 10.0.0.1:5001 --bs 64 --runtime 0.5 --answered",
            "fig1 --only packet --only 4k --rounds 1 --seconds 0.5 --json",
            "busy --rounds 2 --seconds 0.5",
            "flood --rounds 2 --seconds 0.5",
            "fair --rounds 2 --seconds 0.5 --initiators 8 --memory-only",
            "echo client --link eth1 --to 02-00-00-00-00-02 --bs 131072 --rw write --sleep",
        ] {
            parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, named) in [
            ("fig1 --seconds 0", "0"),
            ("fig1 --seconds soon", "soon"),
            ("fig1 --rounds 0", "0"),
            ("busy --rounds 0", "0"),
            ("fair --initiators 1", "1"),
            ("fig9", "fig9"),
            ("fig1 --minutes 0", "0"),
            ("echo server", "--link"),
            ("echo client --link eth1 --to node1", "node1"),
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(named), "{line}: {error}");
        }
    }
}
