//! Command 2, MAC Mask List (`docs/aoe.md`, "MAC Mask List").

use alloc::vec::Vec;

use super::{FrameRefused, MAC_BYTES};

/// Octets in front of the directives.
pub const MASK_BYTES: usize = 4;

/// Octets of a directive.
pub const DIRECTIVE_BYTES: usize = 8;

/// A count is one octet.
const DIRECTIVES_MAX: usize = 255;

numbered! {
    /// MCmd: what is to be done with the list.
    MaskCommand {
        /// Tell it.
        Read = 0, "read";
        /// Execute the directives, in their order, then tell it.
        Edit = 1, "edit";
    }
}

numbered! {
    /// MError: why an edit stopped.
    MaskError {
        /// For a reason that has no number.
        Unspecified = 1, "unspecified";
        /// There is no such directive.
        BadDirective = 2, "bad-directive";
        /// The list has no more room.
        ListFull = 3, "list-full";
    }
}

numbered! {
    /// DCmd: what a directive does.
    DirectiveCommand {
        /// Nothing.
        None = 0, "none";
        /// The address comes to the list.
        Add = 1, "add";
        /// The address leaves the list.
        Delete = 2, "delete";
    }
}

/// One address, and what becomes of it: a reserved octet, DCmd, six octets of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directive {
    /// A [`DirectiveCommand`], or a number that we do not know: then a server executes those before it and
    /// answers with [`MaskError::BadDirective`].
    pub command: u8,
    /// Of the station.
    pub mac: [u8; MAC_BYTES],
}

impl Directive {
    /// That for this station.
    pub fn new(command: DirectiveCommand, mac: [u8; MAC_BYTES]) -> Self {
        Directive { command: command as u8, mac }
    }

    /// As it stands on the wire.
    pub fn to_bytes(self) -> [u8; DIRECTIVE_BYTES] {
        let [a, b, c, d, e, f] = self.mac;
        [0, self.command, a, b, c, d, e, f]
    }

    /// Reads one; the reserved octet is not looked at.
    pub fn parse(bytes: &[u8; DIRECTIVE_BYTES]) -> Directive {
        let &[_, command, ref mac @ ..] = bytes;
        Directive { command, mac: *mac }
    }
}

/// What stands behind the common header of a MAC Mask List.
///
/// ```text
///  0        1        2        3        4
/// +--------+--------+--------+--------+--------------------------------
/// |reserved| MCmd   | MError | count  | directives, of 8 octets each
/// +--------+--------+--------+--------+--------------------------------
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskList<'a> {
    /// What is asked for; an answer repeats it.
    pub command: MaskCommand,
    /// In answers: 0, or a [`MaskError`], or a number that we do not know. 0 in requests.
    pub error: u8,
    /// With an error, how many directives were executed before it. Else 0: they all were.
    pub executed: u8,
    /// In requests what to do, in answers the list as it is now, as directives that do nothing; as they stand
    /// on the wire, at most 255. None with an error.
    pub directives: &'a [[u8; DIRECTIVE_BYTES]],
}

impl<'a> MaskList<'a> {
    /// A request, or the answer to one that was done.
    pub fn new(command: MaskCommand, directives: &'a [[u8; DIRECTIVE_BYTES]]) -> Self {
        MaskList { command, error: 0, executed: 0, directives }
    }

    /// The answer to an edit that stopped after so many directives.
    pub fn stopped(error: MaskError, executed: u8) -> Self {
        MaskList { command: MaskCommand::Edit, error: error as u8, executed, directives: &[] }
    }

    /// The directives, in order.
    pub fn iter(&self) -> impl Iterator<Item = Directive> + use<'a> {
        self.directives.iter().map(Directive::parse)
    }

    /// Appends it to `out`. With an error no directives are written, without one the first 255.
    pub fn put(&self, out: &mut Vec<u8>) {
        let directives = &self.directives[..self.directives.len().min(DIRECTIVES_MAX)];
        let (count, directives) = match self.error {
            0 => (directives.len() as u8, directives),
            _ => (self.executed, &[][..]),
        };
        out.extend_from_slice(&[0, self.command as u8, self.error, count]);
        out.extend_from_slice(directives.as_flattened());
    }

    /// Checks and reads it from what stands behind the common header. MError means something in answers only.
    ///
    /// # Errors
    /// [`FrameRefused::Argument`], [`FrameRefused::MaskCommand`], [`FrameRefused::Directives`].
    pub fn parse(bytes: &'a [u8], is_response: bool) -> Result<MaskList<'a>, FrameRefused> {
        let (&[_, command, error, count], rest) =
            bytes.split_first_chunk::<MASK_BYTES>().ok_or(FrameRefused::Argument)?;
        let command = MaskCommand::known(command).ok_or(FrameRefused::MaskCommand)?;
        if is_response && error != 0 {
            return Ok(MaskList { command, error, executed: count, directives: &[] });
        }
        let directives = rest.as_chunks().0.get(..usize::from(count));
        Ok(MaskList::new(command, directives.ok_or(FrameRefused::Directives)?))
    }
}
