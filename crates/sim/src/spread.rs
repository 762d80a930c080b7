//! Servers some of whose exports are on all of their shards: each shard has a ring of its own on the one open
//! file, a thread has its turns between any two calls of another's turn, and a process may begin with another
//! number of them than the one before.

use thinwire_buffer::Pool;
use thinwire_link::rng::Rng;
use thinwire_proto::Time;
use thinwire_target::{ExportConfig, SpreadConfig};
use thinwire_volume::Volume;
use thinwire_volume::stores::FileStore;

use crate::coverage::Coverage;
use crate::export::{Export, Store};
use crate::server::{Server, TurnScene};
use crate::world::{MS, World};

/// Tells the dice of a process's mail and verifiers from others that its seed makes.
const SPREAD: u64 = 0x7370_7265_6164;
/// Shards that such a server has, at most.
pub const SHARDS_MAX: u64 = 3;
/// A shard that is slow to run takes so long at most, in ns: who talks to it must not think that it is dead.
const LAG_MAX: u64 = 5 * MS;

/// What is different on a server that has such exports.
#[derive(Clone, Debug)]
pub struct Spreading {
    /// Share of its starts with another number of shards.
    pub reshards: f64,
    /// Share of the calls of a shard's turn behind which another shard has a turn.
    pub between: f64,
    /// This one of its shards is so many times as slow to run as the others.
    pub slow: (usize, u64),
    /// Decides all that.
    pub dice: Rng,
}

impl Server {
    /// A process begins: perhaps with other shards.
    pub(crate) fn deal_shards(&mut self, seed: u64) {
        self.mail.restart(Rng::new(seed ^ SPREAD));
        let Some(spreading) = &mut self.spreading else { return };
        if spreading.dice.chance(spreading.reshards) {
            let count = spreading.dice.between(1, SHARDS_MAX) as usize;
            self.set_shards(count);
        }
    }

    /// Offers an export, the one of this number of the server, on all of the first `count` shards.
    pub(crate) fn serve_spread(
        &mut self,
        (nth, count): (usize, usize),
        export: &mut Export,
        coverage: &mut Coverage,
    ) {
        let owner = nth % count;
        let volumes = export.open_rings(count, owner, self.ignores_lock, &self.pool);
        let verifier = self.spreading.as_mut().expect("it has one").dice.bits();
        for (at, volume) in volumes.into_iter().enumerate() {
            let (name, read_only) = (export.name.clone(), export.read_only);
            let target = self.shards[at].target_mut().expect("it has just begun");
            let (number, shard, shards) = (nth as u32, at as u8, count as u8);
            let spread = SpreadConfig { number, shard, shards, owner: owner as u8, verifier };
            target.add_spread_export(ExportConfig { name, volume, read_only }, spread);
        }
        coverage.spread += 1;
    }

    /// Something that a shard of server `me` waits for can be polled.
    pub(crate) fn is_ready(&self, me: usize, shard: usize, exports: &[Export]) -> bool {
        let is_spread = |e: &&Export| e.is_spread && e.server == me;
        self.exports_of(me, shard, exports).any(|e| !self.is_shared(e) && e.is_ready())
            || exports
                .iter()
                .filter(is_spread)
                .filter_map(Export::medium)
                .any(|medium| self.serves_spread() && medium.is_ring_ready(shard))
    }

    /// How long it takes until a shard runs, where that of others takes `lag` ns.
    pub(crate) fn lag(&self, shard: usize, lag: u64) -> u64 {
        let slow = self.spreading.as_ref().map(|spreading| spreading.slow);
        let slow = slow.filter(|(slow, times)| *slow == shard && *times > 1);
        slow.map_or(lag, |(_, times)| (lag.max(1_000) * times).min(LAG_MAX.max(lag)))
    }

    fn is_shared(&self, export: &Export) -> bool {
        export.is_spread && self.serves_spread()
    }

    /// With one shard an export that is to be on all of them is one like any other.
    pub(crate) fn serves_spread(&self) -> bool {
        self.spreading.is_some() && self.shards.len() > 1
    }

    /// Behind a call of a shard's turn: another may have one now. False if the process is killed in it.
    pub(crate) fn turn_between(
        &mut self,
        shard: usize,
        now: u64,
        scene: &TurnScene<'_>,
        coverage: &mut Coverage,
    ) -> bool {
        let count = self.shards.len() as u64;
        let Some(spreading) = self.spreading.as_mut().filter(|_| count > 1) else { return true };
        if scene.is_between || !spreading.dice.chance(spreading.between) {
            return true;
        }
        let other = (shard + spreading.dice.between(1, count - 1) as usize) % count as usize;
        if self.shards[other].machine.frozen_until > now || !self.shards[other].runs() {
            return true;
        }
        coverage.turns_between += 1;
        let scene = TurnScene { is_between: true, ..*scene };
        if (scene.is_ready)(other, self) {
            self.shards[other].disk_ready(Time(now));
        }
        self.turn(other, now, &scene, coverage).is_some()
    }
}

impl World {
    /// Stops a thread of a server for so long, and none of the others, if there is one of this number.
    pub fn freeze_shard(&mut self, server: usize, shard: usize, ns: u64) {
        let Some(shard) = self.servers[server].shards.get_mut(shard).filter(|s| s.runs()) else {
            return;
        };
        shard.machine.frozen_until = self.now + ns;
        self.coverage.shards_frozen += 1;
        self.trace.note(self.now, "shard", "is frozen", ns);
    }
}

impl Export {
    /// Its volumes, for a process that starts now, on so many shards; the one of `owner` is used for all that is
    /// for all of it.
    fn open_rings(
        &mut self,
        count: usize,
        owner: usize,
        ignores_lock: bool,
        pool: &Pool,
    ) -> Vec<Box<dyn Volume>> {
        let Store::File(medium) = &self.store else { unreachable!("what is spread is a file") };
        assert!(ignores_lock || medium.has_no_dead(), "a starting target waits for the lock");
        let volume = |disk| -> Box<dyn Volume> {
            Box::new(FileStore::new(disk, self.block_bytes, pool).expect("it fits"))
        };
        medium.open_rings(count, owner).into_iter().map(volume).collect()
    }
}
