//! The side that uses the disk: a remote volume, which is itself a [`Volume`](thinwire_volume::Volume).
//!
//! [`Initiator`] is a state machine: frames and time in ([`Initiator::on_frame`],
//! [`Initiator::turn`]), frames out; I/Os in through `submit`, completions out through `poll`. A
//! driver (the runtime, or the simulator) moves the frames. What an application was promised holds
//! whatever the network and the target do: requests take effect exactly once, a flush that
//! succeeded cannot lie, and a target that restarts is invisible but for the wait.
//!
//! * `slots.rs`: outstanding requests and the placing of data
//! * `requests.rs`: which request may start, and what a completion means
//! * `retained.rs`: completed but unflushed writes, and their replay
//! * `connect.rs`: finding the target, handshake, attaching, coming back
//! * `discovery.rs`: who is there?
//!
//! With real links use it through `thinwire-runtime`; the examples `poll` and `blocking` of this
//! crate show both ways.
#![forbid(unsafe_code)]

mod config;
mod connect;
mod discovery;
mod initiator;
mod report;
mod requests;
mod retained;
mod slots;
mod volume;

pub use config::{Canary, InitiatorConfig, TargetName, WhenAway};
pub use discovery::{Discovery, Found};
pub use initiator::Initiator;
pub use report::{AttachError, InitiatorReport, InitiatorStats, Phase, Timer};
