//! The right to write content that no target serves: a writer generation like any other
//! (`docs/protocol.md`, "Writer generations"; rule 3). Who was on record before is fenced when it comes
//! back, so that its unflushed writes are never put over newer ones.

use crate::{
    ChangeError, IoError, LeafGrant, Volume, WriterRecord, change_writer, load_writer, store_writer,
};

/// The right to write a volume, taken by whoever has opened it and holds its lock. Ends with
/// [`Grant::release`], [`Grant::undo`], or, if it is only dropped, stays on record as after a crash.
#[derive(Debug)]
pub struct Grant {
    before: WriterRecord,
    now: WriterRecord,
}

/// Why nobody may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// Who may write cannot be read.
    Unread(IoError),
    /// Writer generations are never used twice, and the last one is on record: the content can be
    /// written again only as a copy, whose record begins anew.
    Exhausted,
    /// Somebody else is on record.
    Held(WriterRecord),
    /// The new writer could not be recorded. The record stands as it was.
    Refused(IoError),
    /// The same, but after a crash either record may be found: nobody may write, or be told no, before
    /// `before` has been stored.
    Unresolved {
        /// What went wrong first.
        error: IoError,
        /// The record to put back.
        before: Box<WriterRecord>,
    },
}

impl Grant {
    /// Makes `holder` the writer on record, under the next generation. Refused if another one is there,
    /// unless `take_over`. Control path; blocks.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn take(
        volume: &mut dyn Volume,
        holder: [u8; 16],
        name: &str,
        take_over: bool,
    ) -> Result<Self, GrantError> {
        let before = load_writer(volume).map_err(GrantError::Unread)?;
        if before.is_held() && before.holder != holder && !take_over {
            return Err(GrantError::Held(before));
        }
        let next = before.generation.checked_add(1).ok_or(GrantError::Exhausted)?;
        let now = before.granted(next, holder, name, before.last_written());
        match change_writer(volume, before, now) {
            Ok(()) => Ok(Grant { before, now }),
            Err(ChangeError::Refused(error)) => Err(GrantError::Refused(error)),
            Err(ChangeError::Unresolved(error)) => {
                Err(GrantError::Unresolved { error, before: Box::new(before) })
            }
        }
    }

    /// The generation under which it writes.
    pub fn generation(&self) -> u64 {
        self.now.generation
    }

    /// The same, and since when nobody has written.
    pub fn granted(&self) -> LeafGrant {
        self.now.grant()
    }

    /// An orderly end: the last flush has succeeded, and nobody is the writer any more. Whichever
    /// record is found after a failure, who was on record before is fenced.
    pub fn release(self, volume: &mut dyn Volume) -> Result<(), IoError> {
        store_writer(volume, self.now.released())
    }

    /// An end before anything was written: the record is put back, as if nobody had asked. Only while
    /// the lock is still held.
    pub fn undo(self, volume: &mut dyn Volume) -> Result<(), IoError> {
        store_writer(volume, self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::FileStore;
    use crate::testing::MemDisk;
    use thinwire_buffer::Pool;

    const REMOTE: [u8; 16] = [1; 16];
    const LOCAL: [u8; 16] = [2; 16];

    fn store(record: WriterRecord) -> FileStore<MemDisk> {
        let mut store = FileStore::new(MemDisk::new(1 << 20, 512, 1), 512, &Pool::new(0)).unwrap();
        store_writer(&mut store, record).unwrap();
        store
    }

    #[test]
    fn a_stranger_needs_to_take_over_and_who_comes_back_does_not() {
        let remote = WriterRecord::new(4, REMOTE, "node1");
        let mut store = store(remote);
        let refused = Grant::take(&mut store, LOCAL, "here", false).unwrap_err();
        assert_eq!(refused, GrantError::Held(remote));
        assert_eq!(load_writer(&mut store), Ok(remote), "a refusal leaves everything as it was");

        // Dropped as in a crash.
        Grant::take(&mut store, LOCAL, "here", true).unwrap();
        let crashed = WriterRecord::new(5, LOCAL, "here");
        assert_eq!(load_writer(&mut store), Ok(crashed));
        let grant = Grant::take(&mut store, LOCAL, "again", false).unwrap();
        assert_eq!(load_writer(&mut store), Ok(WriterRecord::new(6, LOCAL, "again")));
        grant.release(&mut store).unwrap();
        assert_eq!(load_writer(&mut store), Ok(WriterRecord::new(6, [0; 16], "")));

        // Nobody is on record: no leave is needed, and the generation goes on.
        Grant::take(&mut store, REMOTE, "", false).unwrap();
        assert_eq!(load_writer(&mut store), Ok(WriterRecord::new(7, REMOTE, "")));
    }

    #[test]
    fn the_last_generation_is_used_once() {
        let last = WriterRecord::new(u64::MAX - 1, [0; 16], "");
        let mut store = store(last);
        Grant::take(&mut store, LOCAL, "here", false).unwrap().release(&mut store).unwrap();
        let end = WriterRecord::new(u64::MAX, [0; 16], "");
        assert_eq!(load_writer(&mut store), Ok(end));
        for take_over in [false, true] {
            let refused = Grant::take(&mut store, LOCAL, "here", take_over).unwrap_err();
            assert_eq!(refused, GrantError::Exhausted);
        }
        assert_eq!(load_writer(&mut store), Ok(end), "nothing was changed");
    }

    #[test]
    fn what_came_to_nothing_is_put_back() {
        let remote = WriterRecord::new(4, REMOTE, "node1");
        let mut store = store(remote);
        Grant::take(&mut store, LOCAL, "here", true).unwrap().undo(&mut store).unwrap();
        assert_eq!(load_writer(&mut store), Ok(remote));
    }

    /// Which of the steps (old, new, old again) fail, and what is told and found.
    #[test]
    fn a_record_that_fails_at_any_step_fences_nobody_or_says_so() {
        let remote = WriterRecord::new(4, REMOTE, "node1");
        for failing in 1..8_u32 {
            let mut store = store(remote);
            store.disk_mut().fail_records((0..3).map(|step| failing >> step & 1 == 1));
            match Grant::take(&mut store, LOCAL, "here", true) {
                Ok(_) => assert_eq!(failing & 3, 0),
                Err(GrantError::Refused(_)) => assert_eq!(load_writer(&mut store), Ok(remote)),
                Err(GrantError::Unresolved { before, .. }) => {
                    assert_eq!((failing & 7, *before), (6, remote));
                    store_writer(&mut store, *before).unwrap();
                    assert_eq!(load_writer(&mut store), Ok(remote));
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}
