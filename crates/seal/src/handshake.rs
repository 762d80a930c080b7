//! The two ends of the handshake: one message there, one back, and both have secrets that nobody else
//! can find (`docs/protocol.md`, "Handshake"). Each message carries a text, hidden and authenticated.
//!
//! It is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s` of the Noise Protocol Framework, revision 34. What
//! that means: only who holds the key can make either message or read its text. The target does not
//! know from a greeting alone that it is not an old one, sent again; the initiator knows that the
//! answer is one to its own. Frames sealed later cannot be read by who learns the key after both ends
//! have dropped their state; texts of greetings can, texts of answers cannot.
//!
//! The *prologue* is what both ends know of the handshake beside its messages: if it differs, they
//! are forged.

use std::fmt;

use crate::noise::Noise;
use crate::seals::{Seals, Secrets};
use crate::{Forged, Key, Random, Suite, TAG_BYTES};

/// How much longer a message of the handshake is than its text: an ephemeral key and a tag.
pub const NOISE_BYTES: usize = 32 + TAG_BYTES;

/// The longest text of a message (Noise, section 3: messages are of at most 65535 bytes).
pub const TEXT_BYTES_MAX: usize = 65535 - NOISE_BYTES;

/// The initiator's end, from its message until the target's has come.
pub struct Greeting {
    noise: Noise,
    bytes: Vec<u8>,
}

impl Greeting {
    /// Takes a draw of `random`.
    ///
    /// # Panics
    /// If the text is longer than [`TEXT_BYTES_MAX`].
    pub fn new(key: &Key, prologue: &[u8], text: &[u8], random: &mut Random) -> Self {
        assert!(text.len() <= TEXT_BYTES_MAX, "a text of {} bytes", text.len());
        let mut noise = Noise::new(true, key, prologue, random);
        let bytes = noise.write(text);
        Self { noise, bytes }
    }

    /// The message. To repeat it is to send these bytes again.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes in the target's message.
    ///
    /// # Errors
    /// [`Forged`] if it is not one that was made for this greeting by who holds the key. Then nothing
    /// has changed, and the true one may still come. Once it has come, all others are forged.
    pub fn answered(&mut self, answer: &[u8]) -> Result<Answered, Forged> {
        let text = self.noise.read(answer)?;
        Ok(Answered { text, secrets: self.noise.split() })
    }
}

impl fmt::Debug for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Greeting").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// What the initiator has of the target's message.
#[derive(Debug)]
pub struct Answered {
    /// What the target says in it; by that the initiator knows whether there is a session, and of
    /// which suite.
    pub text: Vec<u8>,
    secrets: Secrets,
}

impl Answered {
    /// The initiator's end of a session of the suite that the target has told.
    pub fn seals(&self, suite: Suite) -> Seals {
        self.secrets.initiator(suite)
    }
}

/// The target's end: takes in an initiator's message. Takes a draw of `random`, for the answer.
///
/// # Errors
/// [`Forged`] if it is not one that was made under this prologue by who holds the key. It says
/// nothing about when.
pub fn greeted(
    key: &Key,
    prologue: &[u8],
    greeting: &[u8],
    random: &mut Random,
) -> Result<Greeted, Forged> {
    let mut noise = Noise::new(false, key, prologue, random);
    let text = noise.read(greeting)?;
    Ok(Greeted { noise, text })
}

/// The target's end, once it was greeted.
pub struct Greeted {
    noise: Noise,
    text: Vec<u8>,
}

impl Greeted {
    /// What the initiator says.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The answer that opens a session, and the target's end of it. The answer's text has to tell the
    /// initiator the suite. The caller keeps the answer if it may have to repeat it.
    ///
    /// # Panics
    /// If the text is longer than [`TEXT_BYTES_MAX`].
    pub fn answer(mut self, text: &[u8], suite: Suite) -> (Vec<u8>, Seals) {
        let answer = self.write(text);
        (answer, self.noise.split().target(suite))
    }

    /// The answer after which there is no session; on the wire it looks the same.
    ///
    /// # Panics
    /// If the text is longer than [`TEXT_BYTES_MAX`].
    pub fn refusal(mut self, text: &[u8]) -> Vec<u8> {
        self.write(text)
    }

    fn write(&mut self, text: &[u8]) -> Vec<u8> {
        assert!(text.len() <= TEXT_BYTES_MAX, "a text of {} bytes", text.len());
        self.noise.write(text)
    }
}

impl fmt::Debug for Greeted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Greeted").field("text", &self.text.len()).finish_non_exhaustive()
    }
}
