//! What a memory export costs: little more than its content. A test program of its own, since it
//! looks at the memory of the process.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Io, Op, Volume};

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    // SAFETY: asks for a number.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

#[test]
fn a_memory_volume_takes_little_more_than_its_content() {
    const CONTENT: u64 = 64 << 20;
    let pool = Pool::new(0);
    let payload = pool.get_zeroed(1 << 20).freeze();
    let before = resident_bytes();
    // A terabyte of nothing is almost free.
    let mut store = MemoryStore::new(1 << 40, 512, Identity::default(), &pool);
    let empty = resident_bytes() - before;
    assert!(empty < 16 << 20, "{empty} bytes for nothing");
    let mut done = Vec::new();
    for at in (0..CONTENT).step_by(1 << 20) {
        let data = SegList::of(payload.clone());
        store.submit(Io { data, ..Io::new(at, Op::Write, at, 1 << 20) });
        store.poll(&mut done);
        done.clear();
    }
    let full = resident_bytes() - before - empty;
    println!("{} bytes for {CONTENT} of content, {empty} for the empty volume", full);
    assert!(full >= CONTENT, "the measure is broken: {full}");
    assert!(full < CONTENT + CONTENT / 12, "{full} bytes for {CONTENT} of content");
}
