//! The door: sockets for frames of no session, which anybody can send. Their queues are short and of their own, so
//! that a flood of greetings fills those and takes no place from the frames of sessions; and they are looked at
//! so seldom that answering does not take the thread's time from them (`docs/design.md`, "The door").

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

/// Receive buffer to ask for, in bytes: about a thousand greetings.
pub(crate) const DOOR_BUFFER_BYTES: u32 = 512 << 10;
/// Frames of a socket in a look, at most.
pub(crate) const DOOR_FRAMES: usize = 32;
/// Calls from one look to the next while nothing else comes, and while something does.
const CALLS_IDLE: u32 = 4;
const CALLS_BUSY: u32 = 16;

/// More may be waiting after a look that found as much as it takes: then it is a flood, until one finds less. Of
/// that so much is let in, and nobody is woken for the rest: little while other frames come, too.
const EACH_BUSY: Duration = Duration::from_micros(125);
const EACH_IDLE: Duration = Duration::from_micros(16);
/// Other frames have come this lately.
const BUSY: Duration = Duration::from_millis(10);
/// It is waited until so many may be let in, and what was not let in while nobody looked is made up for up to so many.
const LEAST: u32 = 8;
const MOST: u32 = 256;

/// When the sockets are looked at.
#[derive(Debug)]
pub(crate) struct Door {
    /// Readable while one of the sockets is, but not in a flood.
    bell: OwnedFd,
    calls: u32,
    flood: Option<Flood>,
}

#[derive(Clone, Copy, Debug)]
struct Flood {
    /// All that may be let in until then has been.
    paid_until: Instant,
    /// When other frames came last.
    busy_at: Option<Instant>,
}

impl Flood {
    /// For how long each frame is paid.
    fn each(&self, now: Instant) -> Duration {
        match self.busy_at {
            Some(at) if now.saturating_duration_since(at) < BUSY => EACH_BUSY,
            _ => EACH_IDLE,
        }
    }

    fn due_in(&self, now: Instant) -> Duration {
        (self.paid_until + LEAST * self.each(now)).saturating_duration_since(now)
    }
}

impl Door {
    /// Of these sockets, which are those of each later call.
    pub fn new<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for fd in sockets {
            epoll::add(&bell, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(Door { bell, calls: 0, flood: None })
    }

    /// How many frames are taken from each socket in this receive call, which has found nothing else so far or
    /// something: none if they are not to be looked at.
    pub fn allows(&mut self, is_idle: bool) -> usize {
        let Some(flood) = &mut self.flood else {
            self.calls += 1;
            let is_due = self.calls >= if is_idle { CALLS_IDLE } else { CALLS_BUSY };
            return if is_due { DOOR_FRAMES } else { 0 };
        };
        let now = Instant::now();
        if !is_idle {
            flood.busy_at = Some(now);
        }
        if !flood.due_in(now).is_zero() {
            return 0;
        }
        let paid = now.saturating_duration_since(flood.paid_until).as_nanos();
        DOOR_FRAMES.min((paid / flood.each(now).as_nanos()) as usize)
    }

    /// So many messages were there, in the socket that had most, of so many that were allowed.
    pub fn looked<'a>(
        &mut self,
        found: usize,
        allowed: usize,
        sockets: impl Iterator<Item = BorrowedFd<'a>>,
    ) {
        self.calls = 0;
        let is_flood = found >= allowed;
        if is_flood != self.flood.is_some() {
            let events = if is_flood { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
            for fd in sockets {
                // What is not there any more rings no bell.
                let _ = epoll::modify(&self.bell, fd, epoll::EventData::new_u64(0), events);
            }
        }
        self.flood = is_flood.then(|| {
            let now = Instant::now();
            let flood = self.flood.unwrap_or(Flood { paid_until: now, busy_at: None });
            let each = flood.each(now);
            let oldest = now.checked_sub(MOST * each).unwrap_or(now);
            let paid_until = (flood.paid_until + found as u32 * each).max(oldest);
            Flood { paid_until, ..flood }
        });
    }

    /// Readable when it is to be looked at.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// How soon to look although the bell does not ring.
    pub fn due_in(&self) -> Option<Duration> {
        self.flood.map(|flood| flood.due_in(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn rings(door: &Door) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&door.bell(), PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    #[test]
    fn an_idle_link_looks_soon_and_a_busy_one_seldom() {
        let mut door = Door::new(std::iter::empty()).unwrap();
        for (is_idle, wanted) in [(true, CALLS_IDLE), (false, CALLS_BUSY)] {
            assert_eq!((1..100).find(|_| door.allows(is_idle) > 0), Some(wanted));
            door.looked(1, DOOR_FRAMES, std::iter::empty());
        }
        assert_eq!(door.due_in(), None);
    }

    #[test]
    fn a_flood_is_let_in_little_by_little() {
        for (is_idle, each) in [(true, EACH_IDLE), (false, EACH_BUSY)] {
            let mut door = Door::new(std::iter::empty()).unwrap();
            door.looked(DOOR_FRAMES, DOOR_FRAMES, std::iter::empty());
            let begin = Instant::now();
            let mut let_in = 0;
            // However long the process stood still before its first look.
            while let_in == 0 || begin.elapsed() < 200 * each {
                let allowed = door.allows(is_idle);
                if allowed > 0 {
                    let_in += allowed as u128;
                    door.looked(allowed, allowed, std::iter::empty());
                }
            }
            // However late the last look at the clock was.
            assert!(let_in <= begin.elapsed().as_nanos() / each.as_nanos(), "{let_in}");
            assert!(let_in > 0);
            assert!(door.due_in().is_some());
        }
    }

    #[test]
    fn who_could_not_look_makes_up_for_some_of_it() {
        let mut door = Door::new(std::iter::empty()).unwrap();
        door.looked(DOOR_FRAMES, DOOR_FRAMES, std::iter::empty());
        std::thread::sleep(2 * MOST * EACH_IDLE);
        let let_in: usize = (0..20)
            .map(|_| {
                let allowed = door.allows(true);
                door.looked(allowed, allowed, std::iter::empty());
                allowed
            })
            .sum();
        assert!(let_in >= MOST as usize / 2, "{let_in}");
    }

    #[test]
    fn the_bell_rings_for_who_comes_and_not_for_a_flood() {
        let (from, to) = UnixDatagram::pair().unwrap();
        let sockets = || [to.as_fd()].into_iter();
        let mut door = Door::new(sockets()).unwrap();
        assert!(!rings(&door));
        from.send(b"hello").unwrap();
        assert!(rings(&door));
        door.looked(DOOR_FRAMES, DOOR_FRAMES, sockets());
        assert!(!rings(&door), "more than it takes");
        door.looked(1, DOOR_FRAMES, sockets());
        assert!(rings(&door), "what waited meanwhile is told of");
    }
}
