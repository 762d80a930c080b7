//! [`Composite`]: the base of modules, which does what all of them do alike.

use thinwire_buffer::Time;

use thinwire_volume::{
    CacheReport, Completion, ErrorKind, Geometry, Identity, Io, MirrorReport, Op, Scrub, Volume,
    VolumeEvent, Work,
};

use crate::below::Below;
use crate::child::Child;
use crate::events::Growth;
use crate::shape::IdentityHash;

/// What makes a module the module that it is: where its I/Os go.
pub trait Layout {
    /// Its name in the table of modules, and in errors.
    const NAME: &'static str;

    /// It is all of the only volume below, whose writer record is the whole's. Default: no volume of several can keep one.
    const HAS_RECORD_BELOW: bool = false;

    /// Hands an I/O down, which is no flush and has passed [`Geometry::check`], by exactly one call of
    /// `below`.
    fn submit(&mut self, io: Io, below: &mut Below);

    /// A volume below has grown to so many bytes: the size of the whole by now, which has this shape, or
    /// nothing if what it has grown by has no place. Default: it has none.
    fn grow(&mut self, child: usize, bytes: u64, whole: &Geometry) -> Option<u64> {
        let _ = (child, bytes, whole);
        None
    }
}

/// A volume made of volumes. Keeps the rules of [modules](super), but for where I/Os go, which its
/// [`Layout`] decides, as it decides what has a place of that by which volumes grow.
pub struct Composite<L> {
    layout: L,
    below: Below,
    geometry: Geometry,
    identity: Identity,
    /// What no volume below can do.
    refused: Vec<Completion>,
    growth: Growth,
}

impl<L: Layout> Composite<L> {
    /// Of `children`, which the layout and the geometry have been made for. What else than their names
    /// makes another volume of it, as where each begins, is in `identity`, which they are added to.
    pub fn new(
        layout: L,
        geometry: Geometry,
        mut identity: IdentityHash,
        children: Vec<Child>,
    ) -> Self {
        children.iter().for_each(|child| identity.add_volume(child.identity()));
        let (growth, identity) = (Growth::of(&children), identity.identity());
        let (below, refused) = (Below::new(children), Vec::new());
        Composite { layout, below, geometry, identity, refused, growth }
    }
}

impl<L: Layout> Composite<L> {
    /// Where its I/Os go.
    pub(super) fn layout(&self) -> &L {
        &self.layout
    }

    /// Hands an I/O to one volume, at the offset that it has there, which may lie behind all that the layout knows of.
    pub(super) fn submit_to(&mut self, child: usize, io: Io) {
        self.below.pass_on(child, io.offset, io);
    }
}

impl<L: Layout> Volume for Composite<L> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    fn submit(&mut self, io: Io) {
        debug_assert!(io.op.is_record() || self.geometry.check(&io) == Ok(()), "{io:?}");
        match io.op {
            Op::Flush => self.below.flush(io),
            Op::Cut => self.below.cut_all(io),
            Op::StoreWriter if self.geometry.features.read_only => {
                let error = io.error(ErrorKind::ReadOnly, L::NAME);
                self.refused.push(Completion::new(io.token, Err(error)));
            }
            Op::LoadWriter | Op::StoreWriter if L::HAS_RECORD_BELOW => self.below.pass_on(0, 0, io),
            // It is kept by whoever serves this one.
            Op::LoadWriter | Op::StoreWriter => {
                let error = io.error(ErrorKind::Unsupported, L::NAME);
                self.refused.push(Completion::new(io.token, Err(error)));
            }
            _ => self.layout.submit(io, &mut self.below),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
        done.append(&mut self.refused);
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding() + self.refused.len()
    }

    fn is_at_rest(&self) -> bool {
        self.outstanding() == 0 && self.below.are_at_rest()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let Composite { layout, below, geometry, growth, .. } = self;
        growth.take_events(layout, below, geometry, events);
    }

    fn wind_up(&mut self) {
        self.below.children().iter_mut().for_each(|child| child.volume.wind_up());
    }

    fn is_wound_up(&self) -> bool {
        self.below.are_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below.caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.below.children().iter_mut().for_each(|child| child.volume.scrubs(visit));
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.below.children().iter_mut().for_each(|child| child.volume.works(visit));
    }

    fn is_timed(&self) -> bool {
        self.below.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        let turned = self.below.children().iter_mut().map(|child| child.volume.turn(now));
        turned.min().unwrap_or(Time::NEVER)
    }

    fn refresh(&mut self) -> bool {
        self.below.children().iter_mut().fold(false, |any, child| child.volume.refresh() | any)
    }
}
