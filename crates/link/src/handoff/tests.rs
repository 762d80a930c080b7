//! What becomes of a link that fails in its threads.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;

use super::*;

/// What a [`Frail`] link does when it is asked to receive or to send.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Works,
    Panics,
}

/// A link with a fate for each direction. A frame always waits in it.
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
    fn local(&self) -> Addr {
        Addr::Sim(1)
    }
    fn frame_bytes_max(&self) -> usize {
        9000
    }
    fn frame_bytes_base(&self) -> usize {
        1280
    }
    fn room(&self) -> Room {
        Room { frames: 1, bytes: 9000 }
    }
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<()> {
        assert!(self.send == Fate::Works, "planted");
        self.sent.set(self.sent.get() + batch.len() as u64);
        batch.clear();
        Ok(())
    }
    fn recv(&mut self, _: &Pool, _: usize, _: &mut RxBatch) -> io::Result<usize> {
        assert!(self.recv == Fate::Works, "planted");
        Ok(0)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
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
    assert!(is_readable(link.fd().unwrap()));
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
