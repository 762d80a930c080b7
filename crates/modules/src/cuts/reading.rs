//! [`OfCut`]: a snapshot that is one of several, for whoever puts those together again.

use thinwire_buffer::Time;
use thinwire_volume::{
    CacheReport, Completion, Geometry, Identity, Io, MirrorReport, Scrub, Volume, VolumeEvent, Work,
};

use super::NAME;
use crate::IdentityHash;
use crate::meta::Label;

/// What a snapshot of a volume is known by that is of that cut; the name is that of the volume.
pub fn identity_of_cut(volume: [u8; 16], id: u64) -> Identity {
    let mut name = IdentityHash::new(NAME);
    name.add(&volume);
    name.add(&id.to_be_bytes());
    Identity { incarnation: id, ..name.identity() }
}

/// Of which cut a part is that has this label and is known by that; none if it is the part itself, or something else.
pub fn cut_of(label: &Label, content: Identity) -> Option<u64> {
    let id = content.incarnation;
    (content == identity_of_cut(label.content.identity, id)).then_some(id)
}

/// A volume under another identity: of a part what it was cut of, by its label; of the whole that of the cut.
pub struct OfCut {
    below: Box<dyn Volume>,
    identity: Identity,
}

impl OfCut {
    /// A snapshot, as the part that its label says.
    pub fn part(below: Box<dyn Volume>, label: &Label) -> Self {
        OfCut { below, identity: label.content }
    }

    /// What snapshots of that cut make.
    pub fn whole(below: Box<dyn Volume>, id: u64) -> Self {
        let identity = identity_of_cut(below.identity().identity, id);
        OfCut { below, identity }
    }
}

impl Volume for OfCut {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn identity(&self) -> Identity {
        self.identity
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        self.below.submit(io);
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.below.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.below.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.below.copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below.events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.below.poll_events(events);
    }

    fn is_at_rest(&self) -> bool {
        self.below.is_at_rest()
    }

    fn refresh(&mut self) -> bool {
        self.below.refresh()
    }

    fn wind_up(&mut self) {
        self.below.wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.below.is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below.mirrors(found);
    }

    fn is_timed(&self) -> bool {
        self.below.is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.below.turn(now)
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.below.scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.below.works(visit);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below.caches(found);
    }
}
