//! A server in front of the exports of a target, and clients, over a wire that a test decides about.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, Time, TxBatch};
use thinwire_ebd::{ClientConfig, EbdCanary, EbdClient, EbdOffer, EbdServer, ServerConfig};
use thinwire_exports::ExportConfig;
use thinwire_node::{Lane, Node, PartId};
use thinwire_target::{Target, TargetConfig};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{
    Completion, ErrorKind, Geometry, Identity, Io, Op, Volume, VolumeEvent, load_writer,
    store_writer,
};
use thinwire_wire::ebd::{EbdForm, Frame};

pub const SERVER: Addr = Addr::Mac([2, 0, 0, 0, 0, 1]);
pub const BYTES: u64 = 1 << 20;
const STEP: Duration = Duration::from_micros(50);

/// What becomes of a frame: how many times it arrives, and how much later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    Lost,
    Twice(Duration),
    Late(Duration),
}

pub type Judge = Box<dyn FnMut(&Frame, bool) -> Fate>;

struct Flight {
    at: Time,
    from: Addr,
    to: Addr,
    bytes: Vec<u8>,
}

pub struct World {
    pub now: Time,
    pub form: EbdForm,
    pub pool: Pool,
    pub node: Node,
    pub target: PartId<Target>,
    pub clients: BTreeMap<Addr, EbdClient>,
    pub judge: Judge,
    /// Longer frames do not pass.
    pub frame_bytes_max: usize,
    flights: Vec<Flight>,
    seed: u64,
    pub seen: Vec<(bool, Frame, usize)>,
    tokens: u64,
    pub done: BTreeMap<u64, Completion>,
    busy: BTreeMap<Addr, u32>,
}

fn info(addr: Addr) -> LinkInfo {
    let frame_bytes = FrameSizes { base: 1280, max: 9000 };
    LinkInfo { addr, frame_bytes, room: Room { frames: 256, bytes: 1 << 20 } }
}

/// All zeroes.
pub fn store(pool: &Pool) -> Box<dyn Volume> {
    let identity = Identity { identity: [7; 16], incarnation: 1 };
    Box::new(MemoryStore::new(BYTES, 512, identity, pool))
}

impl World {
    pub fn new(form: EbdForm) -> Self {
        let pool = Pool::new(64 << 20);
        let volume = store(&pool);
        World::on(form, pool, volume)
    }

    /// One whose store is slow when the test says so: the gate of that, and what counts its losses.
    pub fn slow(form: EbdForm, reads_pass: bool) -> (Self, Rc<Cell<bool>>, Rc<Cell<u64>>) {
        let pool = Pool::new(64 << 20);
        let slow = Slow { reads_pass, ..Slow::new(store(&pool)) };
        let (gate, losses) = (slow.gate.clone(), slow.losses.clone());
        (World::on(form, pool, Box::new(slow)), gate, losses)
    }

    pub fn on(form: EbdForm, pool: Pool, volume: Box<dyn Volume>) -> Self {
        let mut node = Node::new(vec![info(SERVER)]);
        let target = serve(&mut node, form, &pool, volume, 1);
        World {
            now: Time(1_000_000_000),
            form,
            pool,
            node,
            target,
            clients: BTreeMap::new(),
            judge: Box::new(|_, _| Fate::Arrives),
            frame_bytes_max: usize::MAX,
            flights: Vec::new(),
            seed: 1,
            seen: Vec::new(),
            tokens: 0,
            done: BTreeMap::new(),
            busy: BTreeMap::new(),
        }
    }

    pub fn config(&self, nth: u8) -> ClientConfig {
        ClientConfig {
            form: self.form,
            server: SERVER,
            major: 3,
            minor: 1,
            client: nth,
            block_bytes: 4096,
            read_only: false,
            take_over: false,
            waits: false,
            fail_after: None,
            retained_bytes_max: 4 << 20,
            label: format!("client{nth}"),
            seed: u64::from(nth),
            canary: EbdCanary::None,
        }
    }

    pub fn add(&mut self, config: ClientConfig) -> Addr {
        let addr = Addr::Mac([2, 0, 0, 0, 1, config.client]);
        let client = EbdClient::new(self.now, config, info(addr));
        self.clients.insert(addr, client);
        addr
    }

    /// One that is in use.
    pub fn open(&mut self, nth: u8) -> Addr {
        let config = self.config(nth);
        let client = self.add(config);
        self.until(10, |world| world.client(client).is_open());
        client
    }

    pub fn client(&mut self, client: Addr) -> &mut EbdClient {
        self.clients.get_mut(&client).expect("a client")
    }

    /// The process of the target dies, and another begins on the same store, or on one that knows the same writer.
    pub fn restart(&mut self, volume: Option<Box<dyn Volume>>) {
        self.seed = self.seed.wrapping_add(7);
        let mut kept = self.take_away();
        let volume = match volume {
            None => kept,
            Some(mut other) => {
                let record = load_writer(&mut *kept).expect("memory does not fail");
                store_writer(&mut *other, record).expect("memory does not fail");
                other
            }
        };
        self.node = Node::new(vec![info(SERVER)]);
        self.target = serve(&mut self.node, self.form, &self.pool, volume, self.seed);
    }

    /// The target's administrator takes the export away.
    pub fn take_away(&mut self) -> Box<dyn Volume> {
        let target = self.node.get_mut(self.target).expect("it is there");
        target.remove_export("disk0");
        self.turn();
        let kept = self.node.get_mut(self.target).and_then(Target::take_gone);
        kept.expect("nothing is under way").1
    }

    /// And brings it back.
    pub fn bring_back(&mut self, volume: Box<dyn Volume>) {
        let export = ExportConfig { name: "disk0".into(), volume, read_only: false };
        self.node.get_mut(self.target).expect("it is there").add_export(export);
    }

    /// The next server gives the indices that this one gave.
    pub fn seed_back(&mut self) {
        self.seed = self.seed.wrapping_sub(7);
    }

    /// A frame of somebody else comes to the server.
    pub fn receive(&mut self, from: Addr, bytes: &[u8]) {
        let bytes = self.pool.copy_of(bytes).freeze();
        let (rest, waited, queued) = (SegList::new(), Duration::ZERO, Duration::ZERO);
        let mut rx = RxFrame { from, bytes, rest, waited, queued };
        self.node.on_frame(self.now, 0, &mut rx);
    }

    fn launch(&mut self, from: Addr, batch: &mut TxBatch) {
        for frame in batch.frames() {
            let bytes = [frame.head.clone(), frame.data.to_vec()].concat();
            let parsed = Frame::parse(&bytes).expect("what is sent is a frame");
            self.seen.push((from == SERVER, parsed, bytes.len()));
            if bytes.len() > self.frame_bytes_max {
                continue;
            }
            let mut fly = |at| {
                let (to, bytes) = (frame.to, bytes.clone());
                self.flights.push(Flight { at, from, to, bytes });
            };
            match (self.judge)(&parsed, from == SERVER) {
                Fate::Arrives => fly(self.now),
                Fate::Lost => {}
                Fate::Twice(later) => [self.now, self.now + later].into_iter().for_each(fly),
                Fate::Late(later) => fly(self.now + later),
            }
        }
        batch.clear();
    }

    /// One turn of everybody.
    pub fn turn(&mut self) {
        self.now = self.now + STEP;
        let now = self.now;
        let (due, rest) = std::mem::take(&mut self.flights).into_iter().partition(|f| f.at < now);
        self.flights = rest;
        for Flight { from, to, bytes, .. } in due {
            let bytes = self.pool.copy_of(&bytes).freeze();
            let (rest, waited, queued) = (SegList::new(), Duration::ZERO, Duration::ZERO);
            let mut rx = RxFrame { from, bytes, rest, waited, queued };
            if to == SERVER {
                self.node.on_frame(now, 0, &mut rx);
            }
            for (&addr, client) in &mut self.clients {
                if addr == to || to == Addr::Group {
                    thinwire_volume::Part::on_frame(client, now, 0, &mut rx);
                }
            }
        }
        self.node.settle(now);
        self.node.close(now);
        let mut out = std::mem::take(&mut self.node.out()[0]);
        self.launch(SERVER, &mut out);
        let mut clients = std::mem::take(&mut self.clients);
        for (&addr, client) in &mut clients {
            let (mut out, mut effects) = ([TxBatch::new()], Vec::new());
            let mut closing =
                thinwire_volume::Closing { now, out: &mut out, effects: &mut effects };
            let deadline = thinwire_volume::Part::close(client, &mut closing);
            // Whoever is to be called at once does something.
            let is_busy = deadline <= now && out[0].is_empty() && client.outstanding() > 0;
            let busy = self.busy.entry(addr).or_insert(0);
            *busy = if is_busy { *busy + 1 } else { 0 };
            assert!(*busy < 100, "a client that is called all the time, and does nothing");
            self.launch(addr, &mut out[0]);
            let mut done = Vec::new();
            client.poll(&mut done);
            self.done.extend(done.into_iter().map(|c| (c.token, c)));
        }
        self.clients = clients;
    }

    /// Turns until it is so, for at most so many seconds.
    pub fn until(&mut self, seconds: u64, mut is: impl FnMut(&mut World) -> bool) {
        let end = self.now + Duration::from_secs(seconds);
        while !is(self) {
            assert!(self.now < end, "it has not come to be within {seconds} s");
            self.turn();
        }
    }

    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.turn();
        }
    }

    pub fn submit(&mut self, client: Addr, op: Op, sector: u64, data: &[u8]) -> u64 {
        self.submit_with(client, op, sector, data, false)
    }

    pub fn submit_with(
        &mut self,
        client: Addr,
        op: Op,
        sector: u64,
        data: &[u8],
        fua: bool,
    ) -> u64 {
        self.tokens += 1;
        let mut io = Io::new(self.tokens, op, sector * 512, data.len() as u64);
        io.flags.fua = fua;
        match op {
            Op::Write => io.data = SegList::of(self.pool.copy_of(data).freeze()),
            Op::Flush => io.len = 0,
            _ => {}
        }
        self.client(client).submit(io);
        self.tokens
    }

    pub fn wait(&mut self, token: u64) -> Result<Vec<u8>, ErrorKind> {
        self.until(60, |world| world.done.contains_key(&token));
        let done = self.done.remove(&token).expect("just seen");
        done.result.map(|()| done.data.to_vec()).map_err(|error| error.kind)
    }

    pub fn write(&mut self, client: Addr, sector: u64, data: &[u8]) -> Result<(), ErrorKind> {
        let token = self.submit(client, Op::Write, sector, data);
        self.wait(token).map(drop)
    }

    pub fn read(&mut self, client: Addr, sector: u64, len: usize) -> Result<Vec<u8>, ErrorKind> {
        let token = self.submit(client, Op::Read, sector, &vec![0; len]);
        self.wait(token)
    }

    pub fn flush(&mut self, client: Addr) -> Result<(), ErrorKind> {
        let token = self.submit(client, Op::Flush, 0, &[]);
        self.wait(token).map(drop)
    }
}

fn serve(
    node: &mut Node,
    form: EbdForm,
    pool: &Pool,
    volume: Box<dyn Volume>,
    seed: u64,
) -> PartId<Target> {
    let config = TargetConfig { insecure: true, ..TargetConfig::default() };
    let mut target = Target::new(config, Vec::new(), 0, pool.clone(), seed);
    target.add_export(ExportConfig { name: "disk0".into(), volume, read_only: false });
    let offers =
        vec![EbdOffer { major: 3, minor: 1, export: "disk0".into(), stations: Vec::new() }];
    let server =
        EbdServer::new(ServerConfig { form, offers, seed, canary: EbdCanary::None }, info(SERVER));
    target.add_guest(Box::new(server));
    let id = node.add(target, Vec::new(), &Lane::ALL);
    node.give_foreign_link(id, 0);
    id
}

/// Bytes that tell where they belong, and which version they are.
pub fn stamp(sector: u64, sectors: usize, version: u8) -> Vec<u8> {
    let of = |at: u64| (0..512u32).map(move |i| (at as u32 ^ i) as u8 ^ version);
    (0..sectors as u64).flat_map(|at| of(sector + at)).collect()
}

/// A volume that keeps what it is asked while its gate is shut, or the writes of that, and says that it has lost something when it is told to.
pub struct Slow {
    inner: Box<dyn Volume>,
    gate: Rc<Cell<bool>>,
    losses: Rc<Cell<u64>>,
    /// The gate is one for writes.
    reads_pass: bool,
    kept: Vec<Io>,
    told: u64,
}

impl Slow {
    fn new(inner: Box<dyn Volume>) -> Self {
        let (gate, losses) = (Rc::new(Cell::new(true)), Rc::default());
        Slow { inner, gate, losses, reads_pass: false, kept: Vec::new(), told: 0 }
    }

    fn is_open_for(&self, op: Op) -> bool {
        self.reads_pass && !op.is_write()
    }
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn submit(&mut self, io: Io) {
        match self.gate.get() || self.is_open_for(io.op) {
            true => self.inner.submit(io),
            false => self.kept.push(io),
        }
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.gate.get() {
            self.kept.drain(..).for_each(|io| self.inner.submit(io));
        }
        self.inner.poll(done);
    }
    fn outstanding(&self) -> usize {
        self.kept.len() + self.inner.outstanding()
    }
    fn events(&self) -> u64 {
        self.losses.get()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let lost = self.losses.get() > self.told;
        events.extend(lost.then_some(VolumeEvent::Lost));
        self.told = self.losses.get();
    }
}
