//! An export of `thinwire target`, used in one of the protocols in which it is offered.

use std::path::PathBuf;
use std::time::Duration;

use super::thinwire::{BARE, bench_flags, copied_by, fill, one, serve_in, uri};
use super::{Contender, Meter, patience, strs, words};
use crate::error::{LabError, Outcome};
use crate::figures::{Copies, Figures, Traffic};
use crate::offered::{Medium, Protocol};
use crate::point::{Carrier, Load, Wire};
use crate::stand::{HeldMemory, Image, Laboratory, Network, Process, Side, VOLUME_MIB};

/// A target with an export of its own: whoever writes over AoE is on record as its writer until somebody else takes over.
pub struct OfferedExport<'l> {
    lab: &'l Laboratory<'l>,
    volume: String,
    /// Further flags of a client.
    flags: Vec<String>,
    run_dir: PathBuf,
    target: Process,
    network: Network<'l>,
    _image: Option<Image>,
    _held: Option<HeldMemory>,
}

impl<'l> OfferedExport<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        protocol: Protocol,
        medium: Medium,
    ) -> Outcome<Self> {
        let image = match medium {
            Medium::Memory => None,
            _ => Some(Image::new(lab)?),
        };
        let (volume, held) = match (&image, medium) {
            (None, _) => (format!("memory:{VOLUME_MIB}M"), None),
            (Some(image), Medium::Fits | Medium::Exceeds) => {
                let held = HeldMemory::for_image(lab, image, medium)?;
                (format!("{},buffered", image.path()), Some(held))
            }
            (Some(image), _) => (image.path().to_owned(), None),
        };
        let network = Network::new(lab, wire)?;
        let run_dir = lab.fresh_path("run");
        let state = lab.fresh_path("state");
        let mut flags =
            words!["--export", format!("disk0={volume}"), "--state-dir", state.display()];
        if let Some(offer) = offer(protocol, medium) {
            flags.extend(words!["--offer", offer]);
        }
        let prefix = held.as_ref().map_or(Vec::new(), |held| held.prefix().to_vec());
        let bare = words![BARE];
        let carrier = Carrier::Packet;
        let target = serve_in(lab, &network, carrier, &bare, &flags, &prefix, &run_dir)?;
        if medium == Medium::Memory {
            fill(lab, &network, 1, &bare, &uri(&network, carrier, 1, 0))?;
        }
        let volume = device(&network, protocol);
        let flags = match protocol {
            Protocol::EbdLossy(loss) => {
                words!["--fault", format!("loss={}%,seed=7", loss.percent())]
            }
            _ => Vec::new(),
        };
        let offered = OfferedExport {
            lab,
            volume,
            flags,
            run_dir,
            target,
            network,
            _image: image,
            _held: held,
        };
        if offered._held.is_some() {
            offered.read_once()?;
        }
        offered.network.shape()?;
        Ok(offered)
    }

    /// So that what the server's kernel can keep of it is kept.
    fn read_once(&self) -> Outcome {
        let to = self.lab.fresh_path("read");
        let run_dir = self.lab.fresh_path("run");
        let argv = words![self.lab.executable(), "copy", BARE, self.volume, to.display()];
        let argv = [argv, words!["--run-dir", run_dir.display()]].concat();
        let read = self.network.run(Side::Initiator(1), &strs(&argv), "").map(drop);
        let _ = std::fs::remove_file(&to);
        read
    }

    /// Bytes that the target has copied so far, of all its users.
    fn copied(&self) -> Outcome<f64> {
        let run_dir = self.run_dir.display();
        let argv = words![self.lab.executable(), "status", "--json", "--run-dir", run_dir];
        let said = self.network.run(Side::Target, &strs(&argv), "")?;
        copied_of(&said)
    }
}

/// What a target offers so; a native one needs no more than its link.
pub fn offer(protocol: Protocol, medium: Medium) -> Option<String> {
    Some(match (protocol, medium) {
        (Protocol::Native, _) => return None,
        (Protocol::Ebd | Protocol::Ebd1024 | Protocol::EbdLossy(_), _) => {
            "ebd:eth1/3.1=disk0,insecure".into()
        }
        (Protocol::EbdIdeal, _) => "ebd:eth1/3.1=disk0,form=ideal,insecure".into(),
        (Protocol::Aoe, Medium::Memory) => "aoe:eth1/7.1=disk0,insecure".into(),
        // As the others: what is answered need not be on the medium yet.
        (Protocol::Aoe, _) => "aoe:eth1/7.1=disk0,cached,insecure".into(),
    })
}

/// As a client names it.
pub fn device(network: &Network, protocol: Protocol) -> String {
    let server = network.mac(Side::Target, 1);
    match protocol {
        Protocol::Native => uri(network, Carrier::Packet, 1, 0),
        Protocol::Ebd | Protocol::EbdLossy(_) => format!("ebd://{server}/3.1?link=eth1"),
        Protocol::Ebd1024 => format!("ebd://{server}/3.1?link=eth1&block=1024"),
        Protocol::EbdIdeal => format!("ebd://{server}/3.1?link=eth1&form=ideal"),
        // With a flush at the end, as all others have.
        Protocol::Aoe => "aoe://7.1?link=eth1&flush=yes".into(),
    }
}

/// `copied_bytes` of a target's exports and of its sessions, of `status --json`.
fn copied_of(said: &str) -> Outcome<f64> {
    let told = || -> Option<f64> {
        let value: serde_json::Value = serde_json::from_str(said).ok()?;
        let target = value["targets"].get(0)?;
        let exports = target["exports"].as_array()?.iter();
        let own = target["counters"]["copied_bytes"].as_f64()?;
        exports.map(|export| export["copied_bytes"].as_f64()).sum::<Option<f64>>().map(|s| s + own)
    };
    told().ok_or_else(|| LabError::Failed(format!("status --json tells no copies: {said}")))
}

/// Runs `bench` on the initiator's side; also returns how many I/Os it did, and the bytes that it copied.
pub fn bench(
    lab: &Laboratory,
    network: &Network,
    volume: &str,
    flags: &[String],
    load: &Load,
    seconds: f64,
) -> Outcome<(Figures, f64, f64)> {
    let run_dir = lab.fresh_path("run");
    let mut argv = words![lab.executable(), "bench", volume, BARE, "--run-dir", run_dir.display()];
    argv.extend(bench_flags(load, seconds));
    argv.extend(flags.iter().cloned());
    let process = network.start(Side::Initiator(1), &strs(&argv))?;
    let text = process.finish(lab, patience(seconds) + EBD_SILENCE)?.0;
    let (figures, ios) = one(&text)?;
    Ok((figures, ios, copied_by(&text)?))
}

/// How long a client of the idealised form says nothing at first.
const EBD_SILENCE: Duration = Duration::from_secs(2);

impl Contender for OfferedExport<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let (copied, passed) = (self.copied()?, self.network.passed()?);
        let meter = Meter::start(Some(&self.target));
        let (mut figures, ios, by_client) =
            bench(self.lab, &self.network, &self.volume, &self.flags, load, seconds)?;
        (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
        figures.traffic = Some(Traffic::between(passed, self.network.passed()?, ios));
        let payload = ios.max(1.0) * f64::from(load.block);
        let server = (self.copied()? - copied) / payload;
        figures.copies = Some(Copies { client: by_client / payload, server });
        figures.server_mib = self.target.memory_mib();
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_exports_and_sessions_are_added_up() {
        let said = r#"{"targets":[{"exports":[{"copied_bytes":5},{"copied_bytes":7}],
            "counters":{"copied_bytes":30}}]}"#;
        assert_eq!(copied_of(said), Ok(42.0));
        assert!(copied_of(r#"{"targets":[]}"#).is_err());
        assert!(copied_of(&said.replace("7}", "\"x\"}")).is_err());
    }

    #[test]
    fn each_protocol_but_the_native_one_is_offered() {
        for protocol in [Protocol::Ebd, Protocol::EbdIdeal, Protocol::Ebd1024, Protocol::Aoe] {
            for medium in [Medium::Memory, Medium::Image] {
                let offer = offer(protocol, medium).unwrap();
                assert!(offer.ends_with(",insecure"), "{offer}");
                let cached = protocol == Protocol::Aoe && medium == Medium::Image;
                assert_eq!(offer.contains("cached"), cached);
            }
        }
        assert_eq!(offer(Protocol::Native, Medium::Memory), None);
    }
}
