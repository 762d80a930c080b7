//! What goes down is encrypted, what comes back is what was written, and what the label says is as the document has it.

use aes::Aes256;
use aes::cipher::KeyInit;
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise, finish};
use thinwire_volume::{ErrorKind, Identity, IoFlags};
use xts_mode::{Xts128, get_tweak_default};

use super::*;
use crate::observed::Observed;

const WHOLE: [u8; 16] = *b"UUID of a whole!";

/// The cipher, by a library that is none of ours.
struct Plain(Xts128<Aes256>);

impl XtsCipher for Plain {
    fn encrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        self.0.encrypt_area(bytes, block_bytes, first.into(), get_tweak_default);
    }

    fn decrypt(&mut self, block_bytes: usize, first: u64, bytes: &mut [u8]) {
        self.0.decrypt_area(bytes, block_bytes, first.into(), get_tweak_default);
    }
}

fn cipher(key: u8) -> Box<dyn XtsCipher> {
    let half = |byte| Aes256::new_from_slice(&[byte; 32]).unwrap();
    Box::new(Plain(Xts128::new(half(key), half(!key))))
}

fn state(block_bytes: u32) -> CryptState {
    CryptState::new(block_bytes, [1; 8], [2; 12], [3; CRYPT_SEALED_BYTES])
}

fn over(part: impl Volume + 'static, block_bytes: u32, pool: &Pool) -> Crypt {
    let part = Child::all(vec![Box::new(part)]).remove(0);
    Crypt::open(part, cipher(7), &state(block_bytes), WHOLE, pool).unwrap_or_else(|e| panic!("{e}"))
}

fn polled_one(volume: &mut dyn Volume) -> Completion {
    let mut done = Vec::new();
    volume.poll(&mut done);
    assert_eq!(done.len(), 1, "{done:?}");
    done.remove(0)
}

fn write(pool: &Pool, offset: u64, bytes: &[u8]) -> Io {
    let mut io = Io::new(7, Op::Write, offset, bytes.len() as u64);
    // In pieces whose borders are those of no block.
    bytes.chunks(1300).for_each(|part| io.data.push(pool.copy_of(part).freeze()));
    io
}

/// Memory that knows no discard: what reads as noise then is none of what was ever there.
struct Keeps(MemoryStore);

impl Volume for Keeps {
    fn geometry(&self) -> Geometry {
        let geometry = self.0.geometry();
        Geometry { features: Features { discard: false, ..geometry.features }, ..geometry }
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn submit(&mut self, io: Io) {
        self.0.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.0.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
}

#[test]
fn it_does_what_every_volume_does() {
    let pool = Pool::new(32 << 20);
    for (seed, block_bytes) in (1..).zip([512, 4096, 4096, 512]) {
        let memory = Keeps(MemoryStore::new(1 << 20, 512, Identity::default(), &pool));
        // On which a discard does nothing.
        let file = FileStore::new(MemDisk::new(1 << 20, 512, seed).lying(), 512, &pool).unwrap();
        let part: Box<dyn Volume> = if seed % 2 == 0 { Box::new(memory) } else { Box::new(file) };
        let mut crypt = over(part, block_bytes, &pool);
        assert_eq!(crypt.geometry().block_bytes, block_bytes);
        let report = exercise(&mut crypt, &mut || {}, seed, 1000);
        assert!(report.ios > 1000 && report.blocks_checked > 1000, "{report:?}");
    }
}

#[test]
fn what_stands_below_is_the_cipher_of_it_by_the_numbers_of_its_blocks() {
    let pool = Pool::new(8 << 20);
    let bytes: Vec<u8> = (0..64 << 10).map(|at| (at % 251) as u8).collect();
    for block_bytes in [512, 4096_u32] {
        let mut below = Observed::new(MemoryStore::new(256 << 10, 512, Identity::default(), &pool));
        let part = Child::within(Box::new(below.clone()), 8192, 128 << 10).unwrap();
        let mut crypt = Crypt::open(part, cipher(7), &state(block_bytes), WHOLE, &pool).unwrap();
        assert_eq!(crypt.geometry().bytes, 128 << 10);
        assert_eq!(finish(&mut crypt, &mut || {}, write(&pool, 16384, &bytes)).result, Ok(()));
        let io = Io::new(1, Op::Read, 8192 + 16384, bytes.len() as u64);
        let mut stands = finish(&mut below, &mut || {}, io).data.to_vec();
        assert!(stands.chunks(16).zip(bytes.chunks(16)).all(|(one, other)| one != other));
        cipher(7).decrypt(block_bytes as usize, 16384 / u64::from(block_bytes), &mut stands);
        assert!(stands == bytes, "blocks are counted from the first byte of the data");
        let read = Io::new(1, Op::Read, 16384 + 4096, 8192);
        assert!(finish(&mut crypt, &mut || {}, read).data.to_vec() == bytes[4096..12288]);
    }
}

#[test]
fn another_key_reads_noise() {
    let pool = Pool::new(8 << 20);
    let below = Observed::new(MemoryStore::new(64 << 10, 512, Identity::default(), &pool));
    let mut crypt = over(below.clone(), 4096, &pool);
    assert_eq!(finish(&mut crypt, &mut || {}, write(&pool, 0, &[9; 4096])).result, Ok(()));
    let part = Child::all(vec![Box::new(below)]).remove(0);
    let mut other = Crypt::open(part, cipher(8), &state(4096), WHOLE, &pool).unwrap();
    let read =
        |crypt: &mut Crypt| finish(crypt, &mut || {}, Io::new(1, Op::Read, 0, 4096)).data.to_vec();
    assert!(read(&mut crypt) == [9; 4096]);
    assert!(read(&mut other).iter().filter(|byte| **byte == 9).count() < 64);
}

/// The store's page is not changed by who reads it, nor what the writer has by who writes it.
#[test]
fn what_others_have_is_left_as_it_is() {
    let (pool, puppet) = (Pool::new(8 << 20), Puppet::new(1, Puppet::GEOMETRY));
    let mut crypt = over(puppet.clone(), 512, &pool);
    let (kept, given) = (pool.copy_of(&[5; 512]).freeze(), write(&pool, 512, &[6; 512]));
    let data = given.data.clone();
    crypt.submit(given);
    let part = puppet.take_one();
    assert!(data.to_vec() == [6; 512] && part.data.to_vec() != [6; 512]);
    puppet.succeed(&part);
    assert_eq!(polled_one(&mut crypt).result, Ok(()));
    for shared in [true, false] {
        crypt.submit(Io::new(1, Op::Read, 512, 512));
        let mut answer = Completion::new(puppet.take_one().token, Ok(()));
        let mine = if shared { kept.clone() } else { pool.copy_of(&[5; 512]).freeze() };
        let at = mine.as_ptr();
        answer.data = SegList::of(mine);
        puppet.complete(answer);
        let read = polled_one(&mut crypt).data;
        assert!(kept[..] == [5; 512] && read.to_vec() != [5; 512]);
        let in_place = read.single().is_some_and(|segment| segment.as_ptr() == at);
        assert_eq!(in_place, !shared, "what nobody else has is decrypted where it lies");
    }
}

#[test]
fn zeroes_are_written_in_pieces_of_noise() {
    let pool = Pool::new(8 << 20);
    let shape = Geometry { bytes: 1 << 20, ..Puppet::GEOMETRY };
    let puppet = Puppet::new(1, shape);
    let mut crypt = over(puppet.clone(), 4096, &pool);
    let (offset, len) = (4096, 600 << 10);
    let mut io = Io::new(7, Op::WriteZeroes, offset, len);
    io.flags = IoFlags { fua: true, no_hole: true, ..IoFlags::default() };
    crypt.submit(io);
    let mut at = offset;
    while at < offset + len {
        let piece = puppet.take_one();
        let expected = (Op::Write, true, at, (offset + len - at).min(ZEROES_BYTES));
        assert_eq!((piece.op, piece.flags.fua, piece.offset, piece.len), expected);
        let mut bytes = piece.data.to_vec();
        cipher(7).decrypt(4096, at / 4096, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        at += piece.len;
        puppet.succeed(&piece);
        assert_eq!(crypt.outstanding(), 1);
        if at < offset + len {
            let mut done = Vec::new();
            crypt.poll(&mut done);
            assert!(done.is_empty());
        }
    }
    let done = polled_one(&mut crypt);
    assert_eq!((done.token, done.result, crypt.outstanding()), (7, Ok(()), 0));
    // What fails is told of the whole.
    crypt.submit(Io::new(8, Op::WriteZeroes, 0, len));
    puppet.fail(&puppet.take_one());
    let (kind, op, module) = (ErrorKind::NoSpace, Op::WriteZeroes, "puppet");
    let error = IoError { kind, op, offset: 0, len, module };
    assert_eq!(polled_one(&mut crypt).result, Err(error));
    assert!(puppet.take().is_empty(), "nothing goes on behind that");
}

#[test]
fn all_is_data_and_nothing_is_said_to_be_zero() {
    all_is_data(CryptCanary::None);
}

/// Rule 19: a copy that trusts it would leave out what reads as noise.
#[test]
#[should_panic(expected = "nobody below is asked")]
fn zeroes_that_are_noise_are_found() {
    all_is_data(CryptCanary::ClaimsZeroes);
}

fn all_is_data(canary: CryptCanary) {
    let (pool, puppet) = (Pool::new(1 << 20), Puppet::new(1, Puppet::GEOMETRY));
    let mut crypt = over(puppet.clone(), 512, &pool);
    crypt.canary = canary;
    crypt.submit(Io::new(3, Op::BlockStatus, 512, 4096));
    assert_eq!((puppet.take().len(), crypt.outstanding()), (0, 1), "nobody below is asked");
    let done = polled_one(&mut crypt);
    assert_eq!((done.token, crypt.outstanding()), (3, 0));
    assert_eq!(done.extents, [Extent { len: 4096, hole: false, zero: false }]);
    crypt.submit(Io::new(4, Op::Discard, 512, 4096));
    let part = puppet.take_one();
    assert_eq!((part.op, part.offset, part.len), (Op::Discard, 512, 4096));
    puppet.fail(&part);
    assert!(polled_one(&mut crypt).result.is_err());
}

#[test]
fn its_shape_is_that_of_its_part_in_blocks_of_its_own() {
    let pool = Pool::new(1 << 20);
    let of = |block_bytes, io_bytes_max, features| {
        let shape = Geometry { bytes: 9216, io_bytes_max, features, ..Puppet::GEOMETRY };
        over(Puppet::new(1, shape), block_bytes, &pool).geometry()
    };
    let all = Puppet::FEATURES;
    assert_eq!(of(4096, 10_000, all).io_bytes_max, 8192);
    assert_eq!((of(4096, 1 << 20, all).bytes, of(512, 1 << 20, all).bytes), (8192, 9216));
    assert_eq!(of(512, 64 << 20, all).io_bytes_max as usize, Pool::BUF_BYTES_MAX);
    let without = Features { discard: false, write_zeroes: false, block_status: false, ..all };
    let features = of(512, 1 << 20, without).features;
    assert_eq!(features, Features { write_zeroes: true, block_status: true, ..without });
    let read_only = Features { read_only: true, ..all };
    assert!(!of(512, 1 << 20, read_only).features.write_zeroes);
    let part = Puppet::new(1, Geometry { io_bytes_max: 512, ..Puppet::GEOMETRY });
    let part = Child::all(vec![Box::new(part)]).remove(0);
    let refused = Crypt::open(part, cipher(7), &state(4096), WHOLE, &pool).err().unwrap();
    assert!(refused.to_string().contains("at most 512 bytes in one I/O"), "{refused}");
}

#[test]
fn it_is_opened_by_no_list() {
    let refused =
        MODULE.open(Puppet::boxed(&[Puppet::new(1, Puppet::GEOMETRY)]), &Options::default());
    let refused = refused.err().expect("there is no key").to_string();
    assert!(refused.contains("FILE.toml#NAME"), "{refused}");
    let block = |bytes| {
        let mut options = Options::default();
        options.set(&BLOCK, bytes);
        Crypt::block_bytes(&options)
    };
    assert_eq!(Crypt::block_bytes(&Options::default()), Ok(4096));
    assert_eq!((block(512), block(4096)), (Ok(512), Ok(4096)));
    assert!(block(1024).unwrap_err().to_string().contains("512 or 4096"));
}

fn sample() -> CryptState {
    let sealed = std::array::from_fn(|at| 0x80 + at as u8);
    CryptState::new(4096, *b"key's id", *b"random nonce", sealed)
}

#[test]
fn the_state_is_that_of_the_document_and_nothing_else_is_read() {
    let bytes = sample().encode();
    assert_eq!(bytes.len(), 112);
    assert_eq!(bytes[..8], [1, 1, 0, 0x10, 0, 0, 0, 0]);
    assert_eq!((&bytes[8..16], &bytes[16..28]), (&b"key's id"[..], &b"random nonce"[..]));
    assert_eq!(bytes[28..32], [0; 4]);
    assert!(bytes[32..].iter().zip(0x80..).all(|(byte, at)| *byte == at));
    assert_eq!(CryptState::decode(&bytes), Ok(sample()));
    assert_eq!(CryptState::context(4096, *b"key's id", &WHOLE)[..16], bytes[..16]);
    assert_eq!(CryptState::context(4096, *b"key's id", &WHOLE)[16..], WHOLE);
    for at in 0..bytes.len() {
        assert!(CryptState::decode(&bytes[..at]).is_err());
        let mut changed = bytes.clone();
        changed[at] ^= 0x40;
        match CryptState::decode(&changed) {
            Ok(state) => assert!(at >= 8 && state.encode() == changed, "byte {at}"),
            Err(fault) => assert!(fault.to_string().contains(": it "), "{fault}"),
        }
    }
    assert!(CryptState::decode(&[&bytes[..], &[0]].concat()).is_err());
    assert!(!format!("{:?}", sample()).contains("8081"), "no key is shown");
}
