//! Growth beside users: what the part has more is zeroed, sums and data, and said to be closed in the bitmap, and all of that is flushed. Then whoever keeps the
//! label is told, has it say so, and says that here: only then is there more room (rule 24). Nothing that is there moves, and what comes lies behind it, so users
//! notice nothing; whoever is cut off before has changed nothing that the label knows of.

use thinwire_buffer::Time;
use thinwire_volume::{Io, IoError, Op, Volume, VolumeEvent};

use super::check::CHECK_BYTES;
use super::intent::Closing;
use super::layout::SumLayout;
use super::making::{SumGrowing, ZeroPieces};
use super::{Flight, Integrity, IntegrityCanary};
use crate::meta::{PartDoor, RoomError};

/// Zeroes are written in pieces of so many bytes where they need not be sent, and of what counts where they are.
const PIECES: ZeroPieces = ZeroPieces { named: 1 << 20, sent: PRICE };
/// So many bytes of a piece count at most: a hole costs less than its bytes, and whoever needs more at once than a check does never gets it beside one.
const PRICE: u64 = CHECK_BYTES;

/// What becomes of what the part has more.
#[derive(Default)]
pub(super) struct Growth {
    /// It is being made ready; none while nobody has asked for that.
    making: Option<SumGrowing>,
    /// What comes next of that, and waits for its pace.
    next: Option<Io>,
    /// So many bytes count as zeroed, and are not yet: those of what comes next, or is under way.
    undone: u64,
    /// A check was the last to get something: what waits comes before the next.
    comes_first: bool,
    /// Something of that is under way.
    is_out: bool,
    /// What was written of it, and not flushed, may be gone.
    is_lost: bool,
}

impl Growth {
    pub fn is_out(&self) -> bool {
        self.is_out
    }

    /// It waits for its pace, and a check had its turn.
    pub fn waits_first(&self) -> bool {
        self.comes_first && self.next.is_some()
    }

    /// A check has got something.
    pub fn let_go_first(&mut self) {
        self.comes_first = true;
    }

    /// How many bytes are zeroed, of how many.
    pub fn progress(&self) -> Option<(u64, u64)> {
        let (handed_out, all) = self.making.as_ref()?.progress();
        Some((handed_out - self.undone, all))
    }

    /// Something that was not flushed may be gone.
    pub fn forget_zeroed(&mut self) {
        self.is_lost = self.making.is_some();
    }
}

impl Integrity {
    /// Begins to make ready what is asked for.
    pub(super) fn hear_growth(&mut self) {
        let Some(bytes) = self.door.as_ref().and_then(PartDoor::hear_room) else { return };
        let before = self.below.geometry().bytes;
        let named = (self.whole, self.below.layout().state());
        let making = SumGrowing::new((0, &self.config.pool), named, 0, (before, bytes));
        self.growth = Growth { making: Some(making), ..Growth::default() };
        if self.canary == IntegrityCanary::GrowsAhead
            && let Some(door) = &self.door
        {
            door.end_room(Ok(()));
        }
    }

    /// Goes on with that, as far as the pace allows.
    #[inline]
    pub(super) fn step_growth(&mut self) -> bool {
        // As nearly always.
        self.growth.making.is_some() && !self.growth.is_out && self.make_ready()
    }

    fn make_ready(&mut self) -> bool {
        if self.closing != Closing::No || self.stopped.is_some() || self.config.read_only {
            return self.end_growth(Err(RoomError::Ended));
        }
        if self.growth.is_lost && self.canary != IntegrityCanary::TrustsZeroed {
            return self.end_growth(Err(RoomError::Lost));
        }
        if !self.is_open {
            return false;
        }
        let Growth { making: Some(making), next, undone, .. } = &mut self.growth else {
            return false;
        };
        let before = making.progress().0;
        let io = match next.take().or_else(|| making.next(self.geometry, PIECES)) {
            Some(io) => io,
            None => return self.end_growth(Ok(())),
        };
        *undone += making.progress().0 - before;
        let costs = io.len.min(PRICE);
        if !self.pace.take(costs, self.outstanding > self.ready.len(), self.now) {
            self.growth.next = Some(io);
            return false;
        }
        (self.growth.is_out, self.growth.comes_first) = (true, false);
        let token = self.flights.insert(Flight::Grow(io.op)).into();
        self.below.submit_to(0, Io { token, ..io });
        self.has_sent = true;
        true
    }

    /// Some of it is written, or all of it flushed; or not.
    pub(super) fn on_zeroed(&mut self, op: Op, result: Result<(), IoError>) {
        (self.growth.is_out, self.growth.undone) = (false, 0);
        let Err(error) = result else { return };
        if op == Op::Flush {
            // What it has not covered may be a user's, too.
            self.on_own_flush_failed();
        }
        self.end_growth(Err(RoomError::Unwritten(error)));
    }

    fn end_growth(&mut self, ended: Result<(), RoomError>) -> bool {
        self.growth = Growth::default();
        if self.canary != IntegrityCanary::GrowsAhead
            && let Some(door) = &self.door
        {
            door.end_room(ended);
        }
        true
    }

    /// The label says that there is more, durably, and whatever is handed down from now on goes where that says.
    pub(super) fn take_in_growth(&mut self) {
        let layout = SumLayout::of(self.below.geometry().bytes);
        if layout.bytes <= self.layout.bytes {
            return;
        }
        self.layout = layout;
        if matches!(self.closing, Closing::Done(_)) {
            // What is still to be handed down goes where that says; nothing more is begun.
            return;
        }
        let regions = self.regions.count();
        self.geometry.bytes = layout.bytes;
        self.regions.grow(layout.bytes);
        self.intent.grow(self.regions.blocks() as usize);
        if self.canary != IntegrityCanary::ScrubsWhatWas {
            self.extend_check(regions);
        }
        self.news.push(VolumeEvent::Resized { bytes: layout.bytes });
        self.news_count = self.news_count.wrapping_add(1);
    }

    /// When it may go on that waits for time.
    pub(super) fn next_growth(&self) -> Time {
        let Growth { making: Some(_), is_out: false, .. } = self.growth else { return Time::NEVER };
        let idle = self.pace.idle_at();
        // While somebody waits, what they get lets it go on.
        if idle > self.now { idle } else { Time::NEVER }
    }
}
