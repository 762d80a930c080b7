//! Whole Ethernet frames, as somebody writes them who keeps to no protocol: for tests and laboratories that
//! forge, replay and flood. No link: it knows no addresses, pools or sizes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::IoSlice;
use rustix::net::{MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::error::LinkOpenError;
use crate::packet;
use crate::sys;

/// A socket on one interface. Used by one thread.
pub struct RawSocket(OwnedFd);

impl RawSocket {
    /// Opens the interface; needs CAP_NET_RAW. One that `hears` receives all that the interface does, its own
    /// frames included, until its buffer is full.
    pub fn open(ifname: &str, hears: bool) -> Result<Self, LinkOpenError> {
        let interface = packet::look_up(ifname)?;
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
            .map_err(LinkOpenError::system("open a packet socket"))?;
        let protocol = if hears { libc::ETH_P_ALL as u16 } else { 0 };
        let mut at = sys::empty_addr();
        let len = sys::store_addr(&mut at, &packet::whole_interface(&interface, protocol));
        sys::bind(socket.as_fd(), &at, len)
            .map_err(LinkOpenError::system(format!("listen on {ifname}")))?;
        Ok(RawSocket(socket))
    }

    /// Sends frames from the start, each with its Ethernet header, in one system call; returns how many were
    /// taken, which are none while the interface's queue is full.
    pub fn send(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        let slices: Vec<[IoSlice<'_>; 1]> = frames.iter().map(|f| [IoSlice::new(f)]).collect();
        let mut none: Vec<SendAncillaryBuffer<'_, '_, '_>> =
            frames.iter().map(|_| SendAncillaryBuffer::default()).collect();
        let mut messages: Vec<MMsgHdr<'_>> =
            slices.iter().zip(&mut none).map(|(slice, none)| MMsgHdr::new(slice, none)).collect();
        Ok(rustix::net::sendmmsg(&self.0, &mut messages, SendFlags::empty())?)
    }

    /// Waits for the next frame and returns how long it is, at most `place.len()`.
    pub fn recv(&self, place: &mut [u8]) -> io::Result<usize> {
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None)?;
        Ok(rustix::net::recv(&self.0, place, RecvFlags::empty())?.0)
    }
}
