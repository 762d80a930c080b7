//! Floods of greetings keep nobody out: who has not shown that he receives takes no place, and of the
//! others those who never attached go first (`docs/protocol.md`, "Addresses" and "Bounds").

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_initiator::TargetName;
use thinwire_link::sim::{StationConfig, Verdict};
use thinwire_sim::world::{MS, SECOND};
use thinwire_target::Limit;
use thinwire_wire::{Discover, Frame, Header, Kind};

use crate::forged::{Flooder, frame, hello, ping, sessions, throw};
use crate::scene::{Scene, at, ms};

/// Greetings come as fast as they can: what is looked at here is what becomes of their sessions.
fn unhurried() -> Scene {
    Scene::with(1, |config| {
        for limit in ["greetings", "greetings-per-address"] {
            config.limits.set(limit, 1_000_000).expect("a limit");
        }
    })
}

/// Attaches at once, while the target holds what the flood left there.
fn attaches(s: &mut Scene) {
    let client = s.client();
    // By name, offers would be gathered for a while.
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    // One may write.
    s.world.clients[client].config.read_only = client > 0;
    let begin = s.world.now;
    s.attach(client);
    assert!(s.world.now - begin < 2 * MS, "it took {} ms", (s.world.now - begin) / MS);
}

/// Questions whose answers are to wait for long are no way to keep others from theirs.
#[test]
fn a_flood_of_discovers_keeps_nobody_out() {
    let mut s = Scene::new();
    let lazy = |nonce| {
        let discover =
            Discover { nonce, session: 0, first: 0, spread_ms: 1000, cookie: 0, node: "" };
        frame(Header::new(Kind::Discover), 0, |out| discover.emit(out))
    };
    let client = s.client();
    for nonce in 0..20_000 {
        throw(&mut s, 1000, &lazy(nonce));
        if nonce == 1000 {
            s.world.start_client(client);
        }
        if nonce % 20 == 0 {
            s.pass(Duration::from_micros(300));
        }
    }
    assert!(s.world.clients[client].is_open, "not attached within 285 ms");
    s.end();
}

#[test]
fn a_flood_of_forged_hellos_keeps_nobody_out() {
    let mut s = Scene::new();
    for nonce in 1..=100_000 {
        throw(&mut s, 1000 + nonce as u32 % 30_000, &hello(nonce, 0));
        if nonce % 1000 == 0 {
            s.pass(ms(1));
        }
    }
    attaches(&mut s);
    s.end();
}

#[test]
fn a_flood_of_hellos_from_one_socket_keeps_nobody_out() {
    let mut s = Scene::new();
    let flooder = s.world.net.station(StationConfig::default()).number();
    for nonce in 1..=1100 {
        throw(&mut s, flooder, &hello(nonce, 0));
    }
    s.pass(ms(1));
    attaches(&mut s);
    s.end();
}

#[test]
fn a_flood_with_cookies_from_one_address_keeps_nobody_out() {
    for confirms in [false, true] {
        let mut s = unhurried().with_client();
        Flooder::new(&mut s).open(&mut s, 3000, confirms);
        assert_eq!(sessions(&s), 128 + 1, "the client's own with them");
        attaches(&mut s);
        s.write(at(0, 8));
        assert_eq!(s.stats(0).sessions, 1, "the attached one is left alone");
        s.end();
    }
}

/// Of many addresses, each in its bounds.
#[test]
fn those_who_never_attached_go_first() {
    for confirms in [false, true] {
        let mut s = unhurried().with_client();
        for _ in 0..10 {
            Flooder::new(&mut s).open(&mut s, 128, confirms);
            s.pass(ms(100));
        }
        s.world.clear_judge();
        assert_eq!(sessions(&s), 1024);
        for _ in 0..4 {
            attaches(&mut s);
        }
        assert_eq!(sessions(&s), 1024);
        for client in 0..5 {
            assert_eq!(s.stats(client).sessions, 1, "client {client} is left alone");
        }
        s.write(at(0, 8));
    }
}

/// A flood between the WELCOME of an honest initiator and the first frame of its session, which is slow:
/// sessions that were opened long before go first, although they were used.
#[test]
fn a_session_that_was_just_welcomed_outlasts_a_flood() {
    let mut s = unhurried();
    for _ in 0..10 {
        Flooder::new(&mut s).open(&mut s, 128, true);
    }
    let mut flooder = Flooder::new(&mut s);
    flooder.open(&mut s, 0, false);
    s.pass(ms(600));
    let client = s.client();
    let station = s.world.clients[client].machine.stations[0];
    let welcomed = Rc::new(Cell::new(false));
    let seen = welcomed.clone();
    s.world.set_judge(move |from, to, bytes| {
        let kind = Frame::parse(bytes).expect("a good frame").header().kind;
        seen.set(seen.get() || (to == station && kind == Kind::Welcome));
        let is_slow = from == station && matches!(kind, Kind::Session | Kind::Probe);
        if is_slow { Verdict::Delay(20 * MS) } else { Verdict::Pass }
    });
    s.world.start_client(client);
    s.until("welcomed", move |_| welcomed.get());
    (0..100).for_each(|_| flooder.greet(&mut s));
    s.until("attached", move |w| w.clients[client].is_open);
    assert_eq!(s.stats(client).sessions, 1);
    s.end();
}

/// At the rate that the limits allow, nothing but greetings is turned away.
#[test]
fn greetings_beyond_the_limit_are_refused_and_counted() {
    let mut s = Scene::new().with_client();
    let mut flooder = Flooder::new(&mut s);
    flooder.open(&mut s, 0, false);
    for _ in 0..1000 {
        flooder.greet(&mut s);
    }
    let counts = s.world.target(0).stats().limits;
    assert!(counts.get(Limit::GreetingsPerAddress) > 850, "{counts:?}");
    assert!(sessions(&s) <= 128 + 1);
    attaches(&mut s);
    s.write(at(0, 8));
    assert_eq!(s.stats(0).sessions, 1);
    s.end();
}

/// What an initiator does not use for 5 s is forgotten, and no memory to speak of was spent on it.
#[test]
fn a_promised_session_is_made_when_it_is_used() {
    let mut s = Scene::new();
    let mut flooder = Flooder::new(&mut s);
    flooder.open(&mut s, 2, false);
    assert_eq!((s.world.target(0).promised(), s.world.target(0).sessions().len()), (2, 0));
    let welcomes = flooder.welcomes.take();
    throw(&mut s, flooder.station, &ping(welcomes[0].0, welcomes[0].1, 0, 1));
    assert_eq!((s.world.target(0).promised(), s.world.target(0).sessions().len()), (1, 1));
    s.pass(Duration::from_secs(6));
    assert_eq!((s.world.target(0).promised(), s.world.target(0).sessions().len()), (0, 1));
    throw(&mut s, flooder.station, &ping(welcomes[1].0, welcomes[1].1, 0, 1));
    assert_eq!(s.world.target(0).sessions().len(), 1, "it came too late");
}

/// Whoever is attaching when its session has to go, for a flood of many addresses, opens another.
#[test]
fn an_attach_survives_that_its_session_goes() {
    let mut s = unhurried();
    let client = s.client();
    let mut flooders = Vec::new();
    for _ in 0..10 {
        let mut flooder = Flooder::new(&mut s);
        flooder.open(&mut s, 0, false);
        flooders.push(flooder);
    }
    let welcomes = Rc::new(Cell::new(0));
    let seen = welcomes.clone();
    let server = s.world.servers[0].stations()[0];
    s.world.set_judge(move |_, to, bytes| {
        let kind = Frame::parse(bytes).expect("a good frame").header().kind;
        seen.set(seen.get() + u32::from(kind == Kind::Welcome));
        // What the client says in its session takes a while.
        let is_late = to == server && matches!(kind, Kind::Session | Kind::Probe);
        if is_late { Verdict::Delay(20_000_000) } else { Verdict::Pass }
    });
    s.world.start_client(client);
    let ours = welcomes.clone();
    s.until("a welcome", move |_| ours.get() == 1);
    for flooder in &mut flooders {
        for _ in 0..128 {
            flooder.greet(&mut s);
        }
    }
    assert_eq!(sessions(&s), 1024);
    let begin = s.world.now;
    s.until("attached", move |w| w.clients[client].is_open);
    assert!(s.world.now - begin < SECOND, "{} ms", (s.world.now - begin) / MS);
    assert_eq!(s.stats(client).sessions, 2, "the first one had gone");
    s.world.clear_judge();
    s.write(at(0, 8));
    s.end();
}
