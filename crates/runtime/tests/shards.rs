//! Several shards of one target: each export is found, attached and used, whichever shard has it.

mod pair;
#[path = "common/served.rs"]
mod served;

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;

use pair::enter_cable;
use served::{PATIENCE, Running, free_address, link};
use thinwire_buffer::{Addr, LinkInfo, Pool, RxBatch, TxBatch};
use thinwire_initiator::{AttachError, InitiatorConfig, TargetName};
use thinwire_link::{Link, LinkStats, Outgoing, ShardSteering, Sources};
use thinwire_runtime::blocking::{Blocking, RemoteOpenError};
use thinwire_runtime::inquiry::Inquiry;
use thinwire_runtime::lookup::discover;
use thinwire_runtime::serve::{ExportEnd, OpenedExport, TargetShard};
use thinwire_runtime::shard::SharedShard;
use thinwire_runtime::shards::{Offered, Provider};
use thinwire_target::{ExportConfig, RecordReport};
use thinwire_volume::Identity;
use thinwire_volume::stores::MemoryStore;
use thinwire_wire::Status;

const EXPORTS: [&str; 3] = ["one", "two", "three"];

/// What goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Bad {
    /// This export cannot be opened.
    Export(usize),
    /// This export's descriptor cannot be watched: a file's.
    Descriptor(usize),
    /// The link of this shard fails when something arrives.
    Link(u8),
}

/// Opens links by text and volumes in memory.
struct Memory {
    links: Vec<String>,
    bad: Option<Bad>,
    file: File,
    /// What ended, with the number of sessions it had.
    ended: mpsc::Sender<(u8, u64)>,
    /// Exports that were let go of, and whether anybody could be served.
    let_go: mpsc::Sender<(usize, bool)>,
}

impl Provider for Memory {
    type Error = io::Error;

    fn failed(&self, error: io::Error) -> io::Error {
        error
    }

    fn links(&self, shard: &ShardSteering) -> io::Result<Vec<Box<dyn Link>>> {
        let open = |spec: &String| -> io::Result<Box<dyn Link>> {
            let link = link(spec, Some(shard.clone()))?;
            match self.bad == Some(Bad::Link(shard.index)) {
                true => Ok(Box::new(BrokenLink(link))),
                false => Ok(link),
            }
        };
        self.links.iter().map(open).collect()
    }

    fn exports(
        &self,
        numbers: &[usize],
        _: u8,
        shard: &SharedShard,
    ) -> io::Result<Vec<OpenedExport>> {
        let open = |&number: &usize| {
            if self.bad == Some(Bad::Export(number)) {
                return Err(io::Error::other("this disk is broken"));
            }
            let identity = Identity { identity: [number as u8; 16], incarnation: 1 };
            let pool = shard.borrow().pool().clone();
            let volume = Box::new(MemoryStore::new(1 << 20, 512, identity, &pool));
            let config = ExportConfig { name: EXPORTS[number].into(), volume, read_only: false };
            let is_bad = self.bad == Some(Bad::Descriptor(number));
            let fd = is_bad.then(|| self.file.as_raw_fd());
            let (let_go, shard) = (self.let_go.clone(), shard.clone());
            let end = move |how| {
                // The end of an attachment takes turns.
                let _ = shard.borrow_mut().turn(Some(Duration::ZERO));
                let _ = let_go.send((number, how == ExportEnd::Orderly));
            };
            Ok(OpenedExport { end: Some(Box::new(end)), ..OpenedExport::new(config, fd) })
        };
        numbers.iter().map(open).collect()
    }

    fn ended(&self, index: u8, shard: &TargetShard) {
        let _ = self.ended.send((index, shard.target().stats().sessions));
    }
}

/// Fails when something arrives.
struct BrokenLink(Box<dyn Link>);

impl Link for BrokenLink {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn info(&self) -> LinkInfo {
        self.0.info()
    }
    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        self.0.send(batch)
    }
    fn recv(&mut self, pool: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        match self.0.recv(pool, max, out)? {
            0 => Ok(0),
            _ => Err(io::Error::other("this link is broken")),
        }
    }
    fn sources(&self) -> Sources<'_> {
        self.0.sources()
    }
    fn due_in(&mut self) -> Option<Duration> {
        self.0.due_in()
    }
    fn stats(&self) -> LinkStats {
        self.0.stats()
    }
}

/// A target on threads of its own, in the namespace of the caller.
struct Served {
    running: Running,
    ended: mpsc::Receiver<(u8, u64)>,
    let_go: mpsc::Receiver<(usize, bool)>,
}

fn start(links: &[&str], shards: u8, bad: Option<Bad>) -> Served {
    let (tell_end, ended) = mpsc::channel();
    let (tell_let_go, let_go) = mpsc::channel();
    let links = links.iter().map(ToString::to_string).collect();
    let file = File::open("/proc/self/exe").unwrap();
    let opener = Memory { links, bad, file, ended: tell_end, let_go: tell_let_go };
    let exports = EXPORTS.map(|name| Offered { name: name.into(), spread: false, beside: None });
    Served { running: Running::start(shards, exports, opener), ended, let_go }
}

impl Served {
    /// Stops the target; how many sessions each shard had, by shard.
    fn end(self) -> Vec<u64> {
        self.running.end();
        assert!(self.let_go.iter().all(|(_, was_served)| was_served));
        let mut ended: Vec<_> = self.ended.iter().collect();
        ended.sort_unstable();
        assert!(ended.iter().enumerate().all(|(at, (index, _))| at == *index as usize));
        ended.into_iter().map(|(_, sessions)| sessions).collect()
    }
}

fn attach(links: &[&str], target: TargetName, export: &str) -> Result<Blocking, RemoteOpenError> {
    let links = links.iter().map(|spec| link(spec, None).unwrap()).collect();
    let mut config = InitiatorConfig::new(target, export);
    config.insecure = true;
    config.initiator = *b"initiator-000000";
    Blocking::open(config, links, Pool::new(8 << 20), PATIENCE)
}

fn fill(volume: &mut Blocking, seed: u8) -> Vec<u8> {
    let mut all = Vec::new();
    for block in 0..64u64 {
        let mut buf = volume.buffer(16384);
        buf.iter_mut().enumerate().for_each(|(i, b)| *b = seed ^ (i / 512) as u8 ^ block as u8);
        all.extend_from_slice(&buf);
        volume.write(block * 16384, buf).unwrap();
    }
    volume.flush().unwrap();
    all
}

/// The story of all tests: discover, attach every export, use them side by side, end in order.
fn story(target: &[&str], initiator: &[&str], name: &TargetName) {
    let served = start(target, 2, None);
    served.running.wait_ready();
    if let TargetName::Node(node) = name {
        let links = initiator.iter().map(|spec| link(spec, None).unwrap()).collect();
        let found = discover(links, node, Duration::from_millis(300), None, || false).unwrap();
        assert!(!found.is_empty(), "nobody answers");
        assert!(found.iter().all(|found| found.exports == EXPORTS));
        assert!(found.iter().all(|other| other.instance == found[0].instance));
    }
    let mut volumes = EXPORTS.map(|export| attach(initiator, name.clone(), export).unwrap());
    let mut contents = Vec::new();
    for (seed, volume) in volumes.iter_mut().enumerate() {
        contents.push(fill(volume, seed as u8 * 77));
    }
    for (volume, content) in volumes.iter_mut().zip(&contents) {
        let read = volume.read(0, 1 << 20).unwrap().to_vec();
        assert!(&read == content, "other content");
    }
    all_shards_tell_how_they_are(&served.running.inquiry);
    match attach(initiator, name.clone(), "none") {
        Err(RemoteOpenError::Attach(AttachError::Refused { status, .. })) => {
            assert_eq!(status, Status::NotFound);
        }
        other => panic!("{:?}", other.err()),
    }
    for volume in volumes {
        volume.close(PATIENCE).unwrap();
    }
    let inquiry = served.running.inquiry.clone();
    // The refused one and the first and third export; the second.
    assert_eq!(served.end(), [3, 1]);
    // Nobody is there any more, and nobody waits for them.
    assert!(inquiry.ask(Duration::from_millis(10)).iter().all(Option::is_none));
}

/// Each export has been written by an initiator that is attached.
fn all_shards_tell_how_they_are(inquiry: &Inquiry) {
    let shown = [vec!["one", "three"], vec!["two"]];
    for _ in 0..2 {
        let told = inquiry.ask(PATIENCE);
        assert_eq!(told.len(), shown.len());
        for (report, names) in told.into_iter().zip(&shown) {
            let report = report.expect("it serves");
            let exports: Vec<_> = report.exports.iter().map(|export| &export.name).collect();
            assert_eq!(&exports, names);
            assert_eq!((report.sessions.len(), report.session_count), (names.len(), names.len()));
            for (export, session) in report.exports.iter().zip(&report.sessions) {
                let writer = export.writer.as_ref().expect("it is written");
                assert!(writer.attached && writer.lease_end > Some(report.now), "{writer:?}");
                assert_eq!((export.generation, export.record), (1, RecordReport::Settled));
                assert_eq!(session.exports.join(","), export.name);
            }
            assert!(report.stats.requests >= 64 && report.links[0].stats.rx_frames > 64);
        }
    }
}

#[test]
fn exports_of_all_shards_are_used_over_udp() {
    let address = free_address();
    let name = TargetName::Address(Addr::Udp(address));
    story(&[&format!("udp:{address}")], &["udp:127.0.0.1"], &name);
}

#[test]
fn exports_of_all_shards_are_found_and_used_over_raw_links() {
    if enter_cable(9000) {
        story(&["packet:left"], &["packet:right"], &TargetName::Node("node".into()));
    }
}

#[test]
fn an_error_of_one_shard_ends_all() {
    for broken in 0..3 {
        let served = start(&[&format!("udp:{}", free_address())], 3, Some(Bad::Export(broken)));
        let (how, was_ready) = served.running.ended();
        assert_eq!(how.unwrap_err().to_string(), "this disk is broken");
        assert!(!was_ready, "it said that it was ready");
        assert_eq!(served.ended.iter().count(), 0);
    }
}

/// Targets that they stand on are told, and who was on record of files is so again.
#[test]
fn an_export_that_cannot_be_watched_lets_go_of_all_that_were_opened() {
    for shards in [1, 2] {
        let links = [&*format!("udp:{}", free_address())];
        let served = start(&links, shards, Some(Bad::Descriptor(0)));
        let error = served.running.ended().0.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        let mut let_go: Vec<_> = served.let_go.iter().collect();
        let_go.sort_unstable();
        assert_eq!(let_go, [(0, false), (1, false), (2, false)]);
    }
}

#[test]
fn a_link_that_cannot_be_opened_is_an_error() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let served = start(&[&format!("udp:{}", taken.local_addr().unwrap())], 2, None);
    let error = served.running.ended().0.unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
}

/// Any shard's end is everybody's.
#[test]
fn a_shard_that_fails_while_it_serves_ends_all() {
    for failing in 0..3 {
        let address = free_address();
        let served = start(&[&format!("udp:{address}")], 3, Some(Bad::Link(failing)));
        served.running.wait_ready();
        // No frame, but steered like one.
        let mut bytes = [0; 20];
        bytes[8] = failing;
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&bytes, address).unwrap();
        let error = served.running.ended().0.unwrap_err();
        assert_eq!(error.to_string(), "this link is broken");
        assert_eq!(served.ended.iter().count(), 3);
    }
}
