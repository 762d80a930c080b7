//! Legs that come to a mirror in use for the first time: they are on record and have their labels ([`LegDoor`](super::super::passage::LegDoor)). What they are
//! made of is opened, and stands in the outline from then on; the rest is the way of those that come back.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use super::super::bottom::Bottom;
use super::super::climbing::{Chain, Climb};
use super::super::outline::Outline;
use super::super::passage::{NewComer, Passage};
use super::super::tree::Leaf;
use super::{Backoff, Comer, Returned, Returning, Way};
use crate::budgets::NodeBudget;
use crate::error::{Failure, FailureKind};
use crate::local::LocalLeaf;
use crate::open::VolumeOptions;
use crate::uri::VolumeSpec;

impl Returning {
    /// Something is to be brought for the first time.
    #[inline]
    pub fn wants_some(&self) -> bool {
        self.passages.iter().any(|passage| !passage.borrow().wanted.is_empty())
    }

    /// What is to be brought for the first time, of the next mirror that wants something.
    pub fn take_wanted(&mut self) -> Option<(Rc<RefCell<Passage>>, NewComer)> {
        self.passages.iter().find_map(|passage| {
            let wanted = passage.borrow_mut().wanted.pop()?;
            Some((passage.clone(), wanted))
        })
    }

    /// Who brings this leg now, if somebody does.
    fn comer_of(&self, passage: &Rc<RefCell<Passage>>, leg: usize) -> Option<&Comer> {
        let is_it = |(number, comer): &(usize, &Comer)| {
            Rc::ptr_eq(&comer.passage, passage)
                && passage.borrow().leg_of(*number) == Some(leg)
                && !matches!(comer.way, Way::Out)
        };
        self.comers.iter().enumerate().find(is_it).map(|(_, comer)| comer)
    }

    /// Whether this one may be brought.
    ///
    /// # Errors
    /// A sentence.
    pub fn check_new(
        &self,
        passage: &Rc<RefCell<Passage>>,
        wanted: &NewComer,
        leaves: &[Leaf],
    ) -> Result<(), String> {
        let (leg, mirror) = (wanted.leg, passage.borrow().mirror.clone());
        if let Some(comer) = self.comer_of(passage, leg) {
            return Err(format!(
                "leg {leg} of mirror {mirror} is {} already, which is there, or is waited for: `thinwire volume remove` gives that up",
                comer.chain.leaf
            ));
        }
        let own = Chain::leaf_of(&wanted.spec);
        let is_open = |comer: &&Comer| {
            own.is_some_and(|own| comer.chain.leaf.is_same(own)) && !matches!(comer.way, Way::Out)
        };
        match self.comers.iter().find(is_open) {
            Some(comer) if !matches!(leaves[comer.leaf], Leaf::Absent(_)) => {
                Err(format!("{} is a leg of a mirror here already", comer.chain.leaf))
            }
            _ => Ok(()),
        }
    }

    /// Outlines have so many nodes more from that one on.
    pub fn shift(&mut self, from: usize, by: usize) {
        self.comers.iter_mut().for_each(|comer| comer.chain.shift(from, by));
        for passage in &self.passages {
            let mut passage = passage.borrow_mut();
            if passage.node >= from {
                passage.node += by;
            }
        }
    }

    /// Begins to bring a leg for the first time, over that leaf: it is attached, or was opened.
    ///
    /// # Errors
    /// What was opened cannot be one: a sentence.
    pub fn add_new(
        &mut self,
        passage: &Rc<RefCell<Passage>>,
        (leg, leaf): (usize, usize),
        chain: Chain,
        leaves: &mut [Leaf],
    ) -> Result<(), String> {
        let way = match &leaves[leaf] {
            Leaf::Local(local) => {
                let (identity, grant) = local.granted();
                if let (Some(place), 1..) = (&self.grants, grant.generation) {
                    let name = chain.leaf.to_string();
                    local.set_unused(place.granted(&identity.identity, &name, grant));
                }
                let climb = Climb::begin(&self.host, &chain, Box::new(local.volume()));
                Way::Climbing(Box::new(climb.map_err(|error| error.to_string())?))
            }
            _ => Way::Waiting(Instant::now()),
        };
        let number = self.comers.len();
        passage.borrow_mut().add(number, leg, leaf);
        let (passage, told, is_unheard) = (passage.clone(), String::new(), false);
        let (backoff, is_on_trial, takes_over) = (Backoff::default(), false, false);
        #[rustfmt::skip]
        let comer = Comer { chain, leaf, passage, way, is_on_trial, backoff, takes_over, is_unheard, told };
        self.comers.push(comer);
        Ok(())
    }

    /// What each of it draws on, from the top down.
    fn budgets_of(&self, spec: &VolumeSpec) -> Result<Vec<Option<NodeBudget>>, Failure> {
        let mut all = vec![self.host.budgets().of(spec)?];
        if let VolumeSpec::Over { children, .. } = spec
            && let Some(below) = children.first()
        {
            all.extend(self.budgets_of(below)?);
        }
        Ok(all)
    }

    /// What is to be brought later after all.
    fn put_off(&self, passage: &Rc<RefCell<Passage>>, wanted: NewComer) {
        passage.borrow_mut().wanted.push(wanted);
    }

    /// The leaf of one, as far as it is opened at once: an export is attached later. Blocks as long as it takes to open a disk.
    fn open_new(&self, leaf: &VolumeSpec) -> Result<Leaf, Failure> {
        match leaf {
            VolumeSpec::Remote(_) => {
                Ok(Leaf::Absent(Failure::absent("it is about to be attached")))
            }
            local => {
                let (options, disk_options) = (&self.options, self.disk_options.clone());
                let options = VolumeOptions { read_only: false, ..options.clone() };
                LocalLeaf::open(&self.host, local, &options, disk_options, None).map(Leaf::Local)
            }
        }
    }
}

impl Bottom {
    /// Begins to bring what is wanted for the first time.
    pub fn bring_new(&mut self, tended: &mut Returned) {
        let mut later = Vec::new();
        while let Some((passage, wanted)) = self.returning.take_wanted() {
            let leg = wanted.leg;
            match self.bring_one(&passage, &wanted, tended) {
                Ok(()) => passage.borrow_mut().begun.push((leg, Ok(()))),
                Err(Failure { kind: FailureKind::Busy, .. }) if Instant::now() < wanted.until => {
                    later.push((passage, wanted));
                }
                Err(failure) => passage.borrow_mut().begun.push((leg, Err(failure.message))),
            }
        }
        later.into_iter().for_each(|(passage, wanted)| self.returning.put_off(&passage, wanted));
    }

    fn bring_one(
        &mut self,
        passage: &Rc<RefCell<Passage>>,
        wanted: &NewComer,
        tended: &mut Returned,
    ) -> Result<(), Failure> {
        self.returning.check_new(passage, wanted, &self.leaves).map_err(Failure::failed)?;
        let Some(leaf) = Chain::leaf_of(&wanted.spec) else {
            return Err(Failure::failed(super::super::passage::NOT_BROUGHT));
        };
        let budgets = self.returning.budgets_of(&wanted.spec)?;
        self.leaves.push(self.returning.open_new(leaf)?);
        let at = self.leaves.len() - 1;
        let (mirror, is_buffered) = {
            let passage = passage.borrow();
            (passage.node, passage.is_buffered)
        };
        let mut outline = Outline::of_nodes(std::mem::take(&mut self.outline));
        let (node, count) = outline.insert_leg(mirror, wanted.leg, &wanted.spec, at);
        self.returning.shift(node, count);
        let budgets = (node..node + count).zip(budgets);
        budgets.for_each(|(at, budget)| outline.set_budget(at, budget));
        let chain = Chain::of(&wanted.spec, at, &outline, is_buffered);
        self.outline = outline.into_nodes();
        let chain = chain.expect("it has a leaf");
        let of = (wanted.leg, at);
        if let Err(why) = self.returning.add_new(passage, of, chain, &mut self.leaves) {
            self.leaves[at] = Leaf::Absent(Failure::absent(why.clone()));
            return Err(Failure::failed(why));
        }
        tended.fds.extend(self.leaves[at].local().and_then(LocalLeaf::fd));
        tended.has_changed = true;
        Ok(())
    }
}
