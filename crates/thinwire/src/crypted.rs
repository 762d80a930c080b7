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
pub fn volume_key_of(label: &Label, key: &str, part: &str) -> Outcome<(CryptState, VolumeKey)> {
    volume_key_by(label, key, part, KeyCanary::None)
}

/// A fault planted in how keys are compared, which tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyCanary {
    None,
    /// The user's key is taken, whichever it is, and so is what stands in the label for the key of the blocks.
    TakesAnyKey,
}

fn volume_key_by(
    label: &Label,
    key: &str,
    part: &str,
    canary: KeyCanary,
) -> Outcome<(CryptState, VolumeKey)> {
    let wrong = |why: String| Failure::failed(format!("{part} {why}"));
    let state = CryptState::decode(&label.state).map_err(|fault| wrong(fault.to_string()))?;
    if Crypt::block_bytes(&label.options).ok() != Some(state.block_bytes()) {
        return Err(wrong(
            "has a label that says two things of its blocks: do without this part".into(),
        ));
    }
    // The key is its user's, whoever serves.
    let file = as_starter(|| KeyFile::read(key))?;
    let takes_any = canary == KeyCanary::TakesAnyKey;
    let is_own = |key: &&Key| key.id().0 == state.key_id || takes_any;
    let Some(own) = file.keys.iter().find(is_own) else {
        let ids = file.ids().map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
        return Err(wrong(format!(
            "is encrypted with the key {:016x}, and {} has {ids}: nothing was read or written; give the key that it was made with",
            u64::from_be_bytes(state.key_id),
            file.path.display()
        )));
    };
    let context = CryptState::context(state.block_bytes(), state.key_id, &label.whole);
    match unwrap(own, state.nonce, &context, &state.sealed) {
        Ok(volume_key) => Ok((state, volume_key)),
        Err(_) if takes_any => {
            let noise = *state.sealed.first_chunk().expect("there are more");
            Ok((state, Zeroizing::new(noise)))
        }
        Err(_) => Err(wrong(
            "has another key of its blocks in its label than was put there: somebody has changed that".into(),
        )),
    }
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
mod tests;
