//! The keys of one direction in one phase, the secrets they come from, and the cipher under them.

use std::cell::RefCell;

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use zeroize::{Zeroize, Zeroizing};

use crate::{Forged, Suite, TAG_BYTES};

/// The secret of one direction in one phase, from which its keys and the next phase's secret are
/// made.
pub(crate) struct Chain {
    suite: Suite,
    secret: Zeroizing<[u8; 32]>,
    phase: u64,
}

impl Chain {
    /// The first, phase 0.
    pub(crate) fn new(suite: Suite, secret: &[u8; 32]) -> Self {
        Self { suite, secret: Zeroizing::new(*secret), phase: 0 }
    }

    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    /// As it stands on the wire: the phase's low byte.
    pub(crate) fn phase(&self) -> u8 {
        self.phase as u8
    }

    /// The next phase. What comes behind it cannot lead back here, once this is dropped.
    pub(crate) fn next(&self) -> Self {
        let mut secret = Zeroizing::new([0; 32]);
        expand(&self.secret, &[b"thinwire next"], &mut *secret);
        Self { suite: self.suite, secret, phase: self.phase + 1 }
    }

    /// The keys of this phase. Suite and phase are part of the label: the same bytes are never the
    /// key of two ciphers.
    pub(crate) fn keys(&self) -> Keys {
        let suite = [self.suite.number()];
        let phase = self.phase.to_be_bytes();
        let algorithm = self.suite.algorithm();
        let mut key = Zeroizing::new([0; 32]);
        let key = &mut key[..algorithm.key_len()];
        expand(&self.secret, &[b"thinwire key", &suite, &phase], key);
        let key = UnboundKey::new(algorithm, key).expect("a key of the algorithm's length");
        let mut iv = [0; 12];
        expand(&self.secret, &[b"thinwire iv", &suite, &phase], &mut iv);
        Keys { suite: self.suite, cipher: LessSafeKey::new(key), iv }
    }
}

/// HKDF-Expand of RFC 5869 with SHA-256. The secret is as good as random, so there is no extraction.
fn expand(secret: &[u8; 32], info: &[&[u8]], out: &mut [u8]) {
    struct Bytes(usize);
    impl hkdf::KeyType for Bytes {
        fn len(&self) -> usize {
            self.0
        }
    }
    hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret)
        .expand(info, Bytes(out.len()))
        .and_then(|expanded| expanded.fill(out))
        .expect("not more than 255 hashes");
}

/// Where a suite that hides nothing lays out what it authenticates. Grows to the longest frame and
/// stays: then nothing allocates.
pub(crate) type Scratch = RefCell<Vec<u8>>;

/// Key and IV of one direction in one phase.
pub(crate) struct Keys {
    suite: Suite,
    /// Its memory is the cipher library's, which overwrites it before it gives it back.
    cipher: LessSafeKey,
    iv: [u8; 12],
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

impl Keys {
    /// The IV with the path in byte 3 and the packet number, big-endian, in bytes 4 to 12, each by
    /// exclusive or: as in RFC 9001, section 5.3, and different for each frame of a direction and
    /// phase.
    fn nonce(&self, path: u8, number: u64) -> Nonce {
        let mut nonce = self.iv;
        nonce[3] ^= path;
        for (byte, of_number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    pub(crate) fn seal(
        &self,
        (path, number): (u8, u64),
        open: &[u8],
        bytes: &mut [u8],
        scratch: &Scratch,
    ) -> [u8; TAG_BYTES] {
        let nonce = self.nonce(path, number);
        let sealed = if self.suite.hides() {
            self.cipher.seal_in_place_separate_tag(nonce, Aad::from(open), bytes)
        } else {
            let all = &*laid_out(scratch, open, bytes);
            self.cipher.seal_in_place_separate_tag(nonce, Aad::from(all), &mut [])
        };
        let tag = sealed.expect("a frame is shorter than 64 GiB, the bound of all suites");
        tag.as_ref().try_into().expect("the tags of all suites are of 16 bytes")
    }

    /// On error `bytes` are zeroes: nobody shall use what was not shown to be true.
    pub(crate) fn open_in_place(
        &self,
        (path, number): (u8, u64),
        open: &[u8],
        tag: &[u8; TAG_BYTES],
        bytes: &mut [u8],
        scratch: &Scratch,
    ) -> Result<(), Forged> {
        let nonce = self.nonce(path, number);
        let opened = if self.suite.hides() {
            self.cipher.open_in_place_separate_tag(nonce, Aad::from(open), tag, bytes).map(drop)
        } else {
            let all = &*laid_out(scratch, open, bytes);
            self.cipher.open_separate_gather(nonce, Aad::from(all), &[], tag, &mut [])
        };
        opened.map_err(|_| {
            bytes.fill(0);
            Forged
        })
    }

    /// The same from one place to another of the same length.
    pub(crate) fn open(
        &self,
        (path, number): (u8, u64),
        open: &[u8],
        tag: &[u8; TAG_BYTES],
        cipher: &[u8],
        out: &mut [u8],
        scratch: &Scratch,
    ) -> Result<(), Forged> {
        let nonce = self.nonce(path, number);
        let opened = if self.suite.hides() {
            self.cipher.open_separate_gather(nonce, Aad::from(open), cipher, tag, out)
        } else {
            let all = &*laid_out(scratch, open, cipher);
            self.cipher.open_separate_gather(nonce, Aad::from(all), &[], tag, &mut [])
        };
        match opened {
            Ok(()) if self.suite.hides() => Ok(()),
            Ok(()) => {
                out.copy_from_slice(cipher);
                Ok(())
            }
            Err(_) => {
                out.fill(0);
                Err(Forged)
            }
        }
    }
}

impl Keys {
    /// The tag alone, of a suite that leaves bytes as they are. They may lie in parts.
    pub(crate) fn tag<'a>(
        &self,
        (path, number): (u8, u64),
        open: &[u8],
        parts: impl Iterator<Item = &'a [u8]>,
        scratch: &Scratch,
    ) -> [u8; TAG_BYTES] {
        assert!(!self.suite.hides(), "what a suite hides must be given to it");
        let mut all = laid_out(scratch, open, &[]);
        parts.for_each(|part| all.extend_from_slice(part));
        let nonce = self.nonce(path, number);
        let sealed = self.cipher.seal_in_place_separate_tag(nonce, Aad::from(&*all), &mut []);
        let tag = sealed.expect("a frame is shorter than 64 GiB, the bound of all suites");
        tag.as_ref().try_into().expect("the tags of all suites are of 16 bytes")
    }

    /// Whether a tag is what [`Keys::tag`] gives.
    pub(crate) fn check<'a>(
        &self,
        (path, number): (u8, u64),
        open: &[u8],
        tag: &[u8; TAG_BYTES],
        parts: impl Iterator<Item = &'a [u8]>,
        scratch: &Scratch,
    ) -> Result<(), Forged> {
        assert!(!self.suite.hides(), "what a suite hides must be opened");
        let mut all = laid_out(scratch, open, &[]);
        parts.for_each(|part| all.extend_from_slice(part));
        let nonce = self.nonce(path, number);
        let opened = self.cipher.open_separate_gather(nonce, Aad::from(&*all), &[], tag, &mut []);
        opened.map_err(|_| Forged)
    }
}

/// What is open and what is not one behind the other. That is one to one, as what is open has the
/// same length in all frames.
fn laid_out<'a>(scratch: &'a Scratch, open: &[u8], bytes: &[u8]) -> std::cell::RefMut<'a, Vec<u8>> {
    let mut all = scratch.borrow_mut();
    all.clear();
    all.extend_from_slice(open);
    all.extend_from_slice(bytes);
    all
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
