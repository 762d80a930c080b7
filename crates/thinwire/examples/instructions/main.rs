//! Work for an instruction counter: 4 KiB I/Os through the nodes of both sides, over a wire that is a
//! queue in memory and under a clock that only the turns move, into a memory store. Nothing in it
//! depends on the machine's speed, so a counter shows what an I/O costs, to the instruction:
//! `scripts/instructions` runs it under callgrind and compares.
//!
//!     instructions read|write COUNT DEPTH [IDLE [SUITE [integrity]]]
//!     instructions read|write COUNT DEPTH through MODULE
//!
//! COUNT I/Os, DEPTH of them outstanding: with 1 each pays for a whole turn of both sides alone. With IDLE
//! parts on each node besides, on the same link, which have nothing to do but timers far away. With the number of
//! a SUITE under keys, sealed with that; 0 for none. With `integrity` data is checked end to end. Through a MODULE
//! nothing goes over the wire: it stands over memory, as does `memory` (`modules.rs`).

mod modules;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{
    Addr, FrameSizes, LinkInfo, PAGE_BYTES, Pool, Room, RxBatch, RxFrame, SegList, Segment, TxBatch,
};
use thinwire_initiator::{Initiator, InitiatorConfig, InitiatorKey, TargetName};
use thinwire_link::{HEAD_BYTES, Link, LinkStats, Outgoing, Sources};
use thinwire_node::{Lane, Node, PartId};
use thinwire_proto::Time;
use thinwire_runtime::links::Links;
use thinwire_seal::{Key, Suite, Suites};
use thinwire_target::{
    ExportConfig, Principal, SESSION_NUMBER, Target, TargetConfig, TargetKeys, session_lane,
};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Closing, Identity, Io, Op, Part};

const BLOCK_BYTES: u64 = 4096;
const VOLUME_BYTES: u64 = 16 << 20;
/// Outstanding while everything is warmed up.
const DEPTH: u64 = 32;
/// A turn of both sides takes as long as on a good day.
const TURN: Duration = Duration::from_micros(20);

/// The upper half of the initiator's session ids.
const LANE: u32 = 0x8000_0001;

type Queue = Rc<RefCell<VecDeque<Segment>>>;

/// One end of the wire. A frame is copied once, as the kernel would.
struct Wire {
    local: u32,
    out: Queue,
    into: Queue,
    pool: Pool,
}

impl Link for Wire {
    fn name(&self) -> &str {
        "wire"
    }

    fn info(&self) -> LinkInfo {
        let frame_bytes = FrameSizes { base: 1500, max: 9000 };
        let room = Room { frames: 512, bytes: 512 * 9000 };
        LinkInfo { addr: Addr::Sim(self.local), frame_bytes, room }
    }

    fn send(&mut self, batch: &mut TxBatch) -> io::Result<Outgoing> {
        let start = PAGE_BYTES - HEAD_BYTES;
        for frame in batch.frames() {
            let mut buf = self.pool.get(start + frame.bytes());
            let mut at = start;
            let pieces = std::iter::once(&frame.head[..]).chain(frame.data.iter().map(|s| &s[..]));
            for piece in pieces {
                buf[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            self.out.borrow_mut().push_back(buf.freeze().slice(start, at - start));
        }
        batch.clear();
        Ok(Outgoing::default())
    }

    fn recv(&mut self, _: &Pool, max: usize, out: &mut RxBatch) -> io::Result<usize> {
        let mut into = self.into.borrow_mut();
        let count = into.len().min(max);
        for bytes in into.drain(..count) {
            let from = Addr::Sim(1 - self.local);
            out.push_back(RxFrame {
                from,
                bytes,
                rest: SegList::new(),
                waited: Duration::ZERO,
                queued: Duration::ZERO,
            });
        }
        Ok(count)
    }

    fn sources(&self) -> Sources<'_> {
        [None; 3]
    }

    fn due_in(&mut self) -> Option<Duration> {
        None
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }
}

/// One side: a node and its link.
struct Side {
    node: Node,
    links: Links,
}

impl Side {
    fn new(local: u32, out: &Queue, into: &Queue, pool: &Pool) -> Self {
        let (out, into, pool) = (out.clone(), into.clone(), pool.clone());
        let link: Box<dyn Link> = Box::new(Wire { local, out, into, pool });
        let links = Links::new(vec![link], Pool::new(0));
        Side { node: Node::new(links.params()), links }
    }

    fn send(&mut self, now: Time) {
        self.node.settle(now);
        self.node.close(now);
        self.links.flush(self.node.out()).expect("memory takes everything");
    }

    fn receive(&mut self, now: Time) {
        let Side { node, links } = self;
        let took = links.receive(0, |link, frame| node.on_frame(now, link, frame));
        took.expect("memory gives everything");
        node.settle(now);
    }
}

/// A part that waits.
struct Idle(u64);

impl Part for Idle {
    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        turn.now + Duration::from_secs(3600 + self.0)
    }
}

struct Pair {
    now: Time,
    there: Side,
    here: Side,
    initiator: PartId<Initiator>,
}

impl Pair {
    fn new(pool: &Pool, idle: u64, suite: Option<Suite>, integrity: bool) -> Self {
        let (out, back) = (Queue::default(), Queue::default());
        let mut here = Side::new(0, &out, &back, pool);
        let mut there = Side::new(1, &back, &out, pool);
        for number in 0..idle {
            // On the same link, and with lanes on both sides of those that are used.
            let session = if number % 2 == 0 { 1 } else { 0xf000_0000 } + number as u32;
            let lane = Lane { sessions: session..=session, outside: true };
            here.node.add(Idle(number), vec![0], &lane);
            there.node.add(Idle(number), vec![0], &lane);
        }
        let key = Key::from_bytes([7; 32]).expect("not all zeroes");
        let suites = suite.map(|suite| Suites(1 << (suite.number() - 1)));
        let keys = suites.map(|suites| {
            let principal = Principal { name: "alice".into(), keys: vec![key.clone()] };
            TargetKeys { suites, ..TargetKeys::new(vec![principal], [1; 32]) }
        });
        let insecure = keys.is_none();
        let config = TargetConfig { node: "node".into(), insecure, keys, ..Default::default() };
        let mut target = Target::new(config, there.links.params(), 0, pool.clone(), 1);
        let identity = Identity { identity: *b"thinwire-memory!", incarnation: 1 };
        let volume = Box::new(MemoryStore::new(VOLUME_BYTES, 512, identity, pool));
        target.add_export(ExportConfig { name: "disk".into(), volume, read_only: false });
        let own = session_lane(0, "node");
        let lane = Lane { sessions: own..=own | SESSION_NUMBER, outside: true };
        there.node.add(target, vec![0], &lane);
        let mut config = InitiatorConfig::new(TargetName::Address(Addr::Sim(1)), "disk");
        config.initiator = [1; 16];
        config.instance = 1;
        config.insecure = insecure;
        config.integrity = integrity;
        config.key =
            suites.map(|suites| InitiatorKey { suites, ..InitiatorKey::new(key, [2; 32]) });
        config.lane = LANE;
        let now = Time(1_000_000_000);
        let initiator = Initiator::new(now, config, here.links.params(), pool.clone(), 2);
        let initiator =
            here.node.add(initiator, vec![0], &Lane { sessions: LANE..=LANE, outside: true });
        Pair { now, there, here, initiator }
    }

    fn turn(&mut self) {
        let at = self.now;
        self.here.send(at);
        self.there.receive(at);
        self.there.send(at);
        self.here.receive(at);
        self.now = at + TURN;
    }

    fn run(&mut self, op: Op, count: u64, depth: u64, content: &Segment) {
        let (mut submitted, mut completed) = (0, 0);
        let mut done = Vec::with_capacity(2 * depth as usize);
        let mut state = 1u64;
        while completed < count {
            let volume = self.here.node.volume(self.initiator);
            while submitted < count && submitted - completed < depth {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let offset = (state >> 33) % (VOLUME_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
                let mut io = Io::new(submitted, op, offset, BLOCK_BYTES);
                if op == Op::Write {
                    io.data = SegList::of(content.clone());
                }
                volume.submit(io);
                submitted += 1;
            }
            self.turn();
            self.here.node.volume(self.initiator).poll(&mut done);
            for completion in done.drain(..) {
                completion.result.expect("nothing goes wrong on this wire");
                completed += 1;
            }
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let op = match args.next().as_deref() {
        Some("read") => Some(Op::Read),
        Some("write") => Some(Op::Write),
        _ => None,
    };
    let mut number = || args.next().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    let (Some(op), Some(count), Some(depth)) = (op, number(), number()) else {
        eprintln!(
            "usage: instructions read|write COUNT DEPTH [IDLE [SUITE [integrity]] | through MODULE]"
        );
        std::process::exit(2);
    };
    let pool = Pool::new(64 << 20);
    let content = pool.get_zeroed(BLOCK_BYTES as usize).freeze();
    let idle = args.next();
    if idle.as_deref() == Some("through") {
        let name = args.next().expect("the name of a module");
        let mut driven = modules::Driven::new(&name, &pool);
        driven.warm(&content);
        driven.run(op, count, depth, &content);
        return;
    }
    let idle = idle.map_or(0, |n| n.parse().expect("a number of parts"));
    let suite = args.next().filter(|n| n != "0").map(|n| {
        let number = n.parse().ok().and_then(Suite::from_number);
        number.expect("the number of a suite")
    });
    let integrity = args.next().is_some_and(|word| word == "integrity");
    let mut pair = Pair::new(&pool, idle, suite, integrity);
    while !pair.here.node.get(pair.initiator).expect("it is there").is_open() {
        pair.turn();
    }
    // Frame sizes are probed meanwhile, and everything exists afterwards.
    pair.run(Op::Write, 2 * VOLUME_BYTES / BLOCK_BYTES, DEPTH, &content);
    pair.run(op, count, depth, &content);
}
