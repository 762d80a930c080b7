//! Command 1, Query Config Information (`docs/aoe.md`, "Query Config").

use alloc::vec::Vec;

use super::FrameRefused;

/// Octets in front of the config string.
pub const QUERY_BYTES: usize = 8;

/// The longest config string.
pub const CONFIG_BYTES_MAX: usize = 1024;

numbered! {
    /// CCmd: what is to be done with the config string.
    ConfigCommand {
        /// Tell it.
        Read = 0, "read";
        /// Answer only if it is exactly this.
        Exact = 1, "exact";
        /// Answer only if it begins with this.
        Prefix = 2, "prefix";
        /// Take this if there is none; else the answer is an error, [`super::ErrorCode::ConfigPresent`].
        Set = 3, "set";
        /// Take this, whatever there is.
        ForceSet = 4, "force-set";
    }
}

/// What stands behind the common header of a Query Config.
///
/// ```text
///  0                 2                 4        5        6                 8
/// +-----------------+-----------------+--------+--------+-----------------+
/// | buffer count    | firmware version|sectors |ver|CCmd| string length   |
/// +-----------------+-----------------+--------+--------+-----------------+
/// | config string, at most 1024 octets
/// +----
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigQuery<'a> {
    /// In answers: how many requests the server keeps waiting; more at once may be lost. 0 in requests.
    pub buffers: u16,
    /// In answers: whatever the server calls its version. 0 in requests.
    pub firmware: u16,
    /// In answers: the most sectors that one ATA command may have; 0 means 2, by the first versions. 0 in
    /// requests.
    pub sectors_max: u8,
    /// In answers: the protocol version that the server speaks, 0 to 15. 0 in requests.
    pub version: u8,
    /// What is asked for; an answer repeats it.
    pub command: ConfigCommand,
    /// In requests what to compare with or to set, in answers what is set now; any octets, at most
    /// [`CONFIG_BYTES_MAX`].
    pub config: &'a [u8],
}

impl<'a> ConfigQuery<'a> {
    /// A request.
    pub fn request(command: ConfigCommand, config: &'a [u8]) -> Self {
        ConfigQuery { buffers: 0, firmware: 0, sectors_max: 0, version: 0, command, config }
    }

    /// Appends it to `out`. Of `version` the lower four bits count, of `config` the first
    /// [`CONFIG_BYTES_MAX`].
    pub fn put(&self, out: &mut Vec<u8>) {
        let config = &self.config[..self.config.len().min(CONFIG_BYTES_MAX)];
        out.extend_from_slice(&self.buffers.to_be_bytes());
        out.extend_from_slice(&self.firmware.to_be_bytes());
        out.extend_from_slice(&[self.sectors_max, self.version << 4 | self.command as u8]);
        out.extend_from_slice(&(config.len() as u16).to_be_bytes());
        out.extend_from_slice(config);
    }

    /// Checks and reads it from what stands behind the common header.
    ///
    /// # Errors
    /// [`FrameRefused::Argument`], [`FrameRefused::ConfigCommand`], [`FrameRefused::ConfigLength`],
    /// [`FrameRefused::ConfigString`].
    pub fn parse(bytes: &'a [u8]) -> Result<ConfigQuery<'a>, FrameRefused> {
        let (&[b0, b1, f0, f1, sectors_max, both, l0, l1], rest) =
            bytes.split_first_chunk::<QUERY_BYTES>().ok_or(FrameRefused::Argument)?;
        let command = ConfigCommand::known(both & 0x0f).ok_or(FrameRefused::ConfigCommand)?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if length > CONFIG_BYTES_MAX {
            return Err(FrameRefused::ConfigLength);
        }
        Ok(ConfigQuery {
            buffers: u16::from_be_bytes([b0, b1]),
            firmware: u16::from_be_bytes([f0, f1]),
            sectors_max,
            version: both >> 4,
            command,
            config: rest.get(..length).ok_or(FrameRefused::ConfigString)?,
        })
    }
}
