//! Flags of all commands that move frames: faults, capture, shards, and what there is to measure
//! (batching policies, pipelines, spinning).

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use thinwire_link::fault::FaultConfig;
use thinwire_link::handoff::Pipeline;
use thinwire_proto::{BatchPolicy, Batching};
use thinwire_runtime::wait::Spin;

/// Flags that every command on the wire has for tests.
#[derive(Args, Clone, Debug, Default)]
pub struct WireArgs {
    /// Make faults on purpose: loss=1%,dup=1%,reorder=1%,corrupt=1%,delay=100us,seed=N
    #[arg(long, value_name = "FAULTS")]
    pub fault: Option<FaultConfig>,
    /// Record all frames into a file that tcpdump and Wireshark open (a target's further shards into
    /// FILE.1, FILE.2 ...)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Threads, each with its own links and sessions. A target deals its exports out to them; bench
    /// attaches once for each, so its pattern must only read; attach runs on one [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: Option<u32>,
    /// When requests (at a target: completions) are sent: none, static:N, tyche, doorbell, backlog
    /// [default: backlog]
    #[arg(long, value_name = "POLICY")]
    pub batch: Option<BatchPolicy>,
    /// Whether blocks of several requests share a frame [default: on]
    #[arg(long, value_name = "on|off")]
    pub data_batch: Option<OnOff>,
    /// Receive on the thread that does everything else, or on a network thread of its own, to
    /// measure what that costs [default: single]
    #[arg(long, value_name = "single|split")]
    pub receive: Option<Receive>,
    /// Whether an idle thread spins for a while before it sleeps. `always`: it never sleeps, which saves
    /// being woken and takes a whole processor (for each of a target's shards), idle or not [default: on]
    #[arg(long, value_name = "on|off|always")]
    pub spin: Option<Spin>,
}

/// Which thread receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Receive {
    /// The one that does everything else.
    #[default]
    Single,
    /// One of its own.
    Split,
}

/// Which thread sends completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompletionPath {
    /// The one that does everything else.
    #[default]
    Inline,
    /// One of its own.
    Workqueue,
}

/// Which thread sends requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Submission {
    /// The one that does everything else.
    #[default]
    Inline,
    /// One of its own.
    Queue,
}

impl WireArgs {
    /// When requests are sent.
    pub fn batching(&self) -> Batching {
        let default = Batching::default();
        Batching {
            policy: self.batch.unwrap_or(default.policy),
            data: self.data_batch.map_or(default.data, |data| data == OnOff::On),
        }
    }

    /// The threads of an initiator's links.
    pub fn initiator_pipeline(&self, submission: Submission) -> Pipeline {
        Pipeline {
            receive_thread: self.receive == Some(Receive::Split),
            send_thread: submission == Submission::Queue,
        }
    }

    /// When to spin.
    pub fn spin(&self) -> Spin {
        self.spin.unwrap_or_default()
    }
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}
