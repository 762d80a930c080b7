//! Reading everything to find what is not as it was written: what can be scrubbed, and what it says of that.

/// So many places are named, and all are counted.
pub const BAD_BLOCKS_MAX: usize = 16;

/// How the scrub of a volume stands, or how the last one has ended. Of one that has had none all is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// The module that does it.
    pub module: &'static str,
    /// It goes on.
    pub is_running: bool,
    /// It has ended before all was read: the volume stops, or has stopped.
    pub has_failed: bool,
    /// What lies before has been read: from there another one goes on. In bytes.
    pub position: u64,
    /// Bytes of the volume.
    pub bytes: u64,
    /// Which scrub since it was opened, counted from 1; 0 if there was none.
    pub number: u64,
    /// From where on that reads.
    pub from: u64,
    /// Legs, as bits, of which not all was read: they were not in sync all the while, and nobody knows what they hold.
    pub unread_legs: u8,
    /// Bytes that were read, of each leg.
    pub checked_bytes: u64,
    /// Blocks that did not fit their sums, or could not be read, and were written again from another leg.
    pub repaired: u64,
    /// Blocks that cannot be told to be what was written: a crash came when they were about to be.
    pub unverified: u64,
    /// Blocks that do not fit their sums, or cannot be read, and of which no leg has better.
    pub bad: u64,
    /// Blocks that legs of a mirror have different, each by itself as it should be: nobody can know which is right.
    pub differing: u64,
    /// Where the first of all these begin that were not repaired, at most [`BAD_BLOCKS_MAX`].
    pub places: Vec<u64>,
}

impl ScrubReport {
    /// Adds a place, if it is one of the first.
    pub fn add_place(&mut self, offset: u64) {
        if self.places.len() < BAD_BLOCKS_MAX {
            self.places.push(offset);
        }
    }

    /// Nothing is wrong, or was.
    pub fn is_clean(&self) -> bool {
        !self.has_failed
            && [self.repaired, self.unverified, self.bad, self.differing]
                .iter()
                .all(|count| *count == 0)
    }
}

/// A volume, or what one is made of, that can be told to read everything: at a pace that leaves its users twice as much as it takes,
/// and all of what nobody uses.
pub trait Scrub {
    /// Begins to read everything from there on, in bytes; a multiple of nothing. What went on ends. Counts begin anew.
    fn begin_scrub(&mut self, from: u64);

    /// Ends what goes on: [`ScrubReport::position`] says where another one goes on.
    fn end_scrub(&mut self);

    /// How it stands.
    fn scrub_report(&self) -> ScrubReport;
}
