//! A volume that keeps no writer record itself, with one that is kept elsewhere: what a target serves
//! that is made of other volumes.

use thinwire_buffer::{Pool, SegList};

use crate::disk::error_kind;
use crate::{
    Completion, Disk, DiskDone, DiskOp, DiskOpKind, ErrorKind, Geometry, Identity, Io, IoError, Op,
    Volume, VolumeEvent, WriterRecord,
};

/// Where a writer record is kept, apart from the content that it is of. A [`Disk`] is one. Never
/// blocks.
pub trait RecordPlace {
    /// Takes a [`DiskOpKind::LoadWriter`] or [`DiskOpKind::StoreWriter`].
    fn submit(&mut self, op: DiskOp);

    /// Appends those that have ended.
    fn poll(&mut self, done: &mut Vec<DiskDone>);
}

impl<D: Disk> RecordPlace for D {
    fn submit(&mut self, op: DiskOp) {
        Disk::submit(self, op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        Disk::poll(self, done);
    }
}

/// A volume and the place of its record. All else is the volume's.
pub struct Recorded<P> {
    below: Box<dyn Volume>,
    place: P,
    /// Operations of the record that have not ended, and those that never began.
    outstanding: usize,
    refused: Vec<Completion>,
    done: Vec<DiskDone>,
}

impl<P: RecordPlace> Recorded<P> {
    /// Nothing is read or written yet.
    pub fn new(below: Box<dyn Volume>, place: P) -> Self {
        let (refused, done) = (Vec::new(), Vec::new());
        Recorded { below, place, outstanding: 0, refused, done }
    }

    /// An I/O of the record.
    #[cold]
    fn submit_record(&mut self, io: &Io) {
        let kind = match io.op {
            Op::LoadWriter => Some(DiskOpKind::LoadWriter(Box::default())),
            _ => WriterRecord::from_data(&io.data)
                .map(|record| DiskOpKind::StoreWriter(Box::new(record))),
        };
        self.outstanding += 1;
        match kind {
            Some(kind) => {
                self.place.submit(DiskOp { token: io.token, offset: 0, len: 0, kind });
            }
            None => {
                let error = Err(io.error(ErrorKind::Invalid, "writer record"));
                self.refused.push(Completion::new(io.token, error));
            }
        }
    }

    #[cold]
    fn poll_record(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        done.append(&mut self.refused);
        self.place.poll(&mut self.done);
        done.extend(self.done.drain(..).map(|one| {
            let (op, data) = match one.kind {
                DiskOpKind::LoadWriter(record) => (Op::LoadWriter, record.to_data(&Pool::new(0))),
                _ => (Op::StoreWriter, SegList::new()),
            };
            let result = one.result.map_err(|errno| failed(op, error_kind(errno)));
            let data = if result.is_ok() { data } else { SegList::new() };
            Completion { data, ..Completion::new(one.token, result) }
        }));
        self.outstanding -= done.len() - before;
    }
}

fn failed(op: Op, kind: ErrorKind) -> IoError {
    Io::new(0, op, 0, 0).error(kind, "writer record")
}

impl<P: RecordPlace> Volume for Recorded<P> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        match io.op.is_record() {
            true => self.submit_record(&io),
            false => self.below.submit(io),
        }
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        if self.outstanding > 0 {
            self.poll_record(done);
        }
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding() + self.outstanding
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.below.poll_events(events);
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }
}
