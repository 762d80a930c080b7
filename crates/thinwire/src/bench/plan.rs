//! What a benchmark is going to do, checked against the volume; and the offsets of its jobs.

use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_volume::Geometry;

use crate::cli::BenchPattern;
use crate::error::{Failure, Outcome};
use crate::size::show_size;

/// A benchmark, checked against the geometry of its volume.
#[derive(Clone, Copy, Debug)]
pub struct BenchPlan {
    /// Pattern.
    pub rw: BenchPattern,
    /// How many of 100 I/Os of a mixed pattern read.
    pub mix: u32,
    /// Bytes an I/O.
    pub bs: u32,
    /// I/Os each job keeps outstanding.
    pub iodepth: u32,
    /// Jobs.
    pub jobs: u32,
    /// How long.
    pub runtime: Duration,
    /// I/Os that fit into the part of the volume that is used.
    pub blocks: u64,
    /// Stamp what is written, check what is read.
    pub verify: bool,
    /// Of the offsets and the data.
    pub seed: u64,
    /// How often the figures so far are noted down, if they are.
    pub timeline: Option<Duration>,
    /// Look at the stage clock when I/Os are issued and when their completions are seen.
    pub stamps: bool,
}

/// With `--verify` a generation is kept for each block: 1 GiB of them at most.
const VERIFY_BLOCKS_MAX: u64 = 1 << 28;

impl BenchPlan {
    /// Checks the block size and the part of the volume to use (`size` bytes, or all of it), and
    /// fills in [`BenchPlan::blocks`].
    pub fn fit(mut self, bs: u64, size: Option<u64>, geometry: &Geometry) -> Outcome<Self> {
        let block = u64::from(geometry.block_bytes);
        if bs == 0 || !bs.is_multiple_of(block) {
            return Err(Failure::failed(format!(
                "--bs {bs}: not a multiple of the volume's block of {block} bytes"
            )));
        }
        let longest = u64::from(geometry.io_bytes_max).min(Pool::BUF_BYTES_MAX as u64);
        if bs > longest {
            return Err(Failure::failed(format!(
                "--bs {}: the volume takes at most {} in one I/O",
                show_size(bs),
                show_size(longest)
            )));
        }
        let size = size.unwrap_or(geometry.bytes);
        if size > geometry.bytes {
            return Err(Failure::failed(format!(
                "--size {}: the volume has only {}",
                show_size(size),
                show_size(geometry.bytes)
            )));
        }
        self.bs = bs as u32;
        self.blocks = size / bs;
        if self.blocks < u64::from(self.jobs) {
            return Err(Failure::failed(format!(
                "{} hold {} I/Os of {}, fewer than the {} jobs",
                show_size(size),
                self.blocks,
                show_size(bs),
                self.jobs
            )));
        }
        if self.writes() && geometry.features.read_only {
            return Err(Failure::failed("the volume is read-only, and the pattern writes"));
        }
        if self.verify && self.blocks > VERIFY_BLOCKS_MAX {
            return Err(Failure::failed(format!(
                "--verify keeps track of at most {VERIFY_BLOCKS_MAX} blocks, this would be {}; \
                 give --size or a larger --bs",
                self.blocks
            )));
        }
        Ok(self)
    }

    /// Whether the pattern writes at all.
    pub fn writes(&self) -> bool {
        !self.rw.reads_only()
    }

    /// I/Os outstanding at most, of all jobs together.
    pub fn outstanding_max(&self) -> usize {
        self.jobs as usize * self.iodepth as usize
    }
}

/// The offsets of one job: its own random numbers, or its own stretch of the volume.
pub struct Stream {
    rw: BenchPattern,
    mix: u32,
    random: SplitMix,
    first: u64,
    count: u64,
    next: u64,
    blocks: u64,
}

impl Stream {
    /// The stream of job number `job`.
    pub fn new(plan: &BenchPlan, job: u32) -> Self {
        let (job, jobs) = (u64::from(job), u64::from(plan.jobs));
        let share = plan.blocks / jobs;
        Stream {
            rw: plan.rw,
            mix: plan.mix,
            random: SplitMix::new(plan.seed.wrapping_mul(0x100).wrapping_add(job)),
            first: share * job,
            count: share,
            next: 0,
            blocks: plan.blocks,
        }
    }

    /// The next I/O: its block number, and whether it writes.
    pub fn next(&mut self) -> (u64, bool) {
        match self.rw {
            BenchPattern::RandRead => (self.random.below(self.blocks), false),
            BenchPattern::RandWrite => (self.random.below(self.blocks), true),
            BenchPattern::RandRw => (self.random.below(self.blocks), self.is_write()),
            BenchPattern::Read => (self.in_order(), false),
            BenchPattern::Write => (self.in_order(), true),
            BenchPattern::Rw => (self.in_order(), self.is_write()),
        }
    }

    /// Whether the next I/O of a mixed pattern writes.
    fn is_write(&mut self) -> bool {
        self.random.below(100) >= u64::from(self.mix)
    }

    fn in_order(&mut self) -> u64 {
        let block = self.first + self.next;
        self.next = (self.next + 1) % self.count;
        block
    }
}

/// SplitMix64: small, fast, good enough for offsets and filler.
pub struct SplitMix(u64);

impl SplitMix {
    /// A sequence that depends on `seed` alone.
    pub fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `bound`, exclusive.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cli::MIX_DEFAULT;
    use thinwire_volume::Features;

    pub fn plan(rw: BenchPattern) -> BenchPlan {
        BenchPlan {
            rw,
            mix: MIX_DEFAULT,
            bs: 4096,
            iodepth: 8,
            jobs: 2,
            runtime: Duration::from_millis(50),
            blocks: 64,
            verify: true,
            seed: 1,
            timeline: None,
            stamps: false,
        }
    }

    fn geometry() -> Geometry {
        let features =
            Features { read_only: false, discard: true, write_zeroes: true, block_status: true };
        Geometry {
            bytes: 1 << 20,
            block_bytes: 4096,
            preferred_bytes: 4096,
            io_bytes_max: 1 << 17,
            features,
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let base = plan(BenchPattern::RandWrite);
        assert_eq!(base.fit(8192, None, &geometry()).unwrap().blocks, 128);
        assert_eq!(base.fit(4096, Some(65536), &geometry()).unwrap().blocks, 16);
        for (bs, size, named) in [
            (0, None, "multiple"),
            (512, None, "4096"),
            (1 << 18, None, "128 KiB"),
            (4096, Some(1 << 21), "only 1 MiB"),
            (4096, Some(4096), "2 jobs"),
        ] {
            let error = base.fit(bs, size, &geometry()).unwrap_err();
            assert!(error.message.contains(named), "{error}");
        }
        let mut locked = geometry();
        locked.features.read_only = true;
        assert!(base.fit(4096, None, &locked).unwrap_err().message.contains("read-only"));
        assert!(plan(BenchPattern::Read).fit(4096, None, &locked).is_ok());
    }

    #[test]
    fn streams_stay_inside_and_differ() {
        for rw in [BenchPattern::RandRead, BenchPattern::RandRw, BenchPattern::Write] {
            let plan = plan(rw);
            let (mut a, mut b) = (Stream::new(&plan, 0), Stream::new(&plan, 1));
            let (a, b): (Vec<_>, Vec<_>) = (0..200).map(|_| (a.next(), b.next())).unzip();
            assert!(a.iter().chain(&b).all(|(block, _)| *block < 64));
            assert_ne!(a, b);
            let writes = a.iter().filter(|(_, writes)| *writes).count();
            match rw {
                BenchPattern::RandRead => assert_eq!(writes, 0),
                BenchPattern::Write => assert_eq!(writes, 200),
                _ => assert!((60..140).contains(&writes), "{writes}"),
            }
        }
        for (rw, mix, writes) in [
            (BenchPattern::RandRw, 70, 2800..3200),
            (BenchPattern::Rw, 70, 2800..3200),
            (BenchPattern::Rw, 100, 0..1),
            (BenchPattern::RandRw, 0, 10_000..10_001),
        ] {
            let mut stream = Stream::new(&BenchPlan { mix, ..plan(rw) }, 0);
            let found = (0..10_000).filter(|_| stream.next().1).count();
            assert!(writes.contains(&found), "{rw:?}, {mix} of 100: {found} writes");
        }
        let mut mixed = Stream::new(&plan(BenchPattern::Rw), 1);
        let blocks: Vec<_> = (0..3).map(|_| mixed.next().0).collect();
        assert_eq!(blocks, [32, 33, 34], "in order, whichever way");
        let mut ordered = Stream::new(&plan(BenchPattern::Read), 1);
        let blocks: Vec<_> = (0..33).map(|_| ordered.next().0).collect();
        assert_eq!((blocks[0], blocks[31], blocks[32]), (32, 63, 32));
    }
}
