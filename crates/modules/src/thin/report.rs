//! What a pool says of itself: how full it is, its volumes, and events when it fills up.

use thinwire_volume::WriterRecord;

use super::rows::{RowCut, TIME_MAX};
use super::{Core, PoolCanary};
use crate::meta::tree::NODE_BYTES;

/// Told when so many percent are in use, once each time that is reached.
const LEVELS_PERCENT: [u64; 2] = [80, 95];
/// A level can be reached again once so many percent less are in use: around it nobody is told all the time.
const SLACK_PERCENT: u64 = 5;
/// Told when so many percent of the times of a pool are over, which never come back.
const TIME_PERCENT: u64 = 90;

/// Something that has happened to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// So many percent of the data blocks are in use: 80 or 95.
    DataFull {
        /// The level that was reached.
        percent: u64,
    },
    /// Likewise of the metadata, of what is there for changes that take some.
    MetadataFull {
        /// The level that was reached.
        percent: u64,
    },
    /// So many percent of the snapshots, clones and rollbacks that there can ever be were made: 90. At the end none is made any more.
    TimeFull {
        /// The level that was reached.
        percent: u64,
    },
    /// Some of the room of deleted volumes does not come back, by now or for good: [`PoolReport::unreaped`] says why. Once, until all has come back.
    Unreaped,
}

/// How a pool stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of data blocks in use: what is being given back counts until it can be used again.
    pub data_used_bytes: u64,
    /// Bytes of all of them, but for those that are kept for labels of what stands on volumes.
    pub data_bytes: u64,
    /// Bytes of metadata in use: at most all.
    pub metadata_used_bytes: u64,
    /// Bytes of all metadata, but for what is kept for commits and for what gives back.
    pub metadata_bytes: u64,
    /// So many snapshots, clones and rollbacks can still be made.
    pub snapshots_left: u64,
    /// Deleted volumes are being given back.
    pub is_reaping: bool,
    /// Why some of them does not come back, by now or for good: a sentence.
    pub unreaped: Option<String>,
    /// Why there may be more volumes than these: a sentence; none if these are all.
    pub damaged: Option<String>,
    /// All volumes, by their numbers.
    pub volumes: Vec<VolumeReport>,
}

/// What is known of a volume. How much of it is its own is found out by [`PoolOp::Measure`](super::PoolOp::Measure).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeReport {
    /// Its number in the pool: no other's, now or later.
    pub volume: u64,
    /// What people call it; empty if that cannot be read.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of blocks that it refers to, others' among them.
    pub mapped_bytes: u64,
    /// What it is a snapshot or a clone of, if of anything; that may be deleted.
    pub origin: Option<u64>,
    /// It is a snapshot.
    pub is_read_only: bool,
    /// In seconds since 1970, for people; 0 if that is not known.
    pub created_at: u64,
    /// It is one of several snapshots that were cut as one: its incarnation is that of the cut. With whether it is there for good.
    pub cut: Option<bool>,
    /// Which life of its content this is.
    pub incarnation: u64,
    /// Somebody has it open.
    pub is_open: bool,
    /// Who may write it as an export, as is on record; none if nobody ever was.
    pub writer: Option<WriterRecord>,
}

/// Levels that were told of.
#[derive(Default)]
pub(super) struct Levels {
    pub news: Vec<PoolEvent>,
    /// Of the data and of the metadata, how many of the levels were reached.
    told: [usize; 2],
    has_told_time: bool,
}

impl Core {
    /// Data blocks, and nodes that changes may take: in use, and all.
    fn used(&self) -> [(u64, u64); 2] {
        let [nodes, blocks] = self.trees.free();
        let [nodes_total, blocks_total] = self.trees.total();
        let reserved = match self.canary {
            PoolCanary::LevelsOfAll => 0,
            _ => self.trees.reserved(),
        };
        let of = |total: u64, free: u64, reserved: u64| {
            let used = total.saturating_sub(free);
            (used.min(total - reserved), total - reserved)
        };
        let kept = self.kept_blocks.min(blocks_total);
        [of(blocks_total, blocks, kept), of(nodes_total, nodes, reserved)]
    }

    /// Tells of levels that were reached since the last look.
    pub(super) fn look_at_levels(&mut self) {
        let (time, percent) = (self.head.time, TIME_PERCENT);
        if time * 100 >= TIME_MAX * percent && !self.report.has_told_time {
            self.report.has_told_time = true;
            self.report.news.push(PoolEvent::TimeFull { percent });
        }
        // What only waits for commits, and to be discarded, is there for whoever needs it.
        let [nodes, blocks] = self.trees.kept();
        let kept = [blocks + self.commits.freed_blocks, nodes];
        for (which, (used, total)) in self.used().into_iter().enumerate() {
            let used = used.saturating_sub(kept[which]);
            let of = |slack: u64| {
                let reached = |percent: &&u64| used * 100 >= total * (**percent - slack);
                LEVELS_PERCENT.iter().filter(reached).count()
            };
            let (reached, kept) = (of(0), of(SLACK_PERCENT));
            let told = self.report.told[which].min(kept);
            for &percent in &LEVELS_PERCENT[told.min(reached)..reached] {
                self.report.news.push(match which {
                    0 => PoolEvent::DataFull { percent },
                    _ => PoolEvent::MetadataFull { percent },
                });
            }
            self.report.told[which] = told.max(reached);
        }
    }

    /// See [`PoolReport`].
    pub(super) fn data_bytes(&self) -> u64 {
        let [(_, blocks), _] = self.used();
        blocks << self.head.block_shift
    }

    pub(super) fn make_report(&mut self) -> PoolReport {
        let [(blocks, _), (nodes, nodes_total)] = self.used();
        let shift = self.head.block_shift;
        let node_bytes = NODE_BYTES as u64;
        let report = |(&volume, entry): (&u64, &super::Entry)| VolumeReport {
            volume,
            name: entry.name.clone(),
            bytes: entry.row.bytes,
            mapped_bytes: entry.row.mapped << shift,
            origin: (entry.row.origin != 0).then_some(entry.row.origin),
            is_read_only: entry.row.is_read_only,
            created_at: entry.row.created_at,
            cut: (entry.row.cut != RowCut::No).then_some(entry.row.cut == RowCut::Kept),
            incarnation: entry.row.incarnation,
            is_open: entry.slot.is_some(),
            writer: self.writer_of(volume).map(|kept| kept.record),
        };
        PoolReport {
            block_bytes: self.head.block_bytes(),
            data_used_bytes: blocks << shift,
            data_bytes: self.data_bytes(),
            metadata_used_bytes: nodes * node_bytes,
            metadata_bytes: nodes_total * node_bytes,
            snapshots_left: TIME_MAX - 1 - self.head.time,
            is_reaping: self.ops.is_reaping() && !self.ops.waits_to_reap(),
            unreaped: self.ops.unreaped.as_ref().map(ToString::to_string),
            damaged: self.ops.damaged.as_ref().map(ToString::to_string),
            volumes: self.entries.iter().map(report).collect(),
        }
    }
}
