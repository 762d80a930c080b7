//! Credit and data of slots: what is kept, what is counted, and what is given back, once each.

use std::time::Duration;

use thinwire_buffer::Addr;

use super::*;

const CREDIT: u64 = 8 << 20;

fn frame(pool: &Pool, bytes: usize) -> RxFrame {
    let bytes = pool.get_zeroed(bytes).freeze();
    let (waited, queued) = (Duration::ZERO, Duration::ZERO);
    RxFrame { from: Addr::Sim(1), bytes, rest: SegList::new(), waited, queued }
}

fn data(slot: u16, sequence: u32, offset: usize, length: usize) -> Data {
    let (offset, length) = (offset as u32, length as u32);
    Data { slot, sequence, offset, length, payload_at: 0 }
}

fn request(slot: u16, op: OpCode, length: u32) -> Request {
    Request {
        slot,
        op: op as u8,
        op_flags: 0,
        sequence: 1,
        attachment: 1,
        generation: 1,
        address: 0,
        length,
    }
}

/// Data that no credit covers is not kept, whether it comes before its request or behind it.
#[test]
fn data_beyond_its_request_is_not_kept() {
    let pool = Pool::new(0);
    for (op, length, kept) in
        [(OpCode::Flush, 0, 0), (OpCode::Read, 512, 0), (OpCode::Write, 4096, 4096)]
    {
        for behind in [false, true] {
            let mut slots = Slots::new(4, CREDIT, false);
            let give = |slots: &mut Slots| {
                for offset in (0..1 << 20).step_by(4096).skip(1).chain([0]) {
                    slots.on_data(&data(0, 1, offset, 4096), &frame(&pool, 4096), &pool)?;
                }
                Ok::<_, DropReason>(())
            };
            if !behind {
                give(&mut slots).unwrap();
            }
            slots.on_request(&request(0, op, length)).unwrap();
            if behind {
                give(&mut slots).unwrap();
            }
            assert_eq!(pool.stats().live_bytes, kept, "{op:?}, behind: {behind}");
            assert_eq!(slots.unrequested_bytes, 0);
            let slot = slots.get(0);
            assert!(slot.has_excess(length) && slot.is_whole(length), "it is INVALID at once");
        }
    }
}

/// All credit is on its way, before its requests, and a part of it comes again in a larger piece
/// with what is still missing: the frame is acknowledged, so it must not be left out.
#[test]
fn what_comes_again_in_another_cut_is_no_overload() {
    let pool = Pool::new(0);
    let mut slots = Slots::new(16, CREDIT, false);
    let whole = frame(&pool, 1 << 20);
    for slot in 0..7 {
        slots.on_data(&data(slot, 1, 0, 1 << 20), &whole, &pool).unwrap();
    }
    slots.on_data(&data(7, 1, 4096, (1 << 20) - 4096), &whole, &pool).unwrap();
    assert_eq!(slots.on_data(&data(7, 1, 0, 8192), &whole, &pool), Ok(Intake::Taken));
    assert_eq!(slots.unrequested_bytes, CREDIT);
    let beyond = slots.on_data(&data(8, 1, 0, 512), &whole, &pool);
    assert_eq!(beyond, Err(DropReason::Overload));
}

/// One slot after the other is filled with the smallest pieces: their lists do not all stay.
#[test]
fn lists_of_pieces_are_given_back() {
    let pool = Pool::new(0);
    let mut slots = Slots::new(128, CREDIT, false);
    let whole = frame(&pool, 512);
    for slot in 0..128 {
        for unit in 0..2048 {
            slots.on_data(&data(slot, 1, unit * 512, 512), &whole, &pool).unwrap();
        }
        slots.on_request(&request(slot, OpCode::Write, 1 << 20)).unwrap();
        let complete = Complete { slot, status: 0, sequence: 1, verifier: 0, length: 0 };
        slots.complete(complete, SegList::new());
    }
    let storage: usize = slots.slots.iter().map(|s| s.pieces.capacity()).sum();
    assert_eq!(storage, slots.pieces_storage);
    assert!(storage <= pieces_max(CREDIT) + 2048, "{storage}");
}

/// Credit that requests may still take.
fn left(slots: &Slots) -> u64 {
    slots.granted_bytes - slots.used_bytes
}

/// A request that comes again before its data takes nothing more.
#[test]
fn a_request_takes_its_credit_once() {
    let mut slots = Slots::new(4, CREDIT, false);
    let write = request(0, OpCode::Write, 4096);
    assert_eq!(slots.on_request(&write), Ok(Intake::Taken));
    assert_eq!(slots.on_request(&write), Err(DropReason::LateDuplicate));
    assert_eq!((left(&slots), slots.get(0).charged), (CREDIT - 4096, 4096));
}

/// The next use of a slot, and no other: nonsense far ahead would make late duplicates of all that is true.
#[test]
fn uses_of_a_slot_follow_each_other() {
    let mut slots = Slots::new(4, CREDIT, false);
    let flush = |sequence| Request { sequence, ..request(0, OpCode::Flush, 0) };
    assert_eq!(slots.on_request(&flush(2)), Err(DropReason::Slot));
    assert_eq!(slots.on_request(&flush(1)), Ok(Intake::Taken));
    assert_eq!(slots.on_request(&flush(2)), Err(DropReason::Slot), "the first is under way");
    slots.complete(completed(0, 1, 0), SegList::new());
    assert_eq!(slots.on_request(&flush(3)), Err(DropReason::Slot));
    assert_eq!(slots.on_request(&flush(2)), Ok(Intake::Taken));
}

fn completed(slot: u16, sequence: u32, length: u32) -> Complete {
    Complete { slot, status: 0, sequence, verifier: 0, length }
}

/// The data of a read holds its credit until all of it is acknowledged, as this use of the slot.
#[test]
fn what_was_read_holds_its_credit_until_it_has_arrived() {
    let pool = Pool::new(0);
    let mut slots = Slots::new(4, CREDIT, false);
    let acked = |sequence, offset| Item::Data { slot: 0, sequence, offset, length: 2048 };
    for sequence in 1..4 {
        let read = Request { sequence, ..request(0, OpCode::Read, 4096) };
        slots.on_request(&read).unwrap();
        let data = SegList::of(pool.get_zeroed(4096).freeze());
        slots.complete(completed(0, sequence, 4096), data);
        assert_eq!(left(&slots), CREDIT - 4096);
        slots.acked(acked(sequence, 0));
        // Those of the use before are of other data.
        [0, 2048].into_iter().for_each(|offset| slots.acked(acked(sequence - 1, offset)));
        assert!(slots.payload(0, sequence, 0, 4096, &mut SegList::new()));
        assert_eq!(left(&slots), CREDIT - 4096);
        slots.acked(acked(sequence, 2048));
        assert!(!slots.payload(0, sequence, 0, 4096, &mut SegList::new()));
        assert_eq!(left(&slots), CREDIT);
    }
}

/// Who gives a request up has counted it, whether it has arrived or not: it gets the slot and the bytes back, and no
/// more.
#[test]
fn a_reset_gives_back_what_its_request_took() {
    for arrived in [false, true] {
        let mut slots = Slots::new(4, CREDIT, false);
        let write = request(0, OpCode::Write, 4096);
        if arrived {
            slots.on_request(&write).unwrap();
        }
        assert_eq!(slots.on_reset(&Reset { slot: 0, sequence: 1, length: 4096 }), Ok(true));
        assert_eq!((slots.granted_slots, slots.granted_bytes), (5, CREDIT + 4096));
        assert_eq!((slots.used_bytes, left(&slots)), (4096, CREDIT));
    }
}
