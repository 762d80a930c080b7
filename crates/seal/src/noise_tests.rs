//! The handshake against a published vector: the one of this name among the vectors of the Haskell
//! library cacophony, which implementations of Noise compare themselves by.

use super::*;

const PROLOGUE: &str = "4a6f686e2047616c74";
const KEY: &str = "54686973206973206d7920417573747269616e20706572737065637469766521";
const INITIATOR: &str = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
const TARGET: &str = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";

const TEXT_1: &str = "4c756477696720766f6e204d69736573";
const MESSAGE_1: &str = "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944\
                         fda936bec35a8adfdff198386f7d5475880897edaaf7495314c99095a2e4d66a";
const TEXT_2: &str = "4d757272617920526f746862617264";
const MESSAGE_2: &str = "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088434c\
                         d2a371993ba41ea11448024fca32766b169183c9e691a7a433279da7e729";

/// What each side sends first under the secrets, with the first nonce and nothing open.
const TEXT_3: &str = "462e20412e20486179656b";
const MESSAGE_3: &str = "bc44da303ae0beb08075fc4eb4e58235c67c2d1f53a4f2fff0bca7";
const TEXT_4: &str = "4361726c204d656e676572";
const MESSAGE_4: &str = "416d1af83e9fa6966ce4e871156b131aa9bd7e9a1d6f8794f4872a";

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// As [`Noise::new`] makes it, but with a given ephemeral key.
fn end(initiator: bool, ephemeral: &str) -> Noise {
    let resolver = Resolver { seed: Zeroizing::new([0; 32]) };
    let (prologue, ephemeral) = (unhex(PROLOGUE), unhex(ephemeral));
    let key = unhex(KEY).try_into().unwrap();
    let builder = Builder::with_resolver(NAME.parse().unwrap(), Box::new(resolver))
        .prologue(&prologue)
        .and_then(|builder| builder.psk(0, &key))
        .unwrap()
        .fixed_ephemeral_key_for_testing_only(&ephemeral);
    let built = if initiator { builder.build_initiator() } else { builder.build_responder() };
    Noise(Box::new(built.unwrap()))
}

#[test]
fn the_messages_and_the_secrets_are_those_of_the_vector() {
    let (mut initiator, mut target) = (end(true, INITIATOR), end(false, TARGET));
    assert_eq!(initiator.write(&unhex(TEXT_1)), unhex(MESSAGE_1));
    assert_eq!(target.read(&unhex(MESSAGE_1)).unwrap(), unhex(TEXT_1));
    assert_eq!(target.write(&unhex(TEXT_2)), unhex(MESSAGE_2));
    assert_eq!(initiator.read(&unhex(MESSAGE_2)).unwrap(), unhex(TEXT_2));
    for end in [&mut initiator, &mut target] {
        let (to_target, to_initiator) = end.0.dangerously_get_raw_split();
        for (secret, text, message) in
            [(to_target, TEXT_3, MESSAGE_3), (to_initiator, TEXT_4, MESSAGE_4)]
        {
            let mut cipher = ChaChaPoly::default();
            cipher.set(&secret);
            let mut sealed = vec![0; message.len() / 2];
            assert_eq!(cipher.encrypt(0, &[], &unhex(text), &mut sealed), sealed.len());
            assert_eq!(sealed, unhex(message));
        }
    }
}

/// Of them comes a secret that everybody knows (RFC 7748, section 6.1).
#[test]
fn public_keys_of_small_order_are_refused() {
    let mut curve = Curve::default();
    assert_eq!(curve.dh(&[9; 32], &mut [0; 56]), Err(Error::Dh), "without a private key");
    curve.set(&[1; 32]);
    for public in [[0; 32], std::array::from_fn(|at| u8::from(at == 0))] {
        assert_eq!(curve.dh(&public, &mut [0; 56]), Err(Error::Dh));
    }
    assert_eq!(curve.dh(&[9; 31], &mut [0; 56]), Err(Error::Dh), "too short");
    assert_eq!(curve.dh(&[9; 32], &mut [0; 56]), Ok(()));
}

#[test]
fn what_snow_does_not_need_of_us_it_does_not_get() {
    let resolver = Resolver { seed: Zeroizing::new([0; 32]) };
    assert!(resolver.resolve_dh(&DHChoice::Curve448).is_none());
    assert!(resolver.resolve_cipher(&CipherChoice::AESGCM).is_none());
    assert!(resolver.resolve_hash(&HashChoice::SHA256).is_none());
}
