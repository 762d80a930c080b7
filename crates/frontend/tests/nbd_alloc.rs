//! Nothing on the way of an I/O allocates once warm: shown by an allocator that counts.

mod nbd_common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nbd_common::client::{context_data, info_data, option_bytes, request_bytes};
use nbd_common::{Backing, config, volume};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::nbd::NbdFace;
use thinwire_frontend::nbd::proto::option;
use thinwire_volume::testing::SplitMix64;

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

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

/// One burst of requests of every kind but block status, whose answer is a vector by definition.
/// Returns the bytes and the length of the replies.
fn burst(rng: &mut SplitMix64) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    let mut replies = 0;
    for cookie in 0..32 {
        let (op, len) = match rng.below(8) {
            0..3 => (0u16, [512, 4096, 100, 70_000][rng.below(4) as usize]),
            3..6 => (1, [512, 4096, 333, 40_000][rng.below(4) as usize]),
            6 => (6, 1 + rng.below(10_000) as u32),
            _ => (3, 0),
        };
        let offset = if op == 3 { 0 } else { rng.below(1 << 20) / [1, 512][rng.below(2) as usize] };
        bytes.extend(request_bytes(0, op, cookie, offset, len));
        if op == 1 {
            bytes.resize(bytes.len() + len as usize, rng.next() as u8);
        }
        replies += if op == 0 { 28 + len as usize } else { 16 };
    }
    (bytes, replies)
}

#[test]
fn steady_io_does_not_allocate() {
    let pool = Pool::new(64 << 20);
    let mut volume = volume(Backing::Memory, 4 << 20, &pool);
    let mut face = NbdFace::bind(config(), pool).unwrap();
    let mut socket = UnixStream::connect(face.path()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let hello = [
        &3u32.to_be_bytes()[..],
        &option_bytes(option::STRUCTURED_REPLY, b""),
        &option_bytes(option::SET_META_CONTEXT, &context_data("", &["base:allocation"])),
        &option_bytes(option::GO, &info_data("", &[])),
    ]
    .concat();
    socket.write_all(&hello).unwrap();
    let mut sink = vec![0; 1 << 20];
    let mut got = 0;
    while got < 18 + 20 + 20 + 19 + 20 + 32 + 20 {
        face.turn(&mut volume).unwrap();
        got += socket.read(&mut sink).unwrap_or(0);
    }

    // The same bursts again and again: what the first rounds allocate, the later ones find.
    let mut by_round = Vec::new();
    for _ in 0..6 {
        let mut rng = SplitMix64::new(3);
        let mut in_turns = 0;
        for _ in 0..60 {
            let (bytes, expected) = burst(&mut rng);
            let (mut sent, mut got) = (0, 0);
            while got < expected {
                sent += socket.write(&bytes[sent..]).unwrap_or(0);
                let before = allocations();
                face.turn(&mut volume).unwrap();
                in_turns += allocations() - before;
                got += socket.read(&mut sink).unwrap_or(0);
            }
            assert_eq!(got, expected);
        }
        by_round.push(in_turns);
    }
    assert!(by_round[0] > 0, "the allocator counts");
    assert_eq!(by_round[4..], [0, 0], "allocations in turns, by round: {by_round:?}");
    assert_eq!(face.stats().requests, 6 * 60 * 32);
}
