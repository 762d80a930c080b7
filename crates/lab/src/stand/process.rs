//! A process that is measured: its output in files, its CPU time, its end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Laboratory, command, not_found, tail};
use crate::error::{LabError, Outcome, failed};

/// A child process. Killed with its process group when it is dropped.
pub struct Process {
    child: Child,
    name: String,
    began: Instant,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Reaped: the id may be somebody else's by now.
    ended: bool,
}

impl Process {
    /// Starts a command in a namespace (none: the laboratory's own).
    pub fn start(lab: &Laboratory, netns: Option<&str>, argv: &[&str]) -> Outcome<Self> {
        Self::start_with(lab, netns, argv, "")
    }

    /// The same, with something to read on its standard input.
    pub fn start_with(
        lab: &Laboratory,
        netns: Option<&str>,
        argv: &[&str],
        stdin: &str,
    ) -> Outcome<Self> {
        let name =
            Path::new(argv[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (stdout, stderr) =
            (lab.fresh_path(&format!("{name}.out")), lab.fresh_path(&format!("{name}.err")));
        let open = |path: &Path| {
            File::create(path).map_err(failed(format!("cannot make {}", path.display())))
        };
        let began = Instant::now();
        let mut child = command(netns, argv)
            .current_dir(&lab.folder)
            .stdin(if stdin.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(open(&stdout)?)
            .stderr(open(&stderr)?)
            .spawn()
            .map_err(not_found(argv[0]))?;
        if let Some(mut pipe) = child.stdin.take() {
            // Who does not read it says so with its end.
            let _ = std::io::Write::write_all(&mut pipe, stdin.as_bytes());
        }
        Ok(Process { child, name, began, stdout, stderr, ended: false })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time so far, of all its threads.
    pub fn cpu(&self) -> Duration {
        process_cpu(self.child.id()).map_or(Duration::ZERO, |(_, cpu)| cpu)
    }

    /// The most memory that it ever had at once, in MiB.
    pub fn memory_mib(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib / 1024.0)
    }

    /// What it printed so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// Fails, with the end of what it said, if it has ended.
    pub fn must_run(&mut self) -> Outcome {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                self.ended = true;
                Err(self.complaint(&status.to_string()))
            }
            Err(e) => Err(LabError::Failed(format!("{}: {e}", self.name))),
        }
    }

    /// Waits until it prints a line.
    pub fn until_says(&mut self, lab: &Laboratory, line: &str, patience: Duration) -> Outcome {
        let what = format!("`{line}` from {}", self.name);
        lab.until(&what, patience, || {
            if self.stdout().lines().any(|l| l.starts_with(line)) {
                return Ok(Some(()));
            }
            self.must_run()?;
            Ok(None)
        })
    }

    /// Waits for its end and returns what it printed and the CPU time it used; fails unless it
    /// ended well.
    pub fn finish(mut self, lab: &Laboratory, patience: Duration) -> Outcome<(String, Duration)> {
        let what = format!("the end of {}", self.name);
        let id = self.child.id();
        // A zombie still tells its CPU time; once reaped it does not.
        let cpu = lab.until(&what, patience, || {
            Ok(process_cpu(id).and_then(|(state, cpu)| (state == 'Z').then_some(cpu)))
        })?;
        let status = self.child.wait().map_err(failed(self.name.clone()))?;
        self.ended = true;
        match status.success() {
            true => Ok((self.stdout(), cpu)),
            false => Err(self.complaint(&status.to_string())),
        }
    }

    /// The same of a process that is measured by its end, from its start: how long it took, to well below a
    /// millisecond, and its CPU time.
    pub fn finish_timed(
        self,
        lab: &Laboratory,
        patience: Duration,
    ) -> Outcome<(Duration, Duration)> {
        let began = self.began;
        let id = Pid::from_raw(self.child.id() as i32).expect("a child has one");
        let watched = rustix::process::pidfd_open(id, PidfdFlags::empty());
        let watched = watched.map_err(failed(self.name.clone()))?;
        let until = began + patience;
        while Instant::now() < until {
            lab.check()?;
            // An interrupt is looked at each time.
            let some = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let mut asked = [PollFd::new(&watched, PollFlags::IN)];
            if rustix::event::poll(&mut asked, Some(&some)).is_ok_and(|ready| ready > 0) {
                break;
            }
        }
        let took = began.elapsed();
        Ok((took, self.finish(lab, patience)?.1))
    }

    /// Asks it to end and waits for that; who does not end in time is killed when it is dropped.
    pub fn end(&mut self, patience: Duration) {
        let Some(id) = Pid::from_raw(self.child.id() as i32).filter(|_| !self.ended) else {
            return;
        };
        let _ = rustix::process::kill_process(id, Signal::TERM);
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Ok(Some(_)) = self.child.try_wait() {
                self.ended = true;
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn complaint(&self, status: &str) -> LabError {
        let said = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        let said = if said.trim().is_empty() { self.stdout() } else { said };
        LabError::Failed(format!("{} ended, {status}: {}", self.name, tail(&said)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            if let Some(group) = Pid::from_raw(self.child.id() as i32) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_file(&self.stdout);
        let _ = std::fs::remove_file(&self.stderr);
    }
}

static TICK: LazyLock<Duration> = LazyLock::new(|| {
    Duration::from_secs(1) / rustix::param::clock_ticks_per_second().max(1) as u32
});

/// State and CPU time of a process with all its threads; `None` if there is none.
pub fn process_cpu(id: u32) -> Option<(char, Duration)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |n: usize| fields.get(n)?.parse::<u32>().ok();
    Some((fields.first()?.chars().next()?, *TICK * (ticks(11)? + ticks(12)?)))
}

/// Time that the machine's processors were not idle, all together, since it was started.
pub fn machine_busy() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq; what follows was stolen, or is counted in user.
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|&n| ticks.get(n)).sum();
    TICK.mul_f64(busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_to_end_may_do_so_in_order() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let _alone = crate::stand::tests::ONE_AT_A_TIME.lock();
        let never = || false;
        let disks = std::env::temp_dir();
        let lab = Laboratory::new(Path::new("/bin/true"), Path::new("/bin/true"), &disks, &never);
        let lab = lab.unwrap();
        let mark = lab.fresh_path("mark");
        let script = format!(
            "trap 'echo x > {}; exit' TERM; echo ready; while :; do sleep 0.01; done",
            mark.display()
        );
        let mut process = Process::start(&lab, None, &["sh", "-c", &script]).unwrap();
        process.until_says(&lab, "ready", Duration::from_secs(20)).unwrap();
        process.end(Duration::from_secs(20));
        assert!(process.ended && mark.exists());
        // Nobody is asked twice, and who does not listen does not stop us.
        process.end(Duration::ZERO);
        let mut deaf =
            Process::start(&lab, None, &["sh", "-c", "trap '' TERM; echo ready; sleep 600"])
                .unwrap();
        deaf.until_says(&lab, "ready", Duration::from_secs(20)).unwrap();
        deaf.end(Duration::from_millis(50));
        assert!(!deaf.ended);
    }

    #[test]
    fn this_process_uses_time() {
        let own = || process_cpu(std::process::id()).unwrap().1;
        let (before, machine) = (own(), machine_busy());
        let start = std::time::Instant::now();
        while own() < before + Duration::from_millis(50) {
            assert!(start.elapsed() < Duration::from_secs(20), "no CPU time is counted");
        }
        assert!(machine_busy() >= machine + Duration::from_millis(30));
        assert_eq!(process_cpu(u32::MAX), None);
    }
}
