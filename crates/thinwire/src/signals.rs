//! SIGINT, SIGTERM and SIGHUP as something to poll instead of something that interrupts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The signals that ask a process to end.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Ending signals of this process, taken from a descriptor. Threads made later inherit that the
/// signals do not interrupt them; so make this first.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// From now on ending signals wait to be taken.
    pub fn catch() -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t is a valid value to pass to sigemptyset, which initialises it.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live sigset_t, and the signal numbers are valid.
        unsafe {
            libc::sigemptyset(&mut set);
            for signal in ENDING {
                libc::sigaddset(&mut set, signal);
            }
        }
        // SAFETY: `set` is initialised; the old mask is not asked for.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if failed != 0 {
            return Err(io::Error::from_raw_os_error(failed));
        }
        // SAFETY: -1 asks for a new descriptor; `set` is initialised and only read.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(Signals { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Of which none ever comes: for tests, whose threads share one process.
    #[cfg(test)]
    pub fn none() -> Self {
        let (never, writer) = rustix::pipe::pipe().unwrap();
        let _ = rustix::fs::fcntl_setfl(&never, rustix::fs::OFlags::NONBLOCK);
        std::mem::forget(writer);
        Signals { fd: never }
    }

    /// Those that a test sends: to nobody else of its process.
    #[cfg(test)]
    pub fn by_hand() -> (Self, ByHand) {
        let (fd, writer) = rustix::pipe::pipe().unwrap();
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        (Signals { fd }, ByHand(writer))
    }

    /// Readable when a signal waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Readable as well: for who gives up when another signal comes. `None` without descriptors left.
    pub fn hurry(&self) -> Option<Arc<OwnedFd>> {
        self.fd.try_clone().ok().map(Arc::new)
    }

    /// The number of a signal that came, once each. Never waits.
    pub fn take(&self) -> Option<i32> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            Ok(read) if read == info.len() => {
                Some(i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
            }
            _ => None,
        }
    }
}

/// See [`Signals::by_hand`].
#[cfg(test)]
pub struct ByHand(OwnedFd);

#[cfg(test)]
impl ByHand {
    /// One more to take.
    pub fn send(&self, signal: i32) {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        info[..4].copy_from_slice(&signal.to_ne_bytes());
        rustix::io::write(&self.0, &info).unwrap();
    }
}

/// `SIGINT` and the like.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGTERM => "SIGTERM",
        libc::SIGHUP => "SIGHUP",
        _ => "a signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The only test that touches signal masks; it raises a signal for its own thread only.
    #[test]
    fn a_signal_waits_until_taken() {
        let signals = Signals::catch().unwrap();
        assert_eq!(signals.take(), None);
        // SAFETY: raise has no preconditions; the signal is blocked in this thread.
        unsafe { libc::raise(libc::SIGHUP) };
        assert_eq!(signals.take(), Some(libc::SIGHUP));
        assert_eq!(signals.take(), None);
    }
}
