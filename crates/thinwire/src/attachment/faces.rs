//! From `--nbd`, `--file`, `--block` to a face.

use thinwire_frontend::Face;
use thinwire_frontend::block::{BlockConfig, BlockFace, choose_block_backend, prepare_process};
use thinwire_frontend::fuse::{FuseConfig, FuseFace};
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
    let pool = open.pool().clone();
    let geometry = open.volume().geometry();
    let source = wanted.volume.to_string();
    let read_only = wanted.options.read_only;
    let failed = |e: &dyn std::fmt::Display| Failure::failed(e.to_string());
    match &wanted.face {
        FaceSpec::Nbd(address) => {
            let mut config = NbdConfig::new(listen(address), wanted.volume.short_name());
            config.description = source;
            config.read_only = read_only;
            Ok(Box::new(NbdFace::bind(config, pool).map_err(|e| failed(&e))?))
        }
        FaceSpec::File(path) => {
            carry_disk();
            let path = path.clone();
            let config = FuseConfig { path, source, geometry, read_only, allow_other: false };
            Ok(Box::new(FuseFace::mount(config, pool).map_err(|e| failed(&e))?))
        }
        FaceSpec::Block => {
            carry_disk();
            let choice = choose_block_backend().map_err(|e| failed(&e))?;
            tracing::info!("{}", choice.why);
            let config = BlockConfig {
                run_dir: dir.path().to_owned(),
                name: wanted.name.clone(),
                source,
                geometry,
                block_bytes: open.block_bytes(),
                read_only,
            };
            Ok(Box::new(BlockFace::attach(config, pool).map_err(|e| failed(&e))?))
        }
    }
}

fn listen(address: &NbdAddress) -> Listen {
    match address {
        NbdAddress::Unix(path) => Listen::Unix(path.clone()),
        NbdAddress::Tcp { host, port } if host.contains(':') => {
            Listen::Tcp(format!("[{host}]:{port}"))
        }
        NbdAddress::Tcp { host, port } => Listen::Tcp(format!("{host}:{port}")),
    }
}

/// Pages may be written to this disk to free memory: so it must not wait for memory itself
/// (DESIGN section 5).
fn carry_disk() {
    for refusal in prepare_process() {
        tracing::info!("a machine short of memory may stall on this disk: {refusal}");
    }
}

/// What stays behind if the process is killed while it shows this face.
pub fn leftovers(face: &FaceSpec, dir: &RunDir, name: &str) -> Vec<Leftover> {
    match face {
        FaceSpec::Nbd(NbdAddress::Unix(path)) => vec![Leftover::Socket { path: path.clone() }],
        FaceSpec::Nbd(NbdAddress::Tcp { .. }) => Vec::new(),
        FaceSpec::File(path) => vec![Leftover::File { path: path.clone() }],
        FaceSpec::Block => {
            vec![Leftover::Device { run_dir: dir.path().to_owned(), name: name.to_owned() }]
        }
    }
}
