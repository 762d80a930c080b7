//! The right to write a file or device that no target serves ([`thinwire_volume::Grant`]), as a command
//! takes it: under which name, and what a refusal says to the user.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thinwire_volume::{Grant, GrantError, IoError, LeafGrant, Volume, WriterRecord, store_writer};

use crate::error::{Failure, Outcome};
use crate::identity::{self, InitiatorId};
use crate::network::is_readable;
use crate::open::VolumeOptions;
use crate::output;
use crate::remote::host_name;
use crate::signals::Signals;

/// How long, and how often, putting a record back is tried that a failing disk has left in doubt.
const SETTLE_PATIENCE: Duration = Duration::from_secs(30);
const SETTLE_AGAIN: Duration = Duration::from_secs(1);
/// How often signals are looked at meanwhile.
const GLANCE: Duration = Duration::from_millis(100);

/// The right to write, and the identity it was granted to. Let go of it before the volume's lock: else
/// the next run finds the identity in use, and is a stranger.
#[derive(Debug)]
pub struct LocalGrant {
    grant: Grant,
    path: PathBuf,
    id: Option<InitiatorId>,
}

impl LocalGrant {
    /// Makes this process the writer on record of an open volume whose lock it holds. Refused if there
    /// is another, unless the user takes over; a former run under the same run directory is no other.
    pub fn take(
        volume: &mut dyn Volume,
        path: &Path,
        options: &VolumeOptions,
        signals: Option<&Signals>,
        stop: Option<&OwnedFd>,
    ) -> Outcome<Self> {
        let tried =
            |e: Failure| e.context(format_args!("cannot open {} for writing", path.display()));
        let place = path.canonicalize().map_err(|e| tried(Failure::failed(e.to_string())))?;
        // No node has a name like this.
        let what = format!("\0{}", place.display());
        let id = match identity::claim(&options.run_dir, &what, false) {
            Ok(id) => Some(id),
            Err(e) => {
                // Files can be written without a run directory.
                tracing::info!("{e}. Should this run be killed, the next one is a stranger to it");
                None
            }
        };
        let holder = match &id {
            Some(id) => id.bytes,
            None => nobody_else().map_err(|e| tried(Failure::failed(e.to_string())))?,
        };
        let name = format!("{} (local, pid {})", host_name(), std::process::id());
        let grant = match Grant::take(volume, holder, &name, options.take_over) {
            Ok(grant) => grant,
            Err(GrantError::Unresolved { error, before }) => {
                let settled = settle(volume, *before, SETTLE_PATIENCE, signals, stop);
                return Err(tried(unresolved(error, settled)));
            }
            Err(error) => return Err(tried(refusal(error, path, options.flags.takes_over))),
        };
        Ok(LocalGrant { grant, path: path.to_owned(), id })
    }

    /// The generation under which it writes, and since when nobody has.
    pub fn granted(&self) -> LeafGrant {
        self.grant.granted()
    }

    /// Whether the next run under the same run directory counts as this writer.
    pub fn is_known(&self) -> bool {
        self.id.is_some()
    }

    /// An orderly end, after a last flush that succeeded: nobody is the writer any more.
    pub fn release(self, volume: &mut dyn Volume) -> Outcome {
        self.grant.release(volume).map_err(|e| {
            Failure::failed(format!(
                "{}: all is written and durable, but not that its writer has ended: {e}. It may stay on \
                 record, as after a crash: here it can be written again, others say --take-over",
                self.path.display()
            ))
        })
    }

    /// An end before anything was written: whoever was on record before is so again.
    pub fn undo(self, volume: &mut dyn Volume) {
        if let Err(e) = self.grant.undo(volume) {
            let path = self.path.display();
            tracing::warn!("{path}: who may write it could not be put back as it was: {e}");
        }
    }
}

/// An identity that nobody has had and nobody will have again.
fn nobody_else() -> std::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Tries to put a record back until that succeeds, a signal comes, `stop` is readable or `patience` is
/// over. True if it did.
fn settle(
    volume: &mut dyn Volume,
    before: WriterRecord,
    patience: Duration,
    signals: Option<&Signals>,
    stop: Option<&OwnedFd>,
) -> bool {
    output::complain(&format!(
        "the disk fails, and who may write it is in doubt: putting that back for up to {} s",
        patience.as_secs()
    ));
    let end = Instant::now() + patience;
    let mut next = Instant::now() + SETTLE_AGAIN.min(patience);
    loop {
        let now = Instant::now();
        if now >= next {
            if store_writer(volume, before).is_ok() {
                return true;
            }
            next = now + SETTLE_AGAIN;
        }
        let is_told = signals.is_some_and(|signals| signals.take().is_some());
        if now >= end || is_told || stop.is_some_and(is_readable) {
            return false;
        }
        std::thread::sleep(GLANCE.min(next.saturating_duration_since(now)));
    }
}

/// What the user of this path reads, whose command takes over if asked, or cannot. `Unresolved` is told by
/// [`unresolved`].
fn refusal(error: GrantError, path: &Path, takes_over: bool) -> Failure {
    Failure::failed(match error {
        GrantError::Held(record) => format!(
            "initiator {} is on record as its writer, and may come back with writes that no flush has \
             covered: they would land on what is written now. Let it come back and end in order \
             (attach, detach), or {}",
            writer_name(&record),
            fence(path, takes_over)
        ),
        GrantError::Exhausted => {
            "its writer generations are at their end. Nothing was changed; copy it to a \
             new image, whose record begins anew"
                .to_string()
        }
        GrantError::Unread(e) => format!(
            "who may write it cannot be read: {e}. Nothing was changed; mend the disk, then try again"
        ),
        GrantError::Refused(e) | GrantError::Unresolved { error: e, .. } => not_recorded(e),
    })
}

/// How a writer on record is fenced.
fn fence(path: &Path, takes_over: bool) -> String {
    match takes_over {
        true => "say --take-over to fence it for good".to_owned(),
        // A gateway.
        false => format!(
            "fence it for good. A target has no --take-over, who attaches has: `thinwire attach {} --nbd \
             unix:/run/fence --as fence --take-over`, then `thinwire detach fence`, then start this target \
             again",
            path.display()
        ),
    }
}

fn not_recorded(error: IoError) -> String {
    format!(
        "the new writer could not be recorded: {error}. The record is as it was; mend the disk or make \
         room (records of devices, and of files without extended attributes, are in \
         /var/lib/thinwire), then try again"
    )
}

fn unresolved(error: IoError, settled: bool) -> Failure {
    Failure::failed(match settled {
        true => not_recorded(error),
        false => format!(
            "the new writer could not be recorded: {error}; and the record could not be put back as it \
             was, so that after a crash either may be found. Nothing was written; mend the disk before \
             anybody writes it, then try again"
        ),
    })
}

/// What a person calls it, else its identity.
fn writer_name(record: &WriterRecord) -> String {
    match record.name.as_str() {
        "" => record.holder.iter().map(|byte| format!("{byte:02x}")).collect(),
        name => format!("`{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::WireArgs;
    use crate::testing::TempDir;
    use thinwire_buffer::Pool;
    use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io};

    /// Has only a record. The next ones fail as they are told to, and are there all the same.
    struct RecordOnly {
        record: WriterRecord,
        failing: Vec<bool>,
        done: Vec<Completion>,
    }

    impl Volume for RecordOnly {
        fn geometry(&self) -> Geometry {
            unreachable!("not asked for")
        }

        fn identity(&self) -> Identity {
            Identity::default()
        }

        fn submit(&mut self, io: Io) {
            let mut done = Completion::new(io.token, Ok(()));
            match WriterRecord::from_data(&io.data) {
                Some(record) => {
                    self.record = record;
                    if !self.failing.is_empty() && self.failing.remove(0) {
                        done.result = Err(io.error(ErrorKind::Io, "writer record"));
                    }
                }
                None => done.data = self.record.to_data(&Pool::new(0)),
            }
            self.done.push(done);
        }

        fn poll(&mut self, done: &mut Vec<Completion>) {
            done.append(&mut self.done);
        }

        fn outstanding(&self) -> usize {
            self.done.len()
        }
    }

    const REMOTE: [u8; 16] = [0xab; 16];

    fn take(volume: &mut RecordOnly, take_over: bool) -> Outcome<LocalGrant> {
        let dir = TempDir::new("grant");
        let mut options = VolumeOptions::new(
            crate::keys::Security::default(),
            &WireArgs::default(),
            dir.path().join("run"),
        );
        options.take_over = take_over;
        LocalGrant::take(volume, dir.path(), &options, None, None)
    }

    #[test]
    fn whoever_is_on_record_is_named() {
        for (name, named) in [("node1 (pid 7)", "`node1 (pid 7)`"), ("", &"ab".repeat(16))] {
            let record = WriterRecord::new(3, REMOTE, name);
            let mut volume = RecordOnly { record, failing: Vec::new(), done: Vec::new() };
            let said = take(&mut volume, false).unwrap_err().to_string();
            for word in ["cannot open", "for writing", named, "--take-over", "on record"] {
                assert!(said.contains(word), "{word}: {said}");
            }
            assert_eq!(volume.record, record);
            assert!(take(&mut volume, true).is_ok());
            assert_eq!(volume.record.generation, 4);
        }
    }

    #[test]
    fn a_record_in_doubt_is_put_back_before_anybody_is_told_no() {
        let record = WriterRecord::new(3, REMOTE, "node1");
        // The new record fails, and so does putting the old one back, twice.
        let mut volume =
            RecordOnly { record, failing: vec![false, true, true, true], done: Vec::new() };
        let said = take(&mut volume, true).unwrap_err().to_string();
        assert!(said.contains("The record is as it was"), "{said}");
        assert!(volume.record == record && volume.failing.is_empty());

        let mut volume = RecordOnly { record, failing: vec![true; 100], done: Vec::new() };
        assert!(!settle(&mut volume, record, Duration::from_millis(200), None, None));
        let error = store_writer(&mut volume, record).unwrap_err();
        let said = unresolved(error, false).to_string();
        assert!(said.contains("either may be found") && said.contains("Nothing was written"));
    }

    #[test]
    fn who_waits_for_a_failing_disk_ends_when_it_is_told_to() {
        let record = WriterRecord::new(3, REMOTE, "node1");
        let mut volume = RecordOnly { record, failing: vec![true; 100], done: Vec::new() };
        let stop = crate::steward::bell().unwrap();
        rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
        let begun = Instant::now();
        assert!(!settle(&mut volume, record, Duration::from_secs(5), None, Some(&stop)));
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}
