//! Serving: from a configuration to running shards.

use std::os::fd::RawFd;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_link::udp::PORT_DEFAULT;
use thinwire_runtime::clock::entropy;
use thinwire_runtime::disk::{self, OpenOptions};
use thinwire_runtime::serve::TargetShard;
use thinwire_target::ExportConfig;
use thinwire_volume::stores::{MemoryStore, NullStore, Writeback};
use thinwire_volume::{Identity, Volume};

use crate::config::TargetConfig;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::links::open_links;
use crate::remote::discover;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// Memory that a target's pool keeps for reuse, in bytes.
const POOL_FREE_BYTES_MAX: usize = 32 << 20;
/// Memory of a memory export comes from a pool of its own, which keeps nothing.
const STORE_FREE_BYTES_MAX: usize = 4 << 20;
/// How long to ask whether the node name is in use.
const NAME_CHECK: Duration = Duration::from_millis(400);
/// What a write-back test wrapper holds back, at most.
const WRITEBACK_BYTES_MAX: usize = 256 << 20;

/// Serves until a signal comes. `ready` is called once, when the exports can be attached.
pub fn serve(
    config: &TargetConfig,
    signals: &Signals,
    ready: &mut dyn FnMut() -> Outcome,
) -> Outcome {
    refuse_taken_name(config)?;
    let links =
        open_links(&config.links, PORT_DEFAULT, config.fault.as_ref(), config.pcap.as_deref())?;
    let pool = Pool::new(POOL_FREE_BYTES_MAX);
    let settings = thinwire_target::TargetConfig {
        node: config.node.clone(),
        insecure: config.insecure,
        ..Default::default()
    };
    let failed = |e: std::io::Error| Failure::failed(format!("cannot serve: {e}"));
    let mut shard = TargetShard::new(settings, links, 0, pool.clone()).map_err(failed)?;
    for spec in &config.exports {
        let (volume, fd) = open_export(spec, &pool)?;
        let export = ExportConfig { name: spec.name.clone(), volume, read_only: spec.read_only };
        shard.add_export(export, fd).map_err(failed)?;
    }
    ready()?;
    let served = shard.run(signals.fd()).map_err(failed);
    let stats = shard.target().stats();
    tracing::debug!(
        "{} requests, {} repeated, {} bytes copied, {} sessions, {} writers fenced",
        stats.requests,
        stats.repeated,
        stats.copied_bytes,
        stats.sessions,
        stats.fenced
    );
    for (reason, count) in stats.drops.iter() {
        tracing::debug!("dropped as {reason}: {count}");
    }
    for session in shard.target().sessions() {
        tracing::debug!("{session:?}");
    }
    served
}

fn refuse_taken_name(config: &TargetConfig) -> Outcome {
    let taken = discover(&config.links, Some(&config.node), NAME_CHECK)?;
    match taken.first() {
        None => Ok(()),
        Some(other) => Err(Failure::failed(format!(
            "node name {} is in use on this network, by the target at {}: stop that one, or give \
             this one another name with --name",
            config.node, other.address
        ))),
    }
}

fn open_export(spec: &ExportSpec, pool: &Pool) -> Outcome<(Box<dyn Volume>, Option<RawFd>)> {
    let block = spec.block_bytes;
    let (volume, fd): (Box<dyn Volume>, _) = match &spec.volume {
        VolumeSpec::Memory(bytes) => {
            let mut identity = Identity { identity: [0; 16], incarnation: entropy() };
            // The name says which volume it is, the incarnation that its content is new.
            for (place, byte) in identity.identity.iter_mut().zip(spec.name.bytes()) {
                *place = byte;
            }
            let pages = Pool::new(STORE_FREE_BYTES_MAX);
            (Box::new(MemoryStore::new(*bytes, block, identity, &pages)), None)
        }
        VolumeSpec::Null(bytes) => (Box::new(NullStore::new(*bytes, block)), None),
        VolumeSpec::Path(path) => {
            let options = OpenOptions {
                read_only: spec.read_only,
                block_bytes: block,
                ..OpenOptions::default()
            };
            let name = &spec.name;
            let mut notify = |note: &str| tracing::warn!("export {name}: {note}");
            let (volume, fd) = disk::open_store(path, &options, pool, &mut notify)
                .map_err(|e| Failure::failed(format!("cannot serve export {name}: {e}")))?;
            (volume, fd)
        }
        VolumeSpec::Remote(_) => {
            return Err(Failure::usage(format!(
                "export {}: a remote volume cannot be exported again",
                spec.name
            )));
        }
    };
    Ok(if spec.writeback {
        (Box::new(Writeback::new(volume, WRITEBACK_BYTES_MAX, pool)), fd)
    } else {
        (volume, fd)
    })
}
