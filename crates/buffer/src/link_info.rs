//! What a link tells the protocol about itself, and each end the other.

use crate::Addr;

/// What a receiver can take in before it drops. The protocol derives what a peer may have in flight
/// from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Frames of the largest size.
    pub frames: u32,
    /// Bytes of frames, after the kernel's own bookkeeping ("true size") is taken off.
    pub bytes: u32,
}

impl Room {
    /// What each of so many who share it may fill: never less than two frames of a usual size.
    pub fn shared_by(self, sharers: usize) -> Room {
        let sharers = sharers.max(1) as u32;
        Room {
            frames: (self.frames / sharers).max(2),
            bytes: (self.bytes / sharers).max(16 * 1024),
        }
    }
}

/// Sizes of frames on a link, in bytes from the version byte on; `base` is not above `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSizes {
    /// What passes everywhere on this kind of link: used before larger sizes are probed, and fallen
    /// back to.
    pub base: usize,
    /// The largest frame that the link can send.
    pub max: usize,
}

impl FrameSizes {
    /// The same, where no frame may exceed `limit` bytes: a peer or a user may know of less than the
    /// link's own base.
    pub fn at_most(self, limit: usize) -> Self {
        FrameSizes { base: self.base.min(limit), max: self.max.min(limit) }
    }
}

/// What the protocol needs to know of a local link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// This end's address on it, as peers see it.
    pub addr: Addr,
    /// How large its frames are.
    pub frame_bytes: FrameSizes,
    /// How much may be on the way to this end.
    pub room: Room,
}
