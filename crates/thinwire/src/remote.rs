//! Remote volumes and discovery: everything an initiator needs of the network.

mod members;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use thinwire_buffer::{Addr, Time};
use thinwire_initiator::{AttachError, InitiatorConfig, InitiatorReport, TargetName, WhenAway};
use thinwire_link::LinkSpec;
use thinwire_link::handoff::Pipeline;
use thinwire_proto::{StageObserver, StageSums};
use thinwire_runtime::clock::entropy;
use thinwire_runtime::confine::as_starter;
use thinwire_runtime::serve::OpenedLeaf;
use thinwire_runtime::{lookup, steering};
use thinwire_volume::{Identity, LeafGrant, Port, Volume};
use thinwire_wire::Status;

use self::members::{JOIN_PATIENCE, Members};
use crate::control::LeafStatus;
use crate::error::{Failure, FailureKind, Outcome};
use crate::health;
use crate::host::{Host, Whereabouts, link_failed};
use crate::identity::{self, InitiatorId};
use crate::keys::{KeyFile, Security};
use crate::links::{frame_bytes, open_initiator_links, udp_toward};
use crate::network::NetworkLeaf;
use crate::open::{VolumeHealth, VolumeOptions, Wait};
use crate::uri::{NodeAddress, RemoteSpec};

/// How long an orderly end may take.
pub const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the target may take to tell of its stage clocks.
const CLOCKS_PATIENCE: Duration = Duration::from_secs(2);

/// A target that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTarget {
    /// Its node name.
    pub name: String,
    /// Its address, as in a URI.
    pub address: String,
    /// Its exports' names; with a key those that it may open.
    pub exports: Vec<String>,
    /// With a key: it has shown that it has it, too. Without: always.
    pub is_proved: bool,
}

/// An attachment on a host.
pub struct RemoteLeaf {
    host: Host,
    members: Members,
    /// The host's numbers of its links.
    links: Vec<usize>,
    spec: RemoteSpec,
    uri: String,
    begun: Instant,
    read_only: bool,
    /// It was away when it was let go of at once.
    left_away: bool,
    _id: InitiatorId,
}

/// Where the target is, and over which links.
fn resolve(spec: &RemoteSpec) -> Outcome<Whereabouts> {
    let mut links = spec.links.clone();
    let target = match &spec.node {
        NodeAddress::Name(name) => TargetName::Node(name.clone()),
        NodeAddress::Mac(mac) => TargetName::Address(Addr::Mac(*mac)),
        NodeAddress::Udp { host, port } => {
            let wanted = links.iter().find_map(|link| match link {
                LinkSpec::Udp { ip, .. } => Some(ip.is_ipv4()),
                _ => None,
            });
            let to = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|e| Failure::absent(format!("cannot resolve {host}: {e}")))?
                .find(|to: &SocketAddr| wanted.is_none_or(|v4| to.is_ipv4() == v4))
                .ok_or_else(|| Failure::absent(format!("{host} has no usable address")))?;
            if links.is_empty() {
                links.push(udp_toward(to)?);
            }
            TargetName::Address(Addr::Udp(to))
        }
    };
    Ok((target, links))
}

fn refused(spec: &RemoteSpec, options: &VolumeOptions, error: &AttachError) -> Failure {
    let own = spec.key.clone();
    let key = own.or_else(|| Some(options.security.key.as_ref()?.path.display().to_string()));
    let message =
        format!("cannot attach {spec}: {error}{}", remedy(options, key.as_deref(), error));
    let kind = match error {
        AttachError::Refused { status: Status::NotFound, .. } => FailureKind::Absent,
        AttachError::Refused { status: Status::Busy, .. } => FailureKind::Busy,
        _ => FailureKind::Failed,
    };
    Failure { kind, message }
}

/// What the user who has shown this key can do about a refusal, in flags that the command has.
fn remedy(options: &VolumeOptions, key: Option<&str>, error: &AttachError) -> String {
    let AttachError::Refused { status, text, .. } = error else { return String::new() };
    let flags = options.flags;
    match (status, flags.reading) {
        // A reader is refused only while something else is settled first.
        (Status::Busy, _) if options.read_only => ": try again".to_owned(),
        // No time helps here: the holder answers. The status alone does not tell.
        (Status::Busy, _) if text.contains("same identity") && text.contains("is alive") => {
            let other = "give this one another identity with --run-dir";
            match flags.takes_over {
                true => format!(": detach it there, {other}, or fence it with --take-over"),
                false => format!(": detach it there, or {other}"),
            }
        }
        (Status::Busy, reading) => {
            let mut ways = vec!["wait for that".to_owned()];
            ways.extend(reading.map(|flag| format!("only read ({flag})")));
            ways.extend(flags.takes_over.then(|| "fence that writer with --take-over".to_owned()));
            let last = ways.pop().unwrap_or_default();
            match ways.is_empty() {
                true => format!(": {last}"),
                false => format!(": {}, or {last}", ways.join(", ")),
            }
        }
        (Status::ReadOnly, Some(flag)) => format!(": only read it ({flag})"),
        (Status::NotFound, _) => {
            let key = key.map_or(String::new(), |key| format!(" --key {key}"));
            format!(": `thinwire discover --link LINK{key}` lists the exports")
        }
        _ => String::new(),
    }
}

/// What this machine is called. Asked for once: a target that serves does not ask the kernel any more.
pub(crate) fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

impl RemoteLeaf {
    /// Begins to attach an export.
    pub fn begin(host: &Host, spec: &RemoteSpec, options: &VolumeOptions) -> Outcome<Self> {
        let at = resolve(spec)?;
        host.note_found((&spec.node, &spec.links), &at);
        RemoteLeaf::begin_at(host, spec, options, at)
    }

    /// The same of one that was begun here before, between turns: its target is where it was, since to look up a name takes as long as
    /// that takes, and a process that has given up its rights can find no way any more.
    pub fn begin_again(host: &Host, spec: &RemoteSpec, options: &VolumeOptions) -> Outcome<Self> {
        match host.found(&spec.node, &spec.links) {
            Some(at) => RemoteLeaf::begin_at(host, spec, options, at),
            None => RemoteLeaf::begin(host, spec, options),
        }
    }

    fn begin_at(
        host: &Host,
        spec: &RemoteSpec,
        options: &VolumeOptions,
        (target, specs): Whereabouts,
    ) -> Outcome<Self> {
        let links = host.links(&specs, options)?;
        let id = {
            let what = format!("{}/{}", spec.node, spec.export);
            identity::claim(&options.run_dir, &what, options.read_only)?
        };
        let mut config = InitiatorConfig::new(target, &spec.export);
        config.initiator = id.bytes;
        config.instance = entropy();
        config.lane = host.next_lane();
        config.name = format!("{} (pid {})", host_name(), std::process::id());
        config.label = spec.to_string();
        config.read_only = options.read_only;
        config.take_over = options.take_over;
        config.wait = options.patience.is_none();
        let security = &options.security;
        let key = match &spec.key {
            Some(given) => Some(as_starter(|| KeyFile::read(given))?),
            None => security.key.clone(),
        };
        config.insecure = security.insecure && key.is_none();
        config.key = key.as_ref().map(|key| security.initiator_key(key));
        config.losses_are_heard = options.losses_are_heard;
        config.retained_bytes_max = options.retained_bytes_max;
        config.batching = options.wire.batching();
        config.integrity = spec.integrity.unwrap_or(false);
        config.when_away = match options.when_away {
            crate::cli::WhenAwayArg::Wait => WhenAway::Wait,
            crate::cli::WhenAwayArg::FailAfter(after) => WhenAway::FailAfter(after),
        };
        config.frame_bytes_max =
            spec.mtu.and_then(|mtu| specs.iter().map(|link| frame_bytes(link, mtu)).min());
        let members = Members::begin(host, config, links.clone(), spec.members);
        let uri = spec.to_string();
        let (host, begun) = (host.clone(), Instant::now());
        let (spec, read_only) = (spec.clone(), options.read_only);
        let left_away = false;
        Ok(RemoteLeaf { host, members, links, spec, uri, begun, read_only, left_away, _id: id })
    }

    /// Two members on one shard gain nothing over one.
    fn warn_of_shared_shards(&self) {
        let mut shards = self.members.shards();
        let members = shards.len();
        shards.sort_unstable();
        shards.dedup();
        let (uri, shards) = (&self.uri, shards.len());
        if shards < members {
            tracing::warn!(
                "{uri}: its {members} members are on only {shards} of the target's shards, where {shards} would do \
                 as much: have that target spread the export over {members} (--shards, `spread`), or name fewer"
            );
        }
    }

    /// What the attachment did, for whoever asks with `-v`.
    fn log_figures(&self) {
        let shard = self.host.shard();
        for (member, report) in self.reports() {
            let name = member.map_or(self.uri.clone(), |at| format!("member {at} of {}", self.uri));
            let (stats, session, waits) = (report.stats, report.session, shard.wait_stats());
            tracing::debug!("{name}: {session:?} {waits:?}");
            for path in &report.paths {
                tracing::debug!("{name}: {path:?}");
            }
            for (reason, count) in stats.drops.iter() {
                tracing::debug!("{name}: dropped as {reason}: {count}");
            }
        }
        for &at in &self.links {
            let links = shard.links();
            tracing::debug!("{}: link {}: {:?}", self.uri, links.name(at), links.stats(at));
        }
    }

    /// Figures of each member, with its number if there are several.
    fn reports(&self) -> impl Iterator<Item = (Option<u32>, InitiatorReport)> + use<> {
        let reports = self.members.reports(self.host.shard().now());
        let several = reports.len() > 1;
        (0..).map(move |at| several.then_some(at)).zip(reports)
    }

    fn status_of(&self, member: Option<u32>, report: &InitiatorReport) -> LeafStatus {
        let shard = self.host.shard();
        let link = |at: usize| shard.links().name(self.links[at]).to_string();
        let status = health::leaf(&self.uri, report, shard.now(), link, "it is detached");
        LeafStatus { member, ..status }
    }
}

impl NetworkLeaf for RemoteLeaf {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn begun(&self) -> Instant {
        self.begun
    }

    fn look_open(&self, options: &VolumeOptions) -> Outcome<bool> {
        let spec = &self.spec;
        self.members.go_on();
        if self.members.is_open() {
            self.warn_of_shared_shards();
            return Ok(true);
        }
        match self.members.first_error() {
            Some((0, error)) => return Err(refused(spec, options, &error)),
            Some((member, error)) => {
                let failed = refused(spec, options, &error);
                return Err(failed.context(format_args!("member {member}")));
            }
            None => {}
        }
        if self.members.is_left_alone() {
            let seconds = JOIN_PATIENCE.as_secs();
            return Err(Failure::failed(format!(
                "cannot attach {spec}: the target has answered the first session of this attachment, and \
                 no other within {seconds} s. Is it of a version that knows no members? Leave members={} away",
                spec.members
            )));
        }
        Ok(false)
    }

    fn silence(&self, seconds: u64) -> Failure {
        match self.members.hint() {
            Some(hint) => Failure::failed(format!(
                "no target that has the key answered within {seconds} s. One there that did not show it says: {hint}"
            )),
            None => {
                let link = self.spec.links.first().map_or("LINK".to_owned(), LinkSpec::to_string);
                Failure::absent(format!(
                    "no target answered within {seconds} s. Is the target running, is the link the one that leads to \
                     it, and does a firewall let it through? `thinwire discover --link {link}` shows who answers"
                ))
            }
        }
    }

    fn is_granted(&self) -> bool {
        self.members.is_begun()
    }

    fn is_away(&self) -> bool {
        self.members.is_away()
    }

    fn has_lost(&self) -> bool {
        let reports = self.members.reports(Time::ZERO);
        reports.iter().any(|report| report.stats.replay_failures > 0)
    }

    fn is_unheard(&self) -> bool {
        let ended = self.left_away || self.members.is_unheard();
        ended && !self.read_only
    }

    fn granted(&self) -> (Identity, LeafGrant) {
        let shard = self.host.shard();
        let initiator = shard.get(self.members.first());
        // A reader is told whose generation it reads under: somebody else's.
        let grant = match self.read_only {
            true => LeafGrant::default(),
            false => initiator.report(shard.now()).grant(),
        };
        (initiator.identity(), grant)
    }

    fn tells_of_writers(&self) -> bool {
        true
    }

    fn is_held(&self) -> bool {
        self.members.reports(Time::ZERO).iter().any(|report| report.is_held)
    }

    fn ports(&self) -> Vec<Port> {
        self.members.ports()
    }

    fn status(&self) -> Vec<LeafStatus> {
        self.reports().map(|(member, report)| self.status_of(member, &report)).collect()
    }

    fn health(&self) -> VolumeHealth {
        let of = |(member, report): (Option<u32>, InitiatorReport)| {
            let status = self.status_of(member, &report);
            let LeafStatus { state, paths, timer, seconds_left, batch, integrity, detail, .. } =
                status;
            VolumeHealth {
                state,
                paths,
                leaves: Vec::new(),
                timer: timer.zip(seconds_left),
                unflushed: report.retained_entries > 0,
                may_lose: report.retained_entries > 0 || report.stats.replay_failures > 0,
                suite: report.suite.map(|suite| suite.to_string()),
                batch,
                integrity,
                detail,
            }
        };
        health::together(self.reports().map(of))
    }

    fn opened(&self) -> Vec<OpenedLeaf> {
        let all: Vec<_> = self.members.all().collect();
        let member = |at: usize| (all.len() > 1).then_some(at as u8);
        let leaf = |(at, &initiator)| {
            let (uri, links) = (self.uri.clone(), self.links.clone());
            OpenedLeaf { uri, member: member(at), initiator, links }
        };
        all.iter().enumerate().map(leaf).collect()
    }

    fn stages(&mut self, kind: u8) -> Outcome<Option<[StageSums; 2]>> {
        if self.members.all().count() > 1 {
            return Ok(None);
        }
        let end = Instant::now() + CLOCKS_PATIENCE;
        let mut asked = None;
        loop {
            let mut shard = self.host.shard_mut();
            let initiator = shard.get_mut(self.members.first());
            let answer = initiator.clocks().filter(|clocks| Some(clocks.transaction) == asked);
            if let Some(clocks) = answer {
                let theirs = StageSums {
                    clock: clocks.clock,
                    requests: clocks.requests,
                    arrived: clocks.arrived,
                    received: clocks.received,
                    taken: clocks.taken,
                    first: clocks.submitted,
                    second: clocks.stored,
                    sent: clocks.sent,
                    handed_over: clocks.handed_over,
                };
                return Ok(Some([shard.links().clocks().ask(kind), theirs]));
            }
            asked = asked.or_else(|| initiator.ask_clocks(kind));
            drop(shard);
            if Instant::now() >= end {
                return Err(Failure::failed(format!(
                    "{}: the target did not say within {} s what its stage clocks show: is it of \
                     an older version?",
                    self.uri,
                    CLOCKS_PATIENCE.as_secs()
                )));
            }
            self.host.turn(Wait::Until(end))?;
        }
    }

    fn begin_close(&mut self, force: bool) {
        self.log_figures();
        self.left_away = force && self.is_away();
        self.members.begin_close(force);
    }

    fn closed(&self) -> Option<Outcome> {
        let closed = self.members.closed()?;
        Some(closed.map_err(|kind| {
            Failure::failed(format!(
                "{}: writes that were not yet durable could not be made so: {}",
                self.uri,
                kind.describe()
            ))
        }))
    }

    fn take_off(&mut self) {
        let mut shard = self.host.shard_mut();
        self.members.all().for_each(|member| drop(shard.node().remove(member)));
    }
}

/// Asks all links for targets (of one name, or any) and gathers answers until `timeout`.
pub fn discover(
    links: &[LinkSpec],
    name: Option<&str>,
    timeout: Duration,
    security: &Security,
) -> Outcome<Vec<ListedTarget>> {
    // Any free port: the well-known one belongs to a target on this machine.
    let any_port = |spec: &LinkSpec| match spec {
        LinkSpec::Udp { ip, scope, .. } => LinkSpec::Udp { ip: *ip, scope: *scope, port: Some(0) },
        other => other.clone(),
    };
    let specs: Vec<_> = links.iter().map(any_port).collect();
    let pipeline = Pipeline::default();
    let links = open_initiator_links(&specs, None, None, &steering::outside_filters(), pipeline)?;
    let key = security.key.as_ref().map(|key| security.initiator_key(key));
    let answers = lookup::discover(links, name.unwrap_or(""), timeout, key, || false);
    let answers = answers.map_err(link_failed)?;
    let mut found: Vec<(u64, ListedTarget)> = Vec::new();
    for answer in answers {
        let address = match answer.addr {
            Addr::Mac(_) => answer.addr.to_string(),
            other => other.to_string(),
        };
        let known = found.iter().any(|(instance, f)| {
            *instance == answer.instance && f.name == answer.node && f.address == address
        });
        if !known {
            let (exports, is_proved) = (answer.exports, answer.is_proved);
            let listed = ListedTarget { name: answer.node, address, exports, is_proved };
            found.push((answer.instance, listed));
        }
    }
    let mut found: Vec<_> = found.into_iter().map(|(_, f)| f).collect();
    found.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::WireArgs;
    use crate::open::CommandFlags;

    const HELD: &str = "export a is held by node2 (pid 7); its lease has 30 s left";
    const TWIN: &str = "another process with the same identity holds export a and is alive";

    fn said(flag: Option<&'static str>, read_only: bool, status: Status, text: &str) -> String {
        let flags = CommandFlags { reading: flag, takes_over: true, waits: true };
        said_to(flags, read_only, status, text)
    }

    fn said_to(flags: CommandFlags, read_only: bool, status: Status, text: &str) -> String {
        let mut options = VolumeOptions::new(
            crate::keys::Security::without_keys(true),
            &WireArgs::default(),
            "/run".into(),
        );
        (options.flags, options.read_only) = (flags, read_only);
        let error = AttachError::Refused { status, text: text.into(), seconds_left: None };
        remedy(&options, Some("alice"), &error)
    }

    #[test]
    fn a_remedy_names_only_flags_that_the_command_has() {
        for flag in [Some("--read-only"), Some("--rw randread"), None] {
            let busy = said(flag, false, Status::Busy, HELD);
            let forbidden = said(flag, false, Status::ReadOnly, "export a is read-only");
            assert!(busy.contains("wait for that") && busy.contains("--take-over"), "{busy}");
            for known in ["--read-only", "--rw randread"] {
                let has = flag == Some(known);
                assert_eq!((busy.contains(known), forbidden.contains(known)), (has, has), "{busy}");
            }
        }
        let missing = said(None, false, Status::NotFound, "node n has no export a");
        assert!(missing.contains("discover --link LINK --key alice` lists"), "{missing}");
        let reader = said(Some("--read-only"), true, Status::Busy, "being tried again");
        assert_eq!(reader, ": try again");
        // A gateway.
        let flags =
            CommandFlags { reading: Some(",ro behind the export"), ..CommandFlags::default() };
        let busy = said_to(flags, false, Status::Busy, HELD);
        assert_eq!(busy, ": wait for that, or only read (,ro behind the export)");
        let twin = said_to(flags, false, Status::Busy, TWIN);
        assert_eq!(twin, ": detach it there, or give this one another identity with --run-dir");
        assert_eq!(said_to(CommandFlags::default(), false, Status::Busy, HELD), ": wait for that");
    }

    #[test]
    fn a_live_process_of_the_same_identity_is_not_waited_for() {
        for flag in [Some("--read-only"), Some("--rw randread"), None] {
            let twin = said(flag, false, Status::Busy, TWIN);
            for word in ["detach it there", "--run-dir", "--take-over"] {
                assert!(twin.contains(word), "{word}: {twin}");
            }
            assert!(!twin.contains("wait") && !twin.contains("read"), "{twin}");
        }
    }
}
