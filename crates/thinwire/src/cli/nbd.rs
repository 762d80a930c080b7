//! Flags that say who can reach an NBD face.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::{Failure, Outcome, ParseError};
use crate::face::{NbdAddress, NbdDoor};

/// Of `--nbd` only. The words about TLS are those of nbdkit.
#[derive(Args, Clone, Debug, Default)]
pub struct NbdDoorArgs {
    /// Permissions of the socket of --nbd unix:PATH, octal: who may write to it may connect [default: 0600]
    #[arg(long, value_name = "MODE", value_parser = socket_mode, conflicts_with_all = ["file", "block"])]
    pub socket_mode: Option<u32>,
    /// TLS for --nbd tcp:HOST:PORT. There is none, so `off` alone is not refused; it must be said for a HOST that
    /// is not of this machine's loopback: whoever reaches that reads and writes the disk
    #[arg(long, value_name = "off", conflicts_with_all = ["file", "block"])]
    pub tls: Option<Tls>,
    /// As nbdkit has it, refused
    #[arg(long, value_name = "FILE", hide = true, conflicts_with_all = ["file", "block"])]
    pub tls_psk: Option<PathBuf>,
    /// As nbdkit has it, refused
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with_all = ["file", "block"])]
    pub tls_certificates: Option<PathBuf>,
    /// As nbdkit has it, refused
    #[arg(long, hide = true, conflicts_with_all = ["file", "block"])]
    pub tls_verify_peer: bool,
}

/// Whether NBD clients speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tls {
    /// They do not.
    Off,
    /// They may.
    On,
    /// They must.
    Require,
}

impl NbdDoorArgs {
    /// Who can reach a face at `address`.
    ///
    /// # Errors
    /// TLS is asked for, or permissions where there is no file to have them.
    pub fn door(&self, address: Option<&NbdAddress>) -> Outcome<NbdDoor> {
        let files =
            self.tls_psk.is_some() || self.tls_certificates.is_some() || self.tls_verify_peer;
        if files || !matches!(self.tls, None | Some(Tls::Off)) {
            return Err(Failure::failed(
                "refusing: TLS for NBD was asked for, and there is none here. Give clients of this machine \
                 --nbd unix:PATH, and others a tunnel to it (ssh -L, stunnel), or attach the volume where they are",
            ));
        }
        if self.socket_mode.is_some() && !matches!(address, Some(NbdAddress::Unix(_))) {
            return Err(Failure::usage(
                "--socket-mode is for --nbd unix:PATH: nothing else has a socket with permissions",
            ));
        }
        let default = NbdDoor::default();
        Ok(NbdDoor {
            socket_mode: self.socket_mode.unwrap_or(default.socket_mode),
            beyond_loopback: self.tls == Some(Tls::Off),
        })
    }
}

fn socket_mode(text: &str) -> Result<u32, ParseError> {
    let bad = |why: &str| Err(ParseError::new(text, why));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode > 0o777 => bad("permissions are at most 0777"),
        Ok(mode) if !text.starts_with('+') => Ok(mode),
        _ => bad("give permissions in octal, as in 0660"),
    }
}
