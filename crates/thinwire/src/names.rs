//! Node names on the raw interfaces of this machine: one target for each.
//!
//! The question to the network ([`crate::serve`]) does not reach a process that shares the interface
//! with us. So a name is claimed by a lock in `nodes/` of the run directory, where only this user and
//! root can make one; its file is called `NODE@NAMESPACE@MEDIUM.lock`, after the network namespace's
//! inode. The lock goes with the process, however that ends.
//!
//! Two targets that see different run directories but the same interface (containers with the host's
//! network) do not see each other's lock. So the name is also bound as an abstract socket, which
//! belongs to the network namespace. Anybody can bind one: it counts only if the kernel says that root
//! or this user listens there. So a target of one more user, with CAP_NET_RAW, is not noticed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use thinwire_link::LinkSpec;
use thinwire_runtime::peer::user_of_peer;

use crate::config::TargetSettings;
use crate::error::{Failure, Outcome};
use crate::folder::{Folder, Way, is_ours};
use crate::lock::{self, Lock};
use crate::rundir::{NODES, RunDir};

/// How long a killed target of the same name may take to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who asks who has a name is never taken in, for the kernel answers; so each stays in a queue of this
/// length until the target ends. When it is full the target is not noticed that way any more.
const ASKED_MAX: i32 = 1024;

/// A name held on one medium, until it is dropped.
#[derive(Debug)]
pub struct HeldName {
    _lock: Lock,
    /// `None` if a stranger has it.
    _socket: Option<OwnedFd>,
}

/// Claims the node name on each raw link.
///
/// # Errors
/// If another target of this machine has it, or there is no folder to claim it in.
pub fn hold(config: &TargetSettings) -> Outcome<Vec<HeldName>> {
    let raw: Vec<_> = config.links.iter().filter(|l| matches!(l, LinkSpec::Raw { .. })).collect();
    if raw.is_empty() {
        return Ok(Vec::new());
    }
    let folder = RunDir::create(&config.run_dir)?.sub(NODES)?;
    if !rustix::process::geteuid().is_root() {
        tracing::warn!(
            "without root the node name {} is claimed in {}: a target of another user does not see that",
            config.node,
            folder.path().display()
        );
    }
    let failed = |link: &LinkSpec, e: io::Error| {
        Failure::failed(format!(
            "cannot claim the node name {} on {link} in {}: {e}",
            config.node,
            folder.path().display()
        ))
    };
    lock::sweep(&folder).map_err(|e| failed(raw[0], e))?;
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |meta| meta.ino());
    raw.into_iter()
        .map(|link| {
            let taken = || {
                Failure::failed(format!(
                    "node name {} is in use by another target on {link} of this machine: stop that \
                     one, or give this one another name with --name",
                    config.node
                ))
            };
            let medium = link.medium();
            let file = format!("{}@{network}@{}.lock", config.node, medium.replace('/', "_"));
            let lock = lock::lock(&folder, &file, PATIENCE).map_err(|e| failed(link, e))?;
            let lock = lock.ok_or_else(taken)?;
            let name = format!("thinwire-target {} {medium}", config.node);
            match bind(&name).map_err(|e| failed(link, e))? {
                Bound::Ours(socket) => Ok(HeldName { _lock: lock, _socket: Some(socket) }),
                Bound::Target => Err(taken()),
                Bound::Stranger => {
                    tracing::warn!(
                        "a process of another user has taken the abstract socket `{name}`; a target \
                         with another run directory on {link} would not be noticed"
                    );
                    Ok(HeldName { _lock: lock, _socket: None })
                }
            }
        })
        .collect()
}

/// Removes the claims of targets that are gone. Best effort: who claims a name does the same.
pub fn sweep(dir: &RunDir) {
    let way = Way { make: false, by_default: false };
    if let Ok(Some(folder)) = Folder::open(&dir.path().join(NODES), way) {
        let _ = lock::sweep(&folder);
    }
}

/// Who has an abstract socket.
enum Bound {
    /// This process.
    Ours(OwnedFd),
    /// A process of root or of this user: a target.
    Target,
    /// Somebody else, or somebody who does not say.
    Stranger,
}

fn bind(name: &str) -> io::Result<Bound> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let start = Instant::now();
    let mut asked = false;
    loop {
        let ours = socket()?;
        match rustix::net::bind(&ours, &address) {
            Ok(()) => {
                rustix::net::listen(&ours, ASKED_MAX)?;
                return Ok(Bound::Ours(ours));
            }
            Err(Errno::ADDRINUSE) if !asked => {
                if !is_target(&address)? {
                    return Ok(Bound::Stranger);
                }
                asked = true;
            }
            // One that was killed may take a moment to be gone.
            Err(Errno::ADDRINUSE) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::ADDRINUSE) => return Ok(Bound::Target),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether root or this user listens at an address: the kernel keeps who began to.
fn is_target(address: &SocketAddrUnix) -> io::Result<bool> {
    let asking = socket()?;
    match rustix::net::connect(&asking, address) {
        Ok(()) => Ok(is_ours(user_of_peer(asking.as_fd())?)),
        // Nobody listens, or does not say who: as many have asked as the kernel keeps.
        Err(_) => Ok(false),
    }
}

/// A stream socket that never waits.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_namespace_counts_if_root_or_this_user_has_it() {
        let name = format!("thinwire-test names {}", std::process::id());
        let Bound::Ours(socket) = bind(&name).unwrap() else { panic!("it was free") };
        assert!(matches!(bind(&name).unwrap(), Bound::Target));
        drop(socket);
        assert!(matches!(bind(&name).unwrap(), Bound::Ours(_)));
    }
}
