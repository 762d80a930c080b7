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
/// How often it is looked whether anything goes on while there is little memory, and else.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(1);
/// At so many looks in a row nothing has gone on: that is standing still.
const STILL_LOOKS: u32 = 3;
/// At so many there was plenty: that lasts.
const PLENTY_LOOKS: u32 = 10;
/// From `linux/mman.h`, since Linux 5.18.
const MADV_DONTNEED_LOCKED: libc::c_int = 24;

/// Held as long as this is, and up to a second longer. Its thread looks after it, at the priority of whoever makes it,
/// allocates nothing, and opens no file: either could have to wait for memory.
pub struct Ballast {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Counts what goes through the disk.
    steps: AtomicU64,
    /// The volume has something to do, so that whatever is waited for is not memory of the kernel.
    is_at_work: AtomicBool,
    is_over: AtomicBool,
    /// Pieces that were thrown off.
    thrown: AtomicU64,
}

impl Ballast {
    /// Takes it, for a machine with these marks. `None` where the kernel, older than Linux 5.18, takes no locked memory back.
    ///
    /// # Errors
    /// There is no memory, or no thread.
    pub fn take(marks: Marks) -> io::Result<Option<Ballast>> {
        let shared = Arc::new(Shared::default());
        let mut pieces = Pieces::map()?;
        if !pieces.throw_off() {
            return Ok(None);
        }
        pieces.take_back();
        let watched = shared.clone();
        std::thread::Builder::new()
            .name("ballast".to_owned())
            .spawn(move || watch(&watched, pieces, marks))?;
        Ok(Some(Ballast { shared }))
    }

    /// The face has turned: whether something has gone through the disk, and whether the volume has something to do. From one
    /// thread.
    #[inline]
    pub fn turned(&self, is_step: bool, is_at_work: bool) {
        let steps = self.shared.steps.load(Ordering::Relaxed);
        self.shared.steps.store(steps.wrapping_add(is_step.into()), Ordering::Relaxed);
        self.shared.is_at_work.store(is_at_work, Ordering::Relaxed);
    }

    /// How often a piece was thrown off.
    pub fn thrown(&self) -> u64 {
        self.shared.thrown.load(Ordering::Relaxed)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// How much free memory means what on this machine, in bytes, all zones together: what a zone keeps from those who ask for
/// another first is not free for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Below this the kernel frees some.
    low: u64,
    /// Above this it has freed enough.
    high: u64,
}

impl Marks {
    /// Those of now: who changes the kernel's later is not heard.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn read() -> io::Result<Marks> {
        let text = std::fs::read_to_string("/proc/zoneinfo")?;
        Marks::of(&text).ok_or_else(|| io::Error::other("/proc/zoneinfo has no watermarks"))
    }

    /// Out of `/proc/zoneinfo`.
    fn of(text: &str) -> Option<Marks> {
        let (mut low, mut high, mut has_any) = (0, 0, false);
        for zone in text.split("Node ").skip(1) {
            let number = |name: &str| {
                let line = zone.lines().find_map(|line| line.trim().strip_prefix(name))?;
                line.trim().parse::<u64>().ok()
            };
            let Some(managed) = number("managed").filter(|&pages| pages > 0) else { continue };
            // From those who may take from any zone, and so ask the highest first.
            let kept = zone.lines().find_map(|line| line.trim().strip_prefix("protection: ("));
            let kept = kept.and_then(|kept| kept.trim_end_matches(')').split(", ").last());
            let kept: u64 = kept?.parse().ok()?;
            low += managed.min(number("low ")? + kept);
            high += managed.min(number("high ")? + kept);
            has_any = true;
        }
        let page = rustix::param::page_size() as u64;
        has_any.then_some(Marks { low: low * page, high: high * page })
    }
}

fn watch(shared: &Shared, mut pieces: Pieces, marks: Marks) {
    let mut trim = Trim::default();
    while !shared.is_over.load(Ordering::Relaxed) {
        let info = rustix::system::sysinfo();
        let free = info.freeram as u64 * u64::from(info.mem_unit);
        let is_at_work = shared.is_at_work.load(Ordering::Relaxed);
        let steps = (!is_at_work).then(|| shared.steps.load(Ordering::Relaxed));
        match trim.look(free, marks, steps, pieces.held) {
            Some(Move::ThrowOff) => {
                pieces.throw_off();
                shared.thrown.fetch_add(1, Ordering::Relaxed);
            }
            Some(Move::TakeBack) => pieces.take_back(),
            None => {}
        }
        let is_easy = free > marks.high && pieces.held == PIECES;
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
    steps: Option<u64>,
    still: u32,
    plenty: u32,
}

impl Trim {
    /// What is to be done, where `free` bytes are left, so much has gone through the disk (`None` while its volume is at work),
    /// and so many pieces are held.
    fn look(&mut self, free: u64, marks: Marks, steps: Option<u64>, held: usize) -> Option<Move> {
        let is_still = free < marks.low && steps.is_some() && steps == self.steps;
        self.steps = steps;
        self.still = if is_still { self.still + 1 } else { 0 };
        let is_plenty = free > marks.high + PIECE_BYTES as u64;
        self.plenty = if is_plenty { self.plenty + 1 } else { 0 };
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
        // A piece of a large page that is thrown off frees nothing.
        // SAFETY: the mapping that was just made.
        let _ =
            unsafe { rustix::mm::madvise(start, PIECES * PIECE_BYTES, Advice::LinuxNoHugepage) };
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

    /// False if the kernel does not take it.
    fn throw_off(&mut self) -> bool {
        let piece = self.piece(self.held - 1);
        // SAFETY: nobody relies on what is in it.
        let result = unsafe { libc::madvise(piece.cast(), PIECE_BYTES, MADV_DONTNEED_LOCKED) };
        self.held -= usize::from(result == 0);
        result == 0
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
    const MARKS: Marks = Marks { low: 20 * MIB, high: 24 * MIB };

    #[test]
    fn it_is_thrown_off_where_nothing_goes_on_for_want_of_memory() {
        let mut trim = Trim::default();
        let mut looks = |free, steps: &[u64], held| {
            let looks = steps.iter().map(|&n| trim.look(free, MARKS, Some(n), held));
            looks.collect::<Vec<_>>()
        };
        assert_eq!(looks(17 * MIB, &[1, 2, 3, 4, 5], 8), [None; 5], "it goes on");
        assert_eq!(looks(21 * MIB, &[5; 9], 8), [None; 9], "there is memory, and nothing to do");
        let (wait, off) = (None, Some(Move::ThrowOff));
        assert_eq!(looks(17 * MIB, &[5; 6], 8), [wait, wait, off, wait, wait, off]);
        assert_eq!(looks(17 * MIB, &[5; 4], 0), [None; 4], "there is none left");
    }

    /// A target that is away gets no better by it.
    #[test]
    fn nothing_is_thrown_off_while_the_volume_is_at_work() {
        let mut trim = Trim::default();
        let looks: Vec<_> = (0..20).map(|_| trim.look(17 * MIB, MARKS, None, 8)).collect();
        assert_eq!(looks, [None; 20]);
    }

    #[test]
    fn it_is_taken_back_when_there_has_been_plenty_for_a_while() {
        let mut trim = Trim::default();
        let mut looks = |free, count: u32, held| {
            let looks = (0..count).filter_map(|n| trim.look(free, MARKS, Some(n.into()), held));
            looks.collect::<Vec<_>>()
        };
        assert_eq!(looks(25 * MIB, 50, 3), []);
        assert_eq!(looks(26 * MIB, 20, 3), [Move::TakeBack; 2]);
        assert_eq!(looks(26 * MIB, 20, PIECES), []);
    }

    #[test]
    fn what_zones_keep_from_others_is_not_free() {
        let text = "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n        min      10\n        low      13\n        \
            high     16\n        managed  3840\n        protection: (0, 3019, 24090, 24090, 24090)\n            high:     0\n\
            Node 0, zone    DMA32\n        low      2888\n        high     3660\n        managed  772917\n        \
            protection: (0, 0, 21071, 21071, 21071)\n              high_min: 6\n\
            Node 0, zone   Normal\n        low      20161\n        high     25553\n        managed  5394371\n        \
            protection: (0, 0, 0, 0, 0)\n\
            Node 0, zone  Movable\n        low      32\n        high     32\n        managed  0\n        protection: (0)\n";
        let low = 3840 + (2888 + 21071) + 20161;
        let high = 3840 + (3660 + 21071) + 25553;
        assert_eq!(Marks::of(text), Some(Marks { low: low * 4096, high: high * 4096 }));
        assert_eq!(Marks::of("nothing of the kind"), None);
        let here = Marks::read().unwrap();
        assert!(0 < here.low && here.low <= here.high, "{here:?}");
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
        assert!(pieces.throw_off() && pieces.throw_off());
        assert_eq!(resident(&pieces), (PIECES - 2) * PIECE_BYTES);
        pieces.take_back();
        assert_eq!((resident(&pieces), pieces.held), ((PIECES - 1) * PIECE_BYTES, PIECES - 1));
    }
}
