//! Bytes are copied as seldom as promised (`docs/design.md`, "The frame"), all counters of both sides
//! and their links added up.

mod common;
mod pair;

use std::os::fd::RawFd;
use std::time::Duration;

use common::Dir;
use pair::{Pair, enter_cable};
use thinwire_buffer::{Pool, SegList};
use thinwire_link::{Link, LinkOptions, LinkSpec};
use thinwire_runtime::disk::open_store;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Io, Op, Volume};

const VOLUME_BYTES: u64 = 16 << 20;
const LENGTHS: [u64; 4] = [512, 4096, 64 << 10, 1 << 20];
const IOS: u64 = 64;

fn link(spec: &str) -> Box<dyn Link> {
    spec.parse::<LinkSpec>().unwrap().open_with(&LinkOptions::default()).unwrap()
}

/// Copies per byte: what was copied at the target and at the initiator while this ran.
fn copied(pair: &mut Pair, work: impl FnOnce(&mut Pair)) -> (u64, u64) {
    let count = |pair: &Pair| {
        let stores: u64 =
            pair.target.target().exports().iter().map(|export| export.copied_bytes).sum();
        let target = pair.target.target().stats().copied_bytes
            + pair.target.shard().links().stats(0).copied_bytes;
        let links = pair.remote.shard().links().stats(0).copied_bytes;
        let initiator = pair.remote.report().stats.copied_bytes;
        (stores + target, links + initiator)
    };
    let before = count(pair);
    work(pair);
    let after = count(pair);
    (after.0 - before.0, after.1 - before.1)
}

/// I/Os of one length, four at a time. Writes are of whole buffers.
fn run(pair: &mut Pair, op: Op, len: u64) {
    let mut done = Vec::new();
    let content = pair.initiator_pool.get_zeroed(len as usize).freeze();
    for first in (0..IOS).step_by(4) {
        for at in first..first + 4 {
            let mut io = Io::new(at, op, at * len % VOLUME_BYTES, len);
            if op == Op::Write {
                io.data = SegList::of(content.clone());
            }
            pair.remote.volume().submit(io);
        }
        let mut left = 4;
        while left > 0 {
            pair.wait(&mut done);
            left -= done.len();
            done.drain(..).for_each(|completion| completion.result.unwrap());
        }
    }
    // The counters are brought up to date by a turn.
    pair.turn();
}

/// Writes, then reads, of every length: `(length, copies at the target, at the initiator)` a byte.
fn copies(pair: &mut Pair, op: Op) -> Vec<(u64, f64, f64)> {
    let per_byte = |len| {
        let (target, initiator) = copied(pair, |pair| run(pair, op, len));
        let bytes = (len * IOS) as f64;
        (len, target as f64 / bytes, initiator as f64 / bytes)
    };
    LENGTHS.into_iter().map(per_byte).collect()
}

fn all(target: f64, initiator: f64) -> Vec<(u64, f64, f64)> {
    LENGTHS.into_iter().map(|len| (len, target, initiator)).collect()
}

/// A volume, and the descriptor that tells of its completions.
type Opened = (Box<dyn Volume>, Option<RawFd>);

fn memory() -> (Opened, Pool) {
    let pool = Pool::new(64 << 20);
    let identity = Identity { identity: *b"thinwire-memory!", incarnation: 1 };
    ((Box::new(MemoryStore::new(VOLUME_BYTES, 512, identity, &pool)), None), pool)
}

#[test]
fn a_file_over_a_raw_link_is_written_and_read_without_a_copy() {
    if !enter_cable(9000) {
        return;
    }
    let dir = Dir::new();
    let pool = Pool::new(64 << 20);
    let path = dir.image("disk", VOLUME_BYTES);
    let store = open_store(&path, &dir.options(), &pool, &mut |_| {}).unwrap();
    let volume = (store.volume, Some(store.fd));
    let mut pair = Pair::new(volume, pool, link("packet:left"), link("packet:right"));
    // The path learns that it carries jumbo frames.
    pair.rest(Duration::from_millis(300));
    assert_eq!(copies(&mut pair, Op::Write), all(0.0, 0.0));
    assert_eq!(copies(&mut pair, Op::Read), all(0.0, 0.0));
}

/// What an xdp link sends it copies into memory shared with the kernel. What it receives stays in
/// such memory, in chunks of which the first suits the disk: 3.5 KiB of a frame's payload.
#[test]
fn a_file_over_xdp_is_written_from_the_chunks_that_suit_it() {
    if !enter_cable(9000) {
        return;
    }
    let dir = Dir::new();
    let pool = Pool::new(64 << 20);
    let path = dir.image("disk", VOLUME_BYTES);
    let store = open_store(&path, &dir.options(), &pool, &mut |_| {}).unwrap();
    let volume = (store.volume, Some(store.fd));
    let mut pair = Pair::new(volume, pool, link("xdp:left"), link("xdp:right"));
    pair.rest(Duration::from_millis(300));
    // Of each frame of 8 KiB, 4.5 KiB are in chunks that do not; four of 512 bytes fit into one that
    // does.
    let wanted = [(512, 0.0), (4096, 0.5625), (64 << 10, 0.5625), (1 << 20, 0.5625)];
    for ((len, target, initiator), (_, share)) in copies(&mut pair, Op::Write).iter().zip(wanted) {
        // What is sent again is copied again.
        assert!((1.0..1.2).contains(initiator), "writes of {len}: {initiator}");
        assert!((target - share).abs() < 0.05, "writes of {len}: {target}, not {share}");
    }
    for (len, target, initiator) in copies(&mut pair, Op::Read) {
        assert!((1.0..1.2).contains(&target), "reads of {len}: {target}");
        // A mebibyte comes in more pieces than are kept as such.
        let most = if len > 64 << 10 { 1.0 } else { 0.0 };
        assert!(initiator <= most, "reads of {len}: {initiator}");
    }
}

#[test]
fn memory_over_a_raw_link_is_written_with_one_copy_and_read_without() {
    if !enter_cable(9000) {
        return;
    }
    let (volume, pool) = memory();
    let mut pair = Pair::new(volume, pool, link("packet:left"), link("packet:right"));
    pair.rest(Duration::from_millis(300));
    // The first round also finds out that fresh pages are no copies.
    assert_eq!(copies(&mut pair, Op::Write), all(1.0, 0.0));
    assert_eq!(copies(&mut pair, Op::Read), all(0.0, 0.0));
}

#[test]
fn nothing_is_copied_twice_over_udp() {
    let dir = Dir::new();
    let pool = Pool::new(64 << 20);
    let path = dir.image("disk", VOLUME_BYTES);
    let store = open_store(&path, &dir.options(), &pool, &mut |_| {}).unwrap();
    let file = (store.volume, Some(store.fd));
    for (volume, pool) in [(file, pool), memory()] {
        let mut pair = Pair::new(volume, pool, link("udp:127.0.0.1"), link("udp:127.0.0.1"));
        pair.rest(Duration::from_millis(300));
        for (len, target, initiator) in copies(&mut pair, Op::Write) {
            assert!(target <= 1.0 && initiator == 0.0, "writes of {len}: {target}, {initiator}");
        }
        assert_eq!(copies(&mut pair, Op::Read), all(0.0, 0.0));
    }
}

/// Whoever keeps what it has read keeps no more of the links' memory than its share: the rest is
/// copied, and the link goes on.
#[test]
fn who_keeps_what_it_reads_is_given_copies_beyond_its_share() {
    let (volume, pool) = memory();
    let mut pair = Pair::new(volume, pool, link("udp:127.0.0.1"), link("udp:127.0.0.1"));
    pair.rest(Duration::from_millis(300));
    let share = 16 << 20;
    let len = 64 << 10;
    let (mut kept, mut most) = (Vec::new(), 0);
    let (_, copied) = copied(&mut pair, |pair| {
        for at in 0..1024 {
            pair.remote.volume().submit(Io::new(at, Op::Read, at * len % VOLUME_BYTES, len));
            let before = kept.len();
            while kept.len() == before {
                pair.wait(&mut kept);
            }
            most = most.max(pair.initiator_pool.stats().received_bytes);
        }
    });
    assert!(kept.iter().all(|done| done.result.is_ok() && done.data.bytes() as u64 == len));
    // What had begun before the share was used up, and what is on its way.
    assert!(most < share + (4 << 20), "{most} bytes of frames are kept");
    assert!(copied > 32 << 20, "only {copied} bytes were copied");
    drop(kept);
    pair.turn();
    assert!(pair.initiator_pool.stats().received_bytes < 4 << 20);
    assert_eq!(copies(&mut pair, Op::Read), all(0.0, 0.0), "lent again");
}
