//! [`RecordedWhole`]: a whole that keeps its writer record itself, in the label of its first part, without which it is not opened.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use thinwire_buffer::Pool;
use thinwire_volume::{Completion, ErrorKind, Io, KeptWriter, Layer, Op, Volume};

use super::LabelError;
use crate::cuts::CutRecord;

/// The name under which its own errors appear.
const NAME: &str = "label";

/// A whole, which is as it is, but answers [`Op::LoadWriter`] and [`Op::StoreWriter`] out of a label, with [`KeptWriter`]s. One after the other is stored; users' I/O goes on
/// beside that.
pub struct RecordedWhole {
    below: Box<dyn Volume>,
    by: By,
    /// What is to be stored; the first is being stored if that has begun.
    waiting: VecDeque<(Io, KeptWriter)>,
    is_storing: bool,
    ready: Vec<Completion>,
    canary: RecordedCanary,
}

/// Where the record is.
enum By {
    /// In the label of the first part, which is written through that.
    Label(CutRecord),
    /// There, and the whole is only read: what it said when that was opened.
    Reader(KeptWriter),
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RecordedCanary {
    #[default]
    None,
    /// A record is told of as stored when it is begun.
    ToldEarly,
}

impl RecordedWhole {
    /// Over the volume on top of parts of which the first is the [`Recorder`](crate::cuts::Recorder) of that record.
    pub fn new(below: Box<dyn Volume>, record: CutRecord) -> Self {
        Self::by(below, By::Label(record))
    }

    /// Over one that is only read: `kept` is what its labels say. Nothing is stored.
    pub fn of_reader(below: Box<dyn Volume>, kept: Option<KeptWriter>) -> Self {
        Self::by(below, By::Reader(kept.unwrap_or_default()))
    }

    fn by(below: Box<dyn Volume>, by: By) -> Self {
        let (waiting, ready, is_storing) = (VecDeque::new(), Vec::new(), false);
        RecordedWhole { below, by, waiting, is_storing, ready, canary: RecordedCanary::None }
    }

    #[cold]
    fn take_record(&mut self, io: Io) {
        let mut ended = Completion::new(io.token, Ok(()));
        if io.op == Op::LoadWriter {
            let kept = match &self.by {
                By::Label(record) => record.writer().unwrap_or_default(),
                By::Reader(kept) => kept.clone(),
            };
            ended.data = kept.to_data(&Pool::new(0));
            return self.ready.push(ended);
        }
        let has_room = |kept: &KeptWriter| match (&self.by, &kept.leaves) {
            (By::Label(record), Some(leaves)) => record.label().has_room_of_leaves(leaves.len()),
            _ => true,
        };
        let refused = match (&self.by, KeptWriter::from_data(&io.data)) {
            (By::Reader(_), _) => ErrorKind::ReadOnly,
            (_, None) => ErrorKind::Invalid,
            (_, Some(kept)) if has_room(&kept) => {
                self.waiting.push_back((io, kept));
                return self.begin();
            }
            (_, Some(_)) => ErrorKind::Unsupported,
        };
        ended.result = Err(io.error(refused, NAME));
        self.ready.push(ended);
    }

    /// Has the next one stored, when the first part is polled next.
    fn begin(&mut self) {
        let Some((io, kept)) = self.waiting.front().filter(|_| !self.is_storing) else { return };
        let By::Label(record) = &self.by else { return };
        record.write_writer(kept.clone());
        self.is_storing = true;
        if self.canary == RecordedCanary::ToldEarly {
            self.ready.push(Completion::new(io.token, Ok(())));
        }
    }

    /// True if the next one is to be stored now.
    #[cold]
    fn go_on(&mut self) -> bool {
        let By::Label(record) = &self.by else { return false };
        let Some(ended) = record.take_writer_ended() else { return false };
        self.is_storing = false;
        if let Some((io, _)) = self.waiting.pop_front()
            && self.canary != RecordedCanary::ToldEarly
        {
            let result = ended.map_err(|error| io.error(kind_of(&error), NAME));
            self.ready.push(Completion::new(io.token, result));
        }
        self.begin();
        self.is_storing
    }
}

/// What it comes to for who stores a record.
fn kind_of(error: &LabelError) -> ErrorKind {
    match error {
        // It may be there all the same, which one without room says is not so.
        LabelError::Unflushed(error)
        | LabelError::Unsettled(error)
        | LabelError::Unwritten { error, .. }
            if error.kind == ErrorKind::NoSpace =>
        {
            ErrorKind::Io
        }
        LabelError::Unflushed(error)
        | LabelError::Unsettled(error)
        | LabelError::Unwritten { error, .. } => error.kind,
        LabelError::Refused(_) => ErrorKind::NoSpace,
        LabelError::ReadOnly { .. } | LabelError::Unfit { .. } => ErrorKind::ReadOnly,
        _ => ErrorKind::Io,
    }
}

impl Layer for RecordedWhole {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    #[inline]
    fn take(&mut self, io: Io) {
        match io.op.is_record() {
            true => self.take_record(io),
            false => self.below.submit(io),
        }
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        if self.is_storing && self.go_on() {
            // Nobody else would have it begun.
            self.below.poll(done);
        }
        done.append(&mut self.ready);
    }

    fn taken(&self) -> usize {
        self.below.outstanding() + self.waiting.len() + self.ready.len()
    }
}
