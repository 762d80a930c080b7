//! Rule by rule over a volume that does as it is told; the suite that every volume passes; in `epochs.rs`, what a flush covers; in `doubts.rs`, what has happened below; in `room.rs`, what waits for room; and, in `crashes.rs`, crashes at every moment.

mod crashes;
mod doubts;
mod epochs;
mod room;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise};
use thinwire_volume::{Extent, Features, Layer};

use super::*;

const MIB: u64 = 1 << 20;

/// 64 MiB in blocks of 512 bytes.
const GEOMETRY: Geometry = Geometry { bytes: 64 << 20, ..Puppet::GEOMETRY };

struct Stage {
    volume: WriteBack,
    below: Puppet,
    pool: Pool,
    next: Token,
    now: Time,
}

impl Stage {
    fn new(canary: WriteBackCanary) -> Self {
        let below = Puppet::new(1, GEOMETRY);
        let mut volume = WriteBack::new(Box::new(below.clone()), WriteBack::BYTES_MIN);
        volume.set_canary(canary);
        let now = Time(1_000_000_000);
        volume.turn(now);
        Stage { volume, below, pool: Pool::new(1 << 20), next: 0, now }
    }

    fn submit(&mut self, op: Op, offset: u64, len: u64, byte: u8) -> Token {
        self.submit_as(op, offset, len, byte, false)
    }

    fn submit_as(&mut self, op: Op, offset: u64, len: u64, byte: u8, fua: bool) -> Token {
        self.next += 1;
        let mut io = Io::new(self.next, op, offset, len);
        io.flags.fua = fua;
        if op == Op::Write {
            io.data = SegList::of(self.pool.copy_of(&vec![byte; len as usize]).freeze());
        }
        self.volume.submit(io);
        self.next
    }

    fn flush(&mut self) -> Token {
        self.submit(Op::Flush, 0, 0, 0)
    }

    fn poll(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.volume.poll(&mut done);
        done
    }

    /// Those that were completed, and whether they succeeded.
    fn polled(&mut self) -> Vec<(Token, bool)> {
        self.poll().iter().map(|done| (done.token, done.result.is_ok())).collect()
    }

    /// Writes, which ends here.
    #[track_caller]
    fn write(&mut self, offset: u64, len: u64, byte: u8) {
        let token = self.submit(Op::Write, offset, len, byte);
        assert_eq!(self.polled(), [(token, true)]);
    }

    /// What is below now, and was not before: operation, offset, length, and the first byte of a write.
    fn sent(&mut self) -> Vec<Io> {
        self.below.take()
    }

    #[track_caller]
    fn sent_one(&mut self, op: Op, offset: u64, len: u64, byte: u8) -> Io {
        let io = self.below.take_one();
        assert_eq!((io.op, io.offset, io.len), (op, offset, len));
        if op == Op::Write {
            assert_eq!(io.data.to_vec(), vec![byte; len as usize]);
        }
        io
    }

    fn succeed(&mut self, io: &Io) -> Vec<(Token, bool)> {
        self.below.succeed(io);
        self.polled()
    }

    fn fail(&mut self, io: &Io, kind: ErrorKind) -> Vec<(Token, bool)> {
        self.below.complete(Completion::new(io.token, Err(io.error(kind, "puppet"))));
        self.polled()
    }

    /// The volume below answers a read, all of this byte.
    fn answer(&mut self, io: &Io, byte: u8) -> Vec<u8> {
        let data = SegList::of(self.pool.copy_of(&vec![byte; io.len as usize]).freeze());
        self.below.complete(Completion { data, ..Completion::new(io.token, Ok(())) });
        let mut done = self.poll();
        assert_eq!(done.len(), 1);
        done.remove(0).data.to_vec()
    }

    /// What a read says of what is all here.
    #[track_caller]
    fn holds(&mut self, offset: u64, len: u64, byte: u8) {
        let token = self.submit(Op::Read, offset, len, 0);
        let done = self.poll();
        assert!(matches!(&done[..], [one] if one.token == token), "{done:?}");
        assert_eq!(done[0].data.to_vec(), vec![byte; len as usize]);
    }

    fn pass(&mut self, time: Duration) -> Time {
        self.now = self.now + time;
        self.volume.turn(self.now)
    }
}

fn stage() -> Stage {
    Stage::new(WriteBackCanary::None)
}

#[test]
fn a_write_ends_here_and_is_read_here() {
    let mut stage = stage();
    stage.write(512, 8192, 7);
    assert!(stage.sent().is_empty());
    stage.holds(1024, 4096, 7);
    stage.write(1024, 512, 8);
    stage.holds(1024, 512, 8);
    assert_eq!(stage.volume.dirty_bytes(), 3 * PAGE);
    assert!(stage.volume.is_at_rest(), "nothing is on its way");
    // Who looks for completions is not told of it otherwise.
    stage.submit(Op::Write, 0, 512, 1);
    assert_eq!(stage.pass(Duration::ZERO), stage.now);
}

#[test]
fn a_flush_goes_down_behind_all_that_was_completed_before_it() {
    flush_behind_writes(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "all of it goes down")]
fn a_flush_that_goes_first_is_found() {
    flush_behind_writes(WriteBackCanary::FlushFirst);
}

fn flush_behind_writes(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 4096, 1);
    stage.write(1 << 20, 512, 2);
    let flush = stage.flush();
    let down = stage.sent();
    let all: Vec<_> = down.iter().map(|io| (io.op, io.offset, io.len)).collect();
    let expected = [(Op::Write, 0, 4096), (Op::Write, 1 << 20, 512)];
    assert_eq!(all, expected, "all of it goes down, and only that");
    // What comes later is not waited for.
    stage.write(4096, 4096, 3);
    assert!(stage.succeed(&down[1]).is_empty() && stage.sent().is_empty());
    assert!(stage.succeed(&down[0]).is_empty());
    let last = stage.sent_one(Op::Flush, 0, 0, 0);
    assert_eq!(stage.succeed(&last), [(flush, true)]);
    assert_eq!(stage.volume.dirty_bytes(), PAGE);
    stage.holds(4096, 4096, 3);
}

#[test]
fn what_is_written_again_meanwhile_goes_down_again() {
    let mut stage = stage();
    stage.write(0, 4096, 1);
    let first = stage.flush();
    let old = stage.sent_one(Op::Write, 0, 4096, 1);
    stage.write(512, 512, 2);
    stage.holds(512, 512, 2);
    assert_eq!(old.data.to_vec(), [1; 4096], "what is being written stays as it is");
    let second = stage.flush();
    assert!(stage.sent().is_empty(), "never two of one place at a time");
    assert!(stage.succeed(&old).is_empty());
    let sent = stage.sent();
    assert_eq!(sent.iter().map(|io| io.op).collect::<Vec<_>>(), [Op::Write, Op::Flush]);
    assert_eq!((sent[0].offset, sent[0].len), (512, 512));
    assert_eq!(stage.succeed(&sent[1]), [(first, true)]);
    assert!(stage.succeed(&sent[0]).is_empty());
    let last = stage.sent_one(Op::Flush, 0, 0, 0);
    assert_eq!(stage.succeed(&last), [(second, true)]);
    assert_eq!(stage.volume.dirty_bytes(), 0);
}

#[test]
fn a_durable_write_goes_through() {
    durable_write(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "it was completed")]
fn a_durable_write_that_stays_in_memory_is_found() {
    durable_write(WriteBackCanary::DurableInMemory);
}

fn durable_write(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 8192, 1);
    let token = stage.submit_as(Op::Write, 0, 4096, 2, true);
    assert!(stage.polled().is_empty(), "it was completed");
    let io = stage.sent_one(Op::Write, 0, 4096, 2);
    assert!(io.flags.fua);
    // Until then what was there is, and what comes over it waits.
    stage.holds(0, 4096, 1);
    let over = stage.submit(Op::Write, 512, 512, 3);
    assert!(stage.polled().is_empty() && stage.sent().is_empty());
    assert_eq!(stage.succeed(&io), [(token, true), (over, true)]);
    assert_eq!(stage.volume.dirty_bytes(), 2 * PAGE, "what it went over is not here any more");
    stage.flush();
    let down: Vec<_> = stage.sent().iter().map(|io| (io.offset, io.len)).collect();
    assert_eq!(down, [(4096, 4096), (512, 512)]);
}

#[test]
fn a_change_waits_for_what_is_being_written_where_it_lies() {
    change_behind_write(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "two of one place")]
fn a_change_that_waits_for_nothing_is_found() {
    change_behind_write(WriteBackCanary::NoLock);
}

fn change_behind_write(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 8192, 1);
    stage.flush();
    let old = stage.sent_one(Op::Write, 0, 8192, 1);
    let token = stage.submit(Op::WriteZeroes, 4096, 4096, 0);
    assert!(stage.sent().is_empty(), "two of one place are below");
    // Nor does anything go down beneath it meanwhile.
    stage.write(0, 512, 2);
    let late = stage.submit(Op::Write, 7680, 512, 3);
    assert!(stage.polled().is_empty());
    stage.below.succeed(&old);
    assert!(stage.polled().is_empty());
    let sent = stage.sent();
    assert_eq!(sent.iter().map(|io| io.op).collect::<Vec<_>>(), [Op::WriteZeroes, Op::Flush]);
    assert_eq!(stage.succeed(&sent[0]), [(token, true), (late, true)]);
}

#[test]
fn what_was_discarded_does_not_come_back() {
    discarded(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "it goes down all the same")]
fn a_failed_discard_that_takes_what_was_written_is_found() {
    discarded(WriteBackCanary::FailedThroughCovers);
}

#[test]
#[should_panic(expected = "it goes down all the same")]
fn a_discard_that_leaves_what_was_written_is_found() {
    discarded(WriteBackCanary::DiscardForgets);
}

fn discarded(canary: WriteBackCanary) {
    for (op, is_there) in [(Op::Discard, true), (Op::WriteZeroes, true), (Op::Discard, false)] {
        let mut stage = Stage::new(canary);
        stage.write(0, 12288, 1);
        // All of the volume, but for a sector at both ends.
        let (offset, len) = (512, GEOMETRY.bytes - 1024);
        let token = stage.submit(op, offset, len, 0);
        if op == Op::Discard && !canary.leaves_discarded() {
            // It may do nothing, and then what was there before would come back.
            let zeroes = stage.sent_one(Op::WriteZeroes, 512, 11776, 0);
            if is_there {
                assert_eq!(stage.succeed(&zeroes), []);
            } else {
                assert_eq!(stage.fail(&zeroes, ErrorKind::Io), [(token, false)]);
            }
        }
        let io = match (op, is_there) {
            (Op::Discard, false) if !canary.leaves_discarded() => None,
            _ => Some(stage.sent_one(op, offset, len, 0)),
        };
        match (io, is_there) {
            (Some(io), true) => assert_eq!(stage.succeed(&io), [(token, true)]),
            (Some(io), false) => assert_eq!(stage.fail(&io, ErrorKind::Io), [(token, false)]),
            (None, _) => {}
        }
        stage.flush();
        let down: Vec<_> = stage.sent().iter().map(|io| (io.offset, io.len)).collect();
        let expected = if is_there { (0, 512) } else { (0, 12288) };
        assert_eq!(down, [expected], "it goes down all the same");
    }
}

#[test]
fn a_read_has_what_is_here_over_what_is_below() {
    mixed_read(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "as it was when it was asked for")]
fn a_read_of_what_went_down_meanwhile_is_found() {
    mixed_read(WriteBackCanary::LateOverlay);
}

fn mixed_read(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(512, 1024, 1);
    stage.write(8192, 4096, 2);
    stage.submit(Op::Read, 0, 16384, 0);
    let read = stage.sent_one(Op::Read, 0, 16384, 0);
    // It goes down, and is nowhere else, before the read ends, which had begun before it.
    stage.flush();
    for io in stage.sent() {
        assert!(stage.succeed(&io).is_empty());
    }
    assert_eq!(stage.volume.dirty_bytes(), 0);
    let said = stage.answer(&read, 9);
    let mut expected = vec![9; 16384];
    expected[512..1536].fill(1);
    expected[8192..12288].fill(2);
    assert!(said == expected, "as it was when it was asked for");
    // What has failed below fails as it is.
    stage.write(512, 1024, 1);
    let token = stage.submit(Op::Read, 0, 4096, 0);
    let sent = stage.sent();
    assert_eq!(stage.fail(sent.last().unwrap(), ErrorKind::Io), [(token, false)]);
}

#[test]
fn block_status_tells_what_is_here_as_data() {
    let mut stage = stage();
    stage.write(4096, 4096, 1);
    stage.write(16384, 512, 1);
    for one_extent in [false, true] {
        stage.next += 1;
        let mut io = Io::new(stage.next, Op::BlockStatus, 0, GEOMETRY.bytes);
        io.flags.one_extent = one_extent;
        stage.volume.submit(io);
        let io = stage.below.take_one();
        assert_eq!(io.len, 16 << 20, "of what is very long it tells the beginning");
        let hole = |len| Extent { len, hole: true, zero: true };
        let data = |len| Extent { len, hole: false, zero: false };
        let extents = vec![hole(6144), data(512), hole(9984)];
        stage.below.complete(Completion { extents, ..Completion::new(io.token, Ok(())) });
        let said = stage.poll().remove(0).extents;
        let all = [hole(4096), data(4096), hole(8192), data(256)];
        match one_extent {
            true => assert_eq!(said, all[..1]),
            false => assert_eq!(said, all),
        }
    }
}

#[test]
fn what_cannot_go_down_stays_and_fails_each_flush_that_covers_it() {
    failing(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "the flush that covers it fails")]
fn a_failure_that_is_forgotten_is_found() {
    failing(WriteBackCanary::FailureForgotten);
}

fn failing(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 4096, 1);
    stage.write(1 << 20, 4096, 2);
    let flush = stage.flush();
    let down = stage.sent();
    assert_eq!(
        stage.fail(&down[0], ErrorKind::Io),
        [(flush, false)],
        "the flush that covers it fails"
    );
    assert!(stage.succeed(&down[1]).is_empty());
    stage.holds(0, 4096, 1);
    // Not again and again by itself.
    assert!(stage.sent().is_empty());
    let again = stage.pass(Duration::ZERO);
    assert_eq!(again, stage.now + AGAIN_AFTER);
    // But each second, though nobody wants anything.
    for _ in 0..3 {
        stage.pass(AGAIN_AFTER);
        let io = stage.sent_one(Op::Write, 0, 4096, 1);
        assert!(stage.fail(&io, ErrorKind::Io).is_empty() && stage.sent().is_empty());
    }
    // The next one has it tried again, and tells no more than it knows.
    let flush = stage.flush();
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert_eq!(stage.fail(&io, ErrorKind::NoSpace), [(flush, false)]);
    let flush = stage.flush();
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert!(stage.succeed(&io).is_empty());
    let last = stage.sent_one(Op::Flush, 0, 0, 0);
    assert_eq!(stage.succeed(&last), [(flush, true)]);
    assert_eq!((stage.volume.dirty_bytes(), stage.volume.losses), (0, 0));
}

#[test]
fn what_fails_with_nobody_waiting_is_told_by_the_next_flush_if_it_fails_again() {
    let mut stage = stage();
    stage.write(0, 4096, 1);
    assert_eq!(stage.pass(Duration::ZERO), stage.now + AGE_MAX);
    stage.pass(AGE_MAX);
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert!(stage.fail(&io, ErrorKind::Io).is_empty());
    let flush = stage.flush();
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert_eq!(stage.fail(&io, ErrorKind::Io), [(flush, false)]);
    // A failed flush below is told as it is.
    let flush = stage.flush();
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert!(stage.succeed(&io).is_empty());
    let io = stage.sent_one(Op::Flush, 0, 0, 0);
    assert_eq!(stage.fail(&io, ErrorKind::Io), [(flush, false)]);
}

#[test]
fn who_is_fenced_gives_up_at_once() {
    for kind in [ErrorKind::Fenced, ErrorKind::ContentChanged, ErrorKind::ShuttingDown] {
        let mut stage = stage();
        stage.write(0, 4096, 1);
        // Something has happened below: it may be that.
        stage.below.tell(VolumeEvent::Stale);
        assert!(stage.polled().is_empty());
        let io = stage.sent_one(Op::Write, 0, 4096, 1);
        let events = stage.volume.events();
        assert!(stage.fail(&io, kind).is_empty());
        assert_eq!(stage.volume.events(), events + 1);
        let mut told = Vec::new();
        stage.volume.poll_events(&mut told);
        assert_eq!(told, [VolumeEvent::Lost, VolumeEvent::Stale], "a loss first");
        assert_eq!(stage.volume.dirty_bytes(), 0);
        // Nothing ends here any more, neither reads nor writes.
        let tokens =
            [(Op::Read, 8192), (Op::Write, 0)].map(|(op, at)| stage.submit(op, at, 512, 1));
        let flush = stage.flush();
        let sent = stage.sent();
        assert_eq!(sent.len(), 3);
        sent.iter().for_each(|io| {
            let error = io.error(kind, "puppet");
            stage.below.complete(Completion::new(io.token, Err(error)));
        });
        let mut told = stage.polled();
        told.sort_unstable();
        assert_eq!(told, [(tokens[0], false), (tokens[1], false), (flush, false)]);
    }
}

/// What has waited for long goes down, also when something else has failed a moment ago.
#[test]
fn what_failed_is_as_old_as_before() {
    let mut stage = stage();
    stage.write(0, 4096, 1);
    stage.pass(Duration::from_millis(500));
    stage.write(1 << 20, 4096, 2);
    stage.pass(AGE_MAX - Duration::from_millis(500));
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert!(stage.fail(&io, ErrorKind::Io).is_empty());
    stage.pass(AGAIN_AFTER);
    let sent = stage.sent();
    assert_eq!(sent.iter().map(|io| io.offset).collect::<Vec<_>>(), [0, 1 << 20]);
}

#[test]
fn it_ends_when_all_is_down_and_flushed() {
    ends(WriteBackCanary::None);
}

#[test]
#[should_panic(expected = "not flushed")]
fn an_end_without_a_flush_is_found() {
    ends(WriteBackCanary::EndUnflushed);
}

fn ends(canary: WriteBackCanary) {
    let mut stage = Stage::new(canary);
    stage.write(0, 4096, 1);
    stage.volume.wind_up();
    assert!(!stage.volume.is_wound_up());
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert!(stage.fail(&io, ErrorKind::Io).is_empty());
    // Who asks again has it tried again.
    stage.volume.wind_up();
    let io = stage.sent_one(Op::Write, 0, 4096, 1);
    assert!(stage.succeed(&io).is_empty() && !stage.volume.is_wound_up(), "it is not flushed");
    let io = stage.sent_one(Op::Flush, 0, 0, 0);
    assert!(stage.succeed(&io).is_empty());
    assert!(stage.volume.is_wound_up());
    assert_eq!(stage.volume.dirty_bytes(), 0);
    let features = Features { read_only: true, ..Puppet::FEATURES };
    let reader = Puppet::new(1, Geometry { features, ..GEOMETRY });
    let mut reader = WriteBack::new(Box::new(reader), MIB);
    reader.wind_up();
    assert!(reader.is_wound_up());
}

#[test]
fn losses_below_are_told() {
    let below = Puppet::new(1, Puppet::GEOMETRY);
    let mut volume = WriteBack::new(Box::new(below.clone()), MIB);
    thinwire_volume::testing::tells_losses(&below, &mut volume, &mut || {});
}

/// Tells the volume the time, before each poll and behind it.
struct Clocked(Box<dyn Volume>, Time);

impl Layer for Clocked {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.0
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.0
    }

    fn take(&mut self, io: Io) {
        self.0.submit(io);
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        self.1 = self.1 + Duration::from_millis(50);
        self.0.turn(self.1);
        self.0.poll(done);
        self.0.turn(self.1);
    }

    fn taken(&self) -> usize {
        self.0.outstanding()
    }
}

#[test]
fn it_does_what_every_volume_does() {
    conforms(WriteBackCanary::None);
}

/// Bytes that were written over come back.
#[test]
#[should_panic(expected = "which none of these wrote")]
fn what_a_discard_uncovers_is_found() {
    conforms(WriteBackCanary::DiscardUncovers);
}

fn conforms(canary: WriteBackCanary) {
    let pool = Pool::new(16 << 20);
    for seed in 0..12 {
        let bytes = if seed % 2 == 0 { MIB } else { 16 * MIB };
        let below: Box<dyn Volume> = match seed % 3 {
            0 => Box::new(MemoryStore::new(3 << 20, 4096, Identity::default(), &pool)),
            _ => {
                let disk = MemDisk::new(3 << 20, 512, seed);
                // On some a discard does nothing.
                let disk = if seed % 2 == 0 { disk.lying() } else { disk };
                Box::new(FileStore::new(disk, 512, &pool).unwrap())
            }
        };
        let mut volume = WriteBack::new(below, bytes);
        volume.set_canary(canary);
        let mut volume = Clocked(Box::new(volume), Time(1));
        let report = exercise(&mut volume, &mut || {}, seed, 1500);
        let is_prompt = seed % 3 == 0;
        assert!(report.ios > 1500 && (is_prompt || report.overlaps > 30), "{report:?}");
    }
}
