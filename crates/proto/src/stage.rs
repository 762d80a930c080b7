//! Where a request stands: what lets others measure the way of an I/O without a clock in here.

/// A border that a request crosses inside a state machine. The others (frame received, frame sent)
/// are where links are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The initiator took a request over from its user.
    Accepted,
    /// The target hands it to the store.
    Submitted,
    /// The store has completed it.
    Stored,
    /// Its completion is there for the initiator's user.
    Finished,
}

/// What the stage clocks show: sums modulo 2^64 of the times in ns at which requests crossed borders
/// (`docs/protocol.md`, "Messages", CLOCKS names them). `first` and `second` are a target's `submitted`
/// and `stored`, and an initiator's `accepted` and `finished`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSums {
    /// The same for machines whose clocks show the same time; 0 for virtual time.
    pub clock: u64,
    /// Requests that crossed all borders.
    pub requests: u64,
    /// The last frame that a request, or its completion, needed was in the receive queue.
    pub arrived: u64,
    /// It had been taken out of it.
    pub received: u64,
    /// The thread that acts on it had it.
    pub taken: u64,
    /// Target: handed to the store. Initiator: taken over from the user.
    pub first: u64,
    /// Target: completed by the store. Initiator: the completion is there.
    pub second: u64,
    /// The last of its frames was handed to be sent.
    pub sent: u64,
    /// How long that waited for a thread that sends: a sum of durations.
    pub handed_over: u64,
}

/// Is told when requests cross borders. Called on the way of every I/O, so it must do nothing when
/// nobody measures.
pub trait StageObserver {
    /// A request crosses this border now.
    fn cross(&self, stage: Stage);

    /// Runs the clocks of this kind (`thinwire_wire::clock_kind`), if they do not run already, and
    /// tells what they show.
    fn ask(&self, kind: u8) -> StageSums;
}
