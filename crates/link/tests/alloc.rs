//! Nothing allocates once warm: counted by an allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{pattern, warm_up, with_cable};
use thinwire_buffer::{Pool, RxBatch, TxBatch};
use thinwire_link::fault::FaultConfig;
use thinwire_link::{HEAD_BYTES, Link, LinkOptions, LinkSpec};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting by thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing
// (a constant thread-local without a destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Frames of several shapes there and back; returns the allocations of the rounds after the tenth.
fn exchange<L: Link>(a: &mut L, b: &mut L) -> u64 {
    let pool = Pool::new(64 << 20);
    let payload = pool.copy_of(&pattern(1, 8192)).freeze();
    let (mut tx, mut rx) = (TxBatch::new(), RxBatch::new());
    let mut warm = 0;
    for round in 0..100 {
        if round == 10 {
            warm = allocations();
        }
        // At first so many that all receive slots come into use, then as many as are counted.
        let count = if round < 5 { 100 } else { 20 };
        for is_back in [false, true] {
            let (from, to) = if is_back { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
            for i in 0..count {
                let frame = tx.push(to.info().addr);
                frame.head.resize(HEAD_BYTES, i as u8);
                if i % 5 != 4 {
                    frame.data.push(payload.slice(0, 4096));
                    frame.data.push(payload.slice(4096, 4096));
                }
            }
            from.send(&mut tx).unwrap();
            let mut got = 0;
            for _ in 0..1_000_000 {
                got += to.recv(&pool, 64, &mut rx).unwrap();
                rx.clear();
                if got == count {
                    break;
                }
            }
            assert_eq!(got, count, "round {round}");
        }
    }
    allocations() - warm
}

fn open(spec: &str, options: &LinkOptions) -> Box<dyn Link> {
    spec.parse::<LinkSpec>().unwrap().open_with(options).unwrap()
}

#[test]
fn warm_links_do_not_allocate() {
    let bare = LinkOptions::default();
    let [mut a, mut b] = [open("udp:127.0.0.1", &bare), open("udp:127.0.0.1", &bare)];
    assert_eq!(exchange(&mut a, &mut b), 0, "udp");
    // A wrapper that does nothing costs nothing.
    let wrapped = LinkOptions { fault: Some(FaultConfig::default()), ..bare.clone() };
    let [mut a, mut b] = [open("udp:127.0.0.1", &wrapped), open("udp:127.0.0.1", &wrapped)];
    assert_eq!(exchange(&mut a, &mut b), 0, "udp with the fault wrapper");
    for kind in ["packet", "xdp"] {
        with_cable(9000, move |cable| {
            let mut a = open(&format!("{kind}:left"), &LinkOptions::default());
            cable.enter(1);
            let mut b = open(&format!("{kind}:right"), &LinkOptions::default());
            let pool = Pool::new(1 << 20);
            let ends = [a.info().addr, b.info().addr];
            warm_up(&mut a, ends[1], &mut b, &pool);
            warm_up(&mut b, ends[0], &mut a, &pool);
            assert_eq!(exchange(&mut a, &mut b), 0, "{kind}");
        });
    }
    // The counter counts.
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert_ne!(allocations(), before);
}
