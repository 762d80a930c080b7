//! The limit of a link: `thinwire-lab echo` on both sides.

use std::time::Duration;

use serde::Deserialize;

use super::thinwire::link_text;
use super::{Contender, Meter, patience, strs, words};
use crate::echo::LOSS_IDLE;
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Carrier, Load, Wire};
use crate::stand::{Laboratory, Network, Process, Side, VOLUME_MIB};

/// A server that echoes, and clients on demand.
pub struct Echo<'l> {
    lab: &'l Laboratory<'l>,
    carrier: Carrier,
    sleeps: bool,
    frame: u32,
    server: Process,
    network: Network<'l>,
}

impl<'l> Echo<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        carrier: Carrier,
        sleeps: bool,
        frame: u32,
    ) -> Outcome<Self> {
        let network = Network::new(lab, wire)?;
        let mut argv = words![
            lab.echo(),
            "echo",
            "server",
            "--link",
            link_text(&network, carrier, Side::Target, 1),
            "--memory",
            VOLUME_MIB,
        ];
        if sleeps {
            argv.push("--sleep".into());
        }
        let mut server = network.start(Side::Target, &strs(&argv))?;
        network.shape()?;
        server.until_says(lab, "ready ", Duration::from_secs(20))?;
        Ok(Echo { lab, carrier, sleeps, frame, server, network })
    }
}

impl Contender for Echo<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let to = match self.carrier {
            Carrier::Udp => format!("{}:34997", self.network.address(Side::Target, 1)),
            _ => self.network.mac(Side::Target, 1),
        };
        let link = link_text(&self.network, self.carrier, Side::Initiator(1), 1);
        let mut argv = words![
            self.lab.echo(),
            "echo",
            "client",
            "--link",
            link,
            "--to",
            to,
            "--rw",
            if load.pattern.reads() { "read" } else { "write" },
            "--bs",
            load.block,
            "--frame",
            self.frame,
            "--iodepth",
            load.outstanding(),
            "--runtime",
            seconds,
            "--memory",
            VOLUME_MIB,
        ];
        if self.sleeps {
            argv.push("--sleep".into());
        }
        let meter = Meter::start(Some(&self.server));
        let client = self.network.start(Side::Initiator(1), &strs(&argv))?;
        let (text, _) = client.finish(self.lab, patience(seconds))?;
        let report: Report = serde_json::from_str(&text)
            .map_err(|e| LabError::Failed(format!("the echo is not understood: {e}: {text}")))?;
        report.check(load.outstanding(), seconds)?;
        let (cpu_server_us, cpu_machine_us) = meter.stop(report.ios);
        Ok(Figures {
            iops: report.iops,
            mib_per_s: report.mib_per_s,
            mean_us: report.latency_us.mean,
            p50_us: Some(report.latency_us.p50),
            p99_us: Some(report.latency_us.p99),
            cpu_client_us: report.cpu_us_per_io,
            cpu_server_us,
            cpu_machine_us,
            lost: Some(report.lost),
            ..Figures::default()
        })
    }
}

#[derive(Debug, Deserialize)]
struct Report {
    ios: f64,
    iops: f64,
    mib_per_s: f64,
    latency_us: Latency,
    cpu_us_per_io: f64,
    lost: f64,
}

/// Most of its slots' time that an echo may have waited for what was lost: more of it, and the echo is
/// no limit.
const IDLE_MAX: f64 = 0.01;

impl Report {
    /// `slots`: requests kept outstanding for `seconds`.
    fn check(&self, slots: u32, seconds: f64) -> Outcome {
        let idle = self.lost * LOSS_IDLE.as_secs_f64() / (f64::from(slots) * seconds);
        match idle <= IDLE_MAX {
            true => Ok(()),
            false => Err(LabError::Failed(format!(
                "the echo lost {} requests and waited for them {:.1} % of the time, too long to be a limit",
                self.lost,
                idle * 100.0
            ))),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p99: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_that_waits_for_what_it_lost_is_no_limit() {
        let check = |lost: u32, slots, seconds| {
            let text = format!(
                r#"{{"schema":1,"ios":99990,"iops":5.0,"mib_per_s":1.0,"cpu_us_per_io":2.0,"lost":{lost},
                "latency_us":{{"mean":1.0,"p50":1,"p99":2,"p999":3,"max":4}}}}"#
            );
            serde_json::from_str::<Report>(&text).unwrap().check(slots, seconds)
        };
        assert_eq!(check(0, 1, 0.8), Ok(()));
        // A quarter of a second each, of 128 x 1.5.
        assert_eq!(check(7, 128, 1.5), Ok(()));
        assert!(check(8, 128, 1.5).unwrap_err().to_string().contains("8 requests"));
        // One in a hundred thousand, and a sixth of the time.
        assert!(check(1, 1, 1.5).unwrap_err().to_string().contains("16.7 %"));
    }
}
