//! [`decide`]: which legs a mirror may be served from, by what their labels say (rules 3, 6, 7 and 25 of the mirror).
//! Pure: whoever calls has read the labels.

#[cfg(test)]
mod tests;

use std::fmt;

use super::LEGS_MAX;
use super::state::{Generation, LeftAt, LegState, MirrorState, NO_GENERATION};
use crate::meta::LabelPart;

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
    /// There may be more than is served from now on, on a leg that is missing, or that is not the truth any more.
    pub forgets: bool,
}

/// What whoever opens a mirror wants of it, having been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningWish {
    /// Legs that are missing may have newer data. Default: then it is refused.
    pub degraded: bool,
    /// This leg is the truth, where legs were served apart, or none has all data: all others are copied from it. Default: none, and
    /// refused where nothing needs it.
    pub from: Option<usize>,
    /// Which legs there are changes from now on. Default: it does not.
    pub change: Option<LegChange>,
}

/// In what the legs of a mirror change. That holds with the generation that the opening draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegChange {
    /// This leg is given up for good, whether it is there or not: another part comes in its place, and gets all data. Also where one
    /// was removed.
    GiveUp(usize),
    /// This one is given up for good, and nothing comes in its place.
    Remove(usize),
    /// There is one more, behind all others: it has nothing yet, and is known by nothing. Its size is told by its own label.
    Add(LabelPart),
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
        /// When those were drawn, in seconds since 1970; 0 if that is not known.
        drawn_at: [u64; 2],
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
    /// A leg is to be the truth that is not there.
    Absent {
        /// The leg that is missing.
        leg: usize,
    },
    /// A leg is to be the truth, and it is known without that which have all data.
    Undisputed {
        /// Those that have, as bits.
        current: u8,
    },
    /// A leg is to be the truth that was being copied to from one which is there as well: half of it is old.
    HalfCopied {
        /// The one that is to be.
        leg: usize,
        /// The one that has all of it.
        whole: usize,
    },
    /// There is no room for one more leg.
    Full,
    /// Legs are missing that may have more than those that are there.
    Missing {
        /// Which, as bits.
        legs: u8,
    },
}

/// Decides, by what the label of each leg says, none if it is missing.
///
/// # Errors
/// Serving would show, or overwrite, data that may not be the newest; or a leg is to be the truth for no reason.
pub fn decide(
    seen: &[Option<MirrorState>],
    wish: OpeningWish,
) -> Result<OpeningPlan, OpeningRefusal> {
    decide_with(seen, wish, DecideCanary::None)
}

/// A fault planted in what is made of labels, which tests must find.
#[cfg_attr(not(test), allow(dead_code, reason = "tests plant them"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecideCanary {
    None,
    /// Of legs that were served apart the first is the truth.
    FirstOfTwo,
}

fn decide_with(
    seen: &[Option<MirrorState>],
    wish: OpeningWish,
    canary: DecideCanary,
) -> Result<OpeningPlan, OpeningRefusal> {
    let by_labels = compare(seen, wish.degraded, canary);
    let Some(leg) = wish.from else {
        return match wish.change {
            Some(change) => by_labels.and_then(|plan| apply(plan, change)),
            None => by_labels,
        };
    };
    match by_labels {
        Ok(OpeningPlan { current, .. }) => Err(OpeningRefusal::Undisputed { current }),
        Err(
            OpeningRefusal::SplitBrain { .. }
            | OpeningRefusal::NoneInSync
            | OpeningRefusal::Old { .. },
        ) => take(seen, leg, wish.degraded),
        other => other,
    }
}

/// As somebody has decided: which legs there are is another.
fn apply(mut plan: OpeningPlan, change: LegChange) -> Result<OpeningPlan, OpeningRefusal> {
    let nothing = LegState::Behind { at: NO_GENERATION.into() };
    let (leg, stands) = match change {
        LegChange::Add(_) if plan.state.legs.len() == LEGS_MAX => return Err(OpeningRefusal::Full),
        LegChange::Add(_) => {
            plan.state.legs.push(nothing);
            return Ok(plan);
        }
        LegChange::GiveUp(leg) => (leg, nothing),
        // What is there then is known to be old, however long that is ago.
        LegChange::Remove(leg) => {
            let was = plan.state.legs.get(leg).and_then(|stands| stands.left_at());
            let (last, or) = (plan.recorded.generation, NO_GENERATION);
            (leg, LegState::Removed { at: was.unwrap_or(LeftAt { last, or }) })
        }
    };
    match plan.state.legs.get_mut(leg) {
        Some(was) => *was = stands,
        None => return Err(OpeningRefusal::Absent { leg }),
    }
    plan.current &= !(1 << leg);
    plan.resync.retain(|(resynced, _)| *resynced != leg);
    match plan.current {
        0 => Err(OpeningRefusal::NoneInSync),
        _ => Ok(plan),
    }
}

/// As somebody has decided: this leg is the truth.
fn take(
    seen: &[Option<MirrorState>],
    leg: usize,
    degraded: bool,
) -> Result<OpeningPlan, OpeningRefusal> {
    let Some(Some(own)) = seen.get(leg) else { return Err(OpeningRefusal::Absent { leg }) };
    let copies = |(whole, says): &(usize, &MirrorState)| {
        let is_copied = matches!(says.legs[leg], LegState::Resyncing { .. });
        is_copied && says.legs[*whole] == LegState::InSync
    };
    let mut there = seen.iter().enumerate().filter_map(|(at, says)| Some((at, says.as_ref()?)));
    if own.legs[leg] != LegState::InSync
        && let Some((whole, _)) = there.find(copies)
    {
        return Err(OpeningRefusal::HalfCopied { leg, whole });
    }
    let recorded = MirrorState { next: NO_GENERATION, ..own.clone() };
    let (mut state, mut resync, mut missing) = (recorded.clone(), Vec::new(), 0);
    for (other, says) in seen.iter().enumerate().filter(|(other, _)| *other != leg) {
        let stands = &mut state.legs[other];
        match (says, *stands) {
            (_, LegState::Failed { .. } | LegState::Removed { .. }) => {}
            (Some(says), _) => {
                // It is older from now on, and is copied whole, by whatever it is known.
                *stands = LegState::Behind { at: NO_GENERATION.into() };
                resync.push((other, ResyncExtent::Full));
                if says.generation != own.generation && !state.history.contains(&says.generation) {
                    state.remember(says.generation);
                }
            }
            (None, LegState::InSync) => {
                missing |= 1 << other;
                *stands = LegState::Behind { at: LeftAt { last: own.generation, or: own.next } };
            }
            (None, _) => {}
        }
    }
    state.legs[leg] = LegState::InSync;
    if missing != 0 && !degraded {
        return Err(OpeningRefusal::Missing { legs: missing });
    }
    Ok(OpeningPlan { state, recorded, current: 1 << leg, resync, forgets: true })
}

fn compare(
    seen: &[Option<MirrorState>],
    degraded: bool,
    canary: DecideCanary,
) -> Result<OpeningPlan, OpeningRefusal> {
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
        if !other.1.says_as(record) && canary != DecideCanary::FirstOfTwo {
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
            Some(_) if matches!(recorded, LegState::Failed { .. } | LegState::Removed { .. }) => {}
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
        drawn_at: [one.1.drawn_at, other.1.drawn_at],
    }
}

/// What the label of a leg is taken to say of that leg whose content is another than it was: no label says that of its own. What it lacks stands
/// in no bitmap.
pub(super) const DISTRUSTED: LegState =
    LegState::Behind { at: LeftAt { last: NO_GENERATION, or: NO_GENERATION } };

/// Whether it was there before: in the history, or as where that leg was left, which is kept however long it is away.
pub(super) fn knows_as_older(state: &MirrorState, leg: usize, generation: Generation) -> bool {
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
        LegState::Failed { .. } | LegState::Removed { .. } => false,
        // If it is in sync by that, its resync has ended, and its own label was not written any more.
        LegState::InSync => {
            matches!(own.legs[leg], LegState::Resyncing { .. }) && own.next == record.generation
        }
        LegState::Behind { .. } | LegState::Resyncing { .. } => {
            is_on_record(record, leg, own) && own.legs[leg] != DISTRUSTED
        }
    };
    match is_known {
        true => ResyncExtent::Bitmap,
        false => ResyncExtent::Full,
    }
}

pub(super) fn hex(generation: &Generation) -> String {
    generation.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A moment in seconds since 1970, for people.
fn when(seconds: u64) -> String {
    if seconds == 0 {
        return "at a time that is not known".into();
    }
    let (minutes, mut day, mut year) = (seconds / 60 % 1440, seconds / 86400, 1970);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while day >= 365 + u64::from(is_leap(year)) && year < 9999 {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        (day, month) = (day - days, month + 1);
    }
    let (hour, minute, day) = (minutes / 60, minutes % 60, day + 1);
    format!("on {year}-{month:02}-{day:02} at {hour:02}:{minute:02} UTC")
}

/// Legs as people count them here.
fn list(legs: &u8) -> String {
    let legs: Vec<_> =
        (0..8).filter(|leg| legs >> leg & 1 == 1).map(|leg: u8| leg.to_string()).collect();
    legs.join(", ")
}

impl fmt::Display for OpeningRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpeningRefusal::Differ { legs: [a, b] } => write!(
                f,
                "legs {a} and {b}, counted from 0, do not say that they are of one mirror: give those of one"
            ),
            OpeningRefusal::SplitBrain {
                legs: [a, b],
                generations: [one, other],
                drawn_at: [then, later],
            } => write!(
                f,
                "legs {a} and {b}, counted from 0, were written apart, or one is a very old copy: leg {a} has generation {}, \
                 drawn {}, and leg {b} generation {}, drawn {}; neither has what the other has; say from which to \
                 resync, which gives up what the other has, or leave the other out and ask for a degraded opening",
                hex(one),
                when(*then),
                hex(other),
                when(*later)
            ),
            OpeningRefusal::NoneInSync => f.write_str(
                "no leg that is there has all data: each was being copied to, or waited for it; give one that has, or \
                 say from which to resync, which has no more than what was copied to it",
            ),
            OpeningRefusal::Old { leg, by } => write!(
                f,
                "leg {leg}, counted from 0, is an old copy: leg {by} was copied to when another one was in its place; \
                 put that one back, or say from which to resync"
            ),
            OpeningRefusal::Absent { leg } => {
                write!(f, "leg {leg}, counted from 0, is not there to resync from: give it")
            }
            OpeningRefusal::Undisputed { current } => write!(
                f,
                "legs that have all data are known ({}, counted from 0): open it without saying from which to resync",
                list(current)
            ),
            OpeningRefusal::HalfCopied { leg, whole } => write!(
                f,
                "leg {leg}, counted from 0, was being copied to from leg {whole}, which is there and has all that it \
                 was to get: say leg {whole}"
            ),
            OpeningRefusal::Full => write!(
                f,
                "a mirror has {LEGS_MAX} legs at most, those that were removed among them: replace one"
            ),
            OpeningRefusal::Missing { legs } => write!(
                f,
                "legs are missing that may have newer data ({}, counted from 0): give them, or ask for a \
                 degraded opening",
                list(legs)
            ),
        }
    }
}

impl std::error::Error for OpeningRefusal {}
