//! ext4 over the document's storage nodes, and programs that use it with as little memory as the document's machine has.

use std::path::Path;
use std::time::Duration;

use super::layers::Profile;
use super::nodes::NodeUser;
use super::{strs, words};
use crate::composed::{Nodes, Speed};
use crate::contender::Meter;
use crate::contender::ext2::{AttachedDisk, MountedFolder};
use crate::contender::thinwire::BARE;
use crate::error::{LabError, Outcome, failed};
use crate::figures::{Figures, ProgramFigures};
use crate::point::Wire;
use crate::stand::{HeldMemory, Laboratory, Process, Side, Unwritten, is_installed};

/// Of a program's memory, what may wait to be written: a machine with more memory would write nothing before all is over.
const UNWRITTEN_PERCENT: u32 = 40;
/// How long the attachment may take to be there, and to go.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a program may take.
const RUN_PATIENCE: Duration = Duration::from_secs(1800);

/// Nodes, an attachment, and the memory of the program's machine. Fields go in this order.
pub struct FileSystem<'l> {
    lab: &'l Laboratory<'l>,
    mount: Option<MountedFolder>,
    _unwritten: Unwritten,
    client: HeldMemory,
    /// None where perf is not allowed.
    profile: Option<Profile>,
    attachment: AttachedDisk,
    device: String,
    nodes: NodeUser<'l>,
}

impl<'l> FileSystem<'l> {
    /// Of so many MiB, not made yet; for a program with so many MiB of memory, and nodes with as much cache, if they have one.
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        (nodes, speed): (Nodes, Speed),
        [mib, memory_mib]: [u32; 2],
    ) -> Outcome<Self> {
        if !is_installed("mkfs.ext4") {
            return Err(LabError::Failed("mkfs.ext4 is not installed".into()));
        }
        let nodes = NodeUser::blank(lab, wire, nodes, speed, [mib, memory_mib])?;
        let run_dir = lab.fresh_path("run");
        let argv = words![lab.executable(), "attach", BARE, "--foreground", nodes.volume];
        let argv = [argv, words!["--block=loop", "--run-dir", run_dir.display()]].concat();
        let mut attachment = match &nodes.network {
            Some(network) => network.start(Side::Initiator(1), &strs(&argv))?,
            None => Process::start(lab, None, &strs(&argv))?,
        };
        let device = lab.until("the attachment", PATIENCE, || {
            attachment.must_run()?;
            Ok(attachment.stdout().split_once('\n').map(|(shown, _)| shown.to_owned()))
        })?;
        let attachment = AttachedDisk(attachment);
        let profile = Profile::of(lab, attachment.0.id())?;
        let client = HeldMemory::new(lab, memory_mib)?;
        let bytes = u64::from(memory_mib * UNWRITTEN_PERCENT / 100) << 20;
        let _unwritten = Unwritten::limit(&device, bytes)?;
        Ok(FileSystem { lab, mount: None, _unwritten, client, profile, attachment, device, nodes })
    }

    /// Makes it, and mounts it: where.
    pub fn make(&mut self) -> Outcome<String> {
        self.mount = None;
        let argv = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        self.lab.run(None, &[&argv[..], &[&self.device]].concat(), "")?;
        self.mount_anew()
    }

    /// Mounts it, so that nothing of it is in memory: where.
    pub fn mount_anew(&mut self) -> Outcome<String> {
        self.mount = None;
        let place = self.lab.fresh_path("ext4");
        std::fs::create_dir(&place).map_err(failed("cannot make a mount point"))?;
        let at = place.to_str().expect("our own path").to_owned();
        self.lab.run(None, &["mount", "-t", "ext4", &self.device, &at], "")?;
        self.mount = Some(MountedFolder(place));
        Ok(at)
    }

    /// Copies a file onto it, to its device: where it is there.
    pub fn copy(&self, from: &Path, name: &str) -> Outcome {
        let Some(MountedFolder(place)) = &self.mount else {
            return Err(LabError::Failed("the file system is not mounted".into()));
        };
        let copy = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(place.join(name))?;
            std::io::copy(&mut std::fs::File::open(from)?, &mut file)?;
            file.sync_all()
        };
        copy().map_err(failed(format!("cannot copy {} onto a file system", from.display())))
    }

    /// Has what is kept of a file in memory forgotten: an attachment that began meanwhile may have the mount in a namespace of its own, and
    /// so the file system stays when it is unmounted here.
    pub fn forget(&self, name: &str) -> Outcome {
        let Some(MountedFolder(place)) = &self.mount else {
            return Err(LabError::Failed("the file system is not mounted".into()));
        };
        let path = place.join(name);
        let file = std::fs::File::open(&path)
            .map_err(failed(format!("cannot open {}", path.display())))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(failed(format!("cannot have {} forgotten", path.display())))
    }

    /// I/Os of the device so far.
    fn device_ios(&self) -> Outcome<f64> {
        let name = self.device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/stat");
        let text = std::fs::read_to_string(&path).map_err(failed(format!("cannot read {path}")))?;
        completed(&text)
            .ok_or_else(|| LabError::Failed(format!("{path} is not understood: {text}")))
    }

    /// Runs a command of a shell, which tells what it is told on its standard input, as so many operations. Returns what it
    /// printed, too.
    pub fn run(&self, command: &str, stdin: &str, operations: f64) -> Outcome<(Figures, String)> {
        // The shell tells how long it took, since perf looks once a second only whether who it samples has ended, and what its children
        // took of user and system time, on the last three lines. What comes before may end with a prompt.
        let timed = format!(
            "begun=$(date +%s%N) && {command} && ended=$(date +%s%N) && echo && echo $((ended - begun)) && times"
        );
        let mut argv = self.client.prefix().to_vec();
        argv.extend(words!["sh", "-c", timed]);
        if let Some(profile) = &self.profile {
            argv = profile.around(&argv);
        }
        let before = self.device_ios()?;
        let servers = Meter::start(&self.nodes.servers);
        let shows = Meter::start(Some(&self.attachment.0));
        let process = Process::start_with(self.lab, None, &strs(&argv), stdin)?;
        let (text, _) = process.finish(self.lab, RUN_PATIENCE)?;
        let (seconds, [user_s, system_s]) = times(&text).ok_or_else(|| {
            let said = crate::stand::tail(&text);
            LabError::Failed(format!("the end of `{command}` is not understood: {said}"))
        })?;
        let cpu_face_us = shows.stop(operations).0;
        let (cpu_server_us, cpu_machine_us) = servers.stop(operations);
        let device_iops = (self.device_ios()? - before) / seconds;
        let layers = match &self.profile {
            Some(profile) => profile.layers(self.lab)?,
            None => Vec::new(),
        };
        let program = ProgramFigures {
            seconds,
            layers,
            user_s,
            system_s,
            attachment_s: cpu_face_us * operations / 1e6,
            device_iops,
            ..ProgramFigures::default()
        };
        let figures = Figures {
            iops: operations / seconds,
            mean_us: seconds * 1e6 / operations,
            cpu_client_us: (user_s + system_s) * 1e6 / operations,
            cpu_face_us: Some(cpu_face_us),
            cpu_server_us,
            cpu_machine_us,
            program: Some(program),
            ..Figures::default()
        };
        Ok((figures, text))
    }
}

/// Reads and writes of a block device's `stat`.
fn completed(stat: &str) -> Option<f64> {
    let field = |n| stat.split_whitespace().nth(n)?.parse::<f64>().ok();
    Some(field(0)? + field(4)?)
}

/// Seconds that a command took, before what `times` says; and those in user space and in the kernel of the children, on the last line of that.
fn times(text: &str) -> Option<(f64, [f64; 2])> {
    let mut lines = text.lines().rev().filter(|line| !line.trim().is_empty());
    let line = lines.next()?;
    let took: f64 = lines.nth(1)?.trim().parse().ok()?;
    let (user, system) = line.trim().split_once(' ')?;
    let seconds = |text: &str| {
        let (minutes, seconds) = text.trim().trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    Some((took / 1e9, [seconds(user)?, seconds(system)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_shell_and_the_kernel_say_is_understood() {
        let text = "Done\npm>\n66250000000\n0m0.000000s 0m0.010000s\n1m2.500000s 0m3.250000s\n";
        assert_eq!(times(text), Some((66.25, [62.5, 3.25])));
        assert_eq!(times("Killed"), None);
        assert_eq!(completed("  10 2 3 4 32 6 7 8 0 1 2\n"), Some(42.0));
        assert_eq!(completed("10 2"), None);
    }
}
