//! The limits of a target: what one key or one address may have, and who gives way (`docs/security.md`, "Limits").

use std::time::Duration;

use thinwire_buffer::{Pool, RxBatch, TxBatch};
use thinwire_initiator::{AttachError, Initiator, InitiatorConfig, InitiatorKey, TargetName};
use thinwire_link::Link;
use thinwire_link::sim::{SimLink, SimNet, StationConfig, WireConfig};
use thinwire_proto::Time;
use thinwire_seal::{Key, Preference};
use thinwire_target::{ExportConfig, Limit, Limits, Principal, Target, TargetConfig, TargetKeys};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Identity, Io, Op, Volume};
use thinwire_wire::{Header, Status};

fn key(number: u8) -> Key {
    Key::from_bytes([number; 32]).unwrap()
}

struct Host {
    link: SimLink,
    batch: TxBatch,
    initiator: Initiator,
    done: Vec<Completion>,
}

/// A target with keys and limits, and hosts that only read what all may read.
struct Net {
    net: SimNet,
    pool: Pool,
    link: SimLink,
    batch: TxBatch,
    target: Target,
    hosts: Vec<Host>,
    now: u64,
    /// Frames for this session of the target do not arrive.
    deaf_to: Option<u64>,
}

impl Net {
    fn new(limits: &[(&str, u64)]) -> Self {
        let net = SimNet::new(5, WireConfig::default());
        let link = net.station(StationConfig::default());
        let pool = Pool::new(64 << 20);
        let principals = [("alice", 1), ("bob", 2)];
        let principals = principals
            .map(|(name, number)| Principal { name: name.into(), keys: vec![key(number)] });
        let keys = TargetKeys::new(principals.to_vec(), [3; 32]);
        let keys = Some(TargetKeys { preference: Preference::Aes, ..keys });
        let mut set = Limits::default();
        for (name, value) in limits {
            set.set(name, *value).unwrap();
        }
        let config = TargetConfig { keys, limits: set, node: "node1".into(), ..Default::default() };
        let mut target = Target::new(config, vec![link.info()], 0, pool.clone(), 6);
        let identity = Identity { identity: [1; 16], incarnation: 1 };
        let volume = Box::new(MemoryStore::new(1 << 20, 512, identity, &pool));
        target.add_export(ExportConfig { name: "disk".into(), volume, read_only: true });
        Net {
            net,
            pool,
            link,
            batch: TxBatch::new(),
            target,
            hosts: Vec::new(),
            now: 0,
            deaf_to: None,
        }
    }

    fn config(&self, key_number: u8) -> InitiatorConfig {
        let at = self.hosts.len() as u8;
        let mut config = InitiatorConfig::new(TargetName::Node("node1".into()), "disk");
        config.initiator = [at + 1; 16];
        config.read_only = true;
        config.key = Some(InitiatorKey::new(key(key_number), [at + 1; 32]));
        config
    }

    /// A host with a station of its own.
    fn add(&mut self, key_number: u8) -> usize {
        self.add_with(self.config(key_number))
    }

    fn add_with(&mut self, config: InitiatorConfig) -> usize {
        let link = self.net.station(StationConfig::default());
        let at = self.hosts.len();
        let (now, info) = (Time(self.now), vec![link.info()]);
        let initiator = Initiator::new(now, config, info, self.pool.clone(), at as u64);
        self.hosts.push(Host { link, batch: TxBatch::new(), initiator, done: Vec::new() });
        at
    }

    fn step(&mut self) {
        let now = Time(self.now);
        let mut frames = RxBatch::new();
        self.link.recv(&self.pool, 1000, &mut frames).unwrap();
        for mut frame in frames.drain(..) {
            let header = Header::parse(&frame.bytes, frame.len()).expect("a good frame");
            if self.deaf_to != Some(header.session) || header.session == 0 {
                self.target.on_frame(now, 0, &mut frame);
            }
        }
        self.target.turn(now, std::slice::from_mut(&mut self.batch));
        self.link.send(&mut self.batch).unwrap();
        let mut next = self.target.deadline(now);
        for host in &mut self.hosts {
            host.link.recv(&self.pool, 1000, &mut frames).unwrap();
            for mut frame in frames.drain(..) {
                host.initiator.on_frame(now, 0, &mut frame);
            }
            host.initiator.turn(now, std::slice::from_mut(&mut host.batch));
            host.link.send(&mut host.batch).unwrap();
            host.initiator.poll(&mut host.done);
            next = next.min(host.initiator.deadline(now));
        }
        let next = next.0.min(self.net.next_delivery().unwrap_or(u64::MAX));
        self.now = next.max(self.now + 1000).min(self.now + 50_000_000);
        self.net.advance(self.now);
    }

    fn run(&mut self, time: Duration) {
        let limit = self.now + time.as_nanos() as u64;
        while self.now < limit {
            self.step();
        }
    }

    /// Adds so many hosts with that key: which are attached, and what the others are told.
    fn attach(&mut self, key_number: u8, count: usize) -> (Vec<usize>, Vec<String>) {
        let added: Vec<usize> = (0..count).map(|_| self.add(key_number)).collect();
        self.run(Duration::from_secs(2));
        let is_open = |&at: &usize| self.hosts[at].initiator.is_open();
        let open = added.iter().copied().filter(is_open).collect();
        let told = added.iter().filter_map(|&at| match self.hosts[at].initiator.first_error() {
            Some(AttachError::Refused { status, text, .. }) => {
                assert_eq!(*status, Status::TooMany, "{text}");
                Some(text.clone())
            }
            other => {
                assert_eq!(other, None);
                None
            }
        });
        (open, told.collect())
    }

    fn met(&self, limit: Limit) -> u64 {
        self.target.stats().limits.get(limit)
    }

    fn read(&mut self, host: usize) {
        self.hosts[host].initiator.submit(Io::new(1, Op::Read, 0, 512));
        for _ in 0..10_000 {
            if let Some(done) = self.hosts[host].done.pop() {
                return done.result.unwrap();
            }
            self.step();
        }
        panic!("a read takes for ever");
    }
}

/// What one key has too much of, another does not feel; the refusal names the limit, and is counted.
#[test]
fn a_key_has_so_many_sessions_and_others_have_theirs() {
    let limits = [
        (Limit::SessionsPerKey, 3),
        (Limit::AttachmentsPerKey, 3),
        (Limit::SlotsPerKey, 3 * 128),
        (Limit::BytesPerKey, 3 * (8 << 20)),
    ];
    for (limit, value) in limits {
        let mut net = Net::new(&[(limit.name(), value)]);
        let (open, told) = net.attach(1, 5);
        assert_eq!((open.len(), told.len()), (3, 2), "{}", limit.name());
        assert!(told.iter().all(|text| text.contains(limit.name())), "{told:?}");
        assert!(net.met(limit) >= 2, "{}", limit.name());
        assert_eq!(net.attach(2, 3).0.len(), 3, "{}: another key", limit.name());
        open.iter().for_each(|&host| net.read(host));
        let sessions: Vec<_> = open
            .iter()
            .map(|&at| net.hosts[at].initiator.report(Time(net.now)).stats.sessions)
            .collect();
        assert_eq!(sessions, [1; 3], "{}: nobody was disturbed", limit.name());
    }
}

/// What one session may take of a target with keys.
fn session_bytes() -> u64 {
    let keys = Some(TargetKeys::new(Vec::new(), [1; 32]));
    TargetConfig { keys, ..TargetConfig::default() }.session_bytes_max() as u64
}

/// Memory is for all.
#[test]
fn memory_is_a_limit_of_all() {
    let each = session_bytes();
    let mut net = Net::new(&[("memory", 2 * each + each / 2)]);
    let (open, told) = net.attach(1, 4);
    assert_eq!((open.len(), told.len()), (2, 2));
    assert!(told.iter().all(|text| text.contains("limit memory")), "{told:?}");
    open.iter().for_each(|&host| net.read(host));
}

/// A session that takes the place of one of the same run is not one more, while that is still there: who comes
/// back is let in, however full it is.
#[test]
fn who_comes_back_is_let_in_at_the_limit() {
    let memory = 2 * session_bytes();
    for limits in [
        &[("sessions-per-key", 2)][..],
        &[("sessions-per-address", 1)],
        &[("slots-per-key", 2 * 128)],
        &[("memory", memory)],
    ] {
        let mut net = Net::new(limits);
        assert_eq!(net.attach(1, 2).0.len(), 2, "{limits:?}");
        // The target hears nothing of the first one's session any more, and has not forgotten it.
        let id = net.hosts[0].initiator.report(Time(net.now)).target_session;
        net.deaf_to = Some(id);
        net.hosts[0].initiator.submit(Io::new(1, Op::Read, 0, 512));
        // Before the target forgets the old session by itself.
        let limit = net.now + 30_000_000_000;
        while net.now < limit && net.hosts[0].done.is_empty() {
            net.step();
        }
        let done = net.hosts[0].done.pop().unwrap_or_else(|| panic!("{limits:?}: it is shut out"));
        done.result.unwrap();
        let report = net.hosts[0].initiator.report(Time(net.now));
        assert_eq!((report.stats.sessions, report.target_session == id), (2, false), "{limits:?}");
        net.read(1);
    }
}

/// One that gives way is enough: the newcomer is not refused for the number that there was before.
#[test]
fn who_is_made_room_for_gets_it() {
    let mut net = Net::new(&[("sessions-per-key", 2), ("slots-per-key", 2 * 128)]);
    assert_eq!(net.attach(1, 1).0.len(), 1);
    // One that never attaches: it wants what is not there.
    let mut config = net.config(1);
    config.export = "no such disk".into();
    config.wait = true;
    net.add_with(config);
    net.run(Duration::from_secs(2));
    assert_eq!(net.target.session_count(), 2);
    let (open, told) = net.attach(1, 1);
    assert_eq!((open.len(), told.len()), (1, 0), "{told:?}");
    assert!(net.met(Limit::SessionsPerKey) > 0 && net.met(Limit::SlotsPerKey) == 0);
}

/// Lowered below what is in use they end nobody, and who loses its session comes back to what it has; who comes new
/// is refused, until they are raised again.
#[test]
fn lowered_limits_end_nobody_and_refuse_who_comes_new() {
    for (limit, value) in [
        (Limit::Sessions, 1),
        (Limit::SessionsPerKey, 1),
        (Limit::AttachmentsPerKey, 1),
        (Limit::SlotsPerKey, 128),
        (Limit::BytesPerKey, 8 << 20),
        (Limit::Memory, session_bytes().max(64 << 20)),
    ] {
        let name = limit.name();
        let mut net = Net::new(&[]);
        assert_eq!(net.attach(1, 3).0.len(), 3, "{name}");
        let mut lower = Limits::default();
        lower.set(name, value).unwrap();
        net.target.set_limits(lower);
        let (open, told) = net.attach(1, 2);
        assert_eq!((open.len(), told.len()), (0, 2), "{name}");
        assert!(told.iter().all(|text| text.contains(name)), "{told:?}");
        (0..3).for_each(|host| net.read(host));
        let session =
            |net: &Net, host: usize| net.hosts[host].initiator.report(Time(net.now)).target_session;
        let before = (0..3).map(|host| session(&net, host)).collect::<Vec<_>>();
        net.deaf_to = Some(before[0]);
        net.hosts[0].initiator.submit(Io::new(1, Op::Read, 0, 512));
        let limit = net.now + 30_000_000_000;
        while net.now < limit && net.hosts[0].done.is_empty() {
            net.step();
        }
        let done = net.hosts[0].done.pop().unwrap_or_else(|| panic!("{name}: it is shut out"));
        done.result.unwrap();
        assert_ne!(session(&net, 0), before[0], "{name}");
        assert_eq!([session(&net, 1), session(&net, 2)], before[1..], "{name}");
        net.target.set_limits(Limits::default());
        assert_eq!(net.attach(1, 1).0.len(), 1, "{name}");
        (0..3).for_each(|host| net.read(host));
    }
}

/// Sessions that nobody attached anything in give way, as many as a lower limit wants.
#[test]
fn as_many_idle_sessions_give_way_as_a_lower_limit_wants() {
    for limit in [Limit::Sessions, Limit::SessionsPerKey] {
        let mut net = Net::new(&[]);
        for _ in 0..4 {
            let mut config = net.config(1);
            (config.export, config.wait) = ("no such disk".into(), true);
            net.add_with(config);
        }
        net.run(Duration::from_secs(2));
        assert_eq!(net.target.session_count(), 4);
        let mut lower = Limits::default();
        lower.set(limit.name(), 2).unwrap();
        net.target.set_limits(lower);
        let new = net.add(2 - u8::from(limit == Limit::SessionsPerKey));
        for _ in 0..200 {
            net.step();
            let count = net.target.session_count();
            if net.hosts[new].initiator.is_open() {
                assert!(count <= 2, "{}: {count} sessions", limit.name());
                break;
            }
        }
        net.run(Duration::from_secs(2));
        assert!(net.hosts[new].initiator.is_open(), "{}", limit.name());
    }
}
