//! Who this machine is to a target: 16 bytes that an attachment has again when it comes back, even
//! after kill -9, and that no two live attachments share.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use thinwire_runtime::confine::as_starter;

use crate::error::{Failure, Outcome};
use crate::folder::Folder;
use crate::lock::{self, Lock};
use crate::rundir::{IDENTITIES, RunDir};

/// More live attachments of one export on one machine than this are a mistake.
const TWINS_MAX: u32 = 1024;

/// An identity, and the lock that keeps others on this machine from having it too.
#[derive(Debug)]
pub struct InitiatorId {
    /// What the target knows the initiator by.
    pub bytes: [u8; 16],
    /// Held as long as the identity is used; the kernel lets go of it when the process dies.
    _lock: Lock,
}

/// The identity for `what` (node and export) under this run directory. It is derived from the
/// machine, the network namespace, the run directory and `what`, and from the lowest number whose
/// lock is free: so that a second live attachment of the same export is somebody else. Readers are
/// numbered apart: whoever writes must be the same again, whatever else was attached beside it.
pub fn claim(run_dir: &Path, what: &str, read_only: bool) -> Outcome<InitiatorId> {
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |meta| meta.ino());
    let role = if read_only { "\0reader" } else { "" };
    let place = run_dir.display();
    // The folder is that of whoever started this process.
    as_starter(|| claim_as(run_dir, &format!("{}\0{network}\0{place}\0{what}{role}", machine())))
}

fn claim_as(run_dir: &Path, origin: &str) -> Outcome<InitiatorId> {
    let folder = RunDir::create(run_dir)?.sub(IDENTITIES)?;
    let wrong = |e: std::io::Error| {
        Failure::failed(format!(
            "cannot lock an initiator identity in {}: {e}; run as root or give --run-dir",
            folder.path().display()
        ))
    };
    sweep_once(&folder).map_err(wrong)?;
    let family = fnv1a_128(origin.as_bytes());
    for number in 0..TWINS_MAX {
        let name = format!("{family:032x}-{number}.lock");
        if let Some(lock) = lock::lock(&folder, &name, Duration::ZERO).map_err(wrong)? {
            let bytes = fnv1a_128(format!("{origin}\0{number}").as_bytes()).to_be_bytes();
            return Ok(InitiatorId { bytes, _lock: lock });
        }
    }
    Err(Failure::failed(format!("{TWINS_MAX} attachments of this export are alive already")))
}

/// Removes what killed processes left that nobody attached again, when this process first claims one here: a
/// gateway claims as many as it has leaves, and each look at the folder is a look at all of them.
fn sweep_once(folder: &Folder) -> std::io::Result<()> {
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut swept = SWEPT.lock().expect("nobody panics with it");
    if !swept.contains(folder.path()) {
        lock::sweep(folder)?;
        swept.insert(folder.path().to_owned());
    }
    Ok(())
}

/// What tells this machine from others: its machine id, else its name.
fn machine() -> String {
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        match std::fs::read_to_string(path) {
            Ok(id) if !id.trim().is_empty() => return id.trim().to_owned(),
            _ => {}
        }
    }
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// FNV-1a of 128 bits: the same on every build for ever, which the standard hasher is not.
/// Identities are names, not secrets; keys come later.
fn fnv1a_128(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = (1 << 88) + 0x13b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a_128(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv1a_128(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn what_the_dead_left_is_swept_once_however_many_are_claimed() {
        let dir = TempDir::new("identity-swept");
        let left = |name: &str| dir.path().join(IDENTITIES).join(name);
        let _first = claim(dir.path(), "node1/disk0", false).unwrap();
        std::fs::write(left("dead-0.lock"), "").unwrap();
        let _second = claim(dir.path(), "node1/disk1", false).unwrap();
        assert!(left("dead-0.lock").exists(), "it would be looked at a thousand times for as many");
        let other = TempDir::new("identity-swept-too");
        RunDir::create(other.path()).unwrap().sub(IDENTITIES).unwrap();
        let dead = other.path().join(IDENTITIES).join("dead-0.lock");
        std::fs::write(&dead, "").unwrap();
        let _third = claim(other.path(), "node1/disk0", false).unwrap();
        assert!(!dead.exists());
    }

    #[test]
    fn who_comes_back_is_the_same_and_who_lives_beside_is_another() {
        let dir = TempDir::new("identity");
        let reader = claim(dir.path(), "node1/disk0", true).unwrap();
        let first = claim(dir.path(), "node1/disk0", false).unwrap();
        let second = claim(dir.path(), "node1/disk0", false).unwrap();
        let other = claim(dir.path(), "node1/disk1", false).unwrap();
        assert_ne!(first.bytes, second.bytes);
        assert_ne!(first.bytes, other.bytes);
        assert_ne!(first.bytes, reader.bytes);
        let bytes = first.bytes;
        drop((first, reader));
        assert_eq!(claim(dir.path(), "node1/disk0", false).unwrap().bytes, bytes);
        let elsewhere = TempDir::new("identity-elsewhere");
        assert_ne!(claim(elsewhere.path(), "node1/disk0", false).unwrap().bytes, bytes);
    }
}
