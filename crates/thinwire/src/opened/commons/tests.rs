//! Slices of one image, opened on one host: what each of them has, what they are told of each other, and how they end.

use std::path::PathBuf;
use std::time::Duration;

use thinwire_buffer::{Pool, SegList};
use thinwire_initiator::Initiator;
use thinwire_modules::mirror::OpeningWish;
use thinwire_node::PartId;
use thinwire_runtime::disk;
use thinwire_volume::{
    HeldGrant, Io, LeafGeneration, LeafGrant, Op, VolumeEvent, WriterRecord, granted_to_others,
    load_writer,
};

use super::*;
use crate::cli::WireArgs;
use crate::commands::volume::create_quietly;
use crate::keys::Security;
use crate::open::{OpenVolume, let_go_together, open_on};
use crate::opened::over;
use crate::testing::{FailsFlush, TempDir};

const MIB: u64 = 1 << 20;

/// An image of 4 MiB, and where what is opened of it is.
struct Image {
    dir: TempDir,
    path: PathBuf,
    host: Host,
}

impl Image {
    fn new(name: &str) -> Self {
        let dir = TempDir::new(name);
        let path = dir.path().join("big.img");
        std::fs::write(&path, vec![0; 4 << 20]).unwrap();
        Image { dir, path, host: Host::new().unwrap() }
    }

    fn slice(&self, options: &str) -> VolumeSpec {
        format!("slice:[{}]?{options}", self.path.display()).parse().unwrap()
    }

    fn options(&self) -> VolumeOptions {
        let run_dir = self.dir.path().join("run");
        VolumeOptions::new(Security::default(), &WireArgs::default(), run_dir)
    }

    fn open(&self, spec: &VolumeSpec, read_only: bool) -> Outcome<Box<dyn OpenVolume>> {
        open_on(&self.host, spec, &VolumeOptions { read_only, ..self.options() }, None)
    }

    /// Who is on record of it, once nobody has it open.
    fn record(&self) -> WriterRecord {
        let (pool, how) = (Pool::new(0), DiskOptions::default());
        let store = disk::open_store(&self.path, &how, &pool, &mut |_| {});
        load_writer(&mut *store.unwrap().volume).unwrap()
    }
}

fn io(open: &mut dyn OpenVolume, io: Io) -> Result<Vec<u8>, String> {
    let done = crate::bench::one_io(open, io, &mut Vec::new()).unwrap();
    done.result.map(|()| done.data.to_vec()).map_err(|e| e.to_string())
}

fn write(open: &mut dyn OpenVolume, offset: u64, byte: u8) -> bool {
    let mut wanted = Io::new(1, Op::Write, offset, 512);
    wanted.data = SegList::of(open.pool().copy_of(&[byte; 512]).freeze());
    io(open, wanted).is_ok()
}

fn flush(open: &mut dyn OpenVolume) -> bool {
    io(open, Io::new(2, Op::Flush, 0, 0)).is_ok()
}

fn first_block(open: &mut dyn OpenVolume) -> u8 {
    io(open, Io::new(3, Op::Read, 0, 512)).unwrap()[0]
}

#[test]
fn each_has_its_bytes_and_the_image_one_writer_until_the_last_has_gone() {
    let image = Image::new("slices-ends");
    let (left, right) = (image.slice("size=1M"), image.slice("offset=1M"));
    let mut left = image.open(&left, false).unwrap();
    let mut right = image.open(&right, false).unwrap();
    assert_eq!([left.volume(), right.volume()].map(|of| of.geometry().bytes), [MIB, 3 * MIB]);
    assert!(write(&mut *left, 0, 1) && write(&mut *left, MIB - 512, 2) && write(&mut *right, 0, 3));
    assert_eq!([first_block(&mut *left), first_block(&mut *right)], [1, 3]);
    assert!(flush(&mut *left));
    left.close(Ending::Orderly).unwrap();
    drop(left);
    // Nobody else gets it yet, and the other one goes on.
    let (pool, how) =
        (Pool::new(0), DiskOptions { wait_lock: Duration::ZERO, ..DiskOptions::default() });
    assert!(disk::open_store(&image.path, &how, &pool, &mut |_| {}).is_err());
    assert!(write(&mut *right, 512, 4));
    right.close(Ending::Orderly).unwrap();
    drop(right);
    assert!(!image.record().is_held() && image.host.commons().is_empty());
    let bytes = std::fs::read(&image.path).unwrap();
    let at = |place: u64| bytes[place as usize];
    assert_eq!([0, MIB - 1, MIB, MIB + 512, MIB + 1024].map(at), [1, 2, 3, 4, 0]);
}

/// What was granted of the disk that one stands on, as it was written down for it.
fn held_of(tree: &Tree, spec: &VolumeSpec) -> HeldGrant {
    let held: Vec<_> = tree.held_leaves(spec).iter().map(|leaf| leaf.held()).collect();
    let [held] = held[..] else { panic!("{held:?}") };
    held
}

/// Served before, at the end of a disk, by a process that has ended; then others had that end, and it comes by a reload. Whoever has been its
/// writer then must not go on with what it had not flushed: the others have written there since.
#[test]
fn who_comes_to_a_disk_in_use_goes_on_from_no_generation() {
    let image = Image::new("slices-late");
    let specs = ["size=1M", "offset=1M&size=1M", "offset=1M"].map(|options| image.slice(options));
    let [first, back, wide] = &specs;
    let how = || DiskOptions { state_dir: image.dir.path().into(), ..DiskOptions::default() };
    let options = VolumeOptions { is_served: true, ..image.options() };
    let open = |host: &Host, spec: &VolumeSpec| Tree::open(host, spec, &options, how(), None);
    let started = |host: &Host, all: &[&VolumeSpec]| {
        all.iter().for_each(|spec| host.commons().want(spec, &options));
        all.iter().map(|spec| open(host, spec).unwrap()).collect::<Vec<_>>()
    };
    let end = |host: &Host, tree: Tree| {
        let mut open = over(host, tree, &options, Duration::from_secs(5));
        assert!(write(&mut *open, 0, 1));
        open.close(Ending::Orderly).unwrap();
    };
    let noted = || {
        let files = std::fs::read_dir(image.dir.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("unused-")).count()
    };
    let fenced = |remembered: HeldGrant, now: HeldGrant| {
        let HeldGrant { leaf, grant: LeafGrant { generation, .. } } = remembered;
        !granted_to_others(&[LeafGeneration { leaf, generation }], &[now]).is_empty()
    };
    let host = Host::new().unwrap();
    let mut trees = started(&host, &[first, back]);
    let remembered = held_of(&trees[1], back);
    // Both are served, and remember it.
    for (tree, spec) in trees.iter().zip(&specs) {
        tree.held_leaves(spec)[0].unused.as_ref().unwrap().forget().unwrap();
    }
    trees.drain(..).for_each(|tree| end(&host, tree));
    let host = Host::new().unwrap();
    let mut trees = started(&host, &[first, wide]);
    assert!(!fenced(remembered, held_of(&trees[0], first)), "who stays goes on");
    let before = noted();
    end(&host, trees.pop().unwrap());
    let late = open(&host, back).unwrap();
    assert!(fenced(remembered, held_of(&late, back)));
    // Whatever becomes of that, nothing says that nobody has written.
    assert_eq!(noted(), before);
    drop(late);
    // And one that was there, and comes again.
    let again = open(&host, wide).unwrap();
    assert!(fenced(remembered, held_of(&again, wide)));
    end(&host, again);
    end(&host, trees.pop().unwrap());
}

/// What is served of an image, by one process after the other.
struct Runs {
    image: Image,
    options: VolumeOptions,
}

/// One of those processes, and what it serves: as exports that have on record how they hold the image.
struct Run<'a> {
    runs: &'a Runs,
    host: Host,
    served: Vec<(VolumeSpec, Tree)>,
}

impl Runs {
    fn new(name: &str) -> Self {
        let image = Image::new(name);
        let options = VolumeOptions { is_served: true, ..image.options() };
        Runs { image, options }
    }

    fn start(&self, all: &[&VolumeSpec]) -> (Run<'_>, Vec<HeldGrant>) {
        let host = Host::new().unwrap();
        all.iter().for_each(|spec| host.commons().want(spec, &self.options));
        let mut run = Run { runs: self, host, served: Vec::new() };
        let held = all.iter().map(|spec| run.come(spec)).collect();
        (run, held)
    }
}

impl Run<'_> {
    fn open(&self, spec: &VolumeSpec) -> Outcome<Tree> {
        let state_dir = self.runs.image.dir.path().into();
        let how = DiskOptions { state_dir, ..DiskOptions::default() };
        Tree::open(&self.host, spec, &self.runs.options, how, None)
    }

    /// One more is served, and remembers how it holds the image.
    fn come(&mut self, spec: &VolumeSpec) -> HeldGrant {
        let tree = self.open(spec).unwrap();
        let held = held_of(&tree, spec);
        tree.held_leaves(spec)[0].unused.as_ref().unwrap().forget().unwrap();
        self.served.push((spec.clone(), tree));
        held
    }

    /// It is written, and goes.
    fn go(&mut self, spec: &VolumeSpec) {
        let at = self.served.iter().position(|(of, _)| of == spec).unwrap();
        let (_, tree) = self.served.remove(at);
        let mut open = over(&self.host, tree, &self.runs.options, Duration::from_secs(5));
        assert!(write(&mut *open, 0, 1));
        open.close(Ending::Orderly).unwrap();
    }

    fn end(mut self) {
        while let Some((spec, _)) = self.served.last() {
            let spec = spec.clone();
            self.go(&spec);
        }
    }
}

/// Whoever remembers that is fenced by who has this now.
fn is_fenced(remembered: HeldGrant, now: HeldGrant) -> bool {
    let HeldGrant { leaf, grant: LeafGrant { generation, .. } } = remembered;
    !granted_to_others(&[LeafGeneration { leaf, generation }], &[now]).is_empty()
}

/// The range of one that goes becomes another's by a reload, who writes there; the next process has the first again, from its start on.
#[test]
fn who_is_back_behind_others_in_another_run_goes_on_from_no_generation() {
    come_back("slices-back", "slice:[P]?offset=1M");
}

/// Also where it is called something else then.
#[test]
fn who_is_back_by_another_name_goes_on_from_no_generation() {
    come_back("slices-renamed", "linear:[slice:[P]?offset=1M&size=1M,slice:[P]?offset=2M]");
}

fn come_back(name: &str, back: &str) {
    let runs = Runs::new(name);
    let back = back.replace('P', &runs.image.path.display().to_string()).parse().unwrap();
    let [first, wide, narrow] =
        ["size=1M", "offset=1M", "offset=1M&size=1M"].map(|options| runs.image.slice(options));
    let (mut run, held) = runs.start(&[&first, &wide]);
    let [of_first, of_wide] = held[..] else { panic!("{held:?}") };
    // Beside it nobody comes, and nothing changes for it.
    assert!(run.open(&narrow).is_err());
    run.go(&wide);
    run.come(&narrow);
    run.end();
    let (run, now) = runs.start(&[&first, &back]);
    assert!(is_fenced(of_wide, now[1]) && !is_fenced(of_first, now[0]));
    run.end();
    // It was served since: it goes on from there.
    let (run, then) = runs.start(&[&first, &back]);
    assert!(!is_fenced(now[1], then[1]));
    run.end();
}

/// Who came last is fenced as it comes, and then no more; whoever had it before that is.
#[test]
fn who_came_last_goes_on_in_the_next_run() {
    for (comes_again, is_last) in [(false, true), (true, true), (false, false), (true, false)] {
        let runs = Runs::new(&format!("slices-last-{comes_again}-{is_last}"));
        let [first, wide, narrow] =
            ["size=1M", "offset=1M", "offset=1M&size=1M"].map(|options| runs.image.slice(options));
        let (mut run, held) = runs.start(&[&first, &wide]);
        run.go(&wide);
        let of_narrow = run.come(&narrow);
        assert!(is_fenced(of_narrow, of_narrow));
        if comes_again {
            run.go(&narrow);
            let again = run.come(&wide);
            assert!(is_fenced(held[1], again));
        }
        run.end();
        let (next, remembered) = match comes_again == is_last {
            true => (&wide, held[1]),
            false => (&narrow, of_narrow),
        };
        let (run, now) = runs.start(&[&first, next]);
        assert_eq!(is_fenced(remembered, now[1]), !is_last, "{comes_again} {is_last}");
        run.end();
    }
}

/// What a file describes by that name: a slice of the image.
fn described(runs: &Runs, name: &str, options: &str) -> VolumeSpec {
    let file = runs.image.dir.path().join("vm.toml");
    let child = format!("slice:[{}]?{options}", runs.image.path.display());
    let text =
        format!("[[volume]]\nname = \"{name}\"\nkind = \"linear\"\nchildren = [\"{child}\"]\n");
    std::fs::write(&file, text).unwrap();
    crate::config_file::forget();
    format!("{}#{name}", file.display()).parse().unwrap()
}

/// A file describes something else by the same name, which another reload adds; the next process finds the first description there.
#[test]
fn who_is_another_by_the_same_name_is_not_past_what_that_has_had() {
    let runs = Runs::new("slices-described");
    let first = runs.image.slice("size=1M");
    let narrow = described(&runs, "vm", "offset=1M&size=1M");
    let (mut run, held) = runs.start(&[&first, &narrow]);
    run.go(&narrow);
    let wide = described(&runs, "vm", "offset=1M");
    assert_eq!(wide.to_string(), narrow.to_string());
    assert_ne!(wide.structure(), narrow.structure());
    run.come(&wide);
    run.end();
    let narrow = described(&runs, "vm", "offset=1M&size=1M");
    let (run, now) = runs.start(&[&first, &narrow]);
    assert!(is_fenced(held[1], now[1]));
    run.end();
}

/// Nor is one another that a file calls something else.
#[test]
fn who_came_last_goes_on_by_another_name_of_a_file() {
    let runs = Runs::new("slices-called");
    let [first, wide] = ["size=1M", "offset=1M"].map(|options| runs.image.slice(options));
    let (mut run, _) = runs.start(&[&first, &wide]);
    run.go(&wide);
    let last = described(&runs, "vm", "offset=1M&size=1M");
    let remembered = run.come(&last);
    run.end();
    let last = described(&runs, "disk", "offset=1M&size=1M");
    let (run, now) = runs.start(&[&first, &last]);
    assert!(!is_fenced(remembered, now[1]));
    run.end();
}

/// One that only reads what others have had, and goes, keeps nobody from being fenced who had it before those.
#[test]
fn who_only_reads_is_not_taken_for_who_came_last() {
    let runs = Runs::new("slices-reader");
    let [first, wide, narrow] =
        ["size=1M", "offset=1M", "offset=1M&size=1M"].map(|options| runs.image.slice(options));
    let (mut run, held) = runs.start(&[&first, &wide]);
    run.go(&wide);
    run.come(&narrow);
    run.go(&narrow);
    let state_dir = runs.image.dir.path().into();
    let how = DiskOptions { state_dir, ..DiskOptions::default() };
    let reading = VolumeOptions { read_only: true, ..runs.options.clone() };
    let reader = runs.image.slice("offset=1M&size=2M");
    let tree = Tree::open(&run.host, &reader, &reading, how, None).unwrap();
    tree.held_leaves(&reader)[0].unused.as_ref().unwrap().forget().unwrap();
    drop(tree);
    run.end();
    let (run, now) = runs.start(&[&first, &wide]);
    assert!(is_fenced(held[1], now[1]));
    run.end();
}

/// One that was to be there from the start comes later than another, which has had its range and is gone. One that failed to come has had nothing.
#[test]
fn who_comes_for_the_first_time_behind_others_goes_on_from_no_generation() {
    for (between, is_behind) in [("offset=1M&size=1M", true), ("offset=512K", false)] {
        let runs = Runs::new(&format!("slices-first-{is_behind}"));
        let [first, wide, other] =
            ["size=1M", "offset=1M", between].map(|options| runs.image.slice(options));
        let (run, _) = runs.start(&[]);
        [&first, &wide].iter().for_each(|spec| run.host.commons().want(spec, &runs.options));
        let _kept = run.open(&first).unwrap();
        assert_eq!(run.open(&other).is_ok(), is_behind, "{between}");
        let tree = run.open(&wide).unwrap();
        let LeafGrant { since, generation } = held_of(&tree, &wide).grant;
        assert_eq!(since > generation, is_behind, "{between}");
    }
}

#[test]
fn one_that_ends_without_order_keeps_the_image_on_record() {
    let image = Image::new("slices-force");
    let slices = [image.slice("size=1M"), image.slice("offset=1M")];
    let [mut left, mut right] = slices.each_ref().map(|slice| image.open(slice, false).unwrap());
    assert!(write(&mut *left, 0, 1) && write(&mut *right, 0, 1));
    left.close(Ending::Force).unwrap();
    drop(left);
    right.close(Ending::Orderly).unwrap();
    drop(right);
    assert!(image.record().is_held(), "writes of the left one may be lost");
    // Nobody has written: whoever was on record before is so again.
    let [left, right] = slices.each_ref().map(|slice| image.open(slice, false).unwrap());
    for mut open in [left, right] {
        open.close(Ending::Orderly).unwrap();
    }
    assert!(!image.record().is_held());
    let before = image.record().generation;
    let mut unused = image.open(&slices[0], false).unwrap();
    unused.close(Ending::Unused).unwrap();
    drop(unused);
    assert_eq!(image.record().generation, before);
}

#[test]
fn a_flush_that_fails_for_one_is_told_to_the_other() {
    let image = Image::new("slices-flush");
    let options = VolumeOptions { losses_are_heard: true, ..image.options() };
    let open = |slice: &str| {
        let how = DiskOptions::default();
        let tree = Tree::open(&image.host, &image.slice(slice), &options, how, None).unwrap();
        for fd in tree.fds() {
            image.host.shard_mut().add_volume(fd, None::<PartId<Initiator>>).unwrap();
        }
        tree
    };
    let (left, right) = (open("size=1M"), open("offset=1M"));
    {
        let bottom = left.bottom.commons[0].bottom();
        bottom.leaves[0].local().unwrap().wrap(|sound| Box::new(FailsFlush::new(sound)));
    }
    let [mut left, mut right] =
        [left, right].map(|tree| over(&image.host, tree, &options, Duration::from_secs(5)));
    assert!(write(&mut *right, 0, 1) && write(&mut *left, 0, 1));
    let before = right.volume().events();
    assert!(!flush(&mut *left));
    let mut told = Vec::new();
    assert_ne!(right.volume().events(), before);
    right.volume().poll_events(&mut told);
    assert_eq!(told, [VolumeEvent::Lost]);
    assert!(flush(&mut *right));
    for open in [&mut left, &mut right] {
        open.close(Ending::Orderly).unwrap();
    }
}

#[test]
fn what_overlaps_is_refused_before_anything_is_opened() {
    let image = Image::new("slices-overlap");
    let path = image.path.display();
    let twice = format!("linear:[slice:[{path}]?size=1025K,slice:[{path}]?offset=1M]");
    let why = image.open(&twice.parse().unwrap(), false).err().unwrap().to_string();
    for words in
        ["cannot open linear:", "bytes 0 to 1049599", "bytes 1048576 to the end", "overlap"]
    {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert_eq!(image.record().generation, 0, "nobody was granted it");
    // Of two volumes, the second of which comes when the first is in use.
    let mut left = image.open(&image.slice("size=1025K"), false).unwrap();
    let right = image.slice("offset=1M");
    let failure = image.open(&right, false).err().unwrap();
    assert_eq!(failure.kind, FailureKind::Busy);
    for words in ["bytes 1048576 to the end", "bytes 0 to 1049599 are in use"] {
        assert!(failure.message.contains(words), "{words}: {failure}");
    }
    assert!(write(&mut *left, 0, 1), "it goes on");
    left.close(Ending::Orderly).unwrap();
    drop(left);
    image.open(&right, false).unwrap().close(Ending::Orderly).unwrap();
}

#[test]
fn one_is_only_read_beside_one_that_is_written() {
    let image = Image::new("slices-read");
    let (left, right) = (image.slice("size=1M"), image.slice("offset=1M"));
    // Who comes first does not know of the other.
    let reader = image.open(&left, true).unwrap();
    let failure = image.open(&right, false).err().unwrap();
    assert_eq!(failure.kind, FailureKind::Busy);
    assert!(failure.message.contains("open here to be read only"), "{failure}");
    drop(reader);
    // Unless it is said beforehand.
    let how = |read_only| VolumeOptions { read_only, ..image.options() };
    image.host.commons().want(&left, &how(true));
    image.host.commons().want(&right, &how(false));
    let mut reader = image.open(&left, true).unwrap();
    let mut writer = image.open(&right, false).unwrap();
    assert!(reader.volume().geometry().features.read_only);
    assert!(write(&mut *writer, 0, 1));
    assert_eq!(first_block(&mut *reader), 0);
    reader.close(Ending::Orderly).unwrap();
    writer.close(Ending::Orderly).unwrap();
}

#[test]
fn one_tree_has_two_of_them() {
    let image = Image::new("slices-tree");
    let path = image.path.display();
    let text = format!("stripe:[slice:[{path}]?size=1M,slice:[{path}]?offset=2M&size=1M]");
    let mut open = image.open(&text.parse().unwrap(), false).unwrap();
    assert!(write(&mut *open, 0, 1) && write(&mut *open, 64 << 10, 2) && flush(&mut *open));
    let counted: Vec<_> = open
        .outline()
        .iter()
        .map(|node| (node.kind, node.meter.as_ref().unwrap().report().writes))
        .collect();
    let expected = [("stripe", 2), ("slice", 1), ("file", 1), ("slice", 1), ("file", 1)];
    assert_eq!(counted, expected);
    open.close(Ending::Orderly).unwrap();
    drop(open);
    let bytes = std::fs::read(&image.path).unwrap();
    assert_eq!((bytes[0], bytes[2 << 20]), (1, 2));
    assert!(!image.record().is_held());
}

#[test]
fn an_image_that_is_not_there_is_named_where_it_stands() {
    let image = Image::new("slices-missing");
    let file = image.dir.path().join("d.toml");
    let text =
        "[[volume]]\nname = \"left\"\nkind = \"slice\"\nchildren = [\"none.img\"]\nsize = \"1M\"\n";
    std::fs::write(&file, text).unwrap();
    let spec: VolumeSpec = format!("{}#left", file.display()).parse().unwrap();
    let failure = image.open(&spec, false).err().unwrap();
    assert_eq!(failure.kind, FailureKind::Absent);
    assert!(
        failure.message.contains("d.toml:4") && failure.message.contains("none.img"),
        "{failure}"
    );
}

/// Two mirrors over slices of the same two disks, of which one is lost: both go without it.
#[test]
fn mirrors_stand_on_slices_of_the_same_disks() {
    let image = Image::new("slices-mirrors");
    let second = image.dir.path().join("second.img");
    std::fs::copy(&image.path, &second).unwrap();
    let file = image.dir.path().join("d.toml");
    let mirror = |name: &str, options: &str| {
        let leg = |disk: &str| format!("\"slice:[{disk}.img]?{options}\"");
        format!(
            "[[volume]]\nname = \"{name}\"\nkind = \"mirror\"\nchildren = [{}, {}]\n",
            leg("big"),
            leg("second")
        )
    };
    std::fs::write(&file, mirror("low", "size=2M") + &mirror("high", "offset=2M")).unwrap();
    let specs = ["low", "high"]
        .map(|name| -> VolumeSpec { format!("{}#{name}", file.display()).parse().unwrap() });
    for spec in &specs {
        create_quietly(spec, &image.options()).unwrap();
    }
    let opened = |wish: OpeningWish| {
        let host = Host::new().unwrap();
        let options = VolumeOptions { wish, ..image.options() };
        let mut open: Vec<_> =
            specs.iter().map(|spec| open_on(&host, spec, &options, None).unwrap()).collect();
        for (nth, open) in open.iter_mut().enumerate() {
            assert!(write(&mut **open, 0, nth as u8 + 1) && flush(&mut **open));
        }
        for (nth, open) in open.iter_mut().enumerate() {
            assert_eq!(first_block(&mut **open), nth as u8 + 1);
        }
        let ended = let_go_together(&host, &mut open, |_| Ending::Orderly);
        ended.unwrap();
    };
    opened(OpeningWish::default());
    std::fs::remove_file(&second).unwrap();
    opened(OpeningWish { degraded: true, ..OpeningWish::default() });
    assert!(!image.record().is_held());
}

/// A pool that has its data and its metadata on one disk, beside another slice of that.
#[test]
fn a_pool_stands_on_slices_of_one_disk() {
    let image = Image::new("slices-pool");
    std::fs::write(&image.path, vec![0; 32 << 20]).unwrap();
    let file = image.dir.path().join("d.toml");
    let path = image.path.display();
    let parts = [("", 16), ("offset=16M&", 8)]
        .map(|(at, mib)| format!("\"slice:[{path}]?{at}size={mib}M\""));
    let text =
        format!("[[volume]]\nname = \"p\"\nkind = \"thin\"\nchildren = [{}]\n", parts.join(", "));
    std::fs::write(&file, text).unwrap();
    let pool: VolumeSpec = format!("{}#p", file.display()).parse().unwrap();
    create_quietly(&pool, &image.options()).unwrap();
    let place = PoolPlace::default();
    let options = VolumeOptions { pool: Some(place.clone()), ..image.options() };
    let open = open_on(&image.host, &pool, &options, None).unwrap();
    let mut beside = image.open(&image.slice("offset=24M"), false).unwrap();
    assert!(write(&mut *beside, 0, 1) && flush(&mut *beside));
    let why = image.open(&image.slice("offset=20M&size=1M"), false).err().unwrap();
    assert!(why.message.contains("bytes 16777216 to 25165823 are in use"), "{why}");
    assert!(place.take().is_some());
    let mut all = [open, beside];
    let_go_together(&image.host, &mut all, |_| Ending::Orderly).unwrap();
    drop(all);
    assert!(!image.record().is_held());
}
