//! How an NBD face is opened: where, for whom, under which names, and within which bounds.

use super::listener::{Listen, NbdError};
use super::proto;

/// How an NBD face is opened.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// Where clients find it.
    pub listen: Listen,
    /// Permissions of a unix socket's file, whatever the umask: who may write there may connect. Default 0600,
    /// its owner (and root). A TCP port has none: all of this machine may connect.
    pub socket_mode: u32,
    /// Listen on a TCP address that other machines reach. There is neither a key nor TLS: whoever connects
    /// reads and writes, and so may whoever forwards what they say. Default: on loopback only.
    pub beyond_loopback: bool,
    /// The export's name; the empty name answers, too. At most 4096 bytes.
    pub name: String,
    /// Another name that answers; may be empty. At most 4096 bytes.
    pub alias: String,
    /// A text for people, shown by `nbdinfo --list`; may be empty. At most 4096 bytes.
    pub description: String,
    /// Refuse writes, whatever the volume can do.
    pub read_only: bool,
    /// Bounds.
    pub limits: NbdLimits,
}

impl NbdConfig {
    /// A writable face with default limits, for this user and root, or this machine.
    pub fn new(listen: Listen, name: impl Into<String>) -> Self {
        NbdConfig {
            listen,
            socket_mode: 0o600,
            beyond_loopback: false,
            name: name.into(),
            alias: String::new(),
            description: String::new(),
            read_only: false,
            limits: NbdLimits::default(),
        }
    }
}

/// Bounds on what clients can make a face hold. Beyond them a client waits; nobody fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdLimits {
    /// Connections at once, at most 255. Default 255. When all are taken, a new client displaces the oldest
    /// that has not chosen an export yet, or is turned away if there is none.
    pub connections_max: usize,
    /// Requests a connection may have outstanding, replies it has not read included. Default 256.
    pub connection_requests_max: u32,
    /// The same for all connections together, those that are gone included as long as the volume has
    /// their requests. Default 65,536.
    pub requests_max: usize,
    /// Bytes a connection may have outstanding: those of its reads and writes, 32 KiB for a block status
    /// until that is known, and the texts of errors. Default 64 MiB. A single request may exceed it, and
    /// the errors of a volume by 512 bytes each.
    pub connection_bytes_max: u64,
    /// The same for all connections together. Default 512 MiB. A connection with nothing
    /// outstanding may exceed it with one request.
    pub bytes_max: u64,
    /// Bytes of links' memory, at its true size, that the replies of one connection may keep alive while they wait for
    /// the client to read. Beyond that they are given copies. Default 4 MiB.
    pub connection_lent_bytes_max: usize,
    /// The same for all connections together. Default 8 MiB.
    pub lent_bytes_max: usize,
}

impl Default for NbdLimits {
    fn default() -> Self {
        NbdLimits {
            connections_max: 255,
            connection_requests_max: 256,
            requests_max: 65_536,
            connection_bytes_max: 64 << 20,
            bytes_max: 512 << 20,
            connection_lent_bytes_max: 4 << 20,
            lent_bytes_max: 8 << 20,
        }
    }
}

/// Whether the protocol has room for its names.
pub(super) fn check_texts(config: &NbdConfig) -> Result<(), NbdError> {
    let NbdConfig { name, alias, description, .. } = config;
    for (what, text) in [("name", name), ("alias", alias), ("description", description)] {
        if text.len() > proto::STRING_BYTES_MAX {
            return Err(NbdError::TextTooLong(what, text.len()));
        }
    }
    Ok(())
}
