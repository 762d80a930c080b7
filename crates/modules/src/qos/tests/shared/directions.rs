//! Volumes of one budget that read and write: limits of reads, of writes and of both are things of their own, and who takes much of one is not held up at another.

use super::*;

const LEN: u64 = 4096;
const MINUTES: Duration = Duration::from_secs(600);

/// So many reads and so many writes in a second, each for itself.
fn each(iops: u64) -> QosLimits {
    QosLimits { reads: of(iops, 0), writes: of(iops, 0), ..QosLimits::default() }
}

impl Several {
    /// Told the time when they ask for it, and at no step in between.
    fn that_sleep(limits: QosLimits, count: usize, canary: QosCanary) -> Self {
        Several { step: LOOK_EVERY, ..Several::new(limits, count, canary) }
    }

    /// What a part of that run has had: by volume, reads and writes.
    fn had_in(
        &mut self,
        wants: &[(usize, Op, u64, usize)],
        time: Duration,
    ) -> Result<Vec<[u64; 2]>, String> {
        let before = self.seen.clone();
        self.longest.fill_with(Default::default);
        self.run_some(wants, time)?;
        let both = self.seen.iter().zip(before);
        Ok(both.map(|(seen, before)| [seen[0] - before[0], seen[1] - before[1]]).collect())
    }

    /// None of that volume waited longer than `turns` of all writers, of which there are so many, take.
    fn waits(&self, volume: usize, writers: u32, iops: u64, turns: u32) -> Result<(), String> {
        let turn = Duration::from_nanos(1_000_000_000 / iops) * writers;
        // Also one that waits still.
        let waits = self.began[volume][1].front().map(|began| self.now.since(*began));
        let longest = waits.unwrap_or_default().max(self.longest[volume][1]);
        match longest <= turn * turns {
            true => Ok(()),
            false => Err(format!("volume {volume} waits {longest:?}, where a turn takes {turn:?}")),
        }
    }
}

/// One always reads, one always writes, and one writes one after the other.
fn one_at_a_time(limits: QosLimits, iops: u64, canary: QosCanary) -> Result<(), String> {
    let mut several = Several::that_sleep(limits, 3, canary);
    let wants = [(0, Op::Read, LEN, 32), (1, Op::Write, LEN, 32), (2, Op::Write, LEN, 1)];
    let had = several.had_in(&wants, MINUTES)?;
    let all = iops * MINUTES.as_secs();
    several.waits(2, 2, iops, 2)?;
    about("writes", had[1][1] + had[2][1], all, 1)?;
    match had[2][1] > all / 4 {
        true => Ok(()),
        false => Err(format!("it starves: {} of {all}", had[2][1])),
    }
}

/// Two always write beside one that always reads, and another one comes late: first with one after the other, then with as many as they.
fn a_writer_comes_late(canary: QosCanary) -> Result<(), String> {
    let mut several = Several::that_sleep(each(50), 4, canary);
    let (read, write) = (|at| (at, Op::Read, LEN, 32), |at, depth| (at, Op::Write, LEN, depth));
    several.run_some(&[read(0), write(1, 32), write(2, 32)], MINUTES / 2)?;
    several.had_in(&[read(0), write(1, 32), write(2, 32), write(3, 1)], MINUTES)?;
    several.waits(3, 3, 50, 2)?;
    let wants = [read(0), write(1, 32), write(2, 32), write(3, 32)];
    let had = several.had_in(&wants, MINUTES / 2)?;
    for (at, had) in had.iter().enumerate().skip(1) {
        several.waits(at, 3, 50, 32 + 2)?;
        about("of one writer", had[1], 50 * 300 / 3, 2)?;
    }
    about("of the reader", had[0][0], 50 * 300, 1)
}

/// Who reads all there is writes as much as who only writes.
fn one_does_both(canary: QosCanary) -> Result<(), String> {
    let mut several = Several::that_sleep(each(50), 2, canary);
    let wants = [(0, Op::Read, LEN, 8), (0, Op::Write, LEN, 8), (1, Op::Write, LEN, 8)];
    let had = several.had_in(&wants, MINUTES)?;
    several.waits(0, 2, 50, 8 + 2)?;
    several.waits(1, 2, 50, 8 + 2)?;
    about("of one writer", had[0][1], 50 * 300, 2)?;
    about("of the other", had[1][1], 50 * 300, 2)?;
    about("reads", had[0][0], 50 * 600, 1)
}

/// Where a limit of both is what is scarce, each gets as much of that, whether it reads, writes or does both, and whatever else is limited.
fn both_are_limited(canary: QosCanary) -> Result<(), String> {
    let all = of(90, 0);
    for (reads, writes) in [(0, 0), (80, 0), (0, 85), (80, 85)] {
        let limits = QosLimits { all, reads: of(reads, 0), writes: of(writes, 0), burst: MS * 100 };
        let mut several = Several::that_sleep(limits, 3, canary);
        let (read, write) = (|at| (at, Op::Read, LEN, 8), |at| (at, Op::Write, LEN, 8));
        let had = several.had_in(&[read(0), write(1), read(2), write(2)], MINUTES)?;
        for (at, had) in had.iter().enumerate() {
            about(&format!("of {at} with {limits:?}"), had[0] + had[1], 30 * 600, 3)?;
        }
    }
    Ok(())
}

/// Who was held up by a limit of reads has saved up nothing of what writes take, too; and a limit of few keeps these few.
fn held_up_elsewhere(canary: QosCanary) -> Result<(), String> {
    let limits = QosLimits { all: of(100, 0), reads: of(10, 0), ..QosLimits::default() };
    let mut several = Several::that_sleep(limits, 3, canary);
    let (read, write) = (|at| (at, Op::Read, LEN, 8), |at, depth| (at, Op::Write, LEN, depth));
    let had = several.had_in(&[read(0), write(1, 8)], MINUTES)?;
    about("reads", had[0][0], 10 * 600, 1)?;
    about("writes", had[1][1], 90 * 600, 1)?;
    let wants = [read(0), write(0, 8), write(1, 8)];
    let had = several.had_in(&wants, Duration::from_secs(20))?;
    about("of who reads, too", had[0][0] + had[0][1], 50 * 20, 4)?;
    about("of who only writes", had[1][1], 50 * 20, 4)?;
    several.had_in(&[read(0), write(1, 8), write(2, 1)], MINUTES)?;
    several.waits(2, 3, 100, 2)
}

#[test]
fn who_reads_much_holds_up_no_writer() {
    for (limits, iops) in [
        (each(50), 50),
        (QosLimits { writes: of(20, 0), ..each(200) }, 20),
        (QosLimits { writes: of(0, 50 * LEN), ..each(1000) }, 50),
        // Both together are limited, too, which binds nobody.
        (QosLimits { all: of(0, 1 << 30), ..each(50) }, 50),
    ] {
        assert_eq!(one_at_a_time(limits, iops, QosCanary::None), Ok(()), "{limits:?}");
    }
    assert_eq!(a_writer_comes_late(QosCanary::None), Ok(()));
    assert_eq!(one_does_both(QosCanary::None), Ok(()));
}

#[test]
fn what_both_take_from_is_shared_out_as_one_thing() {
    assert_eq!(both_are_limited(QosCanary::None), Ok(()));
    assert_eq!(held_up_elsewhere(QosCanary::None), Ok(()));
}

#[test]
fn one_clock_for_reads_and_writes_is_found() {
    for why in [
        one_at_a_time(each(50), 50, QosCanary::OneClock).unwrap_err(),
        a_writer_comes_late(QosCanary::OneClock).unwrap_err(),
        one_does_both(QosCanary::OneClock).unwrap_err(),
    ] {
        assert!(why.contains("waits"), "{why}");
    }
}

#[test]
fn what_is_saved_up_by_who_is_held_up_elsewhere_is_found() {
    let why = held_up_elsewhere(QosCanary::SavesUp).unwrap_err();
    assert!(why.contains("of who"), "{why}");
}
