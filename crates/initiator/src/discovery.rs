//! Who is there? A question to the group, and the answers (`docs/protocol.md`, "Discovery").

use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxFrame, TxBatch};
use thinwire_proto::{Sealed, Time, outside_frame};
use thinwire_wire::{Discover, Header, Kind, Message};

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
    /// Names of its exports.
    pub exports: Vec<String>,
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
        }
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
        let Some(Message::Offer(offer)) = frame.messages().next() else { return };
        if offer.nonce != self.nonce || (!self.node.is_empty() && offer.node != self.node) {
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
                });
                self.found.len() - 1
            }
            None => return,
        };
        let found = &mut self.found[at];
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
