//! What a shard does for whoever asks it between two turns: errands of its pools, and another set of exports, keys or limits.

use thinwire_volume::Work;

use super::{OpenedExport, Shown, TargetShard};
use crate::inquiry::{
    Asked, Errand, ExportChange, OpenExports, ServedVolumes, ShardReport, TargetChange,
};

impl Asked for TargetShard {
    fn begin(&mut self, (words, tell): Errand) {
        let Some(mut clerk) = self.clerk.take() else { return };
        self.last_errand += 1;
        self.errands.push((self.last_errand, tell));
        clerk.begin(self.last_errand, &words, self);
        self.clerk = Some(clerk);
        self.tend_errands();
    }

    fn report(&self) -> ShardReport {
        TargetShard::report(self)
    }

    fn prepare(&mut self, open: OpenExports) -> Result<(), String> {
        self.abandon();
        let pool = self.shard.borrow().pool().clone();
        self.prepared = open(&pool)?;
        Ok(())
    }

    fn abandon(&mut self) {
        self.prepared.drain(..).for_each(OpenedExport::discard);
    }

    fn take(&mut self, change: TargetChange) -> usize {
        let TargetChange { keys, limits, exports } = change;
        let mut ended = 0;
        if let Some(exports) = exports {
            ended += self.exchange(exports);
        }
        let shard = &mut *self.shard.borrow_mut();
        let target = shard.get_mut(self.target);
        target.set_limits(limits);
        ended + keys.map_or(0, |keys| target.set_keys(keys))
    }
}

impl ServedVolumes for TargetShard {
    fn works(&mut self, export: &str, visit: &mut dyn FnMut(&mut dyn Work)) -> bool {
        self.with_target(|target| target.works(export, visit))
    }
}

impl TargetShard {
    /// Exports go, those come that were prepared, and others have other weights: how many sessions that ended.
    fn exchange(&mut self, change: ExportChange) -> usize {
        let mut ended = 0;
        // What was fenced in the last turn is not there to be taken away.
        self.let_go_of_fenced();
        // Nobody tends what these stand on any more, so nobody would say when it goes.
        self.leaves.retain(|(name, _)| !change.removed.contains(name));
        let ours = |shown: &mut Shown| change.removed.contains(&shown.name);
        let leaving: Vec<Shown> = self.exports.extract_if(.., ours).collect();
        for shown in &leaving {
            ended += self.with_target(|target| target.remove_export(&shown.name));
        }
        self.leaving.extend(leaving);
        self.fenced.retain(|fenced| !change.added.contains(fenced));
        for export in std::mem::take(&mut self.prepared) {
            let name = export.config.name.clone();
            if let Err(error) = self.offer(export, None) {
                // It has no more to do with descriptors than those that are there.
                tracing::error!("export {name} is not served: {error}");
            }
        }
        self.with_target(|target| {
            for (name, weight) in &change.weights {
                if target.has_export(name) {
                    target.set_weight(name, *weight);
                }
            }
            target.end_silence(&change.added);
            target.set_all_exports(&change.all);
        });
        ended
    }
}
