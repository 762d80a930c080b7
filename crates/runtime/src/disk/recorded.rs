//! A volume that keeps no writer record itself, with one in a file of the state directory, named by its
//! identity: what a target serves that is made of other volumes.

use std::path::Path;

use thinwire_volume::{
    Completion, ErrorKind, Geometry, Identity, Io, IoError, Op, Volume, WriterRecord,
};

use super::writer::WriterStore;

/// A volume and its record.
pub struct Recorded {
    below: Box<dyn Volume>,
    record: WriterStore,
}

impl Recorded {
    /// Nothing is read or written yet. Where the directory cannot be written, no writer is granted.
    pub fn new(below: Box<dyn Volume>, state_dir: &Path) -> Self {
        let record = WriterStore::of_state(&below.identity().identity, state_dir);
        Recorded { below, record }
    }
}

fn failed(errno: i32) -> IoError {
    let kind = if errno == libc::ENOSPC { ErrorKind::NoSpace } else { ErrorKind::Io };
    Io::new(0, Op::Flush, 0, 0).error(kind, "record")
}

impl Volume for Recorded {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn submit(&mut self, io: Io) {
        self.below.submit(io);
    }

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
        self.record.load_state().map_err(failed)
    }

    fn store_writer(&mut self, record: WriterRecord) -> Result<(), IoError> {
        self.record.store_state(record).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::stores::NullStore;

    use super::*;

    #[test]
    fn a_record_outlives_its_process_and_needs_a_place() {
        let dir = std::env::temp_dir().join(format!("tw-recorded-{}", std::process::id()));
        let open = |dir: &Path| Recorded::new(Box::new(NullStore::new(1 << 20, 512)), dir);
        let mut first = open(&dir);
        assert_eq!(first.load_writer(), Ok(WriterRecord::default()));
        let record = WriterRecord::new(3, [7; 16], "node2");
        first.store_writer(record).unwrap();
        drop(first);
        assert_eq!(open(&dir).load_writer(), Ok(record));
        std::fs::remove_dir_all(&dir).unwrap();
        // A file is no directory.
        let error = open(Path::new("/dev/null")).store_writer(record).unwrap_err();
        assert_eq!((error.kind, error.module), (ErrorKind::Io, "record"));
    }
}
