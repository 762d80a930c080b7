//! What does not fit together, and where that is described: said before anything is opened, as far as sizes are known by then.

use std::fs::metadata;

use thinwire_modules::{Cache, ModuleError};

use crate::error::{Failure, Outcome};
use crate::export::BLOCK_BYTES_DEFAULT;
use crate::uri::VolumeSpec;

/// Finds out whether all fits whose sizes are known before it is open: memory, files of this machine, and what is made of these alone. Looks at files.
///
/// # Errors
/// Something does not.
pub(super) fn check(spec: &VolumeSpec) -> Outcome {
    bytes_of(spec).map(drop)
}

/// How many bytes it has; none if that is not known.
fn bytes_of(spec: &VolumeSpec) -> Outcome<Option<u64>> {
    let VolumeSpec::Over { module, options, children, labels, .. } = spec else {
        return Ok(bytes_of_store(spec));
    };
    if *labels && module.is_mirror() {
        // It may go without a leg that does not fit.
        return Ok(None);
    }
    let known: Vec<_> = children.iter().map(bytes_of).collect::<Outcome<_>>()?;
    let known: Option<Vec<_>> = known.into_iter().collect();
    match known {
        // These say themselves how large they are.
        Some(_) if *labels => Ok(None),
        // Nothing is taken of memory for a look.
        Some(parts) if Cache::bytes_of(module, options).is_some() => Ok(parts.first().copied()),
        Some(parts) => {
            let parts: Vec<_> =
                parts.into_iter().map(|bytes| (bytes, BLOCK_BYTES_DEFAULT)).collect();
            module.bytes_of(options, &parts).map(Some).map_err(|e| unfit(spec, &e))
        }
        None => Ok(None),
    }
}

fn bytes_of_store(spec: &VolumeSpec) -> Option<u64> {
    let bytes = match spec {
        VolumeSpec::Memory(bytes) | VolumeSpec::Null(bytes) | VolumeSpec::Switched(bytes) => *bytes,
        VolumeSpec::Path(path) => metadata(path).ok().filter(|meta| meta.is_file())?.len(),
        _ => return None,
    };
    // Who opens it says what is wrong with that.
    (bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES_DEFAULT.into())).then_some(bytes)
}

/// That a module does not fit over what it stands on, as the user calls that, and not as the module does.
pub(super) fn unfit(spec: &VolumeSpec, e: &ModuleError) -> Failure {
    let VolumeSpec::Over { children, places, place, .. } = spec else {
        return Failure::failed(e.to_string());
    };
    let why = match e.child {
        Some(child) => format!("{} {}", children[child], e.why),
        None => e.to_string(),
    };
    let failure = Failure::failed(format!("cannot open {spec}: {why}"));
    match e.child.and_then(|child| places.get(child)).or(place.as_ref()) {
        Some(place) => failure.context(place),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::WireArgs;
    use crate::keys::Security;
    use crate::open::{VolumeOptions, open_volume};
    use crate::testing::TempDir;

    /// A volume that a file describes, which nobody has read yet, and that file's name.
    fn described(dir: &TempDir, name: &str, text: &str) -> (String, String) {
        let file = dir.path().join(format!("{name}.toml")).display().to_string();
        std::fs::write(&file, text).unwrap();
        (format!("{file}#top"), file)
    }

    fn opened(volume: &str) -> String {
        let options =
            VolumeOptions::new(Security::default(), &WireArgs::default(), "/nowhere".into());
        let options = VolumeOptions {
            security: Security { insecure: true, ..options.security.clone() },
            ..options
        };
        let opened = open_volume(&volume.parse().unwrap(), &options, None);
        opened.err().map(|failure| failure.message).unwrap_or_default()
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_line_before_anything_is_attached() {
        let dir = TempDir::new("fit");
        std::fs::write(dir.path().join("x.img"), [0; 4096]).unwrap();
        for (name, child, says) in [
            ("memory", "memory:4096", "memory:4096"),
            ("file", "x.img", "x.img"),
            ("export", "linear:[memory:512,tw://n/y?link=nowhere0]", ""),
        ] {
            let text = format!(
                "[[volume]]\nname = \"top\"\nkind = \"linear\"\nchildren = [\"part\",\n  \"tw://n/x?link=nowhere0\"]\n\n\
                 [[volume]]\nname = \"part\"\nkind = \"slice\"\noffset = \"1M\"\nchildren = [\n  \"{child}\"]\n"
            );
            let (volume, file) = described(&dir, name, &text);
            let why = opened(&volume);
            match says {
                "" => assert!(why.contains("nowhere0"), "nobody knows its size: {why}"),
                _ => {
                    let begins = format!("{file}:12: cannot open {file}#part: ");
                    assert!(why.starts_with(&begins) && why.contains(says), "{why}");
                }
            }
        }
        // Of a volume as a whole.
        let half = 1u64 << 63;
        let text = format!(
            "# a comment\n[[volume]]\nname = \"top\"\nkind = \"linear\"\nchildren = [\"null:{half}\", \"null:{half}\"]\n"
        );
        let (volume, file) = described(&dir, "whole", &text);
        let why = opened(&volume);
        assert!(why.starts_with(&format!("{file}:")) && why.contains("cannot open"), "{why}");
    }

    /// A mirror goes without a leg that does not fit, and is not refused for it here.
    #[test]
    fn a_leg_that_does_not_fit_is_left_to_the_mirror() {
        let dir = TempDir::new("fit-leg");
        let (volume, _) = described(
            &dir,
            "leg",
            "[[volume]]\nname = \"top\"\nkind = \"mirror\"\nchildren = [\"slice:[memory:4096]?offset=1M\", \"memory:4M\"]\n",
        );
        assert_eq!(check(&volume.parse().unwrap()), Ok(()));
    }
}
