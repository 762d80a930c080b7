//! The Noise state of one end of a handshake: `snow`, with the curve and the cipher of AWS-LC, which
//! overwrites its keys, with BLAKE2s, which AWS-LC has not, and with randomness that is given to it.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use blake2::{Blake2s256, Digest};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random as NoiseRandom};
use snow::{Builder, Error, HandshakeState};
use zeroize::{Zeroize, Zeroizing};

use crate::seals::Secrets;
use crate::{Forged, Key, NOISE_BYTES, Random, TAG_BYTES};

/// Two ephemeral keys, none that stays, and the key of both ends mixed in before anything else: who
/// does not hold that can neither speak nor read, and who learns it later can read nothing of before
/// (The Noise Protocol Framework, revision 34, sections 7.5, 9 and 12).
const NAME: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

pub(crate) struct Noise(Box<HandshakeState>);

impl Noise {
    /// One draw is taken of `random`, for this end's ephemeral key.
    pub(crate) fn new(initiator: bool, key: &Key, prologue: &[u8], random: &mut Random) -> Self {
        let resolver = Resolver { seed: random.draw() };
        let params = NAME.parse().expect("a name that snow knows");
        let build = || {
            let builder = Builder::with_resolver(params, Box::new(resolver))
                .prologue(prologue)?
                .psk(0, key.bytes())?;
            if initiator { builder.build_initiator() } else { builder.build_responder() }
        };
        Self(Box::new(build().expect("all that this pattern needs is there")))
    }

    /// The next message, which is this end's to send.
    pub(crate) fn write(&mut self, text: &[u8]) -> Vec<u8> {
        let mut message = vec![0; text.len() + NOISE_BYTES];
        let written = self.0.write_message(text, &mut message).expect("our turn, and room for it");
        assert_eq!(written, message.len(), "a message is its text and NOISE_BYTES");
        message
    }

    /// The text of the next message, which is the peer's to send. After an error all is as before.
    pub(crate) fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, Forged> {
        let mut text = vec![0; message.len().checked_sub(NOISE_BYTES).ok_or(Forged)?];
        let read = self.0.read_message(message, &mut text).map_err(|_| Forged)?;
        assert_eq!(read, text.len(), "a text is its message without NOISE_BYTES");
        Ok(text)
    }

    /// What both ends have when both messages have passed.
    pub(crate) fn split(&mut self) -> Secrets {
        assert!(self.0.is_handshake_finished(), "secrets come of a whole handshake");
        let (mut to_target, mut to_initiator) = self.0.dangerously_get_raw_split();
        let secrets = Secrets::new(to_target, to_initiator);
        to_target.zeroize();
        to_initiator.zeroize();
        secrets
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        // snow leaves its copy of the key where it was.
        self.0.set_psk(0, &[0; 32]).expect("this pattern has a key there");
    }
}

/// What snow asks for its primitives.
struct Resolver {
    seed: Zeroizing<[u8; 32]>,
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn NoiseRandom>> {
        Some(Box::new(Random::new(*self.seed)))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        (*choice == DHChoice::Curve25519).then(|| Box::<Curve>::default() as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        (*choice == HashChoice::Blake2s).then(|| Box::<Blake2s>::default() as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        (*choice == CipherChoice::ChaChaPoly)
            .then(|| Box::<ChaChaPoly>::default() as Box<dyn Cipher>)
    }
}

impl NoiseRandom for Random {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        self.fill(out);
        Ok(())
    }
}

/// X25519 (RFC 7748). The private key's memory is the library's, which overwrites it.
#[derive(Default)]
struct Curve {
    private: Option<PrivateKey>,
    public: [u8; 32],
}

impl Dh for Curve {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, private: &[u8]) {
        let private = PrivateKey::from_private_key(&X25519, private).expect("any 32 bytes do");
        let public = private.compute_public_key().expect("any private key has a public one");
        self.public.copy_from_slice(public.as_ref());
        self.private = Some(private);
    }

    fn generate(&mut self, random: &mut dyn NoiseRandom) -> Result<(), Error> {
        let mut private = Zeroizing::new([0; 32]);
        random.try_fill_bytes(&mut *private)?;
        self.set(&*private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    /// Nobody asks: only who makes keys that stay would.
    fn privkey(&self) -> &[u8] {
        &[]
    }

    /// Fails for public keys of small order, of which nothing secret comes (RFC 7748, section 6.1).
    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = self.private.as_ref().ok_or(Error::Dh)?;
        let public = UnparsedPublicKey::new(&X25519, public.get(..32).ok_or(Error::Dh)?);
        agree(private, public, Error::Dh, |shared| {
            out.get_mut(..32).ok_or(Error::Dh)?.copy_from_slice(shared);
            Ok(())
        })
    }
}

/// BLAKE2s (RFC 7693).
#[derive(Default)]
struct Blake2s(Blake2s256);

impl Hash for Blake2s {
    fn name(&self) -> &'static str {
        "BLAKE2s"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        Digest::reset(&mut self.0);
    }

    fn input(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(&self.0.finalize_reset());
    }
}

/// ChaCha20 and Poly1305 as Noise uses it (section 12.3): 32 bits of zeroes and the counter,
/// little-endian, for the nonce. The key's memory is the library's, which overwrites it.
#[derive(Default)]
struct ChaChaPoly(Option<LessSafeKey>);

impl ChaChaPoly {
    fn key(&self) -> &LessSafeKey {
        self.0.as_ref().expect("snow sets the key before it uses it")
    }

    fn nonce(counter: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counter.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Cipher for ChaChaPoly {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; 32]) {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("any 32 bytes do");
        self.0 = Some(LessSafeKey::new(key));
    }

    fn encrypt(&self, counter: u64, open: &[u8], text: &[u8], out: &mut [u8]) -> usize {
        let (bytes, rest) = out.split_at_mut(text.len());
        bytes.copy_from_slice(text);
        let tag = self
            .key()
            .seal_in_place_separate_tag(Self::nonce(counter), Aad::from(open), bytes)
            .expect("a message is shorter than 256 GiB");
        rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
        text.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        counter: u64,
        open: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let length = sealed.len().checked_sub(TAG_BYTES).ok_or(Error::Decrypt)?;
        let (bytes, tag) = sealed.split_at(length);
        let out = out.get_mut(..length).ok_or(Error::Decrypt)?;
        self.key()
            .open_separate_gather(Self::nonce(counter), Aad::from(open), bytes, tag, out)
            .map_err(|_| Error::Decrypt)?;
        Ok(length)
    }
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
