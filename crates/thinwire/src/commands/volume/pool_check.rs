//! `thinwire volume check FILE.toml#POOL`: all that a pool keeps of its volumes; with `--repair`, what is counted wrongly is counted anew.

use serde::Serialize;
use thinwire_modules::meta::tree::TreeFinding;
use thinwire_modules::thin::{PoolCheck, PoolFinding, PoolRepair};

use super::check::doubts_of_pool;
use super::pool::{OpenPool, refuse_used, with_pool};
use crate::cli::VolumeCommon;
use crate::error::{Failure, FailureKind, Outcome};
use crate::guard::refuse_in_use;
use crate::output;
use crate::rundir::SCHEMA;
use crate::uri::VolumeSpec;

/// Reference counts in memory at a time, of 8 bytes.
const WINDOW: usize = 4 << 20;
/// So many findings are shown one by one.
const SHOWN_MAX: usize = 50;
/// Checks after repairs: what comes to light by the first is found by the second.
const ROUNDS_MAX: u64 = 8;

/// `volume check --json` of a pool.
#[derive(Serialize)]
pub(super) struct JsonPoolCheck {
    schema: u32,
    pub pool: String,
    pub sound: bool,
    /// Somebody else uses it: it was not checked.
    pub in_use: bool,
    /// Why nothing was found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How many counts were put right.
    repaired: u64,
    findings: Vec<JsonFinding>,
    /// What is wrong with labels of its parts by which something may be lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    /// What a user can do about it, where that is not said of why the command failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

/// What is wrong, and is not put right.
#[derive(Serialize)]
struct JsonFinding {
    /// For people.
    what: String,
    /// `--repair` can put it right.
    can_be_repaired: bool,
    /// The bytes of a volume that cannot be read.
    lost: Option<JsonLost>,
}

#[derive(Serialize)]
struct JsonLost {
    volume: String,
    from: u64,
    to: u64,
}

/// Looks at a pool, which nobody uses, and puts right what can be if it is to be repaired.
/// Where a label that is torn may have said more than what is left, nothing is written, unless it is forced.
pub fn check(
    pool: &VolumeSpec,
    repair: bool,
    (force, take_over): (bool, bool),
    common: &VolumeCommon,
) -> Outcome {
    refuse_used(pool, common)?;
    let labels = doubts_of_pool(pool, repair && !force, common)?;
    if repair {
        refuse_in_use(pool, "repairing it")?;
    }
    let how = (!repair, repair);
    let (found, repaired) = with_pool(pool, how, repair && take_over, common, |open| {
        if !repair {
            return Ok((look(open)?, 0));
        }
        let (mut done, mut mixed) = (0, Vec::new());
        for _ in 0..ROUNDS_MAX {
            let mut found = look(open)?;
            match put_right(open, &found)? {
                0 => {
                    found.append(&mut mixed);
                    return Ok((found, done));
                }
                some => done += some,
            }
            // What stands there stays what it is, whoever writes there from now on.
            found.retain(is_mixed);
            mixed.append(&mut found);
        }
        let mut found = look(open)?;
        found.append(&mut mixed);
        Ok((found, done))
    })?;
    say(pool, (&found, labels), (repair, repaired), common.json)
}

/// What is wrong with one that others stand on; why that is not known, if it is not.
pub(super) fn look_at(pool: &VolumeSpec, common: &VolumeCommon) -> JsonPoolCheck {
    let found = refuse_used(pool, common)
        .and_then(|()| with_pool(pool, (true, false), false, common, look));
    match found {
        Ok(found) => {
            let todo = what_to_do(&found, false);
            JsonPoolCheck { todo, ..JsonPoolCheck::of(pool, &found, 0) }
        }
        Err(failure) => JsonPoolCheck {
            sound: false,
            in_use: failure.kind == FailureKind::Busy,
            why: Some(failure.message),
            ..JsonPoolCheck::of(pool, &[], 0)
        },
    }
}

impl JsonPoolCheck {
    fn of(pool: &VolumeSpec, found: &[PoolFinding], repaired: u64) -> Self {
        let lost = |finding: &PoolFinding| match finding {
            PoolFinding::Lost { name, bytes, .. } => {
                Some(JsonLost { volume: name.clone(), from: bytes.start, to: bytes.end })
            }
            _ => None,
        };
        let finding = |finding: &PoolFinding| JsonFinding {
            what: finding.to_string(),
            can_be_repaired: PoolRepair::can(finding),
            lost: lost(finding),
        };
        JsonPoolCheck {
            schema: SCHEMA,
            pool: pool.to_string(),
            sound: found.is_empty(),
            in_use: false,
            why: None,
            repaired,
            findings: found.iter().map(finding).collect(),
            labels: Vec::new(),
            todo: None,
        }
    }

    /// The same for people.
    pub fn lines(&self) -> Vec<String> {
        let JsonPoolCheck { pool, sound, why, repaired, findings, labels, todo, .. } = self;
        let shown = findings.iter().take(SHOWN_MAX).map(|finding| finding.what.clone());
        let mut lines: Vec<_> = labels.iter().cloned().chain(shown).collect();
        if findings.len() > SHOWN_MAX {
            lines.push(format!("and {} more", findings.len() - SHOWN_MAX));
        }
        if *repaired > 0 {
            lines.push(format!("put right: {repaired}"));
        }
        if *sound {
            lines.push(format!("{pool} is sound"));
        }
        let said = if self.in_use { "is in use, and was not checked" } else { "cannot be checked" };
        lines.extend(why.iter().map(|why| format!("{pool} {said}: {why}")));
        lines.extend(todo.iter().map(|todo| {
            format!("{pool} is not sound, and is seen to by itself, with `thinwire volume check [--repair] {pool}`. {todo}")
        }));
        lines
    }
}

/// All that is wrong.
fn look(open: &mut OpenPool<'_>) -> Outcome<Vec<PoolFinding>> {
    open.rest()?;
    let mut check = PoolCheck::new(&open.pool, WINDOW);
    let mut found = Vec::new();
    while !check.is_done() {
        let (finding, came_on) = check.step(&open.pool);
        found.extend(finding);
        if !came_on {
            open.turn_or_end("nothing was changed")?;
        }
    }
    Ok(found)
}

/// Puts right what can be: how much that was. Durable when this returns.
fn put_right(open: &mut OpenPool<'_>, found: &[PoolFinding]) -> Outcome<u64> {
    let mut repair = PoolRepair::new(found);
    while !repair.is_done() {
        let stepped = repair.step(&open.pool);
        if !stepped.map_err(|e| Failure::failed(format!("cannot be repaired: {e}")))? {
            open.turn_or_end("what was put right is; run it again")?;
        }
    }
    open.rest()?;
    Ok(repair.done())
}

fn say(
    pool: &VolumeSpec,
    (found, labels): (&[PoolFinding], Vec<String>),
    (repair, repaired): (bool, u64),
    is_json: bool,
) -> Outcome {
    // What was torn is written anew by whoever repairs.
    let is_in_doubt = !repair && !labels.is_empty();
    let json = JsonPoolCheck::of(pool, found, repaired);
    let json = JsonPoolCheck { sound: json.sound && !is_in_doubt, labels, ..json };
    match is_json {
        true => output::say_json(&json)?,
        false => output::say(&output::printable(&json.lines().join("\n")))?,
    }
    match what_to_do(found, repaired > 0) {
        None if is_in_doubt => Err(Failure::failed(format!(
            "{pool}: what is left is sound; keep a copy of the part whose label is torn before the pool is opened for writing"
        ))),
        None => Ok(()),
        Some(what) => Err(Failure::failed(format!("{pool}: {} findings. {what}", found.len()))),
    }
}

/// What stands there may be another volume's.
fn is_mixed(finding: &PoolFinding) -> bool {
    matches!(finding, PoolFinding::Overlap { .. })
}

/// What a user can do about that; none if nothing is wrong.
fn what_to_do(found: &[PoolFinding], is_repaired: bool) -> Option<String> {
    let is_map = |finding: &PoolFinding| matches!(finding, PoolFinding::Trees(finding) if finding.of_map().is_some());
    let is_lost = |finding: &PoolFinding| match finding {
        PoolFinding::Lost { .. } => true,
        PoolFinding::Trees(TreeFinding::Damaged { .. }) => !is_map(finding),
        _ => false,
    };
    if found.iter().any(is_map) && !found.iter().any(is_lost) {
        return Some(
            "No data is lost by it: what cannot be read only counts what is in use. --repair counts all of that anew, from the volumes; \
             until then writes to the pool may fail"
                .into(),
        );
    }
    let is_other = |finding: &PoolFinding| !PoolRepair::can(finding) && !is_lost(finding);
    if found.iter().any(is_mixed) && !found.iter().any(is_lost) {
        return Some(match is_repaired {
            true => "What was written there before is one's or another's: look at the volumes that are named (fsck), or take what they had from a copy. From now on \
                     each writes to blocks of its own"
                .into(),
            false => "Nobody may write to the volumes that are named: each write may go over what another has there. --repair has each write to blocks of its own; \
                      what was written before is one's or another's, so look at both (fsck), or take what they had from a copy"
                .into(),
        });
    }
    if !found.iter().any(is_lost) && found.iter().any(is_other) {
        return Some(
            "Nothing is lost by what is named; what --repair does not put right stays as it is"
                .into(),
        );
    }
    Some(match (found.is_empty(), found.iter().any(is_lost)) {
        (true, _) => return None,
        (false, false) if is_repaired => "Not all could be put right: run it once more".into(),
        (false, false) => {
            let is_left = |finding: &PoolFinding| matches!(finding, PoolFinding::LeftWriter { .. });
            match found.iter().any(is_left) {
                true => "--repair puts that right; it changes only what is counted, and takes away what is on record of volumes that are no more",
                false => "--repair puts that right; only what is counted is changed by it",
            }
            .into()
        }
        (false, true) => {
            "What cannot be read is lost, of snapshots and clones that share it, too. Put the metadata part back if there is a copy of it that is as new as \
             the data; else copy what can be read of the volumes that are named, delete them and their snapshots, and say --repair, which then gives back \
             their room"
                .into()
        }
    })
}
