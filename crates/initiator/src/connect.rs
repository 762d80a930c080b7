//! Finding the target, handshake, attaching, and coming back: one state machine for the first time
//! and all later ones (`docs/protocol.md`, "Handshake", "Attachments", "Restart and replay").

use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, Room};
use thinwire_proto::{
    DropReason, Item, NUMBER_HIGH, Role, SEQUENCE_HIGH, Session, SessionConfig, Time,
    addr_from_wire, outside_frame,
};
use thinwire_volume::{ErrorKind, Geometry, Identity};
use thinwire_wire::{
    AttachRefused, Attached, Discover, Header, Hello, Kind, Offer, Refuse, Retry, Status, Welcome,
};

use crate::initiator::{CLOSE_PATIENCE, Content};
use crate::report::AttachError;
use crate::slots::{AttachAsk, Owner, Slots};
use crate::volume::features;
use crate::{Initiator, TargetName, WhenAway};

/// First wait between two questions of an attempt; doubles up to the largest.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long the first attach gathers offers, so that a name in double use is noticed.
const GATHER: Duration = Duration::from_millis(150);
/// A session whose paths have all been dead for this long is not waited for alone: the target may
/// have moved to another address, or forgotten the session without being able to say so.
const DEAD_FOR: Duration = Duration::from_secs(3);
/// A target that answers at all is given this long to show that it knows the session.
const DOUBT: Duration = Duration::from_millis(100);
/// A refused re-attach is asked again after this.
const ATTACH_RETRY: Duration = Duration::from_millis(500);
/// RETRYs to one HELLO that are acted on: two, should the target be restarted between them.
const RETRIES_MAX: u8 = 2;
/// Offers and addresses tried in one attempt, at most.
const CANDIDATES_MAX: usize = 16;

/// A place where the target may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub link: usize,
    pub addr: Addr,
    pub nonce: u64,
    pub instance: u64,
    /// What the target there gave us, to show that we receive; 0 for nothing yet.
    pub cookie: u64,
    /// How many RETRYs are still acted on before the HELLO is due again anyway.
    pub retries: u8,
}

impl Candidate {
    fn new(link: usize, addr: Addr, nonce: u64, instance: u64, cookie: u64) -> Self {
        Candidate { link, addr, nonce, instance, cookie, retries: 0 }
    }
}

/// An attempt to open a session, beside the old one if there is one (rule 13).
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    started: Time,
    next_at: Time,
    backoff: Duration,
    discover_nonce: u64,
    candidates: Vec<Candidate>,
    /// The lower half of the first candidate's session id.
    session_low: u32,
    /// The instances that answered to its name when there were several, and it asked again.
    rivals: Vec<u64>,
    /// The old session has been given its chance to resume.
    hesitated: bool,
}

impl Initiator {
    pub(crate) fn session_for(
        &mut self,
        id: u64,
    ) -> Result<(&mut Session, &mut Slots), DropReason> {
        match &mut self.session {
            Some(session) if session.local_id() == id => Ok((session, &mut self.slots)),
            _ => Err(DropReason::UnknownSession),
        }
    }

    /// Sizes of frames to use on a link.
    pub(crate) fn frame_bytes(&self, link: usize) -> FrameSizes {
        let sizes = self.links[link].frame_bytes;
        self.config.frame_bytes_max.map_or(sizes, |max| sizes.at_most(max))
    }

    pub(crate) fn begin_attempt(&mut self, now: Time) {
        if self.attempt.is_some() {
            return;
        }
        let candidates = match self.config.target {
            TargetName::Node(_) => Vec::new(),
            TargetName::Address(addr) => self.candidates_at(addr),
        };
        let session_low = self.rng.next_u64() as u32;
        self.attempt = Some(Attempt {
            started: now,
            next_at: now,
            backoff: RETRY,
            discover_nonce: self.rng.next_u64(),
            candidates,
            session_low,
            rivals: Vec::new(),
            hesitated: false,
        });
    }

    fn candidates_at(&mut self, addr: Addr) -> Vec<Candidate> {
        let rng = &mut self.rng;
        let reach = |link: usize| same_kind(self.links[link].addr, addr);
        (0..self.links.len())
            .filter(|&link| reach(link))
            .map(|link| Candidate::new(link, addr, rng.next_u64(), 0, 0))
            .collect()
    }

    /// Looks after the connection: called every turn.
    pub(crate) fn watch_connection(&mut self, now: Time) {
        if self.first_error.is_some() && !self.is_open() {
            return;
        }
        self.settle_doubt(now);
        let connected = self.session.as_ref().is_some_and(Session::is_connected);
        if connected && self.granted {
            self.came_back();
        } else if self.away_since.is_none() {
            self.away_since = Some(now);
        }
        if let (Some(since), WhenAway::FailAfter(limit)) = (self.away_since, self.config.when_away)
            && self.is_open()
            && !self.gave_up
            && now.since(since) >= limit
        {
            self.gave_up = true;
            self.fail_all(ErrorKind::Away);
        }
        if let Some(session) = &self.session
            && !connected
            && now.since(session.last_heard()) > DEAD_FOR
        {
            self.begin_attempt(now);
        }
        if self.retry_attach_at.is_some_and(|at| at <= now) {
            self.retry_attach_at = None;
            self.ask_attach();
        }
        self.drive_attempt(now);
    }

    /// The session in use has been heard since `then`: nothing need take its place.
    fn lives_since(&self, then: Time) -> bool {
        let heard = |s: &Session| s.is_connected() && s.last_heard() > then;
        self.granted && self.session.as_ref().is_some_and(heard)
    }

    fn settle_doubt(&mut self, now: Time) {
        if self.attempt.as_ref().is_some_and(|attempt| self.lives_since(attempt.started)) {
            self.attempt = None;
        }
        let Some(since) = self.doubt else { return };
        if self.session.is_none() || self.lives_since(since) {
            self.doubt = None;
        } else if now >= since + DOUBT {
            self.doubt = None;
            self.begin_attempt(now);
        }
    }

    fn came_back(&mut self) {
        if self.away_since.take().is_none() {
            return;
        }
        self.gave_up = false;
        // What was given up meanwhile: have the target confirm that nothing more comes of it.
        let session = self.session.as_mut().expect("connected");
        for (slot, sequence) in self.slots.given_up() {
            session.send(Item::Reset { slot, sequence });
        }
    }

    pub(crate) fn connection_deadline(&self) -> Time {
        let mut at = Time(u64::MAX);
        if let Some(attempt) = &self.attempt {
            at = at.min(attempt.next_at);
        } else if let Some(session) = &self.session
            && !session.is_connected()
        {
            at = at.min(session.last_heard() + DEAD_FOR + Duration::from_millis(1));
        }
        if let Some(retry) = self.retry_attach_at {
            at = at.min(retry);
        }
        if let Some(since) = self.doubt {
            at = at.min(since + DOUBT);
        }
        if let (Some(since), Some(_)) = (self.closing_since, self.away_since) {
            at = at.min(since + CLOSE_PATIENCE);
        }
        if self.wants_forced_flush() {
            at = at.min(self.forced_flush_after);
        }
        if let (Some(since), WhenAway::FailAfter(limit)) = (self.away_since, self.config.when_away)
            && self.is_open()
            && !self.gave_up
        {
            at = at.min(since + limit);
        }
        at
    }

    fn drive_attempt(&mut self, now: Time) {
        let Some(attempt) = &mut self.attempt else { return };
        if attempt.next_at > now {
            return;
        }
        if let TargetName::Node(node) = &self.config.target {
            let gathering = !attempt.candidates.is_empty()
                && self.attached.is_none()
                && now < attempt.started + GATHER;
            if gathering {
                attempt.next_at = attempt.started + GATHER;
                return;
            }
            if self.attached.is_none() && !self.config.wait {
                let mut addresses = Vec::new();
                let first = attempt.candidates.first().map(|c| c.instance);
                for candidate in &attempt.candidates {
                    if !addresses.contains(&candidate.addr.to_string()) {
                        addresses.push(candidate.addr.to_string());
                    }
                }
                if attempt.candidates.iter().any(|c| Some(c.instance) != first) {
                    // Or is it one that has been restarted while it answered over several links?
                    // Of that one, no two instances answer twice.
                    let mut instances: Vec<_> =
                        attempt.candidates.iter().map(|c| c.instance).collect();
                    instances.sort_unstable();
                    instances.dedup();
                    let again = instances.iter().filter(|i| attempt.rivals.contains(i)).count();
                    if again > 1 {
                        self.first_error = Some(AttachError::Ambiguous(addresses));
                        self.attempt = None;
                        return;
                    }
                    attempt.rivals = instances;
                    attempt.candidates.clear();
                    attempt.started = now;
                    attempt.backoff = RETRY;
                    attempt.discover_nonce = self.rng.next_u64();
                }
            }
            // The name may be at another place by now: ask again, also while greeting.
            let nonce = attempt.discover_nonce;
            for batch in &mut self.outside {
                outside_frame(batch, Addr::Group, Header::new(Kind::Discover), 0, |out| {
                    Discover { nonce, first: 0, spread_ms: 10, cookie: 0, node }.emit(out);
                });
            }
        }
        attempt.next_at = now + attempt.backoff;
        attempt.backoff = (attempt.backoff * 2).min(RETRY_MAX);
        for at in 0..attempt.candidates.len() {
            self.greet(at, RETRIES_MAX);
        }
    }

    /// The id of the session that is asked of a candidate.
    fn session_id(&self, low: u32, candidate: usize) -> u64 {
        u64::from(self.config.lane) << 32 | u64::from(low.wrapping_add(candidate as u32))
    }

    fn greet(&mut self, at: usize, retries: u8) {
        let attempt = self.attempt.as_mut().expect("called during one");
        attempt.candidates[at].retries = retries;
        let (candidate, low) = (attempt.candidates[at], attempt.session_low);
        let params = self.links[candidate.link];
        let hello = Hello {
            nonce: candidate.nonce,
            session: self.session_id(low, at),
            initiator: self.config.initiator,
            instance: self.config.instance,
            frame_bytes_max: self.frame_bytes(candidate.link).max as u16,
            security: u8::from(self.config.insecure),
            room_frames: params.room.frames,
            room_bytes: params.room.bytes,
            cookie: candidate.cookie,
            node: match &self.config.target {
                TargetName::Node(node) => node,
                TargetName::Address(_) => "",
            },
            export: &self.config.export,
            name: &self.config.name,
        };
        let header = Header::new(Kind::Hello);
        outside_frame(&mut self.outside[candidate.link], candidate.addr, header, 0, |out| {
            hello.emit(out);
        });
    }

    pub(crate) fn on_offer(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        offer: &Offer<'_>,
    ) -> Result<(), DropReason> {
        let TargetName::Node(node) = &self.config.target else { return Err(DropReason::Unasked) };
        let attempt = self.attempt.as_mut().ok_or(DropReason::Unasked)?;
        if offer.nonce != attempt.discover_nonce || offer.node != node {
            return Err(DropReason::Unasked);
        }
        // A target that was restarted answers from the same place with another instance.
        let place = attempt.candidates.iter_mut().find(|c| c.link == link && c.addr == from);
        if let Some(candidate) = place {
            candidate.instance = offer.instance;
            candidate.cookie = offer.cookie;
            return Ok(());
        }
        if attempt.candidates.len() >= CANDIDATES_MAX {
            return Err(DropReason::Overload);
        }
        let nonce = self.rng.next_u64();
        attempt.candidates.push(Candidate::new(link, from, nonce, offer.instance, offer.cookie));
        attempt.next_at =
            if self.attached.is_some() { now } else { (attempt.started + GATHER).max(now) };
        attempt.backoff = RETRY;
        Ok(())
    }

    /// The target wants to see that we receive: the same HELLO again, with its cookie.
    pub(crate) fn on_retry(
        &mut self,
        link: usize,
        from: Addr,
        retry: &Retry,
    ) -> Result<(), DropReason> {
        let attempt = self.attempt.as_mut().ok_or(DropReason::Unasked)?;
        let place = |c: &Candidate| c.nonce == retry.nonce && c.link == link && c.addr == from;
        let at = attempt.candidates.iter().position(place).ok_or(DropReason::Unasked)?;
        let candidate = &mut attempt.candidates[at];
        let Some(left) = candidate.retries.checked_sub(1) else {
            return Err(DropReason::Unasked);
        };
        candidate.cookie = retry.cookie;
        self.greet(at, left);
        Ok(())
    }

    pub(crate) fn on_welcome(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        welcome: &Welcome<'_>,
    ) -> Result<(), DropReason> {
        let attempt = self.attempt.as_ref().ok_or(DropReason::Unasked)?;
        let place = |c: &Candidate| c.nonce == welcome.nonce && c.link == link && c.addr == from;
        let at = attempt.candidates.iter().position(place).ok_or(DropReason::Unasked)?;
        if self.lives_since(attempt.started) {
            return Err(DropReason::Unasked);
        }
        // The same process of the target: it may well know the old session, in which requests are
        // executed once. It resumes if one of its paths answers now.
        let resumes = welcome.instance == self.target_instance && self.granted;
        if let (Some(session), true, false) = (&mut self.session, resumes, attempt.hesitated) {
            session.ask(now);
            let attempt = self.attempt.as_mut().expect("just looked");
            attempt.hesitated = true;
            attempt.next_at = now + DOUBT;
            return Ok(());
        }
        self.target_instance = welcome.instance;
        let attempt = self.attempt.take().expect("just looked");
        let config = SessionConfig {
            role: Role::Initiator,
            local_id: self.session_id(attempt.session_low, at),
            remote_id: welcome.session,
            epoch: welcome.epoch,
            seed: self.rng.next_u64(),
            batching: self.config.batching,
        };
        let params = self.links[link];
        let mut session = Session::new(now, config, params.room);
        if self.config.counters_high {
            session.set_first_number(NUMBER_HIGH);
        }
        let room = Room { frames: welcome.room_frames.max(1), bytes: welcome.room_bytes.max(2048) };
        let sizes = self.frame_bytes(link).at_most(welcome.frame_bytes_max as usize);
        session.add_path(now, link, from, Some(room), sizes);
        // All other ways to it: where else it answered, and the addresses it names.
        let mut others: Vec<(usize, Addr)> =
            attempt.candidates.iter().map(|c| (c.link, c.addr)).collect();
        for address in welcome.addresses.iter() {
            let addr = addr_from_wire(address);
            let reach = (0..self.links.len()).filter(|&l| same_kind(self.links[l].addr, addr));
            others.extend(reach.map(|l| (l, addr)));
        }
        for (link, addr) in others {
            session.add_path(now, link, addr, None, self.frame_bytes(link));
        }
        session.set_peer_grant(u32::from(welcome.slots), welcome.credit_bytes);
        self.enter_session(session, welcome.slots);
        Ok(())
    }

    /// A new session: what was outstanding is issued again, once the attachment is open in it.
    fn enter_session(&mut self, session: Session, slots: u16) {
        self.stats.sessions += 1;
        self.session = Some(session);
        self.granted = false;
        self.doubt = None;
        self.doubt_after = Time::ZERO;
        // A retry that was meant for the former session would ask a second time in this one, and
        // the target would fence the first grant.
        self.retry_attach_at = None;
        self.used_slots = 0;
        self.used_bytes = 0;
        let mut orphans = std::mem::take(&mut self.orphans);
        let sequence = if self.config.counters_high { SEQUENCE_HIGH } else { 0 };
        self.slots.restart(slots, sequence, &mut orphans);
        for io in orphans.drain(..) {
            match io.owner {
                Owner::User(_) => self.waiting.push_front(io),
                Owner::Flush | Owner::Replay(_) => {}
            }
        }
        self.orphans = orphans;
        self.forced_flush = false;
        self.detach_sent = false;
        if self.replay.take().is_some() {
            self.start_replay(0);
        }
        self.ask_attach();
    }

    pub(crate) fn ask_attach(&mut self) {
        let Some(session) = &mut self.session else { return };
        debug_assert!(!self.granted, "asked for what is granted");
        let transaction = self.slots.attach.transaction.wrapping_add(1).max(1);
        let resume = self.attached.filter(|_| !self.config.read_only).map(|c| c.writer_generation);
        self.slots.attach = AttachAsk {
            transaction,
            read_only: self.config.read_only,
            take_over: self.config.take_over && resume.is_none(),
            resume,
            export: self.config.export.clone(),
        };
        session.send(Item::Attach(transaction));
    }

    /// The target does not know the attachment any more: as if it had been restarted.
    pub(crate) fn reattach(&mut self) {
        self.granted = false;
        self.session = None;
        self.begin_attempt(self.now);
    }

    pub(crate) fn on_attached(&mut self, now: Time, a: &Attached) -> Result<(), DropReason> {
        if a.transaction != self.slots.attach.transaction || self.granted {
            return Err(DropReason::Unasked);
        }
        let identity = Identity { identity: a.identity, incarnation: a.incarnation };
        if let Some(known) = &self.attached {
            let other = known.identity != identity
                || known.geometry.block_bytes != a.block_bytes
                || known.geometry.bytes > a.bytes;
            if other {
                self.die(ErrorKind::ContentChanged);
                return Ok(());
            }
        }
        let first = self.attached.is_none();
        let geometry = match self.attached {
            // A face has been told a size and abilities: they stay.
            Some(known) => known.geometry,
            None => Geometry {
                bytes: a.bytes,
                block_bytes: a.block_bytes,
                preferred_bytes: a.preferred_bytes.clamp(a.block_bytes, 1 << 20),
                io_bytes_max: a.io_bytes_max.min(1 << 20),
                features: features(a.features, self.config.read_only),
            },
        };
        self.attached =
            Some(Content { geometry, identity, writer_generation: a.writer_generation });
        self.slots.attachment = a.attachment;
        self.slots.generation = a.generation;
        self.granted = true;
        self.retry_attach_at = None;
        if first {
            self.verifier = a.verifier;
        } else {
            self.on_verifier(a.verifier);
        }
        self.watch_connection(now);
        Ok(())
    }

    pub(crate) fn on_attach_refused(
        &mut self,
        now: Time,
        refused: &AttachRefused<'_>,
    ) -> Result<(), DropReason> {
        if refused.transaction != self.slots.attach.transaction || self.granted {
            return Err(DropReason::Unasked);
        }
        let status = Status::from_number(refused.status);
        if self.is_open() {
            match status {
                Status::Fenced => self.die(ErrorKind::Fenced),
                Status::OtherContent => self.die(ErrorKind::ContentChanged),
                _ => self.retry_attach_at = Some(now + ATTACH_RETRY),
            }
            return Ok(());
        }
        self.refused_at_first(now, status, refused.text, refused.seconds_left);
        Ok(())
    }

    fn refused_at_first(&mut self, now: Time, status: Status, text: &str, seconds_left: u32) {
        // Only what may change by itself is worth asking again.
        let temporary = matches!(
            status,
            Status::Busy | Status::NotFound | Status::TooMany | Status::ShuttingDown
        );
        if self.config.wait && temporary {
            self.retry_attach_at = Some(now + ATTACH_RETRY);
            return;
        }
        self.first_error = Some(AttachError::Refused {
            status,
            text: text.to_string(),
            seconds_left: (seconds_left != u32::MAX).then_some(seconds_left),
        });
        self.attempt = None;
    }

    pub(crate) fn on_refuse(&mut self, now: Time, refuse: &Refuse<'_>) -> Result<(), DropReason> {
        let attempt = self.attempt.as_ref().ok_or(DropReason::Unasked)?;
        if !attempt.candidates.iter().any(|c| c.nonce == refuse.nonce) {
            return Err(DropReason::Unasked);
        }
        if !self.is_open() {
            let status = Status::from_number(refuse.status);
            self.refused_at_first(now, status, refuse.text, u32::MAX);
        }
        Ok(())
    }

    /// Anybody can send this, also another target that shares the interface with ours: the session
    /// is asked, from time to time, and only if it stays silent a handshake begins beside it.
    pub(crate) fn on_unknown_session(&mut self, now: Time, id: u64) -> Result<(), DropReason> {
        match &mut self.session {
            Some(session) if session.remote_id() == id => {
                if self.doubt.is_none() {
                    if now < self.doubt_after {
                        return Err(DropReason::Overload);
                    }
                    self.doubt = Some(now);
                    self.doubt_after = now + DOUBT;
                    session.ask(now);
                }
                Ok(())
            }
            _ => Err(DropReason::Unasked),
        }
    }

    /// The target ends the session in order: it is about to stop, perhaps to start again.
    pub(crate) fn on_bye(&mut self, now: Time) {
        if self.closed {
            return;
        }
        // Keep the slots' I/O: it is issued again in the next session. The acknowledgement of the
        // goodbye is not worth keeping the session for.
        self.granted = false;
        self.session = None;
        self.away_since.get_or_insert(now);
        self.begin_attempt(now);
        if let Some(attempt) = &mut self.attempt {
            attempt.next_at = now + RETRY;
        }
    }
}

fn same_kind(a: Addr, b: Addr) -> bool {
    match (a, b) {
        (Addr::Mac(_), Addr::Mac(_)) | (Addr::Sim(_), Addr::Sim(_)) => true,
        (Addr::Udp(a), Addr::Udp(b)) => a.is_ipv4() == b.is_ipv4(),
        _ => false,
    }
}
