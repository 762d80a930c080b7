//! qcow2 behind qemu-nbd: what a user would have picked instead of a pool.

use std::time::Duration;

use super::{strs, words};
use crate::contender::fio::{self, Aim};
use crate::contender::{Contender, Meter};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Load, Wire};
use crate::stand::{Files, Laboratory, Network, Process, Side, VOLUME_MIB, is_installed};

const PORT: &str = "10809";
/// How long the server may take to begin and to end: it writes what it has of the image's tables.
const PATIENCE: Duration = Duration::from_secs(20);

/// An image in memory, all of it written, and its server.
pub struct Qcow2<'l> {
    lab: &'l Laboratory<'l>,
    image: String,
    uri: String,
    /// Whether a snapshot is taken before each run.
    snapshot: bool,
    taken: bool,
    server: Option<Process>,
    network: Network<'l>,
    _files: Files,
}

impl<'l> Qcow2<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire, snapshot: bool) -> Outcome<Self> {
        for program in ["qemu-nbd", "qemu-img", "fio", "nbdcopy"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        let files = Files::new(lab)?;
        let image = files.path("image.qcow2");
        let size = format!("{VOLUME_MIB}M");
        lab.run(None, &["qemu-img", "create", "-q", "-f", "qcow2", &image, &size], "")?;
        let network = Network::new(lab, wire)?;
        let uri = format!("nbd://{}:{PORT}/", network.address(Side::Target, 1));
        let mut disk =
            Qcow2 { lab, image, uri, snapshot, taken: false, server: None, network, _files: files };
        disk.serve()?;
        let blob = lab.blob()?;
        let blob = blob.to_str().expect("our own path");
        disk.network.run(Side::Initiator(1), &["nbdcopy", blob, &disk.uri], "")?;
        disk.network.shape()?;
        Ok(disk)
    }

    fn serve(&mut self) -> Outcome {
        let argv = words![
            "qemu-nbd", "-t", "-e", 64, "-f", "qcow2", "-p", PORT, "-b", "0.0.0.0", self.image
        ];
        self.server = Some(self.network.start(Side::Target, &strs(&argv))?);
        // It does not say when it listens.
        self.lab.until("qemu-nbd", PATIENCE, || {
            let asked = self.network.run(Side::Initiator(1), &["nbdinfo", "--size", &self.uri], "");
            Ok(asked.ok())
        })?;
        Ok(())
    }

    /// Nobody else may have the image meanwhile.
    fn take_snapshot(&mut self) -> Outcome {
        if let Some(mut server) = self.server.take() {
            server.end(PATIENCE);
        }
        for flag in if self.taken { &["-d", "-c"][..] } else { &["-c"] } {
            self.lab.run(None, &["qemu-img", "snapshot", flag, "before", &self.image], "")?;
        }
        self.taken = true;
        self.serve()
    }
}

impl Contender for Qcow2<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        if self.snapshot {
            self.take_snapshot()?;
        }
        let (meter, aim) = (Meter::start(self.server.as_ref()), Aim::Nbd(self.uri.clone()));
        let (mut figures, ios) = fio::run(self.lab, &self.network, &aim, load, seconds)?;
        (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
        Ok(figures)
    }
}
