//! The end of exports: those that were taken away or fenced, and all of a shard, where what they keep for themselves is brought in order, and disks that hang are named before they are waited for.

use std::any::Any;
use std::path::PathBuf;
use std::time::Duration;

use thinwire_target::{FencedExport, Target};
use thinwire_volume::Part;

use super::{Awaited, ExportEnd, OpenedExport, STOP_LOOK, Shown, TargetShard};
use crate::disk::LettingGo;
use crate::shard::Shard;

/// So long volumes may take to bring in order what they keep for themselves, and how often they are asked.
const WIND_UP_TIME: Duration = Duration::from_secs(10);
const WIND_UP_LOOK: Duration = Duration::from_millis(2);
/// So long disks may take for what is left at the end, before they are told of as those that hang.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);

impl TargetShard {
    /// Lets go of what was taken away and has ended.
    #[cold]
    pub(super) fn let_go_of_gone(&mut self) {
        loop {
            let gone = self.shard.borrow_mut().get_mut(self.target).take_gone();
            let Some((opening, volume)) = gone else { return };
            // It takes its file and its lock with it.
            drop(volume);
            let at = self.leaving.iter().position(|shown| shown.opening == opening);
            let shown = self.leaving.remove(at.expect("it was taken away"));
            if let Some(end) = shown.end {
                end(ExportEnd::Orderly);
            }
            tracing::info!("export {} is closed", opening.name);
        }
    }

    /// Lets go, at once, of what exports stood on that somebody else has by now.
    #[cold]
    pub(crate) fn let_go_of_fenced(&mut self) {
        while self.target().has_fenced() {
            let fenced = self.shard.borrow_mut().get_mut(self.target).take_fenced();
            let FencedExport { opening, volume, was_leaving } = fenced.expect("just seen");
            // With it go its ports, so that nothing of what it has asked for comes back, and its files.
            drop(volume);
            let shown = match was_leaving {
                true => &mut self.leaving,
                false => &mut self.exports,
            };
            let at = shown.iter().position(|shown| shown.opening == opening);
            if let Some(end) = at.and_then(|at| shown.remove(at).end) {
                end(ExportEnd::Fenced);
            }
            if !was_leaving {
                self.leaves.retain(|(of, _)| *of != opening);
                self.fenced.push(opening.name);
            }
        }
    }

    /// Says what no turn will say any more.
    #[cold]
    pub(crate) fn say_last_notes(&mut self) {
        let next = || self.shard.borrow_mut().get_mut(self.target).take_note();
        std::iter::from_fn(next).for_each(|note| tracing::warn!("{note}"));
    }

    /// Lets go of the exports, and ends what they stood on. There is no target any more then; its links
    /// stay open. Once.
    pub(crate) fn let_go(&mut self) {
        let _told = self.await_disks();
        // With a clerk go its handles of volumes; whoever waits for it hears that it has ended.
        self.clerk = None;
        self.errands.clear();
        self.prepared.drain(..).for_each(OpenedExport::discard);
        let target = self.shard.borrow_mut().node().remove(self.target);
        if self.has_served {
            self.wind_up(target);
        }
        let all = self.leaving.drain(..).chain(self.exports.drain(..));
        let how = if self.has_served { ExportEnd::Orderly } else { ExportEnd::Unused };
        all.filter_map(|export| export.end).for_each(|end| end(how));
    }

    /// Volumes end in order that keep something for themselves. With the target they go, and their ports.
    fn wind_up(&mut self, target: Option<Box<dyn Part>>) {
        let target = target.map(|target| -> Box<dyn Any> { target });
        let Some(mut target) = target.and_then(|target| target.downcast::<Target>().ok()) else {
            return;
        };
        let shard = &mut *self.shard.borrow_mut();
        let end = shard.now() + WIND_UP_TIME;
        while !target.wind_up(shard.now()) {
            if shard.now() >= end || shard.turn(Some(WIND_UP_LOOK)).is_err() {
                tracing::warn!(
                    "volumes that keep something for themselves have not ended in order: mirrors resync when they are opened, and what caches have not written down is lost"
                );
                return;
            }
        }
    }

    /// Whoever lets go of a disk waits for its last I/O, and the first that hangs keeps the thread: so those that do
    /// not answer soon are told of together, as long as what is returned lives.
    fn await_disks(&mut self) -> Vec<LettingGo> {
        let named = |shown: &mut Shown| Some((shown.opening.name.clone(), shown.awaited.take()?));
        let awaited: Vec<_> = self.exports.iter_mut().filter_map(named).collect();
        if awaited.is_empty() {
            return Vec::new();
        }
        let silent = |shard: &Shard| -> Vec<PathBuf> {
            let exports = shard.get(self.target).exports();
            let of = |(name, awaited): &(String, Awaited)| {
                let export = exports.iter().find(|export| export.name == *name);
                awaited(export.is_some_and(|export| export.outstanding > 0))
            };
            awaited.iter().flat_map(of).collect()
        };
        let shard = &mut *self.shard.borrow_mut();
        let end = shard.now() + ANSWER_PATIENCE;
        loop {
            let paths = silent(shard);
            // What has not served has no turns to take.
            let goes_on = self.has_served && !paths.is_empty() && shard.now() < end;
            if !goes_on || shard.turn(Some(STOP_LOOK)).is_err() {
                return paths.iter().map(|path| LettingGo::of(path)).collect();
            }
        }
    }
}
