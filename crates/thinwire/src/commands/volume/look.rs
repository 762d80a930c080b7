//! What labels say of whatever parts are given, and which volumes those make: nothing is changed.

use std::time::Duration;

use thinwire_modules::Options;
use thinwire_modules::meta::{AssemblyError, Finding, SeenPart, assemble};
use thinwire_modules::mirror::{OpeningRefusal, OpeningWish, find_mirror};

use super::{JsonWhole, hex, options_of, read_labels};
use crate::cli::VolumeCommon;
use crate::error::{FailureKind, Outcome};
use crate::host::Host;
use crate::last_resort::catch_signals;
use crate::mirrored::{refused, standings};
use crate::open::{Ending, LOCK_PATIENCE, OpenVolume, let_go, let_go_failed, open_within};
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// The labels of all, each opened to be read; why not of those that cannot be.
pub(super) fn look_at(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
) -> Outcome<Vec<Outcome<SeenPart>>> {
    let seen = look_further(parts, common, |_, _, _| Ok(()))?;
    Ok(seen.into_iter().map(|seen| seen.map(|(seen, ())| seen)).collect())
}

/// The same, for who takes signals already, and goes on behind it.
pub(super) fn look_by(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
    signals: &Signals,
) -> Outcome<Vec<Outcome<SeenPart>>> {
    let seen = look_further_by(parts, common, |_, _, _| Ok(()), signals)?;
    Ok(seen.into_iter().map(|seen| seen.map(|(seen, ())| seen)).collect())
}

/// The same as [`look_at`], and of each part what `further` finds there by what its labels say: it gets the part as the only one of a list.
pub(super) fn look_further<T>(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
    further: impl Fn(&mut [Box<dyn OpenVolume>], &SeenPart, &Signals) -> Outcome<T>,
) -> Outcome<Vec<Outcome<(SeenPart, T)>>> {
    let (signals, _) = catch_signals(2, &parts.iter().collect::<Vec<_>>())?;
    look_further_by(parts, common, further, &signals)
}

fn look_further_by<T>(
    parts: &[VolumeSpec],
    common: &VolumeCommon,
    further: impl Fn(&mut [Box<dyn OpenVolume>], &SeenPart, &Signals) -> Outcome<T>,
    signals: &Signals,
) -> Outcome<Vec<Outcome<(SeenPart, T)>>> {
    let mut options = options_of(common, signals)?;
    options.read_only = true;
    let host = Host::new()?;
    let (mut seen, mut wait_lock) = (Vec::new(), LOCK_PATIENCE);
    for spec in parts {
        let mut part = match open_within(&host, spec, &options, Some(signals), wait_lock) {
            Ok(part) => [part],
            Err(failure) => {
                // Whoever was killed has let go of all by now.
                if failure.kind == FailureKind::Busy && !spec.has_remote() {
                    wait_lock = Duration::ZERO;
                }
                seen.push(Err(failure));
                continue;
            }
        };
        let found = read_labels(&mut part, signals).and_then(|(_, mut found)| {
            let found = found.swap_remove(0);
            let more = further(&mut part, &found, signals)?;
            Ok((found, more))
        });
        match found {
            Ok(found) => seen.push(Ok(found)),
            Err(failure) => {
                let_go_failed(&mut *part[0], false);
                return Err(failure);
            }
        }
        let_go(&mut *part[0], Ending::Orderly)?;
    }
    Ok(seen)
}

/// The wholes that these are parts of, and in which places those are.
pub(super) fn wholes_of(seen: &[Outcome<SeenPart>]) -> Vec<([u8; 16], Vec<usize>)> {
    let mut wholes: Vec<([u8; 16], Vec<usize>)> = Vec::new();
    for (place, part) in seen.iter().enumerate() {
        let Ok(SeenPart { found: Ok(Finding::Label(found)), .. }) = part else { continue };
        let whole = found.label.whole;
        match wholes.iter_mut().find(|(uuid, _)| *uuid == whole) {
            Some((_, places)) => places.push(place),
            None => wholes.push((whole, vec![place])),
        }
    }
    wholes
}

/// What these parts of one whole make.
///
/// # Errors
/// They make nothing.
pub(super) fn whole_of(
    parts: &[SeenPart],
    places: &[usize],
    specs: &[VolumeSpec],
) -> Result<Made, NotMade> {
    let describe = |e: AssemblyError| NotMade {
        why: e.describe(&|place| specs[places[place]].to_string()),
        lacks: if let AssemblyError::Missing { roles, .. } = &e { roles.len() } else { 0 },
    };
    let module = parts.iter().find_map(|part| match &part.found {
        Ok(Finding::Label(found)) => Some(found.label.module),
        _ => None,
    });
    let Some(module) = module.filter(|module| module.is_mirror()) else {
        let whole = assemble(parts).map_err(describe)?;
        let own: Vec<_> = whole.parts.iter().map(|part| places[part.place]).collect();
        let json = JsonWhole {
            name: whole.name,
            uuid: hex(&whole.uuid),
            kind: whole.module.name,
            bytes: whole.bytes,
            parts: own.iter().map(|&place| specs[place].to_string()).collect(),
        };
        let children = own.into_iter().map(Some).enumerate().collect();
        return Ok(Made { json, options: whole.options, children, note: None });
    };
    let own: Vec<_> = places.iter().map(|&place| specs[place].clone()).collect();
    let seen: Vec<_> = parts.iter().cloned().map(Some).collect();
    let whole = find_mirror(&seen).map_err(describe)?;
    let legs = whole.described();
    let plan = whole.plan(OpeningWish::default()).map_err(|refusal| NotMade {
        why: refused(&refusal, &whole, &own, "").message,
        lacks: lacks_of(&refusal, legs.iter().filter(|leg| whole.places[**leg].is_none()).count()),
    })?;
    let is_whole = plan.current.count_ones() as usize == legs.len();
    let note = (!is_whole).then(|| standings(&whole, &own));
    let place = |leg: usize| whole.places[leg].map(|place| places[place]);
    let children: Vec<_> = legs.iter().map(|&leg| (leg, place(leg))).collect();
    let there = children.iter().filter_map(|(_, place)| *place);
    let json = JsonWhole {
        name: whole.name.clone(),
        uuid: hex(&whole.uuid),
        kind: module.name,
        bytes: whole.bytes,
        parts: there.map(|place| specs[place].to_string()).collect(),
    };
    Ok(Made { json, options: whole.options, children, note })
}

/// How many legs more would have to be there of a mirror that is refused for that, of which so many are not.
fn lacks_of(refusal: &OpeningRefusal, absent: usize) -> usize {
    match refusal {
        OpeningRefusal::Missing { legs } => legs.count_ones() as usize,
        // Any that is not there may be the one in sync: nobody knows which, so none may be left out.
        OpeningRefusal::NoneInSync | OpeningRefusal::Old { .. } => absent,
        _ => 0,
    }
}

/// Why parts make nothing.
pub(super) struct NotMade {
    /// For people.
    pub why: String,
    /// So many others would have to be there, with which they may make something; none if something else is wrong with these.
    pub lacks: usize,
}

/// What parts make.
pub(super) struct Made {
    /// Where they are, those that are there.
    pub json: JsonWhole,
    /// What their module is told.
    pub options: Options,
    /// Each of its parts, in their order, by its number, and which of the places that were given has it; none if that is not there.
    pub children: Vec<(usize, Option<usize>)>,
    /// What a user should know of a whole that can be used.
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of legs that are not there each may be the one in sync: one in use of two that are away excuses nothing.
    #[test]
    fn what_has_no_leg_in_sync_lacks_all_that_are_not_there() {
        for absent in 0..4 {
            assert_eq!(lacks_of(&OpeningRefusal::NoneInSync, absent), absent);
        }
        assert_eq!(lacks_of(&OpeningRefusal::Missing { legs: 0b101 }, 3), 2);
    }
}
