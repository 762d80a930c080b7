//! `thinwire volume add` and `remove`: a mirror has one leg more, or one less.

use thinwire_modules::meta::LabelPart;
use thinwire_modules::mirror::{LEGS_MAX, LeftAt, LegChange, LegState, NO_GENERATION, OpeningWish};

use super::create::new_uuid;
use super::replace::{
    Mould, Prepared, check_leg, fill, find, legs_of, place_of, prepare, put_on_record,
    say_description,
};
use super::{options_of, resync};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::mirrored::refused;
use crate::open::{Ending, VolumeOptions, let_go, let_go_failed, open_volume};
use crate::output;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// A leg that is on record, and has nothing yet.
const NOTHING: LegState =
    LegState::Behind { at: LeftAt { last: NO_GENERATION, or: NO_GENERATION } };

/// What is said of a part that becomes a leg, and of those that others have.
#[derive(Clone, Copy)]
pub struct Daring {
    /// What is on it is lost.
    pub force: bool,
    /// Legs may be missing that have newer data.
    pub degraded: bool,
    pub take_over: bool,
}

/// Puts it on record that there is one more leg, which has nothing yet, gives the new part its label, and copies all to it. Where an earlier one was cut off
/// between these, or is through, it goes on from there, whether the description names the leg by now or not.
pub fn add(spec: &VolumeSpec, new: &VolumeSpec, how: Daring, common: &VolumeCommon) -> Outcome {
    legs_of(spec)?;
    refuse_in_use(spec, "adding a leg to it")?;
    let (described, mirrors) = add_leg(spec, new, how, common)?;
    say_added(&described, mirrors, common)
}

/// The same: how the mirror is described with it, and how all stand; none if that was interrupted.
fn add_leg(
    spec: &VolumeSpec,
    new: &VolumeSpec,
    how: Daring,
    common: &VolumeCommon,
) -> Outcome<(VolumeSpec, Option<resync::Settled>)> {
    if let Some((described, _)) = already_added(spec, new, how, common)? {
        return complete(described, new, how, common);
    }
    let without = &without(spec, new);
    let children = legs_of(without)?;
    let (before, _) = find(children, common)?;
    let plan = before.plan(OpeningWish::default());
    let plan = plan.map_err(|refusal| refused(&refusal, &before, children, ""))?;
    let legs = before.described();
    let is_empty = |leg: &usize| {
        before.places[*leg].is_none() && plan.recorded.legs.get(*leg) == Some(&NOTHING)
    };
    let is_free =
        |leg: &usize| matches!(plan.recorded.legs.get(*leg), Some(LegState::Removed { .. }));
    // One that is on record already, and got no part.
    let begun = legs.iter().copied().find(is_empty).filter(|_| legs.len() == children.len() + 1);
    let (leg, change) = match begun {
        Some(leg) => (leg, None),
        None if legs.len() != children.len() => {
            return Err(Failure::failed(format!(
                "{spec} is described with {} legs, and has {} by their labels: name all of them, also those that are missing, and none that was \
                 removed",
                children.len(),
                legs.len()
            )));
        }
        None => match (0..before.places.len()).find(is_free) {
            Some(leg) => (leg, Some(LegChange::GiveUp(leg))),
            None if before.places.len() == LEGS_MAX => {
                return Err(Failure::usage(format!(
                    "{spec} has {LEGS_MAX} legs, and no room for more"
                )));
            }
            None => {
                let part = LabelPart { uuid: new_uuid(), bytes: before.bytes };
                (before.places.len(), Some(LegChange::Add(part)))
            }
        },
    };
    let described = with_leg(spec, new, (leg, &legs));
    described.refuse_twins().map_err(Failure::failed)?;
    let all = [without, new];
    let (signals, last_words) = catch_signals(2, &all)?;
    let mut options = options_of(common, &signals)?;
    options.take_over = how.take_over;
    let to = Prepared { new, leg, force: how.force };
    let done = prepare(&to, &Mould::of(&before), &options, &signals, None)
        .and_then(|()| match change {
            Some(_) => {
                let wish = OpeningWish { change, ..OpeningWish::default() };
                put_on_record(without, &VolumeOptions { wish, ..options.clone() }, &signals)
            }
            None => Ok(()),
        })
        .and_then(|()| fill(&to, children, (&described, &options), &signals, common));
    let mirrors = done.inspect_err(|failure| last_words.set(failure))?;
    Ok((described, mirrors))
}

/// Goes on with a leg that was being replaced while the mirror was in use, if one was: the new part is a leg beside it, or there is a row for it. None if not.
pub(super) fn go_on_replacing(
    (spec, old): (&VolumeSpec, usize),
    new: &VolumeSpec,
    how: Daring,
    common: &VolumeCommon,
) -> Outcome<Option<()>> {
    let is_begun = match already_added(spec, new, how, common)? {
        // One of two legs cannot come in the place of the other.
        Some((described, leg)) => leg != old && legs_of(&described)?.len() > 2,
        None => {
            let without = without(spec, new);
            let children = legs_of(&without)?;
            let Ok((whole, _)) = find(children, common) else { return Ok(None) };
            let wish = OpeningWish { degraded: true, ..OpeningWish::default() };
            let Ok(plan) = whole.plan(wish) else { return Ok(None) };
            let is_empty = |leg: &usize| {
                whole.places[*leg].is_none() && plan.recorded.legs.get(*leg) == Some(&NOTHING)
            };
            let legs = whole.described();
            let row = legs.iter().copied().find(is_empty);
            legs.len() == children.len() + 1 && row.is_some_and(|row| row != old)
        }
    };
    if !is_begun {
        return Ok(None);
    }
    let (described, mirrors) = add_leg(spec, new, how, common)?;
    if mirrors.is_none() {
        return Err(Failure::failed(format!(
            "interrupted: {new} is a leg, and leg {old} still is one: the same again goes on"
        )));
    }
    remove(&described, &old.to_string(), how, common).map(Some)
}

fn say_added(
    described: &VolumeSpec,
    mirrors: Option<resync::Settled>,
    common: &VolumeCommon,
) -> Outcome {
    say_description(described);
    match mirrors {
        Some(mirrors) => resync::say(mirrors, common.json),
        None => Err(Failure::failed(
            "interrupted: the leg is added, and what it lacks is copied when the mirror is opened again",
        )),
    }
}

/// The mirror as it is described without that one, which may not be named yet.
pub(super) fn without(spec: &VolumeSpec, new: &VolumeSpec) -> VolumeSpec {
    let mut spec = spec.clone();
    if let VolumeSpec::Over { children, places, .. } = &mut spec {
        let is_new: Vec<_> = children.iter().map(|child| child.is_same(new)).collect();
        if places.len() == is_new.len() {
            let mut kept = is_new.iter();
            places.retain(|_| kept.next() == Some(&false));
        }
        children.retain(|child| !child.is_same(new));
    }
    spec
}

/// The mirror as it is described with it: in the order of the labels, if the others are.
pub(super) fn with_leg(
    spec: &VolumeSpec,
    new: &VolumeSpec,
    (leg, legs): (usize, &[usize]),
) -> VolumeSpec {
    let mut described = spec.clone();
    if let VolumeSpec::Over { children, .. } = &mut described
        && !children.iter().any(|child| child.is_same(new))
    {
        let place = legs.iter().filter(|other| **other < leg).count().min(children.len());
        children.insert(place, new.clone());
    }
    described
}

/// How the mirror is described with a part that has the label of one of its legs already, and which one that is, as what was cut off leaves it: that leg is on record as one, and the
/// part says that it is being copied to, or is known by what it has. What only says that it was a leg once is none.
fn already_added(
    spec: &VolumeSpec,
    new: &VolumeSpec,
    how: Daring,
    common: &VolumeCommon,
) -> Outcome<Option<(VolumeSpec, usize)>> {
    let without = without(spec, new);
    let mut all = legs_of(&without)?.to_vec();
    all.push(new.clone());
    // Why one of them fits nothing is said where it is looked at next.
    let Ok((whole, _)) = find(&all, common) else { return Ok(None) };
    let place = Some(all.len() - 1);
    let Some(leg) = whole.places.iter().position(|at| *at == place) else { return Ok(None) };
    let wish = OpeningWish { degraded: true, ..OpeningWish::default() };
    let Ok(plan) = whole.plan(wish) else { return Ok(None) };
    let says = whole.states[leg].as_ref().map(|own| own.legs[leg]);
    let is_marked = matches!(says, Some(LegState::Resyncing { .. }));
    let is_leg = match plan.recorded.legs[leg] {
        LegState::Removed { .. } | LegState::Failed { .. } => false,
        // It has nothing by the record: somebody wants what is there overwritten.
        stands if stands == NOTHING => is_marked && !how.force,
        _ => true,
    };
    let legs = whole.described();
    match is_leg {
        false => Ok(None),
        true if legs.len() != all.len() => Err(Failure::failed(format!(
            "{new} is leg {leg} of {spec} already, which has {} legs by their labels: name all of them, also those that are missing, and none \
             that was removed",
            legs.len()
        ))),
        true => Ok(Some((with_leg(spec, new, (leg, &legs)), leg))),
    }
}

/// What the added leg lacks is copied to it.
fn complete(
    described: VolumeSpec,
    new: &VolumeSpec,
    how: Daring,
    common: &VolumeCommon,
) -> Outcome<(VolumeSpec, Option<resync::Settled>)> {
    if !common.json {
        output::complain(&format!("{new} is a leg of it already, and gets what it lacks"));
    }
    let (signals, last_words) = catch_signals(2, &[&described])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = how.take_over;
    let mirrors = open_and_watch(&described, &options, &signals, common.json)
        .inspect_err(|failure| last_words.set(failure))?;
    Ok((described, mirrors))
}

/// Opens the mirror until all of its legs that are there are in sync; none if that was interrupted.
fn open_and_watch(
    described: &VolumeSpec,
    options: &VolumeOptions,
    signals: &Signals,
    is_json: bool,
) -> Outcome<Option<resync::Settled>> {
    let mut open = open_volume(described, options, Some(signals))?;
    match resync::watch(&mut *open, signals, is_json) {
        Ok(mirrors) => let_go(&mut *open, Ending::Orderly).map(|()| mirrors),
        Err(failure) => {
            let_go_failed(&mut *open, true);
            Err(failure)
        }
    }
}

/// Puts it on record that this leg is none any more, whether it is there or not.
pub fn remove(spec: &VolumeSpec, which: &str, how: Daring, common: &VolumeCommon) -> Outcome {
    let children = legs_of(spec)?;
    refuse_in_use(spec, "removing a leg of it")?;
    let (before, _) = find(children, common)?;
    let leg = match which.parse::<usize>() {
        Ok(leg) => leg,
        Err(_) => leg_called(spec, children, which, &before.places)?,
    };
    check_leg(spec, &before, leg)?;
    let legs = before.described();
    if legs.len() != children.len() {
        return Err(Failure::failed(format!(
            "{spec} is described with {} legs, and has {} by their labels: name all of them",
            children.len(),
            legs.len()
        )));
    }
    if legs.len() == 2 {
        return Err(Failure::usage(format!(
            "{spec} has two legs, and a mirror has no fewer: put another disk in the place of this one (`thinwire volume replace`), or go on without it (`thinwire \
             volume resync --degraded`)"
        )));
    }
    let change = Some(LegChange::Remove(leg));
    let wish = OpeningWish { degraded: how.degraded, from: None, change };
    let plan = before.plan(wish);
    plan.map_err(|refusal| refused(&refusal, &before, children, ""))?;
    let place = place_of(spec, &before, children, leg)?;
    let mut described = spec.clone();
    if let VolumeSpec::Over { children, .. } = &mut described {
        children.remove(place);
    }
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = how.take_over;
    let removing = VolumeOptions { wish, ..options.clone() };
    let done = put_on_record(spec, &removing, &signals)
        .and_then(|()| open_and_watch(&described, &options, &signals, common.json));
    let mirrors = done.inspect_err(|failure| last_words.set(failure))?;
    say_description(&described);
    match mirrors {
        Some(mirrors) => resync::say(mirrors, common.json),
        None => {
            Err(Failure::failed("interrupted: the leg is removed, and others still lack something"))
        }
    }
}

/// The leg that is described like that.
fn leg_called(
    spec: &VolumeSpec,
    children: &[VolumeSpec],
    which: &str,
    places: &[Option<usize>],
) -> Outcome<usize> {
    let wanted = which.parse::<VolumeSpec>().map_err(|e| Failure::usage(e.to_string()))?;
    let place = children.iter().position(|child| child.is_same(&wanted));
    let leg = place.and_then(|place| places.iter().position(|at| *at == Some(place)));
    leg.ok_or_else(|| {
        Failure::usage(format!(
            "{which} is none of the legs of {spec} that are there: name one by its number, which `thinwire volume check` shows"
        ))
    })
}
