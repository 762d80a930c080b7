//! Worlds with keys, about half of all: who has which, how long one is used, who takes them away and when, and
//! somebody on the way who has none. Drawn apart, so that all else is as it would be without.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_link::rng::Rng;
use thinwire_proto::RekeyLimits;
use thinwire_seal::{Preference, Suites};
use thinwire_target::Access;

use super::pick;
use crate::forger::{FORGERIES, Forger, ForgerConfig};
use crate::keys::{Holder, KEYS_MAX, KeyEvent, WorldKeys, name_of};
use crate::sealed::SealWatch;
use crate::tree::TreeLeaf;
use crate::world::{MS, SECOND, SimHost, World};

/// Which share of the worlds has keys.
const SHARE: f64 = 0.5;
/// Of these, the share with somebody on the way who has none.
const FORGED: f64 = 0.8;
/// Of these, the share whose keys and rights change under way.
const CHANGED: f64 = 0.6;
/// Times at which something happens to keys, at most.
const CHANGES_MAX: u64 = 8;

fn dice(seed: u64) -> Option<Rng> {
    let mut dice = Rng::new(seed ^ 0x6b65_7973_2121);
    dice.chance(SHARE).then_some(dice)
}

/// Whether the world of this seed has keys.
pub fn has_keys(seed: u64) -> bool {
    dice(seed).is_some()
}

/// Gives everybody a key, if this is the seed of such a world.
pub(super) fn give(seed: u64, world: &mut World) {
    let Some(mut dice) = dice(seed) else { return };
    let mut keys = draw(&mut dice);
    let users = keys.principals.len() as u64;
    let mut holder = |keys: &WorldKeys| {
        let principal = dice.below(users) as usize;
        Holder { principal, key: dice.below(keys.principals[principal] as u64) as usize }
    };
    for client in &mut world.clients {
        let own = holder(&keys);
        (client.holder, client.config.key) = (Some(own), Some(keys.initiator_key(own)));
        client.config.insecure = false;
    }
    for juggler in &mut world.jugglers {
        let own = holder(&keys);
        (juggler.holder, juggler.hand.key) = (Some(own), Some(keys.initiator_key(own)));
    }
    for server in &mut world.servers {
        let (own, settings) = (holder(&keys), &mut server.leaf_settings);
        (settings.holder, settings.config.key) = (Some(own), Some(keys.initiator_key(own)));
        settings.config.insecure = false;
    }
    for export in &mut world.exports {
        let gateway = world.servers.get(export.server).and_then(|s| s.leaf_settings.holder);
        if let crate::export::Store::Tree(tree) = &mut export.store {
            tree.holder = gateway;
        }
    }
    // Strangers have a key of their own, or none.
    if dice.chance(0.7) {
        keys.stranger = Some(keys.principals.len());
        keys.principals.push(1);
    }
    for server in 0..world.servers.len() {
        let access = rights(world, &keys, server, &mut dice);
        let config = &mut world.servers[server].config;
        (config.keys, config.insecure) = (Some(keys.target_keys(access)), false);
    }
    let seals = Rc::<RefCell<SealWatch>>::default();
    world.machines_mut().for_each(|machine| machine.seals = Some(seals.clone()));
    (world.seals, world.keys) = (Some(seals), Some(keys));
    if dice.chance(FORGED) {
        let config = forger(&mut dice);
        world.set_forger(Forger::new(Rng::new(dice.bits()), config));
    }
}

fn draw(dice: &mut Rng) -> WorldKeys {
    let encrypted = Suites::ENCRYPTED;
    let (offered, asked) = match dice.below(6) {
        0 => (Suites(0b0010), encrypted),
        1 => (encrypted, Suites(0b0110)),
        2 => (Suites::AUTHENTICATED, Suites::AUTHENTICATED),
        _ => (encrypted, encrypted),
    };
    let preference = pick(dice, &[Preference::Aes, Preference::ChaCha]);
    let all = RekeyLimits::default();
    let limits = RekeyLimits {
        frames: pick(dice, &[20, 100, 500, 2000, all.frames, all.frames]),
        bytes: pick(dice, &[256 << 10, 4 << 20, all.bytes, all.bytes]),
        time: pick(
            dice,
            &[
                Duration::from_millis(200),
                Duration::from_secs(2),
                Duration::from_secs(30),
                all.time,
            ],
        ),
    };
    let count = pick(dice, &[1, 1, 2, 3]);
    let principals = (0..count).map(|_| dice.between(1, KEYS_MAX as u64 - 1) as usize).collect();
    let (seed, stranger) = (dice.bits(), None);
    WorldKeys { seed, principals, stranger, offered, asked, preference, limits }
}

/// Lists for some exports of a server, of those who use them and perhaps others.
fn rights(world: &World, keys: &WorldKeys, server: usize, dice: &mut Rng) -> Vec<(String, Access)> {
    let mut rights = Vec::new();
    for (number, export) in world.exports.iter().enumerate() {
        if export.server != server || dice.chance(0.6) {
            continue;
        }
        let mut access = Access { writers: Some(Vec::new()), readers: Vec::new() };
        let mut add = |principal: usize, reads: bool| {
            let writers = access.writers.as_mut().expect("a list");
            let list = if reads { &mut access.readers } else { writers };
            let name = name_of(principal).to_string();
            if !list.contains(&name) {
                list.push(name);
            }
        };
        for (principal, reads) in users(world, number) {
            add(principal, reads);
        }
        for principal in 0..keys.principals.len() {
            if dice.chance(0.3) {
                add(principal, true);
            }
        }
        rights.push((export.name.clone(), access));
    }
    rights
}

/// The principals that use an export, and whether for reading only.
fn users(world: &World, export: usize) -> Vec<(usize, bool)> {
    let mut users = Vec::new();
    // Whoever stands on it has the tree that it is a leaf of.
    let is_leaf =
        |leaf: &TreeLeaf| matches!(leaf, TreeLeaf::Remote { export: at, .. } if *at == export);
    for (number, tree) in world.exports.iter().enumerate() {
        let Some(store) = tree.tree().filter(|tree| tree.leaves.iter().any(is_leaf)) else {
            continue;
        };
        let standing = world.clients.iter().filter(|c| c.export == number);
        match store.holder {
            Some(gateway) => users.push((gateway.principal, false)),
            None => users.extend(standing.filter_map(|c| Some((c.holder?.principal, false)))),
        }
    }
    let clients = world.clients.iter().filter(|c| c.export == export);
    users.extend(clients.filter_map(|c| Some((c.holder?.principal, c.config.read_only))));
    // Some of its exports it only reads.
    let jugglers = world.jugglers.iter().filter(|j| j.uses(export));
    users.extend(jugglers.filter_map(|j| Some((j.holder?.principal, !j.writes(export)))));
    users
}

fn forger(dice: &mut Rng) -> ForgerConfig {
    let mut weights = [0; FORGERIES];
    for weight in &mut weights {
        *weight = if dice.chance(0.4) { 0 } else { dice.between(1, 4) };
    }
    ForgerConfig {
        share: pick(dice, &[0.002, 0.01, 0.05]),
        share_of_greetings: pick(dice, &[0.0, 0.1, 0.3]),
        weights,
        goes_on: dice.chance(0.5),
    }
}

/// What happens to keys, and when, in a run of so many ns.
pub(crate) fn plan_keys(seed: u64, world: &World, within_ns: u64) -> Vec<(u64, KeyEvent)> {
    let Some(keys) = &world.keys else { return Vec::new() };
    let mut dice = Rng::new(seed ^ 0x6368_616e_6765_6421);
    let mut planned = Vec::new();
    if !dice.chance(CHANGED) {
        return planned;
    }
    for _ in 0..dice.between(1, CHANGES_MAX) {
        let at = world.now + dice.between(1, within_ns);
        let longest = pick(&mut dice, &[200 * MS, SECOND, 4 * SECOND]);
        let for_ns = dice.between(longest / 4, longest);
        match dice.below(4) {
            0 => {
                let servers = world.servers.len() as u64;
                let one = dice.chance(0.5).then(|| dice.below(servers) as usize);
                let key = some_key(keys, &mut dice);
                planned.push((at, KeyEvent::Take { server: one, key, for_ns }));
            }
            1 => rotate(world, keys, at, &mut dice, &mut planned),
            _ => {
                let export = dice.below(world.exports.len() as u64) as usize;
                let all = users(world, export);
                // Those who stand on others are told of errors, which is another story.
                let e = &world.exports[export];
                let is_served = e.server < world.servers.len() && !e.is_leaf;
                if !is_served || all.is_empty() {
                    continue;
                }
                let (principal, _) = all[dice.below(all.len() as u64) as usize];
                let may_read = dice.chance(0.5);
                planned.push((at, KeyEvent::Bar { export, principal, may_read, for_ns }));
            }
        }
    }
    planned
}

fn some_key(keys: &WorldKeys, dice: &mut Rng) -> Holder {
    let principal = dice.below(keys.principals.len() as u64) as usize;
    Holder { principal, key: dice.below(keys.principals[principal] as u64) as usize }
}

/// A principal gets another key, its machines begin to use it one after the other, and the former is taken away.
fn rotate(
    world: &World,
    keys: &WorldKeys,
    at: u64,
    dice: &mut Rng,
    planned: &mut Vec<(u64, KeyEvent)>,
) {
    let old = some_key(keys, dice);
    let new = Holder { key: (old.key + 1) % KEYS_MAX, ..old };
    planned.push((at, KeyEvent::Give { server: None, key: new }));
    let clients = world.clients.iter().enumerate().filter(|(_, c)| !c.is_guest);
    let clients = clients.map(|(at, c)| (SimHost::Client(at), c.holder));
    let jugglers = world.jugglers.iter().enumerate();
    let jugglers = jugglers.map(|(at, j)| (SimHost::Juggler(at), j.holder));
    let servers = world.servers.iter().enumerate();
    let servers = servers.map(|(at, s)| (SimHost::Server(at), s.leaf_settings.holder));
    for (host, holder) in clients.chain(jugglers).chain(servers) {
        if holder == Some(old) {
            let at = at + dice.between(20 * MS, SECOND);
            planned.push((at, KeyEvent::Switch { host, key: new.key }));
        }
    }
    let at = at + dice.between(SECOND / 2, 2 * SECOND);
    planned.push((at, KeyEvent::Take { server: None, key: old, for_ns: 0 }));
}
