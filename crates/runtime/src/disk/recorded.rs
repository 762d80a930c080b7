//! The writer record of a volume that keeps none itself, in a file of the state directory that is named
//! by the volume's identity.

use std::path::Path;

use thinwire_volume::{ErrorKind, RecordPlace, Recorded, Volume, WriterRecord};

use super::writer::WriterStore;

/// A file of the state directory.
pub struct StateRecord(WriterStore);

/// A volume with its record in `state_dir`. Nothing is read or written yet. Where the directory cannot
/// be written, no writer is granted.
pub fn recorded(below: Box<dyn Volume>, state_dir: &Path) -> Recorded<StateRecord> {
    let place = WriterStore::of_state(&below.identity().identity, state_dir);
    Recorded::new(below, StateRecord(place))
}

fn kind_of(errno: i32) -> ErrorKind {
    if errno == libc::ENOSPC { ErrorKind::NoSpace } else { ErrorKind::Io }
}

impl RecordPlace for StateRecord {
    fn load(&mut self) -> Result<WriterRecord, ErrorKind> {
        self.0.load_state().map_err(kind_of)
    }

    fn store(&mut self, record: WriterRecord) -> Result<(), ErrorKind> {
        self.0.store_state(record).map_err(kind_of)
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::stores::NullStore;

    use super::*;

    #[test]
    fn a_record_outlives_its_process_and_needs_a_place() {
        let dir = std::env::temp_dir().join(format!("tw-recorded-{}", std::process::id()));
        let open = |dir: &Path| recorded(Box::new(NullStore::new(1 << 20, 512)), dir);
        let mut first = open(&dir);
        assert_eq!(first.load_writer(), Ok(WriterRecord::default()));
        let record = WriterRecord::new(3, [7; 16], "node2");
        first.store_writer(record).unwrap();
        drop(first);
        assert_eq!(open(&dir).load_writer(), Ok(record));
        std::fs::remove_dir_all(&dir).unwrap();
        // A file is no directory.
        let error = open(Path::new("/dev/null")).store_writer(record).unwrap_err();
        assert_eq!((error.kind, error.module), (ErrorKind::Io, "writer record"));
    }
}
