//! [`Layer`]: the base of volumes over one other, which are that one but for what they do themselves.

use crate::{CacheReport, Completion, Geometry, Identity, Io, Volume, VolumeEvent};

/// A volume that has the shape, identity and events of the one below it: whatever is not said here it passes on.
/// Every one is a [`Volume`].
pub trait Layer {
    /// What it stands on.
    type Below: Volume + ?Sized;

    /// That.
    fn below(&self) -> &Self::Below;

    /// That, to be used.
    fn below_mut(&mut self) -> &mut Self::Below;

    /// Takes an I/O, as [`Volume::submit`].
    fn take(&mut self, io: Io);

    /// Appends what is complete, as [`Volume::poll`]: polls the volume below each time, also if nothing is outstanding.
    fn bring(&mut self, done: &mut Vec<Completion>);

    /// I/Os taken and not yet brought back, as [`Volume::outstanding`].
    fn taken(&self) -> usize;

    /// Payload bytes that it has copied itself.
    fn own_copied_bytes(&self) -> u64 {
        0
    }

    /// Somebody is about to hear of what has happened below.
    fn before_events(&mut self) {}

    /// How it does, if it is a cache.
    fn own_cache(&self) -> Option<CacheReport> {
        None
    }
}

impl<L: Layer> Volume for L {
    fn geometry(&self) -> Geometry {
        self.below().geometry()
    }

    fn identity(&self) -> Identity {
        self.below().identity()
    }

    #[inline]
    fn submit(&mut self, io: Io) {
        self.take(io);
    }

    #[inline]
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.bring(done);
    }

    fn outstanding(&self) -> usize {
        self.taken()
    }

    fn is_at_rest(&self) -> bool {
        self.taken() == 0 && self.below().is_at_rest()
    }

    fn copied_bytes(&self) -> u64 {
        self.own_copied_bytes() + self.below().copied_bytes()
    }

    fn events(&self) -> u64 {
        self.below().events()
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.before_events();
        self.below_mut().poll_events(events);
    }

    fn refresh(&mut self) -> bool {
        self.below_mut().refresh()
    }

    fn cache(&self) -> Option<CacheReport> {
        self.own_cache().or_else(|| self.below().cache())
    }
}

impl<V: Volume + ?Sized> Layer for Box<V> {
    type Below = V;

    fn below(&self) -> &V {
        self
    }

    fn below_mut(&mut self) -> &mut V {
        self
    }

    #[inline]
    fn take(&mut self, io: Io) {
        (**self).submit(io);
    }

    #[inline]
    fn bring(&mut self, done: &mut Vec<Completion>) {
        (**self).poll(done);
    }

    fn taken(&self) -> usize {
        (**self).outstanding()
    }
}
