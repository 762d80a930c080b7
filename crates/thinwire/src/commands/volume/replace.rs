//! `thinwire volume replace`: another part comes in the place of a leg of a mirror.

use std::time::{Duration, Instant};

use thinwire_modules::Module;
use thinwire_modules::meta::{
    Finding, LABEL_AREA_BYTES, Label, LabelError, LabelPart, MadePart, SeenPart, WholeMaking,
    marks_on, occupant,
};
use thinwire_modules::mirror::{
    DrawGeneration, FoundMirror, LegChange, LegState, MirrorState, NO_GENERATION, NewLeg,
    OpeningWish, find_mirror,
};

use super::legs::{Daring, go_on_replacing};
use super::look::look_at;
use super::parts::{read, read_end};
use super::{options_of, read_labels, resync, wait_for};
use crate::cli::VolumeCommon;
use crate::error::{Failure, FailureKind, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::mirrored::{Entropy, places_of_all, refused};
use crate::open::{Ending, OpenVolume, VolumeOptions, Wait, let_go, let_go_failed, open_volume};
use crate::output;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// How often is looked whether a leg is on record as given up.
const GLANCE: Duration = Duration::from_millis(20);

/// What is asked for.
pub struct Replacement<'a> {
    /// The mirror.
    pub spec: &'a VolumeSpec,
    /// Which leg, by the labels.
    pub leg: usize,
    /// What comes in its place; `None`: what it is described as, which is another disk by now.
    pub new: Option<&'a VolumeSpec>,
    /// The leg may have newer data than those that are there.
    pub degraded: bool,
    /// What is on the new part is lost.
    pub force: bool,
    pub take_over: bool,
}

/// Puts it on record that the leg is given up, gives the new part its label, and copies all to it.
pub fn replace(wanted: &Replacement<'_>, common: &VolumeCommon) -> Outcome {
    let spec = wanted.spec;
    let (children, leg) = (legs_of(spec)?, wanted.leg);
    refuse_in_use(spec, "replacing a leg of it")?;
    if let Some(new) = wanted.new {
        let (force, degraded, take_over) = (wanted.force, wanted.degraded, wanted.take_over);
        let how = Daring { force, degraded, take_over };
        if go_on_replacing((spec, leg), new, how, common)?.is_some() {
            return Ok(());
        }
    }
    let wish =
        OpeningWish { degraded: wanted.degraded, from: None, change: Some(LegChange::GiveUp(leg)) };
    // All that can be wrong is found out before anything is written.
    let (before, _) = find(children, common)?;
    check_leg(spec, &before, leg)?;
    let plan = before.plan(wish);
    plan.map_err(|refusal| refused(&refusal, &before, children, ""))?;
    let place = place_of(spec, &before, children, leg)?;
    let new = wanted.new.unwrap_or(&children[place]);
    if before.places[leg] == Some(place) && wanted.new.is_none() {
        return Err(Failure::usage(format!(
            "{new} is leg {leg}: name what comes in its place, or put another disk there"
        )));
    }
    let mut described = spec.clone();
    if let VolumeSpec::Over { children, .. } = &mut described {
        children[place] = new.clone();
    }
    described.refuse_twins().map_err(Failure::failed)?;
    let all = [spec, new];
    let (signals, last_words) = catch_signals(2, &all)?;
    let mut options = options_of(common, &signals)?;
    options.take_over = wanted.take_over;
    let given_up = VolumeOptions { wish, ..options.clone() };
    let to = Prepared { new, leg, force: wanted.force };
    let mould = Mould::of(&before);
    let done = prepare(&to, &mould, &options, &signals, None)
        .and_then(|()| put_on_record(spec, &given_up, &signals))
        .and_then(|()| fill(&to, children, (&described, &options), &signals, common));
    let mirrors = done.inspect_err(|failure| last_words.set(failure))?;
    if wanted.new.is_some() {
        say_description(&described);
    }
    match mirrors {
        Some(mirrors) => resync::say(mirrors, common.json),
        None => Err(Failure::failed(
            "interrupted: the leg is replaced, and what it lacks is copied when the mirror is opened again",
        )),
    }
}

/// Says how the mirror is to be described from now on.
pub(super) fn say_description(described: &VolumeSpec) {
    let VolumeSpec::Over { children, .. } = described else { return };
    let names: Vec<_> = children.iter().map(|child| format!("{:?}", child.to_string())).collect();
    output::complain(&format!("describe it as children = [{}]", names.join(", ")));
}

/// Gives the new part its label, and waits until it has all data; none if that was interrupted.
pub(super) fn fill(
    to: &Prepared<'_>,
    children: &[VolumeSpec],
    (described, options): (&VolumeSpec, &VolumeOptions),
    signals: &Signals,
    common: &VolumeCommon,
) -> Outcome<Option<resync::Settled>> {
    let (whole, label) = new_label(children, to.leg, common)?;
    prepare(to, &Mould::of(&whole), options, signals, Some(label))?;
    let mut open = open_volume(described, options, Some(signals))?;
    match resync::watch_leg(&mut *open, signals, common.json, Some(to.leg)) {
        Ok(mirrors) => let_go(&mut *open, Ending::Orderly).map(|()| mirrors),
        Err(failure) => {
            let_go_failed(&mut *open, true);
            Err(failure)
        }
    }
}

/// The legs of a mirror, as they are described.
pub(super) fn legs_of(spec: &VolumeSpec) -> Outcome<&[VolumeSpec]> {
    match spec {
        VolumeSpec::Over { module, children, labels: true, .. } if module.is_mirror() => {
            Ok(children)
        }
        _ => Err(no_mirror(spec)),
    }
}

/// Whether it has such a leg.
pub(super) fn check_leg(spec: &VolumeSpec, whole: &FoundMirror, leg: usize) -> Outcome {
    let legs = whole.described();
    if legs.contains(&leg) {
        return Ok(());
    }
    let legs: Vec<_> = legs.iter().map(usize::to_string).collect();
    let legs = legs.join(", ");
    Err(Failure::usage(format!("{spec} has legs {legs}, counted from 0, and no leg {leg}")))
}

fn no_mirror(spec: &VolumeSpec) -> Failure {
    Failure::usage(format!("{spec} is no mirror: name one, as FILE.toml#NAME"))
}

/// What the labels of its legs say. A leg that somebody uses is not missing, and nothing is decided without it; of another one that cannot be
/// looked at is told why.
pub(super) fn find(
    children: &[VolumeSpec],
    common: &VolumeCommon,
) -> Outcome<(FoundMirror, Vec<Option<SeenPart>>)> {
    let mut seen = Vec::new();
    for (found, spec) in look_at(children, common)?.into_iter().zip(children) {
        seen.push(match found {
            Ok(found) => Some(found),
            Err(failure) if failure.kind == FailureKind::Busy => {
                return Err(failure.context(format_args!(
                    "{spec} is in use, so nothing was changed: end what uses it (`thinwire status` shows what does on this machine), then try again"
                )));
            }
            Err(failure) => {
                if failure.kind != FailureKind::Absent {
                    output::complain(&format!("{spec} is taken for missing: {failure}"));
                }
                None
            }
        });
    }
    let whole = find_mirror(&seen)
        .map_err(|error| Failure::failed(error.describe(&|place| children[place].to_string())))?;
    Ok((whole, seen))
}

/// Where the description names this leg, which it has: also one that was found in none of its places.
pub(super) fn place_of(
    spec: &VolumeSpec,
    whole: &FoundMirror,
    children: &[VolumeSpec],
    leg: usize,
) -> Outcome<usize> {
    let (described, count) = (whole.described().len(), children.len());
    if described != count {
        return Err(Failure::failed(format!(
            "{spec} is described with {count} legs, and has {described} by their labels: name all of them, also those that are missing, \
             and none that was removed"
        )));
    }
    let places = places_of_all(whole, count);
    let found = places.into_iter().find_map(|(other, place)| (other == leg).then_some(place));
    found.ok_or_else(|| Failure::failed(format!("leg {leg} of {spec} is described nowhere")))
}

/// Opens the mirror until it is on record which legs it has from now on.
pub(super) fn put_on_record(
    spec: &VolumeSpec,
    options: &VolumeOptions,
    signals: &Signals,
) -> Outcome {
    let mut open = open_volume(spec, options, Some(signals))?;
    let waited = wait_open(&mut *open, signals);
    match waited {
        Ok(()) => let_go(&mut *open, Ending::Orderly),
        Err(failure) => {
            let_go_failed(&mut *open, true);
            Err(failure)
        }
    }
}

fn wait_open(open: &mut dyn OpenVolume, signals: &Signals) -> Outcome {
    open.watch(signals.fd())?;
    let mut done = Vec::new();
    loop {
        open.turn(Wait::Until(Instant::now() + GLANCE))?;
        open.volume().poll(&mut done);
        match &open.volume().all_mirrors()[..] {
            [mirror, ..] if mirror.has_stopped => {
                return Err(Failure::failed("it has stopped: another has one of its legs"));
            }
            [mirror, ..] if mirror.is_open => return Ok(()),
            _ => {}
        }
        if signals.take().is_some() {
            return Err(Failure::failed("interrupted: nothing was changed"));
        }
    }
}

/// The label of a part in the place of that leg, by what a leg that has all data says now.
fn new_label(
    children: &[VolumeSpec],
    leg: usize,
    common: &VolumeCommon,
) -> Outcome<(FoundMirror, Label)> {
    let (whole, seen) = find(children, common)?;
    let plan = whole.plan(OpeningWish::default());
    let plan = plan.map_err(|refusal| refused(&refusal, &whole, children, ""))?;
    let source = (0..whole.places.len()).filter(|leg| plan.current >> leg & 1 == 1);
    let label = source.filter_map(|leg| Some((leg, whole.places[leg]?))).find_map(
        |(leg, place)| match &seen[place] {
            Some(SeenPart { found: Ok(Finding::Label(found)), .. }) => {
                Some(whole.label(leg, found.label.clone()))
            }
            _ => None,
        },
    );
    let Some(source) = label else {
        return Err(Failure::failed("no leg that is there has all data"));
    };
    let state = plan.recorded.of_replacement(leg, Entropy.draw());
    let label = Label { role: leg as u16, state: MirrorState::encode(&state), ..source };
    Ok((whole, label))
}

/// A part that is to be a leg.
pub(super) struct Prepared<'a> {
    pub new: &'a VolumeSpec,
    /// That leg, counted from 0.
    pub leg: usize,
    /// What is there is lost.
    pub force: bool,
}

/// What the mirror demands of it.
pub(super) struct Mould {
    whole: [u8; 16],
    bytes: u64,
    /// Its legs.
    legs: Vec<usize>,
    /// Its blocks, where that is told.
    block_bytes: Option<u64>,
    /// Of one that is in use: what its part says that was prepared before, and what it has promised.
    new: Option<NewLeg>,
}

impl Mould {
    /// By what labels say.
    pub fn of(whole: &FoundMirror) -> Self {
        // Whichever legs are there, its blocks stay as large as they are.
        let states = whole.states.iter().flatten();
        let blocks = states.map(|state| 1_u64 << state.block_shift).filter(|block| *block > 1);
        Mould {
            whole: whole.uuid,
            bytes: whole.bytes,
            legs: whole.described(),
            block_bytes: blocks.max(),
            new: None,
        }
    }

    /// By what a mirror in use says.
    pub fn of_new(new: NewLeg, legs: Vec<usize>) -> Self {
        let block_bytes = Some(u64::from(new.needs.block_bytes));
        let (whole, bytes) = (new.label.whole, new.label.whole_bytes);
        Mould { whole, bytes, legs, block_bytes, new: Some(new) }
    }

    /// It is what was prepared before, and got nothing yet.
    fn is_prepared(&self, found: &Label) -> bool {
        self.new.as_ref().is_some_and(|NewLeg { label, .. }| {
            found.whole == label.whole
                && found.role == label.role
                && found.part().uuid == label.part().uuid
                && has_nothing(found)
        })
    }
}

/// It says of itself that it has nothing yet.
fn has_nothing(label: &Label) -> bool {
    let nothing = LegState::Resyncing { at: NO_GENERATION.into() };
    MirrorState::decode(&label.state)
        .is_ok_and(|state| state.legs.get(usize::from(label.role)) == Some(&nothing))
}

/// Looks whether a part can be that leg; with a label it gets that.
pub(super) fn prepare(
    to: &Prepared<'_>,
    whole: &Mould,
    options: &VolumeOptions,
    signals: &Signals,
    label: Option<Label>,
) -> Outcome {
    let &Prepared { new, leg, force } = to;
    let mut part = [open_volume(new, options, Some(signals))?];
    let has_label = label.is_some();
    let labelled = label_part(new, &mut part, whole, (leg, label), force, signals);
    match labelled {
        Ok(()) => let_go(&mut *part[0], Ending::Orderly),
        Err(mut failure) => {
            if has_label {
                failure.message += ". It may be half made: do it again, with --force";
            }
            let_go_failed(&mut *part[0], has_label);
            Err(failure)
        }
    }
}

fn label_part(
    new: &VolumeSpec,
    part: &mut [Box<dyn OpenVolume>; 1],
    whole: &Mould,
    (leg, label): (usize, Option<Label>),
    force: bool,
    signals: &Signals,
) -> Outcome {
    let refused = |why: String| Err(Failure::failed(format!("{new} {why}")));
    let (mut labels, seen) = read_labels(part, signals)?;
    let Some((SeenPart { found, content }, labels)) = seen.into_iter().next().zip(labels.pop())
    else {
        unreachable!("one was read")
    };
    if let Err(error @ (LabelError::Unfit { .. } | LabelError::Unread(_))) = &found {
        return refused(error.to_string());
    }
    // Whatever is said: by another name it may be the last that has all data.
    if let Ok(Finding::Label(found)) = &found
        && found.label.whole == whole.whole
        && usize::from(found.label.role) != leg
        && whole.legs.contains(&usize::from(found.label.role))
    {
        return refused(format!(
            "is leg {} of this mirror, by another name: use another disk",
            found.label.role
        ));
    }
    let geometry = part[0].volume().geometry();
    if geometry.features.read_only {
        return refused("cannot be written".into());
    }
    let data_start = Module::find("mirror").map_or(0, Module::data_start);
    let block = u64::from(geometry.block_bytes);
    let bytes = geometry.bytes.saturating_sub(data_start) / block * block;
    if whole.block_bytes.is_some_and(|blocks| blocks < block) {
        return refused(format!(
            "has blocks of {block} bytes, which are larger than those of the mirror: use another one"
        ));
    }
    if bytes < whole.bytes {
        return refused(format!(
            "has room for {bytes} bytes of data, and the mirror has {}: use a larger one",
            whole.bytes
        ));
    }
    let needs = whole.new.as_ref().map(|new| new.needs);
    if let Some(why) = needs.and_then(|needs| needs.misfit(&geometry)) {
        return refused(why);
    }
    let begins = read(part, 0, LABEL_AREA_BYTES, signals).map_err(|e| e.context(new))?;
    let ends = read_end(part, 0, force, signals).map_err(|e| e.context(new))?;
    let marks = marks_on(&found, geometry.bytes, &ends);
    let what = occupant(&found, &begins, &marks);
    let is_prepared =
        matches!(&found, Ok(Finding::Label(found)) if whole.is_prepared(&found.label));
    let what = what.filter(|_| !is_prepared);
    if let Some(what) = &what {
        if !force {
            return refused(format!(
                "{what}: it would be lost; name another, or say --force to overwrite that"
            ));
        }
        if label.is_some() {
            output::complain(&format!("{new} {what}; that is overwritten"));
        }
    }
    let Some(mut label) = label else { return Ok(()) };
    let LabelPart { uuid, .. } = label.parts[leg];
    label.parts[leg] = LabelPart { uuid, bytes };
    let label = Label { content, data_start, ..label };
    let made = MadePart { labels, label, is_occupied: what.is_some(), marks };
    let mut making = WholeMaking::new(0, part[0].pool(), vec![made]);
    while making.part().is_some() {
        let ended = wait_for(part, 0, signals, |volume| making.turn(volume))?;
        ended.map_err(|e| Failure::failed(format!("{new} {e}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use thinwire_modules::Options;

    use super::*;

    /// Of legs some were removed and others are missing: each that is described has a place of its own, that of one that is there is where
    /// it was found, and the others keep their order.
    #[test]
    fn each_leg_that_is_described_has_a_place_whatever_was_removed_or_is_missing() {
        const LEGS: usize = 4;
        let path = |leg: usize| format!("/leg{leg}").parse::<VolumeSpec>().unwrap();
        for (removed, missing) in
            (0..1 << LEGS).flat_map(|one| (0..1 << LEGS).map(move |o| (one, o)))
        {
            let is_in = |legs: u32, leg: &usize| legs >> leg & 1 == 1;
            let legs: Vec<_> = (0..LEGS).filter(|leg| !is_in(removed, leg)).collect();
            if legs.len() < 2 || legs.iter().all(|leg| is_in(missing, leg)) {
                continue;
            }
            let stands = |leg| match is_in(removed, &leg) {
                true => LegState::Removed { at: [3; 16].into() },
                false => LegState::InSync,
            };
            let mut state = MirrorState::of_new(LEGS, (1 << 20, 4096), 0, &mut Entropy).remove(0);
            state.legs = (0..LEGS).map(stands).collect();
            for is_turned in [false, true] {
                let mut described = legs.clone();
                if is_turned {
                    described.reverse();
                }
                let place = |leg| described.iter().position(|other| *other == leg);
                let is_there = |leg: &usize| !is_in(missing | removed, leg);
                let places: Vec<_> =
                    (0..LEGS).map(|leg| place(leg).filter(|_| is_there(&leg))).collect();
                let states = places.iter().map(|place| place.map(|_| state.clone())).collect();
                let whole = FoundMirror {
                    options: Options::default(),
                    name: "home".into(),
                    uuid: [1; 16],
                    bytes: 1 << 20,
                    parts: vec![LabelPart { uuid: [2; 16], bytes: 1 << 20 }; LEGS],
                    places,
                    states,
                    passed_over: Vec::new(),
                };
                let children: Vec<_> = described.iter().copied().map(path).collect();
                let of = |leg: &usize| place_of(&path(9), &whole, &children, *leg).unwrap();
                let mut found: Vec<_> = legs.iter().map(of).collect();
                for (leg, place) in legs.iter().zip(&found).filter(|(leg, _)| is_there(leg)) {
                    assert_eq!(Some(*place), whole.places[*leg]);
                }
                let lacking = legs.iter().zip(&found).filter(|(leg, _)| !is_there(leg));
                let lacking: Vec<_> = lacking.map(|(_, place)| *place).collect();
                assert!(lacking.is_sorted(), "{removed:b}, {missing:b}: {lacking:?}");
                found.sort_unstable();
                assert_eq!(found, (0..legs.len()).collect::<Vec<_>>(), "{removed:b}, {missing:b}");
                let short = place_of(&path(9), &whole, &children[1..], legs[0]).unwrap_err();
                assert!(short.message.contains("is described with"), "{short}");
            }
        }
    }
}
