//! A target with keys, the machines that use its disks, and what was sent between them.

use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxBatch, SegList, TxBatch};
use thinwire_initiator::{AttachError, Initiator, InitiatorConfig, InitiatorKey, TargetName};
use thinwire_link::Link;
use thinwire_link::sim::{FaultRates, SimLink, SimNet, StationConfig, WireConfig};
use thinwire_proto::{DropReason, Time, outside_frame};
use thinwire_seal::{Key, Preference};
use thinwire_target::{ExportConfig, Principal, Target, TargetConfig, TargetKeys};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume, VolumeEvent};
use thinwire_wire::{Header, Status};

pub const NODE: &str = "node1";
/// Nothing that is sent under a key shows these.
pub const SECRETS: [&[u8]; 3] = [b"secret-disk", b"a-name-of-a-host", b"what lies on the disk"];

pub fn key(number: u8) -> Key {
    Key::from_bytes([number; 32]).unwrap()
}

pub fn principal(name: &str, keys: &[u8]) -> Principal {
    Principal { name: name.into(), keys: keys.iter().map(|&number| key(number)).collect() }
}

pub fn keys_of(principals: Vec<Principal>) -> TargetKeys {
    let preference = Preference::Aes;
    TargetKeys { preference, ..TargetKeys::new(principals, [3; 32]) }
}

pub fn target_keys() -> TargetKeys {
    keys_of(vec![principal("alice", &[1, 11]), principal("bob", &[2]), principal("backup", &[3])])
}

/// One of the machines that use the disk.
pub struct Host {
    pub link: SimLink,
    pub batch: TxBatch,
    pub initiator: Initiator,
    pub done: Vec<Completion>,
    pub is_dead: bool,
}

pub struct Net {
    pub net: SimNet,
    pub pool: Pool,
    pub link: SimLink,
    pub batch: TxBatch,
    pub target: Target,
    pub hosts: Vec<Host>,
    pub now: u64,
    /// All frames, as they were sent: by the target if that is said.
    pub sent: Vec<(bool, Vec<u8>)>,
}

impl Net {
    pub fn new(keys: Option<TargetKeys>, faults: FaultRates) -> Self {
        Net::seeded(5, keys, faults)
    }

    pub fn seeded(seed: u64, keys: Option<TargetKeys>, faults: FaultRates) -> Self {
        let net = SimNet::new(seed, WireConfig { faults, ..WireConfig::default() });
        let link = net.station(StationConfig::default());
        let pool = Pool::new(64 << 20);
        let insecure = keys.is_none();
        let config = TargetConfig { insecure, keys, node: NODE.into(), ..TargetConfig::default() };
        let mut target = Target::new(config, vec![link.info()], 0, pool.clone(), 6);
        for (name, number) in [("secret-disk", 1u8), ("shared", 2)] {
            let identity = Identity { identity: [number; 16], incarnation: 1 };
            let volume = Box::new(MemoryStore::new(16 << 20, 512, identity, &pool));
            target.add_export(ExportConfig { name: name.into(), volume, read_only: false });
        }
        Net {
            net,
            pool,
            link,
            batch: TxBatch::new(),
            target,
            hosts: Vec::new(),
            now: 0,
            sent: Vec::new(),
        }
    }

    pub fn config(&self, key_number: Option<u8>, export: &str) -> InitiatorConfig {
        let name = TargetName::Node(NODE.into());
        let mut config = InitiatorConfig::new(name, export);
        config.initiator = [self.hosts.len() as u8 + 1; 16];
        config.name = "a-name-of-a-host".into();
        config.key = key_number.map(|number| InitiatorKey::new(key(number), [number; 32]));
        config.insecure = config.key.is_none();
        config
    }

    pub fn add(&mut self, config: InitiatorConfig) -> usize {
        let link = self.net.station(StationConfig::default());
        let seed = 100 + self.hosts.len() as u64;
        let (now, info) = (Time(self.now), vec![link.info()]);
        let initiator = Initiator::new(now, config, info, self.pool.clone(), seed);
        self.hosts.push(Host {
            link,
            batch: TxBatch::new(),
            initiator,
            done: Vec::new(),
            is_dead: false,
        });
        self.hosts.len() - 1
    }

    /// One that is attached.
    pub fn attached(&mut self, key_number: u8, export: &str) -> usize {
        let host = self.add(self.config(Some(key_number), export));
        self.until("attaching", |net| net.hosts[host].initiator.is_open());
        host
    }

    pub fn keep(sent: &mut Vec<(bool, Vec<u8>)>, by_target: bool, batch: &TxBatch) {
        for frame in batch.frames() {
            sent.push((by_target, [frame.head.clone(), frame.data.to_vec()].concat()));
        }
    }

    pub fn step(&mut self) {
        let now = Time(self.now);
        let mut frames = RxBatch::new();
        self.link.recv(&self.pool, 1000, &mut frames).unwrap();
        for mut frame in frames.drain(..) {
            self.target.on_frame(now, 0, &mut frame);
        }
        self.target.turn(now, std::slice::from_mut(&mut self.batch));
        let mut next = self.target.deadline(now);
        Net::keep(&mut self.sent, true, &self.batch);
        self.link.send(&mut self.batch).unwrap();
        for host in self.hosts.iter_mut().filter(|host| !host.is_dead) {
            host.link.recv(&self.pool, 1000, &mut frames).unwrap();
            for mut frame in frames.drain(..) {
                host.initiator.on_frame(now, 0, &mut frame);
            }
            host.initiator.turn(now, std::slice::from_mut(&mut host.batch));
            Net::keep(&mut self.sent, false, &host.batch);
            host.link.send(&mut host.batch).unwrap();
            host.initiator.poll(&mut host.done);
            next = next.min(host.initiator.deadline(now));
        }
        let next = next.0.min(self.net.next_delivery().unwrap_or(u64::MAX));
        self.now = next.max(self.now + 1000).min(self.now + 50_000_000);
        self.net.advance(self.now);
    }

    pub fn run(&mut self, time: Duration) {
        let limit = self.now + time.as_nanos() as u64;
        while self.now < limit {
            self.step();
        }
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Net) -> bool) {
        let limit = self.now + 60_000_000_000;
        while !done(self) {
            assert!(self.now < limit, "{what} takes for ever");
            self.step();
        }
    }

    pub fn io(&mut self, host: usize, io: Io) -> Completion {
        let token = io.token;
        self.hosts[host].initiator.submit(io);
        self.until("an I/O", |net| !net.hosts[host].done.is_empty());
        let done = self.hosts[host].done.remove(0);
        assert_eq!(done.token, token);
        done
    }

    pub fn write(&mut self, host: usize, address: u64, bytes: &[u8]) -> Result<(), ErrorKind> {
        let data = SegList::of(self.pool.copy_of(bytes).freeze());
        let io = Io { data, ..Io::new(1, Op::Write, address, bytes.len() as u64) };
        self.io(host, io).result.map_err(|error| error.kind)
    }

    pub fn read(&mut self, host: usize, address: u64, len: u64) -> Vec<u8> {
        let done = self.io(host, Io::new(2, Op::Read, address, len));
        done.result.unwrap();
        done.data.to_vec()
    }

    pub fn drops(&self, reason: DropReason) -> u64 {
        self.target.stats().drops.get(reason)
    }

    pub fn refusal(&self, host: usize) -> Option<(Status, String)> {
        match self.hosts[host].initiator.first_error() {
            Some(AttachError::Refused { status, text, .. }) => Some((*status, text.clone())),
            other => {
                assert_eq!(other, None);
                None
            }
        }
    }

    /// Sends a frame as if the target had sent it, in its name and from its place.
    pub fn forge(&mut self, to: Addr, header: Header, body: impl FnOnce(&mut Vec<u8>)) {
        let mut batch = TxBatch::new();
        outside_frame(&mut batch, to, header, 0, body);
        self.link.send(&mut batch).unwrap();
    }
}

/// The first host's disk, for who only submits and polls.
impl Volume for Net {
    fn geometry(&self) -> Geometry {
        self.hosts[0].initiator.geometry()
    }
    fn identity(&self) -> Identity {
        self.hosts[0].initiator.identity()
    }
    fn submit(&mut self, io: Io) {
        self.hosts[0].initiator.submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.step();
        done.append(&mut self.hosts[0].done);
    }
    fn outstanding(&self) -> usize {
        self.hosts[0].initiator.outstanding()
    }
    fn copied_bytes(&self) -> u64 {
        self.hosts[0].initiator.copied_bytes()
    }
    fn events(&self) -> u64 {
        self.hosts[0].initiator.events()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.hosts[0].initiator.poll_events(events);
    }
    fn refresh(&mut self) -> bool {
        self.hosts[0].initiator.refresh()
    }
}
