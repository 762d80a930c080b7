//! The side that uses the disk: a remote volume, which is itself a [`Volume`](thinwire_volume::Volume).
//!
//! [`Initiator`] is a state machine: frames and time in ([`Initiator::on_frame`],
//! [`Initiator::turn`]), frames out; I/Os in through `submit`, completions out through `poll`. A
//! driver (the runtime, or the simulator) moves the frames. What an application was promised holds
//! whatever the network and the target do: requests take effect exactly once, a flush that
//! succeeded cannot lie, and a target that restarts is invisible but for the wait.
//!
//! [`Initiator`] only passes on what its parts have to tell each other; each of them has its states,
//! what becomes of them and its timers for itself:
//!
//! * `association.rs`: finding the target, greetings, the session and its paths (`attempt.rs`: one search;
//!   `keyed.rs`: greetings with a key)
//! * `attachment.rs`: what is asked of the target and granted
//! * `requests.rs`: I/Os that wait, that are outstanding (`slots.rs`), that are done
//! * `durability.rs`: completed but unflushed writes (`retained.rs`), their replay
//!   (`covers.rs`: around what is durable), the verifier
//! * `absence.rs`: the time without a target
//! * `closing.rs`: the end
//! * `discovery.rs`: who is there?
//!
//! With real links use it through `thinwire-runtime`; the examples `poll` and `blocking` of this
//! crate show both ways.
#![forbid(unsafe_code)]

mod absence;
mod association;
mod attachment;
mod attempt;
mod closing;
mod config;
mod covers;
mod discovery;
mod durability;
mod initiator;
mod keyed;
mod notes;
mod part;
mod ranges;
mod report;
mod requests;
mod retained;
mod slots;
#[cfg(test)]
mod snapshot;
mod states;

pub use config::{InitiatorCanary, InitiatorConfig, TargetName, WhenAway};
pub use discovery::{DiscoveredTarget, Discovery};
pub use initiator::Initiator;
pub use keyed::InitiatorKey;
pub use report::{AlteredStats, AttachError, InitiatorReport, InitiatorStats, Phase, Timer};
pub use states::STATE_TABLES;
pub use thinwire_wire::MEMBERS_MAX;
