//! The packet link on a real (virtual) cable.

mod common;

use std::time::{Duration, Instant};

use common::{
    check_flooded, drain, ip, is_woken, nft, pattern, receive, receive_when_woken, send, with_cable,
};
use thinwire_buffer::{Addr, Pool, TxBatch};
use thinwire_link::packet::{PacketConfig, PacketLink};
use thinwire_link::{HEAD_BYTES, Link, LinkOpenError, SteeringFilter};

fn open(name: &str) -> PacketLink {
    PacketLink::open(&PacketConfig::new(name)).expect(name)
}

#[test]
fn frames_cross_in_one_call_and_payloads_arrive_on_a_page() {
    with_cable(9000, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        assert_eq!((a.info().frame_bytes.max, a.info().frame_bytes.base), (9000, 1280));
        let pool = Pool::new(8 << 20);
        let mut batch = TxBatch::new();
        for i in 0..32 {
            let frame = batch.push(b.info().addr);
            frame.head.extend_from_slice(&pattern(i, HEAD_BYTES));
            // Two pieces, of a size that fills the largest frame in the end.
            let first = pool.copy_of(&pattern(i + 1, 4096)).freeze();
            let second = pool.copy_of(&pattern(i + 2, 4712)).freeze();
            frame.data.push(first.slice(0, 128 * i));
            frame.data.push(second);
            if i == 31 {
                frame.data.push(first.slice(0, 4096 - 31 * 128));
                frame.data.push(first.slice(0, 0));
                assert_eq!(frame.bytes(), 9000);
            }
        }
        a.send(&mut batch).unwrap();
        let sent = a.stats();
        assert_eq!((sent.tx_frames, sent.tx_calls, sent.tx_dropped), (32, 1, 0));

        let frames = receive(&mut b, &pool, 32);
        assert_eq!(frames.len(), 32);
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(frame.from, a.info().addr);
            let (head, data) = frame.bytes.split_at(HEAD_BYTES);
            assert_eq!(head, pattern(i, HEAD_BYTES));
            assert_eq!(data.as_ptr() as usize % 4096, 0);
            assert_eq!(data[..128 * i], pattern(i + 1, 128 * i));
            assert_eq!(data[128 * i..128 * i + 4712], pattern(i + 2, 4712));
        }
        let got = b.stats();
        assert_eq!((got.rx_frames, got.rx_bytes), (32, sent.tx_bytes));
        assert_eq!(got.copied_bytes, 0);
    });
}

#[test]
fn warm_receiving_takes_no_new_memory() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        let pool = Pool::new(8 << 20);
        let mut allocations = 0;
        for round in 0..20 {
            for _ in 0..8 {
                send(&mut a, b.info().addr, &pattern(round, 1500));
            }
            assert_eq!(receive(&mut b, &pool, 8).len(), 8);
            if round == 9 {
                allocations = pool.stats().allocations;
            }
        }
        assert_eq!(pool.stats().allocations, allocations);
    });
}

#[test]
fn the_group_is_heard_by_all_but_the_sender() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        let mut other = open("right");
        let pool = Pool::new(1 << 20);
        send(&mut a, Addr::Group, b"who is there?");
        for link in [&mut b, &mut other] {
            let frames = receive(link, &pool, 1);
            assert_eq!(frames.len(), 1);
            // Ethernet may pad: the frame's own length counts.
            assert_eq!(&frames[0].bytes[..13], b"who is there?");
            assert_eq!(frames[0].from, a.info().addr);
        }
        assert!(drain(&mut a, &pool).is_empty());
    });
}

#[test]
fn frames_for_other_stations_and_other_ethertypes_are_not_ours() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        let mut foreign =
            PacketLink::open(&PacketConfig { ethertype: 0x88b6, ..PacketConfig::new("left") })
                .unwrap();
        cable.enter(1);
        ip("link set right promisc on");
        let mut b = open("right");
        let pool = Pool::new(1 << 20);
        send(&mut a, Addr::Mac([2, 0, 0, 0, 0, 99]), b"for somebody else");
        send(&mut foreign, b.info().addr, b"another protocol");
        send(&mut a, b.info().addr, b"for us");
        let frames = drain(&mut b, &pool);
        assert_eq!(frames.len(), 1);
        assert_eq!(&frames[0].bytes[..6], b"for us");
    });
}

#[test]
fn vlans_are_apart() {
    with_cable(9000, |cable| {
        let vlan = |name: &str, vlan| {
            PacketLink::open(&PacketConfig { vlan, ..PacketConfig::new(name) }).expect(name)
        };
        let ids = [None, Some(100), Some(200)];
        let mut here = ids.map(|id| vlan("left", id));
        cable.enter(1);
        let mut there = ids.map(|id| vlan("right", id));
        assert_eq!(there[1].name(), "packet:right,vlan=100");
        let pool = Pool::new(1 << 20);
        for (i, link) in here.iter_mut().enumerate() {
            send(link, there[0].info().addr, &pattern(i, 9000));
            send(link, Addr::Group, &pattern(i + 10, 100));
            assert_eq!((link.stats().tx_frames, link.stats().tx_bytes), (2, 9100));
        }
        for (i, link) in there.iter_mut().enumerate() {
            let frames = drain(link, &pool);
            assert_eq!(frames.len(), 2, "vlan {:?}", ids[i]);
            assert_eq!(frames[0].bytes[..], pattern(i, 9000));
            assert_eq!(frames[1].bytes[..], pattern(i + 10, 100));
            assert_eq!(frames[0].bytes[HEAD_BYTES..].as_ptr() as usize % 4096, 0);
        }
    });
}

#[test]
fn steering_shares_an_interface_among_shards() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut shards = [open("right"), open("right")];
        for (shard, link) in shards.iter_mut().enumerate() {
            let mut filters = vec![SteeringFilter::byte(8, shard as u8..=shard as u8)];
            if shard == 0 {
                filters.push(SteeringFilter::byte(1, b'D'..=b'D'));
            }
            link.set_steering(&filters).unwrap();
        }
        let pool = Pool::new(1 << 20);
        for frame in [b"........\x00", b"........\x01", b"........\x02", b".D......\x09"] {
            send(&mut a, shards[0].info().addr, frame);
        }
        let counts = shards.each_mut().map(|link| drain(link, &pool).len());
        assert_eq!(counts, [2, 1]);
    });
}

/// What anybody may send fills a queue of its own, and is taken a little at a time.
#[test]
fn a_flood_at_the_door_takes_no_place_from_the_others() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let own = SteeringFilter::byte(8, 1..=1);
        let steering = vec![own, SteeringFilter::byte(8, 0..=0).shared()];
        let config = PacketConfig { steering, ..PacketConfig::new("right") };
        let mut b = PacketLink::open(&config).unwrap();
        let pool = Pool::new(1 << 20);
        let mut flood = TxBatch::new();
        for _ in 0..5000 {
            flood.push(b.info().addr).head.extend_from_slice(&[0; 100]);
        }
        while !flood.is_empty() {
            a.send(&mut flood).unwrap();
        }
        for _ in 0..100 {
            send(&mut a, b.info().addr, &[1; 100]);
        }
        check_flooded(&mut b, &pool);
    });
}

#[test]
fn room_is_what_really_fits() {
    for mtu in [1500, 4200, 9000, 65535] {
        with_cable(mtu, move |cable| {
            let mut a = open("left");
            cable.enter(1);
            let small = PacketConfig { rcvbuf_bytes: 106_496, ..PacketConfig::new("right") };
            let mut b = PacketLink::open(&small).unwrap();
            let room = b.info().room;
            assert!(room.frames >= 1 && room.bytes == room.frames * mtu as u32);
            let pool = Pool::new(64 << 20);
            let mut batch = TxBatch::new();
            for i in 0..4 * room.frames as usize + 100 {
                batch.push(b.info().addr).head.extend_from_slice(&pattern(i, mtu));
            }
            let sent = batch.len();
            a.send(&mut batch).unwrap();
            let got = drain(&mut b, &pool).len();
            eprintln!("mtu {mtu}: promised {}, took {got} of {sent}", room.frames);
            assert!(got >= room.frames as usize, "promised {room:?}, took {got}");
            let stats = b.stats();
            assert!(stats.rx_dropped > 0);
            assert_eq!(stats.rx_dropped as usize + got, sent);
            assert_eq!(b.stats(), stats, "reading counters changes nothing");
        });
    }
}

#[test]
fn an_interface_that_goes_down_drops_frames_and_returns() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        let pool = Pool::new(1 << 20);
        cable.enter(0);
        ip("link set left down");
        send(&mut a, b.info().addr, b"lost");
        send(&mut a, b.info().addr, b"lost");
        assert!(drain(&mut a, &pool).is_empty());
        let stats = a.stats();
        assert_eq!((stats.tx_dropped, stats.tx_frames), (2, 0));
        ip("link set left up");
        send(&mut a, b.info().addr, b"back");
        assert_eq!(&receive(&mut b, &pool, 1)[0].bytes[..4], b"back");
        send(&mut b, a.info().addr, b"indeed");
        assert_eq!(receive(&mut a, &pool, 1).len(), 1);
    });
}

/// The kernel has no code of its own for that: it says that there is no room.
#[test]
fn an_interface_without_a_carrier_drops_frames_and_returns() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        let pool = Pool::new(1 << 20);
        receive_when_woken(&mut a, &pool);
        ip("link set right down");
        let mut batch = TxBatch::new();
        for _ in 0..2 {
            batch.push(b.info().addr).head.extend_from_slice(b"lost");
        }
        // The kernel takes a moment to say so of the interface; until then it is a full queue.
        for _ in 0..1000 {
            a.send(&mut batch).unwrap();
            if batch.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(batch.is_empty(), "no full queue");
        assert_eq!((a.stats().tx_dropped, a.stats().tx_frames), (2, 0));
        assert!(receive_when_woken(&mut a, &pool).is_empty());
        ip("link set right up");
        // Nothing but the kernel's word that the carrier is back.
        assert!(receive_when_woken(&mut a, &pool).is_empty());
        send(&mut a, b.info().addr, b"back");
        assert_eq!(&receive(&mut b, &pool, 1)[0].bytes[..4], b"back");
        ip("link add unrelated type bridge");
        assert!(!is_woken(&a, Duration::from_millis(100)), "it listens no more");
    });
}

/// A rule stands for the full queue of an adapter, which a virtual cable does not have: the kernel
/// says the same of both.
#[test]
fn what_a_full_queue_does_not_take_stays_in_the_batch() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        cable.enter(0);
        let pool = Pool::new(1 << 20);
        nft("add table netdev full");
        nft("add chain netdev full out { type filter hook egress device left priority 0; }");
        nft("add rule netdev full out drop");
        let mut batch = TxBatch::new();
        for number in 0..100u8 {
            batch.push(b.info().addr).head.extend_from_slice(&[number; 100]);
        }
        a.send(&mut batch).unwrap();
        a.send(&mut batch).unwrap();
        assert_eq!((batch.len(), a.stats().tx_dropped, a.stats().tx_frames), (100, 0, 0));
        nft("delete table netdev full");
        a.send(&mut batch).unwrap();
        assert!(batch.is_empty());
        let got: Vec<u8> = receive(&mut b, &pool, 100).iter().map(|f| f.bytes[0]).collect();
        assert_eq!(got, (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn an_interface_that_is_made_anew_is_used_again() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        ip("link del left");
        send(&mut a, Addr::Group, b"lost");
        assert!(drain(&mut a, &Pool::new(1 << 20)).is_empty());
        assert_eq!(a.stats().tx_dropped, 1);
        ip("link add left type veth peer name other");
        ip("link set left up");
        ip("link set other up");
        let mut c = open("other");
        let pool = Pool::new(1 << 20);
        send(&mut a, c.info().addr, b"finds the new one");
        send(&mut a, c.info().addr, b"there");
        assert_eq!(&receive(&mut c, &pool, 1)[0].bytes[..5], b"there");
        send(&mut c, a.info().addr, b"and hears");
        send(&mut c, Addr::Group, b"its group, too");
        assert_eq!(receive(&mut a, &pool, 2).len(), 2);
        let _ = cable;
    });
}

/// A target says nothing until it is asked.
#[test]
fn an_interface_that_is_made_anew_is_heard_by_who_only_listens() {
    // The second time the new one has the number of the old.
    for index in ["", "index 77"] {
        with_cable(1500, move |_| {
            let make = || {
                ip(&format!("link add here {index} type veth peer name there"));
                ip("link set here up");
                ip("link set there up");
            };
            make();
            let mut a = open("here");
            let pool = Pool::new(1 << 20);
            receive_when_woken(&mut a, &pool);
            ip("link add unrelated type bridge");
            assert!(!is_woken(&a, Duration::from_millis(100)), "no ticks while all is well");
            ip("link del here");
            assert!(receive_when_woken(&mut a, &pool).is_empty());
            ip("link del unrelated");
            assert!(receive_when_woken(&mut a, &pool).is_empty());
            make();
            receive_when_woken(&mut a, &pool);
            let mut c = open("there");
            assert_eq!(a.stats().tx_calls, 0, "it has said nothing");
            for (to, bytes) in
                [(a.info().addr, &b"to the station"[..]), (Addr::Group, b"to the group")]
            {
                send(&mut c, to, bytes);
                let heard = receive_when_woken(&mut a, &pool);
                assert_eq!(heard.len(), 1, "{index:?} {to}");
                assert_eq!(&heard[0].bytes[..bytes.len()], bytes);
            }
            ip("link add unrelated type bridge");
            assert!(!is_woken(&a, Duration::from_millis(100)), "nor afterwards");
        });
    }
}

/// A bond that fails over, a machine that moves: answers must find us under the new address.
#[test]
fn a_changed_station_address_is_noticed() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        let new = [0x02, 0, 0, 0, 0x77, 1];
        ip("link set left address 02:00:00:00:77:01");
        cable.enter(1);
        let mut b = open("right");
        cable.enter(0);
        let pool = Pool::new(1 << 20);
        let start = Instant::now();
        // It looks once a second while it sends.
        while a.info().addr != Addr::Mac(new) {
            assert!(start.elapsed() < Duration::from_secs(20), "still {}", a.info().addr);
            send(&mut a, b.info().addr, b"who am I");
            std::thread::sleep(Duration::from_millis(50));
        }
        drain(&mut b, &pool);
        send(&mut a, b.info().addr, b"hear me");
        let heard = receive(&mut b, &pool, 1);
        assert_eq!(heard[0].from, Addr::Mac(new));
        send(&mut b, heard[0].from, b"heard");
        assert_eq!(&receive(&mut a, &pool, 1)[0].bytes[..5], b"heard");
    });
}

#[test]
fn a_frame_too_large_is_dropped_alone() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        let pool = Pool::new(1 << 20);
        let mut batch = TxBatch::new();
        for len in [100, 1501, 200] {
            batch.push(b.info().addr).head.extend_from_slice(&pattern(0, len));
        }
        batch.push(Addr::Sim(3)).head.push(1);
        a.send(&mut batch).unwrap();
        assert_eq!(receive(&mut b, &pool, 2).len(), 2);
        assert_eq!((a.stats().tx_dropped, a.stats().tx_frames), (2, 2));
    });
}

#[test]
fn errors_say_what_to_do() {
    with_cable(1500, |_| {
        let error = |config: &PacketConfig| PacketLink::open(config).err().expect("an error");
        let named = |name: &str| error(&PacketConfig::new(name));
        let missing = named("eth77");
        assert!(matches!(missing, LinkOpenError::NoSuchInterface { .. }));
        assert!(
            missing.to_string().contains("lo, left") || missing.to_string().contains("left, lo")
        );
        assert!(matches!(named("lo"), LinkOpenError::NotEthernet { .. }));
        ip("link set left mtu 1000");
        assert!(matches!(named("left"), LinkOpenError::MtuTooSmall { mtu: 1000, .. }));
        ip("link set left mtu 1500 down");
        assert!(matches!(named("left"), LinkOpenError::InterfaceDown { .. }));
        ip("link set left up");
        let vlan = PacketConfig { vlan: Some(4095), ..PacketConfig::new("left") };
        assert!(matches!(error(&vlan), LinkOpenError::OutOfBounds { .. }));
        let group = PacketConfig { group: [2; 6], ..PacketConfig::new("left") };
        assert!(matches!(error(&group), LinkOpenError::OutOfBounds { .. }));

        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        let refused = named("left");
        assert!(matches!(refused, LinkOpenError::NoPrivilege { .. }));
        assert!(refused.to_string().contains("setcap"));
    });
}
