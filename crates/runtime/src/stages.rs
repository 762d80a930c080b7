//! Stage clocks: when requests cross the borders of their way (Gonzalez-Ferez and Bilas, section IV,
//! Table I; `docs/protocol.md`, "Stage clocks"). Off they cost a comparison at each border; on, a
//! look at the clock.
//!
//! What is kept are sums of times, so that the mean of a stage is the difference of two sums. That
//! is exact with one request outstanding, which is when stages follow each other.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use thinwire_modules::StageClock;
use thinwire_proto::{Stage, StageObserver, StageSums};
use thinwire_wire::clock_kind;

use crate::disk::Hash;

/// Clocks that nobody asks for stop after this.
pub const LIFE: Duration = Duration::from_secs(60);

/// The clocks of one shard. Shared by what drives links and by the state machine.
#[derive(Default)]
pub struct StageClocks {
    /// A [`clock_kind`].
    kind: Cell<u8>,
    /// On the monotonic clock, whichever runs.
    asked_ns: Cell<u64>,
    sums: RefCell<StageSums>,
    /// The frame that is being acted on: arrived, received, taken.
    frame: Cell<[u64; 3]>,
    /// Requests (at a target: completions) that have not been sent.
    unsent: Cell<u64>,
    /// See [`machine`].
    clock: Cell<u64>,
    /// Since the clocks were started; and what the links said then, once they have been asked.
    handed_over: Cell<u64>,
    handed_over_before: Cell<Option<u64>>,
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl StageClocks {
    /// Clocks that do not run.
    pub fn new() -> Self {
        let clocks = StageClocks::default();
        clocks.clock.set(machine());
        clocks
    }

    /// Whether anybody measures.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.kind.get() != clock_kind::OFF
    }

    /// The time on the clock that runs, in ns.
    pub fn now(&self) -> u64 {
        match self.kind.get() {
            clock_kind::VIRTUAL => read(ClockId::ThreadCPUTime),
            _ => read(ClockId::Monotonic),
        }
    }

    /// Frames have just been taken over from a link.
    #[inline]
    pub fn taken(&self) {
        if self.is_on() {
            self.frame.set([0, 0, self.now()]);
        }
    }

    /// One of them is acted on: it was in queues of this machine for `waited`, the last `queued` of
    /// it with another thread ([`thinwire_buffer::RxFrame`]).
    #[inline]
    pub fn act_on(&self, waited: Duration, queued: Duration) {
        if self.is_on() {
            let [_, _, taken] = self.frame.get();
            let received = taken.wrapping_sub(queued.as_nanos() as u64);
            let arrived = taken.wrapping_sub(waited.as_nanos() as u64);
            self.frame.set([arrived, received, taken]);
        }
    }

    /// Frames are about to be handed to a link, and among them the last pieces of so many requests
    /// (at a target: completions). What a policy holds back, or a window, is not sent yet; what is
    /// sent again has been. Returns whether anything of that is news: if not, what these frames wait
    /// for delays nobody.
    pub fn sending(&self, last_pieces: usize) -> bool {
        let sent = self.unsent.get().min(last_pieces as u64);
        if sent > 0 && self.is_on() {
            self.unsent.set(self.unsent.get() - sent);
            let mut sums = self.sums.borrow_mut();
            sums.sent = sums.sent.wrapping_add(self.now().wrapping_mul(sent));
        }
        sent > 0
    }

    /// How long frames have waited for a thread that sends, in ns and in all, as the links say.
    pub fn set_handed_over(&self, ns: u64) {
        let before = self.handed_over_before.get().unwrap_or(ns);
        self.handed_over_before.set(Some(before));
        self.handed_over.set(ns - before);
    }

    /// What a look at the clock of this kind costs, in ns: the median of many.
    pub fn cost_ns(kind: u8) -> f64 {
        const LOOKS: u32 = 1000;
        let clocks = StageClocks::default();
        clocks.kind.set(kind);
        let mut rounds: Vec<u64> = (0..21)
            .map(|_| {
                let start = read(ClockId::Monotonic);
                (0..LOOKS).for_each(|_| {
                    std::hint::black_box(clocks.now());
                });
                read(ClockId::Monotonic) - start
            })
            .collect();
        rounds.sort_unstable();
        rounds[rounds.len() / 2] as f64 / f64::from(LOOKS)
    }
}

impl StageClock for StageClocks {
    #[inline]
    fn measure(&self) -> Option<u64> {
        self.is_on().then(|| self.now())
    }
}

impl StageObserver for StageClocks {
    #[inline]
    fn cross(&self, stage: Stage) {
        if self.is_on() {
            self.note(stage);
        }
    }

    fn ask(&self, kind: u8) -> StageSums {
        let known = matches!(kind, clock_kind::PHYSICAL | clock_kind::VIRTUAL);
        let kind = if known { kind } else { clock_kind::OFF };
        if kind != self.kind.get() {
            self.kind.set(kind);
            *self.sums.borrow_mut() = StageSums::default();
            self.unsent.set(0);
            self.handed_over.set(0);
            self.handed_over_before.set(None);
        }
        self.asked_ns.set(read(ClockId::Monotonic));
        let clock = if kind == clock_kind::PHYSICAL { self.clock.get() } else { 0 };
        StageSums { clock, handed_over: self.handed_over.get(), ..*self.sums.borrow() }
    }
}

impl StageClocks {
    /// Nobody has asked for so long that nobody will.
    fn is_forgotten(&self) -> bool {
        let age_ns = read(ClockId::Monotonic).saturating_sub(self.asked_ns.get());
        Duration::from_nanos(age_ns) > LIFE
    }

    #[cold]
    fn note(&self, stage: Stage) {
        // Once for each request is often enough: a look is not free.
        if matches!(stage, Stage::Accepted | Stage::Submitted) && self.is_forgotten() {
            self.kind.set(clock_kind::OFF);
            return;
        }
        let now = self.now();
        let mut sums = self.sums.borrow_mut();
        let frame = |sums: &mut StageSums| {
            let [arrived, received, taken] = self.frame.get();
            sums.arrived = sums.arrived.wrapping_add(arrived);
            sums.received = sums.received.wrapping_add(received);
            sums.taken = sums.taken.wrapping_add(taken);
        };
        match stage {
            Stage::Accepted => sums.first = sums.first.wrapping_add(now),
            Stage::Submitted => {
                frame(&mut sums);
                sums.first = sums.first.wrapping_add(now);
            }
            Stage::Stored => sums.second = sums.second.wrapping_add(now),
            Stage::Finished => {
                frame(&mut sums);
                sums.second = sums.second.wrapping_add(now);
            }
        }
        match stage {
            Stage::Accepted => self.unsent.set(self.unsent.get() + 1),
            Stage::Stored => {
                self.unsent.set(self.unsent.get() + 1);
                sums.requests += 1;
            }
            Stage::Finished => sums.requests += 1,
            Stage::Submitted => {}
        }
    }
}

/// A number that processes whose monotonic clocks show the same time have in common, and no others:
/// those of one boot of a machine and one time namespace. 0 if it cannot be known. Who asks over the
/// network gets a hash, since a boot's own number is nobody else's business.
fn machine() -> u64 {
    let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else { return 0 };
    let mut hash = Hash::of(&boot);
    // A kernel without such namespaces has one clock.
    if let Ok(space) = std::fs::read_link("/proc/self/ns/time") {
        hash.add(space.as_os_str().as_encoded_bytes());
    }
    let hash = u128::from_be_bytes(hash.value());
    ((hash >> 64) as u64 ^ hash as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_at_every_border_and_in_order() {
        let clocks = StageClocks::new();
        clocks.cross(Stage::Submitted);
        let before = clocks.ask(clock_kind::PHYSICAL);
        assert_eq!((before.requests, before.first, before.clock != 0), (0, 0, true));
        for _ in 0..10 {
            clocks.taken();
            clocks.act_on(Duration::from_nanos(570), Duration::from_nanos(70));
            clocks.cross(Stage::Submitted);
            clocks.cross(Stage::Stored);
            // An acknowledgement; the completion; the completion once more.
            assert_eq!([0, 1, 1].map(|last| clocks.sending(last)), [false, true, false]);
        }
        let sums = clocks.ask(clock_kind::PHYSICAL);
        assert_eq!(sums.requests, 10);
        assert_eq!(sums.received.wrapping_sub(sums.arrived), 5000);
        assert_eq!(sums.taken.wrapping_sub(sums.received), 700);
        clocks.set_handed_over(5000);
        clocks.set_handed_over(5070);
        assert_eq!(clocks.ask(clock_kind::PHYSICAL).handed_over, 70);
        let order = [sums.taken, sums.first, sums.second, sums.sent];
        assert!(order.is_sorted(), "{order:?}");
        // Sums of times of one run: their mean lies within it.
        assert!(sums.sent / 10 <= clocks.now() && sums.taken / 10 > 0);
    }

    #[test]
    fn the_machine_is_known_by_a_hash() {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let digits = boot.replace('-', "");
        let halves = [&digits[..16], &digits[16..32]].map(|h| u64::from_str_radix(h, 16).unwrap());
        assert!(machine() != 0 && !halves.contains(&machine()));
        assert_eq!(StageClocks::new().ask(clock_kind::PHYSICAL).clock, machine());
    }

    #[test]
    fn clocks_of_either_kind_stop_a_minute_after_they_were_asked() {
        for kind in [clock_kind::PHYSICAL, clock_kind::VIRTUAL] {
            let clocks = StageClocks::new();
            clocks.ask(kind);
            let asked = clocks.asked_ns.get();
            for (ago, runs) in [(LIFE / 2, true), (LIFE * 2, false)] {
                clocks.asked_ns.set(asked - ago.as_nanos() as u64);
                clocks.cross(Stage::Accepted);
                assert_eq!(clocks.is_on(), runs, "kind {kind}, {ago:?}");
            }
        }
    }

    #[test]
    fn another_kind_begins_anew_and_none_stops() {
        let clocks = StageClocks::new();
        clocks.ask(clock_kind::PHYSICAL);
        clocks.cross(Stage::Accepted);
        clocks.cross(Stage::Finished);
        assert_eq!(clocks.ask(clock_kind::PHYSICAL).requests, 1);
        let sums = clocks.ask(clock_kind::VIRTUAL);
        assert_eq!((sums.requests, sums.clock), (0, 0));
        clocks.set_handed_over(9000);
        assert_eq!(clocks.ask(clock_kind::VIRTUAL).handed_over, 0);
        clocks.cross(Stage::Finished);
        for kind in [clock_kind::OFF, 77] {
            assert_eq!(clocks.ask(kind).requests, 0);
            clocks.cross(Stage::Finished);
            assert!(!clocks.is_on());
        }
    }
}
