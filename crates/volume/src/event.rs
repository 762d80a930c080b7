//! What happens to a volume besides the ends of its I/Os (`docs/design.md`, "What happens to a
//! volume").

use crate::LegStanding;

/// Something that has happened to a volume. [`Volume::events`](crate::Volume::events) counts them,
/// [`Volume::poll_events`](crate::Volume::poll_events) tells them, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// A leg of a mirror, of this volume or below it, stands otherwise than before.
    Leg {
        /// Which, counted from 0 in its mirror.
        leg: u8,
        /// How it stands from now on.
        standing: LegStanding,
    },
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
