//! What all connections of a face share.

use thinwire_buffer::Pool;
use thinwire_volume::Token;

use super::proto::NbdRequest;
use super::{NbdLimits, NbdStats};

/// A request that is with the volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// The connection's slot in the face, and which use of that slot: the connection may be gone,
    /// and another in its place, when the volume is done.
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// As the client sent it.
    pub(super) request: NbdRequest,
    /// Bytes of memory it holds.
    pub(super) held_bytes: u64,
}

/// Requests with the volume. A token is a place here.
#[derive(Default)]
pub(super) struct PendingTable {
    places: Vec<Option<Pending>>,
    free: Vec<u32>,
}

impl PendingTable {
    pub(super) fn insert(&mut self, pending: Pending) -> Token {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(pending);
        Token::from(place)
    }

    /// # Panics
    /// If the volume completes what was not submitted.
    pub(super) fn remove(&mut self, token: Token) -> Pending {
        let pending = self.places[token as usize].take().expect("a completion without a request");
        self.free.push(token as u32);
        pending
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// What all connections of a face share.
pub(super) struct Hall {
    pub(super) limits: NbdLimits,
    pub(super) pool: Pool,
    pub(super) pending: PendingTable,
    /// Memory held for requests of all connections, and of those that are gone.
    pub(super) held_bytes: u64,
    /// Links' memory that replies which wait for their clients keep alive, at its true size.
    pub(super) lent_bytes: usize,
    /// Users of the volume that have ended, and it was not told.
    pub(super) left: Vec<u8>,
    pub(super) stats: NbdStats,
}

/// So many connections there can be: each is a user of the volume, which tells as many apart.
pub(super) const CONNECTIONS_MAX: usize = u8::MAX as usize;

/// The user of the volume that the connection in this slot is: none of them is the face itself, which is 0.
pub(super) fn user(slot: u32) -> u8 {
    1 + (slot % CONNECTIONS_MAX as u32) as u8
}
