//! What a shard watches of a block device: the descriptor that brings its requests, and a timer while its keeper is to answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// How often the shard looks for an answer of the keeper while it waits for one.
const LOOK_EVERY_NS: i64 = 5_000_000;

/// See the [module](self). Readable when the descriptor is, or the timer has fired.
pub struct Ticker {
    poll: OwnedFd,
    timer: OwnedFd,
    runs: bool,
}

impl Ticker {
    /// Over a descriptor, with the timer at rest.
    pub fn over(fd: BorrowedFd<'_>) -> io::Result<Ticker> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        for fd in [fd, timer.as_fd()] {
            epoll::add(&poll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Ticker { poll, timer, runs: false })
    }

    /// Has the timer run, or rest.
    pub fn set(&mut self, wanted: bool) -> io::Result<()> {
        if wanted != self.runs {
            let period = Timespec { tv_sec: 0, tv_nsec: if wanted { LOOK_EVERY_NS } else { 0 } };
            let spec = Itimerspec { it_interval: period, it_value: period };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
            self.runs = wanted;
        }
        Ok(())
    }

    /// True if the timer has fired since.
    pub fn take(&self) -> bool {
        self.runs && rustix::io::read(&self.timer, &mut [0; 8]).is_ok()
    }

    /// Watches the descriptor no more, which is about to go.
    pub fn leave(&self, fd: BorrowedFd<'_>) {
        // It may have been left already, or go by itself.
        let _ = epoll::delete(&self.poll, fd);
    }
}

impl AsFd for Ticker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}
