//! `thinwire volume add` and `remove`: a mirror has one leg more, or one less.

use thinwire_modules::meta::LabelPart;
use thinwire_modules::mirror::{LEGS_MAX, LegChange, LegState, NO_GENERATION, OpeningWish};

use super::create::new_uuid;
use super::replace::{
    Prepared, check_leg, fill, find, legs_of, place_of, prepare, put_on_record, say_description,
};
use super::{options_of, resync};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::mirrored::refused;
use crate::open::{Ending, VolumeOptions, let_go, let_go_failed, open_volume};
use crate::uri::VolumeSpec;

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
/// between these, it goes on from there.
pub fn add(spec: &VolumeSpec, new: &VolumeSpec, how: Daring, common: &VolumeCommon) -> Outcome {
    let children = legs_of(spec)?;
    refuse_in_use(spec, "adding a leg to it")?;
    let (before, _) = find(children, common)?;
    let plan = before.plan(OpeningWish::default());
    let plan = plan.map_err(|refusal| refused(&refusal, &before, children, ""))?;
    let legs = before.described();
    let nothing = LegState::Behind { at: NO_GENERATION.into() };
    let is_empty = |leg: &usize| {
        before.places[*leg].is_none() && plan.recorded.legs.get(*leg) == Some(&nothing)
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
    let mut described = spec.clone();
    if let VolumeSpec::Over { children, .. } = &mut described {
        // In the order of the labels, if the others are.
        let place = legs.iter().filter(|other| **other < leg).count().min(children.len());
        children.insert(place, new.clone());
    }
    described.refuse_twins().map_err(Failure::failed)?;
    let all = [spec, new];
    let (signals, last_words) = catch_signals(2, &all)?;
    let mut options = options_of(common, &signals)?;
    options.take_over = how.take_over;
    let to = Prepared { new, leg, force: how.force };
    let done = prepare(&to, &before, &options, &signals, None)
        .and_then(|()| match change {
            Some(_) => {
                let wish = OpeningWish { change, ..OpeningWish::default() };
                put_on_record(spec, &VolumeOptions { wish, ..options.clone() }, &signals)
            }
            None => Ok(()),
        })
        .and_then(|()| fill(&to, children, (&described, &options), &signals, common));
    let mirrors = done.inspect_err(|failure| last_words.set(failure))?;
    say_description(&described);
    match mirrors {
        Some(mirrors) => resync::say(mirrors, common.json),
        None => Err(Failure::failed(
            "interrupted: the leg is added, and what it lacks is copied when the mirror is opened again",
        )),
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
    let place = place_of(&before, leg);
    let mut described = spec.clone();
    if let VolumeSpec::Over { children, .. } = &mut described {
        children.remove(place);
    }
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = how.take_over;
    let removing = VolumeOptions { wish, ..options.clone() };
    let done = put_on_record(spec, &removing, &signals).and_then(|()| {
        let mut open = open_volume(&described, &options, Some(&signals))?;
        match resync::watch(&mut *open, &signals, common.json) {
            Ok(mirrors) => let_go(&mut *open, Ending::Orderly).map(|()| mirrors),
            Err(failure) => {
                let_go_failed(&mut *open, true);
                Err(failure)
            }
        }
    });
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
