//! Suites: which cipher seals the frames of a session, and how two ends come to one.

use std::fmt;

use aws_lc_rs::aead;

/// What seals the frames of a session. The numbers are those of the `suite` field of the frame header
/// (`docs/protocol.md`, "Frame header"); 0, a checksum without a key, is none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-128 in Galois counter mode (NIST SP 800-38D).
    Aes128Gcm = 1,
    /// AES-256 in Galois counter mode.
    Aes256Gcm = 2,
    /// ChaCha20 and Poly1305 (RFC 8439): fast where the processor has no instructions for AES.
    ChaCha20Poly1305 = 3,
    /// The authentication of AES-128-GCM alone: the bytes travel in clear.
    Aes128Gmac = 4,
}

impl Suite {
    /// All of them, by number.
    pub const ALL: [Self; 4] =
        [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305, Self::Aes128Gmac];

    /// The suite of a number on the wire, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.number() == number)
    }

    /// Its number on the wire.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Its name, as people are shown it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::Aes128Gmac => "aes-128-gmac",
        }
    }

    /// Whether it hides what it seals; if not, it only shows that nobody has changed it.
    pub fn hides(self) -> bool {
        self != Self::Aes128Gmac
    }

    pub(crate) fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm | Self::Aes128Gmac => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of suites as it stands on the wire: bit *n* - 1 for suite *n*. Bits of suites that are not
/// known here mean nothing, so that a later version may offer more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suites(pub u8);

impl Suites {
    /// Those that hide what they seal.
    pub const ENCRYPTED: Self = Self(0b0111);
    /// Those that only authenticate.
    pub const AUTHENTICATED: Self = Self(0b1000);

    /// What an end offers: either all that hide, or all that only authenticate. Never both: who asks
    /// for one is not to be talked into the other.
    pub fn here(authenticate_only: bool) -> Self {
        if authenticate_only { Self::AUTHENTICATED } else { Self::ENCRYPTED }
    }

    /// Whether it holds this suite.
    pub fn has(self, suite: Suite) -> bool {
        self.0 & 1 << (suite.number() - 1) != 0
    }

    /// The suite that the chooser likes best of those that both have; none if they share none.
    pub fn choose(self, theirs: Self, preference: Preference) -> Option<Suite> {
        let both = Self(self.0 & theirs.0);
        preference.order().into_iter().find(|suite| both.has(*suite))
    }
}

/// Which cipher the chooser likes best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    /// AES, with 128 bits before 256: the faster of two that nobody can break.
    Aes,
    /// ChaCha20: without instructions for AES it is several times as fast.
    ChaCha,
}

impl Preference {
    /// What is fast on this processor. A simulator, whose runs must come back on any other, gives its
    /// own.
    pub fn of_this_processor() -> Self {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let fast = std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let fast = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
        let fast = false;
        if fast { Self::Aes } else { Self::ChaCha }
    }

    /// All suites, the best first. What hides comes before what does not, should anybody have both.
    fn order(self) -> [Suite; 4] {
        use Suite::{Aes128Gcm, Aes128Gmac, Aes256Gcm, ChaCha20Poly1305};
        match self {
            Self::Aes => [Aes128Gcm, Aes256Gcm, ChaCha20Poly1305, Aes128Gmac],
            Self::ChaCha => [ChaCha20Poly1305, Aes128Gcm, Aes256Gcm, Aes128Gmac],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_suites_fit_each_other() {
        for (at, suite) in Suite::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(suite.number()), at + 1);
        }
        for number in 0..=255 {
            let expected = (1..=4).contains(&number).then_some(number);
            assert_eq!(Suite::from_number(number).map(Suite::number), expected);
        }
        let names = Suite::ALL.map(|suite| suite.to_string());
        assert_eq!(names, ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305", "aes-128-gmac"]);
    }

    #[test]
    fn the_sets_hold_what_their_names_say() {
        for suite in Suite::ALL {
            assert_eq!(Suites::ENCRYPTED.has(suite), suite.hides(), "{suite}");
            assert_eq!(Suites::AUTHENTICATED.has(suite), !suite.hides(), "{suite}");
        }
        assert_eq!(Suites::here(false), Suites::ENCRYPTED);
        assert_eq!(Suites::here(true), Suites::AUTHENTICATED);
    }

    #[test]
    fn the_chooser_takes_what_it_likes_best_of_what_both_have() {
        use Preference::{Aes, ChaCha};
        let choose = |theirs, preference| Suites::ENCRYPTED.choose(Suites(theirs), preference);
        for (theirs, aes, chacha) in [
            (0b0000, None, None),
            (0b0001, Some(Suite::Aes128Gcm), Some(Suite::Aes128Gcm)),
            (0b0010, Some(Suite::Aes256Gcm), Some(Suite::Aes256Gcm)),
            (0b0011, Some(Suite::Aes128Gcm), Some(Suite::Aes128Gcm)),
            (0b0100, Some(Suite::ChaCha20Poly1305), Some(Suite::ChaCha20Poly1305)),
            (0b0110, Some(Suite::Aes256Gcm), Some(Suite::ChaCha20Poly1305)),
            (0b0111, Some(Suite::Aes128Gcm), Some(Suite::ChaCha20Poly1305)),
            (0b1000, None, None),
            (0b1111, Some(Suite::Aes128Gcm), Some(Suite::ChaCha20Poly1305)),
            (0b1111_1000, None, None),
        ] {
            assert_eq!(choose(theirs, Aes), aes, "{theirs:04b}");
            assert_eq!(choose(theirs, ChaCha), chacha, "{theirs:04b}");
        }
    }

    #[test]
    fn who_only_authenticates_and_who_hides_share_nothing() {
        for preference in [Preference::Aes, Preference::ChaCha, Preference::of_this_processor()] {
            let choose = |a: Suites, b| a.choose(b, preference);
            assert_eq!(choose(Suites::ENCRYPTED, Suites::AUTHENTICATED), None);
            assert_eq!(choose(Suites::AUTHENTICATED, Suites::ENCRYPTED), None);
            let authenticated = choose(Suites::AUTHENTICATED, Suites::AUTHENTICATED);
            assert_eq!(authenticated, Some(Suite::Aes128Gmac));
        }
    }
}
