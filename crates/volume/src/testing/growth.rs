//! What every volume that can grow must do when it does.

use thinwire_buffer::{Pool, SegList};

use super::conformance::finish;
use crate::{ErrorKind, Geometry, Io, Op, Volume, VolumeEvent};

/// Polls before a growth counts as forgotten.
const POLLS_MAX: usize = 10_000;

/// Has an otherwise idle volume find out that what it lies on has room for `bytes` now, and panics at
/// what no correct volume does. `wait` is called when nothing is ready, as by [`super::exercise`].
pub fn offers_growth(volume: &mut dyn Volume, wait: &mut dyn FnMut(), bytes: u64) {
    let before = volume.geometry();
    assert!(before.bytes < bytes, "there is nothing to find out");
    let len = (bytes - before.bytes).min(4096);
    let at = |offset| Io::new(1, Op::Read, offset, len);
    let refused = |volume: &dyn Volume, offset| volume.geometry().check(&at(offset));
    assert_eq!(refused(volume, before.bytes), Err(ErrorKind::Invalid), "not offered yet");
    let counted = volume.events();
    let mut polls = 0;
    volume.refresh();
    while !has_news(volume, counted) {
        assert_eq!(volume.outstanding(), 0, "an I/O that nobody has submitted");
        polls += 1;
        assert!(polls < POLLS_MAX, "it never tells");
        wait();
    }
    let after = Geometry { bytes, ..before };
    assert_eq!(take(volume), [VolumeEvent::Resized { bytes }]);
    assert_eq!((volume.geometry(), volume.outstanding()), (after, 0));
    let data = Pool::new(0).copy_of(&vec![7; len as usize]).freeze();
    let written = Io { data: SegList::of(data), ..Io::new(1, Op::Write, bytes - len, len) };
    assert_eq!(finish(volume, wait, written).result, Ok(()), "what is offered is there");
    let read = finish(volume, wait, at(bytes - len)).data.to_vec();
    assert!(read == vec![7; len as usize], "what was written to what is offered");
    assert_eq!(refused(volume, bytes), Err(ErrorKind::Invalid));
    let counted = volume.events();
    volume.refresh();
    for _ in 0..POLLS_MAX / 100 {
        assert!(!has_news(volume, counted), "it has told already");
        wait();
    }
    assert_eq!(take(volume), []);
}

fn has_news(volume: &mut dyn Volume, counted: u64) -> bool {
    let mut done = Vec::new();
    volume.poll(&mut done);
    assert!(done.is_empty(), "nobody has submitted an I/O");
    volume.events() != counted
}

fn take(volume: &mut dyn Volume) -> Vec<VolumeEvent> {
    let mut events = Vec::new();
    volume.poll_events(&mut events);
    events
}

#[cfg(test)]
mod tests {
    use super::super::MemDisk;
    use super::*;
    use crate::Unaligned;
    use crate::stores::{FileStore, Writeback};

    const MIB: u64 = 1 << 20;

    /// A store of 1 MiB on a disk that has become larger.
    fn grown(bytes: u64, seed: u64) -> FileStore<MemDisk> {
        let mut store =
            FileStore::new(MemDisk::new(MIB, 512, seed), 512, &Pool::new(MIB as usize)).unwrap();
        store.disk_mut().grow(bytes);
        store
    }

    #[test]
    fn a_store_and_whatever_stands_on_it_offer_what_their_disk_grows_by() {
        for seed in 0..20 {
            // A part of a block waits for the rest.
            offers_growth(&mut grown(2 * MIB + 511, seed), &mut || {}, 2 * MIB);
            offers_growth(&mut Box::new(grown(3 * MIB, seed)), &mut || {}, 3 * MIB);
            let pool = Pool::new(MIB as usize);
            let mut any_byte = Unaligned::new(grown(2 * MIB, seed), pool.clone());
            offers_growth(&mut any_byte, &mut || {}, 2 * MIB);
            let mut held = Writeback::new(grown(2 * MIB, seed), 1 << 20, &pool);
            offers_growth(&mut held, &mut || {}, 2 * MIB);
        }
    }

    #[test]
    #[should_panic(expected = "it never tells")]
    fn a_module_that_passes_nothing_on_is_found() {
        struct Deaf(FileStore<MemDisk>);
        impl Volume for Deaf {
            fn geometry(&self) -> Geometry {
                self.0.geometry()
            }
            fn identity(&self) -> crate::Identity {
                self.0.identity()
            }
            fn submit(&mut self, io: Io) {
                self.0.submit(io);
            }
            fn poll(&mut self, done: &mut Vec<crate::Completion>) {
                self.0.poll(done);
            }
            fn outstanding(&self) -> usize {
                self.0.outstanding()
            }
        }
        offers_growth(&mut Deaf(grown(2 * MIB, 1)), &mut || {}, 2 * MIB);
    }
}
