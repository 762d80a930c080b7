//! From what the user named to open links, with faults and capture around them if asked for.

use std::net::UdpSocket;
use std::path::Path;

use thinwire_link::fault::FaultConfig;
use thinwire_link::handoff::Pipeline;
use thinwire_link::pcap::{PcapFile, SharedPcap, wall_clock};
use thinwire_link::udp::PORT_DEFAULT;
use thinwire_link::{Link, LinkOpenError, LinkOptions, LinkSpec, ShardSteering, SteeringFilter};

use crate::error::{Failure, FailureKind, Outcome};

/// Overhead of UDP and IP in a packet, which an MTU counts and a frame does not.
const UDP_V4_BYTES: usize = 28;
const UDP_V6_BYTES: usize = 48;

/// Opens an initiator's links in order. Those on raw interfaces receive what `steering` accepts:
/// other initiators' frames arrive there, too.
pub fn open_initiator_links(
    specs: &[LinkSpec],
    fault: Option<&FaultConfig>,
    pcap: Option<&Path>,
    steering: &[SteeringFilter],
    pipeline: Pipeline,
) -> Outcome<Vec<Box<dyn Link>>> {
    let steering = steering.to_vec();
    open(specs, fault, pcap, &LinkOptions { steering, pipeline, ..LinkOptions::default() })
}

/// Opens the links of a target's shard in order.
pub fn open_target_links(
    specs: &[LinkSpec],
    fault: Option<&FaultConfig>,
    pcap: Option<&Path>,
    shard: &ShardSteering,
    pipeline: Pipeline,
) -> Outcome<Vec<Box<dyn Link>>> {
    let options = LinkOptions {
        default_udp_port: PORT_DEFAULT,
        shard: Some(shard.clone()),
        pipeline,
        ..LinkOptions::default()
    };
    open(specs, fault, pcap, &options)
}

/// Opens a link of another protocol, whose frames have heads of so many bytes.
pub fn open_foreign_link(
    spec: &LinkSpec,
    head_bytes: usize,
    fault: Option<&FaultConfig>,
    pcap: Option<&Path>,
) -> Outcome<Box<dyn Link>> {
    let foreign_head_bytes = Some(head_bytes);
    let options = LinkOptions { foreign_head_bytes, ..LinkOptions::default() };
    let mut links = open(std::slice::from_ref(spec), fault, pcap, &options)?;
    Ok(links.pop().expect("one was opened"))
}

fn open(
    specs: &[LinkSpec],
    fault: Option<&FaultConfig>,
    pcap: Option<&Path>,
    options: &LinkOptions,
) -> Outcome<Vec<Box<dyn Link>>> {
    let capture = pcap.map(capture_to).transpose()?;
    let shard = options.shard.as_ref().map_or(0, |shard| usize::from(shard.index));
    let links_before = shard * specs.len();
    let mut links = Vec::with_capacity(specs.len());
    for (at, spec) in specs.iter().enumerate() {
        let text = spec.to_string();
        // Each link draws faults of its own.
        let fault = fault
            .map(|f| FaultConfig { seed: f.seed.wrapping_add((links_before + at) as u64), ..*f });
        let options = LinkOptions { fault, pcap: capture.clone(), ..options.clone() };
        let (link, advice) = spec.open_advised(&options).map_err(|e| {
            let kind = match e {
                LinkOpenError::NoSuchInterface { .. } | LinkOpenError::InterfaceDown { .. } => {
                    FailureKind::Absent
                }
                _ => FailureKind::Failed,
            };
            Failure { kind, message: format!("cannot open link {text}: {e}") }
        })?;
        if let Some(advice) = advice {
            tracing::info!("link {text}: {advice}");
        }
        links.push(link);
    }
    for (spec, _) in specs.iter().zip(&links).filter(|(_, link)| link.name().starts_with("xdp:")) {
        for other in specs.iter().filter(|other| spec.may_rob(other)) {
            let (text, medium) = (spec.to_string(), spec.medium());
            tracing::warn!(
                "link {other}: frames for it may be lost to {text}, since the adapter takes VLAN tags \
                 off before they can be looked at; use packet:{medium}, or have tags left alone with: \
                 ethtool -K {medium} rxvlan off"
            );
        }
    }
    Ok(links)
}

fn capture_to(path: &Path) -> Outcome<SharedPcap> {
    PcapFile::create(path, wall_clock())
        .map_err(|e| Failure::failed(format!("cannot record frames into {}: {e}", path.display())))
}

/// The largest frame that fits an MTU on the way that `spec` names.
pub fn frame_bytes(spec: &LinkSpec, mtu: u32) -> usize {
    let overhead = match spec {
        LinkSpec::Udp { ip, .. } if ip.is_ipv4() => UDP_V4_BYTES,
        LinkSpec::Udp { .. } => UDP_V6_BYTES,
        _ => 0,
    };
    mtu as usize - overhead
}

/// The UDP link that routing would choose to reach `to`.
pub fn udp_toward(to: std::net::SocketAddr) -> Outcome<LinkSpec> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    match local {
        Ok(local) => Ok(LinkSpec::Udp { ip: local.ip(), scope: scope_of(local), port: None }),
        Err(e) => Err(Failure::absent(format!(
            "there is no way to {to}: {e}; name a local address with ?link=udp:ADDRESS"
        ))),
    }
}

/// The interface of a link-local address, which means nothing without it.
fn scope_of(local: std::net::SocketAddr) -> u32 {
    match local {
        std::net::SocketAddr::V6(v6) => v6.scope_id(),
        std::net::SocketAddr::V4(_) => 0,
    }
}
