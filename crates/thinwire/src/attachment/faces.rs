//! From `--nbd`, `--file`, `--block` to a face.

use thinwire_frontend::Face;
use thinwire_frontend::nbd::{Listen, NbdConfig, NbdFace};

use super::Wanted;
use crate::error::{Failure, Outcome};
use crate::face::{FaceSpec, NbdAddress};
use crate::leftover::Leftover;
use crate::open::OpenVolume;
use crate::rundir::RunDir;

/// Opens the face that was asked for. The volume takes any byte range.
pub fn open_face(
    wanted: &Wanted,
    dir: &RunDir,
    open: &mut dyn OpenVolume,
) -> Outcome<Box<dyn Face>> {
    let _ = dir;
    let failed = |e: &dyn std::fmt::Display| Failure::failed(e.to_string());
    match &wanted.face {
        FaceSpec::Nbd(address) => {
            let listen = match address {
                NbdAddress::Unix(path) => Listen::Unix(path.clone()),
                NbdAddress::Tcp { host, port } if host.contains(':') => {
                    Listen::Tcp(format!("[{host}]:{port}"))
                }
                NbdAddress::Tcp { host, port } => Listen::Tcp(format!("{host}:{port}")),
            };
            let mut config = NbdConfig::new(listen, wanted.volume.short_name());
            config.description = wanted.volume.to_string();
            config.read_only = wanted.options.read_only;
            let face = NbdFace::bind(config, open.pool().clone()).map_err(|e| failed(&e))?;
            Ok(Box::new(face))
        }
        FaceSpec::File(_) | FaceSpec::Block => {
            Err(Failure::failed("files and block devices are not part of this build yet"))
        }
    }
}

/// What stays behind if the process is killed while it shows this face.
pub fn leftovers(face: &FaceSpec, dir: &RunDir, name: &str) -> Vec<Leftover> {
    match face {
        FaceSpec::Nbd(NbdAddress::Unix(path)) => vec![Leftover::Socket { path: path.clone() }],
        FaceSpec::Nbd(NbdAddress::Tcp { .. }) => Vec::new(),
        FaceSpec::File(path) => {
            vec![Leftover::Mount { path: path.clone() }, Leftover::File { path: path.clone() }]
        }
        FaceSpec::Block => {
            let path = dir.file(name, "disk");
            vec![
                Leftover::Loop { backing: path.clone() },
                Leftover::Mount { path: path.clone() },
                Leftover::File { path },
            ]
        }
    }
}
