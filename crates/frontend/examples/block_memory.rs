//! Shows a volume in memory as a file or as a block device, until its input ends (Ctrl-D). Needs
//! root.
//!
//! ```text
//! cargo run -p thinwire-frontend --example block_memory -- file /mnt/disk0 64
//! cargo run -p thinwire-frontend --example block_memory -- block /run 64
//! ```
//!
//! The number is the size in MiB. Commands are read from the input, one a line: `busy`, `counts`,
//! `close`, `force`, `grow BYTES`, `stuck` (the volume answers nothing more).

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use shard::drive;
use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_frontend::block::{self, BlockConfig, choose_block_backend, prepare_process};
use thinwire_frontend::fuse::{self, FuseConfig, FuseFace};
use thinwire_volume::Volume;
use volume::MemoryVolume;

#[path = "../tests/support/shard.rs"]
mod shard;
#[path = "../tests/support/volume.rs"]
mod volume;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((how, place, bytes)) = parse(&args) else {
        eprintln!("usage: block_memory file PATH MIB | block RUN_DIR MIB");
        return ExitCode::from(2);
    };
    match serve(how, place, bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("block_memory: {e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Option<(&str, PathBuf, u64)> {
    let [how, place, mib] = args else { return None };
    let bytes = mib.parse::<u64>().ok()?.checked_mul(1 << 20)?;
    matches!(how.as_str(), "file" | "block").then(|| (how.as_str(), place.into(), bytes))
}

fn serve(how: &str, place: PathBuf, bytes: u64) -> io::Result<()> {
    let pool = Pool::new(64 << 20);
    let mut volume = MemoryVolume::new(bytes, false, pool.clone());
    let geometry = volume.geometry();
    let source = "memory:example".to_owned();
    let mut face: Box<dyn Face> = if how == "file" {
        if let Some(report) = fuse::clean_stale(&place)? {
            eprintln!("{report}");
        }
        let config =
            FuseConfig { path: place, source, geometry, read_only: false, allow_other: false };
        Box::new(FuseFace::mount(config, pool)?)
    } else {
        for refusal in prepare_process() {
            eprintln!("{refusal}");
        }
        eprintln!("{}", choose_block_backend(None)?.why);
        let name = "block_memory".to_owned();
        for report in block::clean_stale(&place, &name)? {
            eprintln!("{report}");
        }
        let config = BlockConfig {
            run_dir: place,
            name,
            source,
            geometry,
            block_bytes: 512,
            read_only: false,
            is_carrying: false,
        };
        block::attach(None, config, pool)?
    };
    while face.ready().is_none() {
        face.turn(&mut volume)?;
    }
    if let Some(path) = face.ready() {
        println!("{}", path?);
    }
    drive(&mut *face, &mut volume)
}
