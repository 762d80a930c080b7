//! iSCSI over TCP: tgt with an image in memory, driven by libiscsi's iscsi-perf, which only reads.

use std::time::Duration;

use super::{Contender, Meter, patience, strs, words};
use crate::error::{LabError, Outcome, failed};
use crate::figures::Figures;
use crate::point::{Load, Pattern, Wire};
use crate::stand::{Laboratory, Network, Process, Side, TGT_FOLDER, is_installed, tgt_sockets};

/// A tgt daemon of our own, with a control socket of its own.
pub struct Tgt<'l> {
    lab: &'l Laboratory<'l>,
    /// The number its control socket is called by.
    control: String,
    server: Process,
    network: Network<'l>,
}

const NAME: &str = "iqn.2024-01.invalid.thinwire:disk0";
const CLIENT: &str = "iqn.2024-01.invalid.thinwire:lab";

impl<'l> Tgt<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        for program in ["tgtd", "tgtadm", "iscsi-perf"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        std::fs::create_dir_all(TGT_FOLDER).map_err(failed(format!("cannot make {TGT_FOLDER}")))?;
        let image = lab.fresh_path("image");
        std::fs::copy(lab.blob()?, &image).map_err(failed("cannot copy an image"))?;
        let network = Network::new(lab, wire)?;
        let control = std::process::id().to_string();
        let portal = format!("portal={}:3260", network.address(Side::Target, 1));
        let argv = ["tgtd", "-f", "-C", &control, "--iscsi", &portal];
        let server = network.start(Side::Target, &argv)?;
        let tgt = Tgt { lab, control, server, network };
        lab.until("tgtd", Duration::from_secs(10), || {
            Ok(tgt.admin(&["--mode", "target", "--op", "new", "--tid", "1", "-T", NAME]).ok())
        })?;
        let image = image.to_str().expect("our own path");
        tgt.admin(&[
            "--mode",
            "logicalunit",
            "--op",
            "new",
            "--tid",
            "1",
            "--lun",
            "1",
            "-b",
            image,
        ])?;
        tgt.admin(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
        tgt.network.shape()?;
        Ok(tgt)
    }

    fn admin(&self, argv: &[&str]) -> Outcome {
        let common = ["tgtadm", "-C", &self.control, "--lld", "iscsi"];
        self.network.run(Side::Target, &[&common, argv].concat(), "").map(drop)
    }
}

impl Contender for Tgt<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        if !load.pattern.reads() {
            return Err(LabError::Failed("iscsi-perf only reads".into()));
        }
        let url = format!("iscsi://{}/{NAME}/1", self.network.address(Side::Target, 1));
        // It takes whole seconds.
        let seconds = seconds.ceil();
        let mut argv = words![
            "iscsi-perf",
            "-i",
            CLIENT,
            "-m",
            load.outstanding(),
            "-b",
            load.block / 512,
            "-t",
            seconds,
        ];
        if load.pattern == Pattern::RandRead {
            argv.push("-r".into());
        }
        argv.push(url);
        let meter = Meter::start(Some(&self.server));
        let client = self.network.start(Side::Initiator(1), &strs(&argv))?;
        let (text, cpu) = client.finish(self.lab, patience(seconds))?;
        let iops = average(&text).ok_or_else(|| {
            LabError::Failed(format!("iscsi-perf is not understood: {}", crate::stand::tail(&text)))
        })?;
        let ios = iops * seconds;
        let (cpu_server_us, cpu_machine_us) = meter.stop(ios);
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

impl Drop for Tgt<'_> {
    fn drop(&mut self) {
        for path in tgt_sockets(&self.control) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The last average it printed.
fn average(text: &str) -> Option<f64> {
    let after = text.rsplit_once("iops average ")?.1;
    let number = after.split_whitespace().next()?.parse::<f64>().ok()?;
    (number > 0.0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::average;

    #[test]
    fn what_iscsi_perf_prints_is_understood() {
        let text = "00:00:01 - lba 78113, iops current 43469 (169 MB/s), iops average 43469 (169 MB/s), \
                    in_flight 32\r\niops average 44874 (175 MB/s)     \n\nfinished.\n";
        assert_eq!(average(text), Some(44874.0));
        assert_eq!(average("iops average 0 (0 MB/s)"), None);
        assert_eq!(average("failed to connect"), None);
    }
}
