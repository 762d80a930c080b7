//! How much a face does in one turn. It goes on where it has stopped in the next one, which comes at once, but
//! others of its shard are served between.

/// What a turn may take in, and as much again what it may give out, in bytes that are copied: some 50 to 100 us
/// between user and kernel, and more than a socket mostly holds, so that there are no more system calls.
const TURN_BYTES: usize = 256 << 10;

/// What a request or an answer costs beside its bytes, as bytes: a turn has 64 of them.
const ITEM_BYTES: usize = TURN_BYTES / 64;

/// A volume may copy what is read, or not; a turn submits reads of so many times its bytes.
const READS_PER_TURN: usize = 4;

/// What is left of a turn. The last thing that begins may exceed it.
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

    /// Bytes that may be copied still.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Requests or answers that may be acted on still.
    pub(crate) fn items_left(&self) -> usize {
        self.left.div_ceil(ITEM_BYTES)
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
