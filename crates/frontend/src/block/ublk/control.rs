//! `/dev/ublk-control`: devices are made, shown and taken away by commands of an io_uring, each of which is waited for.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use zerocopy::IntoBytes;

use super::abi::{ANY_DEVICE, ControlCommand, DeviceInfo, NO_QUEUE, Parameters, control, feature};

/// Where the driver is spoken to.
pub const PATH: &str = "/dev/ublk-control";

/// Bytes that an entry of the ring has for a command.
const COMMAND_BYTES: usize = 80;

/// The driver. Commands wait, some for I/O of the device in question: so not on the thread that serves it, but for
/// [`Control::add`] and [`Control::set_parameters`].
pub struct Control {
    file: File,
    ring: IoUring<Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// There is none, it is not for us, or io_uring is refused.
    pub fn open() -> io::Result<Control> {
        let file = File::options().read(true).write(true).open(PATH)?;
        let ring = IoUring::builder().build(1)?;
        Ok(Control { file, ring })
    }

    /// What the driver can do.
    pub fn features(&mut self) -> io::Result<u64> {
        let mut features = [0u8; 8];
        self.with(control::GET_FEATURES, ANY_DEVICE, &mut features)?;
        Ok(u64::from_le_bytes(features))
    }

    /// Makes a device: with one queue, whose data goes by reads and writes. It is not shown yet.
    pub fn add(&mut self, depth: u16, io_bytes_max: u32, mark: u64) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo {
            queues: 1,
            depth,
            io_bytes_max,
            device: ANY_DEVICE,
            process: std::process::id() as i32,
            features: feature::USER_COPY | feature::IOCTL_NUMBERS,
            mark,
            ..DeviceInfo::default()
        };
        self.with(control::ADD_DEV, ANY_DEVICE, info.as_mut_bytes())?;
        Ok(info)
    }

    /// Tells what it is like.
    pub fn set_parameters(&mut self, device: u32, mut parameters: Parameters) -> io::Result<()> {
        let bytes = parameters.bytes as usize;
        let all = parameters.as_mut_bytes();
        self.with(control::SET_PARAMS, device, &mut all[..bytes])
    }

    /// Shows it; looks for partitions, so its queue has to be served meanwhile.
    pub fn start(&mut self, device: u32) -> io::Result<()> {
        self.plain(control::START_DEV, device, std::process::id().into())
    }

    /// Takes a new size over.
    ///
    /// # Errors
    /// Before Linux 6.16.
    pub fn update_size(&mut self, device: u32, sectors: u64) -> io::Result<()> {
        self.plain(control::UPDATE_SIZE, device, sectors)
    }

    /// Hides it, once what is outstanding has been answered.
    pub fn stop(&mut self, device: u32) -> io::Result<()> {
        self.plain(control::STOP_DEV, device, 0)
    }

    /// Takes it away as soon as nobody uses it: without waiting for that where the driver can do so, else however long that takes.
    pub fn delete(&mut self, device: u32) -> io::Result<()> {
        match self.plain(control::DEL_DEV_ASYNC, device, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Err(e),
            // An older one, which calls a command that it does not know by various errors.
            Err(_) => self.plain(control::DEL_DEV, device, 0),
            Ok(()) => Ok(()),
        }
    }

    /// How it stands.
    ///
    /// # Errors
    /// ENODEV if there is none of this number.
    pub fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        self.with(control::GET_DEV_INFO, device, info.as_mut_bytes())?;
        Ok(info)
    }

    fn plain(&mut self, number: u32, device: u32, value: u64) -> io::Result<()> {
        let command = ControlCommand { value, ..command(device, &mut []) };
        // SAFETY: it names no memory.
        unsafe { self.call(number, command) }
    }

    fn with(&mut self, number: u32, device: u32, memory: &mut [u8]) -> io::Result<()> {
        let command = command(device, memory);
        // SAFETY: the driver reads and writes no more than these bytes, any of which may be whatever it writes, and has
        // ended when this returns: nobody else has them until then.
        unsafe { self.call(number, command) }
    }

    /// # Safety
    /// The memory that the command names is the caller's alone during the call, and any bytes are valid there.
    unsafe fn call(&mut self, number: u32, command: ControlCommand) -> io::Result<()> {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, number).cmd(bytes).build();
        // SAFETY: the entry has the command in itself, and what that names is there until it has ended (the caller
        // promises, and the loop below does not leave before).
        unsafe { self.ring.submission().push(&entry) }.expect("it has room for one");
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // Short of memory: nothing is lost.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => panic!("io_uring_enter on a ring of our own: {e}"),
            }
            if let Some(ended) = self.ring.completion().next() {
                return match ended.result() {
                    0.. => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
        }
    }
}

fn command(device: u32, memory: &mut [u8]) -> ControlCommand {
    ControlCommand {
        device,
        queue: NO_QUEUE,
        bytes: memory.len() as u16,
        address: if memory.is_empty() { 0 } else { memory.as_mut_ptr() as u64 },
        value: 0,
        reserved: 0,
    }
}

/// Whether nobody serves a device, in whatever container: who can open its queue is alone there.
pub fn is_unserved(device: u32) -> bool {
    let opened = File::options().read(true).write(true).open(format!("/dev/ublkc{device}"));
    opened.is_ok()
}

/// The numbers of all devices.
pub fn devices() -> Vec<u32> {
    let Ok(devices) = std::fs::read_dir("/sys/class/ublk-char") else { return Vec::new() };
    devices
        .flatten()
        .filter_map(|device| device.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
        .collect()
}
