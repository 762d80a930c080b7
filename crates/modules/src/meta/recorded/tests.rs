//! Records of a whole of two parts, over disks that crash.

use std::rc::Rc;

use thinwire_buffer::SegList;
use thinwire_volume::testing::SplitMix64;
use thinwire_volume::{Identity, LeafGeneration, WriterRecord};

use super::*;
use crate::cuts::Recorder;
use crate::meta::{
    BESIDE_TOKEN, Finding, LABEL_OFFSETS, Label, LabelOutcome, LabelledPart, Labels, NewPart,
    NewWhole, PartFence, label_parts,
};
use crate::mirror::tests::disk::{Content, Disk, Snapshot};
use crate::mirror::tests::fates;
use crate::{Child, Module, Options};

const BLOCK: u64 = 4096;
const DISK_BYTES: u64 = 2 << 20;

fn kept(generation: u64) -> KeptWriter {
    let record = WriterRecord::new(generation, [generation as u8; 16], &format!("n{generation}"));
    let record = WriterRecord { idle: 40 + generation as u32, ..record };
    let leaf = |leaf: u8| LeafGeneration { leaf: [leaf; 16], generation };
    KeptWriter { record, leaves: Some((1..=generation as u8).map(leaf).collect()) }
}

fn contents() -> Vec<Content> {
    let part = |role: u8| NewPart {
        uuid: [0x20 + role; 16],
        content: Identity::default(),
        bytes: DISK_BYTES,
    };
    let parts = [part(0), part(1)];
    let (module, options) = (Module::find("linear").unwrap(), Options::default());
    let bytes = 2 * parts[0].data_bytes(module);
    let whole = NewWhole { name: "home", uuid: [1; 16], module, options: &options, bytes };
    let image = |label: &Label| {
        let copies = [2, 3].map(|generation| Label { generation, ..label.clone() });
        let place = |label: &Label| LABEL_OFFSETS[(label.generation % 2) as usize] / BLOCK;
        let block = |label: Label| (place(&label), Rc::from(&label.encode().unwrap()[..]));
        copies.map(block).into_iter().collect()
    };
    label_parts(&whole, &parts).unwrap().iter().map(image).collect()
}

/// The labels of a disk, and what they say.
fn read(disk: &Disk) -> (Labels, Label) {
    let mut volume = disk.clone();
    disk.be_prompt(true);
    let mut labels = Labels::new(BESIDE_TOKEN, &Pool::new(0));
    labels.read(&mut volume).unwrap();
    let found = (0..3).find_map(|_| labels.turn(&mut volume));
    disk.be_prompt(false);
    match found {
        Some(LabelOutcome::Read(Ok(Finding::Label(found)))) => (labels, found.label),
        other => panic!("{other:?}"),
    }
}

struct World {
    disks: Vec<Disk>,
    whole: RecordedWhole,
    /// Of each crash: what the disks are, and the last record that was told of, and that was asked for.
    moments: Vec<(Vec<Snapshot>, u64, u64)>,
    asked: u64,
    told: u64,
    errors: Vec<ErrorKind>,
    loaded: Option<KeptWriter>,
    outstanding: usize,
}

impl World {
    fn open(contents: Vec<Content>, canary: RecordedCanary) -> Self {
        let disks: Vec<_> =
            contents.into_iter().map(|content| Disk::new(DISK_BYTES, content)).collect();
        let (fence, mut record, mut parts) = (PartFence::default(), None, Vec::new());
        for disk in &disks {
            let (labels, label) = read(disk);
            let (start, bytes) = (label.data_start, label.part().bytes);
            let (part, _) = LabelledPart::new(Box::new(disk.clone()), fence.clone());
            let mut part: Box<dyn Volume> = Box::new(part);
            if record.is_none() {
                let (recorder, recorded) = Recorder::new(part, labels, label);
                (part, record) = (Box::new(recorder), Some(recorded));
            }
            parts.push(Child::within(part, start, bytes).unwrap());
        }
        let linear = Module::find("linear").unwrap().open_over(parts, &Options::default());
        let mut whole = RecordedWhole::new(linear.unwrap(), record.unwrap());
        whole.canary = canary;
        let (moments, errors) = (Vec::new(), Vec::new());
        let (asked, told, loaded, outstanding) = (0, 0, None, 0);
        World { disks, whole, moments, asked, told, errors, loaded, outstanding }
    }

    fn note(&mut self) {
        let disks = self.disks.iter().map(Disk::snapshot).collect();
        self.moments.push((disks, self.told, self.asked));
    }

    fn submit(&mut self, io: Io) {
        self.whole.submit(io);
        self.outstanding += 1;
        self.poll();
    }

    fn store(&mut self, kept: &KeptWriter) {
        self.asked = kept.record.generation;
        self.submit(kept.to_io(kept.record.generation, &Pool::new(0)));
    }

    fn write(&mut self, block: u64) {
        let mut io = Io::new(100 + block, Op::Write, block * BLOCK, BLOCK);
        io.data.push(Pool::new(0).copy_of(&[7; 4096]).freeze());
        self.submit(io);
    }

    fn poll(&mut self) {
        let mut done = Vec::new();
        self.whole.poll(&mut done);
        for ended in done {
            self.outstanding -= 1;
            match ended.result {
                Err(error) => self.errors.push(error.kind),
                Ok(()) if ended.token == 99 => self.loaded = KeptWriter::from_data(&ended.data),
                Ok(()) if ended.token < 99 => self.told = self.told.max(ended.token),
                Ok(()) => {}
            }
        }
        let told_early = self.whole.canary == RecordedCanary::ToldEarly;
        assert!(told_early || self.whole.outstanding() == self.outstanding);
        self.note();
    }

    fn wait(&mut self) {
        for turn in 0.. {
            let busy: Vec<_> = (0..2).filter(|disk| self.disks[*disk].is_busy()).collect();
            match busy.get(turn % busy.len().max(1)) {
                Some(&disk) => self.disks[disk].execute(0),
                None if self.outstanding == 0 => return,
                None => assert!(turn < 1000, "it never ends"),
            }
            self.poll();
        }
    }

    fn load(&mut self) -> KeptWriter {
        self.submit(Io::new(99, Op::LoadWriter, 0, 0));
        self.wait();
        self.loaded.take().expect("it was told")
    }
}

fn explore(canary: RecordedCanary) -> Result<usize, String> {
    let mut world = World::open(contents(), canary);
    world.note();
    for generation in 1..=4 {
        world.write(generation);
        world.store(&kept(generation));
        if generation != 2 {
            world.wait();
        }
    }
    let (mut rng, mut count) = (SplitMix64::new(7), 0);
    for (disks, told, asked) in &world.moments {
        for fates in fates(disks, &mut rng, 16) {
            let after = disks.iter().zip(&fates).map(|(disk, fates)| disk.after(fates)).collect();
            let found = World::open(after, RecordedCanary::None).load();
            let generation = found.record.generation;
            if generation < *told || generation > *asked {
                return Err(format!("{generation} is found, of {told} to {asked}"));
            }
            if found != kept(generation) && !found.is_none() {
                return Err(format!("a mixture: {found:?}"));
            }
            count += 1;
        }
    }
    Ok(count)
}

#[test]
fn behind_every_crash_the_record_that_was_told_of_is_found() {
    let count = explore(RecordedCanary::None).unwrap();
    assert!(count > 100, "{count}");
}

#[test]
fn a_record_that_is_told_before_it_is_there_is_found() {
    let why = explore(RecordedCanary::ToldEarly).unwrap_err();
    assert!(why.contains("is found, of"), "{why}");
}

#[test]
fn what_fails_is_told_and_the_next_one_is_stored() {
    let mut world = World::open(contents(), RecordedCanary::None);
    world.store(&kept(1));
    world.wait();
    world.disks[0].fail(Some(ErrorKind::Io));
    world.store(&kept(2));
    world.wait();
    assert_eq!((world.told, &world.errors[..]), (1, &[ErrorKind::Io][..]));
    world.disks[0].fail(None);
    world.store(&kept(3));
    world.wait();
    assert_eq!((world.told, world.load()), (3, kept(3)));
    let mut most = kept(4);
    most.leaves = Some(vec![LeafGeneration::default(); crate::meta::LABEL_LEAVES_MAX + 1]);
    world.store(&most);
    let mut io = kept(5).to_io(5, &Pool::new(0));
    io.data = SegList::of(Pool::new(0).copy_of(&[1; 7]).freeze());
    world.submit(io);
    assert_eq!(world.errors[1..], [ErrorKind::Unsupported, ErrorKind::Invalid]);
    // Fenced at the part without the label: nothing is written there any more, either.
    world.disks[1].fail(Some(ErrorKind::Fenced));
    world.write(300);
    world.wait();
    world.disks[0].fail(None);
    let writes = world.disks[0].writes();
    world.store(&kept(6));
    world.wait();
    assert_eq!(world.errors[3..], [ErrorKind::Fenced; 2]);
    assert_eq!((world.disks[0].writes(), world.told), (writes, 3));
}

#[test]
fn who_only_reads_is_told_and_stores_nothing() {
    use thinwire_volume::stores::NullStore;
    use thinwire_volume::{load_writer, store_writer};
    for said in [None, Some(kept(3))] {
        let below = Box::new(NullStore::new(1 << 20, 512));
        let mut whole = RecordedWhole::of_reader(below, said.clone());
        assert_eq!(load_writer(&mut whole), Ok(said.unwrap_or_default().record));
        let error = store_writer(&mut whole, kept(4).record).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ReadOnly);
    }
}

/// No disk has anything to do for it before, so nobody would poll once more.
#[test]
fn the_next_one_begins_with_the_poll_that_ends_the_one_before() {
    let mut world = World::open(contents(), RecordedCanary::None);
    world.store(&kept(1));
    world.store(&kept(2));
    while world.outstanding > 0 {
        let busy = world.disks.iter().find(|disk| disk.is_busy()).expect("it stands still");
        busy.execute(0);
        world.poll();
    }
    assert_eq!((world.told, world.load()), (2, kept(2)));
}
