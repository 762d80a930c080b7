//! A volume that keeps no writer record itself, with one that is kept elsewhere: what a target serves
//! that is made of other volumes.

use crate::{Completion, ErrorKind, Geometry, Identity, Io, IoError, Op, Volume, WriterRecord};

/// Where a writer record is kept, apart from the content that it is of.
pub trait RecordPlace {
    /// The record, durable once this returns; the default if there is none. May block.
    ///
    /// # Errors
    /// It cannot be read, or cannot be made durable: nobody may write.
    fn load(&mut self) -> Result<WriterRecord, ErrorKind>;

    /// Stores the record, durably once this returns. May block.
    ///
    /// # Errors
    /// Either record may be found, now or after a crash.
    fn store(&mut self, record: WriterRecord) -> Result<(), ErrorKind>;
}

/// A volume and the place of its record. All else is the volume's.
pub struct Recorded<P> {
    below: Box<dyn Volume>,
    place: P,
}

impl<P: RecordPlace> Recorded<P> {
    /// Nothing is read or written yet.
    pub fn new(below: Box<dyn Volume>, place: P) -> Self {
        Recorded { below, place }
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
        self.below.submit(io);
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn losses(&self) -> u64 {
        self.below.losses()
    }

    fn load_writer(&mut self) -> Result<WriterRecord, IoError> {
        self.place.load().map_err(|kind| failed(Op::Read, kind))
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), IoError> {
        self.place.store(record).map_err(|kind| failed(Op::Write, kind))
    }
}
