//! The file of a gateway's export: its writer record, and under which generations it held the leaves,
//! in their order (rule 3). It is named by the identity of the whole.
//!
//! ```text
//!  0      8                  16            16 + 8 n            end - 8
//!  | TWG2 | number of leaves | generations | record as a disk's | checksum |     big endian
//! ```
//!
//! Where no leaf has a generation, and before version 1, it is a record and nothing else. That version had a weaker
//! checksum, and is understood.

use std::io;
use std::path::{Path, PathBuf};

use thinwire_volume::WriterRecord;

use super::identity::Hash;
use super::state_file;
use super::writer::{Kept, decode, encode, os};

const MAGIC: [u8; 8] = *b"TWG2\0\0\0\0";
const MAGIC_1: [u8; 8] = *b"TWG1\0\0\0\0";

/// The file.
#[derive(Debug)]
pub(super) struct GatewayFile(PathBuf);

impl GatewayFile {
    /// Another name than a disk's: a target of the same machine may serve what this stands on alone,
    /// which has the same identity.
    pub fn new(identity: &[u8; 16], state_dir: &Path) -> Self {
        GatewayFile(state_file::path("gateway", identity, state_dir))
    }

    /// What is there, durable; errors are errnos.
    pub fn load(&self) -> Result<(WriterRecord, Vec<u64>), i32> {
        match state_file::read(&self.0).map_err(os)? {
            None => Ok((WriterRecord::default(), Vec::new())),
            Some(bytes) => {
                let found = from_bytes(&bytes).ok_or(libc::EBADMSG)?;
                state_file::sync(&self.0).map_err(os)?;
                Ok(found)
            }
        }
    }

    /// Stores both durably; errors are errnos, and either may be there then.
    pub fn store(&self, record: WriterRecord, leaves: &[u64]) -> Result<(), i32> {
        state_file::replace(&self.0, &to_bytes(record, leaves)).map_err(os).inspect_err(|errno| {
            tracing::error!(
                path = %self.0.display(),
                error = %io::Error::from_raw_os_error(*errno),
                "cannot store who may write"
            );
        })
    }
}

/// Nothing of the content's size is kept beside it: the leaves keep theirs.
fn encode_record(record: WriterRecord) -> Vec<u8> {
    encode(record, Kept::default()).to_vec()
}

pub(super) fn to_bytes(record: WriterRecord, leaves: &[u64]) -> Vec<u8> {
    if leaves.iter().all(|&generation| generation == 0) {
        return encode_record(record);
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend((leaves.len() as u64).to_be_bytes());
    leaves.iter().for_each(|generation| bytes.extend(generation.to_be_bytes()));
    bytes.extend(encode_record(record));
    let sum = Hash::sum_of(&bytes);
    bytes.extend(&sum);
    bytes
}

pub(super) fn from_bytes(bytes: &[u8]) -> Option<(WriterRecord, Vec<u64>)> {
    if !bytes.starts_with(&MAGIC) && !bytes.starts_with(&MAGIC_1) {
        return decode(bytes).map(|(record, _)| (record, Vec::new()));
    }
    let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (rest, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let count = usize::try_from(number(8)?).ok()?;
    let end = count.checked_mul(8)?.checked_add(16)?;
    let (record, _) = decode(rest.get(end..)?)?;
    let leaves = (0..count).map(|leaf| number(16 + 8 * leaf)).collect::<Option<Vec<u64>>>()?;
    let is_intact = match bytes.starts_with(&MAGIC) {
        true => Hash::sum_of(rest) == *sum,
        false => Hash::of(rest).value()[..8] == *sum,
    };
    is_intact.then_some((record, leaves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_kept_beside_the_record_and_damage_is_noticed() {
        let record = WriterRecord::new(3, [7; 16], "node2");
        let bytes = to_bytes(record, &[4, 0, u64::MAX]);
        assert_eq!(from_bytes(&bytes), Some((record, vec![4, 0, u64::MAX])));
        for len in 0..bytes.len() {
            assert_eq!(from_bytes(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(from_bytes(&other), None, "byte {at}");
        }
    }

    #[test]
    fn what_the_former_version_left_is_understood() {
        let record = WriterRecord::new(3, [7; 16], "node2");
        let mut bytes = to_bytes(record, &[4, 1]);
        bytes.truncate(bytes.len() - 8);
        bytes[..8].copy_from_slice(&MAGIC_1);
        let sum = Hash::of(&bytes).value();
        bytes.extend(&sum[..8]);
        assert_eq!(from_bytes(&bytes), Some((record, vec![4, 1])));
        bytes[17] ^= 1;
        assert_eq!(from_bytes(&bytes), None);
    }

    #[test]
    fn a_record_alone_is_understood_and_is_what_is_stored_without_leaves() {
        let record = WriterRecord::new(3, [7; 16], "node2");
        let bytes = encode_record(record);
        assert_eq!(from_bytes(&bytes), Some((record, vec![])));
        assert_eq!(to_bytes(record, &[]), bytes);
        assert_eq!(to_bytes(record, &[0, 0]), bytes);
    }
}
