//! Which sectors are here, which go together, and which wait.

use super::*;

#[test]
fn sectors_of_a_page_are_those_that_a_range_touches() {
    assert_eq!(sectors(0, 0, 4096), 0xff);
    assert_eq!(sectors(1, 0, 1 << 20), 0xff);
    assert_eq!(sectors(1, 4096 + 512, 4096 + 1536), 0b110);
    assert_eq!(sectors(2, 0, 8192 + 512), 1);
    assert_eq!(first_run(0b0110_1100), 2..4);
    assert_eq!(first_run(0xff), 0..8);
}

#[test]
fn what_lies_together_goes_together_and_what_is_going_waits() {
    let pool = Pool::new(0);
    let mut blocks = Blocks::new(1 << 20);
    let put = |blocks: &mut Blocks, start, len, epoch| {
        let data = SegList::of(pool.copy_of(&vec![epoch as u8; len]).freeze());
        blocks.put(start, &data, epoch, Time(epoch));
    };
    put(&mut blocks, 8192, 4096, 1);
    put(&mut blocks, 512, 1024, 2);
    put(&mut blocks, 12288, 2048, 3);
    assert_eq!((blocks.oldest(), blocks.used_bytes()), (Some((1, Time(1))), 12288));
    let all = |_, _| true;
    let batch = blocks.take_oldest(1 << 20, all).unwrap();
    assert_eq!((batch.start, batch.data.bytes(), batch.epoch), (8192, 6144, 1));
    // Written again meanwhile, in other memory.
    put(&mut blocks, 8192, 512, 4);
    assert_eq!(batch.data.to_vec()[..4096], [1; 4096]);
    let next = blocks.take_oldest(1 << 20, all).unwrap();
    assert_eq!((next.start, next.data.to_vec()), (512, vec![2; 1024]));
    assert!(blocks.take_oldest(1 << 20, all).is_none(), "the rest is going");
    blocks.end(8192, 8192 + 6144, true, Time(9));
    assert_eq!(blocks.used_bytes(), 8192, "one is dirty again, one is going");
    // What has failed is the oldest of all.
    blocks.end(512, 1536, false, Time(2));
    assert_eq!(blocks.oldest(), Some((0, Time(2))));
    assert!(blocks.take_oldest(1 << 20, |start, _| start > 4096).unwrap().start == 8192);
    blocks.drop_range(0, 1024);
    let left = blocks.take_oldest(1 << 20, all).unwrap();
    assert_eq!((left.start, left.data.bytes()), (1024, 512));
    blocks.end(1024, 1536, true, Time(9));
    blocks.end(8192, 8704, true, Time(9));
    assert!(blocks.is_empty() && blocks.oldest().is_none());
}

#[test]
fn of_many_on_one_place_few_are_taken() {
    let mut blocks = Blocks::new(1 << 20);
    let place = blocks.place(0);
    let same: Vec<u64> =
        (0..).filter(|page| blocks.place(*page) == place).take(CHAIN_MAX + 1).collect();
    let data = SegList::of(Pool::new(0).get_zeroed(PAGE_BYTES).freeze());
    for page in &same[..CHAIN_MAX] {
        assert_eq!(blocks.has_room(page * PAGE, (page + 1) * PAGE), Some(true));
        blocks.put(page * PAGE, &data, 1, Time(0));
    }
    let page = same[CHAIN_MAX];
    assert_eq!(blocks.has_room(page * PAGE, (page + 1) * PAGE), None);
}
