//! Who may write each volume as an export (`docs/format.md`, "The pool"): a record of each that was exported, with the generations under which the leaves of the pool were held for it.
//!
//! Records are a tree of the pool. Storing one is an operation like others, which has ended when a commit has made it durable; what a record says to whoever asks is what was durable last. A snapshot
//! or a clone is another volume, which nobody has written yet: it has none. A rollback leaves it as it is, since generations are never used twice; who is on record finds another incarnation (rule 23).

use thinwire_volume::{Completion, ErrorKind, Io, KeptWriter, LeafGeneration, Op, WriterRecord};

use super::ops::{OpStop, PoolDone, PoolError, PoolOp};
use super::rows::{ROWS_OF_WRITER, VolumeRow, WriterRow, writer_key, writers_at};
use super::{Core, NAME, PoolCanary, THIN_MODULE};
use crate::meta::tree::{SeenRows, TreeFault, TreeState, TreeStop, rows_of_image};
use crate::meta::{LABEL_LEAVES_MAX, Label};

/// Bytes of a record without leaves.
const HEAD_BYTES: usize = 96;
const NAME_BYTES: usize = HEAD_BYTES - 32;

/// What a pool knows of the writer of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Writer {
    /// There never was one.
    #[default]
    None,
    /// This is on record.
    Kept(Box<KeptWriter>),
    /// What is there is no record.
    Unreadable,
}

/// Whether a record has room: it may have as many leaves as in a label.
fn has_room(kept: &KeptWriter) -> bool {
    kept.leaves.as_ref().is_none_or(|leaves| leaves.len() <= LABEL_LEAVES_MAX)
}

/// A record as rows.
pub(super) fn rows_of(kept: &KeptWriter) -> Vec<WriterRow> {
    let record = &kept.record;
    let (name, leaves) = (record.name.as_str(), kept.leaves.as_deref().unwrap_or_default());
    let mut bytes = vec![0; HEAD_BYTES];
    bytes[..8].copy_from_slice(&record.generation.to_le_bytes());
    bytes[8..24].copy_from_slice(&record.holder);
    bytes[24] = name.len() as u8;
    bytes[25] = u8::from(kept.leaves.is_some());
    bytes[26..28].copy_from_slice(&(leaves.len() as u16).to_le_bytes());
    bytes[28..32].copy_from_slice(&record.idle.to_le_bytes());
    bytes[32..32 + name.len()].copy_from_slice(name.as_bytes());
    for LeafGeneration { leaf, generation } in leaves {
        bytes.extend(leaf);
        bytes.extend(generation.to_le_bytes());
    }
    bytes.chunks(WriterRow::LEN).map(WriterRow::new).collect()
}

/// The record that these rows are, in order; `None` if they are none.
pub(super) fn of_rows(rows: &[WriterRow]) -> Option<KeptWriter> {
    let bytes: Vec<u8> = rows.iter().flat_map(|row| row.0).collect();
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let generation = u64::from_le_bytes(head[..8].try_into().ok()?);
    let (holder, len, count) = (head[8..24].try_into().ok()?, usize::from(head[24]), &head[26..28]);
    let count = usize::from(u16::from_le_bytes(count.try_into().ok()?));
    let (name, behind_name) = head[32..].split_at_checked(len.min(NAME_BYTES))?;
    let name = std::str::from_utf8(name).ok()?;
    let (leaves, behind) = rest.split_at_checked(count * LeafGeneration::BYTES)?;
    let is_right = len <= NAME_BYTES
        && head[25] <= 1
        && (head[25] == 1 || count == 0)
        && count <= LABEL_LEAVES_MAX
        && behind.len() < WriterRow::LEN
        && [behind_name, behind].iter().all(|rest| rest.iter().all(|&b| b == 0));
    let leaf = |bytes: &[u8]| LeafGeneration {
        leaf: bytes[..16].try_into().expect("16 bytes"),
        generation: u64::from_le_bytes(bytes[16..24].try_into().expect("8 bytes")),
    };
    let leaves = leaves.chunks(LeafGeneration::BYTES).map(leaf).collect();
    let idle = u32::from_le_bytes(head[28..32].try_into().ok()?);
    let record = WriterRecord { idle, ..WriterRecord::new(generation, holder, name) };
    is_right.then(|| KeptWriter { record, leaves: (head[25] == 1).then_some(leaves) })
}

/// Who may write the volumes of a pool as exports, as its metadata says.
pub struct SeenWriters {
    /// By the number of the volume; none of what is there and is no record.
    pub writers: Vec<(u64, Option<KeptWriter>)>,
    /// So many nodes with such cannot be read.
    pub bad_nodes: u64,
    /// There are more.
    pub has_more: bool,
}

/// Most nodes that somebody reads who looks at writers: some 28 thousand of them.
const SEEN_NODES_MAX: usize = 1024;

/// Looks at the writers of the volumes of a pool, whose metadata has this label. `read` is given an offset in that part, and reads [`NODE_BYTES`](crate::meta::tree::NODE_BYTES) bytes.
/// None of what is no such label.
///
/// # Errors
/// Those of `read`.
pub fn look_at_writers<E>(
    label: &Label,
    read: &mut dyn FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<Option<SeenWriters>, E> {
    let is_its = *label.module == THIN_MODULE && label.role == 1;
    let state = is_its.then(|| TreeState::decode(&label.state).ok()).flatten();
    let Some((state, _)) = state else { return Ok(None) };
    let tree = writers_at(state.roots[2]);
    let SeenRows { rows, bad_nodes, has_more } =
        rows_of_image((label, &state), tree, SEEN_NODES_MAX, read)?;
    Ok(Some(SeenWriters { writers: records(&rows).collect(), bad_nodes, has_more }))
}

/// The records that these rows are, in the order of their keys; none for what is no record.
fn records(rows: &[(u64, WriterRow)]) -> impl Iterator<Item = (u64, Option<KeptWriter>)> {
    let of = |of: &[(u64, WriterRow)]| {
        let volume = of[0].0 / ROWS_OF_WRITER;
        let wants = writer_key(volume, 0)..;
        let is_whole = of.iter().zip(wants).all(|((key, _), wants)| *key == wants);
        let rows: Vec<_> = of.iter().map(|(_, row)| *row).collect();
        (volume, of_rows(&rows).filter(|_| is_whole))
    };
    rows.chunk_by(|(one, _), (other, _)| one / ROWS_OF_WRITER == other / ROWS_OF_WRITER).map(of)
}

impl Core {
    /// All rows of records were read, in the order of their keys.
    pub(super) fn take_writers(&mut self) {
        let rows = std::mem::take(&mut self.writers_found);
        for (volume, kept) in records(&rows) {
            if kept.is_none() || !self.entries.contains_key(&volume) {
                self.odd_writers.push(volume);
            }
            if let Some(entry) = self.entries.get_mut(&volume) {
                entry.writer = kept.map_or(Writer::Unreadable, |kept| Writer::Kept(kept.into()));
            }
        }
    }

    /// Not all records can be read: nobody is told of any.
    pub(super) fn lose_writers(&mut self, fault: TreeFault) {
        self.writers_found = Vec::new();
        self.lost_writers = Some(fault);
    }

    /// An I/O of the record of a volume.
    #[cold]
    pub(super) fn begin_record(&mut self, slot: u32, io: &Io) {
        let to = self.slots.get_mut(slot);
        let volume = to.volume;
        let kept = self.entries.get(&volume).map(|entry| &entry.writer);
        let refused = match (io.op, kept, KeptWriter::from_data(&io.data)) {
            (Op::LoadWriter, None | Some(Writer::Unreadable), _) => Some(ErrorKind::Io),
            (Op::LoadWriter, ..) => self.lost_writers.as_ref().map(TreeFault::kind),
            (_, _, None) => Some(ErrorKind::Invalid),
            _ if to.geometry.features.read_only => Some(ErrorKind::ReadOnly),
            (_, _, Some(kept)) if has_room(&kept) && volume <= u64::MAX / ROWS_OF_WRITER => {
                let op = PoolOp::StoreWriter { volume, kept: kept.into() };
                return self.ask(slot, io, op);
            }
            _ => Some(ErrorKind::Unsupported),
        };
        let mut completion =
            Completion::new(io.token, refused.map_or(Ok(()), |kind| Err(io.error(kind, NAME))));
        if let (None, Some(Writer::Kept(kept))) = (refused, kept) {
            completion.data = kept.to_data(&self.config.pool);
        } else if refused.is_none() {
            completion.data = KeptWriter::default().to_data(&self.config.pool);
        }
        self.woken.extend(to.wakes());
        to.put_ready(completion);
    }

    /// Puts a record in the place of the one before.
    pub(super) fn store_writer(
        &mut self,
        volume: u64,
        kept: &KeptWriter,
    ) -> Result<PoolDone, OpStop> {
        if self.row(volume)?.is_read_only {
            return Err(PoolError::ReadOnly.into());
        }
        if let Some(fault) = &self.lost_writers {
            return Err(PoolError::from(fault.clone()).into());
        }
        // Who may write must be on record also where the pool is full, or nobody could make room from above. A first record takes what it did not have, and
        // leaves what is kept for those that give back.
        let has_one = self.entries.get(&volume).is_some_and(|entry| entry.writer != Writer::None);
        let mut change = match has_one || self.canary == PoolCanary::FirstWriterTakesKept {
            true => self.trees.change_to_free()?,
            false => self.trees.change()?,
        };
        let (mut writers, mut next) = (self.writers, 0);
        for (key, row) in (writer_key(volume, 0)..).zip(rows_of(kept)) {
            (writers, _) = change.insert(writers, key, &row)?;
            next = key + 1;
        }
        let mut from = Some(next);
        while let Some(at) = from {
            (writers, from) =
                change.remove_range(writers, at..=writer_key(volume, ROWS_OF_WRITER - 1))?;
        }
        change.apply()?;
        self.writers = writers;
        Ok(PoolDone::Done)
    }

    /// From where on rows of a deleted volume go; none if they stay.
    pub(super) fn first_row_of_writer(&self, volume: u64) -> Option<u64> {
        let may_go = volume <= u64::MAX / ROWS_OF_WRITER;
        (may_go && self.canary != PoolCanary::KeepsWriter).then(|| writer_key(volume, 0))
    }

    /// All volumes are known, and that is none of them.
    pub(super) fn is_no_more(&self, volume: u64) -> bool {
        self.ops.damaged.is_none() && !self.entries.contains_key(&volume)
    }

    /// Takes away what there is of the writer of a volume that is no more.
    pub(super) fn forget_writer(&mut self, volume: u64) -> Result<(), TreeStop> {
        let mut row = Vec::<(u64, VolumeRow)>::new();
        self.trees.rows(self.volumes, volume..=volume, &mut row)?;
        if !row.is_empty() || !self.is_no_more(volume) {
            return Ok(());
        }
        let (mut writers, mut from) = (self.writers, self.first_row_of_writer(volume));
        let mut change = self.trees.change_to_free()?;
        while let Some(at) = from {
            let last = writer_key(volume, ROWS_OF_WRITER - 1);
            (writers, from) = change.remove_range(writers, at..=last)?;
        }
        change.apply()?;
        self.writers = writers;
        self.odd_writers.retain(|odd| *odd != volume);
        Ok(())
    }

    /// A record is durable.
    pub(super) fn on_writer_stored(&mut self, volume: u64, kept: &KeptWriter) {
        if let Some(entry) = self.entries.get_mut(&volume) {
            entry.writer = Writer::Kept(kept.clone().into());
        }
    }

    /// Who is on record as the writer of a volume as an export, as it was durable last. None if nobody ever was, or that cannot be read.
    pub(super) fn writer_of(&self, volume: u64) -> Option<&KeptWriter> {
        match &self.entries.get(&volume)?.writer {
            Writer::Kept(kept) => Some(kept),
            Writer::None | Writer::Unreadable => None,
        }
    }

    /// The canary that has a new volume begin with the record of what it is of.
    pub(super) fn inherit_writer(&mut self, from: u64, volume: u64) {
        if self.canary == PoolCanary::InheritsWriter {
            let of = self.writer_of(from).cloned();
            of.into_iter().for_each(|kept| self.on_writer_stored(volume, &kept));
        }
    }
}
