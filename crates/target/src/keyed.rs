//! Greetings with a key (`docs/protocol.md`, "Keys"): what is in them is a HELLO or a DISCOVER, and the
//! answer to it goes back sealed.

use std::sync::Arc;

use thinwire_buffer::{Addr, RxFrame};
use thinwire_proto::{DropReason, SessionKeys, Time, outside_frame};
use thinwire_seal::{Greeted, KeyId, Suite, Suites, greeted, identity};
use thinwire_wire::{
    Discover, FrameError, KeyedAnswer, KeyedHello, Kind, Message, Offer, OfferedExports,
    SECRET_ANSWER_AT, SECRET_BYTES_MAX, Status,
};

use crate::greet::answer;
use crate::target::Target;
use crate::{TargetCanary, TargetKeys};

/// Bytes of an ephemeral key, with which the first message of a handshake begins.
const EPHEMERAL_BYTES: usize = 32;

/// What is kept of a greeting with a key that opened a session.
#[derive(Clone, Debug)]
pub(crate) struct Keyed {
    pub principal: Arc<str>,
    pub key: KeyId,
    pub suite: Suite,
    /// Of the greeting. No other has it.
    ephemeral: [u8; EPHEMERAL_BYTES],
    /// What it was answered with: the same again if the same greeting comes again.
    answer: Box<[u8]>,
}

impl Keyed {
    /// Memory that it takes, in bytes.
    pub const BYTES_MAX: usize = size_of::<Keyed>() + SECRET_BYTES_MAX;
}

/// Who greets, where it wants the answer, and what is needed to give it.
pub(crate) struct Asker {
    pub link: usize,
    pub to: Addr,
    pub nonce: u64,
    /// The session id to answer to.
    pub session: u64,
    /// There if it has a key.
    pub keyed: Option<KeyedAsker>,
}

/// What is known of one who greets with a key.
pub(crate) struct KeyedAsker {
    greeted: Greeted,
    principal: Arc<str>,
    key: KeyId,
    ephemeral: [u8; EPHEMERAL_BYTES],
    /// The suites that it agrees to.
    suites: Suites,
}

impl KeyedAsker {
    /// Whose key it is.
    pub fn principal(&self) -> Arc<str> {
        self.principal.clone()
    }

    /// Who it is, to this target, that claims to be this initiator.
    pub fn identity(&self, claimed: &[u8; 16]) -> [u8; 16] {
        identity(&self.principal, claimed)
    }

    /// The answer with a session of this suite, and the keys of that.
    pub fn welcome(
        self,
        now: Time,
        suite: Suite,
        message: &[u8],
        target: &Target,
    ) -> (Keyed, SessionKeys) {
        let KeyedAsker { greeted, principal, key, ephemeral, .. } = self;
        let (answer, seals) = greeted.answer(&secret(suite.number(), message), suite);
        let house = &target.house;
        let limits = house.config.keys.as_ref().expect("it had a key").limits;
        let keys = SessionKeys::new(now, seals, limits, house.pool.clone());
        (Keyed { principal, key, suite, ephemeral, answer: answer.into() }, keys)
    }
}

/// What is sealed in a KEYED_ANSWER.
fn secret(suite: u8, message: &[u8]) -> Vec<u8> {
    let mut text = vec![0; SECRET_ANSWER_AT];
    text[0] = suite;
    text.extend_from_slice(message);
    text
}

impl Target {
    pub(crate) fn on_keyed_hello(
        &mut self,
        now: Time,
        link: usize,
        rx: &RxFrame,
        hello: &KeyedHello<'_>,
        is_proved: bool,
    ) -> Result<(), DropReason> {
        if !hello.node.is_empty() && hello.node != self.house.config.node {
            return Err(DropReason::OtherNode);
        }
        if self.is_silent() {
            return Err(DropReason::Fenced);
        }
        let asker =
            Asker { link, to: rx.from, nonce: hello.nonce, session: hello.session, keyed: None };
        // Before anything that costs more than two hashes: this may be one of many that are forged.
        if !is_proved && !self.cookies.is_good(now, link, rx.from, hello.cookie) {
            self.retry(now, &asker);
            return Ok(());
        }
        let Some(keys) = &self.house.config.keys else {
            let text = "this target runs without keys: it was started with --insecure";
            self.refuse(asker, Status::Insecure, text);
            return Err(DropReason::Insecure);
        };
        let Some((principal, key)) = keys.find(KeyId(hello.key)) else {
            // Nobody can tell that this is true: it only helps a person.
            let text =
                format!("node {} does not know key {}", self.house.config.node, KeyId(hello.key));
            self.refuse(asker, Status::UnknownKey, &text);
            return Err(DropReason::UnknownKey);
        };
        let forged = DropReason::Frame(FrameError::Forged);
        let ephemeral = *hello.secret.first_chunk().ok_or(forged)?;
        if let Some(index) = self.known_keyed(link, rx.from, hello.nonce, &ephemeral) {
            self.answer_again(index, &asker);
            return Ok(());
        }
        let (principal, key) = (principal.name.clone(), key.clone());
        let name = principal.clone();
        let opened = greeted(&key, &hello.prologue(), hello.secret, &mut self.random);
        let greeted = opened.map_err(|_| forged)?;
        let (key, suites, text) = (key.id(), Suites(hello.suites), greeted.text().to_vec());
        let keyed = Some(KeyedAsker { greeted, principal, key, ephemeral, suites });
        let asker = Asker { keyed, ..asker };
        // Only now: what comes without the key costs no more than to find that out, and takes no turn from those
        // who have one.
        let may = self.may_greet_as(now, &name);
        if let Err(over) = may.and_then(|()| self.may_greet(now, link, rx.from)) {
            self.refuse(asker, Status::TooMany, &over.to_string());
            return Err(DropReason::Overload);
        }
        match Message::alone(&text).map_err(DropReason::Frame)? {
            Message::Hello(inner)
                if (inner.nonce, inner.session) == (hello.nonce, hello.session) =>
            {
                self.admit(now, rx, &inner, asker)
            }
            Message::Discover(inner) if inner.nonce == hello.nonce => {
                self.name_exports(now, &inner, asker);
                Ok(())
            }
            Message::Hello(_) | Message::Discover(_) => Err(DropReason::Unasked),
            _ => Err(DropReason::Direction),
        }
    }

    /// Takes other keys and rights, from now on: a session whose key is not among them any more ends, and
    /// one that has an export open, or waits for one, to which its right is another now. Their initiators greet
    /// again, and are told what holds. Nothing else is disturbed. Their entropy is not looked at.
    ///
    /// Returns how many sessions were ended; those that nobody had used yet are not counted.
    ///
    /// # Panics
    /// If the target was made without keys.
    pub fn set_keys(&mut self, keys: TargetKeys) -> usize {
        let before = self.session_count();
        let former = self.house.config.keys.take().expect("a target with keys");
        let keeps = self.house.config.canary == TargetCanary::KeysKept;
        for index in (0..self.peers.len()).filter(|_| !keeps) {
            let (keyed, session) = match (&self.peers[index], &self.promises[index]) {
                (Some(p), _) => (p.keyed.as_ref(), p.session.local_id()),
                (None, Some(p)) => (p.keyed.as_ref().map(|(keyed, _)| keyed), p.local_id),
                (None, None) => continue,
            };
            let Some(Keyed { principal, key, .. }) = keyed else { continue };
            let is_known = keys.find(*key).is_some_and(|(now, _)| now.name == *principal);
            let is_same =
                |name: &str| keys.right_of(principal, name) == former.right_of(principal, name);
            if !is_known || !self.house.exports.names_wanted(session).all(is_same) {
                self.end(index);
            }
        }
        self.house.config.keys = Some(keys);
        before - self.session_count()
    }

    /// The suite for a session, if both agree to one.
    pub(crate) fn suite_for(&self, asker: &KeyedAsker) -> Option<Suite> {
        let keys = self.house.config.keys.as_ref()?;
        keys.suites.choose(asker.suites, keys.preference)
    }

    /// The session that was opened for this very greeting.
    fn known_keyed(
        &self,
        link: usize,
        from: Addr,
        nonce: u64,
        ephemeral: &[u8; EPHEMERAL_BYTES],
    ) -> Option<usize> {
        let is = |keyed: &Keyed, of: u64, place| {
            keyed.ephemeral == *ephemeral && of == nonce && place == (link, from)
        };
        (0..self.peers.len()).find(|&at| match (&self.peers[at], &self.promises[at]) {
            (Some(p), _) => p.keyed.as_ref().is_some_and(|keyed| is(keyed, p.nonce, p.place)),
            (None, Some(p)) => {
                p.keyed.as_ref().is_some_and(|(keyed, _)| is(keyed, p.nonce, p.place))
            }
            (None, None) => false,
        })
    }

    /// Says what has been said to this greeting, bit by bit.
    pub(crate) fn answer_again(&mut self, index: usize, asker: &Asker) {
        let keyed = match (&self.peers[index], &self.promises[index]) {
            (Some(p), _) => p.keyed.as_ref(),
            (None, Some(p)) => p.keyed.as_ref().map(|(keyed, _)| keyed),
            (None, None) => None,
        };
        let Some(keyed) = keyed else { return };
        let answered = KeyedAnswer { nonce: asker.nonce, secret: &keyed.answer };
        let batch = &mut self.outside[asker.link];
        let header = answer(Kind::KeyedAnswer, asker.session);
        outside_frame(batch, asker.to, header, 0, |out| answered.emit(out));
    }

    /// Says one message to one with a key that gets no session.
    pub(crate) fn answer_sealed(&mut self, asker: Asker, message: &[u8]) {
        let keyed = asker.keyed.expect("it has a key");
        let refusal = keyed.greeted.refusal(&secret(0, message));
        let answered = KeyedAnswer { nonce: asker.nonce, secret: &refusal };
        let header = answer(Kind::KeyedAnswer, asker.session);
        outside_frame(&mut self.outside[asker.link], asker.to, header, 0, |out| answered.emit(out));
    }

    /// Tells one with a key the names of the exports that it may open, from the one it wants on.
    fn name_exports(&mut self, now: Time, discover: &Discover<'_>, asker: Asker) {
        let house = &self.house;
        let principal = asker.keyed.as_ref().map(|keyed| &*keyed.principal);
        let names = self.names_for(principal);
        let node = &house.config.node;
        let left = names.get(usize::from(discover.first)..).unwrap_or_default();
        let offer = Offer {
            nonce: asker.nonce,
            instance: house.instance,
            total: names.len() as u16,
            first: discover.first,
            cookie: self.cookies.make(now, asker.link, asker.to),
            node,
            exports: OfferedExports::fitting(left, node, SECRET_BYTES_MAX - OFFER_ROOM),
        };
        let mut message = Vec::new();
        offer.emit(&mut message);
        self.answer_sealed(asker, &message);
    }
}

/// Bytes of a secret that are no message.
const OFFER_ROOM: usize = SECRET_ANSWER_AT + thinwire_seal::NOISE_BYTES;
