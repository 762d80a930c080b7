//! Who may greet a target, and with which keys (`docs/security.md`).

use std::fmt;
use std::sync::Arc;

use thinwire_proto::RekeyLimits;
use thinwire_seal::{Key, KeyId, Preference, Suites};

use crate::access::{Access, Right};

/// One who may greet: a name, and the keys that it may use. Several while they are being changed.
#[derive(Clone, Debug)]
pub struct Principal {
    /// What the people here call it. With it the target knows writers again, whatever key they use.
    pub name: Arc<str>,
    /// Its keys.
    pub keys: Vec<Key>,
}

/// The keys of a target, and how it uses them.
#[derive(Clone)]
pub struct TargetKeys {
    /// All who may greet.
    pub principals: Vec<Principal>,
    /// Who may open which export, by its name; an export without a row everybody here may write.
    pub access: Vec<(String, Access)>,
    /// What it agrees to: suites that encrypt, or those that do not. Never both.
    pub suites: Suites,
    /// Which of them it likes best.
    pub preference: Preference,
    /// 32 bytes that nobody can guess, new for every start: ephemeral keys come of them. Not zeroes. The target
    /// forgets them.
    pub entropy: [u8; 32],
    /// How long one key of a session is used.
    pub limits: RekeyLimits,
    /// It tells names of exports also to those without a key.
    pub announces: bool,
}

impl TargetKeys {
    /// With what is right for most.
    pub fn new(principals: Vec<Principal>, entropy: [u8; 32]) -> Self {
        TargetKeys {
            principals,
            access: Vec::new(),
            suites: Suites::here(false),
            preference: Preference::of_this_processor(),
            entropy,
            limits: RekeyLimits::default(),
            announces: false,
        }
    }

    /// What one of them may do with the export of this name.
    pub(crate) fn right_of(&self, principal: &str, export: &str) -> Right {
        let access = self.access.iter().find(|(name, _)| name == export);
        access.map_or(Right::Write, |(_, access)| access.right_of(principal))
    }

    /// Who has the key of this id, and the key.
    pub(crate) fn find(&self, id: KeyId) -> Option<(&Principal, &Key)> {
        let mut all = self.principals.iter().flat_map(|p| p.keys.iter().map(move |key| (p, key)));
        all.find(|(_, key)| key.id() == id)
    }
}

impl fmt::Debug for TargetKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetKeys")
            .field("principals", &self.principals)
            .field("suites", &self.suites)
            .finish_non_exhaustive()
    }
}
