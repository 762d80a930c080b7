//! An initiator by hand: does what the shipped one never does. It greets a target, with a key if it has one
//! (`keyed_hand.rs`), has a session (or deliberately none), and hands what it hears to its user, who decides
//! what is said.
//!
//! Order of calls: [`Hand::new`] opens its links, [`Hand::greet`] begins a session; then, whenever
//! something came or is due, [`Hand::receive`] and [`Hand::send`], both with the time.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Addr, LinkInfo, Pool, Room, RxFrame};
use thinwire_initiator::InitiatorKey;
use thinwire_link::fault::FaultConfig;
use thinwire_link::sim::{SimNet, StationConfig};
use thinwire_proto::{
    Batching, Content, DropReason, Drops, NUMBER_HIGH, Role, Sealed, Session, SessionCanary,
    SessionConfig, SessionKeys, Time, Unsealed, addr_from_wire, outside_frame, seal,
};
use thinwire_wire::{
    FrameError, Header, Hello, KeyedAnswer, Kind, Message, ProbeReply, Refuse, Status, Welcome,
};

use crate::keyed_hand::{KeyedGreeting, Speaker};
use crate::machine::Machine;
use crate::world::MS;

/// Its user: knows the bytes of what is said, and wants to hear the answers.
pub trait Desk: Content {
    /// A message of the session that the session itself does not understand, in order.
    fn hear(&mut self, now: Time, message: &Message<'_>, frame: &RxFrame);
}

/// Who greets, and for which export.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Which initiator it is.
    pub initiator: [u8; 16],
    /// Which run of it.
    pub instance: u64,
    /// The node that is meant.
    pub node: String,
    /// The export that will be attached first.
    pub export: String,
    /// What a person calls it.
    pub name: String,
}

/// What the target has said in its WELCOME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcomed {
    /// The target's id of the session.
    pub session: u64,
    /// Its epoch.
    pub epoch: u32,
    /// Slots that it has.
    pub slots: u16,
}

/// A greeting that has not been answered.
struct Attempt {
    link: usize,
    to: Addr,
    cookie: u64,
    sent: u32,
    again_at: Time,
    /// What was sent, with a key.
    keyed: Option<KeyedGreeting>,
}

/// HELLOs to one place, before the next is tried.
const HELLOS: u32 = 3;
/// A session whose paths have all been silent for this long is given up.
const DEAD_NS: u64 = 3_000 * MS;

/// A session that somebody says is unknown is given up after this, if it stays silent.
const DOUBT_NS: u64 = 200 * MS;

/// An initiator without a will of its own: one session, or none, and the links it speaks on.
pub struct Hand {
    /// Its links.
    pub machine: Machine,
    /// How it greets.
    pub greeting: Caller,
    /// Where the target is.
    pub targets: Vec<Addr>,
    /// What it can take in on each path: what its first link can, unless its user says otherwise.
    pub room: Room,
    /// It has a session, which listens and acknowledges. Else it answers probes, and says what its
    /// user has it say ([`Hand::say`]).
    pub listens: bool,
    /// When requests are sent.
    pub batching: Batching,
    /// Packet numbers begin just below a border.
    pub counters_high: bool,
    /// A fault in its sessions.
    pub canary: SessionCanary,
    /// The key that it has, from its next process on.
    pub key: Option<InitiatorKey>,
    /// The target knows the session, as far as is known here.
    pub welcome: Option<Welcomed>,
    /// The session, while there is one.
    pub session: Option<Session>,
    /// The last greeting was refused with this.
    pub refused: Option<(Status, String)>,
    /// Frames that it did not take in.
    pub drops: Drops,
    pool: Pool,
    links: Vec<LinkInfo>,
    /// It speaks with its key.
    speaker: Option<Speaker>,
    /// Since when somebody says that the target does not know the session, who need not know.
    doubt: Option<Time>,
    attempt: Option<Attempt>,
    /// Greetings so far: each place that is greeted has a nonce and a session id of its own.
    greetings: u64,
    number: u64,
    frames: Vec<(usize, RxFrame)>,
}

impl Hand {
    /// A machine that greets targets at these places. [`Hand::open`] before anything else.
    pub fn on(stations: Vec<u32>, targets: Vec<Addr>, greeting: Caller, pool: Pool) -> Self {
        Hand {
            machine: Machine::new(stations),
            greeting,
            targets,
            room: Room { frames: 1, bytes: 2048 },
            listens: true,
            batching: Batching::default(),
            counters_high: false,
            canary: SessionCanary::None,
            key: None,
            welcome: None,
            session: None,
            refused: None,
            drops: Drops::default(),
            pool,
            links: Vec::new(),
            speaker: None,
            doubt: None,
            attempt: None,
            greetings: 0,
            number: 0,
            frames: Vec::new(),
        }
    }

    /// A station of its own on this network, open.
    pub fn new(net: &SimNet, target: u32, greeting: Caller) -> Self {
        let station = net.station(StationConfig::default()).number();
        let pool = Pool::new(1 << 20);
        let mut hand = Hand::on(vec![station], vec![Addr::Sim(target)], greeting, pool);
        hand.machine.burst = 4096;
        hand.open(net, None, &Rc::default());
        hand
    }

    /// A new process opens the links. What an old one had is gone.
    pub fn open(&mut self, net: &SimNet, faults: Option<&FaultConfig>, clock: &Rc<Cell<u64>>) {
        self.links = self.machine.open_links(net, faults, clock);
        self.room = self.links[0].room;
        self.speaker = self.key.clone().map(Speaker::new);
        self.leave();
    }

    /// It greets with this key from now on.
    pub fn give_key(&mut self, key: InitiatorKey) {
        self.speaker = Some(Speaker::new(key.clone()));
        self.key = Some(key);
    }

    /// The id on the frames of the session that is being greeted for, or was last.
    fn local_id(&self) -> u64 {
        1 << 63 | self.greetings
    }

    /// Begins a session, as soon as it is sent; a former one is left without a word.
    pub fn greet(&mut self, now: Time) {
        self.leave();
        self.refused = None;
        self.attempt(now);
    }

    fn attempt(&mut self, now: Time) {
        let nth = self.greetings as usize;
        self.greetings += 1;
        let (link, to) = (nth % self.links.len(), self.targets[nth % self.targets.len()]);
        self.attempt = Some(Attempt { link, to, cookie: 0, sent: 0, again_at: now, keyed: None });
    }

    /// Leaves the session without a word, or gives up to greet.
    pub fn leave(&mut self) {
        self.session = None;
        self.welcome = None;
        self.attempt = None;
        self.doubt = None;
    }

    /// A greeting waits for its answer.
    pub fn is_greeting(&self) -> bool {
        self.attempt.is_some()
    }

    fn hello(&mut self, now: Time) {
        let nonce = self.greetings;
        let session = self.local_id();
        let Some(attempt) = &mut self.attempt else { return };
        attempt.again_at = Time(now.0 + ((100 * MS) << attempt.sent));
        attempt.sent += 1;
        let g = &self.greeting;
        let hello = Hello {
            nonce,
            session,
            initiator: g.initiator,
            instance: g.instance,
            frame_bytes_max: self.links[attempt.link].frame_bytes.max as u16,
            security: 1,
            member: 0,
            room_frames: self.room.frames,
            room_bytes: self.room.bytes,
            cookie: attempt.cookie,
            node: &g.node,
            export: &g.export,
            name: &g.name,
        };
        let batch = &mut self.machine.batches()[attempt.link];
        let Some(speaker) = &mut self.speaker else {
            let header = Header::new(Kind::Hello);
            return outside_frame(batch, attempt.to, header, 0, |out| hello.emit(out));
        };
        let greeting = attempt.keyed.get_or_insert_with(|| speaker.greet(&hello));
        outside_frame(batch, attempt.to, Header::new(Kind::KeyedHello), 0, |out| {
            out.extend_from_slice(greeting.message());
        });
    }

    /// Adds a frame of the session, `gap` numbers behind the last, that acknowledges nothing: for
    /// one that does not listen.
    pub fn say(&mut self, gap: u64, messages: impl FnOnce(&mut Vec<u8>)) {
        self.number += 1 + gap;
        let Some(Welcomed { session, epoch, .. }) = self.welcome else { return };
        let frame = self.machine.batches()[0].push(self.targets[0]);
        Header::reserve(&mut frame.head);
        messages(&mut frame.head);
        let end = frame.head.len() as u16;
        let mut header = Header::new(Kind::Session);
        (header.session, header.epoch, header.packet_number) = (session, epoch, self.number);
        (header.messages_end, header.data_offset, header.length) = (end, end, end);
        header.write(&mut frame.head);
        seal(frame);
    }

    /// Fires timers, and sends what waits. Returns how many frames.
    pub fn send(&mut self, now: Time, desk: &mut impl Desk) -> u64 {
        if self.attempt.as_ref().is_some_and(|attempt| attempt.again_at <= now) {
            if self.attempt.as_ref().is_some_and(|attempt| attempt.sent >= HELLOS) {
                self.attempt(now);
            }
            self.hello(now);
        }
        if let Some(session) = &mut self.session {
            session.on_time(now);
            session.transmit(now, desk, self.machine.batches());
        }
        self.machine.send_own()
    }

    /// Takes in what came.
    pub fn receive(&mut self, now: Time, desk: &mut impl Desk) {
        let mut frames = std::mem::take(&mut self.frames);
        self.machine.receive(&self.pool, |link, rx| frames.push((link, rx.clone())));
        for (link, mut rx) in frames.drain(..) {
            if let Err(reason) = self.take(now, link, &mut rx, desk) {
                self.drops.count(reason);
            }
        }
        self.frames = frames;
        let heard = self.session.as_ref().map(Session::last_heard);
        self.doubt = self.doubt.filter(|&since| heard.is_some_and(|heard| heard <= since));
        let doubt = self.doubt;
        let is_dead = |s: &Session| {
            let is_silent = !s.is_connected() && s.last_heard().0 + DEAD_NS <= now.0;
            is_silent || s.is_overrun() || doubt.is_some_and(|since| since.0 + DOUBT_NS <= now.0)
        };
        if self.session.as_ref().is_some_and(is_dead) {
            self.leave();
        }
    }

    fn take(
        &mut self,
        now: Time,
        link: usize,
        rx: &mut RxFrame,
        desk: &mut impl Desk,
    ) -> Result<(), DropReason> {
        let sealed = Sealed::look(rx).map_err(DropReason::Frame)?;
        let header = *sealed.header();
        let is_ours = self.welcome.is_some() && header.session == self.local_id();
        if header.kind.is_numbered() && !is_ours {
            return Err(DropReason::UnknownSession);
        }
        let frame = match &mut self.session {
            Some(session) if header.kind.is_numbered() && session.has_keys() => {
                session.open(now, link, sealed, &self.pool, &mut 0)?
            }
            _ => sealed.unseal(&self.pool, &mut 0).map_err(DropReason::Frame)?,
        };
        if header.kind == Kind::Session {
            return self.take_session(now, link, &frame, desk);
        }
        let p = self.links[link];
        match frame.messages().next() {
            Some(Message::Probe(probe)) => match &mut self.session {
                Some(session) => session.on_probe(now, link, &frame, &probe, p.frame_bytes),
                None => {
                    let welcome = self.welcome.expect("it is ours");
                    let mut reply = Header::new(Kind::ProbeReply);
                    (reply.session, reply.epoch) = (welcome.session, welcome.epoch);
                    reply.path = header.path;
                    let Room { frames: room_frames, bytes: room_bytes } = self.room;
                    let message = ProbeReply { token: probe.token, room_frames, room_bytes };
                    self.number += 1;
                    reply.packet_number = self.number;
                    let batch = &mut self.machine.batches()[link];
                    outside_frame(batch, frame.from(), reply, 0, |out| message.emit(out));
                    Ok(())
                }
            },
            Some(Message::ProbeReply(reply)) => {
                let session = self.session.as_mut().ok_or(DropReason::Unasked)?;
                session.on_probe_reply(now, link, &frame, &reply)
            }
            Some(Message::Retry(retry)) => {
                let asked = self.asked(retry.nonce)?;
                // The HELLO again, with the cookie, at once; a second one waits for its time.
                let first = asked.cookie == 0;
                asked.cookie = retry.cookie;
                if first {
                    asked.again_at = now;
                    asked.sent = 0;
                }
                // With another cookie it is another greeting.
                if asked.keyed.take().is_some() {
                    self.greetings += 1;
                }
                Ok(())
            }
            // Anybody could have sent it.
            Some(Message::Welcome(_) | Message::Refuse(_)) if self.speaker.is_some() => {
                Err(DropReason::Insecure)
            }
            Some(Message::Welcome(welcome)) => {
                self.welcomed(now, link, frame.from(), &welcome, None)
            }
            Some(Message::Refuse(refuse)) => self.refused(&refuse),
            Some(Message::KeyedAnswer(answer)) => self.answered(now, link, frame.from(), &answer),
            Some(Message::UnknownSession(unknown)) => {
                if self.welcome.is_none_or(|welcome| welcome.session != unknown.session) {
                    return Err(DropReason::Unasked);
                }
                match &mut self.session {
                    Some(_) if self.speaker.is_some() && self.doubt.is_some() => {}
                    Some(session) if self.speaker.is_some() => {
                        self.doubt = Some(now);
                        session.ask(now);
                    }
                    _ => self.leave(),
                }
                Ok(())
            }
            // Somebody asks the group.
            Some(Message::Discover(_)) => Ok(()),
            _ => Err(DropReason::Direction),
        }
    }

    fn asked(&mut self, nonce: u64) -> Result<&mut Attempt, DropReason> {
        let present = self.greetings;
        self.attempt.as_mut().filter(|_| nonce == present).ok_or(DropReason::Unasked)
    }

    fn refused(&mut self, refuse: &Refuse<'_>) -> Result<(), DropReason> {
        self.asked(refuse.nonce)?;
        self.refused = Some((Status::from_number(refuse.status), refuse.text.to_string()));
        self.attempt = None;
        Ok(())
    }

    fn welcomed(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        welcome: &Welcome<'_>,
        keys: Option<SessionKeys>,
    ) -> Result<(), DropReason> {
        let asked = self.asked(welcome.nonce)?;
        if (asked.link, asked.to) != (link, from) {
            return Err(DropReason::Unasked);
        }
        self.begin(now, link, from, welcome, keys);
        Ok(())
    }

    /// An answer under its key, if it is one.
    fn answered(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        answer: &KeyedAnswer<'_>,
    ) -> Result<(), DropReason> {
        let asked = self.asked(answer.nonce)?;
        // Opened once only: nobody else takes the chance away.
        if (asked.link, asked.to) != (link, from) {
            return Err(DropReason::Unasked);
        }
        let greeting = asked.keyed.as_mut().ok_or(DropReason::Unasked)?;
        let (suite, answered) = greeting.open(answer)?;
        let message = Message::alone(answered.message()).map_err(DropReason::Frame)?;
        match (message, suite) {
            (Message::Welcome(welcome), Some(suite)) => {
                let seals = answered.seals(suite);
                let limits = self.key.as_ref().expect("it greets with it").limits;
                let keys = SessionKeys::new(now, seals, limits, self.pool.clone());
                self.welcomed(now, link, from, &welcome, Some(keys))
            }
            (Message::Refuse(refuse), None) => self.refused(&refuse),
            _ => Err(DropReason::Frame(FrameError::Reserved)),
        }
    }

    fn begin(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        w: &Welcome<'_>,
        keys: Option<SessionKeys>,
    ) {
        self.attempt = None;
        self.welcome = Some(Welcomed { session: w.session, epoch: w.epoch, slots: w.slots });
        if !self.listens {
            return;
        }
        let config = SessionConfig {
            role: Role::Initiator,
            local_id: self.local_id(),
            remote_id: w.session,
            epoch: w.epoch,
            seed: self.greeting.instance,
            batching: self.batching,
            canary: self.canary,
        };
        let mut session = Session::new(now, config, self.room);
        if let Some(keys) = keys {
            session.set_keys(keys);
        }
        if self.counters_high {
            session.set_first_number(NUMBER_HIGH);
        }
        let room = Room { frames: w.room_frames.max(1), bytes: w.room_bytes.max(2048) };
        let first = self.links[link];
        let sizes = first.frame_bytes.at_most(w.frame_bytes_max as usize);
        session.add_path(now, link, from, Some(room), sizes);
        for address in w.addresses.iter() {
            for (link, p) in self.links.iter().enumerate() {
                let to = addr_from_wire(address);
                session.add_path(now, link, to, None, p.frame_bytes);
            }
        }
        session.set_peer_grant(u32::from(w.slots), w.credit_bytes);
        self.session = Some(session);
    }

    fn take_session(
        &mut self,
        now: Time,
        link: usize,
        frame: &Unsealed<'_>,
        desk: &mut impl Desk,
    ) -> Result<(), DropReason> {
        // Without one it does not listen.
        let Some(session) = &mut self.session else { return Ok(()) };
        session.accept(now, link, frame, desk)?;
        for message in frame.messages() {
            if !session.on_message(now, &message, desk) {
                desk.hear(now, &message, frame.rx());
            }
        }
        // The target has forgotten it.
        if frame.messages().any(|message| matches!(message, Message::Bye(_))) {
            self.leave();
        }
        Ok(())
    }

    /// When to call [`Hand::send`] next, at the latest.
    pub fn deadline(&self, now: Time) -> Time {
        let session = self.session.as_ref().map_or(u64::MAX, |session| {
            let dead_at = session.last_heard().0 + DEAD_NS;
            let dead_at = if session.is_connected() { u64::MAX } else { dead_at };
            let doubted = self.doubt.map_or(u64::MAX, |since| since.0 + DOUBT_NS);
            session.deadline(now).0.min(dead_at).min(doubted)
        });
        Time(session.min(self.attempt.as_ref().map_or(u64::MAX, |attempt| attempt.again_at.0)))
    }
}
