//! Damaged nodes and counts: each is named for what it is, by lookups and by a check, and what is whole is served.

use std::rc::Rc;

use super::disk::{Clock, Content, TestDisk};
use super::world::{KINDS, Mapping, Model, Setup, World};
use super::*;
use crate::meta::tree::node::Node;
use crate::meta::{Finding, LABEL_AREA_BYTES, LABEL_OFFSETS};

/// What is on the disks of a world in which nothing is under way.
#[derive(Clone)]
pub struct Image {
    pub setup: Setup,
    pub part: Content,
    pub data: Content,
    pub model: Model,
}

impl Image {
    /// Some volumes that share what they can, one of them deleted in part.
    pub fn new() -> Self {
        let setup = Setup { rows_max: Some(4), nodes: 1024, blocks: 300, ..Setup::default() };
        let mut world = World::new(setup.clone());
        let first = world.create().unwrap();
        (0..40).for_each(|key| world.write(first, key * 3).unwrap());
        world.commit_now().unwrap();
        let mut last = first;
        for key in 0..4 {
            last = world.share(last).unwrap();
            world.write(last, key * 7).unwrap();
            world.commit_now().unwrap();
        }
        let lone = world.create().unwrap();
        (0..30).for_each(|key| world.write(lone, key * 5).unwrap());
        world.commit_now().unwrap();
        world.delete(lone).unwrap();
        world.reap().unwrap();
        world.commit_now().unwrap();
        assert_eq!(world.check(1 << 16), []);
        let content = |disk: &TestDisk| disk.content().clone();
        Image { setup, part: content(&world.part), data: content(&world.data), model: world.model }
    }

    pub fn open(&self) -> World {
        let clock = Clock::default();
        let part = super::world::part_bytes(self.setup.nodes);
        let part = TestDisk::new(part, self.part.clone(), &clock, 1);
        let data = TestDisk::new(self.setup.blocks * 4096, self.data.clone(), &clock, 1);
        World::open(self.setup.clone(), part, data, self.model.clone())
    }

    /// The trees, or why they cannot be opened.
    pub fn try_open(&self) -> Result<Trees, TreeFault> {
        let part = super::world::part_bytes(self.setup.nodes);
        let mut part = TestDisk::new(part, self.part.clone(), &Clock::default(), 1);
        super::world::open(&mut part, &self.setup)
    }

    /// The addresses of all nodes that were ever written.
    pub fn nodes(&self) -> Vec<u64> {
        let offsets = self.part.range(LABEL_AREA_BYTES..).map(|(offset, _)| *offset);
        offsets.map(|offset| (offset - LABEL_AREA_BYTES) / NODE_BYTES as u64).collect()
    }

    pub fn node(&self, address: u64) -> Box<Node> {
        let mut node = Node::unchecked();
        *node.bytes_mut() = *self.part[&(LABEL_AREA_BYTES + address * NODE_BYTES as u64)];
        node
    }

    pub fn put(&mut self, address: u64, bytes: [u8; NODE_BYTES]) {
        self.part.insert(LABEL_AREA_BYTES + address * NODE_BYTES as u64, Rc::new(bytes));
    }

    /// Changes a node, with a sum that fits.
    pub fn edit(&mut self, address: u64, edit: impl FnOnce(&mut Node)) {
        let mut node = self.node(address);
        edit(&mut node);
        node.seal();
        self.put(address, *node.bytes());
    }

    /// Changes the state in the newest label, with a sum that fits.
    pub fn edit_state(&mut self, edit: impl FnOnce(&mut [u8])) {
        let bytes = super::world::part_bytes(self.setup.nodes);
        let mut part = TestDisk::new(bytes, self.part.clone(), &Clock::default(), 1);
        let Finding::Label(mut found) = super::world::read_labels(&mut part).1 else {
            panic!("no label")
        };
        edit(&mut found.label.state[..TREE_STATE_BYTES]);
        let offset = LABEL_OFFSETS[(found.label.generation % 2) as usize];
        self.part.insert(offset, Rc::from(found.label.encode().unwrap()));
    }

    /// The root of a volume, and what is below it, the lowest keys first.
    fn path(&self, id: u64) -> Vec<u64> {
        let mut world = self.open();
        let volumes = world.volumes;
        let rows = world.all_rows(volumes).unwrap();
        let mut at = rows.iter().find(|(row, _)| *row == id).unwrap().1.root.node;
        let mut path = vec![at];
        while self.node(at).level() > 0 {
            at = self.node(at).pointer(0).node;
            path.push(at);
        }
        path
    }
}

/// A way to damage an image, at a node above leaves and the leaf below it.
type Damage = (&'static str, fn(&mut Image, u64, u64), fn(&NodeFault) -> bool);

const DAMAGES: &[Damage] = &[
    (
        "sum",
        |image, _, leaf| {
            let mut bytes = *image.node(leaf).bytes();
            bytes[100] ^= 4;
            image.put(leaf, bytes);
        },
        |fault| matches!(fault, NodeFault::Checksum { .. }),
    ),
    ("zero", |image, _, leaf| image.put(leaf, [0; NODE_BYTES]), |fault| *fault == NodeFault::Zero),
    (
        "foreign",
        |image, _, leaf| image.put(leaf, [7; NODE_BYTES]),
        |fault| *fault == NodeFault::Foreign,
    ),
    (
        "misdirected",
        |image, above, leaf| {
            let bytes = *image.node(above).bytes();
            image.put(leaf, bytes);
        },
        |fault| matches!(fault, NodeFault::Address { .. }),
    ),
    (
        "lost write",
        |image, _, leaf| {
            image.edit(leaf, |node| {
                node.rename(TreePointer { node: leaf, generation: 1 });
            })
        },
        |fault| matches!(fault, NodeFault::Generation { says: 1, .. }),
    ),
    (
        "newer than its name",
        |image, _, leaf| {
            image.edit(leaf, |node| {
                node.rename(TreePointer { node: leaf, generation: 1 << 40 });
            })
        },
        |fault| matches!(fault, NodeFault::Generation { .. }),
    ),
    (
        "another whole",
        |image, _, leaf| image.edit(leaf, |node| node.bytes_mut()[16] ^= 1),
        |fault| matches!(fault, NodeFault::Whole { .. }),
    ),
    (
        "version",
        |image, _, leaf| image.edit(leaf, |node| node.bytes_mut()[12] = 2),
        |fault| *fault == NodeFault::Version { version: 2 },
    ),
    (
        "kind",
        |image, _, leaf| image.edit(leaf, |node| node.bytes_mut()[15] = 16),
        |fault| *fault == NodeFault::Kind { says: 16 },
    ),
    (
        "order",
        |image, _, leaf| {
            image.edit(leaf, |node| {
                let key = node.key(0);
                node.set_key(1, key);
            })
        },
        |fault| *fault == NodeFault::Order { row: 1 },
    ),
    (
        "range",
        |image, _, leaf| {
            image.edit(leaf, |node| {
                let last = node.rows() - 1;
                node.set_key(last, u64::MAX);
            })
        },
        |fault| *fault == NodeFault::Range { key: u64::MAX },
    ),
    (
        "rows",
        |image, _, leaf| image.edit(leaf, |node| node.bytes_mut()[48..50].fill(0xff)),
        |fault| *fault == NodeFault::Malformed { field: "rows" },
    ),
    (
        "value",
        |image, _, leaf| image.edit(leaf, |node| node.set_value(0, &[0xff; 16])),
        |fault| matches!(fault, NodeFault::Value { .. }),
    ),
    (
        "cycle",
        |image, above, _| {
            image.edit(above, |node| {
                let own = TreePointer { node: above, generation: node.generation() };
                node.set_value(0, &own.to_bytes());
            })
        },
        |fault| matches!(fault, NodeFault::Level { .. } | NodeFault::Range { .. }),
    ),
    (
        "outside",
        |image, above, _| {
            image.edit(above, |node| {
                let at = TreePointer { node: 1 << 50, generation: 1 };
                node.set_value(0, &at.to_bytes());
            })
        },
        |fault| matches!(fault, NodeFault::Pointer { row: 0, .. }),
    ),
];

#[test]
fn damage_is_named_for_what_it_is() {
    let whole = Image::new();
    for (what, damage, is_it) in DAMAGES {
        let mut image = whole.clone();
        // The last volume has a first leaf of its own.
        let id = *image.model.keys().last().unwrap();
        let path = image.path(id);
        let (above, leaf) = (path[path.len() - 2], path[path.len() - 1]);
        damage(&mut image, above, leaf);
        let mut world = image.open();
        let stop = world.dump().unwrap_err();
        let TreeStop::Fault(TreeFault::Node { tree, node, fault }) = &stop else {
            panic!("{what}: {stop}")
        };
        assert!(is_it(fault), "{what}: {stop}");
        assert_eq!(*tree, "blocks of a volume", "{what}");
        let told: Vec<_> = world
            .check(1 << 16)
            .into_iter()
            .filter_map(|finding| {
                assert!(!finding.to_string().is_empty());
                match finding {
                    TreeFinding::Damaged { within, fault: TreeFault::Node { node, .. }, lost } => {
                        Some((within, node, lost))
                    }
                    _ => None,
                }
            })
            .collect();
        let mine =
            told.iter().find(|(within, at, _)| within.is_some() && (at == node || *at == leaf));
        let (_, _, lost) = mine.unwrap_or_else(|| panic!("{what}: {told:?}"));
        assert!(lost.contains(&0), "{what}: {lost:?}");
        // The other volumes, but for what they share with that one, are served; and so is the rest of that.
        let root = world.all_rows(world.volumes).unwrap().last().unwrap().1.root;
        let tree = TreeRoot::<Mapping>::new(&KINDS[1], root);
        let far = *image.model[&id].keys().last().unwrap();
        if *what != "range" {
            assert!(matches!(world.look(|trees| trees.lookup(tree, far)), Ok(Some(_))), "{what}");
        }
    }
}

#[test]
fn counts_that_are_wrong_are_found() {
    let whole = Image::new();
    let mut world = whole.open();
    // Two volumes map one block, and it is counted once: as if it had been given out twice.
    let rows = world.all_rows(world.volumes).unwrap();
    let (first, last) = (rows[0].1.root, rows.last().unwrap().1.root);
    let mapping = |world: &mut World, root| {
        let tree = TreeRoot::<Mapping>::new(&KINDS[1], root);
        world.look(|trees| trees.lookup(tree, 21)).unwrap().unwrap()
    };
    let (old, new) = (mapping(&mut world, first), mapping(&mut world, last));
    assert_ne!(old, new);
    let mut image = whole.clone();
    for address in image.nodes() {
        let node = image.node(address);
        let is_leaf = node.kind() == 17 && node.level() == 0;
        if let (true, Ok(row)) = (is_leaf, node.find(21))
            && Mapping::take(node.value(row)) == Some(new)
        {
            let mut value = [0; 16];
            Mapping { block: old.block, ..new }.put(&mut value);
            image.edit(address, |node| node.set_value(row, &value));
        }
    }
    let found = image.open().check(7);
    let wrong = |block: u64| {
        let count = |finding: &TreeFinding| match *finding {
            TreeFinding::BlockCount { block: at, says, has } if at == block => Some((says, has)),
            _ => None,
        };
        found.iter().find_map(count)
    };
    let (says, has) = wrong(old.block).unwrap();
    assert_eq!(has, says + 1);
    assert_eq!(wrong(new.block), Some((1, 0)));
    assert_eq!(found.len(), 2);

    // A map that says too little, of blocks and of nodes.
    for (kind, of) in [(NODE_MAP.number, "node"), (BLOCK_MAP.number, "block")] {
        let mut image = whole.clone();
        let root = image.open().trees.committed().to_owned();
        let root = if of == "node" { root.nodes.map } else { root.blocks.map };
        let mut at = root.node;
        while image.node(at).level() > 0 {
            at = image.node(at).pointer(0).node;
        }
        assert_eq!(image.node(at).kind(), kind);
        image.edit(at, |node| node.set_value(0, &[0; 16]));
        let found = image.open().check(1 << 16);
        assert!(found.len() > 2, "{found:?}");
        for finding in &found {
            let text = finding.to_string();
            assert!(text.contains(of) && !text.is_empty(), "{text}");
        }
    }
}

#[test]
fn a_deleted_volume_with_a_damaged_node_holds_up_no_other() {
    let mut image = Image::new();
    let ids: Vec<u64> = image.model.keys().copied().collect();
    let leaf = *image.path(ids[4]).last().unwrap();
    image.put(leaf, [0; NODE_BYTES]);
    let mut world = image.open();
    for id in ids {
        world.delete(id).unwrap();
    }
    let mut damaged = Vec::new();
    loop {
        let reaped = world.run(true, |change, _| change.reap()).unwrap();
        damaged.extend(reaped.damaged);
        if !reaped.more {
            break;
        }
    }
    assert_eq!(damaged, [TreeFault::node("blocks of a volume", leaf, NodeFault::Zero)]);
    world.commit_now().unwrap();
    // What it refers to is all that is left.
    assert!(world.trees.committed().blocks.used <= 4);
}

/// Some of the map of blocks cannot be read, and the rest has room: whether somebody is given a block of that.
fn write_beside_damage(canary: TreeCanary) -> Result<(), TreeStop> {
    let setup =
        Setup { rows_max: Some(4), nodes: 8_192, blocks: 3_000, canary, ..Setup::default() };
    let mut world = World::new(setup);
    let id = world.create().unwrap();
    (0..640).for_each(|key| world.write(id, key).unwrap());
    world.commit_now().unwrap();
    let content = |disk: &TestDisk| disk.content().clone();
    let (part, data) = (content(&world.part), content(&world.data));
    let mut image = Image { setup: world.setup.clone(), part, data, model: world.model };
    // The first leaf of the map.
    let mut at = world.trees.committed().blocks.map.node;
    while image.node(at).level() > 0 {
        at = image.node(at).pointer(0).node;
    }
    image.put(at, [7; NODE_BYTES]);
    let mut world = image.open();
    for key in 640..700 {
        world.write(id, key)?;
    }
    world.commit_now()?;
    assert_eq!(world.dump().unwrap(), world.model);
    let stop = (700..).find_map(|key| world.write(id, key).err()).unwrap();
    assert_eq!((stop, world.trees.free()[1]), (TreeStop::NoBlocks, 0));
    Ok(())
}

#[test]
fn blocks_are_given_out_beside_a_damaged_node_of_their_map() {
    write_beside_damage(TreeCanary::None).unwrap();
}

#[test]
#[should_panic = "Foreign"]
fn a_search_that_stops_at_damage_is_found() {
    write_beside_damage(TreeCanary::StopsAtDamage).unwrap();
}
