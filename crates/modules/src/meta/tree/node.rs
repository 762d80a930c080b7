//! [`Node`]: 4 KiB of a tree, and how rows stand in it (`docs/format.md`, "A node").
//!
//! What is in memory as a node has been looked at as a whole: its rows can be used without further checks. Who has a row wrong
//! is told so by [`Node::check`], before it is one.

use std::ops::Range;

use super::NodeFault;

/// Bytes of a node: what is read, and written, as one.
pub const NODE_BYTES: usize = 4096;
/// Most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 64;
/// The highest level that a node can have. Leaves are 0.
pub const LEVEL_MAX: u8 = 11;

pub(super) const HEAD_BYTES: usize = 64;
pub(super) const MAGIC: [u8; 8] = *b"TWTREE\0\0";
const NODE_VERSION: u16 = 1;
const KEY_BYTES: usize = 8;
/// Bytes of what stands beside a key in a node that is no leaf.
const POINTER_BYTES: usize = 16;

const AT_CHECKSUM: usize = 8;
const AT_VERSION: usize = 12;
const AT_LEVEL: usize = 14;
const AT_KIND: usize = 15;
const AT_WHOLE: usize = 16;
const AT_ADDRESS: usize = 32;
const AT_GENERATION: usize = 40;
const AT_ROWS: usize = 48;
const AT_VALUE_BYTES: usize = 50;
const AT_RESERVED: usize = 52;

const _: () = assert!(HEAD_BYTES + 2 * (KEY_BYTES + VALUE_BYTES_MAX) <= NODE_BYTES);

/// Names a node: where it is, and which commit wrote it, so that what a write left there earlier is not taken for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreePointer {
    /// Its address: counted in nodes from the first one. 0 if there is none.
    pub node: u64,
    /// Of the commit that wrote it; 0 if there is none.
    pub generation: u64,
}

impl TreePointer {
    /// Names no node: the root of an empty tree.
    pub const NONE: TreePointer = TreePointer { node: 0, generation: 0 };

    /// There is no node.
    pub fn is_none(self) -> bool {
        self.node == 0
    }

    /// It as 16 bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.node.to_le_bytes());
        bytes[8..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    /// What 16 bytes say.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        TreePointer { node: u64_of(bytes, 0), generation: u64_of(bytes, 8) }
    }
}

/// What a node must say of itself, wherever it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePlace {
    pub whole: [u8; 16],
    pub address: u64,
    /// Addresses are below this.
    pub nodes: u64,
}

/// A node in memory.
pub(super) struct Node {
    bytes: [u8; NODE_BYTES],
}

impl Node {
    /// One without rows.
    pub fn new(
        place: NodePlace,
        at: TreePointer,
        level: u8,
        kind: u8,
        value_bytes: u16,
    ) -> Box<Self> {
        let mut node = Box::new(Node { bytes: [0; NODE_BYTES] });
        let value_bytes = if level > 0 { POINTER_BYTES as u16 } else { value_bytes };
        node.bytes[..8].copy_from_slice(&MAGIC);
        node.put(AT_VERSION, &NODE_VERSION.to_le_bytes());
        node.put(AT_LEVEL, &[level]);
        node.put(AT_KIND, &[kind]);
        node.put(AT_WHOLE, &place.whole);
        node.put(AT_VALUE_BYTES, &value_bytes.to_le_bytes());
        node.rename(at);
        node
    }

    /// Bytes that nobody has looked at yet: to be [checked](Node::check) before anything else.
    pub fn unchecked() -> Box<Self> {
        Box::new(Node { bytes: [0; NODE_BYTES] })
    }

    pub fn bytes(&self) -> &[u8; NODE_BYTES] {
        &self.bytes
    }

    pub fn bytes_mut(&mut self) -> &mut [u8; NODE_BYTES] {
        &mut self.bytes
    }

    pub fn copy_from(&mut self, other: &Node) {
        self.bytes = other.bytes;
    }

    /// It stands elsewhere now, and is of another commit.
    pub fn rename(&mut self, at: TreePointer) {
        self.put(AT_ADDRESS, &at.node.to_le_bytes());
        self.put(AT_GENERATION, &at.generation.to_le_bytes());
    }

    /// Makes the sum fit.
    pub fn seal(&mut self) {
        let sum = checksum(&self.bytes);
        self.put(AT_CHECKSUM, &sum.to_le_bytes());
    }

    /// Whether it is a node, of that place, whose rows can be used.
    ///
    /// # Errors
    /// See [`NodeFault`]; the first that is wrong.
    pub fn check(&self, place: NodePlace) -> Result<(), NodeFault> {
        let bytes = &self.bytes;
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(NodeFault::Zero);
        }
        if bytes[..8] != MAGIC {
            return Err(NodeFault::Foreign);
        }
        let (says, has) = (self.checksum(), checksum(bytes));
        if says != has {
            return Err(NodeFault::Checksum { says, has });
        }
        let version = u16_of(bytes, AT_VERSION);
        if version != NODE_VERSION {
            return Err(NodeFault::Version { version });
        }
        let whole = &bytes[AT_WHOLE..AT_WHOLE + 16];
        if *whole != place.whole {
            return Err(NodeFault::Whole { says: whole.try_into().expect("16 bytes") });
        }
        let says = u64_of(bytes, AT_ADDRESS);
        if says != place.address {
            return Err(NodeFault::Address { says });
        }
        if self.level() > LEVEL_MAX {
            return Err(NodeFault::Malformed { field: "level" });
        }
        let width = self.value_bytes();
        let is_wide = if self.level() > 0 { width == POINTER_BYTES } else { is_value_bytes(width) };
        if !is_wide {
            return Err(NodeFault::Malformed { field: "value bytes" });
        }
        if self.rows() == 0 || self.rows() > self.capacity() {
            return Err(NodeFault::Malformed { field: "rows" });
        }
        let is_zero = |range: Range<usize>| bytes[range].iter().all(|&byte| byte == 0);
        if !is_zero(AT_RESERVED..HEAD_BYTES) || !is_zero(self.at(self.rows())..NODE_BYTES) {
            return Err(NodeFault::Malformed { field: "reserved" });
        }
        if let Some(row) = (1..self.rows()).find(|&row| self.key(row - 1) >= self.key(row)) {
            return Err(NodeFault::Order { row });
        }
        let is_wrong = |row: &usize| {
            let TreePointer { node, generation } = self.pointer(*row);
            node == 0 || node >= place.nodes || generation == 0 || generation > self.generation()
        };
        if self.level() > 0
            && let Some(row) = (0..self.rows()).find(is_wrong)
        {
            return Err(NodeFault::Pointer { row, at: self.pointer(row) });
        }
        Ok(())
    }

    pub fn checksum(&self) -> u32 {
        u32::from_le_bytes(self.bytes[AT_CHECKSUM..AT_CHECKSUM + 4].try_into().expect("4 bytes"))
    }

    pub fn level(&self) -> u8 {
        self.bytes[AT_LEVEL]
    }

    pub fn kind(&self) -> u8 {
        self.bytes[AT_KIND]
    }

    pub fn generation(&self) -> u64 {
        u64_of(&self.bytes, AT_GENERATION)
    }

    pub fn rows(&self) -> usize {
        usize::from(u16_of(&self.bytes, AT_ROWS))
    }

    pub fn value_bytes(&self) -> usize {
        usize::from(u16_of(&self.bytes, AT_VALUE_BYTES))
    }

    /// Most rows that it has room for.
    pub fn capacity(&self) -> usize {
        (NODE_BYTES - HEAD_BYTES) / (KEY_BYTES + self.value_bytes())
    }

    pub fn key(&self, row: usize) -> u64 {
        debug_assert!(row < self.rows());
        u64_of(&self.bytes, self.at(row))
    }

    pub fn value(&self, row: usize) -> &[u8] {
        debug_assert!(row < self.rows());
        let at = self.at(row) + KEY_BYTES;
        &self.bytes[at..at + self.value_bytes()]
    }

    pub fn pointer(&self, row: usize) -> TreePointer {
        TreePointer::from_bytes(self.value(row))
    }

    /// First and last key; none if it has no rows.
    pub fn ends(&self) -> Option<(u64, u64)> {
        let last = self.rows().checked_sub(1)?;
        Some((self.key(0), self.key(last)))
    }

    /// The row of that key, or else the first of a higher one.
    pub fn find(&self, key: u64) -> Result<usize, usize> {
        let (mut from, mut to) = (0, self.rows());
        while from < to {
            let middle = from.midpoint(to);
            match self.key(middle).cmp(&key) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    /// The row whose node has that key, if any has; none if it is below all.
    pub fn find_below(&self, key: u64) -> Option<usize> {
        match self.find(key) {
            Ok(row) => Some(row),
            Err(row) => row.checked_sub(1),
        }
    }

    pub fn set_key(&mut self, row: usize, key: u64) {
        let at = self.at(row);
        self.put(at, &key.to_le_bytes());
    }

    pub fn set_value(&mut self, row: usize, value: &[u8]) {
        debug_assert_eq!(value.len(), self.value_bytes());
        let at = self.at(row) + KEY_BYTES;
        self.put(at, value);
    }

    /// There is room for it.
    pub fn insert(&mut self, row: usize, key: u64, value: &[u8]) {
        debug_assert!(row <= self.rows() && self.rows() < self.capacity());
        let (at, end) = (self.at(row), self.at(self.rows()));
        self.bytes.copy_within(at..end, at + KEY_BYTES + value.len());
        self.set_rows(self.rows() + 1);
        self.set_key(row, key);
        self.set_value(row, value);
    }

    pub fn remove(&mut self, rows: Range<usize>) {
        let (from, to, end) = (self.at(rows.start), self.at(rows.end), self.at(self.rows()));
        self.bytes.copy_within(to..end, from);
        self.bytes[end - (to - from)..end].fill(0);
        self.set_rows(self.rows() - rows.len());
    }

    /// Those rows of another one behind its own.
    pub fn append(&mut self, other: &Node, rows: Range<usize>) {
        let at = self.at(self.rows());
        let from = &other.bytes[other.at(rows.start)..other.at(rows.end)];
        self.put(at, from);
        self.set_rows(self.rows() + rows.len());
        debug_assert!(self.rows() <= self.capacity());
    }

    fn at(&self, row: usize) -> usize {
        HEAD_BYTES + row * (KEY_BYTES + self.value_bytes())
    }

    fn set_rows(&mut self, rows: usize) {
        self.put(AT_ROWS, &(rows as u16).to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Whether values can have so many bytes.
pub(super) const fn is_value_bytes(bytes: usize) -> bool {
    bytes >= 8 && bytes <= VALUE_BYTES_MAX && bytes % 8 == 0
}

fn checksum(bytes: &[u8; NODE_BYTES]) -> u32 {
    let before = crc32c::crc32c(&bytes[..AT_CHECKSUM]);
    let zero = crc32c::crc32c_append(before, &[0; 4]);
    crc32c::crc32c_append(zero, &bytes[AT_VERSION..])
}

fn u16_of(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

pub(super) fn u64_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
