//! Devices of EBD servers as leaves of volumes (`docs/ebd.md`).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Instant;

use thinwire_buffer::Addr;
use thinwire_ebd::{ClientConfig, ClientReport, ClientState, EbdCanary, EbdClient};
use thinwire_node::{Lane, PartId};
use thinwire_proto::StageSums;
use thinwire_runtime::clock::entropy;
use thinwire_runtime::serve::OpenedLeaf;
use thinwire_volume::{ErrorKind, Identity, LeafGrant, Port, Volume};
use thinwire_wire::ebd::{EbdForm, NakReason};

use crate::cli::WhenAwayArg;
use crate::control::{LeafStatus, PathStatus, State};
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::network::NetworkLeaf;
use crate::open::{VolumeHealth, VolumeOptions};
use crate::uri::EbdSpec;

/// One more than the highest number of a client of the implemented form: 255 is everybody.
const CLIENTS: u8 = 255;

/// A device on a host.
pub struct EbdLeaf {
    host: Host,
    client: PartId<EbdClient>,
    /// The host's number of its link.
    link: usize,
    spec: EbdSpec,
    uri: String,
    begun: Instant,
    read_only: bool,
    /// It was let go of at once, or while its server was away.
    is_left: bool,
    _number: ClientNumber,
}

/// Which client of EBD an attachment is, on its interface: kept from others by an abstract socket, which is a matter
/// of the network namespace, as the interface is, and goes with the process.
struct ClientNumber {
    number: u8,
    _held: UnixDatagram,
}

impl ClientNumber {
    /// The number for this device. The same each time unless another attachment has it, so that who comes back after
    /// it was killed is who was on record; readers are numbered apart from the one who writes.
    fn claim(spec: &EbdSpec, read_only: bool) -> Outcome<Self> {
        let (link, device) = (&spec.link, format!("{}.{}", spec.major, spec.minor));
        let station = Addr::Mac(spec.station);
        if spec.form == EbdForm::Ideal {
            let name = format!("thinwire-ebd/{link}/{station}/{device}");
            let held = hold(&name)?.ok_or_else(|| {
                Failure::failed(format!(
                    "cannot attach {spec}: this machine has attached that device already, and in the idealised form \
                     both would be one client to the server: detach the other, or offer the device once more under \
                     another number"
                ))
            })?;
            return Ok(ClientNumber { number: 0, _held: held });
        }
        // FNV-1a: the same on every build.
        let seed = format!("{station}/{device}/{}", u8::from(read_only));
        let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = seed.bytes().fold(0x811c_9dc5, fold);
        for at in 0..u32::from(CLIENTS) {
            let number = (hash.wrapping_add(at) % u32::from(CLIENTS)) as u8;
            if let Some(held) = hold(&format!("thinwire-ebd/{link}/{number}"))? {
                return Ok(ClientNumber { number, _held: held });
            }
        }
        Err(Failure::failed(format!(
            "cannot attach {spec}: all {CLIENTS} client numbers of {link} are in use (`ss -xa | grep thinwire-ebd` \
             shows by whom)"
        )))
    }
}

/// A socket of this name; none if another process has it.
pub(crate) fn hold(name: &str) -> Outcome<Option<UnixDatagram>> {
    let bound =
        SocketAddr::from_abstract_name(name).and_then(|name| UnixDatagram::bind_addr(&name));
    match bound {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(Failure::failed(format!("cannot keep @{name} from others: {error}"))),
    }
}

impl EbdLeaf {
    /// Begins to shake hands.
    pub fn begin(host: &Host, spec: &EbdSpec, options: &VolumeOptions) -> Outcome<Self> {
        let number = ClientNumber::claim(spec, options.read_only)?;
        let head_bytes = spec.form.header_bytes();
        let link = host.foreign_link(&spec.link, head_bytes, options)?;
        let mut shard = host.shard_mut();
        let info = shard.infos(&[link])[0];
        let config = ClientConfig {
            form: spec.form,
            server: Addr::Mac(spec.station),
            major: spec.major,
            minor: spec.minor,
            client: number.number,
            block_bytes: spec.block_for(info.frame_bytes.max.saturating_sub(head_bytes)),
            read_only: options.read_only,
            take_over: options.take_over,
            waits: options.patience.is_none(),
            fail_after: match options.when_away {
                WhenAwayArg::Wait => None,
                WhenAwayArg::FailAfter(after) => Some(after),
            },
            retained_bytes_max: options.retained_bytes_max,
            label: spec.to_string(),
            seed: entropy(),
            canary: EbdCanary::None,
        };
        let client = EbdClient::new(shard.now(), config, info);
        let client = shard.add(client, Vec::new(), &Lane::ALL);
        shard.node().give_foreign_link(client, link);
        drop(shard);
        Ok(EbdLeaf {
            host: host.clone(),
            client,
            link,
            spec: spec.clone(),
            uri: spec.to_string(),
            begun: Instant::now(),
            read_only: options.read_only,
            is_left: false,
            _number: number,
        })
    }

    fn report(&self) -> ClientReport {
        self.host.shard().get(self.client).report()
    }

    fn refused(&self, options: &VolumeOptions, kind: ErrorKind) -> Failure {
        let shard = self.host.shard();
        let refusal = shard.get(self.client).refusal();
        let why = refusal.map_or(kind.describe(), NakReason::describe);
        let remedy = refusal.map_or(String::new(), |why| remedy(options, why));
        Failure::failed(format!("cannot attach {}: {why}{remedy}", self.spec))
    }
}

/// What the user can do about a refusal, in flags that the command has.
fn remedy(options: &VolumeOptions, why: NakReason) -> String {
    let flags = options.flags;
    match (why, flags.reading) {
        (NakReason::Busy, _) if options.read_only => ": try again".to_owned(),
        (NakReason::Busy, reading) => {
            let read = reading.map_or(String::new(), |flag| format!(", only read ({flag})"));
            let fence = if flags.takes_over { ", or fence it with --take-over" } else { "" };
            format!(": wait for that{read}{fence}")
        }
        (NakReason::ReadOnly, Some(flag)) => format!(": only read it ({flag})"),
        (NakReason::Form, _) => {
            ": give the other with form=ideal or form=implemented in the URI".to_owned()
        }
        _ => String::new(),
    }
}

impl NetworkLeaf for EbdLeaf {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn begun(&self) -> Instant {
        self.begun
    }

    fn look_open(&self, options: &VolumeOptions) -> Outcome<bool> {
        let (failure, is_open) = {
            let shard = self.host.shard();
            let client = shard.get(self.client);
            (client.failure(), client.is_open())
        };
        failure.map_or(Ok(is_open), |kind| Err(self.refused(options, kind)))
    }

    fn silence(&self, seconds: u64) -> Failure {
        let EbdSpec { station, link, .. } = &self.spec;
        let station = Addr::Mac(*station);
        let shard = self.host.shard();
        match shard.get(self.client).refusal() {
            Some(why) => Failure::failed(format!(
                "after {seconds} s the server still says that {}",
                why.describe()
            )),
            None => Failure::absent(format!(
                "no EBD server at {station} answered on {link} within {seconds} s. Does it offer devices under this \
                 EtherType, is that its address, and is the link the one that leads to it?"
            )),
        }
    }

    /// It is as soon as a handshake was answered, though blocks are still being tried.
    fn is_granted(&self) -> bool {
        self.report().handshakes > 0
    }

    fn is_away(&self) -> bool {
        matches!(self.report().state, ClientState::Away | ClientState::Connecting)
    }

    /// What could not be written again has it fail for good.
    fn has_lost(&self) -> bool {
        let shard = self.host.shard();
        let client = shard.get(self.client);
        client.failure().is_some() && client.has_lost()
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
            ClientState::Open => State::Attached,
            ClientState::Away | ClientState::Connecting => State::Away,
            ClientState::Ending | ClientState::Closed => State::Detaching,
            ClientState::Failed(ErrorKind::Fenced) => State::Fenced,
            ClientState::Failed(_) => State::Changed,
        };
        let frame_bytes = report.block_bytes + self.spec.form.header_bytes() as u32;
        let path = PathStatus {
            link: self.host.shard().links().name(self.link).to_string(),
            remote: Addr::Mac(self.spec.station).to_string(),
            state: if state == State::Away { "down" } else { "up" }.to_owned(),
            frame_bytes,
            frame_bytes_limit: frame_bytes,
            full_size_retry_s: None,
            rtt_us: None,
            lost: report.repeated,
        };
        let form = self.spec.form.name();
        let detail = match report.state {
            ClientState::Failed(kind) => {
                format!("{}; I/O fails until it is detached", kind.describe())
            }
            _ => format!("EBD, {form} form, blocks of {} bytes, no keys", report.block_bytes),
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
            detail: Some(detail),
        }]
    }

    fn health(&self) -> VolumeHealth {
        let report = self.report();
        let is_kept = report.retained_bytes > 0;
        let (mut paths, mut all) = (Vec::new(), VolumeHealth::local());
        for leaf in self.status() {
            (all.state, all.detail) = (leaf.state, leaf.detail);
            paths.extend(leaf.paths);
        }
        let may_lose = is_kept || self.has_lost();
        VolumeHealth { paths, unflushed: is_kept, may_lose, ..all }
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
        let lost = match (client.failure(), client.has_lost()) {
            (_, false) => None,
            (Some(kind), true) => Some(kind.describe()),
            (None, true) => Some("the server did not make them so"),
        };
        Some(lost.map_or(Ok(()), |why| {
            Err(Failure::failed(format!(
                "{}: writes that were not yet durable could not be made so: {why}",
                self.uri
            )))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::VolumeSpec;

    fn spec(text: &str) -> EbdSpec {
        match text.parse() {
            Ok(VolumeSpec::Ebd(spec)) => spec,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_attachments_are_two_clients_and_who_comes_back_is_the_same() {
        let device = spec("ebd://02-00-00-00-00-02/3.1?link=numbers0");
        let number = |read_only| ClientNumber::claim(&device, read_only).unwrap();
        let (first, reader) = (number(false), number(true));
        let second = number(false);
        assert_ne!(first.number, second.number);
        assert!(reader.number != first.number && reader.number != second.number);
        let was = first.number;
        drop(first);
        assert_eq!(number(false).number, was);
    }

    #[test]
    fn a_device_of_the_idealised_form_is_attached_once_on_a_machine() {
        let ideal = |device: &str| {
            spec(&format!("ebd://02-00-00-00-00-02/{device}?link=numbers1&form=ideal"))
        };
        let _first = ClientNumber::claim(&ideal("3.1"), false).unwrap();
        let _other = ClientNumber::claim(&ideal("3.2"), false).unwrap();
        let why = ClientNumber::claim(&ideal("3.1"), true).err().unwrap().to_string();
        assert!(why.contains("attached that device already"), "{why}");
    }
}
