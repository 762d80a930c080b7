//! Handshake and discovery (`docs/protocol.md`, "Handshake", "Discovery").

use std::time::Duration;

use thinwire_buffer::{Addr, RxFrame, TxBatch};
use thinwire_proto::{
    BatchPolicy, DropReason, Role, Room, Session, SessionConfig, Time, addr_to_wire, outside_frame,
};
use thinwire_wire::{
    Address, Addresses, Discover, Header, Hello, Kind, Offer, Refuse, Status, UnknownSession,
    WELCOME_ADDRESSES_MAX, Welcome,
};

use crate::peer::Peer;
use crate::slots::{REQUEST_BYTES_MAX, Slots};
use crate::target::Target;
use crate::together::Together;

/// Sessions of one target, at most.
pub(crate) const SESSIONS_MAX: usize = 1024;
/// Answers to discovery that wait for their random delay, at most.
const OFFERS_MAX: usize = 256;
/// A session whose initiator never used it is forgotten after this.
pub(crate) const UNCONFIRMED: Duration = Duration::from_secs(5);
/// One reply to an unknown session in this time; a burst of 32 may come at once.
const UNKNOWN_EVERY: Duration = Duration::from_millis(2);

/// The bits of the upper half of a session id that number the sessions of a shard.
pub const SESSION_NUMBER: u32 = 0x3ff;

/// The upper half of the session ids of a shard of a node, without the sessions' numbers, which are
/// its lowest ten bits: the same for every process of that node, so that a new one can answer for
/// sessions that died with the last.
pub fn session_lane(shard: u8, node: &str) -> u32 {
    // FNV-1a, folded to 14 bits.
    let hash = node
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let node = (hash >> 18) ^ (hash & 0x3fff);
    u32::from(shard) << 24 | node << 10
}

/// An answer to a DISCOVER that waits.
#[derive(Clone, Debug)]
pub(crate) struct PendingOffer {
    pub at: Time,
    pub link: usize,
    pub to: Addr,
    pub nonce: u64,
    pub first: u16,
}

impl Target {
    pub(crate) fn on_hello(
        &mut self,
        now: Time,
        link: usize,
        rx: &RxFrame,
        hello: &Hello<'_>,
    ) -> Result<(), DropReason> {
        let from = rx.from;
        if !hello.node.is_empty() && hello.node != self.house.config.node {
            return Err(DropReason::OtherNode);
        }
        if !self.house.config.insecure || hello.security & 1 == 0 {
            let who = if self.house.config.insecure { "the initiator" } else { "this target" };
            let text = format!(
                "keys do not exist yet and {who} did not say --insecure, so no session is possible"
            );
            self.refuse(link, from, hello.nonce, Status::Insecure, &text);
            return Ok(());
        }
        if hello.initiator == [0; 16] {
            let text = "an initiator must have an identity, and zeroes are none";
            self.refuse(link, from, hello.nonce, Status::Invalid, text);
            return Ok(());
        }
        if let Some(shard) = self.house.other_shard(hello.export) {
            return self.forward(shard, link, from, &rx.bytes);
        }
        let known = self.peers.iter().flatten().position(|p| {
            p.nonce == hello.nonce && p.instance == hello.instance && p.initiator == hello.initiator
        });
        let index = match known.map(|nth| self.nth_index(nth)) {
            Some(index) => index,
            None => match self.open_session(now, link, from, hello) {
                Some(index) => index,
                None => {
                    let text = "this target has no room for another session";
                    self.refuse(link, from, hello.nonce, Status::TooMany, text);
                    return Ok(());
                }
            },
        };
        self.welcome(link, from, index);
        Ok(())
    }

    fn nth_index(&self, nth: usize) -> usize {
        let mut living = (0..self.peers.len()).filter(|&i| self.peers[i].is_some());
        living.nth(nth).expect("position among the living")
    }

    fn open_session(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        hello: &Hello<'_>,
    ) -> Option<usize> {
        let index = self.free_place()?;
        let house = &mut self.house;
        // The shard is the first byte on the wire, so that a packet filter can steer by it
        // (rule 10), and the node's lane keeps targets apart; the index makes the look-up a table
        // access; the rest cannot be guessed.
        let random = house.rng.next_u64() >> 32;
        let upper = session_lane(self.shard, &house.config.node) | index as u32;
        let local_id = u64::from(upper) << 32 | random;
        house.next_epoch = house.next_epoch.wrapping_add(1);
        let mut batching = house.config.batching;
        let together = batching.policy.answers_together();
        if together {
            // What waits waits for the rest of its frame, not for a number or a time.
            batching.policy = BatchPolicy::Backlog;
        }
        let config = SessionConfig {
            role: Role::Target,
            local_id,
            remote_id: hello.session,
            epoch: house.next_epoch,
            seed: house.rng.next_u64(),
            batching,
        };
        let sessions = self.peers.iter().flatten().filter(|p| p.confirmed).count() + 1;
        let mut session = Session::new(now, config, house.room(sessions));
        let room = Room { frames: hello.room_frames.max(1), bytes: hello.room_bytes.max(2048) };
        let params = house.links[link];
        let limit = params.frame_bytes_max.min(hello.frame_bytes_max as usize);
        session.add_path(now, link, from, Some(room), params.frame_bytes_base, limit);
        let c = &house.config;
        let slots = Slots::new(c.slots, c.credit_bytes, c.canary_no_duplicate_detection);
        session.grant(slots.granted_slots, slots.granted_bytes);
        let number = house.stats.sessions;
        house.stats.sessions += 1;
        self.peers[index] = Some(Box::new(Peer {
            session,
            slots,
            together: together.then(Together::default),
            initiator: hello.initiator,
            instance: hello.instance,
            nonce: hello.nonce,
            number,
            name: hello.name.to_string(),
            created: now,
            confirmed: false,
            ended: false,
        }));
        Some(index)
    }

    fn welcome(&mut self, link: usize, to: Addr, index: usize) {
        let peer = self.peers[index].as_ref().expect("just opened");
        let house = &self.house;
        let sessions = self.peers.iter().flatten().filter(|p| p.confirmed).count() + 1;
        let room = house.room(sessions);
        let mut addresses = [Address::Sim(0); WELCOME_ADDRESSES_MAX];
        let mut count = 0;
        let all = house.links.iter().filter_map(|l| addr_to_wire(l.addr));
        for (place, address) in addresses.iter_mut().zip(all) {
            *place = address;
            count += 1;
        }
        let welcome = Welcome {
            nonce: peer.nonce,
            session: peer.session.local_id(),
            verifier: house.instance,
            instance: house.instance,
            epoch: peer.session.epoch(),
            slots: house.config.slots,
            frame_bytes_max: house.links[link].frame_bytes_max as u16,
            request_bytes_max: REQUEST_BYTES_MAX as u32,
            room_frames: room.frames,
            room_bytes: room.bytes,
            credit_bytes: house.config.credit_bytes,
            node: &house.config.node,
            addresses: Addresses::new(&addresses[..count]),
        };
        outside_frame(&mut self.outside[link], to, Header::new(Kind::Welcome), 0, |out| {
            welcome.emit(out);
        });
    }

    fn refuse(&mut self, link: usize, to: Addr, nonce: u64, status: Status, text: &str) {
        let refuse = Refuse { nonce, status: status as u16, text };
        outside_frame(&mut self.outside[link], to, Header::new(Kind::Refuse), 0, |out| {
            refuse.emit(out);
        });
    }

    pub(crate) fn on_discover(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        discover: &Discover<'_>,
    ) -> Result<(), DropReason> {
        if !discover.node.is_empty() && discover.node != self.house.config.node {
            return Err(DropReason::OtherNode);
        }
        if self.offers.len() >= OFFERS_MAX {
            return Err(DropReason::Overload);
        }
        let spread = u64::from(discover.spread_ms.min(1000)) * 1_000_000;
        let delay = Duration::from_nanos(self.house.rng.below(spread + 1));
        self.offers.push(PendingOffer {
            at: now + delay,
            link,
            to: from,
            nonce: discover.nonce,
            first: discover.first,
        });
        Ok(())
    }

    pub(crate) fn send_offers(&mut self, now: Time, out: &mut [TxBatch]) {
        let house = &self.house;
        let offers = &mut self.offers;
        let names: &[String] = &self.offered_names;
        offers.retain(|offer| {
            if offer.at > now {
                return true;
            }
            let total = names.len() as u16;
            let from = names.iter().map(String::as_str).skip(offer.first as usize);
            let bytes_max = thinwire_wire::BASE_FRAME_BYTES_MIN - thinwire_wire::HEADER_BYTES;
            outside_frame(&mut out[offer.link], offer.to, Header::new(Kind::Offer), 0, |o| {
                Offer::emit(
                    offer.nonce,
                    house.instance,
                    &house.config.node,
                    offer.first,
                    total,
                    from,
                    bytes_max,
                    o,
                );
            });
            false
        });
    }

    /// Tells a sender that its session is not here: at a bounded rate, since anybody can make us.
    pub(crate) fn unknown_session(&mut self, now: Time, link: usize, to: Addr, session: u64) {
        self.unknown_at = self.unknown_at.max(now - UNKNOWN_EVERY * 32) + UNKNOWN_EVERY;
        if self.unknown_at > now {
            self.unknown_at = self.unknown_at - UNKNOWN_EVERY;
            return;
        }
        let header = Header::new(Kind::UnknownSession);
        outside_frame(&mut self.outside[link], to, header, 0, |out| {
            UnknownSession { session }.emit(out);
        });
    }
}
