//! Tests of how places in trees are named, and of what is found to have failed.

use std::path::PathBuf;

use thinwire_buffer::Time;
use thinwire_modules::Metered;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume};

use super::super::outline::Outline;
use super::*;
use crate::cli::WireArgs;
use crate::error::Failure;
use crate::open::{OpenVolume, VolumeOptions, open_volume};
use crate::testing::MemoryVolume;
use crate::trees::NodeName;
use crate::uri::VolumeSpec;

fn node(depth: usize, kind: &'static str, name: &str) -> OutlineNode {
    let named = Module::find(kind).is_some() && !name.is_empty();
    let node = named.then(|| NodeName { file: "/etc/t.toml".into(), name: name.into() });
    let meter = Some(Rc::default());
    OutlineNode { depth, kind, name: name.into(), node, meter, ..OutlineNode::default() }
}

fn leg(leg: usize, node: OutlineNode) -> OutlineNode {
    OutlineNode { leg: Some(leg), ..node }
}

/// A striped volume over a mirror and a file, and a volume of a pool beside them.
fn tree() -> Vec<OutlineNode> {
    vec![
        node(0, "linear", ""),
        node(1, "stripe", "data"),
        node(2, "mirror", "home"),
        leg(2, node(3, "tw", "tw://node2/disk1")),
        leg(0, node(3, "crypt", "sealed")),
        node(4, "file", "file:/srv/c.img"),
        node(3, "file", "file:/srv/gone.img"),
        node(2, "file", "file:/srv/b.img"),
        OutlineNode { pool: Some(0), ..node(1, "thin", "pool@vm") },
        node(2, "thin", "pool"),
        node(3, "file", "file:/srv/d.img"),
        node(3, "qos", ""),
        node(4, "file", "file:/srv/m.img"),
    ]
}

#[test]
fn a_place_has_the_word_of_each_module_on_the_way() {
    let mut nodes = tree();
    let home = r#"linear part 0, stripe "data" part 0, mirror "home""#;
    let expected = [
        "linear".to_owned(),
        r#"linear part 0, stripe "data""#.into(),
        home.into(),
        format!("{home} leg 2 (tw://node2/disk1)"),
        format!(r#"{home} leg 0, crypt "sealed""#),
        format!(r#"{home} leg 0, crypt "sealed" (file:/srv/c.img)"#),
        // It was a leg, and is none any more.
        format!("{home} (file:/srv/gone.img)"),
        r#"linear part 0, stripe "data" part 1 (file:/srv/b.img)"#.into(),
        r#"linear part 1, thin "pool@vm""#.into(),
        r#"linear part 1, thin "pool@vm""#.into(),
        r#"linear part 1, thin "pool@vm" data (file:/srv/d.img)"#.into(),
        r#"linear part 1, thin "pool@vm" metadata, qos"#.into(),
        r#"linear part 1, thin "pool@vm" metadata, qos (file:/srv/m.img)"#.into(),
    ];
    for (at, expected) in expected.iter().enumerate() {
        assert_eq!(place_of(&nodes, at), *expected);
    }
    // Labels decide, not the description.
    (nodes[10].role, nodes[11].role) = (Some(1), Some(0));
    assert!(place_of(&nodes, 10).ends_with(" metadata (file:/srv/d.img)"));
    assert_eq!(place_of(&[node(0, "file", "file:/srv/a.img")], 0), "file:/srv/a.img");
}

/// The issue's own.
#[test]
fn an_error_has_module_name_leg_and_place() {
    let nodes = [
        node(0, "mirror", "home"),
        leg(0, node(1, "file", "file:/srv/one.img")),
        leg(2, node(1, "tw", "tw://node2/disk1")),
    ];
    let io = Io::new(0, Op::Read, 81920, 4096);
    let told = FailedAt::of(&nodes, 2, &io.error(ErrorKind::Io, "remote")).to_string();
    let expected = r#"mirror "home" leg 2 (tw://node2/disk1): read of 4096 bytes at 81920: the medium reported an error"#;
    assert_eq!(told, expected);
    // What a module has only passed on it says so of.
    let told = FailedAt::of(&nodes, 0, &io.error(ErrorKind::Io, "labels")).to_string();
    assert!(told.starts_with(r#"mirror "home": read"#), "{told}");
    assert!(told.ends_with(" (reported by labels)"), "{told}");
    // Of what is made of nothing there is only one place, and the user has named it.
    let told = FailedAt::of(&nodes[1..2], 0, &io.error(ErrorKind::Io, "file")).to_string();
    assert_eq!(told, io.error(ErrorKind::Io, "file").to_string());
}

/// A volume on which everything fails, reported by somebody.
struct Fails(MemoryVolume, ErrorKind, &'static str);

impl Volume for Fails {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn submit(&mut self, io: Io) {
        self.0.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.0.poll(done);
        let Fails(_, kind, module) = *self;
        done.iter_mut()
            .for_each(|one| one.result = Err(IoError { kind, module, ..read_at(one.token) }));
    }

    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
}

/// What is read there has failed.
fn read_at(offset: u64) -> IoError {
    Io::new(offset, Op::Read, offset, 512).error(ErrorKind::Io, "file")
}

/// Some I/O there has failed of one of these at that time, reported so.
fn fail(
    nodes: &[OutlineNode],
    at: usize,
    ms: u64,
    offset: u64,
    (kind, module): (ErrorKind, &'static str),
) {
    let volume = Fails(MemoryVolume::new(1 << 20, 512), kind, module);
    let mut metered = Metered::new(Box::new(volume), nodes[at].meter.clone().unwrap(), None, None);
    metered.turn(Time::ZERO + Duration::from_millis(ms));
    metered.submit(Io::new(offset, Op::Read, offset, 512));
    while metered.outstanding() > 0 {
        metered.poll(&mut Vec::new());
    }
}

#[test]
fn what_failed_first_is_found_by_what_went_up() {
    const FILE: (ErrorKind, &str) = (ErrorKind::Io, "file");
    let nodes = tree();
    let top = |kind, module| IoError { kind, module, ..read_at(0) };
    let find = |kind, module| {
        let (at, error) = first_failing(&nodes, &top(kind, module));
        (at, error.offset)
    };
    assert_eq!(find(ErrorKind::Io, "linear"), (0, 0), "nothing below has failed");
    // A leg fails, and another has what it lacks.
    fail(&nodes, 5, 1, 4096, FILE);
    fail(&nodes, 4, 1, 3072, FILE);
    assert_eq!(find(ErrorKind::Io, "file"), (0, 0), "nor what that is a part of");
    // Later the file beside the mirror does.
    for (at, offset) in [(7, 8192), (1, 16384), (0, 16384)] {
        fail(&nodes, at, 500, offset, FILE);
    }
    assert_eq!(find(ErrorKind::Io, "file"), (7, 8192));
    // And then the mirror, with its other leg: with what has the same kind, and the same name.
    for (at, offset) in [(3, 2048), (2, 1024), (1, 512), (0, 512)] {
        fail(&nodes, at, 900, offset, (ErrorKind::Away, "remote"));
    }
    assert_eq!(find(ErrorKind::Away, "remote"), (3, 2048));
    assert_eq!(find(ErrorKind::Away, "mirror"), (3, 2048), "which it may have put its own name to");
    assert_eq!(find(ErrorKind::Io, "file"), (0, 0), "of what has failed before that nobody asks");
    // A pool tells its own name of what its metadata could not be read for.
    for (at, offset, module) in
        [(12, 4096, "file"), (11, 4096, "file"), (8, 0, "thin"), (0, 1024, "thin")]
    {
        fail(&nodes, at, 2000, offset, (ErrorKind::Io, module));
    }
    assert_eq!(find(ErrorKind::Io, "thin"), (12, 4096));
    // Long after that it fails by itself.
    for at in [8, 0] {
        fail(&nodes, at, 9000, 512, (ErrorKind::Io, "thin"));
    }
    assert_eq!(find(ErrorKind::Io, "thin"), (8, 512));
}

/// A volume as a command has it open.
fn open(spec: &str) -> Box<dyn OpenVolume> {
    let security = crate::keys::Security::default();
    let options = VolumeOptions::new(security, &WireArgs::default(), PathBuf::new());
    open_volume(&spec.parse().unwrap(), &options, None).unwrap()
}

/// Ranges are those of what has failed.
#[test]
fn a_command_is_told_where_its_io_failed() {
    let mut volume = open("linear:[memory:64K,slice:[error:[memory:128K]?reads=1]?offset=4K]");
    volume.volume().submit(Io::new(1, Op::Read, 72 << 10, 4096));
    let mut done = Vec::new();
    volume.volume().poll(&mut done);
    let error = done[0].result.unwrap_err();
    let told = volume.failed_at(&error).to_string();
    let expected =
        "linear part 1, slice, error: read of 4096 bytes at 12288: the medium reported an error";
    assert_eq!(told, expected);
    // It is the only one that was named.
    let mut volume = open("memory:64K");
    let told = volume.failed_at(&error).to_string();
    assert_eq!(told, error.to_string());
}

/// Which part it is its labels say, if they do not follow the description: that is known when what is above it is open.
#[test]
fn the_place_of_what_tells_of_its_ios_is_the_one_that_is_known_in_the_end() {
    let spec: VolumeSpec = "linear:[memory:1M,trace:[memory:1M]]".parse().unwrap();
    let VolumeSpec::Over { children, .. } = &spec else { unreachable!() };
    let mut outline = Outline::default();
    let top = outline.begin(&spec, 0);
    let first = outline.begin(&children[0], 0);
    outline.end(first, &mut Err(Failure::failed("only looked at")));
    let at = outline.begin(&children[1], 1);
    let place = outline.place(at);
    assert_eq!(place.to_string(), "linear part 1, trace");
    outline.set_roles(top, &[1, 0]);
    outline.into_nodes();
    assert_eq!(place.to_string(), "linear part 0, trace");
}
