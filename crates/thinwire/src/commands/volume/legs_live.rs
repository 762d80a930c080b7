//! `thinwire volume add` and `remove` of a mirror that is in use: whoever has it open puts it on record, and attaches or opens what comes. The part is given its label
//! here, as while nobody uses the mirror.

use std::path::Path;

use thinwire_modules::mirror::{LegState, MirrorState};

use super::legs::{Daring, with_leg, without};
use super::live::OpenElsewhere;
use super::options_of;
use super::replace::{Mould, Prepared, legs_of, prepare, say_description};
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
    let is_it = |node: &&NodeStatus| {
        let named = || node.name.parse::<VolumeSpec>().ok();
        node.depth == 1 && named().is_some_and(|named| named.is_same(new) || named.is_same(&place))
    };
    // One that was removed is none, whatever is shown of it.
    let is_leg = |node: &&NodeStatus| node.standing.as_deref() != Some("removed");
    let known = nodes.iter().filter(is_it).find(is_leg);
    let is_there =
        |node: &NodeStatus| matches!(node.standing.as_deref(), Some("in sync" | "resyncing"));
    if let Some(leg) = known.filter(|node| is_there(node)).and_then(|node| node.leg) {
        if !common.json {
            output::complain(&format!("{new} is a leg of it already, and gets what it lacks"));
        }
        return user.await_leg(leg, common);
    }
    let known = known.and_then(|node| node.leg);
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
    drop((last_words, signals));
    say_description(&with_leg(&without(spec, new), new, (leg, &legs)));
    user.await_leg(leg, common)
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
