//! One export on several shards, over a real file: whoever attaches, by whichever shard, sees one disk with one writer.

mod common;
#[path = "common/served.rs"]
mod served;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use common::{Dir, open_disk};
use served::{PATIENCE, Running, free_address, link};
use thinwire_buffer::{Addr, Pool, SegList};
use thinwire_initiator::{InitiatorConfig, TargetName};
use thinwire_link::{Link, ShardSteering};
use thinwire_runtime::blocking::Blocking;
use thinwire_runtime::disk::SpreadDisk;
use thinwire_runtime::serve::{OpenedExport, TargetShard};
use thinwire_runtime::shard::SharedShard;
use thinwire_runtime::shards::{Offered, Provider};
use thinwire_target::{ExportConfig, SpreadConfig};
use thinwire_volume::{ErrorKind, Io, IoFlags, Op};

const SHARDS: u8 = 3;
const BYTES: u64 = 1 << 20;
/// The second of two exports: shard 1 owns it.
const NUMBER: usize = 1;

/// Opens a UDP link, and rings on files.
struct Files {
    link: String,
    disks: [SpreadDisk; 2],
    ended: mpsc::Sender<u8>,
}

impl Provider for Files {
    type Error = io::Error;

    fn failed(&self, error: io::Error) -> io::Error {
        error
    }

    fn links(&self, shard: &ShardSteering) -> io::Result<Vec<Box<dyn Link>>> {
        Ok(vec![link(&self.link, Some(shard.clone()))?])
    }

    fn exports(
        &self,
        numbers: &[usize],
        index: u8,
        shard: &SharedShard,
    ) -> io::Result<Vec<OpenedExport>> {
        assert_eq!(numbers, [0, 1], "each shard has all");
        let pool = shard.borrow().pool().clone();
        let open = |&number: &usize| {
            let opened = match usize::from(index) == number {
                true => self.disks[number].owner(&pool, &mut |_| {}),
                false => self.disks[number].branch(&pool),
            };
            let opened = opened.map_err(io::Error::other)?;
            let (name, volume) = (format!("disk{number}"), opened.volume);
            let config = ExportConfig { name, volume, read_only: false };
            Ok(OpenedExport::new(config, Some(opened.fd)))
        };
        numbers.iter().map(open).collect()
    }

    fn ended(&self, index: u8, shard: &TargetShard) {
        if shard.target().stats().sessions > 0 {
            let _ = self.ended.send(index);
        }
    }
}

/// A target on threads of its own.
struct Served {
    target: TargetName,
    running: Running,
    /// Shards that had sessions.
    ended: mpsc::Receiver<u8>,
}

fn start(paths: &[PathBuf; 2], dir: &Dir) -> Served {
    start_at(free_address(), paths, dir)
}

fn start_at(address: SocketAddr, paths: &[PathBuf; 2], dir: &Dir) -> Served {
    let (tell_end, ended) = mpsc::channel();
    let disk = |path: &PathBuf| SpreadDisk::open(path, &dir.options(), &mut |_| {}).unwrap();
    let disks = [disk(&paths[0]), disk(&paths[1])];
    let opener = Files { link: format!("udp:{address}"), disks, ended: tell_end };
    let exports = [0, 1].map(|n| Offered { name: format!("disk{n}"), spread: true, beside: None });
    let running = Running::start(SHARDS, exports, opener);
    running.wait_ready();
    Served { target: TargetName::Address(Addr::Udp(address)), running, ended }
}

impl Served {
    /// An initiator whose session is on that shard.
    fn attach(&self, shard: u8, more: impl FnOnce(&mut InitiatorConfig)) -> Blocking {
        attach(self.target.clone(), shard, more)
    }

    fn end(self) -> Vec<u8> {
        self.running.end();
        let mut ended: Vec<_> = self.ended.iter().collect();
        ended.sort_unstable();
        ended
    }
}

fn attach(target: TargetName, shard: u8, more: impl FnOnce(&mut InitiatorConfig)) -> Blocking {
    let mut config = InitiatorConfig::new(target, format!("disk{NUMBER}"));
    config.insecure = true;
    let identities = (1u8..).map(|n| [n; 16]);
    config.initiator =
        identities.into_iter().find(|id| SpreadConfig::dealt(id, 0, SHARDS) == shard).unwrap();
    more(&mut config);
    let links = vec![link("udp:127.0.0.1", None).unwrap()];
    Blocking::open(config, links, Pool::new(8 << 20), PATIENCE).unwrap()
}

fn write(volume: &mut Blocking, at: u64, byte: u8, fua: bool) -> Result<(), ErrorKind> {
    let mut data = volume.buffer(4096);
    data.fill(byte);
    let mut io = Io::new(0, Op::Write, at * 4096, 4096);
    io.data = SegList::of(data.freeze());
    io.flags = IoFlags { fua, ..io.flags };
    volume.run(io).map(drop).map_err(|error| error.kind)
}

fn first_byte(volume: &mut Blocking, at: u64) -> u8 {
    volume.read(at * 4096, 4096).unwrap().to_vec()[0]
}

fn reader(config: &mut InitiatorConfig) {
    config.read_only = true;
}

fn images(dir: &Dir) -> [PathBuf; 2] {
    ["a", "b"].map(|name| dir.image(name, BYTES))
}

/// A branch's writes, flushes and durable writes are seen by readers of all shards; a writer on another shard
/// fences it, and what was written is in the file when all have ended.
#[test]
fn sessions_of_all_shards_share_one_disk() {
    let dir = Dir::new();
    let paths = images(&dir);
    let served = start(&paths, &dir);
    let mut writer = served.attach(0, |_| {});
    let mut readers = [1, 2].map(|shard| served.attach(shard, reader));
    for (at, fua) in [(0, false), (1, true), (2, false)] {
        write(&mut writer, at, 10 + at as u8, fua).unwrap();
        for reader in &mut readers {
            assert_eq!(first_byte(reader, at), 10 + at as u8);
        }
    }
    writer.flush().unwrap();
    let told = served.running.inquiry.ask(PATIENCE);
    let told = told.iter().map(|report| &report.as_ref().expect("it serves").exports[NUMBER]);
    let told: Vec<_> = told.map(|e| (e.branch_of, e.writer.is_some(), e.generation)).collect();
    assert_eq!(told, [(Some(1), false, 1), (None, true, 1), (Some(1), false, 1)]);
    let mut second = served.attach(2, |config| {
        config.initiator[15] ^= 0x80;
        while SpreadConfig::dealt(&config.initiator, 0, SHARDS) != 2 {
            config.initiator[0] += 1;
        }
        config.take_over = true;
    });
    write(&mut second, 3, 99, false).unwrap();
    assert_eq!(write(&mut writer, 3, 98, false), Err(ErrorKind::Fenced));
    assert_eq!(first_byte(&mut readers[0], 3), 99);
    second.flush().unwrap();
    for volume in readers.into_iter().chain([second]) {
        volume.close(PATIENCE).unwrap();
    }
    drop(writer);
    assert_eq!(served.end(), [0, 1, 2], "each had a session");
    let bytes = std::fs::read(&paths[NUMBER]).unwrap();
    assert_eq!([0, 1, 2, 3].map(|at| bytes[at * 4096]), [10, 11, 12, 99]);
    assert!(open_disk(Path::new(&paths[NUMBER]), &dir.options()).is_ok(), "the lock is gone");
}

/// That a branch's writer has ended its owner has on record, and what it flushed in the file.
#[test]
fn a_writer_of_a_branch_ends_in_order() {
    let dir = Dir::new();
    let paths = images(&dir);
    for round in 0..3 {
        let served = start(&paths, &dir);
        let mut writer = served.attach(2, |_| {});
        write(&mut writer, round, 7, false).unwrap();
        writer.close(PATIENCE).unwrap();
        assert_eq!(served.end(), [2]);
    }
    // Each of them has ended on record: another needs no lease to run out.
    let served = start(&paths, &dir);
    let mut other = served.attach(0, |_| {});
    assert_eq!([0, 1, 2].map(|at| first_byte(&mut other, at)), [7, 7, 7]);
    other.close(PATIENCE).unwrap();
    assert_eq!(served.end(), [0]);
}

/// A writer that flushes through a branch all the time does not hold up the end of its target, and has its answer from
/// the next one: no flush fails, and what each covers is in the file.
#[test]
fn a_target_ends_in_order_while_a_branch_has_a_flush_under_way() {
    const BLOCKS: usize = 16;
    let dir = Dir::new();
    let paths = images(&dir);
    let address = free_address();
    let mut served = start_at(address, &paths, &dir);
    let target = served.target.clone();
    // Odd while one is under way.
    let flushes = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, ends) = (flushes.clone(), is_over.clone());
    let writer = std::thread::spawn(move || {
        let mut volume = attach(target, 2, |_| {});
        let mut last = [0; BLOCKS];
        for number in 0.. {
            let (at, byte) = (number % BLOCKS, (number % 255) as u8 + 1);
            write(&mut volume, at as u64, byte, false).unwrap();
            own.fetch_add(1, Ordering::Relaxed);
            volume.flush().unwrap();
            own.fetch_add(1, Ordering::Relaxed);
            last[at] = byte;
            if ends.load(Ordering::Relaxed) {
                break;
            }
        }
        volume.close(PATIENCE).unwrap();
        last
    });
    let wait = |is_there: &dyn Fn(u64) -> bool| {
        let until = Instant::now() + PATIENCE;
        loop {
            let count = flushes.load(Ordering::Relaxed);
            if is_there(count) {
                return count;
            }
            assert!(!writer.is_finished() && Instant::now() < until, "it does not go on");
            std::thread::yield_now();
        }
    };
    for _ in 0..5 {
        let before = wait(&|count| count % 2 == 1);
        served.end();
        served = start_at(address, &paths, &dir);
        wait(&|count| count > before + 1);
    }
    is_over.store(true, Ordering::Relaxed);
    let last = writer.join().unwrap();
    assert_eq!(served.end(), [2]);
    let bytes = std::fs::read(&paths[NUMBER]).unwrap();
    assert_eq!(std::array::from_fn(|at| bytes[at * 4096]), last);
}
