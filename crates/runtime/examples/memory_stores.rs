//! What an I/O costs in each of the stores that a volume in memory may be: one thread's own, memory that several
//! threads share as words, and a file without a name that is read and written through a ring.
//!
//!     cargo run --release -p thinwire-runtime --example memory_stores
//!
//! Prints nanoseconds of this thread's processor time for an I/O, the least of several rounds that take turns: what
//! the kernel's own threads do for the ring is not in it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use thinwire_buffer::{Pool, SegList};
use thinwire_runtime::disk::{DiskOptions, open_store};
use thinwire_runtime::spread_memory::SpreadMemory;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Io, Op, Volume};

const BYTES: u64 = 256 << 20;
const AT_ONCE: u64 = 16;
const ROUNDS: usize = 7;

fn main() {
    let pool = Pool::new(64 << 20);
    let id = Identity::default();
    let file = File::from(memfd_create("volume", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(BYTES).expect("its size");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let state_dir = std::env::temp_dir().join(format!("thinwire-stores-{}", std::process::id()));
    let options = DiskOptions { direct: false, state_dir, ..DiskOptions::default() };
    let opened = open_store(&path, &options, &pool, &mut |note| eprintln!("{note}"));
    let words = SpreadMemory::new(BYTES, 512, id).expect("room");
    let mut stores: [(&str, Box<dyn Volume>); 3] = [
        ("own pages", Box::new(MemoryStore::new(BYTES, 512, id, &Pool::new(4 << 20)))),
        ("shared words", Box::new(words.owner(&pool).expect("a descriptor"))),
        ("memfd, ring", opened.expect("a store").volume),
    ];
    for (_, store) in &mut stores {
        run(&mut **store, &pool, Op::Write, 1 << 20, BYTES >> 20);
    }
    println!(
        "{:14} {:>12} {:>12} {:>12} {:>12}",
        "ns an I/O", "4K read", "4K write", "128K read", "128K write"
    );
    let kinds =
        [(Op::Read, 4096), (Op::Write, 4096), (Op::Read, 128 << 10), (Op::Write, 128 << 10)];
    let mut least = [[u64::MAX; 4]; 3];
    for _ in 0..ROUNDS {
        for ((_, store), least) in stores.iter_mut().zip(&mut least) {
            for ((op, len), least) in kinds.iter().zip(least) {
                let count = (1 << 30) / (*len).max(16 << 10);
                *least = run(&mut **store, &pool, *op, *len, count).min(*least);
            }
        }
    }
    for ((name, _), least) in stores.iter().zip(least) {
        println!("{name:14} {:>12} {:>12} {:>12} {:>12}", least[0], least[1], least[2], least[3]);
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// So many I/Os at scattered places, some at once; processor time for each.
fn run(store: &mut dyn Volume, pool: &Pool, op: Op, len: u64, count: u64) -> u64 {
    let payload = pool.get_zeroed(len as usize).freeze();
    let (places, mut done) = (BYTES / len, Vec::new());
    let mut at = 0;
    let start = cpu_ns();
    for _ in 0..count.div_ceil(AT_ONCE) {
        for token in 0..AT_ONCE {
            at = (at + 0x9e37_79b1) % places;
            let mut io = Io::new(token, op, at * len, len);
            if op == Op::Write {
                io.data = SegList::of(payload.clone());
            }
            store.submit(io);
        }
        while store.outstanding() > 0 {
            store.poll(&mut done);
        }
        assert!(done.drain(..).all(|completion| completion.result.is_ok()));
    }
    (cpu_ns() - start) / count
}
