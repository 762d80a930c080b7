//! What is kept beside contents, as it may be found: records of all versions, what a gateway remembers of its leaves,
//! grants that were not used. What was written is read as it was; what has changed since is worth nothing.

use thinwire_buffer::{Pool, SegList};
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_volume::{KeptWriter, LeafGeneration, LeafGrant, WriterRecord};

use super::taken::{self, Taken};
use super::writer::{Kept, decode, encode};
use super::{gateway, unused};

static REACHED: Reached = Reached::new();

fn record(choices: &mut Choices<'_>) -> WriterRecord {
    let (generation, holder) = (choices.number(), [choices.byte(); 16]);
    let record = WriterRecord::new(generation, holder, &choices.text(80));
    WriterRecord { idle: choices.number() as u32, ..record }
}

fn leaves(choices: &mut Choices<'_>) -> Vec<LeafGeneration> {
    let mut leaf = |_| LeafGeneration { leaf: [choices.byte(); 16], generation: choices.number() };
    let count = leaf(0).leaf[0] % 5;
    (0..count).map(leaf).collect()
}

/// Changes some bytes, or none. True if it did.
fn edit(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) -> bool {
    let before = bytes.clone();
    for _ in 0..choices.below(3) {
        let at = choices.below(bytes.len().max(1));
        match choices.below(4) {
            0 if !bytes.is_empty() => bytes[at] ^= choices.byte(),
            1 => bytes.truncate(at),
            2 => bytes.extend_from_slice(choices.bytes(16)),
            3 if at + 8 <= bytes.len() => {
                bytes[at..at + 8].copy_from_slice(&choices.number().to_be_bytes())
            }
            _ => {}
        }
    }
    *bytes != before
}

/// What was read is what was written, or nothing if that was changed.
fn judge<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    read: Option<T>,
    written: T,
    is_changed: bool,
) {
    if is_changed {
        assert_eq!(read, None, "{what}");
        REACHED.count("noticed");
    } else {
        assert_eq!(read, Some(written), "{what}");
        REACHED.count(what);
    }
}

fn play(choices: &mut Choices<'_>) {
    match choices.below(6) {
        0 => {
            let record = record(choices);
            let mut bytes = encode(record, Kept::default()).to_vec();
            let is_changed = edit(&mut bytes, choices);
            judge("record", decode(&bytes), (record, Kept::default()), is_changed);
        }
        1 => {
            let record = record(choices);
            let mut leaves = leaves(choices);
            if leaves.iter().all(|leaf| leaf.generation == 0) {
                leaves.clear();
            }
            let mut bytes = gateway::to_bytes(record, &leaves);
            let is_changed = edit(&mut bytes, choices);
            judge("gateway", gateway::from_bytes(&bytes), (record, leaves), is_changed);
        }
        2 => {
            let grant = LeafGrant { since: choices.number(), generation: choices.number() };
            let mut bytes = unused::to_bytes(grant).to_vec();
            let is_changed = edit(&mut bytes, choices);
            judge("grant", unused::from_bytes(&bytes), grant, is_changed);
        }
        3 => {
            let taken = |choices: &mut Choices<'_>| Taken {
                start: choices.number(),
                end: choices.number(),
                generation: choices.number(),
                by: [choices.byte(); 16],
                disk: [choices.byte(); 16],
            };
            let all: Vec<_> = (0..choices.below(4)).map(|_| taken(choices)).collect();
            let mut bytes = taken::to_bytes(&all);
            let is_changed = edit(&mut bytes, choices);
            judge("ranges", taken::from_bytes(&bytes), all, is_changed);
        }
        // As it travels between a volume and who asks it: whatever is taken says the same again.
        4 => {
            let pool = Pool::new(0);
            let record = record(choices);
            let leaves = (choices.below(2) == 1).then(|| leaves(choices));
            let mut bytes = KeptWriter { record, leaves }.to_data(&pool).to_vec();
            edit(&mut bytes, choices);
            let data = |bytes: &[u8]| SegList::of(pool.copy_of(bytes).freeze());
            if let Some(record) = WriterRecord::from_data(&data(&bytes)) {
                assert_eq!(WriterRecord::from_data(&record.to_data(&pool)), Some(record));
                let kept = KeptWriter::from_data(&data(&bytes)).expect("a record, and more");
                assert_eq!(KeptWriter::from_data(&kept.to_data(&pool)), Some(kept));
                REACHED.count("on its way");
            }
        }
        // Anything at all, of any length.
        _ => {
            let magic = *choices.of(&[
                &b"TWW1"[..],
                b"TWW2",
                b"TWW3",
                b"TWW4",
                b"TWG1",
                b"TWG2",
                b"TWG3",
                b"TWU2",
                b"TWR1",
                b"",
            ]);
            let bytes = [magic, &[0; 4], choices.rest()].concat();
            assert_eq!(decode(&bytes), None);
            assert_eq!(gateway::from_bytes(&bytes), None);
            assert_eq!(unused::from_bytes(&bytes), None);
            assert_eq!(taken::from_bytes(&bytes), None);
            REACHED.count("nothing");
        }
    }
}

#[test]
fn fuzz_state() {
    fuzz!("state", 20_000, 200, play);
    REACHED.expect(&["record", "gateway", "grant", "ranges", "on its way", "noticed", "nothing"]);
}
