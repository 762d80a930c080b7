//! [`CryptState`]: what the label of an encrypted volume says besides (`docs/format.md`, "An encrypted volume").

use std::fmt;

const VERSION: u8 = 1;
const AES_256_XTS: u8 = 1;
/// What is sealed together with the key of the blocks, before the UUID of the whole.
const HEAD_BYTES: usize = 16;
const STATE_BYTES: usize = HEAD_BYTES + 16 + CRYPT_SEALED_BYTES;

/// The key of the blocks, as it is sealed: 64 bytes, and a tag of 16.
pub const CRYPT_SEALED_BYTES: usize = 80;

/// What the label says of how the blocks are encrypted. It holds their key, wrapped by the key that a user has: so that can be changed, and
/// no block with it. Whoever makes and opens it wraps and unwraps; here it is bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct CryptState {
    /// Bytes that are encrypted as one: 512 or 4096.
    block_bytes: u16,
    /// Names the key that wraps, without telling it: what a key is compared with before anything else.
    pub key_id: [u8; 8],
    /// What that key was used with, once.
    pub nonce: [u8; 12],
    /// The key of the blocks, encrypted and authenticated, together with [`CryptState::context`].
    pub sealed: [u8; CRYPT_SEALED_BYTES],
}

impl CryptState {
    /// Of blocks of that many bytes.
    ///
    /// # Panics
    /// If that is neither 512 nor 4096: see [`Crypt::block_bytes`](super::Crypt::block_bytes).
    pub fn new(
        block_bytes: u32,
        key_id: [u8; 8],
        nonce: [u8; 12],
        sealed: [u8; CRYPT_SEALED_BYTES],
    ) -> Self {
        assert!(matches!(block_bytes, 512 | 4096), "blocks of {block_bytes} bytes");
        CryptState { block_bytes: block_bytes as u16, key_id, nonce, sealed }
    }

    /// Bytes that are encrypted as one, by one tweak.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes.into()
    }

    /// What is authenticated with the key of the blocks, for the whole of that UUID: so that neither stands in the label of another volume,
    /// nor is read with other blocks.
    pub fn context(block_bytes: u32, key_id: [u8; 8], whole: &[u8; 16]) -> [u8; 32] {
        let mut context = [0; 32];
        context[..HEAD_BYTES].copy_from_slice(&head(block_bytes as u16, key_id));
        context[HEAD_BYTES..].copy_from_slice(whole);
        context
    }

    /// It as bytes for a label.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = head(self.block_bytes, self.key_id).to_vec();
        out.extend(self.nonce);
        out.extend([0; 4]);
        out.extend(self.sealed);
        out
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// They say what cannot be, or are of another version: nothing of them was believed.
    pub fn decode(bytes: &[u8]) -> Result<Self, CryptFault> {
        let fault = |why| Err(CryptFault { why });
        if bytes.first().is_some_and(|version| *version != VERSION) {
            return fault("is of another version: use the program that wrote it");
        }
        let Ok(state) = <&[u8; STATE_BYTES]>::try_from(bytes) else {
            return fault("has another length");
        };
        if state[1] != AES_256_XTS {
            return fault("names a cipher that this program does not know");
        }
        let block_bytes = u16::from_le_bytes([state[2], state[3]]);
        if !matches!(block_bytes, 512 | 4096) {
            return fault("has blocks of neither 512 nor 4096 bytes");
        }
        let (mut key_id, mut nonce, mut sealed) = ([0; 8], [0; 12], [0; CRYPT_SEALED_BYTES]);
        key_id.copy_from_slice(&state[8..HEAD_BYTES]);
        nonce.copy_from_slice(&state[HEAD_BYTES..HEAD_BYTES + 12]);
        sealed.copy_from_slice(&state[HEAD_BYTES + 16..]);
        let state = CryptState { block_bytes, key_id, nonce, sealed };
        match state.encode() == bytes {
            true => Ok(state),
            false => fault("has bytes where zeroes belong"),
        }
    }
}

fn head(block_bytes: u16, key_id: [u8; 8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    (head[0], head[1]) = (VERSION, AES_256_XTS);
    head[2..4].copy_from_slice(&block_bytes.to_le_bytes());
    head[8..].copy_from_slice(&key_id);
    head
}

/// Tells no key, not even one that is wrapped.
impl fmt::Debug for CryptState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key_id = u64::from_be_bytes(self.key_id);
        write!(f, "CryptState({} bytes, key {key_id:016x})", self.block_bytes)
    }
}

/// Why bytes are no state of an encrypted volume. Shown, it is a sentence whose subject is the label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CryptFault {
    why: &'static str,
}

impl fmt::Display for CryptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "has a state of an encrypted volume that cannot be gone by: it {}", self.why)
    }
}

impl std::error::Error for CryptFault {}
