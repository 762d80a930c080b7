//! The door: where clients find the face.

use std::fmt;
use std::fs;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Access;
use rustix::net::{SocketFlags, sockopt};

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
    pub(super) fn check(listen: &Listen) -> Result<(), NbdError> {
        let failed = |error| NbdError::Listen(listen.clone(), error);
        match listen {
            Listen::Unix(path) => {
                free_path(path, failed)?;
                let folder = match path.parent() {
                    Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
                    Some(parent) => parent,
                    None => Path::new("/"),
                };
                rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
                    .map_err(|error| failed(error.into()))
            }
            Listen::Tcp(address) => Self::bind_tcp(address).map(drop).map_err(failed),
        }
    }

    pub(super) fn bind(listen: &Listen) -> Result<Self, NbdError> {
        let failed = |error| NbdError::Listen(listen.clone(), error);
        let mut listener = match listen {
            Listen::Unix(path) => Self::bind_unix(path, failed)?,
            Listen::Tcp(address) => Self::bind_tcp(address).map_err(failed)?,
        };
        listener.reserve = reserve();
        Ok(listener)
    }

    fn bind_tcp(address: &str) -> io::Result<Self> {
        let addresses: Vec<_> = address.to_socket_addrs()?.collect();
        let socket = TcpListener::bind(&addresses[..])?;
        socket.set_nonblocking(true)?;
        let path = socket.local_addr()?.to_string();
        Ok(Listener { socket: socket.into(), path, is_tcp: true, file: None, reserve: None })
    }

    fn bind_unix(path: &Path, failed: impl Fn(io::Error) -> NbdError) -> Result<Self, NbdError> {
        free_path(path, &failed)?;
        let socket = match UnixListener::bind(path) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(NbdError::InUse(path.into()));
            }
            Err(error) => return Err(failed(error)),
        };
        socket.set_nonblocking(true).map_err(&failed)?;
        let meta = fs::symlink_metadata(path).map_err(&failed)?;
        Ok(Listener {
            socket: socket.into(),
            path: path.display().to_string(),
            is_tcp: false,
            file: Some((path.into(), meta.dev(), meta.ino())),
            reserve: None,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next client, if one waits. One that cannot be had for lack of descriptors is turned
    /// away, and reported as `None` within `Some`.
    pub(super) fn accept(&mut self) -> io::Result<Option<Option<OwnedFd>>> {
        use rustix::io::Errno;
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

fn reserve() -> Option<OwnedFd> {
    fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nbd-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// What one of them says, the other says, too.
    fn bind(path: &Path) -> Result<Listener, NbdError> {
        let listen = Listen::Unix(path.into());
        let checked = Listener::check(&listen).map_err(|error| error.to_string());
        let bound = Listener::bind(&listen);
        assert_eq!(checked.err(), bound.as_ref().err().map(NbdError::to_string));
        bound
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
    fn a_free_port_is_named() {
        let listener = Listener::bind(&Listen::Tcp("127.0.0.1:0".into())).unwrap();
        let port = listener.path.strip_prefix("127.0.0.1:").unwrap();
        assert_ne!(port.parse::<u16>().unwrap(), 0);
        let taken = Listen::Tcp(listener.path.clone());
        assert!(matches!(Listener::check(&taken), Err(NbdError::Listen(..))));
        let again = Listener::bind(&taken);
        assert!(matches!(again, Err(NbdError::Listen(..))));
    }
}
