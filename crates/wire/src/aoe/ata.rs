//! Command 0, Issue ATA Command: registers of a drive, and what a server makes of them (`docs/aoe.md`,
//! "Issue ATA Command" and "ATA commands").

use alloc::vec::Vec;
use core::fmt;

use super::{ErrorCode, FrameRefused};

/// Octets of the registers, in front of data.
pub const ATA_BYTES: usize = 12;

/// The sector of AoE, whatever the block of the volume is.
pub const SECTOR_BYTES: usize = 512;

/// How many sectors commands with 28 bits reach; drives that are larger say so in 48 bits.
pub const LBA28_SECTORS_MAX: u64 = (1 << 28) - 1;

/// How many sectors commands with 48 bits reach.
pub const LBA48_SECTORS_MAX: u64 = (1 << 48) - 1;

/// Bits of AFlags.
pub mod ata_flags {
    /// E: the command has 48 bits of address.
    pub const EXTENDED: u8 = 0x40;
    /// D: bit 4 of the drive's device register, which chooses one of two drives.
    pub const DEVICE: u8 = 0x10;
    /// A: a write may be answered before it is done.
    pub const ASYNCHRONOUS: u8 = 0x02;
    /// W: data goes to the drive.
    pub const WRITE: u8 = 0x01;
    /// All of them; the others are reserved.
    pub const KNOWN: u8 = EXTENDED | DEVICE | ASYNCHRONOUS | WRITE;
}

/// Bits of the status register, in answers.
pub mod ata_status {
    /// Busy.
    pub const BSY: u8 = 0x80;
    /// Ready.
    pub const DRDY: u8 = 0x40;
    /// Device fault.
    pub const DF: u8 = 0x20;
    /// It waits for data to be moved.
    pub const DRQ: u8 = 0x08;
    /// The error register says what went wrong.
    pub const ERR: u8 = 0x01;
    /// Those that are never set when a command was done.
    pub const BAD: u8 = BSY | DF | DRQ | ERR;
}

/// Bits of the error register, in answers with [`ata_status::ERR`].
pub mod ata_error {
    /// The medium has lost what stood there.
    pub const UNC: u8 = 0x40;
    /// There is no such sector.
    pub const IDNF: u8 = 0x10;
    /// No such command, or not with these registers.
    pub const ABRT: u8 = 0x04;
}

/// The device register of commands without E: bit 6 says "a number of a sector", 7 and 5 are set by custom.
const DEVICE_LBA: u8 = 0xe0;

/// The sector count of a drive that is neither asleep nor about to be, as CHECK POWER MODE answers it.
const POWER_ACTIVE: u8 = 0xff;

numbered! {
    /// The commands that a drive of ours executes.
    AtaCommand {
        /// With 28 bits.
        ReadSectors = 0x20, "read-sectors";
        /// With 48 bits.
        ReadSectorsExt = 0x24, "read-sectors-ext";
        /// With 28 bits.
        WriteSectors = 0x30, "write-sectors";
        /// With 48 bits.
        WriteSectorsExt = 0x34, "write-sectors-ext";
        /// Is the drive awake?
        CheckPowerMode = 0xe5, "check-power-mode";
        /// What was written is to be on the medium.
        FlushCache = 0xe7, "flush-cache";
        /// The same, for drives with 48 bits.
        FlushCacheExt = 0xea, "flush-cache-ext";
        /// 512 octets about the drive.
        IdentifyDevice = 0xec, "identify-device";
    }
}

impl AtaCommand {
    /// Whether it belongs to the commands with 48 bits.
    pub fn is_extended(self) -> bool {
        use AtaCommand::*;
        matches!(self, ReadSectorsExt | WriteSectorsExt | FlushCacheExt)
    }

    /// Whether it speaks of sectors.
    pub fn has_sectors(self) -> bool {
        use AtaCommand::*;
        matches!(self, ReadSectors | ReadSectorsExt) || self.is_write()
    }

    /// Whether data goes to the drive.
    pub fn is_write(self) -> bool {
        matches!(self, AtaCommand::WriteSectors | AtaCommand::WriteSectorsExt)
    }
}

/// The registers of a drive as an AoE frame holds them, in front of the data.
///
/// ```text
///  0        1        2        3        4                          10       12
/// +--------+--------+--------+--------+--------------------------+--------+
/// |AFlags  |err/    |sector  |cmd/    | lba0 to lba5, the lowest | 0      |
/// |        | feature| count  | status | octet first              |        |
/// +--------+--------+--------+--------+--------------------------+--------+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtaRegisters {
    /// See [`ata_flags`].
    pub flags: u8,
    /// In requests the feature register, in answers the error register ([`ata_error`]).
    pub error_feature: u8,
    /// How many sectors.
    pub sectors: u8,
    /// In requests the command ([`AtaCommand`]), in answers the status ([`ata_status`]).
    pub command_status: u8,
    /// The number of the first sector, the lowest octet first; without E the upper half of `lba[3]` is that of
    /// the device register, and `lba[4..]` mean nothing.
    pub lba: [u8; 6],
}

/// What a server must know of the drive that it plays, to read a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// How many sectors of [`SECTOR_BYTES`] it has.
    pub sectors: u64,
    /// How many of them one request may move, as the server announces it ([`super::ConfigQuery`]).
    pub request_sectors_max: u8,
}

/// What a request wants of a drive: in range, and with all of its data there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtaIo {
    /// Answer with these sectors.
    Read {
        /// The first of them.
        sector: u64,
        /// How many, at least 1.
        sectors: u8,
    },
    /// Take these sectors.
    Write {
        /// The first of them.
        sector: u64,
        /// How many, at least 1: so many times [`SECTOR_BYTES`] of the data count.
        sectors: u8,
    },
    /// Make durable what was answered.
    Flush,
    /// Answer with [`super::DriveIdentity::to_bytes`].
    Identify,
    /// Answer with [`AtaRegisters::awake`].
    CheckPower,
}

/// The named reasons for which a request is refused that is a good AoE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum AtaRefused {
    /// A command of a drive that we are not.
    Unsupported,
    /// A command with 28 bits that has E, or one with 48 bits that has not.
    AddressMode,
    /// To move no sectors.
    Empty,
    /// W with a command that does not write, or a write without W.
    Direction,
    /// More sectors than one request may move.
    TooLong,
    /// Some of the sectors are behind the end of the drive, or of what 28 bits reach.
    Range,
    /// A write with less data than sectors.
    Payload,
}

/// Who refuses, and so which field of the answer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// The drive: [`AtaRegisters::failed`] with this error register. Clients fail the request.
    Drive(u8),
    /// The server: [`super::Header::refuse`] with this code. Linux does not take that for an answer, and asks
    /// again.
    Server(ErrorCode),
}

impl AtaRefused {
    /// All reasons, for tables of counters.
    pub const ALL: [AtaRefused; 7] = [
        AtaRefused::Unsupported,
        AtaRefused::AddressMode,
        AtaRefused::Empty,
        AtaRefused::Direction,
        AtaRefused::TooLong,
        AtaRefused::Range,
        AtaRefused::Payload,
    ];

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            AtaRefused::Unsupported => "unsupported",
            AtaRefused::AddressMode => "address-mode",
            AtaRefused::Empty => "empty",
            AtaRefused::Direction => "direction",
            AtaRefused::TooLong => "too-long",
            AtaRefused::Range => "range",
            AtaRefused::Payload => "payload",
        }
    }

    /// How it is answered.
    pub fn by(self) -> RefusedBy {
        match self {
            AtaRefused::Unsupported | AtaRefused::AddressMode | AtaRefused::Empty => {
                RefusedBy::Drive(ata_error::ABRT)
            }
            AtaRefused::Range => RefusedBy::Drive(ata_error::IDNF),
            AtaRefused::Direction | AtaRefused::TooLong | AtaRefused::Payload => {
                RefusedBy::Server(ErrorCode::BadArgument)
            }
        }
    }
}

impl fmt::Display for AtaRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for AtaRefused {}

impl AtaRegisters {
    /// A request, with the flags that the command must have; IDENTIFY DEVICE is asked for with one sector by
    /// custom. `None` if the sectors begin beyond what the command reaches. The number of a sector is dropped
    /// where the command has none.
    pub fn request(command: AtaCommand, sector: u64, sectors: u8) -> Option<AtaRegisters> {
        let sector = if command.has_sectors() { sector } else { 0 };
        let reach = if command.is_extended() { LBA48_SECTORS_MAX } else { LBA28_SECTORS_MAX };
        if sector >= reach {
            return None;
        }
        let [a, b, c, d, e, f, ..] = sector.to_le_bytes();
        let mut registers = AtaRegisters {
            sectors,
            command_status: command as u8,
            lba: [a, b, c, d, e, f],
            ..AtaRegisters::default()
        };
        if command.is_extended() {
            registers.flags |= ata_flags::EXTENDED;
        } else {
            registers.lba[3] |= DEVICE_LBA;
        }
        if command.is_write() {
            registers.flags |= ata_flags::WRITE;
        }
        Some(registers)
    }

    /// The number of the first sector, in 48 bits with E and in 28 without.
    #[inline]
    pub fn sector(&self) -> u64 {
        let [a, b, c, d, e, f] = self.lba;
        if self.flags & ata_flags::EXTENDED != 0 {
            u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
        } else {
            u64::from(u32::from_le_bytes([a, b, c, d & 0x0f]))
        }
    }

    /// What this request wants of that drive, if `payload_bytes` are behind the registers: data or padding.
    ///
    /// # Errors
    /// The first reason that fits, in the order of [`AtaRefused`].
    #[inline]
    pub fn decode(&self, drive: Drive, payload_bytes: usize) -> Result<AtaIo, AtaRefused> {
        let command = AtaCommand::known(self.command_status).ok_or(AtaRefused::Unsupported)?;
        let is_extended = self.flags & ata_flags::EXTENDED != 0;
        if command.has_sectors() && is_extended != command.is_extended() {
            return Err(AtaRefused::AddressMode);
        }
        if command.has_sectors() && self.sectors == 0 {
            return Err(AtaRefused::Empty);
        }
        if (self.flags & ata_flags::WRITE != 0) != command.is_write() {
            return Err(AtaRefused::Direction);
        }
        let (sector, sectors) = (self.sector(), self.sectors);
        if command.has_sectors() {
            if sectors > drive.request_sectors_max {
                return Err(AtaRefused::TooLong);
            }
            let reach = if is_extended { LBA48_SECTORS_MAX } else { LBA28_SECTORS_MAX };
            // Neither has more than 48 bits.
            if sector + u64::from(sectors) > drive.sectors.min(reach) {
                return Err(AtaRefused::Range);
            }
        }
        if command.is_write() && payload_bytes < usize::from(sectors) * SECTOR_BYTES {
            return Err(AtaRefused::Payload);
        }
        Ok(match command {
            AtaCommand::ReadSectors | AtaCommand::ReadSectorsExt => AtaIo::Read { sector, sectors },
            AtaCommand::WriteSectors | AtaCommand::WriteSectorsExt => {
                AtaIo::Write { sector, sectors }
            }
            AtaCommand::FlushCache | AtaCommand::FlushCacheExt => AtaIo::Flush,
            AtaCommand::IdentifyDevice => AtaIo::Identify,
            AtaCommand::CheckPowerMode => AtaIo::CheckPower,
        })
    }

    /// The answer to this request, when it was done: ready, and no sectors are left to move.
    #[inline]
    pub fn done(&self) -> AtaRegisters {
        AtaRegisters {
            error_feature: 0,
            sectors: 0,
            command_status: ata_status::DRDY,
            ..self.known()
        }
    }

    /// The answer to CHECK POWER MODE.
    pub fn awake(&self) -> AtaRegisters {
        AtaRegisters { sectors: POWER_ACTIVE, ..self.done() }
    }

    /// The answer to this request, when the drive refuses it or fails, with this error register
    /// ([`ata_error`]). No data follows.
    pub fn failed(&self, error: u8) -> AtaRegisters {
        AtaRegisters {
            error_feature: error,
            command_status: ata_status::DRDY | ata_status::ERR,
            ..self.known()
        }
    }

    /// Of an answer: whether the command was done.
    pub fn is_done(&self) -> bool {
        self.command_status & ata_status::BAD == 0
    }

    /// Without reserved flags.
    fn known(&self) -> AtaRegisters {
        AtaRegisters { flags: self.flags & ata_flags::KNOWN, ..*self }
    }

    /// As they stand on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; ATA_BYTES] {
        let AtaRegisters { flags, error_feature, sectors, command_status, lba } = self.known();
        let [a, b, c, d, e, f] = lba;
        [flags, error_feature, sectors, command_status, a, b, c, d, e, f, 0, 0]
    }

    /// Appends them to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// Reads them from what stands behind the common header. Reserved flags and octets are not looked at.
    ///
    /// # Errors
    /// [`FrameRefused::Argument`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<AtaRegisters, FrameRefused> {
        let &[flags, error_feature, sectors, command_status, a, b, c, d, e, f, _, _] =
            bytes.first_chunk::<ATA_BYTES>().ok_or(FrameRefused::Argument)?;
        let lba = [a, b, c, d, e, f];
        Ok(AtaRegisters { flags, error_feature, sectors, command_status, lba }.known())
    }
}
