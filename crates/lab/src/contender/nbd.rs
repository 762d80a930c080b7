//! NBD over TCP, by two servers that nobody here wrote.

use std::time::Duration;

use super::{Contender, Meter, fio};
use crate::error::{LabError, Outcome, failed};
use crate::figures::Figures;
use crate::point::{Load, Wire};
use crate::stand::{Laboratory, Network, Process, Side, VOLUME_MIB, is_installed};

/// A server, driven by fio.
pub struct Nbd<'l> {
    lab: &'l Laboratory<'l>,
    uri: String,
    server: Process,
    network: Network<'l>,
}

const PORT: &str = "10809";

impl<'l> Nbd<'l> {
    /// nbdkit's memory plugin, filled.
    pub fn nbdkit(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let size = format!("{VOLUME_MIB}M");
        let nbd = Self::serve(lab, wire, &["nbdkit", "-f", "-p", PORT, "memory", &size])?;
        let blob = lab.blob()?;
        nbd.run_until_done(&["nbdcopy", blob.to_str().expect("our own path"), &nbd.uri])?;
        nbd.network.shape()?;
        Ok(nbd)
    }

    /// qemu-nbd with an image that lies in memory.
    pub fn qemu(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let image = lab.fresh_path("image");
        std::fs::copy(lab.blob()?, &image).map_err(failed("cannot copy an image"))?;
        let image = image.to_str().expect("our own path");
        let argv = ["qemu-nbd", "-t", "-e", "64", "-f", "raw", "-p", PORT, "-b", "0.0.0.0", image];
        let nbd = Self::serve(lab, wire, &argv)?;
        nbd.run_until_done(&["nbdinfo", "--size", &nbd.uri])?;
        nbd.network.shape()?;
        Ok(nbd)
    }

    fn serve(lab: &'l Laboratory<'l>, wire: Wire, argv: &[&str]) -> Outcome<Self> {
        for program in [argv[0], "fio", "nbdcopy"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        let network = Network::new(lab, wire)?;
        let server = network.start(Side::Target, argv)?;
        let uri = format!("nbd://{}:{PORT}/", network.address(Side::Target, 1));
        Ok(Nbd { lab, uri, server, network })
    }

    /// Runs a client until it succeeds: servers do not say when they listen.
    fn run_until_done(&self, argv: &[&str]) -> Outcome {
        let mut last = String::new();
        let tried = self.lab.until(argv[0], Duration::from_secs(10), || {
            match self.network.run(Side::Initiator(1), argv, "") {
                Ok(_) => Ok(Some(())),
                Err(LabError::Failed(why)) => {
                    last = why;
                    Ok(None)
                }
                Err(other) => Err(other),
            }
        });
        tried.map_err(|e| match e {
            LabError::Failed(_) => LabError::Failed(last),
            other => other,
        })
    }
}

impl Contender for Nbd<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let meter = Meter::start(Some(&self.server));
        let (mut figures, ios) = fio::run(self.lab, &self.network, &self.uri, load, seconds)?;
        (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
        Ok(figures)
    }
}
