//! Taking down: namespaces with whatever still runs in them, and what killed laboratories left.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use super::{PREFIX, tgt_sockets, work_root};

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

/// Takes down what carries our prefix and the process id of one that is no more.
pub fn sweep() {
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut dead = names(Path::new("/run/netns"));
    dead.retain(|name| is_orphan(name));
    if !dead.is_empty() {
        eprintln!("lab: taking down {} namespaces that a killed laboratory left", dead.len());
        take_down(&dead);
    }
    for name in names(&work_root()).iter().filter(|name| is_orphan(name)) {
        let _ = std::fs::remove_dir_all(work_root().join(name));
        dead.push(name.clone());
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
