//! Command 3, Reserve/Release (`docs/aoe.md`, "Reserve/Release").

use alloc::vec::Vec;

use super::FrameRefused;

/// Octets in front of the addresses.
pub const RESERVE_BYTES: usize = 2;

/// Octets of the address of a station.
pub const MAC_BYTES: usize = 6;

/// A count is one octet.
const ADDRESSES_MAX: usize = 255;

numbered! {
    /// RCmd: what is to be done with the list of those who may do I/O.
    ReserveCommand {
        /// Tell it.
        Read = 0, "read";
        /// Take this if the list is empty or who asks stands in it; else the answer is an error,
        /// [`super::ErrorCode::Reserved`].
        Set = 1, "set";
        /// Take this, whoever stands in it.
        ForceSet = 2, "force-set";
    }
}

/// What stands behind the common header of a Reserve/Release. An empty list reserves nothing: to set it is to
/// release.
///
/// ```text
///  0        1        2
/// +--------+--------+--------------------------------
/// | RCmd   | count  | addresses, of 6 octets each
/// +--------+--------+--------------------------------
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation<'a> {
    /// What is asked for; an answer repeats it.
    pub command: ReserveCommand,
    /// In requests the list to take, in answers the list as it is now; at most 255.
    pub macs: &'a [[u8; MAC_BYTES]],
}

impl<'a> Reservation<'a> {
    /// A request or an answer.
    pub fn new(command: ReserveCommand, macs: &'a [[u8; MAC_BYTES]]) -> Self {
        Reservation { command, macs }
    }

    /// Appends it to `out`; of the addresses the first 255.
    pub fn put(&self, out: &mut Vec<u8>) {
        let macs = &self.macs[..self.macs.len().min(ADDRESSES_MAX)];
        out.extend_from_slice(&[self.command as u8, macs.len() as u8]);
        out.extend_from_slice(macs.as_flattened());
    }

    /// Checks and reads it from what stands behind the common header.
    ///
    /// # Errors
    /// [`FrameRefused::Argument`], [`FrameRefused::ReserveCommand`], [`FrameRefused::Addresses`].
    pub fn parse(bytes: &'a [u8]) -> Result<Reservation<'a>, FrameRefused> {
        let (&[command, count], rest) =
            bytes.split_first_chunk::<RESERVE_BYTES>().ok_or(FrameRefused::Argument)?;
        let command = ReserveCommand::known(command).ok_or(FrameRefused::ReserveCommand)?;
        let macs = rest.as_chunks().0.get(..usize::from(count));
        Ok(Reservation { command, macs: macs.ok_or(FrameRefused::Addresses)? })
    }
}
