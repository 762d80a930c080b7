//! The association with a target: finding it, greeting it, the session, and when another takes its
//! place; one state machine for the first time and all later ones (`docs/protocol.md`, "Handshake",
//! "Restart and replay").

mod answers;
#[cfg(test)]
mod tests;

use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Room, TxBatch};
use thinwire_proto::{DropReason, Session, SipRng, Time, outside_frame};
use thinwire_wire::{Discover, Header, Hello, Kind};

use crate::attempt::{Attempt, Candidate, RETRY, Turn};
use crate::keyed::{Envelope, Greetings};
use crate::report::AttachError;
use crate::{InitiatorConfig, InitiatorKey, TargetName};
pub(crate) use answers::Answer;

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

    /// Its name in the table.
    pub fn state(&self) -> &'static str {
        match (&self.session, &self.attempt, self.doubt) {
            (None, None, _) => "Idle",
            (None, Some(_), _) => "Seeking",
            (Some(_), None, None) => "Associated",
            (Some(_), None, Some(_)) => "Doubted",
            (Some(_), Some(_), _) => "Rejoining",
        }
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

    /// What was said to us last while we are not let in, be it by somebody in the target's place who did not show
    /// that it has our key: for a person who wonders why nothing happens.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Keeps what was said, or forgets it.
    pub fn set_hint(&mut self, hint: Option<String>) {
        self.hint = hint;
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
