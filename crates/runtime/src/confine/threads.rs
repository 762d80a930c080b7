//! Something that every thread of a process must do for itself. The kernel keeps users, capabilities and
//! `no_new_privs` for each thread, and only some of that has a call that reaches all.
//!
//! Each thread is sent a signal and does it in the handler, as the C library does for `setuid(2)`. Those that are made
//! meanwhile inherit it from one that has done it, or are found when the list is read again, until nobody is new.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// A thread does it as soon as it runs. One that the kernel holds (a disk that does not answer) cannot.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether a thread has done it.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// What is done. In a signal handler: it allocates nothing, takes no lock, and makes plain system calls.
pub(super) type Act = dyn Fn() -> Result<(), Errno> + Sync;

static ACT: AtomicPtr<&'static Act> = AtomicPtr::new(std::ptr::null_mut());
/// The thread that has done it last, and how that went: 0 or an errno.
static DONE: AtomicI32 = AtomicI32::new(0);
static RESULT: AtomicI32 = AtomicI32::new(0);

/// Neither the kernel nor a library uses it.
fn signal() -> libc::c_int {
    libc::SIGRTMAX() - 3
}

extern "C" fn handle(_signal: libc::c_int) {
    // SAFETY: null, or leaked by `on_every`.
    let Some(act) = (unsafe { ACT.load(Ordering::Acquire).as_ref() }) else { return };
    let errno = act().map_or_else(Errno::raw_os_error, |()| 0);
    RESULT.store(errno, Ordering::Release);
    DONE.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
}

/// Has all threads of this process do this, the calling one first. Calls of theirs that wait may end with EINTR. To be
/// called by one thread at a time; what is given stays in memory.
///
/// # Errors
/// The first failure; or a thread does not come to it.
pub(super) fn on_every(act: Box<Act>) -> io::Result<()> {
    act()?;
    let act: &'static Act = Box::leak(act);
    ACT.store(Box::leak(Box::new(act)), Ordering::Release);
    let before = install(handle as *const () as usize, libc::SA_RESTART)?;
    let mut done = BTreeSet::from([rustix::thread::gettid().as_raw_nonzero().get()]);
    let all = loop {
        let new: Vec<i32> = ids()?.into_iter().filter(|id| !done.contains(id)).collect();
        if new.is_empty() {
            break Ok(());
        }
        if let Err(error) = new.iter().try_for_each(|id| ask(*id)) {
            break Err(error);
        }
        done.extend(new);
    };
    ACT.store(std::ptr::null_mut(), Ordering::Release);
    // SAFETY: what was there before is valid to be there again.
    unsafe { libc::sigaction(signal(), &before, std::ptr::null_mut()) };
    all
}

/// In the flags of a task: it is a thread of the kernel's for io_uring (`PF_IO_WORKER`).
const IO_WORKER: u64 = 0x10;

/// The kernel's threads for io_uring are among them, and take no signals. They have what their maker had when
/// they were made, and do nothing but reads, writes and syncs of open files (`disk/restricted.rs`).
fn is_of_kernel(id: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
    stat.is_ok_and(|stat| is_worker(&stat))
}

/// Not by its name alone: until it first runs it bears that of its maker.
fn is_worker(stat: &str) -> bool {
    let Some((name, fields)) = stat.rsplit_once(") ") else { return false };
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u64>().ok());
    name.contains("(iou-") || flags.is_some_and(|flags| flags & IO_WORKER != 0)
}

/// All threads of this process but the kernel's.
pub(super) fn ids() -> io::Result<Vec<i32>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.parse().ok());
        all.extend(id.filter(|id| !is_of_kernel(*id)));
    }
    Ok(all)
}

fn install(handler: usize, flags: libc::c_int) -> io::Result<libc::sigaction> {
    // SAFETY: all zero is a valid sigaction: no handler, an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    let mut before = action;
    // SAFETY: both are live sigactions, and the handler has the type that the flags promise.
    match unsafe { libc::sigaction(signal(), &action, &mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has one thread do it, and waits for that. One that ends meanwhile need not.
fn ask(id: i32) -> io::Result<()> {
    DONE.store(0, Ordering::Release);
    // SAFETY: takes no pointers.
    let sent =
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id() as libc::c_int, id, signal()) };
    if sent != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) };
    }
    let end = Instant::now() + PATIENCE;
    while DONE.load(Ordering::Acquire) != id {
        if !std::path::Path::new(&format!("/proc/self/task/{id}")).exists() {
            return Ok(());
        }
        if Instant::now() >= end {
            let seconds = PATIENCE.as_secs();
            return Err(io::Error::other(format!("thread {id} did not do it within {seconds} s")));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    match RESULT.load(Ordering::Acquire) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use io_uring::{IoUring, opcode, squeue, types};

    use super::*;

    /// A thread of the kernel's is made for this process, and known by its flags: those are there before its name is.
    #[test]
    fn workers_of_the_kernel_are_known_before_they_have_their_name() {
        let newborn = "30648 (thinwire) R 1 30646 1 0 -1 4194384 0 0 0 0 0 0";
        assert!(is_worker(newborn));
        assert!(is_worker("7 (iou-wrk-5) S 1 2 3 0 -1 0 0"));
        assert!(!is_worker("7 (a) iou-) x) S 1 2 3 0 -1 4194304 0"));
        assert!(!is_worker("7 (iou-wrk-5"));

        let Ok(mut ring) = IoUring::new(2) else { return eprintln!("skipped: no io_uring here") };
        let (empty, _writer) = rustix::pipe::pipe().unwrap();
        let mut byte = [0u8];
        let read = opcode::Read::new(types::Fd(empty.as_raw_fd()), byte.as_mut_ptr(), 1);
        let read = read.build().flags(squeue::Flags::ASYNC);
        // SAFETY: the byte and the pipe outlive the ring, which is dropped first.
        unsafe { ring.submission().push(&read).unwrap() };
        ring.submit().unwrap();
        let named = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat"));
            let all: Vec<_> = tasks.filter_map(|task| stat(task.ok()?).ok()).collect();
            all.into_iter().find(|stat| stat.contains("(iou-"))
        };
        let stat = loop {
            if let Some(stat) = named() {
                break stat;
            }
            std::thread::yield_now();
        };
        assert!(is_worker(&stat.replace("(iou-", "(thinwire-")), "{stat}");
        drop(ring);
    }
}
