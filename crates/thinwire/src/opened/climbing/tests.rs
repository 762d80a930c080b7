//! Legs that are made anew of files, which stand for exports that are back.

use std::path::{Path, PathBuf};
use std::time::Instant;

use thinwire_buffer::Pool;
use thinwire_modules::meta::{NewPart, NewWhole, label_parts};
use thinwire_modules::mirror::MirrorState;
use thinwire_modules::{Child, Module, Options};
use thinwire_runtime::disk;

use super::*;
use crate::error::Failure;
use crate::mirrored::Entropy;
use crate::opened::tree::Root;
use crate::testing::TempDir;

const MIRROR: [u8; 16] = [7; 16];
const LOW: [u8; 16] = [8; 16];

/// A leg of two modules over an export, of which the lower one has labels, and what stands for the export.
struct Leg {
    dir: TempDir,
    host: Host,
    chain: Chain,
    spec: VolumeSpec,
}

fn store(path: &Path) -> Box<dyn Volume> {
    disk::open_store(path, &Default::default(), &Pool::new(0), &mut |_| {}).unwrap().volume
}

fn write(label: &Label, volume: &mut dyn Volume) {
    let mut labels = Labels::new(LEG_LABEL_TOKEN, &Pool::new(0));
    labels.read(volume).unwrap();
    let mut ended = |labels: &mut Labels| loop {
        if let Some(ended) = labels.turn(volume) {
            return (ended, labels.write(label, volume));
        }
        std::thread::yield_now();
    };
    // Both copies, so that none of the bytes is somebody's else.
    (0..3).for_each(|_| _ = ended(&mut labels));
    while !labels.is_idle() {
        labels.turn(volume);
    }
}

/// All of it as it is opened, with nothing there.
fn outline(spec: &VolumeSpec) -> Outline {
    fn begin(outline: &mut Outline, spec: &VolumeSpec, leaf: &mut usize) {
        let at = outline.begin(spec, *leaf);
        match spec {
            VolumeSpec::Over { children, .. } => {
                children.iter().for_each(|child| begin(outline, child, leaf));
            }
            _ => *leaf += 1,
        }
        outline.end(at, &mut Err::<Root, _>(Failure::absent("it is away")));
    }
    let (mut outline, mut leaf) = (Outline::default(), 0);
    begin(&mut outline, spec, &mut leaf);
    outline
}

impl Leg {
    fn new(name: &str) -> Self {
        let dir = TempDir::new(name);
        let file = dir.path().join("pool.toml");
        let volume = |name: &str, kind: &str, children: &str| {
            format!("[[volume]]\nname = \"{name}\"\nkind = \"{kind}\"\nchildren = [{children}]\n")
        };
        let text = volume("low", "linear", "\"tw://node1/a?link=eth1\"")
            + "labels = true\n"
            + &volume("leg", "linear", "\"low\"")
            + &volume("home", "mirror", "\"/srv/other.img\", \"leg\"");
        std::fs::write(&file, text).unwrap();
        let spec: VolumeSpec = format!("{}#home", file.display()).parse().unwrap();
        let VolumeSpec::Over { children, .. } = &spec else { panic!("{spec}") };
        let outline = outline(&spec);
        let chain = Chain::of(&children[1], 1, &outline, false).unwrap();
        let file = Chain::of(&children[0], 0, &outline, false).unwrap();
        assert!(file.remote().is_none() && chain.remote().is_some(), "it is a file");
        let leg = Leg { dir, host: Host::new().unwrap(), chain, spec };
        leg.format(&leg.path("a.img"), LOW, MIRROR, 1);
        leg
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes such a file what the leg stands on.
    fn format(&self, path: &Path, low: [u8; 16], mirror: [u8; 16], role: usize) {
        std::fs::write(path, vec![0; 8 << 20]).unwrap();
        let mut leaf = store(path);
        let bytes = leaf.geometry().bytes;
        let (module, options) = (Module::find("linear").unwrap(), &Options::default());
        let part = NewPart { uuid: [1; 16], content: leaf.identity(), bytes };
        let data = part.data_bytes(module);
        let whole = NewWhole { name: "low", uuid: low, module, options, bytes: data };
        let label = label_parts(&whole, &[part]).unwrap().remove(0);
        write(&label, &mut *leaf);
        let below = Child::within(leaf, label.data_start, data).unwrap();
        let mut low = module.open_over(vec![below], options).unwrap();
        low = module.open(vec![low], options).unwrap();
        let module = Module::find("mirror").unwrap();
        let part =
            |nth: u8| NewPart { uuid: [0x20 + nth; 16], content: low.identity(), bytes: data };
        let parts = [part(0), part(1)];
        let bytes = parts[0].data_bytes(module);
        let whole = NewWhole { name: "home", uuid: mirror, module, options, bytes };
        let mut labels = label_parts(&whole, &parts).unwrap();
        let states = MirrorState::of_new(2, (bytes, 512), 0, &mut Entropy);
        labels[role].state = states[role].encode();
        write(&labels[role], &mut *low);
    }

    fn climb(&mut self, name: &str) -> Result<Climbed, ClimbError> {
        let leaf = store(&self.path(name));
        let mut climb = Climb::begin(&self.host, &self.chain, leaf)?;
        let begun = Instant::now();
        loop {
            if let Some(ended) = climb.turn(&self.host, &mut self.chain) {
                return ended;
            }
            assert!(begun.elapsed().as_secs() < 30, "it never ends");
            std::thread::yield_now();
        }
    }

    /// What is wrong with that, of which nothing is changed.
    fn refusal(&mut self, name: &str) -> ClimbError {
        let before = std::fs::read(self.path(name)).unwrap();
        let error = self.climb(name).err().expect("it is refused");
        assert!(before == std::fs::read(self.path(name)).unwrap(), "it was written: {error:?}");
        error
    }
}

/// From the bottom up, each volume where it stood; and what has labels is opened once more (rule 25).
#[test]
fn a_leg_is_made_anew_from_its_leaf_up() {
    let mut leg = Leg::new("climbing-up");
    for opening in 1..3 {
        let Climbed { volume, label, risen, .. } = leg.climb("a.img").unwrap();
        assert_eq!((label.whole, label.role, label.name.as_str()), (MIRROR, 1, "home"));
        // Behind the mirror, and its other leg.
        assert_eq!(risen, [4, 3, 2].map(|node| Risen { node, whole: None }));
        drop(volume);
        let mut leaf = store(&leg.path("a.img"));
        let mut labels = Labels::new(LEG_LABEL_TOKEN, &Pool::new(0));
        labels.read(&mut *leaf).unwrap();
        let found = loop {
            if let Some(LabelOutcome::Read(found)) = labels.turn(&mut *leaf) {
                break found;
            }
        };
        let Ok(Finding::Label(found)) = found else { panic!("{found:?}") };
        assert_eq!(found.label.openings, opening);
    }
}

/// Rule 16: what is something else is told apart from what may be read another time, and is not written.
#[test]
fn what_is_back_as_something_else_is_left_as_it_is() {
    let mut leg = Leg::new("climbing-other");
    leg.climb("a.img").unwrap();
    let other = |error: ClimbError| match error {
        ClimbError::Other(what) => what,
        error => panic!("{error:?}"),
    };
    std::fs::write(leg.path("blank.img"), vec![0; 8 << 20]).unwrap();
    assert_eq!(other(leg.refusal("blank.img")), "has no label");
    std::fs::copy(leg.path("a.img"), leg.path("copy.img")).unwrap();
    let what = other(leg.refusal("copy.img"));
    assert!(what.contains("written on something else"), "{what}");
    std::fs::write(leg.path("noise.img"), vec![5; 8 << 20]).unwrap();
    let what = other(leg.refusal("noise.img"));
    assert!(what.contains("is not blank"), "{what}");
    let path = leg.path("apart.img");
    leg.format(&path, [9; 16], MIRROR, 1);
    let what = other(leg.refusal("apart.img"));
    assert!(what.contains("another volume than it was"), "{what}");
    std::fs::write(leg.path("short.img"), vec![0; 64 << 10]).unwrap();
    assert!(matches!(leg.refusal("short.img"), ClimbError::Unfit(_)));
}

/// One that was away from the beginning is what its labels say, as for whoever opens it; and it is described as it was made.
#[test]
fn what_is_described_otherwise_does_not_fit() {
    let mut leg = Leg::new("climbing-unfit");
    let VolumeSpec::Over { options, .. } = &mut leg.chain.levels[0].spec else { panic!() };
    let stripe = Module::find("stripe").unwrap();
    *options = Options::default();
    if let VolumeSpec::Over { module, .. } = &mut leg.chain.levels[0].spec {
        *module = stripe;
    }
    match leg.refusal("a.img") {
        ClimbError::Unfit(why) => assert!(why.contains("describe it as it was made"), "{why}"),
        error => panic!("{error:?}"),
    }
}

/// What is several volumes, or has copies of its own, comes with the next opening.
#[test]
fn what_is_no_chain_is_not_brought_back() {
    let leg = Leg::new("climbing-chain");
    let of = |text: &str| {
        let spec: VolumeSpec = text.parse().unwrap();
        Chain::of(&spec, 0, &outline(&spec), false)
            .map(|chain| (chain.levels.len(), chain.only_reads()))
    };
    let leaf = "tw://node1/a?link=eth1";
    assert_eq!(of(leaf), Some((0, false)));
    assert_eq!(of(&format!("qos:[cache:[{leaf}]?size=1M]?iops=9")), Some((2, false)));
    assert_eq!(of(&format!("readonly:[{leaf}]")), Some((1, true)));
    assert_eq!(of(&format!("linear:[{leaf},tw://node2/b?link=eth1]")), None);
    assert_eq!(of("linear:[memory:64K]"), None);
    assert_eq!(of("linear:[/srv/a.img]"), Some((1, false)));
    assert!(Chain::of(&leg.spec, 0, &outline(&leg.spec), false).is_none(), "a mirror");
}

/// A leg more stands behind the others of its mirror, and nobody loses its place.
#[test]
fn a_leg_that_is_added_has_a_place_in_its_tree() {
    let leg = Leg::new("climbing-added");
    let whole: VolumeSpec = format!("linear:[{},/srv/behind.img]", leg.spec).parse().unwrap();
    let mut outline = outline(&whole);
    let before = outline.path(6);
    let mut behind = Chain::of(&"/srv/behind.img".parse().unwrap(), 2, &outline, false).unwrap();
    let added: VolumeSpec = "qos:[/srv/new.img]?iops=9".parse().unwrap();
    assert_eq!(outline.insert_leg(1, 2, &added, 3), (6, 2));
    let top = outline.path(1);
    assert_eq!(outline.path(6), format!("{top}/qos"));
    assert_eq!(outline.path(7), format!("{top}/qos/file:/srv/new.img"));
    assert_eq!(outline.path(8), before);
    behind.shift(6, 2);
    assert_eq!(behind.node, 8);
    let chain = Chain::of(&added, 3, &outline, false).unwrap();
    assert_eq!((chain.node, chain.levels[0].node), (7, 6));
    let nodes = outline.into_nodes();
    let of = |at: usize| (nodes[at].depth, nodes[at].leg, nodes[at].leaf);
    assert_eq!([of(6), of(7), of(8)], [(2, Some(2), None), (3, None, Some(3)), (1, None, Some(2))]);
}

/// Events tell where they happened: the volume on top as users name it, and the way down from there.
#[test]
fn each_volume_is_named_by_its_place_in_its_tree() {
    let leg = Leg::new("climbing-paths");
    let outline = outline(&leg.spec);
    let top = leg.spec.to_string();
    let paths = ["", "/file:/srv/other.img", "/leg", "/leg/low", "/leg/low/tw://node1/a?link=eth1"];
    for (at, path) in paths.iter().enumerate() {
        assert_eq!(outline.path(at), format!("{top}{path}"));
    }
    assert_eq!(outline.name(2), top.replace("#home", "#leg"), "as it is named by itself");
}
