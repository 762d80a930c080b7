//! What happens to a volume below goes up through whatever stands on it.

use thinwire_buffer::Pool;
use thinwire_modules::{Cache, Linear, Slice, Stripe};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, offers_growth, tells_losses};
use thinwire_volume::{Identity, Volume};

const MIB: u64 = 1 << 20;

type Over = fn(Box<dyn Volume>) -> Box<dyn Volume>;

#[test]
fn losses_are_told() {
    let over: [Over; 4] = [
        |below| Box::new(Linear::new(vec![below]).unwrap()),
        |below| Box::new(Slice::new(vec![below], 0, None).unwrap()),
        |below| Box::new(Stripe::new(vec![below], 4096).unwrap()),
        |below| Box::new(Cache::new(below, 4 << 20)),
    ];
    for over in over {
        let below = Puppet::new(1, Puppet::GEOMETRY);
        let mut volume = over(Box::new(below.clone()));
        tells_losses(&below, &mut *volume, &mut || {});
    }
}

/// A store of 1 MiB on a disk that has become larger.
fn grown(bytes: u64, seed: u64) -> FileStore<MemDisk> {
    let disk = MemDisk::new(MIB, 512, seed);
    let mut store = FileStore::new(disk, 512, &Pool::new(MIB as usize)).unwrap();
    store.disk_mut().grow(bytes);
    store
}

#[test]
fn growth_is_offered() {
    let pool = Pool::new(MIB as usize);
    for seed in 0..20 {
        let mut kept = Cache::new(Box::new(grown(2 * MIB, seed)), MIB);
        offers_growth(&mut kept, &mut || {}, 2 * MIB);
        let first = MemoryStore::new(MIB, 4096, Identity::default(), &pool);
        // By whole blocks of the largest.
        let last = grown(2 * MIB + 512, seed);
        let mut two = Linear::new(vec![Box::new(first), Box::new(last)]).unwrap();
        offers_growth(&mut two, &mut || {}, 3 * MIB);
        let mut rest = Slice::new(vec![Box::new(grown(2 * MIB, seed))], 65536, None).unwrap();
        offers_growth(&mut rest, &mut || {}, 2 * MIB - 65536);
        // Beside a larger one, by whole rows.
        let large = MemoryStore::new(4 * MIB, 4096, Identity::default(), &pool);
        let small = grown(2 * MIB + 512, seed);
        let mut rows = Stripe::new(vec![Box::new(large), Box::new(small)], 4096).unwrap();
        offers_growth(&mut rows, &mut || {}, 4 * MIB);
    }
}
