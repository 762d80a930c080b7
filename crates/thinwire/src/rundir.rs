//! The folder where attachments keep their state (`/run/thinwire`): for each attachment NAME
//! `NAME.lock` (locked as long as its process lives), `NAME.json` (its record), `NAME.sock` (its
//! control socket) and `NAME.log`; and `ids/`, the locks of initiator identities.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Outcome};
use crate::leftover::Leftover;
use crate::process;

/// Longest path in a `sockaddr_un`, less its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A name that looks taken may only be looked at (see [`RunDir::is_alive`]); so try for this long.
const CLAIM_PATIENCE: Duration = Duration::from_millis(300);

/// The version of everything this program writes as JSON.
pub const SCHEMA: u32 = 1;

/// What an attachment writes down about itself, so that others can find it and clean up after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of this format.
    pub schema: u32,
    /// The attachment's name.
    pub name: String,
    /// The volume, as a URI.
    pub uri: String,
    /// `nbd`, `file` or `block`.
    pub frontend: String,
    /// The socket, address, file or node, once it is usable.
    pub path: Option<String>,
    /// Frames are neither authenticated nor encrypted.
    pub insecure: bool,
    /// The attachment's process.
    pub pid: i32,
    /// When that process started, in clock ticks since boot: tells it from a later one with its id.
    pub start_ticks: u64,
    /// When the first attach will be given up, in milliseconds since 1970; `None` if never, or if
    /// it is done.
    #[serde(default)]
    pub gives_up_ms: Option<u64>,
    /// What stays behind if the process is killed.
    pub leftovers: Vec<Leftover>,
}

impl Record {
    /// A record of this process, nothing to clean up yet.
    pub fn of_this_process(name: &str, uri: String, frontend: &str, insecure: bool) -> Self {
        let pid = std::process::id() as i32;
        Record {
            schema: SCHEMA,
            name: name.to_owned(),
            uri,
            frontend: frontend.to_owned(),
            path: None,
            insecure,
            pid,
            start_ticks: process::start_ticks(pid).unwrap_or(0),
            gives_up_ms: None,
            leftovers: Vec::new(),
        }
    }
}

/// `/run/thinwire` for root; for others, who cannot write there, `thinwire` in their own runtime
/// folder, or `/tmp/thinwire-UID` if they have none.
pub fn default_path() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/thinwire".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => Path::new(&folder).join("thinwire"),
        None => format!("/tmp/thinwire-{}", user.as_raw()).into(),
    }
}

/// An open run directory.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    fd: OwnedFd,
}

impl RunDir {
    /// Opens the folder, making it (mode 0755) if it is missing.
    pub fn create(path: &Path) -> Outcome<Self> {
        DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(|e| {
            Failure::failed(format!(
                "cannot make the run directory {}: {e}; run as root or give --run-dir",
                path.display()
            ))
        })?;
        let dir = Self::open(path)?
            .ok_or_else(|| Failure::failed(format!("{} vanished", path.display())))?;
        dir.refuse_strangers()?;
        Ok(dir)
    }

    /// A folder of another user (in `/tmp` anybody can make one) is not to be trusted with locks.
    fn refuse_strangers(&self) -> Outcome {
        let stat = rustix::fs::fstat(&self.fd)
            .map_err(|e| Failure::failed(format!("{}: {e}", self.path.display())))?;
        if stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the run directory {} belongs to another user (id {}); give another with --run-dir",
            self.path.display(),
            stat.st_uid
        )))
    }

    /// Opens the folder; `None` if there is none, which means that there are no attachments.
    pub fn open(path: &Path) -> Outcome<Option<Self>> {
        let path = std::path::absolute(path)
            .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(RunDir { path, fd })),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(Failure::failed(format!(
                "cannot open the run directory {}: {e}",
                path.display()
            ))),
        }
    }

    /// The folder itself, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `NAME.SUFFIX` in the folder.
    pub fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.path.join(format!("{name}.{suffix}"))
    }

    /// Names of all attachments that left a lock or a record here, sorted.
    pub fn names(&self) -> Outcome<Vec<String>> {
        let wrong = |e: io::Error| Failure::failed(format!("{}: {e}", self.path.display()));
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(wrong)? {
            let file = entry.map_err(wrong)?.file_name();
            let Some(file) = file.to_str() else { continue };
            if let Some(name) = file.strip_suffix(".json").or(file.strip_suffix(".lock"))
                && crate::size::check_name("attachment name", name).is_ok()
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The record of an attachment, if it wrote one that can be read.
    pub fn record(&self, name: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.file(name, "json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Whether the process of an attachment lives: whether its lock is held.
    pub fn is_alive(&self, name: &str) -> bool {
        let Ok(file) = File::open(self.file(name, "lock")) else { return false };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Takes the name for this process. `None` if a live process has it. The claim may find the
    /// record of a dead one: see [`Claim::stale`].
    pub fn claim(&self, name: &str) -> Outcome<Option<Claim<'_>>> {
        let path = self.file(name, "lock");
        let Some(lock) = lock_file(&path, CLAIM_PATIENCE)
            .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?
        else {
            return Ok(None);
        };
        let stale = self.record(name);
        Ok(Some(Claim { dir: self, name: name.to_owned(), stale, _lock: lock }))
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

    /// Listens on an attachment's control socket. The caller holds the claim.
    pub fn listen(&self, name: &str) -> io::Result<UnixListener> {
        let path = self.file(name, "sock");
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(self.short(&path))?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(listener)
    }

    /// Connects to an attachment's control socket.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        UnixStream::connect(self.short(&self.file(name, "sock")))
    }

    /// A way to say `path` that fits into a socket address, however deep the folder is.
    fn short(&self, path: &Path) -> PathBuf {
        match path.file_name() {
            Some(file) if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX => {
                let folder = format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd());
                Path::new(&folder).join(file)
            }
            _ => path.to_owned(),
        }
    }
}

/// An attachment's name, held by this process. Dropping it removes the attachment's files.
#[derive(Debug)]
pub struct Claim<'a> {
    dir: &'a RunDir,
    name: String,
    stale: Option<Record>,
    _lock: File,
}

impl Claim<'_> {
    /// The record of a process that was killed and held this name before.
    pub fn stale(&self) -> Option<&Record> {
        self.stale.as_ref()
    }

    /// The name claimed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the record; readers see the old one or the new one.
    pub fn write(&self, record: &Record) -> Outcome {
        let path = self.dir.file(&self.name, "json");
        let text = serde_json::to_string_pretty(record).expect("a record is valid JSON");
        write_atomically(&path, text.as_bytes())
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", path.display())))
    }

    /// Lets go of the name but leaves its files as they are, as a killed process would.
    #[cfg(test)]
    pub fn abandon(self) {
        let mut this = std::mem::ManuallyDrop::new(self);
        // The lock must go, the files must stay: so close the file by replacing it.
        this._lock = File::open("/dev/null").unwrap();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        for suffix in ["sock", "json", "lock"] {
            let _ = std::fs::remove_file(self.dir.file(&self.name, suffix));
        }
    }
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.write_all(b"\n")?;
    std::fs::rename(&new, path)
}

/// Opens (or makes) a lock file and locks it; `None` if somebody else holds it for longer than
/// `patience`. Copes with holders that remove the file when they let go.
pub fn lock_file(path: &Path, patience: Duration) -> io::Result<Option<File>> {
    let deadline = Instant::now() + patience;
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let ours = file.metadata()?;
                match std::fs::metadata(path) {
                    Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                        return Ok(Some(file));
                    }
                    _ => continue,
                }
            }
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() >= deadline => return Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn record(name: &str) -> Record {
        Record::of_this_process(name, "null:512".into(), "nbd", false)
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
