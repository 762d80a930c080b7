//! Postmark on ext4 over the document's storage nodes.

use std::time::Duration;

use super::nodes::{MEMORY_MIB, NodeUser};
use super::{strs, words};
use crate::composed::{Nodes, Program, Speed};
use crate::contender::ext2::{Disk, Mount};
use crate::contender::thinwire::BARE;
use crate::contender::{Contender, Meter};
use crate::error::{LabError, Outcome, failed};
use crate::figures::{Figures, ProgramFigures};
use crate::point::{Load, Wire};
use crate::stand::{HeldMemory, Laboratory, Process, Side, is_installed};

/// MiB of the file system: 100,000 files of Postmark's sizes, and half as much again.
const FILE_SYSTEM_MIB: u32 = 1536;
/// How long the attachment may take to be there, and to go.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a run may take.
const RUN_PATIENCE: Duration = Duration::from_secs(1800);

/// Nodes, an attachment, and the memory of the program's machine. Fields go in this order.
pub struct Postmark<'l> {
    lab: &'l Laboratory<'l>,
    mount: Option<Mount>,
    client: HeldMemory,
    attachment: Disk,
    device: String,
    nodes: NodeUser<'l>,
}

/// The document's memory, or a tenth of it for a tenth of the files.
fn memory_mib(program: Program) -> u32 {
    if program.is_whole() { MEMORY_MIB } else { MEMORY_MIB.div_ceil(10) }
}

impl<'l> Postmark<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        nodes: Nodes,
        speed: Speed,
        program: Program,
    ) -> Outcome<Self> {
        for needed in ["postmark", "mkfs.ext4"] {
            if !is_installed(needed) {
                return Err(LabError::Failed(format!("{needed} is not installed")));
            }
        }
        let memory_mib = memory_mib(program);
        let nodes = NodeUser::blank(lab, wire, nodes, speed, [FILE_SYSTEM_MIB, memory_mib])?;
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
        let client = HeldMemory::new(lab, memory_mib)?;
        Ok(Postmark { lab, mount: None, client, attachment: Disk(attachment), device, nodes })
    }

    /// A file system of its own for each run, as in the document.
    fn make_file_system(&mut self) -> Outcome<String> {
        self.mount = None;
        let argv = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        self.lab.run(None, &[&argv[..], &[&self.device]].concat(), "")?;
        let place = self.lab.fresh_path("ext4");
        std::fs::create_dir(&place).map_err(failed("cannot make a mount point"))?;
        let at = place.to_str().expect("our own path").to_owned();
        self.lab.run(None, &["mount", "-t", "ext4", &self.device, &at], "")?;
        self.mount = Some(Mount(place));
        Ok(at)
    }

    /// I/Os of the device so far.
    fn device_ios(&self) -> Outcome<f64> {
        let name = self.device.trim_start_matches("/dev/");
        let path = format!("/sys/block/{name}/stat");
        let text = std::fs::read_to_string(&path).map_err(failed(format!("cannot read {path}")))?;
        completed(&text)
            .ok_or_else(|| LabError::Failed(format!("{path} is not understood: {text}")))
    }
}

/// Reads and writes of a block device's `stat`.
fn completed(stat: &str) -> Option<f64> {
    let field = |n| stat.split_whitespace().nth(n)?.parse::<f64>().ok();
    Some(field(0)? + field(4)?)
}

impl Contender for Postmark<'_> {
    fn measure(&mut self, load: &Load, _: f64) -> Outcome<Figures> {
        let Some(Program::Postmark { files, transactions }) = load.program else {
            return Err(LabError::Failed(format!("{load}: not a load of Postmark")));
        };
        let at = self.make_file_system()?;
        let commands = format!(
            "set location {at}\nset number {files}\nset transactions {transactions}\nrun\nquit\n"
        );
        // The shell tells what its children took of user and system time.
        let mut argv = self.client.prefix().to_vec();
        argv.extend(words!["sh", "-c", "postmark && times"]);
        let before = self.device_ios()?;
        let servers = Meter::start(&self.nodes.servers);
        let shows = Meter::start(Some(&self.attachment.0));
        let began = std::time::Instant::now();
        let process = Process::start_with(self.lab, None, &strs(&argv), &commands)?;
        let (text, _) = process.finish(self.lab, RUN_PATIENCE)?;
        let seconds = began.elapsed().as_secs_f64();
        let report = Report::parse(&text)?;
        let count = f64::from(transactions);
        let cpu_face_us = shows.stop(count).0;
        let (cpu_server_us, cpu_machine_us) = servers.stop(count);
        let program = ProgramFigures {
            seconds,
            user_s: report.user_s,
            system_s: report.system_s,
            attachment_s: cpu_face_us * count / 1e6,
            read_kb_per_s: report.read_bytes / 1e3 / seconds,
            write_kb_per_s: report.written_bytes / 1e3 / seconds,
            device_iops: (self.device_ios()? - before) / seconds,
        };
        Ok(Figures {
            iops: count / seconds,
            mib_per_s: (report.read_bytes + report.written_bytes) / seconds / f64::from(1 << 20),
            mean_us: seconds * 1e6 / count,
            cpu_client_us: (report.user_s + report.system_s) * 1e6 / count,
            cpu_face_us: Some(cpu_face_us),
            cpu_server_us,
            cpu_machine_us,
            program: Some(program),
            ..Figures::default()
        })
    }
}

/// What Postmark and the shell said.
#[derive(Debug, PartialEq)]
struct Report {
    read_bytes: f64,
    written_bytes: f64,
    user_s: f64,
    system_s: f64,
}

impl Report {
    fn parse(text: &str) -> Outcome<Self> {
        let found = || {
            let line = |word: &str| text.lines().find(|line| line.contains(word));
            // The last line is about the children: user, then system.
            let times = text.lines().rev().find(|line| !line.trim().is_empty())?;
            let (user, system) = times.trim().split_once(' ')?;
            Some(Report {
                read_bytes: bytes(line("bytes read (")?)?,
                written_bytes: bytes(line("bytes written (")?)?,
                user_s: shell_seconds(user)?,
                system_s: shell_seconds(system.trim())?,
            })
        };
        found().ok_or_else(|| {
            let said = crate::stand::tail(text);
            LabError::Failed(format!("Postmark is not understood: {said}"))
        })
    }
}

/// Of a line such as `2.73 megabytes read (...)`; its units are powers of two.
fn bytes(line: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    let count: f64 = words.next()?.parse().ok()?;
    let unit = match words.next()? {
        "bytes" => 0,
        "kilobytes" => 10,
        "megabytes" => 20,
        "gigabytes" => 30,
        _ => return None,
    };
    Some(count * f64::from(1_u32 << unit))
}

/// Of a time such as `1m2.340000s`.
fn shell_seconds(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m')?;
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postmark_prints_is_understood() {
        let text = "pm>Creating files...Done\nTime:\n\t1 seconds total\n\nFiles:\n\t53 read (53 per second)\n\nData:\n\
                    \t350.03 kilobytes read (350.03 kilobytes per second)\n\
                    \t2.50 megabytes written (633.60 kilobytes per second)\npm>\n0m0.000000s 0m0.010000s\n\
                    1m2.500000s 0m3.250000s\n";
        let report = Report::parse(text).unwrap();
        assert_eq!((report.user_s, report.system_s), (62.5, 3.25));
        assert_eq!((report.read_bytes, report.written_bytes), (350.03 * 1024.0, 2.5 * 1_048_576.0));
        let refused = Report::parse("Error: cannot open").unwrap_err().to_string();
        assert!(refused.contains("not understood"), "{refused}");
        assert_eq!(completed("  10 2 3 4 32 6 7 8 0 1 2\n"), Some(42.0));
        assert_eq!(completed("10 2"), None);
    }

    #[test]
    fn memory_is_to_the_files_as_in_the_document() {
        let of = |files| memory_mib(Program::Postmark { files, transactions: 1 });
        assert_eq!((of(100_000), of(50_000), of(5000)), (512, 512, 52));
    }
}
