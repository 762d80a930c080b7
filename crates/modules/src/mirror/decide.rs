//! [`decide`]: which legs a mirror may be served from, by what their labels say (rules 3, 6, 7 and 25 of the mirror).
//! Pure: whoever calls has read the labels.

#[cfg(test)]
mod tests;

use std::fmt;

use super::state::{Generation, LeftAt, LegState, MirrorState, NO_GENERATION};

/// How much of a leg is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResyncExtent {
    /// What its bitmap says.
    Bitmap,
    /// All of it: nobody has kept what it lacks.
    Full,
}

/// What a mirror can be opened as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningPlan {
    /// What the newest label says, but for how the legs stand from now on.
    pub state: MirrorState,
    /// What it says.
    pub recorded: MirrorState,
    /// Legs that have all data, as bits; where a region was open at a crash they may differ.
    pub current: u8,
    /// Legs that are there and have to be copied to, counted from 0: each as it is on record, until that begins.
    pub resync: Vec<(usize, ResyncExtent)>,
    /// A leg is missing that may have more than is served from now on.
    pub forgets: bool,
}

/// Why a mirror is not opened. Legs are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpeningRefusal {
    /// Two legs do not say that they are of one mirror.
    Differ {
        /// Those two.
        legs: [usize; 2],
    },
    /// Two were served apart: neither has what was written to the other.
    SplitBrain {
        /// Those that were.
        legs: [usize; 2],
        /// Their generations.
        generations: [Generation; 2],
    },
    /// None of those that are there has all data.
    NoneInSync,
    /// One that is there was copied to when the one that has all data was newer than it is: that is an old copy.
    Old {
        /// Which is old.
        leg: usize,
        /// Which knows it.
        by: usize,
    },
    /// Legs are missing that may have more than those that are there.
    Missing {
        /// Which, as bits.
        legs: u8,
    },
}

/// Decides, by what the label of each leg says, none if it is missing. `degraded`: whoever asks has been told that
/// missing legs may have more.
///
/// # Errors
/// Serving would show, or overwrite, data that may not be the newest.
pub fn decide(seen: &[Option<MirrorState>], degraded: bool) -> Result<OpeningPlan, OpeningRefusal> {
    check_shape(seen)?;
    let there = || seen.iter().enumerate().filter_map(|(leg, state)| Some((leg, state.as_ref()?)));
    // What a leg says that was being copied to counts for nothing: it is half of one and half of another.
    let whole: Vec<(usize, &MirrorState)> =
        there().filter(|(leg, state)| state.legs[*leg] == LegState::InSync).collect();
    let is_older = |(leg, state): (usize, &MirrorState)| {
        whole.iter().any(|(_, other)| knows_as_older(other, leg, state.generation))
    };
    let newest: Vec<_> = whole.iter().copied().filter(|&leg| !is_older(leg)).collect();
    let Some(&(lead, record)) = newest.first() else {
        // Each older than another: no history is like that.
        return Err(match whole[..] {
            [one, other, ..] => split_brain(one, other),
            _ => OpeningRefusal::NoneInSync,
        });
    };
    for &other in &newest[1..] {
        if !other.1.says_as(record) {
            return Err(split_brain((lead, record), other));
        }
    }
    let knows_more = |&(leg, own): &(usize, &MirrorState)| {
        own.history.contains(&record.generation) && !is_on_record(record, leg, own)
    };
    if let Some((by, _)) = there().find(knows_more) {
        return Err(OpeningRefusal::Old { leg: lead, by });
    }
    let next = newest.iter().map(|(_, own)| own.next).find(|next| *next != NO_GENERATION);
    let recorded = MirrorState { next: NO_GENERATION, ..record.clone() };
    let mut state = recorded.clone();
    let (mut current, mut resync, mut missing) = (0, Vec::new(), 0);
    for (leg, own) in seen.iter().enumerate() {
        let recorded = record.legs[leg];
        match own {
            None if recorded == LegState::InSync => {
                missing |= 1 << leg;
                let (last, or) = (record.generation, next.unwrap_or(NO_GENERATION));
                state.legs[leg] = LegState::Behind { at: LeftAt { last, or } };
            }
            None => {}
            Some(_) if matches!(recorded, LegState::Failed { .. }) => {}
            Some(own) if is_current(record, leg, own) => current |= 1 << leg,
            Some(own) => {
                let extent = extent(record, leg, own);
                resync.push((leg, extent));
                if recorded == LegState::InSync {
                    // What is there under another generation is an old copy, and never trusted.
                    let at = match extent {
                        ResyncExtent::Bitmap => own.generation,
                        ResyncExtent::Full => record.generation,
                    };
                    state.legs[leg] = LegState::Behind { at: at.into() };
                }
            }
        }
    }
    if missing != 0 && !degraded {
        return Err(OpeningRefusal::Missing { legs: missing });
    }
    Ok(OpeningPlan { state, recorded, current, resync, forgets: missing != 0 })
}

fn check_shape(seen: &[Option<MirrorState>]) -> Result<(), OpeningRefusal> {
    let mut first: Option<(usize, &MirrorState)> = None;
    for (leg, state) in seen.iter().enumerate() {
        let Some(state) = state else { continue };
        let (at, one) = *first.get_or_insert((leg, state));
        if state.legs.len() != seen.len() || state.region_shift != one.region_shift {
            return Err(OpeningRefusal::Differ { legs: [at, leg] });
        }
    }
    Ok(())
}

fn split_brain(one: (usize, &MirrorState), other: (usize, &MirrorState)) -> OpeningRefusal {
    OpeningRefusal::SplitBrain {
        legs: [one.0, other.0],
        generations: [one.1.generation, other.1.generation],
    }
}

/// Whether it was there before: in the history, or as where that leg was left, which is kept however long it is away.
fn knows_as_older(state: &MirrorState, leg: usize, generation: Generation) -> bool {
    let is_where_it_was_left = state.legs[leg].left_at().is_some_and(|at| at.is(generation));
    state.generation != generation && (is_where_it_was_left || state.history.contains(&generation))
}

/// A leg in sync by its own label and by the newest. That may be the next one, if its own announces that: a crash came between the two,
/// and nothing was completed under it before both were there. What does not know of it is an old copy (rule 25).
fn is_current(record: &MirrorState, leg: usize, own: &MirrorState) -> bool {
    record.legs[leg] == LegState::InSync
        && own.legs[leg] == LegState::InSync
        && (own.generation == record.generation || own.next == record.generation)
}

/// The newest label knows what this one says.
fn is_on_record(record: &MirrorState, leg: usize, own: &MirrorState) -> bool {
    match record.legs[leg].left_at() {
        Some(at) => at.is(own.generation),
        None => own.generation == record.generation || own.next == record.generation,
    }
}

fn extent(record: &MirrorState, leg: usize, own: &MirrorState) -> ResyncExtent {
    let is_known = match record.legs[leg] {
        LegState::Failed { .. } => false,
        // If it is in sync by that, its resync has ended, and its own label was not written any more.
        LegState::InSync => {
            matches!(own.legs[leg], LegState::Resyncing { .. }) && own.next == record.generation
        }
        LegState::Behind { .. } | LegState::Resyncing { .. } => is_on_record(record, leg, own),
    };
    match is_known {
        true => ResyncExtent::Bitmap,
        false => ResyncExtent::Full,
    }
}

fn hex(generation: &Generation) -> String {
    generation.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for OpeningRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpeningRefusal::Differ { legs: [a, b] } => write!(
                f,
                "legs {a} and {b}, counted from 0, do not say that they are of one mirror"
            ),
            OpeningRefusal::SplitBrain { legs: [a, b], generations: [one, other] } => write!(
                f,
                "legs {a} and {b}, counted from 0, were written apart (generations {} and {}): neither has what \
                 the other has; say from which to resync",
                hex(one),
                hex(other)
            ),
            OpeningRefusal::NoneInSync => f.write_str(
                "no leg that is there has all data: each was being copied to, or waited for it",
            ),
            OpeningRefusal::Old { leg, by } => write!(
                f,
                "leg {leg}, counted from 0, is an old copy: leg {by} was copied to when another one was in its place; \
                 put that one back"
            ),
            OpeningRefusal::Missing { legs } => {
                let legs: Vec<_> =
                    (0..8).filter(|leg| legs >> leg & 1 == 1).map(|leg| leg.to_string()).collect();
                write!(
                    f,
                    "legs are missing that may have newer data ({}, counted from 0): give them, or ask for a \
                     degraded opening",
                    legs.join(", ")
                )
            }
        }
    }
}

impl std::error::Error for OpeningRefusal {}
