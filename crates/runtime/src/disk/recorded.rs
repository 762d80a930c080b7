//! The writer record of a volume that keeps none itself, in a file of the state directory that is named
//! by the volume's identity.

use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use thinwire_volume::{DiskDone, DiskOp, RecordPlace, Recorded, Volume};

use super::jobs::{Jobs, Work};
use super::writer::WriterStore;

/// A file of the state directory, which a thread of its own reads and writes.
pub struct StateRecord(Jobs);

/// A volume with its record in `state_dir`, and what is readable when [`Volume::poll`] has something to
/// take in of the record, as long as the volume. Nothing is read or written yet. Where the directory
/// cannot be written, no writer is granted. Fails if the process may not have more descriptors.
pub fn recorded(
    below: Box<dyn Volume>,
    state_dir: &Path,
) -> io::Result<(Recorded<StateRecord>, RawFd)> {
    let store = WriterStore::of_state(&below.identity().identity, state_dir);
    let jobs = Jobs::new(Box::new(move |work| match work {
        Work::LoadWriter(record) => store.load_state().map(|found| **record = found),
        Work::StoreWriter(record) => store.store_state(**record),
        Work::BlockStatus { .. } | Work::KeepSize(_) | Work::Cut => Err(libc::EOPNOTSUPP),
    }))?;
    let fd = jobs.fd();
    Ok((Recorded::new(below, StateRecord(jobs)), fd))
}

impl RecordPlace for StateRecord {
    fn submit(&mut self, op: DiskOp) {
        self.0.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        self.0.take(done);
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::stores::NullStore;
    use thinwire_volume::{ErrorKind, WriterRecord, load_writer, store_writer};

    use super::*;

    #[test]
    fn a_record_outlives_its_process_and_needs_a_place() {
        let dir = std::env::temp_dir().join(format!("tw-recorded-{}", std::process::id()));
        let open = |dir: &Path| recorded(Box::new(NullStore::new(1 << 20, 512)), dir).unwrap().0;
        let mut first = open(&dir);
        assert_eq!(load_writer(&mut first), Ok(WriterRecord::default()));
        let record = WriterRecord::new(3, [7; 16], "node2");
        store_writer(&mut first, record).unwrap();
        drop(first);
        assert_eq!(load_writer(&mut open(&dir)), Ok(record));
        std::fs::remove_dir_all(&dir).unwrap();
        // A file is no directory.
        let error = store_writer(&mut open(Path::new("/dev/null")), record).unwrap_err();
        assert_eq!((error.kind, error.module), (ErrorKind::Io, "writer record"));
    }
}
