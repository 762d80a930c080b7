//! What is said between a ublk server and the driver (`include/uapi/linux/ublk_cmd.h`): commands of `/dev/ublk-control`,
//! each a passthrough command of io_uring of 32 bytes, and those of a queue, of 16.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Numbers of commands, as ioctls have them: direction, bytes of the argument, `u`, number.
const fn command(direction: u32, bytes: usize, number: u32) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const READ: u32 = 2;
const BOTH: u32 = 3;

/// Commands of `/dev/ublk-control`.
pub mod control {
    use super::{BOTH, ControlCommand, READ, command};

    const fn of(direction: u32, number: u32) -> u32 {
        command(direction, size_of::<ControlCommand>(), number)
    }

    /// Tells the state of a device.
    pub const GET_DEV_INFO: u32 = of(READ, 0x02);
    /// Makes a device.
    pub const ADD_DEV: u32 = of(BOTH, 0x04);
    /// Takes it away; ends when nobody has it open any more.
    pub const DEL_DEV: u32 = of(BOTH, 0x05);
    /// Shows its block device, once all of its queues are served.
    pub const START_DEV: u32 = of(BOTH, 0x06);
    /// Takes the block device away.
    pub const STOP_DEV: u32 = of(BOTH, 0x07);
    /// Tells what the block device is like, before it is shown.
    pub const SET_PARAMS: u32 = of(BOTH, 0x08);
    /// What the driver can do: since Linux 6.5.
    pub const GET_FEATURES: u32 = of(READ, 0x13);
    /// As [`DEL_DEV`], without waiting: Linux 6.12 has it, 6.6 has not.
    pub const DEL_DEV_ASYNC: u32 = of(READ, 0x14);
    /// Tells a new size: since Linux 6.16.
    pub const UPDATE_SIZE: u32 = of(BOTH, 0x15);
}

/// Commands of a queue.
pub mod queue {
    use super::{BOTH, QueueCommand, command};

    /// The first of a tag: ends when there is a request.
    pub const FETCH: u32 = command(BOTH, size_of::<QueueCommand>(), 0x20);
    /// Answers the request of a tag; ends when there is the next.
    pub const COMMIT_AND_FETCH: u32 = command(BOTH, size_of::<QueueCommand>(), 0x21);
}

/// Features of a device.
pub mod feature {
    /// Commands have numbers as ioctls have them.
    pub const IOCTL_NUMBERS: u64 = 1 << 6;
    /// Data goes by reads and writes of `/dev/ublkcN`, into whatever memory fits.
    pub const USER_COPY: u64 = 1 << 7;
}

/// For all of a device.
pub const NO_QUEUE: u16 = u16::MAX;
/// Whatever number is free.
pub const ANY_DEVICE: u32 = u32::MAX;

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
pub struct ControlCommand {
    pub device: u32,
    pub queue: u16,
    /// Bytes at `address`.
    pub bytes: u16,
    pub address: u64,
    /// The server's process, or the new size.
    pub value: u64,
    pub reserved: u64,
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout,
)]
pub struct DeviceInfo {
    pub queues: u16,
    pub depth: u16,
    pub state: u16,
    pub pad0: u16,
    pub io_bytes_max: u32,
    pub device: u32,
    pub process: i32,
    pub pad1: u32,
    /// See [`feature`].
    pub features: u64,
    /// The server's own: what the device is to it.
    pub mark: u64,
    pub reserved: [u64; 3],
}

/// `struct ublk_params`, with the first two kinds of parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
pub struct Parameters {
    /// Of all that is told: [`Parameters::BYTES`].
    pub bytes: u32,
    /// See [`parameter`].
    pub kinds: u32,
    pub basic: Basic,
    pub discard: Discard,
    /// Not told.
    pub pad: u32,
}

impl Parameters {
    /// What the driver has of the first two kinds.
    pub const BYTES: usize = 60;
}

/// Kinds of parameters.
pub mod parameter {
    pub const BASIC: u32 = 1 << 0;
    pub const DISCARD: u32 = 1 << 1;
}

/// `struct ublk_param_basic`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
pub struct Basic {
    /// See [`attribute`].
    pub attributes: u32,
    pub logical_shift: u8,
    pub physical_shift: u8,
    pub io_opt_shift: u8,
    pub io_min_shift: u8,
    pub sectors_max: u32,
    pub chunk_sectors: u32,
    pub sectors: u64,
    pub virt_boundary_mask: u64,
}

/// What a device is.
pub mod attribute {
    pub const READ_ONLY: u32 = 1 << 0;
    /// What was written is durable only after a flush.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// A write can be durable by itself.
    pub const FUA: u32 = 1 << 3;
}

/// `struct ublk_param_discard`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
pub struct Discard {
    pub alignment: u32,
    pub granularity: u32,
    pub sectors_max: u32,
    pub zeroes_sectors_max: u32,
    pub segments_max: u16,
    pub reserved: u16,
}

/// `struct ublksrv_io_desc`: a request, in memory that the driver shares with its server.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// See [`op`] and [`flag`].
    pub op_flags: u32,
    pub sectors: u32,
    pub first_sector: u64,
    pub address: u64,
}

/// What a request wants: the lowest eight bits.
pub mod op {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const FLUSH: u8 = 2;
    pub const DISCARD: u8 = 3;
    pub const WRITE_ZEROES: u8 = 5;
}

/// How: the other bits.
pub mod flag {
    /// Durable before it is answered.
    pub const FUA: u32 = 1 << 13;
    /// Zeroes are to have room.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// `struct ublksrv_io_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
pub struct QueueCommand {
    pub queue: u16,
    pub tag: u16,
    /// Bytes, or a negative errno.
    pub result: i32,
    /// None, where data goes by reads and writes.
    pub address: u64,
}

/// Where the data of a request is, for reads and writes of `/dev/ublkcN`: of the only queue.
pub fn data_offset(tag: u16) -> u64 {
    const DATA: u64 = 0x8000_0000;
    const TAG_SHIFT: u32 = 25;
    DATA + (u64::from(tag) << TAG_SHIFT)
}

/// So many bytes a request may have at that place.
pub const IO_BYTES_MAX: usize = 1 << 25;

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the header of the kernel, by hand: sizes, and the numbers of a few commands.
    #[test]
    fn it_is_laid_out_as_the_driver_has_it() {
        assert_eq!(size_of::<ControlCommand>(), 32);
        assert_eq!(size_of::<DeviceInfo>(), 64);
        assert_eq!(std::mem::offset_of!(Parameters, pad), Parameters::BYTES);
        assert_eq!(size_of::<Descriptor>(), 24);
        assert_eq!(size_of::<QueueCommand>(), 16);
        assert_eq!(control::ADD_DEV, 0xc020_7504);
        assert_eq!(control::GET_FEATURES, 0x8020_7513);
        assert_eq!(queue::COMMIT_AND_FETCH, 0xc010_7521);
        assert_eq!(data_offset(3), 0x8600_0000);
    }
}
