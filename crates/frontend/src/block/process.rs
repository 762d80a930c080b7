//! What a process owes to the machine when it carries a disk: under pressure the kernel writes
//! pages to that disk to get memory, so serving the write must not wait for memory.

use std::fs;
use std::io;

use rustix::mm::MlockAllFlags;
use rustix::mount::MountPropagationFlags;

/// Something the machine did not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What was tried.
    pub what: &'static str,
    /// What the machine said to that.
    pub why: String,
    /// What to do.
    pub remedy: &'static str,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.remedy)
    }
}

/// From `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Number of CAP_IPC_LOCK.
const CAP_IPC_LOCK: u32 = 14;

/// Makes the process fit to carry a disk, as far as it is allowed to, and says what was refused.
///
/// * Its memory is locked as it is touched, so that it is never itself swapped to the disk that it
///   carries.
/// * The calling thread, and those it starts later, are marked as I/O flushers: an allocation of
///   theirs never waits for writes to a disk.
///
/// To be called once, on the shard's thread, before it starts others. Nothing else changes if
/// something is refused: the disk works, but a machine short of memory might lock up.
pub fn prepare_process() -> Vec<Refusal> {
    let mut refused = Vec::new();
    if let Err(why) = lock_memory() {
        refused.push(Refusal {
            what: "locking memory (mlockall)",
            why,
            remedy: "run as root or grant CAP_IPC_LOCK (LimitMEMLOCK=infinity in a unit)",
        });
    }
    if let Err(e) = mark_io_flusher() {
        refused.push(Refusal {
            what: "marking the thread as one that frees memory (PR_SET_IO_FLUSHER)",
            why: e.to_string(),
            remedy: match e.raw_os_error() {
                Some(libc::EINVAL) => "Linux 5.6 or later is needed",
                _ => "run as root or grant CAP_SYS_RESOURCE",
            },
        });
    }
    refused
}

/// Makes the process one that memory and processor are left to when nothing of them is left, in addition to
/// [`prepare_process`], which comes first:
///
/// * Whatever of it is there by now is in memory, its code and libraries, too, and stays there.
/// * It is not killed to free memory.
/// * The calling thread, and those it starts later, have the least real-time priority (`SCHED_FIFO`, 1): they run
///   before all that is not real-time, and may take from the kernel's reserve of memory. So they must not spin.
///
/// # Errors
/// The first that was refused. Nothing is undone: the process is to end then.
pub fn outrank_others() -> Result<(), Refusal> {
    rustix::mm::mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| {
            // Back to pages that are locked as they are touched, for what is mapped from now on.
            rustix::mm::mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        })
        .map_err(|e| Refusal {
            what: "bringing the program into memory (mlockall)",
            why: e.to_string(),
            remedy: "give the machine more memory",
        })?;
    fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| Refusal {
        what: "being spared when memory runs out (an OOM score of -1000)",
        why: e.to_string(),
        remedy: "run as root or grant CAP_SYS_RESOURCE",
    })?;
    take_real_time_priority().map_err(|e| Refusal {
        what: "real-time priority (SCHED_FIFO, 1)",
        why: e.to_string(),
        remedy: "run as root or grant CAP_SYS_NICE (LimitRTPRIO=1 in a unit), outside of control groups without \
                 real-time budget",
    })
}

/// How much of the heap and of the calling thread's stack is there before it is needed.
const HEAP_AHEAD: usize = 8 << 20;
/// And by how much it grows beyond that.
const HEAP_STEP: libc::c_int = 256 << 10;
const STACK_AHEAD: usize = 256 << 10;

/// Touches heap and stack that serving may come to need: a page that is taken when it is touched first has to wait, as everybody
/// does, until the disk that this process carries has freed one. To be called when all else that serving needs has been
/// taken; from then on the heap gives nothing back.
pub fn touch_ahead() {
    #[cfg(target_env = "gnu")]
    {
        let options = [
            (libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
            (libc::M_TOP_PAD, HEAP_STEP),
            (libc::M_MMAP_MAX, 0),
            (libc::M_ARENA_MAX, 1),
        ];
        for (option, value) in options {
            // SAFETY: the call takes two integers and touches no memory of ours.
            unsafe { libc::mallopt(option, value) };
        }
    }
    touch_stack();
    drop(std::hint::black_box(vec![1_u8; HEAP_AHEAD]));
}

#[inline(never)]
fn touch_stack() {
    std::hint::black_box([1_u8; STACK_AHEAD]);
}

/// From now on what this process mounts is seen by nobody else, so that whoever unmounts all there is at shutdown leaves the file
/// alone that a root lies on: systemd does that by force, which ends a FUSE file system however busy it is. To be called
/// before there are other threads.
///
/// # Errors
/// The kernel refuses.
pub fn mount_apart() -> Result<(), Refusal> {
    // SAFETY: the call takes an integer and touches no memory of ours.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    let parted = if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    let alone = parted.and_then(|()| Ok(rustix::mount::mount_change("/", flags)?));
    alone.map_err(|e| Refusal {
        what: "mounting out of others' sight (unshare)",
        why: e.to_string(),
        remedy: "run as root or grant CAP_SYS_ADMIN",
    })
}

fn take_real_time_priority() -> io::Result<()> {
    let wanted = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure lives for the call, which only reads it; 0 means the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &wanted) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Pages are locked as they are touched (MCL_ONFAULT), not whole thread stacks in advance.
fn lock_memory() -> Result<(), String> {
    // Under a limit the call would succeed, and later allocations fail: worse than not locking.
    let unlimited =
        rustix::process::getrlimit(rustix::process::Resource::Memlock).current.is_none();
    if !unlimited && !has_capability(CAP_IPC_LOCK) {
        return Err("the memory that may be locked is limited".to_owned());
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    rustix::mm::mlockall(flags).map_err(|e| e.to_string())
}

fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> number & 1 == 1)
}

fn mark_io_flusher() -> io::Result<()> {
    let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: the call takes four integers and touches no memory of ours.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, unused, unused, unused) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alone in this process's tests to lock memory; nothing depends on its being unlocked.
    #[test]
    fn what_is_allowed_takes_effect() {
        let locked = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = locked();
        let refused = prepare_process();
        let lock_refused = refused.iter().any(|r| r.what.contains("mlockall"));
        assert_eq!(lock_refused, locked() <= before, "{refused:?}");
        for refusal in &refused {
            assert!(!refusal.to_string().is_empty());
        }
        rustix::mm::munlockall().unwrap();
    }
}
