//! A volume on a node, from the other end of an edge: as good as by itself, also through several parts.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_buffer::{Pool, Time};
use thinwire_modules::Linear;
use thinwire_node::{Lane, Node};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::{MemDisk, Puppet, exercise, tells_losses};
use thinwire_volume::{
    Closing, Completion, Geometry, Identity, Io, Part, Port, Volume, VolumeEvent,
};

const BYTES: u64 = 1 << 20;

/// A part that is a volume.
struct Hosted(Box<dyn Volume>);

impl Part for Hosted {
    fn volume(&mut self) -> Option<&mut dyn Volume> {
        Some(&mut *self.0)
    }
    fn close(&mut self, turn: &mut Closing<'_>) -> Time {
        // The simulated disk has no descriptor that says when to look at it.
        if self.0.outstanding() > 0 { turn.now } else { Time::NEVER }
    }
}

/// A port for who only submits and polls: each poll is a turn of the node.
struct Driven {
    node: Rc<RefCell<Node>>,
    port: Port,
}

impl Volume for Driven {
    fn geometry(&self) -> Geometry {
        self.port.geometry()
    }
    fn identity(&self) -> Identity {
        self.port.identity()
    }
    fn submit(&mut self, io: Io) {
        self.port.submit(io);
    }
    fn poll(&mut self, done: &mut Vec<Completion>) {
        let node = &mut *self.node.borrow_mut();
        node.settle(Time(1));
        node.close(Time(1));
        self.port.poll(done);
    }
    fn outstanding(&self) -> usize {
        self.port.outstanding()
    }
    fn events(&self) -> u64 {
        self.port.events()
    }
    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        self.port.poll_events(events);
    }
}

#[test]
fn a_port_conforms() {
    let pool = Pool::new(16 << 20);
    let memory = || MemoryStore::new(BYTES, 512, Identity::default(), &pool);
    let file = || FileStore::new(MemDisk::new(BYTES, 512, 1), 512, &pool).expect("whole blocks");
    let mut node = Node::new(Vec::new());
    let mut host = |volume: Box<dyn Volume>| {
        let part = node.add(Hosted(volume), Vec::new(), &Lane::ALL);
        (part, node.port(part))
    };
    let (_, plain) = host(Box::new(memory()));
    let below = [host(Box::new(file())).1, host(Box::new(memory())).1];
    let numbers = below.each_ref().map(Port::number);
    let below = below.map(|port| Box::new(port) as Box<dyn Volume>).into();
    let (part, over_two) = host(Box::new(Linear::new(below).expect("one shape")));
    numbers.into_iter().for_each(|number| node.give_port(number, part));
    let node = Rc::new(RefCell::new(node));
    for (seed, port) in [(1, plain), (2, over_two)] {
        let mut driven = Driven { node: node.clone(), port };
        let report = exercise(&mut driven, &mut || {}, seed, 2000);
        assert!(report.ios > 2000 && report.blocks_checked > 1000, "{report:?}");
    }
}

#[test]
fn a_port_tells_the_losses_of_what_is_below() {
    let below = Puppet::new(1, Puppet::GEOMETRY);
    let mut node = Node::new(Vec::new());
    let part = node.add(Hosted(Box::new(below.clone())), Vec::new(), &Lane::ALL);
    let mut port = node.port(part);
    let mut turn = || {
        // The puppet has no descriptor that says when to look at it.
        node.get_mut(part);
        node.settle(Time(1));
        node.close(Time(1));
    };
    tells_losses(&below, &mut port, &mut turn);
}
