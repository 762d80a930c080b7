//! What stands in labels and trees against the images kept in `tests/golden/thin`, and fields against the tables of `docs/format.md`.

use std::path::{Path, PathBuf};

use thinwire_volume::{KeptWriter, LeafGeneration, WriterRecord};

use super::super::rows::{BLOCKS_MAX, Mapping, NameRow, RowCut, TIME_MAX, VolumeRow};
use super::super::writers::rows_of;
use super::super::*;
use crate::meta::tree::{TREE_STATE_BYTES, TreePointer, TreeValue};
use crate::tests::golden;

fn bytes_of<V: TreeValue>(value: V) -> Vec<u8> {
    let mut bytes = vec![0; V::BYTES];
    value.put(&mut bytes);
    assert_eq!(
        V::take(&bytes).map(|again| {
            let mut out = vec![0; V::BYTES];
            again.put(&mut out);
            out
        }),
        Some(bytes.clone())
    );
    bytes
}

fn row() -> VolumeRow {
    VolumeRow {
        root: TreePointer { node: 0x123, generation: 0x1_0002 },
        bytes: 0x12_3000,
        mapped: 0x99,
        incarnation: 0x0102_0304_0506_0708,
        origin: 0x42,
        shared_before: 0x0abc_def0,
        is_read_only: true,
        cut: RowCut::No,
        kept: 0,
        created_at: 1_700_000_000,
    }
}

fn images() -> Vec<(&'static str, Vec<u8>)> {
    let new = NewPool { block_bytes: 65536, data_bytes: 1 << 30, metadata_bytes: 8 << 20 };
    let head = PoolHead {
        block_shift: 16,
        next_volume: 0x77,
        time: 0x55,
        ended: 0x33,
        untrimmed: 0x44,
        has_writers: false,
    };
    let leaves = (1..3).map(|leaf| LeafGeneration { leaf: [leaf; 16], generation: 9 }).collect();
    let record = WriterRecord::new(0x0102_0304, [7; 16], "node1, März").with_written(0x0102_0203);
    let kept = KeptWriter { record, leaves: Some(leaves) };
    let writer = rows_of(&kept).into_iter().flat_map(bytes_of).collect();
    vec![
        ("state", new.states().unwrap()[1].clone()),
        ("head", head.encode().to_vec()),
        ("head-with-writers", PoolHead { has_writers: true, ..head }.encode().to_vec()),
        ("volume", bytes_of(row())),
        ("volume-of-cut", bytes_of(VolumeRow { cut: RowCut::Undecided, ..row() })),
        ("volume-with-labels", bytes_of(VolumeRow { kept: 3, ..row() })),
        ("writer", writer),
        ("name", bytes_of(NameRow::new("mails, März"))),
        ("mapping", bytes_of(Mapping { block: 0x1_2345_6789, time: 0x0bcd_ef01 })),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}

#[test]
fn images_are_those_that_are_kept() {
    golden::are_kept("thin", &images());
    let (_, state) = &images()[0];
    assert_eq!(state.len(), TREE_STATE_BYTES + POOL_HEAD_BYTES);
}

/// Offsets, widths and names of the table of the document that begins with this row; each field begins where the one before ends.
fn table(first: &str) -> Vec<(usize, usize, String)> {
    let text = std::fs::read_to_string(root().join("../../docs/format.md")).unwrap();
    let at = text.find(first).unwrap_or_else(|| panic!("no row {first}"));
    let rows = text[at..].lines().take_while(|line| line.starts_with('|'));
    let fields: Vec<(usize, usize, String)> = rows
        .map(|row| {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            (cells[0].parse().unwrap(), cells[1].parse().unwrap(), cells[2].to_owned())
        })
        .collect();
    assert!(fields.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "{fields:?}");
    fields
}

fn number(image: &[u8], fields: &[(usize, usize, String)], name: &str) -> u64 {
    let (at, width, _) = fields.iter().find(|(.., field)| field == name).unwrap();
    let mut bytes = [0; 8];
    bytes[..*width].copy_from_slice(&image[*at..at + width]);
    u64::from_le_bytes(bytes)
}

#[test]
fn fields_are_where_the_document_says() {
    let fields = table("| 0 | 1 | pool version |");
    let (_, head) = &images()[1];
    let names = ["pool version", "block", "next volume", "time", "ended", "untrimmed"];
    let says = names.map(|of| number(head, &fields, of));
    assert_eq!(says, [1, 16, 0x77, 0x55, 0x33, 0x44]);
    assert_eq!(fields.last().map(|(at, width, _)| at + width), Some(POOL_HEAD_BYTES));
    let fields = table("| 0 | 16 | blocks | root of its tree of blocks |");
    let (_, volume) = &images()[3];
    let names =
        ["volume bytes", "mapped", "incarnation", "origin", "shared before", "kind", "created at"];
    let row = row();
    let says = names.map(|of| number(volume, &fields, of));
    let wants =
        [row.bytes, row.mapped, row.incarnation, row.origin, row.shared_before, 1, row.created_at];
    assert_eq!(says, wants);
    let fields = table("| 0 | 8 | generation | as in a label |");
    let (_, writer) = &images()[6];
    let says =
        ["generation", "name length", "has leaves", "leaves"].map(|of| number(writer, &fields, of));
    assert_eq!(says, [0x0102_0304, 12, 1, 2]);
    assert_eq!(fields.last().map(|(at, width, _)| at + width), Some(96));
    let fields = table("| 0 | 16 | blocks | root of its tree of blocks |");
    let (_, labelled) = &images()[5];
    assert_eq!(number(labelled, &fields, "kept"), 3);
    assert_eq!(fields.last().map(|(at, width, _)| at + width), Some(VolumeRow::BYTES));
}

#[test]
fn what_cannot_be_is_refused() {
    let right = PoolHead {
        block_shift: 12,
        next_volume: 1,
        time: 0,
        ended: 0,
        untrimmed: 0,
        has_writers: false,
    };
    assert_eq!(PoolHead::decode(&right.encode()), Ok(right));
    for (at, byte) in
        [(0, 3), (1, 11), (1, 21), (2, 1), (8, 0), (19, 0x10), (32, 1), (40, 1), (63, 1)]
    {
        let mut wrong = right.encode();
        wrong[at] = byte;
        assert!(PoolHead::decode(&wrong).is_err(), "byte {at}");
    }
    assert!(PoolHead::decode(&right.encode()[1..]).is_err());
    let row = bytes_of(row());
    for (at, byte) in [(16, 1), (51, 0x10), (52, 2), (53, 65), (54, 1)] {
        let mut wrong = row.clone();
        wrong[at] = byte;
        assert_eq!(VolumeRow::take(&wrong), None, "byte {at}");
    }
    let name = bytes_of(NameRow::new("ab"));
    for (at, byte) in [(0, 0), (0, 1), (0, 64), (1, 0xff), (1, 7), (9, 9)] {
        let mut wrong = name.clone();
        wrong[at] = byte;
        assert_eq!(NameRow::take(&wrong), None, "byte {at}");
    }
    let most = Mapping { block: BLOCKS_MAX - 1, time: TIME_MAX - 1 };
    assert_eq!(bytes_of(most), [0xff; 8]);
    let new = NewPool { block_bytes: 4096, data_bytes: 1 << 20, metadata_bytes: 4 << 20 };
    assert!(new.states().is_ok());
    for wrong in [
        NewPool { block_bytes: 2048, ..new },
        NewPool { block_bytes: 2 << 20, ..new },
        NewPool { block_bytes: 12288, ..new },
        NewPool { data_bytes: 4095, ..new },
        NewPool { data_bytes: u64::MAX, ..new },
        NewPool { metadata_bytes: 1 << 20, ..new },
    ] {
        assert!(wrong.states().is_err(), "{wrong:?}");
    }
}
