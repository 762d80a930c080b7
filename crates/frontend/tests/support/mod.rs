//! Faces under test are served by a child process: a process that waits for a file that it serves
//! itself cannot even be killed, and a test that fails must leave nothing behind.
#![allow(dead_code)]

pub mod shard;
pub mod volume;

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use volume::Counts;

/// Names the specification of what a child shall serve.
const SPEC: &str = "THINWIRE_TEST_SERVE";

/// The longest that a child lives.
const CHILD_LIFE: Duration = Duration::from_secs(300);

/// To be called by a test of the name `child`, which is the child's main function, and does
/// nothing when run as a test. `serve` gets the words of the specification.
pub fn child(serve: impl FnOnce(&[&str]) -> std::io::Result<()>) {
    let Ok(spec) = std::env::var(SPEC) else { return };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    std::thread::spawn(|| {
        std::thread::sleep(CHILD_LIFE);
        std::process::abort();
    });
    let words: Vec<&str> = spec.split('\n').collect();
    if let Err(e) = serve(&words) {
        println!("= failed {e}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// A child that serves a face. Killed when dropped.
pub struct Served {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: RefCell<BufReader<ChildStdout>>,
}

impl Served {
    /// Starts a child of this test program; returns once it serves, or with its error.
    pub fn start(spec: &[&str]) -> Result<Served, String> {
        Served::start_under("", spec)
    }

    /// The same; the child runs under a command such as `setpriv --...`, given as shell words.
    pub fn start_under(command: &str, spec: &[&str]) -> Result<Served, String> {
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(format!("exec {command} \"$0\" \"$@\""))
            .arg(std::env::current_exe().unwrap())
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(SPEC, spec.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = RefCell::new(BufReader::new(child.stdout.take().unwrap()));
        let served = Served { child, stdin, stdout };
        match served.line() {
            line if line == "serving" => Ok(served),
            line => Err(line),
        }
    }

    fn line(&self) -> String {
        let mut stdout = self.stdout.borrow_mut();
        loop {
            let mut line = String::new();
            if stdout.read_line(&mut line).unwrap() == 0 {
                return "the child ended".into();
            }
            // The test harness of the child prints lines of its own.
            if let Some(at) = line.find("= ") {
                return line[at + 2..].trim().to_owned();
            }
        }
    }

    /// Sends a command and returns its answer; asks again while that is `wait`.
    pub fn ask(&self, command: &str) -> String {
        loop {
            match self.ask_once(command) {
                answer if answer == "wait" => std::thread::sleep(Duration::from_millis(2)),
                answer => return answer,
            }
        }
    }

    /// Sends a command and returns its first answer.
    pub fn ask_once(&self, command: &str) -> String {
        writeln!(self.stdin.as_ref().unwrap(), "{command}").unwrap();
        self.line()
    }

    pub fn counts(&self) -> Counts {
        let answer = self.ask("counts");
        let mut n = answer.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut next = || n.next().unwrap();
        Counts {
            reads: next(),
            writes: next(),
            fua_writes: next(),
            flushes: next(),
            zeroes: next(),
            zeroes_no_hole: next(),
            zeroed_bytes: next(),
            data_grains: next(),
            outstanding: next(),
        }
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.end();
    }

    /// Closes its input and waits for it to end by itself.
    pub fn end_of_input(&mut self) -> ExitStatus {
        self.stdin = None;
        self.child.wait().unwrap()
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

/// Held exclusively by tests that copy the mount namespace, and shared by all others: a copy keeps
/// every file system in it alive, so that one which another test unmounts meanwhile does not end,
/// and a check of its device finds it half written.
static MOUNTS: RwLock<()> = RwLock::new(());

enum Mounts {
    Shared { _guard: RwLockReadGuard<'static, ()> },
    Copied { _guard: RwLockWriteGuard<'static, ()> },
}

/// A directory under /tmp of this test alone. Dropping it unmounts what is below and removes it,
/// also when the test fails.
pub struct Scratch {
    dir: PathBuf,
    _mounts: Mounts,
}

impl Scratch {
    pub fn new(name: &str) -> Self {
        let guard = MOUNTS.read().unwrap_or_else(PoisonError::into_inner);
        Scratch::make(name, Mounts::Shared { _guard: guard })
    }

    /// For a test that copies the mount namespace (`unshare --mount`): no other test has a scratch
    /// directory while this one lives.
    pub fn copying_mounts(name: &str) -> Self {
        let guard = MOUNTS.write().unwrap_or_else(PoisonError::into_inner);
        Scratch::make(name, Mounts::Copied { _guard: guard })
    }

    fn make(name: &str, mounts: Mounts) -> Self {
        let dir = PathBuf::from(format!("/tmp/tw-face-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch { dir, _mounts: mounts }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mount in mounts_below(&self.dir).iter().rev() {
            let _ = unmount(mount, UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Mount points below `dir`.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(PathBuf::from).filter(|point| point.starts_with(dir)).collect()
}

/// Waits for something that happens a moment later, such as the release of a closed file.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}

/// Runs a shell script that must succeed; returns its output.
pub fn sh(script: &str) -> String {
    let output = try_sh(script);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{script}\n{}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a shell script.
pub fn try_sh(script: &str) -> Output {
    Command::new("sh").arg("-ec").arg(script).stdin(Stdio::null()).output().unwrap()
}
