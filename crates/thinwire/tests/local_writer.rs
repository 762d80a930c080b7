//! Commands that write an image themselves while no target serves it: whoever was its writer before
//! must not come back and write over theirs (`docs/protocol.md`, "Writer generations"; rule 3).

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, Pair, Ran, thinwire};

const BYTES: usize = 1 << 20;

/// A client of an NBD socket that has opened the export by its empty name.
struct Client(UnixStream);

impl Client {
    fn new(socket: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        // Fixed newstyle without padding; then NBD_OPT_EXPORT_NAME with no name.
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client(stream)
    }

    /// The error of writing a byte 4096 times at the beginning; 0 for none. No flush.
    fn write(&mut self, byte: u8) -> u32 {
        let mut request = b"\x25\x60\x95\x13\0\0\0\x01".to_vec();
        request.extend([0; 16]);
        request.extend(4096_u32.to_be_bytes());
        request.extend([byte; 4096]);
        self.0.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98]);
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }
}

/// An image, and run directories under which it is written.
struct Images {
    folder: Folder,
    disk: String,
    backup: String,
}

impl Images {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let disk = folder.file("disk.img", vec![0; BYTES]);
        let backup = folder.file("backup.img", vec![0xbb; BYTES]);
        Images { folder, disk, backup }
    }

    fn run(&self, run: &str, words: &[&str]) -> Ran {
        thinwire(&[words, &["--run-dir", &self.folder.at(run)]].concat())
    }

    fn copy(&self, run: &str, more: &[&str]) -> Ran {
        self.run(run, &[&["copy", &self.backup, &self.disk, "--verify"], more].concat())
    }

    fn attach(&self, run: &str, more: &[&str]) -> Ran {
        let address = format!("unix:{}", self.folder.at("local.nbd"));
        let words = ["attach", &self.disk, "--nbd", &address, "--as", "local"];
        self.run(run, &[&words[..], more].concat())
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.disk).unwrap()
    }

    /// The writer on record, as it is kept; nothing before the first.
    fn record(&self) -> Vec<u8> {
        let mut bytes = [0; 256];
        let found = rustix::fs::getxattr(&self.disk, "user.thinwire.writer", &mut bytes);
        found.map_or(Vec::new(), |len| bytes[..len].to_vec())
    }
}

/// Refused with these words.
#[track_caller]
fn refused(ran: &Ran, words: &[&str]) {
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    for word in words {
        assert!(ran.err.contains(word), "`{word}` is not in: {}", ran.err);
    }
}

#[test]
fn a_remote_writer_with_unflushed_writes_is_not_written_over_but_on_demand_and_then_fenced() {
    let images = Images::new("local-remote");
    let mut pair = Pair::new("fenced", &[&format!("a={}", images.disk)]);
    assert_eq!(pair.attach("a", &[]).code, 0);
    let mut client = Client::new(&pair.folder.at("s.nbd"));
    assert_eq!(client.write(0xaa), 0);
    pair.kill();
    let (bytes, record) = (images.bytes(), images.record());
    assert!(bytes[..4096] == [0xaa; 4096] && !record.is_empty());

    // Its name and the way out are told, and nothing is touched.
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let named = ["disk.img", &format!("`{host} (pid "), "--take-over"];
    refused(&images.copy("run", &[]), &named);
    let bench = ["bench", &images.disk, "--rw", "write", "--runtime", "0.1"];
    refused(&images.run("run", &bench), &named);
    refused(&images.attach("run", &[]), &named);
    assert!(images.bytes() == bytes && images.record() == record);
    // Neither is by readers.
    let bench = ["bench", &images.disk, "--rw", "randread", "--runtime", "0.1"];
    assert_eq!(images.run("run", &bench).code, 0);
    let away = images.folder.at("away.img");
    assert_eq!(images.run("run", &["copy", &images.disk, &away]).code, 0);
    assert_eq!(images.attach("run", &["--read-only"]).code, 0);
    assert_eq!(images.run("run", &["detach", "local"]).code, 0);
    assert!(images.bytes() == bytes && images.record() == record);

    let ran = images.copy("run", &["--take-over"]);
    assert!(ran.code == 0 && ran.out.contains("verified"), "{}", ran.err);
    pair.restart();
    assert_ne!(client.write(0xcc), 0, "the fenced writer's write was accepted");
    let start = Instant::now();
    while pair.status()[0]["state"] != "fenced" {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", pair.status());
    }
    assert!(images.bytes() == vec![0xbb; BYTES], "it wrote over the restored image");
    // The copy is over: nobody is on record.
    drop(client);
    assert_eq!(pair.run(&["detach", "a", "--force"]).code, 0);
    assert_eq!(pair.attach("a", &[]).code, 0);
}

#[test]
fn a_killed_local_writer_comes_back_and_others_take_over() {
    let images = Images::new("local-killed");
    assert_eq!(images.attach("run", &[]).code, 0);
    assert_eq!(Client::new(&images.folder.at("local.nbd")).write(0xaa), 0);
    let status = images.run("run", &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    let pid = json["attachments"][0]["pid"].to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    // Until the kernel has let go of it.
    let unlocked = ["-w", "10", &images.disk, "true"];
    assert!(Command::new("flock").args(unlocked).status().unwrap().success());

    refused(&images.copy("elsewhere", &[]), &["(local, pid ", "--take-over"]);
    let ran = images.copy("run", &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = images.copy("elsewhere", &[]);
    assert_eq!(ran.code, 0, "it ended in order: {}", ran.err);
}

#[test]
fn a_copy_that_fails_half_way_says_what_it_leaves() {
    let images = Images::new("local-half");
    // Writes beyond the limit fail; 512 blocks are half of the image at most.
    let limited = |words: &str| {
        let line = format!("trap '' XFSZ; ulimit -f 512; exec \"$0\" copy {words}");
        let run_dir = images.folder.at("run");
        let program = env!("CARGO_BIN_EXE_thinwire");
        let words = ["-c", &line, program, &images.backup, &images.disk, &run_dir];
        let ran = Command::new("sh").args(words).output().unwrap();
        assert_eq!(ran.status.code(), Some(1));
        String::from_utf8(ran.stderr).unwrap()
    };
    let said = limited("$1 $2 --run-dir $3");
    for word in ["half written", "stays on record", "run the same copy again", "--take-over"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    refused(&images.copy("elsewhere", &[]), &["on record", "--take-over"]);
    let ran = images.copy("run", &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(images.copy("elsewhere", &[]).code, 0, "it ended in order");

    // Without a run directory the next one is a stranger.
    let said = limited("$1 $2 --run-dir /proc/none");
    assert!(said.contains("stays on record: say --take-over"), "{said}");

    // What it made itself is gone again.
    let said = limited("$1 $2.new --run-dir $3");
    assert!(!said.contains("on record"), "{said}");
    assert!(!std::path::Path::new(&format!("{}.new", images.disk)).exists());
}

#[test]
fn who_writes_nothing_changes_no_record() {
    let images = Images::new("local-nothing");
    assert_eq!(images.run("run", &["bench", &images.disk, "--runtime", "0.1"]).code, 0);
    assert!(images.record().is_empty());
    let words = ["bench", &images.disk, "--runtime", "0.1", "--take-over"];
    let ran = images.run("run", &words);
    assert!(ran.code == 2 && ran.err.contains("only reads"), "{}", ran.err);

    // A take-over that comes to nothing.
    assert_eq!(images.attach("run", &[]).code, 0);
    assert_eq!(Client::new(&images.folder.at("local.nbd")).write(0xaa), 0);
    assert_eq!(images.run("run", &["detach", "local", "--force"]).code, 0);
    let record = images.record();
    let large = images.folder.file("large.img", vec![1; BYTES * 2]);
    let ran = images.run("elsewhere", &["copy", &large, &images.disk, "--take-over"]);
    refused(&ran, &["too small"]);
    assert_eq!(images.record(), record);
}

/// An image with a writer on record that wrote and did not end in order, which had the run directory `run`.
fn crashed(name: &str) -> Images {
    let images = Images::new(name);
    assert_eq!(images.attach("run", &[]).code, 0);
    assert_eq!(Client::new(&images.folder.at("local.nbd")).write(0xaa), 0);
    assert_eq!(images.run("run", &["detach", "local", "--force"]).code, 0);
    assert!(!images.record().is_empty());
    images
}

#[test]
fn a_face_that_cannot_be_opened_leaves_the_record_of_every_leaf_as_it_was() {
    let images = crashed("local-faceless");
    let record = images.record();
    let pair = Pair::new("faceless", &["a=memory:1M"]);
    let (remote, nowhere) = (pair.uri("a"), format!("unix:{}", images.folder.at("none/s.nbd")));
    for volume in [images.disk.clone(), format!("linear:[{},{remote}]", images.disk)] {
        let words = ["attach", "--insecure", &volume, "--nbd", &nowhere, "--take-over"];
        let ran = images.run("elsewhere", &words);
        refused(&ran, &["none/s.nbd"]);
        assert_eq!(images.record(), record, "{volume}");
    }
    // What is remote has ended in order.
    let words = ["bench", "--insecure", &remote, "--rw", "write", "--runtime", "0.1"];
    assert_eq!(images.run("third", &words).code, 0);
}

/// The words of a gateway with these exports.
fn gateway<'a>(state: &'a str, exports: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["target", "--insecure", "--name", "gate", "--link", "udp:127.0.0.1:0"];
    words.extend(["--state-dir", state]);
    exports.iter().for_each(|&export| words.extend(["--export", export]));
    words
}

#[test]
fn a_gateway_that_never_serves_leaves_the_record_as_it_was() {
    let images = crashed("local-gateway");
    let record = images.record();
    let big = format!("big=linear:[{}]", images.disk);
    let bad = format!("bad=linear:[{}]", images.folder.at("missing.img"));
    let state = images.folder.at("state");
    let ran = images.run("run", &gateway(&state, &[&big, &bad]));
    refused(&ran, &["missing.img"]);
    assert_eq!(images.record(), record);
}

#[test]
fn a_gateway_advises_what_its_user_can_do_about_a_writer_on_record() {
    let images = crashed("local-advice");
    let big = format!("big=linear:[{}]", images.disk);
    let state = images.folder.at("state");
    let words = gateway(&state, &[&big]);
    let ran = images.run("elsewhere", &words);
    refused(
        &ran,
        &["on record", "no --take-over", "`thinwire attach", "detach", "start this target"],
    );
    // As it says.
    assert_eq!(images.attach("elsewhere", &["--take-over"]).code, 0);
    assert_eq!(images.run("elsewhere", &["detach", "local"]).code, 0);
    let more = ["--run-dir", &images.folder.at("elsewhere")];
    let mut target = Command::new(env!("CARGO_BIN_EXE_thinwire"))
        .args(&words)
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(target.stdout.take().unwrap()).read_line(&mut line).unwrap();
    target.kill().unwrap();
    target.wait().unwrap();
    assert!(line.starts_with("ready "), "{line}");
}
