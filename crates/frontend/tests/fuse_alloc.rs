//! Nothing on the way of an I/O through the file allocates once warm: shown by an allocator that
//! counts what the shard's thread does. Needs root.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::volume::MemoryVolume;
use support::{Scratch, sh};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::fuse::{FuseConfig, FuseFace};
use thinwire_volume::Volume;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed to the system's allocator unchanged; counting touches a
// thread-local without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the shard shall do now.
static PHASE: AtomicU32 = AtomicU32::new(WARM);
const WARM: u32 = 0;
const COUNTING: u32 = 1;
const END: u32 = 2;

/// Turns until told to end; returns the I/Os and the allocations of the counting phase.
fn serve(mut face: FuseFace, mut volume: MemoryVolume) -> (u64, u64) {
    let ios = |volume: &MemoryVolume| {
        let counts = volume.counts();
        counts.reads + counts.writes + counts.flushes
    };
    let mut before = (0, 0);
    loop {
        match PHASE.load(Ordering::SeqCst) {
            END => return (ios(&volume) - before.0, COUNT.get() - before.1),
            COUNTING if before == (0, 0) => before = (ios(&volume), COUNT.get()),
            _ => {}
        }
        let look_again = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        poll(&mut [PollFd::from_borrowed_fd(face.fd(), PollFlags::IN)], Some(&look_again)).unwrap();
        while face.turn(&mut volume).unwrap() {}
    }
}

#[test]
fn steady_io_does_not_allocate() {
    let scratch = Scratch::new("alloc");
    let disk = scratch.path("disk0");
    let path = disk.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let shard = std::thread::spawn(move || {
        let pool = Pool::new(256 << 20);
        let volume = MemoryVolume::new(32 << 20, false, pool.clone());
        let config = FuseConfig {
            path,
            source: "memory:test".to_owned(),
            geometry: volume.geometry(),
            read_only: false,
            allow_other: false,
        };
        let face = FuseFace::mount(config, pool).unwrap();
        tell.send(()).unwrap();
        serve(face, volume)
    });
    told.recv().unwrap();
    let work = || {
        for size in ["512", "4k", "60k", "1M"] {
            sh(&format!(
                "cd {0}; fio --name=t --filename={1} --direct=1 --ioengine=libaio --size=32M \
                 --io_size=16M --rw=randrw --bs={size} --iodepth=8 --fsync=16 --randseed=1 \
                 --number_ios=500",
                scratch.dir().display(),
                disk.display()
            ));
        }
    };
    work();
    // Bursts vary in depth; a second round warms what the first did not reach.
    work();
    PHASE.store(COUNTING, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(50));
    work();
    PHASE.store(END, Ordering::SeqCst);
    let (ios, allocations) = shard.join().unwrap();
    assert!(ios > 800, "{ios}");
    // A burst may still be deeper than any before it, once or twice.
    assert!(allocations < 40, "{allocations} allocations in {ios} I/Os");
}
