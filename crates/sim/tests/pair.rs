//! The smallest whole system: one initiator, one target, one wire.

use thinwire_buffer::{Pool, RxBatch, SegList, TxBatch};
use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_link::Link;
use thinwire_link::sim::{FaultRates, SimLink, SimNet, StationConfig, WireConfig};
use thinwire_proto::{Batching, Time};
use thinwire_target::{ExportConfig, Target, TargetConfig};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::testing::exercise;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume, VolumeEvent};
use thinwire_wire::{Frame, Message};

/// A target with one export, whose content is another for each seed.
fn target_of(config: TargetConfig, link: &SimLink, pool: &Pool, seed: u64) -> Target {
    let mut target = Target::new(config, vec![link.info()], 0, pool.clone(), seed);
    let identity = Identity { identity: [7; 16], incarnation: seed };
    target.add_export(ExportConfig {
        name: "disk".into(),
        volume: Box::new(MemoryStore::new(16 << 20, 512, identity, pool)),
        read_only: false,
    });
    target
}

struct Pair {
    net: SimNet,
    links: [SimLink; 2],
    batches: [TxBatch; 2],
    target: Target,
    initiator: Initiator,
    pool: Pool,
    now: u64,
    done: Vec<Completion>,
    /// How many requests each frame carried that carried any, and how many completions.
    requests: Vec<usize>,
    completions: Vec<usize>,
}

impl Pair {
    fn new(seed: u64, faults: FaultRates, [ours, theirs]: [Batching; 2]) -> Self {
        let net = SimNet::new(seed, WireConfig { faults, ..WireConfig::default() });
        let links = [net.station(StationConfig::default()), net.station(StationConfig::default())];
        let pool = Pool::new(64 << 20);
        let config = TargetConfig { insecure: true, batching: theirs, ..TargetConfig::default() };
        let target = target_of(config, &links[0], &pool, seed + 1);
        let name = TargetName::Node("thinwire".into());
        let defaults = InitiatorConfig::new(name, "disk");
        let config =
            InitiatorConfig { insecure: true, initiator: [1; 16], batching: ours, ..defaults };
        let initiator =
            Initiator::new(Time(0), config, vec![links[1].info()], pool.clone(), seed + 2);
        Pair {
            net,
            links,
            batches: [TxBatch::new(), TxBatch::new()],
            target,
            initiator,
            pool,
            now: 0,
            done: Vec::new(),
            requests: Vec::new(),
            completions: Vec::new(),
        }
    }

    fn step(&mut self) {
        let now = Time(self.now);
        let mut frames = RxBatch::new();
        self.links[0].recv(&self.pool, 1000, &mut frames).unwrap();
        for mut frame in frames.drain(..) {
            self.target.on_frame(now, 0, &mut frame);
        }
        self.links[1].recv(&self.pool, 1000, &mut frames).unwrap();
        for mut frame in frames.drain(..) {
            self.initiator.on_frame(now, 0, &mut frame);
        }
        self.target.turn(now, &mut self.batches[..1]);
        self.initiator.turn(now, &mut self.batches[1..]);
        self.count();
        for (link, batch) in self.links.iter_mut().zip(&mut self.batches) {
            link.send(batch).unwrap();
        }
        self.initiator.poll(&mut self.done);
        let next = self
            .target
            .deadline(now)
            .min(self.initiator.deadline(now))
            .0
            .min(self.net.next_delivery().unwrap_or(u64::MAX));
        assert!(next < u64::MAX, "nothing will ever happen");
        self.now = next.max(self.now + 1000);
        self.net.advance(self.now);
    }

    fn count(&mut self) {
        for frame in self.batches.iter().flat_map(TxBatch::frames) {
            let bytes = [frame.head.clone(), frame.data.to_vec()].concat();
            let frame = Frame::parse(&bytes).unwrap();
            let of = |wanted: fn(&Message<'_>) -> bool| frame.messages().filter(wanted).count();
            let requests = of(|message| matches!(message, Message::Request(_)));
            let completions = of(|message| matches!(message, Message::Complete(_)));
            self.requests.extend((requests > 0).then_some(requests));
            self.completions.extend((completions > 0).then_some(completions));
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Pair) -> bool) {
        let limit = self.now + 60_000_000_000;
        while !done(self) {
            assert!(
                self.now < limit,
                "{what} takes for ever: {:?}",
                self.initiator.report(Time(self.now))
            );
            self.step();
        }
    }

    fn run(&mut self, io: Io) -> Completion {
        self.initiator.submit(io);
        self.until("an I/O", |p| !p.done.is_empty());
        assert_eq!(self.done.len(), 1);
        self.done.pop().unwrap()
    }

    /// Another process takes the target's place, with other content under the same name.
    fn replace_target(&mut self) {
        let config = TargetConfig { insecure: true, ..TargetConfig::default() };
        self.target = target_of(config, &self.links[0], &self.pool, 99);
    }

    fn write(&mut self, offset: u64, byte: u8, len: usize) -> Io {
        let mut buf = self.pool.get(len);
        buf.fill(byte);
        let data = SegList::of(buf.freeze());
        Io { data, ..Io::new(u64::from(byte), Op::Write, offset, len as u64) }
    }
}

/// The attachment, for who only submits and polls: each poll is a step of the whole system.
impl Volume for Pair {
    fn geometry(&self) -> Geometry {
        self.initiator.geometry()
    }
    fn identity(&self) -> Identity {
        self.initiator.identity()
    }
    fn submit(&mut self, io: Io) {
        self.initiator.submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.step();
        done.append(&mut self.done);
    }
    fn outstanding(&self) -> usize {
        self.initiator.outstanding()
    }
    fn copied_bytes(&self) -> u64 {
        self.initiator.copied_bytes()
    }
    fn events(&self) -> u64 {
        self.initiator.events()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.initiator.poll_events(events);
    }
    fn refresh(&mut self) -> bool {
        self.initiator.refresh()
    }
}

#[test]
fn an_attachment_conforms() {
    let bad = FaultRates { loss: 0.05, dup: 0.1, reorder: 0.2, corrupt: 0.05 };
    for (seed, faults) in [(1, FaultRates::default()), (2, bad), (3, bad)] {
        let mut pair = Pair::new(seed, faults, [Batching::default(); 2]);
        pair.until("the attach", |p| p.initiator.is_open());
        let report = exercise(&mut pair, &mut || {}, seed, 1500);
        assert!(report.ios > 1500 && report.blocks_checked > 1000, "{report:?}");
        let stats = pair.net.stats();
        assert_eq!(stats.lost + stats.reordered > 0, seed > 1, "{stats:?}");
    }
}

/// Whoever ends it in order must hear that acknowledged writes are gone, whenever that came about.
#[test]
fn the_end_of_what_has_failed_tells_what_was_not_flushed() {
    for (flushed, closes_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut p = Pair::new(1, FaultRates::default(), [Batching::default(); 2]);
        p.until("the attach", |p| p.initiator.is_open());
        let io = p.write(0, 1, 4096);
        p.run(io).result.unwrap();
        if flushed {
            p.run(Io::new(0, Op::Flush, 0, 0)).result.unwrap();
        }
        p.replace_target();
        if closes_first {
            p.initiator.close();
        }
        p.until("the failure", |p| p.initiator.failure().is_some() || p.initiator.is_closed());
        p.initiator.close();
        p.until("the end", |p| p.initiator.is_closed());
        let lost = (!flushed).then_some(ErrorKind::ContentChanged);
        assert_eq!(p.initiator.close_error(), lost, "flushed {flushed}, closes {closes_first}");
    }
}

fn story(faults: FaultRates, seed: u64) -> Pair {
    let mut p = Pair::new(seed, faults, [Batching::default(); 2]);
    p.until("the attach", |p| p.initiator.is_open());
    assert_eq!(p.initiator.geometry().bytes, 16 << 20);
    for (nth, len) in [512, 4096, 65536, 1 << 20, 1536].into_iter().enumerate() {
        let byte = nth as u8 + 1;
        let io = p.write(nth as u64 * (2 << 20), byte, len);
        p.run(io).result.unwrap();
    }
    p.run(Io::new(0, Op::Flush, 0, 0)).result.unwrap();
    for (nth, len) in [512, 4096, 65536, 1 << 20, 1536].into_iter().enumerate() {
        let done = p.run(Io::new(9, Op::Read, nth as u64 * (2 << 20), len));
        done.result.unwrap();
        assert!(done.data.to_vec().iter().all(|&b| b == nth as u8 + 1));
        assert_eq!(done.data.bytes() as u64, len);
    }
    p
}

#[test]
fn attach_write_flush_read() {
    let p = story(FaultRates::default(), 1);
    let stats = p.target.stats();
    assert_eq!((stats.requests, stats.repeated), (11, 0));
    assert_eq!(stats.drops.iter().count(), 0, "{:?}", stats.drops.iter().collect::<Vec<_>>());
}

#[test]
fn the_same_with_two_per_cent_lost() {
    for seed in 0..20 {
        let p = story(FaultRates { loss: 0.02, ..FaultRates::default() }, seed);
        assert_eq!(p.target.stats().requests, 11);
    }
}

#[test]
fn the_same_with_everything_going_wrong() {
    for seed in 0..20 {
        let faults = FaultRates { loss: 0.1, dup: 0.1, reorder: 0.1, corrupt: 0.02 };
        let p = story(faults, seed);
        assert_eq!(p.target.stats().requests, 11);
    }
}

/// Section VI-A of the document: a batch is one message, and so is its answer.
#[test]
fn a_batch_of_writes_is_one_message_and_is_answered_whole() {
    for data in [true, false] {
        let batching = Batching { policy: "static:8".parse().unwrap(), data };
        let mut p = Pair::new(3, FaultRates::default(), [batching; 2]);
        p.until("the attach", |p| p.initiator.is_open());
        // The second frame of this one is half full: that must not tear the batch behind it.
        let large = p.write(1 << 20, 77, 12 << 10);
        p.initiator.submit(large);
        for nth in 0..16 {
            let io = p.write(nth * 4096, nth as u8, 4096);
            p.initiator.submit(io);
        }
        p.until("the writes", |p| p.done.len() == 17);
        assert_eq!(p.requests, [1, 8, 8]);
        assert!(p.completions.iter().all(|&count| count % 8 <= 1), "{:?}", p.completions);
        assert_eq!(p.completions.iter().sum::<usize>(), 17);
    }
}

/// One large write in a frame does not hold up the answers of the small reads beside it.
#[test]
fn only_small_requests_are_answered_together() {
    let theirs = Batching { policy: "static:8".parse().unwrap(), data: true };
    let mut p = Pair::new(4, FaultRates::default(), [Batching::default(), theirs]);
    p.until("the attach", |p| p.initiator.is_open());
    for token in [1, 2] {
        p.initiator.submit(Io::new(token, Op::Read, token * 4096, 4096));
    }
    let large = p.write(2 << 20, 3, 1 << 20);
    p.initiator.submit(large);
    p.until("the reads", |p| !p.done.is_empty());
    assert_eq!(p.requests, [3]);
    assert_eq!(p.done.iter().map(|done| done.token).collect::<Vec<_>>(), [1, 2]);
    p.until("the write", |p| p.done.len() == 3);
}
