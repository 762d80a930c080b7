//! A volume that keeps no writer record itself, with one that is kept elsewhere: what a target serves
//! that is made of other volumes.

use thinwire_buffer::{Pool, SegList};

use crate::disk::error_kind;
use crate::leaves::{LeafGrant, granted_to_others, to_remember};
use crate::{
    Completion, Disk, DiskDone, DiskOp, DiskOpKind, ErrorKind, Io, IoError, Layer, Op, Token,
    Volume, WriterRecord,
};

/// Where a writer record is kept, apart from the content that it is of, and with it the generations
/// under which the leaves of the volume are held. Never blocks.
pub trait RecordPlace {
    /// Takes a [`DiskOpKind::LoadWriter`] or [`DiskOpKind::StoreWriter`].
    fn submit(&mut self, op: DiskOp);

    /// Appends those that have ended.
    fn poll(&mut self, done: &mut Vec<DiskDone>);

    /// The generations that the last [`DiskOpKind::LoadWriter`] has found, in the order of the leaves;
    /// empty if there were none.
    fn remembered(&self) -> Vec<u64>;

    /// These are stored with the next record, in one step or behind it, and stay with later ones. Once they
    /// are durable it forgets what it knows of unused grants, before that record counts as stored; and
    /// tells somebody that of the leaves with the numbers `others` somebody else may have been the writer.
    fn remember(&mut self, generations: Vec<u64>, others: Vec<usize>);
}

/// A disk, for a volume that has no leaves with records: it keeps a record alone.
impl<D: Disk> RecordPlace for D {
    fn submit(&mut self, op: DiskOp) {
        Disk::submit(self, op);
    }

    fn poll(&mut self, done: &mut Vec<DiskDone>) {
        Disk::poll(self, done);
    }

    fn remembered(&self) -> Vec<u64> {
        Vec::new()
    }

    fn remember(&mut self, generations: Vec<u64>, _: Vec<usize>) {
        assert!(generations.is_empty(), "a disk has no place for the generations of leaves");
    }
}

/// A volume and the place of its record. All else is the volume's.
///
/// If somebody else has been granted a leaf since this volume was served last, the record that is loaded is
/// raised first: who was the writer is fenced, and so are its unflushed writes, which are older than what is
/// there (rule 3). Nobody is told what the record says before that and the generations of now are durable.
pub struct Recorded<P> {
    below: Box<dyn Volume>,
    place: P,
    /// Not yet compared with what the place remembers.
    grants: Vec<LeafGrant>,
    /// They are being stored, for whoever loads, with this record.
    settling: Option<(Token, WriterRecord)>,
    /// With this record they may be stored already, though that has failed.
    tried: Option<WriterRecord>,
    /// Operations of the record that have not ended, and those that never began.
    outstanding: usize,
    refused: Vec<Completion>,
    done: Vec<DiskDone>,
}

impl<P: RecordPlace> Recorded<P> {
    /// `grants` are those of its leaves, in order. Nothing is read or written yet.
    pub fn new(below: Box<dyn Volume>, place: P, grants: Vec<LeafGrant>) -> Self {
        let (refused, done) = (Vec::new(), Vec::new());
        let (settling, tried) = (None, None);
        Recorded { below, place, grants, settling, tried, outstanding: 0, refused, done }
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
        let mut ended = std::mem::take(&mut self.done);
        self.place.poll(&mut ended);
        done.extend(ended.drain(..).filter_map(|one| self.on_done(one)));
        self.done = ended;
        self.outstanding -= done.len() - before;
    }

    /// What it is to whoever asked, unless it goes on.
    fn on_done(&mut self, one: DiskDone) -> Option<Completion> {
        let DiskDone { token, result, kind } = one;
        let settled = self.settling.take_if(|(of, _)| *of == token);
        let (op, record) = match (kind, settled) {
            (DiskOpKind::LoadWriter(found), _) => {
                if result.is_ok() && self.grants.iter().any(|grant| grant.generation != 0) {
                    return self.settle(token, *found);
                }
                (Op::LoadWriter, Some(*found))
            }
            (_, Some((_, record))) => {
                if result.is_ok() {
                    self.grants.clear();
                }
                // To whoever loads; but that is what fails, if it does.
                (Op::StoreWriter, Some(record))
            }
            (_, None) => (Op::StoreWriter, None),
        };
        let result = result.map_err(|errno| failed(op, error_kind(errno)));
        let record = record.filter(|_| result.is_ok());
        let data = record.map_or_else(SegList::new, |record| record.to_data(&Pool::new(0)));
        Some(Completion { data, ..Completion::new(token, result) })
    }

    /// Has the grants of now remembered, with the record that counts from now on.
    fn settle(&mut self, token: Token, found: WriterRecord) -> Option<Completion> {
        let remembered = self.place.remembered();
        let now = to_remember(&remembered, &self.grants);
        let others = match self.tried == Some(found) && now == remembered {
            true => Vec::new(),
            false => granted_to_others(&remembered, &self.grants),
        };
        let raised = match others.is_empty() {
            true => Some(found),
            false => {
                found.generation.checked_add(1).map(|next| WriterRecord::new(next, [0; 16], ""))
            }
        };
        let Some(record) = raised else {
            // The last one is on record: whoever has it cannot be fenced, and must not be let in.
            let error = failed(Op::LoadWriter, ErrorKind::Io);
            return Some(Completion::new(token, Err(error)));
        };
        self.tried = Some(record);
        self.settling = Some((token, record));
        self.place.remember(now, others);
        let kind = DiskOpKind::StoreWriter(Box::new(record));
        self.place.submit(DiskOp { token, offset: 0, len: 0, kind });
        None
    }
}

fn failed(op: Op, kind: ErrorKind) -> IoError {
    Io::new(0, op, 0, 0).error(kind, "writer record")
}

impl<P: RecordPlace> Layer for Recorded<P> {
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
            true => self.submit_record(&io),
            false => self.below.submit(io),
        }
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        if self.outstanding > 0 {
            self.poll_record(done);
        }
    }

    fn taken(&self) -> usize {
        self.below.outstanding() + self.outstanding
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::stores::NullStore;
    use crate::{load_writer, store_writer};

    const EIO: i32 = 5;

    /// What outlives a process.
    #[derive(Default)]
    struct File {
        record: WriterRecord,
        leaves: Vec<u64>,
        /// So many of the next records cannot be stored, though they are there, or not even that.
        fails: usize,
        writes_nothing: bool,
        /// What was stored, and who was told of.
        stored: Vec<(WriterRecord, Vec<u64>)>,
        told: Vec<usize>,
    }

    struct Place {
        file: Rc<RefCell<File>>,
        found: Vec<u64>,
        next: Vec<u64>,
        others: Vec<usize>,
        done: Vec<DiskDone>,
    }

    impl RecordPlace for Place {
        fn submit(&mut self, op: DiskOp) {
            let file = &mut *self.file.borrow_mut();
            let DiskOp { token, mut kind, .. } = op;
            let mut result = Ok(());
            match &mut kind {
                DiskOpKind::LoadWriter(record) => {
                    **record = file.record;
                    (self.found, self.next) = (file.leaves.clone(), file.leaves.clone());
                }
                DiskOpKind::StoreWriter(_) if file.fails > 0 && file.writes_nothing => {
                    file.fails -= 1;
                    result = Err(EIO);
                }
                DiskOpKind::StoreWriter(record) => {
                    (file.record, file.leaves) = (**record, self.next.clone());
                    file.stored.push((**record, self.next.clone()));
                    match file.fails {
                        0 => file.told.append(&mut self.others),
                        _ => {
                            file.fails -= 1;
                            result = Err(EIO);
                        }
                    }
                }
                _ => unreachable!("it is of a record"),
            }
            self.done.push(DiskDone { token, result, kind });
        }

        fn poll(&mut self, done: &mut Vec<DiskDone>) {
            done.append(&mut self.done);
        }

        fn remembered(&self) -> Vec<u64> {
            self.found.clone()
        }

        fn remember(&mut self, generations: Vec<u64>, others: Vec<usize>) {
            (self.next, self.others) = (generations, others);
        }
    }

    fn open(file: &Rc<RefCell<File>>, generations: &[u64]) -> Recorded<Place> {
        let (found, next, others, done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let place = Place { file: file.clone(), found, next, others, done };
        let grants = generations.iter().map(|&at| LeafGrant::behind(None, at)).collect();
        Recorded::new(Box::new(NullStore::new(1 << 20, 512)), place, grants)
    }

    const CLIENT: [u8; 16] = [7; 16];

    /// A file of a gateway whose client is on record.
    fn held(generation: u64, leaves: &[u64]) -> Rc<RefCell<File>> {
        let record = WriterRecord::new(generation, CLIENT, "node2");
        Rc::new(RefCell::new(File { record, leaves: leaves.to_vec(), ..File::default() }))
    }

    #[test]
    fn who_wrote_a_leaf_meanwhile_fences_the_writer_of_the_whole() {
        let file = held(3, &[4, 0, 9]);
        // As it is told to stop, or killed, and begins anew.
        for generations in [[5, 0, 10], [6, 0, 11]] {
            let mut volume = open(&file, &generations);
            assert_eq!(load_writer(&mut volume), Ok(WriterRecord::new(3, CLIENT, "node2")));
            assert_eq!(file.borrow().leaves, generations, "durable before anybody is served");
        }
        // Somebody else had generation 12 of the last.
        let raised = WriterRecord::new(4, [0; 16], "");
        let mut volume = open(&file, &[7, 0, 13]);
        assert_eq!(load_writer(&mut volume), Ok(raised));
        {
            let file = file.borrow();
            assert_eq!(
                (file.record, &file.leaves[..], &file.told[..]),
                (raised, &[7, 0, 13][..], &[2][..])
            );
        }
        // Once: what is read later, and by the next process, is as it was left.
        let next = WriterRecord::new(5, CLIENT, "node2");
        store_writer(&mut volume, next).unwrap();
        assert_eq!(load_writer(&mut volume), Ok(next));
        assert_eq!(file.borrow().leaves, [7, 0, 13], "kept with later records");
        assert_eq!(load_writer(&mut open(&file, &[8, 0, 14])), Ok(next));
    }

    #[test]
    fn a_record_without_leaves_is_believed_and_readers_change_nothing() {
        let file = held(3, &[]);
        let record = file.borrow().record;
        assert_eq!(load_writer(&mut open(&file, &[0, 0])), Ok(record));
        assert!(file.borrow().stored.is_empty());
        assert_eq!(load_writer(&mut open(&file, &[5, 0])), Ok(record));
        assert_eq!(file.borrow().leaves, [5, 0]);
        // Only read, between two lives that write.
        assert_eq!(load_writer(&mut open(&file, &[0, 0])), Ok(record));
        assert_eq!(file.borrow().leaves, [5, 0]);
        assert_eq!(load_writer(&mut open(&file, &[7, 0])).unwrap().generation, 4);
    }

    #[test]
    fn nobody_reads_the_record_before_the_leaves_are_durable() {
        // The next one, somebody else's, and one whose record was put back from elsewhere.
        let cases = [([5], 3), ([6], 4), ([4], 4)];
        for ((generations, raised), nothing) in cases.iter().flat_map(|c| [(c, false), (c, true)]) {
            let (generations, raised) = (*generations, *raised);
            let file = held(3, &[4]);
            (file.borrow_mut().fails, file.borrow_mut().writes_nothing) = (1, nothing);
            let mut volume = open(&file, &generations);
            let error = load_writer(&mut volume).unwrap_err();
            assert_eq!((error.kind, error.op), (ErrorKind::Io, Op::StoreWriter));
            assert!(file.borrow().told.is_empty());
            // It is tried again, and what is there already is no reason to fence anybody.
            assert_eq!(load_writer(&mut volume).unwrap().generation, raised);
        }
    }

    #[test]
    fn the_last_generation_lets_nobody_in_behind_somebody_else() {
        let file = held(u64::MAX, &[4]);
        let mut volume = open(&file, &[6]);
        assert_eq!(load_writer(&mut volume).unwrap_err().kind, ErrorKind::Io);
        assert_eq!(load_writer(&mut volume).unwrap_err().kind, ErrorKind::Io);
        assert!(file.borrow().stored.is_empty());
        assert_eq!(load_writer(&mut open(&file, &[5])).unwrap().generation, u64::MAX);
    }

    #[test]
    fn it_conforms() {
        let pool = Pool::new(8 << 20);
        let below =
            crate::stores::MemoryStore::new(1 << 20, 512, crate::Identity::default(), &pool);
        let place = crate::testing::MemDisk::new(4096, 512, 1);
        let mut volume = Recorded::new(Box::new(below), place, Vec::new());
        let report = crate::testing::exercise(&mut volume, &mut || {}, 1, 2000);
        assert!(report.ios > 2000 && report.blocks_checked > 1000, "{report:?}");
    }
}
