//! [`LabelFault`]: why 4 KiB are no label to go by.

use std::fmt;

use super::LABEL_VERSION;
use crate::Module;

/// What to do about a label of which this program does not know enough.
pub(super) const USE_NEWER: &str = "use the thinwire that wrote it, or a newer one";

/// Why 4 KiB are no label that can be used; [`Label::decode`](super::Label::decode) says the first that holds,
/// in this order. Shown, each is a sentence whose subject is the place or the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelFault {
    /// Nothing was ever written there, or it was erased.
    Zero,
    /// Somebody else's, or what a torn first write has left.
    Foreign {
        /// How it begins.
        begins: [u8; 8],
    },
    /// The magic is right, the sum is not: a torn write, or bytes that changed since.
    Checksum {
        /// The sum that it says.
        says: u32,
        /// The sum of what is there.
        has: u32,
    },
    /// Intact, of another version of the format.
    Version {
        /// The one that it says.
        version: u16,
    },
    /// Intact, with incompatible features that are not known.
    Features {
        /// Their bits.
        unknown: u64,
    },
    /// Intact, of a module that is not known.
    Module {
        /// What it is called there.
        name: String,
    },
    /// Intact, and yet no correct writer has written it: it says what cannot be. Or it is not written yet, and
    /// will not be.
    Malformed {
        /// The field, as `docs/format.md` calls it.
        field: &'static str,
        /// What is wrong: a sentence whose subject is the field.
        why: String,
    },
}

impl LabelFault {
    /// Written as it is by who knows more than we do: by no means to be passed over for an older label.
    pub fn is_newer(&self) -> bool {
        use LabelFault::{Features, Module, Version};
        matches!(self, Version { .. } | Features { .. } | Module { .. })
    }

    pub(super) fn malformed(field: &'static str, why: impl Into<String>) -> Self {
        LabelFault::Malformed { field, why: why.into() }
    }
}

impl fmt::Display for LabelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabelFault::Zero => f.write_str("is all zero"),
            LabelFault::Foreign { begins } => {
                f.write_str("begins with")?;
                begins.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
                f.write_str(", as no label does")
            }
            LabelFault::Checksum { says, has } => write!(
                f,
                "has the checksum {says:#010x}, and its bytes make {has:#010x}: its write was cut off, or \
                 its bytes have changed since"
            ),
            LabelFault::Version { version } => write!(
                f,
                "is of version {version} of the format, and this program knows {LABEL_VERSION}: {USE_NEWER}"
            ),
            LabelFault::Features { unknown } => write!(
                f,
                "has incompatible features that this program does not know (bits {unknown:#x}): {USE_NEWER}"
            ),
            LabelFault::Module { name } => {
                let known: Vec<_> = Module::all().map(|module| module.name).collect();
                write!(
                    f,
                    "is of the module {name:?}, and this program knows {}: {USE_NEWER}",
                    known.join(", ")
                )
            }
            LabelFault::Malformed { field, why } => {
                write!(f, "says what no label can: its field `{field}` {why}")
            }
        }
    }
}

impl std::error::Error for LabelFault {}
