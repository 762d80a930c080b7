//! What the thinwire that is measured can do, asked of its own help: experiments are older and
//! younger than builds.

use std::collections::BTreeSet;

use crate::error::{LabError, Outcome};
use crate::stand::Laboratory;

/// Flags of `thinwire target` and `thinwire bench`, and what the target's help says.
#[derive(Debug, Default)]
pub struct Abilities {
    target: BTreeSet<String>,
    bench: BTreeSet<String>,
    said: String,
}

impl Abilities {
    /// Asks.
    pub fn ask(lab: &Laboratory) -> Outcome<Self> {
        let help = |command: &str| lab.run(None, &[lab.executable(), command, "--help"], "");
        let said = help("target")?;
        Ok(Abilities { target: flags(&said), bench: flags(&help("bench")?), said })
    }

    /// Whether an export of `thinwire target` has an option.
    pub fn export_has(&self, option: &str) -> bool {
        self.said.contains(&format!("[,{option}]")) || self.said.contains(&format!("[,{option}="))
    }

    /// Whether `thinwire bench` has a flag.
    pub fn bench_has(&self, flag: &str) -> bool {
        self.bench.contains(flag)
    }

    /// Deals flags out to the target and to bench; each goes to all that have it. A flag that nobody
    /// has is an error which says so.
    pub fn deal(
        &self,
        flags: impl Iterator<Item = (&'static str, &'static str)>,
    ) -> Outcome<(Vec<String>, Vec<String>)> {
        let (mut target, mut bench) = (Vec::new(), Vec::new());
        for (flag, value) in flags {
            let mut known = false;
            for (has, argv) in [(&self.target, &mut target), (&self.bench, &mut bench)] {
                if has.contains(flag) {
                    known = true;
                    argv.extend([flag.to_owned(), value.to_owned()]);
                }
            }
            if !known {
                return Err(LabError::Failed(format!("not available in this build: {flag}")));
            }
        }
        Ok((target, bench))
    }
}

/// The words of a help text that are long flags.
fn flags(help: &str) -> BTreeSet<String> {
    let words = help.split(|c: char| !(c == '-' || c.is_ascii_alphanumeric()));
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_dealt_to_whoever_has_them() {
        let target =
            flags("  --receive <HOW>  how [possible values: split, single]\n  --shards <N>");
        let bench =
            flags("Options:\n      --receive <HOW>\n      --submission <HOW>\n  -h, --help");
        assert_eq!(bench.len(), 3);
        let said = "NAME=VOLUME[,ro][,cache=SIZE][,buffered]".to_owned();
        let abilities = Abilities { target, bench, said };
        assert!(abilities.export_has("cache") && abilities.export_has("buffered"));
        assert!(!abilities.export_has("buffer") && !abilities.export_has("compressed"));
        let asked = [("--receive", "split"), ("--submission", "queue")];
        let (target, bench) = abilities.deal(asked.into_iter()).unwrap();
        assert_eq!(target, ["--receive", "split"]);
        assert_eq!(bench, ["--receive", "split", "--submission", "queue"]);
        let error = abilities.deal([("--batch", "tyche")].into_iter()).unwrap_err();
        assert!(error.to_string().contains("--batch"), "{error}");
    }
}
