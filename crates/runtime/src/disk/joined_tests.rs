//! Joined reads over an engine that is as rough as a disk may be: calls that end in any order, short, in the middle of
//! one of several reads, not at all, or with an error that only one of them is to be told.

use std::collections::BTreeSet;
use std::fs::File;

use thinwire_buffer::{Pool, SegList};
use thinwire_link::rng::Rng;

use super::tests::with_engine;
use super::*;

/// Reads lie below, writes between here and the end.
const READ_BYTES: u64 = 4 << 20;
const SECTOR: u64 = 512;
/// No call is for more (`docs/design.md`, "One call a turn for all disks").
const JOINED_BYTES_MAX: usize = 128 << 10;

/// A fault of the engine, which shows what a fault of the joining would look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    None,
    /// What fails with others is an error of them all.
    Together,
    /// A call that goes on in the middle of a read begins at the front of that once more.
    FromTheFront,
    /// The last of several reads has what the one before it was to have.
    Shifted,
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Calls for several reads.
    joined: u64,
    /// Of those, for reads of both requests.
    of_two: u64,
    /// That ended in the middle of a read, and of one that was not the first.
    short: u64,
    /// That failed, and of which some reads succeeded.
    failed: u64,
    /// Reads that failed.
    errors: u64,
}

/// The byte there.
fn byte(at: u64) -> u8 {
    let word = (at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> (at % 8 * 8)) as u8 ^ (word >> 61) as u8
}

struct Rough {
    rng: Rng,
    planted: Planted,
    /// Calls under way, with how each will end.
    started: Vec<(u32, i32)>,
    /// Where reading fails, by sector.
    bad: BTreeSet<u64>,
    /// Ends of the memory of reads that were to be told an error: nobody else may be.
    failed: BTreeSet<usize>,
    /// Those that were in a call which failed.
    tainted: BTreeSet<usize>,
    /// The memory of the second request's reads, by its end.
    of_second: BTreeSet<usize>,
    seen: Seen,
}

impl Rough {
    fn new(rng: Rng, planted: Planted) -> Self {
        let mut rough = Rough {
            rng,
            planted,
            started: Vec::new(),
            bad: BTreeSet::new(),
            failed: BTreeSet::new(),
            tainted: BTreeSet::new(),
            of_second: BTreeSet::new(),
            seen: Seen::default(),
        };
        for _ in 0..rough.rng.below(40) {
            rough.bad.insert(rough.rng.below(READ_BYTES / SECTOR));
        }
        rough
    }

    /// How a read of so many bytes ends: what it returns.
    fn result(&mut self, offset: u64, len: usize) -> i32 {
        let rng = &mut self.rng;
        let end = offset + len as u64;
        let bad = self.bad.range(offset / SECTOR..end.div_ceil(SECTOR)).next();
        let good = bad.map_or(len, |sector| (sector * SECTOR).saturating_sub(offset) as usize);
        match rng.below(20) {
            0 => -libc::EINTR,
            1 => -libc::EAGAIN,
            2 => -libc::EIO,
            3 => 0,
            _ if good == 0 || (good < len && rng.chance(0.5)) => -libc::EIO,
            4..=9 => rng.between(1, good as u64) as i32,
            10..=12 if good as u64 > SECTOR => {
                (rng.between(1, good as u64 / SECTOR) * SECTOR) as i32
            }
            _ => good as i32,
        }
    }

    /// Does a read into these pieces: as much as it returns, and nobody knows what beyond that. `is_joined`: of several
    /// reads, though all but one may have their bytes already.
    fn read(&mut self, slot: u32, pieces: &mut [&mut [u8]], offset: u64, is_joined: bool) {
        let end_of = |piece: &[u8]| piece.as_ptr() as usize + piece.len();
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        assert!(!is_joined || len <= JOINED_BYTES_MAX, "{len} bytes in one call");
        let mut result = self.result(offset, len);
        let is_failure = result == 0 || result == -libc::EIO;
        if self.planted == Planted::Together && !is_joined && !is_failure {
            let is_tainted = self.tainted.contains(&end_of(pieces[0]));
            if is_tainted {
                return self.started.push((slot, -libc::EIO));
            }
        }
        match (is_joined, is_failure) {
            (true, true) => {
                self.seen.failed += 1;
                self.tainted.extend(pieces.iter().map(|piece| end_of(piece)));
            }
            (false, true) => _ = self.failed.insert(end_of(pieces[0])),
            (true, false) => {
                let first = pieces[0].len() as i32;
                self.seen.short += u64::from(result > first && result < len as i32);
            }
            (false, false) => {}
        }
        if is_joined {
            self.seen.joined += 1;
            let of_second = |piece: &&mut [u8]| self.of_second.contains(&end_of(piece));
            let count = pieces.iter().filter(|piece| of_second(piece)).count();
            self.seen.of_two += u64::from(count > 0 && count < pieces.len());
        }
        let front = pieces[0].as_ptr() as u64 & 4095;
        let mut moved = 0;
        let last = pieces.len() - 1;
        for (number, piece) in pieces.iter_mut().enumerate() {
            let wrong = match self.planted {
                // The rest of a buffer, which begins at a page.
                Planted::FromTheFront => front,
                Planted::Shifted if is_joined && number == last => SECTOR,
                _ => 0,
            };
            for place in piece.iter_mut() {
                let right = byte((offset + moved as u64).wrapping_sub(wrong));
                *place = if moved < result { right } else { !right };
                moved += 1;
            }
        }
        if result == -libc::EIO && self.rng.chance(0.1) {
            result = 0;
        }
        self.started.push((slot, result));
    }
}

impl Engine for Rough {
    unsafe fn start(&mut self, slot: u32, request: SystemCall) {
        match request {
            SystemCall::Read { at, len, offset } => {
                // SAFETY: so many initialised bytes, which are this call's alone.
                let place = unsafe { std::slice::from_raw_parts_mut(at, len as usize) };
                self.read(slot, &mut [place], offset, false);
            }
            SystemCall::ReadPieces { pieces, count, offset } => {
                // SAFETY: the slot that the list is of waits for this call.
                let pieces = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
                let place = |piece: &libc::iovec| {
                    // SAFETY: as above; no two pieces are of one buffer.
                    unsafe {
                        std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len)
                    }
                };
                let mut places: Vec<&mut [u8]> = pieces.iter().map(place).collect();
                self.read(slot, &mut places, offset, true);
            }
            SystemCall::Write { pieces, count, .. } => {
                // SAFETY: as above.
                let pieces = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
                let len = pieces.iter().map(|piece| piece.iov_len as i32).sum();
                self.started.push((slot, len));
            }
            SystemCall::Sync | SystemCall::Nothing => self.started.push((slot, 0)),
            other => panic!("{other:?}"),
        }
    }

    fn enter(&mut self) {}

    /// Some of them, in any order.
    fn reap(&mut self, ended: &mut Vec<(u32, i32)>) {
        let count = self.started.len() as u64;
        for _ in 0..self.rng.between(0, count) {
            let at = self.rng.below(self.started.len() as u64) as usize;
            ended.push(self.started.swap_remove(at));
        }
    }

    /// Somebody lets go of the disk.
    fn wait(&mut self) {
        assert!(!self.started.is_empty(), "it waits for what was never asked");
    }

    fn fd(&self) -> RawFd {
        panic!("nobody waits for it");
    }
}

/// A read that is with the disk: where its memory ends, and what it is of.
struct Asked {
    end: usize,
    offset: u64,
}

/// Two requests read on, each from front to back, in parts, sometimes at one place, beside writes and syncs; what each
/// part is told must be right.
fn run(seed: u64, planted: Planted) -> Result<Seen, String> {
    let mut rng = Rng::new(seed);
    let engine = Rough::new(Rng::new(rng.bits()), planted);
    let mut disk = with_engine(engine, Arc::new(File::open("/dev/zero").unwrap()));
    let (pool, mut done) = (Pool::new(64 << 20), Vec::new());
    let mut asked: Vec<Option<Asked>> = Vec::new();
    let mut heads = [0, rng.below(READ_BYTES / SECTOR) * SECTOR];
    let mut left = 300;
    let mut polls = 0;
    while left > 0 || asked.iter().any(Option::is_some) {
        for _ in 0..rng.between(0, 24).min(left) {
            left -= 1;
            let token = asked.len() as u64;
            let most = 1 << rng.between(1, 7);
            let len = rng.between(1, most) * SECTOR;
            if rng.chance(0.1) {
                let (kind, len) = match rng.chance(0.5) {
                    true => (DiskOpKind::Flush, 0),
                    false => {
                        let data = SegList::of(pool.get_zeroed(len as usize).freeze());
                        (DiskOpKind::Write { data, fua: false }, len)
                    }
                };
                asked.push(Some(Asked { end: 0, offset: READ_BYTES }));
                disk.submit(DiskOp { token, offset: READ_BYTES, len, kind });
                continue;
            }
            let second = usize::from(rng.chance(0.3));
            if rng.chance(0.05) {
                // The one reads on where the other is.
                heads[second] = heads[1 - second];
            }
            if rng.chance(0.05) || heads[second] + len > READ_BYTES {
                heads[second] = rng.below((READ_BYTES - len) / SECTOR) * SECTOR;
            }
            let offset = heads[second];
            heads[second] += len;
            if rng.chance(0.3) {
                heads[1 - second] = heads[second];
            }
            let buf = pool.get(len as usize);
            let end = buf.as_ptr() as usize + buf.len();
            let rough = &mut disk.engine;
            // It was another read's before.
            for set in [&mut rough.failed, &mut rough.tainted, &mut rough.of_second] {
                set.remove(&end);
            }
            if second == 1 {
                rough.of_second.insert(end);
            }
            asked.push(Some(Asked { end, offset }));
            disk.submit(DiskOp { token, offset, len, kind: DiskOpKind::Read(buf) });
        }
        disk.poll(&mut done);
        polls += 1;
        assert!(polls < 10_000, "seed {seed}: it gets nowhere");
        for DiskDone { token, result, kind } in done.drain(..) {
            let asked = asked.get_mut(token as usize).and_then(Option::take);
            let Some(Asked { end, offset }) = asked else {
                return Err(format!("{token} is told twice"));
            };
            let DiskOpKind::Read(buf) = kind else { continue };
            let is_due = disk.engine.failed.contains(&end);
            disk.engine.seen.errors += u64::from(result.is_err());
            if result.is_err() != is_due {
                return Err(format!("{token} is told {result:?}, an error is due: {is_due}"));
            }
            let is_wrong = |(at, found): (usize, &u8)| *found != byte(offset + at as u64);
            if result.is_ok() && buf.iter().enumerate().any(is_wrong) {
                return Err(format!("{token} of {} bytes has other bytes", buf.len()));
            }
        }
    }
    Ok(disk.engine.seen)
}

#[test]
fn each_of_several_reads_in_a_call_is_told_its_own() {
    let mut sum = Seen::default();
    for seed in 0..100 {
        let seen = run(seed, Planted::None).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        sum.joined += seen.joined;
        sum.of_two += seen.of_two;
        sum.short += seen.short;
        sum.failed += seen.failed;
        sum.errors += seen.errors;
    }
    let Seen { joined, of_two, short, failed, errors } = sum;
    println!("{sum:?}");
    assert!([joined, of_two, short, failed, errors].iter().all(|&n| n > 1000), "{sum:?}");
}

/// An engine that behaves as broken joining would is found by one of the first seeds.
#[test]
fn what_tells_one_the_answer_of_another_is_found() {
    for planted in [Planted::Together, Planted::FromTheFront, Planted::Shifted] {
        let found = (0..10).find(|&seed| run(seed, planted).is_err());
        assert!(found.is_some(), "{planted:?} survives");
    }
}
