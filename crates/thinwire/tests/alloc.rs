//! A benchmark in its steady state takes nothing from the allocator: what is measured is the
//! volume, not malloc. Alone in its process, because it counts the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thinwire::bench::{BenchPlan, Engine, Stop};
use thinwire::cli::{BenchPattern, WireArgs};
use thinwire::keys::Security;
use thinwire::open::{VolumeOptions, open_volume};

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged; counting has no other effect.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory came from `alloc`, so from the system.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn steady_state_does_not_allocate() {
    for (rw, verify) in
        [(BenchPattern::RandRw, false), (BenchPattern::RandRw, true), (BenchPattern::Write, false)]
    {
        let options =
            VolumeOptions::new(Security::default(), &WireArgs::default(), "/nonexistent".into());
        let mut open = open_volume(&"memory:4M".parse().unwrap(), &options, None).unwrap();
        let plan = BenchPlan {
            rw,
            mix: 50,
            bs: 0,
            iodepth: 16,
            jobs: 2,
            runtime: Duration::from_millis(900),
            blocks: 0,
            verify,
            seed: 1,
            timeline: None,
            stamps: false,
        };
        let plan = plan.fit(4096, None, &open.volume().geometry()).unwrap();
        let pool = open.pool().clone();
        let engine = Engine::new(plan, &pool, 7);
        // What each look found: the allocations so far, and the I/Os so far.
        let mut looks = Vec::with_capacity(1000);
        let mut look = |_, ios| looks.push((COUNT.load(Ordering::Relaxed), ios));
        let tally = engine.run(&mut *open, &Stop::default(), None, &mut look).unwrap();
        assert_eq!(tally.errors, 0);
        let (warm, last) = (looks[looks.len() / 2], looks[looks.len() - 1]);
        assert!(last.1 > warm.1 + 1000, "{rw:?}: too few I/Os to tell");
        assert_eq!(last.0, warm.0, "{rw:?} verify={verify}: allocated in steady state");
    }
}
