//! `thinwire volume scrub`: everything is read, and mended where it can be known what is right.

use std::fmt::Display;
use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_volume::{ScrubReport, Volume};

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
use crate::work::ScrubStatus;

/// How often is looked how far it is.
const GLANCE: Duration = Duration::from_millis(20);
/// How often that is said.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// `volume scrub --json`.
#[derive(Serialize)]
struct Scrubbed {
    schema: u32,
    scrubs: Vec<JsonScrub>,
}

/// See [`ScrubReport`].
#[derive(Serialize)]
struct JsonScrub {
    kind: String,
    bytes: u64,
    /// Where another one goes on; all of it if it was not interrupted.
    position: u64,
    checked_bytes: u64,
    repaired: u64,
    unverified: u64,
    bad: u64,
    differing: u64,
    unread_legs: Vec<u8>,
    places: Vec<u64>,
}

/// Opens a volume, and reads everything that can be scrubbed in it.
pub fn scrub(spec: &VolumeSpec, from: u64, take_over: bool, common: &VolumeCommon) -> Outcome {
    refuse_in_use(spec, "a scrub")?;
    let (signals, last_words) = catch_signals(2, &[spec])?;
    let mut options = options_of(common, &signals)?;
    options.take_over = take_over;
    let mut open = open_volume(spec, &options, Some(&signals))
        .inspect_err(|failure| last_words.set(failure))?;
    match watch(&mut *open, from, &signals, common.json) {
        Ok((is_whole, reports)) => {
            let said = say(spec, is_whole, &reports, common.json);
            let_go(&mut *open, Ending::Orderly).and(said)
        }
        Err(failure) => {
            let_go_failed(&mut *open, true);
            Err(failure)
        }
    }
}

fn reports(volume: &mut dyn Volume) -> Vec<ScrubReport> {
    let mut all = Vec::new();
    volume.scrubs(&mut |scrub| all.push(scrub.scrub_report()));
    all
}

/// Until all have ended; false if that was before they had read everything.
fn watch(
    open: &mut dyn OpenVolume,
    from: u64,
    signals: &Signals,
    is_json: bool,
) -> Outcome<(bool, Vec<ScrubReport>)> {
    open.watch(signals.fd())?;
    go_on(open.volume());
    open.volume().scrubs(&mut |scrub| scrub.begin_scrub(from));
    let (mut said_at, mut done) = (Instant::now(), Vec::new());
    loop {
        open.turn(Wait::Until(Instant::now() + GLANCE))?;
        open.volume().poll(&mut done);
        let all = reports(open.volume());
        if all.is_empty() {
            return Err(Failure::usage(
                "there is neither a mirror nor a volume of kind integrity in it: nothing is scrubbed",
            ));
        }
        if let Some(failed) = all.iter().find(|report| report.has_failed) {
            return Err(Failure::failed(format!(
                "the {} has stopped before everything was read: another has one of its parts, or none could go on; `thinwire volume check` says \
                 what is there",
                failed.module
            )));
        }
        if all.iter().all(|report| !report.is_running) {
            return Ok((true, all));
        }
        if signals.take().is_some() {
            open.volume().scrubs(&mut |scrub| scrub.end_scrub());
            return Ok((false, all));
        }
        if said_at.elapsed() >= SAY_EVERY && !is_json {
            said_at = Instant::now();
            for ScrubReport { module, position, bytes, .. } in &all {
                output::complain(&format!(
                    "{module}: {} of {} MiB were read",
                    position >> 20,
                    bytes >> 20
                ));
            }
        }
    }
}

fn say(spec: &VolumeSpec, is_whole: bool, reports: &[ScrubReport], is_json: bool) -> Outcome {
    let scrubs: Vec<_> = reports.iter().map(ScrubStatus::from).collect();
    say_all(&scrubs, is_json)?;
    if !is_whole {
        let position = reports.iter().map(|report| report.position).min().unwrap_or(0);
        return Err(Failure::failed(format!("interrupted: --from {position} goes on from there")));
    }
    refuse_doubtful(spec, &scrubs)
}

/// What was found.
pub(super) fn say_all(scrubs: &[ScrubStatus], is_json: bool) -> Outcome {
    if is_json {
        let scrubs = scrubs.iter().map(JsonScrub::from).collect();
        return output::say_json(&Scrubbed { schema: SCHEMA, scrubs });
    }
    let lines: Vec<_> = scrubs.iter().map(ScrubStatus::line).collect();
    output::say(&lines.join("\n"))
}

/// Fails if something was found that was not mended.
pub(super) fn refuse_doubtful(spec: &dyn Display, scrubs: &[ScrubStatus]) -> Outcome {
    let unread = scrubs.iter().find_map(ScrubStatus::unread);
    match (scrubs.iter().map(ScrubStatus::doubtful).sum::<u64>(), unread) {
        (0, None) => Ok(()),
        (0, Some(unread)) => Err(Failure::failed(format!(
            "{unread}, since it was not in sync all the while: what is wrong there is not known; scrub {spec} again when it is (`thinwire volume resync`)"
        ))),
        (left, _) => Err(Failure::failed(format!(
            "{left} blocks of {spec} are not known to be what was written: write them again, from a backup perhaps"
        ))),
    }
}

impl From<&ScrubStatus> for JsonScrub {
    fn from(scrub: &ScrubStatus) -> Self {
        JsonScrub {
            kind: scrub.kind.clone(),
            bytes: scrub.bytes,
            position: scrub.position,
            checked_bytes: scrub.checked_bytes,
            repaired: scrub.repaired,
            unverified: scrub.unverified,
            bad: scrub.bad,
            differing: scrub.differing,
            unread_legs: scrub.unread_legs.clone(),
            places: scrub.places.clone(),
        }
    }
}
