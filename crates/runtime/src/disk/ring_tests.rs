//! What may go wrong in a ring that several disks share.

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::opcode;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::restricted::COMPLETIONS_PER_ENTRY;
use super::*;

fn ring(entries: u32) -> SharedRing {
    Rc::new(RefCell::new(Ring::new(entries).unwrap()))
}

fn place(ring: &SharedRing) -> Place {
    Place::new(ring.clone(), &File::open("/dev/zero").unwrap())
}

fn start_nothing(place: &mut Place, slot: u32) {
    // SAFETY: a call of nothing has no memory.
    unsafe { place.start(slot, opcode::Nop::new().build()) }
}

/// Ends when the bell rings.
fn start_waiting(place: &mut Place, slot: u32, bell: &OwnedFd) {
    let entry = opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), libc::POLLIN as u32).build();
    // SAFETY: it has no memory, and the bell outlives it.
    unsafe { place.start(slot, entry) }
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

fn strike(bell: &OwnedFd) {
    rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
}

fn reaped(place: &mut Place) -> Vec<u32> {
    let mut ended = Vec::new();
    place.reap(&mut ended);
    ended.into_iter().map(|(slot, _)| slot).collect()
}

fn tells(ring: &SharedRing, wait: Duration) -> bool {
    let fd = ring.borrow().fd();
    // SAFETY: the ring is alive.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&wait)).unwrap() > 0
}

#[test]
fn what_a_turn_starts_goes_in_one_call_and_comes_back_to_whom_it_belongs() {
    let ring = ring(64);
    let mut places = [(); 4].map(|()| place(&ring));
    let turn = |ring: &SharedRing| ring.borrow_mut().submit();
    assert!(!turn(&ring) && ring.borrow().calls == 0, "nothing to do costs no call");
    for number in 1..=3 {
        for (at, place) in places.iter_mut().enumerate() {
            (0..5).for_each(|slot| start_nothing(place, 10 * at as u32 + slot));
            place.enter();
            assert_eq!(reaped(place), [0u32; 0]);
        }
        assert!(turn(&ring));
        assert_eq!(ring.borrow().calls, number);
        for (at, place) in places.iter_mut().enumerate() {
            let own = 10 * at as u32;
            assert_eq!(reaped(place), [own, own + 1, own + 2, own + 3, own + 4]);
        }
        assert!(!ring.borrow_mut().has_work());
    }
}

#[test]
fn more_than_the_queues_hold_gets_through() {
    let ring = ring(4);
    let mut places = [place(&ring), place(&ring)];
    for place in &mut places {
        (0..100).for_each(|slot| start_nothing(place, slot));
    }
    // Bounded: a turn does what it can, and what is left keeps the shard awake.
    let mut turns = 0;
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    while seen.iter().any(|seen| seen.len() < 100) {
        ring.borrow_mut().submit();
        turns += 1;
        for (place, seen) in places.iter_mut().zip(&mut seen) {
            seen.extend(reaped(place));
        }
        let all = seen.iter().all(|seen| seen.len() == 100);
        assert_eq!(ring.borrow_mut().has_work(), !all);
    }
    assert_eq!(turns, 200_usize.div_ceil(4 * TRIES));
}

#[test]
fn completions_that_the_queue_has_no_room_for_are_not_lost() {
    let ring = ring(4);
    let mut place = place(&ring);
    let (room, count) = (4 * COMPLETIONS_PER_ENTRY, 150);
    for slot in 0..count {
        start_nothing(&mut place, slot);
        // Nobody takes them in.
        ring.borrow_mut().call(0).unwrap();
    }
    assert!(room < count && ring.borrow_mut().ring.submission().cq_overflow());
    let mut seen = BTreeSet::new();
    for _ in 0..count {
        ring.borrow_mut().submit();
        seen.extend(reaped(&mut place));
        ring.borrow_mut().tell();
    }
    assert_eq!(seen.len(), count as usize);
    assert!(!ring.borrow_mut().has_work());
}

#[test]
fn a_kernel_that_takes_nothing_does_not_hold_the_turn() {
    let ring = ring(4);
    let mut place = place(&ring);
    start_nothing(&mut place, 7);
    for error in [libc::EAGAIN, libc::EBUSY, libc::EINTR] {
        ring.borrow_mut().refusals.extend([error; TRIES]);
        let before = ring.borrow().calls;
        assert!(!ring.borrow_mut().submit());
        assert_eq!(ring.borrow().calls, before + TRIES as u64);
        assert!(ring.borrow_mut().has_work(), "it must be tried again");
    }
    ring.borrow_mut().refusals.push_back(libc::EINTR);
    assert!(ring.borrow_mut().submit());
    assert_eq!(reaped(&mut place), [7]);
}

#[test]
fn a_disk_that_waits_for_its_own_leaves_others_theirs() {
    let ring = ring(16);
    let (mut going, mut staying) = (place(&ring), place(&ring));
    let (soon, late) = (bell(), bell());
    ring.borrow_mut().submit();
    (0..3).for_each(|slot| start_nothing(&mut staying, slot));
    start_waiting(&mut staying, 3, &late);
    start_waiting(&mut going, 0, &soon);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            strike(&soon);
        });
        going.wait();
    });
    assert_eq!(reaped(&mut going), [0]);
    drop(going);
    assert!(ring.borrow_mut().has_work(), "of whoever stays");
    assert_eq!(reaped(&mut staying), [0, 1, 2]);
    strike(&late);
    staying.wait();
    assert_eq!(reaped(&mut staying), [3]);
}

#[test]
fn what_a_disk_leaves_behind_is_not_its_successors() {
    let ring = ring(16);
    let pause = types::Timespec::from(Duration::from_millis(10));
    let mut first = place(&ring);
    // SAFETY: the kernel has read the time when this test goes on.
    unsafe { first.start(9, opcode::Timeout::new(&pause).build()) };
    first.enter();
    start_nothing(&mut first, 8);
    first.enter();
    assert_eq!(ring.borrow_mut().take_in(), 1);
    drop(first);
    assert_eq!(ring.borrow().unheard, 0);
    let mut second = place(&ring);
    assert_eq!(second.at, 0, "the same seat");
    assert!(tells(&ring, Duration::from_secs(5)), "of the pause");
    second.enter();
    assert_eq!(reaped(&mut second), [0u32; 0]);
    start_nothing(&mut second, 1);
    second.enter();
    assert_eq!(reaped(&mut second), [1]);
}

#[test]
fn each_seat_has_its_own_file_also_after_others_have_gone() {
    let ring = ring(16);
    let file = |letter: u8| {
        let mut file =
            File::from(rustix::fs::memfd_create("seat", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_all(&[letter; 8]).unwrap();
        file
    };
    let content = |place: &mut Place| {
        let mut bytes = [0; 8];
        let read = opcode::Read::new(place.file(), bytes.as_mut_ptr(), 8).offset(0).build();
        // SAFETY: the bytes stay until it is waited for.
        unsafe { place.start(0, read) };
        place.wait();
        assert_eq!(reaped(place), [0]);
        bytes[0]
    };
    let files = [file(b'a'), file(b'b'), file(b'c')];
    let mut places: Vec<_> = files.iter().map(|file| Place::new(ring.clone(), file)).collect();
    assert!(places.iter_mut().map(content).eq(*b"abc"));
    drop(places.remove(1));
    let new = file(b'd');
    let mut more = Place::new(ring.clone(), &new);
    assert_eq!((content(&mut more), content(&mut places[1])), (b'd', b'c'));
    let mut left = Vec::new();
    (&files[0]).seek(SeekFrom::Start(0)).unwrap();
    (&files[0]).read_to_end(&mut left).unwrap();
    assert_eq!(left, [b'a'; 8]);
}

/// Or a disk that hangs would keep the locks of all others of its thread, though their process is gone.
#[test]
fn a_ring_keeps_no_file_open() {
    let ring = ring(16);
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let file = File::from(OwnedFd::from(ours));
    let _place = Place::new(ring.clone(), &file);
    let mut byte = [0];
    assert!(theirs.read(&mut byte).is_err(), "it is open");
    drop(file);
    assert_eq!(theirs.read(&mut byte).unwrap(), 0, "nobody has it open");
}

/// The kernel is interrupted, and what was waited for is taken in before it is asked again.
#[test]
fn who_waits_does_not_sleep_over_what_has_come() {
    for errno in [libc::EINTR, libc::EAGAIN] {
        let ring = ring(16);
        let mut place = place(&ring);
        start_nothing(&mut place, 3);
        ring.borrow_mut().enter(0);
        ring.borrow_mut().refusals.push_back(errno);
        // Nothing else is under way that could end a wait.
        ring.borrow_mut().enter(1);
        assert_eq!(reaped(&mut place), [3]);
    }
}

#[test]
fn its_descriptor_tells_of_what_ends_and_of_nothing_else() {
    let ring = ring(16);
    let (mut place, bell) = (place(&ring), bell());
    start_waiting(&mut place, 0, &bell);
    ring.borrow_mut().submit();
    assert!(!tells(&ring, Duration::from_millis(10)));
    strike(&bell);
    assert!(tells(&ring, Duration::from_secs(5)));
    assert!(ring.borrow_mut().has_work() && ring.borrow_mut().take_in() == 1);
    assert_eq!(reaped(&mut place), [0]);
    assert!(!tells(&ring, Duration::ZERO));
}

/// Such as one that was removed and is kept for a while.
#[test]
fn what_nobody_takes_keeps_a_shard_awake_for_one_turn_only() {
    let ring = ring(16);
    let (mut heard, mut unheard) = (place(&ring), place(&ring));
    start_nothing(&mut unheard, 7);
    assert!(ring.borrow_mut().submit() && ring.borrow_mut().has_work());
    assert!(ring.borrow_mut().tell());
    assert!(!ring.borrow_mut().has_work(), "it was told");
    assert!(ring.borrow_mut().submit(), "whoever listens by then may take it");
    assert!(!ring.borrow_mut().has_work());
    // What others have is news.
    start_nothing(&mut heard, 8);
    assert!(ring.borrow_mut().submit() && ring.borrow_mut().has_work());
    assert!(ring.borrow_mut().tell());
    assert_eq!(reaped(&mut heard), [8]);
    assert!(!ring.borrow_mut().has_work());
    assert_eq!(reaped(&mut unheard), [7], "it is kept for whom it belongs to");
    assert_eq!(ring.borrow().unheard, 0);
}

/// So many reads into this memory for each of these, all of which have ended.
fn end_reads(ring: &SharedRing, places: &mut [Place; 2], each: u32, memory: &mut [u8]) {
    let before = ring.borrow_mut().ring.completion().len();
    for place in places {
        for slot in 0..each {
            let len = memory.len() as u32;
            let read = opcode::Read::new(place.file(), memory.as_mut_ptr(), len).build();
            // SAFETY: the memory stays until all have ended, below.
            unsafe { place.start(slot, read) };
        }
    }
    let ring = &mut *ring.borrow_mut();
    ring.enter(0);
    while ring.ring.completion().len() < before + 2 * each as usize {
        std::thread::yield_now();
        ring.enter(0);
    }
}

/// How many reads each turn has to answer, until none is left.
fn turns(ring: &SharedRing, places: &mut [Place; 2]) -> Vec<usize> {
    let all = |places: &mut [Place; 2]| -> usize {
        places.iter_mut().map(|place| reaped(place).len()).sum()
    };
    let mut turns = Vec::new();
    let mut is_left = true;
    while is_left {
        ring.borrow_mut().tell();
        turns.push(all(places));
        ring.borrow_mut().submit();
        assert_eq!(all(places), 0, "however often it is polled");
        is_left = ring.borrow_mut().has_work();
    }
    turns
}

#[test]
fn a_turn_has_no_more_to_answer_than_keeps_disks_waiting_for_long() {
    // Of a device a read is short if its thread is wanted elsewhere meanwhile, and a turn has room for more of those.
    let file =
        File::from(rustix::fs::memfd_create("turns", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(128 << 10).unwrap();
    let mut memory = vec![0; 128 << 10];
    let ring = ring(64);
    let mut places = [(); 2].map(|()| Place::new(ring.clone(), &file));
    ring.borrow_mut().submit();
    end_reads(&ring, &mut places, 3, &mut memory);
    assert_eq!(turns(&ring, &mut places), [1; 6]);
    end_reads(&ring, &mut places, 10, &mut memory[..4096]);
    assert_eq!(turns(&ring, &mut places), [8, 8, 4]);
    // Disks that have more to do lose nothing by that.
    let bell = bell();
    let mut busy = place(&ring);
    (0..15).for_each(|slot| start_waiting(&mut busy, slot, &bell));
    ring.borrow_mut().submit();
    end_reads(&ring, &mut places, 3, &mut memory);
    assert_eq!(turns(&ring, &mut places), [2; 3]);
    end_reads(&ring, &mut places, 10, &mut memory[..4096]);
    assert_eq!(turns(&ring, &mut places), [15, 5]);
    strike(&bell);
    let mut ended = 0;
    while ended < 15 {
        busy.wait();
        ended += reaped(&mut busy).len();
    }
    // Who waits for its own does not wait for turns.
    end_reads(&ring, &mut places, 3, &mut memory);
    ring.borrow_mut().submit();
    for place in &mut places {
        let mut count = 0;
        while count < 3 {
            place.wait();
            count += reaped(place).len();
        }
    }
    // Nor do those without a shard.
    end_reads(&ring, &mut places, 3, &mut memory);
    ring.borrow_mut().is_driven = false;
    assert_eq!(places.each_mut().map(|place| reaped(place).len()), [3; 2]);
}

/// Such as reads of cached pages: there is nobody who waits for requests meanwhile.
#[test]
fn a_turn_answers_what_its_own_call_has_done_beside_what_was_left() {
    let zero = File::open("/dev/zero").unwrap();
    let ring = ring(64);
    let mut places = [(); 2].map(|()| Place::new(ring.clone(), &zero));
    ring.borrow_mut().submit();
    end_reads(&ring, &mut places, 15, &mut [0; 512]);
    ring.borrow_mut().tell();
    let count = |places: &mut [Place; 2]| places.each_mut().map(|place| reaped(place).len());
    assert_eq!(count(&mut places).iter().sum::<usize>(), FEW as usize);
    for place in &mut places {
        (20..30).for_each(|slot| start_nothing(place, slot));
    }
    ring.borrow_mut().submit();
    assert_eq!(count(&mut places).iter().sum::<usize>(), 20);
    ring.borrow_mut().tell();
    assert_eq!(count(&mut places).iter().sum::<usize>(), FEW as usize);
}

#[test]
fn a_disk_whose_shard_turns_no_more_helps_itself() {
    let ring = ring(16);
    let mut place = place(&ring);
    ring.borrow_mut().submit();
    start_nothing(&mut place, 4);
    for _ in 0..POLLS_MAX {
        place.enter();
        assert_eq!(reaped(&mut place), [0u32; 0]);
    }
    place.enter();
    assert_eq!(reaped(&mut place), [4]);
    // From now on at once, until a shard turns.
    start_nothing(&mut place, 5);
    place.enter();
    assert_eq!(reaped(&mut place), [5]);
    ring.borrow_mut().submit();
    start_nothing(&mut place, 6);
    place.enter();
    assert_eq!(reaped(&mut place), [0u32; 0]);
}
