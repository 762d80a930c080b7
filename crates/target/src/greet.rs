//! Handshake and discovery (`docs/protocol.md`, "Handshake", "Discovery").

use std::time::Duration;

use thinwire_buffer::{Addr, Room, RxFrame, TxBatch};
use thinwire_proto::{
    AMPLIFICATION_MAX, BatchPolicy, DropReason, NUMBER_HIGH, Role, SEQUENCE_HIGH, Session,
    SessionConfig, SessionKeys, Time, addr_to_wire, outside_frame,
};
use thinwire_seal::Suite;
use thinwire_wire::{
    Address, Addresses, BASE_FRAME_BYTES_MIN, Discover, HEADER_BYTES, Header, Hello, Kind, Offer,
    OfferedExports, Refuse, Retry, Status, UnknownSession, WELCOME_ADDRESSES_MAX, Welcome,
};

use crate::TargetCanary;
use crate::access::Right;
use crate::checked::Checked;
use crate::house::Owner;
use crate::keyed::{Asker, Keyed, KeyedAsker};
use crate::limits::{Limit, OverLimit};
use crate::peer::Peer;
use crate::room::host;
use crate::slots::{REQUEST_BYTES_MAX, Slots};
use crate::target::Target;
use crate::together::Together;

/// Sessions of one target, at most.
pub(crate) const SESSIONS_MAX: usize = 1024;
/// Answers to discovery that wait for their random delay, at most: others are given at once.
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

/// The header of an answer to whoever wants the frames of that session id: the node there knows its lane
/// by it.
pub(crate) fn answer(kind: Kind, asker: u64) -> Header {
    Header { session: asker, ..Header::new(kind) }
}

/// A session that was welcomed and not used yet.
#[derive(Debug)]
pub(crate) struct Promise {
    pub local_id: u64,
    pub remote_id: u64,
    pub epoch: u32,
    pub seed: u64,
    /// What the initiator can take in on the path of its HELLO.
    pub room: Room,
    /// The largest frame there.
    pub limit: usize,
    pub initiator: [u8; 16],
    pub instance: u64,
    pub member: u8,
    pub nonce: u64,
    /// There if a key opened it: what is kept of that, and the keys of its frames.
    pub keyed: Option<(Keyed, SessionKeys)>,
    /// The link and the address that its HELLO came from.
    pub place: (usize, Addr),
    /// Higher than that of all sessions that this target opened before.
    pub number: u64,
    pub name: String,
    pub created: Time,
}

/// An answer to a DISCOVER that waits.
#[derive(Clone, Debug)]
pub(crate) struct PendingOffer {
    pub at: Time,
    pub link: usize,
    pub to: Addr,
    pub nonce: u64,
    /// The session id to answer to.
    pub asker: u64,
    pub first: u16,
    /// Bytes of the answer's frame, at most.
    pub bytes_max: usize,
}

impl Target {
    pub(crate) fn on_hello(
        &mut self,
        now: Time,
        link: usize,
        rx: &RxFrame,
        hello: &Hello<'_>,
        is_proved: bool,
    ) -> Result<(), DropReason> {
        let from = rx.from;
        if !hello.node.is_empty() && hello.node != self.house.config.node {
            return Err(DropReason::OtherNode);
        }
        if self.is_silent_of(hello.export) {
            return Err(DropReason::Fenced);
        }
        let (nonce, session) = (hello.nonce, hello.session);
        let asker = Asker { link, to: from, nonce, session, keyed: None };
        // Before anything that costs more than two hashes: this may be one of many that are forged.
        if !is_proved && !self.cookies.is_good(now, link, from, hello.cookie) {
            self.retry(now, &asker);
            return Ok(());
        }
        if !is_proved && self.may_greet(now, link, from).is_err() {
            // Not refused, which would end an honest attempt: it greets again.
            return Err(DropReason::Overload);
        }
        let config = &self.house.config;
        if config.keys.is_some() || !config.insecure || hello.security & 1 == 0 {
            let text = if config.keys.is_some() {
                "this target demands a key: give the file of one with --key"
            } else if config.insecure {
                "this target has no keys, and the initiator did not say --insecure"
            } else {
                "this target has no keys and was not started with --insecure, so no session is possible"
            };
            self.refuse(asker, Status::Insecure, text);
            return Err(DropReason::Insecure);
        }
        self.admit(now, rx, hello, asker)
    }

    /// Opens a session for whoever has shown that it may have one, or says why not.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        rx: &RxFrame,
        hello: &Hello<'_>,
        asker: Asker,
    ) -> Result<(), DropReason> {
        let (link, from) = (asker.link, asker.to);
        if self.is_silent_of(hello.export) {
            return Err(DropReason::Fenced);
        }
        if hello.initiator == [0; 16] {
            let text = "an initiator must have an identity, and zeroes are none";
            self.refuse(asker, Status::Invalid, text);
            return Ok(());
        }
        let initiator = match &asker.keyed {
            Some(keyed) => keyed.identity(&hello.initiator),
            None => hello.initiator,
        };
        // Where an export is that it may not know of would tell that it is there.
        let may_know = asker.keyed.as_ref().is_none_or(|keyed| {
            let keys = self.house.config.keys.as_ref();
            keys.is_some_and(|k| k.right_of(&keyed.principal(), hello.export) != Right::Nothing)
        });
        match self.house.shard_for(hello.export, &initiator, hello.member).filter(|_| may_know) {
            Some(shard) if shard != self.shard => {
                return self.forward(shard, link, from, &rx.bytes);
            }
            _ => {}
        }
        if let Some(index) = self.known(link, from, hello).filter(|_| asker.keyed.is_none()) {
            self.welcome(index, asker);
            return Ok(());
        }
        let suite = asker.keyed.as_ref().map(|keyed| self.suite_for(keyed));
        if suite == Some(None) {
            let text =
                "no suite of both: --authenticate-only must be said on both sides or on none";
            self.refuse(asker, Status::Insecure, text);
            return Err(DropReason::Insecure);
        }
        let owner =
            Owner { principal: asker.keyed.as_ref().map(KeyedAsker::principal), host: host(from) };
        let run = (initiator, hello.instance, hello.member);
        let comes_back = match self.keep_limits(now, &owner, run) {
            Ok(comes_back) => comes_back,
            Err(over) => {
                self.refuse(asker, Status::TooMany, &over.to_string());
                return Err(DropReason::Overload);
            }
        };
        let promised = self.promise(now, link, (owner, comes_back), from, initiator, hello);
        if self.house.config.canary == TargetCanary::EndsAtGreeting {
            self.end_run(initiator, hello.instance, hello.member);
        }
        match promised {
            Some(index) => self.welcome_keyed(now, index, suite.flatten(), asker),
            None => {
                let limit = Limit::Sessions;
                let over = OverLimit { limit, value: self.house.config.limits.get(limit) };
                self.refuse(asker, Status::TooMany, &over.to_string());
            }
        }
        Ok(())
    }

    /// Ends the sessions that this member of a run uses, though all that is there of another is a greeting.
    #[cold]
    fn end_run(&mut self, initiator: [u8; 16], instance: u64, member: u8) {
        let run = (initiator, instance, member);
        for index in 0..self.peers.len() {
            let peer = self.peers[index].as_ref();
            if peer.is_some_and(|p| (p.initiator, p.instance, p.member) == run) {
                self.end(index);
            }
        }
    }

    /// Welcomes to a session that was just promised, with its keys if it is to have some.
    fn welcome_keyed(&mut self, now: Time, index: usize, suite: Option<Suite>, mut asker: Asker) {
        if let (Some(suite), Some(keyed)) = (suite, asker.keyed.take()) {
            let mut message = Vec::new();
            self.emit_welcome(index, asker.link, &mut message);
            let welcomed = keyed.welcome(now, suite, &message, self);
            self.promises[index].as_mut().expect("just promised").keyed = Some(welcomed);
            return self.answer_again(index, &asker);
        }
        self.welcome(index, asker);
    }

    /// The session that was opened for this very HELLO.
    fn known(&self, link: usize, from: Addr, hello: &Hello<'_>) -> Option<usize> {
        let is = |nonce, instance, member, initiator, place| {
            (nonce, instance, member) == (hello.nonce, hello.instance, hello.member)
                && (initiator, place) == (hello.initiator, (link, from))
        };
        (0..self.peers.len()).find(|&at| match (&self.peers[at], &self.promises[at]) {
            (Some(p), _) => is(p.nonce, p.instance, p.member, p.initiator, p.place),
            (None, Some(p)) => is(p.nonce, p.instance, p.member, p.initiator, p.place),
            (None, None) => false,
        })
    }

    /// Takes note of a session that its initiator may use: what costs memory is made when it does.
    fn promise(
        &mut self,
        now: Time,
        link: usize,
        (owner, comes_back): (Owner, bool),
        from: Addr,
        initiator: [u8; 16],
        hello: &Hello<'_>,
    ) -> Option<usize> {
        let index = self.make_room(now, from, comes_back)?;
        let house = &mut self.house;
        house.owners.resize(self.peers.len().max(house.owners.len()), None);
        house.owners[index] = Some(owner);
        // The shard is the first byte on the wire, so that a packet filter can steer by it
        // (rule 10), and the node's lane keeps targets apart; the index makes the look-up a table
        // access; the rest cannot be guessed.
        let random = house.rng.next_u64() >> 32;
        let upper = session_lane(self.shard, &house.config.node) | index as u32;
        house.next_epoch = house.next_epoch.wrapping_add(1);
        let limit = house.links[link].frame_bytes.max.min(hello.frame_bytes_max as usize);
        house.stats.sessions += 1;
        // A time, so that those of all shards can be told apart by it: they have one clock.
        house.session_number = now.0.max(house.session_number + 1);
        self.promises[index] = Some(Promise {
            local_id: u64::from(upper) << 32 | random,
            remote_id: hello.session,
            epoch: house.next_epoch,
            seed: house.rng.next_u64(),
            room: Room { frames: hello.room_frames.max(1), bytes: hello.room_bytes.max(2048) },
            limit,
            initiator,
            instance: hello.instance,
            member: hello.member,
            nonce: hello.nonce,
            keyed: None,
            place: (link, from),
            number: house.session_number,
            name: hello.name.to_string(),
            created: now,
        });
        Some(index)
    }

    /// Whether the session of this id was promised there, not too long ago.
    pub(crate) fn has_promised(&self, now: Time, index: usize, id: u64) -> bool {
        let is_meant = |p: &Promise| p.local_id == id && now.since(p.created) <= UNCONFIRMED;
        self.promises.get(index).and_then(Option::as_ref).is_some_and(is_meant)
    }

    /// A frame of the session that was promised there has come: makes it.
    pub(crate) fn fulfil(&mut self, now: Time, index: usize) {
        let promise = self.promises[index].take().expect("it was promised");
        let house = &self.house;
        let mut batching = house.config.batching;
        let together = batching.policy.answers_together();
        if together {
            // What waits waits for the rest of its frame, not for a number or a time.
            batching.policy = BatchPolicy::Backlog;
        }
        let config = SessionConfig {
            role: Role::Target,
            local_id: promise.local_id,
            remote_id: promise.remote_id,
            epoch: promise.epoch,
            seed: promise.seed,
            batching,
            canary: house.config.session,
        };
        let sessions = self.attached_sessions() + 1;
        let mut session = Session::new(now, config, house.room(sessions));
        let (link, from) = promise.place;
        let sizes = house.links[link].frame_bytes.at_most(promise.limit);
        if house.config.counters_high {
            session.set_first_number(NUMBER_HIGH);
        }
        session.add_path(now, link, from, Some(promise.room), sizes);
        let keyed = promise.keyed.map(|(keyed, keys)| {
            session.set_keys(keys);
            keyed
        });
        let c = &house.config;
        let no_duplicate_detection = c.canary == TargetCanary::NoDuplicateDetection;
        let mut slots = Slots::new(c.slots, c.credit_bytes, no_duplicate_detection);
        if c.counters_high {
            slots.start_at(SEQUENCE_HIGH);
        }
        session.grant(slots.granted_slots, slots.granted_bytes);
        self.peers[index] = Some(Box::new(Peer {
            session,
            slots,
            together: together.then(Together::default),
            initiator: promise.initiator,
            instance: promise.instance,
            member: promise.member,
            nonce: promise.nonce,
            keyed,
            place: promise.place,
            number: promise.number,
            name: promise.name,
            created: promise.created,
            confirmed: false,
            was_attached: false,
            comes_back: false,
            checked: Checked::default(),
            ended: false,
        }));
    }

    /// The WELCOME to a session that was promised, or is in use.
    fn emit_welcome(&self, index: usize, link: usize, out: &mut Vec<u8>) {
        let (nonce, session, epoch) = match (&self.peers[index], &self.promises[index]) {
            (Some(p), _) => (p.nonce, p.session.local_id(), p.session.epoch()),
            (None, Some(p)) => (p.nonce, p.local_id, p.epoch),
            (None, None) => return,
        };
        let house = &self.house;
        let sessions = self.attached_sessions() + 1;
        let room = house.room(sessions);
        let mut addresses = [Address::Sim(0); WELCOME_ADDRESSES_MAX];
        let mut count = 0;
        let all = house.links.iter().filter_map(|l| addr_to_wire(l.addr));
        for (place, address) in addresses.iter_mut().zip(all) {
            *place = address;
            count += 1;
        }
        let welcome = Welcome {
            nonce,
            session,
            instance: house.instance,
            epoch,
            slots: house.config.slots,
            frame_bytes_max: house.links[link].frame_bytes.max as u16,
            request_bytes_max: REQUEST_BYTES_MAX as u32,
            room_frames: room.frames,
            room_bytes: room.bytes,
            credit_bytes: house.config.credit_bytes,
            addresses: Addresses::new(&addresses[..count]),
        };
        welcome.emit(out);
    }

    fn welcome(&mut self, index: usize, asker: Asker) {
        let mut message = Vec::new();
        self.emit_welcome(index, asker.link, &mut message);
        let header = answer(Kind::Welcome, asker.session);
        outside_frame(&mut self.outside[asker.link], asker.to, header, 0, |out| {
            out.extend_from_slice(&message);
        });
    }

    /// Has the sender of a HELLO show that it receives.
    pub(crate) fn retry(&mut self, now: Time, asker: &Asker) {
        let Asker { link, to, nonce, session, .. } = *asker;
        let retry = Retry { nonce, cookie: self.cookies.make(now, link, to) };
        let header = answer(Kind::Retry, session);
        outside_frame(&mut self.outside[link], to, header, 0, |out| retry.emit(out));
    }

    /// Declines, with the key if there is one: then the initiator knows that it was this target.
    pub(crate) fn refuse(&mut self, asker: Asker, status: Status, text: &str) {
        let refuse = Refuse { nonce: asker.nonce, status: status as u16, text };
        if asker.keyed.is_some() {
            let mut message = Vec::new();
            refuse.emit(&mut message);
            return self.answer_sealed(asker, &message);
        }
        let header = answer(Kind::Refuse, asker.session);
        outside_frame(&mut self.outside[asker.link], asker.to, header, 0, |out| refuse.emit(out));
    }

    /// The names that somebody may know: those of the exports that it may open.
    pub(crate) fn names_for(&self, principal: Option<&str>) -> Vec<String> {
        let keys = self.house.config.keys.as_ref();
        let may_know = |name: &&String| match (principal, keys) {
            (Some(principal), Some(keys)) => keys.right_of(principal, name) != Right::Nothing,
            (_, Some(keys)) => keys.announces,
            (_, None) => true,
        };
        self.offered_names.iter().filter(may_know).cloned().collect()
    }

    pub(crate) fn on_discover(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        bytes: u16,
        discover: &Discover<'_>,
    ) -> Result<(), DropReason> {
        if !discover.node.is_empty() && discover.node != self.house.config.node {
            return Err(DropReason::OtherNode);
        }
        if self.is_silent() {
            return Err(DropReason::Fenced);
        }
        // So many at once are a flood, which must not keep an honest question from its answer.
        let spread_ms =
            if self.offers.len() < OFFERS_MAX { discover.spread_ms.min(1000) } else { 0 };
        let spread = u64::from(spread_ms) * 1_000_000;
        let delay = Duration::from_nanos(self.house.rng.below(spread + 1));
        let bytes_max = match self.cookies.is_good(now, link, from, discover.cookie) {
            true => BASE_FRAME_BYTES_MIN,
            // Of whoever it says it is from: at least a name fits, and the cookie for the rest.
            false => BASE_FRAME_BYTES_MIN.min(usize::from(bytes) * AMPLIFICATION_MAX as usize),
        };
        self.offers.push(PendingOffer {
            at: now + delay,
            link,
            to: from,
            nonce: discover.nonce,
            asker: discover.session,
            first: discover.first,
            bytes_max,
        });
        Ok(())
    }

    pub(crate) fn send_offers(&mut self, now: Time, out: &mut [TxBatch]) {
        let names = self.names_for(None);
        let house = &self.house;
        let offers = &mut self.offers;
        let cookies = &self.cookies;
        let names: &[String] = &names;
        offers.retain(|offer| {
            if offer.at > now {
                return true;
            }
            let node = &house.config.node;
            let left = names.get(usize::from(offer.first)..).unwrap_or_default();
            let message = Offer {
                nonce: offer.nonce,
                instance: house.instance,
                total: names.len() as u16,
                first: offer.first,
                cookie: cookies.make(now, offer.link, offer.to),
                node,
                exports: OfferedExports::fitting(left, node, offer.bytes_max - HEADER_BYTES),
            };
            let header = answer(Kind::Offer, offer.asker);
            outside_frame(&mut out[offer.link], offer.to, header, 0, |o| message.emit(o));
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
