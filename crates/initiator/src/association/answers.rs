//! What targets answer to questions and greetings, and what that comes to.

use thinwire_buffer::{Addr, Pool, Room};
use thinwire_proto::{
    DropReason, NUMBER_HIGH, Role, Session, SessionConfig, SessionKeys, Time, addr_from_wire,
};
use thinwire_wire::{KeyedAnswer, Message, Offer, Refuse, Retry, Status, Welcome};

use super::{Asked, Association, DOUBT, same_kind, session_id};
use crate::keyed::Greetings;
use crate::{InitiatorCanary, InitiatorConfig, TargetName};

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
}
