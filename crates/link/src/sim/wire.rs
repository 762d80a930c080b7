//! What the simulated wire does to frames, and counts.

use super::FaultRates;

/// How the wire behaves. All of it may be changed at any time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WireConfig {
    /// Least time from the end of sending to arrival, in ns; default 10 us.
    pub latency_ns_min: u64,
    /// Most time, in ns; default 20 us. Frames between two stations keep their order all the same,
    /// as in a switch.
    pub latency_ns_max: u64,
    /// What every port carries each way, in bytes a second; default 1.25e9 (10 Gb/s); 0 for no
    /// limit.
    pub port_bytes_per_s: u64,
    /// What a port of the switch holds back for its station before it drops, in bytes; default
    /// 1 MiB. Without effect if the port has no limit.
    pub port_queue_bytes: u64,
    /// Frames longer than this vanish in the switch: a mismatch of frame sizes. Default: none do.
    pub transit_bytes_max: usize,
    /// Random faults; default: none.
    pub faults: FaultRates,
    /// How far a reordered or duplicated frame falls back, in ns at most; default 200 us.
    pub reorder_ns_max: u64,
    /// Pads short frames with zeroes to 46 bytes, as Ethernet does; default true.
    pub pads: bool,
}

impl Default for WireConfig {
    fn default() -> Self {
        WireConfig {
            latency_ns_min: 10_000,
            latency_ns_max: 20_000,
            port_bytes_per_s: 1_250_000_000,
            port_queue_bytes: 1 << 20,
            transit_bytes_max: usize::MAX,
            faults: FaultRates::default(),
            reorder_ns_max: 200_000,
            pads: true,
        }
    }
}

impl WireConfig {
    /// Time that `bytes` take on a port.
    pub(super) fn port_ns(&self, bytes: u64) -> u64 {
        match self.port_bytes_per_s {
            0 => 0,
            rate => (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64,
        }
    }
}

/// What a test's judge says about a frame: see [`super::SimNet::set_judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the configuration says.
    Pass,
    /// It vanishes.
    Drop,
    /// It arrives this many ns later than it would have, without delaying others.
    Delay(u64),
    /// It arrives, and once more this many ns later.
    Repeat(u64),
}

/// What happened on the wire so far. A frame to the group counts once for each station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimStats {
    /// Frames that stations sent, per receiver.
    pub sent: u64,
    /// Frames handed to a station's link.
    pub delivered: u64,
    /// Lost at random, or by the judge.
    pub lost: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Made by somebody on the way.
    pub forged: u64,
    /// Held back so that others overtake.
    pub reordered: u64,
    /// Bits flipped.
    pub corrupted: u64,
    /// Too long for the switch.
    pub too_long: u64,
    /// Dropped where a pair is cut or a station down.
    pub cut: u64,
    /// Dropped by a full port of the switch.
    pub port_full: u64,
    /// Dropped by a station that had no room.
    pub no_room: u64,
    /// Dropped by a station that several links share, of which none wanted it.
    pub unwanted: u64,
}
