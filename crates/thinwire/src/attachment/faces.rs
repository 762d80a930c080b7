//! From `--nbd`, `--file`, `--block` to a face.

use thinwire_buffer::{Pool, SegList};
use thinwire_frontend::Face;
use thinwire_frontend::block::{self, BlockConfig, prepare_process};
use thinwire_frontend::fuse::{FuseConfig, FuseFace};
use thinwire_frontend::nbd::{Listen, NbdConfig, NbdError, NbdFace, proto};

use super::Wanted;
use crate::error::{Failure, Outcome};
use crate::face::{FaceSpec, NbdAddress};
use crate::guard::missing_folder;
use crate::leftover::Leftover;
use crate::open::OpenVolume;
use crate::rundir::RunDir;

/// Finds out whether the face that was asked for could be opened now, as far as that can be told without its
/// volume: who must give way to the attachment is fenced before it can show a face.
pub fn check_face(wanted: &Wanted, dir: &RunDir) -> Outcome {
    let failed = |e: &dyn std::fmt::Display| Failure::failed(e.to_string());
    let place = match &wanted.face {
        FaceSpec::Nbd(NbdAddress::Unix(path)) => Some(("cannot listen on", path)),
        FaceSpec::File(path) => Some(("cannot show the volume as", path)),
        _ => None,
    };
    if let Some((what, path)) = place
        && let Some(missing) = missing_folder(path)
    {
        return Err(Failure::failed(format!("{what} {}: {missing}", path.display())));
    }
    match &wanted.face {
        FaceSpec::Nbd(address) => NbdFace::check(&nbd_config(wanted, address)).map_err(nbd_failed),
        FaceSpec::File(path) => FuseFace::check(path).map_err(|e| failed(&e)),
        FaceSpec::Block(way) => {
            block::check(*way, dir.path(), &wanted.name).map_err(|e| failed(&e))
        }
    }
}

fn nbd_config(wanted: &Wanted, address: &NbdAddress) -> NbdConfig {
    let mut config = NbdConfig::new(listen(address), wanted.name.as_str());
    config.alias = wanted.volume.short_name();
    config.description = shortened(wanted.volume.to_string());
    config.read_only = wanted.options.read_only;
    (config.socket_mode, config.beyond_loopback) =
        (wanted.door.socket_mode, wanted.door.beyond_loopback);
    config
}

fn nbd_failed(error: NbdError) -> Failure {
    Failure::failed(match error {
        NbdError::BeyondLoopback(..) => format!(
            "refusing: {error}. Give unix:PATH or tcp:PORT and a tunnel to it (ssh -L, stunnel), or say --tls off \
             if you trust everybody who reaches that address"
        ),
        error => error.to_string(),
    })
}

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
            let config = nbd_config(wanted, address);
            Ok(Box::new(NbdFace::bind(config, pool).map_err(nbd_failed)?))
        }
        FaceSpec::File(path) => {
            carry_disk(&pool);
            let path = path.clone();
            let config = FuseConfig { path, source, geometry, read_only, allow_other: false };
            Ok(Box::new(FuseFace::mount(config, pool).map_err(|e| failed(&e))?))
        }
        FaceSpec::Block(way) => {
            carry_disk(&pool);
            let config = BlockConfig {
                run_dir: dir.path().to_owned(),
                name: wanted.name.clone(),
                source,
                geometry,
                block_bytes: open.block_bytes(),
                is_carrying: wanted.carries.is_some(),
                read_only,
            };
            block::attach(*way, config, pool).map_err(|e| failed(&e))
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
/// (`docs/design.md`, "Memory under pressure"). Memory is locked first, then taken.
fn carry_disk(pool: &Pool) {
    for refusal in prepare_process() {
        tracing::info!("a machine short of memory may stall on this disk: {refusal}");
    }
    warm(pool);
}

/// Writes of 1 MiB, each in buffers of 4, 4, 8 ... 512 KiB: unflushed ones are kept up to 32 MiB, by all members
/// of an attachment together, and half of that starts a flush.
const LONG_WRITES: usize = 16;
/// Reads and writes of 4 KiB: 8 MiB, which is what a target lets us have outstanding.
const SHORT_IOS: usize = 2048;
/// Received frames that wait for their turn, and trains of them.
const FRAMES: usize = 64;
/// Lists of several payload pieces: one for each write of 8 KiB and more that may be kept, and what is under way.
const LISTS: usize = 8 << 10;

/// Takes the memory that serving needs, about 40 MiB. What a burst of short writes against a slow
/// target needs beyond that is allocated, from the reserves if the process may use them.
fn warm(pool: &Pool) {
    for bytes in (12..=19).map(|shift| 1 << shift) {
        pool.warm(bytes, if bytes == 4096 { SHORT_IOS } else { LONG_WRITES });
    }
    // A packet link's buffers, a UDP link's; both also hold short runs of blocks.
    for bytes in [16 << 10, 64 << 10] {
        pool.warm(bytes, LONG_WRITES + FRAMES);
    }
    SegList::warm(2, LISTS);
}

/// What stays behind if the process is killed while it shows this face.
pub fn leftovers(face: &FaceSpec, dir: &RunDir, name: &str) -> Vec<Leftover> {
    match face {
        FaceSpec::Nbd(NbdAddress::Unix(path)) => vec![Leftover::Socket { path: path.clone() }],
        FaceSpec::Nbd(NbdAddress::Tcp { .. }) => Vec::new(),
        FaceSpec::File(path) => vec![Leftover::File { path: path.clone() }],
        FaceSpec::Block(_) => {
            vec![Leftover::Device { run_dir: dir.path().to_owned(), name: name.to_owned() }]
        }
    }
}

/// As much of a description as NBD allows: that of a tree may be long.
fn shortened(mut text: String) -> String {
    if text.len() > proto::STRING_BYTES_MAX {
        let mut end = proto::STRING_BYTES_MAX - 3;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_attachment_takes_long_writes_and_frames_without_allocating() {
        let pool = Pool::new(128 << 20);
        warm(&pool);
        let made = pool.stats().allocations;
        assert!(made > 0);
        let mut held = Vec::new();
        for _ in 0..LONG_WRITES {
            held.push(pool.get(4096));
            held.extend((12..=19).map(|shift| pool.get(1 << shift)));
        }
        for _ in 0..FRAMES {
            held.push(pool.get(64 << 10));
            held.push(pool.get(16 << 10));
        }
        held.extend((0..SHORT_IOS - 2 * LONG_WRITES).map(|_| pool.get(4096)));
        assert_eq!(pool.stats().allocations, made);
        // One more than there is.
        held.push(pool.get(4096));
        assert_eq!(pool.stats().allocations, made + 1);
        assert!(pool.stats().live_bytes < 40 << 20);
    }
}
