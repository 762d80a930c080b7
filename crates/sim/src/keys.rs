//! The keys of a world: whose they are, what its servers accept by now, and how that changes under way.
//! Whatever is taken away is given back in the end; nothing that was promised breaks by it, and who comes
//! back with another key of the same principal is who it was.

use std::sync::Arc;

use thinwire_initiator::InitiatorKey;
use thinwire_link::rng::Rng;
use thinwire_proto::RekeyLimits;
use thinwire_seal::{Key, Preference, Suites, identity};
use thinwire_target::{Access, Principal, Target, TargetKeys};

use crate::model::Violation;
use crate::server::{Server, ServerShard};
use crate::world::{SECOND, SimHost, World};

/// Keys that a principal may ever have.
pub const KEYS_MAX: usize = 4;
/// A refusal may still arrive so long after the right was given back, in ns.
const LATE_REFUSAL: u64 = 15 * SECOND;
/// Tells the dice of ephemeral keys from others that a seed makes.
const ENTROPY: u64 = 0x656e_7472_6f70_7921;

/// Which key a machine greets with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whose it is.
    pub principal: usize,
    /// Which of the keys of that, below [`KEYS_MAX`].
    pub key: usize,
}

/// What all machines of a world with keys have in common.
#[derive(Clone, Debug)]
pub struct WorldKeys {
    /// All keys are made of it.
    pub seed: u64,
    /// How many keys of each principal servers accept at first.
    pub principals: Vec<usize>,
    /// Which of them a stranger is, if it has a key.
    pub stranger: Option<usize>,
    /// What servers agree to.
    pub offered: Suites,
    /// What initiators agree to.
    pub asked: Suites,
    /// What servers like best, whatever machine this runs on.
    pub preference: Preference,
    /// How long one key of a session is used.
    pub limits: RekeyLimits,
}

/// 32 bytes for the ephemeral keys of a process.
pub fn entropy(seed: u64) -> [u8; 32] {
    let mut dice = Rng::new(seed ^ ENTROPY);
    let mut bytes = [0; 32];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&dice.bits().to_le_bytes()));
    bytes
}

/// The name of a principal.
pub fn name_of(principal: usize) -> Arc<str> {
    format!("principal{principal}").into()
}

/// Who an initiator that claims to be this is to a server.
pub fn known_as(holder: Option<Holder>, claimed: [u8; 16]) -> [u8; 16] {
    holder.map_or(claimed, |holder| identity(&name_of(holder.principal), &claimed))
}

impl WorldKeys {
    /// A key.
    pub fn key(&self, holder: Holder) -> Key {
        let place = (holder.principal * KEYS_MAX + holder.key) as u64;
        Key::from_bytes(entropy(self.seed ^ (place + 1) << 32)).expect("not all zeroes")
    }

    /// What an initiator greets with; its process gives it entropy of its own.
    pub fn initiator_key(&self, holder: Holder) -> InitiatorKey {
        let (suites, limits) = (self.asked, self.limits);
        InitiatorKey { suites, limits, ..InitiatorKey::new(self.key(holder), [0; 32]) }
    }

    /// What servers accept at first, with these rights.
    pub fn target_keys(&self, access: Vec<(String, Access)>) -> TargetKeys {
        let principal = |(principal, &count): (usize, &usize)| Principal {
            name: name_of(principal),
            keys: (0..count).map(|key| self.key(Holder { principal, key })).collect(),
        };
        let principals = self.principals.iter().enumerate().map(principal).collect();
        TargetKeys {
            access,
            suites: self.offered,
            preference: self.preference,
            limits: self.limits,
            ..TargetKeys::new(principals, [0; 32])
        }
    }
}

/// Something that happens to keys.
#[derive(Clone, Debug)]
pub enum KeyEvent {
    /// A server, or all, do not accept a key any more, for so long; 0 for ever.
    Take {
        /// Which; none for all.
        server: Option<usize>,
        /// Which key.
        key: Holder,
        /// In ns.
        for_ns: u64,
    },
    /// A server, or all, accept a key.
    Give {
        /// Which; none for all.
        server: Option<usize>,
        /// Which key.
        key: Holder,
    },
    /// A machine has another key of its principal, from its next process on, which begins now.
    Switch {
        /// Which machine.
        host: SimHost,
        /// Which of the keys.
        key: usize,
    },
    /// A principal may only read an export, or not even that, for so long.
    Bar {
        /// Which export.
        export: usize,
        /// Whose right it was.
        principal: usize,
        /// It may read.
        may_read: bool,
        /// In ns.
        for_ns: u64,
    },
    /// It may again what it might.
    Unbar {
        /// Which export.
        export: usize,
        /// Who might do what with it.
        before: Option<Access>,
    },
    /// A shard hears what its server accepts by now.
    Tell {
        /// Which server.
        server: usize,
        /// Which of its shards.
        shard: usize,
    },
}

impl Server {
    fn accept(&mut self, keys: &WorldKeys, holder: Holder) {
        let Some(list) = &mut self.config.keys else { return };
        let key = keys.key(holder);
        let name = name_of(holder.principal);
        let found = list.principals.iter_mut().find(|p| p.name == name);
        let all = &mut found.expect("all principals are there").keys;
        if all.iter().all(|other| other.id() != key.id()) {
            all.push(key);
        }
    }

    fn take_away(&mut self, keys: &WorldKeys, holder: Holder) {
        let Some(list) = &mut self.config.keys else { return };
        let id = keys.key(holder).id();
        list.principals.iter_mut().for_each(|p| p.keys.retain(|key| key.id() != id));
    }

    fn access_of(&mut self, export: &str) -> Option<Access> {
        let list = self.config.keys.as_ref()?;
        list.access.iter().find(|(name, _)| name == export).map(|(_, access)| access.clone())
    }

    fn set_access(&mut self, export: &str, access: Option<Access>) {
        let Some(list) = &mut self.config.keys else { return };
        list.access.retain(|(name, _)| name != export);
        list.access.extend(access.map(|access| (export.to_string(), access)));
    }
}

impl ServerShard {
    /// Its target, if it runs, and what it accepts, have come to an end of what is not accepted any more.
    fn check_keys(&self) -> Result<(), Violation> {
        let (Some(target), Some(keys)) = (self.target(), &self.keys) else { return Ok(()) };
        for session in target.sessions() {
            let Some(key) = &session.key else {
                return Err(Violation(format!("a session of {} has no key", session.initiator)));
            };
            let mut of_it = keys.principals.iter().filter(|p| *p.name == *key.principal);
            if !of_it.any(|p| p.keys.iter().any(|k| k.id() == key.key)) {
                let text = format!(
                    "{} is in session with key {}, which was taken away",
                    session.initiator, key.key
                );
                return Err(Violation(text));
            }
            for (export, access) in &keys.access {
                let mut named = access.writers.iter().flatten().chain(&access.readers);
                let may_know = access.writers.is_none() || named.any(|who| *who == key.principal);
                if !may_know && session.exports.contains(export) {
                    let text = format!("{} has {export} open, which it may not", session.initiator);
                    return Err(Violation(text));
                }
            }
        }
        Ok(())
    }
}

impl World {
    /// What happens to keys happens. Tells what follows, and when.
    pub fn change_keys(&mut self, event: KeyEvent, dice: &mut Rng) -> Vec<(u64, KeyEvent)> {
        let Some(keys) = self.keys.clone() else { return Vec::new() };
        let mut follows = Vec::new();
        let mut changed = Vec::new();
        let all = 0..self.servers.len();
        let servers_of = |server: Option<usize>| server.map_or(all.clone(), |at| at..at + 1);
        self.trace.note(self.now, "keys", event.name(), 0);
        match event {
            KeyEvent::Take { server, key, for_ns } => {
                self.coverage.keys_taken += 1;
                changed.extend(servers_of(server));
                changed.iter().for_each(|&at| self.servers[at].take_away(&keys, key));
                if for_ns > 0 {
                    follows.push((self.now + for_ns, KeyEvent::Give { server, key }));
                }
            }
            KeyEvent::Give { server, key } => {
                changed.extend(servers_of(server));
                changed.iter().for_each(|&at| self.servers[at].accept(&keys, key));
            }
            KeyEvent::Switch { host, key } => self.switch_key(&keys, host, key),
            // One after the other, so that each finds again what was before it.
            KeyEvent::Bar { export, .. } if self.exports[export].barred_until == u64::MAX => {}
            KeyEvent::Bar { export, principal, may_read, for_ns } => {
                self.coverage.rights_taken += 1;
                let server = self.exports[export].server;
                let name = self.exports[export].name.clone();
                let before = self.servers[server].access_of(&name);
                let who = name_of(principal).to_string();
                let all = (0..keys.principals.len()).map(|p| name_of(p).to_string());
                let is_other = |other: &String| *other != who;
                let mut access = before.clone().unwrap_or_default();
                let writers = access.writers.unwrap_or(all.collect());
                access.writers = Some(writers.into_iter().filter(is_other).collect());
                access.readers.retain(is_other);
                access.readers.extend(may_read.then_some(who));
                self.servers[server].set_access(&name, Some(access));
                self.exports[export].barred_until = u64::MAX;
                changed.push(server);
                follows.push((self.now + for_ns, KeyEvent::Unbar { export, before }));
            }
            KeyEvent::Unbar { export, before } => {
                let server = self.exports[export].server;
                let name = self.exports[export].name.clone();
                self.servers[server].set_access(&name, before);
                self.exports[export].barred_until = self.now + LATE_REFUSAL;
                changed.push(server);
            }
            KeyEvent::Tell { server, shard } => self.tell_keys(server, shard),
        }
        for server in changed {
            // Its shards hear of it one after the other.
            let late = if dice.chance(0.5) { 0 } else { dice.between(1, SECOND / 100) };
            for shard in 0..self.servers[server].shards.len() {
                let at = self.now + late * shard as u64;
                follows.push((at, KeyEvent::Tell { server, shard }));
            }
        }
        follows
    }

    fn tell_keys(&mut self, server: usize, shard: usize) {
        let Server { shards, config, .. } = &mut self.servers[server];
        // It may have begun anew with other shards.
        let Some(shard) = shards.get_mut(shard) else { return };
        let (Some(keys), true) = (&config.keys, shard.target().is_some()) else { return };
        shard.keys = Some(keys.clone());
        let target = shard.target_mut().expect("just looked");
        self.coverage.sessions_taken += target.set_keys(keys.clone()) as u64;
        shard.machine.dirty = true;
    }

    /// Whoever has it next has this key.
    fn switch_key(&mut self, keys: &WorldKeys, host: SimHost, key: usize) {
        self.coverage.keys_switched += 1;
        match host {
            // In no world with keys.
            SimHost::Dialect(_) | SimHost::Composer(_) => {}
            SimHost::Client(at) => {
                let client = &mut self.clients[at];
                let Some(holder) = &mut client.holder else { return };
                holder.key = key;
                client.config.key = Some(keys.initiator_key(*holder));
                if client.initiator.is_some() {
                    self.crash_client(at);
                    self.clients[at].config.take_over = false;
                    self.start_client(at);
                }
            }
            SimHost::Juggler(at) => {
                let juggler = &mut self.jugglers[at];
                let Some(holder) = &mut juggler.holder else { return };
                holder.key = key;
                juggler.hand.key = Some(keys.initiator_key(*holder));
                if juggler.is_running() {
                    self.crash_juggler(at);
                    self.start_juggler(at);
                }
            }
            // When it begins anew for another reason.
            SimHost::Server(at) => {
                let settings = &mut self.servers[at].leaf_settings;
                let Some(holder) = &mut settings.holder else { return };
                holder.key = key;
                settings.config.key = Some(keys.initiator_key(*holder));
            }
        }
    }

    /// All that anybody ever had is accepted, and everybody may what it might at first.
    pub fn restore_keys(&mut self) {
        let Some(keys) = self.keys.clone() else { return };
        let all = WorldKeys { principals: vec![KEYS_MAX; keys.principals.len()], ..keys };
        for server in 0..self.servers.len() {
            let Some(list) = &mut self.servers[server].config.keys else { continue };
            let (entropy, access) = (list.entropy, std::mem::take(&mut list.access));
            *list = TargetKeys { entropy, ..all.target_keys(access) };
            for shard in 0..self.servers[server].shards.len() {
                self.tell_keys(server, shard);
            }
        }
    }

    /// What was taken away has ended, and nobody seems to live who has not said anything.
    pub(crate) fn check_keys(&self) -> Result<(), Violation> {
        let shards = self.servers.iter().flat_map(|server| &server.shards);
        for shard in shards {
            shard.check_keys()?;
        }
        for server in &self.servers {
            for target in server.targets() {
                self.check_signs_of_life(server, target)?;
            }
        }
        Ok(())
    }

    /// No session was heard later than its initiator's last frame came that nobody else has made.
    fn check_signs_of_life(&self, server: &Server, target: &Target) -> Result<(), Violation> {
        let Some(seals) = &self.seals else { return Ok(()) };
        for session in target.sessions() {
            let Some(stations) = self.stations_named(&session.initiator) else { continue };
            let heard = seals.borrow().heard(server.stations()[0], stations[0]);
            if heard.is_none_or(|heard| heard < session.last_heard.0) {
                let text = format!(
                    "the session of {} was heard at {} ns, which said its last at {heard:?}",
                    session.initiator, session.last_heard.0
                );
                return Err(Violation(text));
            }
        }
        Ok(())
    }

    /// The stations of whoever calls itself so.
    fn stations_named(&self, name: &str) -> Option<&[u32]> {
        let clients = self.clients.iter().map(|c| (&c.name, &c.machine));
        let jugglers = self.jugglers.iter().map(|j| (&j.name, &j.hand.machine));
        let mut initiators = clients.chain(jugglers);
        if let Some((_, machine)) = initiators.find(|(other, _)| *other == name) {
            return Some(&machine.stations);
        }
        let of_gateway = |s: &&Server| name.starts_with(&format!("{} leaf ", s.config.node));
        self.servers.iter().find(of_gateway).map(Server::stations)
    }
}

impl KeyEvent {
    fn name(&self) -> &'static str {
        match self {
            KeyEvent::Take { .. } => "one is taken away",
            KeyEvent::Give { .. } => "one is given",
            KeyEvent::Switch { .. } => "another is used",
            KeyEvent::Bar { .. } => "a right is taken away",
            KeyEvent::Unbar { .. } => "a right is given",
            KeyEvent::Tell { .. } => "a shard is told",
        }
    }
}
