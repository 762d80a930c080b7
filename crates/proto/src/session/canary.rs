//! Faults planted in a session, which tests and the simulator must find (`docs/design.md`). None is met on
//! the way of an I/O: they stand where something is refused, or once in a turn of a session with keys.

use thinwire_buffer::TxBatch;
use thinwire_wire::{Feedback, Header, Kind, flags};

use super::Session;
use crate::received::Arrival;
use crate::{DropReason, Time};

/// A fault planted in a session. No flag sets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SessionCanary {
    /// None: the session as it is.
    #[default]
    None,
    /// What a link did not take is stamped anew with what is known by then, and sealed again.
    StampedAnew,
    /// A frame whose number came before is opened again, and acted on.
    ReplaysTaken,
    /// A frame with the id of the session is a sign of life, whatever opening it says.
    HeardUnopened,
}

impl SessionCanary {
    /// What becomes of a number that is refused.
    #[cold]
    pub(super) fn of_refused(self, why: DropReason) -> Result<Arrival, DropReason> {
        match why {
            DropReason::Duplicate | DropReason::TooOld if self == SessionCanary::ReplaysTaken => {
                Ok(Arrival::OutOfOrder)
            }
            _ => Err(why),
        }
    }
}

impl Session {
    /// A frame for this session, on that path, was a forgery.
    #[cold]
    pub(super) fn refused_unopened(&mut self, now: Time, path: u8) {
        if self.config.canary != SessionCanary::HeardUnopened {
            return;
        }
        self.last_heard = now;
        if let Some(at) = self.path_at(path) {
            self.paths[at].last_heard = now;
        }
    }

    /// Stamps the frames of this session that wait for their links anew, and seals them again.
    #[cold]
    pub(super) fn stamp_anew(&mut self, now: Time, out: &mut [TxBatch]) {
        let Some(keys) = &self.keys else { return };
        let mut of_now = Header { session: self.config.remote_id, ..Header::new(Kind::Session) };
        keys.stamp(&mut of_now);
        let (credit_slots, credit_bytes) = self.granted;
        for path in &mut self.paths {
            for frame in out[path.link].frames_mut() {
                let whole = [&frame.head[..], &frame.data.to_vec()].concat();
                let Ok(header) = Header::parse(&whole, whole.len()) else { continue };
                let is_ours = (header.kind, header.session) == (Kind::Session, of_now.session);
                if !is_ours || (header.path, header.key_phase) != (path.id, of_now.key_phase) {
                    continue;
                }
                frame.head = whole;
                frame.data.clear();
                header.write(&mut frame.head);
                // A stream cipher takes off what it has put on.
                keys.seal(&header, frame);
                let flags = flags::CREDIT;
                let mut feedback =
                    Feedback { flags, credit_slots, credit_bytes, ..Feedback::default() };
                path.ack.write(now, path.id, &path.received, &mut feedback);
                header.write(&mut frame.head);
                feedback.write(&mut frame.head);
                keys.seal(&header, frame);
            }
        }
    }
}
