//! What a target serves: a TOML file with `conf.d/*.toml` beside it, and flags on top.

use std::path::PathBuf;
use std::time::Duration;

use thinwire_link::LinkSpec;
use thinwire_link::fault::FaultConfig;
use thinwire_link::handoff::Pipeline;
use thinwire_proto::Batching;
use thinwire_runtime::wait::Spin;
use thinwire_target::{Access, Limit, Limits, TargetConfig};

use crate::admitted::Admitted;
use crate::cli::{CompletionPath, Receive, TargetArgs};
use crate::config_file::ConfigFile;
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::keys::{KeyFile, check_names};
use crate::limits::{self, MemorySum};
use crate::memory::MemoryLimit;
use crate::offer::OfferSpec;
use crate::privileges::{PrivilegeSettings, Privileges};
use crate::serve::POOL_FREE_BYTES_MAX;
use crate::size::{check_name, parse_mac, parse_size};
use crate::state_dir;
use crate::trees::Trees;
use crate::uri::{Ground, VolumeSpec};

/// More shards than this are a typing error.
pub const SHARDS_MAX: u32 = 64;

/// Everything a target needs to know, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetSettings {
    /// The node name that discovery answers to.
    pub node: String,
    /// Serve although frames are neither authenticated nor encrypted.
    pub insecure: bool,
    /// The keys of all who may come; none if it is insecure, or if nothing was said.
    pub keys: Vec<KeyFile>,
    /// Who may open which export; those that it does not name nobody may.
    pub access: Vec<(String, Access)>,
    /// Frames are authenticated, and not encrypted.
    pub authenticate_only: bool,
    /// With keys, names of exports are told also to those without one.
    pub announces: bool,
    /// What initiators may have.
    pub limits: Limits,
    /// Where to listen; at least one.
    pub links: Vec<LinkSpec>,
    /// What to offer; at least one, names unique.
    pub exports: Vec<ExportSpec>,
    /// Which of these are offered in other protocols, too.
    pub offers: Vec<OfferSpec>,
    /// Threads, each with its own links and sessions.
    pub shards: u32,
    /// When completions are sent.
    pub batching: Batching,
    /// The threads of its links.
    pub pipeline: Pipeline,
    /// When idle shards spin.
    pub spin: Spin,
    /// Faults made on purpose.
    pub fault: Option<FaultConfig>,
    /// Record all frames here.
    pub pcap: Option<PathBuf>,
    /// Where the node name is claimed.
    pub run_dir: PathBuf,
    /// Where records are kept that have no place beside the content.
    pub state_dir: PathBuf,
    /// How long a writer may be silent before another may have its export.
    pub lease: Duration,
    /// What is given up once it serves.
    pub privileges: PrivilegeSettings,
    /// There is a file, which may say something else the next time.
    pub is_from_file: bool,
    /// What may be a mistake: volumes that are described and that no export
    /// uses. One sentence for each.
    pub unused: Vec<String>,
}

/// What has been gathered so far, with the place each export came from.
#[derive(Default)]
struct Gathered {
    node: Option<String>,
    insecure: bool,
    /// As they were given, with the place.
    keys: Vec<(String, String)>,
    authenticate_only: bool,
    announces: bool,
    limits: Limits,
    /// The limit of memory was said.
    limits_memory: bool,
    links: Vec<LinkSpec>,
    shards: Option<u32>,
    batching: Batching,
    receive: Receive,
    completion: CompletionPath,
    spin: Option<Spin>,
    privileges: PrivilegeSettings,
    exports: Vec<(ExportSpec, String)>,
    /// With the place of each.
    offers: Vec<(OfferSpec, String)>,
}

impl TargetSettings {
    /// Reads the configuration file, if one is given, then its `conf.d`, then the flags. Single
    /// values: the later wins. Links and exports add up; an export name given twice is an error.
    pub fn assemble(args: &TargetArgs) -> Outcome<Self> {
        let mut all = Gathered::default();
        let mut trees = Trees::default();
        if let Some(path) = &args.config {
            let mut files = ConfigFile::read_all(path)?;
            trees = Trees::of(path, &files)?;
            trees.check()?;
            files.iter_mut().try_for_each(|file| all.take(file, &trees))?;
        }
        if let Some(name) = &args.name {
            check_node(name)?;
            all.node = Some(name.clone());
        }
        all.insecure |= args.insecure;
        all.authenticate_only |= args.authenticate_only;
        all.announces |= args.announce;
        for (name, value) in &args.limit {
            let limit = limits::set(&mut all.limits, name, value)?;
            all.limits_memory |= limit == Limit::Memory;
        }
        args.key.iter().for_each(|key| all.keys.push((key.clone(), "--key".to_owned())));
        all.shards = args.wire.shards.or(all.shards);
        all.receive = args.wire.receive.unwrap_or(all.receive);
        all.completion = args.completion.unwrap_or(all.completion);
        all.spin = args.wire.spin.or(all.spin);
        all.privileges.override_by(&args.privileges)?;
        let flags = args.wire.batching();
        if args.wire.batch.is_some() {
            all.batching.policy = flags.policy;
        }
        if args.wire.data_batch.is_some() {
            all.batching.data = flags.data;
        }
        for link in &args.link {
            all.add_link(link.clone(), "--link")?;
        }
        for export in &args.export {
            let misnamed = trees.refuse_misnamed(&export.volume);
            misnamed.map_err(|why| Failure::usage(format!("--export {export}: {why}")))?;
            all.add_export(export.clone(), "--export".into())?;
        }
        let of_flag = |offer: &OfferSpec| (offer.clone(), "--offer".to_owned());
        all.offers.extend(args.offer.iter().map(of_flag));
        let mut settings = all.finish(args)?;
        settings.unused = trees.unused(settings.exports.iter().map(|export| &export.volume));
        Ok(settings)
    }

    /// Looks at everything that can be wrong before serving: each volume there, openable and of a
    /// size that fits its blocks, nothing exported twice; a place for the records of a gateway's exports.
    /// One sentence for each problem.
    pub fn check_volumes(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (export, shared) in self.exports.iter().zip(self.shared()) {
            match export.check_volume() {
                Err(why) => problems.push(format!("export `{}`: {why}", export.name)),
                Ok(()) => problems.extend(shared),
            }
        }
        // What follows is found out as the user that the target would be.
        let become_user = |privileges: Privileges| privileges.begin_check();
        problems.extend(Privileges::look(self).and_then(become_user).err().map(|e| e.message));
        problems.extend(state_dir::problem(self));
        problems.extend(self.check_caches().err());
        problems.extend(self.check_memory().err());
        problems
    }

    /// Refuses exports that stand on the same: opened, one would wait for the other. Control path: looks at
    /// the files.
    pub fn refuse_shared(&self) -> Outcome {
        let shared: Vec<_> = self.shared().into_iter().flatten().collect();
        match shared.is_empty() {
            true => Ok(()),
            false => Err(Failure::failed(shared.join("\nthinwire: "))),
        }
    }

    /// By export: what is wrong if it shares something with one before it.
    fn shared(&self) -> Vec<Option<String>> {
        let mut ground = Ground::default();
        let mut all = Vec::new();
        for (at, export) in self.exports.iter().enumerate() {
            let clash = ground.add(at, &export.volume, export.read_only);
            let mut problem = clash.map(|(other, clash)| {
                let (one, two) = (&self.exports[other].name, &export.name);
                let advice = match clash.has_slices() {
                    true => format!("; {}", clash.advice()),
                    false => String::new(),
                };
                format!(
                    "exports `{one}` and `{two}`: {clash}: two writers would destroy it{advice}"
                )
            });
            let differs = |other: &&ExportSpec| {
                other.buffered != export.buffered && other.volume.shares_disk_with(&export.volume)
            };
            if problem.is_none()
                && let Some(other) = self.exports[..at].iter().find(differs)
            {
                problem = Some(format!(
                    "exports `{}` and `{}` stand on one file or device, which is opened once: `buffered` is for both or for neither",
                    other.name, export.name
                ));
            }
            all.push(problem);
        }
        all
    }

    /// Whether there is the memory that all caches together may take. Control path: reads files.
    pub fn check_caches(&self) -> Result<(), String> {
        fits(&self.exports, &MemoryLimit::of_process())
    }

    /// Whether there is the memory that it may take in all. Control path: reads files.
    pub fn check_memory(&self) -> Result<(), String> {
        limits::check_memory(&self.memory(), &MemoryLimit::of_process())
    }

    /// What it may take of memory.
    pub fn memory(&self) -> MemorySum {
        let config = TargetConfig { limits: self.limits, ..TargetConfig::default() };
        let (caches, content) = taken(&self.exports);
        let shards = u64::from(self.shards.max(1));
        MemorySum::of(&config, shards, POOL_FREE_BYTES_MAX as u64, caches, content)
    }
}

impl Gathered {
    /// Takes over what stands in one file, whose volumes may be among `trees`.
    fn take(&mut self, file: &mut ConfigFile, trees: &Trees) -> Outcome {
        let exports = std::mem::take(&mut file.keys.export);
        let keys = &file.keys;
        if let Some(node) = &keys.node {
            check_node(node.get_ref()).map_err(|e| file.wrong(node.span(), e))?;
            self.node = Some(node.get_ref().clone());
        }
        self.insecure = keys.insecure.unwrap_or(self.insecure);
        self.authenticate_only = keys.authenticate_only.unwrap_or(self.authenticate_only);
        self.announces = keys.announce.unwrap_or(self.announces);
        for (name, value) in &keys.limits {
            let set = limits::set(&mut self.limits, name, &value.get_ref().to_string());
            let limit = set.map_err(|e| file.wrong(value.span(), e))?;
            self.limits_memory |= limit == Limit::Memory;
        }
        for key in &keys.key {
            self.keys.push((key.get_ref().clone(), file.place(key.span())));
        }
        if let Some(shards) = &keys.shards {
            let count = *shards.get_ref();
            if !(1..=SHARDS_MAX).contains(&count) {
                let why = format!("`{count}`: shards must be from 1 to {SHARDS_MAX}");
                return Err(file.wrong(shards.span(), why));
            }
            self.shards = Some(count);
        }
        if let Some(batch) = &keys.batch {
            self.batching.policy =
                batch.get_ref().parse().map_err(|e: String| file.wrong(batch.span(), e))?;
        }
        self.receive = keys.receive.unwrap_or(self.receive);
        self.completion = keys.completion.unwrap_or(self.completion);
        if let Some(spin) = &keys.spin {
            let of_word = spin.get_ref().when().map_err(|e| file.wrong(spin.span(), e))?;
            self.spin = Some(of_word);
        }
        self.privileges.take(keys.user.as_deref(), keys.confine);
        self.batching.data = keys.data_batch.unwrap_or(self.batching.data);
        for link in &keys.link {
            let spec = link
                .get_ref()
                .parse()
                .map_err(|e: thinwire_link::SpecError| file.wrong(link.span(), e))?;
            self.add_link(spec, &file.place(link.span()))?;
        }
        for offer in std::mem::take(&mut file.keys.offer) {
            let spec = offer.get_ref().spec().map_err(|e| file.wrong(offer.span(), e))?;
            self.offers.push((spec, file.place(offer.span())));
        }
        for export in exports {
            let start = export.span();
            let export = export.into_inner();
            let (name, volume) = (export.name.get_ref(), export.volume.get_ref());
            let volume = trees.parse(volume, file.folder());
            let volume = volume.map_err(|e| file.wrong(export.volume.span(), e))?;
            let spec = ExportSpec::new(name, volume);
            let mut spec = spec.map_err(|e| file.wrong(export.name.span(), e))?;
            spec.read_only = export.read_only;
            for (names, place) in [(&export.keys, true), (&export.read_keys, false)] {
                let Some(names) = names else { continue };
                check_names(names.get_ref()).map_err(|e| file.wrong(names.span(), e))?;
                match place {
                    true => spec.keys = Some(names.get_ref().clone()),
                    false => spec.read_keys = names.get_ref().clone(),
                }
            }
            spec.check_keys().map_err(|e| file.wrong(start.clone(), e))?;
            spec.writeback = export.writeback;
            if let Some(block) = export.block {
                spec.set_block(*block.get_ref()).map_err(|e| file.wrong(block.span(), e))?;
            }
            if let Some(buffered) = export.buffered
                && *buffered.get_ref()
            {
                spec.set_buffered().map_err(|e| file.wrong(buffered.span(), e))?;
            }
            if let Some(cache) = &export.cache {
                let bytes = parse_size(cache.get_ref());
                let set = bytes.and_then(|bytes| spec.set_cache(bytes));
                set.map_err(|e| file.wrong(cache.span(), e))?;
            }
            if let Some(spread) = &export.spread
                && *spread.get_ref()
            {
                let set = spec.set_spread().and_then(|()| spec.check_spread());
                set.map_err(|e| file.wrong(spread.span(), e))?;
            }
            if let Some(weight) = export.weight {
                spec.set_weight(*weight.get_ref()).map_err(|e| file.wrong(weight.span(), e))?;
            }
            self.add_export(spec, file.place(start))?;
        }
        Ok(())
    }

    fn add_link(&mut self, link: LinkSpec, origin: &str) -> Outcome {
        if self.links.iter().any(|other| other.medium() == link.medium()) {
            return Err(Failure::usage(format!("{origin}: the link `{link}` is given twice")));
        }
        self.links.push(link);
        Ok(())
    }

    fn add_export(&mut self, export: ExportSpec, origin: String) -> Outcome {
        if let Some((_, first)) = self.exports.iter().find(|(e, _)| e.name == export.name) {
            return Err(Failure::usage(format!(
                "{origin}: the export name `{}` is in use already ({first}); names must differ",
                export.name
            )));
        }
        self.exports.push((export, origin));
        Ok(())
    }

    fn finish(self, args: &TargetArgs) -> Outcome<TargetSettings> {
        let admitted = Admitted::by(&self.keys, &self.exports, self.insecure);
        let node = match self.node {
            Some(node) => node,
            None => host_node()?,
        };
        if self.links.is_empty() {
            return Err(Failure::usage(
                "no link is given: say where to listen, as in --link eth1 or --link udp:10.0.0.1",
            ));
        }
        if self.exports.is_empty() {
            return Err(Failure::usage(
                "nothing to export: give at least one volume, as in --export disk0=/srv/disk0.img",
            ));
        }
        let Admitted { keys, access } = admitted?;
        let shards = self.shards.unwrap_or(1);
        let offers = checked_offers(&self.offers, &self.exports, !keys.is_empty(), shards)?;
        let mut limits = self.limits;
        if !self.limits_memory {
            let exports: Vec<_> = self.exports.iter().map(|(export, _)| export.clone()).collect();
            let (caches, content) = taken(&exports);
            let machine = MemoryLimit::of_process();
            let shards = u64::from(self.shards.unwrap_or(1));
            let memory = limits::default_memory(
                &TargetConfig::default(),
                shards,
                &machine,
                caches.saturating_add(content),
            );
            limits.set(Limit::Memory.name(), memory).expect("within its bounds");
        }
        Ok(TargetSettings {
            node,
            insecure: self.insecure,
            keys,
            access,
            authenticate_only: self.authenticate_only,
            announces: self.announces,
            limits,
            links: self.links,
            exports: self.exports.into_iter().map(|(export, _)| export).collect(),
            offers,
            shards,
            batching: self.batching,
            pipeline: Pipeline {
                receive_thread: self.receive == Receive::Split,
                send_thread: self.completion == CompletionPath::Workqueue,
            },
            spin: self.spin.unwrap_or_default(),
            fault: args.wire.fault,
            pcap: args.wire.pcap.clone(),
            run_dir: args.run_dir.clone(),
            state_dir: args.state_dir.clone(),
            lease: Duration::from_secs(args.lease.into()),
            privileges: self.privileges,
            is_from_file: args.config.is_some(),
            unused: Vec::new(),
        })
    }
}

/// The offers, if all of them can be kept.
fn checked_offers(
    offers: &[(OfferSpec, String)],
    exports: &[(ExportSpec, String)],
    has_keys: bool,
    shards: u32,
) -> Outcome<Vec<OfferSpec>> {
    let exports: Vec<ExportSpec> = exports.iter().map(|(export, _)| export.clone()).collect();
    let mut checked: Vec<OfferSpec> = Vec::new();
    for (offer, origin) in offers {
        let wrong = |why: String| Failure::usage(format!("{origin}: {why}"));
        if has_keys {
            return Err(wrong(format!(
                "`{offer}`: export `{}` has keys, and {} knows none: it would let in whoever can send frames. Offer it \
                 by a target of its own, with --insecure",
                offer.export,
                offer.protocol.name()
            )));
        }
        if shards > 1 {
            return Err(wrong(format!(
                "`{offer}`: one thread serves what is offered so: leave --shards {shards} away"
            )));
        }
        offer.check(&exports, &checked).map_err(|e| wrong(e.to_string()))?;
        checked.push(offer.clone());
    }
    Ok(checked)
}

/// What caches may take: those of exports, and those in their volumes.
fn caches_of(exports: &[ExportSpec]) -> u64 {
    let of =
        |export: &ExportSpec| export.cache.unwrap_or(0).saturating_add(export.volume.cache_bytes());
    exports.iter().map(of).fold(0, u64::saturating_add)
}

/// What caches, and the content of exports in memory, take.
fn taken(exports: &[ExportSpec]) -> (u64, u64) {
    let caches = caches_of(exports);
    let content = exports.iter().flat_map(|export| export.volume.leaves()).map(|leaf| match leaf {
        VolumeSpec::Memory(bytes) => *bytes,
        _ => 0,
    });
    (caches, content.fold(0, u64::saturating_add))
}

/// Whether the caches of all exports leave enough of the memory.
fn fits(exports: &[ExportSpec], memory: &MemoryLimit) -> Result<(), String> {
    memory.check_caches(caches_of(exports))
}

/// A node name that cannot be mistaken for an address.
fn check_node(name: &str) -> Outcome {
    check_name("node name", name)?;
    if parse_mac(name).is_some() {
        return Err(Failure::usage(format!(
            "`{name}`: a node name must not look like an Ethernet address"
        )));
    }
    Ok(())
}

/// The host's name, when the user gave none.
fn host_node() -> Outcome<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy().into_owned();
    check_node(&name)
        .map_err(|e| e.context("the host's name cannot serve as node name, so give --name"))?;
    Ok(name)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
