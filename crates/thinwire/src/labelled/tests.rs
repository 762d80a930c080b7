//! Openings of volumes whose parts are files with labels.

use std::path::PathBuf;

use thinwire_buffer::Pool;
use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
use thinwire_modules::thin::{NewPool, PoolSizes};
use thinwire_runtime::disk;
use thinwire_volume::{Completion, Geometry, Identity, Io};

use super::*;
use crate::cli::WireArgs;
use crate::open::{Ending, VolumeOptions, open_volume};
use crate::testing::TempDir;

/// Two files, and the volume that they are the parts of.
struct Pair {
    dir: TempDir,
    spec: VolumeSpec,
}

impl Pair {
    fn new(name: &str) -> Self {
        let dir = TempDir::new(name);
        let file = dir.path().join("pool.toml");
        let described = "[[volume]]\nname = \"both\"\nkind = \"linear\"\nlabels = true\n";
        let described = format!("{described}children = [\"./a.img\", \"./b.img\"]\n");
        std::fs::write(&file, described).unwrap();
        let pair = Pair { spec: format!("{}#both", file.display()).parse().unwrap(), dir };
        let (pool, sizes) = (Pool::new(0), [2 << 20, 3 << 20]);
        let paths = [0, 1].map(|nth| pair.path(nth));
        paths.iter().zip(sizes).for_each(|(path, len)| std::fs::write(path, vec![0; len]).unwrap());
        let mut stores = paths.map(|path| {
            let opened = disk::open_store(&path, &Default::default(), &pool, &mut |_| {});
            opened.unwrap().volume
        });
        let part = |nth: usize| NewPart {
            uuid: [nth as u8 + 1; 16],
            content: stores[nth].identity(),
            bytes: stores[nth].geometry().bytes,
        };
        let (parts, module) = ([0, 1].map(part), Module::find("linear").unwrap());
        let bytes = parts.iter().map(|part| part.data_bytes(module)).sum();
        let options = &Options::default();
        let whole = NewWhole { name: "both", uuid: [9; 16], module, options, bytes };
        for (label, store) in label_parts(&whole, &parts).unwrap().iter().zip(&mut stores) {
            write(label, &mut **store);
        }
        pair
    }

    fn path(&self, part: usize) -> PathBuf {
        self.dir.path().join(["a.img", "b.img"][part])
    }

    fn contents(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|part| std::fs::read(self.path(part)).unwrap())
    }

    fn open(&self, read_only: bool) -> Outcome {
        let run_dir = self.dir.path().join("run");
        let mut options = VolumeOptions::new(Default::default(), &WireArgs::default(), run_dir);
        options.read_only = read_only;
        open_volume(&self.spec, &options, None)?.close(Ending::Orderly).map(|_| ())
    }

    /// How often the parts say that it was opened.
    fn openings(&self) -> [(u64, [u8; 16]); 2] {
        [0, 1].map(|part| {
            let pool = Pool::new(0);
            let opened =
                disk::open_store(&self.path(part), &Default::default(), &pool, &mut |_| {});
            let mut store = opened.unwrap().volume;
            let mut labels = Labels::new(0, &pool);
            labels.read(&mut *store).unwrap();
            match ended(&mut labels, &mut *store) {
                LabelOutcome::Read(Ok(Finding::Label(found))) => {
                    assert_eq!(found.label.next_opening, [0; 16]);
                    (found.label.openings, found.label.opening)
                }
                other => panic!("{other:?}"),
            }
        })
    }
}

/// In both copies, where none was.
fn write(label: &Label, store: &mut dyn Volume) {
    let mut labels = Labels::new(0, &Pool::new(0));
    labels.read(store).unwrap();
    ended(&mut labels, store);
    for _ in 0..3 {
        labels.write(label, store).unwrap();
        let written = ended(&mut labels, store);
        assert!(matches!(written, LabelOutcome::Written(Ok(_))), "{written:?}");
    }
}

fn ended(labels: &mut Labels, volume: &mut dyn Volume) -> LabelOutcome {
    loop {
        match labels.turn(volume) {
            Some(outcome) => return outcome,
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

#[test]
fn who_only_reads_leaves_the_labels_alone() {
    let pair = Pair::new("labelled-reads");
    let before = pair.contents();
    pair.open(true).unwrap();
    assert!(before == pair.contents());
}

/// Rule 25.
#[test]
fn a_part_put_back_from_before_the_last_opening_is_refused() {
    let pair = Pair::new("labelled-old");
    let [none, _] = pair.openings();
    assert_eq!(none, (0, [0; 16]));
    pair.open(false).unwrap();
    let [first, other] = pair.openings();
    assert_eq!((first, first.0), (other, 1));
    let before = pair.contents();
    pair.open(false).unwrap();
    let [second, other] = pair.openings();
    assert!(second == other && second.0 == 2 && second.1 != first.1, "{second:?} after {first:?}");
    let after = pair.contents();
    for part in 0..2 {
        std::fs::write(pair.path(part), &before[part]).unwrap();
        for read_only in [true, false] {
            let why = pair.open(read_only).unwrap_err().to_string();
            assert!(
                why.contains(&format!(
                    ".img (part {part}, counted from 0, 1 opening behind) is an old copy"
                )),
                "{why}"
            );
        }
        std::fs::write(pair.path(part), &after[part]).unwrap();
    }
    // All of one time are a whole.
    (0..2).for_each(|part| std::fs::write(pair.path(part), &before[part]).unwrap());
    pair.open(false).unwrap();
}

/// A part whose first reads find what it was before somebody opened the whole.
struct Late {
    before: Box<dyn Volume>,
    now: Box<dyn Volume>,
    reads_before: usize,
}

impl Volume for Late {
    fn geometry(&self) -> Geometry {
        self.now.geometry()
    }

    fn identity(&self) -> Identity {
        self.now.identity()
    }

    fn submit(&mut self, io: Io) {
        let is_late = self.reads_before == 0;
        self.reads_before = self.reads_before.saturating_sub(1);
        if is_late { self.now.submit(io) } else { self.before.submit(io) }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.before.poll(done);
        self.now.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.before.outstanding() + self.now.outstanding()
    }
}

#[test]
fn who_reads_while_it_is_opened_looks_again() {
    // Both copies of a label; then those that it finds when it looks again.
    for (reads_before, is_opened) in [(0, true), (2, true), (4, false)] {
        let pair = Pair::new("labelled-late");
        let old = pair.dir.path().join("old.img");
        std::fs::copy(pair.path(0), &old).unwrap();
        pair.open(false).unwrap();
        let (host, pool) = (Host::new().unwrap(), Pool::new(0));
        let [before, now, other] = [old, pair.path(0), pair.path(1)].map(|path| {
            let opened = disk::open_store(&path, &Default::default(), &pool, &mut |_| {});
            opened.unwrap().volume
        });
        let VolumeSpec::Over { module, options, children: specs, .. } = &pair.spec else {
            unreachable!()
        };
        let late: Box<dyn Volume> = Box::new(Late { before, now, reads_before });
        let by = Opening { read_only: true, ..opening(None) };
        let opened =
            open_whole(&host, (module, options, None), specs, (vec![late, other], None, None), &by);
        let why = opened.err().map(|e| e.to_string());
        assert_eq!(why.is_none(), is_opened, "{reads_before}: {why:?}");
        assert!(why.is_none_or(|why| why.contains("1 opening behind")));
    }
}

fn opening(growth: Option<&GrowthNotes>) -> Opening<'_> {
    Opening {
        interrupt: Interrupt { signals: None, stop: None },
        until: None,
        in_order: false,
        read_only: false,
        rekey: None,
        wish: OpeningWish::default(),
        pool: None,
        growth,
        adopt: None,
    }
}

/// Who was killed between the labels and the first commit: the same again makes it whole, and says so.
#[test]
fn a_growth_of_a_pool_that_was_cut_off_is_told_by_who_ends_it() {
    const MIB: u64 = 1 << 20;
    let dir = TempDir::new("labelled-cut-off");
    let file = dir.path().join("pool.toml");
    let described =
        "[[volume]]\nname = \"pool\"\nkind = \"thin\"\nchildren = [\"./a.img\", \"./b.img\"]\n";
    std::fs::write(&file, described).unwrap();
    let spec: VolumeSpec = format!("{}#pool", file.display()).parse().unwrap();
    let VolumeSpec::Over { module, options, children: specs, .. } = &spec else { unreachable!() };
    let (pool, paths) = (Pool::new(0), ["a.img", "b.img"].map(|name| dir.path().join(name)));
    let make_as_large = |mib: [u64; 2]| {
        for (path, mib) in paths.iter().zip(mib) {
            let mut how = std::fs::OpenOptions::new();
            let file = how.write(true).create(true).truncate(false).open(path);
            file.unwrap().set_len(mib * MIB).unwrap();
        }
    };
    let stores = || {
        paths.each_ref().map(|path| {
            disk::open_store(path, &Default::default(), &pool, &mut |_| {}).unwrap().volume
        })
    };
    make_as_large([3, 6]);
    let new = NewPool { block_bytes: 64 << 10, data_bytes: 2 * MIB, metadata_bytes: 5 * MIB };
    let part = |(nth, store): (usize, Box<dyn Volume>)| NewPart {
        uuid: [nth as u8 + 1; 16],
        content: store.identity(),
        bytes: store.geometry().bytes,
    };
    let whole = NewWhole { name: "pool", uuid: [9; 16], module, options, bytes: new.data_bytes };
    let parts: Vec<_> = stores().into_iter().enumerate().map(part).collect();
    let labels = label_parts(&whole, &parts).unwrap();
    let states = new.states().unwrap();
    for ((label, state), mut store) in labels.into_iter().zip(states).zip(stores()) {
        write(&Label { state, ..label }, &mut *store);
    }
    let grow = || {
        let notes = GrowthNotes::default();
        let run_dir = dir.path().join("run");
        let mut options = VolumeOptions::new(Default::default(), &WireArgs::default(), run_dir);
        (options.growth, options.pool) = (Some(notes.clone()), Some(PoolPlace::growing()));
        let mut open = open_volume(&spec, &options, None).unwrap();
        drop(options.pool.take().and_then(|place| place.take()));
        open.close(Ending::Orderly).unwrap();
        notes.take().pop().unwrap()
    };
    let sizes = |data: u64, metadata: u64| PoolSizes {
        data_bytes: data * MIB,
        metadata_bytes: metadata * MIB,
    };
    let none = grow();
    assert!(none.why.is_some_and(|why| why.contains("make those larger first")));
    make_as_large([9, 8]);
    let (host, notes) = (Host::new().unwrap(), GrowthNotes::default());
    let mut children = Vec::from(stores());
    let by = opening(Some(&notes));
    // Labels, and no more.
    assemble_whole(&host, (module, options, None), specs, &mut children, &by).unwrap();
    drop(children);
    let grown = Grown::pool("pool", sizes(2, 5), sizes(8, 7));
    assert_eq!(notes.take(), std::slice::from_ref(&grown));
    assert_eq!(grow(), grown);
    let none = grow();
    assert!(none.why.is_some_and(|why| why.contains("make those larger first")));
    assert_eq!(none.bytes, 8 * MIB);
}
