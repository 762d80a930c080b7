//! It does what every volume does, over stores of all kinds.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise, finish};

use super::super::*;
use super::world::*;

fn over(mut part: Box<dyn Volume>, cache_blocks: u64) -> Integrity {
    let bytes = part.geometry().bytes;
    let mut making = SumMaking::new(7, &Pool::new(1 << 20), WHOLE, 0, bytes);
    let made = std::iter::repeat_with(|| making.turn(&mut *part)).flatten().next();
    assert_eq!(made, Some(Ok(())));
    let state = IntegrityState::new(SumLayout::of(bytes).bytes);
    let part = Child::all(vec![part]).remove(0);
    Integrity::open(part, state, WHOLE, config(cache_blocks)).unwrap_or_else(|e| panic!("{e}"))
}

/// With time that passes whenever somebody polls.
struct Clocked(Integrity, Time);

impl thinwire_volume::Layer for Clocked {
    type Below = Integrity;

    fn below(&self) -> &Integrity {
        &self.0
    }

    fn below_mut(&mut self) -> &mut Integrity {
        &mut self.0
    }

    fn take(&mut self, io: Io) {
        self.0.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.1 = self.1 + Duration::from_millis(7);
        self.0.turn(self.1);
        self.0.poll(done);
        self.0.turn(self.1);
    }

    fn taken(&self) -> usize {
        self.0.outstanding()
    }
}

fn stores(seed: u64) -> [Box<dyn Volume>; 3] {
    let pool = Pool::new(8 << 20);
    // Four regions of two MiB, some of it what the exercise comes to.
    let bytes = (9 << 20) + 4096;
    let file = |align, block| {
        let disk = MemDisk::new(bytes, align, seed);
        let disk = if seed % 2 == 0 { disk.lying() } else { disk };
        FileStore::new(disk, block, &pool).unwrap_or_else(|e| panic!("{e:?}"))
    };
    [
        Box::new(MemoryStore::new(bytes, 512, Identity::default(), &pool)),
        Box::new(file(512, 512)),
        Box::new(file(4096, 4096)),
    ]
}

#[test]
fn it_does_what_every_volume_does() {
    for seed in 1..5 {
        for (nth, store) in stores(seed).into_iter().enumerate() {
            // Also with less memory for sums than are in use.
            let mut volume = Clocked(over(store, 1 + nth as u64), Time(1 << 40));
            let report = exercise(&mut volume, &mut || {}, seed, 1500);
            assert!(report.ios > 1500 && report.blocks_checked > 1000, "{report:?}");
            let report = volume.0.scrub_report();
            assert!(report.is_clean() && report.position == 0, "{report:?}");
        }
    }
}

/// What the suite says first, if it finds something.
fn noticed(canary: IntegrityCanary) -> Option<String> {
    let outcome = std::panic::catch_unwind(|| {
        for seed in 1..5 {
            let [_, store, _] = stores(seed);
            let mut volume = over(store, 4);
            volume.canary = canary;
            exercise(&mut Clocked(volume, Time(1 << 40)), &mut || {}, seed, 1500);
        }
    });
    outcome.err().map(|why| why.downcast_ref::<String>().cloned().unwrap_or_default())
}

/// The suite notices when reads do not wait for writes, and for nothing else: what is read fits neither sum.
#[test]
fn reads_beside_writes_would_be_noticed() {
    assert_eq!(noticed(IntegrityCanary::None), None);
    let why = noticed(IntegrityCanary::NoRangeLock).expect("nothing was noticed");
    assert!(why.starts_with("read of") && why.contains("sum"), "{why}");
}

#[test]
fn it_keeps_to_its_memory() {
    let pool = Pool::new(8 << 20);
    let bytes = 64 << 20;
    let store = MemoryStore::new(bytes, 512, Identity::default(), &pool);
    let mut volume = over(Box::new(store), 3);
    for round in 0..4 {
        for at in (0..volume.geometry().bytes - 8192).step_by(3 << 20) {
            let mut io = Io::new(1, Op::Write, at, 8192);
            io.data = segments(&[round + 1; 8192]);
            assert_eq!(finish(&mut volume, &mut || {}, io).result, Ok(()));
            let read = finish(&mut volume, &mut || {}, Io::new(1, Op::Read, at, 8192));
            assert!(read.data.to_vec() == [round + 1; 8192]);
        }
    }
    assert_eq!(volume.sums.count(), 3);
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |geometry: Geometry| {
        let part = Child::all(vec![Box::new(Puppet::new(1, geometry))]).remove(0);
        let state = IntegrityState::new(1 << 20);
        Integrity::open(part, state, WHOLE, config(1)).err().map(|e| e.to_string())
    };
    let large = Geometry { bytes: 4 << 20, ..Puppet::GEOMETRY };
    assert_eq!(refused(large), None);
    let why = refused(Geometry { bytes: (1 << 20) + 4096, ..large }).unwrap();
    assert!(why.contains("sums need more"), "{why}");
    let why = refused(Geometry { io_bytes_max: 2048, ..large }).unwrap();
    assert!(why.contains("4096 bytes in one I/O"), "{why}");
}

/// Before what was read behind it; and what is open is in doubt from then on.
#[test]
fn losses_are_told() {
    let mut world = World::over(made(PART_BYTES));
    world.write(SECOND, 1, 1, false);
    world.succeed();
    let events = world.volume.events();
    world.disk.lose();
    assert_eq!(world.volume.events(), events + 1, "it counts before anybody polls");
    world.volume.poll_events(&mut world.news);
    assert_eq!(world.news, [VolumeEvent::Lost]);
    assert_eq!((world.volume.events(), world.volume.regions.stale(1)), (events + 1, 1));
    assert!(world.read(SECOND, 1, false).is_ok_and(|bytes| bytes[0] == 0));
}
