//! What a world says of itself: what it is made of, how its clients are, what was exercised in it.

use super::{MS, World};
use crate::client::Client;
use crate::coverage::Coverage;
use crate::damage::Damage;
use crate::export::{Export, Store};
use crate::medium::MediumHandle;
use crate::server::harvest;

impl World {
    pub(super) fn describe(&self, client: &Client) -> String {
        match &client.initiator {
            None => format!("{} is down", client.name),
            Some(initiator) => {
                let r = initiator.report(thinwire_proto::Time(self.now));
                format!(
                    "{} (run {}) is {} with {} outstanding, the oldest since {} ms, {} bytes \
                     retained, timer {:?}, paths {:?}",
                    client.name,
                    client.run,
                    r.phase.name(),
                    r.outstanding,
                    (self.now - client.oldest().unwrap_or(self.now)) / MS,
                    r.retained_bytes,
                    r.timer,
                    r.paths
                )
            }
        }
    }

    /// Writes to stderr what the world is made of.
    pub fn describe_settings(&self) {
        eprintln!("{:?}, lag {} ns", self.net.wire(), self.lag_ns);
        for (index, server) in self.servers.iter().enumerate() {
            eprintln!("server{index}: {:?}, faults {:?}", server.config, server.faults);
        }
        for e in &self.exports {
            let store = match &e.store {
                Store::Memory => "memory".to_string(),
                Store::Tree(tree) => {
                    format!("{:?} of {:?}", tree.shape, tree.leaves)
                }
                Store::Pool(of) => format!("{:?} on {:?}", of.shape, of.media),
                Store::File(medium) => format!("file on {:?}", medium.config()),
                Store::Writeback(medium, max) => {
                    format!("write-back of {max} on {:?}", medium.config())
                }
            };
            let Export { name, server, bytes, block_bytes, cache, .. } = e;
            eprintln!(
                "{name} of server{server}: {bytes} bytes in {block_bytes}, {store}, cache {cache:?}"
            );
        }
        for c in &self.clients {
            eprintln!("{} on export {}: {:?}, {:?}", c.name, c.export, c.config, c.workload);
        }
        for j in &self.jugglers {
            eprintln!("{}, leaves {}, {:?}", j.describe(self.now), j.leaves, j.workload);
        }
    }

    /// What was exercised, those included who still run.
    pub fn figures(&mut self) -> Coverage {
        for server in 0..self.servers.len() {
            self.servers[server].targets().for_each(|target| harvest(target, &mut self.coverage));
            self.servers[server].leaves().for_each(|leaf| leaf.harvest(&mut self.coverage));
        }
        let mut all = self.coverage;
        all.late_attaches = self.ways.late_attaches();
        all.probes_played_back = self.ways.probes_played_back();
        for machine in self.machines_mut() {
            let queue = machine.narrow_stats();
            all.sends_partial += queue.partial;
            all.sends_refused += queue.full;
            all.frames_given_up += queue.dropped;
            let lending = machine.lending_stats();
            all.frames_lent += lending.lent;
            all.frames_lent_short += lending.short;
            let damage = machine.damage.as_ref().map(Damage::stats).unwrap_or_default();
            all.altered_bits += damage.bits;
            all.altered_swaps += damage.swaps;
            all.altered_places += damage.places;
            all.altered_sums += damage.sums;
        }
        let buffers = self.clients.iter().filter_map(|client| client.buffers.as_ref());
        all.altered_buffers = buffers.map(|buffers| buffers.gone_bad).sum();
        all.keyed_worlds = u64::from(self.keys.is_some());
        if let Some(seals) = &self.seals {
            let seals = seals.borrow().stats();
            [all.sealed_aes128, all.sealed_aes256, all.sealed_chacha, all.sealed_gmac] =
                seals.directions;
            all.rekeys = seals.rekeys;
            all.seals_retried = seals.retried;
            all.greetings_repeated = seals.repeated;
            all.seals_replayed = seals.replayed;
        }
        self.with_forger(|forger| forger.harvest(&mut all));
        let wire = self.net.stats();
        all.frames_sent = wire.sent;
        all.frames_lost = wire.lost;
        all.frames_cut = wire.cut;
        all.frames_too_long = wire.too_long;
        all.frames_reordered = wire.reordered;
        all.frames_no_room = wire.no_room + wire.port_full;
        // Images that were replaced count, too; one that shrank stays where it was.
        let mut media: Vec<&MediumHandle> = Vec::new();
        let of_contents = self.exports.iter().flat_map(|e| &e.contents);
        let of_contents = of_contents.filter_map(|c| c.medium.as_ref());
        for medium in of_contents.chain(self.exports.iter().flat_map(Export::own_media)) {
            if !media.iter().any(|other| other.is_same(medium)) {
                media.push(medium);
            }
        }
        for tree in self.exports.iter().filter_map(Export::tree) {
            let memory = tree.memory.borrow();
            all.fenced_for_leaves += memory.raised();
            all.fenced_in_vain += memory.raised_in_vain();
            let notes = memory.notes.stats();
            all.note_failures += notes.failures;
            all.note_crashes += notes.crashes;
            all.notes_lost += notes.losses;
            all.grants_taken_back += notes.taken_back;
        }
        for medium in media {
            let stats = medium.stats();
            all.record_crashes += stats.record_crashes;
            all.opening_failures += stats.opening_failures;
            all.device_failures += stats.device_failures;
            all.writeback_failures += stats.writeback_failures;
            all.landed_late += stats.landed_late;
            all.torn_writes += stats.torn;
            all.sectors_lost += stats.sectors_lost;
            all.flush_failures += stats.flush_failures;
            all.write_failures += stats.write_failures;
            all.record_failures += stats.record_failures;
        }
        all
    }
}
