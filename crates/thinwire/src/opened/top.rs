//! What users have of a volume whatever it is made of.

use thinwire_buffer::Time;
use thinwire_volume::{
    CacheReport, Completion, Geometry, Identity, Io, MirrorReport, Port, Scrub, Volume,
    VolumeEvent, Work,
};

use super::tree::Root;

/// The top of all that belongs to a volume.
pub(super) enum Top {
    /// One attachment: its port tells whether there are completions.
    Port(Port),
    /// Anything else. Keeps completions that were taken in to find out whether there are any.
    Other { below: Box<dyn Volume>, ready: Vec<Completion>, read_only: bool },
}

impl Top {
    pub fn new(tree: Root, read_only: bool) -> Self {
        match tree {
            Root::Port(port) => Top::Port(port),
            Root::Other(below) => Top::Other { below, ready: Vec::new(), read_only },
        }
    }

    /// Whether there are completions.
    pub fn gather(&mut self) -> bool {
        match self {
            Top::Port(port) => port.has_completions(),
            Top::Other { below, ready, .. } => {
                below.poll(ready);
                !ready.is_empty()
            }
        }
    }

    fn below(&self) -> &dyn Volume {
        match self {
            Top::Port(port) => port,
            Top::Other { below, .. } => below,
        }
    }

    fn below_mut(&mut self) -> &mut dyn Volume {
        match self {
            Top::Port(port) => port,
            Top::Other { below, .. } => below,
        }
    }
}

impl Volume for Top {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.below().geometry();
        if let Top::Other { read_only, .. } = self {
            geometry.features.read_only |= *read_only;
        }
        geometry
    }

    fn identity(&self) -> Identity {
        self.below().identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        match self {
            Top::Port(port) => port.submit(io),
            Top::Other { below, .. } => below.submit(io),
        }
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        match self {
            Top::Port(port) => port.poll(done),
            Top::Other { below, ready, .. } => {
                done.append(ready);
                below.poll(done);
            }
        }
    }

    fn outstanding(&self) -> usize {
        match self {
            Top::Port(port) => port.outstanding(),
            Top::Other { below, ready, .. } => below.outstanding() + ready.len(),
        }
    }

    fn copied_bytes(&self) -> u64 {
        self.below().copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below().events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.below_mut().poll_events(events);
    }

    fn wind_up(&mut self) {
        self.below_mut().wind_up();
    }

    fn is_wound_up(&self) -> bool {
        self.below().is_wound_up()
    }

    fn mirrors(&self, found: &mut Vec<MirrorReport>) {
        self.below().mirrors(found);
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        self.below().caches(found);
    }

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.below_mut().scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.below_mut().works(visit);
    }

    fn is_timed(&self) -> bool {
        self.below().is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        self.below_mut().turn(now)
    }

    fn refresh(&mut self) -> bool {
        self.below_mut().refresh()
    }
}
