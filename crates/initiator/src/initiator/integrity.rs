//! Data that is checked end to end: sums of what is written, made before anything else is done with it, and what
//! becomes of what does not fit (`docs/protocol.md`, "Integrity").

use thinwire_buffer::{SegList, Segment};
use thinwire_proto::{sums_fit, sums_of};
use thinwire_volume::ErrorKind;

use super::Initiator;
use crate::InitiatorCanary;
use crate::slots::{Answer, Mark, Owner, Pending};

impl Initiator {
    /// The sums of a write, of the bytes as its user has given them.
    pub(super) fn sums_to_send(&self, offset: u64, len: u64, data: &SegList) -> Segment {
        // Longer than any request may be: it will be refused.
        if len > IO_BYTES_MAX {
            return Segment::NOTHING;
        }
        let bytes = data.iter().map(|segment| &segment[..]);
        sums_of(&self.pool, offset, len, bytes, self.config.sums)
    }

    /// What was read fits the sums that came with it.
    #[inline(never)]
    pub(super) fn is_as_read(&self, io: &Pending, data: &Option<Answer>) -> bool {
        let canary = self.config.sums;
        match data {
            _ if self.config.canary == InitiatorCanary::ReadsUnchecked => true,
            Some(Answer::Whole(buf)) => {
                sums_fit(&io.sums, io.offset, std::iter::once(&buf[..]), canary)
            }
            Some(Answer::Lent(list)) => {
                sums_fit(&io.sums, io.offset, list.iter().map(|segment| &segment[..]), canary)
            }
            None => false,
        }
    }

    /// Links, the target's memory or ours: reading again finds out whether it was on its way.
    #[cold]
    pub(super) fn on_altered_read(&mut self, mut io: Pending) {
        self.altered.reads += 1;
        if !std::mem::replace(&mut io.is_second, true) {
            return self.requests.put_back(io);
        }
        self.altered.failed += 1;
        self.requests.complete(&io, Err(ErrorKind::Altered));
    }

    /// The target got other bytes than this side took in, and has not written them. Worth sending again only if what is
    /// kept here is what was taken in.
    #[cold]
    pub(super) fn on_altered_write(&mut self, mut io: Pending, verifier: u64, mark: Mark) {
        self.altered.writes += 1;
        let bytes = io.data.iter().map(|segment| &segment[..]);
        let is_good = sums_fit(&io.sums, io.offset, bytes, self.config.sums);
        self.altered.here += u64::from(!is_good);
        let is_again = is_good && !std::mem::replace(&mut io.is_second, true);
        self.altered.failed += u64::from(!is_again);
        match io.owner {
            Owner::User(_) if is_again => self.requests.put_back(io),
            Owner::User(_) => self.requests.complete(&io, Err(ErrorKind::Altered)),
            Owner::Replay(number) if is_again => self.durability.replay_again(number),
            Owner::Replay(number) => self.durability.on_replayed(number, mark, verifier, false),
            Owner::Flush => unreachable!("a flush is no write"),
        }
    }
}

/// The longest request that a target takes.
const IO_BYTES_MAX: u64 = 1 << 20;
