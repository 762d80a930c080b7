//! The door: where clients find the face, and who can come. A unix socket is its owner's, by the permissions of
//! its file; a TCP port is this machine's, by its address. Anything else must be said.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Access, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::config::NbdConfig;

/// A send buffer of this size, where the kernel allows it, takes a long read's reply in few calls.
const UNIX_SEND_BYTES: usize = 1 << 20;

/// Where to listen: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A TCP port, `HOST:PORT`. Port 0 takes any that is free.
    Tcp(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Listen::Unix(path.into())),
            Some(("tcp", rest)) => match rest.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Listen::Tcp(rest.into()))
                }
                _ => Err(format!("'{text}' lacks a host or a port: write tcp:HOST:PORT")),
            },
            _ => Err(format!("'{text}' is neither unix:PATH nor tcp:HOST:PORT")),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Why a face cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// A live server answers at the path.
    #[error("{0}: in use by a running process; detach that first, or choose another path")]
    InUse(PathBuf),
    /// There is something at the path that is no socket; it is left alone.
    #[error("{0}: exists and is {1}; it is left alone: choose another path")]
    NotASocket(PathBuf, &'static str),
    /// The path does not fit a socket's address.
    #[error("{0}: too long for a unix socket (at most 107 bytes); choose a shorter path")]
    PathTooLong(PathBuf),
    /// The protocol has no room for such a text.
    #[error("the export's {0} has {1} bytes; NBD allows 4096: choose a shorter one")]
    TextTooLong(&'static str, usize),
    /// Other machines reach the address, and [`NbdConfig::beyond_loopback`] was not said.
    #[error(
        "{0}: other machines reach {1}, and there is neither a key nor TLS for NBD here: whoever connects reads \
         and writes the disk"
    )]
    BeyondLoopback(Listen, IpAddr),
    /// The address means nothing, or cannot be listened at.
    #[error("cannot listen on {0}: {1}")]
    Listen(Listen, #[source] io::Error),
    /// The kernel refused something else.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] io::Error),
}

/// A listening socket, and what to remove when it closes.
pub(super) struct Listener {
    socket: OwnedFd,
    /// What users open.
    pub(super) path: String,
    is_tcp: bool,
    /// The socket file, with device and inode: only our own is removed.
    file: Option<(PathBuf, u64, u64)>,
    /// Kept so that a client can be turned away when there are no descriptors left.
    reserve: Option<OwnedFd>,
}

impl Listener {
    /// Whether [`Listener::bind`] would be refused now. No client can come meanwhile, but to a TCP port.
    pub(super) fn check(config: &NbdConfig) -> Result<(), NbdError> {
        match &config.listen {
            Listen::Unix(path) => {
                let failed = |error| NbdError::Listen(config.listen.clone(), error);
                free_path(path, failed)?;
                let folder = match path.parent() {
                    Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
                    Some(parent) => parent,
                    None => Path::new("/"),
                };
                rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
                    .map_err(|error| failed(error.into()))
            }
            Listen::Tcp(address) => Self::bind_tcp(address, config).map(drop),
        }
    }

    pub(super) fn bind(config: &NbdConfig) -> Result<Self, NbdError> {
        let mut listener = match &config.listen {
            Listen::Unix(path) => Self::bind_unix(path, config)?,
            Listen::Tcp(address) => Self::bind_tcp(address, config)?,
        };
        listener.reserve = reserve();
        Ok(listener)
    }

    fn bind_tcp(address: &str, config: &NbdConfig) -> Result<Self, NbdError> {
        let failed = |error| NbdError::Listen(config.listen.clone(), error);
        // What a name stands for now is both judged and bound: it may be something else a moment later.
        let addresses: Vec<_> = address.to_socket_addrs().map_err(failed)?.collect();
        let reached = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
        if let Some(reached) = reached
            && !config.beyond_loopback
        {
            return Err(NbdError::BeyondLoopback(config.listen.clone(), reached.ip()));
        }
        let socket = TcpListener::bind(&addresses[..]).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let path = socket.local_addr().map_err(failed)?.to_string();
        Ok(Listener { socket: socket.into(), path, is_tcp: true, file: None, reserve: None })
    }

    fn bind_unix(path: &Path, config: &NbdConfig) -> Result<Self, NbdError> {
        let failed = |error| NbdError::Listen(config.listen.clone(), error);
        free_path(path, failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|error| failed(error.into()))?;
        // The file has the socket's own mode from the start, less the umask: never more than was asked for.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(config.socket_mode))
            .map_err(|error| failed(error.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(NbdError::InUse(path.into())),
            Err(error) => return Err(failed(error.into())),
        }
        let (file, stat) = name_socket(path).map_err(failed)?;
        // From here on the file goes with it, also if something fails.
        let listener = Listener {
            socket,
            path: path.display().to_string(),
            is_tcp: false,
            file: Some((path.into(), stat.st_dev, stat.st_ino)),
            reserve: None,
        };
        if stat.st_mode & 0o777 != config.socket_mode {
            set_mode(&file, config.socket_mode).map_err(failed)?;
        }
        // As many wait as the kernel keeps.
        rustix::net::listen(&listener.socket, -1).map_err(|error| failed(error.into()))?;
        Ok(listener)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next client, if one waits. One that cannot be had for lack of descriptors is turned
    /// away, and reported as `None` within `Some`.
    pub(super) fn accept(&mut self) -> io::Result<Option<Option<OwnedFd>>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.socket, flags) {
            Ok(socket) => {
                // Best effort both: they only make it faster.
                if self.is_tcp {
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                } else {
                    let _ = sockopt::set_socket_send_buffer_size(&socket, UNIX_SEND_BYTES);
                }
                Ok(Some(Some(socket)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::MFILE | Errno::NFILE) => {
                // Else the one in the queue would wake us for ever.
                self.reserve = None;
                let taken = rustix::net::accept_with(&self.socket, flags);
                let any = taken.is_ok();
                drop(taken);
                self.reserve = reserve();
                Ok(any.then_some(None))
            }
            Err(Errno::NOBUFS | Errno::NOMEM) => Ok(None),
            Err(error @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK)) => Err(error.into()),
            // The client's troubles, not ours: it is gone already, and the next may be fine.
            Err(_) => Ok(Some(None)),
        }
    }
}

impl Drop for Listener {
    /// Removes the socket file, unless somebody has put another in its place.
    fn drop(&mut self) {
        if let Some((path, device, inode)) = self.file.take()
            && let Ok(meta) = fs::symlink_metadata(&path)
            && (meta.dev(), meta.ino()) == (device, inode)
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!("cannot remove the socket {}: {error}", path.display());
        }
    }
}

/// Sees to it that a socket can have `path`, or says why not.
fn free_path(path: &Path, failed: impl Fn(io::Error) -> NbdError) -> Result<(), NbdError> {
    if path.as_os_str().len() > 107 {
        return Err(NbdError::PathTooLong(path.into()));
    }
    make_way(path, &failed)
}

/// Sees to it that nothing is at `path`, or says why something must stay.
fn make_way(path: &Path, failed: &impl Fn(io::Error) -> NbdError) -> Result<(), NbdError> {
    let kind = match fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !kind.is_socket() {
        let what = match () {
            () if kind.is_file() => "a file",
            () if kind.is_dir() => "a directory",
            () if kind.is_symlink() => "a symbolic link",
            () => "no socket",
        };
        return Err(NbdError::NotASocket(path.into(), what));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(NbdError::InUse(path.into())),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)?;
            tracing::warn!("{}: removed a socket that nobody serves any more", path.display());
            Ok(())
        }
        Err(error) => Err(failed(error)),
    }
}

/// A descriptor that names the socket's file, so that nothing that is put in its place is taken for it.
fn name_socket(path: &Path) -> io::Result<(OwnedFd, Stat)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => Ok((file, stat)),
        _ => Err(io::Error::other("somebody has put something else in its place")),
    }
}

/// Gives a named file permissions that the umask has taken.
fn set_mode(file: &OwnedFd, mode: u32) -> io::Result<()> {
    // The kernel takes no descriptor here that only names a file.
    let place = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::chmod(place, Mode::from_raw_mode(mode))?)
}

fn reserve() -> Option<OwnedFd> {
    fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nbd-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// What one of them says, the other says, too.
    fn open(config: &NbdConfig) -> Result<Listener, NbdError> {
        let checked = Listener::check(config).map_err(|error| error.to_string());
        let bound = Listener::bind(config);
        assert_eq!(checked.err(), bound.as_ref().err().map(NbdError::to_string));
        bound
    }

    fn bind(path: &Path) -> Result<Listener, NbdError> {
        open(&NbdConfig::new(Listen::Unix(path.into()), "x"))
    }

    fn tcp(address: &str) -> NbdConfig {
        NbdConfig::new(Listen::Tcp(address.into()), "x")
    }

    #[test]
    fn addresses_are_read_and_refused() {
        assert_eq!("unix:/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        assert_eq!("tcp:[::1]:0".parse(), Ok(Listen::Tcp("[::1]:0".into())));
        for bad in ["", "unix:", "/run/x", "tcp:", "tcp:10809", "tcp::1", "tcp:h:99999", "tcp:h:"] {
            bad.parse::<Listen>().unwrap_err();
        }
    }

    #[test]
    fn what_is_at_the_path_is_respected() {
        let folder = folder("path");
        let path = folder.join("socket");

        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(NbdError::NotASocket(..))));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();

        let live = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(NbdError::InUse(_))));
        assert!(path.exists(), "the live one is untouched");
        drop(live);
        assert!(!path.exists(), "removed with its listener");

        // As kill -9 leaves it.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let ours = bind(&path).unwrap();

        // Somebody else's, in the meantime.
        fs::remove_file(&path).unwrap();
        let theirs = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists());
        drop(theirs);

        assert!(matches!(bind(&folder.join("none/socket")), Err(NbdError::Listen(..))));
        let long = folder.join("x".repeat(108));
        assert!(matches!(bind(&long), Err(NbdError::PathTooLong(_))));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_socket_has_the_mode_that_was_asked_for() {
        let folder = folder("mode");
        let path = folder.join("socket");
        let mode = || fs::symlink_metadata(&path).unwrap().mode() & 0o7777;
        let live = bind(&path).unwrap();
        assert_eq!(mode(), 0o600, "its owner's alone");
        UnixStream::connect(&path).unwrap();
        drop(live);
        // What a umask takes away (022 in most places) is given.
        for wanted in [0o660, 0o666, 0o777, 0o000] {
            let mut config = NbdConfig::new(Listen::Unix(path.clone()), "x");
            config.socket_mode = wanted;
            let _live = Listener::bind(&config).unwrap();
            assert_eq!(mode(), wanted, "{wanted:o}");
        }
        assert!(!path.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn only_a_socket_is_named() {
        let folder = folder("named");
        let (path, link) = (folder.join("socket"), folder.join("link"));
        let _live = bind(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        name_socket(&link).unwrap_err();
        let (file, _) = name_socket(&path).unwrap();
        set_mode(&file, 0o640).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert!(matches!(bind(&link), Err(NbdError::NotASocket(_, "a symbolic link"))));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn beyond_loopback_only_if_it_is_said() {
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
            let error = open(&tcp(address)).err().expect(address).to_string();
            assert!(error.contains("other machines reach") && error.contains("TLS"), "{error}");
        }
        for address in ["127.0.0.1:0", "127.9.9.9:0", "localhost:0", "[::ffff:127.0.0.1]:0"] {
            // A machine without IPv6 has no such address.
            let error = open(&tcp(address)).err();
            assert!(matches!(error, None | Some(NbdError::Listen(..))), "{address}: {error:?}");
        }
        let mut config = tcp("0.0.0.0:0");
        config.beyond_loopback = true;
        assert!(open(&config).unwrap().path.starts_with("0.0.0.0:"));
    }

    #[test]
    fn a_free_port_is_named() {
        let listener = open(&tcp("127.0.0.1:0")).unwrap();
        let port = listener.path.strip_prefix("127.0.0.1:").unwrap();
        assert_ne!(port.parse::<u16>().unwrap(), 0);
        assert!(matches!(open(&tcp(&listener.path)), Err(NbdError::Listen(..))));
    }
}
