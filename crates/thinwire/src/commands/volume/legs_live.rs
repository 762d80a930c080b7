//! `thinwire volume add`, `remove` and `replace` of a mirror that is in use: whoever has it open puts it on record, and attaches or opens what comes. The part is given its label
//! here, as while nobody uses the mirror.

use std::path::Path;

use thinwire_modules::mirror::{LegState, MirrorState};

use super::legs::{Daring, with_leg, without};
use super::live::OpenElsewhere;
use super::options_of;
use super::replace::{Mould, Prepared, Replacement, legs_of, prepare, say_description};
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::output;
use crate::uri::VolumeSpec;
use crate::work::{NodeStatus, WorkAction};

/// Has whoever uses the mirror put one more leg on record, gives the part its label, and has it brought and copied to. Where an earlier one was cut off between
/// these, it goes on from there.
pub fn add_live(
    user: &OpenElsewhere,
    spec: &VolumeSpec,
    new: &VolumeSpec,
    how: Daring,
    common: &VolumeCommon,
) -> Outcome {
    legs_of(spec)?;
    refuse_in_use(new, "making it a leg")?;
    let place = wherever(new)?;
    let nodes = user.nodes()?;
    let known = known_as(&nodes, [new, &place], None);
    if let Some(leg) = known.filter(is_there).and_then(|node| node.leg) {
        if !common.json {
            output::complain(&format!("{new} is a leg of it already, and gets what it lacks"));
        }
        return user.await_leg(leg, None, common);
    }
    let known = known.and_then(|node| node.leg);
    let (leg, described) = bring(user, spec, (new, &place), known, how, common)?;
    say_description(&described);
    user.await_leg(leg, None, common)
}

/// The leg that is called so, unless it is this one. One that was removed is none, whatever is shown of it, nor is what another has come in the place of.
fn known_as<'a>(
    nodes: &'a [NodeStatus],
    names: [&VolumeSpec; 2],
    but: Option<usize>,
) -> Option<&'a NodeStatus> {
    let is_it = |node: &&NodeStatus| {
        let named = node.name.parse::<VolumeSpec>().ok();
        let is_so = |named: VolumeSpec| names.iter().any(|name| named.is_same(name));
        node.depth == 1
            && node.leg.is_some()
            && (but.is_none() || node.leg != but)
            && named.is_some_and(is_so)
    };
    nodes.iter().filter(is_it).find(is_one)
}

fn is_one(node: &&NodeStatus) -> bool {
    node.standing.as_deref() != Some("removed")
}

/// It has been brought, and is copied to, or was.
fn is_there(node: &&NodeStatus) -> bool {
    matches!(node.standing.as_deref(), Some("in sync" | "resyncing"))
}

/// What becomes a leg: the one that is known already, or one more. Which one that is, and how the mirror is described with it.
fn bring(
    user: &OpenElsewhere,
    spec: &VolumeSpec,
    (new, place): (&VolumeSpec, &VolumeSpec),
    known: Option<usize>,
    how: Daring,
    common: &VolumeCommon,
) -> Outcome<(usize, VolumeSpec)> {
    let (signals, last_words) = catch_signals(2, &[new])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = how.take_over;
    let done = || -> Outcome<(usize, Vec<usize>)> {
        // All that can be wrong is found out before anything is written.
        let looked = user.add(known, true)?;
        let (leg, legs) = legs_with(&looked.label.role, &looked.label.state)?;
        let described = with_leg(&without(spec, new), new, (leg, &legs));
        described.refuse_twins().map_err(Failure::failed)?;
        let to = Prepared { new, leg, force: how.force };
        prepare(&to, &Mould::of_new(looked, legs), &options, &signals, None)?;
        if signals.take().is_some() {
            return Err(Failure::failed("interrupted: nothing was changed"));
        }
        let added = user.add(known, false)?;
        let label = added.label.clone();
        let (leg, legs) = legs_with(&label.role, &label.state)?;
        let to = Prepared { new, leg, force: how.force };
        let on_record = |failure: Failure| {
            let why = format!(
                ". Leg {leg} is on record, and has nothing: the same again goes on from there, and `thinwire volume remove` gives it up"
            );
            Failure { message: failure.message + &why, ..failure }
        };
        let mould = Mould::of_new(added, legs.clone());
        prepare(&to, &mould, &options, &signals, Some(label)).map_err(on_record)?;
        user.bring(leg, &place.to_string()).map_err(on_record)?;
        Ok((leg, legs))
    };
    let (leg, legs) = done().inspect_err(|failure| last_words.set(failure))?;
    Ok((leg, with_leg(&without(spec, new), new, (leg, &legs))))
}

/// Has another leg come in the place of this one, which stays until that has all data. Where an earlier one was cut off, it goes on from there.
pub fn replace_live(
    user: &OpenElsewhere,
    wanted: &Replacement<'_>,
    common: &VolumeCommon,
) -> Outcome {
    let (spec, old) = (wanted.spec, wanted.leg);
    let children = legs_of(spec)?;
    let nodes = user.nodes()?;
    let legs = || nodes.iter().filter(|node| node.depth == 1 && node.leg.is_some());
    let goes = legs().filter(is_one).find(|node| node.leg == Some(old));
    let Some(goes) = goes else {
        let by = wanted.new.map(wherever).transpose()?.and_then(|place| {
            let new = wanted.new?;
            known_as(&nodes, [new, &place], None).filter(is_there)?.leg
        });
        if let (Some(by), true) = (by, legs().any(|node| node.leg == Some(old))) {
            if !common.json {
                output::complain(&format!("leg {old} is none any more, and leg {by} is there"));
            }
            return user.await_leg(by, None, common);
        }
        let legs: Vec<_> = legs().filter(is_one).filter_map(|node| node.leg).collect();
        let legs = legs.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!(
            "{spec} has legs {legs}, counted from 0, and no leg {old}"
        )));
    };
    let called = goes.name.parse::<VolumeSpec>().ok();
    let called = children.iter().find(|child| called.as_ref().is_some_and(|of| child.is_same(of)));
    let new = match (wanted.new, called) {
        (Some(new), _) => new,
        (None, Some(called)) if !is_there(&goes) => called,
        (None, _) => {
            return Err(Failure::usage(format!(
                "{} is leg {old}: name what comes in its place, or put another disk there",
                goes.name
            )));
        }
    };
    refuse_in_use(new, "making it a leg")?;
    let place = wherever(new)?;
    let is_same = called.is_some_and(|called| called.is_same(new) || called.is_same(&place));
    if is_same && is_there(&goes) {
        if !common.json {
            output::complain(&format!("{new} is leg {old} already, and gets what it lacks"));
        }
        return user.await_leg(old, None, common);
    }
    let known = known_as(&nodes, [new, &place], Some(old));
    let is_brought = known.filter(is_there).and_then(|node| node.leg);
    // One that was given up while nobody used the mirror, and has nothing: its place is free.
    let is_void = || !is_there(&goes) && user.add(Some(old), true).is_ok();
    let fills = known.and_then(|node| node.leg).or_else(|| is_void().then_some(old));
    let how = Daring { force: wanted.force, degraded: false, take_over: wanted.take_over };
    let rest = called.filter(|_| !is_same || fills == Some(old));
    let rest = rest.map_or_else(|| spec.clone(), |called| without(spec, called));
    let (leg, described) = match is_brought {
        Some(leg) => {
            if !common.json {
                output::complain(&format!("{new} is a leg of it already, and gets what it lacks"));
            }
            let legs: Vec<_> = legs().filter(is_one).filter_map(|node| node.leg).collect();
            (leg, with_leg(&without(&rest, new), new, (leg, &legs)))
        }
        None if fills == Some(old) => bring(user, &rest, (new, &place), fills, how, common)?,
        None => {
            let (leg, both) = bring(user, spec, (new, &place), fills, how, common)?;
            if !is_same {
                output::complain(&format!("until leg {leg} has all data, both are legs:"));
                say_description(&both);
            }
            let legs: Vec<_> = legs().filter(is_one).filter_map(|node| node.leg).collect();
            let legs: Vec<_> = legs.into_iter().filter(|other| *other != old).collect();
            (leg, with_leg(&without(&rest, new), new, (leg, &legs)))
        }
    };
    if leg == old {
        say_description(&described);
        return user.await_leg(leg, None, common);
    }
    user.replace(old, leg)?;
    user.await_leg(leg, Some(old), common)?;
    say_description(&described);
    Ok(())
}

/// Which leg a label is of, and all that the mirror has with it.
fn legs_with(role: &u16, state: &[u8]) -> Outcome<(usize, Vec<usize>)> {
    let state = MirrorState::decode(state).map_err(|fault| Failure::failed(fault.to_string()))?;
    let is_one = |leg: &usize| !matches!(state.legs[*leg], LegState::Removed { .. });
    Ok((usize::from(*role), (0..state.legs.len()).filter(is_one).collect()))
}

/// It, as another process finds it, which works in another folder.
fn wherever(spec: &VolumeSpec) -> Outcome<VolumeSpec> {
    let absolute = |path: &Path| {
        std::path::absolute(path)
            .map_err(|e| Failure::failed(format!("cannot tell where {} is: {e}", path.display())))
    };
    let named = match spec {
        VolumeSpec::Path(path) => format!("file:{}", absolute(path)?.display()),
        VolumeSpec::Over { node: Some(node), .. } => node.absolute().to_string(),
        VolumeSpec::Remote(_) => return Ok(spec.clone()),
        _ => return Err(Failure::usage(format!("{spec}: {}", crate::opened::NOT_BROUGHT))),
    };
    named.parse().map_err(|e: crate::error::ParseError| Failure::usage(e.to_string()))
}

/// Has whoever uses the mirror go on without this leg, which is on record before this returns.
pub fn remove_live(
    user: &OpenElsewhere,
    spec: &VolumeSpec,
    which: &str,
    common: &VolumeCommon,
) -> Outcome {
    let children = legs_of(spec)?;
    let before = user.nodes()?;
    let leg = user.remove(which)?;
    let name = before.iter().find(|node| node.depth == 1 && node.leg == Some(leg));
    let name = name.and_then(|node| node.name.parse::<VolumeSpec>().ok());
    let place = name.and_then(|name| children.iter().position(|child| child.is_same(&name)));
    if let Some(place) = place {
        let mut described = spec.clone();
        if let VolumeSpec::Over { children, .. } = &mut described {
            children.remove(place);
        }
        say_description(&described);
    }
    user.tell(WorkAction::Status, None, common)
}
