//! Nodes and a state against the images kept in `tests/golden/trees`, and fields against the tables of `docs/format.md`.

use std::path::{Path, PathBuf};

use super::world::{KINDS, Mapping, VolumeRow};
use super::*;
use crate::meta::tree::node::{HEAD_BYTES, Node};
use crate::tests::golden;

const PLACE: NodePlace = NodePlace { whole: *b"UUID of a whole!", address: 0x123, nodes: 0x1000 };
const AT: TreePointer = TreePointer { node: 0x123, generation: 0x1_0002 };

fn bytes_of<V: TreeValue>(value: V) -> Vec<u8> {
    let mut bytes = vec![0; V::BYTES];
    value.put(&mut bytes);
    bytes
}

/// A node of two rows.
fn node(kind: &TreeKind, level: u8, rows: [(u64, Vec<u8>); 2]) -> Box<Node> {
    let mut node = Node::new(PLACE, AT, level, kind.number, kind.value_bytes);
    for (row, (key, value)) in rows.into_iter().enumerate() {
        node.insert(row, key, &value);
    }
    node.seal();
    node
}

fn state() -> TreeState {
    let at = |node| TreePointer { node, generation: 3 + node };
    let space = |total| TreeSpace { total, used: total / 2, map_nodes: total / 8, map: at(total) };
    TreeState {
        generation: 0x1_0002,
        nodes: TreeSpace { map: at(9), ..space(0x800) },
        blocks: TreeSpace { map: at(10), ..space(0x400) },
        doomed: at(11),
        roots: [at(12), at(13), TreePointer::NONE, at(14)],
    }
}

fn images() -> Vec<(&'static str, Vec<u8>)> {
    let pointer = |node, generation| TreePointer { node, generation }.to_bytes().to_vec();
    let above = node(&KINDS[1], 1, [(0, pointer(7, 3)), (0x0102_0304_0506_0708, pointer(9, 4))]);
    let mapping = |block| bytes_of(Mapping { block, time: 0x55 });
    let leaf = node(&KINDS[1], 0, [(5, mapping(0x11)), (u64::MAX, mapping(0x22))]);
    let row = |time| bytes_of(VolumeRow { root: AT, time });
    let volumes = node(&KINDS[0], 0, [(1, row(1)), (2, row(2))]);
    let counts = |byte| bytes_of(CountRow([byte; 16]));
    let mut high = vec![0; 16];
    high[0] = 200;
    let map = node(&BLOCK_MAP, 0, [(3, counts(0x1b)), (1 << 63 | 0xc3, high)]);
    let doomed = bytes_of(Doomed { at: AT, kind: 17 });
    let doomed = node(&DOOMED, 0, [(0x123, doomed.clone()), (1 << 56 | 0x123, doomed)]);
    let bytes = |node: Box<Node>| node.bytes().to_vec();
    vec![
        ("above-leaves", bytes(above)),
        ("leaf", bytes(leaf)),
        ("volumes", bytes(volumes)),
        ("map-of-blocks", bytes(map)),
        ("doomed-nodes", bytes(doomed)),
        ("state", state().encode(b"kept beside")),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

#[test]
fn images_are_those_that_are_kept() {
    golden::are_kept("trees", &images());
    for (name, image) in images() {
        match <&[u8; NODE_BYTES]>::try_from(&image[..]) {
            Ok(bytes) => {
                let mut node = Node::unchecked();
                *node.bytes_mut() = *bytes;
                assert_eq!(node.check(PLACE), Ok(()), "{name}");
            }
            Err(_) => assert_eq!(TreeState::decode(&image), Ok((state(), &b"kept beside"[..]))),
        }
    }
}

#[test]
fn any_changed_bit_is_found() {
    let (_, image) = &images()[1];
    for bit in 0..NODE_BYTES * 8 {
        let mut node = Node::unchecked();
        node.bytes_mut().copy_from_slice(image);
        node.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        assert!(node.check(PLACE).is_err(), "bit {bit}");
    }
}

/// Offsets and widths of the table of the document that begins with this row; each field begins where the one before ends.
fn table(first: &str) -> Vec<(usize, usize, String)> {
    let text = std::fs::read_to_string(root().join("../../docs/format.md")).unwrap();
    let at = text.find(first).unwrap_or_else(|| panic!("no row {first}"));
    let rows = text[at..].lines().take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].parse().unwrap(), cells[1].parse().unwrap_or(0), cells[2].to_owned())
    })
    .collect()
}

#[test]
fn fields_are_where_the_document_says() {
    let fields = table("| 0 | 8 | magic | 54 57 54 52 45 45 00 00");
    let is_close = |fields: &[(usize, usize, String)]| {
        fields.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0)
    };
    assert!(is_close(&fields));
    assert_eq!(fields.last().map(|(at, ..)| *at), Some(HEAD_BYTES));
    let (_, image) = &images()[1];
    let number = |name: &str| {
        let (at, width, _) = fields.iter().find(|(.., field)| field == name).unwrap();
        let mut bytes = [0; 8];
        bytes[..*width].copy_from_slice(&image[*at..at + width]);
        u64::from_le_bytes(bytes)
    };
    let names = ["format version", "level", "kind", "address", "generation", "rows", "value bytes"];
    assert_eq!(names.map(number), [1, 0, 17, AT.node, AT.generation, 2, 16]);
    let state = table(
        "| 0 | 1 | version | 1 |\n| 1 | 7 | reserved | zero |\n| 8 | 8 | generation | of the commit",
    );
    assert!(is_close(&state));
    assert_eq!(state.last().map(|(at, width, _)| at + width), Some(TREE_STATE_BYTES));
}

#[test]
fn a_state_that_cannot_be_is_refused() {
    let right = state().encode(&[]);
    assert!(TreeState::decode(&right[1..]).is_err());
    for (at, byte) in
        [(0, 2), (1, 1), (23, 1), (25, 0xff), (33, 0xff), (57, 0xff), (64, 0), (72, 0)]
    {
        let mut wrong = right.clone();
        wrong[at] = byte;
        assert!(TreeState::decode(&wrong).is_err(), "byte {at}");
    }
}
