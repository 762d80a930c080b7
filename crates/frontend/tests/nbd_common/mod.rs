//! A served volume in a thread of its own, and a client that speaks raw bytes.
#![allow(dead_code, reason = "every test program uses its own part")]

pub mod client;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_buffer::{Pool, SegList};
use thinwire_frontend::Face;
use thinwire_frontend::nbd::{Listen, NbdConfig, NbdFace, NbdStats};
use thinwire_volume::stores::{FileStore, MemoryStore};
use thinwire_volume::testing::MemDisk;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Unaligned, Volume};

/// A volume whose I/O can be held back or failed.
pub struct TestVolume {
    inner: Box<dyn Volume>,
    /// While set, nothing reaches the volume below.
    pub held: bool,
    queue: Vec<Io>,
    /// While set, everything fails with this.
    pub fail: Option<ErrorKind>,
    failed: Vec<Completion>,
    /// Where payloads live.
    pub pool: Pool,
    /// While set, what is read is in memory of links, as it came in frames of so many bytes.
    pub lends: Option<usize>,
}

impl TestVolume {
    fn lend(&self, data: SegList, frame_bytes: usize) -> SegList {
        let links = self.pool.for_received();
        let mut lent = SegList::new();
        data.to_vec().chunks(frame_bytes).for_each(|part| lent.push(links.copy_of(part).freeze()));
        lent
    }
}

impl Volume for TestVolume {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&mut self, io: Io) {
        assert_eq!(self.geometry().check(&io), Ok(()));
        if let Some(kind) = self.fail {
            self.failed.push(Completion::new(io.token, Err(io.error(kind, "test"))));
        } else if self.held {
            self.queue.push(io);
        } else {
            self.inner.submit(io);
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !self.held {
            for io in self.queue.drain(..) {
                self.inner.submit(io);
            }
        }
        done.append(&mut self.failed);
        let before = done.len();
        self.inner.poll(done);
        if let Some(frame_bytes) = self.lends {
            for completion in &mut done[before..] {
                completion.data = self.lend(std::mem::take(&mut completion.data), frame_bytes);
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding() + self.queue.len() + self.failed.len()
    }
}

pub type Served = Unaligned<TestVolume>;
type Task = Box<dyn FnOnce(&mut NbdFace, &mut Served) + Send>;

/// What the volume stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Memory, done at once, blocks of 512 bytes.
    Memory,
    /// A file store over a disk that does things in its own order, blocks of 4096 bytes.
    SlowFile,
}

pub fn volume(backing: Backing, bytes: u64, pool: &Pool) -> Served {
    let inner: Box<dyn Volume> = match backing {
        Backing::Memory => Box::new(MemoryStore::new(bytes, 512, Identity::default(), pool)),
        Backing::SlowFile => {
            Box::new(FileStore::new(MemDisk::new(bytes, 4096, 1), 4096, pool).unwrap())
        }
    };
    let (queue, failed) = (Vec::new(), Vec::new());
    let pool_of_it = pool.clone();
    let inner =
        TestVolume { inner, held: false, queue, fail: None, failed, pool: pool_of_it, lends: None };
    Unaligned::new(inner, pool.clone())
}

/// A path for a socket that nobody else uses.
pub fn socket_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("thinwire-nbd-{}-{count}.sock", std::process::id()))
}

pub fn config() -> NbdConfig {
    let mut config = NbdConfig::new(Listen::Unix(socket_path()), "disk0");
    config.description = "for tests".into();
    config
}

/// A face with its volume, served by a thread until dropped.
pub struct Server {
    pub path: String,
    tasks: mpsc::Sender<Task>,
    bell: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(config: NbdConfig, backing: Backing, bytes: u64) -> Self {
        let (tasks, inbox) = mpsc::channel::<Task>();
        let (bell, ear) = UnixStream::pair().unwrap();
        ear.set_nonblocking(true).unwrap();
        let (say_path, hear_path) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let pool = Pool::new(256 << 20);
            let mut volume = volume(backing, bytes, &pool);
            let mut face = NbdFace::bind(config, pool).unwrap();
            say_path.send(face.path()).unwrap();
            serve(&mut face, &mut volume, &inbox, ear);
            face.close(true).unwrap();
            volume.inner_mut().held = false;
            while face.turn(&mut volume).unwrap() || volume.outstanding() > 0 {}
            assert_eq!((face.held_bytes(), face.outstanding(), face.connections()), (0, 0, 0));
        });
        let path = hear_path.recv().expect("the face opens");
        Server { path, tasks, bell, thread: Some(thread) }
    }

    /// Runs something in the serving thread, between two turns.
    pub fn with<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut NbdFace, &mut Served) -> T + Send + 'static,
    ) -> T {
        let (say, hear) = mpsc::channel();
        let task: Task = Box::new(move |face, volume| say.send(task(face, volume)).unwrap());
        self.tasks.send(task).unwrap();
        (&self.bell).write_all(b"!").unwrap();
        hear.recv().expect("the server lives")
    }

    pub fn stats(&self) -> NbdStats {
        self.with(|face, _| face.stats())
    }

    /// Waits until it is so.
    pub fn until(
        &self,
        is_so: impl Fn(&mut NbdFace, &mut Served) -> bool + Send + Clone + 'static,
    ) {
        while !self.with(is_so.clone()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// The address as clients of libnbd and qemu take it.
    pub fn uri(&self, name: &str) -> String {
        if self.path.starts_with('/') {
            format!("nbd+unix:///{name}?socket={}", self.path)
        } else {
            format!("nbd://{}/{name}", self.path)
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.bell.shutdown(std::net::Shutdown::Both);
        let result = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            result.expect("the serving thread ends well");
            assert!(!std::path::Path::new(&self.path).exists(), "the socket is left behind");
        }
    }
}

fn serve(
    face: &mut NbdFace,
    volume: &mut Served,
    inbox: &mpsc::Receiver<Task>,
    mut ear: UnixStream,
) {
    let mut again = true;
    loop {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_busy = volume.outstanding() > 0 && !volume.inner().held;
        let wait = (is_busy || again).then_some(&at_once);
        let mut fds = [
            PollFd::from_borrowed_fd(face.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(ear.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, wait).unwrap();
        again = face.turn(volume).unwrap();
        let mut bells = [0; 64];
        if let Ok(0) = ear.read(&mut bells) {
            return;
        }
        while let Ok(task) = inbox.try_recv() {
            task(face, volume);
            again |= face.turn(volume).unwrap();
        }
    }
}
