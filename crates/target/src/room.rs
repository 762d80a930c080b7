//! Room for another session: who goes when there is none (`docs/protocol.md`, "Addresses").

use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_proto::Time;

use crate::greet::{SESSION_NUMBER, SESSIONS_MAX};
use crate::target::Target;

/// Sessions without an attachment that one address may have: an eighth of all.
const UNATTACHED_MAX: usize = 128;
/// A session that has just been opened goes after the others: its initiator is about to attach.
const FRESH: Duration = Duration::from_millis(500);

impl Target {
    /// A place for another session, of an initiator at `from`; `None` if all are attached. May end a
    /// session that is not: an initiator that still wants it learns of that with its next frame, and
    /// opens another.
    pub(crate) fn make_room(&mut self, now: Time, from: Addr) -> Option<usize> {
        let mut attached = [false; SESSIONS_MAX];
        let house = &mut self.house;
        house.in_store.resize(self.peers.len().max(house.in_store.len()), 0);
        for session in house.exports.sessions() {
            attached[(session >> 32) as usize & SESSION_NUMBER as usize] = true;
        }
        let from = host(from);
        let is_fresh = |created| now.since(created) < FRESH;
        let (mut free, mut first, mut first_here, mut here) = (None, None, None, 0);
        for (index, place) in self.peers.iter().zip(&self.promises).enumerate() {
            let (addr, rank) = match place {
                // A request of a session that ended may still be in a store for it: so what the stores
                // have is bounded, too, however slow they are.
                _ if attached[index] || house.in_store[index] > 0 => continue,
                (Some(p), _) => (p.place.1, (is_fresh(p.created), p.confirmed, p.number)),
                (None, Some(p)) => (p.place.1, (is_fresh(p.created), false, p.number)),
                (None, None) => {
                    free = free.or(Some(index));
                    continue;
                }
            };
            first = min(first, Some((rank, index)));
            if host(addr) == from {
                here += 1;
                first_here = min(first_here, Some((rank, index)));
            }
        }
        if here < UNATTACHED_MAX {
            if free.is_some() {
                return free;
            }
            if self.peers.len() < SESSIONS_MAX {
                self.peers.push(None);
                self.promises.push(None);
                self.house.in_store.push(0);
                return Some(self.peers.len() - 1);
            }
        } else {
            first = first_here;
        }
        let (_, index) = first?;
        self.end(index);
        Some(index)
    }
}

/// Who goes first has the lowest: not fresh, never used, opened long ago.
type Rank = (bool, bool, u64);

fn min(a: Option<(Rank, usize)>, b: Option<(Rank, usize)>) -> Option<(Rank, usize)> {
    a.into_iter().chain(b).min()
}

/// Whoever has an address has all its ports.
fn host(addr: Addr) -> Addr {
    match addr {
        Addr::Udp(mut at) => {
            at.set_port(0);
            Addr::Udp(at)
        }
        other => other,
    }
}
