//! Named reasons for not acting on what arrived, each with a counter.

use thinwire_wire::FrameError;

/// Why a frame, or a message in it, was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Refused at the gate.
    Frame(FrameError),
    /// For a session that is not here.
    UnknownSession,
    /// Of another epoch of the session.
    Epoch,
    /// On a path that the session does not have, or from another station than the path's.
    Path,
    /// A packet number that was received before.
    Duplicate,
    /// A packet number below the replay window.
    TooOld,
    /// A packet number absurdly far ahead.
    TooFarAhead,
    /// For a use of a slot that is over, or data that is already placed: a late duplicate.
    LateDuplicate,
    /// For a use of a slot that cannot have begun, or a slot that does not exist.
    Slot,
    /// A range outside the request or unaligned.
    Range,
    /// A message that this side never receives.
    Direction,
    /// An attachment handle that means nothing (any more).
    Attachment,
    /// An answer to a question that was not asked (any more).
    Unasked,
    /// Meant for another node.
    OtherNode,
    /// Without a key, or with a suite, that this side does not agree to.
    Insecure,
    /// With a key that this side does not know.
    UnknownKey,
    /// Of an export that was fenced: another target serves it.
    Fenced,
    /// More of this than there is room for.
    Overload,
    /// More waits for the peer of the session than an honest one can bring about: the session ends.
    Overrun,
}

impl DropReason {
    const OWN: [(DropReason, &'static str); 18] = [
        (DropReason::UnknownSession, "unknown-session"),
        (DropReason::Epoch, "epoch"),
        (DropReason::Path, "path"),
        (DropReason::Duplicate, "duplicate"),
        (DropReason::TooOld, "too-old"),
        (DropReason::TooFarAhead, "too-far-ahead"),
        (DropReason::LateDuplicate, "late-duplicate"),
        (DropReason::Slot, "slot"),
        (DropReason::Range, "range"),
        (DropReason::Direction, "direction"),
        (DropReason::Attachment, "attachment"),
        (DropReason::Unasked, "unasked"),
        (DropReason::OtherNode, "other-node"),
        (DropReason::Insecure, "insecure"),
        (DropReason::UnknownKey, "unknown-key"),
        (DropReason::Fenced, "fenced"),
        (DropReason::Overload, "overload"),
        (DropReason::Overrun, "overrun"),
    ];

    fn index(self) -> usize {
        match self {
            DropReason::Frame(error) => {
                FrameError::ALL.iter().position(|&e| e == error).expect("ALL names all")
            }
            own => {
                FrameError::ALL.len()
                    + Self::OWN.iter().position(|&(r, _)| r == own).expect("OWN names all")
            }
        }
    }

    /// The counter's name.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::Frame(error) => error.name(),
            own => Self::OWN[own.index() - FrameError::ALL.len()].1,
        }
    }
}

const REASONS: usize = FrameError::ALL.len() + DropReason::OWN.len();

/// A counter for every [`DropReason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    counts: [u64; REASONS],
}

impl Drops {
    /// One more.
    pub fn count(&mut self, reason: DropReason) {
        self.counts[reason.index()] += 1;
    }

    /// Another's, too.
    pub fn add(&mut self, other: &Drops) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
    }

    /// How many so far.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts[reason.index()]
    }

    /// All counters that are not zero, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.all().filter(|&(_, count)| count > 0)
    }

    /// All counters with their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let names = FrameError::ALL
            .iter()
            .map(|e| e.name())
            .chain(DropReason::OWN.iter().map(|&(_, name)| name));
        names.zip(self.counts)
    }
}
