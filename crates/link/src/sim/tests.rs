//! Tests of the simulated wire.

use std::cell::Cell;
use std::rc::Rc;

use thinwire_buffer::{Addr, Pool, RxBatch, TxBatch};

use super::*;
use crate::{HEAD_BYTES, Link};

fn send(link: &mut SimLink, to: Addr, bytes: &[u8]) {
    let mut batch = TxBatch::new();
    batch.push(to).head.extend_from_slice(bytes);
    link.send(&mut batch).unwrap();
}

/// Lets everything arrive; returns what `link` got, with the times.
fn run(net: &SimNet, link: &mut SimLink) -> Vec<(u64, Addr, Vec<u8>)> {
    let pool = Pool::new(1 << 20);
    let mut all = Vec::new();
    loop {
        let mut batch = RxBatch::new();
        while link.recv(&pool, 64, &mut batch).unwrap() > 0 {}
        for frame in &batch {
            assert_eq!(frame.bytes.as_ptr() as usize % 4096, 4096 - HEAD_BYTES);
            all.push((net.now_ns(), frame.from, frame.bytes.to_vec()));
        }
        let Some(at_ns) = net.next_delivery() else { return all };
        net.advance(at_ns);
    }
}

fn wire() -> WireConfig {
    WireConfig { pads: false, ..WireConfig::default() }
}

#[test]
fn frames_arrive_in_order_after_latency_and_wire_time() {
    let slow = WireConfig { port_bytes_per_s: 1_000_000, ..wire() };
    let net = SimNet::new(1, slow);
    let (mut a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    for n in 0..20u8 {
        send(&mut a, b.info().addr, &[n; 100]);
    }
    let got = run(&net, &mut b);
    assert_eq!(got.iter().map(|(_, _, f)| f[0]).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    // 100 bytes take 100 us on a port, and each frame passes two of them.
    assert!((210_000..=220_000).contains(&got[0].0), "{}", got[0].0);
    assert!((2_110_000..=2_140_000).contains(&got[19].0), "{}", got[19].0);
    assert_eq!(net.stats().delivered, 20);
}

#[test]
fn long_frames_arrive_in_pieces_if_the_station_wants_that() {
    let net = SimNet::new(1, wire());
    let pieces = StationConfig { piece_bytes_max: 1000, ..Default::default() };
    let (mut a, mut b) = (net.station(Default::default()), net.station(pieces));
    let pool = Pool::new(1 << 20);
    for len in [999usize, 1000, 1001, 2500] {
        let sent: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        send(&mut a, b.info().addr, &sent);
        while let Some(at_ns) = net.next_delivery() {
            net.advance(at_ns);
        }
        let mut batch = RxBatch::new();
        assert_eq!(b.recv(&pool, 64, &mut batch).unwrap(), 1);
        assert_eq!(batch[0].pieces().count(), len.div_ceil(1000));
        let mut got = vec![0; len];
        batch[0].copy_to(0, &mut got);
        assert_eq!((batch[0].len(), got), (len, sent));
    }
}

#[test]
fn forged_frames_arrive_from_anywhere() {
    let net = SimNet::new(1, wire());
    let (a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    net.set_judge(|_, _, _| Verdict::Drop);
    net.set_cut(a.number(), b.number(), true);
    net.forge(0, 1, b"as if");
    net.forge(77, 1, b"from nowhere");
    net.forge(1, 77, b"to nowhere");
    let got = run(&net, &mut b);
    let froms: Vec<_> = got.iter().map(|(_, from, _)| *from).collect();
    assert_eq!(froms, [Addr::Sim(0), Addr::Sim(77)]);
    assert_eq!(net.stats().forged, 2);
    // But where nothing arrives at all.
    net.set_up(1, false);
    net.forge(0, 1, b"as if");
    assert!(run(&net, &mut b).is_empty());
}

#[test]
fn a_wire_without_limit_drops_nothing_and_keeps_the_order() {
    let net = SimNet::new(1, WireConfig { port_bytes_per_s: 0, ..wire() });
    let (mut a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    for n in 0..200u8 {
        send(&mut a, b.info().addr, &[n; 9000]);
    }
    let got = run(&net, &mut b);
    assert_eq!(got.iter().map(|(_, _, f)| f[0]).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
    assert!(got[199].0 <= 20_000);
}

#[test]
fn a_seed_repeats_exactly_and_faults_happen_as_often_as_they_should() {
    let trace = |seed| {
        let faults = FaultRates { loss: 0.1, dup: 0.1, reorder: 0.1, corrupt: 0.1 };
        let net = SimNet::new(seed, WireConfig { faults, ..wire() });
        let room = StationConfig { room_frames: 10_000, ..Default::default() };
        let (mut a, mut b) = (net.station(room), net.station(room));
        for n in 0..1000u32 {
            send(&mut a, b.info().addr, &n.to_be_bytes());
        }
        (run(&net, &mut b), net.stats())
    };
    let (frames, stats) = trace(5);
    assert_eq!(trace(5), (frames.clone(), stats));
    assert_ne!(trace(6).0, frames);
    for count in [stats.lost, stats.duplicated, stats.reordered, stats.corrupted] {
        assert!((60..150).contains(&count), "{stats:?}");
    }
    assert_eq!(stats.delivered, 1000 - stats.lost + stats.duplicated);
    assert_eq!(frames.len() as u64, stats.delivered);
    assert!(frames.windows(2).any(|pair| pair[0].2 > pair[1].2), "some were overtaken");
}

#[test]
fn the_group_is_everybody_else() {
    let net = SimNet::new(1, WireConfig::default());
    let mut links = [(); 3].map(|()| net.station(Default::default()));
    send(&mut links[1], Addr::Group, b"who?");
    let [a, b, c] = links.each_mut().map(|link| run(&net, link).len());
    assert_eq!([a, b, c], [1, 0, 1]);
}

#[test]
fn short_frames_are_padded_as_on_ethernet() {
    let net = SimNet::new(1, WireConfig::default());
    let (mut a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    send(&mut a, b.info().addr, b"short");
    assert_eq!(run(&net, &mut b)[0].2.len(), 46);
}

#[test]
fn cuts_and_downs_lose_frames_also_on_the_way() {
    let net = SimNet::new(1, wire());
    let (mut a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    send(&mut a, b.info().addr, b"on the way");
    net.set_cut(1, 0, true);
    assert!(run(&net, &mut b).is_empty());
    send(&mut a, b.info().addr, b"cut");
    assert!(run(&net, &mut b).is_empty());
    net.set_cut(0, 1, false);
    send(&mut a, b.info().addr, b"mended");
    assert_eq!(run(&net, &mut b).len(), 1);
    net.set_up(0, false);
    send(&mut a, b.info().addr, b"down");
    send(&mut b, a.info().addr, b"to one that is down");
    net.set_up(0, true);
    assert!(run(&net, &mut b).is_empty() && run(&net, &mut a).is_empty());
    assert_eq!(a.stats().tx_dropped, 1);
    assert_eq!(net.stats().cut, 3);
}

#[test]
fn large_frames_vanish_in_a_black_hole() {
    let net = SimNet::new(1, WireConfig { transit_bytes_max: 1500, ..wire() });
    let (mut a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    send(&mut a, b.info().addr, &[0; 1501]);
    send(&mut a, b.info().addr, &[0; 1500]);
    // Beyond the link's own size a frame does not even leave.
    send(&mut a, b.info().addr, &[0; 9001]);
    assert_eq!(run(&net, &mut b).len(), 1);
    assert_eq!((net.stats().too_long, a.stats().tx_dropped), (1, 1));
}

#[test]
fn no_room_and_full_ports_drop() {
    let net = SimNet::new(1, WireConfig { port_queue_bytes: 10_000, ..wire() });
    let small = StationConfig { room_frames: 4, ..Default::default() };
    let mut senders = [(); 5].map(|()| net.station(Default::default()));
    let mut b = net.station(small);
    for sender in &mut senders {
        for _ in 0..4 {
            send(sender, b.info().addr, &[0; 1000]);
        }
    }
    net.advance(1_000_000);
    let stats = net.stats();
    // Five send at once what one port carries: about ten frames wait in it, the rest is dropped.
    assert!(stats.port_full > 0 && stats.no_room > 0, "{stats:?}");
    assert_eq!(stats.delivered, 4);
    assert_eq!(stats.port_full + stats.no_room + stats.delivered, 20);
    assert_eq!(b.stats().rx_dropped, stats.no_room);
    assert_eq!(run(&net, &mut b).len(), 4);
}

#[test]
fn a_judge_decides_about_single_frames() {
    let net = SimNet::new(1, wire());
    let (mut a, mut b) = (net.station(Default::default()), net.station(Default::default()));
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    net.set_judge(move |from, to, bytes| {
        assert_eq!((from, to), (0, 1));
        seen.set(seen.get() + 1);
        match bytes {
            b"drop" => Verdict::Drop,
            b"late" => Verdict::Delay(1_000_000),
            b"twice" => Verdict::Repeat(500_000),
            _ => Verdict::Pass,
        }
    });
    for frame in [&b"drop"[..], b"late", b"twice", b"pass"] {
        send(&mut a, b.info().addr, frame);
    }
    let got: Vec<Vec<u8>> = run(&net, &mut b).into_iter().map(|(_, _, f)| f).collect();
    assert_eq!(got, [&b"twice"[..], b"pass", b"twice", b"late"]);
    assert_eq!(count.get(), 4);
    net.clear_judge();
    send(&mut a, b.info().addr, b"drop");
    assert_eq!(run(&net, &mut b).len(), 1);
}

#[test]
fn a_crash_loses_what_waited_but_not_what_flies() {
    let net = SimNet::new(1, wire());
    let (mut a, mut old) = (net.station(Default::default()), net.station(Default::default()));
    send(&mut a, old.info().addr, b"waits");
    net.advance(1_000_000);
    assert_eq!(net.waiting(1, 0), 1);
    send(&mut a, old.info().addr, b"flies");
    let mut new = net.reopen(1);
    assert_eq!(new.info().addr, old.info().addr);
    send(&mut old, a.info().addr, b"from the grave");
    let got = run(&net, &mut new);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].2, b"flies");
    assert!(run(&net, &mut a).is_empty() && run(&net, &mut old).is_empty());
}
