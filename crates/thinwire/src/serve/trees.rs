//! Exports that are made of other volumes, or are another target's.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thinwire_runtime::disk::{self, DiskOptions};
use thinwire_runtime::serve::{ExportEnd, OpenedExport};
use thinwire_volume::{HeldLeaves, KeptBy};

use super::works::Outlines;
use super::{Configured, named, written_back};
use crate::cli::WireArgs;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::host::Host;
use crate::keys::Security;
use crate::open::{CommandFlags, Unheard, VolumeOptions};
use crate::opened::Tree;
use crate::steward::Endings;

thread_local! {
    /// That of the shard of this thread, if it has something open that several stand on: what a reload adds may, too.
    static OPENER: RefCell<Option<TreeOpener>> = const { RefCell::new(None) };
}

/// Opens such exports, on the thread of their shard.
pub(super) struct TreeOpener {
    host: Host,
    // Whom it reaches knows it by keys that its volumes name.
    security: Security,
    run_dir: PathBuf,
    state_dir: PathBuf,
    endings: Endings,
    /// See [`Configured`].
    left_behind: Arc<AtomicBool>,
    /// What it has opened is made of.
    outlines: Outlines,
}

impl Configured<'_> {
    /// For a shard whose volumes are on that host.
    pub(super) fn opener(&self, host: &Host) -> TreeOpener {
        let config = self.config;
        TreeOpener {
            host: host.clone(),
            security: Security {
                authenticate_only: config.authenticate_only,
                ..Security::without_keys(config.insecure)
            },
            run_dir: config.run_dir.clone(),
            state_dir: config.state_dir.clone(),
            endings: self.endings.clone(),
            left_behind: self.left_behind.clone(),
            outlines: Outlines::default(),
        }
    }
}

/// All exports of the shard of this thread are open: from now on it opens no pool and no disk, but more volumes and slices of those that
/// it has.
pub(super) fn keep(opener: TreeOpener) {
    opener.host.commons().close();
    OPENER.set(Some(opener));
}

/// The shard of this thread has ended.
pub(super) fn forget() {
    OPENER.set(None);
}

/// Opens an export that is a volume of a pool, or a slice of a disk, which the shard of this thread has open.
///
/// # Errors
/// It has none such, or the pool has no such volume, or somebody has something of the slice.
pub(super) fn open_of_common(spec: &ExportSpec) -> Outcome<OpenedExport> {
    OPENER.with_borrow(|opener| match opener {
        Some(opener) => opener.open(spec),
        None => Err(Failure::failed(format!(
            "export {}: its shard has nothing open that it could be a part of",
            spec.name
        ))),
    })
}

impl TreeOpener {
    /// What all that it has opened is made of.
    pub fn outlines(&self) -> &Outlines {
        &self.outlines
    }

    /// How what an export is made of is opened. This target is the writer of all of it.
    pub fn options(&self, spec: &ExportSpec) -> VolumeOptions {
        let (security, run_dir) = (self.security.clone(), self.run_dir.clone());
        let mut options = VolumeOptions::new(security, &WireArgs::default(), run_dir);
        options.read_only = spec.read_only;
        // The export's verifier changes, and initiators send their writes again.
        options.losses_are_heard = true;
        options.is_served = true;
        options.flags =
            CommandFlags { reading: Some(",ro behind the export"), ..CommandFlags::default() };
        options.hurry = Some(self.endings.hurry.clone());
        options
    }

    /// Opens what an export is made of.
    pub fn open(&self, spec: &ExportSpec) -> Outcome<OpenedExport> {
        let (host, options) = (&self.host, self.options(spec));
        let disk_options = DiskOptions {
            direct: !spec.buffered,
            stop: Some(self.endings.stop.clone()),
            state_dir: self.state_dir.clone(),
            ..DiskOptions::default()
        };
        let tree = Tree::open(host, &spec.volume, &options, disk_options, None)
            .map_err(|e| e.context(format_args!("cannot serve export {}", spec.name)))?;
        let (mut fds, ports, leaves) = (tree.fds(), tree.ports.clone(), tree.remote_leaves());
        let (held, direct, awaited) =
            (tree.held_leaves(&spec.volume), tree.direct(), tree.awaited());
        let (is_tended, held_later) = (tree.is_tended(), HeldLeaves::default());
        let may_change = tree.leaves_may_change();
        let (volume, outline, tend, end) = tree.into_parts(host, options.hurry, held_later.clone());
        let by = match spec.volume.keeps_writer() {
            true => KeptBy::Volume,
            false => KeptBy::Place,
        };
        let recorded = disk::recorded(by, volume, &self.state_dir, &spec.name, held);
        let (mut volume, fd) = match recorded {
            Ok(recorded) => recorded,
            Err(e) => {
                let what = format!("cannot get a descriptor for the record of {}: {e}", spec.name);
                return Err(end(ExportEnd::Unused).err().unwrap_or_else(|| Failure::failed(what)));
            }
        };
        fds.push(fd);
        if may_change {
            volume.follow(held_later);
        }
        let (outlines, of, own) = (self.outlines.clone(), spec.name.clone(), outline.clone());
        let offered = move || {
            let mut outlines = outlines.borrow_mut();
            outlines.retain(|(name, _)| *name != of);
            outlines.push((of, own));
        };
        let outlines = self.outlines.clone();
        let exported = named(spec, written_back(spec, Box::new(volume), &host.pool()));
        let (name, left_behind) = (spec.name.clone(), self.left_behind.clone());
        let end = move |how| {
            // Another of its name may be there by now, and one that is made of nothing has none.
            outlines.borrow_mut().retain(|(_, of)| !Rc::ptr_eq(of, &outline));
            let ended = end(how);
            tell_end(&name, how, ended, &left_behind);
        };
        let end: Option<Box<dyn FnOnce(ExportEnd)>> = Some(Box::new(end));
        let config = exported;
        let tend = is_tended.then_some(tend);
        Ok(OpenedExport {
            config,
            fds,
            ports,
            leaves,
            direct,
            awaited,
            tend,
            offered: Some(Box::new(offered)),
            end,
            clerk: None,
            weight: 1,
        })
    }
}

/// Tells how what an export stood on has ended.
fn tell_end(name: &str, how: ExportEnd, ended: Outcome<Unheard>, left_behind: &AtomicBool) {
    match ended {
        // What is not heard of there stays with whoever has it.
        _ if how == ExportEnd::Fenced => {}
        Ok(unheard) => {
            if let Some(unheard) = unheard.describe() {
                tracing::warn!("export {name}: {unheard}");
            }
        }
        Err(failure) => {
            tracing::error!("export {name}: {failure}");
            left_behind.store(true, Ordering::Release);
        }
    }
}
