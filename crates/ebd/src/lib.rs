//! The Ethernet Block Device (`docs/ebd.md`): a dialect for disks whose clients are not Thinwire's own, or that have to
//! be as simple as its document wants them (E. Van Hensbergen and F. Rawson, "Revisiting Link-Layer Storage
//! Networking").
//!
//! * `server/`: [`EbdServer`], a guest of a target, in front of its exports
//! * `client/`: [`EbdClient`], a part, itself a volume
//!
//! Both are state machines: frames and time in, frames out.
#![forbid(unsafe_code)]

mod client;
mod server;

pub use client::{ClientConfig, ClientReport, ClientState, EbdClient};
pub use server::{EbdOffer, EbdServer, ServerConfig, ServerStats};
