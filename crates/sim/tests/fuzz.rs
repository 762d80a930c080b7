//! Frames from nowhere, thrown at both sides in mid-session: what is damaged or forged from outside
//! has no effect; what a hostile peer could send, checksum and all, panics nobody.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxFrame, SegList, TxFrame};
use thinwire_link::rng::Rng;
use thinwire_link::sim::{StationConfig, Verdict, WireConfig};
use thinwire_proto::{Time, seal};
use thinwire_sim::client::Workload;
use thinwire_sim::export::Store;
use thinwire_sim::medium::{MediumConfig, MediumHandle};
use thinwire_sim::world::{MS, SECOND, World};
use thinwire_target::TargetConfig;
use thinwire_wire::{HEADER_BYTES, TAG_AT, TAG_BYTES};

type Seen = Rc<RefCell<Vec<(u32, Vec<u8>)>>>;

/// A busy pair whose frames are recorded with their senders.
fn busy_pair(seed: u64) -> (World, Seen) {
    let mut world = World::new(seed, WireConfig::default(), false);
    let config = TargetConfig { node: "node".into(), insecure: true, ..TargetConfig::default() };
    let server = world.add_server(1, StationConfig::default(), config, None);
    let medium = MediumHandle::new(seed, [9; 16], MediumConfig::default());
    let export = world.add_export(server, 1 << 20, 512, Store::File(medium));
    world.exports[export].writers = 1;
    let workload = Workload {
        depth: 8,
        budget: u64::MAX,
        flushes: 1,
        discards: 1,
        zeroes: 1,
        statuses: 1,
        pauses: 0.3,
        pause_ns_max: 2 * MS,
        ..Workload::NONE
    };
    let client = world.add_client(1, StationConfig::default(), export, workload);
    let seen = Seen::default();
    let record = seen.clone();
    world.set_judge(move |from, _, bytes| {
        let mut seen = record.borrow_mut();
        if seen.len() < 2000 {
            seen.push((from, bytes.to_vec()));
        } else {
            seen.clear();
        }
        Verdict::Pass
    });
    world.start_server(server);
    world.start_client(client);
    world.run_until("attached", 10 * SECOND, |w| w.clients[0].is_open).unwrap();
    (world, seen)
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    match rng.below(6) {
        0 => rng.damage(bytes),
        1 => bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize),
        2 => {
            let more = rng.below(200) as usize;
            bytes.extend(std::iter::repeat_n(rng.bits() as u8, more));
        }
        3 => {
            // A field of its own size somewhere in the headers.
            let at = rng.below(bytes.len().min(192) as u64) as usize;
            let size = [1, 2, 4, 8][rng.below(4) as usize];
            let value = [0, 1, u64::MAX, rng.bits(), rng.below(3000)][rng.below(5) as usize];
            let end = (at + size).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_be_bytes()[8 - (end - at)..]);
        }
        4 => {
            for byte in bytes.iter_mut().take(192) {
                if rng.chance(0.05) {
                    *byte = rng.bits() as u8;
                }
            }
        }
        _ => {
            let len = rng.below(300) as usize;
            bytes.clear();
            bytes.extend((0..len).map(|_| rng.bits() as u8));
        }
    }
}

/// Makes the checksum right for whatever the length field now says.
fn reseal(bytes: &mut Vec<u8>) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let length =
        usize::from(u16::from_be_bytes([bytes[4], bytes[5]])).clamp(HEADER_BYTES, bytes.len());
    let rest = bytes.split_off(length);
    let mut head = std::mem::take(bytes);
    head[TAG_AT..][..TAG_BYTES].fill(0);
    let mut frame = TxFrame::new(Addr::Group, head);
    seal(&mut frame);
    *bytes = frame.head;
    bytes.extend(rest);
}

fn throw(world: &mut World, pool: &Pool, from: u32, bytes: &[u8]) {
    let now = Time(world.now);
    let frame = RxFrame {
        from: Addr::Sim(from),
        bytes: pool.copy_of(bytes).freeze(),
        rest: SegList::new(),
        waited: Duration::ZERO,
        queued: Duration::ZERO,
    };
    if let Some(target) = world.servers[0].shards[0].target_mut() {
        target.on_frame(now, 0, &mut frame.clone());
    }
    if let Some(initiator) = &mut world.clients[0].initiator {
        initiator.on_frame(now, 0, &mut frame.clone());
    }
    world.servers[0].wake();
    world.clients[0].machine.dirty = true;
}

fn pick(rng: &mut Rng, seen: &Seen) -> Option<(u32, Vec<u8>)> {
    let seen = seen.borrow();
    (!seen.is_empty()).then(|| seen[rng.below(seen.len() as u64) as usize].clone())
}

#[test]
fn damaged_frames_have_no_effect() {
    let pool = Pool::new(1 << 20);
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (mut world, seen) = busy_pair(seed);
        for _ in 0..1500 {
            let Some((from, mut bytes)) = pick(&mut rng, &seen) else { continue };
            let before = bytes.clone();
            mutate(&mut rng, &mut bytes);
            // More padding than there was is no damage: then it is a late duplicate.
            if bytes != before {
                throw(&mut world, &pool, from, &bytes);
            }
            world.run_for(rng.below(MS / 4) + 1).unwrap_or_else(|v| panic!("{}", v.0));
        }
        assert!(world.coverage.requests > 300, "{}", world.coverage.requests);
    }
}

#[test]
fn frames_of_strangers_have_no_effect() {
    let pool = Pool::new(1 << 20);
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (mut world, seen) = busy_pair(seed);
        for _ in 0..1500 {
            let Some((_, mut bytes)) = pick(&mut rng, &seen) else { continue };
            mutate(&mut rng, &mut bytes);
            reseal(&mut bytes);
            // Discovery and handshakes are for everybody, and a forged one may well succeed.
            if bytes.get(1) == Some(&1) || bytes.get(1) == Some(&7) {
                throw(&mut world, &pool, 77, &bytes);
            }
            world.run_for(rng.below(MS / 4) + 1).unwrap_or_else(|v| panic!("{}", v.0));
        }
        assert!(world.coverage.requests > 300, "{}", world.coverage.requests);
    }
}

/// Without keys a forger at the peer's address can break promises, but nobody panics.
#[test]
fn hostile_peers_panic_nobody() {
    let pool = Pool::new(1 << 20);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut world, seen) = busy_pair(seed);
        for _ in 0..400 {
            let Some((from, mut bytes)) = pick(&mut rng, &seen) else { continue };
            // News, so that it gets past the replay window.
            if matches!(bytes[1], 1 | 7 | 8) && rng.chance(0.8) {
                let number = u64::from_be_bytes(bytes[16..24].try_into().unwrap());
                let number = number.wrapping_add(rng.between(1, 5000));
                bytes[16..24].copy_from_slice(&number.to_be_bytes());
            }
            for _ in 0..rng.below(3) {
                mutate(&mut rng, &mut bytes);
            }
            reseal(&mut bytes);
            throw(&mut world, &pool, from, &bytes);
            // Nothing can be promised to such a client: what the checker says is of no interest.
            let _ = world.run_for(rng.below(MS / 4) + 1);
        }
    }
}
