//! What stands on a part against the images kept in `tests/golden/integrity`.

use super::super::*;
use super::world::*;
use crate::mirror::tests::disk::at;
use crate::tests::golden;

/// A block was written twice, another one to zeroes, one in the last region; the first region is open.
fn images() -> [(&'static str, Vec<u8>); 4] {
    let mut world = World::over(made(PART_BYTES));
    world.write(3, 1, 1, false);
    world.succeed();
    world.write(3, 2, 2, false);
    world.succeed();
    world.zero(4, 1, Op::WriteZeroes);
    world.write(LAST + 3, 1, 3, false);
    world.succeed();
    let content = world.disk.content();
    let state = IntegrityState::new(DATA_BYTES);
    assert_eq!(state.region_shift, world.volume.region_shift);
    let number = world.volume.intent.number_of(0);
    let bitmap = SumLayout::bitmap_at(0, number);
    [
        ("state", state.encode()),
        ("bitmap", at(&content, bitmap / BLOCK).to_vec()),
        ("sums-0", at(&content, SumLayout::sums_at(0) / BLOCK).to_vec()),
        ("sums-2", at(&content, SumLayout::sums_at(2) / BLOCK).to_vec()),
    ]
}

#[test]
fn images_are_those_that_are_kept() {
    golden::are_kept("integrity", &images());
}

/// Sums as the document says, by another way.
#[test]
fn sums_are_those_of_the_document() {
    let sum = |bytes: &[u8], number: u64| {
        let mut all = bytes.to_vec();
        all.extend(number.to_le_bytes());
        all.extend(WHOLE);
        crc32c::crc32c(&all)
    };
    let summer = Summer::new(WHOLE);
    let mut found = Vec::new();
    let data = segments(&[[0; 4096], [9; 4096]].concat());
    summer.each(77, &data, |number, sum| found.push((number, sum)));
    assert_eq!(found, [(77, 0), (78, sum(&[9; 4096], 78))]);
    // Whose sum would be 0 has that of zeroes: found by what the CRC of its bytes would have to be.
    let zeroes = sum(&[0; 4096], 5);
    let of_zero = |crc: u32| {
        let mut tail = 5_u64.to_le_bytes().to_vec();
        tail.extend(WHOLE);
        crc32c::crc32c_append(crc, &tail)
    };
    // CRC is linear: solve bit by bit.
    let base = of_zero(0);
    let columns: Vec<u32> = (0..32).map(|bit| of_zero(1 << bit) ^ base).collect();
    let crc = solve(&columns, base);
    assert_eq!((of_zero(crc), summer.of(5, crc)), (0, zeroes));
    assert_eq!(summer.of(5, crc32c::crc32c(&[0; 4096])), 0);
}

/// The bits whose columns add up to that.
fn solve(columns: &[u32], wanted: u32) -> u32 {
    let mut basis: Vec<(u32, u32)> = Vec::new();
    for (bit, column) in columns.iter().enumerate() {
        let (mut value, mut of) = (*column, 1_u32 << bit);
        for (known, by) in &basis {
            if value ^ known < value {
                (value, of) = (value ^ known, of ^ by);
            }
        }
        if value != 0 {
            basis.push((value, of));
            basis.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    let (mut value, mut of) = (wanted, 0);
    for (known, by) in &basis {
        if value ^ known < value {
            (value, of) = (value ^ known, of ^ by);
        }
    }
    assert_eq!(value, 0);
    of
}

#[test]
fn states_that_cannot_be_are_refused() {
    let bytes = 100 << 30;
    let state = IntegrityState::new(bytes);
    assert_eq!(IntegrityState::decode(&state.encode(), bytes), Ok(state));
    assert_eq!(state.region_shift, 21);
    assert_eq!(IntegrityState::new(4 << 40).region_shift, 24);
    let refused = |at: usize, byte: u8| {
        let mut state = state.encode();
        state[at] = byte;
        IntegrityState::decode(&state, bytes).expect_err("it cannot be").to_string()
    };
    assert!(refused(0, 3).contains("another version"));
    assert!(refused(0, 2).contains("zeroes"));
    assert!(refused(2, 1).contains("too much"));
    assert!(refused(1, 20).contains("regions"));
    assert!(refused(1, 47).contains("regions"));
    assert!(refused(7, 1).contains("zeroes"));
    assert!(IntegrityState::decode(&[], bytes).is_err());
    assert!(IntegrityState::decode(&[1; 9], bytes).is_err());
}

#[test]
fn there_is_room_for_the_sums_of_all() {
    for part in [0, 1 << 20, (1 << 20) + 4096, (1 << 20) + 8192, 5 << 20, (1 << 40) + 512] {
        let SumLayout { data_offset, bytes } = SumLayout::of(part);
        assert!(bytes == 0 || data_offset + bytes <= part, "{part}");
        let sums = bytes.div_ceil(SUMMED_BYTES);
        assert!(SumLayout::sums_at(sums) <= data_offset, "{part}");
        // Nor is there room for one more.
        let more = bytes + BLOCK;
        let needs = (1 << 20) + (more.div_ceil(SUMMED_BYTES) * BLOCK) + more;
        assert!(needs > part, "{part}: {bytes}");
    }
    let part = SumLayout::of(PART_BYTES);
    assert_eq!(part, SumLayout { data_offset: (1 << 20) + 3 * BLOCK, bytes: DATA_BYTES });
}
