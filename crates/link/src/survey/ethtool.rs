//! What the driver of an interface says about it.

use std::io;

use crate::sys;

const GET_DRIVER_INFO: u32 = 0x03;
const GET_FLAGS: u32 = 0x25;
const FLAG_TAKES_TAGS_OFF: u32 = 1 << 8;
const GET_CHANNELS: u32 = 0x3c;

/// The name of the driver: `veth`, `mlx5_core`.
pub(super) fn driver(ifname: &str) -> io::Result<String> {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct DriverInfo {
        command: u32,
        driver: [u8; 32],
        /// Versions, bus, and lengths of other answers.
        others: [u8; 160],
    }
    let mut info = DriverInfo { command: GET_DRIVER_INFO, driver: [0; 32], others: [0; 160] };
    // SAFETY: 196 bytes, as `struct ethtool_drvinfo` has.
    unsafe { sys::ask_driver(ifname, &mut info) }?;
    let name = info.driver.split(|&byte| byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Whether the adapter takes the tag off a frame of a VLAN that it receives, and hands it over beside
/// the frame; false where the driver does not tell.
pub(super) fn takes_tags_off(ifname: &str) -> bool {
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Value {
        command: u32,
        value: u32,
    }
    let mut flags = Value { command: GET_FLAGS, value: 0 };
    // SAFETY: 8 bytes, as `struct ethtool_value` has.
    let told = unsafe { sys::ask_driver(ifname, &mut flags) };
    told.is_ok() && flags.value & FLAG_TAKES_TAGS_OFF != 0
}

/// How many queues receive; 1 where the driver does not tell.
pub(crate) fn rx_queues(ifname: &str) -> u32 {
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Channels {
        command: u32,
        /// Most possible: receive, transmit, other, combined.
        max: [u32; 4],
        /// In use, likewise.
        now: [u32; 4],
    }
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    // SAFETY: 36 bytes, as `struct ethtool_channels` has.
    match unsafe { sys::ask_driver(ifname, &mut channels) } {
        Ok(()) => (channels.now[0] + channels.now[3]).max(1),
        Err(_) => 1,
    }
}
