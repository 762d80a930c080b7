//! A remote volume is a volume.

use thinwire_proto::Stage;
use thinwire_volume::{Completion, ErrorKind, Features, Geometry, Identity, Io, Op, Volume};

use crate::Initiator;
use crate::slots::{Owner, Pending};

/// The name this module gives itself in errors.
pub(crate) const MODULE: &str = "remote";

impl Volume for Initiator {
    /// What the target said when it was attached.
    ///
    /// # Panics
    /// Before the first attach: a face is only opened once that is done.
    fn geometry(&self) -> Geometry {
        let attached = self.attached.as_ref().expect("attached once");
        attached.geometry
    }

    fn identity(&self) -> Identity {
        self.attached.as_ref().expect("attached once").identity
    }

    fn submit(&mut self, io: Io) {
        self.user_outstanding += 1;
        let refused = match self.refusal() {
            Some(kind) => Some(kind),
            // One request's length is a 32-bit field.
            None if io.len > u64::from(u32::MAX) => Some(ErrorKind::Invalid),
            None => None,
        };
        if let Some(kind) = refused {
            let completion = Completion::new(io.token, Err(io.error(kind, MODULE)));
            self.done.push(completion);
            return;
        }
        debug_assert!(io.op == Op::Flush || io.len > 0);
        let Io { token, op, flags, offset, len, data } = io;
        let owner = Owner::User(token);
        self.cross(Stage::Accepted, op);
        self.waiting.push_back(Pending { owner, op, flags, offset, len, data });
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.user_outstanding -= self.done.len();
        done.append(&mut self.done);
    }

    fn outstanding(&self) -> usize {
        self.user_outstanding
    }
}

/// Abilities from the wire's bits.
pub(crate) fn features(bits: u8, read_only: bool) -> Features {
    use thinwire_wire::feature;
    Features {
        read_only: read_only || bits & feature::READ_ONLY != 0,
        discard: bits & feature::DISCARD != 0,
        write_zeroes: bits & feature::WRITE_ZEROES != 0,
        block_status: bits & feature::BLOCK_STATUS != 0,
    }
}
