//! Attachments as users see them: in the background, found again, detached, killed. Over a memory
//! volume and NBD, which need neither a network nor privileges.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, Ran, thinwire};
use serde_json::Value;

/// A run directory with attachments; whatever a test leaves is detached by force.
struct Machine {
    folder: Folder,
}

impl Machine {
    fn new(name: &str) -> Self {
        Machine { folder: Folder::new(name) }
    }

    fn run(&self, words: &[&str]) -> Ran {
        let run_dir = self.folder.at("run");
        thinwire(&[words, &["--run-dir", &run_dir]].concat())
    }

    fn attach(&self, name: &str) -> Ran {
        let address = format!("unix:{}", self.socket(name));
        self.run(&["attach", "memory:64M", "--nbd", &address, "--as", name])
    }

    fn socket(&self, name: &str) -> String {
        self.folder.at(&format!("{name}.nbd"))
    }

    fn status(&self) -> Vec<Value> {
        let ran = self.run(&["status", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let json: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(json["schema"], 2);
        json["attachments"].as_array().unwrap().clone()
    }

    fn signal(&self, signal: &str) {
        let pid = self.status()[0]["pid"].as_i64().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        if signal == "-KILL" {
            // Dying takes a moment; what matters is that the kernel has let go of its lock.
            let lock = format!("{}/disk0.lock", self.folder.at("run"));
            assert!(
                Command::new("flock").args(["-w", "10", &lock, "true"]).status().unwrap().success()
            );
        }
    }

    /// Waits until no attachment and none of its files is left.
    fn wait_empty(&self) {
        let start = Instant::now();
        while !self.status().is_empty() || !self.left().is_empty() {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", self.left());
        }
    }

    /// What is in the run directory, without logs.
    fn left(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.folder.path().join("run")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".log")).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(Value::Object(json)) = serde_json::from_str(&self.run(&["status", "--json"]).out)
        {
            for attachment in json["attachments"].as_array().unwrap() {
                self.run(&["detach", attachment["name"].as_str().unwrap(), "--force"]);
            }
        }
    }
}

/// An NBD client that has opened the export by its empty name.
fn client(socket: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    // Fixed newstyle without padding; then NBD_OPT_EXPORT_NAME with no name.
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut export = [0; 10];
    stream.read_exact(&mut export).unwrap();
    assert_eq!(u64::from_be_bytes(export[..8].try_into().unwrap()), 64 << 20);
    stream
}

#[test]
fn attach_returns_when_usable_and_status_and_detach_find_it() {
    let machine = Machine::new("attach");
    let ran = machine.attach("disk0");
    let socket = machine.socket("disk0");
    assert_eq!((ran.code, ran.out), (0, format!("{socket}\n")), "{}", ran.err);
    drop(client(&socket));
    let status = machine.status();
    assert_eq!(status.len(), 1);
    for (key, value) in [("name", "disk0"), ("frontend", "nbd"), ("state", "attached")] {
        assert_eq!(status[0][key], value);
    }
    assert_eq!(status[0]["path"], Value::String(socket.clone()));
    assert_eq!(status[0]["insecure"], false);
    for key in ["uri", "paths", "timer", "seconds_left"] {
        assert!(status[0].get(key).is_some(), "{key}");
    }
    assert!(machine.run(&["status"]).out.contains(&socket));

    let again = machine.attach("disk0");
    assert_eq!(again.code, 1);
    assert!(again.err.contains("`disk0` exists already") && again.err.contains("--as"));

    // The client above may still be on its way out.
    let start = Instant::now();
    loop {
        let ran = machine.run(&["detach", "disk0"]);
        if ran.code == 0 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{}", ran.err);
    }
    assert!(!std::path::Path::new(&socket).exists());
    assert!(machine.status().is_empty() && machine.left().is_empty(), "{:?}", machine.left());
}

#[test]
fn detach_refuses_while_a_client_is_connected() {
    let machine = Machine::new("busy");
    assert_eq!(machine.attach("disk0").code, 0);
    let mut client = client(&machine.socket("disk0"));
    let ran = machine.run(&["detach", "disk0"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("stays attached") && ran.err.contains("--force"), "{}", ran.err);
    assert_eq!(machine.status()[0]["state"], "attached");
    let ran = machine.run(&["detach", "disk0", "--force", "--json"]);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, &json["how"]), (0, &Value::from("forced")), "{}", ran.err);
    assert_eq!(client.read(&mut [0; 8]).unwrap_or(0), 0, "the client is still served");
    assert!(machine.left().is_empty());
    let log = std::fs::read_to_string(machine.folder.path().join("run/disk0.log")).unwrap();
    assert!(log.contains("detached by force"), "{log}");
}

#[test]
fn what_a_killed_attachment_left_is_reported_and_cleaned() {
    let machine = Machine::new("killed");
    assert_eq!(machine.attach("disk0").code, 0);
    machine.signal("-KILL");
    let status = machine.status();
    assert_eq!((&status[0]["state"], &status[0]["pid"]), (&"stale".into(), &0.into()));
    assert!(status[0]["detail"].as_str().unwrap().contains("disk0.nbd"));
    assert!(!std::path::Path::new(&machine.socket("disk0")).exists());
    assert!(machine.status().is_empty() && machine.left().is_empty());

    // The same, found by the next attach, and by detach.
    assert_eq!(machine.attach("disk0").code, 0);
    machine.signal("-KILL");
    let ran = machine.attach("disk0");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("`disk0` was left by a process that is gone"), "{}", ran.err);
    drop(client(&machine.socket("disk0")));
    machine.signal("-KILL");
    let ran = machine.run(&["detach", "disk0", "--json"]);
    assert!(ran.code == 0 && ran.out.contains("\"how\":\"stale\""), "{}{}", ran.out, ran.err);
}

#[test]
fn force_ends_an_attachment_that_hangs() {
    let machine = Machine::new("hang");
    assert_eq!(machine.attach("disk0").code, 0);
    machine.signal("-STOP");
    assert_eq!(machine.status()[0]["state"], "unresponsive");
    let ran = machine.run(&["detach", "disk0", "--force", "--json"]);
    assert!(ran.code == 0 && ran.out.contains("\"how\":\"killed\""), "{}{}", ran.out, ran.err);
    assert!(!std::path::Path::new(&machine.socket("disk0")).exists());
    assert!(machine.status().is_empty() && machine.left().is_empty());
}

#[test]
fn a_signal_detaches_in_order_and_a_second_one_evicts() {
    let machine = Machine::new("signal");
    assert_eq!(machine.attach("disk0").code, 0);
    machine.signal("-TERM");
    machine.wait_empty();
    assert_eq!(machine.attach("disk0").code, 0);
    let _client = client(&machine.socket("disk0"));
    machine.signal("-TERM");
    let log = machine.folder.path().join("run/disk0.log");
    let start = Instant::now();
    while !std::fs::read_to_string(&log).unwrap().contains("a second signal") {
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(machine.status()[0]["state"], "attached");
    machine.signal("-TERM");
    machine.wait_empty();
    assert!(!std::path::Path::new(&machine.socket("disk0")).exists());
}

#[test]
fn in_the_foreground_it_stays() {
    let machine = Machine::new("foreground");
    let (socket, run_dir) = (machine.socket("x"), machine.folder.at("run"));
    let address = format!("unix:{socket}");
    let mut child = Command::new(env!("CARGO_BIN_EXE_thinwire"))
        .args(["attach", "null:1M", "--nbd", &address, "--foreground", "--run-dir", &run_dir])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("{socket}\n"));
    assert_eq!(machine.status()[0]["name"], "null");
    assert_eq!(machine.run(&["detach", "null"]).code, 0);
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_fails_in_the_child_is_said_by_the_parent() {
    let machine = Machine::new("fails");
    let ran = machine.run(&["attach", "null:1M", "--nbd", "unix:/no/such/folder/s", "--as", "x"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("/no/such/folder/s"), "{}", ran.err);
    let file = machine.folder.file("precious", "data");
    let ran = machine.run(&["attach", "null:1M", "--nbd", &format!("unix:{file}")]);
    assert_eq!(ran.code, 1);
    assert_eq!(std::fs::read_to_string(file).unwrap(), "data");
    assert!(machine.status().is_empty() && machine.left().is_empty(), "{:?}", machine.left());
}
