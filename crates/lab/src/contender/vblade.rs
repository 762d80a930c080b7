//! vblade, a server of AoE that nobody here wrote, used through our client.

use std::time::Duration;

use super::offered::bench;
use super::{Contender, Meter, strs, words};
use crate::error::{LabError, Outcome, failed};
use crate::figures::{Figures, Traffic};
use crate::point::{Load, Wire};
use crate::stand::{Laboratory, Network, Process, Side, is_installed};

/// How many requests it says that it keeps, as many as a load has outstanding: by default it is 16.
const BUFFERS: &str = "32";

/// A server with an image that lies in memory.
pub struct Vblade<'l> {
    lab: &'l Laboratory<'l>,
    server: Process,
    network: Network<'l>,
}

impl<'l> Vblade<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        if !is_installed("vblade") {
            return Err(LabError::Failed("vblade is not installed".into()));
        }
        let image = lab.fresh_path("image");
        std::fs::copy(lab.blob()?, &image).map_err(failed("cannot copy an image"))?;
        let network = Network::new(lab, wire)?;
        let argv = words!["vblade", "-b", BUFFERS, "8", "1", "eth1", image.display()];
        let server = network.start(Side::Target, &strs(&argv))?;
        let vblade = Vblade { lab, server, network };
        vblade.read_a_little()?;
        vblade.network.shape()?;
        Ok(vblade)
    }

    /// Until it answers.
    fn read_a_little(&self) -> Outcome {
        let load = Load::new(crate::point::Pattern::RandRead, 4096, 1);
        let mut last = String::new();
        let tried = self.lab.until("vblade", Duration::from_secs(10), || {
            match bench(self.lab, &self.network, DEVICE, &[], &load, 0.05) {
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

/// It knows no command that flushes.
const DEVICE: &str = "aoe://8.1?link=eth1";

impl Contender for Vblade<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let passed = self.network.passed()?;
        let meter = Meter::start(Some(&self.server));
        let (mut figures, ios, _) = bench(self.lab, &self.network, DEVICE, &[], load, seconds)?;
        (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
        figures.traffic = Some(Traffic::between(passed, self.network.passed()?, ios));
        figures.server_mib = self.server.memory_mib();
        Ok(figures)
    }
}
