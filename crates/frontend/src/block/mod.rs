//! A volume as a block device (`attach URI --block`), in one of two ways:
//!
//! * `ublk/`: by the kernel's driver for block devices in user space
//! * `looped/`: a loop device over the FUSE file, where that is not to be had
//!
//! And what both need:
//!
//! * `usage.rs`: who uses the device
//! * `post.rs`: what is said to the thread that keeps the device; `ticker.rs`: when it is looked for answers; `question.rs`: what was asked
//!   on one turn and is answered on a later one
//! * `process.rs`: what a process that carries a disk owes to a machine short of memory; `ballast.rs`: what it throws off when
//!   that machine stands still

mod ballast;
mod error;
mod looped;
mod post;
mod process;
mod question;
mod ticker;
mod ublk;
mod usage;

use std::path::{Path, PathBuf};

use thinwire_buffer::Pool;
use thinwire_volume::Geometry;

pub use error::BlockError;
pub use process::{Refusal, mount_apart, outrank_others, prepare_process, touch_ahead};

use crate::Face;
use looped::LoopFace;
use ublk::UblkFace;

/// What to attach.
#[derive(Clone, Debug)]
pub struct BlockConfig {
    /// Where the file under a loop device is mounted, as `NAME.disk`. Absolute; must exist.
    pub run_dir: PathBuf,
    /// The attachment's name.
    pub name: String,
    /// Shown as the source of that mount, for example the volume's URI.
    pub source: String,
    /// The volume's shape. The size may grow later; the device follows.
    pub geometry: Geometry,
    /// The device's logical block: 512 or 4096, the volume's own.
    pub block_bytes: u32,
    /// Its machine depends on it: it swaps there, or has its root there.
    pub is_carrying: bool,
    /// No writes, whatever the volume could do.
    pub read_only: bool,
}

/// How a block device can be made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockChoice {
    /// The way.
    pub backend: BlockBackend,
    /// Why this one, for the log.
    pub why: String,
}

/// Ways to make a block device of a volume in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockBackend {
    /// The kernel's driver for that: `/dev/ublkbN`. Nothing of the kernel allocates memory for an I/O, and data is copied once.
    Ublk,
    /// A loop device over a FUSE file. Can grow with any kernel.
    Loop,
}

/// Chooses how to make a block device: as is `wanted`, else by ublk where the kernel has one that will do, else a loop
/// device over a FUSE file.
///
/// # Errors
/// What is missing, with the remedy.
pub fn choose_block_backend(wanted: Option<BlockBackend>) -> Result<BlockChoice, BlockError> {
    let choice = |backend, why: String| Ok(BlockChoice { backend, why });
    let on_loop = |why: &dyn std::fmt::Display| format!("a loop device over a FUSE file: {why}");
    if wanted == Some(BlockBackend::Loop) {
        return choice(BlockBackend::Loop, on_loop(&"as asked for"));
    }
    match ublk::check() {
        Ok(()) => choice(BlockBackend::Ublk, "a device of ublk".to_owned()),
        Err(e) if wanted.is_some() => Err(e),
        Err(e) => choice(BlockBackend::Loop, on_loop(&e)),
    }
}

/// Whether an attachment of that name could have a device now, as far as that can be told without making it.
///
/// # Errors
/// As [`attach`].
pub fn check(wanted: Option<BlockBackend>, run_dir: &Path, name: &str) -> Result<(), BlockError> {
    match choose_block_backend(wanted)?.backend {
        BlockBackend::Ublk => Ok(()),
        BlockBackend::Loop => LoopFace::check(run_dir, name),
    }
}

/// Begins to make the device as is `wanted`, which takes a few turns: [`Face::ready`] tells when it is done, or why it cannot
/// be. If nothing is, and ublk refuses at once, a loop device is taken. To be called on the thread that will turn the face.
///
/// # Errors
/// See [`BlockError`]; nothing is left behind then.
pub fn attach(
    wanted: Option<BlockBackend>,
    config: BlockConfig,
    pool: Pool,
) -> Result<Box<dyn Face>, BlockError> {
    let (bytes, block_bytes) = (config.geometry.bytes, config.block_bytes);
    if !matches!(block_bytes, 512 | 4096)
        || bytes == 0
        || !bytes.is_multiple_of(u64::from(block_bytes))
    {
        return Err(BlockError::BadBlock { bytes, block_bytes });
    }
    let BlockChoice { backend, why } = choose_block_backend(wanted)?;
    tracing::info!("{why}");
    if backend == BlockBackend::Ublk {
        match UblkFace::attach(config.clone(), pool.clone()) {
            Ok(face) => return Ok(Box::new(face)),
            Err(e) if wanted.is_some() => return Err(e),
            Err(e) => tracing::warn!("a loop device over a FUSE file, since {e}"),
        }
    }
    LoopFace::check(&config.run_dir, &config.name)?;
    Ok(Box::new(LoopFace::attach(config, pool)?))
}

/// Takes away what a killed attachment of this name left of its block device. Says what was found, a line each; nothing
/// if there was nothing.
///
/// May wait for two seconds: so not for the thread that serves one of that name.
///
/// # Errors
/// If an attachment of this name lives.
pub fn clean_stale(run_dir: &Path, name: &str) -> Result<Vec<String>, BlockError> {
    let mut report = ublk::clean_stale(run_dir, name)?;
    report.extend(looped::clean_stale(run_dir, name)?);
    Ok(report)
}

/// Where the file under an attachment's loop device is mounted.
pub fn disk_file(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.disk"))
}
