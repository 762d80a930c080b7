//! Attachments of several members, over UDP on the loopback interface: how they come, and how they end. With a
//! target of several threads: see the end-to-end tests.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Pair, thinwire};
use thinwire_wire::{Frame, Message};

const CHUNK: u64 = 256 << 10;

/// Writes 4 KiB at each of these places of an NBD export, and flushes nothing.
fn write(socket: &str, places: &[u64]) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle without padding; then NBD_OPT_EXPORT_NAME with no name.
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    for place in places {
        let mut request = b"\x25\x60\x95\x13\0\0\0\x01\0\0\0\0\0\0\0\0".to_vec();
        request.extend(place.to_be_bytes());
        request.extend(4096_u32.to_be_bytes());
        request.extend([7; 4096]);
        stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4]);
    }
}

fn wait_state(pair: &Pair, state: &str) {
    let start = Instant::now();
    while pair.status()[0]["state"] != state {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", pair.status());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The first member, which ends behind the others, does not begin to wait when they have waited.
#[test]
fn members_wait_together_for_a_target_that_is_away() {
    let mut pair = Pair::new("members-away", &["a=memory:1M"]);
    let ran = pair.attach("a?members=2", &["--read-only", "--as", "a"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    pair.kill();
    wait_state(&pair, "away");
    let begun = Instant::now();
    let ran = pair.run(&["detach", "a"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

/// All of them are there and have written, at one target as at the other, when one is silent.
#[test]
fn members_end_in_order_while_another_leaf_hangs() {
    let hangs = Pair::new("members-hang", &["a=memory:1M"]);
    let sound = Pair::new("members-sound", &["b=memory:1M"]);
    let (a, b) = (hangs.uri("a?members=2"), sound.uri("b?members=2"));
    let state = sound.folder.at("state");
    let export = format!("g=linear:[{a},{b}]");
    let mut gate = Pair::with("members-gate", &[&export], &["--state-dir", &state]);
    let ran = gate.attach("g", &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let of_leaf = |leaf: u64| [leaf << 20, (leaf << 20) + CHUNK];
    write(&gate.folder.at("s.nbd"), &[of_leaf(0), of_leaf(1)].concat());
    let (uri, elsewhere) = (sound.uri("b"), sound.folder.at("elsewhere"));
    let is_free = || {
        let bench = ["bench", "--insecure", &uri, "--rw", "write", "--runtime", "0.1"];
        thinwire(&[&bench[..], &["--run-dir", &elsewhere]].concat()).code == 0
    };
    assert!(!is_free());
    hangs.signal("-STOP");
    gate.signal("-TERM");
    let begun = Instant::now();
    while !is_free() {
        assert!(begun.elapsed() < Duration::from_secs(8), "its first member has not let go");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(!gate.has_ended(), "the other hangs");
    hangs.signal("-CONT");
}

/// A wire to a target, whose answers may go around it. As long as `is_deaf` it carries no greeting of a member but
/// the first, as if the target knew of none.
fn wire_to(target: &str, is_deaf: Arc<AtomicBool>) -> SocketAddr {
    let [near, far] = ["127.0.0.1:0"; 2].map(|any| UdpSocket::bind(any).unwrap());
    far.connect(target).unwrap();
    let address = near.local_addr().unwrap();
    let back = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        let mut is_answered = false;
        while let Ok((len, from)) = near.recv_from(&mut bytes) {
            if !std::mem::replace(&mut is_answered, true) {
                back.0.connect(from).unwrap();
                let (near, far) = (back.0.try_clone().unwrap(), back.1.try_clone().unwrap());
                std::thread::spawn(move || {
                    let mut bytes = [0; 1 << 16];
                    loop {
                        // What is refused meanwhile is lost.
                        if let Ok(len) = far.recv(&mut bytes) {
                            let _ = near.send(&bytes[..len]);
                        }
                    }
                });
            }
            if !(is_deaf.load(Ordering::Relaxed) && is_of_another_member(&bytes[..len])) {
                let _ = far.send(&bytes[..len]);
            }
        }
    });
    address
}

fn is_of_another_member(frame: &[u8]) -> bool {
    let frame = Frame::parse(frame).unwrap();
    frame.messages().any(|message| matches!(message, Message::Hello(hello) if hello.member > 0))
}

/// Begins to attach two members over such a wire, for as long as it takes.
fn attach_over_wire(pair: &Pair, is_deaf: &Arc<AtomicBool>) -> Child {
    let uri = format!("tw+udp://{}/a?members=2", wire_to(&pair.address, is_deaf.clone()));
    let nbd = format!("unix:{}", pair.folder.at("s.nbd"));
    let words = ["attach", "--insecure", &uri, "--nbd", &nbd, "--wait", "--run-dir"];
    let mut attach = Command::new(env!("CARGO_BIN_EXE_thinwire"));
    attach.args(words).arg(pair.folder.at("run"));
    attach.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// How that has ended, be it that it had to be killed, and what was said.
fn ended(mut attach: Child) -> (bool, String) {
    let begun = Instant::now();
    while attach.try_wait().unwrap().is_none() {
        match begun.elapsed() < Duration::from_secs(30) {
            true => std::thread::sleep(Duration::from_millis(50)),
            false => attach.kill().unwrap(),
        }
    }
    let ran = attach.wait_with_output().unwrap();
    (ran.status.success(), String::from_utf8(ran.stderr).unwrap())
}

#[test]
fn a_target_that_knows_no_members_is_not_waited_for() {
    let pair = Pair::new("members-old", &["a=memory:1M"]);
    let attach = attach_over_wire(&pair, &Arc::new(AtomicBool::new(true)));
    let (is_attached, said) = ended(attach);
    assert!(!is_attached && said.contains("a version that knows no members"), "{said}");
}

/// A target that is away says nothing of its version: the time that it has for all members begins when it is back.
#[test]
fn members_that_come_while_the_target_is_away_are_not_given_up() {
    let pair = Pair::new("members-join", &["a=memory:1M"]);
    let is_deaf = Arc::new(AtomicBool::new(true));
    let attach = attach_over_wire(&pair, &is_deaf);
    // The first is granted, and the others are not.
    std::thread::sleep(Duration::from_secs(2));
    pair.signal("-STOP");
    std::thread::sleep(Duration::from_secs(10));
    pair.signal("-CONT");
    std::thread::sleep(Duration::from_secs(4));
    is_deaf.store(false, Ordering::Relaxed);
    let (is_attached, said) = ended(attach);
    assert!(is_attached, "{said}");
}
