//! Who is at the other end of a unix socket, as the kernel has it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The user of the process that connected a unix stream socket or, if we connected, of the one that began to
/// listen; as it was then, whatever became of either. One without an id in our user namespace has the overflow
/// id, 65534 mostly.
///
/// By libc: a process of another PID namespace has the id 0 here, which rustix's type has no room for.
pub fn user_of_peer(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: pointer and length describe a live `ucred`, any bytes of which are one, and `bytes` lives, too.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut bytes,
        )
    };
    match done {
        0 if bytes as usize == size_of::<libc::ucred>() => Ok(who.uid),
        0 => Err(io::Error::other("the kernel does not say who is there")),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_pair_are_this_user_s() {
        let (a, b) = UnixStream::pair().unwrap();
        for end in [&a, &b] {
            let us = rustix::process::geteuid().as_raw();
            assert_eq!(user_of_peer(end.as_fd()).unwrap(), us);
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        user_of_peer(file.as_fd()).unwrap_err();
    }
}
