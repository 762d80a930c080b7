//! [`CrashDisk`]: a volume that remembers what a crash could leave of it, at every moment.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use thinwire_volume::Identity;

const SECTOR_BYTES: usize = 512;
/// Of one write, as bits of the sectors that it reaches: also what a crash cuts off of a write that failed earlier.
const SOME: [u8; 6] = [0, 0xff, 0x01, 0xfe, 0x0f, 0xaa];

type Block = Box<[u8; LABEL_BYTES]>;
/// Blocks of 4 KiB by their offsets; the others are zero.
pub type Content = BTreeMap<u64, Block>;

/// A write that a crash may undo, or tear.
#[derive(Clone)]
struct Doubt {
    offset: u64,
    data: Block,
    /// It has failed: no flush makes it durable.
    has_failed: bool,
    /// Reads see it, as they do what a cache has.
    is_seen: bool,
}

/// What was promised, at a moment.
#[derive(Clone, Default)]
pub struct Promise {
    /// The last label that was told to be durable, and the one before.
    pub durable: [Option<u8>; 2],
    /// Labels that were begun since.
    pub begun: Vec<u8>,
    /// Labels are being erased.
    pub erasing: bool,
}

/// What a crash could find.
pub struct Moment {
    durable: Content,
    doubts: Vec<Doubt>,
    pub promise: Promise,
}

impl Moment {
    /// Calls `check` with everything that a crash could leave: of the last write each subset of its sectors, of those before
    /// some subsets, and of data all or nothing.
    pub fn each_crash<E>(&self, check: &mut dyn FnMut(Content) -> Result<(), E>) -> Result<(), E> {
        self.crash(0, self.durable.clone(), check)
    }

    fn crash<E>(
        &self,
        from: usize,
        content: Content,
        check: &mut dyn FnMut(Content) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(doubt) = self.doubts.get(from) else { return check(content) };
        let every: Vec<u8> = (0..=u8::MAX).collect();
        let subsets = match doubt.offset < LABEL_AREA_BYTES {
            true if from + 1 == self.doubts.len() => &every[..],
            true => &SOME,
            false => &[0, 0xff],
        };
        for sectors in subsets {
            let mut content = content.clone();
            let block = content.entry(doubt.offset).or_insert_with(|| Box::new([0; LABEL_BYTES]));
            for sector in (0..8).filter(|sector| sectors >> sector & 1 == 1) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                block[range.clone()].copy_from_slice(&doubt.data[range]);
            }
            self.crash(from + 1, content, check)?;
        }
        Ok(())
    }
}

/// Does all at once, one block of 4 KiB at a time.
pub struct CrashDisk {
    durable: Content,
    /// In the order in which they were submitted.
    doubts: Vec<Doubt>,
    /// A durable write is durable when it completes, as it has to be; else only a flush makes anything so.
    pub honours_fua: bool,
    /// Which of the next writes of labels fail, and whether reads see those all the same.
    pub failing: VecDeque<Option<bool>>,
    ready: Vec<Completion>,
    pub promise: Promise,
    pub moments: Vec<Moment>,
}

impl CrashDisk {
    pub fn new(durable: Content, honours_fua: bool) -> Self {
        CrashDisk {
            durable,
            doubts: Vec::new(),
            honours_fua,
            failing: VecDeque::new(),
            ready: Vec::new(),
            promise: Promise::default(),
            moments: Vec::new(),
        }
    }

    /// A crash could happen now.
    pub fn note(&mut self) {
        let (durable, doubts) = (self.durable.clone(), self.doubts.clone());
        self.moments.push(Moment { durable, doubts, promise: self.promise.clone() });
    }

    /// What a read sees.
    fn block(&self, offset: u64) -> Block {
        let seen = self.doubts.iter().rev().find(|doubt| doubt.is_seen && doubt.offset == offset);
        let block = seen.map(|doubt| &doubt.data).or_else(|| self.durable.get(&offset));
        block.cloned().unwrap_or_else(|| Box::new([0; LABEL_BYTES]))
    }

    fn write(&mut self, io: &Io) -> Result<(), IoError> {
        let mut data = Box::new([0; LABEL_BYTES]);
        io.data.copy_to(&mut *data);
        let offset = io.offset;
        self.doubts.push(Doubt { offset, data, has_failed: false, is_seen: true });
        self.note();
        let is_label = offset < LABEL_AREA_BYTES;
        let last = self.doubts.last_mut().expect("it was pushed");
        if is_label && let Some(Some(is_seen)) = self.failing.pop_front() {
            (last.has_failed, last.is_seen) = (true, is_seen);
            return Err(io.error(ErrorKind::Io, "crash disk"));
        }
        if io.flags.fua && self.honours_fua {
            self.durable.insert(offset, last.data.clone());
            self.doubts.retain(|doubt| doubt.offset != offset);
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.note();
        for doubt in std::mem::take(&mut self.doubts) {
            if doubt.has_failed {
                self.doubts.push(doubt);
            } else {
                // Over whatever was there, also of those that failed before.
                self.doubts.retain(|earlier| earlier.offset != doubt.offset);
                self.durable.insert(doubt.offset, doubt.data);
            }
        }
    }
}

impl Volume for CrashDisk {
    fn geometry(&self) -> Geometry {
        PART
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        let mut completion = Completion::new(io.token, Ok(()));
        match io.op {
            Op::Read => {
                let block = self.block(io.offset);
                completion.data = SegList::of(Pool::new(0).copy_of(&block[..]).freeze());
            }
            Op::Write => completion.result = self.write(&io),
            Op::Flush => self.flush(),
            other => panic!("{other}"),
        }
        self.ready.push(completion);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.ready.len()
    }
}
