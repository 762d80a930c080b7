//! Exports that are made of other volumes, or are another target's.

use std::sync::atomic::Ordering;

use thinwire_runtime::disk::{self, DiskOptions};
use thinwire_runtime::serve::OpenedExport;

use super::{Configured, named, written_back};
use crate::cli::WireArgs;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::host::Host;
use crate::keys::Security;
use crate::open::{CommandFlags, VolumeOptions};
use crate::opened::Tree;

impl Configured<'_> {
    /// How what an export is made of is opened. This target is the writer of all of it.
    pub(super) fn tree_options(&self, spec: &ExportSpec) -> VolumeOptions {
        let config = self.config;
        // Whom it reaches knows it by keys that its volumes name.
        let security = Security {
            authenticate_only: config.authenticate_only,
            ..Security::without_keys(config.insecure)
        };
        let mut options =
            VolumeOptions::new(security, &WireArgs::default(), config.run_dir.clone());
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
    pub(super) fn open_tree(&self, spec: &ExportSpec, host: &Host) -> Outcome<OpenedExport> {
        let (config, options) = (self.config, self.tree_options(spec));
        let disk_options = DiskOptions {
            direct: !spec.buffered,
            stop: Some(self.endings.stop.clone()),
            state_dir: config.state_dir.clone(),
            ..DiskOptions::default()
        };
        let tree = Tree::open(host, &spec.volume, &options, disk_options, None)
            .map_err(|e| e.context(format_args!("cannot serve export {}", spec.name)))?;
        let (mut fds, ports, leaves) = (tree.fds(), tree.ports.clone(), tree.remote_leaves());
        let (held, direct, awaited) =
            (tree.held_leaves(&spec.volume), tree.direct(), tree.awaited());
        let is_tended = tree.has_comers();
        let (volume, tend, end) = tree.into_parts(host, options.hurry);
        let recorded = disk::recorded(volume, &config.state_dir, &spec.name, held);
        let (volume, fd) = match recorded {
            Ok(recorded) => recorded,
            Err(e) => {
                let what = format!("cannot get a descriptor for the record of {}: {e}", spec.name);
                return Err(end(false).err().unwrap_or_else(|| Failure::failed(what)));
            }
        };
        fds.push(fd);
        let exported = named(spec, written_back(spec, Box::new(volume), &host.pool()));
        let (name, left_behind) = (spec.name.clone(), self.left_behind.clone());
        let end = move |was_served| match end(was_served) {
            Ok(unheard) => {
                if let Some(unheard) = unheard.describe() {
                    tracing::warn!("export {name}: {unheard}");
                }
            }
            Err(failure) => {
                tracing::error!("export {name}: {failure}");
                left_behind.store(true, Ordering::Release);
            }
        };
        let end: Option<Box<dyn FnOnce(bool)>> = Some(Box::new(end));
        let config = exported;
        let tend = is_tended.then_some(tend);
        let clerk = None;
        Ok(OpenedExport {
            config,
            fds,
            ports,
            leaves,
            direct,
            awaited,
            tend,
            end,
            clerk,
            weight: 1,
        })
    }
}
