//! Target and initiator as two processes on this machine, over UDP on the loopback interface,
//! which needs no privileges. Namespaces, raw links and file systems: see the end-to-end tests.

mod common;

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, Pair, thinwire};
use serde_json::Value;

#[test]
fn bench_and_copy_reach_a_target() {
    let pair = Pair::new("bench", &["a=memory:64M", "ro=memory:1M,ro"]);
    let uri = pair.uri("a");
    let words =
        ["bench", "--insecure", &uri, "--rw", "randrw", "--iodepth", "8", "--runtime", "0.5"];
    let ran = pair.run(&[&words[..], &["--verify", "--json"]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&json["errors"], &json["uri"]), (&0.into(), &uri.as_str().into()));
    assert!(json["verified"].as_u64().unwrap() > 0);

    let bytes: Vec<u8> = (0..4 << 20).map(|n: u32| (n >> 12) as u8).collect();
    let source = pair.folder.file("source.img", &bytes);
    let ran = pair.run(&["copy", "--insecure", &source, &uri, "--verify"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let back = pair.folder.at("back.img");
    let ran = pair.run(&["copy", "--insecure", &uri, &back, "--verify"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(std::fs::read(&back).unwrap()[..4 << 20] == bytes);

    let ran = pair.run(&["copy", "--insecure", &source, &pair.uri("ro")]);
    assert!(ran.code == 1 && ran.err.contains("read-only"), "{}", ran.err);
    assert!(!ran.err.contains("attach it"), "nobody can copy onto a reader: {}", ran.err);
    let ran = pair.run(&["bench", "--insecure", &pair.uri("nope")]);
    assert!(ran.code == 1 && ran.err.contains("nope"), "{}", ran.err);
    assert!(ran.err.contains("discover --link"), "{}", ran.err);
}

#[test]
fn an_attachment_shows_its_paths_and_detaches() {
    let pair = Pair::new("attach", &["a=memory:64M"]);
    let ran = pair.attach("a", &[]);
    assert_eq!((ran.code, ran.out), (0, format!("{}\n", pair.folder.at("s.nbd"))), "{}", ran.err);
    let status = pair.status();
    assert_eq!(status[0]["uri"], pair.uri("a").as_str());
    assert_eq!((&status[0]["state"], &status[0]["insecure"]), (&"attached".into(), &true.into()));
    assert_eq!(status[0]["paths"][0]["remote"], pair.address.as_str());
    assert_eq!(pair.run(&["detach", "a"]).code, 0);
    assert_eq!(pair.status(), Value::Array(Vec::new()));
    // Nothing of it is held at the target.
    assert_eq!(pair.attach("a", &[]).code, 0);
}

#[test]
fn a_second_writer_is_refused_unless_it_takes_over() {
    let pair = Pair::new("writers", &["a=memory:64M"]);
    assert_eq!(pair.attach("a", &["--as", "first"]).code, 0);
    let other = format!("unix:{}", pair.folder.at("other.nbd"));
    let uri = pair.uri("a");
    let words = ["attach", "--insecure", &uri, "--nbd", &other, "--as", "second"];
    let ran = pair.run(&words);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("--take-over") && ran.err.contains("held by"), "{}", ran.err);
    assert!(ran.err.contains("--read-only"), "{}", ran.err);
    // Who has no such flag is not told to use it.
    let bench = ["bench", "--insecure", &uri, "--rw", "write", "--runtime", "0.1"];
    for words in [&bench[..], &["copy", "--insecure", "null:1M", &uri]] {
        let ran = pair.run(words);
        assert!(ran.code == 1 && ran.err.contains("--take-over"), "{}", ran.err);
        assert!(!ran.err.contains("--read-only"), "{}", ran.err);
        assert_eq!(ran.err.contains("--rw randread"), words[0] == "bench", "{}", ran.err);
    }
    let ran = pair.run(&[&words[..], &["--take-over"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let start = std::time::Instant::now();
    while pair.status()[0]["state"] != "fenced" {
        assert!(start.elapsed().as_secs() < 20, "{}", pair.status());
    }
    assert_eq!(pair.status()[1]["state"], "attached");
}

/// Whose face cannot be shown takes nothing over.
#[test]
fn who_has_no_place_for_its_face_fences_nobody() {
    let pair = Pair::new("no-place", &["a=memory:64M"]);
    assert_eq!(pair.attach("a", &["--as", "first"]).code, 0);
    let socket = pair.folder.at("s.nbd");
    write_and_flush(&socket, 0);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("tcp:{}", port.local_addr().unwrap());
    let occupied = pair.folder.file("precious", "x");
    let nowhere = pair.folder.at("none/s.nbd");
    let tree = format!("linear:[memory:1M,{}]", pair.uri("a"));
    // The file under the device of `second`.
    pair.folder.file("run/second.disk", "x");
    // Who may not mount is told that first.
    let no_mount = ["exists and is not empty", "/dev/fuse", "/dev/loop-control"];
    for (face, named) in [
        (&["--nbd", &format!("unix:{socket}")][..], &["in use"][..]),
        (&["--nbd", &format!("unix:{occupied}")], &["exists and is a file"]),
        (&["--nbd", &format!("unix:{nowhere}")], &["mkdir -p"]),
        (&["--file", &nowhere], &["mkdir -p", "/dev/fuse"]),
        (&["--nbd", &port], &["cannot listen"]),
        (&["--file", &occupied], &no_mount),
        (&["--block"], &no_mount),
    ] {
        for volume in [&tree, &pair.uri("a")] {
            let words = ["attach", "--insecure", volume, "--take-over", "--as", "second"];
            let ran = pair.run(&[&words[..], face].concat());
            assert_eq!(ran.code, 1, "{}", ran.err);
            assert!(named.iter().any(|why| ran.err.contains(why)), "{face:?}: {}", ran.err);
            // It writes, and so has not been fenced.
            write_and_flush(&socket, 4096);
            let status = pair.status();
            assert_eq!(
                (status.as_array().unwrap().len(), &status[0]["state"]),
                (1, &"attached".into())
            );
        }
    }
    assert_eq!(std::fs::read(&occupied).unwrap(), b"x");
}

#[test]
fn force_works_while_the_target_is_silent() {
    let pair = Pair::new("silent", &["a=memory:64M"]);
    assert_eq!(pair.attach("a", &["--when-away", "fail-after=60"]).code, 0);
    pair.signal("-STOP");
    let start = std::time::Instant::now();
    while pair.status()[0]["state"] != "away" {
        assert!(start.elapsed().as_secs() < 60, "{}", pair.status());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let status = pair.status();
    assert_eq!(status[0]["timer"], "fail-after");
    assert!((0.0..=60.0).contains(&status[0]["seconds_left"].as_f64().unwrap()));
    let ran = pair.run(&["detach", "a", "--force", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(pair.status(), Value::Array(Vec::new()));
    pair.signal("-CONT");
}

#[test]
fn waiting_for_a_target_can_be_called_off() {
    let folder = Folder::new("remote-nobody");
    let run_dir = folder.at("run");
    // Nobody listens there.
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (uri, nbd) = (format!("tw+udp://{address}/a"), format!("unix:{}", folder.at("s.nbd")));
    let status = || {
        let ran = thinwire(&["status", "--json", "--run-dir", &run_dir]);
        serde_json::from_str::<Value>(&ran.out).unwrap()["attachments"].take()
    };
    for detach in [true, false] {
        let mut attach = Command::new(env!("CARGO_BIN_EXE_thinwire"))
            .args(["attach", "--insecure", "--wait", &uri, "--nbd", &nbd, "--run-dir", &run_dir])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        while status()[0]["state"] != "connecting" {
            assert!(start.elapsed().as_secs() < 20, "{}", status());
        }
        if detach {
            assert_eq!(thinwire(&["detach", "a", "--run-dir", &run_dir]).code, 0);
        } else {
            let pid = attach.id().to_string();
            assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        }
        assert_eq!(attach.wait().unwrap().code(), Some(1));
        assert_eq!(status(), Value::Array(Vec::new()));
    }
}

#[test]
fn a_target_says_what_it_cannot_serve() {
    let folder = Folder::new("remote-bad");
    let odd = format!("a={}", folder.file("odd.img", vec![0; 1000]));
    for (words, named) in [
        (&["--link", "udp:127.0.0.1:0", "--export", &odd][..], "1000 bytes"),
        (&["--link", "udp:127.0.0.1:0", "--export", "a=/no/such/file"], "/no/such/file"),
        (&["--link", "no-such-if0", "--export", "a=null:1M"], "no-such-if0"),
        (&["--link", "udp:192.0.2.1", "--export", "a=null:1M"], "192.0.2.1"),
    ] {
        let run_dir = folder.at("run");
        let target = ["target", "--insecure", "--name", "bad", "--run-dir", &run_dir];
        let ran = thinwire(&[&target[..], words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{words:?}");
        assert!(ran.err.contains(named), "{words:?}: {}", ran.err);
    }
}

/// Writes 4 KiB at `offset` of an NBD export and flushes, then leaves.
fn write_and_flush(socket: &str, offset: u64) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle without padding; then NBD_OPT_EXPORT_NAME with no name.
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    for (op, bytes) in [(1_u8, 4096_u32), (3, 0)] {
        let mut request = b"\x25\x60\x95\x13\0\0\0".to_vec();
        request.push(op);
        request.extend([0; 8]);
        request.extend(if op == 1 { offset } else { 0 }.to_be_bytes());
        request.extend(bytes.to_be_bytes());
        request.extend(vec![7; bytes as usize]);
        stream.write_all(&request).unwrap();
        let mut reply = [0; 16];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4], "{op}");
    }
    stream.write_all(b"\x25\x60\x95\x13\0\0\0\x02").unwrap();
    stream.write_all(&[0; 20]).unwrap();
    let _ = stream.read(&mut [0; 1]);
}

fn wait_state(pair: &Pair, state: &str) {
    let start = Instant::now();
    while pair.status()[0]["state"] != state {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", pair.status());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Of a tree with three leaves, one is away: the others end in order, as their next writers find.
#[test]
fn what_is_away_does_not_keep_other_leaves_from_ending_in_order() {
    let mut gone = Pair::new("leaf-gone", &["a=memory:1M"]);
    let there = Pair::new("leaf-there", &["b=memory:1M"]);
    let image = gone.folder.file("disk.img", vec![0; 1 << 20]);
    let (a, b) = (gone.uri("a"), there.uri("b"));
    let (tree, socket) = (format!("linear:[{image},{a},{b}]"), gone.folder.at("s.nbd"));
    let nbd = format!("unix:{socket}");
    let ran = gone.run(&["attach", "--insecure", &tree, "--nbd", &nbd, "--as", "tree"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for leaf in 0..3 {
        write_and_flush(&socket, leaf << 20);
    }
    gone.kill();
    wait_state(&gone, "away");
    let ran = gone.run(&["detach", "tree", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["how"], "unheard", "{json}");
    let detail = json["detail"].as_str().unwrap();
    for word in [a.as_str(), "--take-over", "30 s"] {
        assert!(detail.contains(word) && ran.err.contains(word), "{word}: {detail}");
    }
    assert!(!detail.contains(&b) && !detail.contains(&image), "{detail}");

    // Neither is held: a stranger may write both at once, and need not take over.
    let elsewhere = gone.folder.at("elsewhere");
    for volume in [&image, &b] {
        let words = ["bench", "--insecure", volume, "--rw", "write", "--runtime", "0.1"];
        let ran = thinwire(&[&words[..], &["--run-dir", &elsewhere]].concat());
        assert_eq!(ran.code, 0, "{volume}: {}", ran.err);
    }
}

/// An attachment that ends by a signal has nobody who asked: its log stays, and says it.
#[test]
fn who_ends_by_a_signal_leaves_word_of_what_has_not_heard() {
    let mut pair = Pair::new("unheard-log", &["a=memory:1M"]);
    assert_eq!(pair.attach("a", &[]).code, 0);
    pair.kill();
    wait_state(&pair, "away");
    let pid = pair.status()[0]["pid"].to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let start = Instant::now();
    while !pair.status().as_array().unwrap().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = std::fs::read_to_string(pair.folder.at("run/a.log")).unwrap();
    assert!(log.contains(&pair.uri("a")) && log.contains("--take-over"), "{log}");
}

/// What it was given up over may be lost: nobody is told that all is durable.
#[test]
fn force_promises_nothing_of_a_target_that_is_away() {
    let mut pair = Pair::new("force-away", &["a=memory:1M"]);
    assert_eq!(pair.attach("a", &[]).code, 0);
    pair.kill();
    wait_state(&pair, "away");
    let ran = pair.run(&["detach", "a", "--force", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["how"], "forced", "{json}");
    let log = std::fs::read_to_string(pair.folder.at("run/a.log")).unwrap_or_default();
    for said in [&ran.out, &ran.err, &log] {
        assert!(!said.contains("durable"), "{said}");
    }
}

/// A command that fails before it has written anything, or is interrupted, does not keep the export.
#[test]
fn a_command_that_failed_holds_nothing() {
    let pair = Pair::new("failed", &["small=memory:1M", "big=null:256T"]);
    let (small, big) = (pair.uri("small"), pair.uri("big"));
    let elsewhere = pair.folder.at("elsewhere");
    // Another writer is refused as long as the export is held.
    let is_free = |uri: &str| {
        let bench = ["bench", "--insecure", uri, "--rw", "write", "--runtime", "0.05"];
        let ran = thinwire(&[&bench[..], &["--run-dir", &elsewhere]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    let ran = pair.run(&["copy", "--insecure", "null:2M", &small]);
    assert!(ran.code == 1 && ran.err.contains("too small"), "{}", ran.err);
    is_free(&small);
    let bench = ["bench", "--insecure", &small, "--rw", "write", "--runtime", "0.05"];
    for (more, named) in [(["--bs", "3000"], "multiple"), (["--start-at", "0"], "--start-at")] {
        let ran = pair.run(&[&bench[..], &more].concat());
        assert!(ran.code != 0 && ran.err.contains(named), "{}", ran.err);
        is_free(&small);
    }
    let breakdown = ["bench", "--insecure", &small, "--breakdown", "--bs", "3000"];
    let ran = pair.run(&breakdown);
    assert!(ran.code != 0 && ran.err.contains("multiple"), "{}", ran.err);
    is_free(&small);

    let mut copy = Command::new(env!("CARGO_BIN_EXE_thinwire"));
    copy.args(["copy", "--insecure", "null:256T", &big, "--run-dir", &pair.folder.at("run")]);
    let copy = copy.stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let interrupt = ["-INT", &copy.id().to_string()];
    assert!(Command::new("kill").args(interrupt).status().unwrap().success());
    let ran = copy.wait_with_output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.code() == Some(1) && said.contains("interrupted"), "{said}");
    is_free(&big);
}

/// The log says what `status` does: which way, and what becomes of I/O.
#[test]
fn the_log_of_an_absence_names_the_path_and_what_i_o_does() {
    let mut pair = Pair::new("absence", &["a=memory:64M"]);
    assert_eq!(pair.attach("a", &["--when-away", "fail-after=60"]).code, 0);
    pair.kill();
    let log = pair.folder.path().join("run/a.log");
    let start = Instant::now();
    loop {
        let said = std::fs::read_to_string(&log).unwrap();
        let path = format!("the path to {} does not answer", pair.address);
        if said.contains("; I/O fails in ") && said.contains(&path) {
            assert!(!said.contains("I/O waits"), "{said}");
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
