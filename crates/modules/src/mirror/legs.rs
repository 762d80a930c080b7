//! [`Leg`]: a volume that a mirror stands on, with its label, and what is outstanding there.

use std::time::Duration;

use thinwire_buffer::Time;
use thinwire_volume::Volume;

use super::state::{Generation, LeftAt, LegState, MirrorState, NO_GENERATION};
use crate::meta::{Label, Labels};

/// So many reads of a leg may fail, while others serve them, before it is dropped; one is forgotten after each of these times.
const READ_ERRORS_MAX: u32 = 16;
const READ_ERROR_LASTS: Duration = Duration::from_secs(60);
/// Of so many reads one goes to another leg than the quickest, so that it is known which that is.
const PROBE_EACH: u64 = 64;
/// What a leg is taken to need that nothing is known of, in nanoseconds, and the least.
const DELAY_NS: u64 = 1000;

/// A volume that is to be a leg, all of it: its labels, its bitmaps and its data.
pub struct MirrorLeg {
    /// The volume. Nobody else uses it.
    pub volume: Box<dyn Volume>,
    /// Its labels: they have been read, and nothing of theirs is under way. Their token is [`LEG_LABEL_TOKEN`](super::LEG_LABEL_TOKEN).
    pub labels: Labels,
    /// What they say.
    pub label: Label,
}

pub(super) struct Leg {
    pub volume: Box<dyn Volume>,
    pub labels: Labels,
    pub label: Label,
    /// What its own label says.
    pub own: MirrorState,
    /// The generation that it may say instead: that was not written, or is about to be.
    pub or: Generation,
    /// It says that it is being copied to, at a generation that was drawn for that since it is here.
    pub is_marked: bool,
    /// While its label is being written: as of what else it is to answer.
    pub label_since: Option<Time>,
    /// What it counted when its events were last taken.
    pub events: u64,
    /// What its labels have taken of the change that is being put on record.
    pub label_spent: Duration,
    /// When it has completed something last, of each [`Kind`](super::lateness::Kind), by the time that counts for legs that are to answer.
    pub answered: [Time; 2],
    pub outstanding: u32,
    /// Something was written since it was asked to flush.
    pub has_unflushed: bool,
    delay_ns: u64,
    read_errors: u32,
    /// Since when none of them was forgotten.
    read_errors_since: Time,
}

impl Leg {
    pub fn new(leg: MirrorLeg, own: MirrorState) -> Self {
        let MirrorLeg { volume, labels, label } = leg;
        let events = volume.events();
        let (outstanding, read_errors, label_since) = (0, 0, None);
        let delay_ns = DELAY_NS;
        let (or, is_marked) = (NO_GENERATION, false);
        Leg {
            volume,
            labels,
            label,
            own,
            or,
            is_marked,
            label_since,
            events,
            label_spent: Duration::ZERO,
            answered: [Time::ZERO; 2],
            outstanding,
            has_unflushed: false,
            delay_ns,
            read_errors,
            read_errors_since: Time::ZERO,
        }
    }

    /// Its own label says this, durably.
    pub fn on_own(&mut self, leg: usize, own: MirrorState) {
        if own.generation == self.or {
            self.or = NO_GENERATION;
        }
        self.is_marked = matches!(own.legs[leg], LegState::Resyncing { .. });
        self.own = own;
    }

    /// What its label says, whatever was being written there.
    pub fn left_at(&self) -> LeftAt {
        LeftAt { last: self.own.generation, or: self.or }
    }

    /// What one more read is expected to take, in nanoseconds.
    #[inline]
    fn expected_ns(&self) -> u64 {
        self.delay_ns.saturating_mul(u64::from(self.outstanding) + 1)
    }

    /// A read took so long from its submission to its completion.
    #[inline]
    pub fn on_delay(&mut self, ns: u64) {
        self.delay_ns = (self.delay_ns.saturating_mul(7).saturating_add(ns) / 8).max(DELAY_NS);
    }

    /// A read failed that another leg served. True if there were too many lately.
    pub fn on_read_error(&mut self, now: Time) -> bool {
        let passed = now.since(self.read_errors_since).as_secs() / READ_ERROR_LASTS.as_secs();
        self.read_errors = self.read_errors.saturating_sub(passed.min(u32::MAX.into()) as u32);
        self.read_errors_since = match self.read_errors {
            0 => now,
            _ => self.read_errors_since + READ_ERROR_LASTS * passed as u32,
        };
        self.read_errors += 1;
        self.read_errors > READ_ERRORS_MAX
    }
}

/// The leg of these, not none, that the `nth` read goes to: which has the least to do, for its speed.
#[inline]
pub(super) fn quickest(legs: &[Option<Leg>], among: u8, nth: u64) -> Option<usize> {
    if among.is_power_of_two() {
        return Some(among.trailing_zeros() as usize);
    }
    let is_among = |leg: &usize| among >> leg & 1 == 1;
    if nth.is_multiple_of(PROBE_EACH) {
        let turn = (nth / PROBE_EACH) as usize % among.count_ones().max(1) as usize;
        return (0..legs.len()).filter(is_among).nth(turn);
    }
    let delay = |leg: &usize| legs[*leg].as_ref().map_or(u64::MAX, Leg::expected_ns);
    (0..legs.len()).filter(is_among).min_by_key(delay)
}
