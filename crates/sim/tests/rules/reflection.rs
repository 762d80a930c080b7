//! What a sender that has not shown that it receives can make a target send: at most three times its
//! own bytes (`docs/protocol.md`, "Addresses").

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use thinwire_link::sim::{StationConfig, Verdict};
use thinwire_sim::export::Store;
use thinwire_sim::server::Crash;
use thinwire_target::session_lane;
use thinwire_wire::{Discover, Frame, Header, Kind};

use crate::forged::{frame, hello, ping, probe, sessions, throw};
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

fn discover(first: u16) -> Vec<u8> {
    let discover = Discover { nonce: 3, session: 0, first, spread_ms: 0, cookie: 0, node: "" };
    frame(Header::new(Kind::Discover), 0, |out| discover.emit(out))
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

#[test]
fn frames_of_unknown_sessions_bring_a_forged_sender_at_most_three_times_their_bytes() {
    let id = u64::from(session_lane(0, "node") | 3) << 32 | 77;
    let (ping, probe) = (|number| ping(id, 1, 0, number), |number| probe(id, 1, 0, number, 100));
    // One alone, too: of a flood few are answered, which would hide that an answer is long.
    let flood = (1..200).flat_map(|number| [ping(number), probe(number)]).collect();
    for frames in [vec![ping(1)], vec![probe(1)], flood] {
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
    for (size, probes) in [(100, 1), (100, 10), (9000, 1)] {
        let mut stage = Stage::of(Scene::new());
        let client = stage.s.client();
        stage.s.attach(client);
        let (session, epoch) = stage.session.get();
        for number in 1..=probes {
            stage.forge(&probe(session, epoch, 9, number, size));
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
    stage.forge(&probe(session, epoch, 9, 1000, 100));
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
