//! How a hand greets with a key, and opens the answer (`docs/protocol.md`, "Keys").

use std::fmt;

use thinwire_initiator::InitiatorKey;
use thinwire_proto::DropReason;
use thinwire_seal::{Answered, Greeting, Random, Seals, Suite, Suites};
use thinwire_wire::{FrameError, Hello, KeyedAnswer, KeyedHello, SECRET_ANSWER_AT};

/// Who greets with a key: one process of it.
pub struct Speaker {
    key: InitiatorKey,
    random: Random,
}

impl Speaker {
    /// One whose ephemeral keys come of the entropy beside this key.
    pub fn new(key: InitiatorKey) -> Self {
        let random = Random::derived(&key.entropy, b"by hand");
        Speaker { key, random }
    }

    /// Makes a greeting with its key.
    pub fn greet(&mut self, hello: &Hello<'_>) -> KeyedGreeting {
        let mut text = Vec::new();
        hello.emit(&mut text);
        let InitiatorKey { key, suites, .. } = &self.key;
        let keyed = KeyedHello {
            nonce: hello.nonce,
            session: hello.session,
            key: key.id().0,
            cookie: hello.cookie,
            suites: suites.0,
            node: hello.node,
            secret: &[],
        };
        let greeting = Greeting::new(key, &keyed.prologue(), &text, &mut self.random);
        let mut message = Vec::new();
        KeyedHello { secret: greeting.bytes(), ..keyed }.emit(&mut message);
        KeyedGreeting { message, greeting, suites: *suites }
    }
}

impl fmt::Debug for Speaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Speaker").field(&self.key).finish()
    }
}

/// A greeting that may be answered once.
#[derive(Debug)]
pub struct KeyedGreeting {
    message: Vec<u8>,
    greeting: Greeting,
    suites: Suites,
}

impl KeyedGreeting {
    /// The KEYED_HELLO: the same bytes each time it is sent.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Opens the answer, and tells the suite of the session if it welcomes to one.
    pub fn open(
        &mut self,
        answer: &KeyedAnswer<'_>,
    ) -> Result<(Option<Suite>, OpenedAnswer), DropReason> {
        let answered = self.greeting.answered(answer.secret);
        let answered = answered.map_err(|_| DropReason::Frame(FrameError::Forged))?;
        let Some(&[number, 0, 0, 0]) = answered.text.first_chunk::<SECRET_ANSWER_AT>() else {
            return Err(DropReason::Frame(FrameError::Reserved));
        };
        let suite = Suite::from_number(number);
        if number != 0 && !suite.is_some_and(|suite| self.suites.has(suite)) {
            return Err(DropReason::Insecure);
        }
        Ok((suite, OpenedAnswer { answered }))
    }
}

/// What was in an answer.
#[derive(Debug)]
pub struct OpenedAnswer {
    answered: Answered,
}

impl OpenedAnswer {
    /// What the target says.
    pub fn message(&self) -> &[u8] {
        &self.answered.text[SECRET_ANSWER_AT..]
    }

    /// The keys of the session.
    pub fn seals(&self, suite: Suite) -> Seals {
        self.answered.seals(suite)
    }
}
