//! Memory to be thrown off when a machine that swaps to this disk stands still.
//!
//! Below its lowest watermark a kernel gives memory to those alone that free some. Neither a loop device's worker nor FUSE
//! counts among them, though they carry what is swapped out: one that needs a page then waits for pages that only it could
//! free (seen in guests: `fuse_io_alloc` under `loop_rootcg_workfn`, in direct reclaim for good). So a process that carries
//! a disk holds some memory more than it needs, and gives a piece of that back whenever nothing has gone through its disk for
//! a while though there is next to no memory. It takes the piece again when there is plenty.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// How much is thrown off at a time, and how often at most before there is plenty again.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = 8;
const PAGE_BYTES: usize = 4096;
/// How often it is looked whether anything goes on, and whether there is plenty.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// At so many looks in a row nothing has gone on: that is standing still.
const STILL_LOOKS: u32 = 3;
/// At so many there was plenty: that lasts.
const PLENTY_LOOKS: u32 = 10;
/// Where there is more than so many times the lowest watermark nothing is looked at closely.
const EASE: u64 = 4;
const SELDOM: Duration = Duration::from_secs(1);
/// From `linux/mman.h`, since Linux 5.18.
const MADV_DONTNEED_LOCKED: libc::c_int = 24;

/// Held as long as this is. Its thread looks after it, at the priority of whoever makes it, allocates nothing, and opens
/// no file: either could have to wait for memory.
pub struct Ballast {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Counts what goes through the disk.
    steps: AtomicU64,
    is_over: AtomicBool,
}

impl Ballast {
    /// Takes it, for a machine whose lowest watermark is at `bottom` bytes.
    ///
    /// # Errors
    /// There is no memory, or no thread.
    pub fn take(bottom: u64) -> io::Result<Ballast> {
        let shared = Arc::new(Shared::default());
        let pieces = Pieces::map()?;
        let watched = shared.clone();
        std::thread::Builder::new()
            .name("ballast".to_owned())
            .spawn(move || watch(&watched, pieces, bottom))?;
        Ok(Ballast { shared })
    }

    /// Something has gone through the disk. From one thread.
    #[inline]
    pub fn goes_on(&self) {
        let steps = self.shared.steps.load(Ordering::Relaxed);
        self.shared.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// The lowest watermark of this machine, in bytes.
///
/// # Errors
/// The kernel does not say.
pub fn lowest_watermark() -> io::Result<u64> {
    let kib = std::fs::read_to_string("/proc/sys/vm/min_free_kbytes")?;
    let kib: u64 = kib.trim().parse().map_err(io::Error::other)?;
    Ok(kib << 10)
}

fn watch(shared: &Shared, mut pieces: Pieces, bottom: u64) {
    let mut trim = Trim::default();
    while !shared.is_over.load(Ordering::Relaxed) {
        let info = rustix::system::sysinfo();
        let free = info.freeram as u64 * u64::from(info.mem_unit);
        let steps = shared.steps.load(Ordering::Relaxed);
        match trim.look(free, bottom, steps, pieces.held) {
            Some(Move::ThrowOff) => pieces.throw_off(),
            Some(Move::TakeBack) => pieces.take_back(),
            None => {}
        }
        let is_easy = free > EASE * bottom && pieces.held == PIECES;
        std::thread::sleep(if is_easy { SELDOM } else { LOOK_EVERY });
    }
}

/// What is done with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    ThrowOff,
    TakeBack,
}

/// What was seen lately.
#[derive(Default)]
struct Trim {
    steps: u64,
    still: u32,
    plenty: u32,
}

impl Trim {
    /// What is to be done, where `free` bytes are left, so much has gone through the disk, and so many pieces are held.
    fn look(&mut self, free: u64, bottom: u64, steps: u64, held: usize) -> Option<Move> {
        // Where the kernel begins to free some, and where it has freed enough, with room for a piece.
        let (low, plenty) = (bottom + bottom / 4, 2 * bottom + PIECE_BYTES as u64);
        let is_still = free < low && steps == self.steps;
        self.steps = steps;
        self.still = if is_still { self.still + 1 } else { 0 };
        self.plenty = if free > plenty { self.plenty + 1 } else { 0 };
        if self.still >= STILL_LOOKS && held > 0 {
            self.still = 0;
            return Some(Move::ThrowOff);
        }
        if self.plenty >= PLENTY_LOOKS && held < PIECES {
            self.plenty = 0;
            return Some(Move::TakeBack);
        }
        None
    }
}

/// The memory: the first `held` pieces are there.
struct Pieces {
    start: *mut u8,
    held: usize,
}

// SAFETY: the mapping is this value's alone, wherever it is.
unsafe impl Send for Pieces {}

impl Pieces {
    fn map() -> io::Result<Pieces> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PIECES * PIECE_BYTES,
                protection,
                flags,
            )?
        };
        let mut pieces = Pieces { start: start.cast(), held: 0 };
        (0..PIECES).for_each(|_| pieces.take_back());
        Ok(pieces)
    }

    fn piece(&self, at: usize) -> *mut u8 {
        assert!(at < PIECES);
        // SAFETY: the mapping holds so many.
        unsafe { self.start.add(at * PIECE_BYTES) }
    }

    /// Touches the next piece: it is locked in memory then, as all that the process touches.
    fn take_back(&mut self) {
        let piece = self.piece(self.held);
        for at in (0..PIECE_BYTES).step_by(PAGE_BYTES) {
            // SAFETY: within the piece, which nobody else writes or reads.
            unsafe { piece.add(at).write_volatile(1) };
        }
        self.held += 1;
    }

    fn throw_off(&mut self) {
        self.held -= 1;
        let piece = self.piece(self.held);
        // SAFETY: nobody relies on what is in it.
        let locked = unsafe { libc::madvise(piece.cast(), PIECE_BYTES, MADV_DONTNEED_LOCKED) };
        if locked != 0 {
            // An older kernel, or memory that is not locked.
            // SAFETY: as above.
            unsafe {
                let _ = rustix::mm::munlock(piece.cast(), PIECE_BYTES);
                let _ = rustix::mm::madvise(piece.cast(), PIECE_BYTES, Advice::LinuxDontNeed);
            }
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), PIECES * PIECE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_thrown_off_where_nothing_goes_on_for_want_of_memory() {
        let mut trim = Trim::default();
        let mut looks = |free, steps: &[u64], held| {
            steps.iter().map(|&n| trim.look(free, 16 * MIB, n, held)).collect::<Vec<_>>()
        };
        assert_eq!(looks(17 * MIB, &[1, 2, 3, 4, 5], 8), [None; 5], "it goes on");
        assert_eq!(looks(21 * MIB, &[5; 9], 8), [None; 9], "there is memory, and nothing to do");
        let (wait, off) = (None, Some(Move::ThrowOff));
        assert_eq!(looks(17 * MIB, &[5; 6], 8), [wait, wait, off, wait, wait, off]);
        assert_eq!(looks(17 * MIB, &[5; 4], 0), [None; 4], "there is none left");
    }

    #[test]
    fn it_is_taken_back_when_there_has_been_plenty_for_a_while() {
        let mut trim = Trim::default();
        let mut looks = |free, count: u32, held| {
            let looks = (0..count).filter_map(|n| trim.look(free, 16 * MIB, n.into(), held));
            looks.collect::<Vec<_>>()
        };
        assert_eq!(looks(30 * MIB, 50, 3), []);
        assert_eq!(looks(40 * MIB, 20, 3), [Move::TakeBack; 2]);
        assert_eq!(looks(40 * MIB, 20, PIECES), []);
    }

    /// The pages of its memory that are there.
    fn resident(pieces: &Pieces) -> usize {
        let mut pages = vec![0_u8; PIECES * PIECE_BYTES / PAGE_BYTES];
        // SAFETY: the mapping is that long, and so is what is told of it.
        let result =
            unsafe { libc::mincore(pieces.start.cast(), PIECES * PIECE_BYTES, pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count() * PAGE_BYTES
    }

    #[test]
    fn what_is_thrown_off_is_the_kernels_again() {
        let mut pieces = Pieces::map().unwrap();
        assert_eq!(resident(&pieces), PIECES * PIECE_BYTES);
        pieces.throw_off();
        pieces.throw_off();
        assert_eq!(resident(&pieces), (PIECES - 2) * PIECE_BYTES);
        pieces.take_back();
        assert_eq!((resident(&pieces), pieces.held), ((PIECES - 1) * PIECE_BYTES, PIECES - 1));
    }
}
