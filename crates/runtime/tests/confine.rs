//! What a process gives up, with real processes: each test starts itself again, and the child is confined.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use thinwire_buffer::Pool;
use thinwire_runtime::confine::{
    Account, Kept, as_starter, give_up, give_up_least, may_use, refused_calls, use_files_as,
};
use thinwire_runtime::disk::{AnyDisk, DiskOptions, open};
use thinwire_volume::stores::FileStore;
use thinwire_volume::{WriterRecord, load_writer, store_writer};

/// Names the folder of a child.
const CHILD: &str = "THINWIRE_CONFINE_CHILD";
/// A user that owns nothing.
const STRANGER: u32 = 65534;

/// Runs the child's part of a test in a process of its own. There it has a folder for itself, which lasts as long as
/// the process; here it is how that ended.
fn in_child(test: &str) -> Result<PathBuf, Output> {
    if let Some(folder) = std::env::var_os(CHILD) {
        return Ok(folder.into());
    }
    let folder = folder(test);
    let ended = child(test, &folder);
    fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stdout));
    Err(ended)
}

fn child(test: &str, folder: &Path) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let words = ["--exact", test, "--nocapture", "--test-threads=1"];
    child.args(words).env(CHILD, folder).output().unwrap()
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root");
    }
    is_root
}

/// By thread, a field of what the kernel shows of it.
fn shown(field: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let status = |task: PathBuf| fs::read_to_string(task.join("status")).unwrap_or_default();
    let all = tasks.map(|task| status(task.unwrap().path()));
    let field = format!("{field}:\t");
    all.filter_map(|text| Some(text.lines().find_map(|l| l.strip_prefix(&field))?.to_owned()))
        .collect()
}

fn all_are(field: &str, value: &str) {
    let found = shown(field);
    assert!(found.len() > 1 && found.iter().all(|one| one == value), "{field}: {found:?}");
}

/// A folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("thinwire-confine-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Threads that wait in the ways that threads of a target do, until they are told to end.
struct Waiting {
    end: Arc<AtomicBool>,
    bells: Vec<UnixStream>,
    gate: mpsc::Sender<()>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Waiting {
    fn begin() -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let (gate, opens) = mpsc::channel::<()>();
        let (bell, heard) = UnixStream::pair().unwrap();
        let mut threads = vec![std::thread::spawn(move || {
            let _ = opens.recv();
        })];
        let over = end.clone();
        threads.push(std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                // EINTR is no end.
                let _ = poll(&mut [PollFd::new(&heard, PollFlags::IN)], None);
            }
        }));
        let over = end.clone();
        threads.push(std::thread::spawn(move || {
            // Threads that come and go while others are told.
            while !over.load(Ordering::Acquire) {
                std::thread::spawn(|| std::thread::sleep(Duration::from_micros(300)))
                    .join()
                    .unwrap();
            }
        }));
        Waiting { end, bells: vec![bell], gate, threads }
    }

    fn end(mut self) {
        self.end.store(true, Ordering::Release);
        self.bells.iter_mut().for_each(|bell| bell.write_all(b"!").unwrap());
        drop(self.gate);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn all_threads_give_up_all_capabilities() {
    if !is_root() || in_child("all_threads_give_up_all_capabilities").is_err() {
        return;
    }
    let waiting = Waiting::begin();
    let before = shown("CapPrm");
    assert!(before.iter().any(|set| set != "0000000000000000"), "{before:?}");
    let left = give_up(None, Kept::default()).unwrap();
    assert_eq!((left.uid, left.capabilities.len()), (0, 0));
    assert_eq!(
        (&left.no_new_privs, &left.not_dumpable, &left.seccomp),
        (&Ok(()), &Ok(()), &Ok(()))
    );
    let later = std::thread::spawn(|| shown("CapEff")).join().unwrap();
    assert!(later.iter().all(|set| set == "0000000000000000"), "{later:?}");
    for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        all_are(field, "0000000000000000");
    }
    all_are("NoNewPrivs", "1");
    all_are("Seccomp", "2");
    all_are("Uid", "0\t0\t0\t0");
    waiting.end();
}

#[test]
fn what_is_kept_is_kept_and_nothing_else() {
    if !is_root() {
        return;
    }
    let Ok(folder) = in_child("what_is_kept_is_kept_and_nothing_else") else { return };
    let theirs = folder.join("theirs");
    fs::write(&theirs, "x").unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(may_use(&theirs, true), "root's own");
    chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    assert!(!may_use(&theirs, true));
    assert!(may_use(&folder, true), "and it still has what it had");
    let left = give_up(None, Kept { files_of_others: true }).unwrap();
    assert_eq!(left.capabilities, ["CAP_DAC_OVERRIDE"]);
    all_are("CapEff", "0000000000000002");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "x");
}

#[test]
fn a_process_becomes_another_user_and_opens_before_what_it_may_not_later() {
    const TEST: &str = "a_process_becomes_another_user_and_opens_before_what_it_may_not_later";
    if !is_root() {
        return;
    }
    let Ok(folder) = in_child(TEST) else { return };
    let secret = folder.join("secret");
    fs::write(&secret, "content").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let account = Account::look_up(&STRANGER.to_string()).unwrap();
    use_files_as(&account).unwrap();
    let waiting = Waiting::begin();
    let open = |path: &Path| File::open(path).map_err(|e| e.kind());
    assert_eq!(open(&secret).unwrap_err(), ErrorKind::PermissionDenied, "as the account, at once");
    let in_thread = std::thread::scope(|scope| scope.spawn(|| open(&secret).is_err()).join());
    assert!(in_thread.unwrap(), "and in a thread");
    let mut opened = as_starter(|| open(&secret)).unwrap();
    assert!(open(&secret).is_err(), "as the account again");
    let caught = std::panic::catch_unwind(|| as_starter(|| panic!("on purpose")));
    assert!(caught.is_err() && open(&secret).is_err(), "also after a panic");
    let left = give_up(Some(&account), Kept::default()).unwrap();
    assert_eq!((left.uid, left.gid, left.capabilities.len()), (STRANGER, account.gid, 0));
    all_are("Uid", &[STRANGER.to_string().as_str(); 4].join("\t"));
    all_are("Gid", &[account.gid.to_string().as_str(); 4].join("\t"));
    assert!(!shown("Groups").iter().any(|groups| groups.split(' ').any(|id| id == "0")));
    all_are("CapPrm", "0000000000000000");
    assert_eq!(as_starter(|| open(&secret)).unwrap_err(), ErrorKind::PermissionDenied);
    let mut text = String::new();
    opened.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    waiting.end();
}

#[test]
fn calls_that_a_target_does_not_make_are_refused_and_told_of() {
    const TEST: &str = "calls_that_a_target_does_not_make_are_refused_and_told_of";
    if let Err(ended) = in_child(TEST) {
        let said = String::from_utf8_lossy(&ended.stderr);
        for name in ["socket", "execve", "io_uring_setup", "getppid", "mmap"] {
            let wanted = format!("refused by seccomp: the system call {name} (");
            let told = said.lines().filter(|line| line.contains(&wanted)).count();
            assert_eq!(told, 1, "{name}:\n{said}");
        }
        return;
    }
    let (mut there, mut here) = UnixStream::pair().unwrap();
    let waiting = Waiting::begin();
    let left = give_up(None, Kept::default()).unwrap();
    assert_eq!(left.seccomp, Ok(()));
    let denied = |kind: std::io::Result<()>| kind.unwrap_err().kind();
    let refused = ErrorKind::PermissionDenied;
    for _ in 0..3 {
        assert_eq!(denied(TcpStream::connect("127.0.0.1:1").map(drop)), refused);
    }
    assert_eq!(denied(UnixStream::pair().map(drop)), refused);
    assert!(Command::new("/bin/true").status().is_err(), "no program in a process of its own");
    // SAFETY: there is no child that could go wrong.
    assert_eq!(unsafe { libc::fork() }, -1);
    assert_eq!(Command::new("/bin/true").exec().kind(), refused, "and none in this one");
    assert_eq!(denied(io_uring::IoUring::new(4).map(drop)), refused);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::getppid() }, -1);
    // SAFETY: a new mapping, which nobody uses.
    let code = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANON);
        libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0)
    };
    assert_eq!(code, libc::MAP_FAILED);
    // SAFETY: a number, and no pointers.
    let signalled = unsafe { libc::kill(std::process::id() as i32, 0) };
    assert_eq!(signalled, -1);
    // In a thread that is made now, too.
    let later = std::thread::spawn(|| TcpStream::connect("127.0.0.1:1").unwrap_err().kind());
    assert_eq!(later.join().unwrap(), refused);
    // SAFETY: a number that no kernel has, and no pointers.
    let unknown = unsafe { libc::syscall(500) };
    let error = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((unknown, error), (-1, Some(libc::ENOSYS)), "a library goes on without it");
    let told = refused_calls();
    let count =
        |name: &str| told.iter().find(|call| call.name == name).map_or(0, |call| call.count);
    assert_eq!(
        (count("socket"), count("socketpair"), count("io_uring_setup")),
        (4, 1, 1),
        "{told:?}"
    );
    assert_eq!((count("mmap"), count("kill"), count("500")), (1, 1, 1), "{told:?}");
    // What was opened before works on.
    there.write_all(b"on").unwrap();
    let mut heard = [0; 2];
    here.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"on");
    assert!(here.as_fd().try_clone_to_owned().is_err(), "not even a second name for it");
    waiting.end();
}

#[test]
fn who_keeps_its_privileges_gains_none_and_is_not_looked_into() {
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    const TEST: &str = "who_keeps_its_privileges_gains_none_and_is_not_looked_into";
    if in_child(TEST).is_err() {
        return;
    }
    assert_eq!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable));
    let before = shown("CapEff");
    give_up_least().unwrap();
    assert_eq!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    let later = std::thread::spawn(rustix::thread::no_new_privs).join().unwrap();
    assert_eq!((rustix::thread::no_new_privs(), later), (Ok(true), Ok(true)));
    assert_eq!(shown("CapEff"), before);
    let program = Command::new("/bin/true").status().unwrap();
    assert!(program.success(), "programs run");
}

/// Where an image's record stands, beside it and in the state directory.
fn places(image: &Path, state_dir: &Path) -> (bool, usize) {
    let beside = rustix::fs::getxattr(image, "user.thinwire.writer", &mut [0; 160]).is_ok();
    let kept = fs::read_dir(state_dir).map_or(0, |all| {
        let names = all.map(|one| one.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("writer-")).count()
    });
    (beside, kept)
}

/// An image of root's, served by somebody else: its record goes to where that one may write, and comes back.
#[test]
fn an_image_that_only_the_starter_may_use_is_served_with_its_record_elsewhere() {
    const TEST: &str = "an_image_that_only_the_starter_may_use_is_served_with_its_record_elsewhere";
    if !is_root() {
        return;
    }
    let of_child = std::env::var_os(CHILD).map(PathBuf::from);
    let folder = of_child.clone().unwrap_or_else(|| folder("record"));
    let (image, state_dir) = (folder.join("private/image"), folder.join("state"));
    let options = DiskOptions {
        state_dir: state_dir.clone(),
        wait_lock: Duration::ZERO,
        ..DiskOptions::default()
    };
    let opened = || -> FileStore<AnyDisk> {
        let opened = open(&image, &options, &mut |_| {}).unwrap();
        FileStore::new(opened.disk, 512, &Pool::new(0)).unwrap()
    };
    let [before, during] = [(3, [9; 16]), (4, [7; 16])]
        .map(|(generation, holder)| WriterRecord::new(generation, holder, "node1"));
    if of_child.is_some() {
        use_files_as(&Account::look_up(&STRANGER.to_string()).unwrap()).unwrap();
        let mut disk = opened();
        assert_eq!(places(&image, &state_dir), (false, 1), "moved");
        let account = Account::look_up(&STRANGER.to_string()).unwrap();
        give_up(Some(&account), Kept::default()).unwrap();
        assert_eq!(load_writer(&mut disk), Ok(before));
        store_writer(&mut disk, during).unwrap();
        assert_eq!(load_writer(&mut disk), Ok(during));
        return;
    }
    fs::create_dir(folder.join("private")).unwrap();
    fs::set_permissions(folder.join("private"), fs::Permissions::from_mode(0o700)).unwrap();
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(&state_dir).unwrap();
    let mut disk = opened();
    store_writer(&mut disk, before).unwrap();
    drop(disk);
    if places(&image, &state_dir) != (true, 0) {
        eprintln!("skipped: no extended attributes in {}", folder.display());
        return fs::remove_dir_all(&folder).unwrap();
    }
    // Where it cannot go it stays, and nobody serves the image without it.
    let ended = child(TEST, &folder);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("move who may write it"), "{said}");
    assert_eq!(places(&image, &state_dir), (true, 0));
    chown(&state_dir, Some(STRANGER), None).unwrap();
    let ended = child(TEST, &folder);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let mut disk = opened();
    assert_eq!(load_writer(&mut disk), Ok(during));
    store_writer(&mut disk, during).unwrap();
    assert_eq!(places(&image, &state_dir), (true, 0), "back");
    drop(disk);
    fs::remove_dir_all(&folder).unwrap();
}
