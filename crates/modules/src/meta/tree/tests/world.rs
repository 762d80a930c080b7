//! [`World`]: a pool as `thin` will have it: a tree of volumes, and for each of them a tree of blocks, beside maps in memory that say what
//! has to be there.

use std::collections::BTreeMap;

use thinwire_volume::{Completion, Io, Op, Volume};

use super::disk::{BLOCK, Clock, Content, Random, TestDisk};
use super::*;
use crate::meta::label::tests::sample;
use crate::meta::{Finding, LABEL_AREA_BYTES};
use thinwire_buffer::SegList;

pub const LABEL_TOKEN: Token = 1 << 40;
pub const NODES: u64 = 4096;

/// What is kept of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRow {
    pub root: TreePointer,
    pub time: u64,
}

impl TreeValue for VolumeRow {
    const BYTES: usize = 24;

    fn put(&self, out: &mut [u8]) {
        out[..16].copy_from_slice(&self.root.to_bytes());
        out[16..].copy_from_slice(&self.time.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let time = u64::from_le_bytes(bytes[16..].try_into().ok()?);
        Some(VolumeRow { root: TreePointer::from_bytes(bytes), time })
    }

    fn refers(&self) -> TreeRefers {
        TreeRefers::Tree { kind: KINDS[1].number, root: self.root }
    }
}

/// Where a block of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub block: u64,
    pub time: u64,
}

impl TreeValue for Mapping {
    const BYTES: usize = 16;

    fn put(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.block.to_le_bytes());
        out[8..].copy_from_slice(&self.time.to_le_bytes());
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        let [block, time] =
            [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")));
        (time < 1 << 32).then_some(Mapping { block, time })
    }

    fn refers(&self) -> TreeRefers {
        TreeRefers::Block(self.block)
    }
}

/// A block and nothing else, so that as many rows as there can be stand in a leaf.
#[derive(Clone, Copy)]
pub struct Plain(pub u64);

impl TreeValue for Plain {
    const BYTES: usize = 8;

    fn put(&self, out: &mut [u8]) {
        self.0.put(out);
    }

    fn take(bytes: &[u8]) -> Option<Self> {
        u64::take(bytes).map(Plain)
    }

    fn refers(&self) -> TreeRefers {
        TreeRefers::Block(self.0)
    }
}

pub static KINDS: [TreeKind; 3] = [
    TreeKind::of::<VolumeRow>(16, "volumes"),
    TreeKind::of::<Mapping>(17, "blocks of a volume"),
    TreeKind::of::<Plain>(18, "plain blocks"),
];
pub const ROOT_KINDS: [u8; TREE_ROOTS] = [16, 0, 0, 0];

/// What each volume holds: stamps of data by keys.
pub type Model = BTreeMap<u64, BTreeMap<u64, u64>>;

/// How a world is made.
#[derive(Clone)]
pub struct Setup {
    pub seed: u64,
    pub nodes: u64,
    pub blocks: u64,
    pub rows_max: Option<usize>,
    pub cache_nodes: usize,
    pub open_nodes_max: usize,
    pub canary: TreeCanary,
    pub is_prompt: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            nodes: NODES,
            blocks: 10_000,
            rows_max: None,
            cache_nodes: 4096,
            open_nodes_max: 2048,
            canary: TreeCanary::None,
            is_prompt: true,
        }
    }
}

/// What happened to commits, and when.
#[derive(Clone, Default)]
pub struct History {
    /// Generation, when it began, and what it says.
    pub begun: Vec<(u64, u64, Model)>,
    /// Generation, and when it was told to be durable.
    pub durable: Vec<(u64, u64)>,
}

pub struct World {
    pub setup: Setup,
    pub clock: Clock,
    pub part: TestDisk,
    pub data: TestDisk,
    pub trees: Trees,
    pub volumes: TreeRoot<VolumeRow>,
    pub model: Model,
    pub history: History,
    pub random: Random,
    pub committed: Option<Result<u64, TreeFault>>,
    pub rounds: u64,
    next_stamp: u64,
    next_volume: u64,
    tokens: u64,
}

pub fn part_bytes(nodes: u64) -> u64 {
    LABEL_AREA_BYTES + nodes * NODE_BYTES as u64
}

/// The label of a part that has nothing yet.
pub fn new_label(nodes: u64, blocks: u64) -> Label {
    let mut label = sample("linear", 1);
    label.parts[0].bytes = nodes * NODE_BYTES as u64;
    label.whole_bytes = label.parts[0].bytes;
    label.state = TreeState::new(nodes, blocks).encode(b"kept beside");
    label
}

pub fn config(setup: &Setup) -> TreesConfig {
    TreesConfig {
        cache_nodes: setup.cache_nodes,
        open_nodes_max: setup.open_nodes_max,
        ..TreesConfig::new(&KINDS, 100, &Pool::new(1 << 20))
    }
}

/// Reads the labels of a part.
pub fn read_labels(part: &mut TestDisk) -> (Labels, Finding) {
    let mut labels = Labels::new(LABEL_TOKEN, &Pool::new(0));
    labels.read(part).unwrap();
    loop {
        if let Some(outcome) = labels.turn(part) {
            let crate::meta::LabelOutcome::Read(Ok(found)) = outcome else { panic!("{outcome:?}") };
            return (labels, found);
        }
    }
}

/// Opens the trees that are there, without any model of what they hold.
pub fn open(part: &mut TestDisk, setup: &Setup) -> Result<Trees, TreeFault> {
    let (labels, found) = read_labels(part);
    let Finding::Label(found) = found else { panic!("no label") };
    let (mut trees, rest) = Trees::open(labels, found.label, config(setup))?;
    assert_eq!(rest, b"kept beside");
    trees.rows_max = setup.rows_max;
    trees.canary = setup.canary;
    Ok(trees)
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let clock = Clock::default();
        let mut part = TestDisk::new(part_bytes(setup.nodes), Content::new(), &clock, setup.seed);
        let (mut labels, found) = read_labels(&mut part);
        assert_eq!(found, Finding::Blank);
        labels.write(&new_label(setup.nodes, setup.blocks), &mut part).unwrap();
        while labels.turn(&mut part).is_none() {}
        let data = TestDisk::new(setup.blocks * BLOCK as u64, Content::new(), &clock, 9);
        Self::open(setup, part, data, Model::new())
    }

    pub fn open(setup: Setup, mut part: TestDisk, mut data: TestDisk, model: Model) -> Self {
        let trees = open(&mut part, &setup).unwrap();
        part.is_prompt = setup.is_prompt;
        data.is_prompt = setup.is_prompt;
        let mut world = World {
            volumes: TreeRoot::new(&KINDS[0], trees.committed().roots[0]),
            clock: part.clock(),
            random: Random(setup.seed),
            part,
            data,
            trees,
            history: History::default(),
            committed: None,
            rounds: 0,
            next_stamp: stamp_after(&model),
            next_volume: 1 + model.keys().max().unwrap_or(&0),
            model,
            tokens: 0,
            setup,
        };
        let (generation, now) = (world.trees.committed().generation, world.clock.get());
        world.history.begun.push((generation, now, world.model.clone()));
        world.history.durable.push((generation, now));
        world
    }

    /// Polls both disks, and goes on. Whether something came.
    pub fn turn(&mut self) -> bool {
        let mut done = Vec::new();
        self.part.poll(&mut done);
        for completion in done.drain(..) {
            assert!(self.trees.is_mine(&completion), "{completion:?}");
            self.trees.on_completion(completion, &mut self.part);
        }
        self.data.poll(&mut done);
        for completion in done {
            if self.trees.is_mine_of_data(&completion) {
                self.trees.on_data_completion(completion);
            }
        }
        let news = self.trees.turn(&mut self.part, &mut self.data);
        self.rounds += 1;
        if let Some(committed) = news.committed {
            if let Ok(generation) = committed {
                self.history.durable.push((generation, self.clock.get()));
            }
            self.committed = Some(committed);
        }
        news.came
    }

    pub fn wait(&mut self) {
        for _ in 0..10_000 {
            if self.turn() {
                return;
            }
        }
        panic!("nothing comes");
    }

    /// Tries until it is not stopped by what passes.
    pub fn run<T>(
        &mut self,
        frees: bool,
        mut step: impl FnMut(&mut TreeChange<'_>, TreeRoot<VolumeRow>) -> Result<T, TreeStop>,
    ) -> Result<T, TreeStop> {
        let mut commits = 0;
        for _ in 0..100_000 {
            let volumes = self.volumes;
            let begun = if frees { self.trees.change_to_free() } else { self.trees.change() };
            let stepped = begun.and_then(|mut change| {
                let result = step(&mut change, volumes)?;
                change.apply()?;
                Ok(result)
            });
            match stepped {
                Err(TreeStop::Wait) => self.wait(),
                Err(TreeStop::Commit) if commits < 5 => {
                    commits += 1;
                    self.commit_now()?;
                }
                other => return other,
            }
        }
        panic!("it does not come on");
    }

    /// Begins a commit, unless one is under way.
    pub fn begin_commit(&mut self) -> Result<(), TreeStop> {
        let roots = [self.volumes.at, TreePointer::NONE, TreePointer::NONE, TreePointer::NONE];
        self.trees.commit(roots, b"kept beside")?;
        let generation = self.trees.generation;
        self.history.begun.push((generation, self.clock.get(), self.model.clone()));
        self.committed = None;
        Ok(())
    }

    /// Commits, and waits for the end of it.
    pub fn commit_now(&mut self) -> Result<(), TreeStop> {
        while self.begin_commit() == Err(TreeStop::Wait) {
            self.wait();
        }
        if let Some(failed) = self.trees.failed() {
            return Err(TreeStop::Fault(failed.clone()));
        }
        self.end_commit()
    }

    pub fn end_commit(&mut self) -> Result<(), TreeStop> {
        for _ in 0..100_000 {
            if let Some(committed) = self.committed.take() {
                return committed.map(|_| ()).map_err(TreeStop::Fault);
            }
            self.turn();
        }
        panic!("the commit does not end");
    }

    /// Tries a lookup until it says something.
    pub fn look<T>(
        &mut self,
        mut look: impl FnMut(&mut Trees) -> Result<T, TreeStop>,
    ) -> Result<T, TreeStop> {
        for _ in 0..100_000 {
            match look(&mut self.trees) {
                Err(TreeStop::Wait) => self.wait(),
                other => return other,
            }
        }
        panic!("it does not come on");
    }

    pub fn create(&mut self) -> Result<u64, TreeStop> {
        let id = self.next_volume;
        let row = VolumeRow { root: TreePointer::NONE, time: id };
        self.volumes =
            self.run(false, |change, volumes| Ok(change.insert(volumes, id, &row)?.0))?;
        self.next_volume += 1;
        self.model.insert(id, BTreeMap::new());
        Ok(id)
    }

    /// Writes new data to a new block, then has the key refer to it.
    pub fn write(&mut self, id: u64, key: u64) -> Result<(), TreeStop> {
        let mut tries = 0..1_000;
        let block = loop {
            tries.next().expect("it does not come on");
            match self.trees.reserve_block() {
                Err(TreeStop::Wait) => self.wait(),
                Err(TreeStop::Commit) => self.commit_now()?,
                other => break other?,
            }
        };
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        self.write_data(block, stamp);
        let written = self.run(true, |change, volumes| {
            let row = change.lookup(volumes, id)?.expect("the volume is there");
            change.take_reserved(block);
            let tree = TreeRoot::new(&KINDS[1], row.root);
            let mapping = Mapping { block, time: row.time };
            let (tree, before) = change.insert(tree, key, &mapping)?;
            if let Some(before) = before {
                change.give_back_block(before.block)?;
            }
            let row = VolumeRow { root: tree.at, ..row };
            Ok(change.insert(volumes, id, &row)?.0)
        });
        match written {
            Ok(volumes) => self.volumes = volumes,
            Err(stop) => {
                self.trees.give_out(block);
                return Err(stop);
            }
        }
        self.model.get_mut(&id).unwrap().insert(key, stamp);
        Ok(())
    }

    fn write_data(&mut self, block: u64, stamp: u64) {
        self.tokens += 1;
        let token = (1 << 50) + self.tokens;
        let bytes = stamp.to_le_bytes().repeat(BLOCK / 8);
        let mut io = Io::new(token, Op::Write, block * BLOCK as u64, BLOCK as u64);
        io.data = SegList::of(Pool::new(0).copy_of(&bytes).freeze());
        self.data.submit(io);
        let mut done: Vec<Completion> = Vec::new();
        while !done.iter().any(|completion| completion.token == token) {
            self.data.poll(&mut done);
        }
        for completion in done {
            if self.trees.is_mine_of_data(&completion) {
                self.trees.on_data_completion(completion);
            }
        }
    }

    pub fn remove(&mut self, id: u64, key: u64) -> Result<(), TreeStop> {
        let mut found = false;
        self.volumes = self.run(true, |change, volumes| {
            let row = change.lookup(volumes, id)?.expect("the volume is there");
            let (tree, before) =
                change.remove(TreeRoot::<Mapping>::new(&KINDS[1], row.root), key)?;
            found = before.is_some();
            if let Some(before) = before {
                change.give_back_block(before.block)?;
            }
            Ok(change.insert(volumes, id, &VolumeRow { root: tree.at, ..row })?.0)
        })?;
        assert_eq!(self.model.get_mut(&id).unwrap().remove(&key).is_some(), found);
        Ok(())
    }

    pub fn remove_range(&mut self, id: u64, from: u64, to: u64) -> Result<(), TreeStop> {
        let mut next = Some(from);
        while let Some(from) = next {
            let (volumes, then) = self.run(true, |change, volumes| {
                let row = change.lookup(volumes, id)?.expect("the volume is there");
                let tree = TreeRoot::<Mapping>::new(&KINDS[1], row.root);
                let (tree, next) = change.remove_range(tree, from..=to)?;
                Ok((change.insert(volumes, id, &VolumeRow { root: tree.at, ..row })?.0, next))
            })?;
            self.volumes = volumes;
            let end = then.map_or(to, |then| then - 1);
            self.model.get_mut(&id).unwrap().retain(|key, _| !(from..=end).contains(key));
            next = then;
        }
        Ok(())
    }

    /// A snapshot.
    pub fn share(&mut self, id: u64) -> Result<u64, TreeStop> {
        let new = self.next_volume;
        self.volumes = self.run(false, |change, volumes| {
            let row = change.lookup(volumes, id)?.expect("the volume is there");
            let tree = change.share(TreeRoot::<Mapping>::new(&KINDS[1], row.root))?;
            let row = VolumeRow { root: tree.at, time: new };
            Ok(change.insert(volumes, new, &row)?.0)
        })?;
        self.next_volume += 1;
        self.model.insert(new, self.model[&id].clone());
        Ok(new)
    }

    pub fn delete(&mut self, id: u64) -> Result<(), TreeStop> {
        self.volumes = self.run(true, |change, volumes| {
            let (volumes, row) = change.remove(volumes, id)?;
            let root = row.expect("the volume is there").root;
            change.delete(TreeRoot::<Mapping>::new(&KINDS[1], root))?;
            Ok(volumes)
        })?;
        self.model.remove(&id);
        Ok(())
    }

    pub fn reap(&mut self) -> Result<bool, TreeStop> {
        let reaped = self.run(true, |change, _| change.reap())?;
        assert_eq!(reaped.damaged, None);
        Ok(reaped.more)
    }

    /// What the trees say, and the data.
    pub fn dump(&mut self) -> Result<Model, TreeStop> {
        let volumes = self.volumes;
        let mut model = Model::new();
        for (id, row) in self.all_rows(volumes)? {
            let mut keys = BTreeMap::new();
            for (key, mapping) in self.all_rows(TreeRoot::<Mapping>::new(&KINDS[1], row.root))? {
                let zero = [0; BLOCK];
                let offset = mapping.block.wrapping_mul(BLOCK as u64);
                let block = self.data.content().get(&offset).cloned();
                self.data.reads.push((offset, block.clone()));
                let bytes = block.as_deref().unwrap_or(&zero);
                let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let is_whole = bytes.chunks(8).all(|word| word == stamp.to_le_bytes());
                keys.insert(key, if is_whole { stamp } else { u64::MAX });
            }
            model.insert(id, keys);
        }
        Ok(model)
    }

    pub fn all_rows<V: TreeValue>(&mut self, tree: TreeRoot<V>) -> Result<Vec<(u64, V)>, TreeStop> {
        let (mut rows, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            next = self.look(|trees| trees.rows(tree, from..=u64::MAX, &mut rows))?;
        }
        Ok(rows)
    }

    /// All that a check finds.
    pub fn check(&mut self, window: usize) -> Vec<TreeFinding> {
        let mut check = TreeCheck::new(&self.trees, ROOT_KINDS, window);
        let mut found = Vec::new();
        for _ in 0..10_000_000 {
            if check.is_done() {
                return found;
            }
            match check.step(&mut self.trees) {
                Ok(finding) => found.extend(finding),
                Err(TreeStop::Wait) => self.wait(),
                Err(stop) => panic!("{stop}"),
            }
        }
        panic!("the check does not end");
    }
}

/// One that no data has, that of lost commits neither.
fn stamp_after(model: &Model) -> u64 {
    1_000_000 + model.values().flat_map(|keys| keys.values()).max().unwrap_or(&0)
}
