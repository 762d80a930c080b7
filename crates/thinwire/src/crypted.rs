//! Encrypted volumes (`docs/format.md`, "An encrypted volume"): the key of their blocks, made, wrapped and unwrapped.

use thinwire_modules::meta::Label;
use thinwire_modules::{Crypt, CryptState, Module, Options};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_runtime::confine::as_starter;
use thinwire_runtime::xts::Aes256Xts;
use thinwire_seal::{Key, VOLUME_KEY_BYTES, unwrap, wrap};
use zeroize::Zeroizing;

use crate::error::{Failure, Outcome};
use crate::keys::KeyFile;
use crate::known_keys::VolumeKey;

/// What the label of a part says, the cipher of its blocks, and the key of that.
pub type Unlocked = (CryptState, Aes256Xts, VolumeKey);

/// Volumes of that kind have a key.
pub fn takes_key(module: &Module) -> bool {
    module.name == Crypt::NAME
}

/// What the label of a new volume of that UUID says: a key of its own, wrapped by the newest that `key` names.
///
/// # Errors
/// That is no key file, or the options say what cannot be.
pub fn new_state(whole: &[u8; 16], options: &Options, key: &str) -> Outcome<CryptState> {
    let block_bytes = Crypt::block_bytes(options).map_err(|e| Failure::failed(e.to_string()))?;
    let file = KeyFile::read(key)?;
    let mut volume_key = Zeroizing::new([0; VOLUME_KEY_BYTES]);
    for half in volume_key.chunks_exact_mut(VOLUME_KEY_BYTES / 2) {
        half.copy_from_slice(&*Zeroizing::new(entropy_bytes()));
    }
    Ok(sealed(file.newest(), block_bytes, whole, &volume_key))
}

/// The key of the blocks of the volume of that UUID, wrapped by a user's.
pub fn sealed(
    key: &Key,
    block_bytes: u32,
    whole: &[u8; 16],
    volume_key: &[u8; VOLUME_KEY_BYTES],
) -> CryptState {
    let nonce = *entropy_bytes().first_chunk().expect("there are 32");
    let key_id = key.id().0;
    let context = CryptState::context(block_bytes, key_id, whole);
    CryptState::new(block_bytes, key_id, nonce, wrap(key, nonce, &context, volume_key))
}

/// What the label of the part says, and the cipher of its blocks, by a key that `key` names.
///
/// # Errors
/// That is no key file, or has another key; or the label is no such one. Sentences whose subject is the part, but for those of the file.
pub fn unlock(label: &Label, key: &str, part: &str) -> Outcome<Unlocked> {
    let (state, volume_key) = volume_key_of(label, key, part)?;
    let none = || Failure::failed(format!("{part} has a key that is none"));
    let cipher = Aes256Xts::new(&volume_key).ok_or_else(none)?;
    Ok((state, cipher, volume_key))
}

/// What the label of the part says, and the key of its blocks, by a key that `key` names.
///
/// # Errors
/// As [`unlock`].
pub fn volume_key_of(
    label: &Label,
    key: &str,
    part: &str,
) -> Outcome<(CryptState, Zeroizing<[u8; VOLUME_KEY_BYTES]>)> {
    let wrong = |why: String| Failure::failed(format!("{part} {why}"));
    let state = CryptState::decode(&label.state).map_err(|fault| wrong(fault.to_string()))?;
    if Crypt::block_bytes(&label.options).ok() != Some(state.block_bytes()) {
        return Err(wrong(
            "has a label that says two things of its blocks: do without this part".into(),
        ));
    }
    // The key is its user's, whoever serves.
    let file = as_starter(|| KeyFile::read(key))?;
    let Some(own) = file.keys.iter().find(|key| key.id().0 == state.key_id) else {
        let ids = file.ids().map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
        return Err(wrong(format!(
            "is encrypted with the key {:016x}, and {} has {ids}: nothing was read or written; give the key that it was made with",
            u64::from_be_bytes(state.key_id),
            file.path.display()
        )));
    };
    let context = CryptState::context(state.block_bytes(), state.key_id, &label.whole);
    let volume_key = unwrap(own, state.nonce, &context, &state.sealed).map_err(|_| {
        wrong("has another key of its blocks in its label than was put there: somebody has changed that".into())
    })?;
    Ok((state, volume_key))
}

/// How blocks are encrypted, and by which key, of a label that says so.
pub fn said_of(label: &Label) -> Option<String> {
    let state = takes_key(label.module).then(|| CryptState::decode(&label.state))?;
    Some(match state {
        Ok(state) => format!(
            "{:016x}, for blocks of {} bytes",
            u64::from_be_bytes(state.key_id),
            state.block_bytes()
        ),
        Err(fault) => format!("it {fault}"),
    })
}

#[cfg(test)]
mod tests {
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
}
