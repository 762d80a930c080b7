//! Keys of the blocks of encrypted volumes that a host has opened. When another user's key is put into the label of one in use, only whoever asks for that has that key: no key crosses a socket. A
//! leg that was dropped and comes back then has a label that the key file by which it was opened does not fit. What this host has opened, or written itself, it opens again by what it knows.

use std::cell::RefCell;

use thinwire_modules::CryptState;
use thinwire_modules::meta::Label;
use thinwire_runtime::xts::Aes256Xts;
use thinwire_seal::VOLUME_KEY_BYTES;
use zeroize::Zeroizing;

use crate::crypted::Unlocked;

/// So many states are known of the volumes of one UUID, the newest ones: the label of a part has two, and clones of a pool are of one UUID.
pub(crate) const STATES_MAX: usize = 16;

/// A key of blocks, in memory as long as its host; erased then.
pub type VolumeKey = Zeroizing<[u8; VOLUME_KEY_BYTES]>;

/// All that is known of a host.
#[derive(Default)]
pub struct KnownKeys(RefCell<Vec<Known>>);

struct Known {
    whole: [u8; 16],
    key: VolumeKey,
    /// What labels of it were found to keep, or may keep since they were written here.
    states: Vec<Vec<u8>>,
}

impl Known {
    fn add(&mut self, state: Vec<u8>) {
        self.states.retain(|known| *known != state);
        self.states.push(state);
        let surplus = self.states.len().saturating_sub(STATES_MAX);
        self.states.drain(..surplus);
    }
}

impl KnownKeys {
    /// A volume of that UUID was opened by what its label keeps. What is known of others of the same key, its clones, stays.
    pub fn learn(&self, whole: &[u8; 16], state: &CryptState, key: &VolumeKey) {
        let mut all = self.0.borrow_mut();
        all.retain(|known| known.whole != *whole || known.key == *key);
        if all.iter().all(|known| known.whole != *whole) {
            all.push(Known { whole: *whole, key: key.clone(), states: Vec::new() });
        }
        let known = all.iter_mut().find(|known| known.whole == *whole).expect("it is there now");
        known.add(state.encode());
    }

    /// The label of one that is known is going to keep that: the same key, wrapped by another.
    pub fn restates(&self, whole: &[u8; 16], state: &[u8]) {
        let mut all = self.0.borrow_mut();
        let Some(known) = all.iter_mut().find(|known| known.whole == *whole) else { return };
        known.add(state.to_vec());
    }

    /// What the label keeps, and the cipher of its blocks; none unless exactly that is known: what somebody else has put there is opened by a key file, or not at all (rule 19).
    pub fn unlock(&self, label: &Label) -> Option<Unlocked> {
        let all = self.0.borrow();
        let known = all.iter().find(|known| known.whole == label.whole)?;
        let state =
            known.states.contains(&label.state).then(|| CryptState::decode(&label.state))?;
        Some((state.ok()?, Aes256Xts::new(&known.key)?, known.key.clone()))
    }
}
