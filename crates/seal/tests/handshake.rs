//! Two ends that hold one key come to the same secrets; nobody else comes to anything.

use thinwire_seal::{
    Answered, Forged, Greeting, Key, NOISE_BYTES, Random, Seals, Suite, TEXT_BYTES_MAX, WhichPhase,
    greeted,
};

const PROLOGUE: &[u8] = b"thinwire, and what both ends know";
const HELLO: &[u8] = b"may I?";
const WELCOME: &[u8] = b"with pleasure";

fn key() -> Key {
    Key::from_bytes([5; 32]).unwrap()
}

fn greeting(seed: u8) -> Greeting {
    Greeting::new(&key(), PROLOGUE, HELLO, &mut Random::new([seed; 32]))
}

fn answer(greeting: &Greeting, seed: u8, suite: Suite) -> (Vec<u8>, Seals) {
    let random = &mut Random::new([seed; 32]);
    greeted(&key(), PROLOGUE, greeting.bytes(), random).unwrap().answer(WELCOME, suite)
}

/// Whether what `from` seals opens at `to`.
fn opens(from: &Seals, to: &Seals) -> bool {
    let (mut bytes, open) = (*b"some bytes", [1; 32]);
    let tag = from.sealer.seal(0, 1, &open, &mut bytes);
    let opened = to.opener.open_in_place(0, 0, 1, &open, &tag, &mut bytes);
    opened == Ok(WhichPhase::Current) && &bytes == b"some bytes"
}

#[test]
fn both_texts_arrive_and_both_ends_have_the_same_secrets() {
    for suite in Suite::ALL {
        let mut initiator = greeting(1);
        assert_eq!(initiator.bytes().len(), HELLO.len() + NOISE_BYTES);
        let target = greeted(&key(), PROLOGUE, initiator.bytes(), &mut Random::new([2; 32]));
        let target = target.unwrap();
        assert_eq!(target.text(), HELLO);
        let (answer, of_target) = target.answer(WELCOME, suite);
        assert_eq!(answer.len(), WELCOME.len() + NOISE_BYTES);
        let answered = initiator.answered(&answer).unwrap();
        assert_eq!(answered.text, WELCOME);
        let of_initiator = answered.seals(suite);
        assert!(opens(&of_initiator, &of_target) && opens(&of_target, &of_initiator), "{suite}");
        for other in Suite::ALL.into_iter().filter(|other| *other != suite) {
            assert!(!opens(&answered.seals(other), &of_target), "{suite} {other}");
        }
    }
}

#[test]
fn a_refusal_arrives_as_an_answer_does() {
    let mut initiator = greeting(1);
    let target = greeted(&key(), PROLOGUE, initiator.bytes(), &mut Random::new([2; 32]));
    let refusal = target.unwrap().refusal(b"no");
    assert_eq!(refusal.len(), 2 + NOISE_BYTES);
    assert_eq!(initiator.answered(&refusal).unwrap().text, b"no");
}

#[test]
fn texts_of_any_length_arrive() {
    for length in [0, 1, 1000, TEXT_BYTES_MAX] {
        let text: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let mut initiator = Greeting::new(&key(), &[], &text, &mut Random::new([1; 32]));
        let target = greeted(&key(), &[], initiator.bytes(), &mut Random::new([2; 32])).unwrap();
        assert_eq!(target.text(), text);
        assert_eq!(initiator.answered(&target.refusal(&text)).unwrap().text, text);
    }
}

#[test]
#[should_panic(expected = "a text of 65488 bytes")]
fn a_text_that_is_too_long_is_a_fault_of_the_caller() {
    let _ = Greeting::new(&key(), &[], &[0; TEXT_BYTES_MAX + 1], &mut Random::new([1; 32]));
}

#[test]
fn the_same_randomness_gives_the_same_bytes_and_other_gives_others() {
    let (first, second) = (greeting(1), greeting(1));
    assert_eq!(first.bytes(), second.bytes());
    assert_eq!(answer(&first, 2, Suite::Aes128Gcm).0, answer(&second, 2, Suite::Aes128Gcm).0);

    assert_ne!(first.bytes()[..32], greeting(2).bytes()[..32], "the ephemeral key");
    assert_ne!(first.bytes()[32..], greeting(2).bytes()[32..]);
    let other = answer(&first, 3, Suite::Aes128Gcm).0;
    assert_ne!(answer(&first, 2, Suite::Aes128Gcm).0[..32], other[..32]);

    let random = &mut Random::new([1; 32]);
    let one = Greeting::new(&key(), PROLOGUE, HELLO, random);
    let two = Greeting::new(&key(), PROLOGUE, HELLO, random);
    assert_ne!(one.bytes(), two.bytes(), "one generator does not repeat itself");
}

#[test]
fn another_key_or_prologue_is_forged_at_either_end() {
    let mut initiator = greeting(1);
    let random = &mut Random::new([2; 32]);
    for bit in 0..256 {
        let mut bytes = [5; 32];
        bytes[bit / 8] ^= 1 << (bit % 8);
        let other = Key::from_bytes(bytes).unwrap();
        assert_eq!(greeted(&other, PROLOGUE, initiator.bytes(), random).err(), Some(Forged));
    }
    for other in [&PROLOGUE[1..], &PROLOGUE[..5], b"", &[PROLOGUE, b"\0"].concat()] {
        assert_eq!(greeted(&key(), other, initiator.bytes(), random).err(), Some(Forged));
    }

    // An answer of somebody who was greeted with another key, or to another greeting.
    let key = Key::from_bytes([6; 32]).unwrap();
    let beside = Greeting::new(&key, PROLOGUE, HELLO, &mut Random::new([1; 32]));
    let theirs = greeted(&key, PROLOGUE, beside.bytes(), random).unwrap().refusal(WELCOME);
    assert_eq!(initiator.answered(&theirs).err(), Some(Forged));
    let (late, _) = answer(&greeting(9), 2, Suite::Aes128Gcm);
    assert_eq!(initiator.answered(&late).err(), Some(Forged));
    let (true_one, _) = answer(&initiator, 2, Suite::Aes128Gcm);
    assert!(initiator.answered(&true_one).is_ok());
}

#[test]
fn a_greeting_that_was_changed_at_any_bit_or_cut_is_forged() {
    let greeting = greeting(1);
    let random = &mut Random::new([2; 32]);
    for bit in 0..greeting.bytes().len() * 8 {
        let mut bytes = greeting.bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(greeted(&key(), PROLOGUE, &bytes, random).err(), Some(Forged), "bit {bit}");
    }
    for length in 0..greeting.bytes().len() {
        let cut = &greeting.bytes()[..length];
        assert_eq!(greeted(&key(), PROLOGUE, cut, random).err(), Some(Forged), "{length}");
    }
    for longer in [1, 100, 70_000] {
        let bytes = [greeting.bytes(), &vec![0; longer]].concat();
        assert_eq!(greeted(&key(), PROLOGUE, &bytes, random).err(), Some(Forged), "{longer}");
    }
    assert!(greeted(&key(), PROLOGUE, greeting.bytes(), random).is_ok());
}

/// The initiator goes on waiting after each of them, as if nothing had come.
#[test]
fn after_any_number_of_forged_answers_the_true_one_is_taken() {
    let mut initiator = greeting(1);
    let sent = initiator.bytes().to_vec();
    let (answer, of_target) = answer(&initiator, 2, Suite::Aes128Gcm);
    for bit in 0..answer.len() * 8 {
        let mut bytes = answer.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(initiator.answered(&bytes).err(), Some(Forged), "bit {bit}");
    }
    for length in 0..answer.len() {
        assert_eq!(initiator.answered(&answer[..length]).err(), Some(Forged), "{length}");
    }
    for other in [vec![0; 48], vec![0xff; 48], sent.clone(), vec![1; 70_000]] {
        assert_eq!(initiator.answered(&other).err(), Some(Forged));
    }
    assert_eq!(initiator.bytes(), sent, "a repeat is the same");
    let answered = initiator.answered(&answer).unwrap();
    assert_eq!(answered.text, WELCOME);
    assert!(opens(&answered.seals(Suite::Aes128Gcm), &of_target));

    assert_eq!(initiator.answered(&answer).err(), Some(Forged), "there is no second one");
    assert_eq!(initiator.bytes(), sent);
}

#[test]
fn two_targets_that_answer_one_greeting_have_secrets_of_their_own() {
    let mut initiator = greeting(1);
    let (answer, first) = answer(&initiator, 2, Suite::Aes128Gcm);
    let (_, second) = self::answer(&initiator, 3, Suite::Aes128Gcm);
    let seals = initiator.answered(&answer).unwrap().seals(Suite::Aes128Gcm);
    assert!(opens(&seals, &first) && !opens(&seals, &second) && !opens(&second, &seals));
}

#[test]
fn nothing_that_is_printed_tells_a_secret() {
    let mut initiator = greeting(1);
    assert_eq!(format!("{initiator:?}"), "Greeting { bytes: 54, .. }");
    let target = greeted(&key(), PROLOGUE, initiator.bytes(), &mut Random::new([2; 32])).unwrap();
    assert_eq!(format!("{target:?}"), "Greeted { text: 6, .. }");
    let answered: Answered = initiator.answered(&target.refusal(b"")).unwrap();
    assert_eq!(format!("{answered:?}"), "Answered { text: [], secrets: Secrets(..) }");
}
