//! [`WholeOpening`]: a new opening on all parts of a whole, before anybody writes to it (`docs/format.md`, "An opening").

#[cfg(test)]
mod tests;

use std::fmt;

use thinwire_volume::Volume;

use super::{Assembly, Label, LabelError, LabelOutcome, Labels, WholeSizes};

/// Writes to all parts of a whole that it is opened for writing once more, so that from then on a part that does not
/// know of it is an old copy (rule 25): first on all parts what the next opening is, then, once all have that durably, on
/// all that it has come. Between the two a crash leaves parts of which the one kind announces what the other kind has, which
/// [`assemble`](super::assemble) takes for the whole that it is. A single phase would leave parts that differ as an old
/// copy does.
///
/// A state machine over the [`Labels`] of all parts, which it keeps: [`WholeOpening::begin`], then [`WholeOpening::turn`] until
/// that says how it has ended. Only then a user's write may be submitted. In each phase all parts are written at the same time.
/// What fails on one part fails the opening, once the others have ended what was under way: it leaves what a crash does.
pub struct WholeOpening {
    id: [u8; 16],
    /// What the parts say of the one before.
    last: [u8; 16],
    openings: u64,
    sizes: WholeSizes,
    /// What they say from this one on.
    next_sizes: WholeSizes,
    /// What their modules keep from this one on, in the order of the parts, if that is another.
    next_states: Option<Vec<Vec<u8>>>,
    parts: Vec<Part>,
    /// How many phases have begun.
    phase: usize,
    failed: Option<OpeningError>,
    canary: OpeningCanary,
}

struct Part {
    labels: Labels,
    label: Label,
    /// How many phases are durable on it.
    done: usize,
}

/// The part on which an opening has failed, in the order in which they were given, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningError {
    /// Counted from 0.
    pub part: usize,
    /// Why it got no label.
    pub error: LabelError,
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OpeningCanary {
    #[default]
    None,
    /// What the next opening is, is not announced.
    SinglePhase,
    /// A part goes on to the second phase when it has ended the first, whatever the others have.
    EarlySecondPhase,
    /// Users write while the second phase is under way.
    EarlyEnd,
    /// Sizes stand in the labels that announce the opening with which they come.
    GrowsInFirstPhase,
    /// With which bytes a part was made is not kept.
    ForgetsMade,
    /// A half drawn opening is forgotten: the next one is announced beside the one before it.
    ForgetsHalf,
    /// States come with the second phase.
    RestatesLate,
    /// Half of a state comes with each phase.
    RestatesByHalves,
}

const PHASES: usize = 2;

impl WholeOpening {
    /// Of a whole whose parts are all there, each with what was read of it, in any order. `id` is a random number, drawn for this opening.
    ///
    /// # Panics
    /// If `id` is zero, or that of the last opening: whoever calls has no entropy.
    pub fn new(whole: &Assembly, id: [u8; 16], parts: Vec<(Labels, Label)>) -> Self {
        assert!(id != [0; 16] && id != whole.opening, "an opening is a random number");
        assert_eq!(parts.len(), whole.parts.len(), "of each part");
        let part = |(labels, label)| Part { labels, label, done: 0 };
        WholeOpening {
            id,
            last: whole.opening,
            openings: whole.openings,
            sizes: whole.sizes(),
            next_sizes: whole.sizes(),
            next_states: None,
            parts: parts.into_iter().map(part).collect(),
            phase: 0,
            failed: None,
            canary: OpeningCanary::default(),
        }
    }

    /// The whole has grown to these sizes when the opening has ended, and not before (rule 24): each part has so much room already. They stand in no label that
    /// announces the opening, so a crash leaves labels of which those with the larger sizes are known to be the newer.
    ///
    /// # Panics
    /// If something would shrink.
    pub fn grow(&mut self, sizes: WholeSizes) {
        let parts = self.sizes.part_bytes.iter().zip(&sizes.part_bytes);
        let grows = sizes.part_bytes.len() == self.sizes.part_bytes.len()
            && sizes.whole_bytes >= self.sizes.whole_bytes
            && parts.fold(true, |grows, (one, next)| grows && next >= one);
        assert!(grows && self.phase == 0, "{sizes:?} of {:?}", self.sizes);
        self.next_sizes = sizes;
    }

    /// What the module keeps in the labels is this from now on, of each part in the order in which they were given. It stands in the labels of both phases, so when the
    /// opening has ended neither copy of any label says what was there before; until then a crash leaves the one or the other, whole, on each part.
    ///
    /// # Panics
    /// If it has begun, or that is not of each part.
    pub fn restate(&mut self, states: Vec<Vec<u8>>) {
        assert!(
            self.phase == 0 && states.len() == self.parts.len(),
            "of each part, before it begins"
        );
        self.next_states = Some(states);
    }

    /// Submits what comes first. `volumes` are those of the parts, in their order, here and in each turn.
    pub fn begin<V: Volume>(&mut self, volumes: &mut [V]) {
        assert_eq!(self.phase, 0, "it has begun");
        if self.canary == OpeningCanary::SinglePhase {
            self.phase = 1;
            self.parts.iter_mut().for_each(|part| part.done = 1);
        }
        self.next_phase(volumes);
    }

    /// Polls the volumes, and goes on; never waits. Says how the opening has ended, once it has.
    ///
    /// # Errors
    /// See [`OpeningError`]: nothing is under way any more.
    pub fn turn<V: Volume>(&mut self, volumes: &mut [V]) -> Option<Result<(), OpeningError>> {
        for (at, volume) in volumes.iter_mut().enumerate() {
            let part = &mut self.parts[at];
            if part.labels.is_idle() {
                // It may be at work for itself, and what others sync may wait for that.
                volume.poll(&mut Vec::new());
                continue;
            }
            match part.labels.turn(volume) {
                Some(LabelOutcome::Written(Ok(_))) => part.done += 1,
                Some(LabelOutcome::Written(Err(error))) => self.fail(at, error),
                _ => continue,
            }
            if self.canary == OpeningCanary::EarlySecondPhase && self.parts[at].done == 1 {
                self.write(at, 2, volume);
            }
        }
        if self.canary == OpeningCanary::EarlyEnd && self.parts.iter().any(|part| part.done == 2) {
            return Some(Ok(()));
        }
        if self.parts.iter().any(|part| !part.labels.is_idle()) {
            return None;
        }
        if let Some(error) = self.failed.clone() {
            return Some(Err(error));
        }
        if self.parts.iter().all(|part| part.done == PHASES) {
            return Some(Ok(()));
        }
        self.next_phase(volumes);
        None
    }

    /// What it has drawn, and the number of that.
    pub fn drawn(&self) -> ([u8; 16], u64) {
        (self.id, self.openings.saturating_add(1))
    }

    /// The labels of the parts, in the order in which they were given, and what they say.
    pub fn into_labels(self) -> Vec<(Labels, Label)> {
        self.parts.into_iter().map(|part| (part.labels, part.label)).collect()
    }

    fn next_phase<V: Volume>(&mut self, volumes: &mut [V]) {
        self.phase += 1;
        for (at, volume) in volumes.iter_mut().enumerate() {
            self.write(at, self.phase, volume);
        }
    }

    fn write(&mut self, at: usize, phase: usize, volume: &mut dyn Volume) {
        let part = &mut self.parts[at];
        let label = &mut part.label;
        let grows = phase > 1 || self.canary == OpeningCanary::GrowsInFirstPhase;
        // All say the same: a crash may have left some that had not grown yet.
        let sizes = if grows { &self.next_sizes } else { &self.sizes };
        label.whole_bytes = sizes.whole_bytes;
        match self.canary {
            OpeningCanary::ForgetsMade => {
                let rows = label.parts.iter_mut().zip(&sizes.part_bytes);
                rows.for_each(|(row, bytes)| row.bytes = *bytes);
            }
            _ => label.grow(&sizes.part_bytes),
        }
        if let Some(states) = &self.next_states {
            let next = &states[at];
            match (self.canary, phase) {
                (OpeningCanary::RestatesLate, 1) => {}
                (OpeningCanary::RestatesByHalves, 1) => {
                    let half = next.len() / 2;
                    label.state[..half].copy_from_slice(&next[..half]);
                }
                _ => label.state.clone_from(next),
            }
        }
        match phase {
            1 if self.canary == OpeningCanary::ForgetsHalf => label.next_opening = self.id,
            // All say the same of the one before: a crash may have left it half drawn.
            1 => {
                (label.opening, label.openings) = (self.last, self.openings);
                label.next_opening = self.id;
            }
            _ => {
                (label.opening, label.openings) = (self.id, self.openings.saturating_add(1));
                label.next_opening = [0; 16];
            }
        }
        if let Err(error) = part.labels.write(label, volume) {
            self.fail(at, error);
        }
    }

    fn fail(&mut self, part: usize, error: LabelError) {
        self.failed.get_or_insert(OpeningError { part, error });
    }
}

impl fmt::Display for OpeningError {
    /// With a number for the part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {}, counted from 0, {}", self.part, self.error)
    }
}

impl std::error::Error for OpeningError {}
