//! `thinwire volume resync`: legs of a mirror that lack something get it, and what nobody can know is decided.

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::mirror::OpeningWish;
use thinwire_volume::{LegReport, LegStanding, MirrorReport};

use super::options_of;
use crate::cli::VolumeCommon;
use crate::error::{Failure, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::catch_signals;
use crate::mirrored::go_on;
use crate::open::{Ending, OpenVolume, Wait, let_go, let_go_failed, open_volume};
use crate::output;
use crate::rundir::SCHEMA;
use crate::signals::Signals;
use crate::uri::VolumeSpec;

/// How often is looked how far it is.
const GLANCE: Duration = Duration::from_millis(50);
/// How often that is said.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// What cannot be copied for so long, in which it is tried again twice, is given up.
const HELD_UP_MAX: Duration = Duration::from_secs(12);

/// `volume resync --json`, and `volume replace --json`.
#[derive(Serialize)]
struct Resynced {
    schema: u32,
    mirrors: Vec<JsonMirror>,
}

#[derive(Serialize)]
struct JsonMirror {
    legs: Vec<JsonLeg>,
}

#[derive(Serialize)]
struct JsonLeg {
    /// `in sync`, `resyncing`, `behind` or `failed`.
    standing: &'static str,
    /// How much it lacks at most, in bytes.
    lacks: u64,
}

/// Opens a volume of mirrors, and waits until all of their legs that are there are in sync.
pub fn resync(
    spec: &VolumeSpec,
    degraded: bool,
    from: Option<usize>,
    take_over: bool,
    common: &VolumeCommon,
) -> Outcome {
    refuse_in_use(spec, "a resync")?;
    if degraded || from.is_some() {
        refuse_several(spec)?;
    }
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    options.wish = OpeningWish { degraded, from, change: None };
    options.take_over = take_over;
    let mut open = open_volume(spec, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))?;
    match watch(&mut *open, &signals, common.json) {
        Ok(Some(settled)) => {
            let said = say(settled, common.json);
            let_go(&mut *open, Ending::Orderly).and(said)
        }
        Ok(None) => {
            let_go(&mut *open, Ending::Orderly)?;
            Err(Failure::failed("interrupted: it goes on from there when it is opened again"))
        }
        Err(failure) => {
            let_go_failed(&mut *open, true);
            Err(failure)
        }
    }
}

/// What is decided is decided of one mirror.
fn refuse_several(spec: &VolumeSpec) -> Outcome {
    let mut mirrors = Vec::new();
    spec.mirrors(&mut mirrors);
    match &mirrors[..] {
        [] | [_] => Ok(()),
        all => Err(Failure::usage(format!(
            "there are several mirrors in it: name the one that is meant, of {}",
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
        ))),
    }
}

/// What a resync has come to.
pub(super) struct Settled {
    mirrors: Vec<MirrorReport>,
    /// Legs that were there, and have not all data all the same: which they are, and how they stand.
    lost: Vec<String>,
}

/// Until nothing is copied any more; none if it was interrupted.
pub(super) fn watch(
    open: &mut dyn OpenVolume,
    signals: &Signals,
    is_json: bool,
) -> Outcome<Option<Settled>> {
    watch_leg(open, signals, is_json, None)
}

/// The same, of a mirror that is to have this leg in the end.
pub(super) fn watch_leg(
    open: &mut dyn OpenVolume,
    signals: &Signals,
    is_json: bool,
    leg: Option<usize>,
) -> Outcome<Option<Settled>> {
    open.watch(signals.fd())?;
    go_on(open.volume());
    let mut used = Vec::new();
    open.volume().mirrors(&mut used);
    let mut used: Vec<Vec<bool>> = used.iter().map(are_used).collect();
    if let (Some(leg), Some(legs)) = (leg, used.first_mut()) {
        legs.iter_mut().skip(leg).take(1).for_each(|used| *used = true);
    }
    let (mut said_at, mut done) = (Instant::now(), Vec::new());
    // What lacks stays the same since then, although it was tried again.
    let (mut lacked, mut held_up) = (0, None);
    loop {
        open.turn(Wait::Until(Instant::now() + GLANCE))?;
        open.volume().poll(&mut done);
        let mut mirrors = Vec::new();
        open.volume().mirrors(&mut mirrors);
        if mirrors.is_empty() {
            return Err(Failure::usage("there is no mirror in it: nothing is resynced"));
        }
        for (used, mirror) in used.iter_mut().zip(&mirrors) {
            used.iter_mut().zip(are_used(mirror)).for_each(|(used, is_used)| *used |= is_used);
        }
        if mirrors.iter().all(MirrorReport::is_settled) {
            return match mirrors.iter().any(|mirror| mirror.has_stopped) {
                true => Err(Failure::failed(
                    "it has stopped: another has one of its legs, or none could go on; `thinwire volume check` says what is there",
                )),
                false => {
                    let lost = lost_of(open, &used, &mirrors);
                    Ok(Some(Settled { mirrors, lost }))
                }
            };
        }
        if signals.take().is_some() {
            return Ok(None);
        }
        let lacks = |mirror: &MirrorReport| {
            let copied_to = mirror.legs.iter().filter(|leg| leg.standing == LegStanding::Resyncing);
            copied_to.map(|leg| leg.lacks).max().unwrap_or(0)
        };
        let left: u64 = mirrors.iter().map(lacks).sum();
        if left != lacked || !mirrors.iter().any(|mirror| mirror.is_held_up) {
            // Between two tries it is not held up.
            held_up = held_up.filter(|_| left == lacked);
        } else if held_up.get_or_insert_with(Instant::now).elapsed() >= HELD_UP_MAX {
            return Err(Failure::failed(format!(
                "{} KiB could not be copied, and all else was: they cannot be read, or not be written, as the log of what holds the \
                 legs may say; it is tried again whenever the mirror is in use",
                left.div_ceil(1 << 10)
            )));
        }
        lacked = left;
        if said_at.elapsed() >= SAY_EVERY && !is_json {
            said_at = Instant::now();
            output::complain(&format!("{} MiB are left to copy at most", left >> 20));
        }
    }
}

/// Legs of a mirror that are there: they have all data, or get it.
fn are_used(mirror: &MirrorReport) -> Vec<bool> {
    let is_used =
        |leg: &LegReport| matches!(leg.standing, LegStanding::InSync | LegStanding::Resyncing);
    mirror.legs.iter().map(is_used).collect()
}

/// Those that were used and have not all data now, as users call them.
fn lost_of(open: &mut dyn OpenVolume, used: &[Vec<bool>], mirrors: &[MirrorReport]) -> Vec<String> {
    let mut wholes = Vec::new();
    open.volume().works(&mut |work| {
        if work.mirror().is_some() {
            wholes.push(work.whole());
        }
    });
    let outline = open.outline();
    let place = |mirror: usize, leg: usize| {
        let whole = wholes.get(mirror).copied()?;
        let at = outline.iter().position(|node| node.whole == Some(whole))?;
        let below = outline[at + 1..].iter().take_while(|node| node.depth > outline[at].depth);
        let mut legs = below.filter(|node| node.depth == outline[at].depth + 1);
        legs.find(|node| node.leg == Some(leg)).map(|node| node.name.clone())
    };
    let mut lost = Vec::new();
    for (mirror, (used, report)) in used.iter().zip(mirrors).enumerate() {
        for (leg, stands) in report.legs.iter().enumerate() {
            if used.get(leg) == Some(&true) && stands.standing != LegStanding::InSync {
                let place = place(mirror, leg).map_or(String::new(), |place| format!(" ({place})"));
                lost.push(format!("leg {leg}{place} is {}", stands.standing.name()));
            }
        }
    }
    lost
}

/// # Errors
/// A leg that was there has not all data.
pub(super) fn say(Settled { mirrors, lost }: Settled, is_json: bool) -> Outcome {
    let refused = match lost.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "not all was copied: {}. It was there and failed meanwhile, as the log may say: look after it, and resync again",
            lost.join(", ")
        ))),
    };
    let is_removed = |leg: &LegReport| leg.standing == LegStanding::Removed;
    let has_all = |leg: &LegReport| leg.standing == LegStanding::InSync;
    let are_all =
        |mirror: &MirrorReport| mirror.legs.iter().filter(|leg| !is_removed(leg)).all(has_all);
    let is_whole = mirrors.iter().all(are_all);
    if is_json {
        let leg = |leg: &LegReport| JsonLeg { standing: leg.standing.name(), lacks: leg.lacks };
        let mirror =
            |mirror: &MirrorReport| JsonMirror { legs: mirror.legs.iter().map(leg).collect() };
        let mirrors = mirrors.iter().map(mirror).collect();
        return output::say_json(&Resynced { schema: SCHEMA, mirrors }).and(refused);
    }
    for mirror in &mirrors {
        let legs = mirror.legs.iter().enumerate().filter(|(_, leg)| !is_removed(leg));
        let legs = legs.map(|(nth, leg)| format!("leg {nth} is {}", leg.standing.name()));
        output::say(&legs.collect::<Vec<_>>().join(", "))?;
    }
    if !is_whole && lost.is_empty() {
        output::complain("legs that are not there stay behind: give them, and resync again");
    }
    refused
}
