//! What an export that answers nobody costs those beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use thinwire_exports::{ExportConfig, IoTicket};
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Io, Op, VolumeEvent};

use super::pair::{BRANCH, OWNER, Pair};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting by thread.
struct Counting;

// SAFETY: everything is passed to the system's allocator unchanged; counting touches a thread-local without
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
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

const OTHERS: usize = 8;
const POLLS: usize = 10;

/// Until all have heard of a new verifier each poll takes out what may not be answered, and asks no volume that it
/// would not have asked anyhow.
#[test]
fn who_answers_nobody_has_no_others_asked() {
    let mut pair = Pair::new();
    let puppets: Vec<_> = (0..OTHERS).map(|_| Puppet::new(9, Puppet::GEOMETRY)).collect();
    for (at, puppet) in puppets.iter().enumerate() {
        let (name, volume) = (format!("p{at}"), Box::new(puppet.clone()));
        pair.doors[OWNER].add(ExportConfig { name, volume, read_only: true });
    }
    // Their records cannot be read.
    puppets.iter().for_each(|puppet| puppet.fail(&puppet.take_one()));
    pair.settle();
    let silent = pair.doors[OWNER].open_read(1, 0).pass;
    let reader = pair.doors[OWNER].open_read(2, 1).pass;
    let mut costs = Vec::new();
    for is_mute in [false, true] {
        if is_mute {
            pair.puppets[OWNER].tell(VolumeEvent::Lost);
            pair.doors[OWNER].disk_ready();
            pair.turn(OWNER);
        }
        let asked = || puppets.iter().map(|p| p.questions() + p.polls()).sum::<usize>();
        let (before, mut answered) = (asked(), 0);
        for _ in 0..POLLS {
            for (session, pass, puppet) in
                [(1, silent, &pair.puppets[OWNER]), (2, reader, &puppets[0])]
            {
                let permit = pair.doors[OWNER].admit(session, pass).unwrap();
                let ticket = IoTicket { session, place: 0, number: 0 };
                let io = Io::new(0, Op::Read, 0, 512);
                pair.doors[OWNER].submit(permit, io, ticket, |_| {}).unwrap();
                puppet.succeed(&puppet.take_one());
            }
            pair.doors[OWNER].poll(|_, _, _, _| answered += 1);
        }
        assert_eq!(answered, if is_mute { POLLS } else { 2 * POLLS });
        costs.push(asked() - before);
    }
    assert_eq!(costs[0], costs[1], "as long as the branch has not heard");
    pair.deliver(OWNER);
    pair.deliver(BRANCH);
    assert_eq!(pair.answers.len(), POLLS, "what was kept");
}

/// What may not be answered is kept, and answered in the end, in memory that was taken the first time.
#[test]
fn who_answers_nobody_takes_no_memory_once_warm() {
    let mut pair = Pair::new();
    let beside = Puppet::new(9, Puppet::GEOMETRY);
    let volume = Box::new(beside.clone());
    pair.doors[OWNER].add(ExportConfig { name: "beside".into(), volume, read_only: true });
    beside.fail(&beside.take_one());
    pair.settle();
    let silent = pair.doors[OWNER].open_read(1, 0).pass;
    let reader = pair.doors[OWNER].open_read(2, 1).pass;
    let mut taken = [0; 2];
    for taken in &mut taken {
        pair.puppets[OWNER].tell(VolumeEvent::Lost);
        pair.doors[OWNER].disk_ready();
        pair.turn(OWNER);
        let (mut answered, mut poll) = (0, |pair: &mut Pair| {
            let before = ALLOCATIONS.get();
            let mut count = 0;
            pair.doors[OWNER].poll(|_, _, _, _| count += 1);
            *taken += ALLOCATIONS.get() - before;
            count
        });
        for _ in 0..POLLS {
            for (session, pass, puppet) in [(1, silent, &pair.puppets[OWNER]), (2, reader, &beside)]
            {
                let permit = pair.doors[OWNER].admit(session, pass).unwrap();
                let ticket = IoTicket { session, place: 0, number: 0 };
                let io = Io::new(0, Op::Read, 0, 512);
                pair.doors[OWNER].submit(permit, io, ticket, |_| {}).unwrap();
                puppet.succeed(&puppet.take_one());
            }
            answered += poll(&mut pair);
        }
        assert_eq!(answered, POLLS, "those beside it");
        let before = pair.answers.len();
        pair.deliver(OWNER);
        pair.deliver(BRANCH);
        assert_eq!(pair.answers.len() - before, POLLS, "what was kept");
    }
    assert!(taken[0] > 0 && taken[1] == 0, "{taken:?}");
}
