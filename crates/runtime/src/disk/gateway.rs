//! The file of a gateway's export that keeps no writer record itself: that, and under which generations it held the leaves
//! (rule 3). It is named by the identity of the whole.
//!
//! ```text
//!  0      8                  16       16 + 24 n             end - 8
//!  | TWG3 | number of leaves | leaves | record as a disk's | checksum |     big endian
//!
//!  each of the leaves: | identity of 16 bytes | generation |
//! ```
//!
//! Where no leaf has a generation, and before version 1, it is a record and nothing else. Version 2 had generations without identities, in the
//! order of the leaves, version 1 a weaker checksum, too; they are understood.

use std::io;
use std::path::{Path, PathBuf};

use thinwire_volume::{LeafGeneration, WriterRecord};

use super::identity::Hash;
use super::state_file;
use super::writer::{Kept, decode, encode, os};

const MAGIC: [u8; 8] = *b"TWG3\0\0\0\0";
const MAGIC_2: [u8; 8] = *b"TWG2\0\0\0\0";
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
    pub fn load(&self) -> Result<(WriterRecord, Vec<LeafGeneration>), i32> {
        match state_file::read(&self.0).map_err(os)? {
            None => Ok((WriterRecord::default(), Vec::new())),
            Some(bytes) => {
                let found = from_bytes(&bytes).ok_or(libc::EBADMSG)?;
                state_file::sync(&self.0).map_err(os)?;
                Ok(found)
            }
        }
    }

    /// Removes it durably, if it is there; errors are errnos.
    pub fn remove(&self) -> Result<(), i32> {
        state_file::remove(&self.0).map_err(os)
    }

    /// Stores both durably; errors are errnos, and either may be there then.
    pub fn store(&self, record: WriterRecord, leaves: &[LeafGeneration]) -> Result<(), i32> {
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

pub(super) fn to_bytes(record: WriterRecord, leaves: &[LeafGeneration]) -> Vec<u8> {
    if leaves.iter().all(|leaf| leaf.generation == 0) {
        return encode_record(record);
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend((leaves.len() as u64).to_be_bytes());
    for LeafGeneration { leaf, generation } in leaves {
        bytes.extend(leaf);
        bytes.extend(generation.to_be_bytes());
    }
    seal(bytes, record)
}

fn seal(mut bytes: Vec<u8>, record: WriterRecord) -> Vec<u8> {
    bytes.extend(encode_record(record));
    let sum = Hash::sum_of(&bytes);
    bytes.extend(&sum);
    bytes
}

pub(super) fn from_bytes(bytes: &[u8]) -> Option<(WriterRecord, Vec<LeafGeneration>)> {
    let is_of = |magic: &[u8; 8]| bytes.starts_with(magic);
    if !is_of(&MAGIC) && !is_of(&MAGIC_2) && !is_of(&MAGIC_1) {
        return decode(bytes).map(|(record, _)| (record, Vec::new()));
    }
    let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (rest, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
    let count = usize::try_from(number(8)?).ok()?;
    let name_bytes = if is_of(&MAGIC) { 16 } else { 0 };
    let end = count.checked_mul(name_bytes + 8)?.checked_add(16)?;
    let (record, _) = decode(rest.get(end..)?)?;
    let leaf = |nth: usize| {
        let at = 16 + nth * (name_bytes + 8);
        let mut leaf = [0; 16];
        leaf[..name_bytes].copy_from_slice(bytes.get(at..at + name_bytes)?);
        Some(LeafGeneration { leaf, generation: number(at + name_bytes)? })
    };
    let leaves = (0..count).map(leaf).collect::<Option<Vec<_>>>()?;
    let is_intact = match is_of(&MAGIC_1) {
        false => Hash::sum_of(rest) == *sum,
        true => Hash::of(rest).value()[..8] == *sum,
    };
    is_intact.then_some((record, leaves))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(leaf: u8, generation: u64) -> LeafGeneration {
        LeafGeneration { leaf: [leaf; 16], generation }
    }

    #[test]
    fn leaves_are_kept_beside_the_record_and_damage_is_noticed() {
        let record = WriterRecord::new(3, [7; 16], "node2");
        let leaves = vec![leaf(1, 4), leaf(0, 0), leaf(3, u64::MAX)];
        let bytes = to_bytes(record, &leaves);
        assert_eq!(from_bytes(&bytes), Some((record, leaves)));
        for len in 0..bytes.len() {
            assert_eq!(from_bytes(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(from_bytes(&other), None, "byte {at}");
        }
    }

    /// Leaves by their places alone.
    #[test]
    fn what_former_versions_left_is_understood() {
        let record = WriterRecord::new(3, [7; 16], "node2");
        let former = |magic: [u8; 8]| {
            let mut bytes = magic.to_vec();
            [2_u64, 4, 1].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
            bytes
        };
        let second = seal(former(MAGIC_2), record);
        let mut first = former(MAGIC_1);
        first.extend(encode_record(record));
        let sum = Hash::of(&first).value();
        first.extend(&sum[..8]);
        for mut bytes in [first, second] {
            assert_eq!(from_bytes(&bytes), Some((record, vec![leaf(0, 4), leaf(0, 1)])));
            bytes[17] ^= 1;
            assert_eq!(from_bytes(&bytes), None);
        }
    }

    #[test]
    fn a_record_alone_is_understood_and_is_what_is_stored_without_leaves() {
        let record = WriterRecord::new(3, [7; 16], "node2");
        let bytes = encode_record(record);
        assert_eq!(from_bytes(&bytes), Some((record, vec![])));
        assert_eq!(to_bytes(record, &[]), bytes);
        assert_eq!(to_bytes(record, &[leaf(0, 0), leaf(0, 0)]), bytes);
    }
}
