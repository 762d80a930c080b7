//! Worlds whose clients patch blocks on disks that lose what was written, and show it before anybody is
//! told. It takes all of that at once for a stale block to be written over what was lost, which other
//! worlds draw too seldom.

use thinwire_link::rng::Rng;

use super::pick;
use crate::client::{Top, Workload};
use crate::export::Store;
use crate::world::{MS, World};

/// Which share of the worlds without a tree is like that.
const SHARE: f64 = 0.04;

/// Makes a world such a one, if this is its seed. The others are as they would be if there were none.
pub(super) fn lose_beside(seed: u64, world: &mut World) {
    let mut dice = Rng::new(seed ^ 0x7061_7463_6865);
    if !dice.chance(SHARE) {
        return;
    }
    for export in &mut world.exports {
        export.may_fail |= export.medium().is_some();
        let Store::File(medium) = &export.store else { continue };
        export.block_bytes = 4096;
        medium.configure(|c| {
            c.flush_failure = pick(&mut dice, &[0.2, 0.5]);
            c.read_directly = true;
            c.failure_takes_ns = 200 * MS;
        });
    }
    for client in &mut world.clients {
        client.top = Top::AnyRange;
        client.workload = Workload {
            depth: pick(&mut dice, &[4, 16]),
            reads: 30,
            writes: 60,
            flushes: 4,
            fua: 0.0,
            sectors_max: 4,
            hot: 0.9,
            hot_sectors: 64,
            ..client.workload
        };
    }
}
