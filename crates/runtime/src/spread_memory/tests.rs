//! What is the same for one thread as of any volume, and what several find of one another.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_volume::testing::exercise;

use super::*;

const ID: Identity = Identity { identity: [1; 16], incarnation: 7 };

fn run(store: &mut SpreadMemoryStore, io: Io) -> Completion {
    store.submit(io);
    let mut done = Vec::new();
    while done.is_empty() {
        store.poll(&mut done);
    }
    assert_eq!((done.len(), store.outstanding()), (1, 0));
    done.pop().unwrap()
}

fn write(store: &mut SpreadMemoryStore, offset: u64, parts: &[&[u8]]) {
    let pool = Pool::new(0);
    let mut data = SegList::new();
    parts.iter().for_each(|part| data.push(pool.copy_of(part).freeze()));
    let io = Io::new(0, Op::Write, offset, data.bytes() as u64);
    run(store, Io { data, ..io }).result.unwrap();
}

fn read(store: &mut SpreadMemoryStore, offset: u64, len: u64) -> Vec<u8> {
    run(store, Io::new(1, Op::Read, offset, len)).data.to_vec()
}

fn pair(bytes: u64) -> [SpreadMemoryStore; 2] {
    let (memory, pool) = (SpreadMemory::new(bytes, 512, ID).unwrap(), Pool::new(1 << 20));
    [memory.owner(&pool).unwrap(), memory.branch(&pool).unwrap()]
}

/// Bytes of the content that the kernel has memory for.
fn held_bytes(store: &SpreadMemoryStore) -> u64 {
    let pages = store.shared.geometry.bytes.div_ceil(PAGE);
    (0..pages).filter(|&page| store.shared.content.is_resident(page)).count() as u64 * PAGE
}

fn is_readable(store: &SpreadMemoryStore) -> bool {
    let mut polled = [PollFd::new(&store.bell, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn it_conforms() {
    for (seed, block) in [(1, 512), (2, 4096)] {
        let memory = SpreadMemory::new(3 << 20, block, ID).unwrap();
        let mut store = memory.owner(&Pool::new(4 << 20)).unwrap();
        assert!(exercise(&mut store, &mut || {}, seed, 3000).ios > 3000);
    }
}

#[test]
fn one_thread_finds_what_another_wrote() {
    let [mut owner, mut branch] = pair(1 << 20);
    write(&mut owner, 512, &[&[1; 512]]);
    write(&mut branch, 8192 - 512, &[&[2; 1024]]);
    for store in [&mut owner, &mut branch] {
        let all = read(store, 0, 3 * PAGE);
        assert_eq!([all[511], all[512], all[1023], all[1024]], [0, 1, 1, 0]);
        assert_eq!([all[7679], all[7680], all[8703], all[8704]], [0, 2, 2, 0]);
    }
    run(&mut branch, Io::new(2, Op::WriteZeroes, 0, 8192)).result.unwrap();
    let all = read(&mut owner, 0, 3 * PAGE);
    assert_eq!((all.iter().position(|&b| b != 0), all[8192]), (Some(8192), 2));
}

#[test]
fn segments_may_end_within_a_word() {
    let [mut owner, _] = pair(1 << 20);
    let bytes: Vec<u8> = (0..1024).map(|n| (n % 251) as u8).collect();
    let (head, tail) = bytes.split_at(701);
    let mut parts: Vec<&[u8]> = head.chunks(3).collect();
    parts.extend(tail.chunks(100));
    write(&mut owner, 512, &parts);
    assert_eq!(read(&mut owner, 512, 1024), bytes);
}

/// Of what nobody wrote nothing is held, however often it is read; and what is zeroed is held no more.
#[test]
fn memory_is_given_back() {
    const BYTES: u64 = 16 << 20;
    let [mut owner, mut branch] = pair(BYTES);
    for at in (0..BYTES).step_by(1 << 20) {
        read(&mut owner, at, 1 << 20);
    }
    assert_eq!(held_bytes(&owner), 0);
    for at in (0..BYTES).step_by(1 << 20) {
        write(&mut owner, at, &[&[7; 1 << 20]]);
    }
    assert_eq!(held_bytes(&owner), BYTES);
    branch.submit(Io::new(1, Op::Discard, 512, BYTES - 1024));
    let mut done = Vec::new();
    branch.poll(&mut done);
    assert!(done.is_empty(), "one poll does not do all of it");
    assert!(is_readable(&branch) && !is_readable(&owner));
    while done.is_empty() {
        branch.poll(&mut done);
    }
    assert!(!is_readable(&branch) && branch.outstanding() == 0);
    assert_eq!(held_bytes(&owner), 2 * PAGE, "the first and the last hold a block yet");
    let status = run(&mut owner, Io::new(2, Op::BlockStatus, 0, BYTES)).extents;
    let holes: Vec<_> = status.iter().map(|extent| (extent.len, extent.hole)).collect();
    assert_eq!(holes, [(PAGE, false), (BYTES - 2 * PAGE, true), (PAGE, false)]);
    let ends = [0, BYTES - 512].map(|at| read(&mut owner, at, 512));
    assert_eq!(ends, [vec![7; 512], vec![7; 512]]);
    assert_eq!(read(&mut owner, BYTES - 1024, 512), vec![0; 512]);
}

/// What one poll brings.
fn polled(store: &mut SpreadMemoryStore) -> Vec<Completion> {
    let mut done = Vec::new();
    store.poll(&mut done);
    done
}

/// How many completions each poll brings, until there are so many. While there are more to come the bell says so.
fn polls(store: &mut SpreadMemoryStore, count: usize) -> Vec<usize> {
    let (mut brought, mut sum) = (Vec::new(), 0);
    while sum < count {
        brought.push(polled(store).len());
        sum += brought.last().unwrap();
        assert_eq!((is_readable(store), store.outstanding()), (sum < count, count - sum));
    }
    brought
}

#[test]
fn a_poll_copies_a_mebibyte() {
    const MIB: u64 = 1 << 20;
    let [mut owner, _] = pair(4 * MIB);
    (0..4).for_each(|at| write(&mut owner, at * MIB, &[&[7; 1 << 20]]));
    let ask = |owner: &mut SpreadMemoryStore, count: u64, len: u64| {
        (0..count).for_each(|nth| owner.submit(Io::new(nth, Op::Read, nth * len % MIB, len)));
    };
    ask(&mut owner, 4, MIB);
    assert_eq!(polls(&mut owner, 4), [1; 4]);
    ask(&mut owner, 5, 384 << 10);
    assert_eq!(polls(&mut owner, 5), [2, 2, 1]);
    // The short ones cost more than their bytes.
    ask(&mut owner, 600, 512);
    assert_eq!(polls(&mut owner, 600), [256, 256, 88]);
    // What is not read does not wait for what is.
    ask(&mut owner, 2, MIB);
    owner.submit(Io::new(2, Op::Flush, 0, 0));
    assert!(polled(&mut owner).iter().map(|one| one.token).eq([2, 0]));
    assert_eq!(polls(&mut owner, 1), [1]);
}

#[test]
fn a_turn_copies_a_mebibyte_however_often_it_polls() {
    let [mut owner, _] = pair(1 << 20);
    write(&mut owner, 0, &[&[7; 1 << 20]]);
    (0..2).for_each(|nth| owner.submit(Io::new(nth, Op::Read, 0, 1 << 20)));
    crate::turn::begin();
    assert_eq!([(); 3].map(|()| polled(&mut owner).len()), [1, 0, 0]);
    assert!(is_readable(&owner));
    crate::turn::begin();
    assert_eq!(polled(&mut owner).len(), 1);
    crate::turn::end();
}

/// Also of a hole, however long it is.
#[test]
fn a_block_status_ends_after_some_looks_and_a_poll_after_some_of_them() {
    const BYTES: u64 = 8 << 30;
    let [mut owner, _] = pair(BYTES);
    (0..10).for_each(|token| owner.submit(Io::new(token, Op::BlockStatus, 0, BYTES)));
    let known: Vec<u64> =
        polled(&mut owner).iter().map(|one| one.extents.iter().map(|e| e.len).sum()).collect();
    assert_eq!(known, [256 << 20; 4]);
    assert_eq!(polls(&mut owner, 6), [4, 2]);
}

#[test]
fn scattered_pages_are_given_back_some_in_each_poll() {
    let (words, word_bytes) = (200, 64 * PAGE);
    let [mut owner, _] = pair(words * word_bytes);
    for word in 0..words {
        write(&mut owner, word * word_bytes, &[&[7; 512]]);
    }
    owner.submit(Io::new(1, Op::Discard, 0, words * word_bytes));
    for left in [136, 72, 8] {
        assert!(polled(&mut owner).is_empty() && is_readable(&owner));
        assert_eq!(held_bytes(&owner), left * PAGE);
    }
    assert_eq!((polled(&mut owner).len(), is_readable(&owner)), (1, false));
    assert_eq!(held_bytes(&owner), 0);
}

#[test]
fn a_branch_keeps_no_record() {
    let [mut owner, mut branch] = pair(1 << 20);
    assert_eq!(run(&mut owner, Io::new(1, Op::LoadWriter, 0, 0)).result, Ok(()));
    let refused = run(&mut branch, Io::new(1, Op::LoadWriter, 0, 0)).result.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
}

/// Threads that each write blocks of their own, of pages that they share, lose nothing to one another; nor to one
/// that gives the pages beside them back.
#[test]
fn neighbours_lose_nothing() {
    const ROUNDS: u64 = 2000;
    let memory = SpreadMemory::new(1 << 20, 512, ID).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u64)
            .map(|nth| {
                let memory = &memory;
                scope.spawn(move || {
                    let mut store = memory.branch(&Pool::new(1 << 20)).unwrap();
                    for round in 0..ROUNDS {
                        // Of each second page a block.
                        let at = (round % 32) * 2 * PAGE + nth * 1024;
                        let byte = (1 + round % 200) as u8;
                        write(&mut store, at, &[&[byte; 512]]);
                        assert_eq!(read(&mut store, at, 512), [byte; 512]);
                        let status = run(&mut store, Io::new(3, Op::BlockStatus, at, 512));
                        assert!(!status.extents[0].hole);
                        if round % 3 == 0 {
                            run(&mut store, Io::new(4, Op::WriteZeroes, at, 512)).result.unwrap();
                            assert_eq!(read(&mut store, at, 512), [0; 512]);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut store = memory.branch(&Pool::new(1 << 20)).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                for page in (1..64).step_by(2) {
                    write(&mut store, page * PAGE, &[&[9; 512]]);
                    run(&mut store, Io::new(5, Op::Discard, page * PAGE, PAGE)).result.unwrap();
                    assert_eq!(read(&mut store, page * PAGE, 512), [0; 512]);
                }
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
}
