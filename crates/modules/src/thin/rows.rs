//! What stands in the trees of a pool (`docs/format.md`, "The pool"): a row of a volume, its name, and where a block of it is.

use crate::meta::tree::{TREE_KIND_FIRST, TREE_ROOTS, TreeKind, TreePointer, TreeRefers};
use crate::meta::tree::{TreeRoot, TreeValue};

/// Bytes of the longest name of a volume.
pub const VOLUME_NAME_BYTES_MAX: usize = 63;
/// Data blocks of a pool are fewer than this: their numbers have 36 bits in a mapping.
pub(super) const BLOCKS_MAX: u64 = 1 << 36;
/// For so many blocks of a volume that have metadata of what stands on it room is kept, at most.
pub(super) const KEPT_MAX: u8 = 64;
/// Times are below this: 28 bits of a mapping.
pub(super) const TIME_MAX: u64 = 1 << 28;

const BLOCK_BITS: u32 = 36;
const READ_ONLY: u8 = 1;
const OF_CUT: u8 = 2;
const UNDECIDED: u8 = 4;

/// All kinds of trees that a pool has.
pub(super) static KINDS: [TreeKind; 4] = [
    TreeKind::of::<VolumeRow>(TREE_KIND_FIRST, "volumes"),
    TreeKind::of::<NameRow>(TREE_KIND_FIRST + 1, "names of volumes"),
    TreeKind::of::<Mapping>(TREE_KIND_FIRST + 2, "blocks of a volume"),
    TreeKind::of::<WriterRow>(TREE_KIND_FIRST + 3, "writers of volumes"),
];

/// Numbers of the kinds of the roots in the state.
pub(super) const ROOT_KINDS: [u8; TREE_ROOTS] =
    [TREE_KIND_FIRST, TREE_KIND_FIRST + 1, TREE_KIND_FIRST + 3, 0];

/// The tree of volumes that has its root there.
pub(super) fn volumes_at(at: TreePointer) -> TreeRoot<VolumeRow> {
    TreeRoot::new(&KINDS[0], at)
}

/// The tree of names, likewise.
pub(super) fn names_at(at: TreePointer) -> TreeRoot<NameRow> {
    TreeRoot::new(&KINDS[1], at)
}

/// The tree of writer records, likewise.
pub(super) fn writers_at(at: TreePointer) -> TreeRoot<WriterRow> {
    TreeRoot::new(&KINDS[3], at)
}

/// Whether a snapshot is one of several, cut as one: then its incarnation is the cut's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RowCut {
    /// It is a volume, or a snapshot for itself.
    #[default]
    No,
    /// It may be that not all of them are there, or not of one moment.
    Undecided,
    /// All are, for good.
    Kept,
}

/// A volume, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VolumeRow {
    /// Where its blocks are: a tree of [`Mapping`]s by blocks of the volume.
    pub root: TreePointer,
    pub bytes: u64,
    /// So many blocks have a mapping.
    pub mapped: u64,
    /// Which life of the content this is.
    pub incarnation: u64,
    /// What it is a snapshot or a clone of; 0 if of nothing.
    pub origin: u64,
    /// What was mapped before this time may be others', too.
    pub shared_before: u64,
    pub is_read_only: bool,
    pub cut: RowCut,
    /// So many of its blocks have metadata of what stands on it: room for as many is kept while it can be written.
    pub kept: u8,
    /// In seconds since 1970, for people; 0 if that is not known.
    pub created_at: u64,
}

impl VolumeRow {
    /// Its blocks.
    pub fn blocks(&self) -> TreeRoot<Mapping> {
        TreeRoot::new(&KINDS[2], self.root)
    }
}

impl TreeValue for VolumeRow {
    const BYTES: usize = 64;

    fn put(&self, out: &mut [u8]) {
        out[..16].copy_from_slice(&self.root.to_bytes());
        for (at, number) in
            [self.bytes, self.mapped, self.incarnation, self.origin].into_iter().enumerate()
        {
            out[16 + 8 * at..24 + 8 * at].copy_from_slice(&number.to_le_bytes());
        }
        out[48..52].copy_from_slice(&(self.shared_before as u32).to_le_bytes());
        out[52] = if self.is_read_only { READ_ONLY } else { 0 };
        out[52] |= match self.cut {
            RowCut::No => 0,
            RowCut::Undecided => OF_CUT | UNDECIDED,
            RowCut::Kept => OF_CUT,
        };
        out[53] = self.kept;
        out[56..64].copy_from_slice(&self.created_at.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let shared_before = number(48) & u64::from(u32::MAX);
        let cut = match bytes[52] {
            READ_ONLY | 0 => RowCut::No,
            of if of == READ_ONLY | OF_CUT => RowCut::Kept,
            of if of == READ_ONLY | OF_CUT | UNDECIDED => RowCut::Undecided,
            _ => return None,
        };
        let is_right = bytes[54..56] == [0; 2]
            && bytes[53] <= KEPT_MAX
            && shared_before < TIME_MAX
            && number(16) > 0
            && number(16).is_multiple_of(512);
        is_right.then(|| VolumeRow {
            root: TreePointer::from_bytes(bytes),
            bytes: number(16),
            mapped: number(24),
            incarnation: number(32),
            origin: number(40),
            shared_before,
            is_read_only: bytes[52] & READ_ONLY != 0,
            cut,
            kept: bytes[53],
            created_at: number(56),
        })
    }

    fn refers(&self) -> TreeRefers {
        TreeRefers::Tree { kind: KINDS[2].number, root: self.root }
    }
}

/// What people call a volume, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameRow {
    len: u8,
    bytes: [u8; VOLUME_NAME_BYTES_MAX],
}

impl NameRow {
    /// Of a name that was [checked](check_name).
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; VOLUME_NAME_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        NameRow { len: name.len() as u8, bytes }
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len.into()]).unwrap_or("")
    }
}

impl TreeValue for NameRow {
    const BYTES: usize = 64;

    fn put(&self, out: &mut [u8]) {
        out[0] = self.len;
        out[1..].copy_from_slice(&self.bytes);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let (len, bytes) = (bytes[0], bytes[1..].try_into().ok()?);
        let row = NameRow { len, bytes };
        let rest = row.bytes.get(usize::from(len)..)?;
        let is_right = rest.iter().all(|&byte| byte == 0)
            && std::str::from_utf8(&row.bytes[..len.into()])
                .is_ok_and(|name| check_name(name).is_ok());
        is_right.then_some(row)
    }
}

/// Whether a volume can be called that.
///
/// # Errors
/// A sentence whose subject is the name.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX {
        return Err("has 1 to 63 bytes of UTF-8");
    }
    if name.chars().any(char::is_control) {
        return Err("has no control characters");
    }
    Ok(())
}

/// A record of a writer has fewer rows than this.
pub(super) const ROWS_OF_WRITER: u64 = 128;

/// The key of a row of the record of a volume.
pub(super) fn writer_key(volume: u64, nth: u64) -> u64 {
    volume * ROWS_OF_WRITER + nth
}

/// So many bytes of a record of who may write a volume, by the number of the volume and of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriterRow(pub [u8; WriterRow::LEN]);

impl WriterRow {
    pub const LEN: usize = 64;

    /// These, and zeroes behind them.
    pub fn new(bytes: &[u8]) -> Self {
        let mut row = [0; Self::LEN];
        row[..bytes.len()].copy_from_slice(bytes);
        WriterRow(row)
    }
}

impl TreeValue for WriterRow {
    const BYTES: usize = WriterRow::LEN;

    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }

    /// Whether all rows together are a record is seen when all of them are there.
    fn take(bytes: &[u8]) -> Option<Self> {
        Some(WriterRow(bytes.try_into().ok()?))
    }
}

/// Where a block of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    /// The data block.
    pub block: u64,
    /// The time of the pool when it was mapped.
    pub time: u64,
}

impl TreeValue for Mapping {
    const BYTES: usize = 8;

    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(&(self.time << BLOCK_BITS | self.block).to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let packed = u64::from_le_bytes(bytes.try_into().ok()?);
        Some(Mapping { block: packed & (BLOCKS_MAX - 1), time: packed >> BLOCK_BITS })
    }

    fn refers(&self) -> TreeRefers {
        TreeRefers::Block(self.block)
    }
}
