//! Every rule at the head of the cache, over a volume that does as it is told; the suite that every volume
//! passes; in `ahead.rs`, what is read ahead; in `scrubs.rs`, who is not answered from here; and, in `random.rs`, a store that fails, beside which nobody can tell that there is a cache.

mod ahead;
mod random;
mod scrubs;

use thinwire_buffer::{Pool, SegList};

use super::*;
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise};
use thinwire_volume::{Identity, IoFlags, VolumeEvent, WriterRecord};

const MIB: u64 = 1 << 20;

/// 64 KiB in blocks of 512 bytes.
const GEOMETRY: Geometry = Geometry { bytes: 64 << 10, ..Puppet::GEOMETRY };

/// A cache over a puppet, which answers reads with a byte of its own choice.
struct Stage {
    cache: Cache,
    below: Puppet,
    pool: Pool,
    next: Token,
}

impl Stage {
    fn new() -> Self {
        Stage::of(GEOMETRY)
    }

    fn of(geometry: Geometry) -> Self {
        Stage::with(geometry, MIB)
    }

    fn with(geometry: Geometry, bytes: u64) -> Self {
        let below = Puppet::new(1, geometry);
        let cache = Cache::new(Box::new(below.clone()), bytes);
        Stage { cache, below, pool: Pool::new(1 << 20), next: 1 }
    }

    fn submit(&mut self, op: Op, offset: u64, len: u64, flags: IoFlags, byte: u8) -> Token {
        self.next += 1;
        let mut io = Io { flags, ..Io::new(self.next, op, offset, len) };
        if op == Op::Write {
            io.data = SegList::of(self.pool.copy_of(&vec![byte; len as usize]).freeze());
        }
        if op == Op::StoreWriter {
            io.data = WriterRecord::default().to_data(&self.pool);
        }
        self.cache.submit(io);
        self.next
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.cache.poll(&mut done);
        done
    }

    /// Begins an I/O that goes down: as it is there.
    fn begin(&mut self, op: Op, offset: u64, len: u64) -> Io {
        self.begin_with(op, offset, len, IoFlags::default(), 0)
    }

    fn begin_with(&mut self, op: Op, offset: u64, len: u64, flags: IoFlags, byte: u8) -> Io {
        self.submit(op, offset, len, flags, byte);
        assert!(self.poll().is_empty(), "it was answered");
        self.below.take_one()
    }

    fn begin_write(&mut self, offset: u64, len: u64, byte: u8) -> Io {
        self.begin_with(Op::Write, offset, len, IoFlags::default(), byte)
    }

    /// The volume below answers a read, all of this byte.
    fn answer(&mut self, io: &Io, byte: u8) -> Completion {
        let data = SegList::of(self.pool.copy_of(&vec![byte; io.len as usize]).freeze());
        self.below.complete(Completion { data, ..Completion::new(io.token, Ok(())) });
        self.polled_one()
    }

    fn succeed(&mut self, io: &Io) -> Completion {
        self.below.succeed(io);
        self.polled_one()
    }

    fn fail(&mut self, io: &Io) -> Completion {
        self.below.fail(io);
        self.polled_one()
    }

    fn polled_one(&mut self) -> Completion {
        let mut done = self.poll();
        assert_eq!(done.len(), 1, "{done:?}");
        done.remove(0)
    }

    /// Reads a range that is not here, of this byte.
    fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        let io = self.begin(Op::Read, offset, len);
        assert!(self.answer(&io, byte).result.is_ok());
    }

    /// What a read is answered with at once; `None` if it goes down, where it is answered with 255.
    fn look(&mut self, offset: u64, len: u64) -> Option<SegList> {
        let token = self.submit(Op::Read, offset, len, IoFlags::default(), 0);
        let mut done = self.poll();
        let below = self.below.take();
        if let [io] = &below[..] {
            assert!(done.is_empty());
            let answer = self.answer(io, 255);
            assert_eq!((answer.token, answer.data.to_vec()), (token, vec![255; len as usize]));
            return None;
        }
        assert_eq!((below.len(), done.len()), (0, 1));
        let answer = done.remove(0);
        assert_eq!((answer.token, answer.result), (token, Ok(())));
        Some(answer.data)
    }

    #[track_caller]
    fn holds(&mut self, offset: u64, len: u64, byte: u8) -> SegList {
        let data = self.look(offset, len).expect("it is here");
        assert_eq!(data.to_vec(), vec![byte; len as usize]);
        data
    }

    /// Whether a page is here. If it is not, nothing is read of it.
    fn has(&self, page: u64) -> bool {
        self.cache.pages.find(page).is_some()
    }

    fn report(&self) -> CacheReport {
        self.cache.cache().expect("it is one")
    }
}

#[test]
fn what_was_read_is_answered_without_the_volume_below() {
    let mut stage = Stage::new();
    stage.fill(4096, 8192, 7);
    assert_eq!(
        stage.report(),
        CacheReport { bytes: MIB, used: 8192, dirty: 0, hits: 0, misses: 1, ahead: 0 }
    );
    let copied = stage.cache.copied_bytes();
    let polls = stage.below.polls();
    let first = stage.holds(4096, 8192, 7);
    let again = stage.holds(8192 + 512, 1024, 7);
    assert!(again.as_slice()[0].shares_memory(&first.as_slice()[1]), "it was copied");
    assert_eq!(stage.cache.copied_bytes(), copied);
    assert_eq!(stage.below.polls(), polls + 2, "it is polled all the same");
    // One page lacks.
    assert!(stage.look(0, 8192).is_none());
    assert_eq!(
        stage.report(),
        CacheReport { bytes: MIB, used: 12288, dirty: 0, hits: 2, misses: 2, ahead: 0 }
    );
    assert_eq!(stage.cache.outstanding(), 0);
}

#[test]
fn a_read_of_a_part_of_a_page_brings_the_page() {
    let mut stage = Stage::new();
    let io = stage.begin(Op::Read, 4096 + 512, 512);
    assert_eq!((io.offset, io.len), (4096, 4096));
    let answer = stage.answer(&io, 3);
    assert_eq!(answer.data.to_vec(), [3; 512]);
    stage.holds(4096, 4096, 3);
    // Not beyond the end, where the last page is none; nor more than the volume takes.
    let mut odd = Stage::of(Geometry { bytes: 8192 + 1024, ..GEOMETRY });
    let io = odd.begin(Op::Read, 8192 + 512, 512);
    assert_eq!((io.offset, io.len), (8192, 1024));
    assert_eq!(odd.answer(&io, 3).data.to_vec(), [3; 512]);
    assert!(!odd.has(2));
    let mut short = Stage::of(Geometry { io_bytes_max: 4096, ..GEOMETRY });
    let io = short.begin(Op::Read, 512, 4096);
    assert_eq!((io.offset, io.len), (512, 4096));
    assert_eq!(short.answer(&io, 3).data.to_vec(), [3; 4096]);
    assert!(!short.has(0) && !short.has(1));
}

#[test]
fn what_is_old_is_read_anew() {
    let mut stage = Stage::new();
    assert!(!stage.cache.is_timed(), "nobody has to tell it the time");
    stage.cache.set_max_age(Duration::from_millis(10));
    assert!(stage.cache.is_timed());
    let ms = |ms: u64| Time(5) + Duration::from_millis(ms);
    assert_eq!(stage.cache.turn(ms(0)), Time::NEVER, "it is told before each poll");
    stage.fill(0, 4096, 1);
    stage.cache.turn(ms(9));
    stage.holds(0, 4096, 1);
    stage.fill(3 * PAGE, PAGE, 2);
    let late = stage.begin(Op::Read, 9 * PAGE, PAGE);
    stage.cache.turn(ms(10));
    assert!(!stage.has(0) && !stage.has(3));
    // What was read before is not kept when it comes.
    stage.answer(&late, 3);
    assert!(!stage.has(9));
    stage.cache.turn(ms(19));
    stage.fill(5 * PAGE, PAGE, 4);
    stage.holds(5 * PAGE, PAGE, 4);
    stage.cache.turn(ms(500));
    assert!(!stage.has(5));
}

#[test]
#[should_panic(expected = "none()")]
fn an_age_that_is_forgotten_is_found() {
    let mut stage = Stage::new();
    stage.cache.set_max_age(Duration::from_millis(10));
    stage.cache.set_canary(CacheCanary::AgeForgotten);
    stage.cache.turn(Time(0));
    stage.fill(0, 4096, 1);
    stage.cache.turn(Time(0) + Duration::from_secs(1));
    assert!(stage.look(0, 4096).is_none());
}

#[test]
fn what_nobody_asked_for_fails_nobody() {
    let mut stage = Stage::new();
    let whole = stage.begin(Op::Read, 512, 512);
    stage.below.fail(&whole);
    let polls = stage.below.polls();
    assert!(stage.poll().is_empty());
    assert_eq!(stage.below.polls(), polls + 2, "nothing else may wake a disk that was given it");
    let exact = stage.below.take_one();
    assert_eq!((exact.offset, exact.len, exact.op), (512, 512, Op::Read));
    assert_eq!(stage.cache.outstanding(), 1);
    assert_eq!(stage.answer(&exact, 4).data.to_vec(), [4; 512]);
    assert!(!stage.has(0));
    // Of what was asked for the error is told, in its bytes.
    let whole = stage.begin(Op::Read, 512, 512);
    stage.below.fail(&whole);
    stage.poll();
    let exact = stage.below.take_one();
    let error = stage.fail(&exact).result.unwrap_err();
    assert_eq!((error.offset, error.len), (512, 512));
    let page = stage.begin(Op::Read, 0, 4096);
    assert!(stage.fail(&page).result.is_err());
    assert_eq!((stage.has(0), stage.cache.outstanding()), (false, 0));
}

#[test]
fn a_page_that_is_written_is_given_to_nobody() {
    let mut stage = Stage::new();
    stage.fill(0, 8192, 1);
    let before = stage.holds(0, 4096, 1);
    let write = stage.begin_write(512, 512, 2);
    // What lies beside it in the page does not change.
    stage.holds(1024, 512, 1);
    stage.holds(4096, 4096, 1);
    let beside = stage.begin(Op::Read, 0, 4096);
    assert_eq!((beside.offset, beside.len), (0, 4096));
    let exact = stage.begin(Op::Read, 512, 512);
    assert_eq!((exact.offset, exact.len), (512, 512));
    stage.answer(&beside, 9);
    stage.answer(&exact, 9);
    stage.succeed(&write);
    stage.holds(512, 512, 2);
    stage.holds(0, 512, 1);
    stage.holds(1024, 3072, 1);
    assert_eq!(before.to_vec(), [1; 4096], "bytes changed under their reader");
}

#[test]
fn a_write_over_what_is_not_here_brings_nothing() {
    let mut stage = Stage::new();
    let write = stage.begin_write(0, 8192, 2);
    stage.succeed(&write);
    assert_eq!(stage.report().used, 0);
    // Over one that is, it changes that.
    stage.fill(4096, 4096, 1);
    let write = stage.begin_write(0, 8192, 3);
    stage.succeed(&write);
    assert!(!stage.has(0));
    stage.holds(4096, 4096, 3);
}

#[test]
fn a_write_that_fails_leaves_nothing() {
    let mut stage = Stage::new();
    stage.fill(0, 12288, 1);
    let write = stage.begin_write(2048, 4096, 2);
    stage.fail(&write);
    assert_eq!([stage.has(0), stage.has(1), stage.has(2)], [false, false, true]);
}

#[test]
fn of_two_changes_that_overlap_nobody_knows_which_came_last() {
    for (order, other) in
        [[0, 1], [1, 0]].iter().flat_map(|o| [Op::Write, Op::Discard].map(|op| (o, op)))
    {
        let mut stage = Stage::new();
        stage.fill(0, 8192, 1);
        let first = stage.begin_write(0, 1024, 2);
        let second = stage.begin_with(other, 512, 1024, IoFlags::default(), 3);
        for &at in order {
            let io = [&first, &second][at];
            stage.succeed(io);
        }
        assert!(!stage.has(0) && stage.has(1), "{order:?} {other}");
    }
    // Two that share only a page do not overlap.
    let mut stage = Stage::new();
    stage.fill(0, 4096, 1);
    let first = stage.begin_write(0, 512, 2);
    let second = stage.begin_write(512, 512, 3);
    stage.succeed(&second);
    stage.succeed(&first);
    stage.holds(0, 512, 2);
    stage.holds(512, 512, 3);
}

#[test]
fn what_is_read_beside_a_change_is_not_kept() {
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        let change = |stage: &mut Stage| stage.begin_with(op, 4096, 512, IoFlags::default(), 2);
        // The change begins while it is read, and ends before that or after.
        for ends_first in [false, true] {
            let mut stage = Stage::new();
            let read = stage.begin(Op::Read, 0, 12288);
            let changed = change(&mut stage);
            if ends_first {
                stage.succeed(&changed);
            }
            stage.answer(&read, 1);
            assert_eq!(stage.report().used, 0, "{op} {ends_first}");
        }
        // It has begun before.
        for ends_first in [false, true] {
            let mut stage = Stage::new();
            let changed = change(&mut stage);
            let read = stage.begin(Op::Read, 4096 + 512, 512);
            assert_eq!((read.offset, read.len), (4096 + 512, 512), "nothing beside it is read");
            let all = stage.begin(Op::Read, 4096, 4096);
            if ends_first {
                stage.succeed(&changed);
            }
            stage.answer(&read, 1);
            stage.answer(&all, 1);
            assert_eq!(stage.report().used, 0, "{op} {ends_first}");
        }
        // Elsewhere.
        let mut stage = Stage::new();
        let read = stage.begin(Op::Read, 8192, 4096);
        change(&mut stage);
        stage.answer(&read, 1);
        assert_eq!(stage.report().used, 4096);
    }
}

/// A disk that takes its time beside others that write much.
#[test]
fn what_is_read_or_written_beside_many_changes_elsewhere_is_kept() {
    let mut stage = Stage::new();
    stage.fill(4096, 4096, 2);
    let read = stage.begin(Op::Read, 0, 4096);
    let write = stage.begin_write(4096, 4096, 3);
    for _ in 0..1000 {
        let other = stage.begin_write(8192, 4096, 9);
        stage.succeed(&other);
    }
    stage.answer(&read, 1);
    stage.succeed(&write);
    stage.holds(0, 4096, 1);
    stage.holds(4096, 4096, 3);
}

#[test]
fn discarded_and_zeroed_pages_are_gone_when_that_is_told() {
    for (op, fails) in [(Op::Discard, false), (Op::WriteZeroes, false), (Op::WriteZeroes, true)] {
        let mut stage = Stage::new();
        stage.fill(0, 16384, 1);
        let io = stage.begin(op, 2048, 8192);
        match fails {
            true => stage.fail(&io),
            false => stage.succeed(&io),
        };
        let here: Vec<_> = (0..4).map(|page| stage.has(page)).collect();
        assert_eq!(here, [false, false, false, true], "{op}");
    }
}

/// Ends an I/O, or has something happen, by which all is gone: what was here, what is being read, and
/// what is being written.
fn drops_all(what: &str, happen: impl FnOnce(&mut Stage)) {
    let mut stage = Stage::new();
    stage.fill(0, 8192, 1);
    let read = stage.begin(Op::Read, 8192, 4096);
    let write = stage.begin_write(0, 4096, 2);
    happen(&mut stage);
    assert_eq!(stage.report().used, 0, "{what}");
    stage.answer(&read, 1);
    stage.succeed(&write);
    assert_eq!(stage.report().used, 0, "{what}: what was under way");
    stage.fill(0, 8192, 3);
    stage.holds(0, 8192, 3);
}

#[test]
fn what_may_make_it_another_volume_drops_all() {
    let fua = IoFlags { fua: true, ..IoFlags::default() };
    drops_all("a failed flush", |stage| {
        let io = stage.begin(Op::Flush, 0, 0);
        assert!(stage.fail(&io).result.is_err());
    });
    drops_all("a failed durable write", |stage| {
        let io = stage.begin_with(Op::Write, 60 << 10, 512, fua, 2);
        assert!(io.flags.fua);
        stage.fail(&io);
    });
    drops_all("a loss", |stage| {
        stage.below.set_losses(1);
        assert!(stage.poll().is_empty());
        assert_eq!(stage.cache.events(), 1);
    });
    drops_all("a loss that others have told of", |stage| {
        stage.below.set_losses(1);
        stage.cache.poll_events(&mut Vec::new());
    });
    drops_all("a growth", |stage| {
        stage.below.tell(VolumeEvent::Resized { bytes: 128 << 10 });
        stage.poll();
        let mut events = Vec::new();
        stage.cache.poll_events(&mut events);
        assert_eq!(events, [VolumeEvent::Resized { bytes: 128 << 10 }]);
        assert_eq!(stage.cache.geometry().bytes, 128 << 10);
    });
    for op in [Op::LoadWriter, Op::StoreWriter] {
        drops_all("another writer", |stage| {
            let io = stage.begin_with(op, 0, 0, IoFlags::default(), 0);
            assert_eq!(io.op, op);
            stage.succeed(&io);
        });
    }
}

#[test]
fn a_flush_that_succeeds_and_a_write_that_only_fails_drop_nothing_else() {
    let mut stage = Stage::new();
    stage.fill(0, 8192, 1);
    let io = stage.begin(Op::Flush, 0, 0);
    stage.succeed(&io);
    let io = stage.begin(Op::BlockStatus, 0, 4096);
    stage.fail(&io);
    let io = stage.begin_write(16384, 512, 2);
    stage.fail(&io);
    let fua = IoFlags { fua: true, ..IoFlags::default() };
    let io = stage.begin_with(Op::Write, 0, 4096, fua, 5);
    stage.succeed(&io);
    stage.holds(0, 4096, 5);
    stage.holds(4096, 4096, 1);
}

/// Whoever shares its device may have been told already, and the export have another verifier.
#[test]
fn nothing_is_answered_from_before_a_loss_that_was_not_polled_for() {
    let mut stage = Stage::new();
    stage.fill(0, 4096, 1);
    stage.below.set_losses(1);
    let io = stage.begin(Op::Read, 0, 4096);
    assert_eq!((io.op, io.offset, io.len), (Op::Read, 0, 4096));
}

/// A slow reader of pages that have gone takes their memory away, and nothing else.
#[test]
fn pages_are_kept_while_others_read_what_has_gone() {
    let mut stage = Stage::of(Geometry { bytes: 16 << 20, ..GEOMETRY });
    let mut held = Vec::new();
    for page in (0..120).step_by(2) {
        stage.fill(page * 4096, 4096, 1);
        held.extend(stage.look(page * 4096, 4096));
    }
    stage.below.set_losses(1);
    stage.poll();
    // In no order that could be taken for a stream.
    for nth in 0..400 {
        stage.fill((200 + nth * 7 % 400) * 4096, 4096, 2);
    }
    assert_eq!(held.len(), 60);
    let used = stage.report().used;
    assert!(used > MIB / 2, "only {used} bytes are kept");
    stage.fill(700 * 4096, 4096, 3);
    stage.holds(700 * 4096, 4096, 3);
}

/// Far more is dropped than is looked for page by page; what lies elsewhere stays.
#[test]
fn a_long_discard_drops_what_it_touches() {
    let mut stage = Stage::of(Geometry { bytes: 64 << 20, ..GEOMETRY });
    for page in [0, 300, 600, 9000] {
        stage.fill(page * 4096, 4096, 1);
    }
    let io = stage.begin(Op::Discard, 4096, 599 * 4096);
    stage.succeed(&io);
    assert!(stage.look(300 * 4096, 4096).is_none());
    stage.holds(9000 * 4096, 4096, 1);
}

/// What the volume below tells in one poll is told in its order: what has seen a loss comes behind it.
#[test]
fn completions_keep_their_order() {
    let mut stage = Stage::new();
    let flush = stage.begin(Op::Flush, 0, 0);
    let read = stage.begin(Op::Read, 0, 4096);
    stage.below.fail(&flush);
    let data = SegList::of(stage.pool.copy_of(&[1; 4096]).freeze());
    stage.below.complete(Completion { data, ..Completion::new(read.token, Ok(())) });
    let mut done = vec![Completion::new(99, Ok(()))];
    stage.cache.poll(&mut done);
    let told: Vec<_> = done.iter().map(|one| (one.token, one.result.is_ok())).collect();
    assert_eq!(told, [(99, true), (2, false), (3, true)]);
    assert_eq!(stage.report().used, 0, "it may have been read before the loss");
}

#[test]
fn it_is_the_volume_below() {
    let stage = Stage::new();
    assert_eq!(stage.cache.identity(), stage.below.identity());
    assert_eq!(stage.cache.geometry(), stage.below.geometry());
    assert!(stage.cache.copied_bytes() >= Puppet::COPIED_BYTES);
}

#[test]
fn the_rest_of_an_io_goes_down_as_it_is() {
    let mut stage = Stage::new();
    let flags = IoFlags { for_patch: true, verified: true, ..IoFlags::default() };
    assert_eq!(stage.begin_with(Op::Read, 0, 512, flags, 0).flags, flags);
    let flags = IoFlags { no_hole: true, fua: true, ..IoFlags::default() };
    assert_eq!(stage.begin_with(Op::WriteZeroes, 0, 512, flags, 0).flags, flags);
    let flags = IoFlags { one_extent: true, ..IoFlags::default() };
    assert_eq!(stage.begin_with(Op::BlockStatus, 0, 512, flags, 0).flags, flags);
}

#[test]
fn its_memory_is_bounded_also_while_others_read() {
    let geometry = Geometry { bytes: 16 << 20, ..GEOMETRY };
    let mut stage = Stage::of(geometry);
    let mut held = Vec::new();
    // In no order that could be taken for a stream.
    let all = || (0..1000).map(|nth| nth * 7 % 1000);
    for page in all() {
        stage.fill(page * 4096, 4096, page as u8);
        // Whoever is slow keeps what has gone long since.
        held.extend(stage.look(page * 4096, 4096).map(|data| (page, data)));
    }
    let pages = &stage.cache.pages;
    let live = pages.pool_stats().live_bytes as u64;
    assert!(live <= MIB && live > MIB * 9 / 10, "{live}");
    assert!(pages.used_bytes() <= live);
    assert!(held.len() >= 200);
    for (page, data) in &held {
        assert_eq!(data.to_vec(), vec![*page as u8; 4096], "page {page}");
    }
    // Without them it works as before.
    held.clear();
    for page in all() {
        stage.look(page * 4096, 4096);
    }
    let stats = stage.cache.pages.pool_stats();
    assert!((stats.live_bytes + stats.free_bytes) as u64 <= MIB, "{stats:?}");
    assert!(stage.report().used > MIB * 8 / 10);
}

#[test]
fn it_conforms() {
    for (seed, block) in [(1, 512), (2, 4096), (3, 512)] {
        let pool = Pool::new(4 << 20);
        let identity = Identity::default();
        // All of it fits into the one, and a third of it into the other.
        for bytes in [8 << 20, MIB] {
            let store = MemoryStore::new(3 << 20, block, identity, &pool);
            let mut cache = Cache::new(Box::new(store), bytes);
            let report = exercise(&mut cache, &mut || {}, seed, 3000);
            assert!(report.ios > 3000 && cache.cache().unwrap().hits > 100, "{report:?}");
            let disk = MemDisk::new(2 << 20, 512, seed);
            let store = FileStore::new(disk, block, &pool).unwrap();
            let mut cache = Cache::new(Box::new(store), bytes);
            let report = exercise(&mut cache, &mut || {}, seed, 3000);
            assert!(report.ios > 3000 && cache.cache().unwrap().hits > 100, "{report:?}");
        }
    }
}

#[test]
fn warm_it_asks_the_pool_for_nothing_new() {
    let mut stage = Stage::new();
    stage.fill(0, 65536, 1);
    let allocations = stage.cache.pages.pool_stats().allocations;
    for _ in 0..3 {
        stage.holds(0, 65536, 1);
        let write = stage.begin_write(0, 65536, 1);
        stage.succeed(&write);
    }
    assert_eq!(stage.cache.pages.pool_stats().allocations, allocations);
}
