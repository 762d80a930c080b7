//! An export that is made of others, and the same where its parts are.

use std::path::PathBuf;

use super::super::thinwire::{BARE, fill, serve_in, uri};
use super::{bench, strs, words};
use crate::composed::Made;
use crate::contender::Contender;
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Carrier, Load, Wire};
use crate::stand::{Files, Laboratory, Network, Process, Side, VOLUME_MIB};

/// MiB of a part beyond what is measured, for labels, bitmaps and sums.
const BESIDE_MIB: u32 = 8;
/// MiB of a pool's data, with room for the blocks of one snapshot that are written anew.
const POOL_MIB: u32 = 2 * VOLUME_MIB + 64;
/// MiB that tell what a pool's data is.
const POOL_METADATA_MIB: u32 = 32;
/// MiB that are asked of a cache, all of which fit.
const CACHED_MIB: u32 = 16;

/// A volume, and who serves it; nobody, if it is used where its parts are.
pub struct MadeExport<'l> {
    lab: &'l Laboratory<'l>,
    volume: String,
    /// Further flags of `bench`.
    flags: Vec<String>,
    servers: Vec<Process>,
    network: Option<Network<'l>>,
    _files: Files,
}

impl<'l> MadeExport<'l> {
    /// Over memory, or over files where it keeps something.
    pub fn exported(lab: &'l Laboratory<'l>, wire: Wire, made: Made) -> Outcome<Self> {
        if made == Made::Cache {
            need_caches(lab)?;
        }
        let files = Files::new(lab)?;
        let below = if made == Made::Cache { Made::Memory } else { made };
        let own = match below.is_kept() {
            true => make(lab, &files, below)?,
            false => over(below, |mib| format!("memory:{mib}M")),
        };
        let mut export = Self::serve(lab, wire, files, &own)?;
        if made == Made::Cache {
            // Who only reads is not told of what others write.
            export.volume = cache_over(&export.volume, CACHED_MIB * 2) + "&max_age_ms=600000";
            export.flags = words!["--size", format!("{CACHED_MIB}M")];
        }
        Ok(export)
    }

    /// Serves a volume that is made of these files, filled.
    fn serve(lab: &'l Laboratory<'l>, wire: Wire, files: Files, own: &str) -> Outcome<Self> {
        let network = Network::new(lab, wire)?;
        let (state, run_dir) = (files.path("state"), PathBuf::from(files.path("run")));
        let flags = words!["--export", format!("disk0={own}"), "--state-dir", state];
        let bare = words![BARE];
        let server = serve_in(lab, &network, Carrier::Packet, &bare, &flags, &[], &run_dir)?;
        let volume = uri(&network, Carrier::Packet, 1, 0);
        fill(lab, &network, 1, &bare, &volume)?;
        network.shape()?;
        let (flags, servers) = (Vec::new(), vec![server]);
        Ok(MadeExport { lab, volume, flags, servers, network: Some(network), _files: files })
    }

    /// Over files in memory: what is in the memory of a process is gone with it, and so never filled.
    pub fn here(lab: &'l Laboratory<'l>, made: Made) -> Outcome<Self> {
        if made == Made::Cache {
            need_caches(lab)?;
        }
        let files = Files::new(lab)?;
        let below = if made == Made::Cache { Made::File } else { made };
        let mut volume = match below.is_kept() {
            true => make(lab, &files, below)?,
            false => {
                let mut parts = 0;
                let mut sparse = Ok(());
                let volume = over(below, |mib| {
                    parts += 1;
                    let made = files.sparse(&format!("part{parts}"), u64::from(mib) << 20);
                    made.unwrap_or_else(|e| {
                        sparse = Err(e);
                        String::new()
                    })
                });
                sparse?;
                volume
            }
        };
        let (blob, run_dir) = (lab.blob()?, files.path("run"));
        let argv = words![lab.executable(), "copy", blob.display(), volume, "--run-dir", run_dir];
        lab.run(None, &strs(&argv), "")?;
        let mut flags = Vec::new();
        if made == Made::Cache {
            volume = cache_over(&volume, CACHED_MIB * 2);
            flags = words!["--size", format!("{CACHED_MIB}M")];
        }
        Ok(MadeExport { lab, volume, flags, servers: Vec::new(), network: None, _files: files })
    }
}

impl Contender for MadeExport<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        let (network, servers) = (self.network.as_ref(), &self.servers);
        bench(self.lab, network, servers, &self.volume, &self.flags, load, seconds)
    }
}

/// A cache of so much memory over a volume.
pub fn cache_over(volume: &str, mib: u32) -> String {
    format!("cache:[{volume}]?size={mib}M")
}

/// Fails, in the same words for all who ask, where the thinwire that is measured has no such volumes.
pub fn need_caches(lab: &Laboratory) -> Outcome {
    let run_dir = lab.fresh_path("run");
    let run_dir = run_dir.to_str().expect("our own path");
    let cache = cache_over("memory:8M", 1);
    let argv = [lab.executable(), "bench", &cache, "--runtime", "0.01", "--run-dir", run_dir];
    match lab.run(None, &argv, "") {
        Err(LabError::Failed(_)) => {
            Err(LabError::Failed("not available in this build: volumes of the kind `cache`".into()))
        }
        other => other.map(drop),
    }
}

/// A volume that keeps nothing, over parts of so many MiB each.
fn over(made: Made, mut part: impl FnMut(u32) -> String) -> String {
    let whole = VOLUME_MIB + BESIDE_MIB;
    match made {
        Made::Linear => {
            let [one, two] = [part(whole / 2), part(whole / 2)];
            format!("linear:[{one},{two}]")
        }
        Made::Slice => format!("slice:[{}]?offset=1M", part(whole)),
        Made::Stripe => {
            let parts: Vec<String> = (0..4).map(|_| part(whole / 4)).collect();
            format!("stripe:[{}]", parts.join(","))
        }
        Made::Qos => format!("qos:[{}]", part(whole)),
        _ => part(whole),
    }
}

/// The description of a volume that keeps something, over files of these names and sizes in MiB.
fn description(
    made: Made,
    part: impl Fn(&str) -> String,
    key: &str,
) -> Option<(String, Vec<(&'static str, u32)>)> {
    let whole = VOLUME_MIB + BESIDE_MIB;
    let text = |kind: &str, more: &str, parts: &[(&'static str, u32)]| {
        let children: Vec<String> =
            parts.iter().map(|(name, _)| format!("\"{}\"", part(name))).collect();
        let children = children.join(", ");
        let text = format!(
            "[[volume]]\nname = \"it\"\nkind = \"{kind}\"\n{more}children = [{children}]\n"
        );
        Some((text, parts.to_vec()))
    };
    match made {
        Made::Mirror => text("mirror", "", &[("one", whole), ("two", whole)]),
        Made::Thin => text("thin", "", &[("data", POOL_MIB), ("metadata", POOL_METADATA_MIB)]),
        Made::Integrity => text("integrity", "", &[("one", whole)]),
        Made::Crypt => text("crypt", &format!("key = \"{key}\"\n"), &[("one", whole)]),
        _ => None,
    }
}

/// Makes a volume that keeps something, and returns its name.
fn make(lab: &Laboratory, files: &Files, made: Made) -> Outcome<String> {
    let run_dir = files.path("run-made");
    let volume = |argv: &[&str]| {
        let argv = [&[lab.executable(), "volume"], argv, &["--run-dir", &run_dir]].concat();
        lab.run(None, &argv, "")
    };
    let key = match made {
        Made::Crypt => {
            let argv = [lab.executable(), "key", "new", "lab", "--dir", &files.path("keys")];
            lab.run(None, &argv, "")?.trim().to_owned()
        }
        _ => String::new(),
    };
    let Some((text, parts)) = description(made, |name| files.path(name), &key) else {
        return files.sparse("one", u64::from(VOLUME_MIB + BESIDE_MIB) << 20);
    };
    for (name, mib) in parts {
        files.sparse(name, u64::from(mib) << 20)?;
    }
    let it = format!("{}#it", files.text("it.toml", &text)?);
    volume(&["create", &it])?;
    match made {
        Made::Mirror => {
            volume(&["resync", &it])?;
            Ok(it)
        }
        Made::Thin => {
            let home = format!("{it}@home");
            volume(&["create", &home, "--size", &format!("{VOLUME_MIB}M")])?;
            Ok(home)
        }
        _ => Ok(it),
    }
}

/// A volume of a pool of which a snapshot is taken before each run, so that what is written is written elsewhere.
pub struct ThinSnapshot<'l> {
    export: MadeExport<'l>,
    home: String,
    run_dir: String,
    taken: bool,
}

impl<'l> ThinSnapshot<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire) -> Outcome<Self> {
        let files = Files::new(lab)?;
        let home = make(lab, &files, Made::Thin)?;
        let run_dir = files.path("run");
        let export = MadeExport::serve(lab, wire, files, &home)?;
        Ok(ThinSnapshot { export, home, run_dir, taken: false })
    }

    /// Asks the target, which has the pool.
    fn volume(&self, argv: &[&str]) -> Outcome {
        let lab = self.export.lab;
        let argv = [&[lab.executable(), "volume"], argv, &["--run-dir", &self.run_dir]].concat();
        let network = self.export.network.as_ref().expect("it is served");
        network.run(Side::Target, &argv, "").map(drop)
    }
}

impl Contender for ThinSnapshot<'_> {
    fn measure(&mut self, load: &Load, seconds: f64) -> Outcome<Figures> {
        if self.taken {
            let pool = self.home.trim_end_matches("home");
            self.volume(&["delete", &format!("{pool}before")])?;
            self.taken = false;
        }
        self.volume(&["snapshot", &self.home, "before"])?;
        self.taken = true;
        self.export.measure(load, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_room_for_what_is_measured() {
        let sum = |made| {
            let mut all = 0;
            over(made, |mib| {
                all += mib;
                "memory:1M".into()
            });
            all
        };
        for made in [Made::Memory, Made::Linear, Made::Slice, Made::Stripe, Made::Qos] {
            assert!(sum(made) > VOLUME_MIB + 1, "{made:?}");
        }
        let stripe = over(Made::Stripe, |mib| format!("memory:{mib}M"));
        assert_eq!(stripe, "stripe:[memory:66M,memory:66M,memory:66M,memory:66M]");
        assert_eq!(over(Made::Qos, |_| "/x".into()), "qos:[/x]", "no limits");
    }

    #[test]
    fn what_keeps_something_is_described() {
        for made in [Made::Mirror, Made::Thin, Made::Integrity, Made::Crypt] {
            let (text, parts) = description(made, |name| format!("/f/{name}"), "/k").unwrap();
            assert!(text.contains(&format!("kind = \"{}\"", made.word())), "{text}");
            assert!(parts.iter().all(|(name, _)| text.contains(&format!("\"/f/{name}\""))));
            assert_eq!(text.contains("key"), made == Made::Crypt);
        }
        assert_eq!(description(Made::File, str::to_owned, ""), None);
    }
}
