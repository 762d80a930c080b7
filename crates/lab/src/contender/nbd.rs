//! NBD, by two servers that nobody here wrote: over TCP, and nbdkit on a unix socket, too.

use std::time::Duration;

use super::fio::{self, Aim};
use super::{Contender, Meter, strs, words};
use crate::error::{LabError, Outcome, failed};
use crate::figures::{Figures, Traffic};
use crate::offered::Medium;
use crate::point::{Load, Wire};
use crate::stand::{
    HeldMemory, Image, Laboratory, Network, Process, Side, VOLUME_MIB, is_installed,
};

/// A server, driven by fio.
pub struct Nbd<'l> {
    lab: &'l Laboratory<'l>,
    uri: String,
    server: Process,
    network: Network<'l>,
    _image: Option<Image>,
    _held: Option<HeldMemory>,
}

const PORT: &str = "10809";

/// The URI of the default export behind a unix socket.
pub fn unix_uri(socket: &str) -> String {
    format!("nbd+unix:///?socket={socket}")
}

impl<'l> Nbd<'l> {
    /// nbdkit's memory plugin, filled.
    pub fn nbdkit(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let size = format!("{VOLUME_MIB}M");
        let nbd = Self::serve(lab, wire, &["nbdkit", "-f", "-p", PORT, "memory", &size])?;
        nbd.fill()?;
        nbd.network.shape()?;
        Ok(nbd)
    }

    /// The same on a unix socket.
    pub fn nbdkit_alone(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let size = format!("{VOLUME_MIB}M");
        let socket = lab.fresh_path("nbdkit");
        let socket = socket.to_str().expect("our own path");
        let argv = ["nbdkit", "-f", "-U", socket, "memory", &size];
        let nbd = Nbd { uri: unix_uri(socket), ..Self::serve(lab, wire, &argv)? };
        nbd.fill()?;
        Ok(nbd)
    }

    /// nbdkit's file plugin with an image on a disk, which its kernel keeps in memory once it is read.
    pub fn nbdkit_file(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        Self::of_image(lab, wire, Image::new(lab)?, None)
    }

    /// The same, in a control group with as much memory as the medium says.
    pub fn nbdkit_held(lab: &'l Laboratory<'l>, wire: Wire, medium: Medium) -> Outcome<Self> {
        let image = Image::new(lab)?;
        let held = HeldMemory::for_image(lab, &image, medium)?;
        Self::of_image(lab, wire, image, Some(held))
    }

    fn of_image(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        image: Image,
        held: Option<HeldMemory>,
    ) -> Outcome<Self> {
        let mut argv = held.as_ref().map_or(Vec::new(), |held| held.prefix().to_vec());
        argv.extend(words!["nbdkit", "-f", "-p", PORT, "file", image.path()]);
        let served = Self::serve(lab, wire, &strs(&argv))?;
        let nbd = Nbd { _image: Some(image), _held: held, ..served };
        // Read once by the server itself: what is measured later is a hot image.
        nbd.run_until_done(&["nbdcopy", &nbd.uri, "null:"])?;
        nbd.network.shape()?;
        Ok(nbd)
    }

    fn fill(&self) -> Outcome {
        let blob = self.lab.blob()?;
        self.run_until_done(&["nbdcopy", blob.to_str().expect("our own path"), &self.uri])
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
        Ok(Nbd { lab, uri, server, network, _image: None, _held: None })
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
        let before = self.network.passed()?;
        let (meter, aim) = (Meter::start(Some(&self.server)), Aim::Nbd(self.uri.clone()));
        let (mut figures, ios) = fio::run(self.lab, &self.network, &aim, load, seconds)?;
        (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
        figures.traffic = Some(Traffic::between(before, self.network.passed()?, ios));
        figures.server_mib = self.server.memory_mib();
        Ok(figures)
    }
}
