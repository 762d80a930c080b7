//! An attachment's process: a volume, a face over it, a control socket, until somebody detaches.
//!
//! * [`background`]: a process of its own, and the parent that waits until it is usable
//! * [`faces`]: from `--nbd`, `--file`, `--block` to a face
//! * [`serve`]: the loop
//! * [`shown`]: the part that it looks at: the volume behind its face

pub mod background;
pub mod faces;
pub mod serve;
pub mod shown;
pub mod writing_down;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use thinwire_frontend::block::touch_ahead;
use thinwire_runtime::confine::give_up_least;
use thinwire_runtime::wait::Spin;

use crate::carries::{Carries, RETAINED_BYTES_CARRIED};
use crate::cli::AttachArgs;
use crate::control::ControlServer;
use crate::error::{Failure, Outcome, ParseError};
use crate::face::{FaceSpec, NbdAddress, NbdDoor};
use crate::last_resort::catch_signals;
use crate::leftover;
use crate::open::{ATTACH_PATIENCE, CommandFlags, Ending, VolumeOptions, is_insecure, open_volume};
use crate::pool::PoolName;
use crate::rundir::{Record, RunDir, TARGET_PREFIX};
use crate::uri::{NodeName, VolumeSpec};

use serve::{AttachmentServer, Parts};

/// Whom an attachment tells how it fares, until it is usable, and at its end.
pub trait Reporter {
    /// Something the user should know.
    fn note(&mut self, text: &str);

    /// It is usable under this path. An error ends the attachment.
    fn ready(&mut self, path: &str) -> Outcome;
}

/// What was asked for, with all paths absolute: the process will leave its folder.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What the attachment is called.
    pub name: String,
    /// The volume.
    pub volume: VolumeSpec,
    /// The face.
    pub face: FaceSpec,
    /// Who can reach it, if it is an NBD face.
    pub door: NbdDoor,
    /// What on it the machine depends on.
    pub carries: Option<Carries>,
    /// How to open the volume.
    pub options: VolumeOptions,
}

impl Wanted {
    /// From the command line.
    pub fn new(args: &AttachArgs) -> Outcome<Self> {
        let name = match &args.name {
            Some(name) => check_attachment_name(name).map(|()| name.clone())?,
            None => {
                let name = default_name(&args.volume);
                check_attachment_name(&name)
                    .map_err(|e| Failure::usage(format!("{e}; give one with --as NAME")))?;
                name
            }
        };
        let door = args.door.door(args.nbd.as_ref())?;
        let run_dir = absolute(&args.run_dir.run_dir)?;
        let mut options = VolumeOptions::new(args.security.read()?, &args.wire, run_dir);
        options.read_only = args.read_only;
        options.take_over = args.take_over;
        options.when_away = args.when_away;
        options.patience = (!args.wait).then_some(ATTACH_PATIENCE);
        options.any_byte = true;
        // Its face tells each of its users.
        options.losses_are_heard = true;
        options.submission = args.submission;
        options.flags =
            CommandFlags { reading: Some("--read-only"), takes_over: true, waits: true };
        if let Some(pcap) = &mut options.wire.pcap {
            *pcap = absolute(pcap)?;
        }
        if let Some(carries) = args.carries {
            carries.check(args)?;
            options.wire.spin = Some(Spin::Off);
            options.retained_bytes_max = RETAINED_BYTES_CARRIED;
        }
        let mut volume = args.volume.clone();
        volume.try_map_paths(&|path| absolute(path))?;
        let face = match args.face() {
            FaceSpec::Nbd(NbdAddress::Unix(path)) => {
                FaceSpec::Nbd(NbdAddress::Unix(absolute(&path)?))
            }
            FaceSpec::File(path) => FaceSpec::File(absolute(&path)?),
            other => other,
        };
        Ok(Wanted { name, volume, face, door, carries: args.carries, options })
    }

    /// The failure when a live attachment has the name.
    pub fn taken(&self, dir: &RunDir) -> Failure {
        let what = match dir.record(&self.name) {
            Some(record) => format!(
                " ({} at {})",
                record.uri,
                record.path.as_deref().unwrap_or("a place not known yet")
            ),
            None => String::new(),
        };
        Failure::failed(format!(
            "an attachment `{}` exists already{what}; detach it first, or name this one with --as",
            self.name
        ))
    }
}

/// What an attachment is called unless its user says otherwise: after its export or file; if it is made of
/// several volumes, as a file that describes it does, else after the first of them and how they are put
/// together.
fn default_name(volume: &VolumeSpec) -> String {
    match (volume, volume.leaves().first()) {
        (VolumeSpec::Over { node: None, .. }, Some(first)) => {
            format!("{}-{}", first.short_name(), volume.short_name())
        }
        _ => volume.short_name(),
    }
}

/// Attachments and targets have their files in one folder.
fn check_attachment_name(name: &str) -> Result<(), ParseError> {
    crate::size::check_name("attachment name", name)?;
    match name.starts_with(TARGET_PREFIX) {
        true => Err(ParseError::new(name, "names that begin with `target-` are those of targets")),
        false => Ok(()),
    }
}

fn absolute(path: &std::path::Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::usage(format!("`{}`: {e}", path.display())))
}

/// Behind the third nothing is waited for: see [`serve`].
const SIGNALS_MAX: u32 = 3;

/// Attaches and serves until detached. Runs in the attachment's own process.
pub fn run(wanted: &Wanted, reporter: &mut dyn Reporter) -> Outcome {
    // Before there are other threads, and links.
    wanted.carries.map_or(Ok(()), Carries::prepare)?;
    if let Err(why) = give_up_least() {
        tracing::warn!("this process stays open to others of its user: {why}");
    }
    let (signals, _) = catch_signals(SIGNALS_MAX, &[&wanted.volume])?;
    if wanted.options.wire.shards.is_some_and(|shards| shards > 1) {
        tracing::warn!("an attachment lives on one shard; --shards changes nothing here");
    }
    let dir = RunDir::create(&wanted.options.run_dir)?;
    let Some(claim) = dir.claim(&wanted.name)? else { return Err(wanted.taken(&dir)) };
    if let Some(stale) = claim.stale() {
        reporter.note(&leftover::clean(stale).describe(&wanted.name));
    }
    faces::check_face(wanted, &dir)?;
    let mut record = Record::of_this_process(
        &wanted.name,
        wanted.volume.to_string(),
        wanted.face.kind(),
        is_insecure(&wanted.volume, &wanted.options.security),
    );
    record.key = wanted.options.security.key.as_ref().map(|key| key.name.clone());
    record.pools = PoolName::all_in(&wanted.volume);
    record.volumes = NodeName::all_in(&wanted.volume);
    record.leftovers = faces::leftovers(&wanted.face, &dir, &wanted.name);
    record.gives_up_ms =
        wanted.options.patience.map(|patience| unix_ms() + patience.as_millis() as u64);
    claim.write(&record)?;

    let mut open = open_volume(&wanted.volume, &wanted.options, Some(&signals))?;
    record.gives_up_ms = None;
    claim.write(&record)?;
    let started = faces::open_face(wanted, &dir, &mut *open).and_then(|face| {
        let listener = dir.listen(&wanted.name).and_then(ControlServer::new);
        let wrong = |e| Failure::failed(format!("cannot make the control socket: {e}"));
        Ok((face, listener.map_err(wrong)?))
    });
    let (face, control) = match started {
        Ok(started) => started,
        Err(failure) => {
            // There is nothing to flush.
            let _ = open.close(Ending::Unused);
            return Err(failure);
        }
    };
    if wanted.carries.is_some() {
        // All else that serving needs has been taken.
        touch_ahead();
    }
    let (spin, signals, claim) = (wanted.options.wire.spin(), &signals, &claim);
    AttachmentServer::new(Parts { open, face, control, signals, claim, record, spin })?
        .run(reporter)
}

/// Milliseconds since 1970, for records that other processes read.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn attachments_have_names_that_tell_them_apart() {
        for (volume, name) in [
            ("tw://node1/disk0?link=eth1", "disk0"),
            ("/srv/a.img", "a.img"),
            ("linear:[tw://node1/disk0?link=eth1,/srv/b.img]", "disk0-linear"),
            ("linear:[linear:[/srv/a.img,memory:1M],/srv/b.img]", "a.img-linear"),
            ("linear:[memory:1M]", "memory-linear"),
        ] {
            assert_eq!(default_name(&volume.parse().unwrap()), name);
        }
        let dir = TempDir::new("default-name");
        let file = dir.path().join("a.toml");
        let volume = "[[volume]]\nname = \"big\"\nkind = \"linear\"\nchildren = [\"memory:1M\"]\n";
        std::fs::write(&file, volume).unwrap();
        let described = format!("{}#big", file.display());
        assert_eq!(default_name(&described.parse().unwrap()), "big");
        assert_eq!(check_attachment_name("disk0-linear"), Ok(()));
        let refused = check_attachment_name("target-node1").unwrap_err().to_string();
        assert!(refused.contains("those of targets"), "{refused}");
    }
}
