//! A server in front of the exports of a target, clients, and stations that send whatever a test says, over a wire that a test
//! decides about.
#![allow(dead_code, reason = "each test binary uses its part")]

mod asking;
mod parts;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use thinwire_aoe::{
    AoeCanary, AoeClient, AoeClientConfig, AoeKeeper, AoeKept, AoeOffer, AoePort, AoeServer,
    AoeServerConfig, AoeServerStats,
};
use thinwire_buffer::{Addr, FrameSizes, LinkInfo, Pool, Room, RxFrame, SegList, Time, TxBatch};
use thinwire_exports::ExportConfig;
use thinwire_node::{Lane, Node, PartId};
use thinwire_target::{Target, TargetConfig};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{
    Completion, Effect, ErrorKind, Identity, Io, IoFlags, Op, PartEvent, Volume,
};
use thinwire_wire::aoe::{AoeCommand, AtaCommand, AtaRegisters, Body, Frame, Header, ShelfSlot};

#[allow(unused_imports, reason = "each test binary uses its part")]
pub use asking::{RESERVED, Told, add, delete};
pub use parts::{SharedStore, Slow, Unrecorded};

/// Of its first link, to which all clients are, and of its second, where only stations of a test are.
pub const SERVER: Addr = Addr::Mac([2, 0, 0, 0, 0, 1]);
pub const SECOND: Addr = Addr::Mac([2, 0, 0, 0, 0, 2]);
/// Slots from here on are on the first link only.
pub const FIRST_ONLY: u8 = 100;
pub const DEVICE: ShelfSlot = ShelfSlot { shelf: 7, slot: 1 };
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

/// A frame that went over the wire.
#[derive(Clone, Debug)]
pub struct Seen {
    pub from: Addr,
    pub to: Addr,
    pub header: Header,
    /// Of an ATA command that was not refused.
    pub registers: Option<AtaRegisters>,
    pub bytes: Vec<u8>,
}

impl Seen {
    fn of(from: Addr, to: Addr, bytes: &[u8]) -> Self {
        let frame = Frame::parse(bytes).expect("what is sent is a frame");
        let registers = match frame.body {
            Body::Ata(registers) => Some(registers),
            _ => None,
        };
        Seen { from, to, header: frame.header, registers, bytes: bytes.to_vec() }
    }

    pub fn body(&self) -> Body<'_> {
        Frame::parse(&self.bytes).expect("it was read once").body
    }

    /// It asks for a write.
    pub fn is_write(&self) -> bool {
        let is_write = |r: AtaRegisters| r.command_status == AtaCommand::WriteSectorsExt as u8;
        !self.header.is_response && self.registers.is_some_and(is_write)
    }
}

pub type Judge = Box<dyn FnMut(&Seen) -> Fate>;
type Cover = Box<dyn Fn(SharedStore, &Pool) -> Box<dyn Volume>>;

struct Flight {
    at: Time,
    from: Addr,
    to: Addr,
    bytes: Vec<u8>,
}

/// What a server has had kept, by device; and whether nothing that comes is durable for now.
#[derive(Clone, Default)]
pub struct Kept(pub Rc<RefCell<BTreeMap<ShelfSlot, AoeKept>>>, pub Rc<Cell<bool>>);

impl AoeKeeper for Kept {
    fn keep(&mut self, device: ShelfSlot, kept: &AoeKept) {
        self.0.borrow_mut().insert(device, kept.clone());
    }

    fn is_kept(&self, _: ShelfSlot) -> bool {
        !self.1.get()
    }
}

pub struct World {
    pub now: Time,
    pub pool: Pool,
    pub node: Node,
    pub target: PartId<Target>,
    pub server: Rc<RefCell<AoeServer>>,
    pub offers: Vec<AoeOffer>,
    pub kept: Kept,
    pub store: SharedStore,
    over: Cover,
    pub clients: BTreeMap<Addr, AoeClient>,
    pub judge: Judge,
    flights: Vec<Flight>,
    seed: u64,
    pub seen: Vec<Seen>,
    pub notes: Vec<String>,
    /// What clients have said to people.
    pub client_notes: Vec<String>,
    tokens: u64,
    tag: u32,
    pub done: BTreeMap<u64, Completion>,
    busy: BTreeMap<Addr, u32>,
}

fn server_of(offers: Vec<AoeOffer>, seed: u64, kept: &Kept) -> Rc<RefCell<AoeServer>> {
    let server = AoeServer::new(AoeServerConfig { offers, seed, canary: AoeCanary::None })
        .kept_by(Box::new(kept.clone()));
    Rc::new(RefCell::new(server))
}

pub fn info(addr: Addr) -> LinkInfo {
    let frame_bytes = FrameSizes { base: 1280, max: 9000 };
    LinkInfo { addr, frame_bytes, room: Room { frames: 64, bytes: 1 << 20 } }
}

pub fn offer(cached: bool) -> AoeOffer {
    AoeOffer {
        device: DEVICE,
        export: "disk0".into(),
        stations: Vec::new(),
        cached,
        kept: AoeKept::default(),
    }
}

pub fn station(nth: u8) -> Addr {
    Addr::Mac(mac(nth))
}

pub fn mac(nth: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, nth]
}

impl World {
    pub fn new() -> Self {
        World::with(vec![offer(false)])
    }

    pub fn with(offers: Vec<AoeOffer>) -> Self {
        World::over(offers, Box::new(|store, _| Box::new(store)))
    }

    /// One whose store is slow when the test says so, and loses what the test says: the gate, and what counts the losses.
    pub fn slow(offers: Vec<AoeOffer>) -> (Self, Rc<Cell<bool>>, Rc<Cell<u64>>) {
        let (gate, losses) = (Rc::new(Cell::new(true)), Rc::<Cell<u64>>::default());
        let (its_gate, its_losses) = (gate.clone(), losses.clone());
        let over = move |store, _: &Pool| -> Box<dyn Volume> {
            Box::new(Slow::new(Box::new(store), its_gate.clone(), its_losses.clone()))
        };
        (World::over(offers, Box::new(over)), gate, losses)
    }

    /// One whose record of who writes cannot be read, or stored, while the cell says so.
    pub fn unrecorded() -> (Self, Rc<Cell<Option<Op>>>) {
        let fails = Rc::<Cell<Option<Op>>>::default();
        let its = fails.clone();
        let over = move |store, _: &Pool| -> Box<dyn Volume> {
            Box::new(Unrecorded::new(Box::new(store), its.clone()))
        };
        (World::over(vec![offer(false)], Box::new(over)), fails)
    }

    /// One whose volume is made of the store anew whenever the target begins anew.
    pub fn over(offers: Vec<AoeOffer>, over: Cover) -> Self {
        let pool = Pool::new(64 << 20);
        let identity = Identity { identity: [7; 16], incarnation: 1 };
        let store = SharedStore::new(Box::new(MemoryStore::new(BYTES, 512, identity, &pool)));
        let server = server_of(Vec::new(), 0, &Kept::default());
        let mut node = Node::new(vec![info(SERVER), info(SECOND)]);
        let target = Target::new(TargetConfig::default(), Vec::new(), 0, pool.clone(), 1);
        let target = node.add(target, Vec::new(), &Lane::ALL);
        let mut world = World {
            now: Time(1_000_000_000),
            pool,
            node,
            target,
            server,
            offers,
            kept: Kept::default(),
            store,
            over,
            clients: BTreeMap::new(),
            judge: Box::new(|_| Fate::Arrives),
            flights: Vec::new(),
            seed: 1,
            seen: Vec::new(),
            notes: Vec::new(),
            client_notes: Vec::new(),
            tokens: 0,
            tag: 0x5000_0000,
            done: BTreeMap::new(),
            busy: BTreeMap::new(),
        };
        world.begin();
        world
    }

    /// A target begins, on the store as it is.
    fn begin(&mut self) {
        self.node = Node::new(vec![info(SERVER), info(SECOND)]);
        let config = TargetConfig { insecure: true, ..TargetConfig::default() };
        let mut target = Target::new(config, Vec::new(), 0, self.pool.clone(), self.seed);
        let volume = (self.over)(self.store.clone(), &self.pool);
        target.add_export(ExportConfig { name: "disk0".into(), volume, read_only: false });
        self.server = server_of(self.offers.clone(), self.seed, &self.kept);
        let devices: Vec<ShelfSlot> = self.offers.iter().map(|offer| offer.device).collect();
        let both: Vec<ShelfSlot> =
            devices.iter().copied().filter(|device| device.slot < FIRST_ONLY).collect();
        for (link, devices) in [(SERVER, devices), (SECOND, both)] {
            target.add_guest(Box::new(AoePort::new(&self.server, info(link), &devices)));
        }
        self.target = self.node.add(target, Vec::new(), &Lane::ALL);
        (0..2).for_each(|link| _ = self.node.give_foreign_link(self.target, link));
        self.turn();
    }

    /// The process of the target dies, and another begins on what is on the medium, and on what was kept.
    pub fn crash(&mut self) {
        self.seed = self.seed.wrapping_add(7);
        self.node = Node::new(vec![info(SERVER), info(SECOND)]);
        self.store.settle();
        for offer in &mut self.offers {
            if let Some(kept) = self.kept.0.borrow().get(&offer.device) {
                offer.kept = kept.clone();
            }
        }
        self.begin();
    }

    pub fn stats(&self) -> AoeServerStats {
        self.server.borrow().stats()
    }

    pub fn config(&self, nth: u8) -> AoeClientConfig {
        AoeClientConfig {
            device: DEVICE,
            server: None,
            read_only: false,
            flushes: false,
            fail_after: None,
            seed: u64::from(nth) << 20,
            label: format!("client{nth}"),
            canary: AoeCanary::None,
        }
    }

    pub fn add(&mut self, nth: u8, config: AoeClientConfig) -> Addr {
        let addr = station(nth);
        self.clients.insert(addr, AoeClient::new(self.now, config, info(addr)));
        addr
    }

    /// One that is in use.
    pub fn open(&mut self, nth: u8) -> Addr {
        let config = self.config(nth);
        self.open_with(nth, config)
    }

    pub fn open_with(&mut self, nth: u8, config: AoeClientConfig) -> Addr {
        let client = self.add(nth, config);
        self.until(10, |world| world.client(client).is_open());
        client
    }

    pub fn client(&mut self, client: Addr) -> &mut AoeClient {
        self.clients.get_mut(&client).expect("a client")
    }

    /// A frame comes to the server, which had lain in a queue for so long.
    pub fn receive(&mut self, from: Addr, bytes: &[u8], waited: Duration) {
        self.receive_on(0, from, bytes, waited);
    }

    /// The same, on one of its links.
    pub fn receive_on(&mut self, link: usize, from: Addr, bytes: &[u8], waited: Duration) {
        let bytes = self.pool.copy_of(bytes).freeze();
        let (rest, queued) = (SegList::new(), Duration::ZERO);
        let mut rx = RxFrame { from, bytes, rest, waited, queued };
        self.node.on_frame(self.now, link, &mut rx);
    }

    /// A station says something to a client.
    pub fn say_to(&mut self, client: Addr, from: Addr, bytes: &[u8]) {
        self.flights.push(Flight { at: self.now, from, to: client, bytes: bytes.to_vec() });
        self.turn();
    }

    /// What the server answers to a frame within 20 ms.
    pub fn ask(&mut self, from: Addr, bytes: &[u8]) -> Vec<Seen> {
        let before = self.seen.len();
        self.receive(from, bytes, Duration::ZERO);
        self.pass(Duration::from_millis(20));
        let seen = self.seen[before..].iter();
        seen.filter(|seen| seen.from == SERVER && seen.to == from).cloned().collect()
    }

    /// The same, of one answer.
    pub fn ask_one(&mut self, from: Addr, bytes: &[u8]) -> Seen {
        let mut answers = self.ask(from, bytes);
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0)
    }

    /// A request, under a tag that none had before.
    pub fn request(&mut self, command: AoeCommand, body: &Body<'_>) -> Vec<u8> {
        self.tag += 1;
        let mut bytes = Vec::new();
        let header = Header::request(DEVICE, command, self.tag);
        Frame { header, body: *body }.put(&mut bytes);
        bytes
    }

    pub fn ata(&mut self, command: AtaCommand, sector: u64, sectors: u8, data: &[u8]) -> Vec<u8> {
        let registers = AtaRegisters::request(command, sector, sectors).expect("it is reached");
        let mut bytes = self.request(AoeCommand::IssueAta, &Body::Ata(registers));
        bytes.extend_from_slice(data);
        bytes
    }

    /// A disk of the target has something to say.
    pub fn wake(&mut self) {
        self.node.post(self.now, self.target, PartEvent::Readable);
    }

    fn launch(&mut self, from: Addr, batch: &mut TxBatch) {
        for frame in batch.frames() {
            let bytes = [frame.head.clone(), frame.data.to_vec()].concat();
            assert!(bytes.len() <= info(from).frame_bytes.max);
            let seen = Seen::of(from, frame.to, &bytes);
            let mut fly = |at| {
                let (to, bytes) = (frame.to, bytes.clone());
                self.flights.push(Flight { at, from, to, bytes });
            };
            match (self.judge)(&seen) {
                Fate::Arrives => fly(self.now),
                Fate::Lost => {}
                Fate::Twice(later) => [self.now, self.now + later].into_iter().for_each(fly),
                Fate::Late(later) => fly(self.now + later),
            }
            self.seen.push(seen);
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
            if to == SERVER || to == Addr::Group {
                self.node.on_frame(now, 0, &mut rx);
            }
            for (&addr, client) in &mut self.clients {
                if addr == to || to == Addr::Group && from != addr {
                    thinwire_volume::Part::on_frame(client, now, 0, &mut rx);
                }
            }
        }
        self.node.settle(now);
        self.node.close(now);
        while let Some((_, effect)) = self.node.take_effect() {
            if let Effect::Note(_, text) = effect {
                self.notes.push(text);
            }
        }
        let mut out = std::mem::take(&mut self.node.out()[0]);
        self.launch(SERVER, &mut out);
        let mut out = std::mem::take(&mut self.node.out()[1]);
        for frame in out.frames() {
            let bytes = [frame.head.clone(), frame.data.to_vec()].concat();
            self.seen.push(Seen::of(SECOND, frame.to, &bytes));
        }
        out.clear();
        let mut clients = std::mem::take(&mut self.clients);
        for (&addr, client) in &mut clients {
            let (mut out, mut effects) = ([TxBatch::new()], Vec::new());
            let mut closing =
                thinwire_volume::Closing { now, out: &mut out, effects: &mut effects };
            let deadline = thinwire_volume::Part::close(client, &mut closing);
            // Whoever is to be called at once does something.
            self.client_notes.extend(effects.into_iter().filter_map(|effect| match effect {
                Effect::Note(_, text) => Some(text),
                _ => None,
            }));
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
        self.submit_with(client, op, IoFlags::default(), sector, data)
    }

    /// Writes it so that it is durable when it ends.
    pub fn force(&mut self, client: Addr, sector: u64, data: &[u8]) -> Result<(), ErrorKind> {
        let flags = IoFlags { fua: true, ..IoFlags::default() };
        let token = self.submit_with(client, Op::Write, flags, sector, data);
        self.wait(token).map(drop)
    }

    fn submit_with(
        &mut self,
        client: Addr,
        op: Op,
        flags: IoFlags,
        sector: u64,
        data: &[u8],
    ) -> u64 {
        // No two clients of a test have the same.
        self.tokens += 1;
        let mut io = Io::new(self.tokens, op, sector * 512, data.len() as u64);
        io.flags = flags;
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

/// Bytes that tell where they belong, and which version they are.
pub fn stamp(sector: u64, sectors: usize, version: u8) -> Vec<u8> {
    let of = |at: u64| (0..512u32).map(move |i| (at as u32 ^ i) as u8 ^ version);
    (0..sectors as u64).flat_map(|at| of(sector + at)).collect()
}
