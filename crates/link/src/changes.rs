//! News of interfaces: the kernel tells when one of a network namespace comes, goes or changes, as
//! long as somebody listens (rtnetlink(7), the group `RTNLGRP_LINK`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::sys;

/// A listener. It does not listen at first.
pub(crate) struct Changes {
    socket: OwnedFd,
}

impl Changes {
    /// Of the network namespace of this thread.
    pub(crate) fn new() -> io::Result<Changes> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        // A socket without an address of its own is told nothing. The kernel chooses one.
        let mut addr = sys::empty_addr();
        addr.ss_family = libc::AF_NETLINK as libc::sa_family_t;
        sys::bind(socket.as_fd(), &addr, size_of::<libc::sockaddr_nl>() as u32)?;
        Ok(Changes { socket })
    }

    /// Listens from now on, or no more.
    pub(crate) fn listen(&self, listens: bool) -> io::Result<()> {
        let option = match listens {
            true => libc::NETLINK_ADD_MEMBERSHIP,
            false => libc::NETLINK_DROP_MEMBERSHIP,
        };
        let group = libc::RTNLGRP_LINK as libc::c_int;
        sys::set_option(self.socket.as_fd(), libc::SOL_NETLINK, option, &group)
    }

    /// Forgets what has been told; true if that was anything.
    pub(crate) fn take(&self) -> bool {
        let mut has_told = false;
        loop {
            // Which interface it was about does not matter: whoever listens looks for its own.
            match rustix::net::recv(&self.socket, &mut [0; 16][..], RecvFlags::empty()) {
                // The latter: more was told than there was room for.
                Ok(_) | Err(Errno::NOBUFS) => has_told = true,
                Err(Errno::INTR) => {}
                Err(_) => return has_told,
            }
        }
    }

    /// Readable when something has been told.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
