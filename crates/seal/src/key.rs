//! The key that both machines hold, its text form, and the id by which it may be named.

use std::fmt;

use aws_lc_rs::{digest, hmac};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// What the text form of a key begins with; the number is the form's version.
const WORD: &str = "thinwire-key-1";

/// What is authenticated with the key to make its id.
const ID_TEXT: &[u8] = b"thinwire key id";

/// 32 bytes that both machines hold and nobody else. Overwritten when dropped; `Debug` shows the id
/// alone.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Key {
    bytes: [u8; 32],
    #[zeroize(skip)]
    id: KeyId,
}

impl Key {
    /// Takes the key for what it is; whoever calls it wipes what they copied it from.
    ///
    /// # Errors
    /// [`KeyError::Zero`] if all bytes are zero: that is memory nobody has filled.
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self, KeyError> {
        let bytes = Zeroizing::new(bytes);
        if *bytes == [0; 32] {
            return Err(KeyError::Zero);
        }
        let mut tag = Zeroizing::new([0; 32]);
        hmac_sha256(&bytes, ID_TEXT, &mut tag);
        let id = KeyId(tag[..8].try_into().expect("eight of 32 bytes"));
        Ok(Self { bytes: *bytes, id })
    }

    /// Reads the text form: one line, `thinwire-key-1` and 64 hexadecimal digits of either case with
    /// one space between, and at most one end of line behind.
    ///
    /// # Errors
    /// What was expected and not there ([`KeyError`]); never the text itself.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let digits = line.strip_prefix(WORD).ok_or(KeyError::Format)?;
        let digits = digits.strip_prefix(' ').ok_or(KeyError::Format)?.as_bytes();
        if digits.len() != 64 {
            return Err(KeyError::Digits);
        }
        let mut bytes = Zeroizing::new([0; 32]);
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Self::from_bytes(*bytes)
    }

    /// The text form, with the end of its line. Overwritten when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // With all the room it needs: a string that grows leaves its old memory as it is.
        let mut text = Zeroizing::new(String::with_capacity(WORD.len() + 1 + 64 + 1));
        text.push_str(WORD);
        text.push(' ');
        for byte in self.bytes {
            text.push(DIGITS[usize::from(byte >> 4)].into());
            text.push(DIGITS[usize::from(byte & 15)].into());
        }
        text.push('\n');
        text
    }

    /// Its name, which does not tell the key.
    pub fn id(&self) -> KeyId {
        self.id
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

/// By which a target knows an initiator again: one that has another principal, or claims another identity,
/// is another; which key it uses does not matter. Never zeroes.
pub fn identity(principal: &str, claimed: &[u8; 16]) -> [u8; 16] {
    // A name has no zeroes in it, so that one ends where it seems to.
    let text = [b"thinwire initiator\0", principal.as_bytes(), b"\0", claimed].concat();
    let hash = digest::digest(&digest::SHA256, &text);
    let mut identity = [0; 16];
    identity.copy_from_slice(&hash.as_ref()[..16]);
    identity[15] |= u8::from(identity == [0; 16]);
    identity
}

/// The value of a hexadecimal digit.
fn digit(digit: u8) -> Result<u8, KeyError> {
    (digit as char).to_digit(16).map(|value| value as u8).ok_or(KeyError::Digits)
}

/// HMAC-SHA256 (RFC 2104) of `bytes` under `key`, into `out`.
pub(crate) fn hmac_sha256(key: &[u8; 32], bytes: &[u8], out: &mut [u8; 32]) {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign_to_buffer(&key, bytes, out).expect("room for the tag");
}

/// Names a key without telling it: the first eight bytes of HMAC-SHA256 of `thinwire key id` under
/// the key. Shown as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// Why a text or 32 bytes are no key. Each says what was expected, and shows nothing of what was
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// It does not begin as a key does.
    Format,
    /// Behind that there are not 64 hexadecimal digits and nothing else.
    Digits,
    /// All bytes are zero.
    Zero,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format => {
                write!(
                    f,
                    "not a key: expected one line, `{WORD}`, a space and 64 hexadecimal digits"
                )
            }
            Self::Digits => write!(
                f,
                "not a key: expected exactly 64 hexadecimal digits behind `{WORD}`, on one line"
            ),
            Self::Zero => f.write_str("not a key: all its bytes are zero; expected random ones"),
        }
    }
}

impl std::error::Error for KeyError {}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
