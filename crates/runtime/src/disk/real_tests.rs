//! How much one turn gives to an engine.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::Identity;

use super::super::common::Parts;
use super::super::writer::{Content, WriterStore};
use super::*;
use crate::turn;

/// Has done what it was given by the time that it is asked.
#[derive(Default)]
struct Prompt {
    started: Vec<(u32, i32)>,
    ended: Vec<(u32, i32)>,
    /// Bytes of what was started, and how many reads that were, since it was last looked at.
    bytes: u64,
    reads: usize,
    /// Calls.
    calls: usize,
    /// Calls for several reads.
    joined: usize,
    /// How many bytes the next calls read; after that all that they are asked for.
    results: VecDeque<i32>,
    writes: usize,
    /// Calls of nothing.
    nothings: usize,
    /// The most calls that it was asked to make at once.
    most: usize,
}

impl Engine for Prompt {
    unsafe fn start(&mut self, slot: u32, request: SystemCall) {
        let result = match request {
            SystemCall::Read { len, .. } => len,
            SystemCall::ReadPieces { pieces, count, .. } => {
                // SAFETY: the slot that the list is of waits for this call.
                let pieces = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
                self.joined += 1;
                self.reads += pieces.len() - 1;
                pieces.iter().map(|piece| piece.iov_len as u32).sum()
            }
            SystemCall::Write { pieces, count, .. } => {
                // SAFETY: as above.
                let pieces = unsafe { std::slice::from_raw_parts(pieces, count as usize) };
                self.writes += 1;
                self.started.push((slot, pieces.iter().map(|piece| piece.iov_len as i32).sum()));
                return;
            }
            SystemCall::Nothing => 0,
            other => panic!("{other:?}"),
        };
        self.bytes += u64::from(result);
        self.reads += usize::from(result > 0);
        self.nothings += usize::from(result == 0);
        self.calls += 1;
        let told = self.results.pop_front();
        self.started.push((slot, told.unwrap_or(result as i32)));
    }

    fn enter(&mut self) {
        self.most = self.most.max(self.started.len());
        self.ended.append(&mut self.started);
    }

    fn reap(&mut self, ended: &mut Vec<(u32, i32)>) {
        ended.append(&mut self.ended);
    }

    fn wait(&mut self) {
        panic!("it is prompt");
    }

    fn fd(&self) -> RawFd {
        panic!("nobody waits for it");
    }
}

fn disk() -> RealDisk<Prompt> {
    with_engine(Prompt::default(), Arc::new(File::open("/dev/zero").unwrap()))
}

pub(super) fn with_engine<E: Engine>(engine: E, file: Arc<File>) -> RealDisk<E> {
    let (path, scope, identity) = (Path::new("/dev/zero"), SyncScope::alone(), [0xab; 16]);
    let (bytes, device, read_only) = (1 << 30, true, true);
    let content =
        Content { file: &file, path, bytes, device, read_only, identity: &identity, scope: &scope };
    let writer = WriterStore::open(&content, &std::env::temp_dir()).unwrap();
    let identity = Identity { identity, incarnation: 0 };
    let (punch_hole, zero_range) = (false, false);
    let info = DiskInfo { bytes, align_bytes: 1, identity, read_only, punch_hole, zero_range };
    let (path, may_grow) = (path.into(), false);
    let parts = Parts { file: file.clone(), path, info, device, may_grow, writer, scope };
    RealDisk::new(Arc::new(Common::new(parts)), Role::Owner, engine).unwrap()
}

fn read(disk: &mut RealDisk<Prompt>, pool: &Pool, token: u64, len: u64) {
    let kind = DiskOpKind::Read(pool.get(len as usize));
    disk.submit(DiskOp { token, offset: 0, len, kind });
}

/// What was given to the engine since this was last asked.
fn given(disk: &mut RealDisk<Prompt>) -> (usize, u64) {
    (std::mem::take(&mut disk.engine.reads), std::mem::take(&mut disk.engine.bytes))
}

/// Polls until all is done, as often as the engine says that there is something; what each poll has given to it.
fn polls(count: usize, len: u64) -> Vec<(usize, u64)> {
    let (mut disk, pool) = (disk(), Pool::new(256 << 20));
    for token in 0..count as u64 {
        read(&mut disk, &pool, token, len);
    }
    let (mut polls, mut done) = (Vec::new(), Vec::new());
    while polls.is_empty() || !disk.engine.ended.is_empty() {
        disk.poll(&mut done);
        polls.push(given(&mut disk));
    }
    assert_eq!((done.len(), disk.engine.nothings), (count, polls.len() - 1));
    polls
}

#[test]
fn a_poll_out_of_turns_gives_so_much_to_the_engine_and_the_next_comes_at_once() {
    const KIB: u64 = 1 << 10;
    assert_eq!(polls(10, 4 * KIB), [(10, 40 * KIB)]);
    assert_eq!(polls(150, 4 * KIB), [(64, 256 * KIB), (64, 256 * KIB), (22, 88 * KIB)]);
    assert_eq!(polls(5, 512 * KIB), [(2, 1024 * KIB), (2, 1024 * KIB), (1, 512 * KIB)]);
    assert_eq!(polls(2, 700 * KIB), [(1, 700 * KIB); 2]);
    assert_eq!(polls(2, 4096 * KIB), [(1, 4096 * KIB); 2], "whatever one is, it has its poll");
}

/// Of an edge or a door that goes back to its volumes for what their completions have begun.
#[test]
fn a_turn_gives_no_more_to_the_engine_however_often_it_polls() {
    const KIB: u64 = 1 << 10;
    let (mut disk, pool, mut done) = (disk(), Pool::new(256 << 20), Vec::new());
    // A turn of four polls: what each gives to the engine.
    let turn = |disk: &mut RealDisk<Prompt>, done: &mut Vec<DiskDone>, len| {
        turn::begin();
        [(); 4].map(|()| {
            done.clear();
            disk.poll(done);
            // Whoever is answered asks for more at once.
            (0..done.len() as u64).for_each(|token| read(disk, &pool, token, len));
            given(disk)
        })
    };
    (0..8).for_each(|token| read(&mut disk, &pool, token, 256 * KIB));
    for _ in 0..3 {
        let nothing = (0, 0);
        let polls = turn(&mut disk, &mut done, 256 * KIB);
        assert_eq!(polls, [(4, 1024 * KIB), nothing, nothing, nothing]);
        assert!(!disk.engine.ended.is_empty(), "it asks for the next turn");
    }
    // Few bytes leave room for what comes of them.
    let mut disk = self::disk();
    // The other one, which was refused, has its share of a turn.
    turn(&mut disk, &mut done, 0);
    (0..3).for_each(|token| read(&mut disk, &pool, token, 4 * KIB));
    assert_eq!(turn(&mut disk, &mut done, 400 * KIB)[..2], [(3, 12 * KIB), (2, 800 * KIB)]);
}

fn write(disk: &mut RealDisk<Prompt>, pool: &Pool, token: u64, len: u64) {
    let data = thinwire_buffer::SegList::of(pool.get(len as usize).freeze());
    disk.submit(DiskOp { token, offset: 0, len, kind: DiskOpKind::Write { data, fua: false } });
}

#[test]
fn copies_count_and_who_was_copied_goes_in_the_same_turn() {
    const KIB: u64 = 1 << 10;
    let (mut disk, pool, mut done) = (disk(), Pool::new(256 << 20), Vec::new());
    for turn in 1..=3 {
        turn::begin();
        for token in 0..2 {
            assert!(disk.may_copy(256 * KIB));
            write(&mut disk, &pool, token, 256 * KIB);
        }
        assert!(!disk.may_copy(4 * KIB), "2 x 256 KiB, copied and written, are all of it");
        disk.poll(&mut done);
        assert_eq!(
            (disk.engine.writes, disk.engine.nothings),
            (2 * turn, turn),
            "and the next one"
        );
    }
    // Where there is room beside them, copies that wait hold up nobody.
    turn::begin();
    disk.poll(&mut done);
    given(&mut disk);
    turn::begin();
    assert!(disk.may_copy(384 * KIB) && !disk.may_copy(256 * KIB));
    (0..4).for_each(|token| read(&mut disk, &pool, token, 4 * KIB));
    disk.poll(&mut done);
    assert_eq!(given(&mut disk), (4, 16 * KIB));
}

#[test]
fn copies_and_what_needs_none_have_their_turns_beside_each_other() {
    const KIB: u64 = 1 << 10;
    let (mut disk, pool, mut done) = (disk(), Pool::new(256 << 20), Vec::new());
    let (mut writes, mut reads, mut begin) = (0, 0, 10);
    for turn in 0..20 {
        turn::begin();
        // More of both than any turn has room for.
        (0..begin).for_each(|token| read(&mut disk, &pool, 100 + token, 128 * KIB));
        while disk.may_copy(128 * KIB) {
            write(&mut disk, &pool, turn, 128 * KIB);
        }
        disk.poll(&mut done);
        begin = done.drain(..).filter(|one| one.token >= 100).count() as u64;
        (writes, reads) = (disk.engine.writes, reads + given(&mut disk).0);
    }
    assert!(writes >= 20 && reads >= 40, "{writes} writes, {reads} reads");
}

/// Else it would wait for a turn that nobody begins.
#[test]
fn a_disk_whose_shard_is_gone_gets_on() {
    const KIB: u64 = 1 << 10;
    let (mut disk, pool, mut done) = (disk(), Pool::new(256 << 20), Vec::new());
    // Its copies are to make way in the next turn, and this one is full.
    turn::begin();
    assert!(disk.may_copy(512 * KIB) && !disk.may_copy(512 * KIB));
    (0..8).for_each(|token| read(&mut disk, &pool, token, 512 * KIB));
    turn::begin();
    assert!(!disk.may_copy(512 * KIB));
    turn::end();
    for _ in 0..8 {
        disk.poll(&mut done);
    }
    assert_eq!(done.len(), 8);
    assert!(disk.may_copy(512 * KIB));
}

/// Reads in one poll; the calls that it has made, and what they were answered.
fn joined(reads: &[(u64, u64)], results: &[i32]) -> (usize, usize, Vec<(u64, bool)>) {
    let (mut disk, pool, mut done) = (disk(), Pool::new(16 << 20), Vec::new());
    disk.engine.results = results.iter().copied().collect();
    for (token, &(offset, len)) in (0..).zip(reads) {
        let kind = DiskOpKind::Read(pool.get(len as usize));
        disk.submit(DiskOp { token, offset, len, kind });
    }
    while done.len() < reads.len() {
        disk.poll(&mut done);
    }
    assert_eq!(disk.free.len(), SLOTS);
    let sizes = |one: &DiskDone| match &one.kind {
        DiskOpKind::Read(buf) => buf.len() as u64 == reads[one.token as usize].1,
        _ => false,
    };
    assert!(done.iter().all(sizes));
    let mut told: Vec<_> = done.iter().map(|one| (one.token, one.result.is_ok())).collect();
    told.sort_unstable();
    (disk.engine.joined, disk.engine.calls, told)
}

#[test]
fn reads_that_continue_each_other_are_one_call() {
    const KIB: u64 = 1 << 10;
    let row = |count: u64, len: u64| (0..count).map(|at| (at * len, len)).collect::<Vec<_>>();
    let well = |count: u64| (0..count).map(|token| (token, true)).collect::<Vec<_>>();
    assert_eq!(joined(&row(8, 4 * KIB), &[]), (1, 1, well(8)));
    assert_eq!(joined(&row(40, 4 * KIB), &[]), (2, 2, well(40)), "as far as 128 KiB");
    assert_eq!(joined(&row(4, 128 * KIB), &[]), (0, 4, well(4)));
    let gap = [(0, 4096), (4096, 4096), (12_288, 4096), (8192, 4096), (12_288, 512)];
    assert_eq!(joined(&gap, &[]), (2, 3, well(5)));
}

#[test]
fn a_joined_call_that_is_cut_short_goes_on_where_it_stopped() {
    let row: Vec<_> = (0..4).map(|at| (at * 4096, 4096)).collect();
    let well = vec![(0, true), (1, true), (2, true), (3, true)];
    // After two and a half of them, and one less, and the rest.
    assert_eq!(joined(&row, &[10_240, 2048]), (3, 3, well.clone()));
    // Interrupted.
    assert_eq!(joined(&row, &[-libc::EINTR]), (2, 2, well));
}

#[test]
fn which_of_those_in_a_joined_call_failed_is_found_out() {
    let row: Vec<_> = (0..4).map(|at| (at * 4096, 4096)).collect();
    let third = vec![(0, true), (1, true), (2, false), (3, true)];
    for how in [-libc::EIO, 0] {
        // All of them, then each: the third fails again.
        assert_eq!(joined(&row, &[how, 4096, 4096, how, 4096]), (1, 5, third.clone()));
        // Behind a part of it.
        assert_eq!(joined(&row, &[8192, how, 4096, 4096, how, 4096]), (2, 6, third.clone()));
    }
}

/// Over real memory: what is read stands where it belongs.
#[test]
fn joined_reads_of_a_file_fill_each_its_own_memory() {
    use super::super::threads::Threads;
    use super::super::uring::Uring;
    fn check<E: Engine>(engine: E, file: Arc<File>) {
        let mut disk = with_engine(engine, file);
        let (pool, mut done) = (Pool::new(16 << 20), Vec::new());
        for token in 0..20 {
            let kind = DiskOpKind::Read(pool.get(512));
            disk.submit(DiskOp { token, offset: 512 * token, len: 512, kind });
        }
        while done.len() < 20 {
            disk.poll(&mut done);
        }
        for one in done {
            let DiskOpKind::Read(buf) = &one.kind else { panic!("{one:?}") };
            assert!(one.result.is_ok() && buf.iter().all(|&byte| u64::from(byte) == one.token));
        }
    }
    let file = rustix::fs::memfd_create("joined", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = Arc::new(File::from(file));
    let content: Vec<u8> = (0..20).flat_map(|number| [number; 512]).collect();
    rustix::io::pwrite(&*file, &content, 0).unwrap();
    check(Threads::new(&file).unwrap(), file.clone());
    if let Ok(uring) = Uring::new(&file) {
        check(uring, file);
    }
}

#[test]
fn a_disk_is_given_as_many_reads_at_once_as_its_window_has() {
    for (is_half, most) in [(false, 24), (true, 12)] {
        let (mut disk, pool) = (disk(), Pool::new(1 << 20));
        if is_half {
            disk.window = Window::half();
        }
        (0..24).for_each(|token| read(&mut disk, &pool, token, 4096));
        let mut done = Vec::new();
        disk.poll(&mut done);
        assert_eq!(done.iter().map(|d| d.token).collect::<Vec<_>>(), (0..24).collect::<Vec<_>>());
        assert_eq!((disk.engine.most, disk.reads, disk.reads_waiting), (most, 0, 0));
    }
}

fn zeroes(disk: &mut RealDisk<Prompt>, pool: &Pool, token: u64) {
    let data = SegList::of(pool.get_zeroed(4096).freeze());
    let kind = DiskOpKind::Write { data, fua: false };
    disk.submit(DiskOp { token, offset: 0, len: 4096, kind });
}

#[test]
fn no_write_waits_for_reads_that_are_held_back() {
    let (mut disk, pool) = (disk(), Pool::new(1 << 20));
    disk.window = Window::half();
    (0..24).for_each(|token| read(&mut disk, &pool, token, 4096));
    (24..30).for_each(|token| zeroes(&mut disk, &pool, token));
    let mut done = Vec::new();
    disk.poll(&mut done);
    let order: Vec<_> = done.iter().map(|d| d.token).collect();
    assert_eq!(order, (0..12).chain(24..30).chain(12..24).collect::<Vec<_>>());
    assert_eq!((disk.engine.most, disk.engine.writes), (18, 6));
}

/// Whoever asks again after a pause is seen to have made one, though nobody polls meanwhile.
#[test]
fn a_disk_that_has_done_everything_is_known_to_be_idle() {
    let (mut disk, pool) = (disk(), Pool::new(1 << 20));
    let mut done = Vec::new();
    for burst in 0..100 {
        (0..8).for_each(|token| read(&mut disk, &pool, burst * 8 + token, 4096));
        disk.poll(&mut done);
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert_eq!(disk.window.size(), usize::MAX, "a trial with who leaves it idle");
    }
}

/// Nothing is forgotten, however often reads are held back between writes, and whoever is held is given when
/// another has ended; a disk that is dropped forgets them.
#[test]
fn what_is_held_back_is_given_when_others_have_ended() {
    let (mut disk, pool) = (disk(), Pool::new(1 << 20));
    disk.window = Window::half();
    let mut done = Vec::new();
    for token in 0..1000 {
        if token % 5 == 0 {
            zeroes(&mut disk, &pool, token);
        } else {
            read(&mut disk, &pool, token, 512 + token % 7 * 512);
        }
        if token % 13 == 0 {
            disk.poll(&mut done);
        }
    }
    for _ in 0..1000 {
        disk.poll(&mut done);
    }
    done.sort_unstable_by_key(|d| d.token);
    assert_eq!(done.iter().map(|d| d.token).collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
    assert_eq!((disk.reads, disk.reads_waiting, disk.free.len()), (0, 0, SLOTS));
    assert!(disk.held.is_empty() && disk.backlog.is_empty());
    (0..24).for_each(|token| read(&mut disk, &pool, token, 4096));
}
