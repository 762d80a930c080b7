//! The blocking convenience: attach, write, read back, flush, detach.
//!
//!     cargo run -p thinwire-initiator --example blocking

mod common;

use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_runtime::blocking::Blocking;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = common::serve();
    let patience = Duration::from_secs(5);
    let pool = Pool::new(32 << 20);
    let mut disk = Blocking::open(common::config(&target), vec![common::udp()], pool, patience)?;
    println!(
        "attached: {} bytes in blocks of {}",
        disk.geometry().bytes,
        disk.geometry().block_bytes
    );

    let mut data = disk.buffer(128 * 1024);
    for (i, byte) in data.iter_mut().enumerate() {
        *byte = i as u8;
    }
    disk.write(4096, data)?;
    disk.flush()?;
    let back = disk.read(4096, 128 * 1024)?.to_vec();
    assert!(back.iter().enumerate().all(|(i, &byte)| byte == i as u8));
    println!("wrote and read back {} bytes", back.len());

    let error = disk.read(1, 512).expect_err("unaligned");
    println!("as it should be: {error}");
    disk.close(patience)?;
    Ok(())
}
