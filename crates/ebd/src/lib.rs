//! The Ethernet Block Device (`docs/ebd.md`): a dialect for disks whose clients are not Thinwire's own, or that have to
//! be as simple as its document wants them (E. Van Hensbergen and F. Rawson, "Revisiting Link-Layer Storage
//! Networking").
//!
//! * `server/`: [`EbdServer`], a guest of a target, in front of its exports
//! * `client/`: [`EbdClient`], a part, itself a volume
//!
//! Both are state machines: frames and time in, frames out.
#![forbid(unsafe_code)]

use std::time::Duration;

mod client;
mod server;

/// No frame is longer on its way, as far as a client or a server knows.
const LIFETIME: Duration = Duration::from_secs(2);

pub use client::{ClientConfig, ClientReport, ClientState, EbdClient};
pub use server::{
    EbdOffer, EbdServer, ServerConfig, ServerStats, content_of, writer_identity, writer_of,
};

/// A fault planted in a client or a server, which the simulator must find (`docs/testing.md`). No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EbdCanary {
    /// None: both as they are.
    #[default]
    None,
    /// A client writes where an earlier write of its own may still land (rule 2 of `docs/ebd.md`, "Loss").
    NoQuarantine,
    /// A client sends nothing again of what was answered and not flushed.
    NoReplay,
    /// A server answers a write whose tag it has seen before, and does not do it.
    AnswersOnce,
    /// A server does not look at which grant a client that comes back had.
    GrantsForgotten,
    /// A server does not look at the index that a request has.
    IndexIgnored,
    /// A server answers a handshake while a volume still has what the client had asked for.
    ShadowIgnored,
}
