//! Faults that tests plant, to see that they find them.

/// A fault planted in it, which its tests must find. No flag sets one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBackCanary {
    /// None: as it is.
    #[default]
    None,
    /// A flush goes down beside what it covers.
    FlushFirst,
    /// What is to be durable by itself ends in memory, too.
    DurableInMemory,
    /// What is here of a range that was discarded or zeroed stays, and goes down.
    DiscardForgets,
    /// A discard fails where there is no room for zeroes before it.
    DiscardNeedsRoom,
    /// What is here of a range that was discarded is dropped, whatever the volume below has done.
    DiscardUncovers,
    /// What has failed to go down counts as if it had.
    FailureForgotten,
    /// What goes down as it is waits for nothing.
    NoLock,
    /// A read has what is here when it ends, and not when it began.
    LateOverlay,
    /// A read has nothing of what is being written below.
    GoingNotRead,
    /// What is written into a block makes all of it as late as that.
    EpochOverwritten,
    /// What goes down from here waits for nothing.
    BusyIgnored,
    /// A write that finds no room keeps its lock.
    HeldKeepsLock,
    /// What is given up is not told as a loss.
    LossUntold,
    /// It ends without a flush.
    EndUnflushed,
    /// What is here of a range is dropped though what went over it as it is has failed.
    FailedThroughCovers,
    /// What was written again while it went down counts as down.
    OverwrittenForgotten,
    /// Writes end here whatever has happened below.
    EventsUnheard,
}

impl WriteBackCanary {
    /// Nothing is zeroed before a discard.
    pub(super) fn leaves_discarded(self) -> bool {
        matches!(self, WriteBackCanary::DiscardUncovers | WriteBackCanary::DiscardForgets)
    }
}
