//! How a command ends that a disk of this machine holds up. Whoever lets go of a disk waits for its last I/O,
//! since its lock must not go before; of one that does not answer that is for ever. So some time after the
//! signal that leaves nothing else the process ends as by kill -9, and says why.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thinwire_runtime::disk;

use crate::error::{Failure, Outcome};
use crate::output;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// How long after that signal. The leaves of a volume give up their ends together within one second of
/// it, and `copy` has two volumes.
const PATIENCE: Duration = Duration::from_millis(2500);

/// What the command has failed with, before it lets go of its volumes.
#[derive(Clone, Debug, Default)]
pub struct LastWords(Arc<Mutex<Option<String>>>);

impl LastWords {
    /// To be told should nobody come to tell it any more.
    pub fn set(&self, failure: &Failure) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.message.clone());
    }

    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Takes over the ending signals of a command that uses these volumes. The `last` of them is the one after which
/// nothing is waited for. To be called before other threads are made.
///
/// # Errors
/// Out of descriptors or threads.
pub fn catch_signals(last: u32, volumes: &[&VolumeSpec]) -> Outcome<(Signals, LastWords)> {
    let (paths, words) = (paths_of(volumes.iter().copied()), LastWords::default());
    let said = words.clone();
    let give_up = move || {
        said.take().into_iter().for_each(|failure| output::complain(&failure));
        output::complain(&held_up(&disk::waited_for(), &paths));
        std::process::exit(1);
    };
    let wrong = |e: io::Error| Failure::failed(format!("cannot take over signals: {e}"));
    let signals = Signals::catch().map_err(wrong)?;
    Ok((signals.counted(last, PATIENCE, give_up).map_err(wrong)?, words))
}

/// The files and devices that they have on this machine.
pub fn paths_of<'v>(volumes: impl Iterator<Item = &'v VolumeSpec>) -> Vec<PathBuf> {
    let path = |leaf: &VolumeSpec| match leaf {
        VolumeSpec::Path(path) => Some(path.clone()),
        _ => None,
    };
    volumes.flat_map(|volume| volume.leaves()).filter_map(path).collect()
}

/// What is said when these were waited for, or, not known which, some of `all`.
pub fn held_up(waited_for: &[PathBuf], all: &[PathBuf]) -> String {
    let names = |paths: &[PathBuf]| {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    };
    let whom = match (waited_for, all) {
        ([], []) => "this machine".to_owned(),
        ([], [only]) => names(std::slice::from_ref(only)),
        ([], all) => format!("one of {}", names(all)),
        (waited_for, _) => names(waited_for),
    };
    format!(
        "no answer from {whom}: ended without it, as by kill -9. The kernel keeps its lock until it has \
         answered; who has written stays on record"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_named() {
        let [a, b] = ["/srv/a", "/srv/b"].map(PathBuf::from);
        let all = [a.clone(), b.clone()];
        for (waited_for, all, whom) in [
            (&all[1..], &all[..], "/srv/b"),
            (&all[..], &all[..], "/srv/a, /srv/b"),
            (&[], &all[..1], "/srv/a"),
            (&[], &all[..], "one of /srv/a, /srv/b"),
            (&[], &[], "this machine"),
        ] {
            let said = held_up(waited_for, all);
            assert!(said.starts_with(&format!("no answer from {whom}: ended")), "{said}");
        }
    }
}
