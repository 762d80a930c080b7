//! Several disks of one shard in one ring: who is called when, and what becomes of the others when one goes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_node::{Lane, PartId};
use thinwire_proto::Time;
use thinwire_volume::{Closing, Completion, Io, Op, Part, PartEvent, Volume};

use super::ring;
use super::{Backend, DiskOptions, open_store};
use crate::shard::Shard;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("thinwire-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// An image of blocks of this letter.
    fn image(&self, letter: u8) -> PathBuf {
        let path = self.0.join(char::from(letter).to_string());
        std::fs::write(&path, vec![letter; (BLOCK * BLOCKS) as usize]).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Has so many reads of its disk outstanding as it is told to begin.
struct Reader {
    volume: Box<dyn Volume>,
    letter: u8,
    begin: u64,
    done: Vec<Completion>,
    ended: u64,
    called: u64,
}

impl Part for Reader {
    fn on_event(&mut self, _: Time, event: PartEvent<'_>) {
        self.called += u64::from(matches!(event, PartEvent::Readable));
    }

    fn settle(&mut self, _: Time) {
        for token in 0..std::mem::take(&mut self.begin) {
            // No two that continue each other.
            self.volume.submit(Io::new(token, Op::Read, token * 7 % BLOCKS * BLOCK, BLOCK));
        }
        self.volume.poll(&mut self.done);
        for one in self.done.drain(..) {
            assert!(one.result.is_ok() && one.data.to_vec() == [self.letter; BLOCK as usize]);
            self.ended += 1;
        }
    }

    fn close(&mut self, _: &mut Closing<'_>) -> Time {
        Time::NEVER
    }
}

/// Readers on one shard; nothing where io_uring is refused.
fn readers<const N: usize>(dir: &Dir) -> Option<(Shard, [PartId<Reader>; N])> {
    let mut shard = Shard::new(Vec::new(), Pool::new(1 << 20)).unwrap();
    let state_dir = dir.0.clone();
    let options = DiskOptions { backend: Backend::Uring, state_dir, ..DiskOptions::default() };
    let mut ids = Vec::new();
    for letter in (b'a'..).take(N) {
        let pool = Pool::new(1 << 20);
        let opened =
            open_store(Path::new(&dir.image(letter)), &options, &pool, &mut |_| {}).ok()?;
        let (volume, done) = (opened.volume, Vec::new());
        let reader = Reader { volume, letter, begin: 0, done, ended: 0, called: 0 };
        let id = shard.add(reader, Vec::new(), &Lane::ALL);
        shard.add_volume(opened.fd, Some(id)).unwrap();
        ids.push(id);
    }
    Some((shard, ids.try_into().ok()?))
}

fn begin(shard: &mut Shard, ids: &[PartId<Reader>], count: u64) {
    for &id in ids {
        shard.get_mut(id).begin = count;
        let now = shard.now();
        shard.node().post(now, id, PartEvent::Below);
    }
}

fn turn_until(shard: &mut Shard, ids: &[PartId<Reader>], ended: u64) {
    let start = Instant::now();
    while ids.iter().any(|&id| shard.get(id).ended < ended) {
        assert!(start.elapsed() < Duration::from_secs(60));
        shard.turn(Some(Duration::from_millis(5))).unwrap();
    }
}

#[test]
fn what_all_parts_of_a_shard_ask_of_their_disks_goes_in_one_call() {
    let dir = Dir::new("shared");
    let Some((mut shard, ids)) = readers::<4>(&dir) else { return };
    begin(&mut shard, &ids, 1);
    turn_until(&mut shard, &ids, 1);
    let before = ring::calls();
    begin(&mut shard, &ids, 8);
    let now = shard.now();
    shard.node().settle(now);
    assert_eq!(ring::calls(), before, "polls make none");
    shard.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(ring::calls(), before + 1);
    turn_until(&mut shard, &ids, 9);
    // Nobody asks again for what comes by itself.
    assert!(ring::calls() <= before + 8, "{} calls", ring::calls() - before);
    for id in ids {
        assert!(shard.get(id).called > 0, "each is told");
    }
}

#[test]
fn a_shard_whose_disks_do_nothing_makes_no_call() {
    let dir = Dir::new("silent");
    let Some((mut shard, ids)) = readers::<2>(&dir) else { return };
    begin(&mut shard, &ids, 1);
    turn_until(&mut shard, &ids, 1);
    let before = ring::calls();
    for _ in 0..20 {
        shard.turn(Some(Duration::from_millis(1))).unwrap();
    }
    assert_eq!(ring::calls(), before);
    assert!(!ring::has_work());
}

#[test]
fn a_shard_sleeps_though_nobody_polls_the_disk_of_a_part_that_was_removed() {
    let dir = Dir::new("kept");
    let Some((mut shard, [a, b])) = readers::<2>(&dir) else { return };
    begin(&mut shard, &[a, b], 8);
    shard.turn(Some(Duration::ZERO)).unwrap();
    // On a busy machine some have ended in that very turn.
    let heard = shard.get(b).ended;
    let kept = shard.node().remove(b);
    turn_until(&mut shard, &[a], 8);
    let start = Instant::now();
    while ring::unheard() < 8 - heard as usize {
        assert!(start.elapsed() < Duration::from_secs(60));
        shard.turn(Some(Duration::from_millis(1))).unwrap();
    }
    shard.turn(Some(Duration::ZERO)).unwrap();
    let before = shard.wait_stats();
    for _ in 0..20 {
        shard.turn(Some(Duration::from_millis(1))).unwrap();
    }
    let after = shard.wait_stats();
    assert_eq!((after.ready - before.ready, after.slept - before.slept), (0, 20));
    begin(&mut shard, &[a], 8);
    turn_until(&mut shard, &[a], 16);
    drop(kept);
}

#[test]
fn a_disk_that_is_closed_under_load_takes_nothing_from_the_others() {
    let dir = Dir::new("closed");
    let Some((mut shard, [a, b, c])) = readers::<3>(&dir) else { return };
    for round in 1..=5 {
        begin(&mut shard, &[a, c], 32);
        shard.turn(Some(Duration::ZERO)).unwrap();
        turn_until(&mut shard, &[a, c], 32 * round);
    }
    begin(&mut shard, &[a, b, c], 32);
    shard.turn(Some(Duration::ZERO)).unwrap();
    let gone = shard.node().remove(b);
    drop(gone);
    turn_until(&mut shard, &[a, c], 32 * 6);
    // Its lock is gone, too, and its seat is to be had.
    let state_dir = dir.0.clone();
    let wait_lock = Duration::ZERO;
    let options =
        DiskOptions { backend: Backend::Uring, state_dir, wait_lock, ..DiskOptions::default() };
    let pool = Pool::new(1 << 20);
    assert!(open_store(&dir.0.join("b"), &options, &pool, &mut |_| {}).is_ok());
}
