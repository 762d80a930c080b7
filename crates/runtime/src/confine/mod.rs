//! What a process gives up once it has opened what it serves (`docs/security.md`, "Privileges"): its user, the
//! capabilities of that, gaining any by starting a program, being looked into by others, and all system calls but those
//! that it makes. In this order:
//!
//! 1. [`use_files_as`]: before other threads are made. Files are opened as the account would that the process is to
//!    become; what needs the starter's rights is opened by way of [`as_starter`].
//! 2. [`give_up`]: when everything is open. All threads have given up the rest then, and those made later have, too.
//!    There is no way back.
//!
//! A process that keeps its privileges calls [`give_up_least`]. Control path: none of this is called while frames wait.

mod account;
mod calls;
mod filter;
mod threads;

use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustix::time::ClockId;

use crate::disk::{RingRestrictions, ring_restrictions};
pub use account::{Account, as_starter, use_files_as};
pub use calls::{Argument, CallGroup, GROUPS, SystemCallRule, When};
pub use filter::{RefusedCall, refused_calls};

/// Capabilities that decide which files may be used, without their owner's leave.
const OF_FILES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);

/// Why a process could not become less than it was.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A name that nobody has.
    #[error("there is no {what} `{name}` on this machine; make it, or name another")]
    Unknown {
        /// User or group.
        what: &'static str,
        /// As it was given.
        name: String,
    },
    /// Nobody could say.
    #[error("cannot look up the {what} `{name}`: {why}")]
    Lookup {
        /// User, group, or groups of a user.
        what: &'static str,
        /// As it was given.
        name: String,
        /// What the system says.
        why: String,
    },
    /// The kernel refuses.
    #[error(
        "cannot become user {user} (id {uid}, group {gid}): {source}; only root can, with CAP_SETUID and CAP_SETGID"
    )]
    BecomeUser {
        /// Its name, or its number if it has none.
        user: String,
        /// Its number.
        uid: u32,
        /// Its group's.
        gid: u32,
        /// What the system says.
        source: io::Error,
    },
    /// Capabilities stay, or a thread does.
    #[error("cannot give up privileges: {source}")]
    GiveUp {
        /// What the system says.
        source: io::Error,
    },
}

impl ConfineError {
    fn become_user(account: &Account, source: io::Error) -> Self {
        let Account { name, uid, gid, .. } = account;
        ConfineError::BecomeUser { user: name.clone(), uid: *uid, gid: *gid, source }
    }
}

/// Whether a measure is taken, or why not.
pub type Measure = Result<(), String>;

/// What a process has left, and what keeps it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Its user: real, effective and saved.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The capabilities it has kept, as the kernel calls them.
    pub capabilities: Vec<String>,
    /// It gains nothing by starting a program.
    pub no_new_privs: Measure,
    /// Its memory goes into no core dump, and others of its user cannot look into it.
    pub not_dumpable: Measure,
    /// System calls that it does not make are refused.
    pub seccomp: Measure,
}

/// Whether the rings of this process's disks take a disk's calls only, or why not.
pub fn rings() -> Measure {
    match ring_restrictions() {
        RingRestrictions { refused: Some(why), .. } => Err(why),
        RingRestrictions { restricted: 0, .. } => {
            Err("there is no ring: no export is a file or device, or io_uring is refused here"
                .into())
        }
        _ => Ok(()),
    }
}

/// Whether this thread could use what lies at `path` (read it, or read and write) if it had no capabilities: by its
/// owner, its mode and access list. Of what is not there that is so.
pub fn may_use(path: &Path, write: bool) -> bool {
    let Ok(before) = rustix::thread::capabilities(None) else { return true };
    let without = CapabilitySets { effective: before.effective - OF_FILES, ..before };
    if rustix::thread::set_capabilities(None, without).is_err() {
        return true;
    }
    let wanted = if write { Access::READ_OK | Access::WRITE_OK } else { Access::READ_OK };
    let tried = accessat(CWD, path, wanted, AtFlags::EACCESS);
    rustix::thread::set_capabilities(None, before).expect("a thread may have what it may have");
    !matches!(tried, Err(Errno::ACCESS | Errno::PERM))
}

/// What is kept beyond nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The right to files of other users. Not with an account that is not root.
    pub files_of_others: bool,
}

/// Gives up everything but that, for all threads, and becomes the account for good. What needs more from now on
/// fails.
///
/// # Errors
/// Users or capabilities could not be given up in all threads: then the process is not to go on. What else is refused
/// is told in the outcome.
pub fn give_up(account: Option<&Account>, kept: Kept) -> Result<Confinement, ConfineError> {
    let failed = |source| ConfineError::GiveUp { source };
    let wanted = match kept.files_of_others {
        true => CapabilitySet::DAC_OVERRIDE,
        false => CapabilitySet::empty(),
    };
    let had = rustix::thread::capabilities(None).map_err(|e| failed(e.into()))?;
    let stays_root = account.is_none_or(|account| account.uid == 0);
    let left = if stays_root { had.permitted & wanted } else { CapabilitySet::empty() };
    let who = account.map(|account| Who {
        uid: Uid::from_raw(account.uid),
        gid: Gid::from_raw(account.gid),
        groups: account.groups.iter().copied().map(Gid::from_raw).collect(),
    });
    threads::on_every(Box::new(move || of_this_thread(who.as_ref(), left))).map_err(|source| {
        match account {
            Some(account) => ConfineError::become_user(account, source),
            None => failed(source),
        }
    })?;
    account::forget_starter();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    verify(uid, gid, left).map_err(failed)?;
    // What this library asks the kernel for when it first needs a clock of it, and does without later.
    let _ = (rustix::param::page_size(), rustix::time::clock_gettime(ClockId::Monotonic));
    let told = |result: rustix::io::Result<()>| result.map_err(|e| io::Error::from(e).to_string());
    let no_new_privs = match rustix::thread::no_new_privs() {
        Ok(true) => Ok(()),
        Ok(false) => Err("the kernel does not have it".to_owned()),
        Err(e) => told(Err(e)),
    };
    Ok(Confinement {
        uid,
        gid,
        capabilities: names_of(left),
        no_new_privs,
        not_dumpable: not_dumpable(),
        // Last: it refuses the calls of the others.
        seccomp: filter::install(),
    })
}

/// What a process may give up that needs all its privileges as long as it lives, such as an attachment with a mount
/// or a loop device: it starts no program that would have more, and its memory goes into no core dump and is not
/// looked into by other processes of its user. To be called before other threads are made.
///
/// # Errors
/// Why one of the two could not be had.
pub fn give_up_least() -> Measure {
    rustix::thread::set_no_new_privs(true).map_err(|e| io::Error::from(e).to_string())?;
    not_dumpable()
}

fn not_dumpable() -> Measure {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|e| io::Error::from(e).to_string())
}

/// Whom a thread becomes.
struct Who {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// In a signal handler of each thread.
fn of_this_thread(who: Option<&Who>, left: CapabilitySet) -> Result<(), Errno> {
    // Nothing to pass on to programs, and nothing to be had back from one that is root's.
    let _ = rustix::thread::clear_ambient_capability_set();
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        // Refused without CAP_SETPCAP, or there are no more.
        if rustix::thread::remove_capability_from_bounding_set(one).is_err() {
            break;
        }
    }
    let is_other =
        |who: &&Who| (rustix::process::geteuid(), rustix::process::getegid()) != (who.uid, who.gid);
    // One that was made meanwhile has it from its maker, and could not do it again.
    if let Some(Who { uid, gid, groups }) = who.filter(is_other) {
        rustix::thread::set_thread_groups(groups)?;
        rustix::thread::set_thread_res_gid(*gid, *gid, *gid)?;
        rustix::thread::set_thread_res_uid(*uid, *uid, *uid)?;
    }
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: left, permitted: left, inheritable };
    rustix::thread::set_capabilities(None, sets)?;
    // A kernel without it goes on; it is told of.
    let _ = rustix::thread::set_no_new_privs(true);
    Ok(())
}

/// Whether all threads are what they should be, as the kernel shows them.
fn verify(uid: u32, gid: u32, left: CapabilitySet) -> io::Result<()> {
    // Real, effective, saved, and that of files.
    let four = |id: u32| vec![id.to_string(); 4].join("\t");
    let wanted = [
        ("Uid", four(uid)),
        ("Gid", four(gid)),
        ("CapPrm", format!("{:016x}", left.bits())),
        ("CapEff", format!("{:016x}", left.bits())),
    ];
    for id in threads::ids()? {
        // It may have ended.
        let Ok(status) = std::fs::read_to_string(format!("/proc/self/task/{id}/status")) else {
            continue;
        };
        for (field, value) in &wanted {
            let found =
                status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
            if found != Some(value) {
                return Err(io::Error::other(format!(
                    "{field} of thread {id} is {}, not {value}",
                    found.unwrap_or("not shown")
                )));
            }
        }
    }
    Ok(())
}

/// The capabilities that this thread has, as the kernel calls them.
pub fn capabilities() -> Vec<String> {
    rustix::thread::capabilities(None).map_or_else(|_| Vec::new(), |sets| names_of(sets.permitted))
}

fn names_of(set: CapabilitySet) -> Vec<String> {
    set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect()
}
