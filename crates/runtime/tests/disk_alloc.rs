//! Stores allocate nothing once they are warm (`docs/design.md`, "Memory"). A program of its own and
//! without the test harness, whose threads allocate when they like: it counts every allocation.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Dir, backends, wait};
use thinwire_buffer::{Pool, SegList, Segment};
use thinwire_modules::{Cache, Linear, MODULES, Options, Qos, QosLimit, QosLimits, Slice, Stripe};
use thinwire_runtime::disk::{DiskOptions, open_store};
use thinwire_volume::stores::{MemoryStore, NullStore};
use thinwire_volume::{Completion, Identity, Io, Op, Volume};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator; counting changes nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DEPTH: u64 = 16;
const IO_BYTES: u64 = 16384;

/// Reads and writes in turn, [`DEPTH`] at once, with a flush now and then.
fn work(
    volume: &mut dyn Volume,
    fd: Option<i32>,
    payload: &[Segment],
    done: &mut Vec<Completion>,
) -> u64 {
    let is_written = !volume.geometry().features.read_only;
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for round in 0..40 {
        for at in 0..DEPTH {
            let op = if is_written && (round + at) % 2 == 0 { Op::Write } else { Op::Read };
            let mut io = Io::new(at, op, at * IO_BYTES, IO_BYTES);
            if op == Op::Write {
                let mut data = SegList::new();
                payload.iter().for_each(|segment| data.push(segment.clone()));
                io.data = data;
            }
            io.flags.fua = op == Op::Write && at == 0;
            volume.submit(io);
        }
        if round % 4 == 0 {
            volume.submit(Io::new(DEPTH, Op::Flush, 0, 0));
            if is_written {
                volume.submit(Io::new(DEPTH + 1, Op::WriteZeroes, DEPTH * IO_BYTES, IO_BYTES));
            }
        }
        loop {
            volume.poll(done);
            done.drain(..).for_each(|completion| completion.result.unwrap());
            if volume.outstanding() == 0 {
                break;
            }
            wait(fd.expect("memory completes at once"));
        }
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

fn main() {
    let dir = Dir::new();
    let pool = Pool::new(16 << 20);
    let memory = |kib: u64| -> Box<dyn Volume> {
        Box::new(MemoryStore::new(kib << 10, 512, Identity::default(), &pool))
    };
    // With borders in the midst of I/Os.
    let cut = Linear::new([24, 64, 936].map(memory).into()).unwrap();
    // Four chunks for three volumes, and two, or parts of three, for two.
    let dealt = Stripe::new([1 << 10; 3].map(memory).into(), 4096).unwrap();
    let within = |_| -> Box<dyn Volume> {
        Box::new(Slice::new(vec![memory(1 << 10)], 2048, Some(1000 << 10)).unwrap())
    };
    let nested = Stripe::new((0..2).map(within).collect(), 12 << 10).unwrap();
    // More than is done here, which waits for nothing.
    let all = QosLimit { iops: 1_000_000_000, bandwidth: 1 << 50 };
    let limits = QosLimits { all, ..QosLimits::default() };
    let mut volumes: Vec<(String, Box<dyn Volume>, Option<i32>)> = vec![
        ("linear, cut".into(), Box::new(cut), None),
        ("stripe, dealt".into(), Box::new(dealt), None),
        ("stripe of slices".into(), Box::new(nested), None),
        ("null".into(), Box::new(NullStore::new(1 << 20, 512)), None),
        ("memory".into(), memory(1 << 10), None),
        ("cache".into(), Box::new(Cache::new(memory(1 << 10), 4 << 20)), None),
        ("qos, limited".into(), Box::new(Qos::new(vec![memory(1 << 10)], &limits).unwrap()), None),
        ("cache, too small".into(), Box::new(Cache::new(memory(2 << 10), 1 << 20)), None),
    ];
    let cache = MODULES.iter().find(|module| module.name == "cache").unwrap();
    let mut told = Options::default();
    assert!(told.set(cache.option("write_back").unwrap(), 4 << 20));
    let written_back = cache.open(vec![memory(1 << 10)], &told).unwrap();
    volumes.push(("cache, written back".into(), written_back, None));
    for module in MODULES {
        let count = 3.clamp(*module.children.start(), *module.children.end());
        let children = (0..count).map(|_| memory(1 << 10)).collect();
        let volume = module.open(children, &Options::default()).unwrap();
        volumes.push((module.name.into(), volume, None));
    }
    for backend in backends() {
        let path = dir.image(&format!("{backend:?}"), 1 << 20);
        let options = DiskOptions { backend, ..dir.options() };
        let store = open_store(&path, &options, &pool, &mut |_| {}).unwrap();
        volumes.push((format!("file, {backend:?}"), store.volume, Some(store.fd)));
    }
    let payload: Vec<Segment> = (0..4).map(|_| pool.get_zeroed(4096).freeze()).collect();
    let mut done = Vec::with_capacity(64);
    for (name, volume, fd) in &mut volumes {
        let cold = work(&mut **volume, *fd, &payload, &mut done);
        // A thread of the pool that starts late allocates once; what I/O allocates, it does always.
        let warm = (0..5).map(|_| work(&mut **volume, *fd, &payload, &mut done)).min().unwrap();
        println!("{name}: {cold} allocations cold, {warm} warm");
        assert!(warm == 0, "{name}: {warm} allocations when warm");
        assert!(cold > 0, "{name}: the count is broken");
    }
}
