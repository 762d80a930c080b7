//! The udp link on loopback, and on a real (virtual) cable.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use common::{check_flooded, drain, ip, is_woken, pattern, receive, send, warm_up, with_cable};
use thinwire_buffer::{Addr, Pool, RxFrame, TxBatch};
use thinwire_link::udp::{UdpConfig, UdpLink};
use thinwire_link::{HEAD_BYTES, Link, LinkOpenError, ShardSteering};

fn config(addr: &str) -> UdpConfig {
    UdpConfig::new(addr.parse().unwrap())
}

fn open(addr: &str) -> UdpLink {
    UdpLink::open(&config(addr)).unwrap()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    // Below those that the kernel gives to whoever asks for any: such a one would be free for a
    // moment only, while other tests run. Counted, so that each is given once.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id() as u16 % 10_000;
    let port = || 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
    let is_free = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(port).take(1000).find(is_free).expect("a free port")
}

fn batch_of(to: Addr, pool: &Pool, sizes: &[usize]) -> TxBatch {
    let mut batch = TxBatch::new();
    for (i, &size) in sizes.iter().enumerate() {
        let frame = batch.push(to);
        let head = size.min(HEAD_BYTES);
        frame.head.extend_from_slice(&pattern(i, size)[..head]);
        let data = pool.copy_of(&pattern(i, size)[head..]).freeze();
        let cut = data.len() / 3;
        frame.data.push(data.slice(0, cut));
        frame.data.push(data.slice(cut, data.len() - cut));
    }
    batch
}

fn assert_sizes(frames: &[RxFrame], sizes: &[usize]) {
    assert_eq!(frames.iter().map(|f| f.bytes.len()).collect::<Vec<_>>(), sizes);
    for (i, frame) in frames.iter().enumerate() {
        assert_eq!(frame.bytes[..], pattern(i, sizes[i]), "frame {i}");
    }
}

#[test]
fn a_train_is_one_call_each_way_and_shares_one_buffer() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let (mut a, mut b) = (open(addr), open(addr));
        let pool = Pool::new(8 << 20);
        let sizes = [4288, 4288, 4288, 4288, 4288, 4288, 100];
        a.send(&mut batch_of(b.info().addr, &pool, &sizes)).unwrap();
        let sent = a.stats();
        assert_eq!((sent.tx_frames, sent.tx_calls, sent.tx_dropped), (7, 1, 0), "{addr}");
        let frames = receive(&mut b, &pool, 7);
        assert_sizes(&frames, &sizes);
        assert_eq!(frames[0].from, a.info().addr);
        // One after the other in one piece of memory: nothing was copied.
        for pair in frames.windows(2) {
            let end = pair[0].bytes.as_ptr() as usize + pair[0].bytes.len();
            assert_eq!(end, pair[1].bytes.as_ptr() as usize);
        }
        let got = b.stats();
        assert_eq!((got.rx_frames, got.copied_bytes, got.rx_bytes), (7, 0, sent.tx_bytes));
        assert!(a.sends_trains());
    }
}

#[test]
fn a_lone_frame_arrives_aligned() {
    let (mut a, mut b) = (open("127.0.0.1:0"), open("127.0.0.1:0"));
    let pool = Pool::new(8 << 20);
    let largest = b.info().frame_bytes.max;
    assert_eq!((largest, b.info().frame_bytes.base), (HEAD_BYTES + 60 * 1024, 1232));
    for size in [HEAD_BYTES + 8192, largest] {
        a.send(&mut batch_of(b.info().addr, &pool, &[size])).unwrap();
        let frames = receive(&mut b, &pool, 1);
        assert_sizes(&frames, &[size]);
        assert_eq!(frames[0].bytes[HEAD_BYTES..].as_ptr() as usize % 4096, 0);
    }
    assert_eq!(b.stats().copied_bytes, 0);
}

#[test]
fn sizes_and_peers_that_vary_keep_their_order() {
    let mut a = open("127.0.0.1:0");
    let mut peers = [open("127.0.0.1:0"), open("127.0.0.1:0")];
    let pool = Pool::new(16 << 20);
    let sizes: Vec<usize> = (0..200).map(|i| [700, 700, 300, 1232, 64][i * i % 5]).collect();
    let mut batch = TxBatch::new();
    for (i, &size) in sizes.iter().enumerate() {
        let to = peers[i / 3 % 2].info().addr;
        batch.push(to).head.extend_from_slice(&pattern(i, size));
    }
    a.send(&mut batch).unwrap();
    for (n, peer) in peers.iter_mut().enumerate() {
        let mine: Vec<usize> = (0..sizes.len()).filter(|i| i / 3 % 2 == n).collect();
        let frames = receive(peer, &pool, mine.len());
        assert_eq!(frames.len(), mine.len());
        for (frame, &i) in frames.iter().zip(&mine) {
            assert_eq!(frame.bytes[..], pattern(i, sizes[i]));
        }
    }
    let calls = a.stats().tx_calls;
    assert!(calls <= 4, "{calls} calls for {} frames", sizes.len());
}

#[test]
fn without_gso_or_gro_frames_cross_all_the_same() {
    for (gso, gro) in [(false, false), (false, true), (true, false)] {
        let mut a = UdpLink::open(&UdpConfig { gso, ..config("127.0.0.1:0") }).unwrap();
        let mut b = UdpLink::open(&UdpConfig { gro, ..config("127.0.0.1:0") }).unwrap();
        let pool = Pool::new(16 << 20);
        let sizes = [2000; 30];
        a.send(&mut batch_of(b.info().addr, &pool, &sizes)).unwrap();
        assert_sizes(&receive(&mut b, &pool, 30), &sizes);
    }
}

#[test]
fn a_question_to_the_group_reaches_every_target_on_the_host() {
    // Two targets have their own addresses and the same port, as they would on two machines.
    let group_port = free_port();
    let target = |addr: &str| {
        let bind = SocketAddr::new(addr.parse().unwrap(), group_port);
        UdpLink::open(&UdpConfig { group_port, ..UdpConfig::new(bind) }).unwrap()
    };
    let mut targets = [target("127.0.0.1"), target("127.0.0.2")];
    let mut asker = UdpLink::open(&UdpConfig { group_port, ..config("127.0.0.1:0") }).unwrap();
    assert!(targets.iter().all(UdpLink::hears_group) && !asker.hears_group());
    let pool = Pool::new(8 << 20);
    send(&mut asker, Addr::Group, b"who is there?");
    for target in &mut targets {
        assert!(is_readable(target));
        let frames = receive(target, &pool, 1);
        assert_eq!(&frames[0].bytes[..], b"who is there?");
        assert_eq!(frames[0].from, asker.info().addr);
        assert!(!is_readable(target));
        send(target, frames[0].from, b"I am");
        assert!(is_readable(&asker));
        assert_eq!(receive(&mut asker, &pool, 1)[0].from, target.info().addr);
    }
    // A target's own question comes back to others only.
    let (one, two) = targets.split_at_mut(1);
    send(&mut one[0], Addr::Group, b"anybody else?");
    assert_eq!(receive(&mut two[0], &pool, 1).len(), 1);
    assert!(drain(&mut one[0], &pool).is_empty());
}

fn is_readable(link: &UdpLink) -> bool {
    is_woken(link, Duration::from_millis(50))
}

#[test]
fn empty_datagrams_hide_nothing() {
    let mut link = open("127.0.0.1:0");
    let Addr::Udp(to) = link.info().addr else { panic!() };
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..40 {
        stranger.send_to(b"", to).unwrap();
    }
    stranger.send_to(b"frame", to).unwrap();
    let mut out = Default::default();
    assert_eq!(link.recv(&Pool::new(8 << 20), 64, &mut out).unwrap(), 1);
    assert_eq!(&out[0].bytes[..], b"frame");
}

#[test]
fn nobody_there_is_no_error() {
    let mut a = open("127.0.0.1:0");
    let nobody = Addr::Udp(SocketAddr::from(([127, 0, 0, 1], free_port())));
    let pool = Pool::new(8 << 20);
    for _ in 0..3 {
        send(&mut a, nobody, b"hello?");
        assert!(drain(&mut a, &pool).is_empty());
    }
    send(&mut a, Addr::Mac([0; 6]), b"not an address of this link");
    assert_eq!(a.stats().tx_dropped, 1);
}

#[test]
fn errors_say_what_to_do() {
    let first = open("127.0.0.1:0");
    let Addr::Udp(addr) = first.info().addr else { panic!() };
    let error = |config: UdpConfig| UdpLink::open(&config).err().expect("an error");
    let in_use = error(UdpConfig::new(addr));
    assert!(matches!(in_use, LinkOpenError::AddressInUse { .. }));
    assert!(in_use.to_string().contains("another port"));
    let foreign = error(config("192.0.2.77:0"));
    assert!(matches!(foreign, LinkOpenError::AddressNotLocal { .. }));
    assert!(foreign.to_string().contains("127.0.0.1 (lo)"), "{foreign}");
}

#[test]
fn the_mtu_of_the_address_bounds_frames_and_larger_ones_are_dropped() {
    with_cable(9000, |cable| {
        let mut a = open("10.77.0.1:0");
        cable.enter(1);
        let mut b = open("10.77.0.2:34997");
        let pool = Pool::new(8 << 20);
        assert_eq!(a.info().frame_bytes.max, 8972);
        warm_up(&mut a, b.info().addr, &mut b, &pool);
        let before = a.stats();
        let mut sizes = vec![8972; 20];
        a.send(&mut batch_of(b.info().addr, &pool, &sizes)).unwrap();
        let frames = receive(&mut b, &pool, 20);
        assert_sizes(&frames, &sizes);
        let sent = a.stats();
        assert_eq!((sent.tx_calls - before.tx_calls, sent.tx_dropped), (1, 0));
        // In a train with frames that are too large, those that fit still leave.
        sizes = vec![8973, 8973, 500];
        a.send(&mut batch_of(b.info().addr, &pool, &sizes)).unwrap();
        let frames = receive(&mut b, &pool, 1);
        assert_eq!(frames[0].bytes[..], pattern(2, 500));
        assert_eq!(a.stats().tx_dropped, 2);
        assert!(a.sends_trains());
    });
}

#[test]
fn the_wildcard_address_asks_and_hears_on_its_interfaces() {
    with_cable(1500, |cable| {
        let mut a = open("0.0.0.0:0");
        assert_eq!(a.info().frame_bytes.max, 1472);
        cable.enter(1);
        // A second interface, so that there is a choice to be made.
        ip("link add second type veth peer name third");
        ip("addr add 10.78.0.1/24 dev second");
        ip("link set second mtu 1400 up");
        let mut b = open("0.0.0.0:34997");
        assert_eq!(b.info().frame_bytes.max, 1372);
        let again = UdpLink::open(&config("0.0.0.0:34997")).err().expect("an error");
        assert!(matches!(again, LinkOpenError::AddressInUse { .. }));
        let pool = Pool::new(8 << 20);
        warm_up(&mut a, Addr::Group, &mut b, &pool);
        send(&mut a, Addr::Group, b"who?");
        let frames = receive(&mut b, &pool, 1);
        assert_eq!(&frames[0].bytes[..], b"who?");
        send(&mut b, frames[0].from, b"me");
        assert_eq!(&receive(&mut a, &pool, 1)[0].bytes[..], b"me");
        // And the way back, from the side with two interfaces.
        cable.enter(0);
        let mut c = open("10.77.0.1:34997");
        send(&mut b, Addr::Group, b"and you?");
        assert_eq!(&receive(&mut c, &pool, 1)[0].bytes[..], b"and you?");
    });
}

#[test]
fn a_route_that_is_gone_drops_frames_and_returns() {
    with_cable(1500, |cable| {
        let mut a = open("10.77.0.1:0");
        cable.enter(1);
        let mut b = open("10.77.0.2:0");
        let pool = Pool::new(8 << 20);
        warm_up(&mut a, b.info().addr, &mut b, &pool);
        cable.enter(0);
        ip("link set left down");
        send(&mut a, b.info().addr, b"lost");
        assert_eq!(a.stats().tx_dropped, 1);
        ip("link set left up");
        warm_up(&mut a, b.info().addr, &mut b, &pool);
    });
}

#[test]
fn room_is_what_really_fits() {
    for mtu in [1500, 9000] {
        with_cable(mtu, move |cable| {
            for gso in [false, true] {
                cable.enter(0);
                let mut a = UdpLink::open(&UdpConfig { gso, ..config("10.77.0.1:0") }).unwrap();
                cable.enter(1);
                let small = UdpConfig { rcvbuf_bytes: 106_496, ..config("10.77.0.2:0") };
                let mut b = UdpLink::open(&small).unwrap();
                let room = b.info().room;
                let pool = Pool::new(64 << 20);
                warm_up(&mut a, b.info().addr, &mut b, &pool);
                // In trains that leave together, as a peer would that uses all of its room.
                let sizes = vec![mtu - 28; room.frames as usize];
                a.send(&mut batch_of(b.info().addr, &pool, &sizes)).unwrap();
                let got = drain(&mut b, &pool).len();
                let more = vec![mtu - 28; 2000];
                a.send(&mut batch_of(b.info().addr, &pool, &more)).unwrap();
                let all = drain(&mut b, &pool).len();
                eprintln!("mtu {mtu} gso {gso}: promised {}, took {all}", room.frames);
                assert_eq!(got, room.frames as usize);
                assert!(b.stats().rx_dropped > 0);
            }
        });
    }
}

#[test]
fn shards_share_an_address_and_get_their_own_frames() {
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let shard = |index| {
        let shard = Some(ShardSteering { index, count: 3, offset: 8, accepts: Vec::new() });
        let group_port = bind.port();
        UdpLink::open(&UdpConfig { shard, group_port, ..UdpConfig::new(bind) })
    };
    let mut shards = [shard(0).unwrap(), shard(1).unwrap(), shard(2).unwrap()];
    // Another program is refused, whether or not it would share.
    assert!(matches!(
        UdpLink::open(&UdpConfig::new(bind)),
        Err(LinkOpenError::AddressInUse { .. })
    ));
    assert!(matches!(shard(0), Err(LinkOpenError::AddressInUse { .. })));
    let mut asker =
        UdpLink::open(&UdpConfig { group_port: bind.port(), ..config("127.0.0.1:0") }).unwrap();
    let pool = Pool::new(16 << 20);
    let mut batch = TxBatch::new();
    for n in [0u8, 1, 2, 1, 2, 2, 9] {
        let head = &mut batch.push(Addr::Udp(bind)).head;
        head.resize(100, 0);
        head[8] = n;
        // One frame a train: a train goes to one shard as a whole.
        asker.send(&mut batch).unwrap();
    }
    // Too short to carry a number.
    send(&mut asker, Addr::Udp(bind), b"hi");
    send(&mut asker, Addr::Group, b"who?");
    let counts = shards.each_mut().map(|link| drain(link, &pool).len());
    assert_eq!(counts, [4, 2, 3]);
}

#[test]
fn a_flood_at_the_door_takes_no_place_from_the_others() {
    let bind = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let shard = Some(ShardSteering { index: 0, count: 1, offset: 8, accepts: Vec::new() });
    let config_b = UdpConfig { shard, group_listen: false, ..UdpConfig::new(bind) };
    let mut b = UdpLink::open(&config_b).unwrap();
    let mut a = UdpLink::open(&config("127.0.0.1:0")).unwrap();
    let pool = Pool::new(16 << 20);
    for _ in 0..3000 {
        send(&mut a, Addr::Udp(bind), &[0; 100]);
    }
    for _ in 0..100 {
        send(&mut a, Addr::Udp(bind), &[1; 100]);
    }
    check_flooded(&mut b, &pool);
}

/// A wire slower than what is sent to it fills the socket's buffer. Nothing is lost or reordered for
/// that, and nothing waits for it.
#[test]
fn what_a_full_queue_does_not_take_stays_in_the_batch() {
    for gso in [true, false] {
        with_cable(9000, move |cable| {
            ip("addr add 10.9.0.1/24 dev left");
            let shape = "qdisc add dev left root tbf rate 400mbit burst 64kb limit 64mb";
            let done =
                Command::new("tc").args(shape.split_whitespace()).status().expect("iproute2");
            assert!(done.success());
            let config = UdpConfig { sndbuf_bytes: 128 << 10, gso, ..config("10.9.0.1:0") };
            let mut a = UdpLink::open(&config).unwrap();
            cable.enter(1);
            ip("addr add 10.9.0.2/24 dev right");
            let mut b = open("10.9.0.2:0");
            let pool = Pool::new(8 << 20);
            warm_up(&mut a, b.info().addr, &mut b, &pool);
            let sizes: Vec<usize> = (0..400).map(|i| if i % 7 == 0 { 900 } else { 8900 }).collect();
            let mut batch = batch_of(b.info().addr, &pool, &sizes);
            a.send(&mut batch).unwrap();
            let left = batch.len();
            assert!(left > 100, "{left} frames left of a batch that no buffer holds");
            let mut frames = receive(&mut b, &pool, sizes.len() - left);
            while !batch.is_empty() {
                std::thread::sleep(Duration::from_micros(100));
                a.send(&mut batch).unwrap();
                frames.extend(receive(&mut b, &pool, 1));
            }
            frames.extend(receive(&mut b, &pool, sizes.len() - frames.len()));
            assert_sizes(&frames, &sizes);
            assert_eq!(a.stats().tx_dropped, 0);
        });
    }
}
