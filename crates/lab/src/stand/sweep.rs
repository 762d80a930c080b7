//! Taking down: namespaces with whatever still runs in them, mounts, loop devices, control groups, and
//! what killed laboratories left.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use super::disk::GROUP_ROOTS;
use super::{PREFIX, memory, tgt_sockets, work_root};

/// Kills what runs in these namespaces and removes them. Of what is not there nothing is said.
pub fn take_down(names: &[String]) {
    let there: Vec<&String> =
        names.iter().filter(|name| Path::new("/run/netns").join(name).exists()).collect();
    for name in &there {
        let found = ip(&["netns", "pids", name]).output();
        let found = found.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        for pid in found.unwrap_or_default().split_whitespace() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
    for name in there {
        let _ = ip(&["netns", "delete", name]).status();
    }
}

/// In a process group of its own: an interrupt at the terminal must not end what takes down.
fn ip(args: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(args).stderr(Stdio::null()).process_group(0);
    command
}

/// Unmounts what is mounted where `is_ours` says so, and frees loop devices over such files: what a face,
/// or a limited disk, leaves that was killed. Of what is not there nothing is said.
pub fn release(is_ours: impl Fn(&Path) -> bool) {
    for device in loops_over(&is_ours) {
        release_loop(&device);
    }
    let mounted = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for mount in mounts_in(&mounted, &is_ours) {
        let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Detaches a loop device.
pub fn release_loop(device: &str) {
    let mut command = Command::new("losetup");
    let _ = command.args(["-d", device]).stderr(Stdio::null()).process_group(0).status();
}

/// Ends what is in a control group and removes it.
pub fn remove_group(group: &Path) {
    for _ in 0..100 {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in members.split_whitespace() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        // Those who were killed leave it a little later.
        match std::fs::remove_dir(group) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            _ => return,
        }
    }
}

/// Loop devices over files that are ours, which may have been removed.
fn loops_over(is_ours: impl Fn(&Path) -> bool) -> Vec<String> {
    let is_over = |name: &String| {
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        std::fs::read_to_string(file).is_ok_and(|file| is_ours(Path::new(file.trim_end())))
    };
    let found = names(Path::new("/sys/block")).into_iter().filter(is_over);
    found.map(|name| format!("/dev/{name}")).collect()
}

/// Mount points that are ours, the innermost first.
fn mounts_in(mountinfo: &str, is_ours: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut mounts: Vec<PathBuf> = points.filter(|point| is_ours(point)).collect();
    mounts.reverse();
    mounts
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Takes down what carries our prefix and the process id of one that is no more, also in the folder in
/// which images on a disk are made.
pub fn sweep(disks: &Path) {
    let mut dead = names(Path::new("/run/netns"));
    dead.retain(|name| is_orphan(name));
    if !dead.is_empty() {
        eprintln!("lab: taking down {} namespaces that a killed laboratory left", dead.len());
        take_down(&dead);
    }
    for root in GROUP_ROOTS.into_iter().chain(memory::GROUP_ROOTS).map(Path::new) {
        names(root)
            .iter()
            .filter(|name| is_orphan(name))
            .for_each(|name| remove_group(&root.join(name)));
    }
    release(|path| path.iter().filter_map(|name| name.to_str()).any(is_orphan));
    for root in [&work_root(), disks] {
        for name in names(root).iter().filter(|name| is_orphan(name)) {
            let _ = std::fs::remove_dir_all(root.join(name));
            dead.push(name.clone());
        }
    }
    // tgt's are called after us; those of others, whose numbers mean something else, are left alone.
    for id in dead.iter().filter_map(|name| maker(name)) {
        for path in tgt_sockets(&id.to_string()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The process id of the laboratory that made something of this name.
fn maker(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?.strip_prefix('-')?;
    rest.split('-').next()?.parse().ok()
}

/// Whether a name is of a laboratory whose process is gone.
fn is_orphan(name: &str) -> bool {
    maker(name).is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_taken_down_from_within() {
        let text = "22 1 0:20 / / rw - ext4 /dev/vda rw\n\
                    30 22 0:40 / /dev/shm/tw-lab-7/00001-file rw - fuse.thinwire thinwire rw\n\
                    31 30 0:41 / /dev/shm/tw-lab-7/00001-file/in rw - tmpfs x rw\n\
                    32 22 0:42 / /dev/shm/tw-lab-77/f rw - tmpfs x rw\n";
        let found = mounts_in(text, |path| path.starts_with("/dev/shm/tw-lab-7"));
        let own = ["/dev/shm/tw-lab-7/00001-file/in", "/dev/shm/tw-lab-7/00001-file"];
        assert_eq!(found, own.map(PathBuf::from));
        assert_eq!(loops_over(|_| false), Vec::<String>::new());
    }

    #[test]
    fn only_the_dead_are_orphans() {
        let own = std::process::id();
        assert!(!is_orphan(&format!("tw-lab-{own}")) && !is_orphan(&format!("tw-lab-{own}-3-i1")));
        assert!(is_orphan("tw-lab-4294967295-3-i1"));
        for stranger in ["tw-e2e-4294967295-1-i", "tw-lab", "tw-lab-x", "tw-laboratory-4294967295"]
        {
            assert!(!is_orphan(stranger), "{stranger}");
        }
    }
}
