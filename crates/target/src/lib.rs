//! The side that has the disk: sessions on one side, volumes on the other.
//!
//! [`Target`] is a state machine: frames and time in ([`Target::on_frame`], [`Target::turn`]),
//! frames out. Its volumes are behind the door of `thinwire-exports`, which decides who may write and
//! what may have been lost; what is here is the native protocol in front of it. A driver (the runtime,
//! or the simulator) moves the frames and wakes it when a link or a disk has something. One target serves one shard; nothing
//! in it is shared between threads.
//!
//! * `slots.rs`: exactly-once requests and the data that belongs to them
//! * `peer.rs`: one session and what it has open
//! * `requests.rs`: from a whole request to its completion
//! * `fair.rs`: whose requests go to the stores while several sessions have some; `line.rs`: those who wait for
//!   one; `depth.rs`: how much one is given at once; `order.rs`: who sends first
//! * `answers.rs`: answers to attaches, until they are taken in
//! * `attach.rs`: attaching, and what the door answers
//! * `greet.rs`: handshake and discovery; `cookie.rs`: who has shown to receive; `room.rs`: who goes when
//!   there is no room for another session
//! * `keys.rs`: who may greet; `access.rs`: who may open what; `keyed.rs`: greetings with a key
//! * `limits.rs`: what its initiators may have, by key and by address
//! * `checked.rs`: whose data is checked end to end
//! * `change.rs`: limits, and exports that come and go; `silent.rs`: those that another target serves by now
//! * `bounds.rs`: what its memory is bounded by
//! * `guests.rs`: other protocols in front of the same door
//! * `shards.rs`: what one shard knows of the others
//! * `report.rs`: what status tells
#![forbid(unsafe_code)]

mod access;
mod answers;
mod attach;
mod bounds;
mod change;
mod checked;
mod config;
mod cookie;
mod depth;
mod ending;
mod fair;
mod greet;
mod guests;
mod house;
mod keyed;
mod keys;
mod limits;
mod line;
mod order;
mod part;
mod peer;
mod report;
mod requests;
mod room;
mod shards;
mod silent;
mod slots;
mod target;
mod together;

pub use access::Access;
pub use config::{TargetCanary, TargetConfig};
pub use greet::{SESSION_NUMBER, session_lane};
pub use house::TargetStats;
pub use keys::{Principal, TargetKeys};
pub use limits::{Limit, LimitCounts, Limits};
pub use report::{KeyReport, SessionReport};
pub use silent::FencedExport;
pub use target::Target;
pub use thinwire_exports::{
    Dialect, DoorCanary, DoorLetter, ExportConfig, ExportOpening, ExportReport, RecordReport,
    SpreadConfig, WriterReport,
};
