//! The few things asked of bpf(2): a map of sockets, a program, and its attachment to an interface,
//! which lasts as long as its descriptor: the kernel undoes it when the process ends, however.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::assembler::Instruction;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
/// The program copes with frames in several buffers (MTUs above a page).
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// Attachment point "an interface's XDP".
const ATTACH_XDP: u32 = 37;
/// What is told about a refused program, at most.
const LOG_BYTES: usize = 16 << 10;

/// Where a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachMode {
    /// In the driver, before the kernel makes its own buffers.
    Native,
    /// Behind the driver, for drivers that cannot.
    Generic,
}

impl AttachMode {
    fn flags(self) -> u32 {
        match self {
            AttachMode::Native => 1 << 2,
            AttachMode::Generic => 1 << 1,
        }
    }
}

/// Calls bpf(2) with the attributes of `command`.
///
/// # Safety
/// The addresses among the attributes must be valid for what the command does with them.
unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    let at: *mut c_void = (attributes as *mut T).cast();
    // SAFETY: the kernel reads (and for some commands writes) `size` bytes of attributes, which is
    // what there is; addresses in them are the caller's promise.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret as libc::c_int) }
}

/// The same, for commands that make a descriptor (close-on-exec).
///
/// # Safety
/// As [`call`].
unsafe fn call_for_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the descriptor is new and ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(call(command, attributes)?)) }
}

/// A map from receive queues below `queues` to sockets.
pub(super) fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries_max: u32,
        flags: u32,
    }
    let mut attributes = Attributes {
        map_type: MAP_TYPE_XSKMAP,
        key_bytes: 4,
        value_bytes: 4,
        entries_max: queues,
        flags: 0,
    };
    // SAFETY: there are no addresses in it.
    unsafe { call_for_fd(MAP_CREATE, &mut attributes) }
}

/// Frames redirected for `queue` go to this socket. It leaves the map when it is closed.
pub(super) fn set_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = socket.as_raw_fd() as u32;
    let mut attributes = Attributes {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: &raw const queue as u64,
        value: &raw const value as u64,
        flags: 0,
    };
    // SAFETY: key and value are four bytes each, as the map was made for, and outlive the call.
    unsafe { call(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Loads an XDP program. On refusal the error has the end of what the verifier said.
pub(super) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program_type: u32,
        instructions: u32,
        at: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let license = c"Apache-2.0 OR MIT";
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"thinwire");
    let mut attributes = Attributes {
        program_type: PROG_TYPE_XDP,
        instructions: program.len() as u32,
        at: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: XDP_HAS_FRAGS,
        name,
        interface: 0,
        attach_type: ATTACH_XDP,
    };
    // SAFETY: program and license are read, within their lengths, and outlive the call.
    let error = match unsafe { call_for_fd(PROG_LOAD, &mut attributes) } {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    // Only now with a log: one that is too long for its buffer would itself be a reason to refuse.
    let mut log = vec![0u8; LOG_BYTES];
    (attributes.log_level, attributes.log_bytes) = (1, LOG_BYTES as u32);
    attributes.log = log.as_mut_ptr() as u64;
    // SAFETY: as above, and the log is written within its length.
    let _ = unsafe { call_for_fd(PROG_LOAD, &mut attributes) };
    let said = String::from_utf8_lossy(&log);
    let mut lines = said.trim_end_matches('\0').lines();
    Err(match lines.rfind(|line| !line.starts_with("processed ")) {
        Some(line) => io::Error::new(error.kind(), format!("{error} ({line})")),
        None => error,
    })
}

/// Attaches a program to an interface, until the descriptor is closed.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    interface: u32,
    mode: AttachMode,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
    }
    let mut attributes = Attributes {
        program: program.as_raw_fd() as u32,
        interface,
        attach_type: ATTACH_XDP,
        flags: mode.flags(),
    };
    // SAFETY: there are no addresses in it.
    unsafe { call_for_fd(LINK_CREATE, &mut attributes) }
}

/// Replaces the program of an attachment, without a moment in which there is none.
pub(super) fn replace(attachment: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        attachment: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let mut attributes = Attributes {
        attachment: attachment.as_raw_fd() as u32,
        program: program.as_raw_fd() as u32,
        flags: 0,
        old_program: 0,
    };
    // SAFETY: there are no addresses in it.
    unsafe { call(LINK_UPDATE, &mut attributes) }.map(drop)
}

/// Runs a program on a frame, on no interface, and returns its verdict.
#[cfg(test)]
pub(super) fn try_on(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<i32> {
    #[repr(C)]
    struct Attributes {
        program: u32,
        verdict: u32,
        bytes_in: u32,
        bytes_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let mut attributes = Attributes {
        program: program.as_raw_fd() as u32,
        verdict: 0,
        bytes_in: frame.len() as u32,
        bytes_out: 0,
        data_in: frame.as_ptr() as u64,
        data_out: 0,
        repeat: 1,
        duration: 0,
    };
    const PROG_TEST_RUN: libc::c_int = 10;
    // SAFETY: the frame is read within its length, nothing is written but the verdict.
    unsafe { call(PROG_TEST_RUN, &mut attributes) }?;
    Ok(attributes.verdict as i32)
}
