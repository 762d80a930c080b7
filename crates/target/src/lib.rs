//! The side that has the disk: sessions on one side, volumes on the other.
//!
//! [`Target`] is a state machine: frames and time in ([`Target::on_frame`], [`Target::turn`]),
//! frames out. It owns its volumes and polls them; a driver (the runtime, or the simulator) moves
//! the frames and wakes it when a link or a disk has something. One target serves one shard; nothing
//! in it is shared between threads.
//!
//! * `slots.rs`: exactly-once requests and the data that belongs to them
//! * `peer.rs`: one session and what it has open
//! * `requests.rs`: from a whole request to its completion
//! * `answers.rs`: answers to attaches, until they are taken in
//! * `attach.rs`: who may write (writer generations, fencing, leases)
//! * `record.rs`: the stored writer record, and what becomes of it when it cannot be changed
//! * `twin.rs`: two live processes with one identity
//! * `greet.rs`: handshake and discovery; `cookie.rs`: who has shown to receive; `room.rs`: who goes when
//!   there is no room for another session
//! * `bounds.rs`: what its memory is bounded by
//! * `shards.rs`: what one shard knows of the others
#![forbid(unsafe_code)]

mod answers;
mod attach;
mod bounds;
mod config;
mod cookie;
mod greet;
mod house;
mod part;
mod peer;
mod record;
mod requests;
mod room;
mod shards;
mod slots;
mod target;
mod together;
mod twin;

pub use config::{ExportConfig, TargetCanary, TargetConfig};
pub use greet::{SESSION_NUMBER, session_lane};
pub use house::TargetStats;
pub use target::{ExportReport, SessionReport, Target};
