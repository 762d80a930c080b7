//! Encrypted volumes (`docs/format.md`, "An encrypted volume"): the key of their blocks, made, wrapped and unwrapped.

use thinwire_modules::meta::Label;
use thinwire_modules::{Crypt, CryptState, Module, Options};
use thinwire_runtime::clock::entropy_bytes;
use thinwire_runtime::xts::Aes256Xts;
use thinwire_seal::{VOLUME_KEY_BYTES, unwrap, wrap};
use zeroize::Zeroizing;

use crate::error::{Failure, Outcome};
use crate::keys::KeyFile;

/// What the label of a part says, and the cipher of its blocks.
pub type Unlocked = (CryptState, Aes256Xts);

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
    let nonce = *entropy_bytes().first_chunk().expect("there are 32");
    let key_id = file.newest().id().0;
    let context = CryptState::context(block_bytes, key_id, whole);
    let sealed = wrap(file.newest(), nonce, &context, &volume_key);
    Ok(CryptState::new(block_bytes, key_id, nonce, sealed))
}

/// What the label of the part says, and the cipher of its blocks, by a key that `key` names.
///
/// # Errors
/// That is no key file, or has another key; or the label is no such one. Sentences whose subject is the part, but for those of the file.
pub fn unlock(label: &Label, key: &str, part: &str) -> Outcome<Unlocked> {
    let wrong = |why: String| Failure::failed(format!("{part} {why}"));
    let state = CryptState::decode(&label.state).map_err(|fault| wrong(fault.to_string()))?;
    if Crypt::block_bytes(&label.options).ok() != Some(state.block_bytes()) {
        return Err(wrong(
            "has a label that says two things of its blocks: do without this part".into(),
        ));
    }
    let file = KeyFile::read(key)?;
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
    let cipher =
        Aes256Xts::new(&volume_key).ok_or_else(|| wrong("has a key that is none".into()))?;
    Ok((state, cipher))
}
