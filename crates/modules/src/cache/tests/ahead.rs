//! What is read ahead of a stream: how far, for whom, and that it is never what somebody has changed.

use super::*;

/// Of the caches here.
const WINDOW: u64 = 6;

impl Stage {
    fn streaming(pages: u64) -> Self {
        Stage::with(Geometry { bytes: pages * PAGE + 512, ..GEOMETRY }, 9 << 18)
    }

    /// Reads three pages from this one on, in order: what is read ahead then.
    fn begin_stream(&mut self, page: u64) -> Vec<Io> {
        self.fill(page * PAGE, PAGE, 1);
        self.fill((page + 1) * PAGE, PAGE, 1);
        self.submit(Op::Read, (page + 2) * PAGE, PAGE, IoFlags::default(), 0);
        assert!(self.poll().is_empty());
        let mut below = self.below.take();
        let asked = below.remove(0);
        assert_eq!(asked.offset, (page + 2) * PAGE, "what was asked for comes first");
        self.answer(&asked, 1);
        below
    }

    /// The volume below answers what was read ahead: what is completed by that.
    fn bring(&mut self, io: &Io, byte: u8) -> Vec<Completion> {
        let data = SegList::of(self.pool.copy_of(&vec![byte; io.len as usize]).freeze());
        self.below.complete(Completion { data, ..Completion::new(io.token, Ok(())) });
        self.poll()
    }
}

/// In pages.
fn ranges(ios: &[Io]) -> Vec<(u64, u64)> {
    assert!(ios.iter().all(|io| io.op == Op::Read && io.offset % PAGE == 0));
    ios.iter().map(|io| (io.offset / PAGE, io.len / PAGE)).collect()
}

#[test]
fn who_reads_in_order_finds_it_there() {
    let mut stage = Stage::streaming(100);
    let ahead = stage.begin_stream(0);
    assert_eq!(ranges(&ahead), [(3, WINDOW)]);
    assert_eq!(stage.cache.outstanding(), 0, "nobody waits for it");
    assert!(stage.bring(&ahead[0], 5).is_empty());
    (3..6).for_each(|page| _ = stage.holds(page * PAGE, PAGE, 5));
    assert_eq!((stage.report().hits, stage.report().ahead), (3, WINDOW * PAGE));
    // It goes on when half of that is read, and stops when its reader does.
    stage.submit(Op::Read, 6 * PAGE, PAGE, IoFlags::default(), 0);
    assert_eq!(stage.poll().len(), 1);
    assert_eq!(ranges(&stage.below.take()), [(9, 4)]);
    (0..10).for_each(|_| assert!(stage.poll().is_empty() && stage.below.take().is_empty()));
}

#[test]
fn only_what_lacks_is_read_ahead_and_nothing_beyond_the_end() {
    for (pages, here) in [(8, [3, 7]), (9, [3, 8])] {
        let mut stage = Stage::streaming(pages);
        here.iter().for_each(|page| stage.fill(page * PAGE, PAGE, 1));
        assert_eq!(ranges(&stage.begin_stream(0)), [(4, here[1] - 4)], "{pages}");
    }
    let mut stage = Stage::streaming(3);
    assert!(stage.begin_stream(0).is_empty());
    // Where all is here nothing is looked for, let alone read.
    let mut stage = Stage::streaming(20);
    (0..20).rev().for_each(|page| stage.fill(page * PAGE, PAGE, 1));
    (0..20).for_each(|page| _ = stage.holds(page * PAGE, PAGE, 1));
    assert_eq!(stage.report().ahead, 0);
    // What has grown is read ahead, too.
    let mut stage = Stage::streaming(5);
    assert_eq!(ranges(&stage.begin_stream(0)), [(3, 2)]);
    let mut stage = Stage::streaming(5);
    stage.below.tell(VolumeEvent::Resized { bytes: 7 * PAGE });
    stage.cache.poll_events(&mut Vec::new());
    assert_eq!(ranges(&stage.begin_stream(0)), [(3, 4)]);
}

#[test]
fn what_is_under_way_is_bounded_and_never_read_twice() {
    let geometry = Geometry { bytes: 1 << 30, io_bytes_max: 64 << 10, ..GEOMETRY };
    let mut stage = Stage::with(geometry, 256 << 20);
    let mut all = Vec::new();
    for stream in 1..8 {
        all.extend(stage.begin_stream(stream * 10_000));
        // Another before it has the same ahead.
        all.extend(stage.begin_stream(stream * 10_000 - 3));
    }
    assert!(all.iter().all(|io| io.len <= 64 << 10));
    assert_eq!(all.len(), 32, "they take 2 MiB");
    let mut pages: Vec<_> =
        all.iter().flat_map(|io| io.offset / PAGE..(io.offset + io.len) / PAGE).collect();
    let count = pages.len();
    pages.sort_unstable();
    pages.dedup();
    assert_eq!(pages.len(), count);
    all.iter().for_each(|io| assert!(stage.bring(io, 1).is_empty()));
    assert!(!stage.begin_stream(200_000).is_empty());
}

#[test]
fn a_read_of_what_is_on_its_way_waits_for_that() {
    let mut stage = Stage::streaming(100);
    let ahead = stage.begin_stream(0).remove(0);
    let first = stage.submit(Op::Read, 3 * PAGE, PAGE, IoFlags::default(), 0);
    let second = stage.submit(Op::Read, 8 * PAGE, 2 * PAGE, IoFlags::default(), 0);
    assert!(stage.poll().is_empty() && stage.below.take().is_empty());
    assert_eq!(stage.cache.outstanding(), 2);
    let polls = stage.below.polls();
    let done = stage.bring(&ahead, 5);
    assert_eq!((done.len(), done[0].token), (1, first));
    assert_eq!(done[0].data.to_vec(), [5; PAGE as usize]);
    assert_eq!(stage.below.polls(), polls + 2, "nothing else may wake a disk that was given it");
    // A part of it was not on its way.
    let rest = stage.below.take_one();
    assert_eq!((rest.offset, rest.len), (8 * PAGE, 2 * PAGE));
    assert_eq!(stage.answer(&rest, 5).token, second);
    assert_eq!(stage.cache.outstanding(), 0);
}

#[test]
fn what_is_read_ahead_in_vain_fails_nobody() {
    let mut stage = Stage::streaming(100);
    let ahead = stage.begin_stream(0).remove(0);
    stage.below.fail(&ahead);
    assert!(stage.poll().is_empty() && stage.below.take().is_empty(), "nobody asks again");
    assert_eq!((stage.report().used, stage.cache.outstanding()), (3 * PAGE, 0));
    // Who waits for it asks itself, and is told what becomes of that.
    for fails in [false, true] {
        let mut stage = Stage::streaming(100);
        let ahead = stage.begin_stream(0).remove(0);
        stage.submit(Op::Read, 3 * PAGE, PAGE, IoFlags::default(), 0);
        stage.below.fail(&ahead);
        assert!(stage.poll().is_empty());
        let own = stage.below.take_one();
        assert_eq!((own.offset, own.len), (3 * PAGE, PAGE));
        let told = match fails {
            true => stage.fail(&own),
            false => stage.answer(&own, 5),
        };
        assert_eq!(told.result.is_err(), fails);
        assert_eq!(stage.report().used, if fails { 3 } else { 4 } * PAGE);
    }
}

#[test]
fn what_is_read_ahead_beside_a_change_is_not_kept() {
    for (op, ends_first) in
        [Op::Write, Op::Discard, Op::WriteZeroes].iter().flat_map(|op| [(op, true), (op, false)])
    {
        let mut stage = Stage::streaming(100);
        let ahead = stage.begin_stream(0).remove(0);
        let change = stage.begin_with(*op, 4 * PAGE, 512, IoFlags::default(), 2);
        // Who reads beside it does not wait in vain.
        let beside = stage.begin(Op::Read, 4 * PAGE, 512);
        stage.answer(&beside, 2);
        if ends_first {
            stage.succeed(&change);
            // Who comes behind it waits, and is told what was written.
            stage.submit(Op::Read, 4 * PAGE, 512, IoFlags::default(), 0);
            assert!(stage.bring(&ahead, 5).is_empty());
            let own = stage.below.take_one();
            assert_eq!(stage.answer(&own, 2).data.to_vec(), [2; 512]);
            assert_eq!(stage.report().used, 4 * PAGE, "{op}");
        } else {
            assert!(stage.bring(&ahead, 5).is_empty());
            stage.succeed(&change);
            assert_eq!(stage.report().used, 3 * PAGE, "{op}");
        }
    }
    // One that has begun before: nothing is read there.
    let mut stage = Stage::streaming(100);
    let _write = stage.begin_write(4 * PAGE, 512, 2);
    assert!(stage.begin_stream(0).is_empty());
}

/// Something happens while it is read ahead, and somebody waits for that.
fn is_not_kept(what: &str, happen: impl FnOnce(&mut Stage)) {
    let mut stage = Stage::streaming(100);
    let ahead = stage.begin_stream(0).remove(0);
    stage.submit(Op::Read, 3 * PAGE, PAGE, IoFlags::default(), 0);
    assert!(stage.poll().is_empty());
    happen(&mut stage);
    assert!(stage.bring(&ahead, 5).is_empty(), "{what}");
    let own = stage.below.take_one();
    assert_eq!((own.offset, stage.report().used), (3 * PAGE, 0), "{what}");
    assert_eq!(stage.answer(&own, 6).data.to_vec(), [6; PAGE as usize]);
}

#[test]
fn what_is_read_ahead_of_another_volume_is_not_kept() {
    is_not_kept("a failed flush", |stage| {
        let io = stage.begin(Op::Flush, 0, 0);
        stage.fail(&io);
    });
    is_not_kept("a take-over", |stage| {
        let io = stage.begin(Op::StoreWriter, 0, 0);
        stage.succeed(&io);
    });
    is_not_kept("a loss", |stage| stage.below.set_losses(1));
    is_not_kept("a growth", |stage| {
        stage.below.tell(VolumeEvent::Resized { bytes: 200 * PAGE });
        stage.cache.poll_events(&mut Vec::new());
    });
}

/// A stream through ten times as much as the cache holds.
#[test]
fn a_stream_pushes_out_nothing_that_is_read_often() {
    let mut stage = Stage::streaming(10_000);
    let hot = || (0..200).map(|nth| nth * 7 % 200);
    hot().for_each(|page| stage.fill(page * PAGE, PAGE, 1));
    for _ in 0..4 {
        hot().for_each(|page| _ = stage.holds(page * PAGE, PAGE, 1));
    }
    let mut asked = Vec::new();
    for page in 1000..6000 {
        stage.submit(Op::Read, page * PAGE, PAGE, IoFlags::default(), 0);
        stage.poll();
        asked.extend(stage.below.take());
        asked.drain(..).for_each(|io| _ = stage.bring(&io, 2));
    }
    assert!(stage.report().ahead > 4900 * PAGE && stage.report().hits > 4900);
    assert_eq!(hot().filter(|&page| stage.has(page)).count(), 200);
}

/// A cache, of which each read is the third of a stream: the two before it are nobody's.
struct Streaming {
    cache: Cache,
    /// Of those, not complete.
    own: usize,
}

const OWN: Token = 1 << 60;

impl Volume for Streaming {
    fn geometry(&self) -> Geometry {
        self.cache.geometry()
    }

    fn identity(&self) -> Identity {
        self.cache.identity()
    }

    fn submit(&mut self, io: Io) {
        let block = u64::from(self.geometry().block_bytes);
        if io.op == Op::Read && io.offset >= 2 * block {
            for before in [2, 1] {
                self.cache.submit(Io::new(OWN, Op::Read, io.offset - before * block, block));
                self.own += 1;
            }
        }
        self.cache.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.cache.poll(done);
        let all = done.len();
        done.retain(|one| one.token != OWN);
        self.own -= all - done.len();
    }

    fn outstanding(&self) -> usize {
        self.cache.outstanding() - self.own
    }
}

#[test]
fn it_conforms_reading_ahead_of_every_read() {
    for (seed, block) in [(1, 512), (2, 4096), (3, 512)] {
        let pool = Pool::new(4 << 20);
        for bytes in [64 << 20, MIB] {
            let store = MemoryStore::new(3 << 20, block, Identity::default(), &pool);
            let disk = FileStore::new(MemDisk::new(2 << 20, 512, seed), block, &pool).unwrap();
            let stores: [Box<dyn Volume>; 2] = [Box::new(store), Box::new(disk)];
            for store in stores {
                let mut volume = Streaming { cache: Cache::new(store, bytes), own: 0 };
                let report = exercise(&mut volume, &mut || {}, seed, 3000);
                let found = volume.cache.cache().unwrap();
                assert!(report.ios > 3000 && found.ahead > 3 << 20, "{found:?}");
            }
        }
    }
}
