//! NBD servers with and without TLS, from and to which nbdcopy copies: fio's engine cannot be told of a key,
//! and `qemu-img bench` neither.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::{Contender, Meter, patience, strs, words};
use crate::error::{LabError, Outcome, failed};
use crate::figures::Figures;
use crate::point::{Load, NbdServer, Wire};
use crate::stand::{Laboratory, Network, Process, Side, VOLUME_MIB, is_installed};

/// A server, and how it is called.
pub struct CopiedDisk<'l> {
    lab: &'l Laboratory<'l>,
    uri: String,
    server: Process,
    network: Network<'l>,
}

const PORT: &str = "10809";
/// Who has the key.
const USER: &str = "lab";

impl<'l> CopiedDisk<'l> {
    /// A filled volume in memory.
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        server: NbdServer,
        tls: bool,
    ) -> Outcome<Self> {
        for program in [server.word(), "nbdcopy"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        let network = Network::new(lab, wire)?;
        // As qemu-nbd wants it: a folder with a file of this name.
        let folder = lab.fresh_path("tls");
        let key = folder.join("keys.psk");
        if tls {
            std::fs::create_dir(&folder)
                .and_then(|()| make_key(&key))
                .map_err(failed("TLS key"))?;
        }
        let mut argv = words![server.word()];
        match server {
            NbdServer::Nbdkit => {
                argv.extend(words!["-f", "-p", PORT]);
                if tls {
                    argv.extend(words!["--tls=require", format!("--tls-psk={}", key.display())]);
                }
                argv.extend(words!["memory", format!("{VOLUME_MIB}M")]);
            }
            NbdServer::QemuNbd => {
                let image = lab.fresh_path("image");
                std::fs::copy(lab.blob()?, &image).map_err(failed("cannot copy an image"))?;
                argv.extend(words!["-t", "-e", "64", "-f", "raw", "-p", PORT, "-b", "0.0.0.0"]);
                if tls {
                    let object =
                        format!("tls-creds-psk,id=tls0,endpoint=server,dir={}", folder.display());
                    argv.extend(words!["--object", object, "--tls-creds", "tls0"]);
                }
                argv.push(image.display().to_string());
            }
        }
        let server = network.start(Side::Target, &strs(&argv))?;
        let at = network.address(Side::Target, 1);
        let uri = match tls {
            true => format!("nbds://{USER}@{at}:{PORT}/?tls-psk-file={}", key.display()),
            false => format!("nbd://{at}:{PORT}/"),
        };
        let copied = CopiedDisk { lab, uri, server, network };
        copied.fill()?;
        copied.network.shape()?;
        Ok(copied)
    }

    /// Copies until it succeeds: servers do not say when they listen.
    fn fill(&self) -> Outcome {
        let blob = self.lab.blob()?;
        let argv = ["nbdcopy", blob.to_str().expect("our own path"), &self.uri];
        let mut last = String::new();
        let filled = self.lab.until("nbdcopy", Duration::from_secs(10), || {
            match self.network.run(Side::Initiator(1), &argv, "") {
                Ok(_) => Ok(Some(())),
                Err(LabError::Failed(why)) => {
                    last = why;
                    Ok(None)
                }
                Err(other) => Err(other),
            }
        });
        filled.map_err(|e| match e {
            LabError::Failed(_) => LabError::Failed(last),
            other => other,
        })
    }
}

impl Contender for CopiedDisk<'_> {
    /// Copies all there is, and again until the time is over; what is between two copies does not count.
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let blob = self.lab.blob()?.display().to_string();
        let (from, to) = match load.pattern.reads() {
            true => (self.uri.as_str(), "null:"),
            false => (blob.as_str(), self.uri.as_str()),
        };
        let argv = words![
            "nbdcopy",
            // All blocks, and all of them written, whatever is in them.
            "--no-extents",
            "--sparse=0",
            format!("--request-size={}", load.block),
            format!("--requests={}", load.depth),
            format!("--connections={}", load.jobs),
            format!("--threads={}", load.jobs),
            from,
            to,
        ];
        let ios_each = f64::from(VOLUME_MIB) * f64::from(1 << 20) / f64::from(load.block);
        let meter = Meter::start(Some(&self.server));
        let (mut ios, mut elapsed, mut cpu) = (0.0, Duration::ZERO, Duration::ZERO);
        while elapsed.as_secs_f64() < seconds {
            let process = self.network.start(Side::Initiator(1), &strs(&argv))?;
            let (took, used) = process.finish_timed(self.lab, patience(seconds))?;
            (ios, elapsed, cpu) = (ios + ios_each, elapsed + took, cpu + used);
        }
        let (cpu_server_us, cpu_machine_us) = meter.stop(ios);
        let iops = ios / elapsed.as_secs_f64();
        Ok(Figures {
            iops,
            mib_per_s: iops * f64::from(load.block) / f64::from(1 << 20),
            // It tells no latency: so many outstanding take so long (Little's law).
            mean_us: f64::from(load.outstanding()) * 1e6 / iops,
            cpu_client_us: cpu.as_secs_f64() * 1e6 / ios,
            cpu_server_us,
            cpu_machine_us,
            ..Figures::default()
        })
    }
}

/// A file as GnuTLS's psktool makes it: a name, and 32 random bytes.
fn make_key(path: &Path) -> std::io::Result<()> {
    let mut bytes = [0; 32];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{USER}:{hex}")
}
