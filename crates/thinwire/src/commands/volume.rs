//! `thinwire volume`: labels are written, shown, and put together.
//!
//! * `assemble.rs`: which volumes parts make, and which those make in turn
//! * `by_name.rs`: what attachments and exports are made of that no file describes
//! * `check.rs`: whether labels are sound, and what to do where they are not
//! * `create.rs`: parts get labels
//! * `grow.rs`: what has labels grows by what its parts have grown by
//! * `legs.rs`: a mirror has one leg more, or one less; `legs_live.rs`: the same of one that is in use
//! * `live.rs`: what volumes that are in use do for themselves
//! * `cut.rs`: snapshots of volumes over several pools, as one
//! * `look.rs`: what stands in labels, and what parts of one volume make
//! * `pool.rs`: volumes of pools, their snapshots and clones; `pool_check.rs`: pools as a whole
//! * `rekey.rs`: an encrypted volume has another key
//! * `replace.rs`: another part comes in the place of a leg of a mirror
//! * `resync.rs`: legs of mirrors get what they lack
//! * `scrub.rs`: all is read, and mended where that can be known

mod adopt;
mod assemble;
mod by_name;
mod check;
mod create;
#[cfg(test)]
pub(crate) use self::create::create_quietly;
mod cut;
mod dump;
mod grow;
mod legs;
mod legs_live;
mod live;
mod look;
mod parts;
mod pool;
mod pool_check;
mod rekey;
mod replace;
mod resync;
mod scrub;

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::meta::{LabelOutcome, Labels, SeenPart};
use thinwire_volume::Volume;

use crate::cli::{VolumeAction, VolumeArgs, VolumeCommon, WireArgs};
use crate::error::{Failure, Outcome};
use crate::open::{OpenVolume, VolumeOptions, Wait};
use crate::pool::PoolRequest;
use crate::signals::Signals;
use crate::uri::VolumeSpec;
use crate::work::WorkAction;

/// How long a turn may wait, so that signals are heard.
const NAP: Duration = Duration::from_millis(200);
/// And where others of several parts may have something to do.
const NAP_OF_SEVERAL: Duration = Duration::from_millis(5);

/// Does it.
pub fn run(args: &VolumeArgs) -> Outcome {
    match &args.action {
        VolumeAction::Create { volume, size: Some(bytes), force: _, take_over, common } => {
            let bytes = *bytes;
            let request = |volume| PoolRequest::Create { volume, bytes };
            pool::act(volume, request, *take_over, common)
        }
        VolumeAction::Create { volume, size: None, force, take_over, common } => {
            create::create(volume, *force, *take_over, common)
        }
        VolumeAction::Snapshot { volume, name, common } => {
            let name = name.clone();
            if volume.is_labelled() {
                let request = PoolRequest::Snapshot { volume: String::new(), name };
                return cut::act(volume, &request, common);
            }
            pool::act(volume, |volume| PoolRequest::Snapshot { volume, name }, false, common)
        }
        VolumeAction::Clone { volume, name, common } => {
            let name = name.clone();
            pool::act(volume, |volume| PoolRequest::Clone { volume, name }, false, common)
        }
        VolumeAction::Rollback { volume, to, common } => {
            let to = to.clone();
            pool::act(volume, |volume| PoolRequest::Rollback { volume, to }, false, common)
        }
        VolumeAction::Delete { volume, common } if volume.cut().is_some() => {
            let (whole, volume) = cut::whole_of(volume)?;
            cut::act(&whole, &PoolRequest::Delete { volume }, common)
        }
        VolumeAction::Delete { volume, common } => {
            pool::act(volume, |volume| PoolRequest::Delete { volume }, false, common)
        }
        VolumeAction::Grow { volume, size, take_over, common } => match (volume.pool(), *size) {
            (Some((_, Some(_))), Some(bytes)) => {
                pool::act(volume, |volume| PoolRequest::Grow { volume, bytes }, *take_over, common)
            }
            (Some((_, Some(_))), None) => {
                Err(Failure::usage(format!("{volume}: say how large it is to be")))
            }
            (_, Some(_)) => Err(Failure::usage(format!(
                "{volume} is no volume of a pool, and becomes as large as what it is made of has become: leave out the size"
            ))),
            (_, None) => grow::grow(volume, *take_over, common),
        },
        VolumeAction::Adopt { volume, take_over, common } => {
            adopt::check(volume)?;
            adopt::adopt(volume, *take_over, common)
        }
        VolumeAction::Rekey { volume, to, new_key, old_key, take_over, common } => {
            let (to, new_key, old_key) = (to.as_deref(), new_key.as_deref(), old_key.as_deref());
            let (spec, take_over) = (volume, *take_over);
            rekey::rekey(&rekey::Wanted { spec, to, new_key, old_key, take_over }, common)
        }
        VolumeAction::Show { pool, common, .. } if pool.can_be_cut() => {
            cut::act(pool, &PoolRequest::Show { space: false }, common)
        }
        VolumeAction::Show {
            pool: volume @ VolumeSpec::Over { node: Some(_), .. },
            space: false,
            common,
        } if volume.pool().is_none() => {
            live::OpenElsewhere::must_be(volume, common)?.tell(WorkAction::Status, None, common)
        }
        VolumeAction::Show { pool, space, common } => pool::show(pool, *space, common),
        VolumeAction::Resync { volume, degraded, from, live, take_over, common } => {
            let is_decided = *degraded || from.is_some();
            match live::OpenElsewhere::of(volume, common)? {
                Some(user) if is_decided => {
                    Err(user.refuse("what its legs are is decided when it is opened"))
                }
                Some(user) => user.resync(*live, common),
                None => resync::resync(volume, *degraded, *from, *take_over, common),
            }
        }
        VolumeAction::Scrub { volume, from, stop, live, take_over, common } => {
            match live::OpenElsewhere::of(volume, common)? {
                Some(user) if *stop => user.tell(WorkAction::Stop, None, common),
                Some(user) => user.scrub(*from, *live, common),
                None if *stop => Err(live::nobody(volume)),
                None => scrub::scrub(volume, *from, *take_over, common),
            }
        }
        VolumeAction::Pause { volume, common } => {
            live::OpenElsewhere::must_be(volume, common)?.tell(WorkAction::Pause, None, common)
        }
        VolumeAction::Resume { volume, pace, common } => {
            live::OpenElsewhere::must_be(volume, common)?.tell(WorkAction::Resume, *pace, common)
        }
        VolumeAction::Status { volume, common } => match by_name::name_of(volume) {
            Some(name) => by_name::show(name, common),
            None => {
                live::OpenElsewhere::must_be(volume, common)?.tell(WorkAction::Status, None, common)
            }
        },
        VolumeAction::Limits { volume, limits, common } => {
            live::OpenElsewhere::must_be(volume, common)?.limit(limits, common)
        }
        VolumeAction::Replace { volume, leg, new, degraded, force, take_over, common } => {
            let (spec, new) = (volume, new.as_ref());
            let (leg, degraded, force, take_over) = (*leg, *degraded, *force, *take_over);
            let wanted = replace::Replacement { spec, leg, new, degraded, force, take_over };
            match live::OpenElsewhere::of(volume, common)? {
                Some(user) => legs_live::replace_live(&user, &wanted, common),
                None => replace::replace(&wanted, common),
            }
        }
        VolumeAction::Add { volume, new, force, take_over, common } => {
            let how = legs::Daring { force: *force, degraded: false, take_over: *take_over };
            if let Some(user) = live::OpenElsewhere::of(volume, common)? {
                return legs_live::add_live(&user, volume, new, how, common);
            }
            legs::add(volume, new, how, common)
        }
        VolumeAction::Remove { volume, leg, degraded, take_over, common } => {
            if let Some(user) = live::OpenElsewhere::of(volume, common)? {
                return legs_live::remove_live(&user, volume, leg, common);
            }
            let how = legs::Daring { force: false, degraded: *degraded, take_over: *take_over };
            legs::remove(volume, leg, how, common)
        }
        VolumeAction::Check { parts, repair, force, take_over, common } => {
            let how = (*force, *take_over);
            match (&parts[..], parts.iter().any(|part| part.pool().is_some())) {
                ([pool], true) if pool.inner().is_none() => {
                    pool_check::check(pool, *repair, how, common)
                }
                (_, true) => Err(Failure::usage(
                    "a pool is checked as a whole and by itself, with all of its volumes and snapshots: name it alone, as FILE.toml#POOL, or its parts",
                )),
                (_, false) if *repair => check::repair(parts, how, common),
                (_, false) => check::check(parts, common),
            }
        }
        VolumeAction::Dump { parts, common } => dump::dump(parts, common),
        VolumeAction::Assemble { parts, volume_keys, common } => {
            assemble::assemble_all(parts, volume_keys, common)
        }
    }
}

/// A whole, and where its parts are.
#[derive(Serialize)]
struct JsonWhole {
    name: String,
    uuid: String,
    kind: &'static str,
    bytes: u64,
    /// In the order in which the module takes them.
    parts: Vec<String>,
}

fn options_of(common: &VolumeCommon, signals: &Signals) -> Outcome<VolumeOptions> {
    let security = common.security.read()?;
    let mut options =
        VolumeOptions::new(security, &WireArgs::default(), common.run_dir.run_dir.clone());
    options.hurry = signals.hurry();
    Ok(options)
}

fn read_labels(
    parts: &mut [Box<dyn OpenVolume>],
    signals: &Signals,
) -> Outcome<(Vec<Labels>, Vec<SeenPart>)> {
    let (mut readers, mut seen) = (Vec::new(), Vec::new());
    for at in 0..parts.len() {
        let mut labels = Labels::new(0, parts[at].pool());
        let found = match labels.read(parts[at].volume()) {
            Err(e) => Err(e),
            Ok(()) => match wait_for(parts, at, signals, |volume| labels.turn(volume))? {
                LabelOutcome::Read(found) => found,
                other => unreachable!("{other:?} of a read"),
            },
        };
        let part = &mut parts[at];
        seen.push(SeenPart { found, content: part.volume().identity() });
        readers.push(labels);
    }
    Ok((readers, seen))
}

/// Turns all of `parts` until `look` has found something in that one. The others may be at work for themselves, as mirrors are, and
/// what is synced to this one may wait for what they sync.
fn wait_for<T>(
    parts: &mut [Box<dyn OpenVolume>],
    at: usize,
    signals: &Signals,
    mut look: impl FnMut(&mut dyn Volume) -> Option<T>,
) -> Outcome<T> {
    parts[at].watch(signals.fd())?;
    let nap = if parts.len() == 1 { NAP } else { NAP_OF_SEVERAL };
    loop {
        if let Some(found) = look(parts[at].volume()) {
            return Ok(found);
        }
        if signals.take().is_some() {
            return Err(Failure::failed("interrupted"));
        }
        for (other, part) in parts.iter_mut().enumerate() {
            if other != at {
                part.turn(Wait::No)?;
            }
        }
        parts[at].turn(Wait::Until(Instant::now() + nap))?;
    }
}

fn hex(uuid: &[u8; 16]) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
