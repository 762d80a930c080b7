//! What each operation changes in the trees, as one change.

use super::{OpStop, PoolDone, PoolError, PoolOp};
use crate::meta::tree::{TreePointer, TreeStop};
use crate::thin::rows::{NameRow, ROWS_OF_WRITER, RowCut, TIME_MAX, VolumeRow};
use crate::thin::rows::{check_name, writer_key};
use crate::thin::{Core, Entry, PoolCanary, VOLUMES_MAX};

/// Sizes of volumes are multiples of this: the largest block that the data part may have.
const SIZE_ALIGN_BYTES: u64 = 4096;
const SIZE_MAX: u64 = 1 << 62;

/// What makes a new volume, beside its content.
pub(super) struct New<'a> {
    pub name: &'a str,
    pub incarnation: u64,
    pub at: u64,
    pub cut: RowCut,
}

impl<'a> New<'a> {
    /// What is no part of a cut.
    fn plain(name: &'a str, incarnation: u64, at: u64) -> Self {
        New { name, incarnation, at, cut: RowCut::No }
    }
}

fn check_size(bytes: u64) -> Result<(), PoolError> {
    if bytes == 0 || !bytes.is_multiple_of(SIZE_ALIGN_BYTES) || bytes > SIZE_MAX {
        return Err(PoolError::BadSize {
            why: "has a multiple of 4096 bytes, above 0 and at most 2^62",
        });
    }
    Ok(())
}

impl Core {
    /// Makes the change of an operation, which the next commit has.
    pub(super) fn apply(&mut self, op: &PoolOp) -> Result<PoolDone, OpStop> {
        self.check_kept(op)?;
        match op {
            PoolOp::Create { name, bytes, incarnation, at } => {
                check_size(*bytes)?;
                let row = VolumeRow {
                    root: TreePointer::NONE,
                    bytes: *bytes,
                    mapped: 0,
                    incarnation: *incarnation,
                    origin: 0,
                    shared_before: 0,
                    is_read_only: false,
                    cut: RowCut::No,
                    kept: 0,
                    created_at: *at,
                };
                self.add(row, None, &New::plain(name, *incarnation, *at))
            }
            PoolOp::Snapshot { volume, name, incarnation, at } => {
                self.cut(*volume, true, &New::plain(name, *incarnation, *at))
            }
            PoolOp::Clone { volume, name, incarnation, at } => {
                self.cut(*volume, false, &New::plain(name, *incarnation, *at))
            }
            PoolOp::RollBack { volume, to, incarnation } => {
                self.roll_back(*volume, *to, *incarnation)
            }
            PoolOp::Delete { volume } => self.delete(*volume),
            PoolOp::Resize { volume, bytes } => self.resize(*volume, *bytes),
            PoolOp::Rename { volume, name } => self.rename(*volume, name),
            PoolOp::Cut { volume, order } => self.apply_cut(*volume, order),
            PoolOp::StoreWriter { volume, kept } => self.store_writer(*volume, kept),
            PoolOp::Measure { .. } => unreachable!("it changes nothing"),
        }
    }

    pub(in crate::thin) fn row(&self, volume: u64) -> Result<VolumeRow, PoolError> {
        let entry = self.entries.get(&volume).ok_or(PoolError::NoVolume { volume })?;
        Ok(entry.row)
    }

    /// Whether a volume can be cut like that, as far as can be known before its writers are held.
    pub(super) fn check_cut(&self, op: &PoolOp) -> Result<(), PoolError> {
        match op {
            PoolOp::Snapshot { volume, name, .. } | PoolOp::Clone { volume, name, .. } => {
                self.row(*volume)?;
                self.check_new_name(None, name)
            }
            PoolOp::Cut { volume, order } => self.check_order(*volume, order),
            _ => Ok(()),
        }
    }

    /// Whether a volume can get that name.
    pub(super) fn check_new_name(&self, volume: Option<u64>, name: &str) -> Result<(), PoolError> {
        check_name(name).map_err(|why| PoolError::BadName { why })?;
        if let Some(fault) = &self.ops.damaged {
            return Err(fault.clone().into());
        }
        let taken = self.entries.iter().find(|(_, entry)| entry.name == name);
        match taken.map(|(&taken, _)| taken) {
            Some(taken) if volume != Some(taken) => Err(PoolError::NameTaken { volume: taken }),
            _ => Ok(()),
        }
    }

    /// What may not have come about is nothing to begin with.
    fn check_decided(volume: u64, row: &VolumeRow) -> Result<(), PoolError> {
        match row.cut {
            RowCut::Undecided => Err(PoolError::Undecided { volume }),
            _ => Ok(()),
        }
    }

    fn check_closed(&self, volume: u64) -> Result<(), PoolError> {
        match self.entries.get(&volume) {
            Some(Entry { slot: Some(_), .. }) => Err(PoolError::IsOpen { volume }),
            _ => Ok(()),
        }
    }

    /// The time behind the next cut.
    fn next_time(&self) -> Result<u64, PoolError> {
        let time = self.head.time + 1;
        if time < TIME_MAX { Ok(time) } else { Err(PoolError::NoTime) }
    }

    /// Another volume of that row, whose blocks are those of another one, of which that is the row from now on.
    fn add(
        &mut self,
        mut row: VolumeRow,
        cut: Option<(u64, VolumeRow, u64)>,
        new: &New<'_>,
    ) -> Result<PoolDone, OpStop> {
        self.check_new_name(None, new.name)?;
        if self.entries.len() >= VOLUMES_MAX || self.head.next_volume == u64::MAX {
            return Err(PoolError::TooMany.into());
        }
        let volume = self.head.next_volume;
        let mut change = self.trees.change()?;
        let mut volumes = self.volumes;
        if let Some((from, of, _)) = cut {
            row.root = change.share(of.blocks())?.at;
            (volumes, _) = change.insert(volumes, from, &of)?;
        }
        (volumes, _) = change.insert(volumes, volume, &row)?;
        let (names, _) = change.insert(self.names, volume, &NameRow::new(new.name))?;
        change.apply()?;
        (self.volumes, self.names) = (volumes, names);
        self.head.next_volume += 1;
        if let Some((from, of, time)) = cut {
            self.head.time = time;
            self.set_row(from, of);
        }
        let name = new.name.to_owned();
        self.add_row(volume, row, name);
        self.inherit_writer(row.origin, volume);
        Ok(PoolDone::Created { volume })
    }

    /// A snapshot or a clone.
    pub(super) fn cut(
        &mut self,
        volume: u64,
        is_read_only: bool,
        new: &New<'_>,
    ) -> Result<PoolDone, OpStop> {
        let of = self.row(volume)?;
        Self::check_decided(volume, &of)?;
        let time = self.next_time()?;
        // What is mapped by now is both's, and what comes is of one.
        let of = VolumeRow { shared_before: time, ..of };
        let row = VolumeRow {
            incarnation: new.incarnation,
            origin: volume,
            is_read_only,
            cut: new.cut,
            created_at: new.at,
            ..of
        };
        self.add(row, Some((volume, of, time)), new)
    }

    /// `to` is a snapshot of that volume, or of one of its snapshots.
    fn check_lineage(&self, volume: u64, to: u64) -> Result<(), PoolError> {
        let mut at = to;
        // As many steps as there are volumes, at most.
        for _ in 0..=self.entries.len() {
            match self.entries.get(&at) {
                Some(entry) if entry.row.is_read_only && entry.row.origin == volume => {
                    return Ok(());
                }
                Some(entry) if entry.row.is_read_only => at = entry.row.origin,
                _ => break,
            }
        }
        Err(PoolError::NoSnapshot { volume: to })
    }

    fn roll_back(&mut self, volume: u64, to: u64, incarnation: u64) -> Result<PoolDone, OpStop> {
        let (row, from) = (self.row(volume)?, self.row(to)?);
        self.check_closed(volume)?;
        self.check_lineage(volume, to)?;
        Self::check_decided(to, &from)?;
        let time = self.next_time()?;
        let mut change = self.trees.change()?;
        change.delete(row.blocks())?;
        let root = change.share(from.blocks())?.at;
        let (mapped, kept) = (from.mapped, row.kept.max(from.kept));
        let incarnation = match self.canary {
            PoolCanary::KeepsIncarnation => row.incarnation,
            _ => incarnation,
        };
        let row = VolumeRow { root, mapped, incarnation, shared_before: time, kept, ..row };
        let (volumes, _) = change.insert(self.volumes, volume, &row)?;
        change.apply()?;
        self.volumes = volumes;
        self.head.time = time;
        self.set_row(volume, row);
        // Nobody has it as what it may not become.
        let open = self.commits.open();
        if let Some(entry) = self.entries.get_mut(&volume) {
            entry.added_in = open;
        }
        self.ops.reap();
        Ok(PoolDone::Done)
    }

    pub(super) fn delete(&mut self, volume: u64) -> Result<PoolDone, OpStop> {
        let from = self.first_row_of_writer(volume);
        match self.delete_with(volume, from) {
            // What cannot be read of its writer stays, and is nobody's: numbers are given once, and a repair takes it away when it can be read.
            Err(OpStop::Tree(TreeStop::Fault(_))) if self.lost_writers.is_some() => {
                self.delete_with(volume, None)
            }
            ended => ended,
        }
    }

    /// Together with what is there of its writer from that row on.
    fn delete_with(&mut self, volume: u64, mut from: Option<u64>) -> Result<PoolDone, OpStop> {
        let row = self.row(volume)?;
        self.check_closed(volume)?;
        let has_gone = from.is_some();
        let mut change = self.trees.change_to_free()?;
        if self.canary == PoolCanary::DeletesShared {
            let mut found = Vec::new();
            change.rows(row.blocks(), 0..=u64::MAX, &mut found)?;
            for (_, mapping) in found {
                for _ in 0..change.block_count(mapping.block)? {
                    change.give_back_block(mapping.block)?;
                }
            }
        } else {
            change.delete(row.blocks())?;
        }
        let (mut volumes, _) = change.remove(self.volumes, volume)?;
        let (names, _) = change.remove(self.names, volume)?;
        let mut writers = self.writers;
        while let Some(at) = from {
            let last = writer_key(volume, ROWS_OF_WRITER - 1);
            (writers, from) = change.remove_range(writers, at..=last)?;
        }
        // What was taken of a snapshot is of what that was of.
        let is_of = |entry: &Entry| {
            row.is_read_only && entry.row.origin == volume && entry.row.cut == RowCut::No
        };
        let of = self.entries.iter().filter(|(_, entry)| is_of(entry));
        let of: Vec<_> =
            of.map(|(&of, entry)| (of, VolumeRow { origin: row.origin, ..entry.row })).collect();
        for (of, row) in &of {
            (volumes, _) = change.insert(volumes, *of, row)?;
        }
        change.apply()?;
        (self.volumes, self.names, self.writers) = (volumes, names, writers);
        self.entries.remove(&volume);
        if has_gone {
            self.odd_writers.retain(|odd| *odd != volume);
        }
        self.count_kept();
        of.into_iter().for_each(|(of, row)| self.set_row(of, row));
        self.ops.reap();
        Ok(PoolDone::Done)
    }

    fn resize(&mut self, volume: u64, bytes: u64) -> Result<PoolDone, OpStop> {
        let row = self.row(volume)?;
        check_size(bytes)?;
        if bytes < row.bytes {
            return Err(PoolError::BadSize { why: "only grows" }.into());
        }
        if row.is_read_only {
            return Err(PoolError::BadSize { why: "keeps its size if it is a snapshot" }.into());
        }
        let row = VolumeRow { bytes, ..row };
        let mut change = self.trees.change()?;
        let (volumes, _) = change.insert(self.volumes, volume, &row)?;
        change.apply()?;
        self.volumes = volumes;
        self.set_row(volume, row);
        Ok(PoolDone::Done)
    }

    fn rename(&mut self, volume: u64, name: &str) -> Result<PoolDone, OpStop> {
        self.row(volume)?;
        self.check_new_name(Some(volume), name)?;
        let mut change = self.trees.change()?;
        let (names, _) = change.insert(self.names, volume, &NameRow::new(name))?;
        change.apply()?;
        self.names = names;
        if let Some(entry) = self.entries.get_mut(&volume) {
            name.clone_into(&mut entry.name);
        }
        Ok(PoolDone::Done)
    }
}
