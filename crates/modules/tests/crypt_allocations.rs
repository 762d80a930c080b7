//! I/O of an encrypted volume allocates nothing once warm.

mod counting;

use counting::allocations;
use thinwire_buffer::{Pool, SegList};
use thinwire_modules::{CRYPT_SEALED_BYTES, Child, Crypt, CryptState, XtsCipher};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Identity, Io, Op, Volume};

const DEPTH: u64 = 8;
const LEN: u64 = 16384;

/// Turns bits round: what is measured is who calls it.
struct Turned;

impl XtsCipher for Turned {
    fn encrypt(&mut self, _: usize, _: u64, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }

    fn decrypt(&mut self, _: usize, _: u64, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Writes, reads and zeroes, several at a time.
fn rounds(crypt: &mut Crypt, payload: &SegList, count: u64, done: &mut Vec<Completion>) {
    for round in 0..count {
        for at in 0..DEPTH {
            let op = [Op::Write, Op::Read, Op::WriteZeroes][((round + at) % 3) as usize];
            let mut io = Io::new(at, op, (round * 5 + at) % 32 * LEN, LEN);
            if op == Op::Write {
                io.data = payload.clone();
            }
            crypt.submit(io);
        }
        let mut ended = 0;
        while ended < DEPTH {
            crypt.poll(done);
            for completion in done.drain(..) {
                completion.result.unwrap();
                ended += 1;
            }
        }
    }
}

#[test]
fn io_allocates_nothing_once_warm() {
    let memory = Pool::new(16 << 20);
    let store = MemoryStore::new(1 << 20, 512, Identity::default(), &memory);
    let part = Child::all(vec![Box::new(store)]).remove(0);
    let state = CryptState::new(4096, [1; 8], [2; 12], [3; CRYPT_SEALED_BYTES]);
    let crypt = Crypt::open(part, Box::new(Turned), &state, [9; 16], &memory);
    let mut crypt = crypt.unwrap_or_else(|e| panic!("{e}"));
    let payload = SegList::of(memory.copy_of(&[7; LEN as usize]).freeze());
    let mut done = Vec::new();
    SegList::warm(64, 64);
    rounds(&mut crypt, &payload, 200, &mut done);
    let before = allocations();
    rounds(&mut crypt, &payload, 200, &mut done);
    assert_eq!(allocations() - before, 0);
}
