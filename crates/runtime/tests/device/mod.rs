//! A block device whose writes succeed and whose flushes fail when it is told so: a loop device over a
//! FUSE file that a child process serves from memory.
//!
//! A child, since a process that waits for a file which it serves itself cannot be killed. The child
//! touches nothing that lies on the device while it serves. It ends with its input, hence also with a
//! parent that is killed, or when it has lived too long: then whatever waits for the device gets an
//! error, and what is mounted and left is removed.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_buffer::Pool;
use thinwire_frontend::block::{self, BlockBackend, BlockConfig, prepare_process};
use thinwire_volume::stores::MemoryStore;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume};

use crate::common::run;

/// Names the directory of a child.
const DIR: &str = "THINWIRE_TEST_DEVICE";

/// A folder in that directory for a file system: the child unmounts what is left there.
pub const MOUNT_POINT: &str = "system";

/// The longest that a child lives.
const CHILD_LIFE: Duration = Duration::from_secs(120);

/// Room for any of the file systems; only what is written takes memory.
const BYTES: u64 = 400 << 20;

/// Memory whose flushes fail on command.
struct Failing {
    inner: MemoryStore,
    failing: bool,
    refused: u64,
    done: Vec<Completion>,
}

impl Volume for Failing {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&mut self, io: Io) {
        if self.failing && io.op == Op::Flush {
            self.refused += 1;
            self.done.push(Completion::new(io.token, Err(io.error(ErrorKind::Io, "test"))));
        } else {
            self.inner.submit(io);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
        self.inner.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.done.len() + self.inner.outstanding()
    }
}

/// The child's main function; does nothing when run as a test.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let outcome = serve(&dir);
    run("umount", &["-l", dir.join(MOUNT_POINT).to_str().unwrap()]);
    let _ = std::fs::remove_dir_all(&dir);
    match outcome {
        Ok(()) => std::process::exit(0),
        Err(e) => {
            println!("= failed: {e}");
            std::process::exit(1)
        }
    }
}

/// Serves until the input ends, or for [`CHILD_LIFE`]. The device is gone on return.
fn serve(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir.join(MOUNT_POINT))?;
    // What is refused matters on a machine short of memory only.
    let _ = prepare_process();
    let pool = Pool::new(64 << 20);
    let inner = MemoryStore::new(BYTES, 512, Identity::default(), &pool);
    let mut volume = Failing { inner, failing: false, refused: 0, done: Vec::new() };
    let config = BlockConfig {
        run_dir: dir.to_owned(),
        name: "device".to_owned(),
        source: "memory:test".to_owned(),
        geometry: volume.geometry(),
        block_bytes: 512,
        read_only: false,
        is_carrying: false,
    };
    let mut face = block::attach(Some(BlockBackend::Loop), config, pool)?;
    let stdin = io::stdin();
    let mut input = Vec::new();
    let end = Instant::now() + CHILD_LIFE;
    while Instant::now() < end {
        while face.turn(&mut volume)? {}
        let mut fds = [
            PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(face.fd(), PollFlags::IN),
        ];
        poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }))?;
        if !fds[0].revents().is_empty() {
            let mut chunk = [0; 64];
            match rustix::io::read(&stdin, &mut chunk)? {
                0 => return Ok(()),
                count => input.extend_from_slice(&chunk[..count]),
            }
        }
        while let Some(at) = input.iter().position(|&byte| byte == b'\n') {
            let answer = match &input[..at] {
                b"ready" => match face.ready() {
                    None => "wait".to_owned(),
                    Some(node) => node?,
                },
                order @ (b"fail" | b"mend") => {
                    volume.failing = order == b"fail";
                    volume.refused.to_string()
                }
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
            input.drain(..=at);
            println!("= {answer}");
        }
    }
    Ok(())
}

/// The device, as its user sees it. Dropping it takes it away.
pub struct Device {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: RefCell<BufReader<ChildStdout>>,
    node: String,
}

impl Device {
    /// A new one, kept in `dir`, which comes and goes with it.
    pub fn new(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["device::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = RefCell::new(BufReader::new(child.stdout.take().unwrap()));
        let mut device = Device { child, stdin, stdout, node: String::new() };
        device.node = device.ask("ready").unwrap();
        assert!(device.node.starts_with("/dev/loop"), "{}", device.node);
        device
    }

    /// Its node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Fails all flushes from now on. Returns how many have failed.
    pub fn fail_flushes(&self) -> u64 {
        self.ask("fail").unwrap().parse().unwrap()
    }

    /// All is well from now on. Returns how many flushes have failed, or nothing if it is gone.
    pub fn mend(&self) -> Option<u64> {
        self.ask("mend")?.parse().ok()
    }

    /// Asks again while the answer is `wait`.
    fn ask(&self, order: &str) -> Option<String> {
        loop {
            // If it has ended, its last words tell why.
            let _ = writeln!(self.stdin.as_ref()?, "{order}");
            match self.line()? {
                answer if answer == "wait" => std::thread::sleep(Duration::from_millis(2)),
                answer => return Some(answer),
            }
        }
    }

    fn line(&self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.borrow_mut().read_line(&mut line).ok()? == 0 {
                return None;
            }
            // The child's test harness prints lines of its own.
            if let Some(at) = line.find("= ") {
                return Some(line[at + 2..].trim().to_owned());
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}
