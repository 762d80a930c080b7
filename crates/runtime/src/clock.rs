//! Where time and randomness come from: the only place.

use std::time::Instant;

use thinwire_proto::Time;

/// The monotonic clock of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Clock { start: Instant::now() }
    }

    /// The time now. Reads the vDSO clock: about 30 ns.
    pub fn now(&self) -> Time {
        // Starts at one second, so that "long ago" can be expressed.
        Time(1_000_000_000 + self.start.elapsed().as_nanos() as u64)
    }

    /// The instant of a time, for those who sleep by instants.
    pub fn instant(&self, time: Time) -> Instant {
        self.start + std::time::Duration::from_nanos(time.0.saturating_sub(1_000_000_000))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

/// 32 bytes from the kernel that nobody can guess, for keys.
pub fn entropy_bytes() -> [u8; 32] {
    let mut bytes = [0u8; 32];
    // SAFETY: the pointer and length describe a live buffer that the call fills.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, 32, "getrandom gives up to 256 bytes at once when the kernel is up");
    bytes
}

/// An unpredictable number from the kernel, for seeds.
pub fn entropy() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the pointer and length describe a live buffer that the call fills.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(got, 8, "getrandom gives eight bytes once the kernel is up");
    u64::from_ne_bytes(bytes)
}
