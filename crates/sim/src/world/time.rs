//! How time goes on in a world: to the next event, and everybody who has something to do does it.

use super::{MS, World};
use crate::client::End;
use crate::dialect::DialectUser;
use crate::export::Export;
use crate::gateway::{Fenced, LeavesState};
use crate::medium::MediumHandle;
use crate::model::Violation;
use crate::server::{Crash, Server, TurnScene};
use crate::tree::TreeStore;

/// How often it is looked who is in session with which key, and seems to live.
const KEYS_EVERY: u64 = 20 * MS;

impl World {
    /// When something happens next, `limit` at the latest.
    fn next_time(&self, limit: u64) -> u64 {
        let mut at = limit.min(self.net.next_delivery().unwrap_or(u64::MAX));
        at = at.min(self.with_forger(|forger| forger.due()).flatten().unwrap_or(u64::MAX));
        for medium in self.media() {
            at = at.min(medium.next_event().unwrap_or(u64::MAX));
        }
        for (index, server) in self.servers.iter().enumerate() {
            for (nth, shard) in server.shards.iter().enumerate().filter(|(_, s)| s.runs()) {
                at = at.min(shard.machine.next_time(self.now));
                let due = server.mail.due(nth).filter(|_| shard.machine.rests(self.now));
                at = at.min(due.unwrap_or(u64::MAX));
                // A descriptor stays readable until it is looked at.
                if shard.machine.rests(self.now) && server.is_ready(index, nth, &self.exports) {
                    at = at.min(self.now + 1_000);
                }
            }
        }
        for client in self.clients.iter().filter(|c| c.initiator.is_some()) {
            at = at.min(client.machine.next_time(self.now));
        }
        for juggler in self.jugglers.iter().filter(|j| j.is_running()) {
            at = at.min(juggler.hand.machine.next_time(self.now));
        }
        for user in self.dialect_users.iter().filter(|user| user.is_running()) {
            at = at.min(user.machine.next_time(self.now));
        }
        if let Some(composed) = &self.composed {
            for host in composed.hosts.iter().filter(|host| host.process.is_some()) {
                at = at.min(host.machine.next_time(self.now));
                let is_ready = host.is_ready(composed.volume.own_media());
                if host.machine.rests(self.now) && is_ready {
                    at = at.min(self.now + 1_000);
                }
            }
        }
        if !self.starting.is_empty() {
            at = at.min(self.now + MS);
        }
        at.max(self.now + 1)
    }

    /// Time goes on to the next event, `limit` at the latest, and everybody who has something to
    /// do does it.
    pub fn step(&mut self, limit: u64) -> Result<(), Violation> {
        self.now = self.next_time(limit);
        self.clock.set(self.now);
        self.net.advance(self.now);
        while let Some(forged) = self.with_forger(|forger| forger.take(self.now)).flatten() {
            self.net.forge(forged.from, forged.to, &forged.bytes);
        }
        for medium in self.media() {
            medium.advance(self.now);
        }
        for export in &mut self.exports {
            let life = export.life();
            if let Some(model) = export.models.last_mut() {
                model.note_losses(life);
            }
        }
        if !self.starting.is_empty() {
            self.start_servers();
        }
        self.look_at_grants();
        self.turn_servers();
        self.let_go_of_gone();
        self.turn_clients()?;
        self.turn_jugglers()?;
        self.turn_dialect_users()?;
        self.turn_hosts()?;
        self.look_at_keys()?;
        for export in &self.exports {
            if let Some(breach) = export.breach() {
                return Err(Violation(format!("export {}: {breach}", export.name)));
            }
        }
        let own = self.composed.iter().flat_map(|composed| composed.volume.own_media());
        match own.filter_map(MediumHandle::breach).next() {
            Some(breach) => Err(Violation(format!("a disk of a host: {breach}"))),
            None => Ok(()),
        }
    }

    /// From time to time, in a world with keys.
    fn look_at_keys(&mut self) -> Result<(), Violation> {
        let Some(seals) = self.seals.as_ref().filter(|_| self.keys_at <= self.now) else {
            return Ok(());
        };
        self.keys_at = self.now + KEYS_EVERY;
        if let Some(breach) = seals.borrow().breach() {
            return Err(Violation(breach.to_string()));
        }
        self.check_keys()
    }

    fn turn_servers(&mut self) {
        for (index, server) in self.servers.iter_mut().enumerate() {
            if self.exports.iter().any(|e| e.server == index && e.dies()) {
                // Over what it had asked of a disk, and before it has heard of it, or over a note.
                self.coverage.kills += 1;
                self.trace.note(self.now, "server", "dies over a record", index as u64);
                server.crash(index, Crash::Kill, &mut self.exports, &mut self.coverage);
                self.died.push(index);
                continue;
            }
            for shard in 0..server.shards.len() {
                if !server.shards[shard].runs() {
                    continue;
                }
                let is_ready = server.is_ready(index, shard, &self.exports);
                let has_mail = server.mail.due(shard).is_some_and(|at| at <= self.now);
                let lag = server.lag(shard, self.lag_ns);
                let (machine, now) = (&mut server.shards[shard].machine, self.now);
                let is_due = is_ready || has_mail;
                if !machine.wakes(now, &self.net, is_due, &mut self.rng, lag) {
                    continue;
                }
                if is_ready {
                    server.shards[shard].disk_ready(thinwire_proto::Time(self.now));
                }
                let mine = || self.exports.iter().filter(|e| e.server == index);
                let media = || mine().flat_map(Export::own_media);
                let dies = || mine().any(Export::dies);
                let is_ready =
                    |shard: usize, server: &Server| server.is_ready(index, shard, &self.exports);
                let scene = TurnScene { dies: &dies, is_ready: &is_ready, is_between: false };
                let sent = server.turn(shard, self.now, &scene, &mut self.coverage);
                if sent.is_none() || dies() {
                    if sent.is_some() {
                        media().for_each(MediumHandle::forget_turn);
                    }
                    self.coverage.kills += 1;
                    self.coverage.kills_in_turns += u64::from(sent.is_none());
                    self.trace.note(self.now, "server", "dies in a turn", index as u64);
                    server.crash(index, Crash::Kill, &mut self.exports, &mut self.coverage);
                    self.died.push(index);
                    break;
                }
                if server.frame_ns > 0 {
                    let busy = sent.unwrap_or(0) * server.frame_ns;
                    server.shards[shard].machine.frozen_until = self.now + busy;
                }
                let who = ["server0", "server1", "server2", "server3"][index];
                self.trace.note(self.now, who, "sent", sent.unwrap_or(0));
            }
            match server.let_go_of_fenced(index, &mut self.exports) {
                Fenced::None => {}
                Fenced::Some => {
                    self.coverage.fell_silent += 1;
                    self.trace.note(self.now, "server", "serves an export no more", index as u64);
                }
                Fenced::All => {
                    self.coverage.fell_silent += 1;
                    self.trace.note(self.now, "server", "serves nobody, and ends", index as u64);
                    server.crash(index, Crash::Kill, &mut self.exports, &mut self.coverage);
                    self.died.push(index);
                    continue;
                }
            }
            server.note_grants(&self.exports);
            if self.exports.iter().any(|e| e.server == index && e.dies()) {
                // When its turn comes.
                server.wake();
                continue;
            }
            match server.look_at_leaves() {
                LeavesState::Fine | LeavesState::Incomplete => {}
                LeavesState::Complete => {
                    self.coverage.gateways += 1;
                    self.trace.note(self.now, "server", "serves", index as u64);
                    // What it writes for its clients bears their stamps.
                    let leaves = self.exports.iter().filter(|e| e.server == index);
                    let leaves = leaves.filter_map(Export::tree).flat_map(TreeStore::content_media);
                    leaves.for_each(|medium| medium.fence(0, false));
                    server.serve(index, &mut self.exports, &mut self.coverage);
                }
                LeavesState::Refused(why) => {
                    self.trace.note(self.now, "server", &why, index as u64);
                    let mine = self.exports.iter().filter(|e| e.server == index);
                    mine.filter_map(Export::tree).for_each(|tree| tree.undo_own(&server.pool));
                    server.crash(index, Crash::Kill, &mut self.exports, &mut self.coverage);
                    self.died.push(index);
                }
            }
            if server.has_stopped(self.now) {
                self.coverage.shutdowns += 1;
                server.crash(index, Crash::Kill, &mut self.exports, &mut self.coverage);
                self.trace.note(self.now, "server", "has stopped", index as u64);
            }
        }
    }

    fn turn_clients(&mut self) -> Result<(), Violation> {
        let mut dying = Vec::new();
        for (index, client) in self.clients.iter_mut().enumerate() {
            let runs = client.initiator.is_some();
            if !runs
                || !client.machine.wakes(self.now, &self.net, false, &mut self.rng, self.lag_ns)
            {
                continue;
            }
            let (now, trace) = (self.now, &mut self.trace);
            let name = client.name.clone();
            let mut note = |what: &str, value: u64| trace.note(now, &name, what, value);
            let export = &mut self.exports[client.export];
            let end = client.turn(now, export, &mut self.coverage, &mut note)?;
            dying.extend(client.target_dies.take().map(|why| (export.server, why)));
            if let Some(end) = end {
                note(&format!("ends: {end:?}"), 0);
                match &end {
                    End::Failed(thinwire_volume::ErrorKind::Fenced) => self.coverage.fenced += 1,
                    End::Failed(_) => self.coverage.content_changed += 1,
                    End::Refused(_) => self.coverage.refused_busy += 1,
                    End::Killed => self.coverage.client_crashes += 1,
                    End::Closed => {}
                }
                self.ended.push((index, end));
            }
        }
        for (server, (change, how)) in dying {
            // Many changes come since it is down.
            if self.servers[server].runs() {
                self.coverage.transitions.note_crash(change);
                self.crash_server(server, how);
                self.died.push(server);
            }
        }
        Ok(())
    }

    /// Steps until `done`, or fails after `within_ns`.
    pub fn run_until(
        &mut self,
        what: &str,
        within_ns: u64,
        mut done: impl FnMut(&World) -> bool,
    ) -> Result<(), Violation> {
        let limit = self.now + within_ns;
        while !done(self) {
            if self.now >= limit {
                return Err(self.not_within(what, within_ns));
            }
            self.step(limit)?;
        }
        Ok(())
    }

    /// The failure of something that takes too long.
    pub fn not_within(&self, what: &str, within_ns: u64) -> Violation {
        let clients = self.clients.iter().map(|c| self.describe(c));
        let jugglers = self.jugglers.iter().map(|j| j.describe(self.now));
        let of_dialects = self.dialect_users.iter().map(DialectUser::describe);
        let on_record = self.exports.iter().map(|export| {
            let record = export.record_medium().and_then(|medium| medium.on_record());
            let holder = record.map_or(0, |record| u128::from_be_bytes(record.holder));
            format!("{}: {holder:032x} is on record", export.name)
        });
        let hosts = self.composed.iter().flat_map(|composed| &composed.hosts);
        let hosts = hosts.map(|host| host.describe());
        let changes = self.composed.iter().filter_map(|all| all.volume.changes.as_ref());
        let wishes = changes
            .filter_map(|changes| changes.wish())
            .map(|(_, wish)| format!("wished: {wish:?}"));
        let clients = clients.chain(jugglers).chain(of_dialects).chain(on_record);
        let clients = clients.chain(hosts).chain(wishes);
        let clients = clients.collect::<Vec<_>>().join("; ");
        Violation(format!("{what}: not within {} ms; {clients}", within_ns / MS))
    }

    /// Steps for a time.
    pub fn run_for(&mut self, ns: u64) -> Result<(), Violation> {
        let limit = self.now + ns;
        while self.now < limit {
            self.step(limit)?;
        }
        Ok(())
    }
}
