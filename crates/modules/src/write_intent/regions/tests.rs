//! Which bits are set when, and what is to be written of them.

use super::*;
use crate::write_intent::bitmap::BLOCK_BYTES;

const MIB: u64 = 1 << 20;

fn image(regions: &mut Regions, block: u32) -> Vec<u8> {
    let mut image = [0xee; BLOCK_BYTES];
    regions.fill(block, &mut image);
    regions_mut(&mut image).to_vec()
}

/// Seconds.
fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

#[test]
fn a_region_is_open_from_its_first_write_until_long_after_its_last() {
    let mut regions = Regions::new(10 * MIB, 20, 3);
    assert!(!regions.begin_write(4, 0b11), "its bits are not durable");
    assert_eq!(regions.take_dirty(), Some(0));
    assert_eq!(image(&mut regions, 0)[..6], [0, 0, 0, 0, 0b111, 0]);
    assert!(!regions.begin_write(4, 0b11), "nor are they while they are written");
    assert!(!regions.is_dirty(), "what is being written holds them");
    assert!(!regions.begin_write(5, 0b11), "and another one is not among them");
    regions.on_written(true);
    assert!(regions.is_durable(4) && !regions.is_durable(5));
    assert!(regions.begin_write(4, 0b11), "a warm one costs nothing");
    assert_eq!((regions.take_dirty(), regions.take_dirty()), (Some(0), None));
    (0..2).for_each(|_| regions.end_write(4, at(1)));
    assert_eq!(regions.next_close(at(1)), at(3));
    let ended = regions.ended();
    regions.close(ended, at(9));
    assert_eq!(regions.open_count(), 2, "one is written yet, by one writer");
    regions.end_write(4, at(2));
    regions.close(ended, at(9));
    assert_eq!(regions.open_count(), 2, "the flush does not cover the last");
    regions.close(regions.ended(), at(3));
    assert_eq!(regions.open_count(), 2, "it is too early");
    regions.close(regions.ended(), at(4));
    assert_eq!((regions.open_count(), regions.is_durable(4)), (1, false));
    assert_eq!(regions.take_dirty(), Some(0));
    assert_eq!(image(&mut regions, 0)[4], 0);
}

#[test]
fn what_was_not_written_down_is_not_durable() {
    let mut regions = Regions::new(10 * MIB, 20, 2);
    regions.begin_write(0, 0b11);
    image(&mut regions, 0);
    regions.on_written(false);
    assert!(!regions.is_durable(0));
    image(&mut regions, 0);
    regions.on_written(true);
    image(&mut regions, 0);
    regions.on_written(false);
    assert!(regions.is_durable(0), "what a failed write has left is no less");
}

#[test]
fn what_a_leg_lacks_stays_when_a_region_is_closed() {
    let mut regions = Regions::new(10 * MIB, 20, 3);
    regions.begin_write(1, 0b11);
    image(&mut regions, 0);
    regions.on_written(true);
    regions.take_dirty();
    regions.add_stale(1, 0b100);
    assert!(!regions.is_dirty(), "its bits are set already");
    regions.end_write(1, at(1));
    regions.close(regions.ended(), at(3));
    assert_eq!(image(&mut regions, 0)[1], 0b100);
    assert_eq!((regions.stale_count(2), regions.stale_count(0)), (1, 0));
    assert_eq!(regions.next_uncopied(0b100), Some(1));
    regions.set_copied(1, 0b110);
    assert_eq!((regions.copied(1), regions.next_uncopied(0b100)), (0b100, None));
    assert_eq!(image(&mut regions, 0)[1], 0b100, "not before it is flushed");
    regions.remove_stale(1, 0b100);
    assert_eq!((image(&mut regions, 0)[1], regions.stale_count(2)), (0, 0));
}

#[test]
fn what_changes_while_it_is_copied_is_copied_again() {
    let mut regions = Regions::new(10 * MIB, 20, 3);
    regions.add_stale(3, 0b10);
    assert_eq!(regions.next_uncopied(0b10), Some(3));
    assert!(!regions.is_spoiled());
    regions.add_stale(3, 0b100);
    assert!(!regions.is_spoiled(), "another leg");
    regions.add_stale(2, 0b10);
    assert!(!regions.is_spoiled(), "another one");
    regions.add_stale(3, 0b10);
    assert!(regions.is_spoiled());
    assert_eq!(regions.next_uncopied(0b10), Some(2), "also what lies before it");
    regions.set_copied(2, 0b10);
    assert_eq!(regions.next_uncopied(0b10), Some(3));
    regions.set_copied(3, 0b10);
    regions.add_stale(3, 0b10);
    assert_eq!(regions.next_uncopied(0b10), Some(3), "what was copied does not count");
}

#[test]
fn regions_know_where_they_lie() {
    let mut regions = Regions::new(4033 * MIB - 4096, 20, 8);
    assert_eq!((regions.count(), regions.blocks(), regions.all()), (4033, 2, 0xff));
    assert_eq!(regions.place(4032), (4032 * MIB, 4033 * MIB - 4096));
    assert_eq!(regions.of(MIB - 512, 513).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(regions.of(MIB - 512, 512).collect::<Vec<_>>(), [0]);
    regions.add_stale(4032, 0x81);
    assert_eq!((regions.take_dirty(), regions.take_dirty()), (Some(1), None));
    let told = image(&mut regions, 1);
    assert_eq!((told[0], told.iter().filter(|byte| **byte != 0).count()), (0x81, 1));
    assert_eq!(regions.stale(4032), 0x81);
}

/// Spread by region, and only while somebody writes.
#[test]
fn one_leg_is_read_beside_a_write() {
    let mut regions = Regions::new(10 * MIB, 20, 3);
    let all = 0b111;
    assert_eq!(regions.reader(0..=9, all), Beside::Nobody);
    (0..4).for_each(|region| _ = regions.begin_write(region, all));
    let of = |regions: &Regions, region| regions.reader(region..=region, all);
    assert_eq!([0, 1, 2, 3].map(|region| of(&regions, region)), [0, 1, 2, 0].map(Beside::Leg));
    assert_eq!(regions.reader(3..=9, all), Beside::Leg(0));
    assert_eq!(regions.reader(0..=1, all), Beside::Wait, "no leg is that of both");
    assert_eq!(regions.reader(1..=1, 0b101), Beside::Wait, "it has failed that read");
    regions.forget_reader(0);
    assert_eq!(of(&regions, 0), Beside::Wait);
    regions.begin_write(0, 0b110);
    assert_eq!(of(&regions, 0), Beside::Wait, "as long as any is outstanding");
    (0..2).for_each(|_| regions.end_write(0, at(1)));
    assert_eq!(of(&regions, 0), Beside::Nobody);
    regions.begin_write(0, 0b110);
    assert_eq!(of(&regions, 0), Beside::Leg(1));
}
