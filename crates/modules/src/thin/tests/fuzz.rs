//! Heads and rows out of choices: whatever is taken is written as it was, and nothing panics.

use thinwire_fuzz::{Choices, Reached, fuzz};

use super::super::rows::{Mapping, NameRow, VolumeRow};
use super::super::*;
use crate::meta::tree::TreeValue;

static POOLS: Reached = Reached::new();

fn is_kept<V: TreeValue>(bytes: &[u8], names: [&'static str; 2]) {
    match V::take(&bytes[..V::BYTES]) {
        Some(value) => {
            let mut again = vec![0; V::BYTES];
            value.put(&mut again);
            assert_eq!(again, bytes[..V::BYTES]);
            value.refers();
            POOLS.count(names[0]);
        }
        None => POOLS.count(names[1]),
    }
}

fn play(choices: &mut Choices<'_>) {
    let mut bytes = match choices.below(3) {
        0 => PoolHead {
            block_shift: 16,
            next_volume: 5,
            time: 6,
            ended: 7,
            untrimmed: 8,
            has_writers: false,
        }
        .encode(),
        1 => {
            let mut out = [0; 64];
            NameRow::new("a name").put(&mut out);
            out
        }
        _ => {
            let mut out = [0; 64];
            out[17] = 0x10;
            out
        }
    };
    for _ in 0..choices.below(4) {
        bytes[choices.below(64)] = choices.byte();
    }
    match PoolHead::decode(&bytes) {
        Ok(head) => {
            assert_eq!(head.encode(), bytes);
            POOLS.count("a head");
        }
        Err(why) => {
            assert!(!why.is_empty());
            POOLS.count("no head");
        }
    }
    is_kept::<VolumeRow>(&bytes, ["a volume", "no volume"]);
    is_kept::<NameRow>(&bytes, ["a name", "no name"]);
    is_kept::<Mapping>(&bytes, ["a mapping", "no mapping"]);
}

#[test]
fn fuzz_pools() {
    fuzz!("pools", 2_000, 40, play);
    POOLS.expect(&["a head", "no head", "a volume", "no volume", "a name", "no name", "a mapping"]);
}
