//! The association with a target: finding it, greeting it, the session, and when another takes its
//! place; one state machine for the first time and all later ones (`docs/protocol.md`, "Handshake",
//! "Restart and replay").

#[cfg(test)]
mod tests;

use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, TxBatch};
use thinwire_proto::{
    DropReason, NUMBER_HIGH, Role, Session, SessionConfig, SessionKeys, SipRng, Time,
    addr_from_wire, outside_frame,
};
use thinwire_wire::{
    Discover, Header, Hello, KeyedAnswer, Kind, Message, Offer, Refuse, Retry, Status, Welcome,
};

use crate::attempt::{Attempt, Candidate, RETRY, Turn};
use crate::keyed::{Envelope, Greetings};
use crate::report::AttachError;
use crate::{InitiatorCanary, InitiatorConfig, InitiatorKey, TargetName};

/// A session whose paths have all been dead for this long is not waited for alone: the target may
/// have moved to another address, or forgotten the session without being able to say so.
const DEAD_FOR: Duration = Duration::from_secs(3);
/// A target that answers at all is given this long to show that it knows the session.
const DOUBT: Duration = Duration::from_millis(100);

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// To ask and greet again.
    Ask,
    /// A session that is silent on all paths.
    Silence,
    /// A session that somebody says the target does not know.
    Doubt,
}

/// Where a frame of no session came from, and the session id that it answers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub link: usize,
    pub from: Addr,
    pub id: u64,
}

/// The session, and the attempt to open another. What it is, and what becomes of it:
///
#[doc = include_str!("association.md")]
pub(crate) struct Association {
    links: Vec<LinkInfo>,
    rng: SipRng,
    session: Option<Session>,
    attempt: Option<Attempt>,
    /// Which process of the target opened the session.
    instance: u64,
    /// Since when somebody says that the target does not know the session.
    doubt: Option<Time>,
    /// It is not looked into again before this: that costs a question on every path.
    doubt_after: Time,
    /// Frames that belong to no session, one batch per link.
    outside: Vec<TxBatch>,
    /// Sessions entered so far.
    entered: u64,
    /// What was sent with a key in the present attempt.
    greetings: Greetings,
    /// See [`Association::hint`].
    hint: Option<String>,
}

/// What an answer to a greeting came to.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Entered a session of so many slots.
    Entered(u16),
    /// Nothing yet.
    Waits,
    /// The target declines.
    Refused(Status, String),
    /// Several targets have the name, and the key, at these addresses.
    Ambiguous(Vec<String>),
}

impl Association {
    /// Looks for nobody yet. `links` in the order of the indices that frames come and go with.
    pub fn new(links: Vec<LinkInfo>, mut rng: SipRng, key: Option<&mut InitiatorKey>) -> Self {
        let greetings = match key {
            // Several initiators may have the entropy in common; their generators differ.
            Some(key) => {
                let label = [rng.next_u64().to_le_bytes(), rng.next_u64().to_le_bytes()].concat();
                Greetings::of(key, &label)
            }
            None => Greetings::empty(),
        };
        let outside = links.iter().map(|_| TxBatch::new()).collect();
        let (doubt, doubt_after) = (None, Time::ZERO);
        let (session, attempt) = (None, None);
        Association {
            links,
            rng,
            session,
            attempt,
            instance: 0,
            doubt,
            doubt_after,
            outside,
            entered: 0,
            greetings,
            hint: None,
        }
    }

    /// A session, though nobody is there.
    #[cfg(test)]
    pub fn enter(&mut self, session: Session) {
        self.session = Some(session);
    }

    /// It looks for the target.
    #[cfg(test)]
    pub fn is_seeking(&self) -> bool {
        self.attempt.is_some()
    }

    /// Random bits that nobody can guess.
    pub fn draw(&mut self) -> u64 {
        self.rng.next_u64()
    }

    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    #[inline]
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    /// The session that a frame is for.
    #[inline]
    pub fn session_of(&mut self, id: u64) -> Result<&mut Session, DropReason> {
        self.session.as_mut().filter(|s| s.local_id() == id).ok_or(DropReason::UnknownSession)
    }

    /// A path of the session is alive.
    #[inline]
    pub fn is_connected(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_connected)
    }

    /// Sessions entered so far.
    pub fn entered(&self) -> u64 {
        self.entered
    }

    /// Sizes of frames to use on a link.
    pub fn frame_bytes(&self, config: &InitiatorConfig, link: usize) -> FrameSizes {
        let sizes = self.links[link].frame_bytes;
        config.frame_bytes_max.map_or(sizes, |max| sizes.at_most(max))
    }

    /// Begins to look for the target, unless it does so already.
    pub fn seek(&mut self, now: Time, config: &InitiatorConfig) {
        if self.attempt.is_some() {
            return;
        }
        let candidates = match config.target {
            TargetName::Node(_) => Vec::new(),
            TargetName::Address(addr) => self.candidates_at(addr),
        };
        self.greetings.clear();
        self.attempt = Some(Attempt::new(now, candidates, &mut self.rng));
    }

    fn candidates_at(&mut self, addr: Addr) -> Vec<Candidate> {
        let rng = &mut self.rng;
        let reach = |link: usize| same_kind(self.links[link].addr, addr);
        (0..self.links.len())
            .filter(|&link| reach(link))
            .map(|link| Candidate::at(link, addr, rng.next_u64()))
            .collect()
    }

    /// Looks for the target no more.
    pub fn rest(&mut self) {
        self.attempt = None;
        self.greetings.clear();
    }

    /// The session is of no use any more: another is looked for, at once or `later`.
    pub fn leave(&mut self, now: Time, config: &InitiatorConfig, later: bool) {
        self.session = None;
        self.seek(now, config);
        if let (Some(attempt), true) = (&mut self.attempt, later) {
            attempt.put_off(now + RETRY);
        }
    }

    /// The session in use, if it `is_granted` the attachment, has been heard since `then`: nothing
    /// need take its place.
    fn lives_since(&self, then: Time, is_granted: bool) -> bool {
        let heard = |s: &Session| s.is_connected() && s.last_heard() > then;
        is_granted && self.session.as_ref().is_some_and(heard)
    }

    /// Ends attempts and doubts that the session has answered. Before anything else of a turn.
    #[inline]
    pub fn settle(&mut self, now: Time, config: &InitiatorConfig, is_granted: bool) {
        let started = self.attempt.as_ref().map(Attempt::started);
        if started.is_some_and(|started| self.lives_since(started, is_granted)) {
            self.rest();
        }
        let Some(since) = self.doubt else { return };
        if self.session.is_none() || self.lives_since(since, is_granted) {
            self.doubt = None;
        } else if self.is_due(Timer::Doubt, now) {
            self.fire(Timer::Doubt, now, config);
        }
    }

    /// Begins another attempt if the session has been silent for too long.
    #[inline]
    pub fn watch(&mut self, now: Time, config: &InitiatorConfig) {
        if self.is_due(Timer::Silence, now) {
            self.fire(Timer::Silence, now, config);
        }
    }

    /// Drives the attempt. `is_open`: the volume is known. An error ends the first attach.
    pub fn drive(
        &mut self,
        now: Time,
        config: &InitiatorConfig,
        is_open: bool,
    ) -> Result<(), AttachError> {
        if !self.is_due(Timer::Ask, now) {
            return Ok(());
        }
        let attempt = self.attempt.as_mut().expect("its timer is due");
        if let TargetName::Node(node) = &config.target {
            let is_keyed = config.key.is_some();
            match attempt.look(now, !is_open, config.wait, is_keyed, &mut self.rng) {
                Turn::Gather => return Ok(()),
                Turn::Ambiguous(addresses) if is_keyed => attempt.contest(addresses),
                Turn::Ambiguous(addresses) => {
                    self.attempt = None;
                    return Err(AttachError::Ambiguous(addresses));
                }
                Turn::Ask => {}
            }
            // The name may be at another place by now: ask again, also while greeting.
            let (nonce, session) = (attempt.nonce(), session_id(config, 0));
            let ask = Discover { nonce, session, first: 0, spread_ms: 10, cookie: 0, node };
            for batch in &mut self.outside {
                let header = Header::new(Kind::Discover);
                outside_frame(batch, Addr::Group, header, 0, |out| ask.emit(out));
            }
        }
        attempt.back_off(now);
        for at in 0..attempt.candidates().len() {
            self.attempt.as_mut().expect("just driven").greet(at);
            self.greet(now, config, at);
        }
        Ok(())
    }

    /// Greets the candidate there.
    fn greet(&mut self, now: Time, config: &InitiatorConfig, at: usize) {
        let Some(attempt) = &mut self.attempt else { return };
        let Candidate { nonce, cookie, .. } = attempt.candidates()[at];
        let is_good = self.greetings.is_good(now, nonce, cookie) && !attempt.wants_another(at);
        let is_new = config.key.is_some() && !is_good;
        if is_new {
            attempt.rename(at, self.rng.next_u64());
        }
        let (candidate, low) = (attempt.candidates()[at], attempt.session_low(at));
        let params = self.links[candidate.link];
        let hello = Hello {
            nonce: candidate.nonce,
            session: session_id(config, low),
            initiator: config.initiator,
            instance: config.instance,
            frame_bytes_max: self.frame_bytes(config, candidate.link).max as u16,
            security: u8::from(config.insecure),
            member: config.member,
            room_frames: params.room.frames,
            room_bytes: params.room.bytes,
            cookie: candidate.cookie,
            node: match &config.target {
                TargetName::Node(node) => node,
                TargetName::Address(_) => "",
            },
            export: &config.export,
            name: &config.name,
        };
        let batch = &mut self.outside[candidate.link];
        let Some(key) = &config.key else {
            let header = Header::new(Kind::Hello);
            return outside_frame(batch, candidate.addr, header, 0, |out| hello.emit(out));
        };
        let envelope = Envelope {
            link: candidate.link,
            to: candidate.addr,
            nonce: hello.nonce,
            session: hello.session,
            cookie: hello.cookie,
            node: hello.node,
        };
        if is_new {
            self.greetings.make(now, key, &envelope, |out| hello.emit(out));
        }
        self.greetings.send(&envelope, batch);
    }

    /// OFFER: a target of the name is there.
    pub fn on_offer(
        &mut self,
        now: Time,
        config: &InitiatorConfig,
        asked: Asked,
        offer: &Offer<'_>,
        is_open: bool,
    ) -> Result<(), DropReason> {
        let Asked { link, from, id } = asked;
        let TargetName::Node(node) = &config.target else { return Err(DropReason::Unasked) };
        let attempt = self.attempt.as_mut().ok_or(DropReason::Unasked)?;
        if (offer.nonce, id) != (attempt.nonce(), session_id(config, 0)) || offer.node != node {
            return Err(DropReason::Unasked);
        }
        attempt.on_offer(now, link, from, offer, !is_open, &mut self.rng)
    }

    /// The target wants to see that we receive: the same HELLO again, with its cookie.
    pub fn on_retry(
        &mut self,
        now: Time,
        config: &InitiatorConfig,
        asked: Asked,
        retry: &Retry,
    ) -> Result<(), DropReason> {
        let at = match &config.key {
            None => self.place(config, asked, retry.nonce)?,
            Some(_) => {
                let Asked { link, from, id } = asked;
                let attempt = self.attempt.as_ref().ok_or(DropReason::Unasked)?;
                if !self.greetings.is_from(retry.nonce, link, from, id) {
                    return Err(DropReason::Unasked);
                }
                attempt.at(link, from).ok_or(DropReason::Unasked)?
            }
        };
        let attempt = self.attempt.as_mut().expect("just looked");
        attempt.on_retry(at, retry.cookie, &mut self.rng)?;
        self.greet(now, config, at);
        Ok(())
    }

    /// WELCOME without a key.
    pub fn on_welcome(
        &mut self,
        now: Time,
        config: &InitiatorConfig,
        asked: Asked,
        welcome: &Welcome<'_>,
        is_granted: bool,
    ) -> Result<Answer, DropReason> {
        if config.key.is_some() {
            return Err(DropReason::Insecure);
        }
        self.place(config, asked, welcome.nonce)?;
        self.enter_by(now, config, asked, welcome, is_granted, None)
    }

    /// KEYED_ANSWER: what the target says. What this end encrypts goes into buffers of `pool`.
    pub fn on_keyed_answer(
        &mut self,
        now: Time,
        config: &InitiatorConfig,
        asked: Asked,
        answer: &KeyedAnswer<'_>,
        is_granted: bool,
        pool: &Pool,
    ) -> Result<Answer, DropReason> {
        let key = config.key.as_ref().ok_or(DropReason::Unasked)?;
        let Asked { link, from, id } = asked;
        if self.attempt.is_none() || !self.greetings.is_from(answer.nonce, link, from, id) {
            return Err(DropReason::Unasked);
        }
        let mut greetings = std::mem::replace(&mut self.greetings, Greetings::empty());
        let answered = greetings.open(answer, key.suites).and_then(|opened| {
            match (opened.message()?, opened.suite) {
                (Message::Welcome(welcome), Some(suite)) if welcome.nonce == answer.nonce => {
                    let seals = opened.seals(suite);
                    let keys = SessionKeys::new(now, seals, key.limits, pool.clone());
                    self.enter_by(now, config, asked, &welcome, is_granted, Some(keys))
                }
                (Message::Refuse(refuse), _) if refuse.nonce == answer.nonce => {
                    let status = Status::from_number(refuse.status);
                    Ok(Answer::Refused(status, refuse.text.to_owned()))
                }
                _ => Err(DropReason::Direction),
            }
        });
        // What a session was opened with is not kept: its keys could be made again from it.
        if self.attempt.is_some() {
            self.greetings = greetings;
        } else {
            self.greetings.keep_random_of(greetings);
        }
        answered
    }

    /// Enters the session of a WELCOME, unless the old one is to have its chance first.
    fn enter_by(
        &mut self,
        now: Time,
        config: &InitiatorConfig,
        asked: Asked,
        welcome: &Welcome<'_>,
        is_granted: bool,
        keys: Option<SessionKeys>,
    ) -> Result<Answer, DropReason> {
        let Asked { link, from, id: local_id } = asked;
        let attempt = self.attempt.as_ref().ok_or(DropReason::Unasked)?;
        if self.lives_since(attempt.started(), is_granted) {
            return Err(DropReason::Unasked);
        }
        let attempt = self.attempt.as_mut().expect("just looked");
        // The same process of the target: it may well know the old session, in which requests are
        // executed once. It resumes if one of its paths answers now.
        let resumes = welcome.instance == self.instance && is_granted;
        if let (Some(session), true) = (&mut self.session, resumes)
            && attempt.hesitate(now + DOUBT)
        {
            session.ask(now);
            return Ok(Answer::Waits);
        }
        match attempt.is_sole(welcome.instance, welcome.nonce) {
            Ok(true) => {}
            Ok(false) => return Ok(Answer::Waits),
            Err(addresses) => {
                self.attempt = None;
                return Ok(Answer::Ambiguous(addresses));
            }
        }
        self.instance = welcome.instance;
        let attempt = self.attempt.take().expect("just looked");
        let session = SessionConfig {
            role: Role::Initiator,
            local_id,
            remote_id: welcome.session,
            epoch: welcome.epoch,
            seed: self.rng.next_u64(),
            batching: config.batching,
            canary: config.session,
        };
        let mut session = Session::new(now, session, self.links[link].room);
        if let Some(keys) = keys {
            session.set_keys(keys);
        }
        if config.counters_high {
            session.set_first_number(NUMBER_HIGH);
        }
        let room = Room { frames: welcome.room_frames.max(1), bytes: welcome.room_bytes.max(2048) };
        let sizes = self.frame_bytes(config, link).at_most(welcome.frame_bytes_max as usize);
        session.add_path(now, link, from, Some(room), sizes);
        // All other ways to it: the addresses it names, and then where else it, or somebody, answered.
        let mut others: Vec<(usize, Addr)> = Vec::new();
        for address in welcome.addresses.iter() {
            let addr = addr_from_wire(address);
            let reach = (0..self.links.len()).filter(|&l| same_kind(self.links[l].addr, addr));
            others.extend(reach.map(|l| (l, addr)));
        }
        others.extend(attempt.candidates().iter().map(|c| (c.link, c.addr)));
        for (link, addr) in others {
            session.add_path(now, link, addr, None, self.frame_bytes(config, link));
        }
        session.set_peer_grant(u32::from(welcome.slots), welcome.credit_bytes);
        self.session = Some(session);
        self.entered += 1;
        self.doubt = None;
        self.doubt_after = Time::ZERO;
        self.hint = None;
        Ok(Answer::Entered(welcome.slots))
    }

    /// REFUSE without a key, to one of our greetings. Who has a key only keeps it in mind, since anybody
    /// could have sent it.
    pub fn on_refuse(
        &mut self,
        config: &InitiatorConfig,
        asked: Asked,
        refuse: &Refuse<'_>,
    ) -> Result<Answer, DropReason> {
        self.place(config, asked, refuse.nonce)?;
        if config.key.is_some() && config.canary != InitiatorCanary::BelievesRefusals {
            self.hint = Some(refuse.text.to_owned());
            return Ok(Answer::Waits);
        }
        Ok(Answer::Refused(Status::from_number(refuse.status), refuse.text.to_owned()))
    }

    /// What was said to us last while we are not let in, be it by somebody in the target's place who did not show
    /// that it has our key: for a person who wonders why nothing happens.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Keeps what was said, or forgets it.
    pub fn set_hint(&mut self, hint: Option<String>) {
        self.hint = hint;
    }

    /// The candidate whose HELLO is answered with this nonce: from its place, to the id that it asked for.
    fn place(
        &self,
        config: &InitiatorConfig,
        asked: Asked,
        nonce: u64,
    ) -> Result<usize, DropReason> {
        let attempt = self.attempt.as_ref().ok_or(DropReason::Unasked)?;
        let at = attempt.place(nonce, asked.link, asked.from)?;
        let is_ours = asked.id == session_id(config, attempt.session_low(at));
        if is_ours { Ok(at) } else { Err(DropReason::Unasked) }
    }

    /// Anybody can send UNKNOWN_SESSION, also another target that shares the interface with ours: the
    /// session is asked, from time to time, and only if it stays silent a handshake begins beside it.
    pub fn on_unknown_session(&mut self, now: Time, id: u64) -> Result<(), DropReason> {
        let session = self.session.as_mut().filter(|session| session.remote_id() == id);
        let session = session.ok_or(DropReason::Unasked)?;
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

    /// Until when it waits for this, if it does.
    fn armed(&self, timer: Timer) -> Option<Time> {
        match timer {
            Timer::Ask => self.attempt.as_ref().map(Attempt::next_at),
            Timer::Silence => {
                let session = self.session.as_ref().filter(|_| self.attempt.is_none())?;
                // Longer than that, by the clock of a turn.
                let at = session.last_heard() + DEAD_FOR + Duration::from_millis(1);
                (!session.is_connected()).then_some(at)
            }
            Timer::Doubt => self.doubt.map(|since| since + DOUBT),
        }
    }

    fn is_due(&self, timer: Timer, now: Time) -> bool {
        self.armed(timer).is_some_and(|at| at <= now)
    }

    /// When the first of its timers is due.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        let timers = [Timer::Ask, Timer::Silence, Timer::Doubt];
        timers.into_iter().filter_map(|timer| self.armed(timer)).min()
    }

    fn fire(&mut self, timer: Timer, now: Time, config: &InitiatorConfig) {
        if timer == Timer::Doubt {
            self.doubt = None;
        }
        self.seek(now, config);
    }

    /// Moves the frames outside of sessions to what is sent.
    pub fn take_frames(&mut self, out: &mut [TxBatch]) {
        for (batch, waiting) in out.iter_mut().zip(&mut self.outside) {
            batch.append(waiting);
        }
    }

    /// How much may be on the way to this end of a link. A session is told of the least of its links.
    pub fn set_room(&mut self, link: usize, room: Room) {
        self.links[link].room = room;
        if let Some(session) = &mut self.session {
            let frames = self.links.iter().map(|l| l.room.frames).min().expect("one changed");
            let bytes = self.links.iter().map(|l| l.room.bytes).min().expect("one changed");
            session.set_room(Room { frames, bytes });
        }
    }

    /// Frames wait to be sent.
    pub fn has_frames(&self) -> bool {
        self.outside.iter().any(|batch| !batch.is_empty())
    }
}

/// The id of a session that is asked of a target.
fn session_id(config: &InitiatorConfig, low: u32) -> u64 {
    u64::from(config.lane) << 32 | u64::from(low)
}

fn same_kind(a: Addr, b: Addr) -> bool {
    match (a, b) {
        (Addr::Mac(_), Addr::Mac(_)) | (Addr::Sim(_), Addr::Sim(_)) => true,
        (Addr::Udp(a), Addr::Udp(b)) => a.is_ipv4() == b.is_ipv4(),
        _ => false,
    }
}
