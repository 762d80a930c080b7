//! Steady I/O does not allocate, end to end: from the volume's face at the initiator over real
//! links to the store at the target and back. And bytes are copied as seldom as promised
//! (`docs/design.md`, "Memory").

mod common;
mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::time::Duration;

use common::Dir;
use pair::Pair;
use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_link::Link;
use thinwire_link::udp::{UdpConfig, UdpLink};
use thinwire_runtime::disk::open_store;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Completion, Identity, Io, Op, Volume};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// So many allocations will tell where they come from.
    static TELL: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting by thread.
struct Counting;

fn count() {
    let total = COUNT.with(|count| count.get() + 1);
    let told = TELL.with(Cell::take);
    if told > 0 {
        eprintln!("an allocation:\n{}", Backtrace::force_capture());
        TELL.with(|tell| tell.set(told - 1));
    }
    // Telling allocates; that does not count.
    COUNT.with(|count| count.set(total));
}

// SAFETY: everything is passed to the system's allocator unchanged; counting touches thread-locals
// without destructors, and telling happens with telling off.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

const VOLUME_BYTES: u64 = 64 << 20;
/// I/Os at a time; the larger is all that a target has slots for, and fills frames with requests.
const DEPTHS: [usize; 2] = [32, 128];

fn udp() -> Box<dyn Link> {
    Box::new(UdpLink::open(&UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap())
}

/// A volume, and the descriptor that tells of its completions.
type Opened = (Box<dyn Volume>, Option<RawFd>);

fn memory() -> (Opened, Pool) {
    let pool = Pool::new(256 << 20);
    let identity = Identity { identity: *b"thinwire-memory!", incarnation: 1 };
    ((Box::new(MemoryStore::new(VOLUME_BYTES, 512, identity, &pool)), None), pool)
}

fn file(dir: &Dir) -> (Opened, Pool) {
    let pool = Pool::new(256 << 20);
    let path = dir.image("disk", VOLUME_BYTES);
    let store = open_store(&path, &dir.options(), &pool, &mut |_| {}).unwrap();
    ((store.volume, Some(store.fd)), pool)
}

/// What to do at random: shares out of eight.
#[derive(Clone, Copy)]
struct Mix {
    depth: usize,
    /// Of 64 KiB; the others are of 4 KiB.
    long: u64,
    writes: u64,
}

/// Random I/O, `depth` at a time, every hundredth a flush. `content` is what is written, whole.
/// Returns the bytes read and written.
fn run(
    pair: &mut Pair,
    rng: &mut SplitMix64,
    mix: Mix,
    ios: usize,
    content: &[Segment; 2],
    done: &mut Vec<Completion>,
) -> (u64, u64) {
    let (mut read_bytes, mut written_bytes) = (0, 0);
    let (mut submitted, mut completed) = (0, 0);
    while completed < ios {
        while submitted < ios && submitted - completed < mix.depth {
            submitted += 1;
            let token = submitted as u64;
            if submitted % 100 == 0 {
                pair.remote.volume().submit(Io::new(token, Op::Flush, 0, 0));
                continue;
            }
            let content = &content[usize::from(rng.below(8) < mix.long)];
            let len = content.len() as u64;
            let offset = rng.below(VOLUME_BYTES / len) * len;
            if rng.below(8) < mix.writes {
                let data = SegList::of(content.clone());
                pair.remote.volume().submit(Io { data, ..Io::new(token, Op::Write, offset, len) });
                written_bytes += len;
            } else {
                pair.remote.volume().submit(Io::new(token, Op::Read, offset, len));
                read_bytes += len;
            }
        }
        pair.wait(done);
        for completion in done.drain(..) {
            completion.result.unwrap();
            completed += 1;
        }
    }
    (read_bytes, written_bytes)
}

/// Writes the whole volume, so that everything in it exists.
fn fill(pair: &mut Pair, content: &Segment, done: &mut Vec<Completion>) {
    for offset in (0..VOLUME_BYTES).step_by(content.len()) {
        let data = SegList::of(content.clone());
        let len = content.len() as u64;
        pair.remote.volume().submit(Io { data, ..Io::new(1, Op::Write, offset, len) });
        pair.wait(done);
        done.drain(..).for_each(|completion| completion.result.unwrap());
    }
}

/// Rounds of steady I/O, at most, until one does not allocate. The first should be that one; but
/// what a pool or a list holds at its deepest moment depends on how a busy machine runs the test.
const ROUNDS: usize = 4;

/// Warms up, then counts the allocations of rounds of 20,000 I/Os, until there are none. Whatever
/// allocates by the I/O, or by the second, does so in every round.
fn steady(mut pair: Pair) {
    for pool in [&pair.target_pool, &pair.initiator_pool] {
        pool.warm(64 << 10, 128);
    }
    // A slow flush makes the initiator keep many writes.
    SegList::warm(2, 8 << 10);
    let content = [pair.initiator_pool.get_zeroed(4096), pair.initiator_pool.get_zeroed(65536)];
    let content = content.map(|buf| buf.freeze());
    let mut done = Vec::with_capacity(2 * DEPTHS[1]);
    pair.rest(Duration::from_millis(300));
    fill(&mut pair, &content[1], &mut done);
    let mut rng = SplitMix64::new(1);
    // The extremes: nothing that is mixed of them needs more at once.
    for (long, writes) in [(0, 0), (8, 0), (0, 8), (8, 8), (4, 4)] {
        for depth in DEPTHS {
            run(&mut pair, &mut rng, Mix { depth, long, writes }, 2_000, &content, &mut done);
        }
    }
    // To find what allocates: TELL=10 cargo test -p thinwire-runtime --test allocation
    let tell_count = std::env::var("TELL").map_or(0, |count| count.parse().unwrap());
    assert!(allocations() > 0, "the allocator counts");
    for (depth, long) in DEPTHS.into_iter().zip([1, 0]) {
        let mut by_round = Vec::with_capacity(ROUNDS);
        while by_round.len() < ROUNDS && by_round.last() != Some(&0) {
            let before = allocations();
            TELL.with(|tell| tell.set(tell_count));
            let mix = Mix { depth, long, writes: 4 };
            run(&mut pair, &mut rng, mix, 20_000, &content, &mut done);
            TELL.with(|tell| tell.set(0));
            by_round.push(allocations() - before);
        }
        eprintln!("{depth} at a time, allocations by round: {by_round:?}");
        assert_eq!(by_round.last(), Some(&0), "{depth} at a time: {by_round:?}");
    }
}

#[test]
fn steady_io_on_memory_does_not_allocate() {
    let (volume, pool) = memory();
    steady(Pair::new(volume, pool, udp(), udp()));
}

#[test]
fn steady_io_on_a_file_does_not_allocate() {
    let dir = Dir::new();
    let (volume, pool) = file(&dir);
    steady(Pair::new(volume, pool, udp(), udp()));
}
