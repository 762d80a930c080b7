//! Devices of AoE servers as leaves of volumes (`docs/aoe.md`, "The client").

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use thinwire_aoe::{AoeCanary, AoeClient, AoeClientConfig, AoeClientReport, AoeClientState};
use thinwire_buffer::Addr;
use thinwire_node::{Lane, PartId};
use thinwire_proto::StageSums;
use thinwire_runtime::clock::entropy;
use thinwire_runtime::serve::OpenedLeaf;
use thinwire_volume::{ErrorKind, Identity, LeafGrant, Port, Volume};
use thinwire_wire::aoe::{DATA_OFFSET, ErrorCode, SECTOR_BYTES};

use crate::cli::WhenAwayArg;
use crate::control::{LeafStatus, PathStatus, State};
use crate::ebd::hold;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::network::NetworkLeaf;
use crate::open::{VolumeHealth, VolumeOptions};
use crate::uri::AoeSpec;

/// A device on a host.
pub struct AoeLeaf {
    host: Host,
    client: PartId<AoeClient>,
    /// The host's number of its link.
    link: usize,
    spec: AoeSpec,
    uri: String,
    begun: Instant,
    read_only: bool,
    /// It was let go of at once, or while its server was away.
    is_left: bool,
    /// That no other process of this machine has the device: both would be one client to the server, and hear each other's
    /// answers.
    _held: UnixDatagram,
}

impl AoeLeaf {
    /// Begins to look for it.
    pub fn begin(host: &Host, spec: &AoeSpec, options: &VolumeOptions) -> Outcome<Self> {
        if options.take_over {
            return Err(Failure::usage(format!(
                "cannot take {spec} over: a client of AoE does not say that it writes, and the device is its with its first \
                 write if it is nobody's. Reserve it for this station by its server, or by another client"
            )));
        }
        let held = hold(&format!("thinwire-aoe/{}/{}", spec.ifname, spec.device))?;
        let held = held.ok_or_else(|| {
            Failure::failed(format!(
                "cannot attach {spec}: this machine has attached that device already, and both would be one client to the \
                 server: detach the other"
            ))
        })?;
        let link = host.foreign_link(&spec.link(), DATA_OFFSET, options)?;
        let mut shard = host.shard_mut();
        let info = shard.infos(&[link])[0];
        let config = AoeClientConfig {
            device: spec.device,
            server: spec.station.map(Addr::Mac),
            read_only: options.read_only,
            flushes: spec.flushes,
            fail_after: match options.when_away {
                WhenAwayArg::Wait => None,
                WhenAwayArg::FailAfter(after) => Some(after),
            },
            seed: entropy(),
            label: spec.to_string(),
            canary: AoeCanary::None,
        };
        let client = AoeClient::new(shard.now(), config, info);
        let client = shard.add(client, Vec::new(), &Lane::ALL);
        shard.node().give_foreign_link(client, link);
        drop(shard);
        Ok(AoeLeaf {
            host: host.clone(),
            client,
            link,
            spec: spec.clone(),
            uri: spec.to_string(),
            begun: Instant::now(),
            read_only: options.read_only,
            is_left: false,
            _held: held,
        })
    }

    fn report(&self) -> AoeClientReport {
        self.host.shard().get(self.client).report()
    }

    /// What is to be said of it, besides its state.
    fn detail(&self, report: &AoeClientReport) -> String {
        let shard = self.host.shard();
        match (report.state, shard.get(self.client).refusal()) {
            (AoeClientState::Failed(kind), _) => {
                format!("{}; I/O fails until it is detached", kind.describe())
            }
            (_, Some(ErrorCode::Reserved)) => {
                "its server says that another station writes it, or that it is reserved for others: it is asked again"
                    .to_owned()
            }
            (_, Some(why)) => format!("its server says {}: it is asked again", why.name()),
            _ => {
                let flushed = if self.spec.flushes { "flushed" } else { "never flushed" };
                format!("AoE, {} sectors a frame, {flushed}, no keys", report.frame_sectors)
            }
        }
    }
}

impl NetworkLeaf for AoeLeaf {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn begun(&self) -> Instant {
        self.begun
    }

    fn look_open(&self, _: &VolumeOptions) -> Outcome<bool> {
        Ok(self.host.shard().get(self.client).is_open())
    }

    fn silence(&self, seconds: u64) -> Failure {
        let AoeSpec { device, ifname: link, .. } = &self.spec;
        match self.report().server {
            Some(server) => Failure::failed(format!(
                "{server} has {device} on {link}, and has not said within {seconds} s how large it is: is the device \
                 reserved for others?"
            )),
            None => Failure::absent(format!(
                "no AoE server with {device} answered on {link} within {seconds} s. Does it offer that shelf and slot, to this \
                 station, and is the link the one that leads to it?"
            )),
        }
    }

    fn is_granted(&self) -> bool {
        self.host.shard().get(self.client).is_open()
    }

    fn is_away(&self) -> bool {
        matches!(self.report().state, AoeClientState::Away | AoeClientState::Connecting)
    }

    /// What is answered is not kept: a server that has lost it does not say so.
    fn has_lost(&self) -> bool {
        matches!(self.report().state, AoeClientState::Failed(_))
    }

    fn is_unheard(&self) -> bool {
        self.is_left && !self.read_only
    }

    fn granted(&self) -> (Identity, LeafGrant) {
        (self.host.shard().get(self.client).identity(), LeafGrant::default())
    }

    fn ports(&self) -> Vec<Port> {
        vec![self.host.shard_mut().node().port(self.client)]
    }

    fn status(&self) -> Vec<LeafStatus> {
        let report = self.report();
        let state = match report.state {
            AoeClientState::Open => State::Attached,
            AoeClientState::Away | AoeClientState::Connecting => State::Away,
            AoeClientState::Ending | AoeClientState::Closed => State::Detaching,
            AoeClientState::Failed(_) => State::Changed,
        };
        let frame_bytes = (usize::from(report.frame_sectors) * SECTOR_BYTES + DATA_OFFSET) as u32;
        let path = PathStatus {
            link: self.host.shard().links().name(self.link).to_string(),
            remote: report.server.map_or("unknown".to_owned(), |server| server.to_string()),
            state: if state == State::Away { "down" } else { "up" }.to_owned(),
            frame_bytes,
            frame_bytes_limit: frame_bytes,
            full_size_retry_s: None,
            rtt_us: None,
            lost: report.repeated,
        };
        vec![LeafStatus {
            uri: self.uri.clone(),
            member: None,
            state,
            paths: vec![path],
            timer: None,
            seconds_left: None,
            batch: None,
            integrity: None,
            detail: Some(self.detail(&report)),
        }]
    }

    fn health(&self) -> VolumeHealth {
        let (mut paths, mut all) = (Vec::new(), VolumeHealth::local());
        for leaf in self.status() {
            (all.state, all.detail) = (leaf.state, leaf.detail);
            paths.extend(leaf.paths);
        }
        VolumeHealth { paths, unflushed: false, may_lose: self.has_lost(), ..all }
    }

    /// Targets know attachments of their own protocol.
    fn opened(&self) -> Vec<OpenedLeaf> {
        Vec::new()
    }

    fn stages(&mut self, _: u8) -> Outcome<Option<[StageSums; 2]>> {
        Ok(None)
    }

    fn begin_close(&mut self, force: bool) {
        let report = self.report();
        tracing::debug!("{}: {report:?}", self.uri);
        self.is_left = force || self.is_away();
        let mut shard = self.host.shard_mut();
        let client = shard.get_mut(self.client);
        match force {
            true => client.abort(),
            false => client.close(),
        }
    }

    fn closed(&self) -> Option<Outcome> {
        let shard = self.host.shard();
        let client = shard.get(self.client);
        if !client.is_closed() {
            return None;
        }
        let failure = client.failure().filter(|_| !self.read_only);
        Some(failure.map_or(Ok(()), |kind: ErrorKind| {
            let why = kind.describe();
            Err(Failure::failed(format!(
                "{}: what was written last may not be there: {why}",
                self.uri
            )))
        }))
    }
}
