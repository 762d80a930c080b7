//! The stage of the scripted tests: one server with one small disk, and clients that do what they
//! are told. Everything they are told back is checked by the model as in the simulator.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use thinwire_initiator::InitiatorStats;
use thinwire_link::sim::{StationConfig, Verdict, WireConfig};
use thinwire_proto::{Drops, Time};
use thinwire_sim::client::{End, IoOutcome, Workload};
use thinwire_sim::export::Store;
use thinwire_sim::hand::{Caller, Desk, Hand};
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::model::Range;
use thinwire_sim::server::Crash;
use thinwire_sim::world::{SECOND, SimHost, World};
use thinwire_target::TargetConfig;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::{Frame, Message};

/// A range of sectors.
pub fn at(first: usize, count: usize) -> Range {
    Range { first, count }
}

pub struct Scene {
    pub world: World,
    pub medium: MediumHandle,
    pub links: usize,
}

impl Scene {
    /// A file on a disk, one link, nothing goes wrong.
    pub fn new() -> Self {
        Scene::with(1, |_| {})
    }

    /// As [`Scene::new`], with other dice for the disk.
    pub fn seeded(seed: u64) -> Self {
        let medium = MediumHandle::new(seed, [9; 16], MediumConfig::default());
        Scene::on(1, Store::File(medium.clone()), medium, |_| {})
    }

    pub fn with(links: usize, change: impl FnOnce(&mut TargetConfig)) -> Self {
        let medium = MediumHandle::new(1, [9; 16], MediumConfig::default());
        Scene::on(links, Store::File(medium.clone()), medium, change)
    }

    /// In the target's memory.
    pub fn in_memory() -> Self {
        let medium = MediumHandle::new(1, [9; 16], MediumConfig::default());
        Scene::on(1, Store::Memory, medium, |_| {})
    }

    pub fn on(
        links: usize,
        store: Store,
        medium: MediumHandle,
        change: impl FnOnce(&mut TargetConfig),
    ) -> Self {
        let mut world = World::new(7, WireConfig::default(), std::env::var("TRACE").is_ok());
        let mut config =
            TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
        change(&mut config);
        let server = world.add_server(links, StationConfig::default(), config, None);
        let export = world.add_export(server, 1 << 20, 512, store);
        world.exports[export].may_fail = true;
        world.start_server(server);
        Scene { world, medium, links }
    }

    /// One more client of the disk.
    pub fn client(&mut self) -> usize {
        self.world.exports[0].writers += 1;
        let station = StationConfig::default();
        let client = self.world.add_client(self.links, station, 0, Workload::NONE);
        self.world.clients[client].keeps_log = true;
        client
    }

    /// One client, attached.
    pub fn with_client(mut self) -> Self {
        let client = self.client();
        self.attach(client);
        self
    }

    pub fn attach(&mut self, client: usize) {
        self.world.start_client(client);
        self.until("attached", move |w| w.clients[client].is_open);
    }

    pub fn until(&mut self, what: &str, done: impl FnMut(&World) -> bool) {
        self.world.run_until(what, 60 * SECOND, done).unwrap_or_else(|v| panic!("{}", v.0));
    }

    pub fn pass(&mut self, time: Duration) {
        self.world.run_for(time.as_nanos() as u64).unwrap_or_else(|v| panic!("{}", v.0));
    }

    pub fn submit(&mut self, client: usize, op: Op, range: Range) -> u64 {
        self.world.submit(client, op, range, false)
    }

    /// Waits for an I/O.
    pub fn outcome(&mut self, client: usize, token: u64) -> IoOutcome {
        let find = move |w: &World| w.clients[client].log.iter().position(|o| o.token == token);
        self.until("an I/O", |w| find(w).is_some());
        let place = find(&self.world).expect("just seen");
        self.world.clients[client].log.remove(place)
    }

    /// Submits an I/O of client 0 and waits for it.
    pub fn run(&mut self, op: Op, range: Range) -> Result<(), ErrorKind> {
        let token = self.submit(0, op, range);
        self.outcome(0, token).result
    }

    pub fn write(&mut self, range: Range) {
        self.run(Op::Write, range).expect("a write");
    }

    pub fn write_fua(&mut self, range: Range) {
        let token = self.world.submit(0, Op::Write, range, true);
        self.outcome(0, token).result.expect("a write with FUA");
    }

    /// The model compares what is read.
    pub fn read(&mut self, range: Range) -> Vec<u8> {
        let token = self.submit(0, Op::Read, range);
        let outcome = self.outcome(0, token);
        outcome.result.expect("a read");
        outcome.data
    }

    pub fn flush(&mut self) -> Result<(), ErrorKind> {
        self.run(Op::Flush, at(0, 0))
    }

    /// kill -9 or worse, and a new start.
    pub fn restart(&mut self, how: Crash) {
        self.world.crash_server(0, how);
        self.world.start_server(0);
    }

    /// What the next attach is refused with. Replaces the judge.
    pub fn hear_refusal(&mut self) -> Rc<RefCell<String>> {
        let told = Rc::new(RefCell::new(String::new()));
        let hear = told.clone();
        self.world.set_judge(move |_, _, bytes| {
            for message in Frame::parse(bytes).iter().flat_map(|frame| frame.messages()) {
                if let Message::AttachRefused(refused) = message {
                    *hear.borrow_mut() = refused.text.to_string();
                }
            }
            Verdict::Pass
        });
        told
    }

    /// A write of client 0 that its store has, and needs so long for; what comes later is quick.
    pub fn slow_write(&mut self, range: Range, takes: Duration) -> u64 {
        self.slow_write_to(&self.medium.clone(), range, takes)
    }

    /// As [`Scene::slow_write`], of a write that goes to this disk.
    pub fn slow_write_to(&mut self, medium: &MediumHandle, range: Range, takes: Duration) -> u64 {
        let ns = takes.as_nanos() as u64;
        medium.set_latency(ns, ns);
        let token = self.submit(0, Op::Write, range);
        let on_its_way = medium.clone();
        self.until("the store has it", move |_| on_its_way.in_flight() == 1);
        medium.set_latency(20_000, 200_000);
        token
    }

    pub fn until_ended(&mut self, client: usize) -> End {
        self.until("its end", move |w| w.clients[client].initiator.is_none());
        let at = self.world.ended.iter().position(|(who, _)| *who == client).expect("it ended");
        self.world.ended.remove(at).1
    }

    pub fn stats(&self, client: usize) -> InitiatorStats {
        self.world.initiator(client).report(Time(self.world.now)).stats
    }

    /// Cuts or mends both ways between the server and a client.
    pub fn set_reach(&mut self, client: usize, is_open: bool) {
        self.world.set_way(SimHost::Server(0), SimHost::Client(client), is_open);
        self.world.set_way(SimHost::Client(client), SimHost::Server(0), is_open);
    }

    /// An initiator by hand, changed before it greets, and welcomed.
    pub fn hand(&mut self, name: u8, desk: &mut impl Desk, change: impl FnOnce(&mut Hand)) -> Hand {
        let greeting = Caller {
            initiator: [name; 16],
            instance: 1,
            node: "node".into(),
            export: "disk0".into(),
            name: "by hand".into(),
        };
        let target = self.world.servers[0].stations()[0];
        let mut hand = Hand::new(&self.world.net, target, greeting);
        change(&mut hand);
        hand.greet(Time(self.world.now));
        // HELLO and RETRY, HELLO and WELCOME.
        (0..2).for_each(|_| self.turn(&mut hand, desk));
        assert!(hand.welcome.is_some(), "it was not welcomed");
        hand
    }

    /// A hand sends what waits, and takes in what comes in a moment.
    pub fn turn(&mut self, hand: &mut Hand, desk: &mut impl Desk) {
        hand.send(Time(self.world.now), desk);
        self.pass(ms(1));
        hand.receive(Time(self.world.now), desk);
        assert!(!hand.listens || hand.drops == Drops::default(), "{:?}", hand.drops);
    }

    /// Detaches client 0 and checks the image.
    pub fn end(mut self) {
        for client in 0..self.world.clients.len() {
            self.world.clients[client].close();
        }
        self.until("detached", |w| w.clients.iter().all(|c| c.initiator.is_none()));
        self.world.crash_server(0, Crash::Power);
        let image = self.medium.durable();
        self.world.exports[0].models[0].check_image(&image).unwrap_or_else(|v| panic!("{}", v.0));
    }
}

/// The attach of a run that has died since, which arrives late.
pub struct LateAttach {
    refused: Rc<Cell<bool>>,
}

impl LateAttach {
    /// Starts a client, and kills it when it has sent its attach. Replaces the judge.
    pub fn of(s: &mut Scene, client: usize, late_ns: u64) -> Self {
        let (sent, is_slow) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(true)));
        let refused = Rc::new(Cell::new(false));
        let (seen, slow, told) = (sent.clone(), is_slow.clone(), refused.clone());
        s.world.set_judge(move |_, _, bytes| {
            let Ok(frame) = Frame::parse(bytes) else { return Verdict::Pass };
            if frame.messages().any(|m| matches!(m, Message::AttachRefused(_))) {
                told.set(true);
            }
            if slow.get() && frame.messages().any(|m| matches!(m, Message::Attach(_))) {
                seen.set(true);
                return Verdict::Delay(late_ns);
            }
            Verdict::Pass
        });
        s.world.start_client(client);
        s.until("the attach was sent", move |_| sent.get());
        s.world.crash_client(client);
        is_slow.set(false);
        LateAttach { refused }
    }

    /// The target says no to it.
    pub fn until_refused(&self, s: &mut Scene) {
        let refused = self.refused.clone();
        s.until("the late attach is refused", move |_| refused.get());
    }
}

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
