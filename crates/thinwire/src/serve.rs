//! Serving: from a configuration to running shards.

mod last_words;
mod pools;
mod trees;
mod works;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thinwire_buffer::Pool;
use thinwire_link::{Link, LinkSpec, ShardSteering};
use thinwire_modules::Cache;
use thinwire_runtime::clock::entropy;
use thinwire_runtime::disk::{self, DiskOptions, OpenedStore, SpreadDisk};
use thinwire_runtime::inquiry::Inquiry;
use thinwire_runtime::serve::{Awaited, OpenedExport, TargetShard};
use thinwire_runtime::shard::SharedShard;
use thinwire_runtime::shards::{self, Guest, Offered, Provider, Service};
use thinwire_runtime::spread_memory::SpreadMemory;
use thinwire_runtime::steering::Lanes;
use thinwire_seal::Suites;
use thinwire_target::{ExportConfig, Principal, TargetKeys};
use thinwire_volume::stores::{MemoryStore, NullStore, Writeback};
use thinwire_volume::{Identity, Volume};

use self::last_words::LastWords;
use self::pools::beside;
use self::works::ShardClerk;
use crate::caretaker::Caretaker;
use crate::config::TargetSettings;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::guests::guests;
use crate::host::Host;
use crate::keys::{KeyFile, Security};
use crate::links::open_target_links;
use crate::names;
use crate::privileges::{ConfinedOnce, Privileges};
use crate::remote::discover;
use crate::rundir::{IDENTITIES, RunDir};
use crate::signals::Signals;
use crate::state_dir;
use crate::steward::{self, Endings, Steward};
use crate::uri::VolumeSpec;

/// Memory that a target's pool keeps for reuse, in bytes.
pub const POOL_FREE_BYTES_MAX: usize = 32 << 20;
/// Memory of a memory export comes from a pool of its own, which keeps nothing.
const STORE_FREE_BYTES_MAX: usize = 4 << 20;
/// How long to ask whether the node name is in use.
const NAME_CHECK: Duration = Duration::from_millis(400);
/// What a write-back test wrapper holds back, at most.
const WRITEBACK_BYTES_MAX: usize = 256 << 20;

/// Serves until a signal comes. `read` reads the configuration again, when somebody asks for that. `ready` is
/// called once, when the exports can be attached.
pub fn serve(
    config: &TargetSettings,
    read: &(dyn Fn() -> Outcome<TargetSettings> + Sync),
    signals: &Signals,
    ready: &mut dyn FnMut() -> Outcome,
) -> Outcome {
    refuse_any_port(config)?;
    config.check_caches().map_err(Failure::usage)?;
    let privileges = Privileges::look(config)?;
    // Waited for when all that is below has been let go of.
    let mut _caretaker = None;
    let _names = names::hold(config)?;
    refuse_taken_name(config)?;
    let dir = RunDir::create(&config.run_dir);
    let registered = match &dir {
        Ok(dir) => steward::register(dir, config),
        Err(why) => Err(why.clone()),
    };
    let (_claim, control) = match registered {
        Ok((claim, control)) => (Some(claim), Some(control)),
        Err(why) => {
            tracing::warn!("`thinwire status` will not show this target: {why}");
            (None, None)
        }
    };
    if let (Some(claim), Ok(dir)) = (&_claim, &dir)
        && privileges.changes_user()
    {
        // Where this target's name at others is locked: made by who may, for all that come.
        dir.sub(IDENTITIES)?;
        _caretaker = Some(Caretaker::start(claim, dir)?);
    }
    privileges.begin(config)?;
    if let Some(problem) = state_dir::problem(config) {
        tracing::warn!("{problem}; until then only readers may attach");
    }
    let beside = beside(&config.exports);
    let offered = |(number, export): (usize, &ExportSpec)| Offered {
        name: export.name.clone(),
        spread: export.spread,
        beside: beside[number],
    };
    let offered: Vec<_> = config.exports.iter().enumerate().map(offered).collect();
    let endings = Endings::new()?;
    let mut service = Service {
        config: thinwire_target::TargetConfig {
            node: config.node.clone(),
            insecure: config.insecure,
            keys: target_keys(config),
            limits: config.limits,
            batching: config.batching,
            lease: config.lease,
            ..Default::default()
        },
        shards: u8::try_from(config.shards).unwrap_or(u8::MAX),
        exports: &offered,
        pool_free_bytes_max: POOL_FREE_BYTES_MAX,
        spin: config.spin,
        hurry: Some(endings.hurry.as_fd()),
        may_grow: config.is_from_file,
        inquiry: None,
    };
    tell_bounds(&service);
    tracing::info!("memory that this target can take: at most {}", config.memory());
    if let Err(why) = config.check_memory() {
        tracing::warn!("{why}");
    }
    let inquiry = Inquiry::new(service.shard_count());
    let inquiry = inquiry.map_err(|e| Failure::failed(format!("cannot make an eventfd: {e}")))?;
    service.inquiry = Some(&inquiry);
    let lanes = (0..service.shards.max(1)).map(|_| Lanes::draw()).collect();
    let left_behind = Arc::new(AtomicBool::new(false));
    let last_words = LastWords::default();
    let mut configured = Configured {
        config,
        endings: endings.clone(),
        left_behind: left_behind.clone(),
        last_words: &last_words,
        lanes,
        count: service.shard_count(),
        places: service.places(),
        spread: Vec::new(),
    };
    let (serving, over) = (AtomicBool::new(false), steward::bell()?);
    let confined = ConfinedOnce::new();
    let placed = offered.iter().map(|export| export.name.clone());
    let steward = Steward {
        config: config.clone(),
        places: placed.zip(service.places()).collect(),
        read,
        signals,
        endings: &endings,
        inquiry: &inquiry,
        control,
        serving: &serving,
        confined: &confined,
        over: &over,
        last_patience: steward::LAST_PATIENCE,
        give_up: &|why| {
            tracing::error!("{why}");
            std::process::exit(1)
        },
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("steward".into());
        let begun = thread.spawn_scoped(scope, || steward.run());
        begun.map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))?;
        // However serving ends, its thread does, too.
        let _over = steward::RingAtEnd(&over);
        // While this waits for a lock, signals are heard.
        configured.open_spread()?;
        shards::serve(&service, &configured, endings.stop.as_fd(), &mut || {
            // All is open, and nobody is served yet.
            let _ = confined.set(privileges.give_up()?);
            serving.store(true, Ordering::Release);
            ready()
        })
    })?;
    if last_words.is_fenced() {
        return Err(Failure::failed(
            "ended, since another target has taken the place of this one in all of its exports. Started again, it serves \
             once that one has ended",
        ));
    }
    match left_behind.load(Ordering::Acquire) {
        false => Ok(()),
        true => Err(Failure::failed(
            "ended, but not in order: what did not is told above. Start this target again, and it \
             goes on with what it had attached",
        )),
    }
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
    endings: Endings,
    /// An export did not end in order. The ends of exports, which outlive this, tell.
    left_behind: Arc<AtomicBool>,
    /// Of its shards.
    last_words: &'a LastWords,
    /// By shard: whose frames its links let in besides, for exports that stand on other targets'.
    lanes: Vec<Lanes>,
    /// Shards.
    count: u8,
    /// By number, the shard of an export.
    places: Vec<u8>,
    /// By number, what exports that all shards serve have their content in, if there are several.
    spread: Vec<Option<Spread>>,
}

/// Content that was opened once, of which each of several shards has a volume of its own.
enum Spread {
    Disk(SpreadDisk),
    Memory(SpreadMemory),
}

impl Configured<'_> {
    /// Opens once what several shards will have a volume on each.
    fn open_spread(&mut self) -> Outcome {
        let (config, endings) = (self.config, self.endings.clone());
        for spec in &config.exports {
            let opened = match &spec.volume {
                VolumeSpec::Path(path) if spec.spread && self.count > 1 => {
                    let options = disk_options(spec, &config.state_dir, &endings.stop);
                    let opened = SpreadDisk::open(path, &options, &mut notify(spec));
                    Some(Spread::Disk(opened.map_err(|e| cannot_serve(spec, e))?))
                }
                VolumeSpec::Memory(bytes) if spec.spread && self.count > 1 => {
                    let memory = SpreadMemory::new(*bytes, spec.block_bytes, of_this_run(spec));
                    Some(Spread::Memory(memory.map_err(|e| cannot_serve(spec, e))?))
                }
                _ => None,
            };
            self.spread.push(opened);
        }
        Ok(())
    }

    /// The volume of one of several shards on what was opened for all.
    fn open_part(
        &self,
        spread: &Spread,
        number: usize,
        index: u8,
        pool: &Pool,
    ) -> Outcome<OpenedExport> {
        let spec = &self.config.exports[number];
        let is_owner = self.places[number] == index;
        let export = |volume, fd| OpenedExport::new(named(spec, volume), fd);
        match spread {
            Spread::Disk(disk) => {
                let opened = match is_owner {
                    true => disk.owner(pool, &mut notify(spec)),
                    false => disk.branch(pool),
                };
                Ok(of_store(disk.path(), opened.map_err(|e| cannot_serve(spec, e))?, export))
            }
            Spread::Memory(memory) => {
                let opened = match is_owner {
                    true => memory.owner(pool),
                    false => memory.branch(pool),
                };
                let volume = opened.map_err(|e| cannot_serve(spec, e))?;
                let fd = volume.fd();
                Ok(export(Box::new(volume), Some(fd)))
            }
        }
    }
}

impl Configured<'_> {
    /// Attachments of the target share its raw links. Shards share an address behind UDP, where the
    /// first byte of a session id says which, so that several need sockets of their own there.
    fn shares(&self, link: &LinkSpec) -> bool {
        self.config.shards <= 1 || !matches!(link, LinkSpec::Udp { .. })
    }
}

impl Provider for Configured<'_> {
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
        let mut shard = shard.clone();
        let placed = config.exports.iter().zip(&self.places);
        let mut own = placed.filter(|(_, place)| **place == shard.index);
        if own.any(|(export, _)| export.volume.has_remote()) {
            shard.accepts.extend(self.lanes[usize::from(shard.index)].filters());
        }
        open_target_links(&config.links, fault, pcap.as_deref(), &shard, config.pipeline)
    }

    fn guests(&self, index: u8) -> Outcome<Vec<Guest>> {
        match index {
            0 => guests(self.config),
            _ => Ok(Vec::new()),
        }
    }

    /// Local stores first: while they wait for a lock, nothing has been attached yet. All attachments of
    /// a shard are on one host, and share its links.
    fn exports(
        &self,
        numbers: &[usize],
        index: u8,
        shard: &SharedShard,
    ) -> Outcome<Vec<OpenedExport>> {
        let links = self.config.links.iter().cloned().enumerate();
        let open = links.filter(|(_, link)| self.shares(link)).map(|(at, link)| (link, at));
        let host = Host::on(shard.clone(), self.lanes[usize::from(index)], open.collect());
        let opener = self.opener(&host);
        for &number in numbers {
            let spec = &self.config.exports[number];
            host.commons().want(&spec.volume, &opener.options(spec));
        }
        let mut opened: Vec<(usize, OpenedExport)> = Vec::new();
        let (stores, others): (Vec<usize>, Vec<usize>) =
            numbers.iter().partition(|&&number| self.config.exports[number].volume.is_store());
        for number in stores.into_iter().chain(others) {
            let spec = &self.config.exports[number];
            let pool = || shard.borrow().pool().clone();
            let export = match &self.spread[number] {
                Some(spread) => self.open_part(spread, number, index, &pool()),
                None if spec.volume.is_store() => {
                    let options = disk_options(spec, &self.config.state_dir, &self.endings.stop);
                    open_store(spec, &options, &pool())
                }
                None => opener.open(spec),
            };
            match export {
                Ok(export) => {
                    opened.push((number, OpenedExport { weight: spec.weight, ..export }));
                }
                Err(failure) => {
                    // What has been attached for the others is let go of.
                    opened.into_iter().for_each(|(_, export)| export.discard());
                    return Err(failure);
                }
            }
        }
        opened.sort_unstable_by_key(|(number, _)| *number);
        // Nothing can be asked of what is not made of other volumes.
        let is_asked = opened.iter().any(|(_, export)| export.offered.is_some());
        if let Some((_, first)) = opened.first_mut().filter(|_| is_asked) {
            first.clerk = Some(Box::new(ShardClerk::of(&host, opener.outlines())));
        }
        if !host.commons().is_empty() {
            trees::keep(opener);
        }
        Ok(opened.into_iter().map(|(_, export)| export).collect())
    }

    fn ended(&self, index: u8, shard: &TargetShard) {
        trees::forget();
        self.last_words.add(&shard.target());
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

/// Who may come, and with which keys; nothing of a target without.
pub(crate) fn target_keys(config: &TargetSettings) -> Option<TargetKeys> {
    if config.keys.is_empty() {
        return None;
    }
    let principal =
        |file: &KeyFile| Principal { name: file.name.as_str().into(), keys: file.keys.clone() };
    let principals = config.keys.iter().map(principal).collect();
    // Each shard draws its own entropy.
    let mut keys = TargetKeys::new(principals, [0; 32]);
    keys.access = config.access.clone();
    keys.suites = Suites::here(config.authenticate_only);
    keys.announces = config.announces;
    Some(keys)
}

/// How the file or device of an export is opened.
fn disk_options(spec: &ExportSpec, state_dir: &Path, stop: &Arc<OwnedFd>) -> DiskOptions {
    DiskOptions { stop: Some(stop.clone()), ..disk_options_at_once(spec, state_dir) }
}

/// The same of one that waits for nobody.
fn disk_options_at_once(spec: &ExportSpec, state_dir: &Path) -> DiskOptions {
    DiskOptions {
        read_only: spec.read_only,
        block_bytes: spec.block_bytes,
        direct: !spec.buffered,
        state_dir: state_dir.to_owned(),
        ..DiskOptions::default()
    }
}

fn notify(spec: &ExportSpec) -> impl FnMut(&str) {
    |note| tracing::warn!("export {}: {note}", spec.name)
}

fn cannot_serve(spec: &ExportSpec, error: impl fmt::Display) -> Failure {
    Failure::failed(format!("cannot serve export {}: {error}", spec.name))
}

/// Which content an export in memory is: the name says which volume, the incarnation that it is new.
fn of_this_run(spec: &ExportSpec) -> Identity {
    let mut identity = Identity { identity: [0; 16], incarnation: entropy() };
    for (place, byte) in identity.identity.iter_mut().zip(spec.name.bytes()) {
        *place = byte;
    }
    identity
}

fn of_store(
    path: &Path,
    opened: OpenedStore,
    export: impl FnOnce(Box<dyn Volume>, Option<RawFd>) -> OpenedExport,
) -> OpenedExport {
    let OpenedStore { volume, fd, direct } = opened;
    let path = path.to_owned();
    let awaited: Awaited =
        Box::new(move |has_more| has_more.then(|| path.clone()).into_iter().collect());
    let (direct, awaited) = (Some(direct), Some(awaited));
    OpenedExport { direct, awaited, ..export(volume, Some(fd)) }
}

fn named(spec: &ExportSpec, volume: Box<dyn Volume>) -> ExportConfig {
    ExportConfig { name: spec.name.clone(), volume, read_only: spec.read_only }
}

/// Puts the wrapper over a volume that acknowledges early, if it was asked for.
fn written_back(spec: &ExportSpec, volume: Box<dyn Volume>, pool: &Pool) -> Box<dyn Volume> {
    match spec.writeback {
        true => Box::new(Writeback::new(volume, WRITEBACK_BYTES_MAX, pool)),
        false => volume,
    }
}

/// Puts the cache over a store, if it was asked for.
fn cached(spec: &ExportSpec, volume: Box<dyn Volume>) -> Box<dyn Volume> {
    match spec.cache {
        Some(bytes) => Box::new(Cache::new(volume, bytes)),
        None => volume,
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
    // With a key: anybody can say that a name is taken, and who has none of our keys is no rival.
    let security = Security {
        key: config.keys.first().cloned(),
        authenticate_only: config.authenticate_only,
        insecure: config.insecure,
    };
    let taken = discover(&config.links, Some(&config.node), NAME_CHECK, &security)?;
    match taken.iter().find(|other| other.is_proved) {
        None => {
            if let Some(other) = taken.first() {
                tracing::warn!(
                    "node name {} is told on this network by {}, too, who does not show that it has key {}",
                    config.node,
                    other.address,
                    config.keys.first().map_or("", |key| key.name.as_str())
                );
            }
            Ok(())
        }
        Some(other) => Err(Failure::failed(format!(
            "node name {} is in use on this network, by the target at {}: stop that one, or give \
             this one another name with --name",
            config.node, other.address
        ))),
    }
}

/// Opens an export that a reload adds, on the thread of its shard: with what rights the target has by now, and waiting
/// for nobody, since others are served meanwhile. A store, or a volume of a pool, or a slice of a disk, that is open there.
pub(crate) fn open_added(
    spec: &ExportSpec,
    state_dir: &Path,
    pool: &Pool,
) -> Outcome<OpenedExport> {
    let options = disk_options_at_once(spec, state_dir);
    let options = DiskOptions { wait_lock: Duration::ZERO, ..options };
    let export = match spec.volume.is_store() {
        true => open_store(spec, &options, pool)?,
        false => trees::open_of_common(spec)?,
    };
    Ok(OpenedExport { weight: spec.weight, ..export })
}

/// Opens an export that is one store of this machine.
fn open_store(spec: &ExportSpec, options: &DiskOptions, pool: &Pool) -> Outcome<OpenedExport> {
    let block = spec.block_bytes;
    let export = |volume, fd| {
        let volume = cached(spec, written_back(spec, volume, pool));
        OpenedExport::new(named(spec, volume), fd)
    };
    Ok(match &spec.volume {
        VolumeSpec::Memory(bytes) => {
            let pages = Pool::new(STORE_FREE_BYTES_MAX);
            export(Box::new(MemoryStore::new(*bytes, block, of_this_run(spec), &pages)), None)
        }
        VolumeSpec::Null(bytes) => export(Box::new(NullStore::new(*bytes, block)), None),
        VolumeSpec::Switched(_) => {
            return Err(Failure::usage(format!(
                "export {}: null:SIZE,switch is there to be measured locally (`thinwire bench`)",
                spec.name
            )));
        }
        VolumeSpec::Path(path) => {
            spec.check_cache(path).map_err(Failure::usage)?;
            let opened = disk::open_store(path, options, pool, &mut notify(spec));
            of_store(path, opened.map_err(|e| cannot_serve(spec, e))?, export)
        }
        VolumeSpec::Remote(_)
        | VolumeSpec::Ebd(_)
        | VolumeSpec::Aoe(_)
        | VolumeSpec::Share { .. }
        | VolumeSpec::Over { .. } => {
            unreachable!("{spec} is no store")
        }
    })
}
