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

pub use client::{AoeClient, AoeClientConfig, AoeClientReport, AoeClientState};
pub use server::{
    AoeKeeper, AoeKept, AoeOffer, AoePort, AoeServer, AoeServerConfig, AoeServerStats,
};
