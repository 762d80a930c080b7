//! An attachment in a process of its own: the parent starts itself again, waits until the child
//! says on its stdout that it is usable (or why not), and leaves it behind.
//!
//! The child says lines of JSON: `{"note":TEXT}`, then `{"ready":PATH}` or
//! `{"failed":TEXT,"code":N}`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::{Reporter, Wanted};
use crate::carries::Carries;
use crate::error::{Failure, FailureKind, Outcome};
use crate::leftover;
use crate::output;
use crate::rundir::RunDir;
use crate::signals::Signals;

/// Set in the child's environment.
const CHILD: &str = "THINWIRE_ATTACHMENT_CHILD";

/// After an interruption the child may take this long to end in order.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// What the child says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Note(String),
    Ready(String),
    #[serde(untagged)]
    Failed {
        failed: String,
        code: u8,
    },
}

/// Whether this process is the one to leave behind.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The child's side: attaches and serves; tells the parent how it went.
pub fn run_child(wanted: &Wanted) -> Outcome {
    // A session of its own: the terminal's Ctrl-C and hang-up are not for it.
    let _ = rustix::process::setsid();
    let mut pipe = Pipe { open: true, has_late_note: false };
    let result = super::run(wanted, &mut pipe);
    let told = match &result {
        Ok(()) => !pipe.has_late_note,
        Err(failure) if pipe.open => {
            let (failed, code) = (failure.message.clone(), failure.exit_code());
            pipe.say(&Said::Failed { failed, code })
        }
        Err(_) => false,
    };
    // Nobody needs the log of what went well, or of what the user has read already.
    if told && let Ok(Some(dir)) = RunDir::open(&wanted.options.run_dir) {
        let _ = dir.remove_log(&wanted.name);
    }
    result
}

/// The child's stdout, until it has said whether it is usable.
struct Pipe {
    open: bool,
    /// Something was said that only the log has.
    has_late_note: bool,
}

impl Pipe {
    /// False if the parent is gone.
    fn say(&mut self, said: &Said) -> bool {
        let mut line = serde_json::to_vec(said).expect("own types are valid JSON");
        line.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&line).and_then(|()| out.flush()).is_ok()
    }
}

impl Reporter for Pipe {
    fn note(&mut self, text: &str) {
        tracing::warn!("{text}");
        self.has_late_note |= !self.open;
        self.say(&Said::Note(text.to_owned()));
    }

    fn ready(&mut self, path: &str) -> Outcome {
        if !self.say(&Said::Ready(path.to_owned())) {
            return Err(Failure::failed("the process that wanted this attachment is gone"));
        }
        self.open = false;
        // From now on nobody reads, and no folder is held.
        let null = File::options().write(true).open("/dev/null");
        let cut = null.and_then(|null| Ok(rustix::stdio::dup2_stdout(null)?));
        if let Err(e) = cut.and_then(|()| std::env::set_current_dir("/")) {
            tracing::warn!("cannot let go of where it was started: {e}");
        }
        Ok(())
    }
}

/// The parent's side: starts the child and waits. Returns the path under which the attachment is
/// usable.
pub fn launch(wanted: &Wanted) -> Outcome<String> {
    let signals =
        Signals::catch().map_err(|e| Failure::failed(format!("cannot take over signals: {e}")))?;
    let dir = RunDir::create(&wanted.options.run_dir)?;
    dir.refuse_planted(&wanted.name)?;
    if dir.is_alive(&wanted.name) {
        return Err(wanted.taken(&dir));
    }
    let child = dir
        .open_log(&wanted.name)
        .and_then(|log| spawn(log, wanted.carries))
        .map_err(|e| Failure::failed(format!("cannot start the attachment's process: {e}")))?;
    let mut waiting = Waiting { child, line: Vec::new() };
    match waiting.wait(&signals, &dir, &wanted.name) {
        Ok(path) => Ok(path),
        Err(failure) => {
            waiting.end(&dir, &wanted.name);
            Err(failure)
        }
    }
}

/// This program again, with the same words, under the name that what it carries asks for.
fn spawn(log: File, carries: Option<Carries>) -> io::Result<Child> {
    let itself = Path::new("/proc/self/exe");
    let program = if itself.exists() { itself.to_owned() } else { std::env::current_exe()? };
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or("thinwire".into());
    let name = carries.map_or(name.clone(), |carries| carries.process_name(name));
    Command::new(program)
        .arg0(name)
        .args(words)
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}

/// A child that has not said yet whether it is usable.
struct Waiting {
    child: Child,
    line: Vec<u8>,
}

impl Waiting {
    fn wait(&mut self, signals: &Signals, dir: &RunDir, name: &str) -> Outcome<String> {
        let mut pipe = self.child.stdout.take().expect("piped");
        loop {
            let (out, interrupt) = (pipe.as_fd(), signals.fd());
            let mut fds =
                [PollFd::new(&out, PollFlags::IN), PollFd::new(&interrupt, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Failure::failed(format!("cannot wait: {e}"))),
            }
            if signals.take().is_some() {
                return Err(Failure::failed("interrupted; nothing is attached"));
            }
            if fds[0].revents().is_empty() {
                continue;
            }
            let mut bytes = [0; 1024];
            match pipe.read(&mut bytes) {
                Ok(0) => return Err(self.died(dir, name)),
                Ok(count) => self.line.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Failure::failed(format!("cannot hear the child: {e}"))),
            }
            while let Some(said) = self.next_line() {
                match said {
                    Said::Note(text) => output::complain(&text),
                    Said::Ready(path) => return Ok(path),
                    Said::Failed { failed, code } => {
                        let kind = if code == 2 { FailureKind::Usage } else { FailureKind::Failed };
                        return Err(Failure { kind, message: failed });
                    }
                }
            }
        }
    }

    /// The next whole line; lines that make no sense are skipped.
    fn next_line(&mut self) -> Option<Said> {
        loop {
            let end = self.line.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.line.drain(..=end).collect();
            if let Ok(said) = serde_json::from_slice(&line) {
                return Some(said);
            }
        }
    }

    fn died(&mut self, dir: &RunDir, name: &str) -> Failure {
        let how = match self.child.wait() {
            Ok(status) => match status.signal() {
                Some(signal) => format!("was killed by signal {signal}"),
                None => format!("ended with {}", status.code().unwrap_or(-1)),
            },
            Err(e) => format!("cannot be waited for ({e})"),
        };
        let last = dir.read_log(name).unwrap_or_default();
        let last = last.lines().last().unwrap_or("it said nothing").to_owned();
        Failure::failed(format!(
            "the attachment's process {how} before it was usable: {last} (log: {})",
            dir.file(name, "log").display()
        ))
    }

    /// Makes sure that the child is gone and that it leaves nothing.
    fn end(&mut self, dir: &RunDir, name: &str) {
        let deadline = Instant::now() + END_PATIENCE;
        let pid = rustix::process::Pid::from_child(&self.child);
        let mut asked = false;
        while matches!(self.child.try_wait(), Ok(None)) {
            if !asked {
                let _ = rustix::process::kill_process(pid, Signal::TERM);
                asked = true;
            }
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Ok(Some(claim)) = dir.claim(name)
            && let Some(stale) = claim.stale()
        {
            leftover::clean(stale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_child_says_is_understood() {
        for (said, text) in [
            (Said::Note("x".into()), r#"{"note":"x"}"#),
            (Said::Ready("/s".into()), r#"{"ready":"/s"}"#),
            (Said::Failed { failed: "x".into(), code: 2 }, r#"{"failed":"x","code":2}"#),
        ] {
            assert_eq!(serde_json::to_string(&said).unwrap(), text);
            assert_eq!(serde_json::from_str::<Said>(text).unwrap(), said);
        }
    }
}
