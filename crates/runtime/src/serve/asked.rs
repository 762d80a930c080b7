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

    fn report(&mut self) -> ShardReport {
        let mut trees = Vec::new();
        if let Some(clerk) = self.clerk.take() {
            trees = clerk.describe(self);
            self.clerk = Some(clerk);
        }
        ShardReport { trees, ..TargetShard::report(self) }
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
        // What was fenced by now is not there to be taken away.
        self.let_go_of_fenced();
        self.with_target(|target| target.begin_exchange(&change.added));
        // Nobody tends what these stand on any more, so nobody would say when it goes.
        self.leaves.retain(|(of, _)| !change.removed.contains(&of.name));
        let ours = |shown: &mut Shown| change.removed.contains(&shown.opening.name);
        let leaving: Vec<Shown> = self.exports.extract_if(.., ours).collect();
        for Shown { opening, .. } in &leaving {
            ended += self.with_target(|target| target.remove_export(&opening.name));
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
            target.set_all_exports(&change.all);
        });
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::rc::Rc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use thinwire_buffer::Pool;
    use thinwire_target::{ExportConfig, Limits, TargetConfig};
    use thinwire_volume::testing::Puppet;
    use thinwire_volume::{Completion, Op, Part, PartEvent, VolumeEvent, WriterRecord};

    use super::*;
    use crate::serve::ExportEnd;

    /// A shard whose export `two` becomes another volume by each exchange.
    struct Exchanging {
        shard: TargetShard,
        /// Of each volume, the oldest first.
        puppets: Vec<Puppet>,
        /// How what they stood on ended, by their place there.
        ends: Rc<RefCell<Vec<(usize, ExportEnd)>>>,
        /// Which of them were offered, by the same.
        offers: Rc<RefCell<Vec<usize>>>,
        bells: Vec<OwnedFd>,
    }

    impl Exchanging {
        fn new() -> Self {
            let pool = Pool::new(0);
            let shard = TargetShard::new(TargetConfig::default(), vec![], 0, pool).unwrap();
            let (puppets, bells) = Default::default();
            let (ends, offers) = Default::default();
            let mut all = Exchanging { shard, puppets, ends, offers, bells };
            let export = all.next();
            all.shard.add_export(export).unwrap();
            all.turns();
            all
        }

        fn next(&mut self) -> OpenedExport {
            let number = self.puppets.len();
            let puppet = Puppet::new(number as u8 + 1, Puppet::GEOMETRY);
            // Has it polled in each turn.
            let bell = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
            let volume = Box::new(puppet.clone());
            let config = ExportConfig { name: "two".into(), volume, read_only: false };
            let ends = self.ends.clone();
            let end = move |how: ExportEnd| ends.borrow_mut().push((number, how));
            let export = OpenedExport::new(config, Some(bell.as_raw_fd()));
            self.puppets.push(puppet);
            self.bells.push(bell);
            let offers = self.offers.clone();
            let offered = move || offers.borrow_mut().push(number);
            OpenedExport { offered: Some(Box::new(offered)), end: Some(Box::new(end)), ..export }
        }

        fn exchange(&mut self) {
            let next = self.next();
            self.shard.prepared.push(next);
            let two = || vec!["two".to_owned()];
            let all = vec![("two".to_owned(), 0)];
            let exports = ExportChange { removed: two(), added: two(), weights: vec![], all };
            let (keys, limits) = (None, Limits::default());
            self.shard.take(TargetChange { keys, limits, exports: Some(exports) });
        }

        fn turns(&mut self) {
            self.shard.run_turns(3, Duration::ZERO).unwrap();
        }

        /// Everything that is under way in it ends.
        fn answer(&mut self, which: usize) {
            for _ in 0..2 {
                for io in self.puppets[which].take() {
                    let data = WriterRecord::default().to_data(&Pool::new(0));
                    let data = if io.op == Op::LoadWriter { data } else { io.data };
                    let done = Completion { data, ..Completion::new(io.token, Ok(())) };
                    self.puppets[which].complete(done);
                }
                self.turns();
            }
        }

        /// What its volumes say is taken in, as by a turn that ends with that.
        fn hear(&mut self) {
            let now = self.shard.shard().now();
            self.shard.with_target(|target| {
                target.on_event(now, PartEvent::Below);
                Part::settle(target, now);
            });
        }

        fn fence(&self, which: usize) {
            self.puppets[which].tell(VolumeEvent::Fenced { of: Some("home/b".into()) });
        }
    }

    /// What is prepared and given up was none of those.
    #[test]
    fn what_a_reload_gives_up_was_never_offered() {
        let mut all = Exchanging::new();
        let next = all.next();
        all.shard.prepared.push(next);
        all.shard.abandon();
        assert_eq!(
            (&*all.offers.borrow(), &*all.ends.borrow()),
            (&vec![0], &vec![(1, ExportEnd::Unused)])
        );
        all.exchange();
        assert_eq!(*all.offers.borrow(), [0, 2]);
    }

    /// Two of one name leave, and one of them is fenced: that one is let go of at once, and the other in order.
    #[test]
    fn of_two_that_leave_the_one_that_was_fenced_is_let_go_of_without_order() {
        for fenced in [0, 1] {
            let mut all = Exchanging::new();
            all.exchange();
            all.turns();
            all.exchange();
            all.turns();
            assert_eq!((all.shard.leaving.len(), all.ends.borrow().len()), (2, 0));
            all.fence(fenced);
            all.turns();
            all.shard.let_go_of_fenced();
            assert_eq!(*all.ends.borrow(), [(fenced, ExportEnd::Fenced)]);
            let other = 1 - fenced;
            all.answer(other);
            all.shard.let_go_of_gone();
            assert_eq!(all.ends.borrow()[1..], [(other, ExportEnd::Orderly)]);
            assert!(all.shard.leaving.is_empty() && all.shard.exports.len() == 1);
            assert!(all.shard.report().fenced.is_empty());
        }
    }

    /// What was heard when the turn took in what had come, before any of it could be acted on.
    #[test]
    fn what_was_fenced_just_before_an_exchange_is_not_taken_away_in_order() {
        let mut all = Exchanging::new();
        all.answer(0);
        all.fence(0);
        all.hear();
        assert!(all.ends.borrow().is_empty());
        all.exchange();
        assert_eq!(*all.ends.borrow(), [(0, ExportEnd::Fenced)]);
        all.turns();
        assert!(all.shard.leaving.is_empty() && all.shard.target().has_export("two"));
    }

    /// The same, when the target ends.
    #[test]
    fn what_was_fenced_just_before_the_end_does_not_end_in_order() {
        let mut all = Exchanging::new();
        all.answer(0);
        all.fence(0);
        all.hear();
        all.shard.let_go_of_fenced();
        all.shard.let_go();
        assert_eq!(*all.ends.borrow(), [(0, ExportEnd::Fenced)]);
        assert!(all.puppets[0].take().is_empty(), "something was written last");
    }
}
