//! Opening: labels that fit, and the table of volumes, which is read into memory.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;

use std::cell::RefCell;
use thinwire_buffer::Time;
use thinwire_volume::{Slab, Volume};

use super::commit::Commits;
use super::growth::Growth;
use super::head::nodes_in;
use super::ops::{Ops, PoolError};
use super::report::Levels;
use super::rows::{
    BLOCKS_MAX, KINDS, NameRow, VolumeRow, WriterRow, names_at, volumes_at, writers_at,
};
use super::trim::Trim;
use super::writers::Writer;
use super::{
    Core, ENDS, Entry, NAME, PoolCanary, PoolConfig, PoolHead, PoolPart, THIN_MODULE, TREE_TOKEN,
    ThinPool, VOLUMES_MAX,
};
use crate::ModuleError;
use crate::meta::tree::{NODE_BYTES, TreeFault, TreeStop, Trees, TreesConfig};

/// How far a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Volumes are read, from that one on.
    Volumes(u64),
    /// Likewise their names.
    Names(u64),
    /// And the records of their writers.
    Writers(u64),
    Serving,
}

/// Why parts make no pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolOpenError {
    /// They do not fit together, or one does not fit.
    Unfit(ModuleError),
    /// What the label of the metadata says of its trees cannot be gone by.
    Trees(TreeFault),
}

impl fmt::Display for PoolOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolOpenError::Unfit(error) => error.fmt(f),
            PoolOpenError::Trees(fault) => write!(f, "{NAME}: {fault}"),
        }
    }
}

impl std::error::Error for PoolOpenError {}

fn unfit(part: usize, why: impl Into<String>) -> PoolOpenError {
    PoolOpenError::Unfit(ModuleError::of_child(NAME, part, why))
}

/// Whether a part is the one of that role.
fn check_part(role: usize, part: &PoolPart, config: &PoolConfig) -> Result<(), PoolOpenError> {
    let (label, geometry) = (&part.label, part.volume.geometry());
    let why = if *label.module != THIN_MODULE {
        format!("is part of a {}, by its label", label.module.name)
    } else if usize::from(label.role) != role {
        format!("is part {}, by its label", label.role)
    } else if geometry.bytes < label.data_end() {
        format!("has {} bytes, and its data ends at {}", geometry.bytes, label.data_end())
    } else if !config.read_only && (!label.may_write() || geometry.features.read_only) {
        "is read-only: open the pool for reading, or give a part that may be written".into()
    } else if role == 1
        && (geometry.block_bytes as usize > NODE_BYTES
            || (geometry.io_bytes_max as usize) < NODE_BYTES)
    {
        format!("does not take {NODE_BYTES} bytes in one I/O")
    } else {
        return Ok(());
    };
    Err(unfit(role, why))
}

impl ThinPool {
    /// Of its data and its metadata. Nothing is read or written before it is polled.
    ///
    /// # Errors
    /// They do not fit, or the label of the metadata says what cannot be.
    pub fn open(
        data: PoolPart,
        metadata: PoolPart,
        config: PoolConfig,
    ) -> Result<Self, PoolOpenError> {
        for (role, part) in [&data, &metadata].into_iter().enumerate() {
            check_part(role, part, &config)?;
        }
        if data.label.whole != metadata.label.whole {
            return Err(unfit(1, "is of another pool than the data"));
        }
        let discards = data.volume.geometry().features.discard && !config.read_only;
        let (whole, data_start) = (data.label.whole, data.label.data_start);
        let trees = TreesConfig {
            cache_nodes: config.cache_nodes,
            open_nodes_max: config.open_nodes_max,
            keeps_freed: discards,
            ..TreesConfig::new(&KINDS, TREE_TOKEN, &config.pool)
        };
        let nodes = nodes_in(metadata.label.part().bytes);
        let label = metadata.label.clone();
        let (mut trees, rest) =
            Trees::open(metadata.labels, metadata.label, trees).map_err(PoolOpenError::Trees)?;
        let head = PoolHead::decode(&rest)
            .map_err(|why| PoolOpenError::Trees(TreeFault::State { why }))?;
        let geometry = data.volume.geometry();
        let state = *trees.committed();
        let room = data.label.part().bytes >> head.block_shift;
        if state.blocks.total > room {
            let why = format!(
                "has room for {room} blocks, and the metadata counts {}",
                state.blocks.total
            );
            return Err(unfit(0, why));
        }
        // What the parts have grown by since is the pool's from now on.
        if !config.read_only {
            let nodes = nodes.max(state.nodes.total);
            let blocks = room.min(BLOCKS_MAX).max(state.blocks.total);
            trees.grow(nodes, blocks).map_err(|stop| unfit(1, stop.to_string()))?;
        }
        if u64::from(geometry.block_bytes) > head.block_bytes()
            || u64::from(geometry.io_bytes_max) < head.block_bytes()
        {
            return Err(unfit(
                0,
                format!("does not take a block of {} bytes in one I/O", head.block_bytes()),
            ));
        }
        let zeroes = config.pool.get_zeroed(head.block_bytes() as usize).freeze();
        let mut commits = Commits::new();
        if trees.has_changes() {
            commits.on_change(Time::ZERO);
        }
        let core = Core {
            canary: PoolCanary::None,
            events_seen: [data.volume.events(), metadata.volume.events()],
            data: data.volume,
            metadata: metadata.volume,
            whole,
            data_start,
            volumes: volumes_at(state.roots[0]),
            names: names_at(state.roots[1]),
            writers: writers_at(state.roots[2]),
            writers_found: Vec::new(),
            odd_writers: Vec::new(),
            lost_writers: None,
            trees,
            head,
            kept_blocks: 0,
            entries: BTreeMap::new(),
            phase: Phase::Volumes(0),
            slots: Slab::new(),
            woken: Vec::new(),
            jobs: Slab::new(),
            users_ios: 0,
            subs: Slab::new(),
            winds_up: false,
            is_winding_parts: false,
            ends_left: ENDS,
            marks_end: false,
            ripe: VecDeque::new(),
            waiting: Vec::new(),
            stalled: Vec::new(),
            syncing: Vec::new(),
            granted: Vec::new(),
            inbox: Vec::new(),
            found: Vec::new(),
            runs: Vec::new(),
            spare_jobs: Vec::new(),
            zeroes,
            commits,
            growth: Growth::new(data.labels, data.label),
            trim: Trim::new(&head, &label, state.generation == 0, discards && !config.repairs),
            ops: Ops::new(config.read_only, config.repairs),
            report: Levels::default(),
            now: Time::ZERO,
            has_sent: false,
            is_calm: false,
            config,
        };
        Ok(ThinPool(Rc::new(RefCell::new(core))))
    }
}

impl Core {
    /// Goes on reading the table of volumes. True if it came on.
    pub(super) fn step_opening(&mut self) -> bool {
        let stop = match self.phase {
            Phase::Volumes(from) => {
                let mut rows = Vec::<(u64, VolumeRow)>::new();
                let next = self.trees.rows(self.volumes, from..=u64::MAX, &mut rows);
                let rows = rows.into_iter().take(VOLUMES_MAX - self.entries.len());
                self.entries.extend(rows.map(|(volume, row)| {
                    // What has no name by the other tree has one all the same.
                    (
                        volume,
                        Entry {
                            row,
                            name: String::new(),
                            slot: None,
                            changed_in: 0,
                            added_in: 0,
                            writer: Writer::None,
                        },
                    )
                }));
                next.map(|next| self.phase = next.map_or(Phase::Names(0), Phase::Volumes))
            }
            Phase::Names(from) => {
                let mut rows = Vec::<(u64, NameRow)>::new();
                let next = self.trees.rows(self.names, from..=u64::MAX, &mut rows);
                for (volume, row) in rows {
                    if let Some(entry) = self.entries.get_mut(&volume) {
                        row.as_str().clone_into(&mut entry.name);
                    }
                }
                next.map(|next| self.phase = next.map_or(Phase::Writers(0), Phase::Names))
            }
            Phase::Writers(from) => {
                let mut rows = Vec::<(u64, WriterRow)>::new();
                let next = self.trees.rows(self.writers, from..=u64::MAX, &mut rows);
                self.writers_found.append(&mut rows);
                if let Ok(None) = next {
                    self.take_writers();
                }
                next.map(|next| self.phase = next.map_or(Phase::Serving, Phase::Writers))
            }
            Phase::Serving => return false,
        };
        match stop {
            Ok(()) => {}
            Err(TreeStop::Wait) => return false,
            // What is there is served; what may be there is not made anew.
            Err(stop) => {
                self.phase = match (self.phase, stop) {
                    (Phase::Writers(_), TreeStop::Fault(fault)) => {
                        self.lose_writers(fault);
                        Phase::Serving
                    }
                    (phase, stop) => {
                        if let TreeStop::Fault(fault) = stop {
                            self.ops.damaged.get_or_insert(fault);
                        }
                        match phase {
                            Phase::Volumes(_) => Phase::Names(0),
                            Phase::Names(_) => Phase::Writers(0),
                            _ => Phase::Serving,
                        }
                    }
                };
            }
        }
        if self.phase == Phase::Serving {
            self.count_kept();
        }
        true
    }

    pub(super) fn check_ready(&self) -> Result<(), PoolError> {
        match self.phase {
            Phase::Serving => Ok(()),
            _ => Err(PoolError::NotReady),
        }
    }
}
