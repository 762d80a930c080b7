//! What `--verify` knows about each block: how often this run has written it, and whether an I/O
//! to it is outstanding, in which case no other may start.

use thinwire_buffer::SegList;

use super::stamp::{self, Stamp, UNIT_BYTES, UnitContent};

/// The content of a block is unknown from now on: a write to it failed.
const UNKNOWN: u32 = u32::MAX;

/// The blocks of a volume, each with its generation and whether it is outstanding.
pub struct Ledger {
    /// 0: not written by this run.
    generations: Vec<u32>,
    busy: Vec<u64>,
    bs: u32,
    run: u32,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// All units are what they should be.
    Right,
    /// Nothing is known about the block, or nobody stamped it.
    Unknown,
    /// A unit is not what it should be; a sentence.
    Wrong(String),
}

impl Ledger {
    /// For `blocks` blocks of `bs` bytes; `run` differs from run to run.
    pub fn new(blocks: u64, bs: u32, run: u32) -> Self {
        Ledger {
            generations: vec![0; blocks as usize],
            busy: vec![0; (blocks as usize).div_ceil(64)],
            bs,
            run,
        }
    }

    /// Reserves a block for one I/O; false if one is outstanding there.
    pub fn take(&mut self, block: u64) -> bool {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        let free = self.busy[word] & bit == 0;
        self.busy[word] |= bit;
        free
    }

    /// The I/O is done.
    pub fn release(&mut self, block: u64) {
        self.busy[block as usize / 64] &= !(1 << (block % 64));
    }

    /// Stamps the next generation of a block into `bytes` and returns the generation, which counts
    /// once [`Ledger::written`] is told of it.
    pub fn stamp(&self, block: u64, bytes: &mut [u8]) -> u32 {
        let generation = match self.generations[block as usize] {
            UNKNOWN => 1,
            // Never UNKNOWN and never 0, however long the run.
            last => last % (UNKNOWN - 1) + 1,
        };
        let offset = block * u64::from(self.bs);
        stamp::stamp(bytes, Stamp { offset, generation, run: self.run });
        generation
    }

    /// A write of `generation` ended.
    pub fn written(&mut self, block: u64, generation: u32, success: bool) {
        self.generations[block as usize] = if success { generation } else { UNKNOWN };
    }

    /// The next block at or after `block` whose content this run knows.
    pub fn next_known(&self, block: u64) -> Option<u64> {
        let rest = self.generations.get(block as usize..)?;
        rest.iter().position(|g| !matches!(*g, 0 | UNKNOWN)).map(|at| block + at as u64)
    }

    /// Checks what was read from a block. A block that this run has not written must, if it bears
    /// stamps of another run, bear sound ones of its own place.
    pub fn check(&self, block: u64, data: &SegList) -> CheckOutcome {
        let mut verdict = CheckOutcome::Unknown;
        let mut offset = block * u64::from(self.bs);
        let mut straddling = Vec::new();
        for segment in data.iter() {
            let mut rest = &segment[..];
            if !straddling.is_empty() {
                let take = rest.len().min(UNIT_BYTES - straddling.len());
                straddling.extend_from_slice(&rest[..take]);
                rest = &rest[take..];
                if straddling.len() == UNIT_BYTES {
                    self.check_unit(block, offset, &straddling, &mut verdict);
                    offset += UNIT_BYTES as u64;
                    straddling.clear();
                }
            }
            let mut units = rest.chunks_exact(UNIT_BYTES);
            for unit in &mut units {
                self.check_unit(block, offset, unit, &mut verdict);
                offset += UNIT_BYTES as u64;
            }
            straddling.extend_from_slice(units.remainder());
        }
        let end = (block + 1) * u64::from(self.bs);
        if offset != end {
            let read = offset + u64::from(self.bs) - end;
            return CheckOutcome::Wrong(format!(
                "the read of {} bytes at {} gave {read} bytes",
                self.bs,
                end - u64::from(self.bs)
            ));
        }
        verdict
    }

    fn check_unit(&self, block: u64, offset: u64, unit: &[u8], verdict: &mut CheckOutcome) {
        if matches!(verdict, CheckOutcome::Wrong(_)) {
            return;
        }
        let generation = self.generations[block as usize];
        let expected = Stamp { offset, generation, run: self.run };
        let found = stamp::read(unit);
        let right = match (generation, found) {
            (UNKNOWN, _) => return,
            (0, UnitContent::Zeroes | UnitContent::Foreign) => return,
            (0, UnitContent::Other(stamp)) => stamp.offset == offset && stamp.run != self.run,
            (_, found) => found == UnitContent::Other(expected),
        };
        *verdict = if right {
            CheckOutcome::Right
        } else {
            CheckOutcome::Wrong(stamp::explain(expected, found))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thinwire_buffer::Pool;

    fn data(bytes: &[u8], cut: usize) -> SegList {
        let pool = Pool::new(0);
        let mut list = SegList::new();
        for part in bytes.chunks(cut) {
            list.push(pool.copy_of(part).freeze());
        }
        list
    }

    #[test]
    fn only_the_last_acknowledged_generation_is_right() {
        let mut ledger = Ledger::new(8, 4096, 7);
        let mut bytes = vec![0; 4096];
        assert_eq!(ledger.check(2, &data(&bytes, 4096)), CheckOutcome::Unknown);
        let first = ledger.stamp(2, &mut bytes);
        ledger.written(2, first, true);
        assert!(ledger.next_known(0) == Some(2) && ledger.next_known(3).is_none());
        for cut in [4096, 512, 1000, 100] {
            assert_eq!(ledger.check(2, &data(&bytes, cut)), CheckOutcome::Right, "{cut}");
        }
        let old = bytes.clone();
        let second = ledger.stamp(2, &mut bytes);
        ledger.written(2, second, true);
        assert_eq!(ledger.check(2, &data(&bytes, 4096)), CheckOutcome::Right);
        assert!(matches!(ledger.check(2, &data(&old, 4096)), CheckOutcome::Wrong(_)));
        let mut torn = bytes.clone();
        torn[2048..].copy_from_slice(&old[2048..]);
        let found = ledger.check(2, &data(&torn, 4096));
        assert!(
            matches!(found, CheckOutcome::Wrong(w) if w.contains("2048") || w.contains("10240"))
        );
        assert!(matches!(ledger.check(2, &data(&bytes[..512], 512)), CheckOutcome::Wrong(_)));
        ledger.written(2, second + 1, false);
        assert_eq!(ledger.check(2, &data(&old, 4096)), CheckOutcome::Unknown);
        assert_eq!(ledger.next_known(0), None);
    }

    #[test]
    fn what_other_runs_wrote_must_be_sound_and_in_place() {
        let mut bytes = vec![0; 4096];
        Ledger::new(8, 4096, 6).stamp(3, &mut bytes);
        let ledger = Ledger::new(8, 4096, 7);
        assert_eq!(ledger.check(3, &data(&bytes, 4096)), CheckOutcome::Right);
        assert!(matches!(ledger.check(4, &data(&bytes, 4096)), CheckOutcome::Wrong(_)));
        bytes[3000] ^= 1;
        assert!(matches!(ledger.check(3, &data(&bytes, 4096)), CheckOutcome::Wrong(_)));
    }

    #[test]
    fn a_block_has_one_io_at_a_time() {
        let mut ledger = Ledger::new(100, 512, 1);
        assert!(ledger.take(64) && !ledger.take(64) && ledger.take(65));
        ledger.release(64);
        assert!(ledger.take(64) && !ledger.take(65));
    }
}
