//! Submit and poll without blocking: 32 random reads outstanding, on one thread.
//!
//!     cargo run --release -p thinwire-initiator --example poll

mod common;

use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_initiator::Initiator;
use thinwire_runtime::remote::Remote;
use thinwire_volume::{Io, Op};

const DEPTH: u64 = 32;
const BLOCK: u64 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = common::serve();
    let pool = Pool::new(32 << 20);
    let mut disk = Remote::new(common::config(&target), vec![common::udp()], pool)?;
    while !disk.initiator().is_open() {
        if let Some(error) = disk.initiator().first_error() {
            return Err(error.clone().into());
        }
        disk.wait(Some(Duration::from_millis(100)))?;
    }
    let blocks = disk.volume().geometry().bytes / BLOCK;

    let start = Instant::now();
    let (mut submitted, mut completed) = (0u64, 0u64);
    let mut done = Vec::new();
    while start.elapsed() < Duration::from_secs(1) || completed < submitted {
        // Take what has come to its end, and submit more: `wait` sends everything at once, and takes in
        // what arrives.
        disk.volume().poll(&mut done);
        for completion in done.drain(..) {
            assert_eq!(completion.result.map(|()| completion.data.bytes() as u64), Ok(BLOCK));
            completed += 1;
        }
        while submitted < completed + DEPTH && start.elapsed() < Duration::from_secs(1) {
            let block = submitted.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks;
            disk.volume().submit(Io::new(submitted, Op::Read, block * BLOCK, BLOCK));
            submitted += 1;
        }
        disk.wait(None)?;
    }
    println!("{completed} reads of {BLOCK} bytes in {:?}", start.elapsed());

    disk.with_initiator(Initiator::close);
    while !disk.initiator().is_closed() {
        disk.wait(Some(Duration::from_millis(10)))?;
    }
    disk.turn()?;
    Ok(())
}
