//! The document's storage nodes: targets with five disks each, and an initiator that stripes over them.

use super::super::thinwire::BARE;
use super::made::{cache_over, need_caches};
use super::{bench, strs, words};
use crate::composed::{Nodes, Speed};
use crate::contender::Contender;
use crate::error::Outcome;
use crate::figures::Figures;
use crate::point::{Load, Wire};
use crate::stand::{Files, Laboratory, Network, Process, Targets, VOLUME_MIB};

/// Of a node.
pub const DISKS: u32 = 5;
/// Bytes a second of a disk, as section 2.5.1 measures it.
pub const DISK_READ: u64 = 45_000_000;
/// The same, written.
pub const DISK_WRITE: u64 = 20_000_000;
/// Bytes a second of all disks of a node: what its bus carries (2.2.1).
pub const BUS: u64 = 120_000_000;
/// MiB of memory of a machine, which a node's cache and what the application's kernel keeps of files may take.
pub const MEMORY_MIB: u32 = 512;
/// What a limit saves up, in ms: little, or a short run would be too fast.
const BURST_MS: u32 = 10;
/// MiB of a node's cache for what `bench` uses, of which it holds a quarter: none of it in order.
const CACHE_MIB: u32 = 64;

/// A disk of the document's speed over a file.
fn disk(path: &str, speed: Speed) -> String {
    match speed {
        Speed::Unlimited => path.to_owned(),
        Speed::Document => format!(
            "qos:[{path}]?read_bandwidth={DISK_READ}&write_bandwidth={DISK_WRITE}&burst_ms={BURST_MS}"
        ),
    }
}

/// The volume of a node over the files of its disks.
pub fn node_volume(paths: &[String], speed: Speed, cached: Option<u32>) -> String {
    let disks: Vec<String> = paths.iter().map(|path| disk(path, speed)).collect();
    let stripe = format!("stripe:[{}]", disks.join(","));
    let node = match speed {
        Speed::Unlimited => stripe,
        Speed::Document => format!("qos:[{stripe}]?bandwidth={BUS}&burst_ms={BURST_MS}"),
    };
    match cached {
        Some(mib) => cache_over(&node, mib),
        None => node,
    }
}

/// Nodes, and the volume over them as the initiator names it.
pub struct NodeUser<'l> {
    lab: &'l Laboratory<'l>,
    /// As the initiator names it.
    pub volume: String,
    /// The targets.
    pub servers: Vec<Process>,
    /// None where the disks are used where they are.
    pub network: Option<Network<'l>>,
    _files: Files,
}

impl<'l> NodeUser<'l> {
    /// For a file system of so many MiB: disks of which nothing is there yet. `cache_mib`: of each node, if it has one.
    pub fn blank(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        nodes: Nodes,
        speed: Speed,
        [mib, cache_mib]: [u32; 2],
    ) -> Outcome<Self> {
        if nodes.is_cached() {
            need_caches(lab)?;
        }
        let files = Files::new(lab)?;
        let all = DISKS * nodes.count().max(1);
        let bytes = u64::from(mib.div_ceil(all)) << 20;
        let mut paths = Vec::new();
        for n in 1..=all {
            paths.push(files.sparse(&format!("disk{n}"), bytes)?);
        }
        let cached = nodes.is_cached().then_some(cache_mib);
        let volumes: Vec<String> =
            paths.chunks(DISKS as usize).map(|disks| node_volume(disks, speed, cached)).collect();
        Self::over(lab, wire, Targets { count: nodes.count(), apart: false }, &volumes, files)
    }

    /// For I/Os: disks full of random bytes, as large together however many nodes there are.
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        nodes: Nodes,
        speed: Speed,
    ) -> Outcome<Self> {
        if nodes.is_cached() {
            need_caches(lab)?;
        }
        let files = Files::new(lab)?;
        let volumes = filled(lab, &files, nodes, speed)?;
        let targets = Targets { count: nodes.count(), apart: false };
        Self::over(lab, wire, targets, &volumes, files)
    }

    /// A stripe of memory of so many targets, each on a link of its own.
    pub fn stripe(lab: &'l Laboratory<'l>, wire: Wire, targets: u32) -> Outcome<Self> {
        let files = Files::new(lab)?;
        let blob = lab.blob()?;
        let bytes = u64::from(VOLUME_MIB.div_ceil(targets)) << 20;
        let mut volumes = Vec::new();
        for n in 1..=targets {
            volumes.push(files.copied(&format!("disk{n}"), &blob, bytes)?);
        }
        Self::over(lab, wire, Targets { count: targets, apart: true }, &volumes, files)
    }

    /// One disk, where it is used.
    pub fn one_disk(lab: &'l Laboratory<'l>) -> Outcome<Self> {
        let files = Files::new(lab)?;
        let path = files.copied("disk", &lab.blob()?, u64::from(VOLUME_MIB) << 20)?;
        let volume = disk(&path, Speed::Document);
        Ok(NodeUser { lab, volume, servers: Vec::new(), network: None, _files: files })
    }

    /// A volume for each target, or one that is used where it is.
    pub fn over(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        targets: Targets,
        volumes: &[String],
        files: Files,
    ) -> Outcome<Self> {
        if targets.count == 0 {
            let volume = volumes[0].clone();
            return Ok(NodeUser { lab, volume, servers: Vec::new(), network: None, _files: files });
        }
        let network = Network::with_targets(lab, wire, targets)?;
        let servers = serve_all(lab, &network, volumes, &files)?;
        network.shape()?;
        let volume = striped(targets);
        Ok(NodeUser { lab, volume, servers, network: Some(network), _files: files })
    }
}

/// The volumes of nodes whose disks are full of random bytes.
pub fn filled(lab: &Laboratory, files: &Files, nodes: Nodes, speed: Speed) -> Outcome<Vec<String>> {
    let all = DISKS * nodes.count().max(1);
    let bytes = u64::from(VOLUME_MIB.div_ceil(all)) << 20;
    let blob = lab.blob()?;
    let mut paths = Vec::new();
    for n in 1..=all {
        paths.push(files.copied(&format!("disk{n}"), &blob, bytes)?);
    }
    let cached = nodes.is_cached().then_some(CACHE_MIB);
    Ok(paths.chunks(DISKS as usize).map(|disks| node_volume(disks, speed, cached)).collect())
}

/// Starts a target for each volume, and waits until all serve.
pub fn serve_all(
    lab: &Laboratory,
    network: &Network,
    volumes: &[String],
    files: &Files,
) -> Outcome<Vec<Process>> {
    let mut servers = Vec::new();
    for (n, volume) in (1..).zip(volumes) {
        let (side, link) = network.target(n);
        let argv = words![
            lab.executable(),
            "target",
            BARE,
            "--name",
            format!("node{n}"),
            "--link",
            format!("packet:eth{link}"),
            "--export",
            format!("disk={volume}"),
            "--state-dir",
            files.path(&format!("state{n}")),
            "--run-dir",
            files.path(&format!("run{n}")),
        ];
        servers.push(network.start(side, &strs(&argv))?);
    }
    for server in &mut servers {
        server.until_says(lab, "ready ", std::time::Duration::from_secs(20))?;
    }
    Ok(servers)
}

/// All targets' exports as one disk.
pub fn striped(targets: Targets) -> String {
    let export = |n: u32| {
        let link = if targets.apart { n } else { 1 };
        format!("tw://node{n}/disk?link=packet:eth{link}")
    };
    match targets.count {
        1 => export(1),
        count => {
            let all: Vec<String> = (1..=count).map(export).collect();
            format!("stripe:[{}]", all.join(","))
        }
    }
}

impl Contender for NodeUser<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let (network, servers) = (self.network.as_ref(), &self.servers);
        bench(self.lab, network, servers, &self.volume, &[], load, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_disks_behind_a_bus() {
        let paths = ["/a".to_owned(), "/b".to_owned()];
        assert_eq!(node_volume(&paths, Speed::Unlimited, None), "stripe:[/a,/b]");
        let disk = |path: &str| {
            format!("qos:[{path}]?read_bandwidth=45000000&write_bandwidth=20000000&burst_ms=10")
        };
        let node =
            format!("qos:[stripe:[{},{}]]?bandwidth=120000000&burst_ms=10", disk("/a"), disk("/b"));
        assert_eq!(node_volume(&paths, Speed::Document, None), node);
        assert_eq!(node_volume(&paths, Speed::Document, Some(64)), cache_over(&node, 64));
    }

    #[test]
    fn nodes_are_on_one_link_or_each_on_its_own() {
        let of = |count, apart| striped(Targets { count, apart });
        assert_eq!(of(1, true), "tw://node1/disk?link=packet:eth1");
        let [apart, together] = [true, false].map(|apart| of(3, apart));
        assert!(
            apart.ends_with("tw://node3/disk?link=packet:eth3]") && apart.starts_with("stripe:[")
        );
        assert_eq!(together.matches("packet:eth1").count(), 3);
    }
}
