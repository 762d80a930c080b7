//! The xdp link on a real (virtual) cable.

mod common;

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{drain, ip, pattern, receive, receive_when_woken, send, with_cable};
use rustix::thread::{CpuSet, sched_setaffinity};
use thinwire_buffer::{Addr, Pool, RxBatch, RxFrame, TxBatch};
use thinwire_link::packet::{PacketConfig, PacketLink};
use thinwire_link::xdp::{XdpConfig, XdpLink};
use thinwire_link::{HEAD_BYTES, Link, LinkOpenError, LinkSpec, SteeringFilter};

fn open(name: &str) -> XdpLink {
    XdpLink::open(&XdpConfig::new(name)).expect(name)
}

fn packet(name: &str) -> PacketLink {
    PacketLink::open(&PacketConfig::new(name)).expect(name)
}

fn bytes_of(frame: &RxFrame) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.copy_to(0, &mut bytes);
    bytes
}

/// A fresh cable loses frames until both ends see the carrier.
fn warm_up(from: &mut dyn Link, receiver: &mut dyn Link, pool: &Pool) {
    common::warm_up(from, receiver.info().addr, receiver, pool);
}

#[test]
fn frames_of_any_size_cross_unchanged_both_ways() {
    for mtu in [1500, 9000, 65535] {
        with_cable(mtu, move |cable| {
            let mut a = open("left");
            cable.enter(1);
            let mut b = open("right");
            let pool = Pool::new(8 << 20);
            assert_eq!(a.mode(), "native, copy, 1 queue");
            assert_eq!((a.info().frame_bytes.max, a.name()), (mtu, "xdp:left"));
            warm_up(&mut a, &mut b, &pool);
            warm_up(&mut b, &mut a, &pool);
            let sizes =
                [46, 206, 1280, 1500, 3776, 3777, 4082, 4083, 7566, 7567, 9000, 32768, 65535];
            let fits = |&&bytes: &&usize| bytes <= mtu;
            // Heads longer than a chunk, too, with payload behind them.
            let heads = [5000, HEAD_BYTES, HEAD_BYTES, 100];
            for (i, &bytes) in sizes.iter().filter(fits).chain(&[1500, 1400]).enumerate() {
                let head = bytes.min(heads[i % 4]);
                let wanted = pattern(i, bytes);
                for (from, to) in [(0, 1), (1, 0)] {
                    let links: [&mut dyn Link; 2] = [&mut a, &mut b];
                    let mut batch = TxBatch::new();
                    let frame = batch.push(links[to].info().addr);
                    frame.head.extend_from_slice(&wanted[..head]);
                    // Two pieces whose border is nowhere near that of a chunk.
                    let cut = head + (bytes - head) / 3;
                    frame.data.push(pool.copy_of(&wanted[head..cut]).freeze());
                    frame.data.push(pool.copy_of(&wanted[cut..]).freeze());
                    links[from].send(&mut batch).unwrap();
                    let got = receive(links[to], &pool, 1);
                    assert_eq!(got.len(), 1, "{bytes} bytes at MTU {mtu}");
                    assert_eq!(got[0].from, links[from].info().addr);
                    assert!(bytes_of(&got[0]) == wanted, "{bytes} bytes at MTU {mtu}");
                    assert_eq!(got[0].bytes.len(), bytes.min(3776));
                    if bytes > HEAD_BYTES {
                        // As direct disk I/O needs it.
                        assert_eq!(got[0].bytes[HEAD_BYTES..].as_ptr() as usize % 512, 0);
                    }
                }
            }
            assert_eq!((a.stats().tx_dropped, b.stats().rx_dropped), (0, 0));
        });
    }
}

#[test]
fn rings_wrap_and_no_chunk_is_lost() {
    with_cable(9000, |cable| {
        let small = |name: &str| {
            let config =
                XdpConfig { rx_ring: 256, rx_lent: 256, tx_ring: 64, ..XdpConfig::new(name) };
            XdpLink::open(&config).expect(name)
        };
        let mut a = small("left");
        cable.enter(1);
        let mut b = small("right");
        let pool = Pool::new(8 << 20);
        warm_up(&mut a, &mut b, &pool);
        let mut number = 0;
        // Enough to use every chunk of both sides many times over.
        for round in 0..150 {
            let mut batch = TxBatch::new();
            let first = number;
            for _ in 0..20 {
                let bytes = 200 + number * 977 % 8800;
                batch.push(b.info().addr).head.extend_from_slice(&pattern(number, bytes));
                number += 1;
            }
            a.send(&mut batch).unwrap();
            let frames = receive(&mut b, &pool, 20);
            assert_eq!(frames.len(), 20, "round {round}: {:?} {:?}", a.stats(), b.stats());
            for (i, frame) in frames.iter().enumerate() {
                let number = first + i;
                assert!(bytes_of(frame) == pattern(number, 200 + number * 977 % 8800));
            }
        }
        assert_eq!(b.stats().copied_bytes, 0);
    });
}

#[test]
fn held_frames_stay_whole_and_others_are_copied_rather_than_dropped() {
    with_cable(9000, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let config = XdpConfig { rx_ring: 64, rx_lent: 64, ..XdpConfig::new("right") };
        let mut b = XdpLink::open(&config).unwrap();
        let room = b.info().room;
        assert!(room.frames >= 16 && room.frames <= 21, "{room:?}");
        let pool = Pool::new(8 << 20);
        warm_up(&mut a, &mut b, &pool);
        let mut held = Vec::new();
        for number in 0..100 {
            send(&mut a, b.info().addr, &pattern(number, 9000));
            held.extend(receive(&mut b, &pool, 1));
            assert_eq!(held.len(), number + 1, "{:?}", b.stats());
        }
        for (number, frame) in held.iter().enumerate() {
            assert!(bytes_of(frame) == pattern(number, 9000), "frame {number}");
        }
        // 64 of its 128 chunks may be out, three a frame; all other frames were copied.
        let copied = b.stats().copied_bytes / 9000;
        assert!((75..=82).contains(&copied), "{copied} copied");
        // What was promised fits while all of that is held, and more.
        let mut batch = TxBatch::new();
        (0..room.frames as usize).for_each(|i| {
            batch.push(b.info().addr).head.extend_from_slice(&pattern(i, 9000));
        });
        a.send(&mut batch).unwrap();
        assert_eq!(drain(&mut b, &pool).len(), room.frames as usize);
        // Given back, they are used again.
        drop(held);
        for number in 0..100 {
            send(&mut a, b.info().addr, &pattern(number, 9000));
            assert!(bytes_of(&receive(&mut b, &pool, 1)[0]) == pattern(number, 9000));
        }
        assert_eq!(b.stats().copied_bytes / 9000, copied + u64::from(room.frames));
        // And what is held outlives the link.
        send(&mut a, b.info().addr, &pattern(7, 9000));
        let last = receive(&mut b, &pool, 1);
        drop(b);
        assert!(bytes_of(&last[0]) == pattern(7, 9000));
    });
}

#[test]
fn everything_else_reaches_the_kernel() {
    with_cable(9000, |cable| {
        let mut a = packet("left");
        let other = PacketConfig { ethertype: 0x88b6, ..PacketConfig::new("left") };
        let mut foreign = PacketLink::open(&other).unwrap();
        cable.enter(1);
        let mut b = open("right");
        let mut beside = packet("right");
        let other = PacketConfig { ethertype: 0x88b6, ..PacketConfig::new("right") };
        let mut other = PacketLink::open(&other).unwrap();
        let pool = Pool::new(1 << 20);
        warm_up(&mut a, &mut b, &pool);
        drain(&mut beside, &pool);
        // To the station: ours alone. To the group: everybody's.
        send(&mut a, b.info().addr, b"to the station");
        assert_eq!(receive(&mut b, &pool, 1).len(), 1);
        assert!(drain(&mut beside, &pool).is_empty());
        send(&mut a, Addr::Group, b"to the group");
        assert_eq!(receive(&mut b, &pool, 1).len(), 1);
        assert_eq!(receive(&mut beside, &pool, 1).len(), 1);
        send(&mut foreign, b.info().addr, b"another protocol");
        assert_eq!(receive(&mut other, &pool, 1).len(), 1);
        assert!(drain(&mut b, &pool).is_empty());
        // And the internet, ARP included.
        let here = UdpSocket::bind("10.77.0.2:7000").unwrap();
        here.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        cable.enter(0);
        let there = UdpSocket::bind("10.77.0.1:0").unwrap();
        there.send_to(&pattern(1, 20_000), "10.77.0.2:7000").unwrap();
        let mut datagram = vec![0; 30_000];
        assert_eq!(here.recv(&mut datagram).unwrap(), 20_000);
    });
}

#[test]
fn links_share_an_interface_by_steering() {
    with_cable(9000, |cable| {
        let mut a = packet("left");
        cable.enter(1);
        let filters =
            |id| vec![SteeringFilter::byte(8, id..=id), SteeringFilter::byte(8, 0..=0).shared()];
        let config = PacketConfig { steering: filters(1), ..PacketConfig::new("right") };
        let mut xdp = XdpLink::open(&XdpConfig { packet: config, ..XdpConfig::new("") }).unwrap();
        let config = PacketConfig { steering: filters(2), ..PacketConfig::new("right") };
        let mut beside = PacketLink::open(&config).unwrap();
        let pool = Pool::new(1 << 20);
        let start = Instant::now();
        while drain(&mut xdp, &pool).is_empty() || drain(&mut beside, &pool).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20));
            send(&mut a, xdp.info().addr, b"........\x00");
        }
        for frame in [b"........\x00", b"........\x01", b"........\x02", b"........\x03"] {
            send(&mut a, xdp.info().addr, frame);
        }
        let last = |frame: &RxFrame| frame.bytes[8];
        let mut got: Vec<_> = drain(&mut xdp, &pool).iter().map(last).collect();
        got.sort();
        assert_eq!(got, [0, 1]);
        let mut got: Vec<_> = drain(&mut beside, &pool).iter().map(last).collect();
        got.sort();
        assert_eq!(got, [0, 2]);
        // Who only asks takes nothing from anybody, so there may be any number.
        let steering = vec![SteeringFilter::byte(8, 0..=0).shared()];
        let config = PacketConfig { steering, ..PacketConfig::new("right") };
        let mut asks = XdpLink::open(&XdpConfig { packet: config, ..XdpConfig::new("") }).unwrap();
        send(&mut a, xdp.info().addr, b"........\x00");
        assert_eq!(receive(&mut asks, &pool, 1).len(), 1);
        send(&mut asks, a.info().addr, b"and sends");
        assert_eq!(receive(&mut a, &pool, 1).len(), 1);
    });
}

#[test]
fn vlans_are_apart() {
    with_cable(9000, |cable| {
        let config = |name: &str, vlan| PacketConfig { vlan, ..PacketConfig::new(name) };
        let ids = [None, Some(100), Some(200)];
        let mut here = ids.map(|id| PacketLink::open(&config("left", id)).unwrap());
        cable.enter(1);
        let packet = config("right", Some(100));
        let mut there = XdpLink::open(&XdpConfig { packet, ..XdpConfig::new("") }).unwrap();
        assert_eq!(there.name(), "xdp:right,vlan=100");
        let pool = Pool::new(1 << 20);
        warm_up(&mut here[1], &mut there, &pool);
        for (i, link) in here.iter_mut().enumerate() {
            send(link, there.info().addr, &pattern(i, 9000));
        }
        let frames = drain(&mut there, &pool);
        assert_eq!(frames.len(), 1);
        assert!(bytes_of(&frames[0]) == pattern(1, 9000));
        assert_eq!(frames[0].bytes[HEAD_BYTES..].as_ptr() as usize % 512, 0);
        send(&mut there, here[1].info().addr, &pattern(5, 9000));
        assert_eq!(receive(&mut here[1], &pool, 1)[0].bytes[..], pattern(5, 9000));
        assert!(drain(&mut here[0], &pool).is_empty());
    });
}

/// Veth takes tags off, as most adapters do.
#[test]
fn a_link_that_may_lose_frames_to_another_is_known() {
    with_cable(1500, |_| {
        ip("link add link left name above type macvlan");
        let robs = |xdp: &str, other: &str| {
            let parse = |text: &str| text.parse::<LinkSpec>().unwrap();
            parse(xdp).may_rob(&parse(other))
        };
        assert!(robs("xdp:left", "packet:left,vlan=7"));
        assert!(robs("left", "left,vlan=7"));
        for (xdp, other) in [
            ("xdp:left", "packet:left"),
            ("xdp:left", "packet:lo,vlan=7"),
            ("xdp:left", "packet:left,vlan=7,ethertype=0x88b6"),
            ("xdp:left", "packet:above"),
            ("xdp:left", "packet:missing"),
            ("xdp:left", "udp:10.77.0.1"),
            ("xdp:left,vlan=8", "packet:left,vlan=7"),
            ("udp:10.77.0.1", "packet:left,vlan=7"),
            ("xdp:lo", "packet:lo,vlan=7"),
        ] {
            assert!(!robs(xdp, other), "{xdp} {other}");
        }
    });
}

#[test]
fn all_queues_of_an_interface_are_read() {
    with_cable(9000, |cable| {
        ip("link add left2 mtu 9000 numrxqueues 2 numtxqueues 2 type veth \
            peer name right2 mtu 9000 numrxqueues 2 numtxqueues 2");
        ip("link set left2 up");
        ip("link set right2 up");
        let mut a = packet("left2");
        let mut b = open("right2");
        assert_eq!(b.mode(), "native, copy, 2 queues");
        // All frames may come on one.
        assert_eq!(b.info().room.frames, 170);
        let pool = Pool::new(1 << 20);
        warm_up(&mut a, &mut b, &pool);
        // On veth a frame arrives on the queue of the processor that it was sent on.
        for processor in 0..2 {
            let mut set = CpuSet::new();
            set.set(processor);
            sched_setaffinity(None, &set).unwrap();
            send(&mut a, b.info().addr, &pattern(processor, 9000));
            let got = receive(&mut b, &pool, 1);
            assert_eq!(got.len(), 1, "from processor {processor}");
            assert!(bytes_of(&got[0]) == pattern(processor, 9000));
            // Not through the link inside, which has frames in one piece.
            assert_eq!(got[0].bytes.len(), 3776);
        }
        let _ = cable;
    });
}

/// A caller takes a few frames at a time, and one ring always has more.
#[test]
fn a_full_ring_keeps_neither_other_queues_nor_greetings_out() {
    with_cable(1500, |_| {
        ip("link add left2 numrxqueues 2 numtxqueues 2 type veth \
            peer name right2 numrxqueues 2 numtxqueues 2");
        ip("link set left2 up");
        ip("link set right2 up");
        let mut a = packet("left2");
        let mut b = open("right2");
        let pool = Pool::new(8 << 20);
        warm_up(&mut a, &mut b, &pool);
        for full in 0..2 {
            // On veth a frame arrives on the queue of the processor that it was sent on.
            let mut send_on = |processor: usize, to: Addr, text: &[u8], count: usize| {
                let mut set = CpuSet::new();
                set.set(processor);
                sched_setaffinity(None, &set).unwrap();
                (0..count).for_each(|_| send(&mut a, to, text));
            };
            send_on(full, b.info().addr, b"bulk", 120);
            send_on(1 - full, b.info().addr, b"rare", 1);
            send_on(1 - full, Addr::Group, b"hail", 1);
            std::thread::sleep(Duration::from_millis(50));
            let mut batch = RxBatch::new();
            let mut calls_until = |text: &[u8]| {
                let mut calls = 0;
                while !batch.iter().any(|frame: &RxFrame| frame.bytes[..4] == *text) {
                    assert_eq!(b.recv(&pool, 4, &mut batch).unwrap(), 4, "the ring has more");
                    calls += 1;
                }
                calls
            };
            assert!(calls_until(b"rare") <= 2);
            assert!(calls_until(b"hail") <= 16);
            drain(&mut b, &pool);
        }
    });
}

#[test]
fn where_a_driver_cannot_the_kernel_runs_the_program() {
    with_cable(9000, |cable| {
        ip("link add bridge0 type bridge");
        ip("link set left master bridge0");
        ip("link set bridge0 mtu 9000 up");
        let mut a = open("bridge0");
        assert_eq!(a.mode(), "generic, copy, 1 queue");
        cable.enter(1);
        let mut b = packet("right");
        let pool = Pool::new(1 << 20);
        warm_up(&mut b, &mut a, &pool);
        for bytes in [46, 1500, 3776, 3777, 9000] {
            send(&mut b, a.info().addr, &pattern(1, bytes));
            assert!(bytes_of(&receive(&mut a, &pool, 1)[0]) == pattern(1, bytes), "{bytes}");
            send(&mut a, b.info().addr, &pattern(2, bytes));
            assert!(bytes_of(&receive(&mut b, &pool, 1)[0]) == pattern(2, bytes), "{bytes}");
        }
    });
}

#[test]
fn a_second_link_is_told_who_holds_the_interface_and_a_closed_one_lets_go() {
    with_cable(9000, |cable| {
        let mut a = packet("left");
        cable.enter(1);
        let first = open("right");
        let refused = XdpLink::open(&XdpConfig::new("right")).err().expect("there is room for one");
        let LinkOpenError::XdpRefused { .. } = &refused else { panic!("{refused}") };
        let text = refused.to_string();
        let pid = format!("process {}", std::process::id());
        assert!(text.contains(&pid) && text.contains("use packet:right"), "{text}");
        let mut last = first;
        for _ in 0..5 {
            drop(last);
            last = open("right");
        }
        let pool = Pool::new(1 << 20);
        warm_up(&mut a, &mut last, &pool);
    });
}

/// What [`a_killed_process_lets_go`] starts in a process of its own.
#[test]
fn hold_the_interface() {
    if std::env::var_os("HOLD_RIGHT").is_none() {
        return;
    }
    let _link = open("right");
    println!("holding");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_process_lets_go() {
    with_cable(9000, |cable| {
        let mut a = packet("left");
        cable.enter(1);
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hold_the_interface", "--nocapture"])
            .env("HOLD_RIGHT", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().contains("holding")));
        assert!(XdpLink::open(&XdpConfig::new("right")).is_err());
        // kill -9.
        holder.kill().unwrap();
        holder.wait().unwrap();
        let pool = Pool::new(1 << 20);
        let mut beside = packet("right");
        warm_up(&mut a, &mut beside, &pool);
        let mut b = open("right");
        warm_up(&mut a, &mut b, &pool);
    });
}

#[test]
fn an_interface_that_goes_down_drops_frames_and_returns() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        cable.enter(1);
        let mut b = open("right");
        let pool = Pool::new(1 << 20);
        warm_up(&mut a, &mut b, &pool);
        cable.enter(0);
        ip("link set left down");
        // The first waits in the ring.
        let text: &[u8] = b"waits";
        (0..3).for_each(|_| send(&mut a, b.info().addr, text));
        assert!(receive_when_woken(&mut a, &pool).is_empty());
        assert_eq!(a.stats().tx_dropped, 2);
        ip("link set left up");
        // It goes although nothing else is sent.
        receive_when_woken(&mut a, &pool);
        let heard = receive(&mut b, &pool, 1);
        assert_eq!(&heard[0].bytes[..text.len()], text);
        warm_up(&mut a, &mut b, &pool);
        warm_up(&mut b, &mut a, &pool);
    });
}

#[test]
fn an_interface_that_is_made_anew_is_used_again() {
    with_cable(1500, |_| {
        let mut a = open("left");
        ip("link del left");
        send(&mut a, Addr::Group, b"lost");
        assert!(drain(&mut a, &Pool::new(1 << 20)).is_empty());
        ip("link add left type veth peer name other");
        ip("link set left up");
        ip("link set other up");
        let mut c = packet("other");
        let pool = Pool::new(1 << 20);
        let start = Instant::now();
        while drain(&mut c, &pool).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", a.stats());
            send(&mut a, c.info().addr, b"finds the new one");
        }
        send(&mut c, a.info().addr, b"and hears");
        send(&mut c, Addr::Group, b"its group, too");
        assert_eq!(receive(&mut a, &pool, 2).len(), 2);
        assert_eq!(a.mode(), "as a packet link");
    });
}

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
            ip("link del here");
            assert!(receive_when_woken(&mut a, &pool).is_empty());
            make();
            receive_when_woken(&mut a, &pool);
            assert_eq!(a.mode(), "as a packet link");
            let mut c = packet("there");
            for to in [a.info().addr, Addr::Group] {
                send(&mut c, to, b"hear this");
                assert_eq!(receive_when_woken(&mut a, &pool).len(), 1, "{index:?} {to}");
            }
        });
    }
}

#[test]
fn a_changed_station_address_is_noticed() {
    with_cable(1500, |cable| {
        let mut a = open("left");
        let new = [0x02, 0, 0, 0, 0x77, 1];
        cable.enter(1);
        let mut b = packet("right");
        cable.enter(0);
        let pool = Pool::new(1 << 20);
        ip("link set left address 02:00:00:00:77:01");
        let start = Instant::now();
        while a.info().addr != Addr::Mac(new) {
            assert!(start.elapsed() < Duration::from_secs(20), "still {}", a.info().addr);
            send(&mut a, b.info().addr, b"who am I");
            std::thread::sleep(Duration::from_millis(50));
        }
        let before = a.stats();
        warm_up(&mut b, &mut a, &pool);
        assert!(a.stats().rx_frames > before.rx_frames);
        assert_eq!(a.mode(), "native, copy, 1 queue");
        drain(&mut b, &pool);
        send(&mut a, b.info().addr, b"hear me");
        assert_eq!(receive(&mut b, &pool, 1)[0].from, Addr::Mac(new));
    });
}

#[test]
fn a_limit_of_locked_memory_is_named() {
    with_cable(1500, |_| {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

        // The limit is the process's, but binds only who lacks the capability: this thread.
        let limit = Rlimit { current: Some(1 << 20), ..getrlimit(Resource::Memlock) };
        setrlimit(Resource::Memlock, limit).unwrap();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        let refused = XdpLink::open(&XdpConfig::new("left")).err().expect("12 MiB").to_string();
        assert!(refused.contains("CAP_IPC_LOCK") && refused.contains("LimitMEMLOCK"), "{refused}");
        let config = XdpConfig { rx_ring: 64, rx_lent: 32, tx_ring: 32, ..XdpConfig::new("left") };
        XdpLink::open(&config).expect("half a MiB");
    });
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |name: &str| XdpLink::open(&XdpConfig::new(name)).err().expect(name).to_string();
    assert!(refused("no-such-if").contains("there is no interface"));
    assert!(refused("lo").contains("not an Ethernet interface"));
}
