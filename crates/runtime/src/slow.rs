//! Who holds a shard: in debug builds each step of a node is timed, and one that took longer than a
//! millisecond is told. Nobody else of the shard was served meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use thinwire_proto::Time;

use crate::clock::Clock;

/// What a step may take. Longer ones belong into a thread of their own.
const STEP_MAX: Duration = Duration::from_millis(1);

/// Times one step after the other.
pub(crate) struct Steps {
    clock: Clock,
    began: Time,
    worked: Duration,
    slept: i64,
}

impl Steps {
    /// The first begins now.
    pub fn begin(clock: Clock) -> Self {
        Steps { clock, began: clock.now(), worked: worked(), slept: slept() }
    }

    /// A step has ended, and the next begins. What the machine did beside it does not count: it was slow
    /// if it worked for so long, or slept and came back so late.
    pub fn end(&mut self, what: &'static str) {
        let now = self.clock.now();
        let took = now.since(self.began);
        self.began = now;
        if took < STEP_MAX {
            return;
        }
        let (worked, slept) = (worked(), slept());
        let (own, times) = (worked - self.worked, slept - self.slept);
        (self.worked, self.slept) = (worked, slept);
        if own >= STEP_MAX || times > 0 {
            tracing::warn!(
                "a part held its shard for {} us while it {what}: {} us of work, slept {times} times",
                took.as_micros(),
                own.as_micros()
            );
        }
    }
}

fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How often this thread has given up the processor by itself.
fn slept() -> i64 {
    // SAFETY: a structure of numbers, for which zeroes are valid, that the kernel fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw
}
