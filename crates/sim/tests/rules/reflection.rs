//! What a sender that has not shown that it receives can make a target send, and keep: at most three
//! times its own bytes, and nothing (`docs/protocol.md`, "Addresses").

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Addr, Pool, RxFrame, SegList, TxBatch, TxFrame};
use thinwire_initiator::TargetName;
use thinwire_link::sim::{StationConfig, Verdict};
use thinwire_proto::{Time, outside_frame, seal};
use thinwire_sim::export::Store;
use thinwire_sim::server::Crash;
use thinwire_sim::world::{MS, SECOND};
use thinwire_target::session_lane;
use thinwire_wire::{
    Discover, Frame, HEADER_BYTES, Header, Hello, Kind, Message, Ping, Probe, Retry, UnknownSession,
};

use crate::scene::{Scene, at, ms};

/// A time in which everything that is sent again has been, several times.
const LONG: Duration = Duration::from_secs(12);

/// Somebody whose address is forged: it hears, and never answers.
struct Victim {
    station: u32,
    /// Bytes of frames to it.
    heard: Rc<Cell<u64>>,
    /// And the kinds of those frames.
    kinds: Rc<RefCell<Vec<Kind>>>,
}

/// A scene whose wire counts what comes to a silent station, and what a target says to sessions.
struct Stage {
    s: Scene,
    victim: Victim,
    /// Session and epoch of the last session frame to the target.
    session: Rc<Cell<(u64, u32)>>,
    /// What was sent in the victim's name.
    said: u64,
}

impl Stage {
    fn of(mut s: Scene) -> Self {
        let victim = s.world.net.station(StationConfig::default()).number();
        let server = s.world.servers[0].stations()[0];
        let (heard, session) = (Rc::new(Cell::new(0)), Rc::new(Cell::new((0, 0))));
        let kinds = Rc::new(RefCell::new(Vec::new()));
        let (counter, seen, told) = (heard.clone(), session.clone(), kinds.clone());
        s.world.set_judge(move |from, to, bytes| {
            if (from, to) == (server, victim) {
                counter.set(counter.get() + bytes.len() as u64);
                told.borrow_mut().extend(Frame::parse(bytes).map(|frame| frame.header().kind));
            }
            if let (true, Ok(frame)) = (to == server, Frame::parse(bytes))
                && frame.header().kind == Kind::Session
            {
                seen.set((frame.header().session, frame.header().epoch));
            }
            Verdict::Pass
        });
        Stage { s, victim: Victim { station: victim, heard, kinds }, session, said: 0 }
    }

    /// A frame in the victim's name.
    fn forge(&mut self, bytes: &[u8]) {
        self.said += bytes.len() as u64;
        throw(&mut self.s, self.victim.station, bytes);
    }

    /// Nothing that the victim ever hears is more than three times what was said in its name.
    fn judge(&mut self) {
        self.s.pass(LONG);
        let (said, heard) = (self.said, self.victim.heard.get());
        assert!(heard <= 3 * said, "{said} bytes of a forger brought {heard} bytes to its victim");
    }
}

/// Sessions that the target has, also those that nobody uses.
fn sessions(s: &Scene) -> usize {
    let target = s.world.target(0);
    target.sessions().len() + target.promised()
}

/// A frame arrives at the target from a station that need not have sent it.
fn throw(s: &mut Scene, from: u32, bytes: &[u8]) {
    let now = Time(s.world.now);
    let target = s.world.servers[0].shards[0].target.as_mut().expect("it runs");
    target.on_frame(now, 0, &received(from, bytes));
    s.world.servers[0].wake();
}

fn received(from: u32, bytes: &[u8]) -> RxFrame {
    RxFrame {
        from: Addr::Sim(from),
        bytes: Pool::new(0).copy_of(bytes).freeze(),
        rest: SegList::new(),
        waited: Duration::ZERO,
        queued: Duration::ZERO,
    }
}

fn frame(header: Header, pad_to: usize, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut batch = TxBatch::new();
    outside_frame(&mut batch, Addr::Group, header, pad_to, body);
    batch.frames()[0].head.clone()
}

fn hello(nonce: u64, cookie: u64) -> Vec<u8> {
    let hello = Hello {
        nonce,
        session: 1 << 63 | nonce,
        initiator: [7; 16],
        instance: nonce,
        frame_bytes_max: 9000,
        security: 1,
        room_frames: 64,
        room_bytes: 1 << 20,
        cookie,
        node: "node",
        export: "disk0",
        name: "forger",
    };
    frame(Header::new(Kind::Hello), 0, |out| hello.emit(out))
}

fn discover(first: u16) -> Vec<u8> {
    let discover = Discover { nonce: 3, first, spread_ms: 0, cookie: 0, node: "" };
    frame(Header::new(Kind::Discover), 0, |out| discover.emit(out))
}

fn probe(session: u64, epoch: u32, path: u8, size: usize) -> Vec<u8> {
    let header = Header { session, epoch, path, ..Header::new(Kind::Probe) };
    let message = Probe {
        token: 1,
        size: size as u16,
        reserved: Default::default(),
        room_frames: 64,
        room_bytes: 1 << 20,
    };
    frame(header, size, |out| message.emit(out))
}

/// A frame of a session with a PING in it.
fn ping(session: u64, epoch: u32, path: u8, packet_number: u64) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    Ping {}.emit(&mut bytes);
    let end = bytes.len() as u16;
    let header = Header {
        session,
        epoch,
        path,
        packet_number,
        length: end,
        data_offset: end,
        messages_end: end,
        ..Header::new(Kind::Session)
    };
    header.write(&mut bytes);
    let mut frame = TxFrame { to: Addr::Group, head: bytes, data: SegList::new() };
    seal(&mut frame);
    frame.head
}

#[test]
fn one_hello_brings_a_forged_sender_at_most_three_times_its_bytes() {
    let mut stage = Stage::of(Scene::new());
    stage.forge(&hello(1, 0));
    stage.judge();
    assert_eq!(sessions(&stage.s), 0, "a session is kept for it");
}

/// Also one that is to be refused.
#[test]
fn a_refused_hello_brings_a_forged_sender_at_most_three_times_its_bytes() {
    let mut stage = Stage::of(Scene::with(1, |config| config.insecure = false));
    stage.forge(&hello(1, 0));
    stage.judge();
    // A refusal may be short enough; it is for those who have shown a cookie all the same.
    assert!(!stage.victim.kinds.borrow().contains(&Kind::Refuse), "it is refused without a cookie");
}

#[test]
fn one_discover_brings_a_forged_sender_at_most_three_times_its_bytes() {
    let mut s = Scene::new();
    s.world.crash_server(0, Crash::Kill);
    for _ in 0..100 {
        s.world.add_export(0, 1 << 20, 512, Store::Memory);
    }
    s.world.start_server(0);
    for first in [0, 50] {
        let mut stage = Stage::of(s);
        stage.forge(&discover(first));
        stage.judge();
        assert!(stage.victim.heard.get() > 0, "nobody answers");
        s = stage.s;
    }
}

/// Questions whose answers are to wait for long are no way to keep others from theirs.
#[test]
fn a_flood_of_discovers_keeps_nobody_out() {
    let mut s = Scene::new();
    let lazy = |nonce| {
        let discover = Discover { nonce, first: 0, spread_ms: 1000, cookie: 0, node: "" };
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
fn frames_of_unknown_sessions_bring_a_forged_sender_at_most_three_times_their_bytes() {
    let id = u64::from(session_lane(0, "node") | 3) << 32 | 77;
    let (ping, probe) = (|number| ping(id, 1, 0, number), || probe(id, 1, 0, 96));
    // One alone, too: of a flood few are answered, which would hide that an answer is long.
    let flood = (1..200).flat_map(|number| [ping(number), probe()]).collect();
    for frames in [vec![ping(1)], vec![probe()], flood] {
        let mut stage = Stage::of(Scene::new());
        stage.s.pass(ms(100));
        frames.iter().for_each(|frame| stage.forge(frame));
        stage.judge();
        assert!(stage.victim.heard.get() > 0, "nobody answers");
    }
}

/// A session of somebody else, or of the forger's own: its frames seem to come from a further place.
#[test]
fn a_probe_that_opens_a_path_brings_a_forged_sender_at_most_three_times_its_bytes() {
    for (size, probes) in [(96, 1), (96, 10), (9000, 1)] {
        let mut stage = Stage::of(Scene::new());
        let client = stage.s.client();
        stage.s.attach(client);
        let (session, epoch) = stage.session.get();
        for _ in 0..probes {
            stage.forge(&probe(session, epoch, 9, size));
            stage.s.pass(ms(30));
        }
        let before = stage.s.world.target(0).sessions()[0].paths.len();
        assert_eq!(before, 2, "the path is known");
        // What is read goes to where the initiator was heard to listen.
        for n in 0..8 {
            stage.s.read(at(n * 256, 256));
        }
        stage.judge();
        stage.s.end();
    }
}

/// Frames of the session on such a path are taken in, and acknowledged elsewhere.
#[test]
fn frames_on_an_unproved_path_bring_a_forged_sender_at_most_three_times_their_bytes() {
    let mut stage = Stage::of(Scene::new());
    let client = stage.s.client();
    stage.s.attach(client);
    let (session, epoch) = stage.session.get();
    stage.forge(&probe(session, epoch, 9, 96));
    for number in 1..100 {
        stage.forge(&ping(session, epoch, 9, number));
        stage.s.pass(ms(3));
    }
    // The initiator goes: no other path is there any more.
    stage.s.world.crash_client(client);
    stage.s.pass(Duration::from_secs(5));
    for number in 100..110 {
        stage.forge(&ping(session, epoch, 9, number));
        stage.s.pass(ms(3));
    }
    stage.judge();
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

/// A station that receives what it is told, and uses that to do harm.
struct Flooder {
    station: u32,
    /// The last cookie it was given.
    cookie: Rc<Cell<u64>>,
    /// Sessions and epochs of the WELCOMEs.
    welcomes: Rc<RefCell<Vec<(u64, u32)>>>,
    nonce: u64,
}

impl Flooder {
    /// Replaces the judge.
    fn new(s: &mut Scene) -> Self {
        let station = s.world.net.station(StationConfig::default()).number();
        let cookie = Rc::new(Cell::new(0));
        let welcomes = Rc::new(RefCell::new(Vec::new()));
        let (given, welcomed) = (cookie.clone(), welcomes.clone());
        s.world.set_judge(move |_, to, bytes| {
            let frame = Frame::parse(bytes).expect("a good frame");
            match frame.messages().next() {
                Some(Message::Retry(retry)) if to == station => given.set(retry.cookie),
                Some(Message::Welcome(w)) if to == station => {
                    welcomed.borrow_mut().push((w.session, w.epoch));
                }
                _ => {}
            }
            Verdict::Pass
        });
        Flooder { station, cookie, welcomes, nonce: u64::from(station) << 32 }
    }

    fn greet(&mut self, s: &mut Scene) {
        self.nonce += 1;
        throw(s, self.station, &hello(self.nonce, self.cookie.get()));
    }

    /// Opens so many sessions, and uses each if `confirms`.
    fn open(&mut self, s: &mut Scene, sessions: usize, confirms: bool) {
        self.greet(s);
        s.pass(ms(1));
        assert!(self.cookie.get() != 0 && self.welcomes.borrow().is_empty());
        for nth in 0..sessions {
            self.greet(s);
            if nth % 64 == 63 {
                s.pass(ms(1));
            }
            if confirms {
                self.welcomes.take().iter().for_each(|&(session, epoch)| {
                    throw(s, self.station, &ping(session, epoch, 0, 1));
                });
            }
        }
        s.pass(ms(1));
    }
}

#[test]
fn a_flood_with_cookies_from_one_address_keeps_nobody_out() {
    for confirms in [false, true] {
        let mut s = Scene::new().with_client();
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
        let mut s = Scene::new().with_client();
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
    let mut s = Scene::new();
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

#[test]
fn a_cookie_is_worth_nothing_at_another_address() {
    let mut stage = Stage::of(Scene::new());
    let mut flooder = Flooder::new(&mut stage.s);
    flooder.open(&mut stage.s, 0, false);
    stage.forge(&hello(1, flooder.cookie.get()));
    stage.s.pass(ms(1));
    assert_eq!(sessions(&stage.s), 0);
    throw(&mut stage.s, flooder.station, &hello(1, flooder.cookie.get()));
    assert_eq!(sessions(&stage.s), 1);
}

/// Kinds of the frames outside sessions between a client and its target, in order.
fn greetings(s: &mut Scene) -> Rc<RefCell<Vec<Kind>>> {
    let kinds = Rc::new(RefCell::new(Vec::new()));
    let seen = kinds.clone();
    s.world.set_judge(move |_, _, bytes| {
        let kind = Frame::parse(bytes).expect("a good frame").header().kind;
        if !matches!(kind, Kind::Session | Kind::Probe | Kind::ProbeReply) {
            seen.borrow_mut().push(kind);
        }
        Verdict::Pass
    });
    kinds
}

/// By name the cookie comes with the offer; by address it takes one more round trip.
#[test]
fn an_honest_attach_takes_at_most_one_more_round_trip() {
    let mut s = Scene::new();
    let client = s.client();
    let kinds = greetings(&mut s);
    s.attach(client);
    let greeted = kinds.take();
    assert_eq!(greeted, [Kind::Discover, Kind::Offer, Kind::Discover, Kind::Hello, Kind::Welcome]);
    s.end();

    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    let kinds = greetings(&mut s);
    s.attach(client);
    assert_eq!(kinds.take(), [Kind::Hello, Kind::Retry, Kind::Hello, Kind::Welcome]);
    s.end();
}

/// The target is started again while an initiator holds a cookie of its last process.
#[test]
fn a_cookie_of_a_former_process_brings_a_new_one() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    let kinds = greetings(&mut s);
    s.world.start_client(client);
    let seen = kinds.clone();
    s.until("a cookie", move |_| seen.borrow().contains(&Kind::Retry));
    s.restart(Crash::Kill);
    s.until("attached", move |w| w.clients[client].is_open);
    let kinds = kinds.take();
    let retries = kinds.iter().filter(|&&kind| kind == Kind::Retry).count();
    assert_eq!((retries, kinds.last()), (2, Some(&Kind::Welcome)), "{kinds:?}");
    s.write(at(0, 8));
    s.end();
}

/// Who has asked once is told once: RETRYs that somebody makes up bring no HELLO each.
#[test]
fn retries_without_end_bring_no_hellos_without_end() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    s.world.clients[client].config.target = TargetName::Address(Addr::Sim(server));
    let hellos = Rc::new(RefCell::new(Vec::new()));
    let seen = hellos.clone();
    s.world.set_judge(move |_, to, bytes| {
        if let Some(Message::Hello(hello)) = Frame::parse(bytes).unwrap().messages().next() {
            seen.borrow_mut().push(hello.nonce);
            assert_eq!(to, server);
        }
        Verdict::Drop
    });
    s.world.start_client(client);
    s.pass(ms(10));
    let nonce = hellos.borrow()[0];
    for cookie in 1..500 {
        let retry = frame(Header::new(Kind::Retry), 0, |out| Retry { nonce, cookie }.emit(out));
        let now = Time(s.world.now);
        let initiator = s.world.clients[client].initiator.as_mut().expect("it runs");
        initiator.on_frame(now, 0, &received(server, &retry));
        s.world.clients[client].machine.dirty = true;
        s.pass(ms(1));
    }
    // After 0, 100 and 300 ms, and two more for each.
    assert_eq!(hellos.borrow().len(), 9);
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

/// Anybody can say that a session is unknown: the initiator asks on its paths, but not each time.
#[test]
fn unknown_sessions_without_end_bring_few_questions() {
    let mut s = Scene::new();
    let client = s.client();
    let server = s.world.servers[0].stations()[0];
    let (id, probes) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (seen, asked) = (id.clone(), probes.clone());
    s.world.set_judge(move |_, to, bytes| {
        if let (true, Ok(frame)) = (to == server, Frame::parse(bytes)) {
            let header = frame.header();
            seen.set(if header.session == 0 { seen.get() } else { header.session });
            asked.set(asked.get() + u32::from(header.kind == Kind::Probe));
        }
        Verdict::Pass
    });
    s.attach(client);
    s.pass(ms(100));
    probes.set(0);
    let session = id.get();
    let unknown = frame(Header::new(Kind::UnknownSession), 0, |out| {
        UnknownSession { session }.emit(out);
    });
    for _ in 0..1000 {
        let now = Time(s.world.now);
        let initiator = s.world.clients[client].initiator.as_mut().expect("it runs");
        initiator.on_frame(now, 0, &received(4711, &unknown));
        s.world.clients[client].machine.dirty = true;
        s.pass(ms(1));
    }
    assert!((5..=12).contains(&probes.get()), "{} questions in a second", probes.get());
    assert_eq!(s.stats(0).sessions, 1);
    s.end();
}

/// Whoever is attaching when its session has to go, for a flood of many addresses, opens another.
#[test]
fn an_attach_survives_that_its_session_goes() {
    let mut s = Scene::new();
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
