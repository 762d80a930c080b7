//! A volume as programs use it: through a face of `thinwire attach`, driven by fio.

use std::time::Duration;

use super::fio::{self, Aim};
use super::nbd::unix_uri;
use super::thinwire::{BARE, fill, serve, uri};
use super::{Contender, Meter, strs, words};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Carrier, FaceKind, Load, Wire};
use crate::stand::{Laboratory, Network, Process, Side, VOLUME_MIB, is_installed};

/// An attachment, and the target behind it, if there is one.
pub struct FaceUser<'l> {
    lab: &'l Laboratory<'l>,
    aim: Aim,
    attachment: Process,
    target: Option<Process>,
    network: Network<'l>,
}

/// How long an attachment may take to be usable, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

impl<'l> FaceUser<'l> {
    /// A filled volume in a target's memory, attached.
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        face: FaceKind,
        carrier: Carrier,
    ) -> Outcome<Self> {
        let network = Network::new(lab, wire)?;
        let export = format!("disk0=memory:{VOLUME_MIB}M");
        let bare = words![BARE];
        let target = serve(lab, &network, carrier, &bare, &["--export".into(), export], &[])?;
        let volume = uri(&network, carrier, 1, 0);
        fill(lab, &network, 1, &bare, &volume)?;
        network.shape()?;
        Self::attach(lab, network, Some(target), face, &volume)
    }

    /// The NBD face of a volume in its own process's memory.
    pub fn alone(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let network = Network::new(lab, wire)?;
        let attached =
            Self::attach(lab, network, None, FaceKind::Nbd, &format!("memory:{VOLUME_MIB}M"))?;
        if let Aim::Nbd(uri) = &attached.aim {
            let blob = lab.blob()?;
            let argv = ["nbdcopy", blob.to_str().expect("our own path"), uri];
            attached.network.run(Side::Initiator(1), &argv, "")?;
        }
        Ok(attached)
    }

    fn attach(
        lab: &'l Laboratory<'l>,
        network: Network<'l>,
        target: Option<Process>,
        face: FaceKind,
        volume: &str,
    ) -> Outcome<Self> {
        for program in ["fio", "nbdcopy"] {
            if !is_installed(program) {
                return Err(LabError::Failed(format!("{program} is not installed")));
            }
        }
        let (place, run_dir) = (lab.fresh_path(face.word()), lab.fresh_path("run"));
        let place = place.to_str().expect("our own path");
        let mut argv = words![lab.executable(), "attach", BARE, "--foreground", volume];
        argv.extend(words!["--run-dir", run_dir.display()]);
        match face {
            FaceKind::Nbd => argv.extend(words!["--nbd", format!("unix:{place}")]),
            FaceKind::Block => argv.extend(words!["--block=loop"]),
            FaceKind::File => argv.extend(words!["--file", place]),
        }
        let mut attachment = network.start(Side::Initiator(1), &strs(&argv))?;
        let shown = lab.until("the attachment", PATIENCE, || {
            attachment.must_run()?;
            Ok(attachment.stdout().split_once('\n').map(|(shown, _)| shown.to_owned()))
        })?;
        let aim = match face {
            FaceKind::Nbd => Aim::Nbd(unix_uri(place)),
            FaceKind::Block | FaceKind::File => Aim::Path(shown),
        };
        Ok(FaceUser { lab, aim, attachment, target, network })
    }
}

impl Contender for FaceUser<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let (server, face) =
            (Meter::start(self.target.as_ref()), Meter::start(Some(&self.attachment)));
        let (mut figures, ios) = fio::run(self.lab, &self.network, &self.aim, load, seconds)?;
        figures.cpu_face_us = Some(face.stop(ios).0);
        (figures.cpu_server_us, figures.cpu_machine_us) = server.stop(ios);
        Ok(figures)
    }
}

impl Drop for FaceUser<'_> {
    fn drop(&mut self) {
        // In order, so that it takes its mount and its device down while its target is there.
        self.attachment.end(PATIENCE);
    }
}
