//! What becomes of a link that fails.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use thinwire_buffer::{Addr, Buf, FrameSizes, Lender, Lent, Room, SegList};

use super::*;
use crate::WAITING_FRAMES_MAX;

/// What a [`Frail`] link does when it is asked to receive or to send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Works,
    /// Takes nothing.
    Blocks,
    Fails,
    Panics,
}

impl Fate {
    fn come(self) -> io::Result<()> {
        match self {
            Fate::Works | Fate::Blocks => Ok(()),
            Fate::Fails => Err(io::ErrorKind::NotConnected.into()),
            Fate::Panics => panic!("planted"),
        }
    }
}

/// A piece of memory that a link owns.
struct Own(Vec<u8>);

impl Lent for Own {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
    fn lender(&self) -> Option<Rc<dyn Lender>> {
        None
    }
}

/// A link with a fate for each direction, which comes after a frame in memory of its own.
struct Frail {
    recv: Fate,
    send: Fate,
    bell: OwnedFd,
    sent: Cell<u64>,
}

fn frail(recv: Fate, send: Fate) -> Box<dyn Link> {
    let bell = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
    Box::new(Frail { recv, send, bell, sent: Cell::new(0) })
}

impl Link for Frail {
    fn name(&self) -> &str {
        "frail"
    }
    fn info(&self) -> LinkInfo {
        let frame_bytes = FrameSizes { base: 1280, max: 9000 };
        let room = Room { frames: 1, bytes: 9000 };
        LinkInfo { addr: Addr::Sim(1), frame_bytes, room }
    }
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.send.come()?;
        if self.send != Fate::Blocks {
            self.sent.set(self.sent.get() + batch.len() as u64);
            batch.clear();
        }
        Ok(Outgoing { unsent: 3, ..Outgoing::default() })
    }
    fn recv(&mut self, _: &Pool, _: usize, out: &mut RxBatch) -> io::Result<usize> {
        let bytes = Buf::lent(Box::new(Own(vec![7; 1000]))).freeze();
        let (rest, waited, queued) = (SegList::new(), Duration::ZERO, Duration::ZERO);
        out.push_back(RxFrame { from: Addr::Sim(2), bytes, rest, waited, queued });
        self.recv.come()?;
        Ok(1)
    }
    fn sources(&self) -> Sources<'_> {
        [Some(self.bell.as_fd()), None, None]
    }
    fn due_in(&mut self) -> Option<Duration> {
        None
    }
    fn stats(&self) -> LinkStats {
        LinkStats { tx_frames: self.sent.get(), ..LinkStats::default() }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let limit = Timespec::try_from(Duration::from_secs(10)).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

#[test]
fn the_end_of_the_network_thread_wakes_the_owner_and_is_an_error_for_good() {
    let pipeline = Pipeline { receive_thread: true, send_thread: false };
    let mut link = HandoffLink::new(frail(Fate::Panics, Fate::Works), pipeline).unwrap();
    assert!(is_readable(link.sources()[0].unwrap()));
    let pool = Pool::new(1 << 20);
    for _ in 0..2 {
        let error = link.recv(&pool, 1, &mut RxBatch::new()).unwrap_err();
        assert!(error.to_string().contains("receives has ended"), "{error}");
    }
    // The other direction has nothing to do with it.
    link.send(&mut TxBatch::new()).unwrap();
}

#[test]
fn the_end_of_the_sending_thread_gives_everything_back_and_is_an_error_for_good() {
    let pipeline = Pipeline { receive_thread: false, send_thread: true };
    let mut link = HandoffLink::new(frail(Fate::Works, Fate::Panics), pipeline).unwrap();
    let pool = Pool::new(1 << 20);
    let mut failed = 0;
    for _ in 0..1000 {
        let mut batch = TxBatch::new();
        batch.push(Addr::Sim(2)).data.push(pool.copy_of(&[7; 4096]).freeze());
        if let Err(error) = link.send(&mut batch) {
            assert!(error.to_string().contains("sends has ended"), "{error}");
            failed += 1;
        } else {
            assert_eq!(failed, 0, "it does not come back");
        }
        assert!(batch.is_empty());
        if failed == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(failed, 2);
    assert_eq!(pool.stats().live_bytes, 0, "payloads came back");
    assert_eq!(link.stats().tx_frames, 0);
}

#[test]
fn what_waits_in_the_link_is_told_unless_a_thread_sends() {
    for (send_thread, unsent) in [(false, 3), (true, 0)] {
        let pipeline = Pipeline { receive_thread: true, send_thread };
        let mut link = HandoffLink::new(frail(Fate::Works, Fate::Works), pipeline).unwrap();
        assert_eq!(link.send(&mut TxBatch::new()).unwrap().unsent, unsent);
    }
}

#[test]
fn a_queue_that_takes_nothing_holds_nobody_up_for_long() {
    let pipeline = Pipeline { receive_thread: false, send_thread: true };
    let mut link = HandoffLink::new(frail(Fate::Works, Fate::Blocks), pipeline).unwrap();
    let pool = Pool::new(1 << 20);
    let frames = WAITING_FRAMES_MAX as u64 + 100;
    for _ in 0..frames {
        let mut batch = TxBatch::new();
        batch.push(Addr::Sim(2)).data.push(pool.copy_of(&[7; 4096]).freeze());
        link.send(&mut batch).unwrap();
        assert!(batch.is_empty());
    }
    assert!(link.stats().tx_dropped >= 90, "the last are too many");
    // What waits is given up at once when the queue is, not batch by batch.
    let start = Instant::now();
    while link.stats().tx_dropped < frames && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(link.stats().tx_dropped, frames);
    drop(link);
    assert_eq!(pool.stats().live_bytes, 0, "payloads came back");
}

#[test]
fn no_memory_of_the_link_leaves_the_lock_whatever_becomes_of_the_call() {
    let pool = Pool::new(1 << 20);
    for fate in [Fate::Works, Fate::Fails, Fate::Panics] {
        let pipeline = Pipeline { receive_thread: false, send_thread: true };
        let mut link = HandoffLink::new(frail(fate, Fate::Works), pipeline).unwrap();
        let mut out = RxBatch::new();
        let got = catch_unwind(AssertUnwindSafe(|| link.recv(&pool, 1, &mut out)));
        assert_eq!(matches!(got, Ok(Ok(1))), fate == Fate::Works);
        if fate == Fate::Panics {
            assert!(got.is_err() && out.is_empty());
            continue;
        }
        assert!(out.len() == 1 && !out[0].bytes.is_lent());
        assert_eq!(out[0].bytes[..], [7; 1000]);
        assert_eq!(link.stats().copied_bytes, 1000);
    }
    // With a network thread what came before the error is handed over, too.
    let pipeline = Pipeline { receive_thread: true, send_thread: false };
    let mut link = HandoffLink::new(frail(Fate::Fails, Fate::Works), pipeline).unwrap();
    assert!(is_readable(link.sources()[0].unwrap()));
    let mut out = RxBatch::new();
    while link.recv(&pool, 1, &mut out).is_ok() {}
    assert_eq!((out.len(), link.stats().copied_bytes), (1, 1000));
}
