//! Tests of the fault wrapper: what it is told to do is what it does, the same for the same seed.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::sim::{FaultRates, SimLink, SimNet, WireConfig};

/// Two stations on a perfect wire, the first with faults, under a clock that the test moves.
struct Pair {
    net: SimNet,
    now_ns: Rc<Cell<u64>>,
    a: FaultLink<SimLink>,
    b: SimLink,
    pool: Pool,
}

fn pair(config: FaultConfig) -> Pair {
    let wire = WireConfig { pads: false, port_bytes_per_s: 0, ..WireConfig::default() };
    let net = SimNet::new(1, wire);
    let now_ns = Rc::new(Cell::new(0));
    let clock = now_ns.clone();
    let a = net.station(Default::default());
    let a = FaultLink::new(a, &config, Box::new(move || clock.get()));
    let b = net.station(Default::default());
    Pair { net, now_ns, a, b, pool: Pool::new(1 << 20) }
}

fn config(rates: FaultRates) -> FaultConfig {
    FaultConfig { rates, seed: 11, ..FaultConfig::default() }
}

fn batch(to: Addr, numbers: std::ops::Range<u32>, pool: &Pool) -> TxBatch {
    let mut batch = TxBatch::new();
    for n in numbers {
        let frame = batch.push(to);
        frame.head.extend_from_slice(&n.to_be_bytes());
        frame.data.push(pool.copy_of(&[n as u8; 60]).freeze());
    }
    batch
}

fn take(link: &mut dyn Link, net: &SimNet, pool: &Pool) -> Vec<Vec<u8>> {
    while let Some(at_ns) = net.next_delivery() {
        net.advance(at_ns);
    }
    let mut out = RxBatch::new();
    while link.recv(pool, 64, &mut out).unwrap() > 0 {}
    out.iter().map(|frame| frame.bytes.to_vec()).collect()
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[..4].try_into().unwrap())
}

#[test]
fn no_faults_change_nothing() {
    let mut p = pair(FaultConfig::default());
    let to = p.b.info().addr;
    p.a.send(&mut batch(to, 0..100, &p.pool)).unwrap();
    let got = take(&mut p.b, &p.net, &p.pool);
    assert_eq!(got.iter().map(|f| number(f)).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    assert_eq!(p.a.faults(), FaultStats::default());
}

#[test]
fn the_same_seed_makes_the_same_faults_on_both_ways() {
    let run = |seed| {
        let rates = FaultRates { loss: 0.1, dup: 0.1, reorder: 0.1, corrupt: 0.1 };
        let mut p = pair(FaultConfig { seed, ..config(rates) });
        let (a, b) = (p.a.info().addr, p.b.info().addr);
        let mut there = Vec::new();
        let mut back = Vec::new();
        for round in 0..20 {
            p.a.send(&mut batch(b, round * 50..round * 50 + 50, &p.pool)).unwrap();
            there.extend(take(&mut p.b, &p.net, &p.pool));
            p.b.send(&mut batch(a, round * 50..round * 50 + 50, &p.pool)).unwrap();
            back.extend(take(&mut p.a, &p.net, &p.pool));
        }
        (there, back, p.a.faults())
    };
    let (there, back, stats) = run(11);
    assert_eq!(run(11), (there.clone(), back.clone(), stats));
    assert_ne!(run(12).0, there);
    for count in [stats.lost, stats.duplicated, stats.reordered, stats.corrupted] {
        assert!((140..260).contains(&count), "{stats:?}");
    }
    for way in [&there, &back] {
        let numbers: Vec<u32> = way.iter().map(|f| number(f)).collect();
        assert!(numbers.windows(2).any(|pair| pair[0] > pair[1]), "some are overtaken");
        assert!(way.len() > 900 && way.len() < 1100);
        let is_whole = |f: &&Vec<u8>| f[4..].iter().all(|&b| b == f[3]);
        let damaged = way.len() - way.iter().filter(is_whole).count();
        assert!((50..150).contains(&damaged), "{damaged}");
    }
}

#[test]
fn damage_does_not_reach_the_senders_payload() {
    let mut p = pair(config(FaultRates { corrupt: 1.0, dup: 1.0, ..Default::default() }));
    let data = p.pool.copy_of(&[7; 1000]).freeze();
    let mut batch = TxBatch::new();
    let frame = batch.push(p.b.info().addr);
    frame.head.push(7);
    frame.data.push(data.clone());
    p.a.send(&mut batch).unwrap();
    assert!(data.iter().all(|&b| b == 7));
    // The duplicate is whole, the original is not.
    let got = take(&mut p.b, &p.net, &p.pool);
    assert_eq!(got.len(), 2);
    assert_eq!(got.iter().filter(|f| f.iter().all(|&b| b == 7)).count(), 1);
}

#[test]
fn a_damaged_frame_stays_aligned() {
    let mut p = pair(config(FaultRates { corrupt: 1.0, ..Default::default() }));
    let to = p.a.info().addr;
    p.b.send(&mut batch(to, 0..1, &p.pool)).unwrap();
    p.net.advance(1_000_000);
    let mut out = RxBatch::new();
    assert_eq!(p.a.recv(&p.pool, 1, &mut out).unwrap(), 1);
    assert_eq!(out[0].bytes.as_ptr() as usize % PAGE_BYTES, PAGE_BYTES - crate::HEAD_BYTES);
}

#[test]
fn a_reordered_frame_is_not_held_forever() {
    let mut p = pair(config(FaultRates { reorder: 1.0, ..Default::default() }));
    let to = p.b.info().addr;
    p.a.send(&mut batch(to, 0..1, &p.pool)).unwrap();
    assert!(take(&mut p.b, &p.net, &p.pool).is_empty());
    let due = p.a.due_in().unwrap();
    p.now_ns.set(due.as_nanos() as u64 - 1);
    p.a.recv(&p.pool, 1, &mut RxBatch::new()).unwrap();
    assert!(take(&mut p.b, &p.net, &p.pool).is_empty());
    p.now_ns.set(due.as_nanos() as u64);
    assert_eq!(p.a.due_in(), Some(Duration::ZERO));
    p.a.recv(&p.pool, 1, &mut RxBatch::new()).unwrap();
    assert_eq!(take(&mut p.b, &p.net, &p.pool).len(), 1);
    assert_eq!(p.a.due_in(), None);
}

#[test]
fn delayed_frames_come_in_their_time() {
    let delay = FaultConfig { delay_ns_min: 500, delay_ns_max: 500, ..FaultConfig::default() };
    let mut p = pair(delay);
    let (a, b) = (p.a.info().addr, p.b.info().addr);
    p.a.send(&mut batch(b, 0..3, &p.pool)).unwrap();
    p.b.send(&mut batch(a, 0..3, &p.pool)).unwrap();
    assert!(take(&mut p.b, &p.net, &p.pool).is_empty());
    assert!(take(&mut p.a, &p.net, &p.pool).is_empty());
    assert_eq!(p.a.due_in(), Some(Duration::from_nanos(500)), "whichever way");
    p.now_ns.set(499);
    assert!(take(&mut p.a, &p.net, &p.pool).is_empty());
    p.now_ns.set(500);
    let numbers = |frames: Vec<Vec<u8>>| frames.iter().map(|f| number(f)).collect::<Vec<_>>();
    assert_eq!(numbers(take(&mut p.a, &p.net, &p.pool)), [0, 1, 2]);
    assert_eq!(numbers(take(&mut p.b, &p.net, &p.pool)), [0, 1, 2]);
}
