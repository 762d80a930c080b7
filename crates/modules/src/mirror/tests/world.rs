//! [`World`]: a mirror over disks that do what is submitted in an order that a seed decides, with a user, who knows what was
//! promised, and a record of all moments at which a crash could come.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, SegList, Time};
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Completion, CutAct, CutOrder, Identity, Io, KeptWriter, Op, Token, Volume};

use super::super::bitmap::{BLOCK_BYTES, BlockName, encode};
use super::super::*;
use super::disk::{BLOCK, Content, Disk, Snapshot, at};
use crate::meta::{Finding, LABEL_OFFSETS, Label, LabelFeatures, LabelOutcome, LabelPart, Labels};
use crate::{Module, Options};

pub const WHOLE: [u8; 16] = *b"UUID of a mirror";
/// Two regions, the second of four blocks.
pub const DATA_BYTES: u64 = (1 << 20) + 4 * BLOCK;
pub const DISK_BYTES: u64 = MIRROR_DATA_START + DATA_BYTES;
/// One region more than the first block of bits has.
pub const WIDE_BYTES: u64 = (4032 << 20) + 4 * BLOCK;
/// The first block of that.
pub const FAR: u64 = 4032 << 8;
/// The first block of the second region.
pub const SMALL: u64 = 256;

thread_local! {
    static DRAWN: Cell<u64> = const { Cell::new(0) };
}

/// Numbered generations, none of which is drawn twice by a test.
struct Counter;

impl DrawGeneration for Counter {
    fn draw(&mut self) -> Generation {
        DRAWN.set(DRAWN.get() + 1);
        let mut drawn = [0xd0; 16];
        drawn[8..].copy_from_slice(&DRAWN.get().to_be_bytes());
        drawn
    }
}

pub fn config(degraded: bool) -> MirrorConfig {
    MirrorConfig {
        generations: Box::new(Counter),
        pool: Pool::new(1 << 20),
        wish: OpeningWish { degraded, from: None, change: None },
        read_only: false,
        opened_at: 0,
        leg_timeout: Duration::from_secs(5),
        keeper: None,
    }
}

pub fn state(generation: u8, legs: &[LegState]) -> MirrorState {
    let history = if generation > 1 { vec![[generation - 1; 16]] } else { Vec::new() };
    MirrorState {
        generation: [generation; 16],
        next: NO_GENERATION,
        incarnation: [7; 16],
        drawn_at: 0,
        history,
        region_shift: 20,
        block_shift: 12,
        legs: legs.into(),
    }
}

/// What the label of a leg says, of so many bytes of data.
pub fn label(leg: usize, state: &MirrorState, bytes: u64) -> Label {
    let part = |leg: usize| LabelPart { uuid: [0x10 + leg as u8; 16], bytes };
    Label {
        generation: 1,
        features: LabelFeatures::default(),
        module: Module::find("mirror").unwrap(),
        options: Options::default(),
        whole: WHOLE,
        name: "mirror".into(),
        whole_bytes: bytes,
        parts: (0..state.legs.len()).map(part).collect(),
        role: leg as u16,
        data_start: MIRROR_DATA_START,
        opening: [0; 16],
        next_opening: [0; 16],
        cut: 0,
        cut_begun: 0,
        made_bytes: None,
        work: None,
        openings: 0,
        content: Identity::default(),
        writer: None,
        state: state.encode(),
    }
}

/// A leg with that label, and bits that say this of the two regions.
pub fn formatted(leg: usize, state: &MirrorState, bits: [u8; 2]) -> Content {
    let mut content = labelled(leg, state, DATA_BYTES);
    let mut image = [0; BLOCK_BYTES];
    image[64..66].copy_from_slice(&bits);
    encode(&mut image, BlockName { whole: WHOLE, index: 0, region_shift: 20 }, 1);
    content.insert(BITMAP_OFFSET / BLOCK, Rc::from(&image[..]));
    content
}

/// One with so many bytes of data that there is a second block of bits, and no bit set.
pub fn formatted_wide(leg: usize, state: &MirrorState) -> Content {
    let mut content = labelled(leg, state, WIDE_BYTES);
    for index in 0..2 {
        let mut image = [0; BLOCK_BYTES];
        encode(&mut image, BlockName { whole: WHOLE, index, region_shift: 20 }, 1);
        content.insert(BITMAP_OFFSET / BLOCK + u64::from(index), Rc::from(&image[..]));
    }
    content
}

fn labelled(leg: usize, state: &MirrorState, bytes: u64) -> Content {
    let mut content = Content::new();
    for generation in [2, 3] {
        let label = Label { generation, ..label(leg, state, bytes) };
        let offset = LABEL_OFFSETS[(generation % 2) as usize];
        content.insert(offset / BLOCK, Rc::from(&label.encode().unwrap()[..]));
    }
    content
}

/// What a disk is as a leg, whose labels are read; none if it has none that can be gone by.
pub fn leg(disk: &Disk) -> Option<MirrorLeg> {
    let mut volume = disk.clone();
    disk.be_prompt(true);
    let mut labels = Labels::new(LEG_LABEL_TOKEN, &Pool::new(0));
    labels.read(&mut volume).unwrap();
    let found = (0..3).find_map(|_| labels.turn(&mut volume));
    disk.be_prompt(false);
    match found {
        Some(LabelOutcome::Read(Ok(Finding::Label(found)))) => {
            Some(MirrorLeg { volume: Box::new(volume), labels, label: found.label })
        }
        other => panic!("{other:?}"),
    }
}

/// What a user wrote: what a block may hold.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub block: u64,
    pub stamp: u8,
    submitted: u64,
    /// `u64::MAX` before, and if it has failed.
    completed: u64,
    is_durable: bool,
}

/// A moment at which a crash could come.
pub struct Moment {
    pub disks: Vec<Snapshot>,
    pub written: Vec<Written>,
    /// Generations of writer records: the last that was told of as stored, and that was asked for.
    pub records: (u64, u64),
}

impl Moment {
    /// What a sector of that block may hold after a crash.
    pub fn allows(&self, block: u64, stamp: u8) -> bool {
        let of = || self.written.iter().filter(|write| write.block == block);
        let is_gone =
            |completed: u64| of().any(|write| write.is_durable && write.submitted > completed);
        // Zeroes are there before all, too.
        (stamp == 0 && !is_gone(0))
            || of().any(|write| write.stamp == stamp && !is_gone(write.completed))
    }
}

/// Which disk goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One by one, the first of what each was given.
    Turns,
    /// This one does nothing as long as others have something to do.
    Last(usize),
    /// Any of them, anything.
    Random,
}

pub struct World {
    pub mirror: Mirror,
    pub disks: Vec<Disk>,
    pub now: Time,
    order: Order,
    rng: SplitMix64,
    clock: u64,
    pub written: Vec<Written>,
    /// Outstanding, by token: a write, or a flush with when it was submitted.
    waits: Vec<(Token, Op, Vec<usize>, u64)>,
    pub moments: Vec<Moment>,
    pub is_recording: bool,
    pub reads: Vec<(u64, Vec<u8>)>,
    pub errors: usize,
    pub records: (u64, u64),
    tokens: Token,
}

impl World {
    pub fn new(mirror: Mirror, disks: Vec<Disk>, order: Order, seed: u64) -> Self {
        World {
            mirror,
            disks,
            now: Time::ZERO + Duration::from_secs(1),
            order,
            rng: SplitMix64::new(seed),
            clock: 0,
            written: Vec::new(),
            waits: Vec::new(),
            moments: Vec::new(),
            is_recording: true,
            reads: Vec::new(),
            errors: 0,
            records: (0, 0),
            tokens: 0,
        }
    }

    /// Of these contents, all legs there.
    pub fn open(contents: Vec<Content>, order: Order, seed: u64) -> Self {
        World::open_of(DISK_BYTES, contents, order, seed)
    }

    /// Likewise, on disks of so many bytes.
    pub fn open_of(bytes: u64, contents: Vec<Content>, order: Order, seed: u64) -> Self {
        let disks: Vec<_> = contents.into_iter().map(|content| Disk::new(bytes, content)).collect();
        let legs = disks.iter().map(leg).collect();
        let mirror = Mirror::open(legs, config(false)).unwrap_or_else(|e| panic!("{e}"));
        World::new(mirror, disks, order, seed)
    }

    /// Disks go in that order from now on.
    pub fn set_order(&mut self, order: Order) {
        self.order = order;
    }

    /// A crash could come now.
    pub fn note(&mut self) {
        if self.is_recording {
            let disks = self.disks.iter().map(Disk::snapshot).collect();
            let (written, records) = (self.written.clone(), self.records);
            self.moments.push(Moment { disks, written, records });
        }
    }

    fn submit(&mut self, mut io: Io, writes: Vec<usize>) {
        self.tokens += 1;
        self.clock += 1;
        io.token = self.tokens;
        self.waits.push((io.token, io.op, writes, self.clock));
        self.mirror.submit(io);
        self.note();
        self.poll();
    }

    /// What is about to be written to each of these blocks.
    fn expect(&mut self, block: u64, count: u64, stamp: u8) -> Vec<usize> {
        let mut writes = Vec::new();
        for block in block..block + count {
            writes.push(self.written.len());
            let (submitted, completed) = (self.clock + 1, u64::MAX);
            self.written.push(Written { block, stamp, submitted, completed, is_durable: false });
        }
        writes
    }

    pub fn write(&mut self, block: u64, count: u64, stamp: u8, fua: bool) {
        let mut writes = self.expect(block, count, stamp);
        let mut io = Io::new(0, Op::Write, block * BLOCK, count * BLOCK);
        io.data = SegList::of(Pool::new(0).copy_of(&vec![stamp; io.len as usize]).freeze());
        io.flags.fua = fua;
        // Durable when it completes, as a flush that covers it alone would make it.
        if fua {
            writes.push(usize::MAX);
        }
        self.submit(io, writes);
    }

    pub fn flush(&mut self) {
        self.submit(Io::new(0, Op::Flush, 0, 0), Vec::new());
    }

    /// An order about a snapshot.
    pub fn order(&mut self, act: CutAct) {
        let name = if act == CutAct::Take { "x".to_owned() } else { String::new() };
        let id = if act == CutAct::Next { 0 } else { 5 };
        let order = CutOrder { act, id, at: 0, name };
        self.submit(order.io(0, &Pool::new(0)), Vec::new());
    }

    /// Stores a writer record with this generation.
    pub fn store(&mut self, kept: &KeptWriter) {
        self.records.1 = kept.record.generation;
        let generation = kept.record.generation as usize;
        self.submit(kept.to_io(0, &Pool::new(0)), vec![generation]);
    }

    /// The writer record that is there by what it tells.
    pub fn load(&mut self) -> KeptWriter {
        self.submit(Io::new(0, Op::LoadWriter, 0, 0), vec![0]);
        self.wait();
        let (_, bytes) = self.reads.pop().expect("it was told");
        let data = SegList::of(Pool::new(0).copy_of(&bytes).freeze());
        KeptWriter::from_data(&data).expect("it is one")
    }

    /// I/Os of users that have not ended.
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// By writing zeroes, or by discarding, which comes to the same here.
    pub fn zero(&mut self, block: u64, count: u64, op: Op) {
        let writes = self.expect(block, count, 0);
        self.submit(Io::new(0, op, block * BLOCK, count * BLOCK), writes);
    }

    pub fn read(&mut self, block: u64) {
        self.submit(Io::new(0, Op::Read, block * BLOCK, BLOCK), vec![block as usize]);
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.mirror.poll(&mut done);
        let is_news = !done.is_empty();
        done.into_iter().for_each(|completion| self.complete(completion));
        if is_news {
            self.note();
        }
    }

    fn complete(&mut self, completion: Completion) {
        self.clock += 1;
        let at = self.waits.iter().position(|wait| wait.0 == completion.token);
        let (_, op, writes, submitted) = self.waits.remove(at.expect("each ends once"));
        if completion.result.is_err() {
            self.errors += 1;
            return;
        }
        match op {
            Op::StoreWriter => self.records.0 = writes[0] as u64,
            Op::Read | Op::LoadWriter => {
                self.reads.push((writes[0] as u64, completion.data.to_vec()))
            }
            Op::Flush => {
                let covered = |write: &&mut Written| write.completed < submitted;
                self.written.iter_mut().filter(covered).for_each(|write| write.is_durable = true);
            }
            _ => {
                let fua = writes.last() == Some(&usize::MAX);
                for &write in writes.iter().filter(|write| **write != usize::MAX) {
                    self.written[write].completed = self.clock;
                    self.written[write].is_durable |= fua;
                }
            }
        }
    }

    /// One disk does one thing. False if none had anything to do.
    pub fn step(&mut self) -> bool {
        let busy: Vec<usize> =
            (0..self.disks.len()).filter(|disk| self.disks[*disk].is_busy()).collect();
        let Some(&first) = busy.first() else { return false };
        let (disk, nth) = match self.order {
            Order::Turns => (busy[self.rng.below(busy.len() as u64) as usize], 0),
            Order::Last(last) => (*busy.iter().find(|disk| **disk != last).unwrap_or(&first), 0),
            Order::Random => {
                let disk = busy[self.rng.below(busy.len() as u64) as usize];
                (disk, self.rng.below(self.disks[disk].queued() as u64) as usize)
            }
        };
        self.disks[disk].execute(nth);
        self.note();
        self.poll();
        true
    }

    /// So many steps, or as many as there are.
    pub fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| _ = self.step());
    }

    /// Until the user waits for nothing, time passing where nothing else does.
    pub fn wait(&mut self) {
        let end = self.now + Duration::from_secs(60);
        while !self.waits.is_empty() {
            self.turn();
            if !self.step() {
                self.now = self.now + Duration::from_millis(100);
                assert!(self.now < end, "{:?} never ends", self.waits);
            }
        }
    }

    pub fn turn(&mut self) {
        self.mirror.turn(self.now);
        self.poll();
    }

    /// Time passes, and all that is to be done is.
    pub fn pass(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.turn();
            if !self.step() {
                self.now = self.now + Duration::from_millis(250);
            }
        }
    }

    /// Until all legs are in sync, and nothing is left to do.
    pub fn heal(&mut self) -> Result<(), String> {
        let end = self.now + Duration::from_secs(600);
        loop {
            self.turn();
            // One that was added is not there, perhaps.
            let there = self.mirror.legs().take(self.disks.len());
            let is_whole = there
                .map(|(state, _)| state)
                .all(|state| matches!(state, LegState::InSync | LegState::Removed { .. }));
            if !self.step() {
                if is_whole && self.mirror.regions.open_count() == 0 {
                    return Ok(());
                }
                self.now = self.now + Duration::from_millis(250);
            }
            if self.now > end {
                return Err("it never heals".into());
            }
        }
    }

    /// Nothing is done with a leg, now or soon.
    pub fn is_dropped(&self, leg: usize) -> bool {
        let Mirror { active, record, .. } = &self.mirror;
        (active | record.joining) >> leg & 1 == 0
    }

    /// A leg that was dropped comes back, as another attachment.
    pub fn bring_back(&mut self, disk: usize) {
        self.disks[disk].fail(None);
        self.mirror.give_up_leg(disk).expect("it was dropped");
        self.disks[disk].abandon();
        let back = leg(&self.disks[disk]).expect("it has a label");
        self.mirror.return_leg(disk, back).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// In which block of data the legs differ, if in any.
pub fn differ(disks: &[Disk]) -> Option<u64> {
    let contents: Vec<Content> = disks.iter().map(Disk::content).collect();
    let first = MIRROR_DATA_START / BLOCK;
    (0..DATA_BYTES / BLOCK).find(|block| {
        let one = at(&contents[0], first + block);
        contents[1..].iter().any(|other| at(other, first + block) != one)
    })
}
