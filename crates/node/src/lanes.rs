//! Whose a frame is, where several parts share a link.

use std::ops::RangeInclusive;

use thinwire_buffer::RxFrame;

/// Where the receiver's session id stands in a frame, in bytes (`docs/protocol.md`, "Frame header").
/// Its upper half tells the receivers of a machine apart; frames that name nobody have zeroes there.
pub const SESSION_OFFSET: usize = 8;

/// Which frames of a link are for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Upper halves of the ids of its sessions, which also the answers carry that it gets before it has one.
    pub sessions: RangeInclusive<u32>,
    /// Frames that name nobody, too: questions to whoever is there, and what is said of sessions that are
    /// not. Each part that wants them gets them, and sees by what they say whether they are for it.
    pub outside: bool,
}

impl Lane {
    /// All frames of a link.
    pub const ALL: Lane = Lane { sessions: 0..=u32::MAX, outside: true };

    #[inline]
    pub(crate) fn has(&self, lane: u32) -> bool {
        if lane == 0 { self.outside } else { self.sessions.contains(&lane) }
    }
}

/// The upper half of the session id of a frame; 0 also of one that is too short to have any.
#[inline]
pub(crate) fn lane_of(frame: &RxFrame) -> u32 {
    match frame.bytes.get(SESSION_OFFSET..SESSION_OFFSET + 4) {
        Some(bytes) => u32::from_be_bytes(bytes.try_into().expect("four bytes")),
        None => 0,
    }
}
