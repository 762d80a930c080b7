//! The user's side: a remote volume is a volume.

use thinwire_buffer::Segment;
use thinwire_proto::Stage;
use thinwire_volume::{Completion, ErrorKind, Geometry, Identity, Io, Op, Volume, VolumeEvent};

use super::Initiator;
use crate::requests::MODULE;
use crate::slots::{Owner, Pending};

impl Initiator {
    /// Another writer has it, for good.
    fn is_fenced(&self) -> bool {
        self.closing.failure() == Some(ErrorKind::Fenced)
    }
}

impl Volume for Initiator {
    /// What the target said when it was attached, as far as it has not grown since.
    ///
    /// # Panics
    /// Before the first attach: a face is only opened once that is done.
    fn geometry(&self) -> Geometry {
        self.attachment.content().expect("attached once").geometry
    }

    /// # Panics
    /// As [`Initiator::geometry`].
    fn identity(&self) -> Identity {
        self.attachment.content().expect("attached once").identity
    }

    fn submit(&mut self, io: Io) {
        let refusal = match self.closing.refusal() {
            Some(kind) => Some(kind),
            None if self.absence.has_given_up() => Some(ErrorKind::Away),
            // One request's length is a 32-bit field.
            None if io.len > u64::from(u32::MAX) => Some(ErrorKind::Invalid),
            // The record of who writes here is the target's.
            None if io.op.is_record() => Some(ErrorKind::Unsupported),
            None => None,
        };
        if let Some(kind) = refusal {
            let completion = Completion::new(io.token, Err(io.error(kind, MODULE)));
            return self.requests.refuse(completion);
        }
        debug_assert!(io.op == Op::Flush || io.len > 0);
        let Io { token, op, flags, mut offset, mut len, data, .. } = io;
        if op == Op::Flush {
            // Volumes ignore its range, targets refuse one.
            (offset, len) = (0, 0);
        }
        let owner = Owner::User(token);
        self.cross(Stage::Accepted, op);
        let sums = match op {
            Op::Write | Op::Cut if self.config.integrity => self.sums_to_send(offset, len, &data),
            _ => Segment::NOTHING,
        };
        let is_second = false;
        self.requests.submit(Pending { owner, op, flags, offset, len, data, sums, is_second });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.requests.poll(done);
    }

    fn outstanding(&self) -> usize {
        self.requests.outstanding()
    }

    fn copied_bytes(&self) -> u64 {
        self.requests.copied_bytes()
    }

    /// What a restart of the target loses is sent again: only what could not be is lost, and what
    /// could never be any more, when the attachment ended.
    fn events(&self) -> u64 {
        let fences = u64::from(self.is_fenced());
        self.durability.losses() + self.attachment.growths() + self.strangers + fences
    }

    fn poll_events(&mut self, events: &mut Vec<VolumeEvent>) {
        let losses = self.durability.losses();
        if std::mem::replace(&mut self.losses_told, losses) != losses {
            events.push(VolumeEvent::Lost);
        }
        if let Some(bytes) = self.attachment.take_growth() {
            events.push(VolumeEvent::Resized { bytes });
        }
        if std::mem::replace(&mut self.strangers_told, self.strangers) != self.strangers {
            events.push(VolumeEvent::Stale);
        }
        if self.is_fenced() && !std::mem::replace(&mut self.is_fence_told, true) {
            events.push(VolumeEvent::Fenced { of: None });
        }
    }
}
