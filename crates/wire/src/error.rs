//! Why a frame was refused at the gate.

use core::fmt;

/// The named reasons for which the gate refuses a frame. Each has a counter at the
/// receiver (`docs/protocol.md`, "Refused frames").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FrameError {
    /// Not this protocol version.
    Version,
    /// Shorter than a header, or than its length field says.
    Truncated,
    /// No such frame kind.
    Kind,
    /// No such suite: sealed in a way that is not known here.
    Suite,
    /// A reserved bit or field is not zero.
    Reserved,
    /// Length, data offset and messages end contradict each other.
    Layout,
    /// The tag does not fit (found by whoever unseals).
    Checksum,
    /// What was sealed with a key does not fit that key (found by whoever unseals).
    Forged,
    /// A message runs over the end of the message area, or its length is wrong for its type.
    MessageLength,
    /// A message type that is unknown and not skippable.
    MessageUnknown,
    /// A message that may not stand in a frame of this kind.
    MessageMisplaced,
    /// A field of a message has a value outside its bounds.
    MessageValue,
    /// The payload is longer or shorter than the DATA messages say.
    Payload,
}

impl FrameError {
    /// All reasons, for tables of counters.
    pub const ALL: [FrameError; 13] = [
        FrameError::Version,
        FrameError::Truncated,
        FrameError::Kind,
        FrameError::Suite,
        FrameError::Reserved,
        FrameError::Layout,
        FrameError::Checksum,
        FrameError::Forged,
        FrameError::MessageLength,
        FrameError::MessageUnknown,
        FrameError::MessageMisplaced,
        FrameError::MessageValue,
        FrameError::Payload,
    ];

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            FrameError::Truncated => "truncated",
            FrameError::Version => "version",
            FrameError::Kind => "kind",
            FrameError::Suite => "suite",
            FrameError::Reserved => "reserved",
            FrameError::Layout => "layout",
            FrameError::Checksum => "checksum",
            FrameError::Forged => "forged",
            FrameError::MessageLength => "message-length",
            FrameError::MessageUnknown => "message-unknown",
            FrameError::MessageMisplaced => "message-misplaced",
            FrameError::MessageValue => "message-value",
            FrameError::Payload => "payload",
        }
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for FrameError {}
