//! Making a ring that takes no calls but those that a disk makes: what a process may ask of io_uring no seccomp
//! filter sees, so the ring itself refuses the rest (`docs/security.md`, "Privileges").
//!
//! The kernel ties a ring to its restrictions (`IORING_REGISTER_RESTRICTIONS`) while it is still disabled, and takes
//! them once; no kernel before 5.10 has them. There the ring is made without, and what is told of it says so.

use std::io;
use std::sync::{Mutex, PoisonError};

use io_uring::register::Restriction;
use io_uring::{Builder, IoUring, opcode};

/// All that `uring.rs` gives to a ring. None of them opens anything or leads to another descriptor.
const OPERATIONS: [u8; 8] = [
    opcode::Read::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    // The bell of a disk's thread, a pause, and a call that only comes back.
    opcode::PollAdd::CODE,
    opcode::Timeout::CODE,
    opcode::Nop::CODE,
];

/// Room for completions, for each entry: all slots of 31 disks. Beyond that the kernel keeps them.
pub(super) const COMPLETIONS_PER_ENTRY: u32 = 16;

/// What became of the restrictions of the rings that this process has made for its disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingRestrictions {
    /// Rings that take a disk's calls only.
    pub restricted: u32,
    /// Why a ring was made that takes all; the last one, if there are several.
    pub refused: Option<String>,
}

static MADE: Mutex<RingRestrictions> =
    Mutex::new(RingRestrictions { restricted: 0, refused: None });

/// Of all rings that this process has made for its disks until now.
pub fn ring_restrictions() -> RingRestrictions {
    MADE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A ring of so many entries. Fails where io_uring is refused (EPERM, ENOSYS) or memory is short.
pub(super) fn ring(entries: u32) -> io::Result<IoUring> {
    let restricted = in_the_cheapest_way(entries, Builder::setup_r_disabled)
        .and_then(|ring| restrict(&ring).map(|()| ring));
    let why = match restricted {
        Ok(ring) => {
            MADE.lock().unwrap_or_else(PoisonError::into_inner).restricted += 1;
            return Ok(ring);
        }
        Err(why) => why,
    };
    let ring = in_the_cheapest_way(entries, |builder| builder)?;
    MADE.lock().unwrap_or_else(PoisonError::into_inner).refused =
        Some(format!("this kernel does not restrict a ring: {why}"));
    Ok(ring)
}

/// Has a disabled ring refuse the rest, and work. What it is told to register from now on is refused, too.
fn restrict(ring: &IoUring) -> io::Result<()> {
    let mut allowed = OPERATIONS.map(Restriction::sqe_op);
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()
}

/// The cheapest way of delivering completions: cooperative task work (5.19, a single issuer since 6.0) spares the
/// interrupt of a running thread, which has completions made by whatever call it makes next, and a flag in shared
/// memory tells whether one is needed for that. A sleeping thread is woken as ever. (Deferred task work is not
/// cheaper here: `docs/design.md`, "One call a turn for all disks".)
fn in_the_cheapest_way(
    entries: u32,
    set: impl Fn(&mut Builder) -> &mut Builder,
) -> io::Result<IoUring> {
    let completions = entries * COMPLETIONS_PER_ENTRY;
    let mut builder = IoUring::builder();
    builder.setup_cqsize(completions).setup_submit_all().setup_single_issuer();
    builder.setup_coop_taskrun().setup_taskrun_flag();
    match set(&mut builder).build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            set(IoUring::builder().setup_cqsize(completions)).build(entries)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use io_uring::squeue::{Entry, Flags};
    use io_uring::types;

    use super::*;

    fn result_of(ring: &mut IoUring, entry: Entry) -> i32 {
        // SAFETY: none of the calls below has memory that does not live as long as the test.
        unsafe { ring.submission().push(&entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        ring.completion().next().unwrap().result()
    }

    #[test]
    fn a_ring_takes_a_disk_s_calls_and_no_others() {
        let mut ring = ring(8).unwrap();
        let told = ring_restrictions();
        if told.restricted == 0 {
            return eprintln!("skipped: {told:?}");
        }
        assert_eq!(result_of(&mut ring, opcode::Nop::new().build()), 0);
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr());
        assert_eq!(result_of(&mut ring, open.build()), -libc::EACCES);
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert_eq!(result_of(&mut ring, socket.build()), -libc::EACCES);
        // Nothing is linked to another, or is of a registered file.
        let linked = opcode::Nop::new().build().flags(Flags::IO_LINK);
        assert_eq!(result_of(&mut ring, linked), -libc::EACCES);
        let registered = ring.submitter().register_files(&[0]).unwrap_err();
        assert_eq!(registered.raw_os_error(), Some(libc::EACCES));
    }
}
