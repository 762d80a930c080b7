//! A pool that is in use becomes as large as its parts have become (rule 24): both labels say so first, by another opening
//! ([`WholeOpening`]), and only then nodes and blocks are counted, from the next commit on. Meanwhile no commit begins, since that writes a label, too; all else goes on.

use std::collections::VecDeque;
use std::fmt;

use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Volume};

use super::head::nodes_in;
use super::opening::Phase;
use super::rows::BLOCKS_MAX;
use super::{Core, PoolCanary, PoolHead, ThinPool};
use crate::meta::tree::{NODE_BYTES, TreeState};
use crate::meta::{
    Assembly, FoundPart, Label, LabelError, Labels, OpeningError, WholeOpening, WholeSizes,
};

/// Why a pool does not grow. Nothing was written, unless it has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolGrowthError {
    /// It is still being read, or ends.
    NotReady,
    /// It is open for reading.
    ReadOnly,
    /// Neither of its parts has room for a block, or a node, more.
    NoRoom,
    /// Its data has room for more, and that is less than a block.
    LessThanABlock {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// It has as many blocks as a pool can have, and its metadata no room for more.
    MostBlocks,
    /// It is growing.
    Busy,
    /// Nothing is changed any more: whether it has grown is found out when it is opened the next time.
    Stopped {
        /// What has failed.
        why: String,
    },
}

impl fmt::Display for PoolGrowthError {
    /// A sentence whose subject is the pool.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolGrowthError::NotReady => {
                f.write_str("is still being read, or about to end: try again")
            }
            PoolGrowthError::ReadOnly => f.write_str("is open for reading only"),
            PoolGrowthError::NoRoom => {
                f.write_str("has parts of which none has room for more: make those larger first")
            }
            PoolGrowthError::LessThanABlock { block_bytes } => write!(
                f,
                "has room for less than a block more, which has {block_bytes} bytes: make the part with its data larger by that first"
            ),
            PoolGrowthError::MostBlocks => write!(
                f,
                "has as many blocks as a pool can have, {BLOCKS_MAX}, and its metadata has no room for more: make another pool"
            ),
            PoolGrowthError::Busy => f.write_str("is growing: try again"),
            PoolGrowthError::Stopped { why } => write!(
                f,
                "is not changed any more until it is opened again, which finds out whether it has grown: {why}"
            ),
        }
    }
}

impl std::error::Error for PoolGrowthError {}

/// How many bytes both parts have, as their labels say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// For blocks of volumes.
    pub data_bytes: u64,
    /// For nodes of trees.
    pub metadata_bytes: u64,
}

/// What a pool may count of its parts, and what it counts by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRoom {
    /// What is counted by now: what the labels say, unless a growth was cut off behind them.
    pub before: PoolSizes,
    /// What is counted from then on.
    pub behind: PoolSizes,
    /// What both labels say first; none if they say so already.
    pub sizes: Option<WholeSizes>,
}

impl PoolRoom {
    /// Of the pool whose metadata has this label, and that nobody has open; `volumes` as for [`Assembly::with_room`].
    ///
    /// # Errors
    /// It has no room, or its label says what cannot be: [`PoolGrowthError::Stopped`].
    pub fn find(
        whole: &Assembly,
        metadata: &Label,
        volumes: &[(u64, u32)],
    ) -> Result<Self, PoolGrowthError> {
        let stopped = |why: String| PoolGrowthError::Stopped { why };
        let (state, rest) =
            TreeState::decode(&metadata.state).map_err(|fault| stopped(fault.to_string()))?;
        let head = PoolHead::decode(rest).map_err(|why| stopped(why.into()))?;
        let counted = [state.nodes.total, state.blocks.total];
        room_of(whole, (counted, head.block_shift), volumes)
    }
}

/// Nodes and blocks that parts of these sizes have room for; none is less than there are.
fn counts_in(sizes: &WholeSizes, ([nodes, blocks], shift): ([u64; 2], u8)) -> [u64; 2] {
    let room = (sizes.part_bytes[0] >> shift).min(BLOCKS_MAX);
    [nodes_in(sizes.part_bytes[1]).max(nodes), room.max(blocks)]
}

/// Of a pool that counts so many nodes and blocks, of two to the power of that many bytes.
pub(super) fn room_of(
    whole: &Assembly,
    counted: ([u64; 2], u8),
    volumes: &[(u64, u32)],
) -> Result<PoolRoom, PoolGrowthError> {
    let ([nodes, blocks], shift) = counted;
    let (labels, larger) = (whole.sizes(), whole.with_room(volumes));
    let has = counts_in(&labels, counted);
    let has_more = larger.is_some();
    let sizes = larger.filter(|sizes| counts_in(sizes, counted) != has);
    if sizes.is_none() && has == [nodes, blocks] {
        return Err(match has_more {
            _ if blocks >= BLOCKS_MAX => PoolGrowthError::MostBlocks,
            true => PoolGrowthError::LessThanABlock { block_bytes: 1 << shift },
            false => PoolGrowthError::NoRoom,
        });
    }
    let behind = sizes.as_ref().unwrap_or(&labels);
    let behind =
        PoolSizes { data_bytes: behind.part_bytes[0], metadata_bytes: behind.part_bytes[1] };
    let said = |part: usize, units: u64, unit_bytes: u64| match has[1 - part] == units {
        true => labels.part_bytes[part],
        false => units * unit_bytes,
    };
    let before = PoolSizes {
        data_bytes: said(0, blocks, 1 << shift),
        metadata_bytes: said(1, nodes, NODE_BYTES as u64),
    };
    Ok(PoolRoom { before, behind, sizes })
}

#[derive(Default)]
enum Step {
    #[default]
    Idle,
    /// It begins as soon as no commit is under way.
    Wanted {
        id: [u8; 16],
        sizes: WholeSizes,
    },
    Writing {
        opening: Box<WholeOpening>,
        sizes: WholeSizes,
    },
}

/// What becomes of the labels of both parts.
pub(super) struct Growth {
    /// Those of the data part; none while they are being written. The trees have the others.
    data: Option<(Labels, Label)>,
    step: Step,
    /// By which they are written beside all else that goes to the parts.
    doors: [Door; 2],
    ended: VecDeque<Result<PoolSizes, PoolGrowthError>>,
}

impl Growth {
    /// With the labels of the data part.
    pub fn new(labels: Labels, label: Label) -> Self {
        Growth {
            data: Some((labels, label)),
            step: Step::Idle,
            doors: Default::default(),
            ended: VecDeque::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle)
    }

    /// A completion of a part that has the token of labels, and is not the trees'.
    pub fn on_completion(&mut self, part: usize, completion: Completion) {
        self.doors[part].done.push(completion);
    }
}

/// I/Os of labels that wait to be handed down, and completions that were brought up: a volume, for the opening.
#[derive(Default)]
struct Door {
    geometry: Option<Geometry>,
    identity: Identity,
    waiting: Vec<Io>,
    done: Vec<Completion>,
}

impl Door {
    fn of(part: &dyn Volume) -> Self {
        let (geometry, identity) = (Some(part.geometry()), part.identity());
        Door { geometry, identity, ..Door::default() }
    }
}

impl Volume for Door {
    fn geometry(&self) -> Geometry {
        self.geometry.expect("it is that of a part")
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn submit(&mut self, io: Io) {
        self.waiting.push(io);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
    }

    fn outstanding(&self) -> usize {
        self.waiting.len() + self.done.len()
    }
}

/// The pool, as the labels of its data and of its metadata say.
pub(super) fn whole_of(data: &Label, metadata: &Label) -> Assembly {
    let part = |(place, label): (usize, &Label)| FoundPart {
        place,
        data_start: label.data_start,
        data_bytes: label.part().bytes,
        made_bytes: label.made_with(),
    };
    Assembly {
        module: data.module,
        options: data.options.clone(),
        name: data.name.clone(),
        uuid: data.whole,
        bytes: data.whole_bytes,
        opening: data.opening,
        openings: data.openings,
        parts: [data, metadata].into_iter().enumerate().map(part).collect(),
        writer: data.writer.clone(),
    }
}

impl ThinPool {
    /// Begins to grow by what the parts have room for now. `id` is a random number, drawn for this. How it ends is said by
    /// [`ThinPool::poll_growth`]. Volumes keep their sizes.
    ///
    /// # Errors
    /// See [`PoolGrowthError`]: nothing has begun.
    pub fn begin_growth(&self, id: [u8; 16]) -> Result<(), PoolGrowthError> {
        self.0.borrow_mut().begin_growth(id)
    }

    /// How a growth that was begun has ended, once it has: both labels say that, durably, or nothing is changed any more.
    pub fn poll_growth(&self) -> Option<Result<PoolSizes, PoolGrowthError>> {
        self.0.borrow_mut().growth.ended.pop_front()
    }

    /// What the labels say; none while they are being written.
    pub fn sizes(&self) -> Option<PoolSizes> {
        let core = &mut *self.0.borrow_mut();
        let data_bytes = core.growth.data.as_ref()?.1.part().bytes;
        Some(PoolSizes { data_bytes, metadata_bytes: core.trees.label_mut().part().bytes })
    }
}

impl Core {
    fn begin_growth(&mut self, id: [u8; 16]) -> Result<(), PoolGrowthError> {
        if let Some(stopped) = &self.commits.stopped {
            return Err(PoolGrowthError::Stopped { why: stopped.why.clone() });
        }
        if self.phase != Phase::Serving || self.winds_up {
            return Err(PoolGrowthError::NotReady);
        }
        if self.config.read_only {
            return Err(PoolGrowthError::ReadOnly);
        }
        let (Some((_, data)), true) = (&self.growth.data, self.growth.is_idle()) else {
            return Err(PoolGrowthError::Busy);
        };
        let volumes = [&*self.data, &*self.metadata].map(|part| {
            let geometry = part.geometry();
            (geometry.bytes, geometry.block_bytes)
        });
        let whole = whole_of(data, self.trees.label_mut());
        let counted = self.counted();
        // What the labels say was counted when it was opened.
        let room = room_of(&whole, counted, &volumes)?;
        let sizes = room.sizes.ok_or(PoolGrowthError::NoRoom)?;
        if self.canary == PoolCanary::CountsEarly {
            let [nodes, blocks] = counts_in(&sizes, counted);
            self.trees.grow(nodes, blocks).expect("no commit is under way");
            self.commits.on_change(self.now);
            self.commits.is_wanted = true;
            self.step_commit();
        }
        self.growth.step = Step::Wanted { id, sizes };
        self.settle();
        Ok(())
    }

    /// Nodes and blocks by now, and two to the power of how many bytes a block has.
    fn counted(&self) -> ([u64; 2], u8) {
        (self.trees.total(), self.head.block_shift)
    }

    /// Goes on with the labels.
    #[inline]
    pub(super) fn step_growth(&mut self) {
        // As nearly always.
        if !self.growth.is_idle() {
            self.write_labels();
        }
    }

    fn write_labels(&mut self) {
        match std::mem::take(&mut self.growth.step) {
            Step::Idle => {}
            Step::Wanted { id, sizes } => {
                if let Some(stopped) = &self.commits.stopped {
                    let why = stopped.why.clone();
                    return self.growth.ended.push_back(Err(PoolGrowthError::Stopped { why }));
                }
                let Some(metadata) = self.trees.lend_labels() else {
                    self.growth.step = Step::Wanted { id, sizes };
                    return;
                };
                let data = self.growth.data.take().expect("nobody writes them");
                let whole = whole_of(&data.1, &metadata.1);
                let mut opening = WholeOpening::new(&whole, id, vec![data, metadata]);
                opening.grow(sizes.clone());
                self.growth.doors = [&*self.data, &*self.metadata].map(Door::of);
                opening.begin(&mut self.growth.doors);
                self.growth.step = Step::Writing { opening: Box::new(opening), sizes };
                self.hand_down_labels();
            }
            Step::Writing { mut opening, sizes } => {
                let ended = opening.turn(&mut self.growth.doors);
                self.hand_down_labels();
                match ended {
                    None => self.growth.step = Step::Writing { opening, sizes },
                    Some(ended) => self.on_labels(*opening, &sizes, ended),
                }
            }
        }
    }

    fn hand_down_labels(&mut self) {
        let parts = [&mut *self.data, &mut *self.metadata];
        for (door, part) in self.growth.doors.iter_mut().zip(parts) {
            for io in door.waiting.drain(..) {
                self.has_sent = true;
                part.submit(io);
            }
        }
    }

    /// Both labels were written, or one could not be.
    fn on_labels(
        &mut self,
        opening: WholeOpening,
        sizes: &WholeSizes,
        ended: Result<(), OpeningError>,
    ) {
        let mut labels = opening.into_labels();
        let (Some((of_metadata, mut label)), Some(data)) = (labels.pop(), labels.pop()) else {
            unreachable!("there are two")
        };
        if self.canary == PoolCanary::KeepsOldLabel {
            label = self.trees.label_mut().clone();
        }
        self.growth.data = Some(data);
        self.trees.take_labels_back(of_metadata, label);
        if let Err(OpeningError { part, error }) = ended {
            let why = format!(
                "the label of part {part} (counted from 0) could not be written: it {error}"
            );
            match (part, &error) {
                (0, LabelError::Unflushed(error)) => {
                    self.stop_at_data_loss(error.kind, why.clone())
                }
                _ => self.stop(ErrorKind::Io, why.clone()),
            }
            return self.growth.ended.push_back(Err(PoolGrowthError::Stopped { why }));
        }
        let [nodes, blocks] = counts_in(sizes, self.counted());
        if self.trees.grow(nodes, blocks).is_err() {
            unreachable!("no commit has begun");
        }
        self.commits.on_change(self.now);
        self.commits.is_wanted = true;
        let [data_bytes, metadata_bytes] = [sizes.part_bytes[0], sizes.part_bytes[1]];
        self.growth.ended.push_back(Ok(PoolSizes { data_bytes, metadata_bytes }));
        self.wake_stalled();
    }
}
