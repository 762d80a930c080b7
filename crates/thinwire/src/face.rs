//! Which local face an attachment shows, as the user named it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thinwire_frontend::block::BlockBackend;

use crate::error::ParseError;

/// Where `tcp:PORT` listens.
const LOOPBACK: &str = "127.0.0.1";

/// `--nbd ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`, brackets around an IPv6 host taken off; or `tcp:PORT`, on loopback.
    Tcp {
        /// Host name or address to listen on.
        host: String,
        /// TCP port; 0 means any free one.
        port: u16,
    },
}

/// Who can reach an NBD face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdDoor {
    /// Permissions of a unix socket's file.
    pub socket_mode: u32,
    /// It may listen where other machines reach it.
    pub beyond_loopback: bool,
}

impl Default for NbdDoor {
    /// This user and root; or this machine.
    fn default() -> Self {
        NbdDoor { socket_mode: 0o600, beyond_loopback: false }
    }
}

/// One of `--nbd`, `--file`, `--block`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaceSpec {
    /// An NBD server.
    Nbd(NbdAddress),
    /// One file, through FUSE.
    File(PathBuf),
    /// A block device node, made in this way or in the best there is.
    Block(Option<BlockBackend>),
}

impl FaceSpec {
    /// The word in `status`.
    pub fn kind(&self) -> &'static str {
        match self {
            FaceSpec::Nbd(_) => "nbd",
            FaceSpec::File(_) => "file",
            FaceSpec::Block(_) => "block",
        }
    }
}

impl FromStr for NbdAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = |why: &str| ParseError::new(text, why);
        match text.split_once(':') {
            Some(("unix", "")) => {
                Err(bad("the socket's path is missing, as in unix:/run/disk0.sock"))
            }
            Some(("unix", path)) => Ok(NbdAddress::Unix(path.into())),
            Some(("tcp", port)) if is_number(port) => match port.parse() {
                Ok(port) => Ok(NbdAddress::Tcp { host: LOOPBACK.to_owned(), port }),
                Err(_) => Err(bad("the port must be from 0 to 65535")),
            },
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').ok_or_else(|| {
                    bad("the port is missing, as in tcp:10809 or tcp:127.0.0.1:10809")
                })?;
                let port = port.parse().map_err(|_| bad("the port must be from 0 to 65535"))?;
                let bare = match host.strip_prefix('[') {
                    Some(inner) => inner.strip_suffix(']').ok_or_else(|| bad("`]` is missing"))?,
                    None if host.contains(':') => {
                        return Err(bad("an IPv6 address needs brackets, as in tcp:[::1]:10809"));
                    }
                    None => host,
                };
                if bare.is_empty() {
                    return Err(bad("the host is missing, as in tcp:127.0.0.1:10809"));
                }
                Ok(NbdAddress::Tcp { host: bare.to_owned(), port })
            }
            _ => Err(bad("give unix:PATH, tcp:PORT or tcp:HOST:PORT")),
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdAddress::Tcp { host, port } if host.contains(':') => {
                write!(f, "tcp:[{host}]:{port}")
            }
            NbdAddress::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["unix:/run/a.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:0", "tcp:localhost:1"] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), text);
        }
        let short = "tcp:10809".parse::<NbdAddress>().unwrap();
        assert_eq!(short.to_string(), "tcp:127.0.0.1:10809", "this machine's alone");
        for text in [
            "",
            "unix:",
            "/run/a.sock",
            "tcp:",
            "tcp:host",
            "tcp:65536",
            "tcp:+1",
            "tcp::1",
            "tcp:::1:1",
            "tcp:[::1:1",
            "tcp:h:99999",
        ] {
            assert_eq!(text.parse::<NbdAddress>().unwrap_err().given, text);
        }
    }
}
