//! An image on a disk: exported by `thinwire target`, or measured where it is.

use super::thinwire::{BARE, bench_flags, one, serve, uri};
use super::{Abilities, Contender, Meter, patience, strs, words};
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Carrier, ImageStore, Load, Wire};
use crate::stand::{Image, Laboratory, LimitedDisk, Network, Process, Side, VOLUME_MIB};

/// Memory of a target's cache: the whole image and more.
const CACHE_MIB: u32 = VOLUME_MIB * 2;

/// An image and who serves it; nobody, if it is measured where it is.
pub struct DiskUser<'l> {
    lab: &'l Laboratory<'l>,
    volume: String,
    /// Words before the command that uses the disk.
    prefix: Vec<String>,
    target: Option<Process>,
    network: Option<Network<'l>>,
    _medium: Medium,
}

/// What the bytes lie on.
enum Medium {
    File(Image),
    Limited(LimitedDisk),
}

impl Medium {
    fn path(&self) -> &str {
        match self {
            Medium::File(image) => image.path(),
            Medium::Limited(disk) => disk.device(),
        }
    }
}

impl<'l> DiskUser<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        abilities: &Abilities,
        wire: Wire,
        store: ImageStore,
        carrier: Option<Carrier>,
    ) -> Outcome<Self> {
        let limited = store == ImageStore::Limited;
        let medium = match limited {
            true => Medium::Limited(LimitedDisk::new(lab)?),
            false => Medium::File(Image::new(lab)?),
        };
        let prefix = match &medium {
            Medium::Limited(disk) => disk.prefix().to_vec(),
            Medium::File(_) => Vec::new(),
        };
        let volume = medium.path().to_owned();
        let Some(carrier) = carrier else {
            return Ok(DiskUser {
                lab,
                volume,
                prefix,
                target: None,
                network: None,
                _medium: medium,
            });
        };
        let network = Network::new(lab, wire)?;
        let option = match store {
            ImageStore::Direct | ImageStore::Limited => String::new(),
            ImageStore::Buffered => ",buffered".into(),
            ImageStore::Cache => format!(",cache={CACHE_MIB}M"),
        };
        let word = option.trim_start_matches(',').split('=').next().unwrap_or_default();
        if !word.is_empty() && !abilities.export_has(word) {
            return Err(LabError::Failed(format!("not available in this build: {word}")));
        }
        let flags = words![
            "--export",
            format!("disk0={volume}{option}"),
            "--state-dir",
            lab.fresh_path("state").display()
        ];
        let target = serve(lab, &network, carrier, &[BARE.to_owned()], &flags, &prefix)?;
        let volume = uri(&network, carrier, 1, 0);
        network.shape()?;
        let disk = DiskUser {
            lab,
            volume,
            prefix: Vec::new(),
            target: Some(target),
            network: Some(network),
            _medium: medium,
        };
        if matches!(store, ImageStore::Buffered | ImageStore::Cache) {
            disk.warm()?;
        }
        Ok(disk)
    }

    /// Reads all of it once.
    fn warm(&self) -> Outcome {
        let to = self.lab.fresh_path("read");
        let run_dir = self.lab.fresh_path("run");
        let argv = words![
            self.lab.executable(),
            "copy",
            BARE,
            self.volume,
            to.display(),
            "--run-dir",
            run_dir.display()
        ];
        let read = self.network().run(Side::Initiator(1), &strs(&argv), "").map(drop);
        let _ = std::fs::remove_file(&to);
        read
    }

    fn network(&self) -> &Network<'l> {
        self.network.as_ref().expect("it is served")
    }
}

impl Contender for DiskUser<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let run_dir = self.lab.fresh_path("run");
        let mut argv = self.prefix.clone();
        argv.extend(words![self.lab.executable(), "bench", self.volume]);
        argv.extend(words![BARE, "--run-dir", run_dir.display()]);
        argv.extend(bench_flags(load, seconds));
        let meter = Meter::start(self.target.as_ref());
        let process = match &self.network {
            Some(network) => network.start(Side::Initiator(1), &strs(&argv))?,
            None => Process::start(self.lab, None, &strs(&argv))?,
        };
        let (mut figures, ios) = one(&process.finish(self.lab, patience(seconds))?.0)?;
        (figures.cpu_server_us, figures.cpu_machine_us) = meter.stop(ios);
        Ok(figures)
    }
}
