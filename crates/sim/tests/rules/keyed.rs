//! The stage of the scenarios with keys: a target that knows two principals, clients that greet with theirs,
//! and what somebody on the way has seen.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_buffer::{RxFrame, SegList};
use thinwire_initiator::InitiatorKey;
use thinwire_link::rng::Rng;
use thinwire_link::sim::Verdict;
use thinwire_proto::{Content, Item, RekeyLimits, Time};
use thinwire_seal::{Preference, Suite, Suites};
use thinwire_sim::hand::{Desk, Hand};
use thinwire_sim::keys::{Holder, KeyEvent, WorldKeys};
use thinwire_target::TargetConfig;
use thinwire_wire::{Header, Kind, Message, TAG_AT, TAG_BYTES};

use crate::scene::Scene;

/// Two keys of one principal, and one of another.
pub const ALICE: Holder = Holder { principal: 0, key: 0 };
pub const ALICE_NEXT: Holder = Holder { principal: 0, key: 1 };
pub const BOB: Holder = Holder { principal: 1, key: 0 };

/// A number that no frame of a test has had.
pub const NEXT: u64 = 1 << 20;

/// Keys whose sessions have this suite; each seals so many frames.
fn keys(suite: Suite, frames: u64) -> WorldKeys {
    let suites = Suites(1 << (suite.number() - 1));
    WorldKeys {
        seed: 5,
        principals: vec![2, 1],
        stranger: None,
        offered: suites,
        asked: Suites::here(!suite.hides()),
        preference: Preference::Aes,
        limits: RekeyLimits { frames, ..RekeyLimits::default() },
    }
}

/// A frame that somebody on the way has seen.
#[derive(Clone)]
pub struct Tapped {
    pub from: u32,
    pub to: u32,
    pub bytes: Vec<u8>,
}

impl Tapped {
    pub fn header(&self) -> Header {
        Header::parse(&self.bytes, self.bytes.len()).expect("a good frame")
    }
}

/// All frames so far.
pub type Tap = Rc<RefCell<Vec<Tapped>>>;

impl Scene {
    pub fn keyed(suite: Suite) -> Self {
        Scene::keyed_with(suite, 1, u64::MAX, |_| {})
    }

    /// The same with so many links, and keys of a session for so many frames.
    pub fn keyed_with(
        suite: Suite,
        links: usize,
        frames: u64,
        change: impl FnOnce(&mut TargetConfig),
    ) -> Self {
        let keys = keys(suite, frames);
        let accepted = keys.target_keys(Vec::new());
        let mut s = Scene::with(links, |config| {
            (config.keys, config.insecure) = (Some(accepted), false);
            change(config);
        });
        (s.world.keys, s.world.seals) = (Some(keys), Some(Rc::default()));
        s.watch_seals();
        s
    }

    fn watch_seals(&mut self) {
        let seals = self.world.seals.clone();
        self.world.machines_mut().for_each(|machine| machine.seals = seals.clone());
    }

    pub fn key(&self, holder: Holder) -> InitiatorKey {
        self.world.keys.as_ref().expect("a scene with keys").initiator_key(holder)
    }

    /// One more client of the disk, with a key.
    pub fn keyed_client(&mut self, holder: Holder) -> usize {
        let client = self.client();
        let key = self.key(holder);
        let c = &mut self.world.clients[client];
        (c.holder, c.config.key, c.config.insecure) = (Some(holder), Some(key), false);
        self.watch_seals();
        client
    }

    /// A hand with a key, welcomed; two of one `instance` are one run.
    pub fn keyed_hand(&mut self, holder: Holder, instance: u64, entropy: u8) -> Hand {
        let key = InitiatorKey { entropy: [entropy; 32], ..self.key(holder) };
        self.hand(7, &mut Silent, |hand| {
            hand.greeting.instance = instance;
            hand.give_key(key);
        })
    }

    /// Sees all frames from now on. Replaces the judge.
    pub fn tap(&mut self) -> Tap {
        let tap = Tap::default();
        let seen = tap.clone();
        self.world.set_judge(move |from, to, bytes| {
            seen.borrow_mut().push(Tapped { from, to, bytes: bytes.to_vec() });
            Verdict::Pass
        });
        tap
    }

    /// It happens to the keys, with all that follows at once.
    pub fn change_keys(&mut self, event: KeyEvent) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let follows = self.world.change_keys(event, &mut Rng::new(1));
            let now =
                follows.into_iter().filter(|(_, event)| matches!(event, KeyEvent::Tell { .. }));
            events.extend(now.map(|(_, event)| event));
        }
    }
}

/// Those of sessions, to a station.
pub fn of_sessions(tap: &Tap, to: u32) -> Vec<Tapped> {
    let is_one = |frame: &&Tapped| frame.to == to && frame.header().kind.is_numbered();
    tap.borrow().iter().filter(is_one).cloned().collect()
}

pub fn of_kind(tap: &Tap, kind: Kind) -> Vec<Tapped> {
    tap.borrow().iter().filter(|frame| frame.header().kind == kind).cloned().collect()
}

/// Another header in front of the same bytes and the same tag.
pub fn readdressed(bytes: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header::parse(bytes, bytes.len()).expect("a good frame");
    change(&mut header);
    let mut bytes = bytes.to_vec();
    let tag: [u8; TAG_BYTES] = *bytes[TAG_AT..].first_chunk().expect("a whole header");
    header.write(&mut bytes);
    bytes[TAG_AT..][..TAG_BYTES].copy_from_slice(&tag);
    bytes
}

/// Says nothing by itself, and hears nothing.
pub struct Silent;

impl Content for Silent {
    fn emit(&mut self, _: Item, _: &mut Vec<u8>) -> bool {
        false
    }

    fn payload(&mut self, _: u16, _: u32, _: u32, _: u32, _: &mut SegList) -> bool {
        false
    }

    fn acked(&mut self, _: Item) {}
}

impl Desk for Silent {
    fn hear(&mut self, _: Time, _: &Message<'_>, _: &RxFrame) {}
}
