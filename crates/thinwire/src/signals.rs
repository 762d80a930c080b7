//! SIGINT, SIGTERM and SIGHUP as something to poll instead of something that interrupts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The signals that ask a process to end; a target does something else at SIGHUP.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// What is read of a signal.
type Info = [u8; size_of::<libc::signalfd_siginfo>()];

/// Ending signals of this process, taken from a descriptor. Threads made later inherit that the
/// signals do not interrupt them; so make this first.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    /// One was taken.
    has_come: AtomicBool,
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
        Ok(Signals::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The same, taken from a thread that counts them: the process may be where it takes none. Some time
    /// after the `last` that it needs has come, `give_up` is called there, and ends it.
    ///
    /// # Errors
    /// No descriptors or threads are left.
    pub fn counted(
        self,
        last: u32,
        patience: Duration,
        give_up: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (fd, passed_on) = rustix::pipe::pipe_with(
            rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK,
        )?;
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || self.count(&passed_on, last, patience, give_up))?;
        Ok(Signals::from(fd))
    }

    fn count(&self, passed_on: &OwnedFd, last: u32, patience: Duration, give_up: impl FnOnce()) {
        let (mut count, mut end) = (0, None);
        loop {
            let left = end.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return tracing::error!("cannot wait for signals: {e}"),
            }
            if end.is_some_and(|at| at <= Instant::now()) {
                return give_up();
            }
            while let Some(info) = self.read() {
                // Who leaves hundreds of them lying needs no more.
                let _ = rustix::io::write(passed_on, &info);
                count += 1;
                if count == last {
                    end = Some(Instant::now() + patience);
                }
            }
        }
    }

    /// Of which none ever comes: for tests, whose threads share one process.
    #[cfg(test)]
    pub fn none() -> Self {
        let (never, writer) = rustix::pipe::pipe().unwrap();
        let _ = rustix::fs::fcntl_setfl(&never, rustix::fs::OFlags::NONBLOCK);
        std::mem::forget(writer);
        Signals::from(never)
    }

    /// Those that a test sends: to nobody else of its process.
    #[cfg(test)]
    pub fn by_hand() -> (Self, ByHand) {
        let (fd, writer) = rustix::pipe::pipe().unwrap();
        rustix::fs::fcntl_setfl(&fd, rustix::fs::OFlags::NONBLOCK).unwrap();
        (Signals::from(fd), ByHand(writer))
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
        let info = self.read()?;
        self.has_come.store(true, Ordering::Relaxed);
        Some(i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
    }

    /// One has come, whoever has taken it, and whatever that one made of it.
    pub fn has_come(&self) -> bool {
        self.take();
        self.has_come.load(Ordering::Relaxed)
    }

    fn read(&self) -> Option<Info> {
        let mut info: Info = [0; size_of::<Info>()];
        let read = rustix::io::read(&self.fd, &mut info);
        (read == Ok(info.len())).then_some(info)
    }
}

impl From<OwnedFd> for Signals {
    fn from(fd: OwnedFd) -> Self {
        Signals { fd, has_come: AtomicBool::new(false) }
    }
}

/// See [`Signals::by_hand`].
#[cfg(test)]
pub struct ByHand(OwnedFd);

#[cfg(test)]
impl ByHand {
    /// One more to take.
    pub fn send(&self, signal: i32) {
        let mut info: Info = [0; size_of::<Info>()];
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

    /// Sends so many to a process that takes none; whether it is ended within that time.
    fn is_given_up(count: usize, within: Duration) -> bool {
        let (caught, hand) = Signals::by_hand();
        let (tell, told) = std::sync::mpsc::channel();
        let patience = Duration::from_millis(50);
        let signals = caught.counted(2, patience, move || tell.send(()).unwrap()).unwrap();
        (0..count).for_each(|_| hand.send(libc::SIGTERM));
        // The thread is not to end before the test.
        let is_told = told.recv_timeout(within).is_ok();
        let taken: Vec<_> = std::iter::from_fn(|| signals.take()).collect();
        assert_eq!(taken, vec![libc::SIGTERM; count]);
        std::mem::forget(hand);
        is_told
    }

    #[test]
    fn a_process_that_takes_no_signals_ends_after_the_last() {
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(20));
        assert!(!is_given_up(1, short));
        assert!(is_given_up(2, long) && is_given_up(3, long));
    }
}
