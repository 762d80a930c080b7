//! [`Layer`]: the base of volumes over one other, which are that one but for what they do themselves.

use thinwire_buffer::Time;

use crate::{
    CacheReport, Completion, Geometry, Identity, Io, MirrorReport, Scrub, Volume, VolumeEvent, Work,
};

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

    /// What has happened below, and somebody is about to hear of.
    fn on_events(&mut self, events: &mut [VolumeEvent]) {
        let _ = events;
    }

    /// It waits for something itself, as [`Volume::is_timed`].
    fn own_is_timed(&self) -> bool {
        false
    }

    /// What time it is, as [`Volume::turn`]; the volume below hears of it by itself.
    fn own_turn(&mut self, now: Time) -> Time {
        let _ = now;
        Time::NEVER
    }

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
        let start = events.len();
        self.below_mut().poll_events(events);
        self.on_events(&mut events[start..]);
    }

    fn refresh(&mut self) -> bool {
        self.below_mut().refresh()
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

    fn scrubs(&mut self, visit: &mut dyn FnMut(&mut dyn Scrub)) {
        self.below_mut().scrubs(visit);
    }

    fn works(&mut self, visit: &mut dyn FnMut(&mut dyn Work)) {
        self.below_mut().works(visit);
    }

    fn is_timed(&self) -> bool {
        self.own_is_timed() || self.below().is_timed()
    }

    fn turn(&mut self, now: Time) -> Time {
        let own = self.own_turn(now);
        own.min(self.below_mut().turn(now))
    }

    fn caches(&self, found: &mut Vec<CacheReport>) {
        found.extend(self.own_cache());
        self.below().caches(found);
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

#[cfg(test)]
mod tests {
    use thinwire_buffer::Pool;

    use super::*;
    use crate::testing::Puppet;
    use crate::{Owing, Unaligned};

    /// A layer that waits for something itself.
    struct Waits(Box<dyn Volume>);

    impl Layer for Waits {
        type Below = dyn Volume;

        fn below(&self) -> &Self::Below {
            &*self.0
        }

        fn below_mut(&mut self) -> &mut Self::Below {
            &mut *self.0
        }

        fn take(&mut self, io: Io) {
            self.0.submit(io);
        }

        fn bring(&mut self, done: &mut Vec<Completion>) {
            self.0.poll(done);
        }

        fn taken(&self) -> usize {
            self.0.outstanding()
        }

        fn own_is_timed(&self) -> bool {
            true
        }

        fn own_turn(&mut self, _: Time) -> Time {
            Time(40)
        }
    }

    #[test]
    fn time_goes_through_and_the_earliest_wish_comes_back() {
        let puppet = Puppet::new(1, Puppet::GEOMETRY);
        let owing = Owing::new(puppet.clone(), false);
        let mut volume: Box<dyn Volume> = Box::new(Unaligned::new(owing, Pool::new(0)));
        assert!(!volume.is_timed() && Waits(Box::new(puppet.clone())).is_timed());
        puppet.want_turn(Time(1));
        assert!(volume.is_timed());
        for (now, wish) in [(1, 30), (2, 50), (3, u64::MAX)] {
            puppet.want_turn(Time(wish));
            assert_eq!(volume.turn(Time(now)), Time(wish));
            assert_eq!(puppet.turned(), Some(Time(now)));
        }
        let mut waits = Waits(volume);
        assert_eq!(waits.turn(Time(4)), Time(40), "its own is earlier");
        puppet.want_turn(Time(30));
        assert_eq!((waits.turn(Time(5)), puppet.turned()), (Time(30), Some(Time(5))));
    }
}
