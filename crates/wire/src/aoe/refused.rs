//! Why a frame is no AoE frame that we understand (`docs/aoe.md`, "Refused frames").

use core::fmt;

use super::ErrorCode;

/// The named reasons for which [`super::Frame::parse`] refuses a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FrameRefused {
    /// Shorter than the common header: there is nobody to answer and no tag to answer with.
    Truncated,
    /// Of another version than 1.
    Version,
    /// A command above 3.
    Command,
    /// It ends before the fixed part behind the header does.
    Argument,
    /// Query Config with a CCmd above 4.
    ConfigCommand,
    /// A config string of more than 1024 octets.
    ConfigLength,
    /// It ends before its config string does.
    ConfigString,
    /// MAC Mask List with an MCmd above 1.
    MaskCommand,
    /// It ends before its last directive does.
    Directives,
    /// Reserve/Release with an RCmd above 2.
    ReserveCommand,
    /// It ends before its last address does.
    Addresses,
}

impl FrameRefused {
    /// All reasons, for tables of counters.
    pub const ALL: [FrameRefused; 11] = [
        FrameRefused::Truncated,
        FrameRefused::Version,
        FrameRefused::Command,
        FrameRefused::Argument,
        FrameRefused::ConfigCommand,
        FrameRefused::ConfigLength,
        FrameRefused::ConfigString,
        FrameRefused::MaskCommand,
        FrameRefused::Directives,
        FrameRefused::ReserveCommand,
        FrameRefused::Addresses,
    ];

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            FrameRefused::Truncated => "truncated",
            FrameRefused::Version => "version",
            FrameRefused::Command => "command",
            FrameRefused::Argument => "argument",
            FrameRefused::ConfigCommand => "config-command",
            FrameRefused::ConfigLength => "config-length",
            FrameRefused::ConfigString => "config-string",
            FrameRefused::MaskCommand => "mask-command",
            FrameRefused::Directives => "directives",
            FrameRefused::ReserveCommand => "reserve-command",
            FrameRefused::Addresses => "addresses",
        }
    }

    /// What a request that is refused for this is answered with, or `None` if it cannot be answered.
    pub fn code(self) -> Option<ErrorCode> {
        match self {
            FrameRefused::Truncated => None,
            FrameRefused::Version => Some(ErrorCode::UnsupportedVersion),
            FrameRefused::Command => Some(ErrorCode::UnknownCommand),
            _ => Some(ErrorCode::BadArgument),
        }
    }
}

impl fmt::Display for FrameRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for FrameRefused {}
