//! What happens to a volume besides the ends of its I/Os (`docs/design.md`, "What happens to a
//! volume").

use std::rc::Rc;

use crate::LegStanding;

/// Something that has happened to a volume. [`Volume::events`](crate::Volume::events) counts them,
/// [`Volume::poll_events`](crate::Volume::poll_events) tells them, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeEvent {
    /// Completed writes that no flush has covered may have been lost: a sync failed on what the volume
    /// lies on, whoever asked for it.
    Lost,
    /// It has grown; the rest of its shape is as before. It stays that large, also after a crash of what
    /// it lies on.
    Resized {
        /// Its size, as [`Geometry`](crate::Geometry) has it from now on.
        bytes: u64,
    },
    /// A volume below has grown by so many bytes that have no place here: another lies behind it. As
    /// long as all is open nothing changes; opened again, it is another volume.
    Unreachable {
        /// By how many, in all.
        bytes: u64,
    },
    /// What it lies on has become shorter while it was open: I/O on what is gone fails, and so do all
    /// writes there, until it is opened again.
    Shrunk,
    /// What was read of it before may be something else by now: somebody else may have written meanwhile, or it has ended, and
    /// somebody else may be its writer. For whoever keeps what was read.
    Stale,
    /// Somebody else has been granted this volume, or one below it, to write: nothing of it may be written any more, nor
    /// anything that is made of it, and all I/O of it fails with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
    Fenced {
        /// Which volume, by its path in the tree; `None` where nobody has named it.
        of: Option<Rc<str>>,
    },
    /// A leg of a mirror, of this volume or below it, stands otherwise than before.
    Leg {
        /// Which, counted from 0 in its mirror.
        leg: u8,
        /// How it stands from now on.
        standing: LegStanding,
        /// Which mirror, by its path in the tree; `None` where nobody has named it.
        of: Option<Rc<str>>,
    },
    /// A block of this volume, or of one below it, did not fit its sum: it was not what was written there.
    BadBlock {
        /// Where it begins, in bytes of the volume that has found it.
        offset: u64,
        /// It is again, from another leg of a mirror. Else it cannot be read.
        is_mended: bool,
        /// Which volume has found it, by its path in the tree; `None` where nobody has named it.
        of: Option<Rc<str>>,
    },
    /// After a crash, or a loss, some blocks fit neither of their sums: they may be as they were to be, and nobody knows. They are
    /// read as they are.
    Unverified {
        /// How many there are, of 4096 bytes.
        blocks: u64,
        /// Of which volume, by its path in the tree; `None` where nobody has named it.
        of: Option<Rc<str>>,
    },
}

impl VolumeEvent {
    /// It happened to the volume of that path, unless one below it has said so already.
    pub fn name(&mut self, path: &Rc<str>) {
        if let VolumeEvent::Leg { of, .. }
        | VolumeEvent::Fenced { of }
        | VolumeEvent::BadBlock { of, .. }
        | VolumeEvent::Unverified { of, .. } = self
        {
            of.get_or_insert_with(|| path.clone());
        }
    }

    /// What it says of a leg, for people; none if it is of something else.
    pub fn news_of_legs(&self) -> Option<String> {
        let VolumeEvent::Leg { leg, standing, of } = self else { return None };
        let mirror = of.as_ref().map_or("a mirror".to_owned(), |path| format!("mirror {path}"));
        Some(format!("leg {leg} of {mirror} {}", standing.news()))
    }

    /// What it says of blocks and their sums, for people; none if it is of something else.
    pub fn news_of_sums(&self) -> Option<String> {
        let (news, of) = match self {
            VolumeEvent::BadBlock { offset, is_mended: true, of } => (
                format!(
                    "the block at {offset} did not fit its sum: it was written again from another leg"
                ),
                of,
            ),
            VolumeEvent::BadBlock { offset, is_mended: false, of } => {
                (format!("the block at {offset} does not fit its sum: it cannot be read"), of)
            }
            VolumeEvent::Unverified { blocks, of } => (
                format!(
                    "{blocks} blocks were about to be written when it ended without order, and fit none of their sums: what they hold is \
                     not verified"
                ),
                of,
            ),
            _ => return None,
        };
        Some(match of {
            Some(path) => format!("{path}: {news}"),
            None => news,
        })
    }
}

impl VolumeEvent {
    /// Puts it among what is still to be told: of one kind the last says all, and a loss comes first.
    pub(crate) fn remember(self, news: &mut Vec<VolumeEvent>) {
        let kind = std::mem::discriminant(&self);
        let is_leg = matches!(self, VolumeEvent::Leg { .. });
        news.retain(|other| is_leg || std::mem::discriminant(other) != kind);
        let at = if self == VolumeEvent::Lost { 0 } else { news.len() };
        news.insert(at, self);
    }
}
