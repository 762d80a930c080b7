//! What every volume that stands on others must do when one of these has lost something.

use thinwire_buffer::{Pool, SegList};

use super::Puppet;
use crate::{Completion, Io, Op, Volume, VolumeEvent};

/// Polls before an I/O counts as forgotten.
const POLLS_MAX: usize = 1000;

/// Has `below`, on which an otherwise idle `volume` stands, complete a read after it has lost something,
/// and panics unless that is told, once, and no later than the completion. `drive` is called before each
/// poll: it drives whatever is between the two.
pub fn tells_losses(below: &Puppet, volume: &mut dyn Volume, drive: &mut dyn FnMut()) {
    for round in 1..=2 {
        let counted = volume.events();
        // Other bytes in each round, for those that keep what they have read.
        volume.submit(Io::new(round, Op::Read, round * 4096 - 4096, 4096));
        drive();
        volume.poll(&mut Vec::new());
        let io = below.take_one();
        let mut completion = Completion::new(io.token, Ok(()));
        completion.data = SegList::of(Pool::new(0).get_zeroed(io.len as usize).freeze());
        below.tell(VolumeEvent::Lost);
        below.complete(completion);
        let mut done = Vec::new();
        for _ in 0..POLLS_MAX {
            drive();
            volume.poll(&mut done);
            if !done.is_empty() {
                break;
            }
        }
        assert_eq!(done.len(), 1, "the read never completes");
        assert_ne!(
            volume.events(),
            counted,
            "it completes what has seen a loss that it does not tell"
        );
        let mut events = Vec::new();
        volume.poll_events(&mut events);
        assert_eq!(events, [VolumeEvent::Lost]);
        volume.poll_events(&mut events);
        assert_eq!(events.len(), 1, "it tells one loss twice");
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemDisk;
    use super::*;
    use crate::stores::Writeback;
    use crate::{Geometry, Identity, Recorded, Unaligned};

    fn check(over: impl FnOnce(Box<dyn Volume>, &Pool) -> Box<dyn Volume>) {
        let below = Puppet::new(1, Puppet::GEOMETRY);
        let mut volume = over(Box::new(below.clone()), &Pool::new(1 << 20));
        tells_losses(&below, &mut *volume, &mut || {});
    }

    #[test]
    fn whatever_stands_on_a_volume_tells_its_losses() {
        check(|below, _| below);
        check(|below, pool| Box::new(Unaligned::new(below, pool.clone())));
        check(|below, pool| Box::new(Writeback::new(below, 0, pool)));
        check(|below, _| Box::new(Recorded::new(below, MemDisk::new(4096, 512, 1), vec![])));
    }

    /// As one would write it who thinks of I/O alone.
    struct Deaf(Box<dyn Volume>);

    impl Volume for Deaf {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn identity(&self) -> Identity {
            self.0.identity()
        }
        fn submit(&mut self, io: Io) {
            self.0.submit(io);
        }
        fn poll(&mut self, done: &mut Vec<Completion>) {
            self.0.poll(done);
        }
        fn outstanding(&self) -> usize {
            self.0.outstanding()
        }
    }

    #[test]
    #[should_panic(expected = "a loss that it does not tell")]
    fn one_that_passes_on_no_events_is_found() {
        check(|below, _| Box::new(Deaf(below)));
    }
}
