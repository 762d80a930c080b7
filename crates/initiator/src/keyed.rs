//! Greetings with a key (`docs/protocol.md`, "Keys"): what is sealed in them, and what answers them.

use std::fmt;
use std::time::Duration;

use thinwire_buffer::{Addr, TxBatch};
use thinwire_proto::{DropReason, RekeyLimits, Time, outside_frame};
use thinwire_seal::{Answered, Greeting, Key, Random, Seals, Suite, Suites};
use thinwire_wire::{FrameError, Header, KeyedAnswer, KeyedHello, Kind, Message, SECRET_ANSWER_AT};
use zeroize::Zeroizing;

/// A greeting is made anew after this: the target may have forgotten what it answered, and the answer to
/// another of its greetings cannot be opened twice.
const STALE: Duration = Duration::from_secs(4);
/// Greetings that may be answered, at most.
const MADE_MAX: usize = 64;

/// The key of an attachment, and how it is used.
#[derive(Clone)]
pub struct InitiatorKey {
    /// The key.
    pub key: Key,
    /// What it agrees to: suites that encrypt, or those that do not. Never both.
    pub suites: Suites,
    /// 32 bytes that nobody can guess, new for every start: ephemeral keys come of them. Not zeroes. Who takes
    /// them forgets them.
    pub entropy: [u8; 32],
    /// How long one key of a session is used.
    pub limits: RekeyLimits,
}

impl InitiatorKey {
    /// With what is right for most.
    pub fn new(key: Key, entropy: [u8; 32]) -> Self {
        let (suites, limits) = (Suites::here(false), RekeyLimits::default());
        InitiatorKey { key, suites, entropy, limits }
    }
}

impl fmt::Debug for InitiatorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitiatorKey")
            .field("key", &self.key)
            .field("suites", &self.suites)
            .finish_non_exhaustive()
    }
}

/// Where a greeting goes, and what everybody may see of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope<'a> {
    pub link: usize,
    pub to: Addr,
    pub nonce: u64,
    /// The session id that the answer is to carry.
    pub session: u64,
    pub cookie: u64,
    pub node: &'a str,
}

/// A greeting that may be answered.
#[derive(Debug)]
struct Made {
    nonce: u64,
    cookie: u64,
    /// Where it went, and the session id that its answer carries.
    place: (usize, Addr, u64),
    since: Time,
    /// What was sent: the same again if it is repeated.
    message: Vec<u8>,
    greeting: Greeting,
    /// The answer, once it has come, with its secret as it was sent.
    answered: Option<(Vec<u8>, Answered)>,
}

/// What was in an answer that nobody else can have made.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    /// Of the session, if there is one.
    pub suite: Option<Suite>,
    answered: &'a Answered,
}

impl<'a> Opened<'a> {
    /// What the target says.
    pub fn message(&self) -> Result<Message<'a>, DropReason> {
        Message::alone(&self.answered.text[SECRET_ANSWER_AT..]).map_err(DropReason::Frame)
    }

    /// The keys of the session of that suite.
    pub fn seals(&self, suite: Suite) -> Seals {
        self.answered.seals(suite)
    }
}

/// The greetings of an attempt, or of a search.
#[derive(Debug)]
pub(crate) struct Greetings {
    random: Random,
    made: Vec<Made>,
}

impl Greetings {
    /// With ephemeral keys out of this.
    pub fn new(random: Random) -> Self {
        Greetings { random, made: Vec::new() }
    }

    /// With ephemeral keys out of the entropy of a key, which is forgotten there; `label` tells those apart that
    /// have the same.
    pub fn of(key: &mut InitiatorKey, label: &[u8]) -> Self {
        assert_ne!(key.entropy, [0; 32], "a key without entropy");
        let entropy = Zeroizing::new(std::mem::take(&mut key.entropy));
        Greetings::new(Random::derived(&entropy, label))
    }

    /// For who has no key: never used.
    pub fn empty() -> Self {
        Greetings::new(Random::new([0; 32]))
    }

    /// Nothing that was sent is waited for any more.
    pub fn clear(&mut self) {
        self.made.clear();
    }

    /// Takes over the generator of others, and none of what they sent.
    pub fn keep_random_of(&mut self, others: Greetings) {
        *self = Greetings { made: Vec::new(), ..others };
    }

    /// Whether a greeting of this nonce and cookie can be sent again. With another cookie it would be
    /// another text under the same ephemeral key.
    pub fn is_good(&self, now: Time, nonce: u64, cookie: u64) -> bool {
        let is_it = |made: &&Made| made.nonce == nonce && made.cookie == cookie;
        self.made.iter().find(is_it).is_some_and(|made| now.since(made.since) < STALE)
    }

    /// Makes a greeting of the message that `body` appends. Its nonce is new.
    pub fn make(
        &mut self,
        now: Time,
        key: &InitiatorKey,
        envelope: &Envelope<'_>,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let Envelope { nonce, session, cookie, node, .. } = *envelope;
        let mut text = Vec::new();
        body(&mut text);
        let (id, suites) = (key.key.id().0, key.suites.0);
        let hello = KeyedHello { nonce, session, key: id, cookie, suites, node, secret: &[] };
        let greeting = Greeting::new(&key.key, &hello.prologue(), &text, &mut self.random);
        let mut message = Vec::new();
        KeyedHello { secret: greeting.bytes(), ..hello }.emit(&mut message);
        if self.made.len() == MADE_MAX {
            // Not those of one place at the cost of all others.
            let place = (envelope.link, envelope.to);
            let is_there = |made: &Made| (made.place.0, made.place.1) == place;
            let at = self.made.iter().position(is_there).unwrap_or(0);
            self.made.remove(at);
        }
        let place = (envelope.link, envelope.to, session);
        self.made.push(Made {
            nonce,
            cookie,
            place,
            since: now,
            message,
            greeting,
            answered: None,
        });
    }

    /// Whether a greeting of this nonce went there, and wants its answer under this session id. Not only the last
    /// one to a place: anybody can make us send another, and the answer to the one before is as good.
    pub fn is_from(&self, nonce: u64, link: usize, from: Addr, session: u64) -> bool {
        let is_it = |made: &Made| made.nonce == nonce && made.place == (link, from, session);
        self.made.iter().any(is_it)
    }

    /// Adds the greeting of that nonce to a batch of its link.
    pub fn send(&self, envelope: &Envelope<'_>, batch: &mut TxBatch) {
        let Some(made) = self.made.iter().find(|made| made.nonce == envelope.nonce) else { return };
        outside_frame(batch, envelope.to, Header::new(Kind::KeyedHello), 0, |out| {
            out.extend_from_slice(&made.message);
        });
    }

    /// Opens an answer to one of the greetings. One that was opened may come again.
    pub fn open(
        &mut self,
        answer: &KeyedAnswer<'_>,
        suites: Suites,
    ) -> Result<Opened<'_>, DropReason> {
        let forged = DropReason::Frame(FrameError::Forged);
        let made = self.made.iter_mut().find(|made| made.nonce == answer.nonce);
        let made = made.ok_or(DropReason::Unasked)?;
        let is_known = made.answered.as_ref().is_some_and(|(secret, _)| secret == answer.secret);
        if !is_known {
            let answered = made.greeting.answered(answer.secret).map_err(|_| forged)?;
            made.answered = Some((answer.secret.to_vec(), answered));
        }
        let (_, answered) = made.answered.as_ref().expect("just kept");
        let Some(&[number, 0, 0, 0]) = answered.text.first_chunk::<SECRET_ANSWER_AT>() else {
            return Err(DropReason::Frame(FrameError::Reserved));
        };
        let suite = Suite::from_number(number);
        // Not one that was not offered: nobody talks us into another.
        if number != 0 && !suite.is_some_and(|suite| suites.has(suite)) {
            return Err(DropReason::Insecure);
        }
        Ok(Opened { suite, answered })
    }
}

#[cfg(test)]
mod tests {
    use thinwire_seal::greeted;

    use super::*;

    /// Whoever holds the key chooses among what was offered, and talks us into nothing else: an attachment that hides
    /// would go on in the open.
    #[test]
    fn a_suite_that_was_not_offered_is_refused() {
        let key = Key::from_bytes([7; 32]).unwrap();
        let mut own = InitiatorKey::new(key.clone(), [1; 32]);
        let mut greetings = Greetings::of(&mut own, b"test");
        let mut random = Random::new([9; 32]);
        let to = Addr::Sim(1);
        let mut entered = 0;
        for (nonce, suite) in (1..).zip(Suite::ALL) {
            let envelope = Envelope { link: 0, to, nonce, session: 6, cookie: 0, node: "node1" };
            greetings.make(Time(1), &own, &envelope, |out| out.extend_from_slice(b"hello"));
            let secret = greetings.made.last().unwrap().greeting.bytes();
            let (key_id, suites) = (key.id().0, own.suites.0);
            let hello = KeyedHello {
                nonce,
                session: 6,
                key: key_id,
                cookie: 0,
                suites,
                node: "node1",
                secret,
            };
            let theirs = greeted(&key, &hello.prologue(), secret, &mut random).unwrap();
            let (secret, _) = theirs.answer(&[suite.number(), 0, 0, 0, 1], suite);
            let answer = KeyedAnswer { nonce, secret: &secret };
            match greetings.open(&answer, own.suites) {
                Ok(opened) => assert_eq!((opened.suite, suite.hides()), (Some(suite), true)),
                Err(why) => assert_eq!((why, suite.hides()), (DropReason::Insecure, false)),
            }
            entered += usize::from(suite.hides());
        }
        assert!(entered > 0 && entered < Suite::ALL.len());
    }
}
