//! The network of one subject: initiators, a switch, a target.
//!
//! ```text
//! initiator 1, eth1 --- i1-1 [br1] t1 --- eth1, target       10.77.1.2, 10.77.1.3 ...   10.77.1.1
//! initiator 2, eth1 --- i2-1 [br1]
//! initiator 1, eth2 --- i1-2 [br2] t2 --- eth2, target       10.77.2.2 ...              10.77.2.1
//! ```
//!
//! Further targets, [`Side::Node`], are stations 102, 103 ... of the same switch, or of one of their own.
//!
//! Each subject has one of its own, all alike, so that nobody gets the frames of another and a
//! server that is not measured sleeps undisturbed.

use super::{Laboratory, Process};
use crate::error::{LabError, Outcome};
use crate::point::Wire;

/// Whose side of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The initiator of this number, from 1.
    Initiator(u32),
    /// The switch.
    Switch,
    /// The target.
    Target,
    /// A further target, of this number, from 2.
    Node(u32),
}

/// Several targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// How many.
    pub count: u32,
    /// Each on a link of its own, with a switch of its own; else all on the first.
    pub apart: bool,
}

impl Targets {
    /// One.
    pub const ONE: Targets = Targets { count: 1, apart: false };
}

/// A network that stands. Taken down when it is dropped; so end its processes before.
pub struct Network<'l> {
    lab: &'l Laboratory<'l>,
    wire: Wire,
    targets: Targets,
    tag: String,
}

impl<'l> Network<'l> {
    /// Makes it, not shaped yet: [`Network::shape`] does that once volumes are filled.
    pub fn new(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        Self::with_targets(lab, wire, Targets::ONE)
    }

    /// The same with several targets, through a switch.
    pub fn with_targets(lab: &'l Laboratory<'l>, wire: Wire, targets: Targets) -> Outcome<Self> {
        let links = if targets.apart { targets.count } else { wire.links };
        let wire = Wire { links, ..wire };
        let network = Network { lab, wire, targets, tag: lab.fresh_tag() };
        let mut batch = String::new();
        for side in network.sides() {
            batch += &format!("netns add {}\n", network.netns(side));
        }
        lab.run(None, &["ip", "-batch", "-"], &batch)?;
        for side in network.sides() {
            let quiet =
                ["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
            // A kernel without IPv6 has nothing to switch off.
            let _ = network.run(side, &["sysctl", "-qw", quiet[0], quiet[1]], "");
            network.run(side, &["ip", "link", "set", "lo", "up"], "")?;
        }
        match wire.switch {
            true => network.wire_through_switch()?,
            false => network.wire_directly()?,
        }
        for side in network.sides().filter(|&side| side != Side::Switch) {
            let mut batch = String::new();
            for link in (1..=wire.links).filter(|&link| network.is_on(side, link)) {
                let address = network.address(side, link);
                batch += &format!("addr add {address}/24 dev eth{link}\nlink set eth{link} up\n");
            }
            network.run(side, &["ip", "-batch", "-"], &batch)?;
        }
        Ok(network)
    }

    fn wire_through_switch(&self) -> Outcome {
        let mtu = self.wire.mtu;
        let mut batch = String::new();
        for link in 1..=self.wire.links {
            batch += &format!(
                "link add br{link} mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n"
            );
            for side in self.sides().filter(|&side| self.is_on(side, link)) {
                let Some(port) = port(side, link) else { continue };
                batch += &format!(
                    "link add {port} mtu {mtu} type veth peer name eth{link} mtu {mtu} address {} \
                     netns {}\nlink set {port} master br{link} up\n",
                    self.mac(side, link).replace('-', ":"),
                    self.netns(side)
                );
            }
            batch += &format!("link set br{link} up\n");
        }
        self.run(Side::Switch, &["ip", "-batch", "-"], &batch).map(drop)
    }

    /// One virtual cable for each link, with nothing in between; one initiator.
    fn wire_directly(&self) -> Outcome {
        let (from, to) = (Side::Initiator(1), Side::Target);
        let mtu = self.wire.mtu;
        let mut batch = String::new();
        for link in 1..=self.wire.links {
            batch += &format!(
                "link add eth{link} mtu {mtu} address {} type veth peer name eth{link} mtu {mtu} \
                 address {} netns {}\n",
                self.mac(from, link).replace('-', ":"),
                self.mac(to, link).replace('-', ":"),
                self.netns(to)
            );
        }
        self.run(from, &["ip", "-batch", "-"], &batch).map(drop)
    }

    /// From now on each link carries its rate, both ways: a token bucket at the switch's ports, with
    /// a burst of 1 MiB and a queue of 20 ms.
    pub fn shape(&self) -> Outcome {
        let Some(mbit) = self.wire.mbit else { return Ok(()) };
        let mut batch = String::new();
        for link in 1..=self.wire.links {
            let sides = self.sides().filter(|&side| self.is_on(side, link));
            for port in sides.filter_map(|side| port(side, link)) {
                batch += &format!(
                    "qdisc replace dev {port} root tbf rate {mbit}mbit burst 1048576 latency 20ms\n"
                );
            }
        }
        self.run(Side::Switch, &["tc", "-batch", "-"], &batch).map(drop)
    }

    fn sides(&self) -> impl Iterator<Item = Side> + use<> {
        let switch = self.wire.switch.then_some(Side::Switch);
        let nodes = (2..=self.targets.count).map(Side::Node);
        (1..=self.wire.initiators)
            .map(Side::Initiator)
            .chain(switch)
            .chain([Side::Target])
            .chain(nodes)
    }

    /// Whether a side has this link.
    fn is_on(&self, side: Side, link: u32) -> bool {
        match side {
            Side::Target => !self.targets.apart || link == 1,
            Side::Node(n) => !self.targets.apart || link == n,
            Side::Initiator(_) | Side::Switch => true,
        }
    }

    /// A target by its number, from 1, and the link that it is reached by.
    pub fn target(&self, number: u32) -> (Side, u32) {
        let side = if number == 1 { Side::Target } else { Side::Node(number) };
        (side, if self.targets.apart { number } else { 1 })
    }

    /// The namespace of a side.
    pub fn netns(&self, side: Side) -> String {
        match side {
            Side::Initiator(n) => format!("{}-i{n}", self.tag),
            Side::Switch => format!("{}-s", self.tag),
            Side::Target => format!("{}-t", self.tag),
            Side::Node(n) => format!("{}-t{n}", self.tag),
        }
    }

    /// The IP address of a side on a link, from 1.
    pub fn address(&self, side: Side, link: u32) -> String {
        format!("10.77.{link}.{}", station(side))
    }

    /// The Ethernet address of a side on a link, with dashes.
    pub fn mac(&self, side: Side, link: u32) -> String {
        format!("02-00-00-00-{link:02x}-{:02x}", station(side))
    }

    /// The wire it was made for.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// What has passed the first initiator's first link so far, both ways: frames, and their octets with Ethernet's
    /// header but without its check sequence.
    pub fn passed(&self) -> Outcome<[f64; 2]> {
        let argv = ["ip", "-j", "-s", "link", "show", "dev", "eth1"];
        let said = self.run(Side::Initiator(1), &argv, "")?;
        let links: serde_json::Value = serde_json::from_str(&said)
            .map_err(|e| LabError::Failed(format!("ip -j -s link is not understood: {e}")))?;
        let stats = &links[0]["stats64"];
        let sum = |field: &str| -> Option<f64> {
            Some(stats["rx"][field].as_f64()? + stats["tx"][field].as_f64()?)
        };
        match (sum("packets"), sum("bytes")) {
            (Some(frames), Some(octets)) => Ok([frames, octets]),
            _ => Err(LabError::Failed("ip -j -s link tells no statistics".into())),
        }
    }

    /// Runs a short command on a side.
    pub fn run(&self, side: Side, argv: &[&str], stdin: &str) -> Outcome<String> {
        self.lab.run(Some(&self.netns(side)), argv, stdin)
    }

    /// Starts a command on a side.
    pub fn start(&self, side: Side, argv: &[&str]) -> Outcome<Process> {
        Process::start(self.lab, Some(&self.netns(side)), argv)
    }
}

/// The last part of a side's addresses.
fn station(side: Side) -> u32 {
    match side {
        Side::Target => 1,
        Side::Initiator(n) => n + 1,
        Side::Node(n) => 100 + n,
        Side::Switch => 254,
    }
}

/// The switch's port to a side.
fn port(side: Side, link: u32) -> Option<String> {
    match side {
        Side::Initiator(n) => Some(format!("i{n}-{link}")),
        Side::Target => Some(format!("t{link}")),
        Side::Node(n) => Some(format!("n{n}-{link}")),
        Side::Switch => None,
    }
}

impl Drop for Network<'_> {
    fn drop(&mut self) {
        let names: Vec<String> = self.sides().map(|side| self.netns(side)).collect();
        super::sweep::take_down(&names);
    }
}
