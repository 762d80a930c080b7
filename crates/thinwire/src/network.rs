//! Leaves of volumes that are reached over links, in whatever protocol: what users of a volume need of them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thinwire_proto::StageSums;
use thinwire_runtime::serve::OpenedLeaf;
use thinwire_volume::{Identity, LeafGrant, Port};

use crate::control::LeafStatus;
use crate::error::{Failure, Outcome};
use crate::host::Host;
use crate::open::{VolumeHealth, VolumeOptions, Wait};
use crate::signals::Signals;

/// How long a turn may wait while a leaf is being attached, so that signals are heard.
const NAP: Duration = Duration::from_millis(200);

/// Something attached over links. It is there from when it begins to be attached, and is driven by its host.
pub trait NetworkLeaf {
    /// As the user named it.
    fn uri(&self) -> &str;

    /// When it began to be attached.
    fn begun(&self) -> Instant;

    /// Whether it is attached, after each turn; goes on with that.
    ///
    /// # Errors
    /// It was refused, or cannot be attached.
    fn look_open(&self, options: &VolumeOptions) -> Outcome<bool>;

    /// Why nobody may have granted it for so many seconds, and what to do.
    fn silence(&self, seconds: u64) -> Failure;

    /// It has been granted, be it that not all of it is there yet.
    fn is_granted(&self) -> bool;

    /// Its target does not answer, or not in all.
    fn is_away(&self) -> bool;

    /// Something of it that was acknowledged could not be written again, ever since it was attached.
    fn has_lost(&self) -> bool;

    /// It might write, and has ended while its target was away: that has not heard of it.
    fn is_unheard(&self) -> bool;

    /// Which content it is, and what it was granted of that, once it is open; generation 0 if it only
    /// reads, or its protocol has none.
    fn granted(&self) -> (Identity, LeafGrant);

    /// It only reads, and its target says that somebody else may be writing.
    fn is_held(&self) -> bool {
        false
    }

    /// Its protocol tells who only reads whether somebody else writes.
    fn tells_of_writers(&self) -> bool {
        false
    }

    /// The end of each of its members, for whoever stands on it.
    fn ports(&self) -> Vec<Port>;

    /// State, paths and timers, as `status` shows them: of each member, if there are several.
    fn status(&self) -> Vec<LeafStatus>;

    /// The same, as of a volume that is nothing else.
    fn health(&self) -> VolumeHealth;

    /// What it is to the shard that it is on: each of its members. None, if it tells nothing there.
    fn opened(&self) -> Vec<OpenedLeaf>;

    /// Runs the stage clocks of this `clock_kind` on both sides, and tells what they show; none if it has no such
    /// clocks.
    fn stages(&mut self, kind: u8) -> Outcome<Option<[StageSums; 2]>>;

    /// Begins to let go: in order, or at once with `force`.
    fn begin_close(&mut self, force: bool);

    /// Whether it has let go, and how, after each turn; goes on with that.
    fn closed(&self) -> Option<Outcome>;

    /// Takes it off its host, once it has let go: others may come in its place.
    fn take_off(&mut self) {}
}

/// Whether a descriptor is readable now.
pub(crate) fn is_readable(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// What ends an attach before it is through.
#[derive(Clone, Copy)]
pub struct Interrupt<'a> {
    /// Signals of a command.
    pub signals: Option<&'a Signals>,
    /// Readable when whoever serves is to end.
    pub stop: Option<&'a OwnedFd>,
}

impl Interrupt<'_> {
    /// It has.
    pub(crate) fn has_come(&self) -> bool {
        self.signals.is_some_and(|signals| signals.take().is_some())
            || self.stop.is_some_and(is_readable)
    }
}

/// Drives the attach of a leaf to its end, good or bad; others on the host go on meanwhile. `each_turn` is called after each
/// turn. `patience` is how long it may take.
///
/// # Errors
/// It was refused, nobody answered in time, or it was interrupted.
pub(crate) fn wait_open(
    host: &Host,
    leaf: &dyn NetworkLeaf,
    (options, patience): (&VolumeOptions, Option<Duration>),
    interrupt: &Interrupt<'_>,
    each_turn: &mut dyn FnMut(),
) -> Outcome {
    if let Some(signals) = interrupt.signals {
        host.watch(signals.fd())?;
    }
    let (uri, begun) = (leaf.uri(), leaf.begun());
    loop {
        host.turn(Wait::No)?;
        each_turn();
        if leaf.look_open(options)? {
            return Ok(());
        }
        if interrupt.has_come() {
            return Err(Failure::failed(format!("attaching {uri} was interrupted")));
        }
        let left = patience.map(|patience| patience.saturating_sub(begun.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            let more = if options.flags.waits { "; --wait waits for longer" } else { "" };
            let mut silence = leaf.silence(begun.elapsed().as_secs());
            silence.message += more;
            return Err(silence.context(format_args!("cannot attach {uri}")));
        }
        let nap = left.map_or(NAP, |left| left.min(NAP));
        host.turn(Wait::Until(Instant::now() + nap))?;
    }
}
