//! Settings of a target.

use std::time::Duration;

use thinwire_proto::Batching;
use thinwire_volume::Volume;

/// Settings of a target. The defaults are right for most.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The name under which it is discovered.
    pub node: String,
    /// It agrees to sessions without keys. Default: false; without it every session is refused,
    /// because keys do not exist yet.
    pub insecure: bool,
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
    /// Tests only: serve duplicates again. A canary for the simulator; see `docs/design.md`.
    pub canary_no_duplicate_detection: bool,
    /// Tests only: acknowledge writes before the store has them.
    pub canary_early_completion: bool,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            node: "thinwire".into(),
            insecure: false,
            slots: 128,
            credit_bytes: 8 << 20,
            lease: Duration::from_secs(30),
            session_timeout: Duration::from_secs(120),
            batching: Batching::default(),
            canary_no_duplicate_detection: false,
            canary_early_completion: false,
        }
    }
}

/// A volume to offer.
pub struct ExportConfig {
    /// Its name, unique on this target.
    pub name: String,
    /// The volume. Reports what it is like, and keeps the writer record.
    pub volume: Box<dyn Volume>,
    /// Offer it for reading only.
    pub read_only: bool,
}
