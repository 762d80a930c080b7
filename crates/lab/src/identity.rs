//! Which build was measured, on which machine: samples of others are not mixed in.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::error::{Outcome, failed};

/// What stands in each sample and in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// Version, and a fingerprint of what is measured and of the echo beside it.
    pub build: String,
    /// Kernel, processors, memory.
    pub machine: String,
    /// Names and versions of the peers that are installed.
    pub peers: String,
}

impl Provenance {
    /// Of this machine, the thinwire that is measured and the executable that is the echo.
    pub fn of(executable: &Path, echo: &Path) -> Outcome<Self> {
        let mut bytes = Vec::new();
        for path in [executable, echo] {
            let read = std::fs::read(path);
            bytes.extend(read.map_err(failed(format!("cannot read {}", path.display())))?);
        }
        let said = Command::new(executable).arg("--version").stdin(Stdio::null()).output();
        let said = said.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        let said = said.unwrap_or_default();
        let build = format!("thinwire {} ({:016x})", version(&said), fingerprint(&bytes));
        Ok(Provenance { build, machine: machine(), peers: peers() })
    }

    /// Where it is measured, and beside whom: what samples have to have in common.
    pub fn place(&self) -> String {
        format!("{}; {}", self.machine, self.peers)
    }
}

/// FNV-1a over words: tells builds apart, nothing more.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(17)
    })
}

fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let model =
        field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".into());
    let memory = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / f64::from(1 << 20));
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("Linux {}, {cpus} cores, {model}, {memory:.0} GiB", kernel.trim())
}

/// Peers, by the programs that tell their version.
const PEERS: [(&str, &str); 4] =
    [("nbdkit", "nbdkit"), ("fio", "fio"), ("qemu-nbd", "qemu-nbd"), ("tgt", "tgtadm")];

fn peers() -> String {
    let installed = PEERS.into_iter().filter_map(|(name, program)| {
        let said = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        Some(format!("{name} {}", version(&String::from_utf8_lossy(&said.stdout))))
    });
    let installed: Vec<String> = installed.collect();
    if installed.is_empty() { "no peers".into() } else { installed.join(", ") }
}

/// The first number with a point of what a program says about its version.
fn version(said: &str) -> &str {
    let words = said.split(|c: char| !(c == '.' || c.is_ascii_alphanumeric()));
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    words.into_iter().find(is_version).unwrap_or("of unknown version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_told_apart() {
        assert_ne!(fingerprint(b"thinwire a"), fingerprint(b"thinwire b"));
        assert_ne!(fingerprint(b"0123456789abcdef"), fingerprint(b"89abcdef01234567"));
        let own = std::env::current_exe().unwrap();
        let other = Path::new("/bin/sh");
        let of = |echo| Provenance::of(&own, echo).unwrap();
        assert_eq!(of(other), of(other));
        assert_ne!(of(other).build, of(&own).build, "the echo counts");
        assert!(machine().contains("Linux") && machine().contains("cores"));
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, found) in [
            ("nbdkit 1.32.5\n", "1.32.5"),
            ("fio-3.33\n", "3.33"),
            ("qemu-nbd 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\n", "7.2.22"),
            ("1.0.85\n", "1.0.85"),
            ("", "of unknown version"),
        ] {
            assert_eq!(version(said), found);
        }
    }
}
