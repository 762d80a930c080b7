//! From a [`VolumeSpec`] to a volume that can be used: the seam between the commands, which only
//! know [`OpenVolume`], and what drives stores, links and sessions.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thinwire_buffer::Pool;
use thinwire_frontend::Face;
use thinwire_proto::StageSums;
use thinwire_runtime::disk::DiskOptions;
use thinwire_volume::{IoError, Volume};

use thinwire_modules::cuts::Cutter;
use thinwire_modules::mirror::OpeningWish;
use thinwire_modules::thin::ThinPool;

use crate::adoption::Adoptions;
use crate::attachment::shown::Shown;
use crate::bench::NodeStages;
use crate::cli::{Submission, WhenAwayArg, WireArgs};
use crate::control::{BatchStatus, IntegrityStatus, LeafStatus, PathStatus, State};
use crate::error::{Failure, Outcome};
use crate::growth::{GrowthNotes, WholeDesk};
use crate::host::Host;
use crate::keys::{self, KeyFile, Security};
use crate::known_keys::KnownKeys;
use crate::opened::{FailedAt, Leaving, OutlineNode};
use crate::output;
use crate::pool::{PoolName, PoolPlace};
use crate::rekeying::Rekeying;
use crate::signals::Signals;
use crate::trees::NodeName;
use crate::uri::VolumeSpec;

/// How long a first attach tries unless told to wait.
pub const ATTACH_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for a file that somebody else has locked: a killed predecessor's last I/O.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// So long a volume may take to bring in order what it keeps for itself; without it, it opens as after a crash.
pub const WIND_UP_PATIENCE: Duration = Duration::from_secs(10);

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// How frames are protected, of volumes that do not say it themselves.
    pub security: Security,
    /// Open without the right to write. Remote ones may then be attached by many.
    pub read_only: bool,
    /// What is wanted of mirrors in it whose legs are not all there, or differ.
    pub wish: OpeningWish,
    /// Of a pool that is opened for itself: where it is put.
    pub pool: Option<PoolPlace>,
    /// What has labels grows by what its parts have grown by: where that is noted.
    pub growth: Option<GrowthNotes>,
    /// Parts are taken that hold another content than when they got their labels: where that is noted.
    pub adopt: Option<Adoptions>,
    /// An encrypted volume in it gets another key.
    pub rekey: Option<Rekeying>,
    /// Fence the writer that holds a remote volume, or is on record of a local one.
    pub take_over: bool,
    /// What requests get while the target is away.
    pub when_away: WhenAwayArg,
    /// Whoever uses the volume looks at what it counts as lost, and writes that again or tells others.
    pub losses_are_heard: bool,
    /// It is served to others, who may come back with unflushed writes: what is granted of it is written
    /// down in the state directory, for [`Tree::held_leaves`](crate::opened::Tree::held_leaves).
    pub is_served: bool,
    /// Give up the first attach after this long; `None` means never.
    pub patience: Option<Duration>,
    /// Wrap the volume so that it takes any byte range (`block_bytes == 1`), as faces need it.
    pub any_byte: bool,
    /// Faults, capture, shards.
    pub wire: WireArgs,
    /// Where identities are locked.
    pub run_dir: PathBuf,
    /// Which thread sends requests.
    pub submission: Submission,
    /// Of a remote volume: how much of what was written, and is not flushed, is kept to be sent again, in bytes.
    pub retained_bytes_max: usize,
    /// What messages may advise.
    pub flags: CommandFlags,
    /// Readable when letting go in order is to be given up: for a command a signal that nobody has taken.
    pub hurry: Option<Arc<OwnedFd>>,
}

/// Which flags the command has, for messages that say what to do. By default none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandFlags {
    /// How its user says that it only reads; `None` if it always writes.
    pub reading: Option<&'static str>,
    /// `--take-over`.
    pub takes_over: bool,
    /// `--wait`.
    pub waits: bool,
}

/// What is retained of a remote volume, unless it is said.
const RETAINED_BYTES_MAX: usize = 32 << 20;

impl VolumeOptions {
    /// Writable, block-granular, ten seconds of patience, waiting when the target is away; of a command
    /// that has `--take-over`.
    pub fn new(security: Security, wire: &WireArgs, run_dir: PathBuf) -> Self {
        VolumeOptions {
            security,
            read_only: false,
            wish: OpeningWish::default(),
            pool: None,
            growth: None,
            adopt: None,
            rekey: None,
            take_over: false,
            when_away: WhenAwayArg::Wait,
            losses_are_heard: false,
            is_served: false,
            patience: Some(ATTACH_PATIENCE),
            any_byte: false,
            wire: wire.clone(),
            run_dir,
            submission: Submission::Inline,
            retained_bytes_max: RETAINED_BYTES_MAX,
            flags: CommandFlags { takes_over: true, ..CommandFlags::default() },
            hurry: None,
        }
    }
}

/// How long [`OpenVolume::turn`] may sleep when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until something happens: a completion, a watched descriptor, a timer.
    Forever,
    /// The same, but not beyond this time.
    Until(Instant),
}

impl Wait {
    /// No longer than this from now on.
    pub fn at_most(self, time: Duration) -> Wait {
        let end = Instant::now().checked_add(time);
        match (self, end) {
            (Wait::Forever, Some(end)) => Wait::Until(end),
            (Wait::Until(other), Some(end)) => Wait::Until(other.min(end)),
            (wait, _) => wait,
        }
    }
}

/// How an open volume is, for `status`.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeHealth {
    /// Never [`State::Connecting`] or [`State::Stale`].
    pub state: State,
    /// The ways to the target; empty for local volumes.
    pub paths: Vec<PathStatus>,
    /// Of a volume made of several: the remote ones among them, or the members of each.
    pub leaves: Vec<LeafStatus>,
    /// The timer that runs, by name, and what is left of it, in seconds.
    pub timer: Option<(String, f64)>,
    /// Writes have completed that no flush has covered yet.
    pub unflushed: bool,
    /// Should a flush fail now, writes that have completed may be lost; true where that is not known.
    pub may_lose: bool,
    /// How frames are sealed; none for local volumes, without a key, and of several that differ.
    pub suite: Option<String>,
    /// How requests share frames; none for local volumes, and of several remote ones together.
    pub batch: Option<BatchStatus>,
    /// What was found altered; none for what is not checked end to end, the sum of those of several.
    pub integrity: Option<IntegrityStatus>,
    /// More, for people.
    pub detail: Option<String>,
}

impl VolumeHealth {
    /// Of a volume without a network.
    pub fn local() -> Self {
        VolumeHealth {
            state: State::Attached,
            paths: Vec::new(),
            leaves: Vec::new(),
            timer: None,
            unflushed: false,
            may_lose: true,
            suite: None,
            batch: None,
            integrity: None,
            detail: None,
        }
    }
}

/// Whether a writer that ends without order stays on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRecord {
    /// It wrote nothing, or keeps no record here.
    No,
    /// It does; the next run with this run directory counts as the same.
    Known,
    /// It does, under an identity that nobody has again.
    Stranger,
}

/// How an open volume is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In order, after the caller has flushed and nothing is outstanding: the session is ended, the lock
    /// released, the writer taken off the record.
    Orderly,
    /// The same, though something is outstanding at targets that are away, to which nothing has to be
    /// written: attachments to those end at once.
    BarAway,
    /// The same, after nobody could use it: who was on record of what is local before is so again, where nothing was written, as labels are by
    /// an opening.
    Unused,
    /// The last flush has failed, perhaps that of one leaf: what has lost something, or is away, ends as
    /// with [`Ending::Force`]; all else in order.
    AfterLoss,
    /// A command has failed in the middle, perhaps with something outstanding: targets that are there are
    /// told that it has ended; a local writer that has written half of something stays on record, as with
    /// [`Ending::Force`].
    Unfinished,
    /// At once, whatever is outstanding: a local writer that has written stays on record, as after a
    /// crash.
    Force,
}

/// The remote leaves of a volume, as users name them, whose target has not heard that their writer has
/// ended, although it has and all is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unheard(pub Vec<String>);

impl Unheard {
    /// Those, and these.
    pub fn and(mut self, others: Vec<String>) -> Self {
        self.0.extend(others);
        self
    }

    /// What that means, for the user; nothing if all have heard.
    pub fn describe(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        Some(format!(
            "all else has ended in order, but the target of {} is away and has not heard of it. All that \
             was written there is durable; but the writer stays on record: with the same run directory it \
             is attached again at once, others wait for the end of its lease (30 s after the target last \
             heard of it; never, if the target is started anew), or say --take-over",
            self.0.join(" and of ")
        ))
    }
}

/// A volume together with whatever drives it: a shard with links and a session, a store with its
/// disk. Used by the thread that opened it.
pub trait OpenVolume {
    /// The volume itself. Its completions are taken by the caller through [`Volume::poll`].
    fn volume(&mut self) -> &mut dyn Volume;

    /// Logical block of the volume itself, in bytes, whatever [`VolumeOptions::any_byte`] has put
    /// over it.
    fn block_bytes(&self) -> u32;

    /// Where the buffers of writes come from.
    fn pool(&self) -> &Pool;

    /// Does what can be done now. If that was nothing, sleeps as `wait` allows and does what can
    /// be done then. True if the volume may have completions. An error means that the volume is
    /// lost for this process.
    fn turn(&mut self, wait: Wait) -> Outcome<bool>;

    /// Puts a face on it. Both are a part of the host from now on: whoever uses the volume is the face,
    /// and what remains here is its health and its end.
    fn show(&mut self, face: Box<dyn Face>) -> Outcome<Shown>;

    /// Goes on with what is neither in the volume nor in its face, between turns of the host, once it is shown: legs of mirrors that
    /// come back.
    fn tend(&mut self) {}

    /// Ends the sleep of [`OpenVolume::turn`] while `fd` is readable. The caller keeps it open for
    /// as long as the volume.
    fn watch(&mut self, fd: BorrowedFd<'_>) -> Outcome;

    /// Pools that are open with it, as they are named: to be changed while it is in use.
    fn pools(&self) -> Vec<(VolumeSpec, ThinPool)> {
        Vec::new()
    }

    /// What it is made of, as it was opened.
    fn outline(&self) -> Vec<OutlineNode> {
        Vec::new()
    }

    /// Where in it that was by which an I/O has failed, for the user, who is not told of that by the log then.
    fn failed_at(&mut self, error: &IoError) -> FailedAt {
        FailedAt::named(error)
    }

    /// What is open with it of which snapshots can be taken as one, by what files call it: likewise.
    fn cuts(&self) -> Vec<(PoolName, Cutter)> {
        Vec::new()
    }

    /// What is open with it that can be had to grow, by what files call it: likewise.
    fn wholes(&self) -> Vec<(NodeName, WholeDesk)> {
        Vec::new()
    }

    /// Keys of what is encrypted in it.
    fn known_keys(&self) -> Rc<KnownKeys> {
        Rc::default()
    }

    /// State, paths and timers, as `status` shows them.
    fn health(&self) -> VolumeHealth;

    /// Runs the stage clocks of this `clock_kind` on both sides, and tells what they show: this
    /// side's and the target's. `None` for local volumes. Waits for the target's answer.
    fn stages(&mut self, kind: u8) -> Outcome<Option<[StageSums; 2]>> {
        let _ = kind;
        Ok(None)
    }

    /// Runs the stage clock of this `clock_kind` in a volume made of others, at the borders of all that it is made of, from now on, while
    /// nothing is outstanding.
    fn begin_node_stages(&mut self, kind: u8) {
        let _ = kind;
    }

    /// What that has shown: the volume, and behind it all that it is made of; empty of any other volume.
    fn node_stages(&self) -> Vec<NodeStages> {
        Vec::new()
    }

    /// The time on the stage clock that runs, in ns; 0 for local volumes that are made of nothing.
    fn stage_ns(&self) -> u64 {
        0
    }

    /// Whether this process would stay on record as its writer, were it dropped now. `No` for remote
    /// volumes, whose target decides that.
    fn on_record(&mut self) -> OnRecord {
        OnRecord::No
    }

    /// So long it may take for what it keeps for itself, once it is not used any more, from when the last of that was written
    /// down.
    fn wind_up_patience(&self) -> Duration {
        WIND_UP_PATIENCE
    }

    /// It is only read, and something that it stands on may be written by somebody else, as far as that is told.
    fn is_held(&self) -> bool {
        false
    }

    /// Lets go of it.
    fn close(&mut self, ending: Ending) -> Outcome<Unheard>;

    /// What it stands on, to be let go of together with that of others; none if it is let go of by itself only.
    fn leave(&mut self) -> Option<Leaving<'_>> {
        None
    }
}

/// Opens a volume. Remote ones: attaches, waiting for at most `options.patience`, and gives up when
/// one of `signals` comes. Local ones to be written: makes this process the writer on record
/// (`docs/protocol.md`, "Writer generations"), which is refused while another is.
pub fn open_volume(
    spec: &VolumeSpec,
    options: &VolumeOptions,
    signals: Option<&Signals>,
) -> Outcome<Box<dyn OpenVolume>> {
    open_on(&Host::new()?, spec, options, signals)
}

/// The same, on a host that others may be on, too.
pub fn open_on(
    host: &Host,
    spec: &VolumeSpec,
    options: &VolumeOptions,
    signals: Option<&Signals>,
) -> Outcome<Box<dyn OpenVolume>> {
    open_within(host, spec, options, signals, LOCK_PATIENCE)
}

/// The same, which waits so long for a file that somebody else has locked.
pub fn open_within(
    host: &Host,
    spec: &VolumeSpec,
    options: &VolumeOptions,
    signals: Option<&Signals>,
    wait_lock: Duration,
) -> Outcome<Box<dyn OpenVolume>> {
    require_security(spec, &options.security)?;
    let disk_options = DiskOptions { wait_lock, ..DiskOptions::default() };
    crate::opened::open_on(host, spec, options, disk_options, signals)
}

/// Lets go of a volume, and tells the user which targets have not heard of it.
pub fn let_go(open: &mut dyn OpenVolume, ending: Ending) -> Outcome {
    if let Some(unheard) = open.close(ending)?.describe() {
        output::complain(&unheard);
    }
    Ok(())
}

/// Lets go of volumes of one host, all at the same time: one after the other they would wait for each other, since nobody is told of a
/// sync before all that began earlier on the same file system have been heard of. The first failure,
/// after all have been tried.
pub fn let_go_together(
    host: &Host,
    open: &mut [Box<dyn OpenVolume>],
    mut ending: impl FnMut(&mut dyn OpenVolume) -> Ending,
) -> Outcome<Unheard> {
    let mut together = Vec::new();
    let mut alone = Vec::new();
    for volume in open {
        let ending = ending(&mut **volume);
        // Who is not in order yet is waited for, and says what becomes of that.
        let is_ready = !matches!(ending, Ending::Orderly) || volume.volume().is_wound_up();
        match is_ready && volume.leave().is_some() {
            true => together.push((volume, ending)),
            false => alone.push((volume, ending)),
        }
    }
    // Those first: the syncs of the others would wait for theirs, which nobody would hear of.
    let mut ended = Ok(Unheard::default());
    for (volume, ending) in alone {
        let closed = volume.close(ending);
        ended = ended.and_then(|unheard| closed.map(|others| unheard.and(others.0)));
    }
    let leaving =
        together.iter_mut().filter_map(|(volume, ending)| Some((volume.leave()?, *ending)));
    let others = Leaving::end_all(host, leaving.collect());
    ended.and_then(|unheard| others.map(|others| unheard.and(others.0)))
}

/// Lets go of the volume of a command that has failed, so that its target does not keep the export for
/// it. `has_written`: it may have written something.
pub fn let_go_failed(open: &mut dyn OpenVolume, has_written: bool) {
    let ending = ending_of_failed(open, has_written);
    if let Err(failure) = open.close(ending) {
        tracing::warn!("{failure}");
    }
}

/// How that ends.
pub fn ending_of_failed(open: &mut dyn OpenVolume, has_written: bool) -> Ending {
    let is_used = has_written || open.volume().outstanding() > 0;
    if is_used { Ending::Unfinished } else { Ending::Unused }
}

/// Why a device of another protocol is not reached unless its user has accepted that; `None` of any other volume.
fn no_keys(spec: &VolumeSpec) -> Option<String> {
    let protocol = match spec {
        VolumeSpec::Ebd(_) => "EBD",
        VolumeSpec::Aoe(_) => "AoE",
        _ => return None,
    };
    Some(format!(
        "{spec}: {protocol} has no keys: frames are neither authenticated nor encrypted, and everybody on the same network \
         can read and change the data. If all machines there are trusted, say --insecure (in TOML: insecure = true)"
    ))
}

/// Refuses a volume of which a part would be reached without a key, unless the user has accepted that.
pub fn require_security(spec: &VolumeSpec, security: &Security) -> Outcome {
    for leaf in spec.leaves() {
        match leaf {
            VolumeSpec::Remote(remote) => {
                let is_protected =
                    remote.key.is_some() || security.key.is_some() || security.insecure;
                keys::require(is_protected, &format!("reaching {remote}"))?;
            }
            _ if security.insecure => {}
            other => {
                if let Some(why) = no_keys(other) {
                    return Err(Failure::failed(format!("refusing: reaching {why}")));
                }
            }
        }
    }
    Ok(())
}

/// What is missing where a target reaches parts of an export's volume: it shows a key only where the volume says
/// which, so that nobody is shown one that was meant for others.
///
/// # Errors
/// A sentence for the first part that has no key, unless that was accepted, or whose key cannot be used.
pub fn check_keys_of_parts(spec: &VolumeSpec, insecure: bool) -> Result<(), String> {
    for leaf in spec.leaves() {
        let remote = match leaf {
            VolumeSpec::Remote(remote) => remote,
            _ if insecure => continue,
            other => match no_keys(other) {
                Some(why) => return Err(why),
                None => continue,
            },
        };
        match &remote.key {
            Some(key) => KeyFile::read(key).map(drop).map_err(|e| format!("{remote}: {e}"))?,
            None if insecure => {}
            None => {
                return Err(format!(
                    "{remote} says no key to show there: give it in the volume, as in \
                     `tw://NODE/EXPORT?link=LINK&key=NAME`"
                ));
            }
        }
    }
    Ok(())
}

/// Some part of a volume is reached without a key.
pub fn is_insecure(spec: &VolumeSpec, security: &Security) -> bool {
    let is_bare = |leaf: &&VolumeSpec| match leaf {
        VolumeSpec::Remote(remote) => remote.key.is_none() && security.key.is_none(),
        VolumeSpec::Ebd(_) | VolumeSpec::Aoe(_) => true,
        _ => false,
    };
    spec.leaves().iter().any(is_bare)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::make;
    use crate::testing::TempDir;

    #[test]
    fn a_target_shows_a_key_where_the_volume_says_which() {
        let dir = TempDir::new("keys-of-parts");
        let key = make("k", dir.path(), false).unwrap().path.display().to_string();
        let leaf = |key: &str| format!("tw://n/x?link=eth1{key}");
        let said =
            |volume: String, insecure| check_keys_of_parts(&volume.parse().unwrap(), insecure);
        let good = leaf(&format!("&key={key}"));
        for volume in [good.clone(), "memory:1M".into(), format!("linear:[{good},memory:1M]")] {
            assert_eq!(said(volume, false), Ok(()));
        }
        for volume in [leaf(""), format!("linear:[{good},{}]", leaf(""))] {
            let why = said(volume.clone(), false).unwrap_err();
            assert!(why.starts_with(&leaf("")) && why.contains("&key=NAME"), "{why}");
            assert_eq!(said(volume, true), Ok(()));
        }
        let missing = leaf(&format!("&key={key}-not"));
        for insecure in [false, true] {
            let why = said(missing.clone(), insecure).unwrap_err();
            assert!(why.contains("no such file"), "{why}");
        }
    }
}
