//! Wrapping: the key of a volume's blocks, kept where everybody may read it, under a key that people have.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::key::hmac_sha256;
use crate::{Forged, Key, TAG_BYTES};

/// What is authenticated with the user's key to make the one that wraps: whoever seals frames with that key uses another.
const WRAP_TEXT: &[u8] = b"thinwire volume key";

/// Bytes of the key of a volume's blocks: two keys of AES-256, as XTS takes them.
pub const VOLUME_KEY_BYTES: usize = 64;

/// Bytes of it as it is wrapped.
pub const WRAPPED_BYTES: usize = VOLUME_KEY_BYTES + TAG_BYTES;

/// Encrypts and authenticates a volume's key, with AES-256-GCM, together with `context`, which whoever unwraps it has to know. The nonce is
/// random, and used once.
pub fn wrap(
    key: &Key,
    nonce: [u8; 12],
    context: &[u8],
    volume_key: &[u8; VOLUME_KEY_BYTES],
) -> [u8; WRAPPED_BYTES] {
    let mut bytes = Zeroizing::new(*volume_key);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = wrapping(key).seal_in_place_separate_tag(nonce, Aad::from(context), &mut *bytes);
    let tag = tag.expect("64 bytes are not too many");
    let mut wrapped = [0; WRAPPED_BYTES];
    wrapped[..VOLUME_KEY_BYTES].copy_from_slice(&*bytes);
    wrapped[VOLUME_KEY_BYTES..].copy_from_slice(tag.as_ref());
    wrapped
}

/// The other way round.
///
/// # Errors
/// It was wrapped by another key, or with another nonce or context, or was changed since.
pub fn unwrap(
    key: &Key,
    nonce: [u8; 12],
    context: &[u8],
    wrapped: &[u8; WRAPPED_BYTES],
) -> Result<Zeroizing<[u8; VOLUME_KEY_BYTES]>, Forged> {
    let mut bytes = Zeroizing::new(*wrapped);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = wrapping(key).open_in_place(nonce, Aad::from(context), &mut *bytes);
    let opened = opened.map_err(|_| Forged)?;
    let mut volume_key = Zeroizing::new([0; VOLUME_KEY_BYTES]);
    volume_key.copy_from_slice(opened);
    Ok(volume_key)
}

fn wrapping(key: &Key) -> LessSafeKey {
    let mut bytes = Zeroizing::new([0; 32]);
    hmac_sha256(key.bytes(), WRAP_TEXT, &mut bytes);
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*bytes).expect("32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_of_it_unwraps() {
        let key = |byte| Key::from_bytes([byte; 32]).unwrap();
        let (volume_key, nonce) = ([7; VOLUME_KEY_BYTES], [3; 12]);
        let wrapped = wrap(&key(1), nonce, b"whole", &volume_key);
        assert_eq!(unwrap(&key(1), nonce, b"whole", &wrapped).map(|key| *key), Ok(volume_key));
        assert!(!wrapped.windows(8).any(|bytes| bytes == [7; 8]), "it can be read");
        let opens = |byte, nonce, context: &[u8], wrapped: &_| {
            unwrap(&key(byte), nonce, context, wrapped).is_ok()
        };
        assert!(!opens(2, nonce, b"whole", &wrapped), "another key");
        assert!(!opens(1, [4; 12], b"whole", &wrapped), "another nonce");
        assert!(!opens(1, nonce, b"other", &wrapped), "another context");
        for at in 0..WRAPPED_BYTES {
            let mut changed = wrapped;
            changed[at] ^= 1;
            assert!(!opens(1, nonce, b"whole", &changed), "byte {at} was changed");
        }
    }

    /// Made with another program: HMAC-SHA256 of the text under the key, then AES-256-GCM.
    #[test]
    fn it_is_what_the_document_says() {
        let key = Key::from_bytes([0x11; 32]).unwrap();
        let wrapped = wrap(&key, [0x22; 12], &[0x33; 32], &[0x44; VOLUME_KEY_BYTES]);
        let hex: String = wrapped.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, KNOWN);
    }

    const KNOWN: &str = "664cbbdd57c83a602ea38baf00e8bdbda8f78a5f77f184cdcb66f3d295dccc629d073f231ae04f63619cd97025d1f7\
        09cc69880633dc2994c7a3d72a701509782a43bd9cdae8414bb5a1eab87498cde2";
}
