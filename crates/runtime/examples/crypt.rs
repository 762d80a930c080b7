//! What encryption costs a core: GiB/s of AES-256-XTS alone, and of an encrypted volume over memory, in I/Os of 4 KiB.
//!
//!     cargo run --release -p thinwire-runtime --example crypt

use std::time::{Duration, Instant};

use thinwire_buffer::{Pool, SegList};
use thinwire_modules::{CRYPT_SEALED_BYTES, Child, Crypt, CryptState, XtsCipher};
use thinwire_runtime::xts::Aes256Xts;
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Identity, Io, Op, Volume};

const IO_BYTES: usize = 4096;
const VOLUME_BYTES: u64 = 64 << 20;
/// Outstanding together.
const DEPTH: u64 = 32;
const LONG: Duration = Duration::from_secs(1);

/// Does it again and again for a second, and says how many GiB of `bytes` each that is in one.
fn measure(what: &str, bytes: usize, mut once: impl FnMut()) {
    let start = Instant::now();
    let mut count = 0_u64;
    while start.elapsed() < LONG {
        (0..64).for_each(|_| once());
        count += 64;
    }
    let gib = (count * bytes as u64) as f64 / f64::from(1 << 30);
    println!("{what}: {:.2} GiB/s", gib / start.elapsed().as_secs_f64());
}

fn main() {
    let key = std::array::from_fn(|at| at as u8);
    let cipher = || Aes256Xts::new(&key).expect("its halves differ");
    let mut bytes = vec![7; IO_BYTES];
    for block_bytes in [4096, 512] {
        let (mut xts, mut number) = (cipher(), 0);
        measure(&format!("encrypt, blocks of {block_bytes}"), IO_BYTES, || {
            number += 1;
            xts.encrypt(block_bytes, number, &mut bytes);
        });
        measure(&format!("decrypt, blocks of {block_bytes}"), IO_BYTES, || {
            number += 1;
            xts.decrypt(block_bytes, number, &mut bytes);
        });
        let pool = Pool::new(64 << 20);
        let store = MemoryStore::new(VOLUME_BYTES, 512, Identity::default(), &pool);
        let part = Child::all(vec![Box::new(store)]).remove(0);
        let state = CryptState::new(block_bytes as u32, [0; 8], [0; 12], [0; CRYPT_SEALED_BYTES]);
        let volume = Crypt::open(part, Box::new(cipher()), &state, [1; 16], &pool);
        let mut volume = volume.expect("it fits");
        let payload = pool.copy_of(&bytes).freeze();
        let (mut at, mut done) = (0, Vec::new());
        for op in [Op::Write, Op::Read] {
            let what = format!("{op} of 4 KiB over memory, blocks of {block_bytes}");
            measure(&what, IO_BYTES * DEPTH as usize, || {
                for token in 0..DEPTH {
                    let mut io = Io::new(token, op, at, IO_BYTES as u64);
                    if op == Op::Write {
                        io.data = SegList::of(payload.clone());
                    }
                    volume.submit(io);
                    at = (at + 37 * IO_BYTES as u64) % VOLUME_BYTES;
                }
                volume.poll(&mut done);
                assert!(done.drain(..).all(|completion| completion.result.is_ok()));
            });
        }
    }
}
