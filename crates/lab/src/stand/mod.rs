//! The place where things are measured: network namespaces for initiators, switch and target, and the
//! processes in them. Everything carries the process id of its maker in its name, goes when it is
//! dropped, and is swept by the next laboratory if its maker was killed outright.

mod disk;
mod files;
mod memory;
mod network;
mod process;
mod sweep;
mod unwritten;

use std::cell::{Cell, RefCell};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::{LabError, Outcome, failed};
pub use disk::{Image, LIMIT_IOPS, LIMIT_MIB, LimitedDisk, Loop};
pub use files::Files;
pub use memory::HeldMemory;
pub use network::{Network, Side, Targets};
pub use process::{Process, machine_busy, process_cpu};
pub use unwritten::Unwritten;

/// How long a short command may take; a volume is filled by then.
const RUN_PATIENCE: Duration = Duration::from_secs(60);

/// Names begin with it.
const PREFIX: &str = "tw-lab";
/// MiB of the volumes measured: more than the caches hold.
pub const VOLUME_MIB: u32 = 256;

/// One run of the laboratory: its folder, its names, its way to be interrupted.
pub struct Laboratory<'a> {
    executable: PathBuf,
    echo: PathBuf,
    folder: PathBuf,
    /// On a disk; made when it is first asked for.
    disk_folder: PathBuf,
    /// True once a signal asked to end.
    interrupted: &'a dyn Fn() -> bool,
    made: Cell<u32>,
    blob: RefCell<Option<PathBuf>>,
}

impl<'a> Laboratory<'a> {
    /// Makes a folder in memory and takes down what laboratories that were killed have left.
    /// `executable` is the thinwire to be measured, `echo` the laboratory's own: copies of them in the
    /// folder are, so that a build that replaces them meanwhile does not take part. `disks` is a folder on
    /// a disk, in which images are made.
    pub fn new(
        executable: &Path,
        echo: &Path,
        disks: &Path,
        interrupted: &'a dyn Fn() -> bool,
    ) -> Outcome<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::Failed(
                "the laboratory makes network namespaces, which needs root; run it as root".into(),
            ));
        }
        let disks = std::path::absolute(disks).map_err(failed("cannot tell where the disk is"))?;
        sweep::sweep(&disks);
        let own = format!("{PREFIX}-{}", std::process::id());
        let (folder, disk_folder) = (work_root().join(&own), disks.join(own));
        std::fs::create_dir_all(&folder)
            .map_err(failed(format!("cannot make the folder {}", folder.display())))?;
        let (made, blob) = (Cell::new(0), RefCell::new(None));
        let copies = ["thinwire", "thinwire-lab"].map(|name| folder.join(name));
        let lab = {
            let [executable, echo] = copies.clone();
            Laboratory { executable, echo, folder, disk_folder, interrupted, made, blob }
        };
        for (from, to) in [executable, echo].into_iter().zip(&copies) {
            std::fs::copy(from, to).map_err(failed(format!(
                "cannot copy {} to {}",
                from.display(),
                to.display()
            )))?;
        }
        let folders = [&lab.folder, &lab.disk_folder];
        let strange = folders.into_iter().find(|folder| folder.to_str().is_none()).cloned();
        match strange {
            None => Ok(lab),
            Some(folder) => Err(LabError::Failed(format!("{}: not UTF-8", folder.display()))),
        }
    }

    /// The thinwire that is measured: the copy.
    pub fn executable(&self) -> &str {
        self.executable.to_str().expect("checked when the laboratory was opened")
    }

    /// The executable that is the echo: a copy of the laboratory's own.
    pub fn echo(&self) -> &str {
        self.echo.to_str().expect("checked when the laboratory was opened")
    }

    /// A path of its own in the folder, whose file name ends like this.
    pub fn fresh_path(&self, name: &str) -> PathBuf {
        self.made.set(self.made.get() + 1);
        self.folder.join(format!("{:05}-{name}", self.made.get()))
    }

    /// The same in a folder on the disk.
    fn fresh_disk_path(&self, name: &str) -> Outcome<PathBuf> {
        let folder = &self.disk_folder;
        std::fs::create_dir_all(folder)
            .map_err(failed(format!("cannot make the folder {}", folder.display())))?;
        self.made.set(self.made.get() + 1);
        Ok(folder.join(format!("{:05}-{name}", self.made.get())))
    }

    /// A name that no other network or control group has.
    fn fresh_tag(&self) -> String {
        self.made.set(self.made.get() + 1);
        format!("{PREFIX}-{}-{}", std::process::id(), self.made.get())
    }

    /// [`LabError::Interrupted`] once a signal came.
    pub fn check(&self) -> Outcome {
        if (self.interrupted)() { Err(LabError::Interrupted) } else { Ok(()) }
    }

    /// Waits until `probe` gives something; fails with `what` after `patience`.
    pub fn until<T>(
        &self,
        what: &str,
        patience: Duration,
        mut probe: impl FnMut() -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        let end = Instant::now() + patience;
        // Short commands are over soon; long ones should not be disturbed.
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(found) = probe()? {
                return Ok(found);
            }
            self.check()?;
            if Instant::now() > end {
                return Err(LabError::Failed(format!(
                    "waited {} s in vain: {what}",
                    patience.as_secs()
                )));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Runs a short command to its end and returns what it printed. `netns` is where it runs; none
    /// for the laboratory's own. Fails, and ends it, after [`RUN_PATIENCE`].
    pub fn run(&self, netns: Option<&str>, argv: &[&str], stdin: &str) -> Outcome<String> {
        let process = Process::start_with(self, netns, argv, stdin)?;
        match process.finish(self, RUN_PATIENCE) {
            Ok((said, _)) => Ok(said),
            Err(LabError::Failed(why)) => {
                // An interrupt at the terminal may have reached it, too.
                self.check()?;
                Err(LabError::Failed(format!("{}: {why}", argv.join(" "))))
            }
            Err(other) => Err(other),
        }
    }

    /// The path of a file in the folder that many use, made when it is first asked for. `make` is told where.
    pub fn once(&self, name: &str, make: impl FnOnce(&Path) -> Outcome) -> Outcome<PathBuf> {
        let path = self.folder.join(name);
        if !path.exists() {
            let part = path.with_extension("part");
            let made = make(&part).and_then(|()| {
                std::fs::rename(&part, &path)
                    .map_err(failed(format!("cannot make {}", path.display())))
            });
            if made.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            made?;
        }
        Ok(path)
    }

    /// Random bytes that volumes are filled with, so that nobody answers from nothing: a file of
    /// [`VOLUME_MIB`], made when it is first asked for.
    pub fn blob(&self) -> Outcome<PathBuf> {
        if let Some(path) = &*self.blob.borrow() {
            return Ok(path.clone());
        }
        let path = self.folder.join("blob");
        let copy = || -> std::io::Result<()> {
            let mut from = std::io::Read::take(
                std::fs::File::open("/dev/urandom")?,
                u64::from(VOLUME_MIB) << 20,
            );
            std::io::copy(&mut from, &mut std::fs::File::create(&path)?).map(drop)
        };
        copy().map_err(failed(format!("cannot fill {}", path.display())))?;
        *self.blob.borrow_mut() = Some(path.clone());
        Ok(path)
    }
}

impl Drop for Laboratory<'_> {
    fn drop(&mut self) {
        for folder in [&self.folder, &self.disk_folder] {
            sweep::release(|path| path.starts_with(folder));
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Where folders are made: in memory, so that images are not on a disk, if programs may run there.
fn work_root() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let runs = rustix::fs::statvfs(memory)
        .is_ok_and(|fs| !fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC));
    if runs { memory.to_owned() } else { std::env::temp_dir() }
}

/// Where tgt keeps control sockets.
pub const TGT_FOLDER: &str = "/var/run/tgtd";

/// The control socket of a tgt daemon with this control number, and its lock.
pub fn tgt_sockets(control: &str) -> [PathBuf; 2] {
    ["", ".lock"].map(|end| Path::new(TGT_FOLDER).join(format!("socket.{control}{end}")))
}

/// A command in a namespace, in a process group of its own: an interrupt at the terminal reaches the
/// laboratory alone, which then ends its processes in the right order. Not `ip netns exec`, which
/// makes a mount namespace, too.
fn command(netns: Option<&str>, argv: &[&str]) -> Command {
    let mut command = match netns {
        Some(netns) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/{netns}")).args(argv);
            command
        }
        None => {
            let mut command = Command::new(argv[0]);
            command.args(&argv[1..]);
            command
        }
    };
    command.process_group(0);
    command
}

fn not_found(program: &str) -> impl FnOnce(std::io::Error) -> LabError + use<> {
    failed(format!("cannot run {program}; is it installed (scripts/setup.sh --lab)?"))
}

/// The end of an output, on one short line; of a refused command line, what was refused.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let said = match lines.iter().find(|line| line.starts_with("error: ")) {
        Some(refused) => (*refused).to_owned(),
        None => lines[lines.len().saturating_sub(4)..].join("; "),
    };
    match said.char_indices().nth(SAID_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &said[..end]),
        None => said,
    }
}

const SAID_CHARS_MAX: usize = 160;

/// Whether a program is installed.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin";
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Held by each test that opens a laboratory: two of one process have one folder.
    pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn the_end_of_an_output_is_one_line() {
        assert_eq!(tail("a\nb\n\n c \nd\ne\n"), "b; c; d; e");
        assert_eq!(tail(""), "");
        assert_eq!(tail("error: bad link\n\nFor more, try '--help'.\n"), "error: bad link");
        assert_eq!(tail(&"long ".repeat(100)).chars().count(), SAID_CHARS_MAX + 1);
    }

    #[test]
    fn what_runs_is_a_copy_can_be_interrupted_and_goes_with_the_laboratory() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let _alone = ONE_AT_A_TIME.lock();
        let own = std::env::temp_dir().join(format!("{PREFIX}-test-{}", std::process::id()));
        std::fs::copy("/bin/true", &own).unwrap();
        let interrupted = Cell::new(false);
        let ask = || interrupted.get();
        let lab =
            Laboratory::new(&own, Path::new("/bin/false"), &std::env::temp_dir(), &ask).unwrap();
        std::fs::write(&own, "another build").unwrap();
        std::fs::remove_file(&own).unwrap();
        let copy = lab.executable().to_owned();
        assert_eq!(lab.run(None, &[&copy], ""), Ok(String::new()));
        assert!(lab.run(None, &[lab.echo()], "").is_err(), "that is the other one");

        assert_eq!(lab.run(None, &["cat"], "told"), Ok("told".to_owned()));
        let refused = lab.run(None, &["sh", "-c", "echo why >&2; exit 3"], "").unwrap_err();
        assert!(refused.to_string().contains("why"), "{refused}");
        interrupted.set(true);
        let start = Instant::now();
        assert_eq!(lab.run(None, &["sleep", "600"], ""), Err(LabError::Interrupted));
        assert!(start.elapsed() < Duration::from_secs(60), "it was not waited for");
        drop(lab);
        assert!(!Path::new(&copy).exists());
    }

    #[test]
    fn what_is_installed() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
    }
}
