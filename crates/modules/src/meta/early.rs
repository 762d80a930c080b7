//! [`WatchedPart`]: a part of a whole that is only read, whose label says when somebody begins to write (rule 26).
//!
//! Whoever opens a whole for writing puts that into the labels of all of its parts before anything else; who assembled it before, to read, knows others. What is
//! read beside a writer may be a leg that was dropped, or a block that is another volume's by now, so nothing is read any more then.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use thinwire_buffer::{Pool, Time};
use thinwire_volume::{Completion, ErrorKind, Io, IoError, Layer, Token, Volume};

use super::{Finding, LabelError, LabelOutcome, Labels};

/// Of its own I/Os: whoever uses the part as data, or reads its labels, has no such token.
const WATCH_TOKEN: Token = Token::MAX - 2;
/// Nothing is read so long after the beginning of the last look at the label.
pub const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// While it is used the next look begins before that is over, so that nobody waits for it.
const LOOK_AHEAD: Duration = Duration::from_millis(500);

/// How errors of a part name that.
const NAME: &str = "labels";

/// Closed for good when the label of a part says that somebody else writes by now. Clones are of one whole.
#[derive(Clone, Default)]
pub struct ReaderFence(Rc<Inner>);

#[derive(Default)]
struct Inner {
    is_closed: Cell<bool>,
    is_told: Cell<bool>,
}

impl ReaderFence {
    /// Nothing is read any more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.get()
    }

    /// The same, once: for who tells people.
    pub fn take_closed(&self) -> bool {
        self.is_closed() && !self.0.is_told.replace(true)
    }
}

/// What a label says of who writes: whole, part, opening, and its generation: whoever writes a mirror draws no opening, but has other things to say.
type Says = ([[u8; 16]; 3], u64);

/// A part, as it is, for as long as nobody else opens its whole for writing. What comes first waits until its label was read: what that says is what it has to
/// stay. Told the time, it looks again [once in a while](WATCH_PERIOD) as long as something is read, and what comes after a rest waits for such a look, and fails
/// as that does. A part without a label is read as it is. What is stopped fails as a medium does ([`ErrorKind::Io`]): nobody has taken the place of
/// whoever reads, so its users are answered.
pub struct WatchedPart {
    below: Box<dyn Volume>,
    fence: ReaderFence,
    labels: Labels,
    /// What the first look found; none of a part without a label.
    first: Option<Option<Says>>,
    held: VecDeque<Io>,
    /// So many of those had come before the look that is under way began.
    vouched: usize,
    refused: Vec<Completion>,
    now: Time,
    /// When the last look that has found something had begun; and the last one of all.
    looked_at: Time,
    begun_at: Time,
    is_fresh: bool,
    /// Something was read since the last look began.
    is_used: bool,
    canary: WatchCanary,
}

/// A fault planted in it, which tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WatchCanary {
    #[default]
    None,
    /// What was looked at once holds for good.
    LooksOnce,
    /// What comes after a rest is read before the look.
    ReadsFirst,
    /// A look vouches for whatever waits when it ends, however long ago it began.
    LateLooksVouch,
}

impl WatchedPart {
    /// Of a part of the whole that has this fence; memory for labels is from `pool`.
    pub fn new(below: Box<dyn Volume>, fence: ReaderFence, pool: &Pool) -> Self {
        WatchedPart {
            below,
            fence,
            labels: Labels::new(WATCH_TOKEN, pool),
            first: None,
            held: VecDeque::new(),
            vouched: 0,
            refused: Vec::new(),
            now: Time::ZERO,
            looked_at: Time::ZERO,
            begun_at: Time::ZERO,
            is_fresh: false,
            is_used: false,
            canary: WatchCanary::default(),
        }
    }

    fn look(&mut self) {
        if !self.labels.is_idle() {
            return;
        }
        (self.begun_at, self.is_used) = (self.now, false);
        self.vouched = self.held.len();
        if let Err(error) = self.labels.read(&mut *self.below) {
            // It is too small for labels.
            self.on_look(Err(error));
        }
    }

    fn on_look(&mut self, found: Result<Finding, LabelError>) {
        let says = match found {
            Ok(Finding::Label(found)) => {
                let label = &found.label;
                Some(([label.whole, label.part().uuid, label.opening], label.generation))
            }
            // It says nothing, so nobody knows what would be read.
            Err(LabelError::Unread(error)) => return self.fail_held(&error),
            Ok(Finding::Blank) | Err(_) => None,
        };
        self.looked_at = self.begun_at;
        self.is_fresh = self.now < self.looked_at + WATCH_PERIOD;
        if *self.first.get_or_insert(says) != says {
            self.fence.0.is_closed.set(true);
        }
        self.release();
    }

    /// What waited goes down, or is refused; what came after a look had begun that is old by now waits for another.
    fn release(&mut self) {
        let is_vouched =
            self.is_fresh || self.fence.is_closed() || self.canary == WatchCanary::LateLooksVouch;
        let count = if is_vouched { self.held.len() } else { self.vouched };
        for _ in 0..count {
            let Some(io) = self.held.pop_front() else { break };
            self.pass(io);
        }
        if !self.held.is_empty() {
            self.look();
        }
    }

    /// What waited fails as the look did.
    fn fail_held(&mut self, error: &IoError) {
        let kind = if self.fence.is_closed() { ErrorKind::Io } else { error.kind };
        while let Some(io) = self.held.pop_front() {
            self.refused.push(Completion::new(io.token, Err(io.error(kind, NAME))));
        }
    }

    fn pass(&mut self, io: Io) {
        match self.fence.is_closed() {
            true => {
                self.refused.push(Completion::new(io.token, Err(io.error(ErrorKind::Io, NAME))))
            }
            false => {
                self.is_used = true;
                self.below.submit(io);
            }
        }
    }
}

impl Layer for WatchedPart {
    type Below = dyn Volume;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn below_mut(&mut self) -> &mut Self::Below {
        &mut *self.below
    }

    fn take(&mut self, io: Io) {
        if self.is_fresh || self.fence.is_closed() || self.canary == WatchCanary::ReadsFirst {
            return self.pass(io);
        }
        self.held.push_back(io);
        self.look();
    }

    fn bring(&mut self, done: &mut Vec<Completion>) {
        let start = done.len();
        self.below.poll(done);
        while !self.labels.is_idle()
            && let Some(at) =
                done[start..].iter().position(|completion| self.labels.is_mine(completion))
        {
            let own = done.remove(start + at);
            if let Some(LabelOutcome::Read(found)) =
                self.labels.on_completion(own, &mut *self.below)
            {
                self.on_look(found);
            }
        }
        done.append(&mut self.refused);
    }

    fn taken(&self) -> usize {
        let own = usize::from(!self.labels.is_idle());
        self.below.outstanding() - own + self.held.len() + self.refused.len()
    }

    fn own_is_timed(&self) -> bool {
        true
    }

    fn own_turn(&mut self, now: Time) -> Time {
        self.now = now;
        if self.fence.is_closed() || self.canary == WatchCanary::LooksOnce {
            return Time::NEVER;
        }
        if self.is_fresh && self.is_used && now >= self.begun_at + LOOK_AHEAD {
            self.look();
        }
        self.is_fresh &= now < self.looked_at + WATCH_PERIOD;
        let next = match (self.is_fresh, self.labels.is_idle()) {
            (true, true) if self.is_used => {
                (self.begun_at + LOOK_AHEAD).min(self.looked_at + WATCH_PERIOD)
            }
            (true, _) => self.looked_at + WATCH_PERIOD,
            // Then the look is late.
            (false, false) => self.begun_at + WATCH_PERIOD,
            (false, true) => Time::NEVER,
        };
        if next > now { next } else { Time::NEVER }
    }
}
