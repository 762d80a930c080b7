//! Bytes over TCP, as ttcp moves them: one connection, blocks of a size, or one block at a time with an answer.

use std::time::Duration;

use super::{Contender, patience, strs, words};
use crate::contender::Meter;
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Load, Wire};
use crate::stand::{Laboratory, Network, Process, Side};
use crate::stream::StreamReport;

/// A server, and clients on demand.
pub struct TcpStream<'l> {
    lab: &'l Laboratory<'l>,
    server: Process,
    network: Network<'l>,
}

const PORT: &str = "5001";

impl<'l> TcpStream<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let network = Network::new(lab, wire)?;
        let at = format!("{}:{PORT}", network.address(Side::Target, 1));
        let argv = words![lab.echo(), "stream", "server", at];
        let mut server = network.start(Side::Target, &strs(&argv))?;
        server.until_says(lab, "ready ", Duration::from_secs(20))?;
        network.shape()?;
        Ok(TcpStream { lab, server, network })
    }
}

impl Contender for TcpStream<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let at = format!("{}:{PORT}", self.network.address(Side::Target, 1));
        let mut argv = words![
            self.lab.echo(),
            "stream",
            "client",
            at,
            "--bs",
            load.block,
            "--runtime",
            seconds,
        ];
        // One outstanding is answered before the next.
        if load.depth == 1 {
            argv.push("--answered".into());
        }
        let meter = Meter::start(Some(&self.server));
        let client = self.network.start(Side::Initiator(1), &strs(&argv))?;
        let (text, cpu) = client.finish(self.lab, patience(seconds))?;
        let report: StreamReport = serde_json::from_str(&text)
            .map_err(|e| LabError::Failed(format!("the stream is not understood: {e}: {text}")))?;
        if report.blocks == 0 {
            return Err(LabError::Failed("no block came through".into()));
        }
        let blocks = report.blocks as f64;
        let (cpu_server_us, cpu_machine_us) = meter.stop(blocks);
        Ok(Figures {
            iops: blocks / report.seconds,
            mib_per_s: blocks * f64::from(load.block) / report.seconds / f64::from(1 << 20),
            mean_us: report.seconds * 1e6 / blocks,
            cpu_client_us: cpu.as_secs_f64() * 1e6 / blocks,
            cpu_server_us,
            cpu_machine_us,
            ..Figures::default()
        })
    }
}
