//! Records that a volume keeps itself, or a place beside it, over what outlives a process.

use super::*;
use crate::leaves::LeafGrant;
use crate::stores::NullStore;
use crate::{ErrorKind, Geometry, Identity, load_writer, store_writer};

mod refused;

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
    /// What was told of changed leaves: that they could not be stored, or are.
    on_leaves: Vec<bool>,
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
        self.is_given_up = false;
    }

    fn on_leaves(&mut self, stored: Result<(), IoError>) {
        self.file.borrow_mut().on_leaves.push(stored.is_ok());
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
    is_read: bool,
    /// It has room for no first record.
    is_full: bool,
    /// Idle generations are not kept.
    drops_idle: bool,
    /// So many of the next records cannot be stored.
    fails: Rc<RefCell<usize>>,
    /// It has room for so many leaves.
    room: usize,
    done: Vec<Completion>,
}

impl Volume for Keeper {
    fn geometry(&self) -> Geometry {
        let mut geometry = NullStore::new(1 << 20, 512).geometry();
        geometry.features.read_only = self.is_read;
        geometry
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        let mut ended = Completion::new(io.token, Ok(()));
        let fails = &mut *self.fails.borrow_mut();
        match io.op {
            _ if self.cannot => ended.result = Err(io.error(ErrorKind::Unsupported, "keeper")),
            Op::StoreWriter if self.is_read => {
                ended.result = Err(io.error(ErrorKind::ReadOnly, "keeper"));
            }
            Op::LoadWriter => ended.data = self.kept.borrow().to_data(&Pool::new(0)),
            Op::StoreWriter if *fails > 0 => {
                *fails -= 1;
                ended.result = Err(io.error(ErrorKind::Io, "keeper"));
            }
            Op::StoreWriter if self.is_full && self.kept.borrow().is_none() => {
                ended.result = Err(io.error(ErrorKind::NoSpace, "keeper"));
            }
            Op::StoreWriter if leaves_of(&io) > self.room => {
                ended.result = Err(io.error(ErrorKind::Unsupported, "keeper"));
            }
            Op::StoreWriter => {
                let mut stored = KeptWriter::from_data(&io.data).expect("it is one");
                if self.drops_idle {
                    stored.record.idle = 0;
                }
                *self.kept.borrow_mut() = stored;
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

fn leaves_of(io: &Io) -> usize {
    KeptWriter::from_data(&io.data).and_then(|kept| kept.leaves).map_or(0, |leaves| leaves.len())
}

/// A gateway on a machine of its own.
fn gateway(
    kept: &Rc<RefCell<KeptWriter>>,
    file: &Rc<RefCell<File>>,
    generations: &[u64],
) -> Recorded<Place> {
    over(keeper(kept), file, generations)
}

fn keeper(kept: &Rc<RefCell<KeptWriter>>) -> Keeper {
    let (kept, fails, done) = (kept.clone(), Rc::default(), Vec::new());
    let (is_read, is_full) = (false, false);
    Keeper { kept, cannot: false, is_read, is_full, drops_idle: false, fails, room: 9, done }
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
    let mut volume = over(Keeper { cannot: true, ..keeper(&kept) }, &file, &[5]);
    assert_eq!(load_writer(&mut volume).unwrap().generation, 3);
    store_writer(&mut volume, WriterRecord::new(4, CLIENT, "node2")).unwrap();
    assert_eq!(file.borrow().record.generation, 4);
    assert_eq!(file.borrow().leaves, leaves(&[5]));
}

#[test]
fn nobody_reads_what_a_volume_could_not_keep() {
    let (kept, file, fails) = (Rc::default(), held(3, &[4]), Rc::new(RefCell::new(1)));
    let mut volume = over(Keeper { fails: fails.clone(), ..keeper(&kept) }, &file, &[5]);
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

/// What there was to be told of leaves that could not be stored, and how often that was tried, in so many seconds with the first of which they change.
fn changed_in_vain(by: KeptBy, canary: RecordedCanary) -> Result<(), String> {
    let record = WriterRecord::new(3, CLIENT, "node2");
    let (kept, file, fails) = (Rc::default(), held(3, &[4]), Rc::new(RefCell::new(0)));
    let open = |generations: &[u64]| match by {
        KeptBy::Place => open(&file, generations),
        KeptBy::Volume => {
            over(Keeper { fails: fails.clone(), ..keeper(&kept) }, &file, generations)
        }
    };
    let fail = |times: usize| match by {
        KeptBy::Place => {
            (file.borrow_mut().fails, file.borrow_mut().writes_nothing) = (times, true)
        }
        KeptBy::Volume => *fails.borrow_mut() = times,
    };
    let mut volume = open(&[5]);
    volume.canary = canary;
    let leaves = HeldLeaves::default();
    volume.follow(leaves.clone());
    assert!(volume.is_timed());
    assert_eq!(load_writer(&mut volume), Ok(record));
    fail(3);
    leaves.set(granted(&[5, 1]));
    let mut now = Time::ZERO;
    let mut wait = |volume: &mut Recorded<Place>, seconds: u64| {
        let end = now + Duration::from_secs(seconds);
        while now < end {
            let mut done = Vec::new();
            volume.turn(now);
            (0..2).for_each(|_| volume.poll(&mut done));
            assert!(done.is_empty() && volume.outstanding() == 0, "{done:?}");
            let next = volume.turn(now);
            now = next.max(now + Duration::from_millis(1)).min(end);
        }
    };
    wait(&mut volume, 2);
    // If it ends here, its writer is fenced, for nothing: not for less.
    let left = match by {
        KeptBy::Place => (file.borrow().fails, file.borrow().leaves.clone()),
        KeptBy::Volume => (*fails.borrow(), kept.borrow().leaves.clone().unwrap()),
    };
    assert_eq!((left.1, &file.borrow().on_leaves[..]), (self::leaves(&[5]), &[false][..]), "once");
    if left.0 == 2 {
        return Err("nothing is tried again".into());
    }
    assert_eq!(left.0, 1, "each second");
    wait(&mut volume, 3);
    assert_eq!(file.borrow().on_leaves, [false, true]);
    drop(volume);
    assert_eq!(load_writer(&mut open(&[6, 2])), Ok(record), "{by:?}");
    Ok(())
}

#[test]
fn leaves_that_could_not_be_stored_are_stored_later() {
    for by in [KeptBy::Place, KeptBy::Volume] {
        changed_in_vain(by, RecordedCanary::None).unwrap();
        assert!(changed_in_vain(by, RecordedCanary::TriesOnce).is_err(), "{by:?}");
    }
}

/// A gateway that serves with its leaves on record, the next of which cannot be stored.
fn followed_on_a_full_disk() -> (Rc<RefCell<File>>, Recorded<Place>, HeldLeaves) {
    let file = held(3, &[4]);
    let mut volume = open(&file, &[5]);
    let leaves = HeldLeaves::default();
    volume.follow(leaves.clone());
    load_writer(&mut volume).unwrap();
    (file.borrow_mut().fails, file.borrow_mut().writes_nothing) = (1, true);
    (file, volume, leaves)
}

/// Whoever dies before that fences its writer for nothing, and lets nobody in whom it would have fenced.
#[test]
fn leaves_that_are_not_stored_fence_a_writer_for_nothing() {
    let (file, mut volume, leaves) = followed_on_a_full_disk();
    // A leg has come back, under another grant.
    leaves.set(granted(&[7]));
    volume.poll(&mut Vec::new());
    volume.poll(&mut Vec::new());
    drop(volume);
    assert_eq!(load_writer(&mut open(&file, &[8])).unwrap().generation, 4);
}

/// A record that goes with the next one has the leaves, and nothing more is tried.
#[test]
fn the_next_record_has_leaves_that_could_not_be_stored() {
    let (file, mut volume, leaves) = followed_on_a_full_disk();
    leaves.set(granted(&[5, 1]));
    volume.poll(&mut Vec::new());
    volume.poll(&mut Vec::new());
    assert!(volume.turn(Time::ZERO) < Time::NEVER);
    store_writer(&mut volume, WriterRecord::new(4, CLIENT, "node2")).unwrap();
    assert_eq!(volume.turn(Time::ZERO), Time::NEVER);
    assert_eq!(file.borrow().on_leaves, [false, true]);
    assert_eq!(load_writer(&mut open(&file, &[6, 2])).unwrap().generation, 4);
}

/// More leaves than the volume has room for, come while it is served or described, and fewer again: the record goes to the file and back, cut off behind each step.
fn moves(canary: RecordedCanary) -> Result<(), String> {
    let roomy = |kept: &Rc<RefCell<KeptWriter>>, room| Keeper { room, ..keeper(kept) };
    for cut in 0..6 {
        let (kept, file) = (Rc::default(), Rc::default());
        let mut volume = over(roomy(&kept, 2), &file, &[4, 9]);
        load_writer(&mut volume).unwrap();
        let mut told = WriterRecord::new(1, CLIENT, "node2");
        store_writer(&mut volume, told).unwrap();
        drop(volume);
        // Each step may be the last.
        let mut volume = over(roomy(&kept, 2), &file, &[5, 10, 1]);
        volume.canary = canary;
        let next = WriterRecord::new(2, CLIENT, "node2");
        let mut steps = 0;
        let mut run = |volume: &mut Recorded<Place>, io: Io| {
            volume.submit(io);
            let mut done = Vec::new();
            while done.is_empty() && steps < cut {
                volume.poll(&mut done);
                steps += 1;
            }
            done.pop().map(|ended| ended.result)
        };
        let mut is_raised = false;
        if let Some(loaded) = run(&mut volume, Io::new(1, Op::LoadWriter, 0, 0)) {
            loaded.unwrap();
            // Of the third nobody knew.
            (told, is_raised) = (WriterRecord::new(2, [0; 16], ""), true);
        }
        let next = WriterRecord { generation: next.generation + u64::from(is_raised), ..next };
        if let Some(Ok(())) = run(&mut volume, next.to_io(2, &Pool::new(0))) {
            told = next;
        }
        drop(volume);
        // Whoever comes next knows who that was, or a later one: he is fenced for nothing, or not at all.
        let mut volume = over(roomy(&kept, 2), &file, &[6, 11, 2]);
        let found = load_writer(&mut volume).unwrap();
        let is_fenced = found.generation > told.generation;
        if found.generation < told.generation || (!is_fenced && found.holder != told.holder) {
            return Err(format!("{cut}: {told:?} was told of, {found:?} is found"));
        }
        assert_eq!(kept.borrow().record, WriterRecord::default(), "{cut}: it is in the file");
        assert_eq!(file.borrow().record, found, "{cut}");
        store_writer(&mut volume, WriterRecord::new(9, CLIENT, "node2")).unwrap();
        drop(volume);
        // And back, with fewer.
        let mut volume = over(roomy(&kept, 2), &file, &[7, 12]);
        assert_eq!(load_writer(&mut volume).unwrap(), WriterRecord::new(9, CLIENT, "node2"));
        assert_eq!(kept.borrow().record.generation, 9, "{cut}: what it is without a third");
        assert_eq!(file.borrow().record, WriterRecord::default());
        // While it is served.
        let leaves = HeldLeaves::default();
        volume.follow(leaves.clone());
        leaves.set(granted(&[7, 12, 1]));
        (0..4).for_each(|_| volume.poll(&mut Vec::new()));
        assert_eq!((kept.borrow().record.generation, file.borrow().record.generation), (0, 9));
        assert_eq!(file.borrow().leaves, self::leaves(&[7, 12, 1]));
        leaves.set(granted(&[7, 12]));
        (0..4).for_each(|_| volume.poll(&mut Vec::new()));
        assert_eq!(kept.borrow().record.generation, 9);
        store_writer(&mut volume, WriterRecord::new(10, CLIENT, "node2")).unwrap();
        drop(volume);
        // What the file has is old by now.
        let mut volume = over(roomy(&kept, 2), &file, &[8, 13]);
        assert_eq!(load_writer(&mut volume).unwrap().generation, 10);
        assert_eq!(file.borrow().record, WriterRecord::default());
    }
    Ok(())
}

#[test]
fn a_record_without_room_moves_to_the_place_and_back() {
    moves(RecordedCanary::None).unwrap();
    let why = moves(RecordedCanary::LeavesOld).unwrap_err();
    assert!(why.contains("was told of"), "{why}");
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
