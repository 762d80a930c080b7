//! The ring of a thread: io_uring for all of its disks, with one system call in a turn of a shard.
//!
//! Each disk has a *seat*: a number under which its calls come back. It goes when
//! the disk is dropped; the ring goes with the last seat.
//!
//! Without a shard whatever is started goes to the kernel when the disk is polled. A shard *drives* the ring:
//! what its disks start goes together, once a turn, in [`submit`], before frames are sent, so that the disks
//! work meanwhile; the same call takes in what has ended. See `docs/design.md`, "One call a turn for all
//! disks".

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};

use io_uring::squeue::Entry;
use io_uring::{IoUring, types};

use super::engine::SLOTS;
use super::restricted;

/// Entries of the submission queue. What does not fit waits beside it for the same call.
const ENTRIES: u32 = 256;
/// How often one turn goes back to a kernel that did not take everything. What is left goes with the next.
const TRIES: usize = 8;
/// So often a disk may be polled in a turn until it is believed that nobody drives the ring any more.
const POLLS_MAX: u32 = 64;

/// So much of what has ended goes to the disks in one turn. Answering it takes some 100 us, in which new requests
/// arrive: a turn that answered all that the disks have done would leave these idle for as long.
const TURN_ENDED_BYTES: u64 = 256 << 10;
/// So much if the disks have fewer than [`FEW`] I/Os left to do: they wait for those new requests.
const TURN_ENDED_BYTES_IDLE: u64 = 128 << 10;
/// And so many I/Os; if more are left to do, as many as that.
const FEW: u64 = 8;

thread_local! {
    static RING: RefCell<Weak<RefCell<Ring>>> = const { RefCell::new(Weak::new()) };
}

/// A ring that several disks of one thread have in hand.
pub(super) type SharedRing = Rc<RefCell<Ring>>;

/// A slot and its count or negative errno.
type Ended = (u32, i32);

/// How much may still end in a turn.
#[derive(Clone, Copy, Debug)]
struct Room {
    bytes: u64,
    ios: u64,
}

impl Room {
    const ENDLESS: Room = Room { bytes: u64::MAX, ios: u64::MAX };

    /// Of a turn that finds so many I/Os with the kernel.
    fn beside(under_way: u64) -> Self {
        let bytes = if under_way < FEW { TURN_ENDED_BYTES_IDLE } else { TURN_ENDED_BYTES };
        Room { bytes, ios: under_way.max(FEW) }
    }

    fn is_left(self) -> bool {
        self.bytes > 0 && self.ios > 0
    }

    /// So many more I/Os may end, and as many bytes as beside a busy disk.
    fn add(&mut self, ios: u64) {
        if ios > 0 {
            let more = TURN_ENDED_BYTES - TURN_ENDED_BYTES_IDLE;
            self.bytes = self.bytes.saturating_add(more);
            self.ios = self.ios.saturating_add(ios);
        }
    }

    /// For one I/O with this result: a count of bytes, of whatever moves some.
    fn take(&mut self, result: i32) {
        self.bytes = self.bytes.saturating_sub(result.max(0) as u64);
        self.ios = self.ios.saturating_sub(1);
    }
}

/// Where one disk sits.
#[derive(Debug, Default)]
struct Seat {
    is_taken: bool,
    /// Of the disk, among those that have sat here: what an earlier one has left behind is nobody's.
    visit: u16,
    ended: Vec<Ended>,
}

/// The ring of a thread. It belongs to the thread that made it.
pub(super) struct Ring {
    ring: IoUring,
    seats: Vec<Seat>,
    /// What the submission queue had no room for.
    waiting: VecDeque<Entry>,
    /// Ended, and not reaped.
    unheard: usize,
    /// Some of it has ended since all were told the last time.
    has_news: bool,
    /// A shard calls [`submit`] in each turn.
    is_driven: bool,
    /// The turns of that shard.
    turns: u64,
    /// What may still end in this one.
    room: Room,
    /// Entries that went into the submission queue, and that came out of the completion queue.
    pushed: u64,
    popped: u64,
    /// System calls made.
    #[cfg(test)]
    calls: u64,
    /// How the next of them fail.
    #[cfg(test)]
    refusals: VecDeque<i32>,
}

/// The ring of this thread, or a new one. Fails where io_uring is refused (EPERM, ENOSYS) or memory is short.
pub(super) fn of_this_thread() -> io::Result<SharedRing> {
    RING.with_borrow_mut(|known| {
        if let Some(ring) = known.upgrade() {
            return Ok(ring);
        }
        let ring = Rc::new(RefCell::new(Ring::new(ENTRIES)?));
        *known = Rc::downgrade(&ring);
        Ok(ring)
    })
}

/// Keeps the ring of a thread, although none of its disks may have a seat there.
pub struct HeldRing {
    _ring: SharedRing,
}

impl HeldRing {
    /// That of this thread, or a new one; `None` where io_uring is refused.
    pub fn of_this_thread() -> Option<Self> {
        of_this_thread().ok().map(|ring| HeldRing { _ring: ring })
    }
}

fn with<R>(act: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    // A shard may be dropped when the thread's own variables have gone.
    let ring = RING.try_with(|known| known.borrow().upgrade()).ok().flatten();
    ring.map(|ring| act(&mut ring.borrow_mut()))
}

/// Once a turn of the shard that drives this thread's ring, if there is one: gives the kernel what was
/// started, and takes in what has ended, in at most one system call. True if a disk is to be polled.
pub(crate) fn submit() -> bool {
    with(Ring::submit).unwrap_or(false)
}

/// Takes in what has ended, without a system call, at the end of a turn. True if a disk is to be polled. Whoever
/// has one, in a part or outside, does so before the next wait; what is left then is taken for nobody's.
pub(crate) fn take_in() -> bool {
    with(Ring::tell).unwrap_or(false)
}

/// The ring of this thread has something to do now. A look at memory.
pub(crate) fn has_work() -> bool {
    with(Ring::has_work).unwrap_or(false)
}

/// The shard is gone.
pub(crate) fn release() {
    with(|ring| ring.is_driven = false);
}

/// What tells of completions of the disks of this thread.
pub(crate) fn fd() -> Option<RawFd> {
    with(|ring| ring.fd())
}

/// System calls that the ring of this thread has made.
#[cfg(test)]
pub(super) fn calls() -> u64 {
    with(|ring| ring.calls).unwrap_or(0)
}

/// What has ended and was taken by nobody, of all disks of this thread.
#[cfg(test)]
pub(super) fn unheard() -> usize {
    with(|ring| ring.unheard).unwrap_or(0)
}

impl Ring {
    fn new(entries: u32) -> io::Result<Self> {
        let ring = restricted::ring(entries)?;
        Ok(Ring {
            ring,
            seats: Vec::new(),
            waiting: VecDeque::new(),
            unheard: 0,
            has_news: false,
            is_driven: false,
            turns: 0,
            room: Room::beside(0),
            pushed: 0,
            popped: 0,
            #[cfg(test)]
            calls: 0,
            #[cfg(test)]
            refusals: VecDeque::new(),
        })
    }

    /// A seat for a disk. Its file is not registered: one whose calls hang would keep the files, and so the
    /// locks, of all that are, until the last of its calls has ended.
    fn sit(&mut self) -> u32 {
        let free = self.seats.iter().position(|seat| !seat.is_taken);
        let at = free.unwrap_or(self.seats.len());
        if free.is_none() {
            self.seats.push(Seat::default());
        }
        let room = SLOTS + 3;
        let seat = &mut self.seats[at];
        seat.is_taken = true;
        seat.visit = seat.visit.wrapping_add(1);
        seat.ended.reserve(room);
        self.waiting.reserve(self.seats.iter().filter(|seat| seat.is_taken).count() * room);
        at as u32
    }

    /// The disk on this seat has nothing in the kernel any more, and goes.
    fn rise(&mut self, at: u32) {
        let seat = &mut self.seats[at as usize];
        seat.is_taken = false;
        self.unheard -= seat.ended.len();
        seat.ended.clear();
    }

    /// # Safety
    /// As [`super::engine::Engine::start`].
    unsafe fn push(&mut self, entry: Entry) {
        // SAFETY: the caller's promise.
        if !self.waiting.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.waiting.push_back(entry);
        } else {
            self.pushed += 1;
        }
    }

    fn fill(&mut self) {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.waiting.front() {
            // SAFETY: promised when it was given to `push`.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.waiting.pop_front();
            self.pushed += 1;
        }
    }

    /// What the kernel has and is not done with.
    fn under_way(&mut self) -> u64 {
        let asked = self.pushed - self.ring.submission().len() as u64;
        asked - self.popped - self.ring.completion().len() as u64
    }

    /// Has the kernel take what waits, as far as it does, and waits for `want` completions. One system call,
    /// unless the kernel wants more. What has ended stays in the queue, where [`Ring::fd`] tells of it.
    fn enter(&mut self, mut want: usize) {
        for _ in 0..TRIES {
            self.fill();
            if is_to_be_tried_again(self.call(want)) {
                // It may want room for completions. What is waited for may be among those.
                self.room = Room::ENDLESS;
                if self.take_in() > 0 {
                    want = 0;
                }
                std::thread::yield_now();
            } else if self.waiting.is_empty() && self.ring.submission().is_empty() {
                return;
            }
        }
    }

    fn call(&mut self, want: usize) -> io::Result<usize> {
        #[cfg(test)]
        {
            self.calls += 1;
            if let Some(errno) = self.refusals.pop_front() {
                return Err(io::Error::from_raw_os_error(errno));
            }
        }
        self.ring.submitter().submit_and_wait(want)
    }

    fn needs_call(&mut self) -> bool {
        let queue = self.ring.submission();
        !self.waiting.is_empty() || !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Moves what has ended to the seats, as far as the turn has room for it, if there are turns. How much was not
    /// reaped.
    fn take_in(&mut self) -> usize {
        let mut completions = self.ring.completion();
        while !self.is_driven || self.room.is_left() {
            let Some(entry) = completions.next() else { break };
            self.room.take(entry.result());
            self.popped += 1;
            let data = entry.user_data();
            let (at, visit) = ((data >> 32) as u16, (data >> 48) as u16);
            let seat = &mut self.seats[usize::from(at)];
            if seat.is_taken && seat.visit == visit {
                seat.ended.push((data as u32, entry.result()));
                self.unheard += 1;
                self.has_news = true;
            }
        }
        self.unheard
    }

    /// [`Ring::take_in`] for another turn, and all who have disks are told. Who does not listen any more, such as one whose part
    /// has been removed, keeps nobody awake with it.
    fn tell(&mut self) -> bool {
        self.room = Room::beside(self.under_way());
        let is_something = self.take_in() > 0;
        self.has_news = false;
        is_something
    }

    fn has_work(&mut self) -> bool {
        let has_news = self.has_news && self.unheard > 0;
        has_news || !self.ring.completion().is_empty() || self.needs_call()
    }

    fn submit(&mut self) -> bool {
        self.is_driven = true;
        self.turns += 1;
        if self.needs_call() {
            let (alone, before) = (self.under_way() == 0, self.ring.completion().len());
            self.enter(0);
            if alone {
                // What the call has done itself, such as a copy of cached pages, keeps no disk waiting.
                let done = self.ring.completion().len().saturating_sub(before);
                self.room.add(done as u64);
            }
        }
        self.take_in() > 0
    }

    fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// What is left goes with the next try, or fails for ever.
fn is_to_be_tried_again(called: io::Result<usize>) -> bool {
    match called {
        Ok(_) => false,
        Err(error) => match error.raw_os_error() {
            // Interrupted, short of memory for requests, or with completions that wait for room: nothing is
            // lost.
            Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => true,
            _ => panic!("io_uring_enter on a ring of our own: {error}"),
        },
    }
}

/// One disk's place in a ring.
pub(super) struct Place {
    ring: SharedRing,
    at: u32,
    /// In front of each slot.
    mark: u64,
    fd: types::Fd,
    /// The turn of the last poll, and how often it was polled in that.
    polled: (u64, u32),
}

impl Place {
    /// For a disk on `file`, which is to stay open as long as there are calls on it.
    pub fn new(ring: SharedRing, file: &File) -> Self {
        let (at, visit) = {
            let ring = &mut *ring.borrow_mut();
            let at = ring.sit();
            (at, ring.seats[at as usize].visit)
        };
        let mark = u64::from(visit) << 48 | u64::from(at) << 32;
        Place { ring, at, mark, fd: types::Fd(file.as_raw_fd()), polled: (0, 0) }
    }

    /// The disk's file.
    pub fn file(&self) -> types::Fd {
        self.fd
    }

    /// # Safety
    /// As [`super::engine::Engine::start`].
    pub unsafe fn start(&mut self, slot: u32, entry: Entry) {
        // SAFETY: the caller's promise.
        unsafe { self.ring.borrow_mut().push(entry.user_data(self.mark | u64::from(slot))) }
    }

    /// What was started goes to the kernel, now or in this turn of the shard.
    pub fn enter(&mut self) {
        let ring = &mut *self.ring.borrow_mut();
        if ring.is_driven {
            let (turn, polls) = self.polled;
            self.polled = (ring.turns, if turn == ring.turns { polls + 1 } else { 1 });
            if self.polled.1 <= POLLS_MAX {
                return;
            }
            ring.room = Room::ENDLESS;
        }
        if ring.needs_call() {
            ring.enter(0);
        }
    }

    /// Appends what has ended.
    pub fn reap(&mut self, ended: &mut Vec<Ended>) {
        let ring = &mut *self.ring.borrow_mut();
        ring.take_in();
        let own = &mut ring.seats[self.at as usize].ended;
        if own.is_empty() {
            return;
        }
        ring.unheard -= own.len();
        ended.append(own);
    }

    /// Waits until one has ended. Others' that end meanwhile are kept for them.
    pub fn wait(&mut self) {
        let ring = &mut *self.ring.borrow_mut();
        while ring.seats[self.at as usize].ended.is_empty() {
            ring.enter(1);
            ring.room = Room::ENDLESS;
            ring.take_in();
        }
    }

    pub fn ring_fd(&self) -> RawFd {
        self.ring.borrow().fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.ring.borrow_mut().rise(self.at);
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
