//! What attachments and targets write down about themselves in the run directory.

use serde::{Deserialize, Serialize};

use crate::leftover::Leftover;
use crate::pool::PoolName;
use crate::process;
use crate::trees::NodeName;

/// The version of everything this program writes as JSON.
pub const SCHEMA: u32 = 2;

/// What an attachment writes down about itself, so that others can find it and clean up after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format.
    pub schema: u32,
    /// The attachment's name.
    pub name: String,
    /// The volume, as a URI.
    pub uri: String,
    /// `nbd`, `file` or `block`.
    pub frontend: String,
    /// The socket, address, file or node, once it is usable.
    pub path: Option<String>,
    /// Frames are neither authenticated nor encrypted.
    pub insecure: bool,
    /// The name of the key that it shows, unless volumes name keys of their own.
    #[serde(default)]
    pub key: Option<String>,
    /// The attachment's process.
    pub pid: i32,
    /// When that process started, in clock ticks since boot: tells it from a later one with its id.
    pub start_ticks: u64,
    /// When the first attach will be given up, in milliseconds since 1970; `None` if never, or if
    /// it is done.
    #[serde(default)]
    pub gives_up_ms: Option<u64>,
    /// What stays behind if the process is killed.
    pub leftovers: Vec<Leftover>,
    /// Pools that it has open with its volume.
    #[serde(default)]
    pub pools: Vec<PoolName>,
    /// All that files describe of its volume.
    #[serde(default)]
    pub volumes: Vec<NodeName>,
}

impl Record {
    /// A record of this process, nothing to clean up yet.
    pub fn of_this_process(name: &str, uri: String, frontend: &str, insecure: bool) -> Self {
        let pid = std::process::id() as i32;
        Record {
            schema: SCHEMA,
            name: name.to_owned(),
            uri,
            frontend: frontend.to_owned(),
            path: None,
            insecure,
            key: None,
            pid,
            start_ticks: process::start_ticks(pid).unwrap_or(0),
            gives_up_ms: None,
            leftovers: Vec::new(),
            pools: Vec::new(),
            volumes: Vec::new(),
        }
    }
}

/// What a target writes down about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetRecord {
    /// Version of this format.
    pub schema: u32,
    /// The node name.
    pub node: String,
    /// Frames are neither authenticated nor encrypted.
    pub insecure: bool,
    /// The target's process.
    pub pid: i32,
    /// When that process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Pools that it has open with its exports.
    #[serde(default)]
    pub pools: Vec<PoolName>,
    /// All that files describe of what it exports.
    #[serde(default)]
    pub volumes: Vec<NodeName>,
}

impl TargetRecord {
    /// A record of this process.
    pub fn of_this_process(node: &str, insecure: bool) -> Self {
        let pid = std::process::id() as i32;
        let start_ticks = process::start_ticks(pid).unwrap_or(0);
        let (node, pools, volumes) = (node.to_owned(), Vec::new(), Vec::new());
        TargetRecord { schema: SCHEMA, node, insecure, pid, start_ticks, pools, volumes }
    }
}

/// What all records say: whose they are.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct RecordOwner {
    /// The process.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}
