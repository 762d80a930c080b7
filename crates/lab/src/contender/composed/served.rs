//! A machine that serves a client what lies on the document's storage nodes, over the link that it has to them.

use std::time::Duration;

use super::made::need_caches;
use super::nodes::{filled, serve_all, striped};
use super::{strs, words};
use crate::composed::{Nodes, Program, Speed};
use crate::contender::fio::{self, Aim};
use crate::contender::thinwire::BARE;
use crate::contender::{Contender, Meter};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::load::MIX;
use crate::point::{Load, Wire};
use crate::stand::{Files, Laboratory, Network, Process, Side, Targets, is_installed};

const PORT: &str = "10809";
/// How long the attachment may take to be there, and to go.
const PATIENCE: Duration = Duration::from_secs(20);
/// The machine that serves.
const SERVER: Side = Side::Initiator(1);
/// The one that asks.
const CLIENT: Side = Side::Initiator(2);

/// Nodes, the machine that has their volume and shows it by NBD, and a client. Fields go in this order.
pub struct Served<'l> {
    lab: &'l Laboratory<'l>,
    aim: Aim,
    attachment: Process,
    servers: Vec<Process>,
    network: Network<'l>,
    _files: Files,
}

impl<'l> Served<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        (nodes, speed): (Nodes, Speed),
    ) -> Outcome<Self> {
        for program in ["fio", "nbdinfo"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        if nodes.is_cached() {
            need_caches(lab)?;
        }
        let files = Files::new(lab)?;
        let volumes = filled(lab, &files, nodes, speed)?;
        let wire = Wire { initiators: 2, ..wire };
        let targets = Targets { count: nodes.count().max(1), apart: false };
        let network = Network::with_targets(lab, wire, targets)?;
        let (servers, volume) = match nodes.count() {
            0 => (Vec::new(), volumes[0].clone()),
            _ => (serve_all(lab, &network, &volumes, &files)?, striped(targets)),
        };
        let door = format!("tcp:{}:{PORT}", network.address(SERVER, 1));
        let argv = words![
            lab.executable(),
            "attach",
            BARE,
            "--foreground",
            volume,
            "--as",
            "served",
            "--nbd",
            door,
            "--tls=off",
            "--run-dir",
            files.path("run"),
        ];
        let mut attachment = network.start(SERVER, &strs(&argv))?;
        let uri = format!("nbd://{}:{PORT}/served", network.address(SERVER, 1));
        lab.until("the attachment", PATIENCE, || {
            attachment.must_run()?;
            Ok(network.run(CLIENT, &["nbdinfo", "--size", &uri], "").ok())
        })?;
        network.shape()?;
        Ok(Served { lab, aim: Aim::Nbd(uri), attachment, servers, network, _files: files })
    }
}

/// So many of each a second, at random times.
fn paced(per_s: u32) -> Vec<String> {
    let reads = per_s * MIX / 100;
    words![format!("--rate_iops={reads},{}", per_s - reads), "--rate_process=poisson"]
}

impl Contender for Served<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let Some(Program::Served(per_s)) = load.program else {
            return Err(LabError::Failed(format!("{load}: nothing that is asked of a machine")));
        };
        let (servers, face) = (Meter::start(&self.servers), Meter::start(Some(&self.attachment)));
        let more = paced(per_s);
        let found = fio::run_on(self.lab, &self.network, CLIENT, &self.aim, load, seconds, &more);
        let (mut figures, ios) = found?;
        figures.cpu_face_us = Some(face.stop(ios).0);
        (figures.cpu_server_us, figures.cpu_machine_us) = servers.stop(ios);
        Ok(figures)
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.attachment.end(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_have_rates_of_their_own() {
        assert_eq!(paced(1000), ["--rate_iops=700,300", "--rate_process=poisson"]);
    }
}
