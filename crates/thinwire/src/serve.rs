//! Serving: from a configuration to running shards.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_link::{Link, LinkSpec, ShardSteering};
use thinwire_runtime::clock::entropy;
use thinwire_runtime::disk::{self, DiskOptions};
use thinwire_runtime::serve::TargetShard;
use thinwire_runtime::shards::{self, OpenedExport, Opener, Service};
use thinwire_target::ExportConfig;
use thinwire_volume::stores::{MemoryStore, NullStore, Writeback};
use thinwire_volume::{Identity, Volume};

use crate::config::TargetSettings;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::links::open_target_links;
use crate::names;
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
    config: &TargetSettings,
    signals: &Signals,
    ready: &mut dyn FnMut() -> Outcome,
) -> Outcome {
    refuse_any_port(config)?;
    let _names = names::hold(config)?;
    refuse_taken_name(config)?;
    let names: Vec<_> = config.exports.iter().map(|export| export.name.clone()).collect();
    let service = Service {
        config: thinwire_target::TargetConfig {
            node: config.node.clone(),
            insecure: config.insecure,
            batching: config.batching,
            ..Default::default()
        },
        shards: u8::try_from(config.shards).unwrap_or(u8::MAX),
        exports: &names,
        pool_free_bytes_max: POOL_FREE_BYTES_MAX,
        spin: config.spin,
    };
    tell_bounds(&service);
    let stop = signals.fd().try_clone_to_owned();
    let stop = stop.map_err(|e| Failure::failed(format!("cannot watch for signals: {e}")))?;
    shards::serve(&service, &Configured { config, stop: Arc::new(stop) }, signals.fd(), ready)
}

/// Tells what memory initiators can make this process hold, whatever they do (`docs/protocol.md`,
/// "Bounds").
fn tell_bounds(service: &Service<'_>) {
    let settings = &service.config;
    // What is kept for reuse takes up to twice its size: memory has its alignment beside it.
    let shared = thinwire_target::TargetConfig::SHARED_BYTES_MAX + service.pool_free_bytes_max;
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    tracing::info!(
        "memory that initiators can take: at most {} MiB for each session ({} slots, {} MiB of \
         credit) and {} MiB for each shard; the content of memory exports is not in it",
        mib(settings.session_bytes_max()),
        settings.slots,
        settings.credit_bytes >> 20,
        mib(2 * shared),
    );
}

/// Opens what the configuration names.
struct Configured<'a> {
    config: &'a TargetSettings,
    /// Readable when the target is to end.
    stop: Arc<OwnedFd>,
}

impl Opener for Configured<'_> {
    type Error = Failure;

    fn failed(&self, error: std::io::Error) -> Failure {
        Failure::failed(format!("cannot serve: {error}"))
    }

    fn links(&self, shard: &ShardSteering) -> Outcome<Vec<Box<dyn Link>>> {
        let config = self.config;
        // A capture file has one writer: the first shard's has the name that was asked for.
        let pcap = config.pcap.as_ref().map(|path| match shard.index {
            0 => path.clone(),
            index => {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{index}"));
                name.into()
            }
        });
        let fault = config.fault.as_ref();
        open_target_links(&config.links, fault, pcap.as_deref(), shard, config.pipeline)
    }

    fn export(&self, number: usize, pool: &Pool) -> Outcome<OpenedExport> {
        let spec = &self.config.exports[number];
        let (volume, fd) = open_export(spec, pool, &self.stop)?;
        Ok((ExportConfig { name: spec.name.clone(), volume, read_only: spec.read_only }, fd))
    }

    fn ended(&self, index: u8, shard: &TargetShard) {
        let stats = shard.target().stats();
        tracing::debug!(
            "shard {index}: {} requests, {} repeated, {} bytes copied, {} sessions, {} writers \
             fenced",
            stats.requests,
            stats.repeated,
            stats.copied_bytes,
            stats.sessions,
            stats.fenced
        );
        for (reason, count) in stats.drops.iter() {
            tracing::debug!("shard {index}: dropped as {reason}: {count}");
        }
        for session in shard.target().sessions() {
            tracing::debug!("shard {index}: {session:?}");
        }
    }
}

/// Shards are told apart behind one address, so it must be known before the first one takes it.
fn refuse_any_port(config: &TargetSettings) -> Outcome {
    let any = |link: &&LinkSpec| matches!(link, LinkSpec::Udp { port: Some(0), .. });
    match config.links.iter().find(any) {
        Some(link) if config.shards > 1 => Err(Failure::usage(format!(
            "link {link}: shards share one port, so with --shards {} it cannot be left to chance: \
             name one",
            config.shards
        ))),
        _ => Ok(()),
    }
}

fn refuse_taken_name(config: &TargetSettings) -> Outcome {
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

fn open_export(
    spec: &ExportSpec,
    pool: &Pool,
    stop: &Arc<OwnedFd>,
) -> Outcome<(Box<dyn Volume>, Option<RawFd>)> {
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
        VolumeSpec::Switched(_) => {
            return Err(Failure::usage(format!(
                "export {}: null:SIZE,switch is there to be measured locally (`thinwire bench`)",
                spec.name
            )));
        }
        VolumeSpec::Path(path) => {
            let options = DiskOptions {
                read_only: spec.read_only,
                block_bytes: block,
                stop: Some(stop.clone()),
                ..DiskOptions::default()
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
