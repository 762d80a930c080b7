//! Reads and writes of a volume with sums allocate nothing once warm, also where its sums do not fit into memory.

mod counting;

use std::time::Duration;

use counting::allocations;
use thinwire_buffer::{Pool, SegList, Time};
use thinwire_modules::{Child, Integrity, IntegrityConfig, IntegrityState, SumLayout, SumMaking};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Identity, Io, Op, Volume};

const PART: u64 = 48 << 20;
const WHOLE: [u8; 16] = [9; 16];
const DEPTH: u64 = 16;

fn volume(memory: &Pool, cache_bytes: u64) -> Integrity {
    let mut store = MemoryStore::new(PART, 512, Identity::default(), memory);
    let mut making = SumMaking::new(1, memory, WHOLE, 0, PART);
    let made = std::iter::repeat_with(|| making.turn(&mut store)).flatten().next();
    assert_eq!(made, Some(Ok(())));
    let state = IntegrityState::new(SumLayout::of(PART).bytes);
    let part = Child::all(vec![Box::new(store)]).remove(0);
    let config = IntegrityConfig { cache_bytes, ..IntegrityConfig::new(memory) };
    Integrity::open(part, state, WHOLE, config).unwrap_or_else(|e| panic!("{e}"))
}

/// Round after round of I/Os, over all of the first 24 MiB, some of them of two blocks of sums.
fn rounds(
    volume: &mut Integrity,
    now: &mut Time,
    payload: &SegList,
    count: u64,
    done: &mut Vec<Completion>,
) {
    for round in 0..count {
        for at in 0..DEPTH {
            let offset = (round * 7 + at * 13) % 192 * (124 << 10);
            let op = if (round + at) % 2 == 0 { Op::Read } else { Op::Write };
            let mut io = Io::new(at, op, offset, payload.bytes() as u64);
            if op == Op::Write {
                io.data = payload.clone();
            }
            volume.submit(io);
        }
        *now = *now + Duration::from_millis(1);
        let mut ended = 0;
        while ended < DEPTH {
            volume.turn(*now);
            volume.poll(done);
            for completion in done.drain(..) {
                completion.result.unwrap();
                ended += 1;
            }
        }
    }
}

#[test]
fn io_allocates_nothing_once_warm() {
    let memory = Pool::new(96 << 20);
    for cache_bytes in [1 << 20, 4096 * 4] {
        for len in [4096, 131_072] {
            let (mut volume, mut now) = (volume(&memory, cache_bytes), Time(1 << 40));
            let payload = SegList::of(memory.copy_of(&vec![7; len]).freeze());
            let mut done = Vec::new();
            SegList::warm(64, 64);
            rounds(&mut volume, &mut now, &payload, 400, &mut done);
            let before = allocations();
            rounds(&mut volume, &mut now, &payload, 400, &mut done);
            assert_eq!(allocations(), before, "I/Os of {len} bytes, {cache_bytes} bytes of sums");
        }
    }
}
