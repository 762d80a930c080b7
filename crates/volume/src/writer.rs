//! The writer record: who may write an export, kept durably beside its content
//! (`docs/protocol.md`, "Writer generations"; rule 3). What it says, and how it is changed so that a
//! failure or a crash at any step leaves one that the old writer still satisfies.

use std::fmt;

use crate::{IoError, Volume};

/// Bytes of the longest holder's name.
const NAME_BYTES_MAX: usize = 64;

/// What a person calls a holder: at most 64 bytes of UTF-8, kept in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HolderName {
    len: u8,
    bytes: [u8; NAME_BYTES_MAX],
}

impl HolderName {
    /// Nobody's.
    pub const NONE: HolderName = HolderName { len: 0, bytes: [0; NAME_BYTES_MAX] };

    /// The name, or as much of it as fits.
    pub fn new(name: &str) -> Self {
        let mut len = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        HolderName { len: len as u8, bytes }
    }

    /// It as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl Default for HolderName {
    fn default() -> Self {
        HolderName::NONE
    }
}

impl fmt::Debug for HolderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Who may write an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterRecord {
    /// Raised by every new writer; 0 before the first.
    pub generation: u64,
    /// The initiator that holds the volume, or zeroes when the last one detached in order.
    pub holder: [u8; 16],
    /// What a person calls the holder; only told to others, never compared.
    pub name: HolderName,
}

impl WriterRecord {
    /// The record that says that a holder writes under a generation.
    pub fn new(generation: u64, holder: [u8; 16], name: &str) -> Self {
        WriterRecord { generation, holder, name: HolderName::new(name) }
    }

    /// Somebody is on record.
    pub fn is_held(&self) -> bool {
        self.holder != [0; 16]
    }

    /// The same, held by nobody any more.
    pub fn released(&self) -> Self {
        WriterRecord::new(self.generation, [0; 16], "")
    }
}

/// How a change of the record failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// The old record stands, durably, or it was never touched: whoever asked may be told no.
    Refused(IoError),
    /// Either record may be found after a crash. Nobody may write, be fenced or be told no until
    /// [`settle_writer`] has succeeded with the old one.
    Unresolved(IoError),
}

/// Replaces the record `old`, which is the one stored, by `new`.
///
/// First `old` itself is stored anew: where that fails, nothing was changed that its writer could
/// notice, and most failures show there, since it takes the same steps. Then `new`; if *that* fails, it
/// may be there all the same, and `old` is put back before anybody is refused.
///
/// # Errors
/// See [`ChangeError`].
pub fn change_writer(
    volume: &mut dyn Volume,
    old: WriterRecord,
    new: WriterRecord,
) -> Result<(), ChangeError> {
    volume.store_writer(old).map_err(ChangeError::Refused)?;
    let Err(error) = volume.store_writer(new) else { return Ok(()) };
    match settle_writer(volume, old) {
        Ok(()) => Err(ChangeError::Refused(error)),
        Err(_) => Err(ChangeError::Unresolved(error)),
    }
}

/// Puts the old record back after a change that is not resolved. To be tried until it succeeds.
pub fn settle_writer(volume: &mut dyn Volume, old: WriterRecord) -> Result<(), IoError> {
    volume.store_writer(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::FileStore;
    use crate::testing::MemDisk;
    use thinwire_buffer::Pool;

    #[test]
    fn a_name_is_cut_between_characters() {
        assert_eq!(HolderName::new("node1").as_str(), "node1");
        assert_eq!(HolderName::new(&"a".repeat(70)).as_str(), "a".repeat(64));
        assert_eq!(HolderName::new(&format!("{}ä", "a".repeat(63))).as_str(), "a".repeat(63));
    }

    /// Every step may fail: what is found then is the old record, or the change is not resolved.
    #[test]
    fn a_change_that_fails_at_any_step_leaves_the_old_record_or_is_unresolved() {
        let (old, new) = (WriterRecord::new(1, [1; 16], "a"), WriterRecord::new(2, [2; 16], "b"));
        // Which of the three steps (old, new, old again) fail.
        for failing in 0..8_u32 {
            let mut store =
                FileStore::new(MemDisk::new(1 << 20, 512, 1), 512, &Pool::new(0)).unwrap();
            store.store_writer(old).unwrap();
            store.disk_mut().fail_records((0..3).map(|step| failing >> step & 1 == 1));
            let result = change_writer(&mut store, old, new);
            let found = store.load_writer().unwrap();
            match result {
                Ok(()) => assert_eq!((failing & 3, found), (0, new)),
                Err(ChangeError::Refused(_)) => assert_eq!(found, old, "{failing}"),
                Err(ChangeError::Unresolved(_)) => {}
            }
            let is_unresolved = matches!(result, Err(ChangeError::Unresolved(_)));
            assert_eq!(is_unresolved, failing == 6, "{failing}");
            assert_eq!(store.losses() > 0, result.is_err(), "a failed sync puts all in doubt");
        }
    }
}
