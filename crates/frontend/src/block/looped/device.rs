//! The loop driver: `/dev/loop-control`, `/dev/loopN` and their ioctls (`include/uapi/linux/loop.h`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode};

use super::super::error::BlockError;

/// Major number of loop devices.
const MAJOR: u32 = 7;

const LOOP_CLR_FD: u32 = 0x4C01;
const LOOP_GET_STATUS64: u32 = 0x4C05;
const LOOP_SET_CAPACITY: u32 = 0x4C07;
const LOOP_CONFIGURE: u32 = 0x4C0A;
const LOOP_CTL_GET_FREE: u32 = 0x4C82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// A free device may be taken by somebody else before we configure it; try the next one.
const TRIES_MAX: u32 = 64;

const NAME_BYTES: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopInfo {
    const fn empty() -> Self {
        LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; NAME_BYTES],
            crypt_name: [0; NAME_BYTES],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// A loop device that is bound, held open: the driver lets go of the file when the last one closes
/// it, so it cannot outlive this process unless it is in use.
pub struct LoopDevice {
    number: u32,
    file: File,
    /// Settings that were changed, and what they were.
    before: Vec<(String, String)>,
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        for (at, before) in self.before.drain(..) {
            let _ = std::fs::write(at, before.trim());
        }
    }
}

/// How much of a device that its machine depends on is outstanding: so little that its process has touched memory for all of it
/// before. Requests of so many KiB (or of a page, where those are larger), and so many of them.
const CARRIED_KIB: usize = 16;
const CARRIED_REQUESTS: usize = 16;

/// Binds a free loop device to `backing`, with direct I/O, without a partition scan.
///
/// Waits for the server of `backing`, so not for the thread that is that server.
pub fn bind(backing: &Path, block_bytes: u32, read_only: bool) -> Result<LoopDevice, BlockError> {
    let file = File::options()
        .read(true)
        .write(!read_only)
        .open(backing)
        .map_err(BlockError::system(format!("cannot open {}", backing.display())))?;
    // Older kernels take the size that is cached: make it known.
    file.metadata().map_err(BlockError::system(format!("cannot look at {}", backing.display())))?;
    let control = match File::options().read(true).write(true).open("/dev/loop-control") {
        Ok(control) => control,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(BlockError::NoLoopControl),
        Err(e) => return Err(BlockError::system("cannot open /dev/loop-control")(e)),
    };
    for _ in 0..TRIES_MAX {
        let number = get_free(control.as_fd())
            .map_err(BlockError::system("cannot find a free loop device"))?;
        let node = node_of(number);
        ensure_node(number, &node)?;
        let device = File::options()
            .read(true)
            .write(!read_only)
            .open(&node)
            .map_err(BlockError::system(format!("cannot open {node}")))?;
        let mut config = LoopConfig {
            fd: file.as_raw_fd() as u32,
            block_size: block_bytes,
            info: LoopInfo::empty(),
            reserved: [0; 8],
        };
        config.info.flags = LO_FLAGS_AUTOCLEAR
            | LO_FLAGS_DIRECT_IO
            | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        config.info.file_name = name_field(backing);
        match configure(device.as_fd(), &config) {
            Ok(()) => {
                let bound = LoopDevice { number, file: device, before: Vec::new() };
                let info = status(bound.file.as_fd())
                    .map_err(BlockError::system(format!("cannot ask {node} for its state")))?;
                if info.flags & LO_FLAGS_DIRECT_IO == 0 {
                    return Err(BlockError::NoDirectIo { node });
                }
                return Ok(bound);
            }
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                return Err(BlockError::OldKernel);
            }
            Err(e) => return Err(BlockError::system(format!("cannot set up {node}"))(e)),
        }
    }
    Err(BlockError::NoneFree { tries: TRIES_MAX })
}

impl LoopDevice {
    /// Its node, `/dev/loopN`.
    pub fn node(&self) -> String {
        node_of(self.number)
    }

    /// Its N.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Settings for a device that its machine depends on. They are given back with the device, whose number is somebody else's
    /// then: not if the process is killed.
    ///
    /// # Errors
    /// The kernel takes less than that only with more outstanding. A setting that it has not is none.
    pub fn carry(&mut self) -> Result<(), BlockError> {
        let kib = CARRIED_KIB.max(rustix::param::page_size() >> 10);
        for (setting, value) in [("max_sectors_kb", kib), ("nr_requests", CARRIED_REQUESTS)] {
            match self.set(setting, value) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    let what = format!("cannot set {setting} of {} to {value}", self.node());
                    return Err(BlockError::system(what)(e));
                }
                _ => {}
            }
        }
        // Writes are held back in favour of reads otherwise (writeback throttling): whoever writes to get memory would wait there.
        // Refused by a kernel that does not do that.
        let _ = self.set("wbt_lat_usec", 0);
        Ok(())
    }

    fn set(&mut self, setting: &str, value: usize) -> io::Result<()> {
        let at = format!("/sys/block/loop{}/queue/{setting}", self.number);
        let before = std::fs::read_to_string(&at)?;
        std::fs::write(&at, value.to_string())?;
        self.before.push((at, before));
        Ok(())
    }

    /// Writes back what the kernel caches of the device, and flushes the volume.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Takes over the size that the backing file has now.
    pub fn take_size(&self) -> io::Result<()> {
        set_capacity(self.file.as_fd())
    }

    /// Lets go of the file under it as soon as nobody has it open.
    pub fn release(self) {
        // It was bound to go with its last opener; saying so again helps if somebody changed that.
        let _ = clear(self.file.as_fd());
    }
}

/// The node of a number.
pub fn node_of(number: u32) -> String {
    format!("/dev/loop{number}")
}

/// The device number of a number, as mountinfo writes it.
pub fn dev_of(number: u32) -> String {
    format!("{MAJOR}:{number}")
}

/// The numbers of the loop devices that are bound to the file at `path`. Touches neither them nor
/// the file. One whose file's mount was taken from its place is not found: the kernel shows it as
/// bound to `/`.
pub fn bound_to(path: &Path) -> Vec<u32> {
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    devices
        .flatten()
        .filter_map(|device| device.file_name().to_str()?.strip_prefix("loop")?.parse().ok())
        .filter(|&number| backing_of(number).is_some_and(|backing| backing == path))
        .collect()
}

/// Device `number`, which was bound to `path`, still is, in its place or out of it.
pub fn is_still_bound(number: u32, path: &Path) -> bool {
    backing_of(number).is_some_and(|backing| backing == path || backing == Path::new("/"))
}

/// The file that device `number` is bound to, as the kernel sees it; `None` if to none.
fn backing_of(number: u32) -> Option<PathBuf> {
    let text = std::fs::read(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// Makes device `number` let go of its file: at once, or when its last user closes it.
pub fn clear_number(number: u32) -> io::Result<()> {
    clear(File::open(node_of(number))?.as_fd())
}

/// For `losetup -l` of kernels that show it; cut where the kernel cuts it.
fn name_field(path: &Path) -> [u8; NAME_BYTES] {
    let bytes = path.as_os_str().as_encoded_bytes();
    let len = bytes.len().min(NAME_BYTES - 1);
    let mut field = [0; NAME_BYTES];
    field[..len].copy_from_slice(&bytes[..len]);
    field
}

/// Where devtmpfs is missing (containers), nodes have to be made.
fn ensure_node(number: u32, node: &str) -> Result<(), BlockError> {
    if Path::new(node).exists() {
        return Ok(());
    }
    let device = rustix::fs::makedev(MAJOR, number);
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    match rustix::fs::mknodat(rustix::fs::CWD, node, FileType::BlockDevice, mode, device) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(BlockError::system(format!("cannot make the node {node}"))(e.into())),
    }
}

fn get_free(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and touches no memory of ours.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

fn configure(device: BorrowedFd<'_>, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, whose layout `LoopConfig` has (its size
    // is asserted) and which lives during the call.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, std::ptr::from_ref(config)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn status(device: BorrowedFd<'_>) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::empty();
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, whose layout `LoopInfo` has (its
    // size is asserted); every bit pattern is valid for its fields.
    let result = unsafe {
        libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, std::ptr::from_mut(&mut info))
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

fn set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument and touches no memory of ours.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn clear(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_where_the_kernel_cuts_them() {
        let long = PathBuf::from(format!("/run/{}", "x".repeat(100)));
        assert_eq!(name_field(&long)[62..], *b"x\0");
        assert!(name_field(Path::new("/run/a.disk")).starts_with(b"/run/a.disk\0"));
    }

    #[test]
    fn nothing_is_bound_to_what_does_not_exist() {
        let nowhere = Path::new("/nonexistent-thinwire");
        assert_eq!(bound_to(nowhere), Vec::<u32>::new());
        assert!(!is_still_bound(u32::MAX, nowhere));
    }
}
