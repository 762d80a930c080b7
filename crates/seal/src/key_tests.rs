//! Keys: their text, their id, and what is not one.

use super::*;

/// Id computed with Python's `hmac` and `hashlib`.
const TEXT: &str =
    "thinwire-key-1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
const ID: &str = "683b04d5206c082b";

fn key() -> Key {
    Key::from_bytes(std::array::from_fn(|i| i as u8)).unwrap()
}

#[test]
fn the_text_and_the_id_are_those_of_another_implementation() {
    assert_eq!(key().to_text().as_str(), TEXT);
    assert_eq!(key().id().to_string(), ID);
}

#[test]
fn the_text_is_read_back_in_either_case_and_with_any_end_of_line() {
    let (line, upper) = (TEXT.trim_end(), TEXT.to_uppercase());
    let upper = upper.replace("THINWIRE-KEY", "thinwire-key");
    for text in [TEXT, line, &upper, &format!("{line}\r\n")] {
        let read = Key::parse(text).unwrap();
        assert_eq!((read.bytes(), read.id()), (key().bytes(), key().id()), "{text:?}");
    }
}

#[test]
fn what_is_not_a_key_is_refused_by_what_it_lacks() {
    let digits = TEXT.trim_end().strip_prefix("thinwire-key-1 ").unwrap();
    let with = |word: &str, digits: &str| format!("{word}{digits}");
    for text in [
        String::new(),
        digits.to_string(),
        with("thinwire-key-2 ", digits),
        with("thinwire-key-1", digits),
        with("thinwire-key-1\t", digits),
        with(" thinwire-key-1 ", digits),
        with("THINWIRE-KEY-1 ", digits),
        "# a comment\n".to_string() + TEXT,
    ] {
        assert_eq!(Key::parse(&text).unwrap_err(), KeyError::Format, "{text:?}");
    }
    for text in [
        with("thinwire-key-1 ", ""),
        with("thinwire-key-1 ", &digits[1..]),
        with("thinwire-key-1  ", digits),
        with("thinwire-key-1 ", digits) + "0",
        with("thinwire-key-1 ", digits) + " ",
        with("thinwire-key-1 ", digits) + "\n\n",
        TEXT.to_string() + TEXT,
        with("thinwire-key-1 ", &digits.replace('f', "g")),
        with("thinwire-key-1 ", &digits.replace("0f", "+f")),
        with("thinwire-key-1 ", &digits.replace("0f", "é")),
    ] {
        assert_eq!(Key::parse(&text).unwrap_err(), KeyError::Digits, "{text:?}");
    }
    let zeroes = with("thinwire-key-1 ", &"0".repeat(64));
    assert_eq!(Key::parse(&zeroes).unwrap_err(), KeyError::Zero);
    assert_eq!(Key::from_bytes([0; 32]).unwrap_err(), KeyError::Zero);
}

#[test]
fn a_key_of_one_bit_is_one_and_every_bit_makes_another_id() {
    let ids: std::collections::BTreeSet<KeyId> = (0..256)
        .map(|bit| {
            let mut bytes = [0; 32];
            bytes[bit / 8] = 1 << (bit % 8);
            Key::from_bytes(bytes).unwrap().id()
        })
        .collect();
    assert_eq!(ids.len(), 256);
}

#[test]
fn nothing_that_is_printed_tells_the_key() {
    assert_eq!(format!("{:?}", key()), format!("Key({ID})"));
    assert_eq!(format!("{:?}", key().id()), format!("KeyId({ID})"));
    for error in [KeyError::Format, KeyError::Digits, KeyError::Zero] {
        assert!(error.to_string().contains("expected"), "{error}");
    }
}

#[test]
fn wiping_leaves_no_byte() {
    let mut key = key();
    key.zeroize();
    assert_eq!(*key.bytes(), [0; 32]);
}

#[test]
fn an_identity_is_of_a_principal_and_what_it_claims() {
    let claimed = [7; 16];
    let alice = identity("alice", &claimed);
    assert_eq!(alice, identity("alice", &claimed));
    assert_ne!(alice, claimed);
    assert_ne!(alice, identity("alicia", &claimed));
    assert_ne!(alice, identity("alice", &[8; 16]));
    assert_ne!(identity("", &claimed), identity("\0", &claimed));
}
