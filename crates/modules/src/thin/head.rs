//! [`PoolHead`]: what the label of the metadata part says of the pool, behind the state of its trees; and what both labels of a new
//! pool say.

use super::THIN_MODULE;
use super::rows::{BLOCKS_MAX, TIME_MAX};
use crate::meta::Label;
use crate::meta::tree::{NODE_BYTES, TreeState};

/// Bytes of the head.
pub const POOL_HEAD_BYTES: usize = 64;
/// Bytes of a block, by default.
pub const BLOCK_BYTES_DEFAULT: u32 = 64 << 10;
/// Least and most bytes of a block.
pub const BLOCK_BYTES_LEAST: u32 = 4 << 10;
/// As [`BLOCK_BYTES_LEAST`].
pub const BLOCK_BYTES_MOST: u32 = 1 << 20;
/// Least bytes of data that a metadata part has: a smaller one has nothing left beside what is kept for commits and deletes.
pub const METADATA_BYTES_LEAST: u64 = 4 << 20;

const VERSION: u8 = 1;
/// Of a pool that has records of writers.
const VERSION_WITH_WRITERS: u8 = 2;

/// What a pool is, beside its trees. A commit replaces it as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolHead {
    /// A block has 2 to the power of this many bytes: 12 to 20.
    pub block_shift: u8,
    /// The number that the next volume gets: from 1 on, and each once.
    pub next_volume: u64,
    /// Counts snapshots, clones and rollbacks; below 2^28.
    pub time: u64,
    /// If it has ended in order, and was not changed since: how often it had been opened for writing by then. Else 0.
    pub ended: u64,
    /// If it has ended in order: free blocks from this one on, counted from 1, may not have been discarded; 0 if all were.
    pub untrimmed: u64,
    /// It has records of who may write its volumes.
    pub has_writers: bool,
}

/// What a new pool is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewPool {
    /// Bytes of a block: a power of two from 4 KiB to 1 MiB. By custom [`BLOCK_BYTES_DEFAULT`].
    pub block_bytes: u32,
    /// Bytes of data of the data part, by its label.
    pub data_bytes: u64,
    /// Bytes of data of the metadata part, likewise: [`METADATA_BYTES_LEAST`] or more.
    pub metadata_bytes: u64,
}

impl NewPool {
    /// The states for the labels of both parts: of the data, and of the metadata. Pure: whoever makes the pool writes them.
    ///
    /// # Errors
    /// It cannot be made: a sentence whose subject is the pool.
    pub fn states(&self) -> Result<[Vec<u8>; 2], String> {
        let NewPool { block_bytes, data_bytes, metadata_bytes } = *self;
        let is_block = block_bytes.is_power_of_two()
            && (BLOCK_BYTES_LEAST..=BLOCK_BYTES_MOST).contains(&block_bytes);
        if !is_block {
            return Err(format!(
                "has blocks of a power of two from {BLOCK_BYTES_LEAST} to {BLOCK_BYTES_MOST} bytes, not {block_bytes}"
            ));
        }
        let blocks = data_bytes / u64::from(block_bytes);
        if blocks == 0 || blocks > BLOCKS_MAX {
            return Err(format!(
                "has 1 to {BLOCKS_MAX} blocks, and the data part has room for {blocks}: use another size of blocks or of the part"
            ));
        }
        if metadata_bytes < METADATA_BYTES_LEAST {
            return Err(format!(
                "needs {METADATA_BYTES_LEAST} bytes for metadata, and the part has {metadata_bytes}: use a larger one"
            ));
        }
        let block_shift = block_bytes.ilog2() as u8;
        let (time, ended, untrimmed, has_writers) = (0, 0, 0, false);
        let head = PoolHead { block_shift, next_volume: 1, time, ended, untrimmed, has_writers };
        let nodes = nodes_in(metadata_bytes);
        Ok([Vec::new(), TreeState::new(nodes, blocks).encode(&head.encode())])
    }
}

/// Nodes that a metadata part of so many bytes has.
pub(super) fn nodes_in(bytes: u64) -> u64 {
    (bytes / NODE_BYTES as u64).min(1 << 40)
}

impl PoolHead {
    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }

    /// Whether the pool whose metadata has this label is at rest: it has ended in order, and is not open to be written. Then both copies of the
    /// label say the same of it. None if this is no such label.
    pub fn is_at_rest(label: &Label) -> Option<bool> {
        let is_its = *label.module == THIN_MODULE && label.role == 1;
        let (_, rest) = is_its.then(|| TreeState::decode(&label.state).ok())??;
        let ended = PoolHead::decode(rest).ok()?.ended;
        Some(ended != 0 && ended == label.openings)
    }

    /// It as bytes for a label.
    pub fn encode(&self) -> [u8; POOL_HEAD_BYTES] {
        let mut out = [0; POOL_HEAD_BYTES];
        out[0] = if self.has_writers { VERSION_WITH_WRITERS } else { VERSION };
        out[1] = self.block_shift;
        out[8..16].copy_from_slice(&self.next_volume.to_le_bytes());
        out[16..24].copy_from_slice(&self.time.to_le_bytes());
        out[24..32].copy_from_slice(&self.ended.to_le_bytes());
        out[32..40].copy_from_slice(&self.untrimmed.to_le_bytes());
        out
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// They say what cannot be, or are of another version: a sentence whose subject is the pool's head.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let Ok(bytes) = <&[u8; POOL_HEAD_BYTES]>::try_from(bytes) else {
            return Err("has another length than 64 bytes");
        };
        if ![VERSION, VERSION_WITH_WRITERS].contains(&bytes[0]) {
            return Err("is of another version: use the program that wrote it");
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let [next_volume, time, ended, untrimmed] = [8, 16, 24, 32].map(number);
        let (block_shift, has_writers) = (bytes[1], bytes[0] == VERSION_WITH_WRITERS);
        let head = PoolHead { block_shift, next_volume, time, ended, untrimmed, has_writers };
        if !(BLOCK_BYTES_LEAST.ilog2()..=BLOCK_BYTES_MOST.ilog2())
            .contains(&head.block_shift.into())
        {
            return Err("has blocks of a size that none have");
        }
        if head.next_volume == 0 || head.time >= TIME_MAX {
            return Err("counts volumes or snapshots as nobody does");
        }
        if head.untrimmed > BLOCKS_MAX || head.ended == 0 && head.untrimmed != 0 {
            return Err("says what was not discarded as nobody does");
        }
        if bytes[2..8] != [0; 6] || bytes[40..] != [0; 24] {
            return Err("has bytes where none has a meaning");
        }
        Ok(head)
    }
}
