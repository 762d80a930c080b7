//! Where in a tree a volume is, and where an I/O has failed, as users are told it: by logs, commands and statuses alike.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::fmt::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use thinwire_modules::{Meter, Module};
use thinwire_volume::IoError;

use super::outline::{OutlineNode, children_of};

/// What has failed so long before something above it is why that has failed.
const JUST_NOW: Duration = Duration::from_millis(100);

/// Where a volume is, for what tells of it as long as it is open. Which leg or part of those above it a volume is may be known only when all of its tree
/// is open: whoever knows more says so then.
#[derive(Clone, Debug, Default)]
pub struct TreePlace(Rc<RefCell<String>>);

impl TreePlace {
    /// That one, as far as it is known.
    pub fn new(place: String) -> Self {
        TreePlace(Rc::new(RefCell::new(place)))
    }

    /// It is known better.
    pub fn set(&self, place: String) {
        *self.0.borrow_mut() = place;
    }
}

impl fmt::Display for TreePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.borrow())
    }
}

/// A failed I/O, as the user of a volume is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAt {
    /// The volume in which that was, as [`place_of`] has it; empty if there is none but the one that the user has named.
    pub place: String,
    /// What failed there, and why.
    pub what: String,
}

impl FailedAt {
    /// That error is of the volume which the user has named.
    pub fn named(error: &IoError) -> Self {
        FailedAt { place: String::new(), what: error.to_string() }
    }

    /// That error is of that volume of a tree.
    pub(super) fn of(nodes: &[OutlineNode], at: usize, error: &IoError) -> Self {
        if nodes.len() < 2 {
            return Self::named(error);
        }
        let (kind, place) = (nodes[at].kind, place_of(nodes, at));
        // The place says which module that is, unless it has only passed on what another reported.
        let what = match Module::find(kind).is_none_or(|module| module.name == error.module) {
            true => error.describe(),
            false => error.to_string(),
        };
        FailedAt { place, what }
    }
}

impl fmt::Display for FailedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.is_empty() {
            true => f.write_str(&self.what),
            false => write!(f, "{}: {}", self.place, self.what),
        }
    }
}

/// Where one of these is, from the top: of each module on the way its kind and its name, if it has one, and which of the volumes that it is made of comes
/// next, counted from 0, unless it has only that; of a leaf in the end how it is named: `mirror "home" leg 2 (tw://node2/disk1)`.
pub(super) fn place_of(nodes: &[OutlineNode], at: usize) -> String {
    let way = way_to(nodes, at);
    let mut place = String::new();
    for (nth, &at) in way.iter().enumerate() {
        let node = &nodes[at];
        if let Some(above) = nth.checked_sub(1).map(|above| way[above]) {
            if nodes[above].pool.is_some() {
                // Its pool, which the name of the volume has said.
                continue;
            }
            place.push_str(&which(nodes, above, at));
        }
        let is_top = nth == 0;
        match (Module::find(node.kind).is_some(), is_top) {
            (false, true) => place.push_str(&node.name),
            (false, false) => _ = write!(place, " ({})", node.name),
            (true, _) => {
                let comma = if is_top { "" } else { ", " };
                _ = write!(place, "{comma}{}", node.kind);
                if let Some(named) = &node.node {
                    _ = write!(place, " {:?}", named.name);
                }
            }
        }
    }
    place
}

/// Which of those that the volume above is made of this one is, in the words of that.
fn which(nodes: &[OutlineNode], above: usize, at: usize) -> String {
    let (children, node) = (children_of(nodes, above), &nodes[at]);
    let module = Module::find(nodes[above].kind);
    let nth = node.role.or_else(|| children.iter().position(|&child| child == at));
    match (module, node.leg, nth) {
        (Some(module), leg, _) if module.is_mirror() => {
            // One that has gone has no number.
            leg.map_or(String::new(), |leg| format!(" leg {leg}"))
        }
        (Some(module), _, Some(0)) if module.has_volumes() => " data".into(),
        (Some(module), _, Some(_)) if module.has_volumes() => " metadata".into(),
        (_, _, Some(nth)) if children.len() > 1 => format!(" part {nth}"),
        _ => String::new(),
    }
}

/// From the top down to one of these, both included.
fn way_to(nodes: &[OutlineNode], at: usize) -> Vec<usize> {
    let mut way = vec![at];
    let mut depth = nodes[at].depth;
    for above in (0..at).rev() {
        if nodes[above].depth < depth {
            depth = nodes[above].depth;
            way.push(above);
        }
    }
    way.reverse();
    way
}

/// The meters of all on the way down to one of these.
pub(super) fn meters_to(nodes: &[OutlineNode], at: usize) -> Vec<Rc<Meter>> {
    way_to(nodes, at).iter().filter_map(|&node| nodes[node].meter.clone()).collect()
}

/// In which of these an I/O of the one on top has failed, and what failed there: an error goes up with its kind and the name of who reported it, and each
/// volume on the way has its own range. Some put their own name there: then what has failed below them a moment ago is why.
pub(super) fn first_failing(nodes: &[OutlineNode], error: &IoError) -> (usize, IoError) {
    let (mut at, mut found) = (0, *error);
    loop {
        let last = |node: usize| nodes.get(node)?.meter.as_ref()?.last_failure();
        let ended = last(at).map(|(when, _)| when);
        let failed = |child: usize| {
            let (when, error) = last(child)?;
            let is_same = error.module == found.module;
            let is_why = is_same || ended.is_some_and(|ended| ended.since(when) <= JUST_NOW);
            let is_it = error.kind == found.kind && is_why;
            is_it.then_some(((is_same, when, Reverse(child)), error))
        };
        let failed = parts_of(nodes, at).into_iter().filter_map(failed);
        let Some(((.., Reverse(child)), error)) = failed.max_by_key(|(order, _)| *order) else {
            return (at, found);
        };
        (at, found) = (child, error);
    }
}

/// The last I/O of one of these that failed; none if none did.
pub fn last_failure(nodes: &[OutlineNode], at: usize) -> Option<FailedAt> {
    let (_, error) = nodes[at].meter.as_ref()?.last_failure()?;
    Some(FailedAt::of(nodes, at, &error))
}

/// Those that one of these gives its I/Os to: a volume of a pool those of its pool.
fn parts_of(nodes: &[OutlineNode], at: usize) -> Vec<usize> {
    let Some(node) = nodes.get(at) else { return Vec::new() };
    let children = children_of(nodes, at);
    match node.pool {
        Some(_) => children.into_iter().flat_map(|pool| children_of(nodes, pool)).collect(),
        None => children,
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
