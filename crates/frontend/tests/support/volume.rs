//! A volume in memory that knows its holes, counts what is done to it, and can get stuck.

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Completion, Extent, Features, Geometry, Identity, Io, Op, Volume};

/// Unit in which the volume remembers what was written.
const GRAIN: u64 = 4096;

/// What was done to a [`MemoryVolume`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub fua_writes: u64,
    pub flushes: u64,
    pub zeroes: u64,
    pub zeroes_no_hole: u64,
    pub zeroed_bytes: u64,
    /// Grains that hold data.
    pub data_grains: u64,
    /// I/Os that got stuck.
    pub outstanding: u64,
}

/// A volume in memory, whose holes are known in units of `GRAIN`.
pub struct MemoryVolume {
    pool: Pool,
    bytes: Vec<u8>,
    written: Vec<bool>,
    read_only: bool,
    /// Swallows every I/O from now on.
    pub stuck: bool,
    /// While set, reads wait; what they bring is in memory of links.
    pub held: bool,
    waiting: Vec<Io>,
    done: Vec<Completion>,
    outstanding: usize,
    counts: Counts,
}

impl MemoryVolume {
    pub fn new(bytes: u64, read_only: bool, pool: Pool) -> Self {
        MemoryVolume {
            pool,
            bytes: vec![0; bytes as usize],
            written: vec![false; bytes.div_ceil(GRAIN) as usize],
            read_only,
            stuck: false,
            held: false,
            waiting: Vec::new(),
            done: Vec::new(),
            outstanding: 0,
            counts: Counts::default(),
        }
    }

    pub fn grow(&mut self, bytes: u64) {
        self.bytes.resize(bytes as usize, 0);
        self.written.resize(bytes.div_ceil(GRAIN) as usize, false);
    }

    pub fn counts(&self) -> Counts {
        let data_grains = self.written.iter().filter(|&&w| w).count() as u64;
        Counts { data_grains, outstanding: self.outstanding as u64, ..self.counts }
    }

    /// Does the reads that wait.
    pub fn release(&mut self) {
        self.held = false;
        let links = self.pool.for_received();
        for io in self.waiting.drain(..) {
            self.counts.reads += 1;
            let mut done = Completion::new(io.token, Ok(()));
            let bytes = &self.bytes[io.offset as usize..(io.offset + io.len) as usize];
            bytes.chunks(8 << 10).for_each(|part| done.data.push(links.copy_of(part).freeze()));
            self.done.push(done);
        }
    }

    /// Memory of links that somebody keeps.
    pub fn lent_bytes(&self) -> usize {
        self.pool.stats().received_bytes
    }

    fn zero(&mut self, io: &Io) {
        self.counts.zeroes += 1;
        self.counts.zeroes_no_hole += u64::from(io.flags.no_hole);
        self.counts.zeroed_bytes += io.len;
        self.bytes[io.offset as usize..(io.offset + io.len) as usize].fill(0);
        let whole = io.offset.div_ceil(GRAIN)..(io.offset + io.len) / GRAIN;
        if io.flags.no_hole {
            self.written[touched(io)].fill(true);
        } else if !whole.is_empty() {
            self.written[whole.start as usize..whole.end as usize].fill(false);
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let end = ((at / GRAIN + 1) * GRAIN).min(offset + len);
            let hole = !self.written[(at / GRAIN) as usize];
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += end - at,
                _ => extents.push(Extent { len: end - at, hole, zero: hole }),
            }
            at = end;
        }
        // A short answer, as a remote volume may give.
        extents.truncate(3);
        extents
    }
}

fn touched(io: &Io) -> std::ops::Range<usize> {
    (io.offset / GRAIN) as usize..(io.offset + io.len).div_ceil(GRAIN) as usize
}

impl Volume for MemoryVolume {
    fn geometry(&self) -> Geometry {
        let features = Features {
            read_only: self.read_only,
            discard: true,
            write_zeroes: true,
            block_status: true,
        };
        Geometry {
            bytes: self.bytes.len() as u64,
            block_bytes: 1,
            preferred_bytes: 4096,
            io_bytes_max: 1 << 20,
            features,
        }
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&mut self, io: Io) {
        assert_eq!(self.geometry().check(&io), Ok(()));
        self.outstanding += 1;
        if self.stuck {
            return;
        }
        if self.held && io.op == Op::Read {
            return self.waiting.push(io);
        }
        let mut done = Completion::new(io.token, Ok(()));
        let range = io.offset as usize..(io.offset + io.len) as usize;
        match io.op {
            Op::Read => {
                self.counts.reads += 1;
                done.data = SegList::of(self.pool.copy_of(&self.bytes[range]).freeze());
            }
            Op::Write => {
                self.counts.writes += 1;
                self.counts.fua_writes += u64::from(io.flags.fua);
                io.data.copy_to(&mut self.bytes[range]);
                self.written[touched(&io)].fill(true);
            }
            Op::Flush => self.counts.flushes += 1,
            Op::WriteZeroes | Op::Discard => self.zero(&io),
            Op::BlockStatus => done.extents = self.extents(io.offset, io.len),
            Op::LoadWriter | Op::StoreWriter | Op::Cut => unreachable!("no face asks for it"),
        }
        self.done.push(done);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.outstanding -= self.done.len();
        done.append(&mut self.done);
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}
