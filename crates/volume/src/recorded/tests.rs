//! Records that a volume keeps itself, or a place beside it, over what outlives a process.

use super::*;
use crate::leaves::LeafGrant;
use crate::stores::NullStore;
use crate::{Geometry, Identity, load_writer, store_writer};

const EIO: i32 = 5;

/// What outlives a process.
#[derive(Default)]
struct File {
    record: WriterRecord,
    leaves: Vec<LeafGeneration>,
    /// So many of the next records cannot be stored, though they are there, or not even that.
    fails: usize,
    writes_nothing: bool,
    /// What was stored, and who was told of.
    stored: Vec<(WriterRecord, Vec<LeafGeneration>)>,
    told: Vec<usize>,
}

struct Place {
    file: Rc<RefCell<File>>,
    found: Vec<LeafGeneration>,
    next: Vec<LeafGeneration>,
    others: Vec<usize>,
    done: Vec<DiskDone>,
    is_given_up: bool,
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
            DiskOpKind::StoreWriter(_) if self.is_given_up => match file.fails {
                0 => {
                    (file.record, file.leaves) = Default::default();
                    file.told.append(&mut self.others);
                }
                _ => {
                    file.fails -= 1;
                    result = Err(EIO);
                }
            },
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

    fn remembered(&self) -> Vec<LeafGeneration> {
        self.found.clone()
    }

    fn remember(&mut self, generations: Vec<LeafGeneration>, others: Vec<usize>) {
        (self.next, self.others) = (generations, others);
    }

    fn give_up(&mut self) {
        self.is_given_up = true;
    }
}

fn open(file: &Rc<RefCell<File>>, generations: &[u64]) -> Recorded<Place> {
    let (found, next, others, done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let place = Place { file: file.clone(), found, next, others, done, is_given_up: false };
    Recorded::new(Box::new(NullStore::new(1 << 20, 512)), place, granted(generations))
}

/// Of leaves 1, 2 and so on, under which they are held; 0 for one that is not.
fn granted(generations: &[u64]) -> Vec<HeldGrant> {
    let of = |(leaf, &generation): (u8, &u64)| match generation {
        0 => HeldGrant::default(),
        _ => HeldGrant { leaf: [leaf; 16], grant: LeafGrant::alone(generation) },
    };
    (1..).zip(generations).map(of).collect()
}

/// What is remembered of these.
fn leaves(generations: &[u64]) -> Vec<LeafGeneration> {
    to_remember(&[], &granted(generations))
}

const CLIENT: [u8; 16] = [7; 16];

/// A file of a gateway whose client is on record.
fn held(generation: u64, generations: &[u64]) -> Rc<RefCell<File>> {
    let record = WriterRecord::new(generation, CLIENT, "node2");
    Rc::new(RefCell::new(File { record, leaves: leaves(generations), ..File::default() }))
}

#[test]
fn who_wrote_a_leaf_meanwhile_fences_the_writer_of_the_whole() {
    let file = held(3, &[4, 0, 9]);
    // As it is told to stop, or killed, and begins anew.
    for generations in [[5, 0, 10], [6, 0, 11]] {
        let mut volume = open(&file, &generations);
        assert_eq!(load_writer(&mut volume), Ok(WriterRecord::new(3, CLIENT, "node2")));
        assert_eq!(file.borrow().leaves, leaves(&generations), "durable before anybody is served");
    }
    // Somebody else had generation 12 of the last.
    let raised = WriterRecord::new(4, [0; 16], "");
    let mut volume = open(&file, &[7, 0, 13]);
    assert_eq!(load_writer(&mut volume), Ok(raised));
    {
        let file = file.borrow();
        assert_eq!(
            (file.record, &file.leaves[..], &file.told[..]),
            (raised, &leaves(&[7, 0, 13])[..], &[2][..])
        );
    }
    // Once: what is read later, and by the next process, is as it was left.
    let next = WriterRecord::new(5, CLIENT, "node2");
    store_writer(&mut volume, next).unwrap();
    assert_eq!(load_writer(&mut volume), Ok(next));
    assert_eq!(file.borrow().leaves, leaves(&[7, 0, 13]), "kept with later records");
    assert_eq!(load_writer(&mut open(&file, &[8, 0, 14])), Ok(next));
}

#[test]
fn a_record_without_leaves_is_believed_and_readers_change_nothing() {
    let file = held(3, &[]);
    let record = file.borrow().record;
    assert_eq!(load_writer(&mut open(&file, &[0, 0])), Ok(record));
    assert!(file.borrow().stored.is_empty());
    assert_eq!(load_writer(&mut open(&file, &[5, 0])), Ok(record));
    assert_eq!(file.borrow().leaves, leaves(&[5, 0]));
    // Only read, between two lives that write.
    assert_eq!(load_writer(&mut open(&file, &[0, 0])), Ok(record));
    assert_eq!(file.borrow().leaves, leaves(&[5, 0]));
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

/// A volume that keeps its record itself.
struct Keeper {
    kept: Rc<RefCell<KeptWriter>>,
    cannot: bool,
    /// So many of the next records cannot be stored.
    fails: Rc<RefCell<usize>>,
    done: Vec<Completion>,
}

impl Volume for Keeper {
    fn geometry(&self) -> Geometry {
        NullStore::new(1 << 20, 512).geometry()
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        let mut ended = Completion::new(io.token, Ok(()));
        let fails = &mut *self.fails.borrow_mut();
        match io.op {
            _ if self.cannot => ended.result = Err(io.error(ErrorKind::Unsupported, "keeper")),
            Op::LoadWriter => ended.data = self.kept.borrow().to_data(&Pool::new(0)),
            Op::StoreWriter if *fails > 0 => {
                *fails -= 1;
                ended.result = Err(io.error(ErrorKind::Io, "keeper"));
            }
            Op::StoreWriter => {
                *self.kept.borrow_mut() = KeptWriter::from_data(&io.data).expect("it is one");
            }
            _ => {}
        }
        self.done.push(ended);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn outstanding(&self) -> usize {
        self.done.len()
    }
}

/// A gateway on a machine of its own.
fn gateway(
    kept: &Rc<RefCell<KeptWriter>>,
    file: &Rc<RefCell<File>>,
    generations: &[u64],
) -> Recorded<Place> {
    let keeper =
        Keeper { kept: kept.clone(), cannot: false, fails: Rc::default(), done: Vec::new() };
    over(keeper, file, generations)
}

fn over(keeper: Keeper, file: &Rc<RefCell<File>>, generations: &[u64]) -> Recorded<Place> {
    let (found, next, others, done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let place = Place { file: file.clone(), found, next, others, done, is_given_up: false };
    Recorded::kept_by(KeptBy::Volume, Box::new(keeper), place, granted(generations))
}

#[test]
fn another_gateway_knows_the_writer_by_what_the_volume_keeps() {
    let (kept, files) = (Rc::default(), [Rc::default(), Rc::default(), Rc::default()]);
    let mut first = gateway(&kept, &files[0], &[4, 9]);
    assert_eq!(load_writer(&mut first), Ok(WriterRecord::default()));
    let record = WriterRecord::new(1, CLIENT, "node2");
    store_writer(&mut first, record).unwrap();
    assert_eq!(load_writer(&mut gateway(&kept, &files[1], &[5, 10])), Ok(record));
    assert_eq!(kept.borrow().leaves, Some(leaves(&[5, 10])));
    // Somebody else had one of them.
    let raised = WriterRecord::new(2, [0; 16], "");
    assert_eq!(load_writer(&mut gateway(&kept, &files[2], &[6, 12])), Ok(raised));
    assert_eq!(files[2].borrow().told, [1]);
    assert!(files.iter().all(|file| file.borrow().record == WriterRecord::default()));
    // Who knows nothing of leaves was no gateway.
    kept.borrow_mut().leaves = None;
    let raised = WriterRecord::new(3, [0; 16], "");
    assert_eq!(load_writer(&mut gateway(&kept, &files[0], &[7, 13])), Ok(raised));
}

#[test]
fn what_a_file_has_from_before_is_taken_over_once() {
    let (kept, file) = (Rc::default(), held(3, &[4, 9]));
    let mut volume = gateway(&kept, &file, &[5, 10]);
    let record = WriterRecord::new(3, CLIENT, "node2");
    assert_eq!(load_writer(&mut volume), Ok(record));
    assert_eq!(kept.borrow().record, record);
    assert_eq!(file.borrow().record, WriterRecord::default(), "it is not there any more");
    // One that is put back from an old copy counts for nothing.
    let copy = held(7, &[5, 10]);
    assert_eq!(load_writer(&mut gateway(&kept, &copy, &[6, 11])), Ok(record));
    // And what the file knows of leaves counts as it did.
    let (kept, file) = (Rc::default(), held(3, &[4, 9]));
    let raised = load_writer(&mut gateway(&kept, &file, &[5, 11])).unwrap();
    assert_eq!((raised.generation, kept.borrow().record), (4, raised));
}

#[test]
fn what_a_volume_does_not_keep_after_all_is_in_the_file() {
    let (kept, file) = (Rc::default(), held(3, &[4]));
    let keeper = Keeper { kept, cannot: true, fails: Rc::default(), done: Vec::new() };
    let mut volume = over(keeper, &file, &[5]);
    assert_eq!(load_writer(&mut volume).unwrap().generation, 3);
    store_writer(&mut volume, WriterRecord::new(4, CLIENT, "node2")).unwrap();
    assert_eq!(file.borrow().record.generation, 4);
    assert_eq!(file.borrow().leaves, leaves(&[5]));
}

#[test]
fn nobody_reads_what_a_volume_could_not_keep() {
    let (kept, file, fails) = (Rc::default(), held(3, &[4]), Rc::new(RefCell::new(1)));
    let of = (Rc::clone(&kept), fails.clone());
    let keeper = Keeper { kept: of.0, cannot: false, fails: of.1, done: Vec::new() };
    let mut volume = over(keeper, &file, &[5]);
    assert_eq!(load_writer(&mut volume).unwrap_err().op, Op::StoreWriter);
    assert_eq!(file.borrow().record.generation, 3, "it is there as long as nothing else is");
    // Nor what could not be given up.
    file.borrow_mut().fails = 1;
    assert_eq!(load_writer(&mut volume).unwrap_err().op, Op::StoreWriter);
    assert_eq!(load_writer(&mut volume).unwrap().generation, 3);
}

/// A leg that comes is remembered, wherever the record is.
#[test]
fn leaves_that_come_are_remembered_without_being_asked_for() {
    let record = WriterRecord::new(3, CLIENT, "node2");
    for by in [KeptBy::Place, KeptBy::Volume] {
        let (kept, file) = (Rc::default(), held(3, &[4]));
        let open = |generations: &[u64]| match by {
            KeptBy::Place => open(&file, generations),
            KeptBy::Volume => gateway(&kept, &file, generations),
        };
        let mut volume = open(&[5]);
        let leaves = HeldLeaves::default();
        volume.follow(leaves.clone());
        // Not before anybody was told what was there.
        leaves.set(granted(&[5]));
        volume.poll(&mut Vec::new());
        assert_eq!(load_writer(&mut volume), Ok(record));
        leaves.set(granted(&[5, 1]));
        for _ in 0..3 {
            let mut done = Vec::new();
            volume.poll(&mut done);
            assert!(done.is_empty() && volume.outstanding() == 0, "{done:?}");
        }
        drop(volume);
        assert_eq!(load_writer(&mut open(&[6, 2])), Ok(record), "{by:?}");
        // One of which nobody said anything.
        assert_eq!(load_writer(&mut open(&[7, 3, 1])).unwrap().generation, 4, "{by:?}");
    }
}

#[test]
fn it_conforms() {
    let pool = Pool::new(8 << 20);
    let below = crate::stores::MemoryStore::new(1 << 20, 512, crate::Identity::default(), &pool);
    let place = crate::testing::MemDisk::new(4096, 512, 1);
    let mut volume = Recorded::new(Box::new(below), place, Vec::new());
    let report = crate::testing::exercise(&mut volume, &mut || {}, 1, 2000);
    assert!(report.ios > 2000 && report.blocks_checked > 1000, "{report:?}");
}
