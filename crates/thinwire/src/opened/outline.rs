//! [`OutlineNode`]: what an open volume is made of, as it was opened, for status.

use std::rc::Rc;

use thinwire_modules::{Meter, Metered, Traced};
use thinwire_volume::Volume;

use super::bottom::Bottom;
use super::climbing::Risen;
use super::place::{TreePlace, place_of};
use super::tree::{Leaf, Root};
use crate::budgets::NodeBudget;
use crate::error::Outcome;
use crate::host::Host;
use crate::network::NetworkLeaf;
use crate::trees::NodeName;
use crate::uri::VolumeSpec;

/// A volume among those that another is made of.
#[derive(Clone, Debug, Default)]
pub struct OutlineNode {
    /// How deep it is below the top, which is at 0: behind each come those that it is made of.
    pub depth: usize,
    /// By which file it is described, if by one; its path is absolute.
    pub node: Option<NodeName>,
    /// As users name it; of a module in a list its kind.
    pub name: String,
    /// Its module, or what kind of leaf it is.
    pub kind: &'static str,
    /// Its size, of a pool that of its data; 0 if it was not there.
    pub bytes: u64,
    /// The UUID of the whole, of one that works for itself.
    pub whole: Option<[u8; 16]>,
    /// Which leg of the mirror above it is, by the labels.
    pub leg: Option<usize>,
    /// Which part of the whole above it is, by the labels, if those do not follow its description.
    pub role: Option<usize>,
    /// Of a leaf: whether it is there, if there is any doubt of that.
    pub state: Option<&'static str>,
    /// Which leaf of the tree it is.
    pub leaf: Option<usize>,
    /// What goes to it is counted there; none of what stands alone, whose attachment counts.
    pub meter: Option<Rc<Meter>>,
    /// Of which pool of those that the tree has volumes of it is one.
    pub pool: Option<usize>,
    /// Of one that takes only so much in a second.
    pub budget: Option<NodeBudget>,
    /// Of one that tells of its I/Os: where it is.
    pub place: Option<TreePlace>,
}

/// The meter of a volume in a tree, and that of what it is a part of.
#[derive(Clone)]
pub(super) struct Meters {
    own: Rc<Meter>,
    above: Option<Rc<Meter>>,
    path: Rc<str>,
}

impl Meters {
    /// What goes to this volume is counted, and what happens to it has its path.
    pub fn over(&self, host: &Host, volume: Box<dyn Volume>) -> Box<dyn Volume> {
        let clock = host.shard().links().clocks().clone();
        let metered = Metered::new(volume, self.own.clone(), self.above.clone(), Some(clock));
        Box::new(metered.named(self.path.clone()))
    }
}

/// Where one of these is: the volume on top as users name it, then those below, down to this one.
pub(super) fn path_of(nodes: &[OutlineNode], at: usize) -> String {
    let (mut path, mut depth) = (Vec::new(), usize::MAX);
    for node in nodes[..=at].iter().rev().filter(|node| node.meter.is_some()) {
        if node.depth < depth {
            depth = node.depth;
            path.push(match (&node.node, depth) {
                (_, 0) => node.name.as_str(),
                (Some(named), _) => named.name.as_str(),
                (None, _) => node.name.as_str(),
            });
        }
    }
    path.reverse();
    path.join("/")
}

/// Those that one of these is made of, in the order of its description.
pub(super) fn children_of(nodes: &[OutlineNode], at: usize) -> Vec<usize> {
    let depth = nodes[at].depth;
    let below = (at + 1..nodes.len()).take_while(|&node| nodes[node].depth > depth);
    below.filter(|&node| nodes[node].depth == depth + 1).collect()
}

/// The UUID of the whole of a volume of this kind, if that works for itself.
pub(super) fn working_whole(kind: &str, volume: &mut dyn Volume) -> Option<[u8; 16]> {
    let mut whole = None;
    if ["mirror", "integrity"].contains(&kind) {
        // It comes before what it is made of.
        volume.works(&mut |work| _ = whole.get_or_insert(work.whole()));
    }
    whole
}

/// A tree while it is being opened.
#[derive(Default)]
pub(super) struct Outline {
    nodes: Vec<OutlineNode>,
    depth: usize,
    /// Of which wholes the parts of some of them are, by their labels.
    labelled: Vec<(usize, [u8; 16])>,
}

impl Outline {
    /// This is being opened, behind the one above it. Where that stands here.
    pub fn begin(&mut self, spec: &VolumeSpec, leaf: usize) -> usize {
        let (kind, node) = match spec {
            VolumeSpec::Over { module, node, .. } => (module.name, node.as_ref()),
            VolumeSpec::Path(_) => ("file", None),
            VolumeSpec::Memory(_) => ("memory", None),
            VolumeSpec::Null(_) | VolumeSpec::Switched(_) => ("null", None),
            VolumeSpec::Remote(_) => ("tw", None),
            VolumeSpec::Ebd(_) => ("ebd", None),
            VolumeSpec::Aoe(_) => ("aoe", None),
            // Counted for whoever has a share of it: what goes to all of it nobody asks for.
            VolumeSpec::Share { .. } => ("file", None),
        };
        let is_leaf = !matches!(spec, VolumeSpec::Over { .. });
        let is_own = is_leaf && !matches!(spec, VolumeSpec::Share { .. });
        let is_part = self.depth > 0 || !is_leaf;
        let name = match spec {
            VolumeSpec::Over { node: None, .. } => kind.to_owned(),
            spec => spec.to_string(),
        };
        self.nodes.push(OutlineNode {
            depth: self.depth,
            node: node.map(NodeName::absolute),
            name,
            kind,
            leaf: is_own.then_some(leaf),
            meter: is_part.then(Rc::default),
            place: (kind == Traced::NAME).then(TreePlace::default),
            ..OutlineNode::default()
        });
        self.depth += 1;
        self.nodes.len() - 1
    }

    /// It is open, or could not be opened.
    pub fn end(&mut self, at: usize, built: &mut Outcome<Root>) {
        self.depth -= 1;
        let node = &mut self.nodes[at];
        if let Ok(Root::Other(volume)) = built {
            node.whole = working_whole(node.kind, &mut **volume);
        }
    }

    /// The meter of the volume that stands there, and that of the one that it is a part of.
    pub fn meters(&self, at: usize) -> Option<Meters> {
        let node = &self.nodes[at];
        let above = self.nodes[..at].iter().rfind(|above| above.depth < node.depth);
        let above = above.and_then(|above| above.meter.clone());
        node.meter.clone().map(|own| Meters { own, above, path: self.path(at).into() })
    }

    /// Where it is: the volume on top as users name it, then those below, down to this one.
    pub fn path(&self, at: usize) -> String {
        path_of(&self.nodes, at)
    }

    /// The same, as [`place_of`] has it, of one that tells of its I/Os; set again when all is open.
    pub fn place(&self, at: usize) -> TreePlace {
        let place = self.nodes[at].place.clone().unwrap_or_default();
        place.set(place_of(&self.nodes, at));
        place
    }

    /// What users call the volume that stands there, by itself.
    pub fn name(&self, at: usize) -> String {
        self.nodes[at].name.clone()
    }

    /// Where that leaf stands.
    pub fn node_of_leaf(&self, leaf: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.leaf == Some(leaf))
    }

    /// The parts of the volume that stands there say that they are of this whole.
    pub fn set_labelled(&mut self, at: usize, whole: [u8; 16]) {
        self.labelled.push((at, whole));
    }

    /// What they say, if that is known.
    pub fn labelled(&self, at: usize) -> Option<[u8; 16]> {
        self.labelled.iter().find(|(node, _)| *node == at).map(|(_, whole)| *whole)
    }

    /// It is a volume of that pool.
    pub fn is_of_pool(&mut self, at: usize, pool: usize) {
        self.nodes[at].pool = Some(pool);
    }

    /// What it draws on.
    pub fn set_budget(&mut self, at: usize, budget: Option<NodeBudget>) {
        self.nodes[at].budget = budget;
    }

    /// The same.
    pub fn budget(&self, at: usize) -> Option<NodeBudget> {
        self.nodes[at].budget.clone()
    }

    /// Of a mirror: which leg stands in which place of its description.
    pub fn set_legs(&mut self, at: usize, places: &[(usize, usize)]) {
        let children = children_of(&self.nodes, at);
        for &(leg, place) in places {
            self.nodes[children[place]].leg = Some(leg);
        }
    }

    /// Of a whole: which place in its description each of its parts has, by the labels.
    pub fn set_roles(&mut self, at: usize, places: &[usize]) {
        let children = children_of(&self.nodes, at);
        for (role, &place) in places.iter().enumerate() {
            self.nodes[children[place]].role = Some(role);
        }
    }

    /// What was opened has these.
    pub fn of_nodes(nodes: Vec<OutlineNode>) -> Self {
        Outline { nodes, ..Outline::default() }
    }

    /// The mirror that stands there has this leg more, one volume over the other down to that leaf, none of which is there yet: where that stands, behind
    /// the others, and how many nodes it is.
    pub fn insert_leg(
        &mut self,
        mirror: usize,
        leg: usize,
        spec: &VolumeSpec,
        leaf: usize,
    ) -> (usize, usize) {
        let depth = self.nodes[mirror].depth;
        let below = self.nodes[mirror + 1..].iter().take_while(|node| node.depth > depth).count();
        let at = mirror + 1 + below;
        // What was that leg before is none.
        let children = self.nodes[mirror + 1..at].iter_mut();
        let before = children.filter(|node| node.depth == depth + 1 && node.leg == Some(leg));
        before.for_each(|node| node.leg = None);
        let behind = self.nodes.split_off(at);
        self.depth = depth + 1;
        let mut next = Some(spec);
        while let Some(spec) = next {
            self.begin(spec, leaf);
            next = match spec {
                VolumeSpec::Over { children, .. } => children.first(),
                _ => None,
            };
        }
        let count = self.nodes.len() - at;
        self.nodes[at].leg = Some(leg);
        self.nodes.extend(behind);
        (at, count)
    }

    /// All of it, with what stands where as it is known by now.
    pub fn into_nodes(self) -> Vec<OutlineNode> {
        let told = self.nodes.iter().enumerate();
        let told = told.filter_map(|(at, node)| node.place.as_ref().map(|place| (at, place)));
        told.for_each(|(at, place)| place.set(place_of(&self.nodes, at)));
        self.nodes
    }
}

impl Bottom {
    /// Some of it is there again.
    pub fn on_risen(&mut self, risen: &[Risen]) {
        for Risen { node, whole } in risen {
            if let Some(node) = self.outline.get_mut(*node) {
                node.whole = *whole;
            }
        }
    }

    /// What stands on it, that of pools included, with how its leaves are now.
    pub fn outline(&self) -> Vec<OutlineNode> {
        let mut all = Vec::new();
        for node in &self.outline {
            let mut node = node.clone();
            node.state = node.leaf.and_then(|leaf| self.leaf_state(leaf));
            node.bytes = node.meter.as_ref().map_or(0, |meter| meter.bytes());
            let (depth, pool) = (node.depth + 1, node.pool);
            all.push(node);
            let Some(common) = pool.and_then(|pool| self.commons.get(pool)) else { continue };
            let top = all.len();
            let below = common.bottom().outline().into_iter();
            all.extend(below.map(|node| OutlineNode { depth: depth + node.depth, ..node }));
            // As a volume it has nothing.
            all[top].bytes = common.pool().0.data_bytes();
        }
        all
    }

    fn leaf_state(&self, leaf: usize) -> Option<&'static str> {
        match self.leaves.get(leaf)? {
            Leaf::Local(_) => None,
            Leaf::Absent(_) => Some("absent"),
            Leaf::Remote(_) if self.returning.is_coming(leaf) => Some("away"),
            Leaf::Remote(leaf) if NetworkLeaf::is_away(&**leaf) => Some("away"),
            Leaf::Remote(_) => Some("attached"),
        }
    }
}
