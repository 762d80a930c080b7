//! Other processes of this program: telling them apart, ending them.

use std::io;

use rustix::process::{Pid, PidfdFlags, Signal};

/// What `/proc/PID/stat` shows of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// It has not ended. One that has, and that its parent has not asked about yet, is still shown
    /// (a zombie).
    pub lives: bool,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// What is shown of a process. `None` if there is none of this id, or it is hidden from this user.
pub fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// When a process started, in clock ticks since boot. `None` if none of this id lives.
pub fn start_ticks(pid: i32) -> Option<u64> {
    stat(pid).filter(|stat| stat.lives).map(|stat| stat.start_ticks)
}

/// Fields 3 and 22 of `/proc/PID/stat`. The second field, the name, may contain anything.
fn parse_stat(stat: &str) -> Option<Stat> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let lives = !matches!(fields.next()?, "Z" | "X");
    Some(Stat { lives, start_ticks: fields.nth(18)?.parse().ok()? })
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
        for (state, lives) in [("S", true), ("Z", false)] {
            let text = format!("7 (a) b) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 9");
            assert_eq!(parse_stat(&text), Some(Stat { lives, start_ticks: 4242 }));
        }
        assert_eq!(parse_stat("garbage"), None);
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
