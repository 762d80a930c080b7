//! Sealing and opening allocate nothing once the longest frame has been seen: shown by an allocator
//! that counts. What the cipher library takes for itself does not come this way; it takes a key's
//! memory when the key is made, and nothing for a frame.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use thinwire_seal::{Secrets, Suite, WhichPhase};

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

#[test]
fn a_frame_of_8_kib_costs_no_allocation() {
    let open = [3; 32];
    let mut text = vec![5; 8192];
    let mut out = vec![0; 8192];
    for suite in Suite::ALL {
        let secrets = Secrets::new([1; 32], [2; 32]);
        let (mut initiator, mut target) = (secrets.initiator(suite), secrets.target(suite));
        let mut round = |sealer: &thinwire_seal::Sealer, opener: &thinwire_seal::Opener, number| {
            let phase = sealer.phase();
            let tag = sealer.seal(1, number, &open, &mut text);
            let to = opener.open(phase, 1, number, &open, &tag, &text, &mut out);
            let in_place = opener.open_in_place(phase, 1, number, &open, &tag, &mut text);
            assert_eq!(to, in_place);
            // A forged one: counted, and no more.
            let mut forged = [0; 64];
            assert!(opener.open_in_place(phase, 1, number, &open, &tag, &mut forged).is_err());
            to.unwrap()
        };
        // Warm: the scratch of both, and the keys of the next phase, too.
        initiator.sealer.advance();
        assert_eq!(round(&initiator.sealer, &target.opener, 1), WhichPhase::Next);
        let before = COUNT.get();
        for number in 2..100 {
            round(&initiator.sealer, &target.opener, number);
        }
        target.opener.advance();
        for number in 100..200 {
            let which = round(&initiator.sealer, &target.opener, number);
            assert_eq!(which, WhichPhase::Current);
        }
        assert_eq!(COUNT.get() - before, 0, "{suite}");
        // And the counter counts.
        drop(vec![0u8; 100]);
        assert_eq!(COUNT.get() - before, 1, "{suite}");
    }
}
