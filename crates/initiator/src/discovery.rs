//! Who is there? A question to the group, and the answers (`docs/protocol.md`, "Discovery").

use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxFrame, TxBatch};
use thinwire_proto::{Sealed, SipRng, Time, outside_frame};
use thinwire_wire::{Discover, Header, KeyedAnswer, Kind, Message, Offer};

use crate::InitiatorKey;
use crate::keyed::{Envelope, Greetings};

/// The question is asked this often in all, since it or its answers may be lost.
const ASK_TIMES: u32 = 3;

/// Targets and names of exports that one search remembers, at most.
const FOUND_MAX: usize = 4096;
const NAMES_MAX: usize = 65_536;
/// Lists of exports whose rest is asked for in one turn, at most.
const WANTED_MAX: usize = 64;

/// A target that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its node name.
    pub node: String,
    /// Where it answered from.
    pub addr: Addr,
    /// The local link that heard it.
    pub link: usize,
    /// Which process it is: two with one name differ here.
    pub instance: u64,
    /// Names of its exports; with a key those that it may open.
    pub exports: Vec<String>,
    /// With a key: it has shown that it has it, too. Without: always.
    pub is_proved: bool,
}

/// One search, as a state machine: drive it for [`Discovery::duration`].
pub struct Discovery {
    nonce: u64,
    node: String,
    started: Time,
    every: Duration,
    asked: u32,
    /// The rest of a list: where it is asked for, from which name on, with which cookie.
    wanted: Vec<(usize, Addr, u16, u64)>,
    found: Vec<DiscoveredTarget>,
    /// Names of exports in `found`.
    names: usize,
    /// With a key names are believed, and told, only under it.
    keyed: Option<Keyed>,
}

/// What a search with a key has besides.
struct Keyed {
    key: InitiatorKey,
    greetings: Greetings,
    /// Questions that wait for an answer: from where, with which nonce.
    asked: Vec<(usize, Addr, u64)>,
    /// Of the nonces.
    rng: SipRng,
}

impl Discovery {
    /// A search that begins now, for one node or (empty) for all, of about `duration`. `nonce` must
    /// be unpredictable.
    pub fn new(now: Time, node: &str, duration: Duration, nonce: u64) -> Self {
        Discovery {
            nonce,
            node: node.to_string(),
            started: now,
            every: duration / (ASK_TIMES + 1),
            asked: 0,
            wanted: Vec::new(),
            found: Vec::new(),
            names: 0,
            keyed: None,
        }
    }

    /// The same with a key: targets that are found are asked for their names under it, and only what a
    /// target says under it is told of its exports.
    pub fn with_key(self, mut key: InitiatorKey) -> Self {
        let label = [b"discovery".as_slice(), &self.nonce.to_le_bytes()].concat();
        let greetings = Greetings::of(&mut key, &label);
        // Tells questions apart; what nobody may guess is in the greetings.
        let rng = SipRng::new(!self.nonce);
        let keyed = Keyed { key, greetings, asked: Vec::new(), rng };
        Discovery { keyed: Some(keyed), ..self }
    }

    /// How long to drive it.
    pub fn duration(&self) -> Duration {
        self.every * (ASK_TIMES + 1)
    }

    /// Adds the questions that are due to `out`, one batch per link.
    pub fn turn(&mut self, now: Time, out: &mut [TxBatch]) {
        let ask = |first: u16, spread: Duration, cookie: u64| Discover {
            nonce: self.nonce,
            // To whoever takes frames of no session.
            session: 0,
            first,
            spread_ms: spread.as_millis() as u16,
            cookie,
            node: &self.node,
        };
        if self.asked < ASK_TIMES && now >= self.started + self.every * self.asked {
            self.asked += 1;
            for batch in out.iter_mut() {
                outside_frame(batch, Addr::Group, Header::new(Kind::Discover), 0, |o| {
                    ask(0, self.every / 4, 0).emit(o);
                });
            }
        }
        for (link, addr, first, cookie) in self.wanted.drain(..) {
            if let Some(Keyed { key, greetings, asked, rng }) = &mut self.keyed {
                let nonce = rng.next_u64();
                let question = Discover { nonce, ..ask(first, Duration::ZERO, cookie) };
                let envelope =
                    Envelope { link, to: addr, nonce, session: 0, cookie, node: &self.node };
                greetings.make(now, key, &envelope, |out| question.emit(out));
                greetings.send(&envelope, &mut out[link]);
                asked.push((link, addr, nonce));
                continue;
            }
            outside_frame(&mut out[link], addr, Header::new(Kind::Discover), 0, |o| {
                ask(first, Duration::ZERO, cookie).emit(o);
            });
        }
    }

    /// When [`Discovery::turn`] has something to do, at the latest.
    pub fn deadline(&self) -> Time {
        match self.asked {
            ASK_TIMES.. => Time::NEVER,
            asked => self.started + self.every * asked,
        }
    }

    /// A frame arrived. Everything but answers to this question is ignored.
    pub fn on_frame(&mut self, link: usize, rx: &mut RxFrame) {
        // Answers are small and rare: a pool of their own, should one come in pieces.
        let (pool, from) = (Pool::new(0), rx.from);
        let frame = Sealed::look(rx).and_then(|sealed| sealed.unseal(&pool, &mut 0));
        let Ok(frame) = frame else { return };
        match frame.messages().next() {
            Some(Message::Offer(offer)) if offer.nonce == self.nonce => {
                self.on_offer(link, from, &offer, self.keyed.is_none());
            }
            Some(Message::KeyedAnswer(answer)) => self.on_answer(link, from, &answer),
            _ => {}
        }
    }

    /// An answer under our key, if it is one.
    fn on_answer(&mut self, link: usize, from: Addr, answer: &KeyedAnswer<'_>) {
        let Some(mut keyed) = self.keyed.take() else { return };
        let question = (link, from, answer.nonce);
        let is_asked = keyed.asked.contains(&question);
        if let Ok(opened) = keyed.greetings.open(answer, keyed.key.suites)
            && let Ok(Message::Offer(offer)) = opened.message()
            && is_asked
        {
            keyed.asked.retain(|asked| *asked != question);
            self.on_offer(link, from, &offer, true);
        }
        self.keyed = Some(keyed);
    }

    /// A target is there. Its names count if it `is_proved` that it says them, or nobody asks for that.
    fn on_offer(&mut self, link: usize, from: Addr, offer: &Offer<'_>, is_proved: bool) {
        if !self.node.is_empty() && offer.node != self.node {
            return;
        }
        let place =
            |f: &DiscoveredTarget| f.link == link && f.addr == from && f.instance == offer.instance;
        let at = match self.found.iter().position(place) {
            Some(at) => at,
            None if self.found.len() < FOUND_MAX => {
                self.found.push(DiscoveredTarget {
                    node: offer.node.to_string(),
                    addr: from,
                    link,
                    instance: offer.instance,
                    exports: Vec::new(),
                    is_proved: false,
                });
                self.found.len() - 1
            }
            None => return,
        };
        let found = &mut self.found[at];
        if !is_proved {
            if !found.is_proved && self.wanted.len() < WANTED_MAX {
                self.wanted.push((link, from, 0, offer.cookie));
            }
            return;
        }
        found.is_proved = true;
        if offer.first as usize == found.exports.len() {
            let before = found.exports.len();
            let more = offer.exports.iter().take(NAMES_MAX - self.names);
            found.exports.extend(more.map(str::to_string));
            self.names += found.exports.len() - before;
        }
        // Who answers a question to the group may be asked for the rest again: that may have been lost.
        let have = found.exports.len() as u16;
        let goes_on = have > offer.first && have < offer.total;
        if goes_on && self.wanted.len() < WANTED_MAX {
            self.wanted.push((link, from, have, offer.cookie));
        }
    }

    /// Who answered so far.
    pub fn found(&self) -> &[DiscoveredTarget] {
        &self.found
    }
}
