//! A simulated wire: a switch and its stations in one thread, under virtual time, repeating exactly
//! from a seed. For the simulator and for tests.
//!
//! The driver owns time. It turns the stations, asks [`SimNet::next_delivery`] when something will
//! arrive, and calls [`SimNet::advance`] with the time it went on to; what is due by then waits in
//! the stations' links. A frame sent is sent at the time of the last `advance`.

mod net;
mod wire;

pub use net::{SimLink, SimNet, StationConfig, Steer};
pub use wire::{SimStats, Verdict, WireConfig};

/// Probabilities, each from 0 to 1, of what happens to a frame on its way. Independent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultRates {
    /// Vanishes.
    pub loss: f64,
    /// Arrives twice.
    pub dup: f64,
    /// Is overtaken by later frames.
    pub reorder: f64,
    /// Arrives with flipped bits.
    pub corrupt: f64,
}

#[cfg(test)]
mod tests;
