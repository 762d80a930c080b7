//! The stage of the tests about trees: a gateway, two servers below it and a client, and what is done to them.

use thinwire_initiator::InitiatorStats;
use thinwire_link::sim::{StationConfig, WireConfig};
use thinwire_proto::Time;
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::model::Range;
use thinwire_sim::notes::{NoteFate, NoteStats};
use thinwire_sim::server::Crash;
use thinwire_sim::tree::{Branch, TreeLeaf};
use thinwire_sim::world::{NOBODY, World};
use thinwire_target::TargetConfig;

use crate::scene::{Scene, at, ms};

/// Sectors of each leaf.
pub const LEAF: usize = 64;
/// The server of the tree; those below are 0 and 1.
pub const GATEWAY: usize = 2;
/// All of the tree.
pub const ALL: Range = Range { first: 0, count: 8 * LEAF };

/// A tree: leaves 0, 2, 4 and 6 are the gateway's own, the others lie in turn on the servers below.
pub struct Grove {
    pub s: Scene,
    pub tree: usize,
    /// Of each leaf.
    pub media: Vec<MediumHandle>,
}

impl Grove {
    pub fn new() -> Self {
        Grove::of(Branch::even(), true)
    }

    pub fn of(shape: Branch, by_gateway: bool) -> Self {
        let mut world = World::new(7, WireConfig::default(), std::env::var("TRACE").is_ok());
        for node in ["below0", "below1", "gateway"] {
            let config =
                TargetConfig { node: node.into(), insecure: true, ..TargetConfig::default() };
            world.add_server(1, StationConfig::default(), config, None);
        }
        world.servers[GATEWAY].leaf_settings.config.wait = true;
        let (mut leaves, mut media) = (Vec::new(), Vec::new());
        for leaf in 0..8 {
            let config = MediumConfig { bytes: (LEAF * 512) as u64, ..MediumConfig::default() };
            let medium = MediumHandle::new(leaf as u64 + 1, [leaf as u8 + 1; 16], config);
            media.push(medium.clone());
            if by_gateway && leaf % 2 == 0 {
                leaves.push(TreeLeaf::File(medium));
                continue;
            }
            let export =
                world.add_export(leaf / 2 % 2, (LEAF * 512) as u64, 512, Store::File(medium));
            leaves.push(world.remote_leaf(export));
        }
        let tree = world.add_tree(if by_gateway { GATEWAY } else { NOBODY }, shape, leaves);
        (0..3).for_each(|server| world.start_server(server));
        let client = world.add_client(1, StationConfig::default(), tree, Workload::NONE);
        world.clients[client].keeps_log = true;
        world.exports[tree].writers = 1;
        let mut s = Scene { world, medium: media[1].clone(), links: 1 };
        s.attach(client);
        Grove { s, tree, media }
    }

    /// The sectors of a leaf.
    pub fn leaf(number: usize) -> Range {
        at(number * LEAF, LEAF)
    }

    pub fn may_fail(&mut self) {
        self.s.world.exports[self.tree].may_fail = true;
    }

    pub fn restart(&mut self, server: usize, how: Crash) {
        self.s.world.crash_server(server, how);
        self.s.world.start_server(server);
    }

    pub fn restart_all(&mut self, how: Crash) {
        (0..3).for_each(|server| self.restart(server, how));
    }

    /// How often the gateway has fenced whoever was the writer, for somebody who had a leaf.
    pub fn raised(&self) -> u64 {
        let tree = self.s.world.exports[self.tree].tree().expect("it is one");
        tree.memory.borrow().raised()
    }

    /// What has become of its notes so far.
    pub fn notes(&self) -> NoteStats {
        let tree = self.s.world.exports[self.tree].tree().expect("it is one");
        tree.memory.borrow().notes.stats()
    }

    /// What becomes of the next changes of the gateway's notes; those that are not named succeed.
    pub fn script_notes(&self, fates: impl IntoIterator<Item = NoteFate>) {
        let tree = self.s.world.exports[self.tree].tree().expect("it is one");
        tree.memory.borrow_mut().notes.script(fates);
    }

    /// The gateway is started as often as it dies of itself.
    pub fn start_gateway(&mut self) {
        for _ in 0..4 {
            self.s.world.start_server(GATEWAY);
            self.s.pass(ms(2500));
            if !self.s.world.died.contains(&GATEWAY) {
                return;
            }
            self.s.world.died.clear();
        }
        panic!("it dies again and again");
    }

    /// Figures of the gateway's attachment to a leaf.
    pub fn stats(world: &World, leaf: usize) -> InitiatorStats {
        let found = world.servers[GATEWAY].leaves().find(|l| l.leaf == leaf);
        found.map(|l| l.initiator.report(Time(world.now)).stats).unwrap_or_default()
    }

    pub fn flush_at_last(&mut self) {
        assert!((0..5).any(|_| self.s.flush().is_ok()), "no flush succeeds");
    }

    /// One in which the server of a leaf has lost what was written there, and could not take it again.
    pub fn that_lost(leaf: usize) -> Self {
        let mut g = Grove::new();
        g.may_fail();
        g.s.write(Grove::leaf(leaf));
        g.media[leaf].configure(|c| c.write_failure = 1.0);
        g.restart(leaf / 2 % 2, Crash::Power);
        g.s.until("it fails", move |w| Grove::stats(w, leaf).replay_failures > 0);
        g.media[leaf].configure(|c| c.write_failure = 0.0);
        g
    }

    /// A flush succeeds, the gateway has fenced its writer so often, and as [`Grove::end`].
    pub fn end_having_raised(mut self, times: u64) {
        assert_eq!(self.s.flush(), Ok(()));
        assert_eq!(self.raised(), times);
        self.end();
    }

    /// What was flushed is there, whatever loses its power.
    pub fn end(mut self) {
        self.restart_all(Crash::Power);
        self.s.read(ALL);
        let client = &mut self.s.world.clients[0];
        client.close();
        self.s.until("detached", |w| w.clients[0].initiator.is_none());
        (0..3).for_each(|server| self.s.world.crash_server(server, Crash::Power));
        let model = &self.s.world.exports[self.tree].models[0];
        for (leaf, medium) in self.media.iter().enumerate() {
            let checked = model.check_part(leaf * LEAF, &medium.durable());
            checked.unwrap_or_else(|v| panic!("{}", v.0));
        }
    }
}
