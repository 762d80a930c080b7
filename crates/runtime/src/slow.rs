//! Who holds a shard: in debug builds, if `TW_STEPS` is set, each step of a node is timed, and one that
//! took longer than a millisecond is told. Nobody else of the shard was served meanwhile.
//!
//! Whose fault it was is told apart. A step that *worked* for so long, by its thread's processor time, does too
//! much at a time; one that *slept*, by the thread's voluntary switches, waits for something: both are mistakes of
//! ours, and counted. A step that did neither *stood still*, because the machine gave its processor to somebody
//! else. Processor time includes what the kernel does in interrupts meanwhile, such as receiving others' frames.

use std::sync::LazyLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use thinwire_proto::Time;

use crate::clock::Clock;

/// What a step may take. Longer ones belong into a thread of their own, or into several turns.
const STEP_MAX: Duration = Duration::from_millis(1);

/// Whether steps are timed. In release builds it is known when they are made that they are not.
#[inline]
pub(crate) fn is_timed() -> bool {
    static IS_WANTED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("TW_STEPS").is_some());
    cfg!(debug_assertions) && *IS_WANTED
}

/// What the clock and the kernel say between two steps.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Time,
    /// The thread's processor time.
    worked: Duration,
    /// How often the thread has given up the processor by itself.
    slept: i64,
}

/// What was wrong with a step that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It worked for so long.
    Worked(Duration),
    /// It slept so often.
    Slept(i64),
    /// Nothing: somebody else had the processor.
    StoodStill,
}

impl Reading {
    fn take(clock: Clock) -> Self {
        Reading { at: clock.now(), worked: worked(), slept: slept() }
    }

    /// What was wrong with the step that began with `before` and has ended now, and how long it took.
    fn fault_since(&self, before: &Reading) -> Option<(Duration, Fault)> {
        let took = self.at.since(before.at);
        if took < STEP_MAX {
            return None;
        }
        let (worked, slept) = (self.worked - before.worked, self.slept - before.slept);
        let fault = match (worked >= STEP_MAX, slept > 0) {
            (true, _) => Fault::Worked(worked),
            (false, true) => Fault::Slept(slept),
            (false, false) => Fault::StoodStill,
        };
        Some((took, fault))
    }
}

/// Times one step after the other.
pub(crate) struct Steps {
    clock: Clock,
    last: Reading,
}

impl Steps {
    /// The first begins now.
    pub fn begin(clock: Clock) -> Self {
        Steps { clock, last: Reading::take(clock) }
    }

    /// A step has ended, and the next begins.
    pub fn end(&mut self, what: &'static str) {
        // All of it each time: what steps before did, or slept between turns, is not this one's.
        let now = Reading::take(self.clock);
        let fault = now.fault_since(&self.last);
        self.last = now;
        let Some((took, fault)) = fault else { return };
        let took = took.as_micros();
        match fault {
            Fault::Worked(time) => {
                let time = time.as_micros();
                tracing::warn!(
                    "a part held its shard for {took} us while it {what}: it worked for {time} us"
                );
            }
            Fault::Slept(times) => {
                tracing::warn!(
                    "a part held its shard for {took} us while it {what}: it slept {times} times"
                );
            }
            Fault::StoodStill => tracing::warn!("a part stood still for {took} us while it {what}"),
        }
    }
}

fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn slept() -> i64 {
    // SAFETY: a structure of numbers, for which zeroes are valid, that the kernel fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_us: u64, worked_us: u64, slept: i64) -> Reading {
        Reading { at: Time(at_us * 1000), worked: Duration::from_micros(worked_us), slept }
    }

    #[test]
    fn work_and_sleep_are_faults_and_standing_still_is_none_of_ours() {
        let before = reading(5000, 700, 3);
        let fault = |took: u64, worked: u64, slept: i64| {
            reading(5000 + took, 700 + worked, 3 + slept)
                .fault_since(&before)
                .map(|(_, fault)| fault)
        };
        assert_eq!(fault(999, 999, 9), None);
        assert_eq!(fault(1000, 1000, 0), Some(Fault::Worked(STEP_MAX)));
        assert_eq!(fault(9000, 999, 2), Some(Fault::Slept(2)));
        assert_eq!(fault(9000, 999, 0), Some(Fault::StoodStill));
    }

    #[test]
    fn what_was_before_a_step_is_not_its_own() {
        let clock = Clock::new();
        let mut steps = Steps::begin(clock);
        let begun = steps.last;
        std::thread::sleep(STEP_MAX);
        while worked() - begun.worked < STEP_MAX {}
        let now = Reading::take(clock);
        assert!(matches!(now.fault_since(&begun), Some((_, Fault::Worked(_)))));
        assert!(now.slept > begun.slept, "it slept, too");
        steps.end("did all that");
        let after = steps.last;
        steps.end("did nothing");
        let (worked, slept) = (steps.last.worked - after.worked, steps.last.slept - after.slept);
        assert!(worked < STEP_MAX && slept == 0, "worked {worked:?}, slept {slept} times");
    }
}
