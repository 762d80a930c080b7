//! What is asked of a pool, by a command that has it for itself or over the control socket of an attachment that has it; and how it is shown.

use serde::{Deserialize, Serialize};
use thinwire_modules::thin::{PoolError, PoolOp, PoolReport, VolumeReport};
use thinwire_runtime::clock::entropy;

use crate::mirrored::seconds_now;

/// Something that is done to a volume of a pool, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "lowercase", deny_unknown_fields)]
pub enum PoolRequest {
    /// Nothing: how it stands is told.
    Show {
        /// Also how much each volume has for itself, which takes a while.
        #[serde(default)]
        space: bool,
    },
    /// A new volume of so many bytes.
    Create {
        /// What it is called.
        volume: String,
        /// Its size.
        bytes: u64,
    },
    /// What it is now, read-only.
    Snapshot {
        /// Of what.
        volume: String,
        /// What the snapshot is called.
        name: String,
    },
    /// What it is now, to be written.
    Clone {
        /// Of what.
        volume: String,
        /// What the clone is called.
        name: String,
    },
    /// It is again what that snapshot is.
    Rollback {
        /// The volume.
        volume: String,
        /// The snapshot.
        to: String,
    },
    /// It is no more.
    Delete {
        /// The volume.
        volume: String,
    },
    /// It has so many bytes from then on.
    Grow {
        /// The volume.
        volume: String,
        /// Its size.
        bytes: u64,
    },
}

impl PoolRequest {
    /// The operation, in a pool that stands like that, and what is said when it was done. None if nothing is to be done.
    ///
    /// # Errors
    /// There is no such volume: a sentence.
    pub fn op(&self, report: &PoolReport) -> Result<Option<(PoolOp, String)>, String> {
        let number = |name: &str| match report.volumes.iter().find(|volume| volume.name == name) {
            Some(volume) => Ok(volume.volume),
            None => {
                Err(format!("the pool has no volume `{name}`: `thinwire volume show` lists them"))
            }
        };
        let (at, incarnation) = (seconds_now(), entropy());
        Ok(Some(match self {
            PoolRequest::Show { .. } => return Ok(None),
            PoolRequest::Create { volume, bytes } => (
                PoolOp::Create { name: volume.clone(), bytes: *bytes, incarnation, at },
                format!("made {volume}: {bytes} bytes"),
            ),
            PoolRequest::Snapshot { volume, name } => (
                PoolOp::Snapshot { volume: number(volume)?, name: name.clone(), incarnation, at },
                format!("made {name}: a snapshot of {volume}"),
            ),
            PoolRequest::Clone { volume, name } => (
                PoolOp::Clone { volume: number(volume)?, name: name.clone(), incarnation, at },
                format!("made {name}: a clone of {volume}"),
            ),
            PoolRequest::Rollback { volume, to } => (
                PoolOp::RollBack { volume: number(volume)?, to: number(to)?, incarnation },
                format!("{volume} is what {to} is"),
            ),
            PoolRequest::Delete { volume } => {
                (PoolOp::Delete { volume: number(volume)? }, format!("deleted {volume}"))
            }
            PoolRequest::Grow { volume, bytes } => (
                PoolOp::Resize { volume: number(volume)?, bytes: *bytes },
                format!("{volume} has {bytes} bytes"),
            ),
        }))
    }
}

/// Why something was not done to a pool that stands like that, with the names of its volumes, and what to do.
pub fn describe(error: &PoolError, report: &PoolReport) -> String {
    let name = |volume: u64| {
        let found = report.volumes.iter().find(|of| of.volume == volume);
        found.map_or_else(|| format!("volume {volume}"), |of| format!("`{}`", of.name))
    };
    match *error {
        PoolError::IsOpen { volume } => format!(
            "{} is in use, and only what is not can be deleted or rolled back: detach it, or end the target that exports it, first. A clone of a \
             snapshot can be made and used at once",
            name(volume)
        ),
        PoolError::NameTaken { volume } => {
            format!(
                "a volume of the pool is called that already ({}): use another name",
                name(volume)
            )
        }
        PoolError::NoVolume { volume } => format!("the pool has no {} any more", name(volume)),
        PoolError::NoSnapshot { volume } => {
            format!("{} is no snapshot of that volume, nor of a snapshot of it", name(volume))
        }
        ref other => other.to_string(),
    }
}

/// How a pool stands, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of data there are.
    pub data_bytes: u64,
    /// Of those in use.
    pub data_used_bytes: u64,
    /// Bytes of metadata there are.
    pub metadata_bytes: u64,
    /// Of those in use.
    pub metadata_used_bytes: u64,
    /// So many snapshots, clones and rollbacks can still be made.
    #[serde(default)]
    pub snapshots_left: Option<u64>,
    /// Why some of the room of deleted volumes does not come back, for people; null if it does.
    #[serde(default)]
    pub unreaped: Option<String>,
    /// Why there may be more volumes than these, for people; null if these are all.
    pub damaged: Option<String>,
    /// In the order in which they were made.
    pub volumes: Vec<PoolVolumeStatus>,
}

/// A volume of a pool, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolVolumeStatus {
    /// What it is called.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Of blocks that it refers to, others' among them.
    pub mapped_bytes: u64,
    /// Of those the ones that nobody else has; null if that was not asked for.
    pub own_bytes: Option<u64>,
    /// And the ones that others have, too: what is mapped, less its own; null if that was not asked for, and from a process of an earlier version.
    #[serde(default)]
    pub shared_bytes: Option<u64>,
    /// What it is a snapshot or a clone of, while that is there.
    pub origin: Option<String>,
    /// It is a snapshot.
    pub is_snapshot: bool,
    /// In seconds since 1970; 0 if that is not known.
    pub created_at: u64,
    /// Who is on record as its writer as an export; null if nobody ever was.
    #[serde(default)]
    pub writer: Option<PoolWriterStatus>,
}

/// Who may write a volume of a pool as an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWriterStatus {
    /// Raised by each writer.
    pub generation: u64,
    /// What it is called; null if the last one has let go.
    pub name: Option<String>,
}

impl PoolStatus {
    /// Of a pool that reports this; `own` has what each volume has for itself, or nothing.
    pub fn of(report: &PoolReport, own: &[Option<u64>]) -> Self {
        // They are in that order, and there may be thousands.
        let name = |number| {
            let at = report.volumes.binary_search_by_key(&number, |v| v.volume).ok()?;
            Some(report.volumes[at].name.clone())
        };
        let own = |nth: usize| own.get(nth).copied().flatten();
        let volume = |(nth, volume): (usize, &VolumeReport)| PoolVolumeStatus {
            name: volume.name.clone(),
            bytes: volume.bytes,
            mapped_bytes: volume.mapped_bytes,
            own_bytes: own(nth),
            // Of one in use its own was counted later, and may have grown.
            shared_bytes: own(nth).map(|own| volume.mapped_bytes.saturating_sub(own)),
            origin: volume.origin.and_then(name),
            is_snapshot: volume.is_read_only,
            created_at: volume.created_at,
            writer: volume.writer.map(|record| PoolWriterStatus {
                generation: record.generation,
                name: record.is_held().then(|| record.name.as_str().to_owned()),
            }),
        };
        PoolStatus {
            block_bytes: report.block_bytes,
            data_bytes: report.data_bytes,
            data_used_bytes: report.data_used_bytes,
            metadata_bytes: report.metadata_bytes,
            metadata_used_bytes: report.metadata_used_bytes,
            snapshots_left: Some(report.snapshots_left),
            unreaped: report.unreaped.clone(),
            damaged: report.damaged.clone(),
            volumes: report.volumes.iter().enumerate().map(volume).collect(),
        }
    }
}
