//! Helpers for unit tests.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_frontend::Face;
use thinwire_volume::{
    Completion, ErrorKind, Extent, Features, Geometry, Identity, Io, Op, Token, Volume, VolumeEvent,
};

use crate::attachment::shown::Shown;
use crate::config::TargetSettings;
use crate::error::Outcome;
use crate::open::{Ending, OpenVolume, Unheard, VolumeHealth, Wait};

/// A new empty folder, removed with everything in it when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("thinwire-test-{what}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Of a target with two exports in memory.
pub fn target_settings() -> TargetSettings {
    let words = "thinwire target --name n --link eth1 --export a=memory:1M --export b=memory:1M";
    let cli = <crate::cli::Cli as clap::Parser>::try_parse_from(words.split(' ')).unwrap();
    let crate::cli::Command::Target(args) = cli.command else { unreachable!() };
    TargetSettings::assemble(&args).unwrap()
}

/// What a [`MemoryVolume`] does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    None,
    /// Acknowledges some writes and forgets them.
    LoseWrites,
    /// Writes some blocks to another place.
    SwapBlocks,
    /// Changes a bit in some reads.
    FlipBits,
    /// Fails some I/Os.
    FailSome,
    /// Fails all I/Os.
    FailAll,
    /// Completes nothing.
    NeverComplete,
    /// Has become larger once it was used.
    Grow,
}

/// A volume in memory that completes in another order than was asked, and as badly as it is told.
pub struct MemoryVolume {
    pub mischief: Mischief,
    bytes: Vec<u8>,
    geometry: Geometry,
    pool: Pool,
    queue: Vec<Io>,
    count: u64,
    flushes: u64,
    outstanding_most: usize,
    copied_bytes: u64,
    /// Ranges that block status reports as holes: those never written.
    written: Vec<bool>,
}

impl MemoryVolume {
    pub fn new(bytes: usize, block_bytes: u32) -> Self {
        let features =
            Features { read_only: false, discard: true, write_zeroes: true, block_status: true };
        MemoryVolume {
            mischief: Mischief::None,
            bytes: vec![0; bytes],
            geometry: Geometry {
                bytes: bytes as u64,
                block_bytes,
                preferred_bytes: 4096,
                io_bytes_max: 1 << 20,
                features,
            },
            pool: Pool::new(64 << 20),
            queue: Vec::new(),
            count: 0,
            flushes: 0,
            outstanding_most: 0,
            copied_bytes: 0,
            written: vec![false; bytes.div_ceil(block_bytes as usize)],
        }
    }

    pub fn content(&self) -> &[u8] {
        &self.bytes
    }

    /// Changes the content behind everybody's back.
    pub fn scribble(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        let block = self.geometry.block_bytes as usize;
        self.written[offset / block..(offset + bytes.len()).div_ceil(block)].fill(true);
    }

    pub fn features_mut(&mut self) -> &mut Features {
        &mut self.geometry.features
    }

    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    pub fn outstanding_most(&self) -> usize {
        self.outstanding_most
    }

    /// Blocks that were written with data (not zeroes).
    pub fn written_blocks(&self) -> usize {
        self.written.iter().filter(|written| **written).count()
    }

    fn perform(&mut self, io: Io) -> Completion {
        self.count += 1;
        let unlucky = self.count.is_multiple_of(23);
        let fail = match self.mischief {
            Mischief::FailSome => unlucky,
            Mischief::FailAll => true,
            _ => false,
        };
        if fail {
            return Completion::new(io.token, Err(io.error(ErrorKind::Io, "test")));
        }
        let mut range = io.offset as usize..(io.offset + io.len) as usize;
        let block = self.geometry.block_bytes as usize;
        let blocks = range.start / block..range.end / block;
        let mut completion = Completion::new(io.token, Ok(()));
        match io.op {
            Op::Read => {
                let mut buf = self.pool.copy_of(&self.bytes[range]);
                if unlucky && self.mischief == Mischief::FlipBits {
                    buf[100] ^= 1;
                }
                completion.data.push(buf.freeze());
            }
            Op::Write if unlucky && self.mischief == Mischief::LoseWrites => {}
            Op::Write => {
                if unlucky && self.mischief == Mischief::SwapBlocks {
                    range = if range.start == 0 {
                        io.len as usize..2 * io.len as usize
                    } else {
                        0..io.len as usize
                    };
                }
                io.data.copy_to(&mut self.bytes[range]);
                self.copied_bytes += io.len;
                self.written[blocks].fill(true);
            }
            Op::WriteZeroes | Op::Discard => {
                self.bytes[range].fill(0);
                self.written[blocks].fill(false);
            }
            Op::Flush => self.flushes += 1,
            Op::LoadWriter | Op::StoreWriter | Op::Cut => {
                completion.result = Err(io.error(ErrorKind::Unsupported, "test"));
            }
            Op::BlockStatus => {
                for written in &self.written[blocks] {
                    let (len, hole) = (block as u64, !written);
                    match completion.extents.last_mut() {
                        Some(last) if last.hole == hole => last.len += len,
                        _ => completion.extents.push(Extent { len, hole, zero: hole }),
                    }
                }
            }
        }
        completion
    }
}

impl Volume for MemoryVolume {
    fn geometry(&self) -> Geometry {
        let grows = self.mischief == Mischief::Grow && self.outstanding_most > 0;
        Geometry { bytes: self.geometry.bytes << u32::from(grows), ..self.geometry }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        assert_eq!(self.geometry.check(&io), Ok(()), "{io:?}");
        self.queue.push(io);
        self.outstanding_most = self.outstanding_most.max(self.queue.len());
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.mischief == Mischief::NeverComplete {
            return;
        }
        // The newer half first.
        for _ in 0..self.queue.len().div_ceil(2) {
            let io = self.queue.pop().expect("counted");
            done.push(self.perform(io));
        }
    }

    fn outstanding(&self) -> usize {
        self.queue.len()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

impl OpenVolume for MemoryVolume {
    fn volume(&mut self) -> &mut dyn Volume {
        self
    }

    fn block_bytes(&self) -> u32 {
        self.geometry.block_bytes
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn turn(&mut self, wait: Wait) -> Outcome<bool> {
        if self.mischief == Mischief::NeverComplete && wait != Wait::No {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    fn show(&mut self, _: Box<dyn Face>) -> Outcome<Shown> {
        unreachable!("it is not shown here")
    }

    fn watch(&mut self, _: BorrowedFd<'_>) -> Outcome {
        Ok(())
    }

    fn health(&self) -> VolumeHealth {
        VolumeHealth::local()
    }

    fn close(&mut self, _: Ending) -> Outcome<Unheard> {
        Ok(Unheard::default())
    }
}

/// A volume whose first flush fails, and no later one: the kernel tells of a loss once.
pub struct FailsFlush {
    sound: Box<dyn Volume>,
    flush: Option<Token>,
    lost: u64,
    told: u64,
}

impl FailsFlush {
    pub fn new(sound: Box<dyn Volume>) -> Self {
        FailsFlush { sound, flush: None, lost: 0, told: 0 }
    }
}

impl Volume for FailsFlush {
    fn geometry(&self) -> Geometry {
        self.sound.geometry()
    }

    fn identity(&self) -> Identity {
        self.sound.identity()
    }

    fn submit(&mut self, io: Io) {
        if io.op == Op::Flush && self.lost == 0 {
            self.flush = Some(io.token);
        }
        self.sound.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let seen = done.len();
        self.sound.poll(done);
        let Some(flush) = self.flush else { return };
        if let Some(one) = done[seen..].iter_mut().find(|one| one.token == flush) {
            one.result = Err(Io::new(flush, Op::Flush, 0, 0).error(ErrorKind::Io, "test"));
            (self.flush, self.lost) = (None, 1);
        }
    }

    fn outstanding(&self) -> usize {
        self.sound.outstanding()
    }

    fn events(&self) -> u64 {
        self.sound.events() + self.lost
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        if std::mem::replace(&mut self.told, self.lost) != self.lost {
            events.push(VolumeEvent::Lost);
        }
        self.sound.poll_events(events);
    }
}

/// A volume that answers flushes only once all volumes together were asked for so many.
pub struct Hangs {
    sound: Box<dyn Volume>,
    asked: Rc<Cell<usize>>,
    wanted: usize,
    flushes: Vec<Io>,
}

impl Hangs {
    pub fn new(sound: Box<dyn Volume>, asked: &Rc<Cell<usize>>, wanted: usize) -> Self {
        Hangs { sound, asked: asked.clone(), wanted, flushes: Vec::new() }
    }
}

impl Volume for Hangs {
    fn geometry(&self) -> Geometry {
        self.sound.geometry()
    }

    fn identity(&self) -> Identity {
        self.sound.identity()
    }

    fn submit(&mut self, io: Io) {
        match io.op {
            Op::Flush => {
                self.asked.set(self.asked.get() + 1);
                self.flushes.push(io);
            }
            _ => self.sound.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.asked.get() >= self.wanted {
            self.flushes.drain(..).for_each(|io| self.sound.submit(io));
        }
        self.sound.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.sound.outstanding() + self.flushes.len()
    }
}

/// A volume that begins each read only when a while has passed since it was told the time first behind that.
pub struct Waits {
    sound: Box<dyn Volume>,
    /// With when each is to begin.
    held: Vec<(Option<Time>, Io)>,
}

impl Waits {
    pub const TIME: Duration = Duration::from_millis(20);

    pub fn new(sound: Box<dyn Volume>) -> Self {
        Waits { sound, held: Vec::new() }
    }
}

impl Volume for Waits {
    fn geometry(&self) -> Geometry {
        self.sound.geometry()
    }

    fn identity(&self) -> Identity {
        self.sound.identity()
    }

    fn submit(&mut self, io: Io) {
        match io.op {
            Op::Read => self.held.push((None, io)),
            _ => self.sound.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.sound.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.sound.outstanding() + self.held.len()
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn turn(&mut self, now: Time) -> Time {
        let mut next = self.sound.turn(now);
        for (at, io) in std::mem::take(&mut self.held) {
            let at = at.unwrap_or(now + Self::TIME);
            if at <= now {
                self.sound.submit(io);
                next = now;
            } else {
                self.held.push((Some(at), io));
                next = next.min(at);
            }
        }
        next
    }
}
