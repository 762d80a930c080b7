//! Key files: pieces of good ones, and anything else. A key is read as it is written, and nothing of one is shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use thinwire::keys::KeyFile;
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_seal::Key;

const PIECES: &[&str] = &[
    "thinwire-key-1",
    " ",
    "\n",
    "\r\n",
    "#",
    "0123456789abcdef",
    "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef",
    "thinwire-key-1 1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "f",
    "g",
    "\t",
    "é",
    "\0",
];

static KEYS: Reached = Reached::new();

fn play_keys(choices: &mut Choices<'_>) {
    let mut text = String::new();
    for _ in 0..choices.below(10) {
        match choices.below(6) {
            0 => text.push_str(&choices.text(8)),
            _ => text.push_str(choices.of::<&str>(PIECES)),
        }
    }
    match Key::parse(&text) {
        Ok(key) => {
            let again = Key::parse(&key.to_text()).expect("its own form");
            assert_eq!(again.id(), key.id());
            // One line of this form, and nothing beside it.
            assert_eq!(
                key.to_text().trim_end(),
                text.trim_end_matches(['\r', '\n']).to_ascii_lowercase()
            );
            KEYS.count("key");
        }
        Err(error) => {
            // It shows nothing of what was there.
            let shown = error.to_string();
            assert!(!shown.contains("0123456789") && !shown.contains(char::REPLACEMENT_CHARACTER));
            KEYS.count("no key");
        }
    }
    let file = std::env::temp_dir().join(format!("thinwire-fuzz-key-{}", std::process::id()));
    fs::write(&file, &text).expect("a file of its own");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its own");
    match KeyFile::read(&file.display().to_string()) {
        Ok(found) => {
            if let Ok(key) = Key::parse(&text) {
                assert_eq!(found.keys.iter().map(Key::id).collect::<Vec<_>>(), [key.id()]);
            }
            KEYS.count("file");
        }
        Err(failure) => {
            assert!(!failure.message.contains("0123456789abcdef"), "{}", failure.message)
        }
    }
    fs::remove_file(&file).expect("it is there");
}

#[test]
fn fuzz_keys() {
    fuzz!("keys", 5_000, 60, play_keys);
    KEYS.expect(&["key", "no key", "file"]);
}
