//! Who takes away what a target has in its run directory, once it has become a user that may not: a process of this
//! program that is started before, keeps its rights to that folder and nothing else, and listens to nobody. It
//! waits until the target has ended, however that was, and then does what `thinwire status` would do after one that
//! was killed. What lives, or has been taken by somebody else by then, it leaves alone.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use thinwire_runtime::confine::{Kept, give_up};

use crate::cli::CaretakerArgs;
use crate::error::{Failure, Outcome};
use crate::names;
use crate::rundir::{Claim, RunDir};
use crate::signals::Signals;

/// So long a target waits at its end until it has been cleaned up after.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long the locks of a target that was killed may be held by what the kernel still has of it; and how often is looked.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// A caretaker that waits for the end of this process. Dropped, it is told that the end has come, and waited for.
#[derive(Debug)]
pub struct Caretaker {
    child: Child,
}

impl Caretaker {
    /// Starts one, before this process gives anything up.
    ///
    /// # Errors
    /// No process can be had.
    pub fn start(claim: &Claim<'_>, dir: &RunDir) -> Outcome<Self> {
        let itself = Path::new("/proc/self/exe");
        let program = if itself.exists() { Ok(itself.to_owned()) } else { std::env::current_exe() };
        let started = program.and_then(|program| {
            // It hears of the end by this pipe, which nobody else has.
            Command::new(program)
                .arg0("thinwire")
                .arg("caretaker")
                .args([dir.path().as_os_str(), claim.name().as_ref()])
                .current_dir("/")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
        });
        let child = started
            .map_err(|e| Failure::failed(format!("cannot start a process that cleans up: {e}")))?;
        Ok(Caretaker { child })
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The life of a caretaker.
pub fn run(args: &CaretakerArgs) -> Outcome {
    // Who ends a whole group of processes means the target, which is waited for.
    let _signals = Signals::catch();
    let dir = RunDir::open(&args.run_dir)?;
    let confined = give_up(None, Kept::default()).map_err(|e| Failure::failed(e.to_string()))?;
    tracing::debug!("caretaker of {}: {confined:?}", args.name);
    wait_for_the_end(&mut io::stdin());
    match dir {
        Some(dir) => clean(&dir, &args.name, LOCK_PATIENCE),
        None => Ok(()),
    }
}

/// Nothing is ever said: what comes is the end.
fn wait_for_the_end(pipe: &mut impl Read) {
    let mut byte = [0];
    loop {
        match pipe.read(&mut byte) {
            Ok(1..) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Removes what a target of this name has left, if it is gone.
fn clean(dir: &RunDir, name: &str, patience: Duration) -> Outcome {
    let end = Instant::now() + patience;
    // The claim takes the files away, and is not to be had of one that lives. The pipe of one that was killed may be closed before its
    // locks are.
    while dir.claim(name)?.is_none() && Instant::now() < end {
        std::thread::sleep(LOCK_LOOK);
    }
    dir.sweep_identities();
    names::sweep(dir);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rundir::TargetRecord;
    use crate::testing::TempDir;

    #[test]
    fn what_is_dead_goes_and_what_lives_stays() {
        let temp = TempDir::new("caretaker");
        let dir = RunDir::create(&temp.path().join("run")).unwrap();
        let claim = |name| {
            let claim = dir.claim(name).unwrap().unwrap();
            claim.write(&TargetRecord::of_this_process("n", true)).unwrap();
            claim
        };
        let alive = claim("target-n");
        clean(&dir, "target-n", Duration::ZERO).unwrap();
        assert!(dir.target_record("target-n").is_some());
        let other = claim("target-m");
        alive.abandon();
        let nodes = dir.sub("nodes").unwrap();
        let lock = crate::lock::lock(&nodes, "n@1@eth1.lock", Duration::ZERO).unwrap().unwrap();
        let held = crate::lock::lock(&nodes, "m@1@eth1.lock", Duration::ZERO).unwrap().unwrap();
        lock.abandon();
        clean(&dir, "target-n", Duration::ZERO).unwrap();
        assert_eq!(dir.targets().unwrap(), ["target-m"]);
        assert_eq!(nodes.names().unwrap(), ["m@1@eth1.lock"]);
        drop((other, held));
    }

    #[test]
    fn it_listens_to_nothing_but_the_end() {
        let (read, mut write) = io::pipe().unwrap();
        let waiter = std::thread::spawn(move || wait_for_the_end(&mut { read }));
        io::Write::write_all(&mut write, b"what it does not know").unwrap();
        assert!(!waiter.is_finished());
        drop(write);
        waiter.join().unwrap();
    }
}
