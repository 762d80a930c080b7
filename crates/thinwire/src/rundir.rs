//! The folder where attachments and targets keep their state (`/run/thinwire`): for each attachment NAME
//! `NAME.lock` (locked as long as its process lives), `NAME.json` (its record), `NAME.sock` (its
//! control socket) and `NAME.log`; for each target the first three, its NAME being `target-NODE`; `ids/`,
//! the locks of initiator identities; `nodes/`, those of the node names of targets. Nobody but its owner and root can change anything in it: see [`folder`].
//!
//! [`folder`]: crate::folder

mod planted;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thinwire_runtime::peer::user_of_peer;

use crate::error::{Failure, Outcome};
use crate::folder::{Folder, Way, is_ours};
use crate::lock::{self, Lock};
use crate::process;
use crate::record::RecordOwner;
pub use crate::record::{Record, SCHEMA, TargetRecord};

/// Longest path in a `sockaddr_un`, less its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Connections to a control socket that wait to be taken in.
const SOCKET_BACKLOG: i32 = 128;

/// Root's run directory, unless it says another.
const ROOTS: &str = "/run/thinwire";

/// The folder of the locks of initiator identities.
pub const IDENTITIES: &str = "ids";

/// The folder of the locks of targets' node names.
pub const NODES: &str = "nodes";

/// A name that looks taken may only be looked at (see [`RunDir::life`]); so try for this long.
const CLAIM_PATIENCE: Duration = Duration::from_millis(300);

/// How the files of targets begin; no attachment may be called so.
pub const TARGET_PREFIX: &str = "target-";

/// `/run/thinwire` for root; for others, who cannot write there, `thinwire` in their own runtime
/// folder: the one that XDG_RUNTIME_DIR names, else `/run/user/UID`. Never below `/tmp` or any other
/// place that everybody may write in: there a stranger could have made it before.
pub fn default_path() -> PathBuf {
    match chosen_by_environment() {
        Some(path) => path,
        None if rustix::process::geteuid().is_root() => ROOTS.into(),
        None => format!("/run/user/{}/thinwire", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Where else attachments may be, for whoever looked in `path` and missed one.
pub fn elsewhere(path: &Path) -> String {
    match path == Path::new(ROOTS) {
        true => String::new(),
        false => format!("; root's are in {ROOTS} (--run-dir {ROOTS})"),
    }
}

fn chosen_by_environment() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty())?;
    Some(Path::new(&folder).join("thinwire"))
}

/// Whether the process of an attachment or a target lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessLife {
    /// Its lock is held, or the process on its record runs.
    Alive,
    /// It does not, or there is no such attachment.
    Gone,
    /// This user may look neither at its lock nor at its process.
    Unknown,
}

/// An open run directory.
#[derive(Clone, Debug)]
pub struct RunDir {
    folder: Folder,
}

impl RunDir {
    /// Opens the folder, making it (mode 0755) if it is missing.
    ///
    /// # Errors
    /// If others could change what is in it: see [`crate::folder`].
    pub fn create(path: &Path) -> Outcome<Self> {
        let found = Folder::open(path, Self::way(path, true))?;
        let vanished = || Failure::failed(format!("{} vanished", path.display()));
        Ok(RunDir { folder: found.ok_or_else(vanished)? })
    }

    /// Opens the folder; `None` if there is none, which means that there are no attachments.
    ///
    /// # Errors
    /// As of [`RunDir::create`].
    pub fn open(path: &Path) -> Outcome<Option<Self>> {
        Ok(Folder::open(path, Self::way(path, false))?.map(|folder| RunDir { folder }))
    }

    fn way(path: &Path, make: bool) -> Way {
        Way { make, by_default: chosen_by_environment().is_none() && path == default_path() }
    }

    /// The folder itself, absolute.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A folder in it, for this user alone; made if it is missing.
    pub fn sub(&self, name: &str) -> Outcome<Folder> {
        self.folder.sub(name)
    }

    /// `NAME.SUFFIX` in the folder.
    pub fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.path().join(format!("{name}.{suffix}"))
    }

    /// Names of all attachments that left a lock or a record here, sorted.
    pub fn names(&self) -> Outcome<Vec<String>> {
        self.names_of(|name| {
            !name.starts_with(TARGET_PREFIX)
                && crate::size::check_name("attachment name", name).is_ok()
        })
    }

    /// The same of targets. Each begins with [`TARGET_PREFIX`] and its node's name; one that found that
    /// taken has `@` and its process id behind it.
    pub fn targets(&self) -> Outcome<Vec<String>> {
        self.names_of(|name| {
            node_of(name).is_some_and(|node| crate::size::check_name("node name", node).is_ok())
        })
    }

    fn names_of(&self, wanted: impl Fn(&str) -> bool) -> Outcome<Vec<String>> {
        let wrong = |e: io::Error| Failure::failed(format!("{}: {e}", self.path().display()));
        let mut names = Vec::new();
        for file in self.folder.names().map_err(wrong)? {
            if let Some(name) = file.strip_suffix(".json").or(file.strip_suffix(".lock"))
                && wanted(name)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The record of an attachment, if it wrote one that can be read. One of another name is none.
    pub fn record(&self, name: &str) -> Option<Record> {
        self.read(name).filter(|record: &Record| record.name == name)
    }

    /// The same of a target.
    pub fn target_record(&self, name: &str) -> Option<TargetRecord> {
        self.read(name).filter(|record: &TargetRecord| node_of(name) == Some(&record.node))
    }

    fn read<R: DeserializeOwned>(&self, name: &str) -> Option<R> {
        serde_json::from_str(&self.folder.read(&format!("{name}.json")).ok()?).ok()
    }

    /// Whether the process of an attachment or a target lives: whether its lock is held. Who may not look at the
    /// lock is told what the record and the table of processes say.
    pub fn life(&self, name: &str) -> ProcessLife {
        match lock::is_held(&self.folder, &format!("{name}.lock")) {
            Ok(true) => ProcessLife::Alive,
            Ok(false) => ProcessLife::Gone,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.read(name).map_or(ProcessLife::Unknown, |owner: RecordOwner| life_of(owner))
            }
            Err(_) => ProcessLife::Unknown,
        }
    }

    /// False if the process of an attachment or a target is known to be gone.
    pub fn is_alive(&self, name: &str) -> bool {
        self.life(name) != ProcessLife::Gone
    }

    /// Takes the name for this process. `None` if a live process has it. The claim may find the
    /// record of a dead one: see [`Claim::stale`].
    ///
    /// # Errors
    /// Something else is in the place of one of its files: see [`RunDir::refuse_planted`].
    pub fn claim(&self, name: &str) -> Outcome<Option<Claim<'_>>> {
        self.refuse_planted(name)?;
        let file = format!("{name}.lock");
        let wrong = |e| Failure::failed(format!("{}: {e}", self.path().join(&file).display()));
        let Some(lock) = lock::lock(&self.folder, &file, CLAIM_PATIENCE).map_err(wrong)? else {
            return Ok(None);
        };
        let stale = self.record(name);
        Ok(Some(Claim { dir: self, name: name.to_owned(), stale, lock: Some(lock) }))
    }

    /// Opens an attachment's log, empty, for its process to append to.
    pub fn open_log(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let log = self.folder.private(&format!("{name}.log"), flags, 0o640)?;
        // What an attachment of this name said before it ended is of no use any more.
        log.set_len(0)?;
        Ok(log)
    }

    /// What its log says so far.
    pub fn read_log(&self, name: &str) -> io::Result<String> {
        self.folder.read(&format!("{name}.log"))
    }

    /// Removes its log; none there is fine.
    pub fn remove_log(&self, name: &str) -> io::Result<()> {
        self.folder.remove(&format!("{name}.log"))
    }

    /// Removes the locks of identities that killed processes left. Best effort: who claims one does
    /// the same.
    pub fn sweep_identities(&self) {
        let way = Way { make: false, by_default: false };
        if let Ok(Some(folder)) = Folder::open(&self.path().join(IDENTITIES), way) {
            let _ = lock::sweep(&folder);
        }
    }

    /// Waits until no live process has the name, at most until `deadline`.
    pub fn wait_gone(&self, name: &str, deadline: Instant) -> bool {
        loop {
            if !self.is_alive(name) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Listens on a control socket, which its owner alone may connect to. The caller
    /// holds the claim.
    pub fn listen(&self, name: &str) -> io::Result<UnixListener> {
        let path = self.file(name, "sock");
        self.folder.remove(&format!("{name}.sock"))?;
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The file has the socket's mode from the start.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(self.short(&path))?)?;
        rustix::net::listen(&socket, SOCKET_BACKLOG)?;
        Ok(socket.into())
    }

    /// Connects to a control socket: the very file that was checked, at which a process of this user or root
    /// listens. WouldBlock if as many wait there as may: whoever has it does not take connections in, and a
    /// socket that blocks would wait for that without end.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let odd = |e: io::Error| match e.kind() {
            io::ErrorKind::Other => io::Error::other(format!("its control socket: {e}")),
            _ => e,
        };
        let file = self.folder.socket(&format!("{name}.sock")).map_err(odd)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::net::connect(&socket, &SocketAddrUnix::new(place)?)?;
        // The kernel keeps who began to listen.
        let listener = user_of_peer(socket.as_fd())?;
        if !is_ours(listener) {
            let why = format!("a process of another user (id {listener}) has its control socket");
            return Err(io::Error::other(why));
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// A way to say `path` that fits into a socket address, however deep the folder is.
    fn short(&self, path: &Path) -> PathBuf {
        match path.file_name() {
            Some(file) if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX => {
                let folder = format!("/proc/self/fd/{}", self.folder.fd().as_raw_fd());
                Path::new(&folder).join(file)
            }
            _ => path.to_owned(),
        }
    }
}

/// The name of an attachment or a target, held by this process. Dropping it removes its files.
#[derive(Debug)]
pub struct Claim<'a> {
    dir: &'a RunDir,
    name: String,
    stale: Option<Record>,
    /// `None` once it is abandoned.
    lock: Option<Lock>,
}

impl Claim<'_> {
    /// The record of an attachment's process that was killed and held this name before.
    pub fn stale(&self) -> Option<&Record> {
        self.stale.as_ref()
    }

    /// The name claimed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the record; readers see the old one or the new one.
    pub fn write(&self, record: &impl Serialize) -> Outcome {
        let text = serde_json::to_string_pretty(record).expect("a record is valid JSON") + "\n";
        let (file, new) = (format!("{}.json", self.name), format!("{}.new", self.name));
        self.dir.folder.write_atomically(&file, &new, text.as_bytes()).map_err(|e| {
            let path = self.dir.path().join(file);
            Failure::failed(format!("cannot write {}: {e}", path.display()))
        })
    }

    /// Lets go of the name but leaves its files as they are, as a killed process would.
    #[cfg(test)]
    pub fn abandon(mut self) {
        self.lock.take().expect("held until it is dropped").abandon();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.lock.is_none() {
            return;
        }
        if self.stale.is_some() {
            self.dir.sweep_identities();
        }
        // The lock goes last, by itself.
        for suffix in ["sock", "json", "new"] {
            let _ = self.dir.folder.remove(&format!("{}.{suffix}", self.name));
        }
    }
}

/// The node of a target that has this name.
pub fn node_of(name: &str) -> Option<&str> {
    let node = name.strip_prefix(TARGET_PREFIX)?;
    Some(node.split_once('@').map_or(node, |(node, _)| node))
}

/// Whether the process of a record lives, from what the system tells everybody.
fn life_of(record: RecordOwner) -> ProcessLife {
    match process::stat(record.pid) {
        Some(stat) if stat.lives && stat.start_ticks == record.start_ticks => ProcessLife::Alive,
        Some(_) => ProcessLife::Gone,
        // Nothing is shown of it: it is gone, or the processes of others are hidden from us.
        None => match Pid::from_raw(record.pid).map(rustix::process::test_kill_process) {
            Some(Ok(()) | Err(rustix::io::Errno::PERM)) => ProcessLife::Unknown,
            _ => ProcessLife::Gone,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn record(name: &str) -> Record {
        Record::of_this_process(name, "null:512".into(), "nbd", false)
    }

    /// A frozen process takes no connections in: whoever asks it often must not be frozen, too.
    #[test]
    fn a_connection_that_nobody_takes_in_is_refused_and_not_waited_for() {
        let temp = TempDir::new("rundir");
        let dir = RunDir::create(&temp.path().join("run")).unwrap();
        let _listener = dir.listen("a").unwrap();
        let many = 2 * SOCKET_BACKLOG as usize;
        let refused = (0..many).find_map(|_| dir.connect("a").err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_name_is_claimed_once_and_let_go() {
        let temp = TempDir::new("rundir");
        let dir = RunDir::create(&temp.path().join("run")).unwrap();
        assert!(!dir.is_alive("a"));
        let claim = dir.claim("a").unwrap().unwrap();
        assert!(claim.stale().is_none());
        claim.write(&record("a")).unwrap();
        assert!(dir.is_alive("a"));
        assert!(dir.claim("a").unwrap().is_none());
        assert_eq!(dir.names().unwrap(), ["a"]);
        assert_eq!(dir.record("a"), Some(record("a")));
        drop(claim);
        assert!(!dir.is_alive("a"));
        assert_eq!(dir.names().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn targets_and_attachments_are_told_apart() {
        let temp = TempDir::new("rundir-targets");
        let dir = RunDir::create(temp.path()).unwrap();
        let attachment = dir.claim("a").unwrap().unwrap();
        attachment.write(&record("a")).unwrap();
        let names = ["target-n.1", "target-n.1@77"];
        let targets = names.map(|name| {
            let claim = dir.claim(name).unwrap().unwrap();
            claim.write(&TargetRecord::of_this_process("n.1", true)).unwrap();
            claim
        });
        assert_eq!(
            (dir.names().unwrap(), dir.targets().unwrap()),
            (vec!["a".into()], names.map(String::from).to_vec())
        );
        assert_eq!(names.map(node_of), [Some("n.1"); 2]);
        assert_eq!(dir.target_record(names[0]).unwrap().pid, std::process::id() as i32);
        assert!(dir.record(names[0]).is_none() && dir.is_alive(names[1]));
        drop((attachment, targets));
        assert!(dir.names().unwrap().is_empty() && dir.targets().unwrap().is_empty());
    }

    #[test]
    fn a_killed_holder_leaves_its_record() {
        let temp = TempDir::new("rundir-stale");
        let dir = RunDir::create(temp.path()).unwrap();
        let claim = dir.claim("a").unwrap().unwrap();
        claim.write(&record("a")).unwrap();
        claim.abandon();
        assert!(!dir.is_alive("a"));
        assert_eq!(dir.names().unwrap(), ["a"]);
        assert_eq!(dir.claim("a").unwrap().unwrap().stale(), Some(&record("a")));
    }

    #[test]
    fn sockets_work_in_folders_too_deep_for_their_address() {
        let temp = TempDir::new("rundir-deep");
        let dir = RunDir::create(&temp.path().join("x".repeat(120))).unwrap();
        let listener = dir.listen("a").unwrap();
        dir.connect("a").unwrap();
        listener.accept().unwrap();
        // A dead one's socket is no obstacle.
        drop(listener);
        dir.listen("a").unwrap();
    }

    #[test]
    fn a_process_that_has_ended_is_gone_although_it_is_still_shown() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut of_child = record("a");
        of_child.pid = child.id() as i32;
        of_child.start_ticks = process::stat(of_child.pid).unwrap().start_ticks;
        let end = Instant::now() + Duration::from_secs(10);
        while process::stat(of_child.pid).is_some_and(|stat| stat.lives) {
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(process::stat(of_child.pid).is_some(), "nobody has asked about it yet");
        let life = |record: &Record| {
            life_of(RecordOwner { pid: record.pid, start_ticks: record.start_ticks })
        };
        assert_eq!(life(&of_child), ProcessLife::Gone);
        assert_eq!(life(&record("b")), ProcessLife::Alive);
        child.wait().unwrap();
    }

    #[test]
    fn a_stranger_s_folder_is_refused() {
        let temp = TempDir::new("rundir-stranger");
        // Only root can give a folder away.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(temp.path(), Some(65534), None).unwrap();
        let error = RunDir::create(temp.path()).unwrap_err();
        assert!(error.message.contains("another user (id 65534)"), "{error}");
    }

    #[test]
    fn a_missing_folder_means_no_attachments() {
        assert!(RunDir::open(Path::new("/no/such/folder")).unwrap().is_none());
        let error = RunDir::create(Path::new("/proc/x/y")).unwrap_err();
        assert!(error.message.contains("/proc/x/y"), "{error}");
    }
}
