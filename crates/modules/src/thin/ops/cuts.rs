//! Snapshots that are some of several, cut as one (`docs/format.md`, "Cuts"): what a volume is told of them by I/Os.

use thinwire_buffer::SegList;
use thinwire_volume::{
    CUT_NAME_BYTES_MAX, Completion, CutAct, CutOrder, ErrorKind, Io, IoError, Token,
};

use super::changes::New;
use super::{OpNumber, OpStop, PoolDone, PoolError, PoolOp};
use crate::thin::rows::{RowCut, VolumeRow};
use crate::thin::{Core, NAME, PoolCanary};

/// What has asked for an operation: an I/O of a volume.
pub(super) struct Asked {
    number: OpNumber,
    slot: u32,
    token: Token,
    /// What it fails with, but for the kind.
    error: IoError,
}

/// The part below is not to be used any more.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Fenced | ErrorKind::ContentChanged)
}

/// How the I/O fails that has asked for it.
fn kind_of(error: &PoolError) -> ErrorKind {
    match error {
        PoolError::ReadOnly => ErrorKind::ReadOnly,
        PoolError::NoRoom | PoolError::NoBlocks | PoolError::TooMany => ErrorKind::NoSpace,
        PoolError::NameTaken { .. }
        | PoolError::BadName { .. }
        | PoolError::IsOpen { .. }
        | PoolError::NoCut => ErrorKind::Invalid,
        // Of all else that has failed below nothing is said that whoever asks could go by.
        PoolError::Stopped { kind, .. } if is_final(*kind) => *kind,
        _ => ErrorKind::Io,
    }
}

impl Core {
    /// Takes an order. The handle stays until it has ended.
    pub(in crate::thin) fn ask_cut(&mut self, slot: u32, io: &Io) {
        let error = io.error(ErrorKind::Invalid, NAME);
        let to = self.slots.get_mut(slot);
        let Some(order) = CutOrder::of(io) else {
            self.woken.extend(to.wakes());
            return to.put_ready(Completion::new(io.token, Err(error)));
        };
        if order.act == CutAct::Next {
            let volume = to.volume;
            let mut completion = Completion::new(io.token, Ok(()));
            if let Some(next) = self.next_cut(volume, &order.name) {
                completion.data = SegList::of(self.config.pool.copy_of(&next.encode()).freeze());
            }
            let to = self.slots.get_mut(slot);
            self.woken.extend(to.wakes());
            return to.put_ready(completion);
        }
        let volume = to.volume;
        self.ask(slot, io, PoolOp::Cut { volume, order });
    }

    /// Does an operation for an I/O of a volume, whose handle stays until it has ended.
    pub(in crate::thin) fn ask(&mut self, slot: u32, io: &Io, op: PoolOp) {
        self.slots.get_mut(slot).jobs += 1;
        let (number, error) = (self.ops.push(op), io.error(ErrorKind::Invalid, NAME));
        self.ops.asked.push(Asked { number, slot, token: io.token, error });
        self.settle();
    }

    /// An operation has ended: its caller is told, whichever way it has called.
    pub(super) fn end_op(&mut self, number: OpNumber, result: Result<PoolDone, PoolError>) {
        let Some(at) = self.ops.asked.iter().position(|asked| asked.number == number) else {
            return self.ops.ended.push((number, result));
        };
        let Asked { slot, token, error, .. } = self.ops.asked.swap_remove(at);
        let result = result.map(|_| ()).map_err(|why| IoError { kind: kind_of(&why), ..error });
        let to = self.slots.get_mut(slot);
        to.jobs -= 1;
        self.woken.extend(to.wakes());
        to.put_ready(Completion::new(token, result));
        self.close_if_gone(slot);
    }

    /// An operation was done, and has ended when that is durable; a cut that is taken has ended when that is told apart from later writes.
    pub(super) fn await_commit(&mut self, number: OpNumber, done: PoolDone, op: PoolOp) {
        let is_changed = self.trees.has_changes();
        if is_changed {
            self.commits.is_wanted = true;
            self.commits.on_change(self.now);
        }
        match &op {
            PoolOp::Cut { order, .. } if order.act == CutAct::Take => self.end_op(number, Ok(done)),
            PoolOp::StoreWriter { volume, kept } if self.canary == PoolCanary::WriterToldEarly => {
                self.on_writer_stored(*volume, kept);
                self.end_op(number, Ok(done));
            }
            // Nothing was to be done by it; what was done before may not be durable.
            PoolOp::Cut { .. } if !is_changed => {
                self.ops.pending.push((number, self.commits.open() - 1, done, op));
            }
            _ => {
                self.commits.is_wanted = true;
                self.commits.on_change(self.now);
                self.ops.pending.push((number, self.commits.open(), done, op));
            }
        }
    }

    /// The snapshot of a volume that is of that cut.
    fn find_cut(&self, volume: u64, id: u64) -> Option<(u64, VolumeRow)> {
        let is_it = |row: &VolumeRow| {
            row.cut != RowCut::No && (row.origin, row.incarnation) == (volume, id)
        };
        let found = self.entries.iter().find(|(_, entry)| is_it(&entry.row));
        found.map(|(&snapshot, entry)| (snapshot, entry.row))
    }

    /// The first cut of a volume behind that name.
    fn next_cut(&self, volume: u64, behind: &str) -> Option<CutOrder> {
        let of = format!("{}.", self.entries.get(&volume)?.name);
        let known = self
            .entries
            .values()
            .filter(|entry| entry.row.cut == RowCut::Kept && entry.row.origin == volume);
        let named = known.filter_map(|entry| Some((entry.name.strip_prefix(&of)?, &entry.row)));
        let (name, row) = named.filter(|(name, _)| *name > behind).min_by_key(|(name, _)| *name)?;
        let (id, at, name) = (row.incarnation, row.created_at, name.to_owned());
        (name.len() <= CUT_NAME_BYTES_MAX).then_some(CutOrder { act: CutAct::Keep, id, at, name })
    }

    /// What the snapshot of a volume is called.
    fn name_of_cut(&self, volume: u64, order: &CutOrder) -> String {
        let of = self.entries.get(&volume).map_or("", |entry| &entry.name);
        format!("{of}.{}", order.name)
    }

    /// Whether an order can be followed, as far as can be known before writers are held.
    pub(super) fn check_order(&self, volume: u64, order: &CutOrder) -> Result<(), PoolError> {
        self.row(volume)?;
        match (order.act, self.find_cut(volume, order.id)) {
            (CutAct::Take, None) => self.check_new_name(None, &self.name_of_cut(volume, order)),
            (CutAct::Ensure | CutAct::Keep, None) => Err(PoolError::NoCut),
            _ => Ok(()),
        }
    }

    /// Makes the change that an order asks for, unless it was made before.
    pub(super) fn apply_cut(&mut self, volume: u64, order: &CutOrder) -> Result<PoolDone, OpStop> {
        match (order.act, self.find_cut(volume, order.id)) {
            (CutAct::Take, None) => {
                let name = self.name_of_cut(volume, order);
                let cut = RowCut::Undecided;
                let new = New { name: &name, incarnation: order.id, at: order.at, cut };
                self.cut(volume, true, &new)
            }
            (CutAct::Take, Some(_)) | (CutAct::Drop, None) => Ok(PoolDone::Done),
            (CutAct::Ensure | CutAct::Keep, None) => Err(PoolError::NoCut.into()),
            (CutAct::Ensure, Some(_)) => Ok(PoolDone::Done),
            (CutAct::Keep, Some((_, row))) if row.cut == RowCut::Kept => Ok(PoolDone::Done),
            (CutAct::Keep, Some((snapshot, row))) => {
                let row = VolumeRow { cut: RowCut::Kept, ..row };
                // That there is such a cut is on record: what is kept for deletions has room for it.
                let mut change = self.trees.change_to_free()?;
                let (volumes, _) = change.insert(self.volumes, snapshot, &row)?;
                change.apply()?;
                self.volumes = volumes;
                self.set_row(snapshot, row);
                Ok(PoolDone::Done)
            }
            (CutAct::Drop, Some((snapshot, _))) => self.delete(snapshot),
            (CutAct::Next, _) => unreachable!("it is told at once"),
        }
    }
}
