//! Who uses a block device: mounts in any mount namespace, swap, devices on top, open files.
//!
//! The exclusive claim that the caller tries ([`claim`]) decides; what is found here explains it, and finds plain openers, which hold no claim. Looks at
//! `/proc` and `/sys` only, never at the device or at a file system on it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::error::BlockError;
use crate::fuse::mountinfo::{MountEntry, mounts_of};

/// Opens it exclusively, as a mount does. EBUSY if it is mounted, swapped to, or under another device; plain openers do not
/// count.
pub fn claim(node: &str) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_EXCL).open(node)
}

/// What keeps an orderly close from going on: who claims the device, or has it open.
pub fn usage(node: &str, dev: &str) -> Option<String> {
    match claim(node) {
        Ok(_claimed) => who_opened(node),
        // It is not there any more, or never was.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENXIO | libc::ENODEV)) => {
            None
        }
        Err(_) => Some(who_claims(node, dev)),
    }
}

/// Claims the device for an orderly close, so that nobody mounts it in the middle of that.
pub fn claim_to_close(node: &str, dev: &str) -> Result<File, BlockError> {
    match claim(node) {
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
            Err(BlockError::InUse(who_claims(node, dev)))
        }
        claimed => claimed.map_err(BlockError::system(format!("cannot claim {node}"))),
    }
}

/// Who holds the claim on `node` (`/dev/loop3`, device number `7:3`), as far as can be seen.
pub fn who_claims(node: &str, dev: &str) -> String {
    if let Some(point) = mounted_at("self", node, dev) {
        return format!("{node} is mounted on {}", point.display());
    }
    if let Ok(swaps) = fs::read_to_string("/proc/swaps")
        && swaps
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .any(|at| is_on(Path::new(at), node))
    {
        return format!("{node} is used as swap");
    }
    let name = node.trim_start_matches("/dev/");
    let holders = fs::read_dir(format!("/sys/block/{name}/holders"));
    if let Some(holder) = holders.ok().and_then(|mut all| all.next()).and_then(Result::ok) {
        return format!("{node} is under the device {}", holder.file_name().display());
    }
    let mut seen = Vec::new();
    for pid in processes() {
        // One look at each mount namespace.
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if seen.contains(&namespace) {
            continue;
        }
        if let Some(point) = mounted_at(&pid, node, dev) {
            return format!(
                "{node} is mounted on {} in the mount namespace of process {pid} ({})",
                point.display(),
                name_of(&pid)
            );
        }
        seen.push(namespace);
    }
    format!("{node} is in use: mounted out of sight, or claimed by a program")
}

/// Which process other than this one has `node` open. The device daemon does not count: it looks
/// at every new device for a moment.
pub fn who_opened(node: &str) -> Option<String> {
    let ourselves = std::process::id().to_string();
    for pid in processes() {
        let name = name_of(&pid);
        if pid == ourselves || name.contains("udevd") || name == "(udev-worker)" {
            continue;
        }
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        // Links are read, never followed: what they lead to may not answer.
        if files.flatten().any(|f| fs::read_link(f.path()).is_ok_and(|to| is_on(&to, node))) {
            return Some(format!("{node} is open in process {pid} ({name})"));
        }
    }
    None
}

/// Where the device is mounted, in the mount namespace of `pid`.
fn mounted_at(pid: &str, node: &str, dev: &str) -> Option<PathBuf> {
    let entries = mounts_of(pid).ok()?;
    // Some file systems (btrfs) have device numbers of their own; then the source tells.
    let is_it = |m: &MountEntry| m.dev == dev || is_on(&m.source, node);
    entries.into_iter().find(is_it).map(|m| m.point)
}

/// The device, or a partition of it.
fn is_on(path: &Path, node: &str) -> bool {
    let rest = path.to_str().and_then(|path| path.strip_prefix(node));
    rest.is_some_and(|rest| {
        let number = rest.strip_prefix('p').unwrap_or("");
        rest.is_empty() || !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}

fn processes() -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
}

fn name_of(pid: &str) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_of_another_process_is_found() {
        let path = format!("/tmp/tw-usage-{}", std::process::id());
        fs::write(&path, "").unwrap();
        let ours = fs::File::open(&path).unwrap();
        assert_eq!(who_opened(&path), None, "our own do not count");
        drop(ours);
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .stdin(fs::File::open(&path).unwrap())
            .spawn()
            .unwrap();
        let found = who_opened(&path);
        other.kill().unwrap();
        other.wait().unwrap();
        fs::remove_file(&path).unwrap();
        let found = found.unwrap();
        assert!(found.contains(&format!("process {}", other.id())), "{found}");
    }

    #[test]
    fn partitions_are_of_their_device() {
        for (path, is) in [("", true), ("p1", true), ("p12", true), ("1", false), ("p", false)] {
            assert_eq!(
                is_on(Path::new(&format!("/dev/ublkb0{path}")), "/dev/ublkb0"),
                is,
                "{path}"
            );
        }
        assert!(!is_on(Path::new("/dev/ublkb"), "/dev/ublkb0"));
    }

    #[test]
    fn a_mount_is_found_by_its_device_number_or_source() {
        let some = mounts_of("self").unwrap().swap_remove(0);
        assert!(mounted_at("self", "/dev/none", &some.dev).is_some());
        assert_eq!(mounted_at("self", "/dev/none", "7:4095"), None);
    }
}
