//! Settings of a target.

use std::time::Duration;

use thinwire_exports::DoorCanary;
use thinwire_proto::{Batching, SessionCanary, SumCanary};

use crate::{Limits, TargetKeys};

/// Settings of a target. The defaults are right for most.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The name under which it is discovered.
    pub node: String,
    /// It agrees to sessions without keys, if it has none. Default: false; without it and without keys
    /// every session is refused.
    pub insecure: bool,
    /// Who may greet, and with which keys. Default: nobody has one.
    pub keys: Option<TargetKeys>,
    /// What initiators may have. Default: what a few hundred need.
    pub limits: Limits,
    /// Slots a session has: requests outstanding at once. Default 128: four times the depth at
    /// which a fast disk saturates. Each costs about 600 bytes. Bound: 1 to 1024.
    pub slots: u16,
    /// Bytes of requests a session may have outstanding. Default 8 MiB: keeps 100 Gb/s busy over a
    /// round trip of 600 us. This is memory of the target, once for every session. Bound: at least
    /// 2 MiB, twice the longest request, since up to a quarter may not have been told yet.
    pub credit_bytes: u64,
    /// How long a silent writer keeps its volume before another may have it. Default 30 s: longer
    /// than a reboot of a switch, shorter than a person's patience.
    pub lease: Duration,
    /// How long a silent session is remembered. Default 120 s.
    pub session_timeout: Duration,
    /// When completions are sent, and whether blocks share a frame. Default: at once, and they do.
    /// Under `static` and `tyche` completions wait for those of the other requests of their frame.
    pub batching: Batching,
    /// Tests only: see [`TargetCanary`].
    pub canary: TargetCanary,
    /// Tests only: the same, behind the door.
    pub door: DoorCanary,
    /// Tests only: the same, in its sessions.
    pub session: SessionCanary,
    /// Tests only: how the sums of data are made. Both sides must agree on it.
    pub sums: SumCanary,
    /// Tests only: epochs, attachment generations, slot sequences and packet numbers begin just below
    /// a border. Both sides must agree on it.
    pub counters_high: bool,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            node: "thinwire".into(),
            insecure: false,
            keys: None,
            limits: Limits::default(),
            slots: 128,
            credit_bytes: 8 << 20,
            lease: Duration::from_secs(30),
            session_timeout: Duration::from_secs(120),
            batching: Batching::default(),
            canary: TargetCanary::None,
            door: DoorCanary::None,
            session: SessionCanary::None,
            sums: SumCanary::None,
            counters_high: false,
        }
    }
}

/// A fault planted in a target, which the simulator must find (`docs/design.md`). No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TargetCanary {
    /// None: the target as it is.
    #[default]
    None,
    /// Requests that arrive again are executed again.
    NoDuplicateDetection,
    /// Writes are acknowledged before the store has them.
    EarlyCompletion,
    /// A greeting that one shard handed over to another has shown nothing there.
    HandOverUnproved,
    /// A session that was promised is made for a frame that names it, before that is unsealed.
    MadeUnsealed,
    /// What a run had before ends when it greets again, before it uses what it is promised.
    EndsAtGreeting,
    /// A key that is taken away is refused to those who greet, but its sessions go on.
    KeysKept,
    /// Requests go to their stores as they come, whoever waits behind them.
    FirstComeFirstServed,
    /// Writes go to their stores whatever their sums say.
    SumsUnchecked,
}
