//! ATA over Ethernet (`docs/aoe.md`): a dialect for disks whose clients are not Thinwire's own: Linux has one in its
//! kernel, iPXE boots from one.
//!
//! * `server/`: [`AoeServer`], in front of the exports of a target, and [`AoePort`], a link of it, a guest of that target
//! * `client/`: [`AoeClient`], a part, itself a volume, which does as Linux's does
//!
//! Both are state machines: frames and time in, frames out.
#![forbid(unsafe_code)]

mod client;
mod server;

/// A fault that can be planted in a client or a server: what the simulator has to find (`crates/sim/tests/aoe.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AoeCanary {
    /// None: all as it is.
    #[default]
    None,
    /// A client writes where something that it has sent may still land.
    NoQuarantine,
    /// A client writes at once, whatever a former one at its station has sent.
    NotQuiet,
    /// A server answers writes of a `durable` device once the store has them.
    CachedCalledDurable,
    /// A server lets volumes have overlapping requests together.
    OrderIgnored,
    /// A server asks nobody whether a station may write.
    ExportsSkipped,
    /// A server has a reservation put on record before the list of its stations is kept.
    ListNotKept,
}

pub use client::{AoeClient, AoeClientConfig, AoeClientReport, AoeClientState};
pub use server::{
    AoeKeeper, AoeKept, AoeOffer, AoePort, AoeServer, AoeServerConfig, AoeServerStats, mac_of,
    reserved_writer, station_writer,
};
