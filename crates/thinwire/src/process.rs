//! Other processes of this program: telling them apart, ending them.

use std::io;

use rustix::process::{Pid, PidfdFlags, Signal};

/// When a process started, in clock ticks since boot. `None` if there is none of this id.
pub fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_start_ticks(&stat)
}

/// Field 22 of `/proc/PID/stat`. The second field, the name, may contain anything.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// Sends a signal to a process, but only to the very one that started at `start_ticks`: the id may
/// belong to a stranger by now. `Ok(false)` if it is gone.
pub fn signal_exactly(pid: i32, ticks: u64, signal: Signal) -> io::Result<bool> {
    let Some(pid_checked) = Pid::from_raw(pid).filter(|_| pid > 1) else { return Ok(false) };
    // The descriptor pins the process: what is checked after it was opened is what gets the signal.
    let fd = match rustix::process::pidfd_open(pid_checked, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(e) => return Err(e.into()),
    };
    if start_ticks(pid) != Some(ticks) {
        return Ok(false);
    }
    match rustix::process::pidfd_send_signal(&fd, signal) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_process_is_killed() {
        assert_eq!(
            parse_start_ticks("7 (a) b) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 9"),
            Some(4242)
        );
        assert_eq!(parse_start_ticks("garbage"), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let ticks = start_ticks(pid).unwrap();
        assert!(!signal_exactly(pid, ticks + 1, Signal::KILL).unwrap());
        assert!(child.try_wait().unwrap().is_none());
        assert!(signal_exactly(pid, ticks, Signal::KILL).unwrap());
        assert!(!child.wait().unwrap().success());
        assert!(!signal_exactly(pid, ticks, Signal::KILL).unwrap());
    }
}
