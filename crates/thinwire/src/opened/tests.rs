//! Volumes that commands open: what is refused, and what a loss leaves.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use thinwire_buffer::SegList;
use thinwire_modules::thin::PoolOp;
use thinwire_runtime::disk;
use thinwire_volume::{Completion, Geometry, Identity, Io, Op, load_writer};

use super::tree::Root;
use super::*;
use crate::cli::WireArgs;
use crate::commands::volume::create_quietly;
use crate::local::LocalLeaf;
use crate::open::{let_go_together, open_volume};
use crate::pool::PoolPlace;
use crate::testing::{FailsFlush, Hangs, TempDir, Waits};

#[test]
fn what_does_not_fit_is_named_as_the_user_named_it() {
    let half = 1u64 << 63;
    let text = format!("linear:[memory:512,null:{half},linear:[null:{half},null:512]]");
    let options =
        VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), PathBuf::new());
    let error = open_volume(&text.parse().unwrap(), &options, None).err().unwrap().to_string();
    let outer = format!("cannot open {text}: linear:[null:{half},null:512] does not fit");
    assert!(error.starts_with(&outer), "{error}");
}

/// A tree is counted at each of its volumes; a volume that is made of nothing is not.
#[test]
fn each_volume_of_a_tree_counts_what_goes_to_it() {
    let options =
        VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), PathBuf::new());
    let open = |text: &str| open_volume(&text.parse().unwrap(), &options, None).unwrap();
    let mut volume = open("linear:[memory:64K,slice:[memory:64K]]");
    let mut write = |offset, len: usize| {
        let mut io = Io::new(1, Op::Write, offset, len as u64);
        io.data = SegList::of(volume.pool().copy_of(&vec![7; len]).freeze());
        crate::bench::one_io(&mut *volume, io, &mut Vec::new()).unwrap().result.unwrap();
    };
    write(4096, 4096);
    // Half of it to each.
    write((1 << 16) - 4096, 8192);
    volume.begin_node_stages(thinwire_wire::clock_kind::PHYSICAL);
    let read = Io::new(2, Op::Read, (1 << 16) + 512, 512);
    crate::bench::one_io(&mut *volume, read, &mut Vec::new()).unwrap();
    let of = |node: &OutlineNode| {
        let report = node.meter.as_ref().expect("all of a tree are").report();
        (node.kind, report.reads, report.writes, report.written_bytes)
    };
    let counted: Vec<_> = volume.outline().iter().map(of).collect();
    let expected = [
        ("linear", 1, 2, 12288),
        ("memory", 0, 2, 8192),
        ("slice", 1, 1, 4096),
        ("memory", 1, 1, 4096),
    ];
    assert_eq!(counted, expected);
    let stages: Vec<_> =
        volume.node_stages().iter().map(|node| (node.depth, node.stage.ios)).collect();
    assert_eq!(stages, [(0, 1), (1, 0), (1, 1), (2, 1)]);
    let top = volume.node_stages()[0].stage;
    assert!(top.below > 0 && top.left.wrapping_sub(top.entered) >= top.below, "{top:?}");
    let alone = open("memory:64K");
    assert!(alone.outline().iter().all(|node| node.meter.is_none()));
}

/// What is shown of a volume that has grown, and of all that it is made of, is what they are now.
#[test]
fn each_volume_of_a_tree_is_shown_as_large_as_it_has_become() {
    let dir = TempDir::new("opened-grows");
    let path = dir.path().join("a.img");
    std::fs::write(&path, [0; 1 << 16]).unwrap();
    let options =
        VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), PathBuf::new());
    let spec = format!("linear:[memory:64K,linear:[{}]]", path.display());
    let mut volume = open_volume(&spec.parse().unwrap(), &options, None).unwrap();
    let sizes = |volume: &dyn OpenVolume| -> Vec<u64> {
        volume.outline().iter().map(|node| node.bytes >> 10).collect()
    };
    assert_eq!(sizes(&*volume), [128, 64, 64, 64]);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 18).unwrap();
    let (mut events, until) = (Vec::new(), Instant::now() + Duration::from_secs(10));
    while events.is_empty() {
        assert!(Instant::now() < until, "nobody has seen it");
        volume.volume().refresh();
        volume.turn(Wait::Until(Instant::now() + Duration::from_millis(10))).unwrap();
        volume.volume().poll_events(&mut events);
    }
    assert_eq!(sizes(&*volume), [320, 64, 256, 256]);
}

/// Two images as one volume, of which the second fails the next flush, as a disk does: once.
struct Failing {
    dir: TempDir,
    open: Box<dyn OpenVolume>,
}

impl Failing {
    const NAMES: [&str; 2] = ["sound.img", "broken.img"];

    fn new(name: &str, losses_are_heard: bool) -> Self {
        Failing::over(name, losses_are_heard, |_| {})
    }

    /// The same, behind `ready` for the second.
    fn over(name: &str, losses_are_heard: bool, ready: impl FnOnce(&LocalLeaf)) -> Self {
        let dir = TempDir::new(name);
        let paths = Self::NAMES.map(|name| dir.path().join(name));
        paths.iter().for_each(|path| std::fs::write(path, [0; 1 << 16]).unwrap());
        let text = format!("linear:[{},{}]", paths[0].display(), paths[1].display());
        let run_dir = dir.path().join("run");
        let mut options =
            VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), run_dir);
        options.losses_are_heard = losses_are_heard;
        let host = Host::new().unwrap();
        let disk = DiskOptions::default();
        let tree = Tree::open(&host, &text.parse().unwrap(), &options, disk, None).unwrap();
        let Leaf::Local(leaf) = &tree.bottom.leaves[1] else { unreachable!() };
        leaf.wrap(|sound| Box::new(FailsFlush::new(sound)));
        ready(leaf);
        for fd in tree.fds() {
            host.shard_mut().add_volume(fd, None::<PartId<Initiator>>).unwrap();
        }
        Failing { open: over(&host, tree, &options, Duration::from_secs(5)), dir }
    }

    fn write(&mut self, offset: u64) -> bool {
        let mut io = Io::new(1, Op::Write, offset, 4096);
        io.data = SegList::of(self.open.pool().copy_of(&[7; 4096]).freeze());
        self.io(io)
    }

    fn flush(&mut self) -> bool {
        self.io(Io::new(1, Op::Flush, 0, 0))
    }

    fn io(&mut self, io: Io) -> bool {
        let done = crate::bench::one_io(&mut *self.open, io, &mut Vec::new());
        done.unwrap().result.is_ok()
    }

    /// Ends it: the outcome, and of each image whether its writer is still on record.
    fn close(mut self, ending: Ending) -> (Outcome<Unheard>, [bool; 2]) {
        let closed = self.open.close(ending);
        drop(self.open);
        let is_held = |name| {
            let (pool, path) = (Pool::new(0), self.dir.path().join(name));
            let disk = DiskOptions::default();
            let store = thinwire_runtime::disk::open_store(&path, &disk, &pool, &mut |_| {});
            load_writer(&mut *store.unwrap().volume).unwrap().is_held()
        };
        (closed, Self::NAMES.map(is_held))
    }
}

#[test]
fn a_failed_flush_of_one_leaf_leaves_only_that_one_on_record() {
    let mut volume = Failing::new("opened-loss", false);
    assert!(volume.write(0) && volume.write(1 << 16) && !volume.flush());
    let (closed, are_held) = volume.close(Ending::AfterLoss);
    assert_eq!((closed.is_ok(), are_held), (true, [false, true]));
}

/// Who asked for the flush that failed knows; another client that has written does not (rule 4).
#[test]
fn what_one_flush_has_lost_another_is_told_unless_losses_are_heard() {
    for is_heard in [false, true] {
        let mut volume = Failing::new("opened-told", is_heard);
        assert!(volume.write(1 << 16) && !volume.flush());
        assert_eq!([volume.flush(), volume.flush()], [is_heard, true]);
        let (closed, are_held) = volume.close(Ending::Orderly);
        assert_eq!((closed.is_ok(), are_held), (true, [false; 2]));
    }
}

#[test]
fn a_loss_that_no_flush_has_told_of_fails_the_end_and_stays_on_record() {
    let mut volume = Failing::new("opened-untold", false);
    assert!(volume.write(1 << 16) && !volume.flush());
    let (closed, are_held) = volume.close(Ending::Orderly);
    let why = closed.unwrap_err().to_string();
    assert!(why.contains("writes since the last flush may be lost"), "{why}");
    assert_eq!(are_held, [false, true]);
}

/// What a mirror goes without is on record with its others.
#[test]
fn the_end_of_a_leaf_that_nobody_uses_is_no_matter() {
    let mut volume = Failing::over("opened-spare", false, LocalLeaf::go_without);
    assert!(volume.write(1 << 16));
    let (closed, are_held) = volume.close(Ending::Orderly);
    assert_eq!((closed.is_ok(), are_held), (true, [false, true]));
}

/// Three images as one volume that is in a hurry to end. Those that `hang` answer flushes once so many were asked for.
fn hanging(dir: &TempDir, hang: [bool; 3], wanted: usize) -> (Box<dyn OpenVolume>, Vec<PathBuf>) {
    let (host, options, tree, paths) = hanging_tree(dir, hang, wanted);
    (over(&host, tree, &options, Duration::from_secs(5)), paths)
}

/// The same, before it is open.
fn hanging_tree(
    dir: &TempDir,
    hang: [bool; 3],
    wanted: usize,
) -> (Host, VolumeOptions, Tree, Vec<PathBuf>) {
    let paths: Vec<_> = ["a.img", "b.img", "c.img"].map(|name| dir.path().join(name)).into();
    paths.iter().for_each(|path| std::fs::write(path, [0; 1 << 16]).unwrap());
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let spec = format!("linear:[{}]", names.join(",")).parse().unwrap();
    let mut options = VolumeOptions::new(
        crate::keys::Security::default(),
        &WireArgs::default(),
        dir.path().join("run"),
    );
    let hurry = crate::steward::bell().unwrap();
    rustix::io::write(&hurry, &1u64.to_ne_bytes()).unwrap();
    options.hurry = Some(hurry);
    let host = Host::new().unwrap();
    let tree = Tree::open(&host, &spec, &options, DiskOptions::default(), None).unwrap();
    let asked = Rc::default();
    for (leaf, hangs) in tree.bottom.leaves.iter().zip(hang) {
        let leaf = leaf.local().unwrap();
        leaf.keep_grant();
        if hangs {
            leaf.wrap(|sound| Box::new(Hangs::new(sound, &asked, wanted)));
        }
    }
    (host, options, tree, paths)
}

/// Of an export of a target, which does not let go of the leaves itself.
#[test]
fn what_a_tree_waits_for_is_known_before_it_is_let_go_of() {
    let dir = TempDir::new("opened-awaited");
    let (_host, _, mut tree, paths) = hanging_tree(&dir, [true, false, true], usize::MAX);
    let awaited = tree.awaited().unwrap();
    assert!(awaited(true).is_empty());
    let Root::Other(volume) = &mut tree.volume else { panic!("it is no port") };
    volume.submit(Io::new(1, Op::Flush, 0, 0));
    let start = Instant::now();
    while awaited(true).len() > 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "a sound image does not answer");
        volume.poll(&mut Vec::new());
    }
    assert_eq!(awaited(true), [&paths[0], &paths[2]].map(PathBuf::clone));
    drop(tree);
    assert!(awaited(true).is_empty(), "it keeps something of them");
}

/// The second that one of them may take is not taken by each behind the other.
#[test]
fn leaves_end_beside_each_other() {
    let dir = TempDir::new("opened-beside");
    let (mut open, _) = hanging(&dir, [true; 3], 3);
    assert_eq!(open.close(Ending::Orderly).unwrap(), Unheard::default());
}

/// Not only the first that is waited for.
#[test]
fn all_that_hang_are_named() {
    for ending in [Ending::Orderly, Ending::Force] {
        let dir = TempDir::new("opened-hanging");
        let (mut open, paths) = hanging(&dir, [true, false, true], usize::MAX);
        let named = || -> Vec<_> {
            let waited_for = disk::waited_for();
            paths.iter().map(|path| waited_for.contains(path)).collect()
        };
        if ending == Ending::Force {
            open.volume().submit(Io::new(1, Op::Flush, 0, 0));
        }
        assert_eq!(named(), [false; 3]);
        let closed = open.close(ending);
        assert_eq!(named(), [true, false, true], "{ending:?}");
        if let Err(why) = closed {
            let names = format!("from {}, {}:", paths[0].display(), paths[2].display());
            assert!(why.to_string().contains(&names), "{why}");
        } else {
            assert_eq!(ending, Ending::Force);
        }
        drop(open);
        assert_eq!(named(), [false; 3], "they are let go of");
    }
}

/// Whether it stands there itself, in a list, or in a file that is named there.
#[test]
fn a_part_that_is_not_there_is_named_with_the_line_that_says_so() {
    let dir = TempDir::new("opened-missing");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let volume = |name: &str, children: &str| {
        format!("[[volume]]\nname = \"{name}\"\nkind = \"linear\"\nchildren = [{children}]\n")
    };
    let own = volume("own", "\"memory:512\",\n\n\"none.img\"");
    let listed = volume("listed", "\"memory:512\", \"linear:[memory:512,none.img]\"");
    let far = volume("far", "\"other.toml#here\"");
    std::fs::write(path("a.toml"), own + &listed + &far).unwrap();
    std::fs::write(path("other.toml"), volume("here", "\"none.img\"")).unwrap();
    let mut options =
        VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), PathBuf::new());
    options.read_only = true;
    let [a, other, none] = ["a.toml", "other.toml", "none.img"].map(path);
    for (name, place) in [
        (format!("{a}#own"), format!("{a}:6: ")),
        (format!("{a}#listed"), format!("{a}:10: ")),
        (format!("{a}#far"), format!("{other}:4: ")),
        (format!("linear:[memory:512,{a}#own]"), format!("{a}:6: ")),
        (format!("linear:[memory:512,{none}]"), String::new()),
    ] {
        let spec = name.parse().unwrap();
        let error = open_volume(&spec, &options, None).err().unwrap().to_string();
        assert_eq!(error, format!("{place}{none}: no such file or device"), "{name}");
    }
}

#[test]
fn a_file_that_is_part_twice_is_refused() {
    let dir = TempDir::new("opened-twice");
    let path = dir.path().join("a.img");
    std::fs::write(&path, [0; 4096]).unwrap();
    let a = path.display();
    let text = format!("linear:[{a},memory:512,linear:[{a}]]");
    let mut options =
        VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), PathBuf::new());
    options.read_only = true;
    let error = open_volume(&text.parse().unwrap(), &options, None).err().unwrap().to_string();
    assert!(error.contains(&format!("file:{a} and file:{a} are the same file")), "{error}");
}

/// Commands drive what they open: a volume that waits is told the time, however deep it lies, and nobody sleeps longer than it
/// wishes.
#[test]
fn a_volume_that_is_timed_is_told_the_time_by_whoever_waits_for_it() {
    let dir = TempDir::new("timed");
    let paths = ["a.img", "b.img"].map(|name| dir.path().join(name));
    paths.iter().for_each(|path| std::fs::write(path, [0; 1 << 16]).unwrap());
    let spec = format!("linear:[{},{}]", paths[0].display(), paths[1].display());
    let options = VolumeOptions::new(
        crate::keys::Security::default(),
        &WireArgs::default(),
        dir.path().join("run"),
    );
    let host = Host::new().unwrap();
    let tree =
        Tree::open(&host, &spec.parse().unwrap(), &options, DiskOptions::default(), None).unwrap();
    let Leaf::Local(leaf) = &tree.bottom.leaves[1] else { unreachable!() };
    leaf.wrap(|sound| Box::new(Waits::new(sound)));
    for fd in tree.fds() {
        host.shard_mut().add_volume(fd, None::<PartId<Initiator>>).unwrap();
    }
    let mut open = over(&host, tree, &options, Duration::from_secs(5));
    let began = Instant::now();
    let io = Io::new(1, Op::Read, 1 << 16, 4096);
    let done = crate::bench::one_io(&mut *open, io, &mut Vec::new()).unwrap();
    assert_eq!(done.result, Ok(()));
    assert!(began.elapsed() >= Waits::TIME, "{:?}", began.elapsed());
    open.close(Ending::Unused).unwrap();
}

/// In a hurry from the beginning: what hangs is given up.
fn in_a_hurry(dir: &TempDir) -> VolumeOptions {
    let run_dir = dir.path().join("run");
    let mut options =
        VolumeOptions::new(crate::keys::Security::default(), &WireArgs::default(), run_dir);
    let hurry = crate::steward::bell().unwrap();
    rustix::io::write(&hurry, &1u64.to_ne_bytes()).unwrap();
    options.hurry = Some(hurry);
    options
}

/// Opens two files, puts something over each, and lets go of both, which comes to an end.
fn let_go_of_two(folder: &str, wrapped: impl Fn(&str, Box<dyn Volume>) -> Box<dyn Volume>) {
    let dir = TempDir::new(folder);
    let (host, options) = (Host::new().unwrap(), in_a_hurry(&dir));
    let mut open = ["a.img", "b.img"].map(|name| {
        let path = dir.path().join(name);
        std::fs::write(&path, [0; 1 << 16]).unwrap();
        let spec = VolumeSpec::Path(path);
        let tree = Tree::open(&host, &spec, &options, DiskOptions::default(), None).unwrap();
        let leaf = tree.bottom.leaves[0].local().unwrap();
        leaf.keep_grant();
        leaf.wrap(|sound| wrapped(name, sound));
        over(&host, tree, &options, Duration::from_secs(5))
    });
    let ended = let_go_together(&host, &mut open, |_| Ending::Orderly);
    assert_eq!(ended.unwrap(), Unheard::default());
}

/// Nobody is told of a sync before all that began earlier on the same file system have been heard of: who let go of one volume while the other
/// stands still would wait for ever.
#[test]
fn volumes_are_let_go_of_beside_each_other() {
    let asked = Rc::default();
    let_go_of_two("opened-together", |_, sound| Box::new(Hangs::new(sound, &asked, 2)));
}

/// A volume that is not in order before somebody asks it how its sync has ended.
struct Late {
    sound: Box<dyn Volume>,
    asked: Rc<Cell<usize>>,
    is_wound_up: bool,
}

impl Volume for Late {
    fn geometry(&self) -> Geometry {
        self.sound.geometry()
    }

    fn identity(&self) -> Identity {
        self.sound.identity()
    }

    fn submit(&mut self, io: Io) {
        self.sound.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !std::mem::replace(&mut self.is_wound_up, true) {
            self.asked.set(self.asked.get() + 1);
        }
        self.sound.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.sound.outstanding()
    }

    fn is_wound_up(&self) -> bool {
        self.is_wound_up
    }
}

/// The last sync of one that is in order waits for what one has begun that is not.
#[test]
fn who_is_not_in_order_yet_is_let_go_of_first() {
    let asked: Rc<Cell<usize>> = Rc::default();
    let_go_of_two("opened-late", |name, sound| match name {
        "a.img" => Box::new(Hangs::new(sound, &asked, 2)),
        _ => Box::new(Late { sound, asked: Rc::clone(&asked), is_wound_up: false }),
    });
}

/// As above: what a volume stands on, and what the pool does that it has a volume of.
#[test]
fn a_volume_and_the_pools_below_it_end_beside_each_other() {
    let dir = TempDir::new("opened-pools");
    let file = dir.path().join("a.toml");
    let volume = |name: &str, kind: &str, children: &str| {
        format!("[[volume]]\nname = \"{name}\"\nkind = \"{kind}\"\nchildren = [{children}]\n")
    };
    let own = volume("own", "linear", "\"./own.img\", \"pool@home\"");
    let pool = volume("pool", "thin", "\"./data.img\", \"./metadata.img\"");
    std::fs::write(&file, own + &pool).unwrap();
    for name in ["own.img", "data.img", "metadata.img"] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(16 << 20).unwrap();
    }
    let spec = |name: &str| format!("{}#{name}", file.display()).parse::<VolumeSpec>().unwrap();
    let mut options = in_a_hurry(&dir);
    create_quietly(&spec("pool"), &options).unwrap();
    let place = PoolPlace::default();
    options.pool = Some(place.clone());
    let mut open = open_volume(&spec("pool"), &options, None).unwrap();
    let pool = place.take().unwrap();
    let (bytes, incarnation, at) = (1 << 20, 1, 0);
    pool.begin(PoolOp::Create { name: "home".into(), bytes, incarnation, at });
    let (began, mut ended) = (Instant::now(), Vec::new());
    while ended.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "it is not made");
        open.turn(Wait::Until(Instant::now() + Duration::from_millis(5))).unwrap();
        pool.poll();
        pool.poll_ops(&mut ended);
    }
    assert!(ended[0].1.is_ok(), "{ended:?}");
    drop(pool);
    open.close(Ending::Orderly).unwrap();
    drop(open);
    options.pool = None;

    let (host, asked) = (Host::new().unwrap(), Rc::default());
    let mut tree = Tree::open(&host, &spec("own"), &options, DiskOptions::default(), None).unwrap();
    let mut leaves = 0;
    tree.bottom.each(&mut |leaf, _| {
        leaf.local().unwrap().keep_grant();
        leaf.local().unwrap().wrap(|sound| Box::new(Hangs::new(sound, &asked, 3)));
        leaves += 1;
    });
    assert_eq!(leaves, 3);
    let ended = tree.bottom.end(&host, Ending::Orderly, options.hurry.as_deref());
    assert_eq!(ended.unwrap(), Unheard::default());
}
