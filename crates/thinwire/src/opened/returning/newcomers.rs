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

    /// Who brings this leg now, if somebody does: not who lets go of what was it, be it that this hangs.
    fn comer_of(&self, passage: &Rc<RefCell<Passage>>, leg: usize) -> Option<&Comer> {
        let is_it = |(number, comer): &(usize, &Comer)| {
            Rc::ptr_eq(&comer.passage, passage)
                && passage.borrow().leg_of(*number) == Some(leg)
                && !matches!(comer.way, Way::Out | Way::Ending(None))
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

    /// How a leg begins to come that was not there before, over that leaf: it is attached, or was opened.
    ///
    /// # Errors
    /// What was opened cannot be one: a sentence.
    fn way_of(&self, chain: &Chain, leaf: &Leaf) -> Result<Way, String> {
        let Leaf::Local(local) = leaf else { return Ok(Way::Waiting(Instant::now())) };
        let (identity, grant) = local.granted();
        if let (Some(place), 1..) = (&self.grants, grant.generation) {
            let name = chain.leaf.to_string();
            local.set_unused(place.granted(&identity.identity, &name, grant));
        }
        let climb = Climb::begin(&self.host, chain, Box::new(local.volume()));
        Ok(Way::Climbing(Box::new(climb.map_err(|error| error.to_string())?)))
    }

    /// Brings a leg for the first time, over that leaf.
    fn add_new(
        &mut self,
        passage: &Rc<RefCell<Passage>>,
        (leg, leaf): (usize, usize),
        chain: Chain,
        way: Way,
    ) {
        let number = self.comers.len();
        passage.borrow_mut().add(number, leg, leaf);
        let (passage, told, is_unheard) = (passage.clone(), String::new(), false);
        let (backoff, is_on_trial, takes_over) = (Backoff::default(), false, false);
        #[rustfmt::skip]
        let comer = Comer { chain, leaf, passage, way, is_on_trial, backoff, takes_over, is_unheard, told };
        self.comers.push(comer);
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
        let (leaf, at) = (self.returning.open_new(leaf)?, self.leaves.len());
        let (mirror, is_buffered) = {
            let passage = passage.borrow();
            (passage.node, passage.is_buffered)
        };
        let mut outline = Outline::of_nodes(self.outline.clone());
        let (node, count) = outline.insert_leg(mirror, wanted.leg, &wanted.spec, at);
        let budgets = (node..node + count).zip(budgets);
        budgets.for_each(|(at, budget)| outline.set_budget(at, budget));
        let chain = Chain::of(&wanted.spec, at, &outline, is_buffered);
        let chain = chain.expect("it has a leaf");
        // Of one that comes to nothing here nothing is left: whoever serves the volume next would look for what was held there. For what comes to nothing later see
        // [`Passage::ends`].
        let way = self.returning.way_of(&chain, &leaf).map_err(Failure::failed)?;
        self.leaves.push(leaf);
        self.outline = outline.into_nodes();
        self.returning.shift(node, count);
        self.returning.add_new(passage, (wanted.leg, at), chain, way);
        tended.fds.extend(self.leaves[at].local().and_then(LocalLeaf::fd));
        tended.has_changed = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use thinwire_modules::mirror::{LegKeeper, LegsInUse};
    use thinwire_runtime::disk::{DiskOptions, open_store};
    use thinwire_volume::load_writer;

    use super::super::super::outline::OutlineNode;
    use super::super::super::passage::LegReturn;
    use super::*;
    use crate::cli::WireArgs;
    use crate::host::Host;
    use crate::keys::Security;
    use crate::testing::TempDir;

    /// A mirror in use of one leg, and the image of another one.
    struct InUse {
        dir: TempDir,
        bottom: Bottom,
        passage: Rc<RefCell<Passage>>,
    }

    impl InUse {
        fn new(name: &str) -> Self {
            let dir = TempDir::new(name);
            std::fs::write(dir.path().join("new.img"), vec![0; 4 << 20]).unwrap();
            let host = Host::new().unwrap();
            let run_dir = dir.path().join("run");
            let options = VolumeOptions::new(Security::default(), &WireArgs::default(), run_dir);
            let mut returning = Returning::new(&host, &options, &DiskOptions::default(), None);
            let place = ("t.toml#m".into(), "t.toml#m".into());
            let passage = Rc::new(RefCell::new(Passage::new(
                place,
                vec![None],
                std::iter::once(0..1).collect(),
            )));
            returning.passages.push(passage.clone());
            let node = |name: &str, depth, leaf| OutlineNode {
                name: name.into(),
                depth,
                leaf,
                ..OutlineNode::default()
            };
            let bottom = Bottom {
                returning,
                leaves: vec![Leaf::Absent(Failure::absent("it is another's"))],
                commons: Vec::new(),
                seen: Vec::new(),
                lacking: Vec::new(),
                outline: vec![node("m", 0, None), node("a", 1, Some(0))],
                failures: Default::default(),
                readers: Vec::new(),
            };
            InUse { dir, bottom, passage }
        }

        fn image(&self) -> std::path::PathBuf {
            self.dir.path().join("new.img")
        }

        /// Brings that as leg 1.
        fn bring(&mut self, spec: &str) -> Result<(), String> {
            let (spec, until) = (spec.parse().unwrap(), Instant::now());
            self.passage.borrow_mut().wanted.push(NewComer { leg: 1, spec, until });
            self.bottom.bring_new(&mut Returned::default());
            let (leg, begun) = self.passage.borrow_mut().begun.pop().unwrap();
            assert_eq!(leg, 1);
            begun
        }

        /// How many leaves it has, how many it is held under, nodes of its outline, and who brings legs.
        fn counts(&self) -> [usize; 4] {
            let Bottom { leaves, outline, returning, .. } = &self.bottom;
            [leaves.len(), self.bottom.held().len(), outline.len(), returning.comers.len()]
        }
    }

    /// What is opened, and cannot be a leg, has no place afterwards: neither in the record, which the next one who serves the volume compares, nor in its outline.
    #[test]
    fn a_newcomer_that_comes_to_nothing_leaves_nothing_behind() {
        let mut mirror = InUse::new("newcomer-in-vain");
        let image = mirror.image();
        assert_eq!(mirror.counts(), [1, 1, 2, 0]);
        for _ in 0..2 {
            let why = mirror.bring(&format!("slice:[{}]?size=64M", image.display())).unwrap_err();
            assert!(!why.is_empty());
            assert_eq!(mirror.counts(), [1, 1, 2, 0], "{why}");
        }
        // It is free for another way.
        mirror.bring(&image.display().to_string()).unwrap();
        assert_eq!(mirror.counts(), [2, 2, 3, 1]);
    }

    /// A disk of this machine that was added and is removed again is let go of, in order: the record says so at once, it may be added again, and others may have it.
    #[test]
    fn a_disk_that_is_removed_again_is_let_go_of() {
        let mut mirror = InUse::new("newcomer-removed");
        let image = mirror.image();
        let host = mirror.bottom.returning.host.clone();
        mirror.bring(&image.display().to_string()).unwrap();
        let stand =
            |removed: u8| LegsInUse { in_sync: 3, used: 3 & !removed, out: removed, removed };
        let mut keeper = LegReturn(mirror.passage.clone());
        keeper.look(stand(0));
        // The mirror takes it.
        let volume = Box::new(mirror.bottom.leaves[1].local().unwrap().volume());
        mirror.bottom.returning.comers[0].way = Way::Brought;
        mirror.passage.borrow_mut().took(0, 1);
        mirror.passage.borrow_mut().taken.push((0, Ok(())));
        let tend = |mirror: &mut InUse| {
            host.turn(crate::open::Wait::No).unwrap();
            mirror.bottom.tend().has_changed
        };
        assert!(tend(&mut mirror), "it is there");
        assert!(!tend(&mut mirror));
        assert!(!keeper.keeps(1), "it does not come back when it is dropped");
        keeper.look(stand(2));
        assert!(keeper.keeps(1), "it is let go of");
        keeper.let_go(1, volume);
        let end = Instant::now() + std::time::Duration::from_secs(10);
        while !tend(&mut mirror) {
            assert!(Instant::now() < end, "it is not let go of");
        }
        assert_eq!(mirror.counts(), [2, 1, 3, 1]);
        let pool = host.pool();
        let store = open_store(&image, &DiskOptions::default(), &pool, &mut |_| {});
        let mut store = store.expect("nobody has it");
        assert!(!load_writer(&mut *store.volume).unwrap().is_held());
        drop(store);
        mirror.bring(&image.display().to_string()).unwrap();
    }

    /// What was added and turns out to be no leg is let go of, and the record does not count it: whoever serves the volume next does not have it.
    #[test]
    fn a_disk_that_is_no_leg_is_not_counted() {
        let mut mirror = InUse::new("newcomer-unfit");
        let image = mirror.image();
        let host = mirror.bottom.returning.host.clone();
        let mut keeper = LegReturn(mirror.passage.clone());
        keeper.look(LegsInUse { in_sync: 1, used: 1, out: 0, removed: 0 });
        mirror.bring(&image.display().to_string()).unwrap();
        assert_eq!(mirror.counts(), [2, 2, 3, 1]);
        let end = Instant::now() + std::time::Duration::from_secs(10);
        while !matches!(mirror.bottom.returning.comers[0].way, Way::Out) {
            assert!(Instant::now() < end, "it has no labels, and is not let go of");
            host.turn(crate::open::Wait::No).unwrap();
            let has_changed = mirror.bottom.tend().has_changed;
            let is_out = matches!(mirror.bottom.returning.comers[0].way, Way::Out);
            assert!(has_changed || !is_out, "it is put on record");
        }
        assert_eq!(mirror.counts(), [2, 1, 3, 1]);
        mirror.bring(&image.display().to_string()).unwrap();
        assert_eq!(mirror.counts(), [3, 2, 4, 2]);
    }

    /// A removed disk that hangs is let go of once it answers. Another one is its leg meanwhile, and it is none again itself.
    #[test]
    fn a_removed_disk_that_hangs_keeps_no_other_out() {
        let mut mirror = InUse::new("newcomer-hangs");
        let (image, other) = (mirror.image(), mirror.dir.path().join("other.img"));
        std::fs::write(&other, vec![0; 4 << 20]).unwrap();
        mirror.bring(&image.display().to_string()).unwrap();
        mirror.passage.borrow_mut().took(0, 1);
        mirror.bottom.returning.comers[0].way = Way::Used;
        let why = mirror.bring(&other.display().to_string()).unwrap_err();
        assert!(why.contains("already"), "{why}");
        // Its I/O does not come back: that is not heard of.
        mirror.bottom.returning.comers[0].way = Way::Ending(None);
        mirror.bring(&image.display().to_string()).unwrap_err();
        mirror.bring(&other.display().to_string()).unwrap();
        assert_eq!(mirror.counts(), [3, 2, 4, 2]);
        let passage = mirror.passage.borrow();
        assert_eq!([passage.leg_of(0), passage.leg_of(1)], [None, Some(1)]);
    }
}
