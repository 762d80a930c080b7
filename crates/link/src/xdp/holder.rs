//! Who has an XDP program attached to an interface, for messages.

use std::fs;
use std::time::Duration;

/// How long a killed process may still have its interface: while it goes, the interface is taken, but
/// nobody is seen to hold it.
pub(crate) const LEAVE_TIME: Duration = Duration::from_secs(1);

/// A process that holds an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) name: String,
}

/// The process that holds the attachment to an interface of this network namespace, as far as we may
/// see: the kernel tells about a descriptor what it is attached to.
pub(crate) fn of_interface(index: u32) -> Option<Holder> {
    let here = fs::read_link("/proc/thread-self/ns/net").ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for (pid, path) in processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    }) {
        // Interfaces are numbered in each namespace anew; threads may be in different ones.
        let Ok(threads) = fs::read_dir(path.join("task")) else { continue };
        let is_here = |thread: fs::DirEntry| {
            fs::read_link(thread.path().join("ns/net")).is_ok_and(|there| there == here)
        };
        if !threads.flatten().any(is_here) {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(path.join("fdinfo")) else { continue };
        let holds = |info: &str| {
            let has = |name: &str, value: &str| {
                let mut fields = info.lines().filter_map(|line| line.split_once(':'));
                fields.any(|(field, found)| field == name && found.trim() == value)
            };
            has("link_type", "xdp") && has("ifindex", &index.to_string())
        };
        let mut infos = descriptors.flatten().filter_map(|d| fs::read_to_string(d.path()).ok());
        if infos.any(|info| holds(&info)) {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            return Some(Holder { pid, name: name.trim().into() });
        }
    }
    None
}
