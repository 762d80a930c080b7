//! What is asked of volumes that exports of a shard are made of: that shard does it between its turns.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_runtime::inquiry::{Clerk, ServedVolumes};

use super::pools::PoolClerk;
use crate::control::Response;
use crate::host::Host;
use crate::opened::{OutlineNode, TellOutline};
use crate::work::{ToldTree, WorkAsk, draw, no_export, perform};

/// Volumes that one shard tells of at most, of all exports together: a turn that draws them must not take long.
const VOLUMES_TOLD_MAX: usize = 512;

/// What the exports that a shard offers are made of, by name.
pub(super) type Outlines = Rc<RefCell<Vec<(String, TellOutline)>>>;

/// Does all that is asked of the volumes of a shard: a [`WorkAsk`] as JSON, or what is for its pools; a [`Response`] answers.
pub(super) struct ShardClerk {
    pools: PoolClerk,
    outlines: Outlines,
    /// Exports of which something grows, or has its labels written.
    growing: Vec<String>,
}

impl ShardClerk {
    /// Of the exports with these outlines: those that are offered, whenever that is.
    pub fn of(host: &Host, outlines: &Outlines) -> Self {
        let (pools, outlines) = (PoolClerk::of(host), outlines.clone());
        ShardClerk { pools, outlines, growing: Vec::new() }
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
        let why = no_export(&ask.volume.name);
        let mut answer = (Response::Refused { why }, Vec::new(), None);
        for (export, tell) in &*self.outlines.borrow() {
            let outline = tell();
            let has_it = ask.place_in(export, &outline).is_some();
            // One that was taken away is not there any more.
            if has_it && served.works(export, &mut |_| ()) {
                let mut show = |visit: &mut dyn FnMut(&mut dyn thinwire_volume::Work)| {
                    served.works(export, visit);
                };
                let response = perform(ask, (export, &outline), &mut show);
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

    fn describe(&self, served: &mut dyn ServedVolumes) -> Vec<(String, String)> {
        let (mut left, mut told) = (VOLUMES_TOLD_MAX, Vec::new());
        for (export, tell) in &*self.outlines.borrow() {
            let outline = tell();
            // One that was taken away is not there any more.
            if outline.len() < 2 || !served.works(export, &mut |_| ()) {
                continue;
            }
            let nodes = left.checked_sub(outline.len()).map(|less| {
                left = less;
                draw(&outline, &mut |visit| _ = served.works(export, visit))
            });
            told.push((export.clone(), ToldTree { nodes }.to_words()));
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use thinwire_volume::Work;

    use super::*;
    use crate::trees::NodeName;
    use crate::work::{WorkAction, WorkRequest};

    /// Exports that are there, none of which works for itself.
    struct Served(&'static [&'static str]);

    impl ServedVolumes for Served {
        fn works(&mut self, export: &str, _: &mut dyn FnMut(&mut dyn Work)) -> bool {
            self.0.contains(&export)
        }
    }

    /// What is made of nothing, and what is not there any more, is not told of; nor is what there is too much of, and what comes behind that is.
    #[test]
    fn what_exports_are_made_of_is_told_up_to_a_bound() {
        let of = |name: &str, count: usize| -> (String, TellOutline) {
            let node = |at| OutlineNode { depth: usize::from(at > 0), ..OutlineNode::default() };
            let tell = move || (0..count).map(node).collect();
            (name.to_owned(), Rc::new(tell))
        };
        let most = VOLUMES_TOLD_MAX;
        let all =
            [of("a", 2), of("leaf", 1), of("gone", 2), of("wide", most - 1), of("b", most - 2)];
        let (host, outlines) = (Host::new().unwrap(), Outlines::default());
        outlines.borrow_mut().extend(all);
        let mut clerk = ShardClerk::of(&host, &outlines);
        let served = &mut Served(&["a", "leaf", "wide", "b"]);
        let told = clerk.describe(served);
        let count = |words: &str| ToldTree::of_words(words).nodes.map(|nodes| nodes.len());
        let told: Vec<_> = told.iter().map(|(name, words)| (name.as_str(), count(words))).collect();
        assert_eq!(told, [("a", Some(2)), ("wide", None), ("b", Some(most - 2))]);
        // Who asks for it alone is told of all of it.
        for (name, expected) in [("wide", Some(most - 1)), ("gone", None), ("other", None)] {
            let request = WorkRequest { action: WorkAction::Status, percent: None };
            let ask = WorkAsk { volume: NodeName::of_opened(name), request };
            clerk.begin(1, &serde_json::to_string(&ask).unwrap(), served);
            let mut ended = Vec::new();
            clerk.tend(&mut ended, served);
            let count = match serde_json::from_str(&ended[0].1).unwrap() {
                Response::Volume { nodes } => Some(nodes.len()),
                _ => None,
            };
            assert_eq!(count, expected, "{name}");
        }
    }
}
