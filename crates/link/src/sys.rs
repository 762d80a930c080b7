//! The few system calls that links need and no safe library offers as we need them: socket
//! options of odd types, interface queries by `ioctl` (sysfs shows the interfaces of the mount's
//! network namespace, not of ours), batched receive and send.

use std::ffi::CStr;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Option of `SOL_UDP`: segment size of a train to send. Missing in libc for some targets.
pub(crate) const UDP_SEGMENT: libc::c_int = 103;
/// Option of `SOL_UDP`, and control message: trains may arrive whole, with this segment size.
pub(crate) const UDP_GRO: libc::c_int = 104;

fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// A new socket, close-on-exec and non-blocking.
pub(crate) fn socket(
    domain: libc::c_int,
    kind: libc::c_int,
    protocol: libc::c_int,
) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd =
        unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
    check(fd)?;
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option whose value is the plain-data type `T`.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (value as *const T).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Reads a socket option that is an array of `N` 32-bit words; words the kernel leaves out are 0.
pub(crate) fn option_words<const N: usize>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0u32; N];
    let mut len = mem::size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `words`; any bits make a valid u32.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, words.as_mut_ptr().cast(), &mut len)
    })?;
    Ok(words)
}

/// Reads a socket option that is an array of `N` 64-bit numbers; those the kernel leaves out are 0.
pub(crate) fn option_numbers<const N: usize>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u64; N]> {
    let mut numbers = [0u64; N];
    let mut len = mem::size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `numbers`; any bits make a valid u64.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, numbers.as_mut_ptr().cast(), &mut len)
    })?;
    Ok(numbers)
}

/// Asks for `bytes` of receive (or send) buffer, beyond the sysctl limit where the privilege is
/// there, and returns what was granted, in the kernel's count (twice what `SO_RCVBUF` is asked
/// for, because the bookkeeping counts too).
pub(crate) fn set_buffer(
    fd: BorrowedFd<'_>,
    force: libc::c_int,
    plain: libc::c_int,
    bytes: u32,
) -> io::Result<u32> {
    let want = bytes.min(1 << 29) as libc::c_int;
    if set_option(fd, libc::SOL_SOCKET, force, &want).is_err() {
        set_option(fd, libc::SOL_SOCKET, plain, &want)?;
    }
    Ok(option_words::<1>(fd, libc::SOL_SOCKET, plain)?[0])
}

/// Binds to the first `len` bytes of `addr`.
pub(crate) fn bind(fd: BorrowedFd<'_>, addr: &libc::sockaddr_storage, len: u32) -> io::Result<()> {
    assert!(len as usize <= mem::size_of_val(addr));
    // SAFETY: pointer and length describe a part of `addr`, which the kernel only reads.
    check(unsafe {
        libc::bind(fd.as_raw_fd(), (addr as *const libc::sockaddr_storage).cast(), len)
    })
    .map(drop)
}

/// The address a socket is bound to, of whatever kind.
pub(crate) fn name_of(fd: BorrowedFd<'_>) -> io::Result<libc::sockaddr_storage> {
    let mut addr = empty_addr();
    let mut len = mem::size_of_val(&addr) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `addr`; any bits are valid there.
    check(unsafe {
        libc::getsockname(
            fd.as_raw_fd(),
            (&mut addr as *mut libc::sockaddr_storage).cast(),
            &mut len,
        )
    })?;
    Ok(addr)
}

/// The internet address a socket is bound to.
pub(crate) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    from_storage(&name_of(fd)?).ok_or_else(|| io::Error::other("socket has no internet address"))
}

/// An all-zero address.
pub(crate) fn empty_addr() -> libc::sockaddr_storage {
    // SAFETY: sockaddr_storage is plain data for which zero is valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Writes the bytes of the plain-data type `T` into the start of `storage`; returns their number.
pub(crate) fn store_addr<T: Copy>(storage: &mut libc::sockaddr_storage, addr: &T) -> u32 {
    assert!(mem::size_of::<T>() <= mem::size_of_val(storage));
    assert!(mem::align_of::<T>() <= mem::align_of::<libc::sockaddr_storage>());
    // SAFETY: size and alignment were just checked; both sides are plain data and do not overlap.
    unsafe { (storage as *mut libc::sockaddr_storage).cast::<T>().write(*addr) };
    mem::size_of::<T>() as u32
}

/// The link-layer address in `storage`, if that is what it holds.
pub(crate) fn link_addr(storage: &libc::sockaddr_storage) -> Option<libc::sockaddr_ll> {
    (libc::c_int::from(storage.ss_family) == libc::AF_PACKET).then(|| {
        // SAFETY: sockaddr_ll is smaller and no stricter aligned than sockaddr_storage, and plain
        // data.
        unsafe { (storage as *const libc::sockaddr_storage).cast::<libc::sockaddr_ll>().read() }
    })
}

/// `addr` as the kernel wants it; returns its length.
pub(crate) fn to_storage(addr: &SocketAddr, storage: &mut libc::sockaddr_storage) -> u32 {
    match addr {
        SocketAddr::V4(v4) => {
            // SAFETY: sockaddr_in is plain data for which zero is valid.
            let mut raw: libc::sockaddr_in = unsafe { mem::zeroed() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = v4.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            store_addr(storage, &raw)
        }
        SocketAddr::V6(v6) => {
            // SAFETY: sockaddr_in6 is plain data for which zero is valid.
            let mut raw: libc::sockaddr_in6 = unsafe { mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = v6.port().to_be();
            raw.sin6_addr.s6_addr = v6.ip().octets();
            raw.sin6_scope_id = v6.scope_id();
            store_addr(storage, &raw)
        }
    }
}

/// The internet address in `storage`, if that is what it holds. Flow information is left out, so
/// that one peer has one address.
pub(crate) fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = storage as *const libc::sockaddr_storage;
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: smaller than sockaddr_storage, no stricter aligned, plain data.
            let raw = unsafe { at.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: smaller than sockaddr_storage, no stricter aligned, plain data.
            let raw = unsafe { at.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id)))
        }
        _ => None,
    }
}

/// What the kernel says about one interface.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) mtu: usize,
    pub(crate) mac: [u8; 6],
    pub(crate) is_ethernet: bool,
    /// The administrator wants it to work.
    pub(crate) is_up: bool,
    /// It has a carrier, too.
    pub(crate) is_running: bool,
}

/// Looks an interface up by name; `None` if there is none.
pub(crate) fn interface(name: &str) -> io::Result<Option<Interface>> {
    interface_by(socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?.as_fd(), name)
}

/// The same in the network namespace of a socket, of whatever kind.
pub(crate) fn interface_by(socket: BorrowedFd<'_>, name: &str) -> io::Result<Option<Interface>> {
    let Some(mut request) = request_about(name) else { return Ok(None) };
    let mut ask = |what| {
        // SAFETY: each of the requests below reads the name from and writes its answer into an
        // ifreq, which this is.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), what, &mut request) })?;
        Ok::<_, io::Error>(request.ifr_ifru)
    };
    let index = match ask(libc::SIOCGIFINDEX) {
        // SAFETY: the request filled this member of the union; all bits are valid.
        Ok(answer) => unsafe { answer.ifru_ifindex },
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
        Err(e) => return Err(e),
    };
    // SAFETY: as above.
    let mtu = unsafe { ask(libc::SIOCGIFMTU)?.ifru_mtu };
    // SAFETY: as above.
    let flags = unsafe { ask(libc::SIOCGIFFLAGS)?.ifru_flags };
    // SAFETY: as above.
    let hw = unsafe { ask(libc::SIOCGIFHWADDR)?.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(hw.sa_data) {
        *to = from as u8;
    }
    Ok(Some(Interface {
        index: index as u32,
        mtu: mtu.max(0) as usize,
        mac,
        is_ethernet: hw.sa_family == libc::ARPHRD_ETHER,
        is_up: libc::c_int::from(flags) & libc::IFF_UP != 0,
        is_running: libc::c_int::from(flags) & libc::IFF_RUNNING != 0,
    }))
}

/// Asks the driver of an interface (`SIOCETHTOOL`). `question` is one of ethtool's structures: plain
/// data that begins with its command, into which the answer is written.
///
/// # Safety
/// `T` must be at least as long as what the kernel writes for the command in it.
pub(crate) unsafe fn ask_driver<T: Copy>(name: &str, question: &mut T) -> io::Result<()> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    let Some(mut request) = request_about(name) else { return Err(io::ErrorKind::NotFound.into()) };
    request.ifr_ifru.ifru_data = (question as *mut T).cast();
    // SAFETY: the name is read from an ifreq, the answer written where it points: into `question`,
    // which is long enough.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut request) }).map(drop)
}

/// A question about an interface; `None` if there can be none of this name.
fn request_about(name: &str) -> Option<libc::ifreq> {
    // SAFETY: ifreq is plain data for which zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // One byte stays zero: the name's end.
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Some(request)
}

/// One (interface, address) pair of this network namespace.
#[derive(Clone, Debug)]
pub(crate) struct InterfaceAddr {
    pub(crate) name: String,
    /// `None` for entries of other families.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) is_up: bool,
    pub(crate) is_loopback: bool,
}

/// All interfaces with all their addresses.
pub(crate) fn interface_addrs() -> io::Result<Vec<InterfaceAddr>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: on success the call stores the head of a list that we free below.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` walks the list, which lives until freeifaddrs.
        let entry = unsafe { &*at };
        // SAFETY: the name is a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let flags = entry.ifa_flags as libc::c_int;
        found.push(InterfaceAddr {
            name,
            ip: address_of(entry),
            is_up: flags & libc::IFF_UP != 0,
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
        });
        at = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    if entry.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to a sockaddr of the family it names.
    match libc::c_int::from(unsafe { (*entry.ifa_addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that a sockaddr_in is there.
            let raw = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes())))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that a sockaddr_in6 is there.
            let raw = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(raw.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

/// The names of all interfaces, for messages: `lo, eth0, eth1`.
pub(crate) fn interface_names() -> String {
    let mut names: Vec<String> = Vec::new();
    for entry in interface_addrs().unwrap_or_default() {
        if !names.contains(&entry.name) {
            names.push(entry.name);
        }
    }
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// `sendmmsg` without waiting: sends messages from the start, returns how many were taken (at
/// least one), or the error of the first.
///
/// # Safety
/// Every pointer in `msgs` must be valid for reads of the length beside it.
pub(crate) unsafe fn send_many(
    fd: BorrowedFd<'_>,
    msgs: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the array is described by pointer and length; its pointers are the caller's promise.
    let sent = unsafe {
        libc::sendmmsg(fd.as_raw_fd(), msgs.as_mut_ptr(), msgs.len() as libc::c_uint, flags as _)
    };
    check(sent).map(|n| n as usize)
}

/// `recvmmsg` without waiting: fills messages from the start, returns how many (at least one), or
/// the error of the first.
///
/// # Safety
/// Every pointer in `msgs` must be valid for writes of the length beside it, by the kernel alone
/// during the call.
pub(crate) unsafe fn recv_many(
    fd: BorrowedFd<'_>,
    msgs: &mut [libc::mmsghdr],
) -> io::Result<usize> {
    // SAFETY: the array is described by pointer and length; its pointers are the caller's promise.
    let got = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            msgs.as_mut_ptr(),
            msgs.len() as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    check(got).map(|n| n as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_known() {
        let lo = interface("lo").unwrap().expect("every namespace has lo");
        assert!(!lo.is_ethernet && lo.index > 0);
        assert!(interface("no-such-if").unwrap().is_none());
        assert!(interface("a-name-that-is-far-too-long").unwrap().is_none());
        assert!(interface_names().contains("lo"));
    }

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["10.1.2.3:34997", "[fe80::1]:7", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            let mut storage = empty_addr();
            assert!(to_storage(&addr, &mut storage) >= 16);
            assert_eq!(from_storage(&storage), Some(addr));
        }
        assert_eq!(from_storage(&empty_addr()), None);
    }
}
