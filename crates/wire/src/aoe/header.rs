//! The common header of all AoE frames (`docs/aoe.md`, "Common header").

use alloc::vec::Vec;
use core::fmt;

use super::FrameRefused;

/// The EtherType of AoE.
pub const ETHER_TYPE: u16 = 0x88a2;

/// The protocol version that we speak.
pub const VERSION: u8 = 1;

/// Octets of the common header, behind the Ethernet header.
pub const HEADER_BYTES: usize = 10;

/// The shelf that means all shelves.
pub const ANY_SHELF: u16 = 0xffff;

/// The slot that means all slots.
pub const ANY_SLOT: u8 = 0xff;

/// The flag R: an answer.
const RESPONSE: u8 = 0x08;
/// The flag E: the request was refused, and the error field says why.
const ERROR: u8 = 0x04;

/// The address of a device: major and minor, which the racks of old called shelf and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShelfSlot {
    /// Major: 0 to 0xfffe, or [`ANY_SHELF`].
    pub shelf: u16,
    /// Minor: 0 to 0xfe, or [`ANY_SLOT`].
    pub slot: u8,
}

impl ShelfSlot {
    /// All slots of all shelves.
    pub const ALL: ShelfSlot = ShelfSlot { shelf: ANY_SHELF, slot: ANY_SLOT };

    /// That slot of that shelf.
    pub fn new(shelf: u16, slot: u8) -> Self {
        ShelfSlot { shelf, slot }
    }

    /// Whether a frame with this address concerns that device: shelf and slot each fit, or mean all.
    #[inline]
    pub fn covers(self, device: ShelfSlot) -> bool {
        (self.shelf == ANY_SHELF || self.shelf == device.shelf)
            && (self.slot == ANY_SLOT || self.slot == device.slot)
    }

    /// Whether it names one device, as the address of a server must.
    pub fn is_one(self) -> bool {
        self.shelf != ANY_SHELF && self.slot != ANY_SLOT
    }
}

impl fmt::Display for ShelfSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.shelf, self.slot)
    }
}

numbered! {
    /// What a frame asks for.
    AoeCommand {
        /// Have the drive execute a command.
        IssueAta = 0, "issue-ata";
        /// What are you, and what is your config string?
        QueryConfig = 1, "query-config";
        /// Read or edit the list of stations that are served at all.
        MaskList = 2, "mac-mask-list";
        /// Read or change the list of stations that may do I/O.
        Reserve = 3, "reserve-release";
    }
}

numbered! {
    /// Why a server refused a request, as the error field of its answer says.
    ErrorCode {
        /// No such command.
        UnknownCommand = 1, "unknown-command";
        /// Something behind the header has a value that it must not have.
        BadArgument = 2, "bad-argument";
        /// The drive does not answer.
        DeviceUnavailable = 3, "device-unavailable";
        /// There is a config string, so that it is not set.
        ConfigPresent = 4, "config-present";
        /// Not this protocol version.
        UnsupportedVersion = 5, "unsupported-version";
        /// The target is reserved for others.
        Reserved = 6, "reserved";
    }
}

/// The common header.
///
/// ```text
///  0                 1        2                 4        5        6
/// +--------+--------+--------+-----------------+--------+--------+
/// |version | flags  | error  | major (shelf)   | minor  |command |
/// | 4 bits | 4 bits |        |                 | (slot) |        |
/// +--------+--------+--------+-----------------+--------+--------+ 6
/// | tag                               |
/// +-----------------------------------+ 10
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 0 to 15. Whoever answers looks at it, so that a request of another version gets its answer.
    pub version: u8,
    /// Flag R: this is an answer, not a request.
    pub is_response: bool,
    /// Flag E, in answers: the request was refused.
    pub is_error: bool,
    /// Why, if it was: an [`ErrorCode`], or a number that we do not know. Else 0.
    pub error: u8,
    /// In a request, who is meant; in an answer, who speaks.
    pub device: ShelfSlot,
    /// An [`AoeCommand`], or a number that we do not know.
    pub command: u8,
    /// Chosen by who asks and repeated in the answer; it means nothing to the server.
    pub tag: u32,
}

impl Header {
    /// The header of a request.
    pub fn request(device: ShelfSlot, command: AoeCommand, tag: u32) -> Self {
        Header {
            version: VERSION,
            is_response: false,
            is_error: false,
            error: 0,
            device,
            command: command as u8,
            tag,
        }
    }

    /// The header of the answer that `device` gives to this request.
    #[inline]
    pub fn answer(&self, device: ShelfSlot) -> Self {
        Header { version: VERSION, is_response: true, is_error: false, error: 0, device, ..*self }
    }

    /// The header with which `device` refuses this request. It is the whole answer: behind it is nothing.
    pub fn refuse(&self, device: ShelfSlot, code: ErrorCode) -> Self {
        Header { is_error: true, error: code as u8, ..self.answer(device) }
    }

    /// Why the request was refused, if this answer says so and we know the number.
    pub fn code(&self) -> Option<ErrorCode> {
        ErrorCode::known(self.error).filter(|_| self.is_error)
    }

    /// As it stands on the wire. Of `version` the lower four bits count.
    #[inline]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let flags = if self.is_response { RESPONSE } else { 0 };
        let flags = flags | if self.is_error { ERROR } else { 0 };
        let [major_high, major_low] = self.device.shelf.to_be_bytes();
        let [a, b, c, d] = self.tag.to_be_bytes();
        [
            self.version << 4 | flags,
            self.error,
            major_high,
            major_low,
            self.device.slot,
            self.command,
            a,
            b,
            c,
            d,
        ]
    }

    /// Appends it to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// Reads what `frame` begins with. Any [`HEADER_BYTES`] are a header: version and command are checked by
    /// [`super::Frame::parse`], the lower two flags are reserved and not looked at.
    ///
    /// # Errors
    /// [`FrameRefused::Truncated`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Header, FrameRefused> {
        let Some(&[first, error, major_high, major_low, slot, command, a, b, c, d]) =
            frame.first_chunk::<HEADER_BYTES>()
        else {
            return Err(FrameRefused::Truncated);
        };
        Ok(Header {
            version: first >> 4,
            is_response: first & RESPONSE != 0,
            is_error: first & ERROR != 0,
            error,
            device: ShelfSlot { shelf: u16::from_be_bytes([major_high, major_low]), slot },
            command,
            tag: u32::from_be_bytes([a, b, c, d]),
        })
    }
}
