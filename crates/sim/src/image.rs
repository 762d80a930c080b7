//! What happens to an image while no target serves it: it is replaced, it shrinks, or a command on its
//! machine writes it, as `thinwire copy` does: under a writer generation of its own (rule 3).

use thinwire_buffer::Pool;
use thinwire_link::rng::Rng;
use thinwire_volume::Grant;
use thinwire_volume::stores::FileStore;

use crate::coverage::Coverage;
use crate::export::{Export, Store};
use crate::model::{ModelEffect, Range};
use crate::stamp::SECTOR_BYTES;

/// What happens to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is another file in its place, of zeroes, as long as the first one was.
    Replaced,
    /// It is cut to about half, at a multiple of 4096 bytes.
    Shrunk,
    /// It is written by somebody who has taken a writer generation, and released it.
    Written,
}

/// Who writes locally.
const LOCAL: [u8; 16] = [0xee; 16];
/// Runs of local writers have numbers from here on: none of a client's is so high.
const LOCAL_RUNS: u32 = 1 << 30;
/// No run at all: whoever writes has not been granted what is there now.
const NOBODY: u32 = u32::MAX;

impl Export {
    /// Changes its image, whose lock is free. Only files are: what a cache above it has not written
    /// back is not the matter here.
    pub fn apply(&mut self, change: Change, seed: u64, pool: &Pool, coverage: &mut Coverage) {
        let Store::File(medium) = &self.store else { return };
        let (medium, mut rng) = (medium.clone(), Rng::new(seed));
        let done = match change {
            Change::Replaced => {
                let nth = self.contents.len() as u8;
                let mut identity = medium.identity().identity;
                identity[15] = identity[15].wrapping_add(nth | 0x80);
                let first = self.contents[0].bytes;
                let new = medium.replaced(rng.bits(), identity, first);
                self.bytes = first;
                self.store = Store::File(new.clone());
                self.begin_content(new.identity(), Some(new.clone()), None);
                new.fence(NOBODY, false);
                &mut coverage.images_replaced
            }
            Change::Shrunk => {
                // Less than anybody was ever told.
                let first = self.contents.last().expect("it has a content").bytes;
                let bytes = first / 2 / 4096 * 4096;
                if bytes == 0 {
                    return;
                }
                medium.shrink(bytes);
                self.bytes = bytes;
                let model = self.models.last().expect("it has a content").shrunk(bytes);
                self.begin_content(medium.identity(), Some(medium.clone()), Some(model));
                medium.fence(NOBODY, false);
                &mut coverage.images_shrunk
            }
            Change::Written => {
                if !self.write_locally(&mut rng, pool) {
                    return;
                }
                medium.fence(NOBODY, false);
                &mut coverage.images_written
            }
        };
        *done += 1;
    }

    /// Writes some ranges, and makes them durable. False if it may not.
    fn write_locally(&mut self, rng: &mut Rng, pool: &Pool) -> bool {
        let Store::File(medium) = &self.store else { return false };
        // What records do that fail is shown by targets; this writer would wait for an administrator.
        let drawn = medium.config();
        medium.configure(|c| (c.record_failure, c.record_crash) = (0.0, 0.0));
        let disk = FileStore::new(medium.open_at_once(), self.block_bytes, pool);
        let mut store = disk.expect("it fits");
        let taken = Grant::take(&mut store, LOCAL, "a local writer", true);
        if let Ok(grant) = &taken {
            let generation = grant.generation();
            let model = self.models.last_mut().expect("it has a content");
            let run = LOCAL_RUNS + generation as u32;
            assert!(model.run_started(run, generation), "nobody has a later generation");
            // A power failure may have taken back what it had grown by.
            let sectors = model.sectors().min(drawn.bytes as usize / SECTOR_BYTES);
            for _ in 0..rng.between(1, 4) {
                let first = rng.below(sectors as u64) as usize;
                let count = rng.between(1, 16.min((sectors - first) as u64)) as usize;
                let range = Range { first, count };
                let version = model.begin_write(run, range, ModelEffect::Data);
                let mut bytes = vec![0; count * SECTOR_BYTES];
                model.fill(run, range, version, &mut bytes);
                medium.write_durably(first, bytes);
                model.end_write(run, range, version, true, true);
            }
            model.run_detached(run).expect("nothing of it was lost");
        }
        let done = taken.is_ok_and(|grant| grant.release(&mut store).is_ok());
        medium.configure(|c| *c = drawn);
        done
    }
}
