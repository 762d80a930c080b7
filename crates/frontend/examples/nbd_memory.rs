//! Serves memory over NBD: the shortest program that drives a face.
//!
//!     cargo run --release -p thinwire-frontend --example nbd_memory -- unix:/tmp/m.sock 1073741824
//!     nbdinfo 'nbd+unix:///memory?socket=/tmp/m.sock'
//!
//! Arguments: where to listen, the size in bytes, and optionally `ro`. Prints `ready PATH` once it
//! serves, and its counters after each client that leaves when `NBD_MEMORY_STATS` is set.

use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::nbd::{NbdConfig, NbdFace};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Unaligned};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nbd_memory: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "usage: nbd_memory unix:PATH|tcp:HOST:PORT BYTES [ro]";
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().ok_or(usage)?.parse()?;
    let bytes: u64 = arguments.next().ok_or(usage)?.parse()?;
    if bytes == 0 || !bytes.is_multiple_of(512) {
        return Err("the size is not a multiple of 512 bytes".into());
    }
    let mut config = NbdConfig::new(listen, "memory");
    config.description = "bytes that end with their process".into();
    config.read_only = match arguments.next().as_deref() {
        None => false,
        Some("ro") => true,
        Some(_) => return Err(usage.into()),
    };

    let pool = Pool::new(256 << 20);
    let store = MemoryStore::new(bytes, 512, Identity::default(), &pool);
    let mut volume = Unaligned::new(store, pool.clone());
    let mut face = NbdFace::bind(config, pool)?;
    println!("ready {}", face.path());
    let verbose = std::env::var_os("NBD_MEMORY_STATS").is_some();
    let mut clients = 0;
    loop {
        // Memory completes at once, so turns leave nothing that only the volume could announce.
        match poll(&mut [PollFd::from_borrowed_fd(face.fd(), PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while face.turn(&mut volume)? {}
        if verbose && face.connections() < clients {
            eprintln!("{:?}", face.stats());
        }
        clients = face.connections();
    }
}
