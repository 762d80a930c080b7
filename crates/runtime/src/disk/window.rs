//! How many of the reads that wait for a disk it is given at once (`docs/design.md`, "One call a turn for all
//! disks"): the whole decision, which is told times and knows no clock. Writes are always given.
//!
//! Some disks tell of nothing before all is done that they were given. Then the disk stands idle while its
//! answers are on the way and the next requests come, and the network while the disk works. If it is given
//! half of what is outstanding, each works on one half while the other has the other. On a disk that tells of
//! each operation by itself that would only make its queue shorter. So it is tried: some milliseconds each way,
//! three times, and again later, ever more rarely while the verdict stays the same.

use std::time::Duration;

use thinwire_proto::Time;

/// Fewer outstanding reads than these are not worth a trial.
const WORTH_IT: usize = 6;
/// A part of a trial begins with a time that does not count: what went before is still under way.
const SETTLE: Duration = Duration::from_millis(3);
/// And goes on for this long.
const COUNT: Duration = Duration::from_millis(15);
/// Parts of a trial, all and half in turns.
const PARTS: usize = 6;
/// Where nothing is outstanding for so long, nobody waits for the disk, and a trial would measure him.
const PAUSE: Duration = Duration::from_millis(2);
/// Half has to be better than all by a part in so many.
const GAIN: u128 = 10;
/// A verdict is in force for so long at first, then for twice as long each time that it stays the same.
const VERDICT_FIRST: Duration = Duration::from_secs(1);
/// But not for longer than this.
const VERDICT_MAX: Duration = Duration::from_secs(16);
/// A trial that was broken off is made again after this.
const AGAIN: Duration = Duration::from_millis(50);
/// Another load is not tried sooner than this after the last trial.
const OTHER_AFTER: Duration = Duration::from_millis(500);
/// How long the largest number of outstanding reads is remembered, at least.
const REMEMBERED: Duration = Duration::from_millis(5);
/// What a read counts in a trial, beside its bytes.
const READ: u64 = 4096;
/// Reads that are so many times as large as those of the last trial, or so many times as many, or as few, are
/// another load: its verdict says nothing of them.
const OTHER: u64 = 3;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// As the last verdict says, until it is time for a trial.
    Verdict { until: Time },
    /// A part of a trial, since then; what it has counted.
    Trial { part: usize, since: Time, done: u64 },
}

/// Decides for one disk.
#[derive(Debug)]
pub(super) struct Window {
    stage: Stage,
    /// The last verdict: half is better.
    is_half: bool,
    verdict: Duration,
    /// What was done, and in how many ns, with all and with half.
    counted: [(u128, u128); 2],
    /// The most that were outstanding, in the present stretch of time and the one before.
    most: [usize; 2],
    stretch: Time,
    /// Nothing is outstanding since then.
    idle: Option<Time>,
    /// The bytes of a read, of late.
    bytes: u64,
    /// The load that was judged: those, and how many were outstanding at most.
    judged: (u64, u64),
    judged_at: Time,
}

impl Window {
    /// Of a disk that is given everything, until a trial has been made.
    pub fn new() -> Self {
        Window {
            stage: Stage::Verdict { until: Time::ZERO },
            is_half: false,
            verdict: VERDICT_FIRST,
            counted: [(0, 0); 2],
            most: [0; 2],
            stretch: Time::ZERO,
            idle: Some(Time::ZERO),
            bytes: 0,
            judged: (0, 0),
            judged_at: Time::ZERO,
        }
    }

    /// One that has found half to be better, and makes no trial soon.
    #[cfg(test)]
    pub fn half() -> Self {
        let stage = Stage::Verdict { until: Time::NEVER };
        Window { stage, is_half: true, judged_at: Time::NEVER, ..Window::new() }
    }

    fn most(&self) -> usize {
        self.most[0].max(self.most[1])
    }

    /// The most reads that the disk may have now.
    #[inline]
    pub fn size(&self) -> usize {
        let holds = match self.stage {
            Stage::Verdict { .. } => self.is_half,
            Stage::Trial { part, .. } => part % 2 == 1,
        };
        if holds && self.most() >= WORTH_IT { self.most() / 2 } else { usize::MAX }
    }

    /// At `now` so many reads are at the disk or wait for it, and since the last time so many have ended
    /// that read so many bytes.
    pub fn see(&mut self, now: Time, outstanding: usize, ended: usize, bytes: u64) {
        if now.since(self.stretch) >= REMEMBERED {
            self.most = [outstanding, if self.stretch == Time::ZERO { 0 } else { self.most[0] }];
            self.stretch = now;
        }
        self.most[0] = self.most[0].max(outstanding);
        if let Some(each) = bytes.checked_div(ended as u64) {
            self.bytes = if self.bytes == 0 { each } else { (self.bytes * 15 + each) / 16 };
        }
        let paused = self.idle.is_some_and(|since| now.since(since) >= PAUSE);
        self.idle = if outstanding > 0 { None } else { self.idle.or(Some(now)) };
        match self.stage {
            Stage::Verdict { until } if now < until && !self.is_other_load(now) => {}
            Stage::Verdict { .. } => {
                if self.most() >= WORTH_IT && !paused && outstanding > 0 {
                    self.counted = [(0, 0); 2];
                    self.stage = Stage::Trial { part: 0, since: now, done: 0 };
                }
            }
            Stage::Trial { .. } if paused => {
                self.stage = Stage::Verdict { until: now + AGAIN };
            }
            Stage::Trial { part, since, done } => self.go_on(now, part, since, done, ended, bytes),
        }
    }

    fn go_on(
        &mut self,
        now: Time,
        part: usize,
        since: Time,
        mut done: u64,
        ended: usize,
        bytes: u64,
    ) {
        let so_far = now.since(since);
        if so_far >= SETTLE {
            done += bytes + ended as u64 * READ;
        }
        self.stage = Stage::Trial { part, since, done };
        if so_far < SETTLE + COUNT {
            return;
        }
        let (what, time) = &mut self.counted[part % 2];
        *what += u128::from(done);
        *time += (so_far - SETTLE).as_nanos();
        self.stage = Stage::Trial { part: part + 1, since: now, done: 0 };
        if part + 1 == PARTS {
            self.decide(now);
        }
    }

    /// Reads of another size, or more or fewer of them, than in the last trial, and that was a while ago.
    fn is_other_load(&self, now: Time) -> bool {
        let differs = |a: u64, b: u64| a > b * OTHER || b > a * OTHER;
        let (bytes, most) = self.judged;
        let differ = differs(self.bytes, bytes) || differs(self.most() as u64, most);
        differ && now.since(self.judged_at) >= OTHER_AFTER
    }

    fn decide(&mut self, now: Time) {
        let [(all, all_time), (half, half_time)] = self.counted;
        // Half in half's time, beside all in all's time.
        let is_half = half * all_time * GAIN > all * half_time * (GAIN + 1);
        let is_same = std::mem::replace(&mut self.is_half, is_half) == is_half;
        (self.judged, self.judged_at) = ((self.bytes, self.most() as u64), now);
        self.verdict = if is_same { (self.verdict * 2).min(VERDICT_MAX) } else { VERDICT_FIRST };
        self.stage = Stage::Verdict { until: now + self.verdict };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// How a disk tells of what is done.
    #[derive(Clone, Copy, PartialEq)]
    enum Disk {
        /// Does one after the other, and tells of all when nothing is left.
        Batches { each_us: u64 },
        /// Does so many beside each other, and tells of each.
        Each { each_us: u64, beside: usize },
    }

    /// So many clients that ask again when their answer has come, which takes a while and the network, which
    /// carries one answer after the other.
    struct World {
        disk: Disk,
        clients: usize,
        wire_us: u64,
        there_and_back_us: u64,
        window: Window,
        now: u64,
        waiting: usize,
        /// When what the disk has is told.
        at_disk: VecDeque<u64>,
        /// When requests arrive.
        coming: VecDeque<u64>,
        wire_free: u64,
        done: u64,
    }

    impl World {
        fn new(disk: Disk, clients: usize, wire_us: u64, there_and_back_us: u64) -> Self {
            World {
                disk,
                clients,
                wire_us,
                there_and_back_us,
                window: Window::new(),
                now: 1_000_000,
                waiting: 0,
                at_disk: VecDeque::new(),
                coming: VecDeque::from(vec![1_000_000; clients]),
                wire_free: 0,
                done: 0,
            }
        }

        fn time(&self) -> Time {
            Time(self.now * 1000)
        }

        fn give(&mut self, is_held: bool) {
            let size = if is_held { self.window.size() } else { usize::MAX };
            while self.waiting > 0 && self.at_disk.len() < size {
                self.waiting -= 1;
                let end = match self.disk {
                    Disk::Batches { each_us } => {
                        // All that it has end when the last one does.
                        let end = self.at_disk.back().copied().unwrap_or(self.now) + each_us;
                        self.at_disk.iter_mut().for_each(|at| *at = end);
                        end
                    }
                    Disk::Each { each_us, beside } => {
                        let len = self.at_disk.len();
                        let before = len.checked_sub(beside).map(|at| self.at_disk[at]);
                        before.unwrap_or(self.now).max(self.now) + each_us
                    }
                };
                self.at_disk.push_back(end);
            }
        }

        /// Goes on for so long; how many a second were done.
        fn run(&mut self, is_held: bool, us: u64) -> u64 {
            let (end, before) = (self.now + us, self.done);
            while self.now < end {
                let next = self.at_disk.front().into_iter().chain(self.coming.front()).min();
                self.now = (*next.expect("somebody waits")).max(self.now);
                while self.coming.front().is_some_and(|at| *at <= self.now) {
                    self.coming.pop_front();
                    self.waiting += 1;
                }
                let mut ended = 0;
                while self.at_disk.front().is_some_and(|at| *at <= self.now) {
                    self.at_disk.pop_front();
                    ended += 1;
                    self.wire_free = self.wire_free.max(self.now) + self.wire_us;
                    self.coming.push_back(self.wire_free + self.there_and_back_us);
                }
                self.done += ended;
                self.give(is_held);
                let outstanding = self.waiting + self.at_disk.len();
                assert!(outstanding <= self.clients);
                let (now, bytes) = (self.time(), ended * 4096);
                self.window.see(now, outstanding, ended as usize, bytes);
                self.give(is_held);
            }
            (self.done - before) * 1_000_000 / us
        }
    }

    #[test]
    fn a_disk_that_tells_of_all_at_once_is_given_half() {
        for (clients, each_us, wire_us) in [(8, 70, 60), (32, 8, 5), (6, 70, 50)] {
            let disk = Disk::Batches { each_us };
            let plain = World::new(disk, clients, wire_us, 40).run(false, 2_000_000);
            let mut world = World::new(disk, clients, wire_us, 40);
            world.run(true, 1_000_000);
            let held = world.run(true, 2_000_000);
            assert!(world.window.is_half, "{clients}");
            assert!(held * 10 > plain * 11, "{clients}: {held} beside {plain}");
        }
    }

    #[test]
    fn a_disk_that_tells_of_each_is_given_all() {
        for (clients, beside) in [(8, 8), (32, 32), (32, 64), (128, 100)] {
            let disk = Disk::Each { each_us: 80, beside };
            let plain = World::new(disk, clients, 2, 20).run(false, 4_000_000);
            let mut world = World::new(disk, clients, 2, 20);
            let held = world.run(true, 4_000_000);
            assert!(!world.window.is_half && world.window.size() == usize::MAX);
            // What the trials cost.
            assert!(held * 100 >= plain * 97, "{clients}: {held} beside {plain}");
        }
    }

    #[test]
    fn trials_become_rarer_and_a_disk_that_changes_is_noticed() {
        let mut world = World::new(Disk::Batches { each_us: 70 }, 8, 60, 40);
        world.run(true, 80_000_000);
        assert!(world.window.is_half && world.window.verdict == VERDICT_MAX);
        world.disk = Disk::Each { each_us: 200, beside: 8 };
        world.run(true, 20_000_000);
        assert!(!world.window.is_half && world.window.verdict < VERDICT_MAX);
    }

    #[test]
    fn who_leaves_the_disk_idle_is_not_tried_with() {
        let mut window = Window::new();
        let mut now = Time(1_000_000_000);
        for round in 0..1000 {
            window.see(now, 8, 0, 0);
            window.see(now + Duration::from_micros(300), 0, 8, 8 << 12);
            assert_eq!(window.size(), usize::MAX, "{round}");
            now = now + Duration::from_millis(5);
        }
    }

    #[test]
    fn few_that_are_outstanding_are_given_all() {
        for is_half in [false, true] {
            let mut world = World::new(Disk::Batches { each_us: 70 }, WORTH_IT - 1, 60, 40);
            world.window.is_half = is_half;
            world.run(true, 1_000_000);
            assert_eq!(world.window.size(), usize::MAX);
            assert!(matches!(world.window.stage, Stage::Verdict { .. }));
        }
    }

    /// Whatever it is told, something is given: the disk never waits for itself.
    #[test]
    fn half_of_nothing_is_something() {
        let mut window = Window::half();
        for outstanding in 0..200 {
            window.see(Time(1 + outstanding as u64 * 10_000_000), outstanding, 0, 0);
            assert!(window.size() >= WORTH_IT / 2);
            assert_eq!(window.size() == usize::MAX, window.most() < WORTH_IT);
        }
    }
}
