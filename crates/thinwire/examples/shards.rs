//! What several shards are to one attachment, in one process: a target of one or two shards with its export in
//! memory, initiators on wires that are queues in memory, 4 KiB random reads.
//!
//!     shards count PLAN COUNT DEPTH
//!     shards run SECONDS DEPTH [ROUNDS]
//!
//! `count` has all of it on one thread under a clock that only the turns move, for an instruction counter: twice a
//! COUNT less once that is what an I/O costs. PLAN is `plain` (one shard, `memory:SIZE`), `shared` (one shard, the
//! memory of `spread`), `spread` (two shards, one session) or `members` (two shards, a session on each). A shard has
//! a turn when something has come for it, as if it slept else.
//!
//! `run` has each shard and each of two clients on a thread of its own, which sleeps when there is nothing to do, and
//! prints I/Os a second, and the processor time of each side for an I/O, apart: clients and shards share the
//! processors of this machine, so what shards could do with one each is I/Os over the time of the busiest. Plans
//! take turns; each gets its best round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use thinwire_buffer::{Addr, Pool, RxFrame, SegList};
use thinwire_initiator::{Initiator, InitiatorConfig, TargetName};
use thinwire_modules::Dealt;
use thinwire_node::{Lane, Node, PartId};
use thinwire_proto::Time;
use thinwire_runtime::links::Links;
use thinwire_runtime::spread_memory::SpreadMemory;
use thinwire_target::{
    ExportConfig, SESSION_NUMBER, SpreadConfig, Target, TargetConfig, session_lane,
};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, Effect, Identity, Io, Letter, Op, PartEvent, Volume};

#[path = "shards/wire.rs"]
mod wire;

use wire::{Come, Inbox, Wire};

const BLOCK_BYTES: u64 = 4096;
const VOLUME_BYTES: u64 = 16 << 20;
/// A turn of both sides takes as long as on a good day.
const TURN: Duration = Duration::from_micros(20);
const NAP: Duration = Duration::from_millis(1);
/// Where the receiver's session id is in a frame; its first byte is a target's shard.
const SESSION_OFFSET: usize = 8;
/// The upper half of the first initiator's session ids.
const LANE: u32 = 0x8000_0001;
const CLIENTS: u32 = 2;

/// A node and its link.
struct Side {
    node: Node,
    links: Links,
    inbox: Arc<Inbox>,
    pool: Pool,
}

impl Side {
    fn new(local: u32, out: Vec<Vec<Arc<Inbox>>>, into: &Arc<Inbox>) -> Self {
        let (pool, inbox) = (Pool::new(64 << 20), into.clone());
        let wire = Wire { local, out, into: inbox.clone(), pool: pool.clone(), taken: Vec::new() };
        let links = Links::new(vec![Box::new(wire)], Pool::new(0));
        Side { node: Node::new(links.params()), links, inbox, pool }
    }

    fn send(&mut self, now: Time) {
        self.node.settle(now);
        self.node.close(now);
        self.links.flush(self.node.out()).expect("memory takes everything");
    }

    fn receive(&mut self, now: Time) {
        let Side { node, links, .. } = self;
        let took = links.receive(0, |link, frame| node.on_frame(now, link, frame));
        took.expect("memory gives everything");
        node.settle(now);
    }
}

/// One shard of the target.
struct Shard {
    side: Side,
    target: PartId<Target>,
    others: Vec<Arc<Inbox>>,
}

impl Shard {
    fn turn(&mut self, now: Time) {
        let (letters, parcels) = {
            let mut come = self.side.inbox.come.lock().expect("nobody panics");
            (std::mem::take(&mut come.letters), std::mem::take(&mut come.parcels))
        };
        for Letter { link, from, frame, .. } in letters {
            let bytes = self.side.pool.copy_of(&frame).freeze();
            let rest = SegList::new();
            let [waited, queued] = [Duration::ZERO; 2];
            let mut frame = RxFrame { from, bytes, rest, waited, queued };
            let letter = PartEvent::Letter { link, frame: &mut frame };
            self.side.node.post(now, self.target, letter);
        }
        for parcel in parcels {
            self.side.node.post(now, self.target, PartEvent::Parcel(parcel.content));
        }
        self.side.receive(now);
        self.side.send(now);
        while let Some((_, effect)) = self.side.node.take_effect() {
            let post = |shard: u8, add: &mut dyn FnMut(&mut Come)| {
                self.others[usize::from(shard)].add(add);
            };
            match effect {
                Effect::Letter(letter) => {
                    post(letter.shard, &mut |come| come.letters.push(letter.clone()));
                }
                Effect::Parcel(parcel) => {
                    let mut parcel = Some(parcel);
                    let shard = parcel.as_ref().expect("just put there").shard;
                    post(shard, &mut |come| come.parcels.extend(parcel.take()));
                }
                Effect::Note(_, text) => eprintln!("{text}"),
            }
        }
    }

    fn is_due(&self, now: Time) -> bool {
        !self.side.inbox.is_empty() || self.side.node.deadline() <= now
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    Plain,
    Shared,
    Spread,
    Members,
}

impl Plan {
    const ALL: [Plan; 4] = [Plan::Plain, Plan::Shared, Plan::Spread, Plan::Members];

    fn name(self) -> &'static str {
        match self {
            Plan::Plain => "plain",
            Plan::Shared => "shared",
            Plan::Spread => "spread",
            Plan::Members => "members",
        }
    }

    fn shards(self) -> u8 {
        if matches!(self, Plan::Plain | Plan::Shared) { 1 } else { 2 }
    }

    fn members(self) -> u8 {
        if self == Plan::Members { 2 } else { 1 }
    }
}

/// The wires between a target of some shards and some clients. What a thread needs of them is made on it.
struct Wires {
    plan: Plan,
    memory: SpreadMemory,
    shards: Vec<Arc<Inbox>>,
    clients: Vec<Arc<Inbox>>,
}

/// The station that the target is; clients follow.
const TARGET: u32 = 0;

impl Wires {
    fn new(plan: Plan, clients: u32) -> Self {
        let memory = SpreadMemory::new(VOLUME_BYTES, 512, identity()).expect("room");
        let inboxes = |count| (0..count).map(|_| Arc::default()).collect();
        let (shards, clients) = (inboxes(u32::from(plan.shards())), inboxes(clients));
        Wires { plan, memory, shards, clients }
    }

    fn shard(&self, index: u8) -> Shard {
        let out =
            std::iter::once(Vec::new()).chain(self.clients.iter().map(|one| vec![one.clone()]));
        let mut side = Side::new(TARGET, out.collect(), &self.shards[usize::from(index)]);
        let config = TargetConfig { node: "node".into(), insecure: true, ..Default::default() };
        let pool = side.pool.clone();
        let seed = 1 + u64::from(index);
        let mut target = Target::new(config, side.links.params(), index, pool.clone(), seed);
        target.set_instance(1);
        let volume: Box<dyn Volume> = match (self.plan, index) {
            (Plan::Plain, _) => Box::new(MemoryStore::new(VOLUME_BYTES, 512, identity(), &pool)),
            (_, 0) => Box::new(self.memory.owner(&pool).expect("a descriptor")),
            _ => Box::new(self.memory.branch(&pool).expect("a descriptor")),
        };
        let export = ExportConfig { name: "disk".into(), volume, read_only: true };
        let shards = self.plan.shards();
        match shards {
            1 => {
                target.add_export(export);
            }
            _ => {
                let spread =
                    SpreadConfig { number: 0, shard: index, shards, owner: 0, verifier: 1 };
                target.add_spread_export(export, spread);
            }
        }
        target.set_all_exports(&[("disk".to_owned(), 0)]);
        let own = session_lane(index, "node");
        let lane = Lane { sessions: own..=own | SESSION_NUMBER, outside: index == 0 };
        let target = side.node.add(target, vec![0], &lane);
        Shard { side, target, others: self.shards.clone() }
    }

    fn client(&self, number: u32, now: Time) -> Client {
        let out = vec![self.shards.clone()];
        let mut side = Side::new(1 + number, out, &self.clients[number as usize]);
        let members = (0..self.plan.members()).map(|member| {
            let mut config = InitiatorConfig::new(TargetName::Address(Addr::Sim(TARGET)), "disk");
            config.initiator = self.identity_of(number);
            config.instance = 1;
            config.insecure = true;
            config.read_only = true;
            config.member = member;
            config.lane = LANE + u32::from(member);
            let (lane, seed) = (config.lane, 2 + u64::from(member));
            let params = side.links.params();
            let initiator = Initiator::new(now, config, params, side.pool.clone(), seed);
            let lane = Lane { sessions: lane..=lane, outside: true };
            side.node.add(initiator, vec![0], &lane)
        });
        let members = members.collect();
        let (done, state) = (Vec::new(), 1 + u64::from(number));
        Client { side, members, volume: None, outstanding: 0, completed: 0, done, state }
    }

    /// One whose first member is on another shard for each client.
    fn identity_of(&self, client: u32) -> [u8; 16] {
        let shards = self.plan.shards();
        let is_there = |id: &[u8; 16]| {
            u32::from(SpreadConfig::dealt(id, 0, shards)) == client % u32::from(shards)
        };
        (1..=255).map(|n| [n; 16]).find(is_there).expect("one of them")
    }
}

fn identity() -> Identity {
    Identity { identity: *b"thinwire-memory!", incarnation: 1 }
}

/// An attachment and who uses it.
struct Client {
    side: Side,
    members: Vec<PartId<Initiator>>,
    volume: Option<Box<dyn Volume>>,
    outstanding: u64,
    completed: u64,
    done: Vec<Completion>,
    state: u64,
}

impl Client {
    fn is_open(&mut self) -> bool {
        let open = |member| self.side.node.get(member).is_some_and(Initiator::is_open);
        if self.volume.is_none() && self.members.iter().copied().all(open) {
            let ports = self.members.iter().map(|&member| self.side.node.port(member));
            let mut ports: Vec<_> = ports.map(|port| Box::new(port) as Box<dyn Volume>).collect();
            self.volume = Some(match ports.len() {
                1 => ports.remove(0),
                _ => Box::new(Dealt::new(ports).expect("members of one")),
            });
        }
        self.volume.is_some()
    }

    fn submit(&mut self, depth: u64, left: u64) {
        let volume = self.volume.as_mut().expect("it is open");
        let count = (depth - self.outstanding).min(left);
        for _ in 0..count {
            self.state =
                self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let offset = (self.state >> 33) % (VOLUME_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
            volume.submit(Io::new(self.state >> 33, Op::Read, offset, BLOCK_BYTES));
            self.outstanding += 1;
        }
    }

    fn take(&mut self) {
        let Some(volume) = &mut self.volume else { return };
        volume.poll(&mut self.done);
        for completion in self.done.drain(..) {
            completion.result.expect("nothing goes wrong on this wire");
            (self.outstanding, self.completed) = (self.outstanding - 1, self.completed + 1);
        }
    }
}

/// Fills the content, so that reads are of pages that are there.
fn fill(wires: &Wires, shard: &mut Shard, now: Time) {
    let pool = Pool::new(1 << 20);
    let mut store = wires.memory.branch(&pool).expect("a descriptor");
    let mut done = Vec::new();
    for at in (0..VOLUME_BYTES).step_by(1 << 20) {
        let data = SegList::of(pool.get_zeroed(1 << 20).freeze());
        store.submit(Io { data, ..Io::new(at, Op::Write, at, 1 << 20) });
        store.poll(&mut done);
    }
    shard.turn(now);
}

/// All on one thread.
fn count(plan: Plan, count: u64, depth: u64) {
    let wires = Wires::new(plan, 1);
    let mut now = Time(1_000_000_000);
    let mut shards: Vec<_> = (0..plan.shards()).map(|index| wires.shard(index)).collect();
    fill(&wires, &mut shards[0], now);
    let mut client = wires.client(0, now);
    let mut turn = |client: &mut Client| {
        client.side.send(now);
        for shard in shards.iter_mut() {
            if shard.is_due(now) {
                shard.turn(now);
            }
        }
        client.side.receive(now);
        client.take();
        now = now + TURN;
    };
    while !client.is_open() {
        turn(&mut client);
    }
    // Frame sizes are probed meanwhile, and everything exists afterwards.
    for most in [2 * VOLUME_BYTES / BLOCK_BYTES, count] {
        let end = client.completed + most;
        while client.completed < end {
            client.submit(depth, end - client.completed - client.outstanding);
            turn(&mut client);
        }
    }
}

/// Nanoseconds of processor time that a thread of this process has had.
fn cpu_ns(thread: i32) -> u64 {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = std::fs::read_to_string(path).expect("it is there");
    text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}

/// I/Os, and the processor time of shards and clients, by thread, in some seconds.
struct Round {
    ios: u64,
    seconds: f64,
    shards: Vec<u64>,
    clients: Vec<u64>,
}

fn round(plan: Plan, seconds: f64, depth: u64) -> Round {
    let wires = Wires::new(plan, CLIENTS);
    let (is_over, opened) = (AtomicBool::new(false), Barrier::new(CLIENTS as usize + 1));
    let completed: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let start = Instant::now();
    let now = || Time(1_000_000_000 + start.elapsed().as_nanos() as u64);
    std::thread::scope(|scope| {
        let told = |tell: Sender<(usize, i32)>, at| {
            let id = rustix::thread::gettid().as_raw_nonzero().get();
            tell.send((at, id)).expect("somebody waits for it");
        };
        let spawn_shards = || {
            let (tell, threads) = channel();
            for index in 0..plan.shards() {
                let (tell, wires, is_over) = (tell.clone(), &wires, &is_over);
                scope.spawn(move || {
                    let mut shard = wires.shard(index);
                    if index == 0 {
                        fill(wires, &mut shard, now());
                    }
                    told(tell, usize::from(index));
                    while !is_over.load(Ordering::Relaxed) {
                        if !shard.is_due(now()) {
                            shard.side.inbox.nap();
                        }
                        shard.turn(now());
                    }
                });
            }
            drop(tell);
            ordered(threads.iter().collect())
        };
        let spawn_clients = || {
            let (tell, threads) = channel();
            for number in 0..CLIENTS {
                let (tell, wires, is_over) = (tell.clone(), &wires, &is_over);
                let (opened, completed) = (&opened, &completed[number as usize]);
                scope.spawn(move || {
                    let mut client = wires.client(number, now());
                    told(tell, number as usize);
                    while !client.is_open() {
                        client.side.send(now());
                        client.side.inbox.nap();
                        client.side.receive(now());
                    }
                    opened.wait();
                    while !is_over.load(Ordering::Relaxed) {
                        client.submit(depth, u64::MAX);
                        client.side.send(now());
                        if client.side.inbox.is_empty() {
                            client.side.inbox.nap();
                        }
                        client.side.receive(now());
                        client.take();
                        completed.store(client.completed, Ordering::Relaxed);
                    }
                });
            }
            drop(tell);
            ordered(threads.iter().collect())
        };
        let (shards, clients) = (spawn_shards(), spawn_clients());
        opened.wait();
        std::thread::sleep(Duration::from_millis(300));
        let cpu = |threads: &[i32]| threads.iter().map(|&id| cpu_ns(id)).collect::<Vec<_>>();
        let all = || completed.iter().map(|one| one.load(Ordering::Relaxed)).sum::<u64>();
        let (begun, ios, before) = (Instant::now(), all(), [cpu(&shards), cpu(&clients)]);
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let (ios, after) = (all() - ios, [cpu(&shards), cpu(&clients)]);
        let seconds = begun.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        let [shards, clients] = [0, 1].map(|side: usize| {
            let pairs = after[side].iter().zip(&before[side]);
            pairs.map(|(after, before)| after - before).collect()
        });
        Round { ios, seconds, shards, clients }
    })
}

fn ordered(mut threads: Vec<(usize, i32)>) -> Vec<i32> {
    threads.sort_unstable();
    threads.into_iter().map(|(_, id)| id).collect()
}

impl Round {
    /// I/Os a second if each shard had a processor to itself, and nothing else was short.
    fn ceiling(&self) -> f64 {
        let busiest = self.shards.iter().max().expect("a shard");
        self.ios as f64 * 1e9 / *busiest as f64
    }
}

fn run(seconds: f64, depth: u64, rounds: usize) {
    let mut best: [Option<Round>; 4] = [const { None }; 4];
    for _ in 0..rounds {
        for (plan, best) in Plan::ALL.into_iter().zip(&mut best) {
            let round = round(plan, seconds, depth);
            let is_better = |best: &Round| round.ceiling() > best.ceiling();
            if best.as_ref().is_none_or(is_better) {
                *best = Some(round);
            }
        }
    }
    println!("{CLIENTS} clients, {depth} outstanding each, best of {rounds} rounds of {seconds} s");
    println!(
        "{:8} {:>6} {:>10} {:>14} {:>14} {:>24}",
        "plan", "shards", "kIO/s", "shards ns/IO", "clients ns/IO", "kIO/s, a core a shard"
    );
    for (plan, round) in Plan::ALL.into_iter().zip(best.iter().flatten()) {
        let each = |side: &[u64]| side.iter().sum::<u64>() / round.ios.max(1);
        println!(
            "{:8} {:>6} {:>10.1} {:>14} {:>14} {:>24.1}",
            plan.name(),
            plan.shards(),
            round.ios as f64 / round.seconds / 1e3,
            each(&round.shards),
            each(&round.clients),
            round.ceiling() / 1e3
        );
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().ok().filter(|&n| n > 0);
    let plan = |name: &str| Plan::ALL.into_iter().find(|plan| plan.name() == name);
    match args[..] {
        ["count", name, ios, depth] => {
            if let (Some(plan), Some(ios), Some(depth)) = (plan(name), number(ios), number(depth)) {
                return count(plan, ios, depth);
            }
        }
        ["run", seconds, depth, ref rest @ ..] => {
            let rounds = rest.first().map_or(Some(3), |rounds| number(rounds));
            let seconds = seconds.parse().ok().filter(|&s: &f64| s > 0.0);
            if let (Some(seconds), Some(depth), Some(rounds)) = (seconds, number(depth), rounds) {
                return run(seconds, depth, rounds as usize);
            }
        }
        _ => {}
    }
    eprintln!(
        "usage: shards count plain|shared|spread|members COUNT DEPTH, or shards run SECONDS DEPTH [ROUNDS]"
    );
    std::process::exit(2);
}
