//! Bytes and keys: what seals a frame so that only who holds the key can make one, or read it.
//!
//! * [`Key`] is what people copy to both machines; [`KeyId`] names it without telling it.
//! * [`Greeting`] and [`greeted`] are the two ends of the handshake that makes from that key two
//!   secrets nobody else can find, not even who learns the key later ([`handshake`]).
//! * [`Seals`] is what comes of it: a [`Sealer`] and an [`Opener`], under a [`Suite`] of ciphers.
//! * [`wrap()`] and [`unwrap()`] keep the key of a volume under one that people have.
//! * [`Random`] is where ephemeral keys come from: a generator that its owner seeds.
//!
//! Part of the deterministic core: it knows nothing of frames, sessions, clocks, links or entropy.
//! The ciphers are those of AWS-LC; Noise is that of `snow`. Nothing here invents a construction.
//!
//! Secrets are overwritten when their owner is dropped. Not within reach are copies that the
//! compiler leaves on the stack, and the chaining key inside of `snow`, whose memory is only freed.
#![forbid(unsafe_code)]

pub mod handshake;
mod key;
mod keys;
mod noise;
mod random;
mod seals;
mod suite;
mod wrap;

pub use handshake::{Answered, Greeted, Greeting, NOISE_BYTES, TEXT_BYTES_MAX, greeted};
pub use key::{Key, KeyError, KeyId, identity};
pub use random::Random;
pub use seals::{Opener, Sealer, Seals, Secrets, WhichPhase};
pub use suite::{Preference, Suite, Suites};
pub use wrap::{VOLUME_KEY_BYTES, WRAPPED_BYTES, unwrap, wrap};

use std::fmt;

/// Bytes of the tag of a sealed frame, in every suite.
pub const TAG_BYTES: usize = 16;

/// What arrived was not made by who holds the key, for this place, or it was damaged on its way. It
/// says no more on purpose: there is nothing that a receiver could do about one cause and not about
/// another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forged;

impl fmt::Display for Forged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("forged: the tag does not fit the key, the place or the bytes")
    }
}

impl std::error::Error for Forged {}
