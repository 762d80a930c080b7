//! [`WholeMaking`]: the labels of a new whole, written to its parts one after the other (`docs/format.md`, "A whole").

#[cfg(test)]
mod tests;

use std::ops::Range;

use thinwire_buffer::{Pool, SegList};
use thinwire_volume::{Io, IoError, Op, Token, Volume};

use super::signature::{EndMark, UNKNOWN, marks_at_end, what_is_there};
use super::{Finding, LABEL_AREA_BYTES, Label, LabelError, LabelOutcome, Labels};

/// So much of the end of a part is cleared where a mark begins: all of what each of those is, and no more than that.
const MARK_BYTES: u64 = 4096;

/// Each part gets its label so often that neither copy is the first one: beside any later label something else is known for
/// what it is.
const ROUNDS: usize = 3;

/// What is on a part that somebody wants to make one, from what was found of labels and from its first
/// [`LABEL_AREA_BYTES`], and of whose marks stand at its end: words to stand behind its name. Nothing only if all of those are zero, and there is no mark.
pub fn occupant(
    found: &Result<Finding, LabelError>,
    begins: &[u8],
    marks: &[EndMark],
) -> Option<String> {
    match found {
        Ok(Finding::Label(found)) => {
            let Label { name, role, .. } = &found.label;
            Some(format!("is part {role} (counted from 0) of {name:?}"))
        }
        Ok(Finding::Blank) | Err(LabelError::Foreign(_)) => {
            let mut whose: Vec<_> = marks.iter().map(|mark| mark.what).collect();
            whose.dedup();
            let whose = whose.join(" and ");
            match what_is_there(begins) {
                None if marks.is_empty() => None,
                Some(begins) if marks.is_empty() => Some(format!("holds {begins}")),
                // They say more than bytes that nobody knows.
                None | Some(UNKNOWN) => Some(format!("holds {whose}, at its end")),
                Some(begins) => Some(format!("holds {begins}, and {whose} at its end")),
            }
        }
        // It says of whom.
        Err(error) => Some(error.to_string()),
    }
}

/// Whose marks stand at the end of such a part of so many bytes, the last of which are these; none if it has, or had, a label of ours: what stands behind that
/// is data of its whole.
pub fn marks_on(found: &Result<Finding, LabelError>, bytes: u64, ends: &[u8]) -> Vec<EndMark> {
    match found {
        Ok(Finding::Blank) | Err(LabelError::Foreign(_)) => marks_at_end(bytes, ends),
        _ => Vec::new(),
    }
}

/// Makes a whole of parts: first nothing is left of what was on any of them, then each gets its label, one after the other, and all so
/// once more, and once more. The labels name all parts, so what a crash leaves is no whole until each part has one; and it can
/// be made anew, by somebody who says that what is there by then may be overwritten.
///
/// A state machine over one part at a time: until [`WholeMaking::part`] says that there is none left, its volume is handed to
/// [`WholeMaking::turn`], until that says how the step has ended.
pub struct WholeMaking {
    parts: Vec<Part>,
    pool: Pool,
    token: Token,
    steps: Vec<(usize, Step)>,
    /// The one that is under way, or comes next.
    at: usize,
    is_under_way: bool,
    /// What is being cleared is zeroed up to there.
    cleared: u64,
}

struct Part {
    labels: Labels,
    label: Label,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its labels, the newest last.
    Erase,
    /// The first MiB.
    Clear,
    /// Where a mark stands at its end, from that byte on.
    ClearEnd(u64),
    /// One label.
    Label,
}

/// A part whose label area is to be overwritten, or that has nothing in it.
pub struct MadePart {
    /// That have read what is there.
    pub labels: Labels,
    /// What the part is to say.
    pub label: Label,
    /// Something is there: it is lost.
    pub is_occupied: bool,
    /// Others' marks at its end: one is lost, too, if who it is of would take the part for its own by that.
    pub marks: Vec<EndMark>,
}

/// Why a whole was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MakingError {
    /// The part got no label, or did not lose those that it had.
    Label(LabelError),
    /// The rest of its first MiB, or its end, could not be cleared.
    Uncleared(IoError),
}

/// A fault planted in it, which its tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MakingCanary {
    #[default]
    None,
    /// What is beside labels stays.
    KeepsRest,
    /// The first MiB is cleared, and the labels in it with the rest.
    KeepsLabels,
    /// Each part gets one label.
    OneRound,
}

impl WholeMaking {
    /// Of these parts, in any order. `token` is that of all its I/Os, as of those of the labels; memory for them is from `pool`.
    pub fn new(token: Token, pool: &Pool, parts: Vec<MadePart>) -> Self {
        Self::with(token, pool, parts, MakingCanary::None)
    }

    fn with(token: Token, pool: &Pool, parts: Vec<MadePart>, canary: MakingCanary) -> Self {
        let occupied: Vec<_> = (0..parts.len()).filter(|&at| parts[at].is_occupied).collect();
        let mut steps = Vec::new();
        for &at in &occupied {
            if canary != MakingCanary::KeepsLabels {
                steps.push((at, Step::Erase));
            }
            if canary != MakingCanary::KeepsRest {
                steps.push((at, Step::Clear));
                let claims = parts[at].marks.iter().filter(|mark| mark.claims);
                steps.extend(claims.map(|mark| (at, Step::ClearEnd(mark.offset))));
            }
        }
        let rounds = if canary == MakingCanary::OneRound { 1 } else { ROUNDS };
        let round = (0..parts.len()).map(|at| (at, Step::Label));
        (0..rounds).for_each(|_| steps.extend(round.clone()));
        let part = |MadePart { labels, label, .. }| Part { labels, label };
        let parts = parts.into_iter().map(part);
        WholeMaking {
            parts: parts.collect(),
            pool: pool.clone(),
            token,
            steps,
            at: 0,
            is_under_way: false,
            cleared: 0,
        }
    }

    /// The part whose turn it is; none once the whole is made.
    pub fn part(&self) -> Option<usize> {
        self.steps.get(self.at).map(|&(part, _)| part)
    }

    /// Nothing is left of what was there, and no label was written yet: what a module needs behind the labels is to be made now, so that no label
    /// says that it is there before it is.
    pub fn is_cleared(&self) -> bool {
        let is_first = self.at == 0 || self.steps[self.at - 1].1 != Step::Label;
        is_first && self.steps.get(self.at).is_some_and(|(_, step)| *step == Step::Label)
    }

    /// Polls the volume of [that part](WholeMaking::part), which nobody else uses, and goes on; never waits. Says so when the step
    /// has ended: then another part may be next.
    ///
    /// # Errors
    /// See [`MakingError`]. Nothing is under way, and the whole will not be made.
    ///
    /// # Panics
    /// If it is made.
    pub fn turn(&mut self, volume: &mut dyn Volume) -> Option<Result<(), MakingError>> {
        let (part, step) = self.steps[self.at];
        let ended = match step {
            Step::Clear => self.clear(0..LABEL_AREA_BYTES, volume),
            Step::ClearEnd(offset) => {
                let geometry = volume.geometry();
                let block = MARK_BYTES.max(geometry.block_bytes.into());
                let start = offset / block * block;
                self.clear(start..geometry.bytes.min(start + block), volume)
            }
            Step::Erase | Step::Label => self.write(part, step, volume),
        };
        if ended.is_some() {
            self.is_under_way = false;
            self.at += 1;
        }
        ended
    }

    fn write(
        &mut self,
        part: usize,
        step: Step,
        volume: &mut dyn Volume,
    ) -> Option<Result<(), MakingError>> {
        let Part { labels, label, .. } = &mut self.parts[part];
        if !self.is_under_way {
            self.is_under_way = true;
            let begun = match step {
                Step::Label => labels.write(label, volume),
                _ => labels.erase(volume),
            };
            return begun.err().map(|error| Err(MakingError::Label(error)));
        }
        let ended = match labels.turn(volume)? {
            LabelOutcome::Written(written) => written.map(|_| ()),
            LabelOutcome::Erased(erased) => erased,
            LabelOutcome::Read(_) => unreachable!("nothing is read"),
        };
        Some(ended.map_err(MakingError::Label))
    }

    fn clear(
        &mut self,
        range: Range<u64>,
        volume: &mut dyn Volume,
    ) -> Option<Result<(), MakingError>> {
        if self.is_under_way {
            let mut done = Vec::new();
            volume.poll(&mut done);
            let completion = done.into_iter().find(|completion| completion.token == self.token)?;
            if let Err(error) = completion.result {
                return Some(Err(MakingError::Uncleared(error)));
            }
        } else {
            (self.is_under_way, self.cleared) = (true, range.start);
        }
        let left = range.end - self.cleared;
        if left == 0 {
            return Some(Ok(()));
        }
        let len = left.min(volume.geometry().io_bytes_max.into());
        let mut io = Io::new(self.token, Op::Write, self.cleared, len);
        io.data = SegList::of(self.pool.get_zeroed(len as usize).freeze());
        self.cleared += len;
        volume.submit(io);
        None
    }
}

impl std::fmt::Display for MakingError {
    /// A sentence to stand behind the name of the part.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MakingError::Label(error) => error.fmt(f),
            MakingError::Uncleared(error) => {
                let what = if error.offset < LABEL_AREA_BYTES { "a first MiB" } else { "an end" };
                write!(f, "has {what} that cannot be cleared: {error}")
            }
        }
    }
}

impl std::error::Error for MakingError {}
