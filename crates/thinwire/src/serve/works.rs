//! What is asked of volumes that exports of a shard are made of: that shard does it between its turns.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_runtime::inquiry::{Clerk, ServedVolumes};

use super::pools::PoolClerk;
use crate::control::Response;
use crate::host::Host;
use crate::opened::{OutlineNode, TellOutline};
use crate::work::{WorkAsk, perform};

/// What the exports of a shard are made of, by name.
pub(super) type Outlines = Rc<RefCell<Vec<(String, TellOutline)>>>;

/// Does all that is asked of the volumes of a shard: a [`WorkAsk`] as JSON, or what is for its pools; a [`Response`] answers.
pub(super) struct ShardClerk {
    pools: PoolClerk,
    outlines: Outlines,
    /// Exports of which something grows, or has its labels written.
    growing: Vec<String>,
}

impl ShardClerk {
    /// Of the exports with these outlines; none if nothing can be asked of them.
    pub fn of(host: &Host, outlines: &Outlines) -> Option<Box<dyn Clerk>> {
        let (pools, outlines) = (PoolClerk::of(host), outlines.clone());
        let has_some = !host.commons().all().is_empty() || !outlines.borrow().is_empty();
        let clerk = ShardClerk { pools, outlines, growing: Vec::new() };
        has_some.then(|| -> Box<dyn Clerk> { Box::new(clerk) })
    }

    /// Has what is asked for grow, or with a leg less, which ends later.
    fn grow(&mut self, number: u64, ask: &WorkAsk, served: &mut dyn ServedVolumes) {
        let is_it =
            |of: &OutlineNode| of.node.as_ref().is_some_and(|node| node.is_same(&ask.volume));
        let outlines = self.outlines.borrow();
        let mut found = outlines.iter().map(|(export, tell)| (export, tell()));
        let found = found.find(|(export, outline)| {
            outline.iter().any(is_it) && served.works(export, &mut |_| ())
        });
        let outline = found.map(|(export, outline)| {
            self.growing.push(export.clone());
            outline
        });
        self.pools.grow(number, ask, &outline.unwrap_or_default());
    }

    /// Does what is asked, and says of what outline that was, of which export.
    fn answer(
        &self,
        ask: &WorkAsk,
        served: &mut dyn ServedVolumes,
    ) -> (Response, Vec<OutlineNode>, Option<String>) {
        let why = format!("no export is made of {}", ask.volume.name);
        let mut answer = (Response::Refused { why }, Vec::new(), None);
        for (export, tell) in &*self.outlines.borrow() {
            let outline = tell();
            let is_it = |node: &crate::trees::NodeName| node.is_same(&ask.volume);
            let has_it = outline.iter().any(|of| of.node.as_ref().is_some_and(is_it));
            // One that was taken away is not there any more.
            if has_it && served.works(export, &mut |_| ()) {
                let mut show = |visit: &mut dyn FnMut(&mut dyn thinwire_volume::Work)| {
                    served.works(export, visit);
                };
                let response = perform(ask, &outline, &mut show);
                answer = (response, outline, Some(export.clone()));
                break;
            }
        }
        answer
    }
}

impl Clerk for ShardClerk {
    fn begin(&mut self, number: u64, words: &str, served: &mut dyn ServedVolumes) {
        match serde_json::from_str::<WorkAsk>(words) {
            Ok(ask) if ask.request.action.ends_later() => self.grow(number, &ask, served),
            Ok(ask) => {
                let (response, outline, export) = self.answer(&ask, served);
                self.growing.extend(export);
                self.pools.keep(number, (&ask, response), &outline);
            }
            Err(_) => self.pools.begin(number, words, served),
        }
    }

    fn tend(&mut self, ended: &mut Vec<(u64, String)>, served: &mut dyn ServedVolumes) {
        self.pools.tend(ended, served);
        if self.pools.is_idle() {
            self.growing.clear();
        }
        // They go on when they are polled.
        self.growing.iter().for_each(|export| _ = served.works(export, &mut |_| ()));
    }
}
