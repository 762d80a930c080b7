//! What is planned for a label by its keys, and what becomes of it.

use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
use thinwire_modules::{Module, Options};
use thinwire_volume::Identity;

use super::*;
use crate::crypted::new_state;
use crate::keys::make;
use crate::testing::TempDir;

fn key(dir: &TempDir, name: &str) -> String {
    make(name, dir.path(), false).unwrap().path.display().to_string()
}

/// The label of a volume that this key opens.
fn made(key: &str) -> Label {
    let (uuid, options) = ([7; 16], &Options::default());
    let module = Module::find("crypt").unwrap();
    let whole = NewWhole { name: "vault", uuid, module, options, bytes: 1 << 20 };
    let part = NewPart { uuid: [8; 16], content: Identity::default(), bytes: 2 << 20 };
    let mut label = label_parts(&whole, &[part]).unwrap().remove(0);
    label.state = new_state(&uuid, options, key).unwrap().encode();
    label
}

fn to(next: NextKey) -> Rekeying {
    Rekeying::new(&"file:/x".parse().unwrap(), next)
}

fn with(label: &Label, state: &CryptState) -> Label {
    Label { state: state.encode(), ..label.clone() }
}

#[test]
fn the_same_blocks_are_opened_by_the_next_key_and_not_by_the_one_before() {
    let dir = TempDir::new("rekeying");
    let (old, next) = (key(&dir, "old"), key(&dir, "next"));
    let label = made(&old);
    let opened = |label: &Label, key: &str| volume_key_of(label, key, "x").map(|(_, key)| key);
    let blocks = opened(&label, &old).unwrap();
    let rekeying = to(NextKey::There(next.clone()));
    rekeying.check(&label, None, &old).unwrap();
    assert_eq!((rekeying.ended(), rekeying.opener(&label, &old)), (None, &*old), "only looked");
    let Rewrapped { state, rekeyed } = rekeying.rewrap(&label, None, &old).unwrap();
    let after = with(&label, &state);
    assert!(*opened(&after, &next).unwrap() == *blocks);
    assert!(opened(&after, &old).unwrap_err().message.contains("is encrypted with the key"));
    let newest = |key: &str| KeyFile::read(key).unwrap().newest().id().to_string();
    assert_eq!((rekeyed.before, rekeyed.key), (Some(newest(&old)), newest(&next)));
    // The nonce is drawn anew each time.
    assert_ne!(rekeying.rewrap(&label, None, &old).unwrap().state, state);
    // Begun before, and cut off between two labels: the old key is not needed any more.
    assert_eq!(rekeying.opener(&after, "/none"), next);
    let settled = rekeying.rewrap(&after, Some(&label.state), "/none").unwrap();
    assert_eq!((settled.state, settled.rekeyed.before), (state, None));
    for older in [None, Some(&after.state[..])] {
        let why = rekeying.check(&after, older, "/none").unwrap_err().message;
        assert!(why.contains(" already, the newest of "), "{why}");
    }
}

#[test]
fn a_key_is_made_when_all_else_is_right_and_never_over_another() {
    let dir = TempDir::new("rekeying-made");
    let (old, other) = (key(&dir, "old"), key(&dir, "other"));
    let label = made(&old);
    let path = dir.path().join("made");
    let rekeying = to(NextKey::Made(path.display().to_string()));
    let why = rekeying.rewrap(&label, None, &other).err().unwrap().message;
    assert!(why.contains("is encrypted with the key") && !path.exists(), "{why}");
    let state = rekeying.rewrap(&label, None, &old).unwrap().state;
    volume_key_of(&with(&label, &state), path.to_str().unwrap(), "x").unwrap();
    let why = rekeying.next.check().unwrap_err().message;
    assert!(why.contains("exists already") && why.contains("`--to`"), "{why}");
    assert!(rekeying.rewrap(&label, None, &old).is_err());
    assert!(to(NextKey::There("/none/of/these".into())).next.check().is_err());
}

/// Whoever throws the old key away is told first what else it opens.
#[test]
fn what_has_snapshots_that_the_key_before_opens_is_named() {
    let dir = TempDir::new("rekeying-snapshots");
    let (old, next) = (key(&dir, "old"), key(&dir, "next"));
    let file = dir.path().join("pools.toml");
    let mut described = String::new();
    for name in ["one", "two"] {
        described += &format!(
            "[[volume]]\nname = \"{name}\"\nkind = \"thin\"\nchildren = [\"./{name}.data\", \"./{name}.metadata\"]\n"
        );
    }
    described +=
        "[[volume]]\nname = \"both\"\nkind = \"mirror\"\nchildren = [\"one@a\", \"two@b\"]\n";
    std::fs::write(&file, described).unwrap();
    let file = file.display();
    let [one, two] = [format!("{file}#one@a"), format!("{file}#two@b")];
    for (part, named) in [
        ("file:/x".to_owned(), vec![]),
        (one.clone(), vec![one.clone()]),
        (format!("{file}#both"), vec![one, two]),
    ] {
        let part: VolumeSpec = part.parse().unwrap();
        let rekeying = Rekeying::new(&part, NextKey::There(next.clone()));
        // As it is named when it is opened, too.
        assert!(rekeying.is_of(&[part.over_commons()]) && rekeying.is_of(&[part]));
        assert!(!rekeying.is_of(&[format!("{file}#one@other").parse().unwrap()]));
        let rewrapped = rekeying.rewrap(&made(&old), None, &old).unwrap();
        assert_eq!(rewrapped.rekeyed.snapshots_of, named);
    }
}

#[test]
fn only_another_wrapping_is_a_change() {
    let dir = TempDir::new("rekeying-change");
    let label = made(&key(&dir, "old"));
    let state = CryptState::decode(&label.state).unwrap();
    let change = StateChange::new(&label, &state);
    assert_eq!(change.states(), Some((label.state.clone(), state.encode())));
    let other = CryptState::new(512, state.key_id, state.nonce, state.sealed);
    assert_eq!(StateChange::new(&label, &other).states(), None, "blocks of another size");
    for to in ["", "0", "zz", &change.to[2..], &"00".repeat(112)] {
        assert_eq!(StateChange { to: to.into(), ..change.clone() }.states(), None, "{to}");
    }
}
