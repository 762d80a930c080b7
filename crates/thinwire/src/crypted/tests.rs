//! Keys of volumes: which opens what, and what is said where none does.

use thinwire_modules::XtsCipher;
use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
use thinwire_volume::Identity;

use super::*;
use crate::keys::make;
use crate::known_keys::{KnownKeys, STATES_MAX};
use crate::testing::TempDir;

/// A label of a new volume, and the path of its key.
fn made(dir: &TempDir) -> (Label, String) {
    let key = make("own", dir.path(), false).unwrap().path.display().to_string();
    let (uuid, options) = ([7; 16], &Options::default());
    let module = Module::find("crypt").unwrap();
    let whole = NewWhole { name: "vault", uuid, module, options, bytes: 1 << 20 };
    let part = NewPart { uuid: [8; 16], content: Identity::default(), bytes: 2 << 20 };
    let mut label = label_parts(&whole, &[part]).unwrap().remove(0);
    label.state = new_state(&uuid, options, &key).unwrap().encode();
    (label, key)
}

/// A leg comes back behind a change of keys in use, of which nobody here has the next.
#[test]
fn what_is_known_is_opened_again_and_nothing_else() {
    let dir = TempDir::new("crypted-known");
    let (label, key) = made(&dir);
    let other = make("other", dir.path(), false).unwrap();
    let (state, _, volume_key) = unlock(&label, &key, "file:/x").unwrap();
    let next = sealed(other.newest(), state.block_bytes(), &label.whole, &volume_key);
    let changed = Label { state: next.encode(), ..label.clone() };
    let known = KnownKeys::default();
    known.restates(&label.whole, &changed.state);
    assert!(known.unlock(&changed).is_none(), "nothing was opened");
    known.learn(&label.whole, &state, &volume_key);
    assert!(known.unlock(&changed).is_none(), "nobody has put that there");
    known.restates(&label.whole, &changed.state);
    for label in [&label, &changed] {
        let (found, _, again) = known.unlock(label).expect("it is known");
        assert!(found.encode() == label.state && *again == *volume_key);
    }
    assert!(known.unlock(&Label { whole: [9; 16], ..changed.clone() }).is_none());
    let mut noise = changed.clone();
    noise.state[20] ^= 1;
    assert!(known.unlock(&noise).is_none());
    // Only so many, and those that are older go.
    (0..STATES_MAX).for_each(|nth| known.restates(&label.whole, &[nth as u8; 9]));
    assert!(known.unlock(&label).is_none() && known.unlock(&changed).is_none());
}

/// Two volumes of a pool of which one is a clone of the other, and has another user's key by now: both are opened again.
#[test]
fn clones_are_known_by_what_each_of_them_keeps() {
    let dir = TempDir::new("crypted-clones");
    let (label, key) = made(&dir);
    let other = make("other", dir.path(), false).unwrap();
    let (state, _, volume_key) = unlock(&label, &key, "file:/x").unwrap();
    let next = sealed(other.newest(), state.block_bytes(), &label.whole, &volume_key);
    let clone = Label { state: next.encode(), ..label.clone() };
    let known = KnownKeys::default();
    known.learn(&label.whole, &state, &volume_key);
    known.learn(&clone.whole, &next, &volume_key);
    for label in [&label, &clone] {
        let (.., again) = known.unlock(label).expect("it is known");
        assert!(*again == *volume_key);
    }
    // Of a volume made anew, with another key, nothing of before is.
    let mut another = volume_key.clone();
    another[0] ^= 1;
    let third = sealed(other.newest(), state.block_bytes(), &label.whole, &another);
    known.learn(&label.whole, &third, &another);
    assert!(known.unlock(&label).is_none() && known.unlock(&clone).is_none());
    let third = Label { state: third.encode(), ..label.clone() };
    assert!(known.unlock(&third).is_some_and(|(.., key)| *key == *another));
}

fn refusal(label: &Label, key: &str) -> String {
    unlock(label, key, "file:/x").err().expect("it is refused").message
}

#[test]
fn its_own_key_unlocks_it_also_behind_others() {
    let dir = TempDir::new("crypted");
    let (label, key) = made(&dir);
    let noise = |key: &str| {
        let (state, mut cipher, _) = unlock(&label, key, "file:/x").unwrap();
        assert_eq!(state.block_bytes(), 4096);
        let mut block = [1; 4096];
        cipher.encrypt(4096, 3, &mut block);
        block
    };
    let first = noise(&key);
    make("own", dir.path(), true).unwrap();
    assert!(noise(&key) == first, "a newer key stands behind it");
    assert_ne!(new_state(&[7; 16], &label.options, &key).unwrap().encode(), label.state);
    let said = said_of(&label).unwrap();
    assert!(said.ends_with(", for blocks of 4096 bytes"), "{said}");
}

/// Rule 19: whoever gets a cipher writes by it.
#[test]
fn a_key_that_is_not_compared_is_found() {
    let dir = TempDir::new("crypted-any");
    let (label, _) = made(&dir);
    let other = make("other", dir.path(), false).unwrap().path.display().to_string();
    let is_refused =
        |label: &Label, canary| volume_key_by(label, &other, "file:/x", canary).is_err();
    assert!(is_refused(&label, KeyCanary::None));
    assert!(!is_refused(&label, KeyCanary::TakesAnyKey), "it would be noise");
}

#[test]
fn what_is_wrong_is_said_and_no_key_told() {
    let dir = TempDir::new("crypted-wrong");
    let (label, key) = made(&dir);
    let other = make("other", dir.path(), false).unwrap();
    let why = refusal(&label, &other.path.display().to_string());
    assert!(why.starts_with("file:/x is encrypted with the key "), "{why}");
    assert!(why.contains(&other.newest().id().to_string()), "{why}");
    assert!(refusal(&label, "/none/of/these").contains("no such file"));
    let with = |at: usize, byte: u8| {
        let mut label = label.clone();
        label.state[at] ^= byte;
        refusal(&label, &key)
    };
    assert!(with(16, 1).contains("somebody has changed that"), "the nonce");
    assert!(with(40, 1).contains("somebody has changed that"), "the wrapped key");
    assert!(with(0, 3).contains("of another version"));
    // From 4096 to 512.
    assert!(with(3, 0x12).contains("says two things of its blocks"));
    let elsewhere = Label { whole: [9; 16], ..label.clone() };
    assert!(refusal(&elsewhere, &key).contains("somebody has changed that"));
}
