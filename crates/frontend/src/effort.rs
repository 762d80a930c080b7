//! How much a face does in one turn. It goes on where it has stopped in the next one, which comes at once, but
//! others of its shard are served between.

/// What a turn may take in, and as much again what it may give out, in bytes that are copied: some 50 to 100 us
/// between user and kernel, and more than a socket mostly holds, so that there are no more system calls.
const TURN_BYTES: usize = 256 << 10;

/// By how much what begins in a turn may exceed it, in bytes, so that it need not be cut: a part of it left over costs
/// two system calls more, and who waits for the whole gains nothing by the rest.
const EXCESS_BYTES: usize = TURN_BYTES / 2;

/// What a request or an answer costs beside its bytes, as bytes: a turn has 64 of them.
const ITEM_BYTES: usize = TURN_BYTES / 64;

/// A volume may copy what is read, or not; a turn submits reads of so many times its bytes.
const READS_PER_TURN: usize = 4;

/// What is left of a turn. The last thing that begins may exceed it, by half a turn's bytes at the most.
#[derive(Clone)]
pub(crate) struct Effort {
    left: usize,
}

impl Effort {
    /// All that a turn may do.
    pub(crate) fn of_a_turn() -> Self {
        Effort { left: TURN_BYTES }
    }

    /// The rest is for the next turn.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// How many of the next `bytes`, which belong together, may be copied still: all of them, unless they exceed the
    /// turn by too much, and none if it is spent.
    pub(crate) fn room_for(&self, bytes: usize) -> usize {
        match self.left {
            0 => 0,
            left if bytes <= left + EXCESS_BYTES => bytes,
            left => left,
        }
    }

    /// A request or an answer was acted on.
    pub(crate) fn item(&mut self) {
        self.copy(ITEM_BYTES);
    }

    /// So many bytes were copied.
    pub(crate) fn copy(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// A read of so many bytes was submitted.
    pub(crate) fn read(&mut self, bytes: usize) {
        self.copy(bytes / READS_PER_TURN);
    }
}
