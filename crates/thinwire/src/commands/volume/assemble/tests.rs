//! What heaps of parts make, of which the labels are made up.

use std::cell::RefCell;
use std::collections::BTreeMap;

use thinwire_modules::Options;
use thinwire_modules::meta::{FoundLabel, LabelFault, NewPart, NewWhole, label_parts};
use thinwire_volume::Identity;

use super::*;

/// What stands where, by how that is called; what is not here is blank.
#[derive(Default)]
struct World {
    labels: BTreeMap<String, Outcome<SeenPart>>,
    /// Volumes of the pools.
    pooled: Vec<String>,
    looked: RefCell<Vec<String>>,
}

impl World {
    /// These, in this order, are the parts of a whole.
    fn whole(&mut self, kind: &str, name: &str, nth: u8, parts: &[&str]) {
        let part = |at: usize| {
            let content = Identity { identity: [nth; 16], incarnation: at as u64 };
            NewPart { uuid: [nth * 16 + at as u8; 16], content, bytes: 8 << 20 }
        };
        let new: Vec<_> = (0..parts.len()).map(part).collect();
        let (module, options) = (Module::find(kind).unwrap(), &Options::default());
        let whole = NewWhole { name, uuid: [nth; 16], module, options, bytes: 1 << 20 };
        for (label, place) in label_parts(&whole, &new).unwrap().into_iter().zip(parts) {
            let content = label.content;
            let found = Finding::Label(Box::new(FoundLabel { label, passed_over: None }));
            self.labels.insert((*place).to_owned(), Ok(SeenPart { found: Ok(found), content }));
        }
    }

    /// What has it is also there under that name.
    fn copy(&mut self, of: &str, to: &str) {
        self.labels.insert(to.to_owned(), self.labels[of].clone());
    }

    fn look(&self, specs: &[VolumeSpec]) -> Outcome<Vec<Outcome<SeenPart>>> {
        let blank = || Ok(SeenPart { found: Ok(Finding::Blank), content: Identity::default() });
        let of = |spec: &VolumeSpec| {
            self.looked.borrow_mut().push(spec.to_string());
            self.labels.get(&spec.to_string()).cloned().unwrap_or_else(blank)
        };
        Ok(specs.iter().map(of).collect())
    }

    /// What is printed of these, what is refused, and what is told.
    fn assembled(&self, given: &[&str]) -> (String, Vec<String>, Vec<String>) {
        let look = |specs: &[VolumeSpec]| self.look(specs);
        let list = |_: &VolumeSpec| Ok(self.pooled.clone());
        let mut heap = Heap::new(&look, &list);
        heap.add_parts(given.iter().map(|name| name.parse().unwrap()).collect()).unwrap();
        heap.climb().unwrap();
        let (made, refused) = heap.make();
        heap.refused.extend(refused);
        (heap.text(&made), heap.refused, heap.notes)
    }
}

/// The lines of it that name volumes and what those are made of.
fn outline(text: &str) -> Vec<&str> {
    let is_told = |line: &&str| line.starts_with("name") || line.starts_with("children");
    text.lines().filter(is_told).collect()
}

#[test]
fn a_tree_is_described_from_the_bottom_and_by_names() {
    let mut world = World::default();
    // The first part of the top one is met before what the other is made of.
    world.whole("stripe", "top", 1, &["file:/t", "right", "left"]);
    world.whole("linear", "left", 2, &["file:/a", "file:/b"]);
    world.whole("linear", "right", 3, &["inner"]);
    world.whole("integrity", "inner", 4, &["file:/c"]);
    let (text, refused, notes) = world.assembled(&["/t", "/b", "/c", "/a"]);
    assert_eq!((refused, notes), (vec![], vec![]));
    let expected = [
        "name = \"left\"",
        "children = [\"file:/a\", \"file:/b\"]",
        "name = \"inner\"",
        "children = [\"file:/c\"]",
        "name = \"right\"",
        "children = [\"inner\"]",
        "name = \"top\"",
        "children = [\"file:/t\", \"right\", \"left\"]",
    ];
    assert_eq!(outline(&text), expected);
    let parsed = text.parse::<toml::Table>().expect("it is one description");
    assert_eq!(parsed["volume"].as_array().map(Vec::len), Some(4));
    // Each is looked at once.
    let mut looked = world.looked.take();
    looked.sort();
    assert_eq!(
        looked,
        ["file:/a", "file:/b", "file:/c", "file:/t", "inner", "left", "right", "top"]
    );
}

/// Two of one name are two volumes; a name that is none in a file is not put into one.
#[test]
fn each_volume_has_a_name_of_its_own() {
    let mut world = World::default();
    let long = "n".repeat(NAME_BYTES_MAX);
    for (nth, name) in ["data", "data", "no name#", "data", &long, &long].into_iter().enumerate() {
        let nth = nth as u8 + 1;
        world.whole("linear", name, nth, &[&format!("file:/{nth}")]);
    }
    let (text, refused, _) = world.assembled(&["/1", "/2", "/3", "/4", "/5", "/6"]);
    assert_eq!(refused, Vec::<String>::new());
    let names: Vec<_> = outline(&text).into_iter().step_by(2).map(|line| &line[7..]).collect();
    let cut = format!("\"{}-2\"", &long[..NAME_BYTES_MAX - NUMBER_BYTES_MAX]);
    let long = format!("\"{long}\"");
    let expected = ["\"data\"", "\"data-2\"", "\"volume\"", "\"data-3\"", &long, &cut];
    assert_eq!(names, expected);
    assert!(text.contains("# called \"no name#\" by its labels\n"), "{text}");
    assert_eq!(text.matches("# called \"data\"").count(), 2, "{text}");
}

/// Rule 17, also where one of both is itself made of parts.
#[test]
fn twins_are_refused_wherever_they_stand() {
    let mut world = World::default();
    world.whole("stripe", "top", 1, &["left", "file:/r"]);
    world.whole("linear", "left", 2, &["file:/l"]);
    let whole = world.assembled(&["/r", "/l"]);
    assert!(whole.1.is_empty() && whole.0.contains("name = \"top\""), "{whole:?}");
    world.copy("left", "file:/copy");
    for given in [["/copy", "/r", "/l"], ["/l", "/r", "/copy"]] {
        let (text, refused, _) = world.assembled(&given);
        assert_eq!(outline(&text)[0], "name = \"left\"");
        assert!(!text.contains("top"), "{text}");
        let [why] = &refused[..] else { panic!("{refused:?}") };
        assert!(why.contains("both say that they are part") && why.contains("file:/copy"), "{why}");
        assert!(why.contains("left"), "{why}");
    }
}

/// A copy that is met late takes back what was made without it, and all that stands on that.
#[test]
fn what_stands_on_a_twin_is_not_there() {
    let mut world = World::default();
    world.whole("linear", "top", 1, &["low"]);
    world.whole("linear", "low", 2, &["file:/x"]);
    world.whole("linear", "bed", 3, &["file:/y"]);
    world.copy("file:/x", "bed");
    let (text, refused, _) = world.assembled(&["/x", "/y"]);
    assert_eq!(outline(&text), ["name = \"bed\"", "children = [\"file:/y\"]"]);
    let [why] = &refused[..] else { panic!("{refused:?}") };
    assert!(why.contains("file:/x and bed both say"), "{why}");
}

#[test]
fn what_cannot_be_looked_at_is_described_and_told() {
    let mut world = World::default();
    world.whole("linear", "used", 1, &["file:/a"]);
    world.labels.insert("used".into(), Err(Failure::failed("somebody has it")));
    world.whole("crypt", "vault", 2, &["file:/b"]);
    let (text, refused, notes) = world.assembled(&["/a", "/b"]);
    assert_eq!(refused, Vec::<String>::new());
    assert!(text.contains("name = \"used\"") && text.contains("key = \"NAME\""), "{text}");
    let [vault, used] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        vault.contains("on vault was not looked for") && vault.contains("--volume-key"),
        "{vault}"
    );
    assert!(used.contains("on used was not looked for: somebody has it"), "{used}");
}

/// What stands on a volume is its user's, unless it is what is left of a label of ours.
#[test]
fn what_is_no_part_ends_there() {
    let mut world = World::default();
    world.whole("linear", "disk", 1, &["file:/a"]);
    let foreign = LabelFault::Foreign { begins: *b"somebody" };
    let torn = LabelFault::Checksum { says: 1, has: 2 };
    for (error, is_told) in [
        (LabelError::Foreign([foreign.clone(), foreign.clone()]), false),
        (LabelError::Unfit { why: "is small".into() }, false),
        (LabelError::Damaged([torn, foreign]), true),
    ] {
        let seen = SeenPart { found: Err(error), content: Identity::default() };
        world.labels.insert("disk".into(), Ok(seen));
        let (text, refused, notes) = world.assembled(&["/a"]);
        assert_eq!(
            (outline(&text).len(), refused.len(), notes.len()),
            (2, usize::from(is_told), 0)
        );
        assert!(refused.iter().all(|why| why.starts_with("disk has no intact label")));
    }
}

#[test]
fn volumes_of_a_pool_are_parts() {
    let mut world = World { pooled: vec!["x".into(), "y".into()], ..World::default() };
    world.whole("thin", "pool", 1, &["file:/data", "file:/metadata"]);
    world.whole("stripe", "top", 2, &["pool@y", "file:/a"]);
    let (text, refused, notes) = world.assembled(&["/a", "/metadata", "/data"]);
    assert_eq!((refused, notes), (vec![], vec![]));
    assert_eq!(outline(&text)[2..], ["name = \"top\"", "children = [\"pool@y\", \"file:/a\"]"]);
}

#[test]
fn folders_are_told_from_files() {
    let dir = crate::testing::TempDir::new("assemble-folders");
    let file = dir.path().join("x.img");
    std::fs::write(&file, [0; 512]).unwrap();
    let given = [VolumeSpec::Path(file.clone()), VolumeSpec::Path(dir.path().to_owned())];
    let given = [&given[..], &[VolumeSpec::Memory(512)]].concat();
    let rest = vec![VolumeSpec::Path(file), VolumeSpec::Memory(512)];
    assert_eq!(apart(given), (vec![dir.path().to_owned()], rest));
}
