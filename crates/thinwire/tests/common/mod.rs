//! What the command's tests share.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;

/// How a command ended.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs `thinwire` with these words.
pub fn thinwire(words: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_thinwire")).args(words).output().expect("runs");
    Ran {
        code: output.status.code().expect("not killed"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder of its own for each test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("thinwire-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, with the folders it needs.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A target process, killed when dropped, and a folder for what is attached to it.
pub struct Pair {
    pub folder: Folder,
    words: Vec<String>,
    target: Child,
    pub address: String,
}

impl Pair {
    pub fn new(name: &str, exports: &[&str]) -> Self {
        Self::with(name, exports, &[])
    }

    /// With more words for the target.
    pub fn with(name: &str, exports: &[&str], more: &[&str]) -> Self {
        // A loopback address of its own for each test, so that names are not found by others.
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let process = std::process::id() as u8;
        let ip = format!("127.{}.77.{}", process.max(1), COUNT.fetch_add(1, Ordering::Relaxed));
        let port = UdpSocket::bind((ip.as_str(), 0)).unwrap().local_addr().unwrap().port();
        let address = format!("{ip}:{port}");
        let link = format!("udp:{address}");
        let mut words = vec!["target", "--insecure", "--name", name, "--link", &link];
        exports.iter().for_each(|export| words.extend(["--export", export]));
        words.extend(more);
        // One that is killed leaves its files there, which go with the folder.
        let folder = Folder::new(&format!("remote-{name}"));
        let run_dir = folder.at("run");
        words.extend(["--run-dir", &run_dir]);
        let words: Vec<_> = words.into_iter().map(str::to_owned).collect();
        let target = serve(&words);
        Pair { folder, words, target, address }
    }

    /// kill -9, as far as the target is concerned; and waits until it is gone.
    pub fn kill(&mut self) {
        self.target.kill().unwrap();
        self.target.wait().unwrap();
    }

    /// Whether the target process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.target.try_wait().unwrap().is_some()
    }

    /// The same target again.
    pub fn restart(&mut self) {
        self.target = serve(&self.words);
    }

    pub fn uri(&self, export: &str) -> String {
        format!("tw+udp://{}/{export}", self.address)
    }

    pub fn run(&self, words: &[&str]) -> Ran {
        let run_dir = self.folder.at("run");
        thinwire(&[words, &["--run-dir", &run_dir]].concat())
    }

    pub fn attach(&self, export: &str, more: &[&str]) -> Ran {
        let address = format!("unix:{}", self.folder.at("s.nbd"));
        let uri = self.uri(export);
        self.run(&[&["attach", "--insecure", &uri, "--nbd", &address], more].concat())
    }

    pub fn status(&self) -> Value {
        let ran = self.run(&["status", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str::<Value>(&ran.out).unwrap()["attachments"].take()
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.target.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for attachment in self.status().as_array().unwrap() {
            self.run(&["detach", attachment["name"].as_str().unwrap(), "--force"]);
        }
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

/// A target, when it is ready.
fn serve(words: &[String]) -> Child {
    let mut target = Command::new(env!("CARGO_BIN_EXE_thinwire"))
        .args(words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(target.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready "), "{line}");
    target
}
