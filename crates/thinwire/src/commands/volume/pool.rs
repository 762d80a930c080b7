//! `thinwire volume create POOL@NAME`, `snapshot`, `clone`, `rollback`, `delete`, `grow` and `show`: volumes of pools, done here while nobody uses the pool, or by the attachment or
//! target that does.

use std::time::{Duration, Instant};

use serde::Serialize;
use thinwire_modules::thin::{PoolDone, PoolOp, ThinPool};

use super::options_of;
use crate::cli::VolumeCommon;
use crate::control::{ControlClient, ControlError, ControlRequest, Response};
use crate::cuts::CutStatus;
use crate::error::{Failure, FailureKind, Outcome};
use crate::guard::refuse_in_use;
use crate::last_resort::{LastWords, catch_signals};
use crate::open::{Ending, OpenVolume, Wait, let_go, let_go_failed, open_volume};
use crate::output;
use crate::pool::{PoolName, PoolPlace, PoolRequest, PoolStatus, PoolVolumeStatus, describe};
use crate::rundir::{RunDir, SCHEMA};
use crate::signals::Signals;
use crate::size::show_size;
use crate::uri::VolumeSpec;

/// How often is looked how far it is.
pub(super) const GLANCE: Duration = Duration::from_millis(20);
/// So long whoever uses it may take: a snapshot waits for what is being written.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// How often that is said.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// A pool that is open to be changed, and what drives it.
pub(super) struct OpenPool<'a> {
    open: Box<dyn OpenVolume>,
    pub pool: ThinPool,
    signals: &'a Signals,
}

impl OpenPool<'_> {
    fn turn(&mut self) -> Outcome {
        self.open.turn(Wait::Until(Instant::now() + GLANCE))?;
        self.pool.poll();
        Ok(())
    }

    /// The same; with a signal it ends, and says what that means.
    pub fn turn_or_end(&mut self, means: &str) -> Outcome {
        match self.signals.take() {
            Some(_) => Err(Failure::failed(format!("interrupted: {means}"))),
            None => self.turn(),
        }
    }

    /// Until nothing is left to do, and all is durable.
    pub fn rest(&mut self) -> Outcome {
        while !self.pool.is_idle() {
            if let Some(why) = self.pool.stopped() {
                return Err(Failure::failed(why));
            }
            self.pool.commit();
            self.turn_or_end("nothing is half done")?;
        }
        Ok(())
    }

    /// Does one thing, durably.
    fn act(&mut self, op: PoolOp) -> Outcome<PoolDone> {
        let number = self.pool.begin(op);
        let mut ended = Vec::new();
        loop {
            self.pool.poll_ops(&mut ended);
            if let Some((_, result)) = ended.drain(..).find(|(ended, _)| *ended == number) {
                let failed = |e| Failure::failed(describe(&e, &self.pool.report()));
                return result.map_err(failed);
            }
            if self.signals.take().is_some() {
                return Err(Failure::failed(
                    "interrupted: it was done, or it was not; `thinwire volume show` says",
                ));
            }
            self.turn()?;
        }
    }

    /// Until what was deleted has been given back; that can be left to whoever uses the pool next.
    fn reap(&mut self, is_json: bool) -> Outcome {
        let mut said_at = Instant::now();
        while self.pool.report().is_reaping && self.pool.stopped().is_none() {
            if self.signals.take().is_some() {
                output::complain("interrupted: its blocks come back when the pool is used");
                return Ok(());
            }
            if said_at.elapsed() >= SAY_EVERY && !is_json {
                said_at = Instant::now();
                let used = self.pool.report().data_used_bytes;
                output::complain(&format!("{} of data are in use", show_size(used)));
            }
            self.turn()?;
        }
        if let Some(why) = self.pool.report().unreaped {
            output::complain(&format!(
                "it is deleted, and some of its room has not come back: {why}; that is tried again whenever the pool is used, and \
                 `thinwire volume check` says if it is damaged"
            ));
        }
        Ok(())
    }
}

/// The pool of a volume, and the name of that.
fn pool_of(spec: &VolumeSpec) -> Outcome<(VolumeSpec, Option<&str>)> {
    spec.pool().ok_or_else(|| {
        Failure::usage(format!(
            "{spec} is no pool, nor a volume of one: describe one with kind = \"thin\", and name a volume of it as FILE.toml#POOL@VOLUME"
        ))
    })
}

/// Does something to a volume of a pool; `request` is made of its name.
pub fn act(
    spec: &VolumeSpec,
    request: impl FnOnce(String) -> PoolRequest,
    take_over: bool,
    common: &VolumeCommon,
) -> Outcome {
    let (pool, name) = pool_of(spec)?;
    let Some(name) = name else {
        return Err(Failure::usage(format!(
            "{spec} is a pool: name a volume of it, as {spec}@VOLUME"
        )));
    };
    let request = request(name.to_owned());
    if let Some((said, status)) = ask_pool(&pool, &request, common)? {
        return match common.json {
            true => say_status(&status),
            false => output::say(&said),
        };
    }
    refuse_in_use(&pool, "changing it")?;
    let done = with_pool(&pool, (false, false), take_over, common, |open| {
        let op = request.op(&open.pool.report()).map_err(Failure::failed)?;
        let Some((op, said)) = op else { unreachable!("something is done") };
        open.act(op)?;
        if matches!(request, PoolRequest::Delete { .. }) {
            open.reap(common.json)?;
        }
        Ok((said, PoolStatus::of(&open.pool.report(), &[])))
    });
    let (said, status) = done?;
    match common.json {
        true => say_status(&status),
        false => output::say(&said),
    }
}

/// What whoever has something open has done.
pub(super) enum Answered {
    /// To a pool, in a sentence, and how that stands then.
    Pool(String, PoolStatus),
    /// To snapshots of a volume over several, in a sentence, and which there are.
    Cuts(String, Vec<CutStatus>),
}

/// Has an attachment or a target do it that has the pool open; none if there is no such. What was done, in a sentence, and how the pool
/// stands then.
fn ask_pool(
    pool: &VolumeSpec,
    request: &PoolRequest,
    common: &VolumeCommon,
) -> Outcome<Option<(String, PoolStatus)>> {
    let Some(wanted) = PoolName::of(pool) else { return Ok(None) };
    match ask_user((&wanted, "the pool"), request, common)? {
        Some(Answered::Pool(said, status)) => Ok(Some((said, status))),
        Some(Answered::Cuts(..)) => Err(Failure::failed(format!("{pool} is no pool there"))),
        None => Ok(None),
    }
}

/// Has an attachment or a target do it that has that open; none if there is no such.
pub(super) fn ask_user(
    (wanted, what): (&PoolName, &str),
    request: &PoolRequest,
    common: &VolumeCommon,
) -> Outcome<Option<Answered>> {
    let Some(dir) = RunDir::open(&common.run_dir.run_dir)? else { return Ok(None) };
    let Some((name, who, pool)) = user_of(&dir, wanted)? else { return Ok(None) };
    let failed = |e: ControlError| Failure::failed(format!("{who} has {what}: {e}"));
    let asked = ControlRequest::Pool { pool, request: request.clone() };
    let mut client = ControlClient::ask(&dir, &name, asked).map_err(failed)?;
    match client.answer(ANSWER_PATIENCE).map_err(failed)? {
        Response::Pool { said, status } => Ok(Some(Answered::Pool(said, *status))),
        Response::Cuts { said, cuts } => Ok(Some(Answered::Cuts(said, cuts))),
        Response::Refused { why } => Err(Failure::failed(format!("{who} has {what}: {why}"))),
        other => Err(Failure::failed(format!("{who} has {what}, and says {other:?}"))),
    }
}

/// Which process has a pool open: its name in the run directory, what people call it, and what it calls the pool.
fn user_of(dir: &RunDir, wanted: &PoolName) -> Outcome<Option<(String, String, PoolName)>> {
    let find = |pools: Vec<PoolName>| pools.into_iter().find(|pool| pool.is(wanted));
    for name in dir.names()? {
        let found = dir.record(&name).and_then(|record| find(record.pools));
        if let (Some(pool), true) = (found, dir.is_alive(&name)) {
            let who = format!("attachment `{name}`");
            return Ok(Some((name, who, pool)));
        }
    }
    for name in dir.targets()? {
        let Some(record) = dir.target_record(&name) else { continue };
        if let (Some(pool), true) = (find(record.pools), dir.is_alive(&name)) {
            return Ok(Some((name, format!("target {}", record.node), pool)));
        }
    }
    Ok(None)
}

/// Refuses a pool that somebody uses.
pub(super) fn refuse_used(pool: &VolumeSpec, common: &VolumeCommon) -> Outcome {
    let Some(wanted) = PoolName::of(pool) else { return Ok(()) };
    let Some(dir) = RunDir::open(&common.run_dir.run_dir)? else { return Ok(()) };
    match user_of(&dir, &wanted)? {
        None => Ok(()),
        Some((_, who, _)) => Err(Failure {
            kind: FailureKind::Busy,
            message: format!(
                "{who} uses the pool, and it changes meanwhile: detach it, or end it, first"
            ),
        }),
    }
}

/// Opens a pool, to be read only or to be repaired, has something done, and lets go of it.
pub(super) fn with_pool<T>(
    pool: &VolumeSpec,
    (read_only, repairs): (bool, bool),
    take_over: bool,
    common: &VolumeCommon,
    act: impl FnOnce(&mut OpenPool<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let caught = catch_signals(2, &[pool])?;
    with_pool_by(pool, (read_only, repairs), take_over, common, &caught, act)
}

/// The same, for who takes signals already, and goes on behind it.
pub(super) fn with_pool_by<T>(
    pool: &VolumeSpec,
    (read_only, repairs): (bool, bool),
    take_over: bool,
    common: &VolumeCommon,
    (signals, last_words): &(Signals, LastWords),
    act: impl FnOnce(&mut OpenPool<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let mut options = options_of(common, signals)?;
    let place = PoolPlace::new(repairs);
    (options.read_only, options.take_over) = (read_only, take_over);
    options.pool = Some(place.clone());
    let mut open = open_volume(pool, &options, Some(signals))
        .inspect_err(|failure| last_words.set(failure))?;
    open.watch(signals.fd())?;
    let Some(pool) = place.take() else {
        return Err(Failure::failed("the pool was opened for one of its volumes"));
    };
    let mut open = OpenPool { open, pool, signals };
    let done = act(&mut open);
    let OpenPool { mut open, pool, .. } = open;
    let has_stopped = pool.stopped().is_some();
    drop(pool);
    match done {
        Ok(done) => let_go(&mut *open, Ending::Orderly).map(|()| done),
        // Refused: nothing was begun.
        Err(failure) if !has_stopped => let_go(&mut *open, Ending::Orderly).and(Err(failure)),
        Err(failure) => {
            let_go_failed(&mut *open, !read_only);
            Err(failure)
        }
    }
}

/// `volume show --json`.
#[derive(Serialize)]
struct JsonPool<'a> {
    schema: u32,
    #[serde(flatten)]
    pool: &'a PoolStatus,
}

fn say_status(pool: &PoolStatus) -> Outcome {
    output::say_json(&JsonPool { schema: SCHEMA, pool })
}

/// Shows how full a pool is, and its volumes.
pub fn show(spec: &VolumeSpec, space: bool, common: &VolumeCommon) -> Outcome {
    let (pool, _) = pool_of(spec)?;
    if let Some((_, status)) = ask_pool(&pool, &PoolRequest::Show { space }, common)? {
        return say_pool(&status, common.json);
    }
    let (report, own) = with_pool(&pool, (true, false), false, common, |open| {
        let report = open.pool.report();
        let mut own = Vec::new();
        for volume in report.volumes.iter().filter(|_| space) {
            match open.act(PoolOp::Measure { volume: volume.volume })? {
                PoolDone::Measured { own_bytes, .. } => own.push(Some(own_bytes)),
                other => unreachable!("{other:?} of a measurement"),
            }
        }
        Ok((report, own))
    })?;
    say_pool(&PoolStatus::of(&report, &own), common.json)
}

/// As few as are left when somebody is told: a tenth of all.
const FEW_SNAPSHOTS: u64 = (1 << 28) / 10;

fn say_pool(json: &PoolStatus, is_json: bool) -> Outcome {
    let damaged = json.damaged.as_ref().map_or(Ok(()), |why| {
        Err(Failure::failed(format!("not all volumes of the pool can be read: {why}")))
    });
    if is_json {
        return say_status(json).and(damaged);
    }
    let of = |used, all| format!("{} of {}", show_size(used), show_size(all));
    let mut text = format!(
        "data: {} in use, in blocks of {}; metadata: {}",
        of(json.data_used_bytes, json.data_bytes),
        show_size(json.block_bytes),
        of(json.metadata_used_bytes, json.metadata_bytes)
    );
    if let Some(why) = &json.unreaped {
        text += &format!(
            "\nsome of the room of deleted volumes does not come back: {why}; `thinwire volume check --repair` gives up what cannot be read"
        );
    }
    if let Some(left) = json.snapshots_left.filter(|left| *left < FEW_SNAPSHOTS) {
        text += &format!(
            "\n{left} more snapshots, clones and rollbacks can be made: before the end of them make another pool, and copy volumes to that"
        );
    }
    let row = |volume: &PoolVolumeStatus| {
        let kind = match (volume.is_snapshot, &volume.origin) {
            (true, Some(origin)) => format!("snapshot of {origin}"),
            (true, None) => "snapshot".into(),
            (false, Some(origin)) => format!("clone of {origin}"),
            (false, None) => "-".into(),
        };
        let size = |bytes: Option<u64>| bytes.map_or("-".into(), show_size);
        vec![
            volume.name.clone(),
            show_size(volume.bytes),
            show_size(volume.mapped_bytes),
            size(volume.own_bytes),
            size(volume.shared_bytes),
            kind,
        ]
    };
    let rows: Vec<_> = json.volumes.iter().map(row).collect();
    if !rows.is_empty() {
        text += "\n\n";
        text += &output::table(&["NAME", "SIZE", "MAPPED", "OWN", "SHARED", "WHAT"], &rows);
    }
    output::say(&output::printable(&text)).and(damaged)
}
