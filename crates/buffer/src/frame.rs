//! What links move: frames received and frames to send, in batches.

use std::time::Duration;

use crate::{Addr, SegList, Segment};

/// A frame that arrived. `bytes` starts at the protocol's version byte (link headers are already
/// cut off) and may be longer than the frame: Ethernet pads.
#[derive(Clone, Debug)]
pub struct RxFrame {
    /// The station that sent it.
    pub from: Addr,
    /// The frame, and possibly padding.
    pub bytes: Segment,
    /// How long it had lain in the kernel's queue when it was taken out: time that the receiving
    /// machine spent, not the network. Zero where the link cannot tell.
    pub waited: Duration,
    /// How long it then lay between the thread that took it out and the one that has it now. Zero
    /// where that is the same thread.
    pub queued: Duration,
}

/// Frames in the order of their arrival. Filled by a link, drained by the protocol.
pub type RxBatch = std::collections::VecDeque<RxFrame>;

/// A frame to send: headers in `head`, then the payload segments, in order, without gaps.
#[derive(Debug)]
pub struct TxFrame {
    /// The station to send it to.
    pub to: Addr,
    /// Header bytes, including the padding up to the data offset if there is a payload.
    pub head: Vec<u8>,
    /// Payload by reference. Dropped as soon as the link's send returns.
    pub data: SegList,
}

impl TxFrame {
    /// Length of the whole frame in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.data.bytes()
    }
}

/// Frames waiting for one link's send call. Emptied frames keep their storage for the next use.
#[derive(Debug, Default)]
pub struct TxBatch {
    frames: Vec<TxFrame>,
    len: usize,
    lent: bool,
}

impl TxBatch {
    /// An empty batch.
    pub const fn new() -> Self {
        TxBatch { frames: Vec::new(), len: 0, lent: false }
    }

    /// Adds an empty frame for `to` and returns it for filling.
    #[inline]
    pub fn push(&mut self, to: Addr) -> &mut TxFrame {
        if self.len == self.frames.len() {
            self.frames.push(TxFrame { to, head: Vec::with_capacity(2048), data: SegList::new() });
        }
        let frame = &mut self.frames[self.len];
        debug_assert!(frame.head.is_empty() && frame.data.is_empty());
        frame.to = to;
        self.len += 1;
        frame
    }

    /// Takes back the frame pushed last.
    pub fn pop(&mut self) {
        assert!(self.len > 0);
        self.len -= 1;
        let frame = &mut self.frames[self.len];
        frame.head.clear();
        frame.data.clear();
    }

    /// The frames in order.
    #[inline]
    pub fn frames(&self) -> &[TxFrame] {
        &self.frames[..self.len]
    }

    /// The frames in order, for wrappers that change them.
    pub fn frames_mut(&mut self) -> &mut [TxFrame] {
        &mut self.frames[..self.len]
    }

    /// How many frames wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// While a batch is lent, [`TxBatch::clear`] does nothing: payloads are counted without atomics,
    /// so that a thread that only sends the batch for another must not let go of them.
    pub fn lend(&mut self, lent: bool) {
        self.lent = lent;
    }

    /// Drops all frames, letting go of their payloads; keeps the storage.
    pub fn clear(&mut self) {
        if self.lent {
            return;
        }
        for frame in &mut self.frames[..self.len] {
            frame.head.clear();
            frame.data.clear();
        }
        self.len = 0;
    }
}
