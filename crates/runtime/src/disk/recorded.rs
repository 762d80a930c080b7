//! The writer record of a volume that is made of others: where that does not keep it itself, in a file of the state directory that is named
//! by the volume's identity, with the generations under which its leaves are held.

use std::io;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use thinwire_volume::{
    DiskDone, DiskOp, HeldGrant, IoError, KeptBy, LeafGeneration, RecordPlace, Recorded, Volume,
    WriterRecord,
};

use super::gateway::GatewayFile;
use super::jobs::{Jobs, Work};
use super::unused::UnusedGrant;
use super::writer::os;

/// A leaf of a volume, as the process holds it that serves the volume.
#[derive(Clone, Debug)]
pub struct HeldLeaf {
    /// What a person calls it.
    pub name: String,
    /// The right to write it, which nobody has used yet; none if it only reads, or the leaf has no record.
    pub unused: Option<UnusedGrant>,
}

impl HeldLeaf {
    /// Under what.
    pub fn held(&self) -> HeldGrant {
        self.unused.as_ref().map(UnusedGrant::held).unwrap_or_default()
    }
}

/// A file of the state directory, which a thread of its own reads and writes.
pub struct StateRecord {
    jobs: Jobs,
    /// The export's.
    name: String,
    generations: Arc<Mutex<Generations>>,
}

/// What is said of leaves between a shard and that thread.
#[derive(Default)]
struct Generations {
    /// As they were found.
    found: Vec<LeafGeneration>,
    /// As they are stored with each record.
    kept: Vec<LeafGeneration>,
    /// Somebody else may have been the writer of these; not said yet.
    others: Vec<usize>,
    /// Grants are in use from the next record on.
    begins: bool,
    /// The volume keeps the record: what is here goes.
    is_given_up: bool,
}

/// What the thread has.
struct Keeper {
    file: GatewayFile,
    name: String,
    leaves: Vec<HeldLeaf>,
    generations: Arc<Mutex<Generations>>,
}

/// A volume with its record where `by` says, or else in `state_dir`, and what is readable when [`Volume::poll`] has something to
/// take in of the record there, as long as the volume. `name` is the export's, `leaves` what it is made of, in
/// order. Nothing is read or written yet. Where the directory cannot be written, no writer is granted. Fails
/// if the process may not have more descriptors.
pub fn recorded(
    by: KeptBy,
    below: Box<dyn Volume>,
    state_dir: &Path,
    name: &str,
    leaves: Vec<HeldLeaf>,
) -> io::Result<(Recorded<StateRecord>, RawFd)> {
    let held = leaves.iter().map(HeldLeaf::held).collect();
    let generations = Arc::<Mutex<Generations>>::default();
    let file = GatewayFile::new(&below.identity().identity, state_dir);
    let keeper = Keeper { file, name: name.to_owned(), leaves, generations: generations.clone() };
    let jobs = Jobs::new(Box::new(move |work| match work {
        Work::LoadWriter(record) => keeper.load().map(|found| **record = found),
        Work::StoreWriter(record) => keeper.store(**record),
        Work::BlockStatus { .. } | Work::KeepSize(_) | Work::Cut => Err(libc::EOPNOTSUPP),
    }))?;
    let fd = jobs.fd();
    let place = StateRecord { jobs, name: name.to_owned(), generations };
    Ok((Recorded::kept_by(by, below, place, held), fd))
}

fn lock(generations: &Mutex<Generations>) -> std::sync::MutexGuard<'_, Generations> {
    generations.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RecordPlace for StateRecord {
    fn submit(&mut self, op: DiskOp) {
        self.jobs.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        self.jobs.take(done);
    }

    fn remembered(&self) -> Vec<LeafGeneration> {
        lock(&self.generations).found.clone()
    }

    fn remember(&mut self, generations: Vec<LeafGeneration>, others: Vec<usize>) {
        let mut all = lock(&self.generations);
        all.kept = generations;
        all.others.extend(others);
        (all.begins, all.is_given_up) = (true, false);
    }

    fn give_up(&mut self) {
        lock(&self.generations).is_given_up = true;
    }

    fn on_leaves(&mut self, stored: Result<(), IoError>) {
        match stored {
            Err(error) => tracing::warn!(
                "export {}: how it holds what it is made of could not be stored: {error}. It is tried again every second; if this target ends before that has \
                 succeeded, whoever serves the export next takes it for written by somebody else, and fences its writer",
                self.name
            ),
            Ok(()) => {
                tracing::info!("export {}: how it holds what it is made of is stored", self.name)
            }
        }
    }
}

impl Keeper {
    fn load(&self) -> Result<WriterRecord, i32> {
        let (record, leaves) = self.file.load()?;
        let mut all = lock(&self.generations);
        (all.found, all.kept) = (leaves.clone(), leaves);
        Ok(record)
    }

    fn store(&self, record: WriterRecord) -> Result<(), i32> {
        let (kept, begins, is_given_up) = {
            let all = lock(&self.generations);
            (all.kept.clone(), all.begins, all.is_given_up)
        };
        match is_given_up {
            false => self.file.store(record, &kept)?,
            true => self.file.remove()?,
        }
        if begins {
            self.begin()?;
        }
        Ok(())
    }

    /// The grants of now are remembered: from here on they are used.
    fn begin(&self) -> Result<(), i32> {
        for unused in self.leaves.iter().filter_map(|leaf| leaf.unused.as_ref()) {
            unused.forget().map_err(os)?;
        }
        let mut all = lock(&self.generations);
        all.begins = false;
        let mut others: Vec<usize> = all.others.drain(..).collect();
        others.sort_unstable();
        others.dedup();
        let names: Vec<_> = others.iter().map(|&leaf| &*self.leaves[leaf].name).collect();
        if !names.is_empty() {
            tracing::warn!(
                "export {}: somebody else may have written {} while this target did not serve it. \
                 Whoever was the export's writer is fenced, so that what it had not flushed does not land \
                 on that: attach anew there",
                self.name,
                names.join(" and ")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::stores::NullStore;
    use thinwire_volume::{ErrorKind, LeafGrant, load_writer, store_writer};

    use super::super::unused::UnusedGrants;
    use super::*;

    fn null() -> Box<NullStore> {
        Box::new(NullStore::new(1 << 20, 512))
    }

    #[test]
    fn a_record_outlives_its_process_and_needs_a_place() {
        let dir = std::env::temp_dir().join(format!("tw-recorded-{}", std::process::id()));
        let open = |dir: &Path| recorded(KeptBy::Place, null(), dir, "a", Vec::new()).unwrap().0;
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

    /// What the volume can keep by now, and could not when the file was written.
    #[test]
    fn what_the_file_has_goes_to_a_volume_that_keeps_its_record() {
        let dir = std::env::temp_dir().join(format!("tw-moved-{}", std::process::id()));
        let unused = UnusedGrants::new(&dir);
        let held = |generation| HeldLeaf {
            name: "leaf".into(),
            unused: Some(unused.granted(&[1; 16], "leaf", LeafGrant::alone(generation))),
        };
        let keeper = || {
            let pool = thinwire_buffer::Pool::new(0);
            let id = thinwire_volume::Identity { identity: [9; 16], incarnation: 1 };
            Box::new(thinwire_volume::stores::MemoryStore::new(1 << 20, 512, id, &pool))
        };
        let open = |by, leaves| recorded(by, keeper(), &dir, "a", leaves).unwrap().0;
        let record = WriterRecord::new(3, [7; 16], "node2");
        let mut former = open(KeptBy::Place, vec![held(4)]);
        assert_eq!(load_writer(&mut former), Ok(WriterRecord::default()));
        store_writer(&mut former, record).unwrap();
        drop(former);
        let files = || std::fs::read_dir(&dir).unwrap().count();
        assert_eq!(files(), 1);
        let mut volume = open(KeptBy::Volume, vec![held(5)]);
        assert_eq!((load_writer(&mut volume), files()), (Ok(record), 0));
        let next = WriterRecord::new(4, [8; 16], "node3");
        store_writer(&mut volume, next).unwrap();
        assert_eq!((load_writer(&mut volume), files()), (Ok(next), 0));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Each life is granted both leaves, and serves only if it says so.
    #[test]
    fn a_leaf_that_somebody_else_had_fences_the_writer_on_record() {
        let dir = std::env::temp_dir().join(format!("tw-leaves-{}", std::process::id()));
        let unused = UnusedGrants::new(&dir);
        let held = |number: u8, generation| HeldLeaf {
            name: format!("leaf {number}"),
            unused: Some(unused.granted(&[number; 16], "", LeafGrant::alone(generation))),
        };
        let granted = |generations: [u64; 2]| {
            let read = HeldLeaf { name: "memory".into(), unused: None };
            vec![held(1, generations[0]), read, held(2, generations[1])]
        };
        let open = |leaves| recorded(KeptBy::Place, null(), &dir, "a", leaves).unwrap().0;
        // From an earlier version.
        let record = WriterRecord::new(3, [7; 16], "node2");
        store_writer(&mut open(Vec::new()), record).unwrap();
        assert_eq!(load_writer(&mut open(granted([5, 9]))), Ok(record));
        assert_eq!(load_writer(&mut open(granted([6, 10]))), Ok(record));
        // It could not have all, or was killed before it had, twice.
        held(1, 7);
        held(1, 8);
        assert_eq!(load_writer(&mut open(granted([9, 11]))), Ok(record));
        let raised = WriterRecord::new(4, [0; 16], "");
        assert_eq!(load_writer(&mut open(granted([10, 13]))), Ok(raised));
        assert_eq!(load_writer(&mut open(granted([11, 14]))), Ok(raised));
        let left: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left.len(), 1, "{left:?}");
        std::fs::remove_dir_all(&dir).unwrap();
        // Nothing can be remembered: nobody may write.
        let nowhere = Path::new("/dev/null");
        let open = recorded(KeptBy::Place, null(), nowhere, "a", granted([12, 15]));
        assert_eq!(load_writer(&mut open.unwrap().0).unwrap_err().kind, ErrorKind::Io);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
